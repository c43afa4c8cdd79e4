"""Single calls under faults: how often each took effect must fit what its caller was told.

A call that returned took effect once, one that raised CommitUnknown at most once, one that raised StoreUnavailable
not at all. Any other error is a fault.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from everstep import Checkpoint, CheckpointEngine, CheckpointMetadata, StoreBackend
from everstep.errors import CommitUnknown, StoreUnavailable
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Store, Thread, Write
from tests.conftest import FACES, OneFace
from tests.faults.proxy import Proxy
from tests.tools.servers import wait_until

JOIN_SECONDS = 20


class Example(NamedTuple):
    """A thread with three steps, and a branch of it with one more."""

    thread_id: str
    ids: Sequence[str]
    branch: str


def make_example(engine: CheckpointEngine, thread_id: str) -> Example:
    ids = [engine.sync.append(thread_id, [{"id": str(n)}], {"n": n}) for n in range(3)]
    branch = engine.sync.branch(ids[1], "side", thread_id=thread_id)
    engine.sync.append(branch, [], {"side": True})
    return Example(thread_id, ids, branch)


class Face(NamedTuple):
    """The three layers of an engine, all with methods to be awaited."""

    engine: Any
    backend: Any
    store: Store

    @classmethod
    def of(cls, engine: CheckpointEngine, face: str) -> Face:
        store = _store(engine)
        return cls(
            OneFace(engine, face),
            OneFace(engine.checkpointer, face),
            store.blocking if face == "blocking" else store,
        )


class Call(NamedTuple):
    name: str
    do: Callable[[Face, Example], Awaitable[Any]]
    times: Callable[[CheckpointEngine, Example], int] | None = None
    """How often it has taken effect; None: it only reads."""


# -- the calls ---------------------------------------------------------------------------------------------------------


def _append(face: Face, example: Example) -> Awaitable[Any]:
    return face.engine.append(example.thread_id, [{"id": "new"}], metadata={"call": "append"})  # type: ignore[no-any-return]


def _snapshot(face: Face, example: Example) -> Awaitable[Any]:
    return face.engine.snapshot(example.thread_id, [], {"new": 1}, {}, metadata={"call": "snapshot"})  # type: ignore[no-any-return]


def _begin(face: Face, example: Example) -> Awaitable[Any]:
    return face.engine.append(f"{example.thread_id} new", [], {"new": 1}, metadata={"call": "begin"})  # type: ignore[no-any-return]


def _put(face: Face, example: Example) -> Awaitable[Any]:
    metadata = CheckpointMetadata(
        thread_id=example.thread_id, checkpoint_id="given", step=4, parent_checkpoint_id=example.ids[2],
        metadata={"call": "put"},
    )  # fmt: skip
    return face.backend.put(Checkpoint(metadata, [], {"given": True}, {}))  # type: ignore[no-any-return]


def _put_writes(face: Face, example: Example) -> Awaitable[Any]:
    writes = [Write("task", n, "channel", b"", b"value", 5) for n in range(2)]
    return face.store.put_writes(Key(example.thread_id, "", example.ids[2]), writes, [])


def _written(engine: CheckpointEngine, example: Example) -> int:
    loaded = run_to_end(_store(engine).blocking.read(example.thread_id, "", example.ids[2], writes=True))
    assert loaded is not None
    assert len(loaded.writes) in (0, 2)
    return len(loaded.writes) // 2


def _points(thread: Callable[[Example], str], call: str) -> Callable[[CheckpointEngine, Example], int]:
    def times(engine: CheckpointEngine, example: Example) -> int:
        return sum(
            point.metadata.get("call") == call for point in engine.sync.list_time_travel_points(thread(example), 1000)
        )

    return times


def _logged(kind: str) -> Callable[[CheckpointEngine, Example], int]:
    def times(engine: CheckpointEngine, example: Example) -> int:
        return sum(entry.kind == kind for entry in engine.sync.operations(example.thread_id))

    return times


def _rewound(engine: CheckpointEngine, example: Example) -> int:
    """The log, the head and the list must agree."""
    times = _logged("rewind")(engine, example)
    head, points = engine.sync.get_latest(example.thread_id), engine.sync.list_time_travel_points(example.thread_id)
    assert head is not None
    assert head.metadata.checkpoint_id == points[0].checkpoint_id == example.ids[0 if times else 2]
    return times


def _branched(engine: CheckpointEngine, example: Example) -> int:
    """The log and the threads must agree; the example has one branch already."""
    branches = _thread(engine, example).branches
    assert len(branches) == _logged("branch")(engine, example)
    assert all(len(engine.sync.list_time_travel_points(branch)) >= 1 for branch in branches)
    return len(branches) - 1


def _merged(engine: CheckpointEngine, example: Example) -> int:
    times = sum(len(point.parents) == 2 for point in engine.sync.list_time_travel_points(example.thread_id))
    assert times == _logged("merge")(engine, example)
    return times


def _undone(engine: CheckpointEngine, example: Example) -> int:
    return sum(entry.undone for entry in engine.sync.operations(example.thread_id))


def _deleted(engine: CheckpointEngine, example: Example) -> int:
    return 3 - len(engine.sync.list_time_travel_points(example.thread_id))


def _thread(engine: CheckpointEngine, example: Example) -> Thread:
    found = run_to_end(_store(engine).blocking.thread(example.thread_id, branches=True))
    assert found is not None
    return found


def _store(engine: CheckpointEngine) -> Store:
    backend = engine.checkpointer
    assert isinstance(backend, StoreBackend)
    return backend.store


CHANGES = (
    Call("append", _append, _points(lambda example: example.thread_id, "append")),
    Call("snapshot", _snapshot, _points(lambda example: example.thread_id, "snapshot")),
    Call("begin", _begin, _points(lambda example: f"{example.thread_id} new", "begin")),
    Call("put", _put, _points(lambda example: example.thread_id, "put")),
    Call("put_writes", _put_writes, _written),
    Call("rewind", lambda face, example: face.engine.rewind(example.ids[0], thread_id=example.thread_id), _rewound),
    Call("branch", lambda face, example: face.engine.branch(example.ids[2], "b", thread_id=example.thread_id),
         _branched),
    Call("merge", lambda face, example: face.engine.merge_branch(example.branch, example.thread_id), _merged),
    Call("pin", lambda face, example: face.engine.pin(example.ids[0], thread_id=example.thread_id), _logged("pin")),
    Call("undo", lambda face, example: face.engine.undo(example.thread_id), _undone),
    Call("delete", lambda face, example: face.store.delete(example.thread_id, before_step=2), _deleted),
)  # fmt: skip
READS = (
    Call("get", lambda face, example: face.engine.get(example.ids[0], thread_id=example.thread_id)),
    Call("get_latest", lambda face, example: face.engine.get_latest(example.thread_id)),
    Call("list", lambda face, example: face.engine.list_time_travel_points(example.thread_id)),
    Call("tree", lambda face, example: face.engine.get_checkpoint_tree(example.thread_id)),
)


# -- calling -----------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a caller was told: None, or the error."""

    call: Call
    example: Example
    error: BaseException | None


def perform(engine: CheckpointEngine, face: str, call: Call, example: Example) -> Answer:
    async def awaited() -> Any:
        return await call.do(Face.of(engine, face), example)

    try:
        run_to_end(awaited()) if face == "blocking" else asyncio.run(awaited())
    except Exception as exc:
        exc.__traceback__ = exc.__cause__ = exc.__context__ = None  # they keep what the call held, as connections
        return Answer(call, example, exc)
    return Answer(call, example, None)


def judge(answer: Answer, engine: CheckpointEngine) -> list[str]:
    """Return what is wrong with an answer. `engine` sees the store as it is."""
    call, example, error = answer
    if error is not None and not isinstance(error, (CommitUnknown, StoreUnavailable)):
        return [f"{call.name} of {example.thread_id}: {error!r}"]
    if call.times is None:
        return (
            [f"{call.name} of {example.thread_id}: a read says {error!r}"] if isinstance(error, CommitUnknown) else []
        )
    try:
        times = call.times(engine, example)
    except AssertionError as exc:
        return [f"{call.name} of {example.thread_id}, told {error!r}, is half done: {exc}"]
    right = (1,) if error is None else (0, 1) if isinstance(error, CommitUnknown) else (0,)
    return [] if times in right else [f"{call.name} of {example.thread_id}, told {error!r}, is there {times} times"]


_ROUNDS = itertools.count(1)


def lose_replies(proxy: Proxy, engine: CheckpointEngine, call: Call, *, onwards: bool = False) -> list[Answer]:
    """Do `call` through the proxy, first undisturbed, then losing the reply to another of its requests each time.

    Of many requests only some are tried, but every commit. With `onwards` nothing is heard after the lost reply. On a
    busy machine one request may come in two pieces, or two in one: so one more than were counted is tried, and one that
    does not come is passed over.
    """
    answers = []
    which = next(_ROUNDS)
    for name in ("first", "undisturbed"):  # the server may have to learn a script first
        example = make_example(engine, f"{call.name} {which} {name}")
        proxy.asked.clear()
        answers.append(perform(engine, "blocking", call, example))
    chosen = _chosen(list(proxy.asked), onwards)
    reached = 0
    for nth, face in zip(chosen, itertools.cycle(FACES), strict=False):
        example = make_example(engine, f"{call.name} {which} {nth}")
        before = proxy.counts
        proxy.lose_reply(nth, onwards=onwards)
        answers.append(perform(engine, face, call, example))
        reached += (proxy.counts - before).lost >= 1
        proxy.heal()
        wait_for_recovery(engine, "recovery")
    assert reached >= max(len(chosen) - 2, 1)
    return answers


def _chosen(requests: Sequence[bytes], onwards: bool) -> list[int]:
    every = range(1, len(requests) + 1)
    commits = [nth for nth in every if b"COMMIT" in requests[nth - 1]]
    if onwards and commits:
        # A driver that has prepared COMMIT says it by another name: it is one of the last.
        return sorted({*commits, *every[-4:]})
    return [*every, len(every) + 1] if len(every) <= 12 else sorted({*commits, *every[::5], *every[-3:]})


def perform_all(works: Sequence[tuple[CheckpointEngine, str, Call, Example]]) -> list[Answer]:
    """Do all at once, each on a thread of its own, and return the answers; AssertionError if one does not end."""
    answers: list[Answer] = []
    workers = [threading.Thread(target=lambda work=work: answers.append(perform(*work)), daemon=True) for work in works]
    for worker in workers:
        worker.start()
    for worker, (_, face, call, _) in zip(workers, works, strict=True):
        worker.join(JOIN_SECONDS)
        assert not worker.is_alive(), f"{call.name} ({face}) does not end"
    return answers


def wait_for_recovery(engine: CheckpointEngine, thread_id: str) -> None:
    """Return when the engine saves again."""

    def saves() -> bool:
        try:
            return bool(engine.sync.append(thread_id, [], {}))
        except StoreUnavailable:
            return False

    wait_until(saves, "the store to recover")
