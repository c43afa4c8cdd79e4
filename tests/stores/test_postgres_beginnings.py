"""Threads and branches on PostgreSQL are begun in one call of a function, which must leave what the long way leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import everstep
from everstep.errors import BaseGone
from everstep.runtime.blocking import run_to_end
from everstep.stores.postgres import beginnings
from everstep.stores.postgres.database import Database
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import BaseRef
from everstep.testing import make_object, make_record, put
from everstep.testing.builders import committed
from tests.stores.postgres_tools import Wire
from tests.tools import servers


@pytest.fixture
def url() -> str:
    servers.clear_postgres()
    return servers.postgres()


@pytest.fixture
def engine(url: str) -> Iterator[Any]:
    with everstep.open(url).sync as engine:
        yield engine


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    wire = Wire(url)
    yield wire
    wire.close()


def saved(engine: Any, thread_id: str = "t", steps: int = 3) -> list[str]:
    """Save a few checkpoints and return their ids."""
    return [engine.append(thread_id, [{"role": "user", "content": f"{step}"}]) for step in range(steps)]


def go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "of_branch", lambda _: None)
    monkeypatch.setattr(beginnings, "of_line", lambda _: None)


ROWS = {
    "threads": "[t.began], t.origin IS NOT NULL, t.note, t.lines, t.operations",
    "lines": "x.namespace, [x.head], x.head_was_moved, x.generation, isfinite(x.active), x.unreferenced, "
    "x.stored, x.stretches, x.segments, x.incoming",
    "checkpoints": "[x.seq], [x.segment], x.added, least(x.step, 9), x.branches, x.pinned, x.labels, x.children",
    "segments": "[x.segment], length(x.data)",
    "shared_states": "[x.seq], x.high - x.low, length(x.data), x.children",
    "operations": "[x.seq], x.undone, length(x.data)",
}
"""What is compared of each table. A number in brackets is told by how many checkpoints of the family come before it."""


def rows_of_family(url: str, thread_id: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with psycopg.connect(url) as connection:
        for table, given in ROWS.items():
            columns = re.sub(
                r"\[(.*?)\]",
                r"(SELECT count(*) FROM everstep_checkpoints y WHERE y.family = b.family AND y.seq < \1)",
                given,
            )
            alias = "t" if table == "threads" else "x"
            found[table] = connection.execute(
                f"""SELECT {columns} FROM everstep_{table} {alias}, (
                        SELECT n.family FROM everstep_names n WHERE n.name = %s
                    ) b WHERE {alias}.family = b.family ORDER BY 1, 2""".encode(),
                (thread_id.encode(),),
            ).fetchall()
    return found


def test_both_ways_of_beginning_a_branch_leave_the_same_rows(
    engine: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread_id in ("a", "b"):
        ids = saved(engine, thread_id)
        if thread_id == "b":
            go_the_long_way(monkeypatch)
        engine.branch(ids[1], "side")
    assert rows_of_family(url, "a") == rows_of_family(url, "b")
    assert rows_of_family(url, "a")["segments"], "the rows of a family are found"
    assert engine.verify().ok


def test_both_ways_of_beginning_a_thread_leave_the_same_rows(
    engine: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"role": "user", "content": "x" * 5_000}
    begun: list[Any] = []
    begin = Database._begin_line

    def noted(database: Database, *args: Any) -> Any:
        begun.append(begin(database, *args))
        return begun[-1]

    monkeypatch.setattr(Database, "_begin_line", noted)
    for thread_id in ("a", "b"):
        if thread_id == "b":
            assert len(begun) == 4
            assert None not in begun
            go_the_long_way(monkeypatch)
        engine.append(thread_id, [message])
        engine.append(thread_id, [message])
        engine.append(thread_id, [message], namespace="inside")
        engine.durable(lambda _: None, name=f"run of {thread_id}")(thread_id=f"{thread_id} run")
    assert rows_of_family(url, "a") == rows_of_family(url, "b")
    # What a run records is of another size each time.
    of_run, of_other = [rows_of_family(url, name) for name in ("a run", "b run")]
    assert len(of_run["lines"]) == 2
    for table in ("threads", "lines"):
        assert of_run[table] == of_other[table]
    assert engine.verify().ok


def test_a_first_append_is_two_round_trips(engine: Any, wire: Wire) -> None:
    saved(engine)
    with everstep.open(wire.url).sync as far:
        far.append("t", [])
        before = wire.round_trips
        far.append("new", [{"role": "user", "content": "first"}])
        assert wire.round_trips - before == 2
        before = wire.round_trips
        far.append("new", [{"role": "user", "content": "second"}])
        assert wire.round_trips - before == 1


def test_a_first_append_whose_answer_is_lost_is_made_once(engine: Any, wire: Wire) -> None:
    saved(engine)
    with everstep.open(wire.url).sync as far:
        far.get_latest("t")
        wire.lose = lambda data: b"everstep_begin" in data
        made = far.append("new", [{"role": "user", "content": "once"}])
        far.append("new", [{"role": "user", "content": "after"}])
    points = engine.list_time_travel_points("new")
    assert [point.step for point in points] == [2, 1]
    assert points[1].checkpoint_id == made
    assert engine.verify().ok


def test_a_thread_that_another_process_has_begun_meanwhile_goes_on(engine: Any, url: str) -> None:
    saved(engine)
    with everstep.open(url).sync as other:
        assert engine.get_latest("new") is None
        other.append("new", [{"role": "user", "content": "theirs"}])
        engine.append("new", [{"role": "user", "content": "mine"}])
    assert [message["content"] for message in engine.get_latest("new").messages] == ["theirs", "mine"]
    assert engine.verify().ok


@pytest.mark.parametrize("lost", ["lines WHERE namespace = 'inside'", "threads", "names", "families"])
def test_what_is_lost_meanwhile_is_not_begun_anew(engine: Any, url: str, lost: str) -> None:
    saved(engine)
    engine.append("t", [], namespace="inside")
    store = PostgresStore(url)
    assert run_to_end(store.blocking.read("t", "other")) is None
    with psycopg.connect(url) as connection:
        connection.execute(f"DELETE FROM everstep_{lost}".encode())
    with pytest.raises(everstep.CheckpointCorrupted):
        run_to_end(store.blocking.commit(put(make_record("c", namespace="other"))))
    run_to_end(store.blocking.close())


def test_what_a_namespace_rests_on_must_be_there(engine: Any, url: str) -> None:
    store = PostgresStore(url)
    leaf = make_object(b"leaf")
    base = run_to_end(committed(store.blocking, put(make_record("c1", roots=[leaf]), leaf)))
    for name in ("good", "bad"):
        assert run_to_end(store.blocking.read("t", name)) is None
    stored = BaseRef(base.record.key, base.digest)
    good = make_record("c", namespace="good", roots=[leaf])
    assert run_to_end(store.blocking.commit(put(good, base=stored))) is not None
    bad = make_record("c", namespace="bad", roots=[leaf])
    with pytest.raises(BaseGone):
        run_to_end(store.blocking.commit(put(bad, base=stored._replace(digest=b"another"))))
    run_to_end(store.blocking.close())
    assert engine.verify().ok


def test_a_branch_is_two_round_trips_and_the_next_from_there_is_one(engine: Any, wire: Wire) -> None:
    ids = saved(engine)
    with everstep.open(wire.url).sync as far:
        far.branch(ids[0], "elsewhere")  # connects and looks at the tables
        before = wire.round_trips
        far.branch(ids[1], "first")
        assert wire.round_trips - before == 2
        before = wire.round_trips
        made = far.branch(ids[1], "second")
        assert wire.round_trips - before == 1
        # What was begun is known: the next step needs no look at it.
        far.append(made, [{"role": "user", "content": "on"}])
        before = wire.round_trips
        far.append(made, [{"role": "user", "content": "and on"}])
        assert wire.round_trips - before == 1


def test_a_second_branch_whose_answer_is_lost_is_made_once(engine: Any, wire: Wire) -> None:
    ids = saved(engine)
    with everstep.open(wire.url).sync as far:
        first = far.branch(ids[1], "side")
        wire.lose = lambda data: b"everstep_branch" in data
        second = far.branch(ids[1], "side")
        third = far.branch(ids[1], "side")
    assert {found.thread_id for found in engine.list_threads()} == {first, second, third, "t"}
    assert [entry.kind for entry in engine.operations("t")] == ["branch"] * 3
    assert engine.verify().ok


def test_tables_of_schema_13_are_brought_up_to_date(url: str) -> None:
    types = ["bytea"] * 6 + ["bigint", "bytea", "bigint", "bigint", "bytea", "bigint[]"] + ["bytea"] * 7
    with everstep.open(url, schema="tables_13").sync as engine:
        ids = saved(engine)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP FUNCTION tables_13.everstep_branch")
        of_13 = f"tables_13.everstep_branch({', '.join(types)}) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'"
        connection.execute(f"CREATE FUNCTION {of_13}".encode())
        connection.execute("UPDATE tables_13.everstep_meta SET version = 13")

    with everstep.open(url, schema="tables_13").sync as engine:
        branches = [engine.branch(ids[1], "side") for _ in range(2)]
        latest: list[Any] = [engine.get_latest(branch) for branch in branches]
        assert [found.metadata.parents for found in latest] == [[ids[1]]] * 2
    with psycopg.connect(url, autocommit=True) as connection:
        named = "SELECT count(*) FROM pg_proc WHERE oid::regprocedure::text LIKE 'tables_13.everstep_branch(%'"
        assert connection.execute(named).fetchone() == (1,)
        connection.execute("DROP SCHEMA tables_13 CASCADE")


def test_a_branch_whose_answer_is_lost_is_made_once(engine: Any, wire: Wire) -> None:
    ids = saved(engine)
    with everstep.open(wire.url).sync as far:
        far.get_latest("t")
        wire.lose = lambda data: b"everstep_branch" in data
        made = far.branch(ids[1], "side")
    assert [found.thread_id for found in engine.list_threads()] == [made, "t"]
    assert [entry.kind for entry in engine.operations("t")] == ["branch"]
    assert engine.verify().ok


def test_an_origin_that_was_replaced_meanwhile_is_read_again(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = saved(engine)
    begin = Database._begin_line
    tried: list[Any] = []

    def replaced_meanwhile(database: Database, *args: Any) -> Any:
        if not tried:
            head = engine.get_latest("t")
            head.messages.append({"role": "user", "content": "replaced"})
            engine.checkpointer.put(head)
        tried.append(begin(database, *args))
        return tried[-1]

    monkeypatch.setattr(Database, "_begin_line", replaced_meanwhile)
    made = engine.branch(ids[-1], "side")
    assert tried[0] is None
    assert tried[-1] is not None
    assert engine.get_latest(made).messages[-1]["content"] == "replaced"
    assert engine.verify().ok


def test_an_operation_that_is_undone_is_not_what_the_branch_stands_on(engine: Any) -> None:
    ids = saved(engine)
    engine.rewind(ids[1])
    engine.rewind(ids[0])
    engine.undo("t")
    engine.branch(ids[0], "side")
    engine.undo("t")  # the branch
    engine.undo("t")  # the first rewind
    assert engine.get_latest("t").metadata.checkpoint_id == ids[-1]
    engine.redo("t")
    engine.redo("t")
    assert [(entry.kind, entry.undone) for entry in engine.operations("t")] == [
        ("branch", False),
        ("rewind", True),
        ("rewind", False),
    ]


def test_an_id_that_several_threads_have_is_told_apart(engine: Any) -> None:
    saved(engine, "a")
    saved(engine, "b")
    for thread_id in ("a", "b"):
        head = engine.get_latest(thread_id)
        head.metadata.parent_checkpoint_id, head.metadata.checkpoint_id = head.metadata.checkpoint_id, "same"
        engine.checkpointer.put(head)
    with pytest.raises(everstep.AmbiguousCheckpoint):
        engine.branch("same", "side")
    assert engine.branch("same", "side", thread_id="b").startswith("b-branch-side-")


def test_an_entry_of_the_log_that_is_lost_is_told(engine: Any, url: str) -> None:
    ids = saved(engine)
    engine.branch(ids[0], "side")
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM everstep_operations")
    with pytest.raises(everstep.CheckpointCorrupted, match="an operation is missing"):
        engine.branch(ids[0], "side")
