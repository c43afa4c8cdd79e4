"""The check of the fault tests reports every kind of fault, and nothing on a store that is well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import everstep
from everstep import CheckpointEngine, SnapshotConfig
from everstep.errors import CommitUnknown, StoreUnavailable
from everstep.runtime.blocking import run_to_end
from tests.faults import outcomes
from tests.faults.servers_harness import Attempt, Writers, check, save
from tests.tools.servers import wait_until


@pytest.fixture
def engine() -> Iterator[CheckpointEngine]:
    engine = everstep.open("memory://", SnapshotConfig(gc_policy="keep_all"))
    yield engine
    engine.sync.close()


@pytest.fixture
def attempts(engine: CheckpointEngine) -> list[Attempt]:
    """Seven saves, all of them acknowledged."""
    return [saved(engine, n) for n in range(1, 8)]


def saved(engine: CheckpointEngine, n: int) -> Attempt:
    return Attempt("t", 0, n, "acknowledged", run_to_end(save(engine.sync, "t", 0, n)))


def test_what_is_well_is_well(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    more = [Attempt("t", 0, 8, "refused"), Attempt("t", 0, 9, "unknown"), Attempt("other", 1, 1, "refused")]
    assert check([*attempts, *more], engine) == []
    assert check([*attempts[:-1], attempts[-1]._replace(outcome="unknown")], engine) == []


def test_a_loss_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    lost = Attempt("t", 0, 8, "acknowledged", "nobody has seen it")
    assert check([*attempts, lost], engine) == ["t: lost (0, 8), acknowledged as nobody has seen it"]


def test_a_lost_thread_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    engine.sync.checkpointer.delete_thread("t")
    assert len(check(attempts, engine)) == len(attempts)


def test_a_lost_end_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    engine.sync.rewind(str(attempts[-2].checkpoint_id), later="delete")
    assert check(attempts, engine) == [f"t: lost (0, 7), acknowledged as {attempts[-1].checkpoint_id}"]


def test_a_hole_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    engine.sync.checkpointer.delete_before("t", 3)
    faults = check(attempts, engine)
    assert "t: steps [3, 4, 5, 6, 7]" in faults
    assert any("lost (0, 1)" in fault for fault in faults)


def test_a_duplicate_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    saved(engine, 7)
    assert "t: (0, 7), acknowledged, is there 2 times" in check(attempts, engine)


def test_a_refused_one_that_is_there_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    refused = attempts[-1]._replace(outcome="refused")
    assert check([*attempts[:-1], refused], engine) == ["t: (0, 7) was refused and is there"]


def test_one_that_nobody_saved_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    assert check(attempts[:-1], engine) == ["t: (0, 7) was never saved"]


def test_wrong_content_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    wrong = engine.sync.append("t", [{"n": 8}], metadata={"writer": 0, "n": 8})
    faults = check([*attempts, Attempt("t", 0, 8, "acknowledged", wrong)], engine)
    assert faults == [f"t: {wrong} does not read back as what was saved as (0, 8)"]


def test_a_second_line_is_reported(engine: CheckpointEngine, attempts: list[Attempt]) -> None:
    engine.sync.snapshot("t", [], {}, {}, parent_checkpoint_id=attempts[0].checkpoint_id)
    assert "t: the chain of parents is broken" in check(attempts, engine)


def test_writers_on_a_store_that_is_well(engine: CheckpointEngine) -> None:
    with Writers(lambda: engine, "well") as writers:
        writers.advance(10)
    assert writers.faults == []
    assert {attempt.outcome for attempt in writers.attempts} == {"acknowledged"}
    assert len(writers.threads) == 3


def test_an_error_that_no_writer_should_see_is_a_fault(engine: CheckpointEngine) -> None:
    with Writers(lambda: engine, "closed") as writers:
        writers.advance(1)
        engine.sync.close()
        wait_until(lambda: len(writers.faults) == 4, "the writers to end")
    assert all("StoreClosed" in fault for fault in writers.faults)


@pytest.mark.parametrize("call", outcomes.CHANGES, ids=lambda call: call.name)
def test_an_answer_that_does_not_fit_is_reported(engine: CheckpointEngine, call: outcomes.Call) -> None:
    example = outcomes.make_example(engine, "t")
    unavailable, unknown = StoreUnavailable("no"), CommitUnknown(None, "t")

    def is_right(error: Exception | None) -> bool:
        return outcomes.judge(outcomes.Answer(call, example, error), engine) == []

    assert [is_right(error) for error in (None, unavailable, unknown, ValueError())] == [False, True, True, False]
    assert outcomes.perform(engine, "blocking", call, example).error is None
    assert [is_right(error) for error in (None, unavailable, unknown, ValueError())] == [True, False, True, False]


def test_a_rewind_that_is_half_done_is_reported(engine: CheckpointEngine) -> None:
    (rewind,) = (call for call in outcomes.CHANGES if call.name == "rewind")
    example = outcomes.make_example(engine, "t")
    engine.sync.append("t", [], {})
    (fault,) = outcomes.judge(outcomes.Answer(rewind, example, StoreUnavailable("no")), engine)
    assert "half done" in fault
