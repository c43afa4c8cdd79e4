"""Pages of threads of which some are damaged: the others are listed as ever, and the damaged ones are named."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.runtime.blocking import run_to_end
from everstep.stores.sqlite.store import SQLiteStore
from everstep.views import errors, threads
from tests.tools.damage import break_page, pages_of
from tests.upkeep.sites import Site, engine_of, site

KINDS = ("memory", "sealed", "sqlite", "postgres", "redis")
FAILS = {
    # Keys and rows by which threads are found at all: without them nobody knows what belongs to the page.
    "memory": r"[tANFa$#@L]\s",
    "sealed": r"[tANFa$#@L]\s",
    "sqlite": r"counters|threads|lines|families",
    "postgres": r"names|threads|lines|families|checkpoints\.(line|family)",
    "redis": r"nothing",
}
"""What may make a whole page fail."""


@pytest.fixture(params=KINDS)
def harmed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = site(str(request.param), tmp_path)
    yield made
    made.close()


def view_of(store: Any, **asked: Any) -> list[dict[str, Any]]:
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store))
    found: list[dict[str, Any]] = run_to_end(threads.page(engine, **asked))["threads"]
    return found


def test_a_damaged_thread_takes_nothing_from_its_page(harmed: Site) -> None:
    truth = {head.thread_id: head for head in engine_of(harmed.open()).list_threads()}
    may_fail = re.compile(FAILS[harmed.kind])
    named = 0
    tried: set[str] = set()
    for what, harm in list(harmed.harms()):
        kind = re.sub(r"lost.*|b'.*", "", what)
        if kind in tried and harmed.kind in ("sqlite", "postgres"):
            continue  # a row of a table is as good as another
        tried.add(kind)
        harmed.put_back()
        harm()
        store = harmed.open()
        try:
            page = engine_of(store).list_threads()
        except EverstepError:
            if may_fail.match(what):
                continue
            raise
        found = {head.thread_id: head for head in page}
        damaged = {thread.thread_id for thread in page.damaged}
        if "threads.name" not in what:  # else it is known by another one
            assert damaged <= harmed.touched, what
        assert not damaged & found.keys(), what
        for name in ("before", "after"):
            assert found[name] == truth[name], what
        shown = {row["thread_id"]: row for row in view_of(store)}
        assert found.keys() | damaged <= shown.keys(), what
        for thread in page.damaged:
            row = shown[thread.thread_id]
            assert (row["status"], row["head"]) == ("damaged", None), what
            assert thread.reason.startswith(row["summary"][:40]), what
        if damaged:
            named += 1
            assert [row["thread_id"] for row in view_of(store, status="damaged")] == [
                name for name in shown if shown[name]["status"] == "damaged"
            ]
    assert named >= 2


def harm_head(harmed: Site) -> None:
    """Damage the checkpoint that `t` is listed by, and nothing else."""
    for _, harm in list(harmed.harms()):
        harmed.put_back()
        harm()
        engine = engine_of(harmed.open())
        try:
            pages = [engine.list_threads(), engine.list_threads(prefix="t")]
        except EverstepError:
            continue
        if all([thread.thread_id for thread in page.damaged] == ["t"] for page in pages):
            return
    raise AssertionError("nothing damages the latest checkpoint of t")


def test_pages_go_on_behind_a_damaged_thread(harmed: Site) -> None:
    order = [head.thread_id for head in engine_of(harmed.open()).list_threads()]
    harm_head(harmed)
    engine = engine_of(harmed.open())
    found: list[str] = []
    cursor = None
    while True:
        page = engine.list_threads(1, cursor=cursor)
        found += [thread.thread_id for thread in (*page, *page.damaged)]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == order


def test_a_damaged_thread_is_logged_and_is_not_deleted_by_a_filter(
    harmed: Site, caplog: pytest.LogCaptureFixture
) -> None:
    harm_head(harmed)
    engine = engine_of(harmed.open())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "everstep"):
        engine.list_threads(prefix="t")
    assert "'t'" in caplog.text
    with pytest.raises(CheckpointCorrupted, match="'t'"):
        engine.delete_threads(prefix="t")
    assert engine.delete_threads(prefix="before").thread_ids == ["before"]
    assert "t" in engine.verify().damaged_threads


# -- pages of a file, each of which holds several rows


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file of many threads whose steps lie on pages of their own."""
    path = tmp_path / "many.db"
    with everstep.open(path).sync as engine:
        for number in range(12):
            for step in range(3):
                engine.append(
                    f"t{number:02}", [], {"n": step}, metadata={"text": "long " * 300, "even": number % 2 == 0}
                )
    return path


def test_a_broken_page_takes_nothing_from_the_threads_that_are_not_on_it(many: Path, tmp_path: Path) -> None:
    with everstep.open(many).sync as engine:
        truth = {head.thread_id: head for head in engine.list_threads()}
    assert len(truth) == 12
    named: set[str] = set()
    pages = pages_of(many, "checkpoints")
    assert len(pages) >= 12
    for page in pages:
        path = tmp_path / f"broken-{page}.db"
        path.write_bytes(many.read_bytes())
        break_page(path, page)
        store = SQLiteStore(path)
        with engine_of(store) as engine:
            found = engine.list_threads()
            damaged = {thread.thread_id for thread in found.damaged}
            assert {head.thread_id for head in found} | damaged == truth.keys()
            assert len(found) >= 11
            for head in found:
                assert head == truth[head.thread_id]
            for thread in found.damaged:
                assert "page" in thread.reason
            assert [head.thread_id for head in engine.list_threads(prefix="t0")] == [
                head.thread_id for head in found if head.thread_id < "t1"
            ]
            evens = engine.list_threads(filter={"even": True})
            assert {head.thread_id for head in evens} == {head.thread_id for head in found if head.metadata["even"]}
            listed: list[str] = []
            cursor = None
            while True:
                part = engine.list_threads(5, cursor=cursor)
                listed += [thread.thread_id for thread in (*part, *part.damaged)]
                cursor = part.cursor
                if cursor is None:
                    break
            assert sorted(listed) == sorted(truth)
            rows = view_of(store.blocking)
            assert {row["thread_id"] for row in rows} == truth.keys()
            assert {row["thread_id"] for row in rows if row["status"] == "damaged"} == damaged
        named |= damaged
    assert named == truth.keys()


@pytest.mark.parametrize("table", ["lines", "threads", "lines_by_activity"])
def test_a_broken_page_that_tells_who_is_there_is_told_of_with_what_helps(many: Path, table: str) -> None:
    """Nobody knows then whether a thread is missing, so nothing is listed as if it were all."""
    break_page(many, pages_of(many, table)[0])
    with everstep.open(many).sync as engine, pytest.raises(CheckpointCorrupted) as caught:
        engine.list_threads()
    assert "everstep verify" in errors.hint(caught.value)
    assert "everstep repair" in errors.hint(caught.value)
