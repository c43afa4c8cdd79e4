"""Merging threads that a saver wrote: channel by channel, into a checkpoint from which the graph goes on.

What comes next is taken from one side, ours: LangGraph's own channels, and what each node has seen, only make sense
together. The values of the graph's channels are merged by the three-way rules; with the graph at hand, a channel that
has a reducer gets what theirs wrote since the common ancestor, applied to ours. Reducers are functions of somebody's
own, so a way to apply it is taken only if it turns the ancestor's value into theirs, exactly.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput, MergeConflict, StoreError
from everstep.history.ancestry import Ancestry
from everstep.history.checkpoint_tree import is_unmoved
from everstep.history.merge_base import MergeBase, root_of_nodes
from everstep.history.three_way import Resolve, merge
from everstep.langgraph import display
from everstep.langgraph.channels import FOREIGN, LIST_CHANNEL, PLAIN, SEED, WRITES, Channels, Form, Written, repeats_max
from everstep.langgraph.classes import Kinds
from everstep.langgraph.compat import new_checkpoint_id, next_version, number_of
from everstep.langgraph.envelope import seed_forms
from everstep.langgraph.merge_steps import PartedLine, Piece, Steps
from everstep.langgraph.messages import Messages, base_class
from everstep.langgraph.saved import KIND, node_of
from everstep.reports import Conflict
from everstep.repository.repository import Repository, squeezed_objects
from everstep.runtime.deadlines import held_by_caller
from everstep.stores.protocol import BaseRef, Draft, Key, Place, Query, Record, Root, Store, Stored, Write
from everstep.types import MISSING, utc_now
from everstep.values import codec, tree

KINDS = Kinds().exact()
"""The rules for classes where no graph says which saver's rules count: those that are imported may be in values."""

_EMPTY = KINDS.codec.pack([]), KINDS.codec.pack(set())
_COUNTERS = "counters_since_delta_snapshot"


class OpenedSide(NamedTuple):
    """A checkpoint, opened."""

    channels: Mapping[str, Written]
    envelope: Mapping[str, Any]
    rest: Mapping[str, Written]
    """What delta channels are made from."""
    objects: Mapping[bytes, tree.Content]


async def merged(
    repository: Repository,
    sides: tuple[Stored, Stored],
    base: MergeBase,
    bases: Sequence[Place],
    ancestry: Ancestry,
    *,
    resolve: Resolve,
    graph: Any,
) -> Draft:
    """Return the checkpoint that has ours with what theirs did since their common ancestors."""
    ours, theirs = sides
    if graph is not None:
        _gathering(graph)
    rest_on = [BaseRef(stored.record.key, stored.digest) for stored in sides]
    if is_unmoved(ours, bases):
        # Ours has done nothing since, so that the merge is as theirs.
        counters = theirs.record.metadata.get(_COUNTERS)
        return Draft(_record(sides, theirs.record.root, counters), (), rest_on)
    merger = _Merger(repository, sides, base, bases, ancestry, graph)
    await merger.open()
    nodes, objects = await merger.nodes(resolve)
    await repository.repeats_of(nodes, objects, [ours.family], repeats_max())
    record = _record(sides, root_of_nodes(nodes), merger.counters())
    return Draft(record, squeezed_objects(objects, thorough=True), rest_on)


async def named(store: Store, drafts: Sequence[Draft]) -> list[Draft]:
    """Return the checkpoints of a merge with ids of their own, greater than all others of the thread.

    That of the first is the greatest, so that a rewind to it leaves the others.
    """
    into = drafts[0].record.key.thread_id
    query = Query(thread_id=into, namespace=None, order="id", hidden="also", limit=1)
    greatest = [stored.record.key.checkpoint_id for stored in await store.list_checkpoints(query)]
    found: list[Draft] = []
    for draft in (*drafts[1:], drafts[0]):
        key = draft.record.key._replace(checkpoint_id=new_checkpoint_id(after=greatest))
        found.append(draft._replace(record=draft.record._replace(key=key)))
    return [found[-1], *found[:-1]]


def _record(sides: tuple[Stored, Stored], root: Root, counters: Any) -> Record:
    """Return the record of the merge, which gets its name in `named`."""
    ours, theirs = sides
    into, namespace, _ = ours.record.key
    step = ours.record.step + 1
    metadata = {"source": "update", "step": step, "parents": ours.record.metadata.get("parents", {})}
    if counters:
        metadata[_COUNTERS] = counters
    return Record(
        key=Key(into, namespace, ""),
        step=step,
        parents=(ours.record.key, theirs.record.key),
        created_at=utc_now(),
        children=root.children,
        body=root.body,
        sizes=root.sizes,
        tags=("merge",),
        summary=f"Merge {theirs.record.key.thread_id} into {into}",
        kind=KIND,
        metadata=metadata,
    )


class _Merger:
    """One merge."""

    def __init__(
        self,
        repository: Repository,
        sides: tuple[Stored, Stored],
        base: MergeBase,
        bases: Sequence[Place],
        ancestry: Ancestry,
        graph: Any,
    ) -> None:
        self._repository = repository
        self._stored = sides
        self._base = base
        self._graph = graph
        self._line = PartedLine(repository.store, *sides, bases, ancestry)
        kinds = _kinds_of(graph)
        self._codec = kinds.codec
        self._channels = Channels(kinds)
        self._messages = Messages(kinds)
        self._writer = tree.Writer(packer=self._codec)
        self._decided: dict[str, Written | None] = {}
        """Channels that are not for the three-way rules; None: it is not there."""
        self._delta_names: set[str] = set()
        self._moved_deltas: list[str] = []

    async def open(self) -> None:
        """Read the three checkpoints."""
        ours, theirs = self._stored
        self._ours = await self._side(ours.record.root, ours.family)
        self._theirs = await self._side(theirs.record.root, theirs.family)
        self._before = await self._side(
            self._base.root, ours.family, self._base.objects, self._ours.envelope.get("forms", {})
        )

    async def _side(
        self,
        root: Root,
        family: str,
        at_hand: Mapping[bytes, tree.Content] = MappingProxyType({}),
        usual_forms: Mapping[str, Form] = MappingProxyType({}),
    ) -> OpenedSide:
        nodes = tree.nodes(*root)
        if len(nodes) != 3:
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        objects = {**at_hand, **await self._lacking(root, family, at_hand)}
        conversation, others, rest = nodes
        envelope, kept = self._channels.opened_envelope(rest, objects)
        # Several ancestors are merged into a view of their values, which has no envelope of its own.
        forms = envelope.get("forms", {}) if envelope else usual_forms
        found = self._channels.opened(forms, others, objects)
        if LIST_CHANNEL in forms and LIST_CHANNEL not in found:
            found[LIST_CHANNEL] = self._channels.thawed(forms[LIST_CHANNEL], conversation, objects, top=True)
        seeds = envelope.get("seeds", {})
        deltas: dict[str, Written] = {}
        for name, node in kept.items():
            form = seeds.get(name.removeprefix(SEED), PLAIN)
            deltas[name] = self._channels.thawed(form, node, objects)
        return OpenedSide(found, envelope, deltas, objects)

    async def _lacking(
        self, root: Root, family: str, at_hand: Mapping[bytes, tree.Content]
    ) -> Mapping[bytes, tree.Content]:
        """Return the objects below a root that are not at hand."""

        def children_of(key: bytes) -> bytes | None:
            content = at_hand.get(key)
            return content[0] if content is not None else None

        _, unknown = tree.reachable(root.children, children_of)
        return await self._repository.objects(family, b"".join(unknown))

    async def nodes(self, resolve: Resolve) -> tuple[list[tree.Node], dict[bytes, tree.Content]]:
        """Return the values of the merge, and the objects they need."""
        deltas, clashes = await self._deltas(resolve)
        self._opaque(resolve, clashes)
        if self._graph is not None:
            await self._reduce()
        channels, objects = await self._three_way(resolve, clashes)
        merged: dict[str, Written | None] = {**channels, **self._decided}
        rest: dict[str, Written] = {}
        for name, (value, kept) in deltas.items():
            merged[name] = value
            rest.update(kept)
        channels = {name: value for name, value in merged.items() if value is not None}
        envelope = self._envelope(channels)
        envelope.pop("seeds", None)
        seeds = seed_forms(rest)
        if seeds:
            envelope["seeds"] = seeds
        conversation = tree.EMPTY_LIST
        if _stands_alone(channels):
            conversation = channels.pop(LIST_CHANNEL).node or tree.EMPTY_LIST
        nodes = [
            conversation,
            self._channels.mapping(self._writer, channels, self._channels.small(channels)),
            self._channels.envelope(self._writer, envelope, rest)[0],
        ]
        return nodes, {**objects, **self._writer.objects}

    # -- the three-way rules

    async def _three_way(
        self, resolve: Resolve, clashes: Sequence[Conflict]
    ) -> tuple[dict[str, Written], dict[bytes, tree.Content]]:
        """Merge the channels path by path. What is decided elsewhere stays as in ours meanwhile."""
        ours, theirs = self._stored
        walk = merge(
            _without_envelope(self._base.root),
            _without_envelope(ours.record.root),
            _without_envelope(theirs.record.root),
            resolve=self._lowering(resolve),
            uncertain=self._base.uncertain,
            ours_count=self._is_decided,
            reader=self._codec,
        )
        found = await self._repository.walk(walk, [ours.family], self._base.objects)
        if found.conflicts or clashes:
            raise MergeConflict([*found.conflicts, *clashes])
        objects = {**self._ours.objects, **self._theirs.objects, **found.objects}
        channels = self._channels.opened({}, found.nodes[1], objects)
        is_list_apart = _stands_alone(self._ours.channels) or _stands_alone(self._theirs.channels)
        if is_list_apart and LIST_CHANNEL not in channels:
            channels[LIST_CHANNEL] = self._channels.thawed(PLAIN, found.nodes[0], objects, top=True)
        formed = {name: value._replace(form=self._form(name, value)) for name, value in channels.items()}
        return formed, found.objects

    def _is_decided(self, path: str) -> bool:
        """Whether a path is not for the three-way rules: LangGraph's own, and what reducers decided."""
        if display.is_internal_path(path):
            return True
        decided = {display.path_of(name) for name in self._decided.keys() | self._delta_names}
        return path in decided or (path == LIST_CHANNEL and LIST_CHANNEL in self._decided)

    def _form(self, name: str, value: Written) -> Form:
        """Return in which form a merged value is kept: in the form of the side it is from, or in both."""
        by_key: dict[str, Any] = {}
        greatest = PLAIN
        is_mapping = False
        for side in (self._ours, self._theirs):
            channel = side.channels.get(name)
            if channel is None:
                continue
            if channel.packed == value.packed:
                return channel.form
            if isinstance(channel.form, dict):
                is_mapping = True
                by_key.update(channel.form)
            else:
                greatest = max(greatest, channel.form)
        if is_mapping:
            return by_key
        # An empty list has no form of its own.
        if value.items is not None and value.items.length == 0:
            return PLAIN
        return greatest

    def _opaque(self, resolve: Resolve, clashes: list[Conflict]) -> None:
        """Decide the channels that a serializer of somebody's own packed: nobody can look into them."""
        for name in {**self._ours.channels, **self._theirs.channels}:
            ours = self._ours.channels.get(name)
            theirs = self._theirs.channels.get(name)
            is_opaque = _is_foreign(ours) or _is_foreign(theirs)
            if not is_opaque or display.is_internal(name):
                continue
            before_packed = _packed_of(self._before.channels.get(name))
            ours_packed = _packed_of(ours)
            theirs_packed = _packed_of(theirs)
            if theirs_packed in (before_packed, ours_packed) or resolve == "ours":
                self._decided[name] = ours
            elif ours_packed == before_packed or resolve == "theirs":
                self._decided[name] = theirs
            else:
                # Only a person can decide, and only about the channel as a whole: there are no paths in it.
                self._decided[name] = ours
                clashes.append(_clash(name))

    def _lowering(self, resolve: Resolve) -> Resolve:
        """Return `resolve` with messages among its values as they are kept."""
        if resolve is None or isinstance(resolve, str):
            return resolve
        if isinstance(resolve, Mapping):
            return {path: self._lowered(path, value) for path, value in resolve.items()}
        decide: Callable[[Conflict], Any] = resolve
        return lambda conflict: self._lowered(conflict.path, decide(conflict))

    def _lowered(self, path: str, value: Any) -> Any:
        base = base_class()
        if base is None:
            return value
        if isinstance(value, list) and any(isinstance(item, base) for item in value):
            return self._messages.lowered(_as_messages(value)) or value
        if isinstance(value, base):
            found = self._messages.lowered([value])
            # In the conversation a message is an item; a channel of one message is kept as a list of it.
            if found and path.startswith("messages["):
                return found[0]
            return found or value
        return value

    # -- what the checkpoint is besides its values

    def _envelope(self, channels: Mapping[str, Written]) -> dict[str, Any]:
        """Return ours, with a new version for every channel whose value is not as in ours."""
        envelope = dict(self._ours.envelope)
        versions = dict(envelope["channel_versions"])
        known = [*versions.values(), *self._theirs.envelope["channel_versions"].values()]
        newest = next_version(max(known, key=number_of, default=None))
        changed = self._changed_names(channels)
        for name in changed:
            versions[name] = newest
        envelope["channel_versions"] = versions
        if envelope.get("updated_channels") is not None:
            # LangGraph looks only at the nodes that these start: those that ours had next are among them.
            envelope["updated_channels"] = sorted({*envelope["updated_channels"], *changed})
        forms = {name: value.form for name, value in channels.items() if value.form != PLAIN}
        if _stands_alone(channels):
            forms.setdefault(LIST_CHANNEL, PLAIN)
        envelope.pop("forms", None)
        if forms:
            envelope["forms"] = forms
        return envelope

    def _changed_names(self, channels: Mapping[str, Written]) -> list[str]:
        """Return the channels whose values are not as in ours."""
        changed: list[str] = []
        for name in {**self._ours.channels, **channels}:
            before = self._ours.channels.get(name)
            after = channels.get(name)
            if before is None or after is None or before.packed != after.packed:
                changed.append(name)
        for name in self._moved_deltas:
            if name not in changed:
                changed.append(name)
        return changed

    # -- delta channels

    async def _deltas(
        self, resolve: Resolve
    ) -> tuple[dict[str, tuple[Written | None, dict[str, Written]]], list[Conflict]]:
        """Return, by channel, its value or what that is made from: a stored value and the writes since."""
        found: dict[str, tuple[Written | None, dict[str, Written]]] = {}
        clashes: list[Conflict] = []
        self._delta_names = self._find_delta_names()
        for name in sorted(self._delta_names):
            before = _delta(self._before, name)
            ours = _delta(self._ours, name)
            theirs = _delta(self._theirs, name)
            side = self._ours
            chosen = ours
            is_changed = theirs not in (before, ours)
            if is_changed and (ours == before or resolve == "theirs"):
                side = self._theirs
                chosen = theirs
            elif is_changed and resolve != "ours":
                new = await self._new_items(name, before, theirs)
                if new is None:
                    clashes.append(_clash(name))
                    continue
                chosen = ours._replace(items=ours.items + new)
            if chosen != ours:
                self._moved_deltas.append(name)
            found[name] = self._made_of(name, _seed(side, name), chosen.items)
        return found, clashes

    def _find_delta_names(self) -> set[str]:
        names: set[str] = set()
        for side in (self._ours, self._theirs):
            for name in side.rest:
                if name.startswith(WRITES):
                    names.add(name.removeprefix(WRITES))
        if self._graph is not None:
            # Such a channel may have its value stored on both sides: then only the graph tells what it is.
            known = {**self._ours.channels, **self._theirs.channels}
            names |= _gathering(self._graph, "DeltaChannel").keys() & known.keys()
        return names

    async def _new_items(self, name: str, before: _Delta, theirs: _Delta) -> tuple[bytes, ...] | None:
        """Return what theirs wrote to a delta channel since the ancestor, but for what ours have too; None: unknown."""
        steps = await self._line.steps([name])
        if theirs.seed == before.seed and _begin(theirs, before):
            found = theirs.items[len(before.items) :]
        elif steps.is_own:
            # A value was stored meanwhile, so that the list of writes begins there: it is taken from the steps.
            found = await self._items(itertools.chain(*steps.writes))
        else:
            return None
        pending = await self._line.shared_writes(steps)
        if pending is None:
            return None
        shared = await self._items(_to_channel(name, pending))
        return tuple(item for item in found if item not in shared)

    async def _items(self, writes: Iterable[Write]) -> tuple[bytes, ...]:
        """Return writes as the items of a delta channel are kept."""
        written = list(writes)
        children = b"".join([write.children for write in written])
        objects = await self._repository.objects(self._stored[0].family, children)
        found: list[bytes] = []
        for write in written:
            value = self._channels.plain(node_of(write), objects)
            found.append(self._codec.pack([write.task_id, write.body[0], value]))
        return tuple(found)

    def _made_of(
        self, name: str, seed: Written | None, items: Sequence[bytes]
    ) -> tuple[Written | None, dict[str, Written]]:
        if not items and seed is not None:
            return seed, {}
        kept: dict[str, Written] = {}
        if seed is not None:
            kept[SEED + name] = self._channels.anew(self._writer, seed)
        written = [self._codec.unpack(item) for item in items]
        kept[WRITES + name] = self._channels.extended(self._writer, name, None, written)
        return None, kept

    def counters(self) -> dict[str, Any]:
        """Return LangGraph's counters for delta channels."""
        ours, theirs = [stored.record.metadata.get(_COUNTERS) or {} for stored in self._stored]
        found = {**theirs, **ours}
        for name in self._moved_deltas:
            if name in theirs:
                found[name] = theirs[name]
        return found

    # -- reducers

    async def _reduce(self) -> None:
        """Decide the channels of the graph that have a reducer and that both sides changed."""
        specs = _gathering(self._graph, "BinaryOperatorAggregate", "Topic")
        open_names = [name for name in specs if self._is_open(name)]
        if not open_names:
            return
        steps = await self._line.steps(open_names)
        pending = await self._line.shared_writes(steps)
        if pending is None:
            return
        shared = {_place(write) for write in pending}
        for name in open_names:
            value = await self._applied(specs[name], name, steps, shared)
            if value is not MISSING:
                top = self._channels.stands_alone(name, value)
                self._decided[name] = self._channels.written(self._writer, name, value, None, top=top)

    def _is_open(self, name: str) -> bool:
        """Whether both sides changed a channel, and nothing has decided about it yet."""
        if name in self._decided:
            return False
        sides = [side.channels.get(name) for side in (self._before, self._ours, self._theirs)]
        # Nobody here can read what is foreign: see `_opaque`.
        if any(_is_foreign(side) for side in sides):
            return False
        before, ours, theirs = map(_packed_of, sides)
        return ours is not None and theirs is not None and before not in (ours, theirs)

    async def _applied(self, spec: Any, name: str, own: Steps, shared: Set[_Place]) -> Any:
        """Return ours with what theirs wrote; MISSING: no way to do it turns the ancestor's value into theirs."""
        before = self._value_of(name, self._before.channels)
        ours = self._value_of(name, self._ours.channels)
        theirs = self._value_of(name, self._theirs.channels)
        for way in await self._ways(name, theirs, own, shared):
            try:
                if await self._leads_to_theirs(spec, name, way, before, own):
                    return _updated(spec, ours, way.applied)
            except (StoreError, CheckpointCorrupted):
                raise
            except Exception:  # noqa: S112  # a reducer that does not take it: another way may do
                continue
        return MISSING

    async def _ways(self, name: str, theirs: Any, own: Steps, shared: Set[_Place]) -> list[_Way]:
        """Return how theirs may have come to its value, the likeliest first."""
        steps = [_to_channel(name, step) for step in own.writes]
        written = await self._values(steps)
        fresh = await self._values([_without(step, shared) for step in steps])
        # After an earlier merge the ancestor, too, has what was pending where they parted: hence the second way.
        ways = [_Way(written, fresh), _Way(fresh, fresh), _Way(None, fresh)]
        # What both did in the same way, as they do if they part within a step, cannot be seen from the values alone.
        is_plain = self._ours.channels[name].packed != self._theirs.channels[name].packed
        if is_plain and not _is_running(self._before):
            for guess in self._guesses(name, theirs):
                ways.append(_Way(guess, guess))
        return ways

    async def _leads_to_theirs(self, spec: Any, name: str, way: _Way, before: Any, own: Steps) -> bool:
        """Whether a way turns the value of the ancestor into theirs, exactly."""
        if way.updates is None:
            return own.is_own and len(own.pieces) > 1 and await self._is_made_of(spec, name, own.pieces)
        made = self._packed(name, _updated(spec, before, way.updates))
        return made == self._theirs.channels[name].packed

    def _value_of(self, name: str, channels: Mapping[str, Written]) -> Any:
        """Return the value of a channel; MISSING if it has none."""
        return self._channels.unwritten(channels[name]) if name in channels else MISSING

    def _guesses(self, name: str, theirs: Any) -> list[list[list[Any]]]:
        """Return what may have been written: what a list has more at its end, or the value as a whole."""
        whole = [[theirs]]
        if not isinstance(theirs, list):
            return [whole]
        old = self._before.channels.get(name)
        before: Sequence[bytes] = []
        if old is not None and codec.is_list(old.packed):
            before = codec.items(old.packed)
        if codec.items(self._theirs.channels[name].packed)[: len(before)] != before:
            return [whole]
        added = [[theirs[len(before) :]]]
        return [added, whole]

    def _packed(self, name: str, value: Any) -> bytes:
        top = self._channels.stands_alone(name, value)
        return self._channels.written(tree.Writer(packer=self._codec), name, value, None, top=top).packed

    async def _is_made_of(self, spec: Any, name: str, pieces: Sequence[Piece]) -> bool:
        """Whether writes are all that happened to a channel, but for merges."""
        for piece in pieces:
            start = await self._side(piece.start.record.root, piece.start.family)
            end = await self._side(piece.end.record.root, piece.end.family)
            updates = await self._values([_to_channel(name, step) for step in piece.steps])
            made = _updated(spec, self._value_of(name, start.channels), updates)
            if name not in end.channels or self._packed(name, made) != end.channels[name].packed:
                return False
        return True

    async def _values(self, steps: Sequence[Sequence[Write]]) -> list[list[Any]]:
        """Return what was written, step by step; a step without writes is left out."""
        children = b"".join([write.children for write in itertools.chain(*steps)])
        objects = await self._repository.objects(self._stored[1].family, children)
        found: list[list[Any]] = []
        for step in steps:
            if step:
                found.append([self._channels.value(write.body[0], node_of(write), objects) for write in step])
        return found


class _Way(NamedTuple):
    """A way to apply what theirs wrote, which counts if its updates turn the value of the ancestor into theirs."""

    updates: Sequence[Sequence[Any]] | None
    """None: there was a merge in between, so that each piece of the line is looked at by itself."""
    applied: Sequence[Sequence[Any]]
    """What ours lacks of it."""


def _to_channel(name: str, writes: Iterable[Write]) -> list[Write]:
    return [write for write in writes if write.channel == name]


def _without(writes: Iterable[Write], shared: Set[_Place]) -> list[Write]:
    return [write for write in writes if _place(write) not in shared]


def _is_foreign(channel: Written | None) -> bool:
    return channel is not None and channel.form == FOREIGN


def _packed_of(channel: Written | None) -> bytes | None:
    return channel.packed if channel is not None else None


def _clash(name: str) -> Conflict:
    """Return a conflict about a channel as a whole, whose values cannot be shown."""
    return Conflict(display.path_of(name), MISSING, MISSING, MISSING)


def _without_envelope(root: Root) -> Root:
    """Return the values of a checkpoint alone: what else it is, is put together elsewhere."""
    conversation, others = tree.nodes(*root)[:2]
    return root_of_nodes([conversation, others, tree.EMPTY_MAP])


_Place = tuple[str, int, str, bytes, bytes]


def _place(write: Write) -> _Place:
    """Return what tells a write from others, wherever it is stored."""
    return write.task_id, write.idx, write.channel, write.children, write.body


class _Delta(NamedTuple):
    """What the value of a delta channel is made from."""

    seed: bytes | None
    items: tuple[bytes, ...]


def _delta(side: OpenedSide, name: str) -> _Delta:
    writes = side.rest.get(WRITES + name)
    items: Sequence[bytes] = ()
    # A value that is stored whole has all of the writes in it.
    if writes is not None and name not in side.channels:
        items = codec.items(writes.packed)
    return _Delta(_packed_of(_seed(side, name)), tuple(items))


def _seed(side: OpenedSide, name: str) -> Written | None:
    """Return the last value of a delta channel that was stored."""
    return side.channels.get(name) or side.rest.get(SEED + name)


def _is_running(side: OpenedSide) -> bool:
    """Whether nodes come next."""
    return any(display.starts_nodes(name) and value.packed not in _EMPTY for name, value in side.channels.items())


def _begin(longer: _Delta, shorter: _Delta) -> bool:
    return longer.items[: len(shorter.items)] == shorter.items


def _kinds_of(graph: Any) -> Kinds:
    """Return the rules for classes of the saver that a graph was compiled with."""
    channels = getattr(getattr(graph, "checkpointer", None), "channels", None)
    return channels.kinds.exact() if isinstance(channels, Channels) else KINDS


def _gathering(graph: Any, *kinds: str) -> dict[str, Any]:
    """Return the channels of a graph that are of one of these classes, which gather what is written to them."""
    channels = getattr(graph, "channels", None)
    if not isinstance(channels, Mapping):
        raise InvalidInput(f"graph= takes a compiled graph (or a StateGraph), not {type(graph).__name__}")
    found: dict[str, Any] = {}
    for name, spec in channels.items():
        if not isinstance(name, str) or display.is_internal(name):
            continue
        # By the names of the classes: LangGraph need not be imported for this.
        if any(cls.__name__ in kinds for cls in type(spec).__mro__):
            found[name] = spec
    return found


def _updated(spec: Any, value: Any, steps: Sequence[Sequence[Any]]) -> Any:
    """Return the value of a channel after these steps. The caller's own objects are not changed."""
    with held_by_caller():  # the reducer is the caller's
        if value is MISSING:
            channel = spec.copy()
        else:
            channel = spec.from_checkpoint(copy.deepcopy(value))
        for step in steps:
            channel.update(copy.deepcopy(list(step)))
        return channel.checkpoint()


def _as_messages(values: list[Any]) -> list[Any]:
    # It is there: one of the values is a message.
    from langchain_core.messages import convert_to_messages

    return convert_to_messages(values)


def _stands_alone(channels: Mapping[str, Written]) -> bool:
    return LIST_CHANNEL in channels and channels[LIST_CHANNEL].top
