"""Finding, counting and deleting threads, as callers do. What stores do is in the contract."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep import InvalidInput, SyncEngine, UnsupportedByBackend
from everstep.runtime.blocking import run_to_end
from everstep.stores import facts
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Key, Search, Write
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import make_record, put
from tests.timeline.own_backend import Own

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncEngine]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db"
    with everstep.open(url).sync as made:
        yield made


def names(page: Any) -> list[str]:
    return [metadata.thread_id for metadata in page]


def fill(engine: SyncEngine) -> None:
    for n in range(5):
        engine.append(f"u{n % 2}:{n}", HELLO, metadata={"user": n % 2, "n": n}, tags=["even"] if n % 2 == 0 else [])


def test_pages_end_with_no_cursor(engine: SyncEngine) -> None:
    fill(engine)
    first = engine.list_threads(2, filter={"user": 0})
    assert names(first) == ["u0:4", "u0:2"]
    second = engine.list_threads(2, filter={"user": 0}, cursor=first.cursor)
    assert names(second) == ["u0:0"]
    assert second.cursor is None
    assert engine.list_threads(3, prefix="u0:").cursor is None
    assert engine.list_threads(0).cursor is None
    copied = pickle.loads(pickle.dumps(first))
    assert (copied, copied.cursor) == (first, first.cursor)


def test_what_is_asked_for_goes_together(engine: SyncEngine) -> None:
    fill(engine)
    assert names(engine.list_threads(tags=["even"])) == ["u0:4", "u0:2", "u0:0"]
    assert names(engine.list_threads(tags=["even", "manual"], prefix="u0", filter={"n": 2})) == ["u0:2"]
    now = datetime.now(UTC)
    assert names(engine.list_threads(since=now - timedelta(hours=1), prefix="u1")) == ["u1:3", "u1:1"]
    assert names(engine.list_threads(since=now + timedelta(hours=1))) == []
    assert names(engine.checkpointer.list_threads(1, 1, prefix="u0")) == ["u0:2"]


def test_threads_are_deleted_by_what_they_are_found_by(engine: SyncEngine) -> None:
    fill(engine)
    engine.append("u0:0", HELLO, metadata={"user": 0})
    told = engine.delete_threads(filter={"user": 0}, dry_run=True)
    assert (sorted(told.thread_ids), told.checkpoints, told.dry_run) == (["u0:0", "u0:2", "u0:4"], 4, True)
    assert len(engine.list_threads()) == 5
    done = engine.delete_threads(filter={"user": 0})
    assert (done.thread_ids, done.checkpoints, done.dry_run) == (told.thread_ids, 4, False)
    assert names(engine.list_threads()) == ["u1:3", "u1:1"]
    engine.append("u0:0", HELLO)
    assert engine.get_latest("u0:0").metadata.step == 1  # type: ignore[union-attr]


def test_everything_is_deleted_only_if_that_is_said(engine: SyncEngine) -> None:
    fill(engine)
    with pytest.raises(InvalidInput, match="everything=True"):
        engine.delete_threads()
    with pytest.raises(InvalidInput, match="everything=True"):
        engine.delete_threads(prefix="u", everything=True)
    assert len(engine.delete_threads(everything=True).thread_ids) == 5
    assert engine.list_threads() == []


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": 3}, "cursor"),
        ({"since": datetime(2026, 1, 1)}, "timezone"),  # that is the point
        ({"since": "2026"}, "timezone"),
        ({"tags": "even"}, "list of tags"),
        ({"filter": [1]}, "filter"),
        ({"filter": {1: 2}}, "filter"),
        ({"prefix": None}, "prefix"),
        ({"limit": -1}, "limit"),
    ],
)
def test_impossible_questions_are_refused(asked: dict[str, Any], what: str) -> None:
    with everstep.open("memory://").sync as engine, pytest.raises(InvalidInput, match=what):
        engine.list_threads(**asked)


def test_a_backend_of_ones_own_is_searched_thread_by_thread() -> None:
    engine = everstep.CheckpointEngine(Own()).sync
    fill(engine)
    first = engine.list_threads(1, filter={"user": 0}, prefix="u0")
    rest = engine.list_threads(filter={"user": 0}, prefix="u0", cursor=first.cursor)
    assert sorted(names(first) + names(rest)) == ["u0:0", "u0:2", "u0:4"]
    assert names(engine.list_threads(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert engine.delete_threads(prefix="u0", dry_run=True).checkpoints == 3
    assert len(engine.delete_threads(prefix="u0").thread_ids) == 3
    assert len(engine.list_threads()) == 2
    with pytest.raises(UnsupportedByBackend):
        engine.sizes("u1:1")
    with pytest.raises(InvalidInput, match="cursor"):
        engine.list_threads(cursor="x")


# -- sizes


def test_a_branch_shares_what_it_came_with(engine: SyncEngine) -> None:
    long = [{"role": "user", "content": f"{n} " + "".join(map(str, range(n, n + 300)))} for n in range(40)]
    first = engine.append("t", long)
    alone = engine.sizes("t")
    assert (alone.threads, alone.checkpoints, alone.shared_bytes, alone.write_bytes) == (1, 1, 0, 0)
    assert alone.exclusive_bytes > 1000 < alone.total_bytes
    branch = engine.branch(first, "b")
    shared = engine.sizes("t")
    assert shared.exclusive_bytes == 0
    assert shared.shared_bytes == alone.exclusive_bytes == engine.sizes(branch).shared_bytes
    assert engine.sizes().exclusive_bytes == alone.exclusive_bytes
    assert engine.sizes().threads == 2
    engine.append(branch, long[::-1])
    assert engine.sizes(branch).exclusive_bytes > 0
    assert engine.sizes("nobody") == everstep.Sizes()


def test_pending_writes_are_counted(engine: SyncEngine) -> None:
    engine.append("t", HELLO)
    store = engine.checkpointer._driven.store
    run_to_end(store.put_writes(Key("t", "", "later"), [Write("task", 0, "channel", b"", b"12345", 5)], []))
    assert engine.sizes("t").write_bytes == 5


# -- the index


def test_old_files_are_searched_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine)
    connection = apsw.Connection(str(path))
    connection.execute(
        "DELETE FROM facts; INSERT INTO facts (label, line, key) SELECT 0, id, 0 FROM lines"
    )  # as migrated
    connection.close()
    with everstep.open(f"sqlite:///{path}").sync as engine:
        assert names(engine.list_threads(filter={"user": 1})) == ["u1:3", "u1:1"]
        engine.append("u1:1", HELLO, metadata={"user": "other"})
        assert names(engine.list_threads(filter={"user": "other"})) == ["u1:1"]


def test_an_index_has_few_entries_per_thread(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db").blocking
    parents: list[str] = []
    for n in range(200):
        metadata = {"turn": n, "user": "u"} | {f"key {k}": n for k in range(n % 20)}
        run_to_end(store.commit(put(make_record(f"c{n}", metadata=metadata, parents=parents, step=n + 1))))
        parents = [f"c{n}"]
    run_to_end(store.close())
    assert apsw.Connection(str(tmp_path / "a.db")).execute("SELECT count(*) FROM facts").get <= facts.FACTS_MAX


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["", "a", "1"]), st.just(1.0), st.just([1])
)
_METADATA = st.dictionaries(st.sampled_from(["", "k", "step", "user"]), _VALUES, max_size=3)
_TAGS = st.lists(st.sampled_from(["a", "b", "manual"]), max_size=2, unique=True)
_NAMES = st.sampled_from(["a", "a%", "a_", "ab", "b", "é"])
_ACTS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "delete"]), _NAMES, _METADATA, _TAGS), max_size=25)
_ASKED = st.fixed_dictionaries(
    {"prefix": st.sampled_from(["", "a", "a%", "é", "z"]), "filter": _METADATA, "tags": _TAGS.map(frozenset)}
)


@settings(max_examples=60, deadline=None)
@given(acts=_ACTS, asked=st.lists(_ASKED, min_size=1, max_size=4), page=st.integers(1, 3))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_search_finds_what_a_look_at_every_thread_finds(
    kind: str, acts: list[Any], asked: list[dict[str, Any]], page: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("found")
    store = MemoryStore() if kind == "memory" else SQLiteStore(folder / "a.db", synchronous="off").blocking
    expected: dict[str, Any] = {}
    for n, (act, name, metadata, tags) in enumerate(acts):
        if act == "delete":
            run_to_end(store.delete(name))
            expected.pop(name, None)
        else:
            record = make_record(f"c{n:03}", name, metadata=metadata, tags=tags, step=n)
            run_to_end(store.commit(put(record)))
            expected.pop(name, None)
            expected[name] = record
    for search in asked:
        wanted = facts.Wanted(search["filter"], search["tags"])
        plain = [n for n, r in reversed(expected.items()) if n.startswith(search["prefix"]) and wanted.fits(r)]
        assert [hit.position.thread_id for hit in run_to_end(store.search(Search(**search)))] == plain
        paged: list[str] = []
        hits = run_to_end(store.search(Search(**search, limit=page)))
        while hits:
            paged += [hit.position.thread_id for hit in hits]
            hits = run_to_end(store.search(Search(**search, limit=page, after=hits[-1].position)))
        assert paged == plain
    run_to_end(store.close())
