"""The demo store tells its stories, and the same ones each time."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from typing import Any

import pytest

import everstep
from everstep.views import demo

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def told() -> everstep.SyncEngine:
    return tell()


def tell() -> everstep.SyncEngine:
    engine = everstep.open("memory://", everstep.SnapshotConfig(gc_policy="keep_all")).sync
    engine._run(demo.fill(engine._driven, now=NOON))
    return engine


def test_the_long_chat_has_412_steps_and_ends_a_moment_ago(told: everstep.SyncEngine) -> None:
    points = told.list_time_travel_points(demo.CHAT, 1000)

    assert [point.step for point in points] == list(range(412, 0, -1))
    age = NOON - datetime.fromisoformat(points[0].created_at)
    assert 0 <= age.total_seconds() < 600


def test_every_tool_answers_a_call(told: everstep.SyncEngine) -> None:
    for thread in (demo.CHAT, demo.AGENT):
        latest = told.get_latest(thread)
        assert latest is not None
        calls = {call["id"] for message in latest.messages for call in message.get("tool_calls", ())}
        answers = {message["tool_call_id"] for message in latest.messages if message["role"] == "tool"}
        assert answers == calls


def test_the_agent_failed_was_rewound_and_went_on(told: everstep.SyncEngine) -> None:
    assert [operation.kind for operation in told.operations(demo.AGENT)] == ["pin", "rewind"]
    latest = told.get_latest(demo.AGENT)
    assert latest is not None
    assert latest.state["status"] == "done"
    assert latest.state["booked"] == 6


def test_the_story_has_three_branches_of_which_one_waits_for_its_merge(told: everstep.SyncEngine) -> None:
    tree = told.get_checkpoint_tree(demo.STORY)
    branches = {str(node["branch"]): node["thread_id"] for node in tree["nodes"] if node["branch"]}
    assert set(branches) == {"cheap", "scenic", "family"}
    assert sum(len(node["parents"]) == 2 for node in tree["nodes"]) == 2
    latest = told.get_latest(demo.STORY)
    assert latest is not None
    assert latest.state["hotel"] == "Lighthouse"
    assert latest.state["travel"] == "bus"

    with pytest.raises(everstep.MergeConflict) as conflict:
        told.merge_branch(branches["family"], demo.STORY)
    assert [found.path for found in conflict.value.conflicts] == ["state.hotel"]


@pytest.mark.skipif(importlib.util.find_spec("langgraph") is None, reason="langgraph is not installed")
def test_the_workflow_waits_for_an_answer(told: everstep.SyncEngine) -> None:
    latest = told.get_latest(demo.WORKFLOW)
    assert latest is not None
    assert latest.state["risk"] == "low"
    assert "approved" not in latest.state


def test_all_but_the_workflow_is_the_same_each_time(told: everstep.SyncEngine) -> None:
    assert everything(tell()) == everything(told)


def everything(engine: everstep.SyncEngine) -> list[Any]:
    found = []
    for thread in engine.list_threads():
        if thread.thread_id != demo.WORKFLOW:
            found += [point.to_dict() for point in engine.list_time_travel_points(thread.thread_id, 1000)]
    return found
