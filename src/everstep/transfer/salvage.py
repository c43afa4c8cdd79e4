"""The families of a store that is damaged: what can be read is sent, and what cannot is named.

A checkpoint that cannot be read, or of whose values a part is missing or wrong, is left out. If it was a head, another
pass follows, in which the newest whole checkpoint before it is the head.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Any

from everstep.errors import CheckpointCorrupted
from everstep.history.checkpoint_tree import is_place_hidden
from everstep.reports import Finding
from everstep.stores.inspection import Checking
from everstep.stores.protocol import Key, Query, RawLine, RawThread, SharedState, Store, Thread, Write
from everstep.transfer import families
from everstep.transfer.families import Entry, Family, Group, Lost, Receiver, StorePass, StoreSource, entry_of
from everstep.upkeep.looking import DAMAGE, finding_of, look_at
from everstep.values.tree import hashes


class SalvageSource(StoreSource):
    """All that can still be read of the families of a store."""

    def __init__(self, store: Store, names: Sequence[str] | None) -> None:
        super().__init__(store, names)
        self._findings: dict[Any, Finding] = {}
        self.left_out: set[Key] = set()
        """Checkpoints that cannot be copied."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is damaged."""
        return tuple(self._findings.values())

    def note(self, exc: Exception, kind: str, thread_id: str | None, key: Key | None = None) -> None:
        """Remember what is damaged; what is said of one thing first is kept."""
        found = finding_of(exc, kind, thread_id)
        if key is not None:
            self.left_out.add(key)
            found = Finding(kind, found.what, key.thread_id, key.checkpoint_id, (key.thread_id,))
        self._findings.setdefault((found.thread_id, found.checkpoint_id), found)

    def _refuse_missing(self, name: str) -> None:
        if not any(finding.thread_id == name for finding in self.findings):
            super()._refuse_missing(name)

    def _make_pass(self, family: Family, sent: set[bytes]) -> StorePass:
        return _SalvagePass(self, self._store, family, sent)

    async def _all_families(self) -> list[list[str]]:
        found = await super()._all_families()
        if not self._findings or not isinstance(self._store, Checking):
            return found
        # Some could not even be listed: by name there may be more to be had, and it is known what is lost.
        listed = set(chain.from_iterable(found))
        more: dict[str, list[str]] = {}
        for name in await self._store.thread_names():
            if name in listed:
                continue
            raw = await self._raw(name, family_threads=False)
            if raw is not None:
                more.setdefault(raw.family, []).append(name)
        return [*found, *more.values()]

    async def _list_threads(self, offset: int) -> tuple[list[tuple[str, str]], int]:
        try:
            return await super()._list_threads(offset)
        except DAMAGE:
            pass  # one thread of the page is damaged: they are asked for one by one
        try:
            page = await self._store.list_threads(1, offset, headless=True)
            return [(head.record.key.thread_id, head.family) for head in page], len(page)
        except DAMAGE as exc:
            name = getattr(exc, "thread_id", None)
            self.note(exc, "thread", name)
        # The list goes on behind it. If it is known which thread it is, more of it may be readable.
        if name is None:
            return [], 1
        raw = await self._raw(name, family_threads=False)
        if raw is None:
            return [], 1
        return [(name, raw.family)], 1

    async def _raw(self, name: str, *, family_threads: bool) -> RawThread | None:
        try:
            return await super()._raw(name, family_threads=family_threads)
        except DAMAGE as exc:
            self.note(exc, "thread", name)
            return None

    async def _thread(self, name: str) -> Thread | None:
        try:
            return await super()._thread(name)
        except DAMAGE as exc:
            self.note(exc, "thread", name)
            return None

    async def _count(self, query: Query) -> int:
        try:
            return await super()._count(query)
        except DAMAGE:
            return 0

    async def _entries(self, name: str) -> list[Entry]:
        try:
            listed = await super()._entries(name)
        except DAMAGE:
            listed = await self._entries_around_damage(name)
        return [entry for entry in listed if entry.key not in self.left_out]

    async def _entries_around_damage(self, name: str) -> list[Entry]:
        """Read checkpoints one by one, by the names that can still be found, and note those that are damaged."""
        look = await look_at(self._store, name)
        for finding in look.findings:
            self._findings.setdefault((finding.thread_id, finding.checkpoint_id), finding)
        found: list[Entry] = []
        for entry in look.entries:
            try:
                loaded = await self._store.read_many([entry.key])
            except DAMAGE as exc:
                self.note(exc, "checkpoint", name, entry.key)
                continue
            for each in loaded:
                found.append(entry_of(each.stored))
        return found

    async def _read(self, names: Sequence[str]) -> Family | None:
        family = await super()._read(names)
        if family is None:
            return None
        raws: dict[str, RawThread] = {}
        for name, raw in family.raws.items():
            raws[name] = await self._without_damage(family.name, raw)
        # Only a thread of which something is damaged may have lost a head.
        damaged = {finding.thread_id for finding in self.findings}
        for name in raws:
            if name in damaged:
                entries = [entry for entry in family.entries if entry.key.thread_id == name]
                raws[name] = _with_whole_heads(raws[name], entries)
        return family._replace(raws=raws)

    async def _without_damage(self, family: str, raw: RawThread) -> RawThread:
        """Return a thread without the pending writes and common states of which a part cannot be read."""
        if await self._is_whole(family, families.roots_of(raw)):
            return raw
        writes: list[tuple[Key, Write]] = []
        for key, write in raw.writes:
            if await self._is_whole(family, hashes(write.children)):
                writes.append((key, write))
        shared: dict[str, list[SharedState]] = {}
        for other, held in raw.shared_states.items():
            shared[other] = []
            for common in held:
                if await self._is_whole(family, hashes(common.root.children)):
                    shared[other].append(common)
        missing = CheckpointCorrupted("a part of a pending write, or of a common state, cannot be read")
        self.note(missing, "write", raw.thread_id)
        return raw._replace(writes=writes, shared_states=shared)

    async def _is_whole(self, family: str, roots: Sequence[bytes]) -> bool:
        try:
            await families.walk(roots, set(), partial(families.fetch_verified, self._store, family))
        except (Lost, *DAMAGE):
            return False
        return True


class _SalvagePass(StorePass):
    """One pass of a family that may be damaged."""

    def __init__(self, source: SalvageSource, store: Store, family: Family, sent: set[bytes]) -> None:
        super().__init__(store, family, sent)
        self._source = source

    async def _load(self, group: Sequence[Entry], receiver: Receiver) -> AsyncGenerator[Group, None]:
        try:
            async with aclosing(super()._load(group, receiver)) as parts:
                async for part in parts:
                    yield part
            return
        except DAMAGE as exc:
            if len(group) == 1:
                self._source.note(exc, "checkpoint", None, group[0].key)
                return
        # Which one is damaged? Whatever is whole among them is sent.
        for entry in group:
            async with aclosing(self._load([entry], receiver)) as parts:
                async for part in parts:
                    yield part


def _with_whole_heads(raw: RawThread, entries: Sequence[Entry]) -> RawThread:
    """Return a thread whose heads are the newest visible checkpoints that can be copied, if they cannot themselves."""
    keys = {entry.key for entry in entries}
    lines: dict[str, RawLine] = {}
    for namespace, line in raw.lines.items():
        lines[namespace] = line
        if line.head is None or Key(raw.thread_id, namespace, line.head) in keys:
            continue
        head = _newest_visible(raw, namespace, entries)
        lines[namespace] = line._replace(head=head, head_was_moved=True, generation=line.generation + 1)
    return raw._replace(lines=lines)


def _newest_visible(raw: RawThread, namespace: str, entries: Sequence[Entry]) -> str | None:
    """Return the id of the newest checkpoint that is not hidden; `entries` are in the order of their numbers."""
    for entry in reversed(entries):
        is_hidden = is_place_hidden(namespace, entry.segment, entry.seq, raw.hidden)
        if entry.key.namespace == namespace and not is_hidden:
            return entry.key.checkpoint_id
    return None
