"""What reports of the care of a store say."""

from __future__ import annotations

from everstep.reports import Finding, RepairReport, set_aside


def test_many_checkpoints_of_a_thread_are_told_of_in_one_line() -> None:
    removed = [("long", "", f"c{number}") for number in range(100)] + [("short", "", "d")]
    actions = [set_aside(thread, checkpoint) for thread, _, checkpoint in removed]
    report = RepairReport([Finding("checkpoint", "is damaged")], [*actions, "the head moves"], removed=removed)
    assert str(report).splitlines()[1:] == [
        "thread 'long': 100 checkpoints are set aside, from 'c0' to 'c99'",
        "thread 'short': checkpoint 'd' is set aside",
        "the head moves",
    ]
