"""What is brought to rest when a process forks, and what becomes of signals that come at the wrong moment."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.runtime import forks, interrupts
from everstep.runtime.interrupts import deferred
from everstep.stores.workers import AsyncDriver


class Thing:
    """Something that notes when it is brought to rest and woken."""

    def __init__(self, name: str, order: int, log: list[str]) -> None:
        self.name, self.fork_order, self.log = name, order, log
        forks.register(self)

    def before_fork(self) -> None:
        self.log.append(f"{self.name} rests")

    def after_fork(self, *, in_child: bool) -> None:
        self.log.append(f"{self.name} wakes{' in the child' if in_child else ''}")


class Making(Thing):
    """One that was making something new until it came to rest."""

    made: Thing | None = None

    def before_fork(self) -> None:
        super().before_fork()
        self.made = Thing("late", 0, self.log)


class Failing(Thing):
    def after_fork(self, *, in_child: bool) -> None:
        super().after_fork(in_child=in_child)
        raise RuntimeError("cannot wake")


@pytest.fixture
def log() -> list[str]:
    return []


def test_who_may_use_another_rests_before_it_and_wakes_after_it(log: list[str]) -> None:
    things = [Thing("second", 2, log), Thing("first", 1, log), Thing("third", 3, log)]
    forks._before()
    forks._after(in_child=True)
    assert [thing.fork_order for thing in things] == [2, 1, 3]
    assert log[:3] == ["first rests", "second rests", "third rests"]
    assert log[3:] == ["third wakes in the child", "second wakes in the child", "first wakes in the child"]


def test_what_is_made_while_others_come_to_rest_rests_too(log: list[str]) -> None:
    making, other = Making("making", 1, log), Thing("other", 2, log)
    forks._before()
    forks._after(in_child=False)
    assert making.made is not None
    assert other.name == "other"
    assert log[:3] == ["making rests", "late rests", "other rests"]
    assert sorted(log[3:]) == ["late wakes", "making wakes", "other wakes"]


def test_one_that_does_not_wake_does_not_keep_the_others_asleep(
    log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    things = [Thing("first", 1, log), Failing("failing", 2, log), Thing("third", 3, log)]
    with caplog.at_level(logging.ERROR, "everstep"):
        forks._before()
        forks._after(in_child=False)
    assert len(things) == 3
    assert log[3:] == ["third wakes", "failing wakes", "first wakes"]
    assert "did not wake after a fork" in caplog.text
    assert forks._forking.acquire(timeout=10)
    forks._forking.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_worker_threads_of_its_own() -> None:
    driver = AsyncDriver(10.0, 1)
    assert asyncio.run(driver.run(lambda _: 1)) == 1
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # those of the parent did not come along: waiting for them has no end
        os._exit(asyncio.run(driver.run(lambda _: 7)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert asyncio.run(driver.run(lambda _: 2)) == 2
    driver.dismiss()


# -- signals


@pytest.fixture
def came() -> Iterator[list[int]]:
    """Handlers that take note of signals; that of SIGINT raises, as Ctrl-C does."""
    came: list[int] = []

    def interrupt(number: int, _frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number)),
    }
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def raise_both(came: list[int]) -> None:
    with deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert came == []


def test_a_signal_after_one_whose_handler_raises_is_handled_too(came: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        raise_both(came)
    assert came == [signal.SIGINT, signal.SIGTERM]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_by_another_thread_has_its_handlers(came: list[int]) -> None:
    """It has a main thread of its own, which is not inside the block that the parent's is in."""
    handler, ended = signal.getsignal(signal.SIGTERM), list[int]()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is handler else 1)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with deferred():
        assert signal.getsignal(signal.SIGTERM) is not handler
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(60)
    assert ended == [0]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert came == []


def test_an_interrupt_while_handlers_are_put_back_leaves_none_behind(
    came: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of SIGINT is back already, and raises before that of SIGTERM is."""
    handler, torn = signal.getsignal(signal.SIGTERM), list[int]()

    class Signals:
        getsignal = staticmethod(signal.getsignal)

        @staticmethod
        def signal(number: int, given: Any) -> Any:
            if given is handler and not torn:
                torn.append(number)
                raise KeyboardInterrupt
            return signal.signal(number, given)

    def work() -> None:
        with deferred():
            monkeypatch.setattr(interrupts, "signal", Signals)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert torn == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert came == []
