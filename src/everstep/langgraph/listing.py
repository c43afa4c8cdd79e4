"""Many checkpoints of a saver at once: in pages, by their keys, or a thread's newest ones, with their values.

A page ends at an id, and the next one begins below it. Where several threads or namespaces are listed, more than one of
them may have a checkpoint of that id: a page takes them all. The store holds nothing between pages, nor between the
keys of a page and what they name: what is deleted meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from everstep.errors import CheckpointCorrupted
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.reading import Reader
from everstep.langgraph.saved import KIND, Saved, of_graph
from everstep.repository.repository import Repository, verified
from everstep.runtime.calls import public_call
from everstep.stores.abilities import ReadsPages, ReadsTogether
from everstep.stores.protocol import Key, Loaded, Object, Query
from everstep.values import tree

_PAGE_FIRST = 16
_PAGE_MAX = 128
_AHEAD_MAX = 8  # checkpoints decoded before they are asked for


class Lister:
    """Lists checkpoints over one face of a store."""

    def __init__(self, repository: Repository, reader: Reader) -> None:
        self._store = repository.store
        self._memory = repository.memory
        self._reader = reader
        self.figures = repository.figures
        """Where pages are counted: each is a public call."""
        self.limit_seconds = repository.store.limit_seconds

    async def listed(self, query: Query, limit: int | None) -> AsyncIterator[Saved]:
        """Yield checkpoints, the greatest id first; a few are decoded ahead. The store holds nothing meanwhile."""
        page = _PAGE_FIRST
        left = limit
        ahead = 1
        while left is None or left > 0:
            loaded, last = await self._page(query.thread_id, query, page, left)
            if left is not None:
                left -= len(loaded)
            while loaded:
                for saved in await self._saved_some(loaded[:ahead]):
                    yield saved
                loaded = loaded[ahead:]
                ahead = min(ahead * 2, _AHEAD_MAX)
            if last is None or query.checkpoint_id is not None:
                return
            query = replace(query, before_id=last)
            page = min(page * 2, _PAGE_MAX)

    @public_call("saver.list", has_deadline=False)
    async def _page(
        self,
        thread_id: str | None,  # noqa: ARG002  # `public_call` tells it with the figures
        query: Query,
        page: int,
        left: int | None,
    ) -> tuple[list[Loaded], str | None]:
        """Return a page, with what its values are made of at hand, and the last id; None: nothing comes after it."""
        size = page if left is None else min(page, left)
        keys, found = await self._read_page(replace(query, limit=size))
        last = keys[-1].checkpoint_id if len(keys) == size else None
        is_one_line = query.thread_id is not None and query.namespace is not None
        if last is not None and query.checkpoint_id is None and not is_one_line:
            # The same id may stand in several threads and namespaces; the next page begins below it.
            _, ties = await self._read_page(replace(query, checkpoint_id=last, limit=None))
            found += [loaded for loaded in ties if loaded.stored.record.key not in keys]
        found = [loaded for loaded in found if loaded.stored.record.kind == KIND][:left]
        await self._prepare(found)
        return found, last

    async def _read_page(self, query: Query) -> tuple[list[Key], list[Loaded]]:
        """Return the keys that a query lists, and what of it is there a moment later, with writes."""
        store = self._store
        if isinstance(store, ReadsPages):
            page = await store.read_page(query)
            return [loaded.stored.record.key for loaded in page], page
        keys = [stored.record.key for stored in await store.list_checkpoints(query)]
        return keys, await store.read_many(keys, writes=True)

    async def read_some(self, keys: Sequence[Key]) -> list[Saved]:
        """Return these checkpoints with their values and writes; what is missing is left out. All are in memory."""
        loaded = await self._store.read_many(keys, writes=True)
        await self._prepare(loaded)
        return await self._saved_some(loaded)

    async def newest(self, thread_id: str, limit: int | None) -> list[Saved]:
        """Return a thread's checkpoints in all namespaces, the one that was put last first. Without their writes."""
        keys = list[Key]()
        found = list[Saved]()
        query = Query(thread_id=thread_id, namespace=None, limit=limit)
        while limit is None or len(keys) < limit:
            listed = await self._store.list_checkpoints(query)
            keys += [stored.record.key for stored in of_graph(listed)]
            if limit is None or len(listed) < limit:
                break
            query = replace(query, offset=query.offset + limit)
        keys = keys[:limit]
        for start in range(0, len(keys), _PAGE_MAX):
            some = await self._store.read_many(keys[start : start + _PAGE_MAX])
            for loaded in some:
                saved = await self._reader.saved(loaded)
                if saved is not None:
                    found.append(saved)
        return found

    async def _prepare(self, page: Sequence[Loaded]) -> None:
        """Fetch what these checkpoints and their writes need, at once."""
        held = self._memory.contents
        missing = dict[str, set[bytes]]()
        for loaded in page:
            for children in (loaded.stored.record.children, *(write.children for write in loaded.writes)):
                unknown = [key for key in tree.hashes(children) if key not in held]
                missing.setdefault(loaded.stored.family, set()).update(unknown)
        missing = {family: keys for family, keys in missing.items() if keys}
        if len(missing) > 1 and isinstance(self._store, ReadsTogether):
            self._keep(await self._store.fetch_many(missing))
            return
        for family, keys in missing.items():
            self._keep(await self._store.fetch(family, keys))

    def _keep(self, fetched: Sequence[Object]) -> None:
        try:
            self._memory.add(verified(fetched))
        except CheckpointCorrupted:
            pass  # said when the checkpoint is read that needs it

    async def _saved_some(self, some: Sequence[Loaded]) -> list[Saved]:
        """Return checkpoints that were read, with their values: what is at hand in one pause of the collector."""
        found: list[Saved] = []
        position = 0
        while position < len(some):
            with QUIET:
                for loaded in some[position:]:
                    saved = self._reader.saved_at_hand(loaded)
                    if saved is None:
                        break
                    found.append(saved)
                    position += 1
            if position < len(some):
                saved = await self._reader.saved(some[position])
                if saved is not None:  # else it was deleted meanwhile
                    found.append(saved)
                position += 1
        return found
