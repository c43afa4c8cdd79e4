"""The commit queue by itself: interrupts in each role, and no worker thread to be had."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest

from everstep.errors import CommitUnknown, StoreClosed, StoreUnavailable
from everstep.stores.sqlite.queue import CommitQueue, Job

WAIT_SECONDS = 20


class Interrupt(BaseException):
    """What a signal handler raises."""


class Runner:
    """Runs batches one after the other. A batch waits at the gate, if there is one, and then does what it is told."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Event()
        self.gate: threading.Event | None = None
        self.failure: BaseException | None = None

    def __call__(self, batch: Sequence[Job[Any]]) -> None:
        self.batches.append([job.label for job in batch])
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(WAIT_SECONDS)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        for job in batch:
            job.finish(job.work(None))


class Call(threading.Thread):
    """A blocking caller on its own thread, and what came out of its call."""

    def __init__(self, queue: CommitQueue, job: Job[Any]) -> None:
        super().__init__(daemon=True)  # a call that never ends must not keep the tests from ending
        self._queue, self._job = queue, job
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._queue.do(self._job)
        except BaseException as exc:
            self.outcome = exc

    def result(self) -> Any:
        self.join(WAIT_SECONDS)
        assert not self.is_alive(), "the call never ended"
        return self.outcome


def job(label: str) -> Job[str]:
    return Job(lambda _: label, label)


def until_waiting(queue: CommitQueue, count: int) -> None:
    """Wait until so many jobs wait for their turn."""
    pause = threading.Event()
    for _ in range(WAIT_SECONDS * 1000):
        if len(queue._waiting) == count:
            return
        pause.wait(0.001)
    raise AssertionError(f"{len(queue._waiting)} jobs wait, not {count}")


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def queue(runner: Runner, workers: ThreadPoolExecutor) -> CommitQueue:
    return CommitQueue(runner, lambda: workers)


def test_a_leader_that_is_interrupted_tells_its_batch_and_gives_the_lead_on(queue: CommitQueue, runner: Runner) -> None:
    runner.gate = threading.Event()
    first = Call(queue, job("first"))
    assert runner.entered.wait(WAIT_SECONDS)
    in_its_batch = [Call(queue, job("leader"))]
    until_waiting(queue, 1)
    in_its_batch.append(Call(queue, job("follower")))
    until_waiting(queue, 2)
    runner.entered.clear()
    gate, runner.gate = runner.gate, threading.Event()
    gate.set()
    assert runner.entered.wait(WAIT_SECONDS)  # the second batch is being carried
    next_one = Call(queue, job("next"))
    until_waiting(queue, 1)
    runner.failure = Interrupt()
    runner.gate.set()
    assert first.result() == "first"
    leader, follower = (call.result() for call in in_its_batch)
    assert isinstance(leader, Interrupt)
    assert isinstance(follower, CommitUnknown)
    assert follower.thread_id == "follower"
    assert next_one.result() == "next"
    assert runner.batches == [["first"], ["leader", "follower"], ["next"]]


def test_an_asynchronous_caller_in_the_batch_of_an_interrupted_leader_is_told(
    queue: CommitQueue, runner: Runner
) -> None:
    async def follow() -> str:
        return await asyncio.wait_for(queue.do_async(job("follower")), WAIT_SECONDS)

    runner.gate = threading.Event()
    first = Call(queue, job("first"))
    assert runner.entered.wait(WAIT_SECONDS)
    leader = Call(queue, job("leader"))
    until_waiting(queue, 1)
    outcome: list[Any] = []

    def wait_for_it() -> None:
        try:
            outcome.append(asyncio.run(follow()))
        except BaseException as exc:
            outcome.append(exc)

    follower = threading.Thread(target=wait_for_it, daemon=True)
    follower.start()
    until_waiting(queue, 2)
    runner.entered.clear()
    gate, runner.gate = runner.gate, threading.Event()
    gate.set()
    assert runner.entered.wait(WAIT_SECONDS)
    runner.failure = Interrupt()
    runner.gate.set()
    follower.join(WAIT_SECONDS)
    assert first.result() == "first"
    assert isinstance(leader.result(), Interrupt)
    assert isinstance(outcome[0], CommitUnknown)


class Impatient(Job[str]):
    """A job whose caller is interrupted while it waits: at once, or when it is woken."""

    def __init__(self, label: str, *, when_woken: bool) -> None:
        super().__init__(lambda _: label, label)
        self._when_woken = when_woken

    __slots__ = ("_when_woken",)

    def wait(self) -> bool:
        if self._when_woken:
            super().wait()
        raise Interrupt


@pytest.mark.parametrize("when_woken", [False, True])
def test_a_follower_that_is_interrupted_is_not_run_and_holds_nobody_up(
    queue: CommitQueue, runner: Runner, when_woken: bool
) -> None:
    runner.gate = threading.Event()
    first = Call(queue, job("first"))
    assert runner.entered.wait(WAIT_SECONDS)
    follower = Call(queue, Impatient("follower", when_woken=when_woken))
    if when_woken:
        until_waiting(queue, 1)
    else:
        assert isinstance(follower.result(), Interrupt)
    last = Call(queue, job("last"))
    until_waiting(queue, 1 + when_woken)
    runner.gate.set()
    assert first.result() == "first"
    assert isinstance(follower.result(), Interrupt)
    assert last.result() == "last"
    assert runner.batches == [["first"], ["last"]]


def test_an_interrupt_while_the_lead_is_given_to_a_worker_leaves_it_with_somebody(
    runner: Runner, workers: ThreadPoolExecutor
) -> None:
    """An asynchronous caller that has the lead is struck before a worker thread has it."""

    def strike(*_: Any) -> None:
        raise Interrupt

    def struck() -> Executor:
        signal.raise_signal(signal.SIGALRM)
        return workers

    queue = CommitQueue(runner, struck)

    async def enter() -> None:
        with pytest.raises(Interrupt):
            await queue.do_async(job("struck"))

    before = signal.signal(signal.SIGALRM, strike)
    try:
        asyncio.run(enter())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert Call(queue, job("later")).result() == "later"
    assert [label for batch in runner.batches for label in batch] == ["struck", "later"]


def _no_thread() -> Executor:
    raise RuntimeError("can't start new thread")


def _shut_down() -> Executor:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    return executor


@pytest.mark.parametrize(("executor", "error"), [(_no_thread, StoreUnavailable), (_shut_down, StoreClosed)])
def test_without_a_worker_thread_callers_are_told_and_the_queue_goes_on(
    runner: Runner, executor: Callable[[], Executor], error: type[Exception]
) -> None:
    queue = CommitQueue(runner, executor)
    with pytest.raises(error):
        asyncio.run(asyncio.wait_for(queue.do_async(job("asynchronous")), WAIT_SECONDS))
    assert Call(queue, job("blocking")).result() == "blocking"
    assert runner.batches == [["blocking"]]


def test_who_waits_behind_a_caller_without_a_worker_thread_is_told_too(runner: Runner) -> None:
    queue = CommitQueue(runner, _no_thread)
    runner.gate = threading.Event()
    first = Call(queue, job("first"))
    assert runner.entered.wait(WAIT_SECONDS)

    async def wait_for_it() -> None:
        waiting = asyncio.ensure_future(queue.do_async(job("asynchronous")))
        await asyncio.sleep(0)  # it is in the queue now, and its turn will come
        behind = Call(queue, job("behind"))
        until_waiting(queue, 2)
        assert runner.gate is not None
        runner.gate.set()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(waiting, WAIT_SECONDS)
        assert isinstance(behind.result(), StoreUnavailable)

    asyncio.run(wait_for_it())
    assert first.result() == "first"
    assert Call(queue, job("later")).result() == "later"


def test_a_worker_thread_that_is_interrupted_tells_its_batch_and_gives_the_lead_on(
    queue: CommitQueue, runner: Runner
) -> None:
    runner.gate = threading.Event()

    async def lead() -> None:
        leading = asyncio.ensure_future(queue.do_async(job("leader")))
        await asyncio.sleep(0)
        assert await asyncio.to_thread(runner.entered.wait, WAIT_SECONDS)
        behind = Call(queue, job("behind"))
        until_waiting(queue, 1)
        runner.failure = Interrupt()
        assert runner.gate is not None
        runner.gate.set()
        with pytest.raises(CommitUnknown):
            await asyncio.wait_for(leading, WAIT_SECONDS)
        assert behind.result() == "behind"

    asyncio.run(lead())


def test_who_borrows_the_lead_gives_it_to_whoever_waits(queue: CommitQueue, runner: Runner) -> None:
    assert queue.borrow()
    assert not queue.borrow()
    blocking = Call(queue, Job(lambda _: "done", "blocking"))
    while not queue._waiting:
        threading.Event().wait(0.001)
    assert runner.batches == []
    queue.give_back()
    assert blocking.result() == "done"

    async def borrowed() -> Any:
        assert queue.borrow()
        waiting = asyncio.ensure_future(queue.do_async(Job(lambda _: "also", "asynchronous")))
        await asyncio.sleep(0)
        queue.give_back()
        return await waiting

    assert asyncio.run(borrowed()) == "also"
    assert queue.borrow()
