"""Reads a thread through the methods that every store has, and goes on where something cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted, HeadRegressed, StoreMismatch
from everstep.reports import Finding
from everstep.stores.inspection import Entry, EntryPage, ReadsEntries, finding_about
from everstep.stores.protocol import Key, Loaded, Query, RawThread, Store, Stored, Thread

PAGE = 500
_ROW_BYTES = 64
"""What a checkpoint is taken to be stored in besides its root and the hashes in it, where the store does not say."""
_SEQ_MAX = 1 << 62
# So many that can neither be read nor named, one after the other, are looked for one by one.
_ALIKE_MAX = 16

DAMAGE = (CheckpointCorrupted, StoreMismatch, HeadRegressed)
"""What a store raises where it meets damage: one whose first bytes are wrong may look like another's."""


class Look(NamedTuple):
    """A thread as it was read, and what could not be."""

    thread_id: str
    raw: RawThread | None
    thread: Thread | None
    entries: list[Entry]
    findings: list[Finding]
    bytes: int
    is_steady: bool
    """Nobody changed it meanwhile, so that its parts can be compared."""
    family: str | None
    unreadable: Sequence[Key] = ()
    """Checkpoints that are there and cannot be read, as far as their names are known."""
    not_found_by: Sequence[Key] = ()
    """Checkpoints that are whole, and would not be found by their tags or metadata."""

    @property
    def has_gaps(self) -> bool:
        """Whether checkpoints may be there that could not be read, and that nobody can name."""
        return any(finding.kind == "checkpoint" and finding.checkpoint_id is None for finding in self.findings)


def finding_of(error: Exception, kind: str, thread_id: str | None) -> Finding:
    """Return what an error says as a finding."""
    reason = getattr(error, "reason", None) or str(error)
    named = getattr(error, "thread_id", None) or thread_id
    return finding_about(kind, reason, named, getattr(error, "checkpoint_id", None))


async def look_at(store: Store, thread_id: str) -> Look:
    """Return all that there is of a thread, its objects left aside."""
    findings: list[Finding] = []
    raw = thread = None
    try:
        raw = await store.raw(thread_id, family_threads=True)
    except DAMAGE as exc:
        findings.append(finding_of(exc, "thread", thread_id))
    try:
        thread = await store.thread(thread_id, branches=True)
    except DAMAGE as exc:
        found = finding_of(exc, "thread", thread_id)
        if found not in findings:
            findings.append(found)
    if raw is None and thread is None and not findings:
        return Look(thread_id, None, None, [], [], 0, False, None)
    reader = _Reader(store, thread_id, findings)
    for namespace in _namespaces(raw, thread):
        await reader.read(namespace)
    await _look_at_log(store, thread_id, findings)
    is_steady = raw is not None and thread is not None and await _is_as_before(store, raw)
    family = reader.family
    if raw is not None:
        family = raw.family
    elif thread is not None:
        family = thread.family
    return Look(
        thread_id, raw, thread, reader.entries, findings, reader.bytes, is_steady, family, reader.unreadable,
        reader.not_found_by,
    )  # fmt: skip


async def _look_at_log(store: Store, thread_id: str, findings: list[Finding]) -> None:
    """Read the log, and add to the findings if that cannot be done."""
    try:
        await store.operations(thread_id, 1 << 30)
    except DAMAGE as exc:
        found = finding_of(exc, "operation", thread_id)
        # What is wrong with the thread as a whole is in the way of every reading, and is told once.
        if not any(other.what == found.what for other in findings):
            findings.append(found)


def _namespaces(raw: RawThread | None, thread: Thread | None) -> Sequence[str]:
    if raw is not None:
        return sorted(raw.lines)
    if thread is not None:
        return sorted({*thread.newest, *thread.heads})
    return [""]


async def _is_as_before(store: Store, raw: RawThread) -> bool:
    try:
        return await store.raw(raw.thread_id, family_threads=True) == raw
    except DAMAGE:
        # What is wrong then will be told.
        return True


def _by_key(found: Sequence[Loaded]) -> dict[Key, Loaded]:
    return {each.stored.record.key: each for each in found}


class _Reader:
    """Reads the checkpoints of a thread, oldest first, around those that cannot be read."""

    def __init__(self, store: Store, thread_id: str, findings: list[Finding]) -> None:
        self._store = store
        self._thread_id = thread_id
        self._findings = findings
        self.entries: list[Entry] = []
        self.bytes = 0
        self.family: str | None = None
        self.unreadable: list[Key] = []
        self.not_found_by: list[Key] = []

    async def read(self, namespace: str) -> None:
        async for page in self._pages(namespace):
            self.entries += page.entries
            self.family = page.family
            self.bytes += page.bytes
            self.not_found_by += page.not_found_by

    async def _pages(self, namespace: str) -> AsyncIterator[EntryPage]:
        after = 0
        limit = PAGE
        alike = 0
        while True:
            query = Query(
                thread_id=self._thread_id, namespace=namespace, hidden="also", order="oldest", after_seq=after,
                limit=limit,
            )  # fmt: skip
            try:
                page = await self._page(query)
            except DAMAGE as exc:
                # Smaller pages lead to the one that is damaged.
                if limit > 1:
                    limit = max(1, limit // 8)
                    continue
                seq = await self._pass_over(query, exc)
                if seq is None:
                    # Nothing of it can be listed.
                    return
                alike = 0 if self._findings[-1].checkpoint_id else alike + 1
                # What is in the way of all is looked for at ever fewer places: each takes many questions.
                after = seq + (1 << max(0, alike - _ALIKE_MAX)) - 1
                continue
            alike = 0
            if page.entries:
                yield page
                after = page.entries[-1].seq
            if len(page.entries) < limit:
                return
            # Damage is rare and often alone, so pages soon have their full size again.
            limit = min(PAGE, limit * 2)

    async def _pass_over(self, query: Query, error: Exception) -> int | None:
        """Take note of the next checkpoint, which cannot be read, and return its number, if it can be found."""
        seq = await self._damaged_seq(query)
        if seq is None:
            self._findings.append(finding_of(error, "thread", self._thread_id))
            return None
        self._findings.append(finding_of(error, "checkpoint", self._thread_id))
        name = getattr(error, "checkpoint_id", None)
        if name is not None:
            self.unreadable.append(Key(self._thread_id, query.namespace or "", name))
        return seq

    async def _page(self, query: Query) -> EntryPage:
        if isinstance(self._store, ReadsEntries):
            limit = query.limit or PAGE
            try:
                return await self._store.read_entries(
                    self._thread_id, query.namespace or "", after=query.after_seq or 0, limit=limit
                )
            except DAMAGE:
                # Smaller pages lead to the one that is damaged, and that is looked at in another way.
                if limit > 1:
                    raise
        listed = await self._store.list_checkpoints(query)
        loaded = await self._loaded(listed)
        entries: list[Entry] = []
        size = 0
        for stored in listed:
            record = stored.record
            found = loaded.get(record.key)
            if found is not None:
                # With its root, which a list leaves out.
                record = found.stored.record
                if found.stored.seq != stored.seq:
                    self._tell("index", "another checkpoint is found by its id than is listed", record.key)
            size += len(record.children) + len(record.body) + _ROW_BYTES
            entries.append(
                Entry(
                    record.key,
                    stored.seq,
                    stored.segment,
                    record.step,
                    record.kind,
                    record.parents,
                    stored.pinned,
                    stored.hidden,
                    record.children,
                )
            )
        family = listed[-1].family if listed else None
        return EntryPage(entries, family, size, [])

    async def _damaged_seq(self, query: Query) -> int | None:
        """Return the number of the next checkpoint, which cannot be read; None: not even numbers before it can."""
        low = query.after_seq or 0
        if not await self._is_listable(query, low + 1):
            return None
        # Numbers below `low` + 1 can be asked for, those below `high` + 1 cannot. It is mostly near: from there on each
        # step is twice as long.
        high = low + 1
        while high < _SEQ_MAX and await self._is_listable(query, high + 1):
            low, high = high, min(high + 2 * (high - low), _SEQ_MAX)
        while high - low > 1:
            middle = (low + high) // 2
            if await self._is_listable(query, middle + 1):
                low = middle
            else:
                high = middle
        return high

    async def _is_listable(self, query: Query, before: int) -> bool:
        try:
            await self._store.list_checkpoints(replace(query, before_seq=before, limit=1))
        except DAMAGE:
            return False
        return True

    async def _loaded(self, page: Sequence[Stored]) -> dict[Key, Loaded]:
        """Return these checkpoints with their roots, found by their ids."""
        keys = [stored.record.key for stored in page]
        try:
            found = await self._store.read_many(keys)
        except DAMAGE:
            found = []
            for key in keys:
                found += await self._loaded_alone(key)
        loaded = _by_key(found)
        if len(loaded) < len(keys):
            for key in keys:
                if key not in loaded and key not in self.unreadable:
                    self._tell("index", "it is listed, and not found by its id", key)
        return loaded

    async def _loaded_alone(self, key: Key) -> list[Loaded]:
        try:
            return await self._store.read_many([key])
        except DAMAGE as exc:
            found = finding_of(exc, "checkpoint", self._thread_id)
            self._tell("checkpoint", found.what, key)
            self.unreadable.append(key)
            return []

    def _tell(self, kind: str, what: str, key: Key) -> None:
        self._findings.append(finding_about(kind, what, key.thread_id, key.checkpoint_id))
