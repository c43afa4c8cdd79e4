"""Heads as a process saw them last."""

from __future__ import annotations

import threading

import pytest

from everstep import HeadRegressed, StoreError
from everstep.stores.heads import Heads, SeenHead

LINE = ("t", "")


def test_what_was_noted_is_remembered() -> None:
    heads: Heads[str] = Heads()
    assert heads.get(LINE) is None
    heads.note(LINE, "1", 4, "head", None)
    assert heads.get(LINE) == SeenHead("1", 4, "head")
    heads.doubt(LINE)
    assert heads.get(LINE) == SeenHead("1", 4, None)
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
    assert heads.get(LINE) == SeenHead("1", 3, "older")


def test_a_new_family_starts_anew() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None)
    heads.note(LINE, "2", 1, "other", heads.get(LINE))
    assert heads.get(LINE) == SeenHead("2", 1, "other")


def test_an_answer_that_was_overtaken_in_this_process_is_no_loss() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None)
    since = heads.get(LINE)
    heads.note(LINE, "1", 5, "newer", since)
    heads.note(LINE, "1", 4, "head", since)
    assert heads.get(LINE) == SeenHead("1", 5, "newer")


def test_a_line_that_is_gone_is_a_loss_unless_it_was_deleted() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None, 40)
    heads.note(("t", "beside"), "1", 2, "head", None, 20)
    heads.note(("u", ""), "2", 1, "head", None, 10)
    asked: list[SeenHead[str]] = []

    def was_deleted(seen: SeenHead[str], answer: bool) -> bool:
        asked.append(seen)
        return answer

    since = heads.get(LINE)
    heads.check(LINE, None, 0, since, lambda seen: was_deleted(seen, True))
    heads.check(LINE, "3", 1, since, lambda seen: was_deleted(seen, True))
    assert asked == [since, since]
    with pytest.raises(HeadRegressed, match="gone") as caught:
        heads.check(LINE, "3", 9, since, lambda seen: was_deleted(seen, False))
    assert (caught.value.seen_generation, caught.value.found_generation) == (4, 0)
    assert heads.any_of("t") is None, "all of the thread is lost: one error says so"
    assert heads.any_of("u") == ("", SeenHead("2", 1, "head", 10))


def test_nothing_is_asked_about_a_line_that_is_there_or_was_never_seen() -> None:
    heads: Heads[str] = Heads()

    def was_deleted(seen: SeenHead[str]) -> bool:
        raise AssertionError(seen)

    heads.check(LINE, None, 0, heads.get(LINE), was_deleted)
    heads.note(LINE, "1", 4, "head", None)
    heads.check(LINE, "1", 5, heads.get(LINE), was_deleted)


def test_the_highest_number_of_a_family_is_remembered() -> None:
    heads: Heads[str] = Heads()
    heads.note(LINE, "1", 4, "head", None, 40)
    heads.note(LINE, "1", 5, None, None)
    assert heads.get(LINE) == SeenHead("1", 5, None, 40)
    heads.note(LINE, "2", 1, None, None)
    assert heads.get(LINE) == SeenHead("2", 1, None, 0)


def test_the_oldest_go_first() -> None:
    heads: Heads[int] = Heads(size_max=3)
    for n in range(5):
        heads.note((f"t{n}", ""), "1", n, n, None)
    assert [heads.get((f"t{n}", "")) is not None for n in range(5)] == [False, False, True, True, True]
    assert [heads.any_of(f"t{n}") is not None for n in range(5)] == [False, False, True, True, True]


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
                heads.any_of(f"t{n % 80}")
                heads.forget_thread(f"t{(n + 40) % 80}")
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(n * 20,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
