"""What threads take. What cannot be read is left out and counted: one damaged checkpoint spoils nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from everstep.errors import CheckpointCorrupted
from everstep.reports import Sizes
from everstep.repository.around_damage import family_around, list_all_around, readable
from everstep.stores.protocol import Key, Object, Query, RawThread, Store
from everstep.stores.records import pack_record
from everstep.values.tree import hashes

_FETCHED_MAX = 500
_READ_MAX = 100


async def sizes_of_thread(store: Store, thread_id: str) -> Sizes:
    """Return what a thread takes; all zero if it is not there."""
    names = await family_around(store, thread_id)
    own = _Measure(store)
    await own.add(thread_id)
    others = _Measure(store)
    for name in names:
        if name != thread_id:
            await others.add(name)
    shared = sum(size for key, size in own.objects.items() if key in others.objects)
    return replace(
        own.sizes,
        exclusive_bytes=sum(own.objects.values()) - shared,
        shared_bytes=shared,
        # What they need besides is taken for something that only this thread needs.
        left_out=own.sizes.left_out + others.sizes.left_out,
    )


async def sizes_of_all(store: Store) -> Sizes:
    """Return what all threads take together."""
    families: dict[str, list[str]] = {}
    position: int | None = 0
    while position is not None:
        outlines, position = await store.outlines(position)
        for outline in outlines:
            families.setdefault(outline.family, []).append(outline.thread_id)
    total = Sizes()
    for names in families.values():
        measure = _Measure(store)
        for name in names:
            await measure.add(name)
        found = replace(measure.sizes, exclusive_bytes=sum(measure.objects.values()))
        total = total + found
    return total


class _Measure:
    """What threads of one family take."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sizes = Sizes()
        self.objects: dict[bytes, int] = {}
        """The sizes of what was met."""

    async def add(self, thread_id: str) -> None:
        """Measure a thread; one that is not there (any more) takes nothing."""
        try:
            raw = await self._store.raw(thread_id)
        except CheckpointCorrupted:
            # Its checkpoints may be whole nevertheless.
            await self._add_thread(thread_id, None)
        else:
            if raw is not None:
                await self._add_thread(thread_id, raw)

    async def _add_thread(self, thread_id: str, raw: RawThread | None) -> None:
        """Measure a thread; without `raw` nobody knows its pending writes, nor what it has in common with others."""
        family = ""
        namespaces = [""]
        roots: list[bytes] = []
        written = 0
        if raw is not None:
            family = raw.family
            namespaces = list(raw.lines)
            roots = raw.roots()
            written = sum([len(write.children) + len(write.body) for _, write in raw.writes])
        query = Query(thread_id=thread_id, namespace=None, hidden="also")
        around = await list_all_around(self._store, query, namespaces)
        keys: list[Key] = []
        for stored in around.listed:
            if stored.seq not in around.damage:
                keys.append(stored.record.key)
                family = stored.family
        left_out = around.left_out + (raw is None)
        added = Sizes(threads=1, checkpoints=len(around.listed), write_bytes=written, left_out=left_out)
        for start in range(0, len(keys), _READ_MAX):
            added = added + await self._add_records(keys[start : start + _READ_MAX], roots)
        self.sizes = self.sizes + added
        await self._add_objects(family, roots)

    async def _add_records(self, keys: Sequence[Key], roots: list[bytes]) -> Sizes:
        size = 0
        found = await readable(self._store, keys)
        for loaded in found.loaded.values():
            record = loaded.stored.record
            info, root = pack_record(record)
            size += len(info) + len(root) + len(record.children)
            roots.append(record.children)
        return Sizes(record_bytes=size, left_out=len(found.damage))

    async def _add_objects(self, family: str, roots: Collection[bytes]) -> None:
        wanted: set[bytes] = set()
        for children in roots:
            wanted.update(hashes(children))
        level = [key for key in wanted if key not in self.objects]
        while level:
            below: set[bytes] = set()
            for start in range(0, len(level), _FETCHED_MAX):
                for obj in await self._fetched(family, level[start : start + _FETCHED_MAX]):
                    self.objects[obj.hash] = len(obj.children) + len(obj.body)
                    below.update(hashes(obj.children))
            level = [key for key in below if key not in self.objects]

    async def _fetched(self, family: str, asked: Sequence[bytes]) -> list[Object]:
        """Return objects, around those that cannot be read."""
        try:
            return await self._store.fetch(family, asked, below=False)
        except CheckpointCorrupted:
            if len(asked) == 1:
                self.sizes = self.sizes + Sizes(left_out=1)
                return []
        # One of them has spoiled the answer about all.
        middle = len(asked) // 2
        return await self._fetched(family, asked[:middle]) + await self._fetched(family, asked[middle:])
