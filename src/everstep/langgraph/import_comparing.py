"""Comparing an import with its source: both sides are read again, ours and what the stock saver reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.langgraph import configs
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.equality import SameItems, difference, same_packed
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.import_batches import ThreadPlan, Workshop
from everstep.langgraph.saved import Saved
from everstep.langgraph.stock_savers import Source, SourceEntry
from everstep.stores.abilities import ReadsTogether
from everstep.stores.protocol import Key, Record
from everstep.values.codec import Codec
from everstep.values.tree import Node

# Of checkpoints whose values are read again at once.
_COMPARED_MAX = 256
_COMPARED_BYTES = 4 << 20


_TOLD_EACH = 32  # checkpoints between two calls of `progress`


_Line = tuple[str, str]
"""A thread and a namespace."""


class Comparison:
    """Compares threads of a source with the same threads of the target; CheckpointCorrupted if they differ."""

    def __init__(
        self,
        source: Source,
        workshop: Workshop,
        threads: Threads,
        reader: Codec,
        *,
        verify: bool,
        go_on: Callable[[], None],
        count: Callable[[int], None],
    ) -> None:
        """`go_on` is called now and then, and `count` with how many checkpoints were compared."""
        self._source = source
        self._workshop = workshop
        self._store = workshop.store
        self._threads = threads
        self._codec = reader
        self._same = SameItems(reader)
        self._go_on = go_on
        self._count = count
        self._stock: Any = None
        """The stock saver; None: nothing is to be compared."""
        if verify:
            self._stock = source.saver()

    async def read_together(self, plans: Sequence[ThreadPlan]) -> tuple[dict[Key, Saved], Mapping[_Line, str] | None]:
        """Return what the target has of small threads, and their heads if it gives those of many at once."""
        if self._stock is None:
            return {}, None
        keys = [entry.key for entry in itertools.chain(*(plan.entries for plan in plans))]
        found = await self._read_ours(keys)
        if not isinstance(self._store, ReadsTogether):
            return found, None
        return found, await self._store.heads(list(dict.fromkeys(key[:2] for key in keys)))

    async def _read_ours(self, keys: Sequence[Key]) -> dict[Key, Saved]:
        """Return what the target has of these checkpoints."""
        return {saved.stored.record.key: saved for saved in await self._threads.read_some(keys)}

    async def compare(
        self,
        plan: ThreadPlan,
        entries: Sequence[SourceEntry],
        *,
        writes: bool,
        found: Mapping[Key, Saved] = MappingProxyType({}),
        heads: Mapping[_Line, str] | None = None,
    ) -> None:
        """Read checkpoints again from both sides; CheckpointCorrupted if they differ.

        `found` has some that were read from the target a moment ago, and `heads` the heads.
        """
        if self._stock is None:
            return
        by_namespace: dict[str, dict[Key, SourceEntry]] = {}
        for entry in entries:
            by_namespace.setdefault(entry.key.namespace, {})[entry.key] = entry
        for namespace, wanted in by_namespace.items():
            expected = await self._compare_namespace(plan, namespace, wanted, writes, found)
            if writes:
                await self._compare_head(plan.thread_id, namespace, expected, heads)
                self._count(len(wanted))

    async def _compare_head(
        self, thread_id: str, namespace: str, expected: str | None, heads: Mapping[_Line, str] | None
    ) -> None:
        found: str | None = None
        if heads is not None:
            found = heads.get((thread_id, namespace))
        else:
            loaded = await self._store.read(thread_id, namespace)
            if loaded is not None:
                found = loaded.stored.record.key.checkpoint_id
        if found != expected:
            raise _differs_at(Key(thread_id, namespace, expected or ""), f"the head is {found!r}", None)

    async def _compare_namespace(
        self,
        plan: ThreadPlan,
        namespace: str,
        wanted: Mapping[Key, SourceEntry],
        writes: bool,
        at_hand: Mapping[Key, Saved],
    ) -> str | None:
        """Compare checkpoints of a namespace; return which one the stock saver takes for its head."""
        # Writes that are compared are also what the values of delta channels are made from.
        histories = _Histories(self, wanted) if writes else None
        head: str | None = None
        for page in self._stock_pages(plan, namespace, wanted):
            # The stock saver lists its head first.
            if head is None:
                head = _name(page[0])
            pairs: list[tuple[SourceEntry, Any]] = []
            for expected in page:
                key = Key(plan.thread_id, namespace, _name(expected))
                if key in wanted:
                    pairs.append((wanted[key], expected))
            found = at_hand
            lacking = [entry.key for entry, _ in pairs if entry.key not in at_hand]
            if lacking:
                found = {**at_hand, **await self._read_ours(lacking)}
            for start in range(0, len(pairs), _TOLD_EACH):
                self._go_on()
                await self._compare_pairs(pairs[start : start + _TOLD_EACH], found, histories)
        return head

    async def _compare_pairs(
        self, pairs: Sequence[tuple[SourceEntry, Any]], found: Mapping[Key, Saved], histories: _Histories | None
    ) -> None:
        """Compare checkpoints with what the stock saver reads of them; without `histories` not their writes."""
        with QUIET:
            for entry, expected in pairs:
                if entry.key not in found:
                    raise _differs_at(entry.key, "it is missing", None)
                self._compare_one(entry, found[entry.key], expected, writes=histories is not None)
        if histories is not None:
            for entry, expected in pairs:
                await histories.check(entry, expected)

    def _stock_pages(self, plan: ThreadPlan, namespace: str, wanted: Mapping[Key, SourceEntry]) -> Iterator[list[Any]]:
        """Yield what the stock saver lists of a namespace, with few values in memory; all that is wanted is among it.

        Mostly it goes by ids, the greatest first; where the database sorts otherwise, its order is its own.
        """
        place = Key(plan.thread_id, namespace, "")
        keys = sorted((key for key in plan.sizes if key.namespace == namespace), reverse=True)
        left = set(wanted)
        before: dict[str, Any] | None = None
        while keys:
            limit = _fitting([plan.sizes[key] for key in keys])
            options = {"before": before, "limit": limit}
            try:
                with QUIET:
                    page = self.read_stock(place, "list", _config(*place[:2]), **options)
            except CheckpointCorrupted:
                # One of them cannot be read: each is looked at by itself, below, to say which.
                break
            if page:
                left.difference_update(place._replace(checkpoint_id=_name(one)) for one in page)
                before = page[-1].config
                yield page
            keys = keys[limit:]
            if len(page) < limit:
                break
        for key in sorted(left, reverse=True):
            one = self.read_stock(key, "get_tuple", _config(*key))
            if one is None:
                raise _differs_at(key, "the stock saver does not list it", None)
            yield [one]

    def read_stock(self, key: Key, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what the stock saver reads."""
        try:
            with self._source.translated():
                found = getattr(self._stock, method)(*arguments, **options)
                # A list is made while it is read: its errors shall be raised in here.
                if method == "list":
                    return list(found)
                return found
        except EverstepError:
            raise
        except Exception as exc:
            reason = f"the stock saver cannot read the source: {exc!r:.200}"
            raise CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id or None) from exc

    def _compare_one(self, entry: SourceEntry, saved: Saved, expected: Any, *, writes: bool) -> None:
        key = entry.key
        record = saved.stored.record
        if _first_parent(record) != _named_parent(expected):
            raise _differs_at(key, "it has another parent", None)
        metadata, _ = self._workshop.without_secrets(expected.metadata)
        found = dict(saved.checkpoint)
        wanted = dict(expected.checkpoint)
        self._compare_values(key, found.pop("channel_values"), wanted.pop("channel_values", None) or {})
        # At once first, which is nearly always enough; one by one only to say where they differ.
        own = [in_order(record.metadata), in_order(found)]
        if not same_packed(own, [in_order(metadata), in_order(wanted)], self._codec):
            self.expect(key, own[0], in_order(metadata), "metadata")
            self._compare_fields(key, found, wanted, saved.absent)
        if writes and (saved.writes or expected.pending_writes):
            self.expect(key, list(saved.writes), list(expected.pending_writes or ()), "pending writes")

    def _compare_values(self, key: Key, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Compare the values of channels."""
        for name in sorted(found.keys() | wanted.keys()):
            if name not in found or name not in wanted:
                raise _differs_at(key, "a channel is on one side only", name)
            if not self._same.lists(found[name], wanted[name]):
                self.expect(key, found[name], wanted[name], name)

    def _compare_fields(
        self, key: Key, found: Mapping[str, Any], wanted: Mapping[str, Any], absent: Container[str]
    ) -> None:
        """Compare what a checkpoint has besides its values, one by one; `absent` was not in it when it was put."""
        for name in sorted(found.keys() | wanted.keys()):
            if name not in wanted and name in absent:
                continue
            if name not in wanted or name not in found:
                raise _differs_at(key, "a field is on one side only", name)
            self.expect(key, found[name], wanted[name], name)

    def expect(self, key: Key, found: Any, expected: Any, path: str) -> None:
        """Refuse what is not the same."""
        where = self.differs(found, expected, path)
        if where is not None:
            raise _differs_at(key, "a value differs", where)

    async def history(self, key: Key, names: Sequence[str], *, opened: bool) -> dict[str, Any]:
        """Return what the target says that delta channels are made from."""
        found = await self._threads.history(*key, names, opened=opened)
        return {name: _ordered(history) for name, history in found.items()}

    def differs(self, found: Any, expected: Any, path: str) -> str | None:
        """Return where two values differ; None: they are the same."""
        return difference(found, expected, path, self._codec)


class _Histories:
    """Compares what delta channels are made from, the greatest id first.

    The stock saver is asked at the ends of lines. In between, a checkpoint must have what its parent has and the writes
    that the stock saver gave for the parent; a seed is opened where it begins: anything else would take the square of
    the time.
    """

    def __init__(self, comparison: Comparison, wanted: Mapping[Key, SourceEntry]) -> None:
        self._comparison = comparison
        self._wanted = wanted
        self._followed = {entry.parent for entry in wanted.values()}
        self._waiting: dict[Key, list[tuple[Key, Mapping[str, Any]]]] = {}
        """By parent: checkpoints that follow it, and their histories, seeds unopened."""
        self._seen: set[Key] = set()

    async def check(self, entry: SourceEntry, expected: Any) -> None:
        key = entry.key
        self._seen.add(key)
        names = _unsaved_deltas(expected)
        own = await self._read(key, names, opened=False)
        for child, histories in self._waiting.pop(key, ()):
            for name, history in histories.items():
                await self._check_link(child, name, history, key, own, expected)
        if not names:
            return
        comes_later = entry.parent in self._wanted and entry.parent not in self._seen
        is_end = key not in self._followed
        # Where no parent is compared later there is nothing to compare with but the stock saver.
        if is_end or not comes_later:
            stock = self._comparison.read_stock(key, "get_delta_channel_history", config=_config(*key), channels=names)
            for name, history in (await self._read(key, names)).items():
                self._expect(key, name, history, _ordered(stock[name]))
        if entry.parent is not None and comes_later:
            self._waiting.setdefault(entry.parent, []).append((key, own))

    async def _check_link(
        self, child: Key, name: str, history: Mapping[str, Any], key: Key, own: Mapping[str, Any], expected: Any
    ) -> None:
        """Compare the history of a checkpoint with what its parent gives, which the stock saver reads as `expected`."""
        values = expected.checkpoint.get("channel_values") or {}
        writes = [write for write in expected.pending_writes or () if write[1] == name]
        if name in values:
            found = (await self._read(child, [name]))[name]
            self._expect(child, name, found, {"seed": values[name], "writes": writes})
            return
        if name in own:
            before = own[name]
        else:
            before = (await self._read(key, [name], opened=False))[name]
        if _have_one_seed(history, before):
            self._expect(child, name, history["writes"], [*before["writes"], *writes])
            return
        found = (await self._read(child, [name]))[name]
        before = (await self._read(key, [name]))[name]
        self._expect(child, name, found, {**before, "writes": [*before["writes"], *writes]})

    async def _read(self, key: Key, names: Sequence[str], *, opened: bool = True) -> dict[str, Any]:
        if not names:
            return {}
        return await self._comparison.history(key, names, opened=opened)

    def _expect(self, key: Key, name: str, found: Any, expected: Any) -> None:
        self._comparison.expect(key, found, expected, f"history of {name}")


def _ordered(history: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "seed" in history:
        found["seed"] = history["seed"]
    found["writes"] = [tuple(write) for write in history["writes"]]
    return found


def _unsaved_deltas(expected: Any) -> list[str]:
    """Return the delta channels of a checkpoint whose values are not stored with it, but made from writes."""
    counted = expected.metadata.get(configs.COUNTERS) or {}
    values = expected.checkpoint.get("channel_values") or {}
    return [name for name in counted if name not in values]


def _have_one_seed(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two unopened histories begin with the same value, or both with none."""
    seed = one.get("seed")
    if seed is None:
        return other.get("seed") is None
    return isinstance(seed, Node) and seed == other.get("seed")


def _first_parent(record: Record) -> str | None:
    return record.parents[0].checkpoint_id if record.parents else None


def _named_parent(expected: Any) -> str | None:
    """Return the parent of a checkpoint that the stock saver has read."""
    if expected.parent_config is None:
        return None
    name: str = expected.parent_config["configurable"]["checkpoint_id"]
    return name


def _config(thread_id: str, namespace: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    config = configs.config_of(thread_id, namespace, checkpoint_id or "")
    if checkpoint_id is None:
        del config["configurable"]["checkpoint_id"]
    return config


def _name(stock: Any) -> str:
    """Return the id of a checkpoint that the stock saver has read."""
    name: str = stock.config["configurable"]["checkpoint_id"]
    return name


def compared_together(plans: Sequence[ThreadPlan]) -> Iterator[list[ThreadPlan]]:
    """Yield threads in groups whose values may be in memory at once: one, if it is large."""
    group: list[ThreadPlan] = []
    count = size = 0
    for plan in plans:
        own = sum(plan.sizes.values())
        if group and (count + len(plan.entries) > _COMPARED_MAX or size + own > _COMPARED_BYTES):
            yield group
            group = []
            count = size = 0
        group.append(plan)
        count += len(plan.entries)
        size += own
    if group:
        yield group


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many of these may be in memory at once: one, if it is large."""
    total = 0
    for count, size in enumerate(sizes[:_COMPARED_MAX]):
        total += size
        if total > _COMPARED_BYTES:
            return max(count, 1)
    return min(len(sizes), _COMPARED_MAX)


def in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return entries by their names, so that their order counts for nothing."""
    return {name: metadata[name] for name in sorted(metadata)}


def _differs_at(key: Key, reason: str, path: str | None) -> CheckpointCorrupted:
    return CheckpointCorrupted(
        f"the imported checkpoint is not like the source's: {reason} (namespace {key.namespace!r})",
        thread_id=key.thread_id,
        checkpoint_id=key.checkpoint_id,
        path=path,
    )
