"""Checkpoints in and out of a store: encode, commit, load, decode. The engine and the backends both go through here.

The repository remembers recent heads and objects, so that a snapshot sends only what is new and a steady writer needs
one round trip. What it remembers is never trusted beyond what the store confirms inside the commit: the head by its
expectation, left-out objects by their base.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from everstep.errors import (
    BaseGone,
    CheckpointCorrupted,
    EverstepError,
    HeadMoved,
    IdTaken,
    InvalidInput,
    SnapshotTooLarge,
    StoreError,
    UnstorableValue,
)
from everstep.history.adapter import adapter_of, described, is_own
from everstep.repository.cache import KnownHead, ObjectCache
from everstep.repository.fences import Fence
from everstep.repository.new_names import NewNames
from everstep.repository.turns import Beaten, until_done
from everstep.runtime import calls
from everstep.runtime.calls import Figures
from everstep.stores.protocol import (
    ANY,
    AnyHead,
    BaseRef,
    Change,
    Deleted,
    Draft,
    Key,
    Loaded,
    Object,
    Query,
    Record,
    SharedState,
    Store,
    Stored,
)
from everstep.types import Checkpoint, CheckpointMetadata
from everstep.values import codec, compress, costs, tree
from everstep.values.overlap import NOTHING, Chunked, chunked, chunked_packed, extended, overlap
from everstep.values.tree import repetition
from everstep.values.walk import Need

if TYPE_CHECKING:
    from everstep.history.rebase import Values
    from everstep.repository.ledger import Save
    from everstep.repository.step import Step

R = TypeVar("R")

_FIELDS = ("messages", "state", "tools_result")
_RECENT = 64  # checkpoints among which a live thread looks for its own

logger = logging.getLogger("everstep")


class Encoded(NamedTuple):
    """Values ready to be committed: the root, its new objects, and the checkpoint the others rest on."""

    children: bytes
    body: bytes
    sizes: tuple[int, ...]
    objects: dict[bytes, tree.Content]
    squeezed: list[Object]
    """The same objects as a store takes them."""
    nodes: Sequence[tree.Node]
    added_bytes: int
    base: BaseRef | None
    repeats: int | None = None
    """For the record; see there."""
    messages: Chunked | None = None
    """Of an engine's checkpoint, packed, if they are at hand: the next ones are compared with them."""

    def draft(self, record: Record) -> Draft:
        """Return `record` (made without values) with these values, ready for a store."""
        record = record._replace(children=self.children, body=self.body, sizes=self.sizes, repeats=self.repeats)
        return Draft(record, self.squeezed, (self.base,) if self.base is not None else ())


class _Packed(NamedTuple):
    """The values of a checkpoint, packed: nothing that happens to them later changes it."""

    whole: bytes | None
    """As one value, if they are kept so."""
    messages: Chunked
    others: Sequence[bytes]


class _Added:
    """Messages to be appended, packed at once: what the caller changes later belongs to a later step.

    They are written down once, however often the head turns out to be another one. To cut a large message into pieces
    takes most of the time of its append, and in its turn others wait for it.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.packed = [codec.pack(item, f"messages[{n}]", 1) for n, item in enumerate(messages)]
        self.writer = tree.Writer()
        """Has what was written so."""
        self._parts = [self.writer.item(item) for item in self.packed]

    @property
    def messages(self) -> list[Any]:
        """The messages, as nobody else has them: few need them as values."""
        return [codec.unpack(item) for item in self.packed]

    def written_onto(self, node: tree.Node, known: Collection[bytes]) -> tuple[tree.Node, tree.Writer]:
        """Return a list node with the messages at its end, and the writer that has its objects but for `known` ones."""
        writer = tree.Writer(known, dict(self.writer.objects))
        writer.leave_out(known)
        return writer.extended_by(node, self._parts), writer


class Repository:
    """Saves and loads checkpoints over one face of a store."""

    def __init__(
        self,
        store: Store,
        memory: ObjectCache | None = None,
        figures: Figures | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.store = store
        self.memory = memory or ObjectCache()
        self.figures = figures or Figures(getattr(store, "address", None) or type(store).__name__)
        """What is done on the store, counted."""
        self._fence = fence

    def over(self, store: Store) -> Repository:
        """Return the same repository over another face of the store, or over what a turn on it works on."""
        return Repository(store, self.memory, self.figures, self._fence) if store is not self.store else self

    def behind(self, fence: Fence) -> Repository:
        """Return the same as one that saves nothing to the thread of the fence once that is gone.

        The store looks for it inside each commit.
        """
        return Repository(self.store, self.memory, self.figures, fence)

    async def save(
        self,
        thread_id: str,
        values: Sequence[Any],
        record: Callable[[Stored | None], Record],
        *,
        namespace: str = "",
        expect: str | AnyHead | None = ANY,
        split: bool = True,
        size_bytes_max: int | None = None,
        prune: Sequence[int] = (),
        shared_states: Mapping[str, SharedState] = MappingProxyType({}),
        make_new_id: Callable[[], None] | None = None,
        head: Stored | None = None,
    ) -> Stored:
        """Save messages, state and tool results; `record` makes the record for the head it will follow.

        Who knows the head that is expected may give it as `head`: then it is not looked for. With `make_new_id` the
        record's id is one made by chance: it replaces nothing, and is made anew if it is taken.
        """
        # Values are packed before the first wait: what the caller changes later belongs to a later step.
        packed = self._pack(values, self.memory.head(thread_id, namespace), split)

        async def attempt(store: Store, is_first: bool) -> tuple[Stored, Encoded]:
            repository = self.over(store)
            if is_first and (head is not None or expect is None):
                known = head  # whether that is still so is seen in the commit
            elif is_first:
                known = await repository._recent_head(thread_id, namespace)
            else:
                known = await repository._fresh_head(thread_id, namespace)
            encoded = await repository._encoded(packed, known, size_bytes_max)
            try:
                stored = await repository._commit(
                    thread_id, namespace, expect, encoded, record, prune, make_new_id, shared_states
                )
            except BaseGone:
                raise Beaten from None
            return stored, encoded

        return self._remembered(*await until_done(self.store, thread_id, attempt, "a snapshot"))

    async def append(
        self,
        thread_id: str,
        messages: list[Any],
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        record: Callable[[Stored | None], Record],
        *,
        namespace: str = "",
        expect: str | AnyHead | None = ANY,
        split: bool = True,
        size_bytes_max: int | None = None,
        replace: bool = False,
        prune: Sequence[int] = (),
        make_new_id: Callable[[], None] | None = None,
    ) -> Stored:
        """Save the head's values with `messages` added and the keys of `state` and `tools_result` set.

        None keeps the head's. With `replace` those given take the place of the head's instead of setting keys. For
        `make_new_id` see `save`.
        """
        # Packed or copied before the first wait: what the caller changes later belongs to a later step.
        added = _Added(messages)
        state = copied(state, "state")
        tools_result = copied(tools_result, "tools_result")
        remembered = self.memory.head(thread_id, namespace)
        expected: list[Stored | None] = [remembered] if remembered is not None else []

        async def attempt(store: Store, is_first: bool) -> tuple[Stored, Encoded]:
            repository = self.over(store)
            find = repository._recent_head if is_first else repository._fresh_head
            head = await find(thread_id, namespace, objects=False)
            expected.append(head)
            found = head.record.key.checkpoint_id if head is not None else None
            if expect is not ANY and expect != found:
                if is_first:  # the head that is remembered may be an old one
                    raise Beaten
                raise HeadMoved(thread_id, expect, found)
            updates = (state, tools_result)
            try:
                encoded = await repository._extend(head, added, updates, split, size_bytes_max, replace)
            except CheckpointCorrupted:
                if is_first:  # the head that is remembered may have been deleted since, with its objects
                    raise Beaten from None
                raise
            try:
                stored = await repository._commit(thread_id, namespace, found, encoded, record, prune, make_new_id)
            except (BaseGone, HeadMoved):
                raise Beaten from None
            return stored, encoded

        # A try that rests on an old head is lost time for everybody: with others at work it begins with a turn.
        tries = 0 if self.memory.has_rivals(thread_id, namespace) else 1
        stored, encoded = await until_done(self.store, thread_id, attempt, "an append", tries=tries)
        first = expected[0]
        has_rivals = stored.record.parents != ((first.record.key,) if first is not None else ())
        return self._remembered(stored, encoded, has_rivals=has_rivals)

    async def save_onto(
        self,
        thread_id: str,
        save: Save,
        step: Step,
        *,
        split: bool = True,
        size_bytes_max: int | None = None,
        prune: Sequence[int] = (),
    ) -> Stored:
        """Save what a live thread holds on top of a head that it knows, or together with what others did.

        The head is looked at inside the commit, so nobody comes in between.
        """
        # Values are packed before the first wait: if they cannot be stored, nothing has begun.
        packed = self._pack(save.values[:3], self.memory.head(thread_id, ""), split)

        def following(head: Stored | None) -> Record:
            save.check_follows(head.record.key.checkpoint_id if head is not None else None)
            return step.record(head)

        async def attempt(store: Store, is_first: bool) -> tuple[Stored, Encoded]:
            repository = self.over(store)
            expect: str | AnyHead | None = ANY
            record: Callable[[Stored | None], Record] = following
            fitting = packed
            if not is_first:
                expect, values = await repository._merged_onto(thread_id, save)
                step.go_on_with(values.next_node)
                record = step.record
                fitting = repository._pack(values[:3], repository.memory.head(thread_id, ""), split)
            head: Stored | None = None
            if not is_first or not save.begins_thread:  # else the commit sees that there still is nothing
                head = await repository._recent_head(thread_id, "")
            encoded = await repository._encoded(fitting, head, size_bytes_max)
            try:
                stored = await repository._commit(thread_id, "", expect, encoded, record, prune, step.make_new_id)
            except (BaseGone, HeadMoved):
                raise Beaten from None
            return stored, encoded

        return self._remembered(*await until_done(self.store, thread_id, attempt, "a save of a live thread"))

    async def _merged_onto(self, thread_id: str, save: Save) -> tuple[str | None, Values]:
        """Return the head that is there, and the values to be put on top of it."""
        from everstep.history.rebase import Values  # only live threads need it

        async def recent() -> list[str]:
            listed = await self.store.list_checkpoints(Query(thread_id=thread_id, limit=_RECENT))
            return [stored.record.key.checkpoint_id for stored in listed]

        found = await self.load(thread_id)
        if found is None:
            return None, await save.onto(None, Values([], {}, {}, ""), recent)
        stored, values = found
        _check_own(stored)
        head_id = stored.record.key.checkpoint_id
        messages, state, tools_result = values
        theirs = Values(messages, state, tools_result, stored.record.next_node)
        return head_id, await save.onto(head_id, theirs, recent)

    async def load(
        self, thread_id: str, namespace: str = "", checkpoint_id: str | None = None
    ) -> tuple[Stored, list[Any]] | None:
        """Return a checkpoint (None: the head) and its values."""
        loaded = await self._read(thread_id, namespace, checkpoint_id)
        if loaded is None:
            return None
        try:
            return self._opened(loaded.stored, await self._objects_of(loaded))
        except CheckpointCorrupted as exc:
            if loaded.objects:
                raise exc.located(*loaded.stored.record.key[::2]) from exc
        # The checkpoint may have been deleted between its record and its objects: ask for both at once.
        loaded = await self.store.read(thread_id, namespace, checkpoint_id, objects=True)
        if loaded is None:
            return None
        try:
            return self._opened(loaded.stored, verified(loaded.objects))
        except CheckpointCorrupted as exc:
            raise exc.located(*loaded.stored.record.key[::2]) from exc

    async def keep_beside(
        self, record: Record, values: Sequence[Any], *, before: Stored | None = None, rests_on: Sequence[BaseRef] = ()
    ) -> Stored:
        """Keep a checkpoint that is no part of a history, under the name it has: no head moves.

        It takes the place of `before`, BaseGone if that is not there any more; or (None) it must be new, else IdTaken.
        BaseGone also if something that it rests on is gone.
        """
        writer = tree.Writer()
        packed = self._pack(values, None, split=True)
        nodes = await self._written_over(writer, packed, None)
        bases = [BaseRef(before.record.key, before.digest)] if before is not None else []
        draft = encoded(nodes, writer, None).draft(record)._replace(bases=(*bases, *rests_on))
        change = Change(
            thread_id=record.key.thread_id,
            namespace=record.key.namespace,
            build=lambda _: draft,
            head="never",
            fresh=before is None,
        )
        stored = await self.store.commit(change)
        if stored is None:
            raise RuntimeError("the store returned no checkpoint for a change that makes one")
        return stored

    async def tools_results(self, records: Sequence[Stored]) -> list[Any]:
        """Return the results of tools of several checkpoints of one family, and read nothing else of them.

        They may be as they were listed, without their values.
        """
        loaded = await self.store.read_many([stored.record.key for stored in records])
        if len(loaded) != len(records):
            raise CheckpointCorrupted("checkpoints went while they were read")
        nodes = [_results_node(each.stored.record) for each in loaded]
        children = b"".join([node.children for node in nodes])
        objects = await self.objects(records[0].family, children) if children else {}
        values = []
        for stored, node in zip(records, nodes, strict=True):
            found = self._unpack(node, objects)
            values.append(found if len(stored.record.sizes) == len(_FIELDS) else found[-1])
        return values

    async def walk(
        self, need: Need[R], families: Sequence[str], at_hand: Mapping[bytes, tree.Content] = MappingProxyType({})
    ) -> R:
        """Run a walk through trees and return its result, handing it the objects it asks for."""
        found: dict[bytes, tree.Content] = dict(at_hand)
        wanted: Collection[bytes] = ()
        while True:
            try:
                with _stack_checked():
                    wanted = need.send({key: found[key] for key in wanted if key in found}) if wanted else next(need)
            except StopIteration as done:
                result: R = done.value
                return result
            for key in wanted:
                content = found.get(key) or self.memory.content(key)
                if content is not None:
                    found[key] = content
            for family in dict.fromkeys(families):
                missing = [key for key in wanted if key not in found]
                if missing:
                    fetched = verified(await self.store.fetch(family, missing, below=False))
                    self.memory.add(fetched)
                    found |= fetched

    def forget(self, thread_id: str) -> None:
        """Drop what is remembered of a thread."""
        self.memory.forget(thread_id)

    # -- heads

    def recent_heads(self, thread_id: str, namespace: str) -> tuple[Key, ...]:
        """Return the name of the head if it is remembered: the parents of what simply comes next."""
        head = self.memory.head(thread_id, namespace)
        return (head.record.key,) if head is not None else ()

    async def _recent_head(self, thread_id: str, namespace: str, *, objects: bool = True) -> Stored | None:
        """Return the head as last seen, which may be old: the store has the last word."""
        return self.memory.head(thread_id, namespace) or await self._fresh_head(thread_id, namespace, objects=objects)

    async def _fresh_head(self, thread_id: str, namespace: str, *, objects: bool = True) -> Stored | None:
        loaded = await self._read(thread_id, namespace, None, objects=objects)
        if loaded is None:
            self.memory.forget(thread_id)
            return None
        self.memory.add(verified(loaded.objects))
        return loaded.stored

    async def _commit(
        self,
        thread_id: str,
        namespace: str,
        expect: str | AnyHead | None,
        encoded: Encoded,
        record: Callable[[Stored | None], Record],
        prune: Sequence[int],
        make_new_id: Callable[[], None] | None,
        shared_states: Mapping[str, SharedState] = MappingProxyType({}),
    ) -> Stored:
        fence = self._fence
        if fence is not None and fence.thread_id != thread_id:
            fence = None

        def build(head: Stored | None) -> Draft:
            _check_own(head)
            draft = encoded.draft(record(head))
            return draft if fence is None else draft._replace(bases=(*draft.bases, fence.base))

        change = Change(
            thread_id=thread_id,
            namespace=namespace,
            expect=expect,
            build=build,
            prune=prune,
            fresh=make_new_id is not None,
            shared_states=shared_states,
        )
        names = NewNames(make_new_id)
        while True:
            try:
                stored = await self.store.commit(change)
                break
            except IdTaken as exc:
                names.take_another(exc)
            except BaseGone:
                if fence is not None:
                    await fence.find(self.store)  # its owner may have moved it, or somebody else taken it
                raise
        if stored is None:
            raise RuntimeError("the store returned no checkpoint for a change that makes one")
        calls.added(stored.added_bytes, len(encoded.squeezed))
        return stored

    def _remembered(self, stored: Stored, encoded: Encoded, *, has_rivals: bool = False) -> Stored:
        """Return a checkpoint that is committed, after noting it as the head."""
        self.memory.add(encoded.objects)
        last = self.memory.head(*stored.record.key[:2])
        if last is None or stored.seq > last.seq:  # a checkpoint that was replaced or put again is not the head
            self.memory.remember(stored, encoded.nodes, encoded.messages, has_rivals=has_rivals)
        return stored

    # -- values in

    def _pack(self, values: Sequence[Any], head: Stored | None, split: bool) -> _Packed:
        """Pack values, which mostly are those of `head` with some changes."""
        if not split:
            return _Packed(packed_whole(values), NOTHING, ())
        before = self.memory.opened_head(head).messages if head is not None else None
        messages, state, tools_result = values
        return _Packed(
            None,
            chunked(messages, codec.DEFAULT, "messages", before or NOTHING),
            [codec.pack(state, "state"), codec.pack(tools_result, "tools_result")],
        )

    async def _encoded(self, packed: _Packed, head: Stored | None, size_bytes_max: int | None) -> Encoded:
        """Return packed values ready to be committed, less what the head has: that does not count as added."""
        writer = tree.Writer()
        base = BaseRef(head.record.key, head.digest) if head is not None else None
        if packed.whole is not None:
            nodes = [writer.whole(packed.whole)]
            writer.leave_out(await self._known(head))
        else:
            nodes = await self._written_over(writer, packed, head)
        found = encoded(nodes, writer, base, size_bytes_max)._replace(messages=packed.messages)
        return await self._bounded(found, head)

    async def _written_over(self, writer: tree.Writer, packed: _Packed, head: Stored | None) -> list[tree.Node]:
        """Write values over those of the head, of which is kept what is still the same."""
        if head is not None and is_own(head.record.kind) and len(head.record.sizes) == len(_FIELDS):
            try:
                return await self._kept_and_written(writer, packed, head)
            except tree.MissingObject:
                pass  # the store has lost some of it
        messages = writer.extended_packed(tree.EMPTY_LIST, codec.items(packed.messages.packed()))
        nodes = [messages, *[writer.packed(value) for value in packed.others]]
        writer.leave_out(await self._known(head))
        return nodes

    async def _kept_and_written(self, writer: tree.Writer, packed: _Packed, head: Stored) -> list[tree.Node]:
        last = self.memory.opened_head(head)
        nodes = [await self._list_over(writer, packed.messages, last)]
        for value, node in zip(packed.others, last.nodes[1:], strict=True):
            pieces = tree.made_of(node)
            if pieces is None and node.children:
                pieces = tree.in_pieces(node, await self.objects(head.family, node.children))
            nodes.append(writer.packed(value, pieces))
        writer.leave_out(tree.hashes(b"".join([node.children for node in last.nodes[1:]])))
        return nodes

    async def _list_over(self, writer: tree.Writer, messages: Chunked, last: KnownHead) -> tree.Node:
        """Write messages over those of the head."""
        node = last.nodes[0]
        before = last.messages
        family = last.stored.family
        size = len(codec.array_header(messages.length)) + sum(map(len, messages.chunks))
        if before is None:
            joined = self._joined(node, await self.objects(family, node.children))
            before = chunked_packed(codec.items(joined))
        common = overlap(messages, before)
        if common.front == before.length:
            return writer.extended_packed(node, common.added)
        written = writer.replaced(node, common, size, await self.objects(family, node.children))
        writer.leave_out(tree.reachable(node.children, self.memory.children_of)[0])
        return written

    async def _bounded(
        self,
        encoded: Encoded,
        head: Stored | None,
        before: int | None = None,
        writers: Sequence[tree.Writer] = (),
    ) -> Encoded:
        """Return values with what repetition in them costs at most; raise UnstorableValue if they could not be read.

        They were made from values for which that was `before`, with what `writers` wrote: all of that may be a
        repetition. Only when that would be too much everything is looked at, and what is found counts from then on.
        """
        if sum(encoded.sizes) < repetition.REPEATS_FREE:
            return encoded
        objects = encoded.objects
        held = self.memory.contents
        is_mostly_new = before is None or tree.is_mostly_new(encoded.added_bytes, sum(encoded.sizes))
        if is_mostly_new and tree.repeats_nothing(encoded.children, lambda key: objects.get(key) or held.get(key)):
            return encoded._replace(repeats=0)
        if before is not None:
            bound = before + sum([writer.weight_at_most() for writer in writers])
            if bound <= tree.writable_repeats(repetition.REPEATS_MAX):
                return encoded._replace(repeats=bound)
        families = [head.family] if head is not None else []
        return encoded._replace(repeats=await self.repeats_of(encoded.nodes, encoded.objects, families))

    async def repeats_of(
        self,
        nodes: Sequence[tree.Node],
        objects: Mapping[bytes, tree.Content],
        families: Sequence[str],
        limit: int | None = None,
    ) -> int | None:
        """Return what repetition costs in values that are to be written; None if they are small.

        `objects` are those that are new. Raises UnstorableValue if the values could not be read; `limit` is that of
        readers.
        """
        size = sum([node.size for node in nodes])
        if size < repetition.REPEATS_FREE:
            return None
        children = b"".join([node.children for node in nodes])
        body = b"".join([node.body for node in nodes])
        held = self.memory.contents
        fetched = dict[bytes, tree.Content]()
        missing = list[bytes]()

        def content(key: bytes) -> tree.Content | None:
            found = objects.get(key) or held.get(key) or fetched.get(key)
            if found is None:
                missing.append(key)
            return found

        limit = repetition.REPEATS_MAX if limit is None else limit
        writable = tree.writable_repeats(limit)
        cost = tree.repeats(children, body, content, writable)
        for family in families:
            if missing:
                fetched.update(await self._fetch(family, list(dict.fromkeys(missing))))
                missing.clear()
                cost = tree.repeats(children, body, content, writable)
        if cost > writable:
            # Only to name it, so a quick look is enough.
            alone = [tree.repeats(node.children, node.body, content, scale=costs.Scale(0)) for node in nodes]
            tree.check_repeats(cost, limit, size, _name_of(alone.index(max(alone)), len(nodes)))
        return cost

    async def _extend(
        self,
        head: Stored | None,
        added: _Added,
        updates: Sequence[dict[str, Any] | None],
        split: bool,
        size_bytes_max: int | None,
        replace: bool,
    ) -> Encoded:
        """Return the head's values with something added to them, written onto the head's own where that can be."""
        _check_own(head)
        if head is None:
            packed = self._pack([added.messages, *(update or {} for update in updates)], None, split)
            return await self._encoded(packed, None, size_bytes_max)
        if not split or len(head.record.sizes) != len(_FIELDS):
            values = await self._extended_values(head, added, updates, replace)
            return await self._encoded(self._pack(values, None, split), head, size_bytes_max)
        record = head.record
        last = self.memory.opened_head(head)
        nodes = list(last.nodes)
        known: set[bytes] = set()
        changed: dict[int, Any] = {}
        pieces: dict[int, tree.InPieces | None] = {}
        for place, update in enumerate(updates, 1):
            if update or (replace and update is not None):
                objects = await self.objects(head.family, nodes[place].children)
                known |= set(objects)
                changed[place] = _updated(None if replace else self._unpack(nodes[place], objects), update, replace)
                pieces[place] = tree.in_pieces(nodes[place], objects)
        with _stack_checked():
            nodes[0], writer = added.written_onto(nodes[0], known)
            for place, value in changed.items():
                nodes[place] = writer.value(value, _FIELDS[place], old=pieces.get(place))
        grown = encoded(nodes, writer, BaseRef(record.key, head.digest), size_bytes_max)
        if last.messages is not None:
            grown = grown._replace(messages=extended(last.messages, added.packed))
        return await self._bounded(grown, head, record.repeats, (writer, added.writer))

    async def _extended_values(
        self, head: Stored, added: _Added, updates: Sequence[dict[str, Any] | None], replace: bool
    ) -> list[Any]:
        """Return the head's values with something added to them, as values."""
        record = head.record
        messages, *others = self._decode(record, await self.objects(head.family, record.children))
        values = [messages + added.messages]
        for old, update in zip(others, updates, strict=True):
            values.append(_updated(old, update, replace))
        return values

    async def _known(self, head: Stored | None) -> set[bytes]:
        """Return every hash below the head."""
        if head is None:
            return set()
        known, unknown = tree.reachable(head.record.children, self.memory.children_of)
        if unknown:
            fetched = await self._fetch(head.family, unknown)
            known, missing = tree.reachable(
                head.record.children, lambda key: fetched[key][0] if key in fetched else self.memory.children_of(key)
            )
            known -= set(missing)  # the store has lost them: send them again
        return known

    # -- values out

    async def _read(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, *, objects: bool = True
    ) -> Loaded | None:
        # With the head in memory most objects are too: ask for the record only, then for what is missing.
        cold = objects and self.memory.head(thread_id, namespace) is None
        loaded = await self.store.read(thread_id, namespace, checkpoint_id, objects=cold)
        if loaded is not None and checkpoint_id is None:
            self.memory.remember(loaded.stored)
        return loaded

    async def _objects_of(self, loaded: Loaded) -> dict[bytes, tree.Content]:
        if not loaded.objects:
            return await self.objects(loaded.stored.family, loaded.stored.record.children)
        fresh = verified(loaded.objects)
        self.memory.add(fresh)
        return fresh

    async def objects(self, family: str, children: bytes) -> dict[bytes, tree.Content]:
        """Return the content of every object at or below `children`, from memory where it is there."""
        found: dict[bytes, tree.Content] = {}
        unknown = self._gather(tree.hashes(children), found)
        if unknown:
            found |= await self._fetch(family, unknown)
            self._gather(tree.hashes(children), found)
        return found

    def _gather(self, pending: list[bytes], found: dict[bytes, tree.Content]) -> list[bytes]:
        """Add to `found` what memory holds at or below `pending`; return the hashes it does not hold."""
        unknown: list[bytes] = []
        seen: set[bytes] = set()
        while pending:
            key = pending.pop()
            if key in seen:
                continue
            seen.add(key)
            content = found.get(key) or self.memory.content(key)
            if content is None:
                unknown.append(key)
                continue
            found[key] = content
            if content[0]:
                pending.extend(tree.hashes(content[0]))
        return unknown

    async def _fetch(self, family: str, wanted: list[bytes]) -> dict[bytes, tree.Content]:
        fetched = verified(await self.store.fetch(family, wanted))
        self.memory.add(fetched)
        return fetched

    def _opened(self, stored: Stored, objects: dict[bytes, tree.Content]) -> tuple[Stored, list[Any]]:
        """Return a checkpoint and its values, as the engine shows them."""
        adapter = adapter_of(stored.record.kind)
        if adapter is None:
            return stored, self._decode(stored.record, objects)
        with _stack_checked():
            values, next_node = adapter.opened(stored.record, objects)
        return stored._replace(record=stored.record._replace(next_node=next_node)), values

    def _decode(self, record: Record, objects: dict[bytes, tree.Content]) -> list[Any]:
        total = sum(record.sizes)
        if total > tree.VALUE_BYTES_MAX:
            raise CheckpointCorrupted("a stored checkpoint claims an impossible size")
        with _stack_checked():
            parts = tree.Reader(objects, total).fields(record.children, record.body, len(record.sizes))
        if len(parts) == 1:
            values = codec.unpack_parts(parts[0])
        else:
            values = codec.unpack_parts([codec.array_header(len(parts)), *(part for field in parts for part in field)])
        # Exactly a list: an object of a registered class would be asked for its length and its items.
        if type(values) is not list or len(values) != len(_FIELDS) or type(values[0]) is not list:
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        return values

    def _unpack(self, node: tree.Node, objects: dict[bytes, tree.Content]) -> Any:
        return codec.unpack(self._joined(node, objects))

    def _joined(self, node: tree.Node, objects: dict[bytes, tree.Content]) -> bytes:
        with _stack_checked():
            return b"".join(tree.Reader(objects, node.size).fields(node.children, node.body, 1)[0])


def _results_node(record: Record) -> tree.Node:
    """Return the node of the results of tools, or that of all values if they are kept as one."""
    return tree.nodes(record.children, record.body, record.sizes)[-1]


def _check_own(head: Stored | None) -> None:
    if head is not None and not is_own(head.record.kind):
        raise InvalidInput(
            f"thread {head.record.key.thread_id!r} was written by the adapter for {head.record.kind}; "
            "go on with it there, or use another thread id"
        )


async def reclaim(store: Store, deleted: Deleted, thread_id: str) -> None:
    """Give back the space of what was deleted. If that fails it is deleted all the same, so nobody is told."""
    for family in deleted.families:
        try:
            await store.sweep(family)
        except StoreError:
            logger.exception("the space of thread %r is given back by a later collection", thread_id)


def to_checkpoint(stored: Stored, values: Sequence[Any]) -> Checkpoint:
    """Return what callers see of a checkpoint."""
    messages, state, tools_result = values
    return Checkpoint(to_metadata(stored), messages, state, tools_result, stored.record.next_node)


def to_metadata(stored: Stored) -> CheckpointMetadata:
    """Return what callers see of a record."""
    record = stored.record
    tags, summary = described(record)
    parents = [parent.checkpoint_id for parent in record.parents]
    return CheckpointMetadata(
        thread_id=record.key.thread_id,
        checkpoint_id=record.key.checkpoint_id,
        step=record.step,
        parent_checkpoint_id=parents[0] if parents else None,
        created_at=record.created_at,
        tags=list(tags),
        summary=summary,
        parents=parents,
        namespace=record.key.namespace,
        trigger=record.trigger,
        size_bytes=sum(record.sizes),
        pinned=stored.pinned,
        metadata=dict(record.metadata),
    )


def encoded(
    nodes: Sequence[tree.Node],
    writer: tree.Writer,
    base: BaseRef | None,
    size_bytes_max: int | None = None,
    *,
    thorough: bool = False,
) -> Encoded:
    """Return written nodes ready to be committed; `thorough`: smaller, and slower."""
    all_children, bodies, sizes, _ = zip(*nodes, strict=True)
    total = sum(sizes)
    if total > tree.VALUE_BYTES_MAX:
        raise UnstorableValue("checkpoint", f"{total:,} bytes", f"the limit is {tree.VALUE_BYTES_MAX:,}")
    children = b"".join(all_children)
    body = b"".join(bodies)
    added = writer.added_bytes + len(body)
    if size_bytes_max is not None and added > size_bytes_max:
        raise SnapshotTooLarge(added, size_bytes_max)
    squeezed = squeezed_objects(writer.objects, thorough=thorough) if writer.objects else []
    return Encoded(children, body, sizes, writer.objects, squeezed, nodes, added, base)


def _name_of(place: int, count: int) -> str:
    return _FIELDS[place] if count == len(_FIELDS) else "checkpoint"


def _updated(old: Any, update: dict[str, Any] | None, replace: bool) -> Any:
    if update is None:
        return old
    return update if replace else old | update


class _stack_checked:  # noqa: N801  # used like a function
    """Say clearly that a nested value met an almost full call stack: nothing is wrong with what is stored."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RecursionError):
            raise EverstepError("the call stack is too deep here for so nested a value; call from higher up") from error


def packed_whole(values: Sequence[Any]) -> bytes:
    """Return the values of a checkpoint that is kept as one object."""
    return codec.array_header(len(values)) + codec.pack_items(list(values), "checkpoint", depth_above=0)


def copied(value: Any, path: str) -> Any:
    """Return a deep copy of a storable value: what is saved must not change with the caller's own."""
    if not value:
        return type(value)()
    packed = codec.pack(value, path)
    return codec.unpack(packed)


def squeezed_objects(contents: Mapping[bytes, tree.Content], *, thorough: bool = False) -> list[Object]:
    """Return objects as a store takes them."""
    if not contents:
        return []
    bodies = compress.squeeze_all([body for _, body in contents.values()], thorough=thorough)
    return [Object(key, below, body) for (key, (below, _)), body in zip(contents.items(), bodies, strict=True)]


def verified(objects: Sequence[Object]) -> dict[bytes, tree.Content]:
    """Return objects by hash, each checked against it."""
    # One flipped bit of a row makes a number of bytes that are empty, and the hash of what is empty stays as it was.
    if not set(map(type, itertools.chain.from_iterable(objects))) <= {bytes}:
        raise CheckpointCorrupted("an object is stored as something else than bytes")
    bodies = compress.expand_all([obj[2] for obj in objects])
    found = {obj[0]: (obj[1], body) for obj, body in zip(objects, bodies, strict=True)}
    for key in tree.mismatched(found):
        raise CheckpointCorrupted(f"the object {key.hex()} does not match its hash")
    return found
