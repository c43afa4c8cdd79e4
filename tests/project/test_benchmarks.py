"""What the benchmarks compare is comparable: every saver holds the same chat, and the figures are what they say."""

from __future__ import annotations

import contextlib
import subprocess
from unittest import mock

import pytest

from benchmarks import on_langgraph, savers

TURNS = 4


@pytest.fixture(params=["floor", "memory", "sqlite", "delta"])
def graph(request, tmp_path):
    with savers.closing_saver(request.param, str(tmp_path / "chat.db")) as saver:
        yield savers.chat(saver, savers.schema(request.param))


def test_every_saver_holds_what_was_said(graph):
    for turn in range(TURNS):
        savers.take_turn(graph, turn)

    messages = graph.get_state(savers.CONFIG).values["messages"]
    assert [one.content for one in messages] == savers.SCRIPT[: 2 * TURNS]
    assert [one.type for one in messages] == ["human", "ai"] * TURNS
    assert len({one.id for one in messages} - {None}) == 2 * TURNS


def test_every_saver_keeps_three_checkpoints_a_turn(graph):
    for turn in range(TURNS):
        savers.take_turn(graph, turn)

    history = list(graph.get_state_history(savers.CONFIG))
    lengths = [len(one.values.get("messages", ())) for one in history]
    assert lengths == [length for turn in range(TURNS, 0, -1) for length in (2 * turn, 2 * turn - 1, 2 * turn - 2)]


def test_a_script_has_thirty_and_a_hundred_words_in_turn():
    assert [len(text.split()) for text in savers.SCRIPT] == [30, 100] * 1000


def test_a_stock_database_waits_for_the_disk(tmp_path):
    saver = savers.sqlite_saver(tmp_path / "stock.db")
    with contextlib.closing(saver.conn):
        saver.setup()
        assert saver.conn.execute("PRAGMA synchronous").fetchone() == (2,)
        assert saver.conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def arm(seconds) -> on_langgraph.Arm:
    return on_langgraph.Arm(mock.Mock(spec=subprocess.Popen), seconds=list(seconds))


def test_the_ratio_at_turn_400_does_not_see_one_bad_round():
    fast = arm(turn * 1e-3 for turn in range(1, on_langgraph.LAST))
    slow = arm(3 * one for one in fast.seconds)
    for turn in range(on_langgraph.MARK, on_langgraph.MARK + on_langgraph.ROUND // 2):
        slow.seconds[turn] *= 50

    assert on_langgraph._ratio_at_mark(slow, fast) == pytest.approx(3)


def test_the_rounds_stand_around_turn_400():
    rounds = on_langgraph._rounds(arm(range(1, on_langgraph.LAST)))

    assert [len(one) for one in rounds] == [on_langgraph.ROUND] * 5
    assert sum(rounds[2]) / len(rounds[2]) == pytest.approx(on_langgraph.MARK, abs=1)
