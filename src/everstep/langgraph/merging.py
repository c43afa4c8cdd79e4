"""Merging threads that a saver wrote: channel by channel, into a checkpoint from which the graph goes on.

What comes next is taken from one side, ours: LangGraph's own channels, and what each node has seen, only make sense
together. The values of the graph's channels are merged by the three-way rules; with the graph at hand, a channel that
has a reducer gets what theirs wrote since the common ancestor, applied to ours. Reducers are functions of somebody's
own, so a way to apply it is taken only if it turns the ancestor's value into theirs, exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput, MergeConflict, StoreError
from everstep.history.ancestry import Ancestry
from everstep.history.checkpoint_tree import Ancestors, is_unmoved
from everstep.history.merge_base import MergeBase, root_of_nodes
from everstep.history.three_way import Resolve, merge
from everstep.langgraph import display
from everstep.langgraph.channels import (
    FOREIGN,
    LIST_CHANNEL,
    PLAIN,
    SEED,
    WRITES,
    Channels,
    Form,
    Written,
    repeats_max,
)
from everstep.langgraph.checkpoints import KIND
from everstep.langgraph.classes import Kinds
from everstep.langgraph.compat import new_checkpoint_id, next_version, number_of
from everstep.langgraph.messages import Messages, base_class
from everstep.reports import Conflict
from everstep.repository.repository import Repository, squeezed_objects
from everstep.runtime.deadlines import held_by_caller
from everstep.stores.protocol import BaseRef, Draft, Key, Place, Query, Record, Root, Store, Stored, Write
from everstep.types import MISSING, utc_now
from everstep.values import codec, tree

KINDS = Kinds().exact()
"""The rules for classes where no graph says which saver's rules count."""
"""The classes that the values of a merge may have: those that are imported."""

_STEPS_MAX = 10_000
_EMPTY = KINDS.codec.pack([]), KINDS.codec.pack(set())
_COUNTERS = "counters_since_delta_snapshot"


class Side(NamedTuple):
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
    if is_unmoved(ours, bases):  # all is as in theirs
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
        metadata=metadata | ({_COUNTERS: counters} if counters else {}),
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
        self._ancestry = ancestry
        self._known = Ancestors(bases)
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
        self._ours, self._theirs = [await self._side(stored.record.root, stored.family) for stored in (ours, theirs)]
        self._before = await self._side(
            self._base.root, ours.family, self._base.objects, self._ours.envelope.get("forms", {})
        )

    async def _side(
        self,
        root: Root,
        family: str,
        at_hand: Mapping[bytes, tree.Content] = MappingProxyType({}),
        usual_forms: Mapping[str, Form] = MappingProxyType({}),
    ) -> Side:
        nodes = tree.nodes(*root)
        if len(nodes) != 3:
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        needed = tree.reachable(root.children, lambda key: at_hand[key][0] if key in at_hand else None)[1]
        objects = {**at_hand, **await self._repository.objects(family, b"".join(needed))}
        conversation, others, rest = nodes
        envelope, kept = self._channels.opened_envelope(rest, objects)
        forms = envelope.get("forms", {}) if envelope else usual_forms  # of several ancestors there is only a view
        seeds = envelope.get("seeds", {})
        found = self._channels.opened(forms, others, objects)
        if LIST_CHANNEL in forms and LIST_CHANNEL not in found:
            found[LIST_CHANNEL] = self._channels.thawed(forms[LIST_CHANNEL], conversation, objects, top=True)
        deltas = {
            name: self._channels.thawed(seeds.get(name.removeprefix(SEED), PLAIN), node, objects)
            for name, node in kept.items()
        }
        return Side(found, envelope, deltas, objects)

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
        seeds = _seed_forms(rest)
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
        sides = [self._base.root, *(stored.record.root for stored in self._stored)]
        views = [root_of_nodes([*tree.nodes(*root)[:2], tree.EMPTY_MAP]) for root in sides]
        walk = merge(
            views[0],
            views[1],
            views[2],
            resolve=self._lowering(resolve),
            uncertain=self._base.uncertain,
            ours_count=self._is_decided,
            reader=self._codec,
        )
        found = await self._repository.walk(walk, [self._stored[0].family], self._base.objects)
        if found.conflicts or clashes:
            raise MergeConflict([*found.conflicts, *clashes])
        objects = {**self._ours.objects, **self._theirs.objects, **found.objects}
        channels = self._channels.opened({}, found.nodes[1], objects)
        if any(_stands_alone(side.channels) for side in (self._ours, self._theirs)) and LIST_CHANNEL not in channels:
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
        """Return in which form a merged value is kept: that of the side it is from, or of both."""
        sides = [side.channels[name] for side in (self._ours, self._theirs) if name in side.channels]
        for side in sides:
            if side.packed == value.packed:
                return side.form
        forms = [side.form for side in sides]
        if any(isinstance(form, dict) for form in forms):
            return {key: kind for form in forms if isinstance(form, dict) for key, kind in form.items()}
        if value.items is not None and value.items.length == 0:  # an empty list has no form of its own
            return PLAIN
        return max([form for form in forms if isinstance(form, int)], default=PLAIN)

    def _opaque(self, resolve: Resolve, clashes: list[Conflict]) -> None:
        """Decide the channels that a serializer of somebody's own packed: nobody can look into them."""
        for name in {**self._ours.channels, **self._theirs.channels}:
            before, ours, theirs = [side.channels.get(name) for side in (self._before, self._ours, self._theirs)]
            if FOREIGN not in [side.form for side in (ours, theirs) if side is not None] or display.is_internal(name):
                continue
            packed = [side.packed if side is not None else None for side in (before, ours, theirs)]
            if packed[2] in packed[:2] or resolve == "ours":
                self._decided[name] = ours
            elif packed[1] == packed[0] or resolve == "theirs":
                self._decided[name] = theirs
            else:
                self._decided[name] = ours  # for a person, that is: not path by path
                clashes.append(Conflict(display.path_of(name), MISSING, MISSING, MISSING))

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
            return found[0] if found and path.startswith("messages[") else found or value
        return value

    # -- what the checkpoint is besides its values

    def _envelope(self, channels: Mapping[str, Written]) -> dict[str, Any]:
        """Return ours, with a new version for every channel whose value is not as in ours."""
        envelope = dict(self._ours.envelope)
        versions = dict(envelope["channel_versions"])
        known = [*versions.values(), *self._theirs.envelope["channel_versions"].values()]
        newest = next_version(max(known, key=number_of, default=None))
        changed: list[str] = []
        for name in {**self._ours.channels, **channels}:
            before = self._ours.channels.get(name)
            after = channels.get(name)
            if before is None or after is None or before.packed != after.packed:
                changed.append(name)
        changed += [name for name in self._moved_deltas if name not in changed]
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

    # -- delta channels

    async def _deltas(
        self, resolve: Resolve
    ) -> tuple[dict[str, tuple[Written | None, dict[str, Written]]], list[Conflict]]:
        """Return, by channel, its value or what that is made from: a stored value and the writes since."""
        found: dict[str, tuple[Written | None, dict[str, Written]]] = {}
        clashes: list[Conflict] = []
        self._delta_names = {
            name.removeprefix(WRITES)
            for side in (self._ours, self._theirs)
            for name in side.rest
            if name.startswith(WRITES)
        }
        if self._graph is not None:  # such a channel may have its value stored on both sides
            known = {**self._ours.channels, **self._theirs.channels}
            self._delta_names |= _gathering(self._graph, "DeltaChannel").keys() & known.keys()
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
                    clashes.append(Conflict(display.path_of(name), MISSING, MISSING, MISSING))
                    continue
                chosen = ours._replace(items=ours.items + new)
            if chosen != ours:
                self._moved_deltas.append(name)
            found[name] = self._made_of(name, _seed(side, name), chosen.items)
        return found, clashes

    async def _new_items(self, name: str, before: _Delta, theirs: _Delta) -> tuple[bytes, ...] | None:
        """Return what theirs wrote to a delta channel since the ancestor, but for what ours have too; None: unknown."""
        steps = await self._steps([name])
        if theirs.seed == before.seed and _begin(theirs, before):
            found = theirs.items[len(before.items) :]
        elif steps.is_own:  # a value was stored meanwhile, so that the list of writes begins there
            found = await self._items([write for step in steps.writes for write in step])
        else:
            return None
        pending = await self._pending(steps.since) if any(steps.first) else ()
        if pending is None:
            return None
        shared = await self._items([write for write in pending if write.channel == name])
        return tuple(item for item in found if item not in shared)

    async def _items(self, writes: Sequence[Write]) -> tuple[bytes, ...]:
        objects = await self._repository.objects(self._stored[0].family, b"".join([write.children for write in writes]))
        values = [self._channels.plain(tree.Node(w.children, w.body[1:], w.size), objects) for w in writes]
        return tuple(
            self._codec.pack([write.task_id, write.body[0], value]) for write, value in zip(writes, values, strict=True)
        )

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
        return {**theirs, **ours, **{name: theirs[name] for name in self._moved_deltas if name in theirs}}

    # -- reducers

    async def _reduce(self) -> None:
        """Decide the channels of the graph that have a reducer and that both sides changed."""
        specs = _gathering(self._graph, "BinaryOperatorAggregate", "Topic")
        open_names = [name for name in specs if self._is_open(name)]
        if not open_names:
            return
        steps = await self._steps(open_names)
        pending = await self._pending(steps.since) if any(steps.first) else ()
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
        if any(side is not None and side.form == FOREIGN for side in sides):
            return False  # nobody here can read it: see `_opaque`
        before, ours, theirs = [side.packed if side is not None else None for side in sides]
        return ours is not None and theirs is not None and before not in (ours, theirs)

    async def _applied(self, spec: Any, name: str, own: _Steps, shared: Set[_Place]) -> Any:
        """Return ours with what theirs wrote; MISSING: no way to do it turns the ancestor's value into theirs."""
        before, ours, theirs = [
            self._channels.unwritten(side.channels[name]) if name in side.channels else MISSING
            for side in (self._before, self._ours, self._theirs)
        ]
        steps = _of(name, own.writes)
        written = await self._values(steps)
        fresh = await self._values([[write for write in step if _place(write) not in shared] for step in steps])
        # What both did in the same way, as they do if they part within a step, cannot be told from the values alone.
        is_plain = self._ours.channels[name].packed != self._theirs.channels[name].packed
        is_plain = is_plain and not _is_running(self._before)
        guesses = self._guesses(name, theirs) if is_plain else ()
        # After an earlier merge the ancestor, too, has what was pending where they parted.
        for updates, applied in [(written, fresh), (fresh, fresh), (None, fresh), *((way, way) for way in guesses)]:
            try:
                if updates is None:
                    is_right = own.is_own and len(own.pieces) > 1 and await self._is_made_of(spec, name, own.pieces)
                else:
                    made = self._packed(name, _updated(spec, before, updates))
                    is_right = made == self._theirs.channels[name].packed
                if is_right:
                    return _updated(spec, ours, applied)
            except (StoreError, CheckpointCorrupted):
                raise
            except Exception:  # noqa: S112  # a reducer that does not take it: another way may do
                continue
        return MISSING

    def _guesses(self, name: str, theirs: Any) -> list[list[list[Any]]]:
        """Return what may have been written: what a list has more at its end, or the value as a whole."""
        old = self._before.channels.get(name)
        ways = [[[theirs]]]
        if isinstance(theirs, list):
            before = codec.items(old.packed) if old is not None and codec.is_list(old.packed) else []
            if codec.items(self._theirs.channels[name].packed)[: len(before)] == before:
                ways.insert(0, [[theirs[len(before) :]]])
        return ways

    def _packed(self, name: str, value: Any) -> bytes:
        top = self._channels.stands_alone(name, value)
        return self._channels.written(tree.Writer(packer=self._codec), name, value, None, top=top).packed

    async def _steps(self, names: Collection[str]) -> _Steps:
        """Return what theirs wrote to these channels and the ancestor has not.

        That is what stands on theirs' own line, up to a checkpoint that the ancestor knows of.
        """
        pieces = [_Piece(self._stored[1], self._stored[1], [])]
        seen = set[Key]()
        is_own = True
        while not await self._is_known((child := pieces[-1].start).place):
            parents = child.record.parents
            if not parents or parents[0] in seen or len(seen) >= _STEPS_MAX:
                break
            seen.add(parents[0])
            loaded = await self._repository.store.read(*parents[0], writes=True)
            if loaded is None:
                break
            if len(parents) > 1:
                others = await self._repository.store.read_many(parents[1:])
                is_own = is_own and len(others) == len(parents) - 1
                for other in others:
                    is_own = is_own and await self._is_known(other.stored.place)
                pieces.append(_Piece(loaded.stored, loaded.stored, []))  # what was pending here ran again
                continue
            if parents[0].checkpoint_id != child.record.key.checkpoint_id:  # a branch begins with its origin once more
                pieces[-1].steps.insert(0, [write for write in loaded.writes if write.channel in names])
            pieces[-1] = pieces[-1]._replace(start=loaded.stored)
        is_own = is_own and await self._is_known(pieces[-1].start.place)
        return _Steps(pieces[::-1], is_own=is_own)

    async def _is_known(self, place: Place) -> bool:
        """Whether the ancestor has a checkpoint among its own."""
        return await self._ancestry.walk(self._known.hold(place))

    async def _is_made_of(self, spec: Any, name: str, pieces: Sequence[_Piece]) -> bool:
        """Whether writes are all that happened to a channel, but for merges."""
        for piece in pieces:
            start, end = [(await self._side(at.record.root, at.family)).channels for at in (piece.start, piece.end)]
            value = self._channels.unwritten(start[name]) if name in start else MISSING
            made = _updated(spec, value, await self._values(_of(name, piece.steps)))
            if name not in end or self._packed(name, made) != end[name].packed:
                return False
        return True

    async def _pending(self, since: str) -> Sequence[Write] | None:
        """Return the writes that were pending where the threads parted, if ours went on with them; None: unknown."""
        found = list[Write]()
        seen = set[Key]()
        line = [(key, self._stored[0].record) for key in self._stored[0].record.parents]
        while line and len(seen) < _STEPS_MAX:
            key, following = line.pop(0)
            is_applied = key.checkpoint_id == since and _goes_on(following) and following.key.checkpoint_id != since
            if not is_applied and (key in seen or key.checkpoint_id <= since):  # ids grow along a line
                continue
            seen.add(key)
            loaded = await self._repository.store.read(*key, writes=is_applied)
            if loaded is None:
                continue
            if is_applied:
                if not await self._is_as_it_was(key):
                    return None
                found += loaded.writes
            line += [(parent, loaded.stored.record) for parent in loaded.stored.record.parents]
        return found

    async def _is_as_it_was(self, key: Key) -> bool:
        """Whether no writes of a checkpoint were undone since ours went on from it, which another thread may do."""
        if key.thread_id == self._stored[0].record.key.thread_id:
            return True
        thread = await self._repository.store.thread(key.thread_id)
        hidden = [h for held in thread.hidden.values() for h in held] if thread is not None else []
        return not any((h.namespace, h.writes_of) == key[1:] for h in hidden)

    async def _values(self, steps: Sequence[Sequence[Write]]) -> list[list[Any]]:
        children = b"".join([write.children for step in steps for write in step])
        objects = await self._repository.objects(self._stored[1].family, children)
        return [
            [
                self._channels.value(write.body[0], tree.Node(write.children, write.body[1:], write.size), objects)
                for write in step
            ]
            for step in steps
            if step
        ]


class _Piece(NamedTuple):
    """A stretch of a line without merges, and what was written on it, step by step."""

    start: Stored
    end: Stored
    steps: list[list[Write]]


class _Steps(NamedTuple):
    """What a thread wrote."""

    pieces: Sequence[_Piece]
    is_own: bool
    """Whether nothing is missing, and what came by merges is known to the ancestor."""

    @property
    def since(self) -> str:
        """The id of the checkpoint from which on."""
        return self.pieces[0].start.record.key.checkpoint_id

    @property
    def first(self) -> Sequence[Write]:
        """What was pending there."""
        return self.pieces[0].steps[0] if self.pieces[0].steps else ()

    @property
    def writes(self) -> list[list[Write]]:
        return [step for piece in self.pieces for step in piece.steps]


def _of(name: str, steps: Sequence[Sequence[Write]]) -> list[list[Write]]:
    return [[write for write in step if write.channel == name] for step in steps]


_Place = tuple[str, int, str, bytes, bytes]


def _place(write: Write) -> _Place:
    """Return what tells a write from others, wherever it stands."""
    return write.task_id, write.idx, write.channel, write.children, write.body


class _Delta(NamedTuple):
    """What the value of a delta channel is made from."""

    seed: bytes | None
    items: tuple[bytes, ...]


def _delta(side: Side, name: str) -> _Delta:
    value = _seed(side, name)
    writes = side.rest.get(WRITES + name)
    items = codec.items(writes.packed) if writes is not None and name not in side.channels else ()
    return _Delta(value.packed if value is not None else None, tuple(items))


def _seed(side: Side, name: str) -> Written | None:
    """Return the last value of a delta channel that was stored."""
    return side.channels.get(name) or side.rest.get(SEED + name)


def _goes_on(record: Record) -> bool:
    """Whether a checkpoint was made with what was pending before it: neither a merge nor a new input is."""
    return len(record.parents) == 1 and record.metadata.get("source") in ("loop", "update")


def _is_running(side: Side) -> bool:
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
    return {
        name: spec
        for name, spec in channels.items()
        if isinstance(name, str)
        and not display.is_internal(name)
        and any(cls.__name__ in kinds for cls in type(spec).__mro__)
    }


def _updated(spec: Any, value: Any, steps: Sequence[Sequence[Any]]) -> Any:
    """Return the value of a channel after these steps. The caller's own objects are not changed."""
    with held_by_caller():  # the reducer is the caller's
        channel = spec.copy() if value is MISSING else spec.from_checkpoint(copy.deepcopy(value))
        for step in steps:
            channel.update(copy.deepcopy(list(step)))
        return channel.checkpoint()


def _as_messages(values: list[Any]) -> list[Any]:
    from langchain_core.messages import convert_to_messages  # it is there: one of the values is a message

    return convert_to_messages(values)


def _seed_forms(rest: Mapping[str, Written]) -> dict[str, Form]:
    """Return the forms of the stored values that delta channels begin with, where they are not plain."""
    seeds: dict[str, Form] = {}
    for name, value in rest.items():
        if name.startswith(SEED) and value.form:
            seeds[name.removeprefix(SEED)] = value.form
    return seeds


def _stands_alone(channels: Mapping[str, Written]) -> bool:
    return LIST_CHANNEL in channels and channels[LIST_CHANNEL].top
