"""Heads as a process saw them last."""

from __future__ import annotations

import threading

import pytest

from everstep import HeadRegressed, StoreError
from everstep.stores.heads import Heads, Seen

LINE = ("t", "")


def test_what_was_noted_is_remembered() -> None:
    heads: Heads[str] = Heads()
    assert heads.get(LINE) is None
    heads.note(LINE, "1", 4, "head", None)
    assert heads.get(LINE) == Seen("1", 4, "head")
    heads.doubt(LINE)
    assert heads.get(LINE) == Seen("1", 4, None)
    heads.forget(LINE)
    assert heads.get(LINE) is None


def test_a_generation_that_went_down_is_reported_once() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None)
    with pytest.raises(HeadRegressed, match="lost writes") as caught:
        heads.note(LINE, "1", 3, "older", heads.get(LINE))
    assert isinstance(caught.value, StoreError)
    assert (caught.value.thread_id, caught.value.seen_generation, caught.value.found_generation) == ("t", 4, 3)
    heads.note(LINE, "1", 3, "older", heads.get(LINE))
    assert heads.get(LINE) == Seen("1", 3, "older")


def test_a_new_family_starts_anew() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None)
    heads.note(LINE, "2", 1, "other", heads.get(LINE))
    assert heads.get(LINE) == Seen("2", 1, "other")


def test_an_answer_that_was_overtaken_in_this_process_is_no_loss() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None)
    since = heads.get(LINE)
    heads.note(LINE, "1", 5, "newer", since)
    heads.note(LINE, "1", 4, "head", since)
    assert heads.get(LINE) == Seen("1", 5, "newer")


def test_the_oldest_go_first() -> None:
    heads: Heads[int] = Heads(size_max=3)
    for n in range(5):
        heads.note((f"t{n}", ""), "1", n, n, None)
    assert [heads.get((f"t{n}", "")) is not None for n in range(5)] == [False, False, True, True, True]


def test_many_threads_may_use_it() -> None:
    heads: Heads[int] = Heads(size_max=50)
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for n in range(2000):
                line = f"t{(start + n) % 80}", ""
                heads.note(line, "1", n, n, None)
                heads.get(line)
                heads.forget((f"t{n % 80}", ""))
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(n * 20,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
