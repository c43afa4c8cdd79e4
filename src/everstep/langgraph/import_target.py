"""What the target of an import has of the threads that are brought over, and whether it is a copy of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import replace

from everstep.errors import InvalidInput
from everstep.history.operation_log import DEPTH_MAX
from everstep.langgraph.import_batches import ThreadPlan, Workshop, parents_first, size_of
from everstep.langgraph.import_comparing import Comparison, in_order
from everstep.langgraph.saved import KIND
from everstep.langgraph.stock_savers import Outline, Source, SourceEntry
from everstep.stores.abilities import ReadsTogether
from everstep.stores.protocol import Key, Query, Store, Stored
from everstep.types import TASK_NAMESPACE

_LISTED = 1000  # at once, without values


class Target:
    """The threads of a target, held against those of the source."""

    def __init__(self, store: Store, source: Source, workshop: Workshop, comparison: Comparison) -> None:
        self._store = store
        self._source = source
        self._workshop = workshop
        self._comparison = comparison

    async def present(self, thread_ids: Sequence[str]) -> set[str]:
        """Return which of these threads the target has."""
        if isinstance(self._store, ReadsTogether):
            return await self._store.present(thread_ids)
        found: set[str] = set()
        for thread_id in thread_ids:
            if await self._store.thread(thread_id, brief=True) is not None:
                found.add(thread_id)
        return found

    async def plan(self, thread_id: str, outline: Outline, *, is_there: bool) -> ThreadPlan:
        """Return what there is of a thread on both sides; InvalidInput if the target has another one of that name."""
        entries = parents_first(thread_id, outline.entries)
        by_key = {entry.key: entry for entry in entries}
        sizes: dict[Key, int] = {}
        if is_there:
            async for page in self._listed(thread_id):
                known = {stored.record.key: stored for stored in page if stored.record.key in by_key}
                self._check_known([by_key[key] for key in known], known)
                for key, stored in known.items():
                    sizes[key] = size_of(stored)
        has_gone_on = is_there and await self._has_gone_on(thread_id, by_key)
        there = frozenset(sizes)
        return ThreadPlan(thread_id, entries, outline.written, outline.heads, there, sizes, not is_there, has_gone_on)

    async def _has_gone_on(self, thread_id: str, known: Container[Key]) -> bool:
        """Whether somebody has worked with the thread in the target, or taken it back: that is not ours to mend."""
        thread = await self._store.thread(thread_id)
        if thread is None:
            return False
        if thread.hidden:
            return True
        for namespace, (head, _) in thread.heads.items():
            if Key(thread_id, namespace, head) not in known:
                return True
        log = await self._store.operations(thread_id, DEPTH_MAX)
        return any(entry.kind == "rewind" and not entry.undone for entry in log)

    async def _listed(self, thread_id: str) -> AsyncIterator[list[Stored]]:
        """Yield what a graph has put into a thread of the target, in pages, without values."""
        query = Query(thread_id=thread_id, namespace=None, hidden="also", order="oldest", limit=_LISTED)
        while page := await self._store.list_checkpoints(query):
            own = [stored for stored in page if stored.record.key.namespace != TASK_NAMESPACE]
            for stored in own:
                if stored.record.kind != KIND:
                    raise InvalidInput(
                        f"thread {thread_id!r} of the target was not written by a LangGraph saver; import into another "
                        "store, or leave it out with thread_ids="
                    )
            yield own
            query = replace(query, after_seq=page[-1].seq)

    def _check_known(self, entries: Sequence[SourceEntry], known: Mapping[Key, Stored]) -> None:
        """Refuse a thread in which an id means something else. Looks at no values."""
        if not entries:
            return
        found = self._source.metadata(entries[0].key.thread_id, [entry.key for entry in entries])
        for entry in entries:
            metadata, _ = self._workshop.without_secrets(found[entry.key])
            parents: tuple[Key, ...] = ()
            if entry.parent is not None:
                parents = (entry.parent,)
            record = known[entry.key].record
            if (
                record.parents != parents
                or self._comparison.differs(in_order(record.metadata), in_order(metadata), "") is not None
            ):
                raise InvalidInput(
                    f"checkpoint {entry.key.checkpoint_id!r} of thread {entry.key.thread_id!r} is in the target "
                    "with another parent or other metadata: the thread there is not a copy of the source's; delete it "
                    "there (delete_thread), import into another store, or leave it out with thread_ids="
                )
