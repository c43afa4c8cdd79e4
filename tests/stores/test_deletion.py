"""Random deletions give the same on every store as in memory: of what is protected, early, hidden, or all of these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import EverstepError
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Hidden, Key, Move, Operation, Pin, Query, Store, Write
from everstep.testing import make_record, put
from tests.conftest import STORES, Place

NAMES = tuple("abcdef")
NAMESPACES = ("", "sub")
DELETING = ("delete", "below", "whole", "prune", "log", "end branch")
_threads = itertools.count()


class Act(NamedTuple):
    kind: str
    namespace: str
    names: tuple[str, ...]
    step: int
    flag: bool


ACTS = st.builds(
    Act,
    st.sampled_from(
        ["put"] * 4 + ["write"] * 3 + ["delete"] * 3
        + ["pin", "branch", "end branch", "hide", "hide writes", "move", "below", "whole", "prune", "log"]
    ),
    st.sampled_from(NAMESPACES),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple),
    st.integers(0, 4),
    st.booleans(),
)  # fmt: skip


class Player:
    """Does the same to a store as to any other, and tells what it holds then."""

    def __init__(self, store: Store, thread_id: str) -> None:
        self._store, self._thread = store.blocking, thread_id

    def do(self, act: Act) -> Any:
        try:
            return run_to_end(getattr(self, "_" + act.kind.replace(" ", "_"))(act))
        except EverstepError as exc:
            return type(exc).__name__

    async def _put(self, act: Act) -> None:
        for name in act.names[:2]:
            await self._store.commit(put(make_record(name, self._thread, act.namespace, step=act.step)))

    async def _write(self, act: Act) -> None:
        write = Write(f"task {act.step}", -1 if act.flag else 0, "ch", b"", b"", 0)
        for key in self._keys(act):
            await self._store.put_writes(key, [write], [])

    async def _pin(self, act: Act) -> None:
        await self._change(act.namespace, pins=[Pin(self._keys(act)[0], act.flag)])

    async def _branch(self, act: Act) -> None:
        record = make_record("b", f"{self._thread} branch {act.step}", act.namespace, step=0)
        await self._store.commit(put(record, origin=self._keys(act)[0]))

    async def _end_branch(self, act: Act) -> int:
        return (await self._store.delete(f"{self._thread} branch {act.step}")).checkpoints

    async def _move(self, act: Act) -> None:
        await self._change(act.namespace, moves=[Move(act.namespace, act.names[0] if act.flag else None)])

    async def _hide(self, act: Act) -> None:
        """Hide all that is there now, or all but the oldest."""
        query = Query(thread_id=self._thread, namespace=act.namespace, hidden="also", order="oldest")
        seqs = [stored.seq for stored in await self._store.list_checkpoints(query)]
        if seqs:
            stretch = Hidden(act.namespace, 0 if act.flag else seqs[0], seqs[-1])
            await self._change(act.namespace, hide=[stretch], log=Operation("hide", {}))

    async def _hide_writes(self, act: Act) -> None:
        key = self._keys(act)[0]
        raw = await self._store.raw(self._thread)
        seqs = [write.seq for at, write in raw.writes if at == key] if raw is not None else []
        if seqs:
            stretch = Hidden(act.namespace, 0, seqs[-1], None, key.checkpoint_id)
            await self._change(act.namespace, hide=[stretch], log=Operation("hide writes", {}))

    async def _log(self, act: Act) -> None:
        entries = await self._store.operations(self._thread, 10)
        await self._store.delete(self._thread, keys=[], operations=[entry.seq for entry in entries[: act.step]])

    async def _delete(self, act: Act) -> Any:
        return await self._gone(keys=self._keys(act), spare=act.flag)

    async def _below(self, act: Act) -> Any:
        return await self._gone(before_step=act.step, spare=act.flag)

    async def _whole(self, act: Act) -> Any:
        return await self._gone(spare=act.flag)

    async def _prune(self, act: Act) -> None:
        found = [await self._store.read(*key) for key in self._keys(act)]
        prune = [loaded.stored.seq for loaded in found if loaded is not None]
        if prune:
            await self._change(act.namespace, prune=prune)

    async def _gone(self, **options: Any) -> tuple[int, bool]:
        deleted = await self._store.delete(self._thread, **options)
        return deleted.checkpoints, bool(deleted.families)

    async def _change(self, namespace: str, **options: Any) -> None:
        if await self._store.thread(self._thread) is not None:
            await self._store.commit(Change(thread_id=self._thread, namespace=namespace, **options))

    def _keys(self, act: Act) -> list[Key]:
        return [Key(self._thread, act.namespace, name) for name in act.names]

    def seen(self) -> Any:
        """Return all that is there, but numbers."""
        return run_to_end(self._seen())

    async def _seen(self) -> Any:
        raw, thread = await self._store.raw(self._thread), await self._store.thread(self._thread)
        if raw is None or thread is None:
            return raw, thread
        listed = await self._store.list_checkpoints(
            Query(thread_id=self._thread, namespace=None, hidden="also", order="oldest")
        )
        loaded = {stored.record.key[1:]: await self._store.read(*stored.record.key, writes=True) for stored in listed}
        return {
            "lines": {name: (line.head, line.head_was_moved) for name, line in raw.lines.items()},
            "checkpoints": [(s.record.key[1:], s.record.step, s.pinned, s.hidden) for s in listed],
            "spared": sorted(s.record.key[1:] for s in listed if s.seq in thread.protected),
            "writes": sorted((key[1:], write.task_id, write.idx) for key, write in raw.writes),
            "visible writes": {
                name: [(write.task_id, write.idx) for write in found.writes]
                for name, found in loaded.items()
                if found is not None
            },
            "hidden": sorted((hidden.namespace, hidden.writes_of or "") for hidden in raw.hidden),
            "log": [entry.kind for entry in raw.operations],
            "branches": sorted(await self._branches()),
        }

    async def _branches(self) -> list[str]:
        thread = await self._store.thread(self._thread, branches=True)
        return [name.removeprefix(self._thread) for name in thread.branches] if thread is not None else []


@pytest.fixture(scope="module", params=[kind for kind in STORES if kind != "memory"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Place(request.param, tmp_path_factory.mktemp("deletion")).open()
    yield store.blocking
    run_to_end(store.blocking.close())


@settings(max_examples=25)
@given(acts=st.lists(ACTS, min_size=5, max_size=25))
def test_a_deletion_is_the_same_everywhere(other: Store, acts: list[Act]) -> None:
    name = f"t{next(_threads)}"
    ours, theirs = Player(MemoryStore(), name), Player(other, name)
    for act in acts:
        assert ours.do(act) == theirs.do(act), act
        if act.kind in DELETING:
            assert ours.seen() == theirs.seen(), act
    assert ours.seen() == theirs.seen()
