"""Writers that go on while their server is harmed, and the check of what they left.

Every attempt is numbered, and what it saves follows from its number and the checkpoint before. So the check knows the
exact content of every checkpoint, and which attempts may be there: one that was acknowledged exactly once, one of
unknown outcome at most once, one that was refused, or told that the head went back, never.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

from everstep import CheckpointEngine
from everstep.errors import CommitUnknown, HeadRegressed, StoreUnavailable
from everstep.runtime.blocking import run_to_end
from tests.tools.servers import wait_until

JOIN_SECONDS = 60
Outcome = Literal["acknowledged", "unknown", "refused", "regressed"]
Values = tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]
EMPTY: Values = ([], {}, {})


class Attempt(NamedTuple):
    """One save, and what the writer was told."""

    thread_id: str
    writer: int
    n: int
    outcome: Outcome
    checkpoint_id: str | None = None

    @property
    def label(self) -> tuple[int, int]:
        return self.writer, self.n


def is_whole(n: int) -> bool:
    """Whether attempt `n` is a snapshot; the others append."""
    return n % 3 == 0


def saved(writer: int, n: int) -> Values:
    """What attempt `n` passes to the engine."""
    message = {"writer": writer, "n": n, "content": f"writer {writer} wrote message {n}. " * (1 + n % 40)}
    return [message], {f"last of {writer}": n, "blob": b"\x00\xff" * n}, {f"tool of {writer}": {"n": n}}


def following(before: Values, writer: int, n: int) -> Values:
    """What the checkpoint of attempt `n` holds if it follows `before`."""
    messages, state, tools = saved(writer, n)
    return (messages, state, tools) if is_whole(n) else (before[0] + messages, before[1] | state, before[2] | tools)


async def save(engine: Any, thread_id: str, writer: int, n: int) -> str:
    """Save attempt `n`, on either face."""
    method = engine.snapshot if is_whole(n) else engine.append
    answer = method(thread_id, *saved(writer, n), metadata={"writer": writer, "n": n})
    result: str = answer if isinstance(answer, str) else await answer
    return result


# -- writers -----------------------------------------------------------------------------------------------------------


class Writers:
    """Four at once: two faces, two engines, two of them on one thread. They note errors and go on."""

    def __init__(self, make_engine: Callable[[], CheckpointEngine], name: str) -> None:
        self.attempts: list[Attempt] = []
        self.faults: list[str] = []
        """Errors that no writer should see."""
        self._engines = [make_engine(), make_engine()]
        self._stopping = threading.Event()
        first, second = self._engines
        plan: Sequence[tuple[CheckpointEngine, bool, str]] = (
            (first, False, "shared"), (second, True, "shared"), (second, False, "own"), (first, True, "another"),
        )  # fmt: skip
        self.threads = sorted({f"{name} {thread}" for _, _, thread in plan})
        self._workers = [
            threading.Thread(
                target=self._work, args=(engine, waits, f"{name} {thread}", writer), name=f"writer {writer}"
            )
            for writer, (engine, waits, thread) in enumerate(plan)
        ]

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for worker in self._workers:
            worker.join(JOIN_SECONDS)
            if worker.is_alive():
                self.faults.append(f"{worker.name} hangs")
        for engine in self._engines:
            engine.sync.close()

    def advance(self, more: int = 3) -> None:
        """Return when every writer has had so many further saves acknowledged."""
        before = self._acknowledged()
        writers = range(len(self._workers))
        wait_until(
            lambda: all(self._acknowledged()[writer] >= before[writer] + more for writer in writers),
            "the writers to go on",
            self._check_alive,
        )

    def _acknowledged(self) -> Counter[int]:
        return Counter(attempt.writer for attempt in list(self.attempts) if attempt.outcome == "acknowledged")

    def _check_alive(self) -> None:
        if self.faults:
            raise AssertionError(self.faults)

    def _work(self, engine: CheckpointEngine, waits: bool, thread_id: str, writer: int) -> None:
        try:
            if waits:
                asyncio.run(self._write(engine, asyncio.sleep, thread_id, writer))
            else:
                run_to_end(self._write(engine.sync, _sleep, thread_id, writer))
        except BaseException as exc:
            self.faults.append(f"writer {writer}: {exc!r}")

    async def _write(
        self, engine: Any, sleep: Callable[[float], Coroutine[Any, Any, None]], thread_id: str, writer: int
    ) -> None:
        for n in itertools.count(1):
            if self._stopping.is_set():
                return
            attempt = await attempted(save(engine, thread_id, writer, n), thread_id, writer, n)
            self.attempts.append(attempt)
            await sleep(0.003 if attempt.outcome == "acknowledged" else 0.03)  # as a caller would; the rest is checking


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)


async def attempted(saving: Coroutine[Any, Any, str], thread_id: str, writer: int, n: int) -> Attempt:
    """Return the attempt with what came of it."""
    try:
        return Attempt(thread_id, writer, n, "acknowledged", await saving)
    except CommitUnknown as exc:
        return Attempt(thread_id, writer, n, "unknown", exc.checkpoint_id)
    except StoreUnavailable:
        return Attempt(thread_id, writer, n, "refused")
    except HeadRegressed:
        return Attempt(thread_id, writer, n, "regressed")


# -- the check ---------------------------------------------------------------------------------------------------------


def check(attempts: Iterable[Attempt], engine: CheckpointEngine) -> list[str]:
    """Return what is wrong with the threads that were written."""
    by_thread: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_thread.setdefault(attempt.thread_id, []).append(attempt)
    return [fault for thread_id, tried in by_thread.items() for fault in _check_thread(thread_id, tried, engine)]


def _check_thread(thread_id: str, tried: list[Attempt], engine: CheckpointEngine) -> list[str]:
    faults = []
    points = engine.sync.list_time_travel_points(thread_id, 100_000)[::-1]
    if [point.step for point in points] != list(range(1, len(points) + 1)):
        faults.append(f"steps {[point.step for point in points]}")
    if any(new.parents != [old.checkpoint_id] for old, new in itertools.pairwise(points)):
        faults.append("the chain of parents is broken")
    ids = Counter(point.checkpoint_id for point in points)
    labels = Counter((point.metadata.get("writer"), point.metadata.get("n")) for point in points)
    faults += [f"id {name} is there {times} times" for name, times in ids.items() if times > 1]
    named = {attempt.label for attempt in tried}
    faults += [f"{label} was never saved" for label in labels if label not in named]
    for attempt in tried:
        times = labels[attempt.label]
        if times > 1:
            faults.append(f"{attempt.label}, {attempt.outcome}, is there {times} times")
        if attempt.outcome == "acknowledged" and (times == 0 or attempt.checkpoint_id not in ids):
            faults.append(f"lost {attempt.label}, acknowledged as {attempt.checkpoint_id}")
        if attempt.outcome in ("refused", "regressed") and times > 0:
            faults.append(f"{attempt.label} was {attempt.outcome} and is there")
    before = EMPTY
    for point in points:
        label = point.metadata.get("writer", 0), point.metadata.get("n", 0)
        before = following(before, *label)
        found = engine.sync.get(point.checkpoint_id, thread_id=thread_id, namespace="")
        if found is None or (found.messages, found.state, found.tools_result) != before:
            faults.append(f"{point.checkpoint_id} does not read back as what was saved as {label}")
            break  # all that follow would differ too
    head = engine.sync.get_latest(thread_id)
    if points and (head is None or head.metadata.checkpoint_id != points[-1].checkpoint_id):
        faults.append(f"the head is {head and head.metadata.checkpoint_id}, the newest {points[-1].checkpoint_id}")
    return [f"{thread_id}: {fault}" for fault in faults]
