"""Steps as bars on a time axis."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import everstep
from everstep.views.timing import axis_of, bars


def _row(number: int, second: float, duration_ms: float | None = None, **more: Any) -> dict[str, Any]:
    hour, rest = divmod(second, 3600)
    minute, seconds = divmod(rest, 60)
    moment = f"2026-11-15T{int(hour):02}:{int(minute):02}:{seconds:09.6f}+00:00"
    row = {"id": f"c{number}", "ref": f"t@c{number}", "thread_id": "t", "step": number, "kind": "state", "title": "x"}
    return {**row, "lane": 0, "created_at": moment, "duration_ms": duration_ms, **more}


def _places(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {bar["id"]: (round(bar["left"], 3), round(bar["left"] + bar["width"], 3)) for bar in found["bars"]}


def test_a_bar_ends_where_its_checkpoint_was_made() -> None:
    found = axis_of([_row(2, 10, 4000), _row(1, 6, 6000)])
    assert _places(found) == {"c1": (0.0, 0.6), "c2": (0.6, 1.0)}
    assert (found["shown_ms"], found["cuts"]) == (10_000, [])


def test_what_ran_at_the_same_time_lies_side_by_side() -> None:
    found = axis_of([_row(2, 10, 8000), _row(1, 8, 8000)])
    assert _places(found) == {"c1": (0.0, 0.8), "c2": (0.2, 1.0)}


def test_a_long_wait_is_cut_out_and_told() -> None:
    rows = [_row(4, 3603, 1000), _row(3, 3601), _row(2, 3), _row(1, 2), _row(0, 1)]
    found = axis_of(rows)
    (cut,) = found["cuts"]
    assert cut["left_out_ms"] == 3_598_000 - 3000
    assert found["shown_ms"] == 1000 + 1000 + 3000 + 1000 + 1000
    assert _places(found)["c4"][1] == 1.0


def test_a_cut_is_in_the_middle_of_its_wait() -> None:
    rows = [_row(4, 3603, 1000), _row(3, 3601), _row(2, 3), _row(1, 2), _row(0, 1)]
    (cut,) = axis_of(rows)["cuts"]
    assert cut["at"] == (1000 + 1000 + 3000 / 2) / 7000


def test_a_wait_of_three_times_the_usual_is_not_cut() -> None:
    assert axis_of([_row(3, 5), _row(2, 2), _row(1, 1), _row(0, 0)])["cuts"] == []


def test_steps_that_follow_at_once_are_no_waits() -> None:
    rows = [_row(4, 5, 1000), _row(3, 3, 1000), _row(2, 2, 1000), _row(1, 1, 1000)]
    found = axis_of(rows)
    assert (found["cuts"], found["shown_ms"]) == ([], 5000)


def test_a_step_inside_a_longer_one_does_not_end_it() -> None:
    after = [_row(n, 10 + n, 500) for n in (5, 4, 3, 2, 1)]
    found = axis_of([*after, _row(10, 10, 10_000), _row(11, 5, 1000)])
    assert found["cuts"] == []
    assert found["shown_ms"] == 15_000


def test_a_time_without_a_zone_is_that_of_the_store() -> None:
    found = axis_of([_row(2, 10, 4000), _row(1, 6, 6000, created_at="2026-11-15T00:00:06")])
    assert _places(found) == {"c1": (0.0, 0.6), "c2": (0.6, 1.0)}


def test_a_duration_below_nothing_is_none() -> None:
    found = axis_of([_row(3, 10, 2000), _row(2, 8, -4000), _row(1, 6, 6000)])
    assert _places(found) == {"c1": (0.0, 0.6), "c2": (0.8, 0.8), "c3": (0.8, 1.0)}


def test_nothing_and_one_moment_have_an_axis_too() -> None:
    assert axis_of([])["bars"] == []
    assert _places(axis_of([_row(1, 5)])) == {"c1": (0.0, 0.0)}
    assert axis_of([_row(1, 5, created_at="yesterday")])["bars"] == []


@given(st.lists(st.tuples(st.integers(0, 50_000), st.none() | st.integers(0, 90_000)), max_size=30))
def test_bars_stay_on_the_axis_and_in_order(times: list[tuple[int, int | None]]) -> None:
    rows = [_row(number, second, took) for number, (second, took) in enumerate(times)]
    places = [(bar["left"], bar["left"] + bar["width"]) for bar in axis_of(rows)["bars"]]
    assert all(0 <= left <= right <= 1 + 1e-9 for left, right in places)
    assert [left for left, _ in places] == sorted(left for left, _ in places)


async def test_a_thread_with_its_branches(engine: everstep.CheckpointEngine) -> None:
    first = await engine.append("t", [{"role": "user", "content": "Hello."}])
    branch = await engine.branch(first, "b")
    await engine.append(branch, [{"role": "user", "content": "Well?"}])
    found = await bars(engine, "t")
    assert {bar["thread_id"] for bar in found["bars"]} == {"t", branch}
    assert found["bars"][0]["id"] == first
    assert {bar["thread_id"] for bar in (await bars(engine, "t", branches=False))["bars"]} == {"t"}
