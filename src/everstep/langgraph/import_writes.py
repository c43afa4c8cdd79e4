"""The pending writes of an import: which of them the target lacks, and how it gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.import_batches import ThreadPlan
from everstep.langgraph.saved import Pending
from everstep.langgraph.stock_savers import Attached, Source
from everstep.stores.protocol import Key, Store, Write

_PAGE = 128


class TargetWrites:
    """The pending writes of checkpoints that the target has, or gets later."""

    def __init__(self, source: Source, store: Store, threads: Threads, count: Callable[..., None]) -> None:
        """`count` is told of what was attached."""
        self._source = source
        self._store = store
        self._threads = threads
        self._count = count

    async def wanting(self, known: Sequence[Key], written: Mapping[Key, Attached]) -> list[Key]:
        """Return which of the checkpoints that are there lack some of their writes."""
        found: list[Key] = []
        having = [key for key in known if key in written]
        for start in range(0, len(having), _PAGE):
            for key, there in (await self._written(having[start : start + _PAGE])).items():
                if self._is_wanting(key, written[key], there):
                    found.append(key)
        return found

    def _is_wanting(self, key: Key, written: Attached, there: Mapping[tuple[str, int], Write]) -> bool:
        if any(name not in there for name in written.names):
            return True
        # Special writes (an interrupt, say), whose numbers are negative, are replaced by later ones: these are read.
        has_special = any(idx < 0 for _, idx in written.names)
        return has_special and bool(self._lacking(key, there)[0])

    async def _written(self, keys: Sequence[Key]) -> dict[Key, dict[tuple[str, int], Write]]:
        """Return the writes that the target has of these checkpoints, by task and number."""
        found: dict[Key, dict[tuple[str, int], Write]] = {}
        for loaded in await self._store.read_many(keys, writes=True):
            found[loaded.stored.record.key] = {(write.task_id, write.idx): write for write in loaded.writes}
        return found

    async def attach_early(self, plan: ThreadPlan) -> None:
        """Attach writes whose checkpoints have not come yet, or are gone."""
        raw = await self._store.raw(plan.thread_id)
        there: dict[Key, dict[tuple[str, int], Write]] = {}
        if raw is not None:
            for key, write in raw.writes:
                there.setdefault(key, {})[write.task_id, write.idx] = write
        for key in plan.early:
            await self._attach_lacking(key, there.get(key, {}))

    async def complete(self, key: Key) -> None:
        """Attach the writes that the target lacks of a checkpoint that it has."""
        await self._attach_lacking(key, (await self._written([key]))[key])

    async def _attach_lacking(self, key: Key, there: Mapping[tuple[str, int], Write]) -> None:
        lacking, size = self._lacking(key, there)
        await self._threads.attach(key, lacking)
        if lacking:
            self._count(writes=len(lacking), bytes_read=size)

    def _lacking(self, key: Key, there: Mapping[tuple[str, int], Write]) -> tuple[list[Pending], int]:
        """Return the writes of a checkpoint that the target has not, or has otherwise and may replace."""
        pending, size = self._source.writes(key)
        lacking: list[Pending] = []
        for one, write in zip(pending, self._threads.encode_writes(pending)[0], strict=True):
            old = there.get((one.task_id, one.idx))
            if old is None or (one.idx < 0 and old._replace(seq=0) != write):
                lacking.append(one)
        return lacking, size
