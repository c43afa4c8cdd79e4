"""What every store on a server must survive. A subclass gives the fixtures `server` and `open_engine`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from everstep import CheckpointEngine
from everstep.errors import CommitUnknown, StoreUnavailable
from everstep.runtime.blocking import run_to_end
from tests.conftest import FACES
from tests.faults import outcomes
from tests.faults.outcomes import CHANGES, READS, Call
from tests.faults.proxy import Proxy
from tests.faults.servers_harness import Attempt, Writers, check, save
from tests.tools.servers import Server, wait_until

OpenEngine = Callable[..., CheckpointEngine]
"""Opens an engine that keeps all, on data of the test's own; takes a port to go through and the store's options."""
WAYS = [call for call in CHANGES if call.name in ("append", "begin", "put_writes", "rewind", "delete")]
"""One of each kind that a store may treat in its own way."""
ANSWERS = (StoreUnavailable, CommitUnknown)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    return random.Random(seed)


class ServerFaults:
    # -- four writers

    def test_an_immediate_stop_loses_nothing(self, server: Server, open_engine: OpenEngine) -> None:
        with Writers(open_engine, "stopped") as writers:
            for _ in range(3):
                writers.advance()
                server.restart(immediate=True)
            writers.advance()
        assert_nothing_lost(writers, open_engine())

    def test_a_killed_server_loses_nothing(self, server: Server, open_engine: OpenEngine) -> None:
        with Writers(lambda: open_engine(timeout_seconds=2), "killed") as writers:
            writers.advance()
            server.kill()
            wait_until(lambda: any(attempt.outcome == "refused" for attempt in writers.attempts), "an error")
            server.start()
            writers.advance()
        assert_nothing_lost(writers, open_engine())

    def test_resets_lose_nothing(self, server: Server, proxy: Proxy, open_engine: OpenEngine) -> None:
        with Writers(lambda: open_engine(proxy.port), "reset") as writers:
            for _ in range(10):
                writers.advance(1)
                proxy.reset()
            writers.advance()
        assert_nothing_lost(writers, open_engine())

    # -- single calls

    @pytest.mark.parametrize("call", CHANGES, ids=lambda call: call.name)
    def test_a_reply_lost_after_the_commit(self, proxy: Proxy, open_engine: OpenEngine, call: Call) -> None:
        answers = outcomes.lose_replies(proxy, open_engine(proxy.port), call)
        assert_fitting(answers, open_engine())
        assert answers[0].error is answers[1].error is None
        assert len(answers) > 2

    @pytest.mark.parametrize("call", WAYS, ids=lambda call: call.name)
    def test_a_reply_lost_with_the_server(self, proxy: Proxy, open_engine: OpenEngine, call: Call) -> None:
        """It is committed, but cannot be asked whether it is. A busy machine may need more than a second for that."""
        for seconds in (1, 3, 9):
            engine = open_engine(proxy.port, timeout_seconds=seconds)
            answers = outcomes.lose_replies(proxy, engine, call, onwards=True)
            assert_fitting(answers, open_engine())
            assert answers[0].error is answers[1].error is None
            if any(isinstance(answer.error, CommitUnknown) for answer in answers):
                return
        pytest.fail("nobody was told that it is not known")

    def test_a_put_whose_reply_is_lost_is_still_acknowledged(self, proxy: Proxy, open_engine: OpenEngine) -> None:
        engine = open_engine(proxy.port)
        attempts = [Attempt("t", 0, 1, "acknowledged", run_to_end(save(engine.sync, "t", 0, 1)))]
        # An answer that comes in two parts may end the request before it, which then has no reply to lose: once more.
        while proxy.counts.lost < 29 and len(attempts) < 40:
            n = len(attempts) + 1
            proxy.lose_reply()
            attempts.append(Attempt("t", 0, n, "acknowledged", run_to_end(save(engine.sync, "t", 0, n))))
        assert proxy.counts.lost == 29
        assert check(attempts, open_engine()) == []

    def test_a_put_cut_after_any_number_of_bytes(self, proxy: Proxy, open_engine: OpenEngine) -> None:
        engine, append = open_engine(proxy.port), CHANGES[0]
        example, before = outcomes.make_example(engine, "whole"), proxy.counts
        outcomes.perform(engine, "blocking", append, example)
        size = (proxy.counts - before).bytes_up
        answers = []
        for cut in range(0, size, max(size // 40, 1)):
            example = outcomes.make_example(engine, f"cut {cut}")
            proxy.cut_after(cut)
            answers.append(outcomes.perform(engine, "blocking", append, example))
            proxy.heal()
        assert len(answers) >= 40
        assert_fitting(answers, open_engine())

    @pytest.mark.parametrize("harm", ["black hole", "swallowed", "paused"])
    def test_every_call_ends_when_nothing_answers(
        self, server: Server, proxy: Proxy, open_engine: OpenEngine, harm: str
    ) -> None:
        engine, fresh = open_engine(proxy.port, timeout_seconds=2), open_engine(proxy.port, timeout_seconds=2)
        work = [
            (engine, face, call, outcomes.make_example(engine, f"{call.name} {face}"))
            for face in FACES
            for call in CHANGES + READS
        ]
        outcomes.perform_all([some for some in work if some[2] in READS])  # now there are many connections
        work.append((fresh, "async", CHANGES[0], outcomes.make_example(engine, "fresh")))
        {"black hole": proxy.black_hole, "swallowed": proxy.swallow_replies, "paused": server.pause}[harm]()
        try:
            answers = outcomes.perform_all(work)
        finally:
            server.resume()
            proxy.heal()
        assert [answer for answer in answers if not isinstance(answer.error, ANSWERS)] == []

        for recovering in (engine, fresh):
            outcomes.wait_for_recovery(recovering, "after")
            recovering.sync.close()
        wait_until(lambda: proxy.links == 0 and server.clients() == 0, "what was sent late to be done")
        assert_fitting(answers, open_engine())


def assert_nothing_lost(writers: Writers, engine: CheckpointEngine) -> None:
    assert writers.faults == []
    assert not any(attempt.outcome == "regressed" for attempt in writers.attempts)
    assert check(writers.attempts, engine) == []


def assert_fitting(answers: list[outcomes.Answer], engine: CheckpointEngine) -> None:
    assert [fault for answer in answers for fault in outcomes.judge(answer, engine)] == []
