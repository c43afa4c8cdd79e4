"""Retention at work: what to let go with each snapshot, at a cost that does not grow with history.

A plan per line knows the oldest checkpoints that the policy will take next, and no more of them than can go until the
plan is made anew from the store. That is done every so often, and also catches what other processes did. So plans are
small, and there is room for the plans of many threads. What is due goes in the commit of the next snapshot. The store
has the last word on what is protected. Sweeping goes on a little with each snapshot while there is garbage.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from everstep.config import CheckpointGC, SnapshotConfig
from everstep.errors import CheckpointCorrupted
from everstep.history.labels import lasting
from everstep.reports import GCReport
from everstep.repository.recent import Line, Recent
from everstep.retention.policies import Grid, Item, grid_of, is_older, let_go, moment_of
from everstep.runtime import forks
from everstep.stores.abilities import Erasing
from everstep.stores.protocol import Key, Outline, Query, Store, Stored, Thread
from everstep.stores.records import pack_record
from everstep.types import RUN_KIND

logger = logging.getLogger("everstep")

# How many checkpoints are read for one plan, at most.
_PAGE = 256
# A plan is good for so many commits, or for a quarter of N if that is more.
_PLAN_COMMITS_MIN = 64
# How many checkpoints of a line are held for the policy that goes by age.
_AGED_HELD = 64
# How many go in one commit, at most: a save must not take long because a policy was changed.
_DUE_MAX = 64
_SWEEPING_MAX = 4096
# Beyond so many threads they are planned anew by turns.
_PLANS_MAX = 65_536
# Of all plans together.
_PLANS_BYTES_MAX = 48 << 20
# About what Python takes for a plan without its items.
_PLAN_BYTES = 600
# A family is swept when this part of what it needs is garbage.
_SWEEP_GARBAGE = 0.2
# How much of a sweep is done with one snapshot: enough to come to an end, and too little to be noticed.
_SWEEP_EFFORT = 128
# How many entries of a log are kept, at most.
_OPERATIONS_MAX = 1000
# For how many checkpoints the size is asked at once.
_READ_TOGETHER = 500
# The log is trimmed at every so many looks, since it grows far more slowly than history.
_LOOKS_PER_TRIM = 16


class _Planned(NamedTuple):
    """A checkpoint as a plan knows it."""

    seq: int
    mark: int
    """What the policy goes by: the step, or the moment it was made."""


class _Candidate(NamedTuple):
    """A checkpoint that a policy may let go."""

    key: Key
    item: Item

    @classmethod
    def of(cls, stored: Stored) -> _Candidate:
        return cls(stored.record.key, _item(stored))


class _Oldest(NamedTuple):
    """The oldest checkpoints of a line that the policy may look at."""

    visible: Sequence[_Candidate]
    whole: bool
    """Whether these are all."""
    total: int
    """How many there are in all, as far as the policy goes by that."""
    excess: Sequence[_Candidate]
    """Those of them that the policy lets go."""


class _Items:
    """Checkpoints in their order, the oldest first. As plain numbers, since there are many: 16 bytes for each."""

    __slots__ = ("_marks", "_seqs")

    def __init__(self, items: Iterable[_Planned] = ()) -> None:
        self._seqs = array("q")
        self._marks = array("q")
        self.extend(items)

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def first(self) -> int:
        """The mark of the oldest."""
        return self._marks[0]

    @property
    def last(self) -> int:
        """The mark of the newest."""
        return self._marks[-1]

    def extend(self, items: Iterable[_Planned]) -> None:
        for seq, mark in items:
            self._seqs.append(seq)
            self._marks.append(mark)

    def add(self, item: _Planned) -> None:
        """Put one in its place, mostly the last; nothing if it is there already."""
        at = bisect_left(self._seqs, item.seq)
        if at == len(self._seqs) or self._seqs[at] != item.seq:
            self._seqs.insert(at, item.seq)
            self._marks.insert(at, item.mark)

    def take_first(self, count: int) -> list[_Planned]:
        taken = list(map(_Planned, self._seqs[:count], self._marks[:count]))
        del self._seqs[:count]
        del self._marks[:count]
        return taken

    def take_last(self) -> _Planned:
        return _Planned(self._seqs.pop(), self._marks.pop())

    @property
    def size_bytes(self) -> int:
        return len(self._seqs) * 16


@dataclass(slots=True)
class _Plan:
    """What is known of one line: the oldest checkpoints that are not spared, and how many there are."""

    items: _Items
    count: int
    whole: bool
    """Whether `items` are all there are."""
    grid: Grid
    good_for: int
    """How many more commits it is good for."""

    @property
    def size_bytes(self) -> int:
        return _PLAN_BYTES + self.items.size_bytes


_NO_GRID = Grid(1, 0)


class Scope(NamedTuple):
    """What a collection takes in: the threads of adapters too."""

    over: Callable[[Collection[Stored]], Collection[str]]
    """Of the heads of a thread: the namespaces that are over, so that their heads go as well."""
    whole_threads: bool = False
    """A thread of which the policy keeps nothing but what is spared goes whole, unless something of it is pinned or a
    living branch began there."""


class _Gone(NamedTuple):
    keys: list[Key]
    heads: list[Key]
    """Those that go although the store would spare them."""
    whole: bool = False


class _LettingGo:
    """One commit with what retention lets go in it; gives that back if the commit fails."""

    __slots__ = ("_due", "_keeper", "_line")

    def __init__(self, keeper: Keeper, line: Line) -> None:
        self._keeper = keeper
        self._line = line

    def __enter__(self) -> list[int]:
        self._due = self._keeper.due(self._line)
        return [item.seq for item in self._due]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._keeper.give_back(self._line, self._due)


class Keeper:
    """Applies one policy. Shared by both faces of an engine, which hand in their store."""

    def __init__(self, config: SnapshotConfig, is_call: Callable[[str], bool] | None = None) -> None:
        """`is_call` says whether a namespace belongs to one call of a subgraph.

        Such a namespace goes when the checkpoints are gone that its thread had when the call was made.
        """
        self._policy = CheckpointGC(config.gc_policy)
        self._param = config.gc_param
        self._is_call = is_call
        self._plans: Recent[_Plan] = Recent(_PLANS_MAX, _PLANS_BYTES_MAX)
        self._sweeping: dict[str, None] = {}
        self._looks = 0
        self._lock = threading.Lock()
        self._fork_guard = forks.hold(self._lock, 2)

    # -- with every snapshot

    def letting_go(self, line: Line) -> _LettingGo:
        """Return a context in which one more checkpoint is committed to the line, with what must go then."""
        return _LettingGo(self, line)

    def due(self, line: Line) -> list[_Planned]:
        """Return what must go when one more checkpoint is committed to the line."""
        plan = self._plans.get(line)
        if plan is None or self._policy is CheckpointGC.KEEP_ALL:
            return []
        with self._lock:
            plan.count += 1
            gone = self._taken(plan)
            plan.count -= len(gone)
            return gone

    def give_back(self, line: Line, items: Sequence[_Planned]) -> None:
        """Take back what `due` returned: the commit failed."""
        plan = self._plans.get(line)
        if plan is not None:
            with self._lock:
                plan.count += len(items) - 1
                for item in items:
                    plan.items.add(item)

    def _taken(self, plan: _Plan) -> list[_Planned]:
        items = plan.items
        gone = list[_Planned]()
        if self._policy is CheckpointGC.KEEP_LAST_N:
            count = plan.count
            if plan.whole:
                # Others of this process may be committed and not noted yet: in their place newer ones would go.
                count = min(count, len(items) + 1)
            excess = count - int(self._param)
            if excess <= 0:
                return gone
            return items.take_first(min(excess, _DUE_MAX))
        if self._policy is CheckpointGC.KEEP_AGE:
            now = datetime.now(UTC)
            while len(items) and len(gone) < _DUE_MAX and is_older(items.first, self._param, now):
                gone += items.take_first(1)
        elif len(items) > 1 and not plan.grid.holds(items.last):
            # It was the last one until now, and stayed for that reason only.
            gone.append(items.take_last())
        return gone

    async def upkeep(self, store: Store, stored: Stored) -> None:
        """After a commit: note the new checkpoint, look at the store again if it is time, sweep a little."""
        if self._policy is CheckpointGC.KEEP_ALL or stored.record.kind == RUN_KIND:
            return
        # A new segment begins: the head was moved, maybe by somebody else, so what was planned may be hidden by now.
        if stored.segment == stored.seq:
            self.forget(stored.record.key.thread_id)
        try:
            await self._upkeep(store, stored)
        except Exception:  # the checkpoint is saved: that retention must wait is not its caller's concern
            logger.exception("retention of thread %r failed and will be tried again", stored.record.key.thread_id)

    async def _upkeep(self, store: Store, stored: Stored) -> None:
        line = stored.record.key[:2]
        plan = self._plans.get(line)
        if plan is not None:
            with self._lock:
                plan.good_for -= 1
                if plan.whole:
                    self._extend(line, plan, _item(stored))
        # A new thread: there is nothing in the store to look at.
        if plan is None and not stored.record.parents:
            self._remember(line, [_item(stored)], 1, whole=True)
        elif plan is None or self._is_used_up(plan):
            await self._look(store, line)
        if stored.family in self._sweeping:
            swept = await store.sweep(stored.family, effort=_SWEEP_EFFORT)
            if swept.finished:
                self._sweeping.pop(stored.family, None)

    def _extend(self, line: Line, plan: _Plan, item: Item) -> None:
        """Add the newest checkpoint to a plan that has all of them, unless those it has will do."""
        # One that is committed and not noted yet may be older than those: it would never come to its turn.
        is_all_noted = plan.count <= len(plan.items) + 1
        if is_all_noted and len(plan.items) >= self._needed(plan.count, plan.good_for):
            plan.whole = False
            return
        plan.items.add(self._planned(item))
        # The plan may have been forgotten meanwhile, and is void then: it must not come back.
        if self._plans.get(line) is plan:
            self._plans.put(line, plan, plan.size_bytes)

    def _planned(self, item: Item) -> _Planned:
        """Return an item as a plan keeps it: with nothing but what the policy looks at."""
        if self._policy is CheckpointGC.KEEP_LAST_N:
            return _Planned(item.seq, 0)
        if self._policy is CheckpointGC.KEEP_AGE:
            return _Planned(item.seq, moment_of(item.created_at))
        return _Planned(item.seq, item.step)

    def _needed(self, count: int, commits: int) -> int:
        """Return how many of the oldest of so many checkpoints can go with the next commits; a plan needs no more."""
        if self._policy is CheckpointGC.KEEP_LAST_N:
            return min(max(count + commits - int(self._param), 0), _PAGE)
        if self._policy is CheckpointGC.KEEP_AGE:
            return min(_AGED_HELD, _PAGE)
        return sys.maxsize

    def _is_used_up(self, plan: _Plan) -> bool:
        if plan.good_for <= 0:
            return True
        if not len(plan.items):
            if plan.whole:
                return False
            # As long as there are fewer than N, none of those that the plan does not know can go.
            return self._policy is not CheckpointGC.KEEP_LAST_N or plan.count >= self._param
        if self._policy is CheckpointGC.KEEP_MILESTONES:
            span = plan.items.last - plan.items.first
            return len(plan.items) > self._param or not plan.grid.fits(span, int(self._param))
        return False

    def forget(self, thread_id: str) -> None:
        """Drop what is planned for a thread: something else than a snapshot has happened to it."""
        with self._lock:
            self._plans.forget(thread_id)

    # -- looking at the store

    async def _look(self, store: Store, line: Line) -> None:
        """Let go what is due now, and plan what comes next."""
        thread = await store.thread(line[0])
        if thread is None:
            self.forget(line[0])
            return
        if self._policy is CheckpointGC.KEEP_LAST_N:
            oldest = await self._counted(store, line, thread)
        else:
            oldest = await self._aged(store, line, thread)
        gone = [*oldest.excess, *await self._hidden(store, line, thread)]
        if gone:
            # The store spares what is protected by now, whatever the plan says.
            await store.delete(line[0], keys=_keys(gone), spare=True)
        await self._trim_log(store, line[0])
        taken = set(_keys(gone))
        kept = [candidate for candidate in oldest.visible if candidate.key not in taken]
        count = oldest.total - (len(oldest.visible) - len(kept))
        self._remember(line, [candidate.item for candidate in kept], count, oldest.whole)
        head = thread.head_id("")
        # The namespaces of calls go with the thread's own checkpoints, so they are looked at with these.
        if line[1] == "" and head is not None:
            names = [candidate.key.checkpoint_id for candidate in kept]
            await self._end_calls(store, thread, min([head, *names]))
        if thread.garbage > _SWEEP_GARBAGE:
            self._begin_sweep(thread.family)

    async def _trim_log(self, store: Store, thread_id: str) -> None:
        """Let go of entries of the log that nobody can undo any more, every few looks."""
        self._looks += 1
        if self._looks % _LOOKS_PER_TRIM == 0:
            entries = await _stale_operations(store, thread_id)
            if entries:
                await store.delete(thread_id, keys=[], operations=entries)

    def _begin_sweep(self, family: str) -> None:
        """Sweep a family a little with each of its snapshots from now on.

        One that gets no more snapshots is swept by `collect`, so the first of too many may be forgotten.
        """
        with self._lock:
            self._sweeping[family] = None
            if len(self._sweeping) > _SWEEPING_MAX:
                del self._sweeping[next(iter(self._sweeping))]

    async def _end_calls(self, store: Store, thread: Thread, oldest: str) -> None:
        """Let go of calls that ended before the oldest checkpoint that is kept of the thread itself."""
        if self._is_call is None:
            return
        ended: list[str] = []
        for name, (head, _) in thread.heads.items():
            if self._is_call(name) and head < oldest:
                ended.append(name)
        keys: list[Key] = []
        for name in ended[:_DUE_MAX]:
            query = Query(thread_id=thread.thread_id, namespace=name, protected=False, hidden="also")
            for stored in await store.list_checkpoints(query):
                keys.append(stored.record.key)
            with self._lock:
                self._plans.drop((thread.thread_id, name))
        if keys:
            await store.delete(thread.thread_id, keys=keys)

    def _let_go_but_heads(self, candidates: Sequence[_Candidate], thread: Thread) -> list[_Candidate]:
        return [candidate for candidate in self._let_go(candidates) if not _is_head(candidate.key, thread)]

    def _let_go(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the candidates that the policy does not keep."""
        items = [candidate.item for candidate in candidates]
        gone = {item.seq for item in let_go(self._policy, self._param, items, datetime.now(UTC))}
        return [candidate for candidate in candidates if candidate.item.seq in gone]

    async def _counted(self, store: Store, line: Line, thread: Thread) -> _Oldest:
        """Return the oldest visible checkpoints for the policy that keeps the last N."""
        kept = int(self._param)
        counted = await store.count(_query(line))
        surplus = max(counted - kept, 0)
        # One more than go: it is the oldest of those that are kept.
        limit = surplus + max(self._needed(counted - surplus, self._commits), 1)
        listed = await store.list_checkpoints(_query(line, min(limit, _PAGE)))
        whole = len(listed) < min(limit, _PAGE)
        # Somebody else may have deleted, hidden or pinned some between the count and the list. What was listed second
        # would then be too new to go, so the list itself is counted if it is whole; otherwise all of them, once more.
        count = len(listed) if whole else await store.count(_query(line))
        surplus = max(count - kept, 0)
        visible = _candidates(listed, thread, whole)
        return _Oldest(visible, whole, count, visible[:surplus])

    async def _aged(self, store: Store, line: Line, thread: Thread) -> _Oldest:
        """Return the oldest visible checkpoints for the policies that look at each of them."""
        if self._policy is CheckpointGC.KEEP_MILESTONES:
            limits: list[int | None] = [None]  # its grid is laid over the whole history
        else:
            limits = [min(_AGED_HELD, _PAGE), _PAGE]
        for limit in limits:
            visible, whole = await self._visible(store, line, thread, limit)
            excess = self._let_go_but_heads(visible, thread)
            # Otherwise all that was read has to go, and more of it may.
            if whole or len(excess) < len(visible):
                break
        return _Oldest(visible, whole, len(visible), excess)

    async def _visible(
        self, store: Store, line: Line, thread: Thread, limit: int | None
    ) -> tuple[list[_Candidate], bool]:
        """Return the oldest visible checkpoints that are not protected, and whether these are all."""
        listed = await store.list_checkpoints(_query(line, limit))
        whole = limit is None or len(listed) < limit
        return _candidates(listed, thread, whole), whole

    async def _hidden(self, store: Store, line: Line, thread: Thread) -> list[_Candidate]:
        """Return the hidden checkpoints that the policy lets go."""
        stretches = itertools.chain.from_iterable(thread.hidden.values())
        # No checkpoint is hidden, only pending writes are.
        if all(stretch.writes_of is not None for stretch in stretches):
            return []
        return await self._hidden_to_go(store, line, thread)

    async def _hidden_to_go(self, store: Store, line: Line, thread: Thread) -> list[_Candidate]:
        listed = await store.list_checkpoints(_query(line, hidden=True))
        return self._let_go_but_heads(list(map(_Candidate.of, listed)), thread)

    @property
    def _commits(self) -> int:
        """For how many commits a plan is good when it is made."""
        return max(_PLAN_COMMITS_MIN, int(min(self._param, 1e6)) // 4)

    def _remember(self, line: Line, items: Sequence[Item], count: int, whole: bool) -> None:
        needed = self._needed(count, self._commits)
        held = _Items(map(self._planned, items[:needed]))
        grid = _NO_GRID
        if self._policy is CheckpointGC.KEEP_MILESTONES:
            grid = grid_of(items, int(self._param))
        plan = _Plan(held, count, whole and len(items) <= needed, grid, self._commits)
        with self._lock:
            self._plans.put(line, plan, plan.size_bytes)

    # -- all at once

    async def collect(
        self, store: Store, thread_id: str | None, *, dry_run: bool, scope: Scope | None = None
    ) -> GCReport:
        """Apply the policy to a thread, or to all, and sweep what became free.

        An adapter's threads are kept whole, unless a `scope` takes them in.
        """
        report = GCReport(dry_run=dry_run)
        families: dict[str, list[Key]] = {}
        async for outline, name in _outlines(store, thread_id):
            if outline is not None and self._is_settled(outline, scope):
                report.threads += 1
                if not outline.is_swept:
                    families.setdefault(outline.family, [])
                continue
            thread = await store.thread(name)
            if thread is None:
                continue
            keys = await self._collect(store, thread, report, scope)
            if keys or outline is None or not outline.is_swept:
                families.setdefault(thread.family, []).extend(keys)
        await self._sweep(store, families, report)
        # What was deleted may still lie in a log beside the file: people who collect want it gone.
        if isinstance(store, Erasing) and not dry_run:
            await store.erase_deleted()
        return report

    async def _sweep(self, store: Store, families: Mapping[str, list[Key]], report: GCReport) -> None:
        """Sweep families, and add to the report; a dry run is told what would go of each."""
        for family, keys in families.items():
            pretend: list[Key] | None = None
            if report.dry_run:
                pretend = keys
            swept = await store.sweep(family, pretend=pretend)
            report.objects += swept.objects
            report.size_bytes += swept.size_bytes

    async def _collect(self, store: Store, thread: Thread, report: GCReport, scope: Scope | None) -> list[Key]:
        """Apply the policy to a thread, add to the report, and return what goes."""
        gone = await self._gone(store, thread, report, scope)
        keys = gone.keys + gone.heads
        report.threads += 1
        report.size_bytes += await _size_of(store, keys)
        if report.dry_run:
            report.checkpoints += len(keys)
        else:
            report.checkpoints += await self._delete(store, thread, gone)
        entries = await _stale_operations(store, thread.thread_id)
        if entries and not report.dry_run:
            await store.delete(thread.thread_id, keys=[], operations=entries)
        report.operations += len(entries)
        return keys

    def _is_settled(self, outline: Outline, scope: Scope | None) -> bool:
        """Whether the policy can take nothing of a thread, nor of its log, as things are."""
        if scope is not None or outline.has_log:
            return False
        if self._policy is CheckpointGC.KEEP_LAST_N:
            return outline.most <= int(self._param)
        return self._policy is CheckpointGC.KEEP_ALL

    async def _delete(self, store: Store, thread: Thread, gone: _Gone) -> int:
        """Delete what is to go of a thread and return how many checkpoints went."""
        name = thread.thread_id
        count = 0
        if gone.keys or gone.heads:
            self.forget(name)
        if gone.keys:
            count += (await store.delete(name, keys=gone.keys, spare=True)).checkpoints
        # Heads are protected, so these are deleted by name, without a look at what would be spared.
        if gone.heads:
            count += (await store.delete(name, keys=gone.heads)).checkpoints
        if gone.whole and not await store.count(Query(thread_id=name, namespace=None, hidden="also")):
            # What is left of the thread are pending writes that wait for a checkpoint, which will not come
            # any more.
            await store.delete(name)
        return count

    async def _gone(self, store: Store, thread: Thread, report: GCReport, scope: Scope | None) -> _Gone:
        """Return what the policy lets go of a thread."""
        over: Collection[str] = ()
        if scope is not None:
            idle = await self._idle(store, thread) if scope.whole_threads and not thread.protected else []
            if idle:
                report.hidden += sum(stored.hidden for stored in idle)
                return _Gone([], [stored.record.key for stored in idle], whole=True)
            over = scope.over(await _heads(store, thread))
        return await self._gone_by_line(store, thread, report, over, keeps_adapters=scope is None)

    async def _gone_by_line(
        self, store: Store, thread: Thread, report: GCReport, over: Collection[str], *, keeps_adapters: bool
    ) -> _Gone:
        """Return what the policy lets go of each namespace; of those that are `over` the head, too.

        With `keeps_adapters` what an adapter wrote is kept whole.
        """
        found = _Gone([], [])
        for namespace in thread.newest:
            line = thread.thread_id, namespace
            listed = await store.list_checkpoints(_query(line))
            if keeps_adapters and any(stored.record.kind for stored in listed):
                continue
            visible = self._let_go_but_heads(_candidates(listed, thread, whole=True), thread)
            hidden = await self._hidden_to_go(store, line, thread)
            report.hidden += len(hidden)
            found.keys.extend(_keys([*visible, *hidden]))
            if namespace in over:
                heads = [_Candidate.of(stored) for stored in listed if _is_head(stored.record.key, thread)]
                found.heads.extend(_keys(self._let_go(heads)))
        return found

    async def _idle(self, store: Store, thread: Thread) -> list[Stored]:
        """Return all there is of a thread if the policy lets go of all of it."""
        if thread.origin is not None and await self._is_new(store, thread.thread_id, thread.origin):
            return []
        listed = await store.list_checkpoints(Query(thread_id=thread.thread_id, namespace=None, hidden="also"))
        gone = self._let_go(list(map(_Candidate.of, listed)))
        return [] if len(gone) < len(listed) else listed

    async def _is_new(self, store: Store, branch: str, origin: Key) -> bool:
        """Whether a branch began lately: what it began with may be older."""
        for entry in await store.operations(origin.thread_id, _OPERATIONS_MAX):
            if entry.kind == "branch" and entry.data["details"].get("thread_id") == branch:
                began = Item(0, 0, entry.data["created_at"])
                return not let_go(self._policy, self._param, [began], datetime.now(UTC))
        return False


def _candidates(listed: Sequence[Stored], thread: Thread, whole: bool) -> list[_Candidate]:
    """Return what a policy may look at: not a head that is older than others.

    What is protected is not listed at all.
    """
    found: list[_Candidate] = []
    for place, stored in enumerate(listed, 1):
        is_newest = whole and place == len(listed)
        if is_newest or not _is_head(stored.record.key, thread):
            found.append(_Candidate.of(stored))
    return found


def _keys(candidates: Iterable[_Candidate]) -> list[Key]:
    return [candidate.key for candidate in candidates]


def _is_head(key: Key, thread: Thread) -> bool:
    return thread.head_id(key.namespace) == key.checkpoint_id


async def _heads(store: Store, thread: Thread) -> list[Stored]:
    """Return the heads of all namespaces of a thread."""
    keys = [Key(thread.thread_id, namespace, head) for namespace, (head, _) in thread.heads.items()]
    return [loaded.stored for loaded in await store.read_many(keys)]


async def _size_of(store: Store, keys: Sequence[Key]) -> int:
    """Return what these checkpoints take themselves. What is in objects, which others may need too, a sweep finds."""
    size = 0
    for first in range(0, len(keys), _READ_TOGETHER):
        try:
            found = await store.read_many(keys[first : first + _READ_TOGETHER])
        except CheckpointCorrupted:
            continue  # what is damaged can still be deleted, and this is an estimate
        for loaded in found:
            record = loaded.stored.record
            info, root = pack_record(record)
            size += len(info) + len(root) + len(record.children)
    return size


async def _outlines(store: Store, thread_id: str | None) -> AsyncIterator[tuple[Outline | None, str]]:
    """Yield a thread that is asked for by name, or all there are with what is known about them at a glance."""
    if thread_id is not None:
        yield None, thread_id
        return
    # All of them before the first one is touched: deleting moves the positions of what comes after.
    every: list[Outline] = []
    position: int | None = 0
    while position is not None:
        page, position = await store.outlines(position)
        every += page
    for outline in every:
        yield outline, outline.thread_id


async def _stale_operations(store: Store, thread_id: str) -> list[int]:
    """Return the oldest entries of the log, those from before everything that is stored, and those too many."""
    entries = await store.operations(thread_id, _OPERATIONS_MAX * 2)
    if not entries:
        return []
    oldest = await store.list_checkpoints(
        Query(thread_id=thread_id, namespace=None, hidden="also", order="oldest", limit=1)
    )
    first = oldest[0].seq if oldest else 0
    # From the end only: what was done later rests on what was done before.
    old = itertools.takewhile(lambda entry: entry.data.get("made_at_seq", first) < first, reversed(entries))
    too_many = entries[_OPERATIONS_MAX:]
    return sorted({entry.seq for entry in (*too_many, *old)} - lasting(entries))


def _query(line: Line, limit: int | None = None, *, hidden: bool = False) -> Query:
    return Query(
        thread_id=line[0],
        namespace=line[1],
        order="oldest",
        protected=False,
        hidden="only" if hidden else "no",
        limit=limit,
    )


def _item(stored: Stored) -> Item:
    return Item(stored.seq, stored.record.step, stored.record.created_at)
