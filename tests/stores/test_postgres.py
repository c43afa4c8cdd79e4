"""What is particular to the PostgreSQL store: connections, deadlines, round trips, roles, errors, migrations."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import everstep
from everstep import (
    CheckpointCorrupted,
    CommitUnknown,
    DurabilityWarning,
    HeadRegressed,
    InvalidInput,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.runtime.blocking import run_to_end
from everstep.stores.postgres import migrating
from everstep.stores.postgres.asking import Tables
from everstep.stores.postgres.forms import labels, packed_id, unpacked_id
from everstep.stores.postgres.migrating import SCHEMA_FIRST, SCHEMA_VERSION
from everstep.stores.postgres.pool import Connection, Pool, _until, connect
from everstep.stores.postgres.puts import prepare
from everstep.stores.postgres.rows import Rows
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Change, Hidden, Key, Move, Operation, Query, Write
from everstep.testing import follow, head_id, ids, make_object, make_record, put
from tests.stores.postgres_tools import OwnPostgres, Wire, own_postgres
from tests.tools import servers

_numbers = itertools.count(1)
WRITE = Write("task", 0, "channel", b"", b"value", 5)


@pytest.fixture
def url() -> str:
    servers.clear_postgres()
    return servers.postgres()


@pytest.fixture
def own() -> OwnPostgres:
    return own_postgres()


@pytest.fixture
def schema(own: OwnPostgres) -> Iterator[str]:
    """The name of a schema that is not there yet."""
    name = f"schema{next(_numbers)}"
    yield name
    own.do(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., PostgresStore]]:
    """Stores, blocking, on the common tables unless told otherwise; closed at the end."""
    made: list[PostgresStore] = []

    def store(dsn: str = url, **options: Any) -> PostgresStore:
        made.append(PostgresStore(dsn, **options))
        return made[-1].blocking

    yield store
    for each in made:
        run_to_end(each.blocking.close())


@pytest.fixture
def proxy(url: str) -> Iterator[Wire]:
    proxy = Wire(url)
    yield proxy
    proxy.close()


def run(coroutine: Any) -> Any:
    return run_to_end(coroutine)


def branched(engine: Any, thread_id: str) -> Any:
    """Begin a branch at the head of a thread and return its name."""
    return engine.branch(engine.get_latest(thread_id).metadata.checkpoint_id, "side", thread_id=thread_id)


# -- heads that go back ------------------------------------------------------------------------------------------------


def turn_back(url: str, moves: int) -> None:
    """Lose the last commits of thread t, as a failover to a replica that lagged behind would."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(moves):
            connection.execute(
                """WITH gone AS (DELETE FROM everstep_checkpoints WHERE seq = (SELECT max(head) FROM everstep_lines)
                                 RETURNING seq)
                   UPDATE everstep_lines SET generation = generation - 1, stored = stored - 1,
                   head = (SELECT max(seq) FROM everstep_checkpoints WHERE seq NOT IN (SELECT seq FROM gone))"""
            )


def test_a_head_that_went_back_is_reported_and_then_taken_as_it_is(make: Any, url: str) -> None:
    store = make()
    for _ in range(3):
        run(store.commit(follow("t", "c")))
    turn_back(url, 2)
    with pytest.raises(HeadRegressed) as caught:
        run(store.read("t"))
    assert (caught.value.thread_id, caught.value.seen_generation, caught.value.found_generation) == ("t", 3, 1)
    assert run(head_id(store)) == "c-1"
    run(store.commit(follow("t", "d")))
    assert run(head_id(store)) == "d-2"


@pytest.mark.parametrize("change", [follow("t", "d"), Change(thread_id="t", moves=[Move("", "c-1")])])
def test_a_commit_on_a_head_that_went_back_writes_nothing(make: Any, url: str, change: Change) -> None:
    store = make()
    for _ in range(3):
        run(store.commit(follow("t", "c")))
    turn_back(url, 1)
    with pytest.raises(HeadRegressed):
        run(store.commit(change))
    assert ids(run(store.list_checkpoints(Query(thread_id="t")))) == ["c-2", "c-1"]
    assert run(head_id(store)) == "c-2"


def test_a_line_that_is_deleted_and_made_again_goes_on_counting(make: Any) -> None:
    store, other = make(), make()
    first = run(store.commit(follow("t", "c")))
    run(store.commit(put(make_record("b", "branch"), origin=first.record.key)))
    for _ in range(5):
        run(store.commit(follow("branch", "c")))
    before = run(store.read("branch"))
    run(other.delete("branch"))
    run(other.commit(put(make_record("b", "branch"), origin=first.record.key)))
    after = run(store.read("branch"))
    assert after.stored.family == before.stored.family
    assert after.generation > before.generation


def test_a_thread_that_begins_anew_in_a_new_family_is_no_loss(make: Any) -> None:
    store, other = make(), make()
    for _ in range(3):
        run(store.commit(follow("t", "c")))
    run(other.delete("t"))
    run(other.commit(follow("t", "d")))
    assert run(store.read("t")).generation == 1


# -- round trips -------------------------------------------------------------------------------------------------------


def test_the_usual_calls_are_one_round_trip_each(make: Any, proxy: Wire) -> None:
    backend = everstep.StoreBackend(PostgresStore(proxy.url))
    engine: Any = everstep.CheckpointEngine(backend).sync
    state = {"plan": ["step " * 40] * 20}
    for n in range(3):
        engine.snapshot("t", [{"role": "user", "content": f"{n}"}], state, {})

    def trips(call: Callable[[], Any]) -> int:
        before = proxy.round_trips
        call()
        return proxy.round_trips - before

    store = backend.store.blocking
    assert trips(lambda: engine.snapshot("t", [{"role": "user", "content": "new"}], state, {"tool": "result"})) == 1
    assert trips(lambda: engine.append("t", [{"role": "user", "content": "more"}])) == 1
    assert trips(lambda: engine.get_latest("t")) == 1
    head = engine.get_latest("t")
    head.metadata.parent_checkpoint_id, head.metadata.checkpoint_id = head.metadata.checkpoint_id, "of my own"
    assert trips(lambda: engine.checkpointer.put(head)) == 1
    assert trips(lambda: run(store.read("t", objects=True, writes=True))) == 1
    keys = [stored.record.key for stored in run(store.list_checkpoints(Query(thread_id="t")))]
    assert trips(lambda: run(store.read_many(keys, writes=True))) == 1
    key = run(store.read("t")).stored.record.key
    leaf = make_object(b"leaf")
    write = WRITE._replace(children=leaf.hash)
    assert trips(lambda: run(store.put_writes(key, [write], [leaf]))) == 1
    assert run(store.read(*key, writes=True)).writes[0].channel == "channel"
    engine.close()

    cold = everstep.open(proxy.url).sync
    cold.get_latest("other")  # connects and looks at the tables
    assert trips(lambda: cold.get_latest("t")) == 1
    cold.append("t", [{"role": "user", "content": "by another process"}])  # and plans what retention will let go
    assert trips(lambda: cold.append("t", [{"role": "user", "content": "more"}])) == 1
    cold.close()


def test_nothing_is_left_in_the_session(make: Any, proxy: Wire) -> None:
    """PgBouncer in transaction mode gives the next transaction to another session."""
    proxy.is_pooler = True
    engine = everstep.open(proxy.url).sync
    for n in range(8):
        engine.snapshot("t", [], {"n": n}, {})
    branch = branched(engine, "t")
    engine.append(branch, [{"role": "user", "content": "x"}])
    engine.merge_branch(branch, "t")
    engine.undo("t")
    engine.checkpointer.delete_thread(branch)
    engine.collect("t")
    engine.close()
    texts = [content for kind, content in proxy.messages if kind == b"Q"]
    for kind, content in proxy.messages:
        if kind == b"P":
            name, text = content.split(b"\0")[:2]
            assert name == b""
            texts.append(text)
    assert len(texts) > 50
    for text in texts:
        words = text.upper().split()
        assert words[0] not in (b"PREPARE", b"LISTEN", b"DECLARE", b"LOAD", b"DISCARD"), text
        assert words[0] != b"SET" or words[1] == b"TRANSACTION", text
        assert b"TEMP" not in words, text
        assert b"PG_ADVISORY_LOCK" not in text.upper(), text


def prepared(proxy: Wire) -> list[bytes]:
    """Return the statements that were given a name, in order."""
    found = [content.split(b"\0")[:2] for kind, content in proxy.messages if kind == b"P"]
    return [text for name, text in found if name]


@pytest.mark.parametrize(
    ("threshold", "is_pooler", "is_prepared"),
    [("auto", False, True), ("auto", True, False), (0, True, True), (None, False, False), (10**6, False, False)],
)
def test_statements_are_prepared_where_the_server_itself_answers(
    make: Any, proxy: Wire, threshold: Any, is_pooler: bool, is_prepared: bool
) -> None:
    proxy.is_pooler = is_pooler
    store = make(proxy.url, prepare_threshold=threshold)
    for _ in range(8):
        run(store.commit(follow("t", "c")))
        run(store.operations("t", 1))
    assert bool(prepared(proxy)) is is_prepared


def test_a_prepared_statement_that_is_gone_is_done_without(url: str, proxy: Wire) -> None:
    """As behind a pooler that cannot be told from a server."""
    store = PostgresStore(proxy.url)
    engine: Any = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    places = [engine.append("t", [{"role": "user", "content": "x"}]) for _ in range(16)]
    for at in places[:8]:
        engine.branch(at, "b")
    assert prepared(proxy)
    (connection,) = [each for _, each in store._database._pool._idle]
    connection.pgconn.exec_(b"DEALLOCATE ALL")  # behind the driver's back
    before = len(proxy.messages)
    made = [engine.branch(at, "b") for at in places[8:]]
    assert len(proxy.sent) == 2, "it has another connection"
    again = [content.split(b"\0")[:2] for kind, content in proxy.messages[before:] if kind == b"P"]
    assert [text for name, text in again if name] == []
    engine.close()
    with everstep.open(url).sync as other:
        assert all(other.get_latest(branch) is not None for branch in made)
        assert len(other.operations("t")) == 16, "each branch was made once"


def test_only_statements_with_one_plan_are_prepared(proxy: Wire) -> None:
    """The plan is kept: one that was made while the tables were short may be to read them whole."""
    with everstep.open(proxy.url, prepare_threshold=0).sync as engine:
        at = engine.append("t", [{"role": "user", "content": "x"}])
        for _ in range(3):
            branch = engine.branch(at, "b")
            engine.append(branch, [{"role": "user", "content": "y"}])
            engine.merge_branch(branch, "t")
            engine.rewind(at)
            engine.undo("t")
            engine.list_time_travel_points("t", 5)
    found = prepared(proxy)
    assert len(found) > 3
    assert [text for text in found if re.search(rb"\b(WHERE|JOIN|UPDATE|DELETE|ORDER BY)\b", text)] == []


@pytest.mark.parametrize("wrong", ["never", -1, True, 1.5j])
def test_a_threshold_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="prepare_threshold"):
        PostgresStore(prepare_threshold=wrong)


# -- answers that never come -------------------------------------------------------------------------------------------


def losing(words: bytes) -> Callable[[bytes], bool]:
    return lambda data: words in data


def test_a_put_whose_answer_is_lost_is_asked_again(make: Any, proxy: Wire) -> None:
    store = make(proxy.url)
    run(store.commit(follow("t", "c")))
    proxy.lose = losing(b"everstep_put")
    stored = run(store.commit(follow("t", "c")))
    assert stored.record.key.checkpoint_id == "c-2"
    assert ids(run(store.list_checkpoints(Query(thread_id="t")))) == ["c-2", "c-1"]
    run(store.commit(follow("t", "c")))
    assert run(head_id(store)) == "c-3"


def test_writes_whose_answer_is_lost_are_attached_once(make: Any, proxy: Wire) -> None:
    store = make(proxy.url)
    stored = run(store.commit(follow("t", "c")))
    proxy.lose = losing(b"everstep_attach")
    run(store.put_writes(stored.record.key, [WRITE], []))
    assert [write.task_id for write in run(store.read("t", writes=True)).writes] == ["task"]


def test_a_first_commit_whose_answer_is_lost_is_looked_up(make: Any, proxy: Wire) -> None:
    store = make(proxy.url)
    run(store.list_threads(1, 0))
    proxy.lose = losing(b"COMMIT")
    assert run(store.commit(follow("t", "c"))).record.key.checkpoint_id == "c-1"
    assert ids(run(store.list_checkpoints(Query(thread_id="t")))) == ["c-1"]


def test_an_operation_whose_answer_is_lost_is_unknown(make: Any, proxy: Wire) -> None:
    store = make(proxy.url)
    for _ in range(2):
        run(store.commit(follow("t", "c")))
    proxy.lose = losing(b"COMMIT")
    with pytest.raises(CommitUnknown) as caught:
        run(store.commit(Change(thread_id="t", moves=[Move("", "c-1")], log=Operation("rewind", {}))))
    assert caught.value.thread_id == "t"
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert run(head_id(store)) == "c-1"


def test_what_is_lost_before_its_end_is_done_again(make: Any, proxy: Wire) -> None:
    store = make(proxy.url)
    run(store.commit(follow("t", "c")))
    for words in (b"everstep_names", b"BEGIN", b"everstep_lines"):
        proxy.lose = losing(words)
        run(store.commit(Change(thread_id="t", log=Operation("x", {}))))
    proxy.lose = losing(b"everstep_")
    assert run(store.read("t")) is not None
    assert len(run(store.operations("t", 10))) == 3


CALLS: dict[str, tuple[Callable[[PostgresStore], Any], type[Exception]]] = {
    "read": (lambda s: s.read("t", objects=True), StoreUnavailable),
    "thread": (lambda s: s.thread("t"), StoreUnavailable),
    "list": (lambda s: s.list_checkpoints(Query(thread_id="t")), StoreUnavailable),
    "put": (lambda s: s.commit(follow("t", "c")), CommitUnknown),
    "operation": (lambda s: s.commit(Change(thread_id="t", log=Operation("x", {}))), StoreUnavailable),
    "writes": (lambda s: s.put_writes(Key("t", "", "c-1"), [WRITE], []), CommitUnknown),
    "delete": (lambda s: s.delete("t"), StoreUnavailable),
    "sweep": (lambda s: s.sweep("1"), StoreUnavailable),
}


@pytest.mark.parametrize("face", ["async", "blocking"])
def test_a_network_that_swallows_everything_ends_at_the_deadline(proxy: Wire, face: str) -> None:
    stores = {call: PostgresStore(proxy.url, timeout_seconds=1.5) for call in CALLS}
    for store in stores.values():
        run(store.blocking.delete("t"))
        run(store.blocking.commit(follow("t", "c")))
    proxy.is_hole = True

    def ask(call: str) -> BaseException | None:
        store, (work, _) = stores[call], CALLS[call]
        drive, side = (asyncio.run, store) if face == "async" else (run, store.blocking)
        try:
            drive(work(side))
        except Exception as exc:
            return exc
        return None

    with ThreadPoolExecutor(len(CALLS)) as threads:  # at once, since each of them waits
        ended = dict(zip(CALLS, threads.map(ask, CALLS), strict=True))
    assert {call: type(error) for call, error in ended.items()} == {call: error for call, (_, error) in CALLS.items()}
    proxy.is_hole = False
    for store in stores.values():
        assert run(head_id(store.blocking)) == "c-1"  # the pool has recovered
        run(store.blocking.close())


def test_connecting_has_a_deadline(make: Any, proxy: Wire) -> None:
    proxy.is_hole = True
    store = make(proxy.url, timeout_seconds=1)
    with pytest.raises(StoreUnavailable, match="in time"):
        run(store.list_threads(1, 0))
    proxy.is_hole = False
    assert run(store.list_threads(1, 0)) == []


def test_waiting_for_the_pool_has_a_deadline(url: str) -> None:
    pool = Pool(lambda deadline: connect(url, deadline), 1, 600)
    with (
        pool.connection(time.monotonic() + 10) as held,
        pytest.raises(StoreUnavailable, match="in use"),
        pool.connection(time.monotonic() + 0.05),
    ):
        raise AssertionError("two from a pool of one")
    with pool.connection(time.monotonic() + 10) as again:
        assert again is held
    pool.close()
    with pytest.raises(StoreClosed), pool.connection(time.monotonic() + 10):
        raise AssertionError("one from a closed pool")


def test_a_connection_that_is_left_inside_a_transaction_is_not_lent_again(url: str) -> None:
    pool = Pool(lambda deadline: connect(url, deadline), 1, 600)
    with pool.connection(time.monotonic() + 10) as left:
        left.execute("BEGIN")
    with pool.connection(time.monotonic() + 10) as other:
        assert left.closed
        assert other is not left
    pool.close()


def test_what_fails_among_others_is_raised_and_nothing_else_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection) -> None:
        with connection.in_one_go():
            found = connection.execute("SELECT 1 FROM nobody_made_it")
            connection.execute("SELECT 1")
            found.fetchall()

    def interrupt(connection: Connection) -> None:
        with connection.in_one_go():
            connection.execute("SELECT 1")
            raise KeyboardInterrupt

    with Connection.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            fail(connection)
        with pytest.raises(KeyboardInterrupt):
            interrupt(connection)
        assert connection.execute("SELECT 1").fetchone() == (1,), "it can be used again"
    assert not caplog.records


def test_idle_connections_are_let_go(url: str) -> None:
    pool = Pool(lambda deadline: connect(url, deadline), 3, 0)
    with pool.connection(time.monotonic() + 10) as one, pool.connection(time.monotonic() + 10) as two:
        pass
    assert two.closed  # it was idle when the other one came back
    assert not one.closed
    pool.close()
    assert one.closed


def test_so_many_connections_stay_however_long_they_idle(url: str) -> None:
    pool = Pool(lambda deadline: connect(url, deadline), 4, 0, 2)
    with pool.connection(time.monotonic() + 10) as one, pool.connection(time.monotonic() + 10) as two:
        with pool.connection(time.monotonic() + 10) as three:
            pass
        assert not three.closed  # it is the only one that is idle
    assert [two.closed, three.closed, one.closed].count(True) == 1
    pool.close()


def test_a_call_that_waits_for_a_lock_ends_at_the_deadline(make: Any, url: str) -> None:
    store, patient = make(timeout_seconds=1), make()
    run(patient.commit(follow("t", "c")))  # makes the tables, which may take longer than the other waits
    assert run(head_id(store)) == "c-1"
    with psycopg.connect(url) as connection:
        connection.execute("SELECT 1 FROM everstep_lines FOR UPDATE")
        with pytest.raises(CommitUnknown):
            run(store.commit(follow("t", "c")))
        with pytest.raises(StoreUnavailable):
            run(store.commit(Change(thread_id="t", log=Operation("x", {}))))
    run(patient.commit(follow("t", "d")))
    assert run(patient.operations("t", 10)) == []


# -- servers that go away ----------------------------------------------------------------------------------------------


def test_connections_that_the_server_ended_are_replaced(make: Any, url: str) -> None:
    store = make()
    run(store.commit(follow("t", "c")))
    change = Change(thread_id="t", log=Operation("x", {}))
    for work in (store.commit(follow("t", "c")), store.read("t"), store.commit(change)):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                   WHERE application_name = 'everstep' AND datname = current_database()"""
            )
        run(work)
    assert run(head_id(store)) == "c-2"


def test_a_store_outlives_restarts_of_the_server() -> None:
    server = OwnPostgres()
    store = PostgresStore(server.url)
    run(store.blocking.commit(follow("t", "c")))
    for mode in ("fast", "immediate"):
        server.stop(immediate=mode == "immediate")
        # Asked while the server is away, answered when it is back.
        with ThreadPoolExecutor(3) as threads:
            waiting = [
                threads.submit(run, store.blocking.read("t")),
                threads.submit(run, store.blocking.commit(follow("t", "c"))),
                threads.submit(run, store.blocking.thread("t")),
            ]
            server.start()
            assert [each.result() is not None for each in waiting] == [True] * 3
    assert ids(run(store.blocking.list_checkpoints(Query(thread_id="t")))) == ["c-3", "c-2", "c-1"]

    server.stop()
    short = PostgresStore(server.url, timeout_seconds=3)
    with pytest.raises(StoreUnavailable):
        run(short.blocking.read("t"))
    server.start()
    assert run(head_id(short.blocking)) == "c-3"
    for each in (store, short):
        run(each.blocking.close())


# -- loops, threads, forks ---------------------------------------------------------------------------------------------


def test_one_store_serves_several_event_loops(url: str) -> None:
    store = PostgresStore(url, max_size=3)

    async def work() -> None:
        await asyncio.gather(*(store.commit(follow(f"t{n}", "c")) for n in range(10)))

    asyncio.run(work())
    asyncio.run(work())
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: asyncio.run(work()), range(2)))
    assert run(head_id(store.blocking, "t7")) == "c-4"
    asyncio.run(store.close())


def test_many_threads_may_use_one_store(make: Any) -> None:
    store = make(max_size=4)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda n: run(store.commit(follow(f"t{n % 3}", f"w{n}"))), range(90)))
    for n in range(3):
        assert run(store.read(f"t{n}")).stored.record.step == 30


def test_a_forked_child_has_its_own_connections(make: Any, url: str) -> None:
    store = make()
    run(store.commit(follow("t", "parent")))
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            run(store.read("t", objects=True))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(store.commit(follow("t", "child")))
                asyncio.run(PostgresStore(url).read("t"))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        assert status == 0
        run(store.commit(follow("t", "parent")))
    finally:
        stop.set()
        busy.join()
    assert ids(run(store.list_checkpoints(Query(thread_id="t")))) == ["parent-3", "child-2", "parent-1"]


def test_a_blocking_call_on_the_thread_of_a_loop_does_not_wait_for_the_loop(url: str) -> None:
    store = PostgresStore(url, max_size=2, timeout_seconds=5)
    pool, later = store._database._pool, time.monotonic() + 60

    async def work() -> None:
        for n in range(2):
            await store.commit(follow(f"t{n}", "c"))
        with pool.connection(later), pool.connection(later):
            pass
        puts = [asyncio.ensure_future(store.commit(follow(f"t{n}", "c"))) for n in range(2)]
        await asyncio.sleep(0)  # they are sent now; nobody reads the answers while this thread waits
        assert run(head_id(store.blocking, "t2")) is None
        await asyncio.gather(*puts)
        await store.close()

    asyncio.run(work())


def test_loans_leave_a_connection_for_threads(url: str) -> None:
    pool, later = Pool(lambda deadline: connect(url, deadline), 2, 600), time.monotonic() + 60
    with pool.connection(later), pool.connection(later):
        pass
    lent = pool.lend(later)
    assert lent is not None
    assert pool.lend(later) is None
    with pool.connection(later) as other:
        assert other is not lent
    pool.take_back(lent)
    assert pool.lend(later) is lent
    pool.take_back(lent)
    pool.close()


def test_connections_that_the_server_ended_are_not_lent(url: str) -> None:
    pool, later = Pool(lambda deadline: connect(url, deadline), 3, 600), time.monotonic() + 60
    with pool.connection(later) as one, pool.connection(later) as two, psycopg.connect(url, autocommit=True) as killer:
        for each in (one, two):
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", (each.info.backend_pid,))
    assert pool.lend(later) is None
    assert one.closed
    assert two.closed


def test_a_loan_is_left_alone_in_a_forked_child(url: str) -> None:
    pool, later = Pool(lambda deadline: connect(url, deadline), 2, 600), time.monotonic() + 60
    with pool.connection(later):
        pass
    lent = pool.lend(later)
    assert lent is not None
    lent.pgconn.send_query(b"SELECT 1")  # as a coroutine that is waiting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            pool.take_back(lent)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    while lent.pgconn.get_result() is not None:
        pass
    assert lent.execute("SELECT 2").fetchone() == (2,)
    pool.take_back(lent)
    pool.close()


_FORKING = """
import os
import threading
import everstep
from concurrent.futures import ThreadPoolExecutor
from everstep.runtime import forks

class Thing:
    fork_order = 1
    def before_fork(self):
        busy = threading.Thread(target=executor.submit, args=(int,), daemon=True)
        busy.start()
        busy.join(10)
        self.was_stuck = busy.is_alive()
    def after_fork(self, *, in_child):
        pass

executor, thing = ThreadPoolExecutor(1), Thing()
executor.submit(int).result()
forks.register(thing)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
assert not thing.was_stuck
"""


def test_work_can_be_handed_to_threads_until_all_is_at_rest_before_a_fork() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FORKING], check=True, timeout=60)


class _Blind(asyncio.SelectorEventLoop):
    """An event loop that watches nobody's sockets but its own, as the usual one on Windows."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    remove_reader = asyncio.AbstractEventLoop.remove_reader


def test_an_event_loop_that_cannot_watch_sockets_is_served_by_threads(url: str) -> None:
    store = PostgresStore(url)

    async def work() -> None:
        for _ in range(3):
            await store.commit(follow("t", "c"))
        await store.close()

    with asyncio.Runner(loop_factory=_Blind) as runner:
        runner.run(work())
    assert run(head_id(PostgresStore(url).blocking)) == "c-3"


def test_an_answer_that_has_come_counts_however_late_it_is_read() -> None:
    def asking() -> Generator[int, int, int]:
        return (yield 1) + 1

    waiting = _until(time.monotonic() - 1, asking())
    assert next(waiting) == 1
    with pytest.raises(StopIteration) as done:
        waiting.send(1)
    assert done.value.value == 2


def test_a_commit_that_is_handed_to_a_thread_keeps_its_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, deadlines = PostgresStore(url), list[float]()

    async def refused(_: Change, deadline: float) -> None:
        deadlines.append(deadline)

    def commit(_: Change, deadline: float, _refused: Any) -> None:
        deadlines.append(deadline)

    monkeypatch.setattr(store._database, "commit_soon", refused)
    monkeypatch.setattr(store._database, "commit", commit)
    asyncio.run(store.commit(follow("t", "c")))
    assert len(deadlines) == 2
    assert len(set(deadlines)) == 1


def test_cancelled_puts_leave_the_pool_whole(url: str) -> None:
    store = PostgresStore(url, max_size=3)

    async def work() -> None:
        for n in range(60):
            waiting = asyncio.ensure_future(store.commit(follow("t", "c")))
            for _ in range(n % 6):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            stored = await store.commit(follow("t", "d"))
            assert stored is not None
            assert stored.record.key.checkpoint_id.startswith("d-")
        pool = store._database._pool
        assert not pool._lent

    asyncio.run(work())
    asyncio.run(store.close())


def test_a_closed_store_says_so(make: Any) -> None:
    store = make()
    run(store.commit(follow("t", "c")))
    run(store.close())
    run(store.close())
    for call, _ in CALLS.values():
        with pytest.raises(StoreClosed):
            run(call(store))


# -- names, migrations, roles ------------------------------------------------------------------------------------------


def test_schemas_and_prefixes_keep_stores_apart(own: OwnPostgres) -> None:
    places = [("Odd-Schéma", "Ünï_"), ("Odd-Schéma", ""), ("select", "from_"), (None, "my_")]
    stores = [PostgresStore(own.url, schema=schema, table_prefix=prefix).blocking for schema, prefix in places]
    try:
        for n, store in enumerate(stores):
            run(store.commit(follow("t", f"c{n}")))
            run(store.commit(follow("t", f"c{n}")))
            run(store.put_writes(Key("t", "", f"c{n}-2"), [WRITE], []))
        assert [run(head_id(store)) for store in stores] == ["c0-2", "c1-2", "c2-2", "c3-2"]
    finally:
        for store in stores:
            run(store.close())
        own.do('DROP SCHEMA "Odd-Schéma" CASCADE', 'DROP SCHEMA "select" CASCADE')


@pytest.mark.parametrize("name", ["a\0b", 'a"b', "a'b", "a;b", "a b", "$$", "a%sb", "x" * 64, "é" * 32, 5, b"a"])
def test_names_that_cannot_be_are_refused(name: Any) -> None:
    for option in ({"schema": name}, {"table_prefix": name}):
        with pytest.raises(InvalidInput, match="a name of letters"):
            PostgresStore("", **option)


@pytest.mark.parametrize(
    "options",
    [
        {"schema": ""}, {"timeout_seconds": 0}, {"timeout_seconds": float("nan")}, {"timeout_seconds": "5"},
        {"max_size": 0}, {"max_size": True}, {"max_idle_seconds": -1}, {"dsn": 5},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        PostgresStore(**options)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="pool_max"):
        everstep.open("postgresql://localhost/x", pool_max=3)  # type: ignore[call-arg]


def test_tables_are_made_where_every_statement_is_prepared(own: OwnPostgres, schema: str) -> None:
    store = PostgresStore(own.url, schema=schema, prepare_threshold=0).blocking
    assert run(store.list_threads(1, 0)) == []
    run(store.close())


def test_processes_that_start_at_once_make_the_tables_once(own: OwnPostgres, schema: str) -> None:
    script = """if True:
        import sys, warnings
        from everstep.runtime.blocking import run_to_end
        from everstep.stores.postgres.store import PostgresStore
        from everstep.testing import follow
        warnings.simplefilter("ignore")
        store = PostgresStore(sys.argv[1], schema=sys.argv[2]).blocking
        sys.stdin.readline()
        run_to_end(store.commit(follow("t", sys.argv[3])))
        run_to_end(store.close())
    """
    started = [
        subprocess.Popen([sys.executable, "-c", script, own.url, schema, str(n)], stdin=subprocess.PIPE)
        for n in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in started:
        process.communicate()
    assert [process.returncode for process in started] == [0] * 4
    store = PostgresStore(own.url, schema=schema).blocking
    assert run(store.read("t")).stored.record.step == 4
    run(store.close())


def asked(own: OwnPostgres, question: str) -> list[Any]:
    with psycopg.connect(own.url) as connection:
        return connection.execute(question).fetchall()


def test_a_view_shows_who_is_there(own: OwnPostgres, schema: str) -> None:
    long = "x" * 300
    with everstep.open(own.url, schema=schema).sync as engine:
        engine.append("zoë", [], tags=["a", long], summary="né\n" + long, metadata={"k": 1})
        first = engine.append("nul\0", [], summary="s")
        engine.append("nul\0", [])
        engine.rewind(first)
        branch = engine.branch(first, "b")
    rows = asked(
        own,
        f"""SELECT thread, step, extract(epoch FROM now() - "time") < 600, summary, tags
            FROM {schema}.everstep_overview WHERE is_head ORDER BY active""",
    )
    assert rows[:2] == [
        ("zoë", 1, True, "né\n" + long, ["a", long, "manual"]),
        ("nul\\000", 1, True, "s", ["manual"]),
    ]
    assert [row[0] for row in rows[2:]] == [branch.replace("\0", "\\000")]
    assert asked(own, f"SELECT count(*) FROM {schema}.everstep_overview") == [(3,)]


def test_threads_are_walked_through_minute_by_minute(own: OwnPostgres, schema: str) -> None:
    names = [f"t{n:02}" for n in range(60)]
    with everstep.open(own.url, schema=schema).sync as engine:
        for name in names:
            engine.append(name, [], metadata={"float": 0.5 if name < "t10" else 1.5})
        # Some in one minute, some hours apart; t59 was active last. Floats are in no index.
        own.do(
            f"""UPDATE {schema}.everstep_lines l SET active = '2026-01-01 00:00:00Z'::timestamptz
                    + (substr(convert_from(t.name, 'UTF8'), 2)::int ^ 2) * interval '20 seconds'
                FROM {schema}.everstep_threads t WHERE t.family = l.family AND t.id = l.thread"""
        )
        for limit in (1, 7, 60, 100):
            found = []
            page = engine.list_threads(limit)
            found += [thread.thread_id for thread in page]
            while page.cursor is not None:
                page = engine.list_threads(limit, cursor=page.cursor)
                found += [thread.thread_id for thread in page]
            assert found == names[::-1]
        since = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=50**2 * 20)
        assert [t.thread_id for t in engine.list_threads(100, since=since)] == names[:49:-1]
        assert [t.thread_id for t in engine.list_threads(3, filter={"float": 0.5})] == ["t09", "t08", "t07"]


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_page_of_what_many_threads_have_asks_no_index_for_all_of_them(
    own: OwnPostgres, schema: str, monkeypatch: pytest.MonkeyPatch, analyzed: bool
) -> None:
    """An index on labels gives all rows that have one before the first is looked at."""
    asked: list[Any] = []
    is_narrow = Rows._is_narrow

    def counting(self: Any, search: Any, *rest: Any) -> bool:
        asked.append(dict(search.filter))
        return is_narrow(self, search, *rest)

    monkeypatch.setattr(Rows, "_is_narrow", counting)
    with everstep.open(own.url, schema=schema).sync as engine:
        for n in range(100):
            engine.append(f"t{n:02}", [], metadata={"all": "yes", "old": n < 50, "few": n == 7})
        if analyzed:
            own.do(f"ANALYZE {schema}.everstep_checkpoints")
        assert [t.thread_id for t in engine.list_threads(3, filter={"all": "yes"})] == ["t99", "t98", "t97"]
        assert asked == []
        # Those that were active last do not have it.
        assert [t.thread_id for t in engine.list_threads(3, filter={"old": True})] == ["t49", "t48", "t47"]
        assert [t.thread_id for t in engine.list_threads(3, filter={"few": True})] == ["t07"]
        assert asked == [{"old": True}, {"few": True}]


@pytest.mark.parametrize(("version", "word"), [(99, "upgrade everstep"), (9, "before the first release")])
def test_tables_of_a_version_that_is_not_read_are_not_touched(
    own: OwnPostgres, schema: str, version: int, word: str
) -> None:
    run(PostgresStore(own.url, schema=schema).blocking.list_threads(1, 0))
    own.do(f"UPDATE {schema}.everstep_meta SET version = {version}")
    with pytest.raises(StoreMismatch, match=word):
        run(PostgresStore(own.url, schema=schema).blocking.list_threads(1, 0))
    assert asked(own, f"SELECT version FROM {schema}.everstep_meta") == [(version,)]


UUIDS = ["1f1e11da-22d8-6c65-8259-b92522cbe791", "00000000-0000-0000-0000-000000000000"]
NAMES = [
    *UUIDS, "plain", "", UUIDS[0].upper(), UUIDS[0] + "\n", UUIDS[0][:-1], UUIDS[0].replace("-", ""), "é" * 18,
    "\0" * 36, "\\" * 36, "g" + UUIDS[0][1:], "{" + UUIDS[0][1:-1] + "}",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_server_packs_ids_as_we_do(make: Any, url: str, name: str) -> None:
    run(make().list_threads(1, 0))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT everstep_packed(%b)", (name.encode(),)).fetchone() == (packed_id(name),)
    assert unpacked_id(packed_id(name)) == name
    assert len(packed_id(name)) == (17 if name in UUIDS else len(name.encode()))


@pytest.mark.parametrize("change", [follow("t", "c"), Change(thread_id="t")], ids=["the short way", "the long way"])
def test_writes_of_pruned_checkpoints_go_with_them(make: Any, change: Change) -> None:
    store = make()
    stored = [run(store.commit(put(make_record(name)))) for name in UUIDS]
    for name in UUIDS:
        run(store.put_writes(Key("t", "", name), [WRITE._replace(task_id=UUIDS[0])], []))
    run(store.commit(change._replace(prune=[stored[0].seq])))
    assert [key.checkpoint_id for key, _ in run(store.raw("t")).writes] == [UUIDS[1]]


def test_a_table_of_somebody_else_is_not_touched(own: OwnPostgres, schema: str) -> None:
    own.do(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.everstep_lines (x int)")
    with pytest.raises(StoreMismatch, match="table_prefix"):
        run(PostgresStore(own.url, schema=schema).blocking.list_threads(1, 0))
    own.do(f"SELECT x FROM {schema}.everstep_lines")


def test_tables_that_are_gone_are_named(own: OwnPostgres, schema: str) -> None:
    store = PostgresStore(own.url, schema=schema).blocking
    run(store.commit(follow("t", "c")))
    own.do(f"DROP TABLE {schema}.everstep_checkpoints CASCADE")
    with pytest.raises(StoreMismatch, match="everstep_checkpoints"):
        run(store.read("t"))
    run(store.close())


@pytest.fixture
def role(own: OwnPostgres, schema: str) -> Iterator[str]:
    """A role without any rights but to connect."""
    name = f"role{next(_numbers)}"
    own.do(f"CREATE ROLE {name} LOGIN NOSUPERUSER")
    yield name
    own.do(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_transactions_that_would_not_see_what_others_committed_are_refused(
    own: OwnPostgres, schema: str, role: str
) -> None:
    own.do(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    own.do(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(StoreMismatch, match="'read committed' is needed"):
        run(PostgresStore(own.url_of(role), schema=schema).blocking.list_threads(1, 0))


def test_a_role_may_make_its_tables_without_being_superuser(own: OwnPostgres, schema: str, role: str) -> None:
    own.do(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    store = PostgresStore(own.url_of(role), schema=schema).blocking
    run(store.commit(follow("t", "c")))
    assert run(head_id(store)) == "c-1"
    run(store.close())


def test_a_role_that_may_not_create_uses_tables_that_are_there(own: OwnPostgres, schema: str, role: str) -> None:
    owner = PostgresStore(own.url, schema=schema).blocking
    run(owner.list_threads(1, 0))
    run(owner.close())
    own.do(
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(own.url_of(role)) as connection:
        connection.execute(f"CREATE TABLE {schema}.x (x int)".encode())
    engine: Any = everstep.CheckpointEngine(
        everstep.StoreBackend(PostgresStore(own.url_of(role), schema=schema)), everstep.SnapshotConfig()
    ).sync
    for n in range(3):
        engine.snapshot("t", [], {"n": n}, {})
    branch = branched(engine, "t")
    engine.append(branch, [{"role": "user", "content": "x"}])
    engine.merge_branch(branch, "t")
    engine.undo("t")
    engine.collect("t")
    engine.checkpointer.delete_thread(branch)
    assert engine.get_latest("t").state == {"n": 2}
    engine.close()


def test_a_role_without_rights_is_told_what_is_missing(own: OwnPostgres, schema: str, role: str) -> None:
    store = PostgresStore(own.url_of(role), schema=schema).blocking
    with pytest.raises(StoreReadOnly, match="permission denied"):
        run(store.list_threads(1, 0))
    run(PostgresStore(own.url, schema=schema).blocking.list_threads(1, 0))
    with pytest.raises(StoreReadOnly, match="permission denied"):
        run(store.list_threads(1, 0))
    own.do(f"GRANT USAGE ON SCHEMA {schema} TO {role}", f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    assert run(store.list_threads(1, 0)) == []
    with pytest.raises(StoreReadOnly, match="permission denied"):
        run(store.commit(follow("t", "c")))


def test_a_server_that_can_only_be_read_is_read(own: OwnPostgres, schema: str, role: str) -> None:
    owner = PostgresStore(own.url, schema=schema).blocking
    run(owner.commit(follow("t", "c")))
    own.do(
        f"ALTER ROLE {role} SET default_transaction_read_only = on",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    )
    store = PostgresStore(own.url_of(role), schema=schema).blocking
    assert run(head_id(store)) == "c-1"
    assert run(store.thread("t")) is not None
    for change in (follow("t", "c"), Change(thread_id="t", log=Operation("x", {})), follow("new", "c")):
        with pytest.raises(StoreReadOnly, match="can only be read"):
            run(store.commit(change))
    with pytest.raises(StoreReadOnly):
        run(store.put_writes(Key("t", "", "c-1"), [WRITE], []))
    run(owner.commit(follow("t", "c")))
    config = everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=1)
    with everstep.open(own.url_of(role), config, schema=schema).sync as engine:
        assert engine.collect(dry_run=True).checkpoints == 1
        with pytest.raises(StoreReadOnly):
            engine.collect()
    with pytest.raises(StoreReadOnly):
        run(PostgresStore(own.url_of(role), schema=schema, table_prefix="none_").blocking.list_threads(1, 0))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "error"),
    [("53100", StoreFull), ("53200", StoreFull), ("XX001", CheckpointCorrupted), ("57014", StoreUnavailable)],
)
def test_what_the_server_reports_is_told_apart(own: OwnPostgres, schema: str, state: str, error: type) -> None:
    store = PostgresStore(own.url, schema=schema).blocking
    run(store.commit(follow("t", "c")))
    own.do(
        f"""CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '{state}'; END $$""",
        f"""CREATE TRIGGER fail BEFORE INSERT ON {schema}.everstep_checkpoints
            FOR EACH ROW EXECUTE FUNCTION {schema}.fail()""",
    )
    for change in (follow("t", "c"), follow("new", "c")):
        with pytest.raises(error, match="as told"):
            run(store.commit(change))
    own.do(f"DROP FUNCTION {schema}.fail CASCADE")
    run(store.commit(follow("t", "c")))
    assert run(head_id(store)) == "c-2"
    run(store.close())


def test_a_statement_timeout_is_told_from_a_server_that_is_gone(url: str) -> None:
    store = PostgresStore(url).blocking

    def sleep(rows: Rows) -> None:
        rows._ask("SET statement_timeout = 50")  # not before: a busy machine opens a store no faster
        rows._all("SELECT pg_sleep(10)")

    with pytest.raises(StoreUnavailable, match=r"ended the statement.*raise it for this role") as caught:
        run(store._read(sleep))
    assert "cannot be reached" not in str(caught.value)
    run(store.close())


def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrating, "SERVER_VERSION_MIN", 99)
    with pytest.raises(StoreMismatch, match=r"PostgreSQL \d+ is too old; 99"):
        run(PostgresStore(url).blocking.list_threads(1, 0))


def test_an_unknown_database_is_named(own: OwnPostgres) -> None:
    with pytest.raises(StoreError, match="nowhere") as caught:
        run(PostgresStore(own.url_of("postgres", database="nowhere")).blocking.list_threads(1, 0))
    assert not isinstance(caught.value, StoreUnavailable)


@pytest.mark.parametrize("url", ["postgresql://u@no-such-host.invalid/x", "postgresql://u@127.0.0.1:1/x"])
def test_a_server_that_is_not_there_is_reported_at_once(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"no-such-host\.invalid|refused"):
        run(PostgresStore(url, timeout_seconds=600).blocking.list_threads(1, 0))


@pytest.mark.parametrize(
    ("setting", "loss"), [("synchronous_commit", "last moments"), ("fsync", "everything"), (None, None)]
)
def test_a_server_that_acknowledges_too_early_is_warned_about(
    own: OwnPostgres, role: str, schema: str, setting: str | None, loss: str | None
) -> None:
    own.do(f"CREATE SCHEMA {schema} AUTHORIZATION {role}")
    for each in ("synchronous_commit", "fsync", "full_page_writes"):
        own.do(f"ALTER SYSTEM SET {each} = {'off' if each == setting else 'on'}")
    try:
        own.do("SELECT pg_reload_conf()")
        for each in ("synchronous_commit", "fsync", "full_page_writes"):
            wait_for_setting(own, each, "off" if each == setting else "on")
        store = PostgresStore(own.url_of(role), schema=schema).blocking
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(store.commit(follow("t", "c")))
            run(store.read("t"))
            run(store.close())
        told = [str(each.message) for each in seen if each.category is DurabilityWarning]
        if setting is None:
            assert told == []
        else:
            (text,) = told
            assert setting in text
            assert str(loss) in text
    finally:
        for each in ("synchronous_commit", "fsync", "full_page_writes"):
            own.do(f"ALTER SYSTEM SET {each} = off")
        own.do("SELECT pg_reload_conf()")
        wait_for_setting(own, "fsync", "off")


def wait_for_setting(own: OwnPostgres, name: str, value: str) -> None:
    """New sessions take over a changed configuration a moment after the server was told."""
    while True:
        with psycopg.connect(own.url) as connection:
            if connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,):
                return


SECRETS = ["s3cret", "p@ss/w:rd?#%&=", "with space'and\\back", "ünï🙂"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", ["url", "pairs"])
def test_passwords_work_and_are_never_shown(own: OwnPostgres, secret: str, form: str) -> None:
    role = f"keeper{next(_numbers)}"
    with psycopg.connect(own.url, autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                psycopg.sql.Identifier(role), psycopg.sql.Literal(secret)
            )
        )
    own.do(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    own.ask_for_password(role)
    wrong = secret + "-wrong"
    dsn, bad = own.url_of(role, secret), own.url_of(role, wrong)
    if form == "pairs":
        dsn, bad = (make_conninfo("", **conninfo_to_dict(each)) for each in (dsn, bad))

    store = PostgresStore(dsn, schema=role).blocking
    run(store.commit(follow("t", "c")))
    shown = [repr(store), str(store), repr(everstep.open(own.url_of(role, secret)))]
    run(store.close())
    with pytest.raises(StoreClosed) as closed:
        run(store.read("t"))
    shown += shown_by(closed.value)
    failing = PostgresStore(bad, schema=role).blocking
    with pytest.raises(StoreError, match="refused the connection") as refused:
        run(failing.read("t"))
    assert not isinstance(refused.value, StoreUnavailable)
    shown += shown_by(refused.value)
    for text in shown:
        assert secret not in text
        assert make_conninfo(password=secret) not in text
    own.do(f"DROP SCHEMA {role} CASCADE", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:s3cret@more@host/x", "postgresql://u:s3cret/more@host/x", "postgresql://u:s3cret?more@host/x",
        "postgresql://u:s3cret#more@host/x", "postgresql://u:s3cret%zz@host/x", "password=s3cret more words",
        "password='s3cret", "postgresql://u:s3cret@[::1/x", "s3cret",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        PostgresStore(dsn)
    for text in shown_by(caught.value):
        assert "s3cret" not in text
        assert "more" not in text


@pytest.mark.parametrize(
    "dsn",
    [
        "", "postgresql://", "postgresql:///db", "postgresql://host/db", "postgresql://host:5432/db?user=a@b",
        "postgresql://u:p%40ss@host,other:5433/db", "postgres://u@[::1]:5432/db", "host=/tmp dbname=x user='a b'",
    ],
)  # fmt: skip
def test_what_can_be_read_is_accepted(dsn: str) -> None:
    store = PostgresStore(dsn)
    assert conninfo_to_dict(store._database._dsn) == conninfo_to_dict(dsn), "as it was given"


def shown_by(error: BaseException) -> list[str]:
    """Return every text that an error may show: its own, those of its causes, and the traceback."""
    texts = ["".join(traceback.format_exception(error))]
    seen: BaseException | None = error
    while seen is not None:
        texts += [str(seen), repr(seen), str(seen.args)]
        texts += [str(seen.__context__), repr(seen.__context__)]
        seen = seen.__cause__
    return [re.sub(r"^\s+(\S.*)$", "", text, flags=re.MULTILINE) for text in texts]  # without the lines of this file


# -- at scale ----------------------------------------------------------------------------------------------------------


def test_the_schema_may_be_partitioned_by_family(own: OwnPostgres, schema: str) -> None:
    folder = resources.files("everstep.stores.postgres").joinpath("sql")
    text = "".join([folder.joinpath(f"postgres-{n}.sql").read_text() for n in range(SCHEMA_FIRST, SCHEMA_VERSION + 1)])
    parts = []
    for name in (
        "threads",
        "shared_states",
        "lines",
        "segments",
        "checkpoints",
        "objects",
        "writes",
        "operations",
        "hidden",
    ):
        text, count = re.subn(
            rf"(CREATE TABLE {{{name}}} \(.*?\n\))[^;]*;", r"\1 PARTITION BY HASH (family);", text, flags=re.DOTALL
        )
        assert count == 1
        parts += [
            f"""CREATE TABLE {schema}.{name}_{n} PARTITION OF {schema}.everstep_{name}
                FOR VALUES WITH (MODULUS 4, REMAINDER {n})"""
            for n in range(4)
        ]
    own.do(f"CREATE SCHEMA {schema}", Tables(schema, "everstep_")(text), *parts)
    own.do(f"UPDATE {schema}.everstep_meta SET version = {SCHEMA_VERSION}")

    engine: Any = everstep.CheckpointEngine(
        everstep.StoreBackend(PostgresStore(own.url, schema=schema)),
        everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=5),
    ).sync
    for thread in ("a", "b", "c", "d", "e", "f"):
        for n in range(12):
            engine.snapshot(thread, [{"role": "user", "content": "x" * 300}], {"n": n, "plan": ["y" * 90] * 30}, {})
        branch = branched(engine, thread)
        engine.append(branch, [{"role": "user", "content": "more"}])
        engine.merge_branch(branch, thread)
        engine.undo(thread)
        engine.redo(thread)
        engine.pin(engine.get_latest(thread).metadata.checkpoint_id, thread_id=thread)
        engine.checkpointer.delete_thread(branch)
        engine.collect(thread)
        assert engine.get_latest(thread).messages[-1]["content"] == "more"
    store = PostgresStore(own.url, schema=schema).blocking
    run(store.commit(follow("plain", "c")))
    run(store.commit(follow("plain", "c")))
    run(store.put_writes(Key("plain", "", "c-2"), [WRITE], []))
    assert len(run(store.list_threads(50, 0))) == 7
    with psycopg.connect(own.url) as connection:
        used = [
            connection.execute(f"SELECT count(*) FROM {schema}.checkpoints_{n}".encode()).fetchone() for n in range(4)
        ]
    assert sum(row[0] > 0 for row in used if row is not None) > 1
    engine.close()
    run(store.close())


def test_a_sweep_waits_for_commits_under_way(make: Any, url: str) -> None:
    """Numbers are not given in the order of commits: what is not committed yet may have a smaller one."""
    store = make()
    first = run(store.commit(follow("t", "c")))
    leaf, later = make_object(b"leaf"), make_object(b"later")
    tables = Tables(None, "everstep_")
    with Connection.connect(url) as connection, ThreadPoolExecutor(1) as threads:
        rows = Rows(connection, tables)
        assert rows.attach(Key("t", "", "c-1"), [WRITE._replace(children=leaf.hash)], [leaf], None)
        run(store.put_writes(Key("t", "", "c-1"), [WRITE._replace(idx=1, children=later.hash)], [later]))
        sweeping = threads.submit(run, store.sweep(first.family))
        wait_until_blocked(url, sweeping)
        connection.commit()
        assert sweeping.result().objects == 0
    assert {obj.hash for obj in run(store.fetch(first.family, [leaf.hash, later.hash]))} == {leaf.hash, later.hash}


def test_a_sweep_waits_for_a_commit_that_begins_a_branch(make: Any, url: str) -> None:
    """The commit has no line to lock, but objects of the family to add."""
    store = make()
    first = run(store.commit(follow("t", "c")))
    with Connection.connect(url) as connection, ThreadPoolExecutor(1) as threads:
        Rows(connection, Tables(None, "everstep_")).create("branch", "", first.family)
        sweeping = threads.submit(run, store.sweep(first.family))
        wait_until_blocked(url, sweeping)
        connection.rollback()
        assert sweeping.result().finished


def test_a_thread_is_seen_as_of_one_moment(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = make(), make()
    first = run(store.commit(follow("t", "c")))
    second = run(store.commit(follow("t", "c")))
    hidden = Hidden("", first.seq, second.seq)
    rewind = Change(thread_id="t", moves=[Move("", "c-1")], hide=[hidden], log=Operation("rewind", {}))
    look = Rows._hidden_of

    def rewound_meanwhile(rows: Rows, family: int, thread: int) -> Any:
        monkeypatch.undo()
        run(other.commit(rewind))
        return look(rows, family, thread)

    monkeypatch.setattr(Rows, "_hidden_of", rewound_meanwhile)
    before = run(store.thread("t"))
    assert (before.heads[""][0], before.hidden) == ("c-2", {})
    after = run(store.thread("t"))
    assert after.heads[""][0] == "c-1"
    assert len(after.hidden) == 1


def test_a_base_is_kept_while_a_commit_rests_on_it(make: Any, url: str) -> None:
    """A checkpoint that another transaction names as its base cannot be deleted under it."""
    store = make()
    leaf = make_object(b"leaf")
    first = run(store.commit(put(make_record(roots=[leaf]), leaf)))
    run(store.commit(put(make_record("c2", step=2, parents=["c1"]))))
    with Connection.connect(url) as connection, ThreadPoolExecutor(1) as threads:
        assert Rows(connection, Tables(None, "everstep_")).checkpoint(first.record.key) is not None
        deleting = threads.submit(run, store.delete("t", keys=[first.record.key]))
        wait_until_blocked(url, deleting)
        connection.commit()
        assert deleting.result().checkpoints == 1


def test_a_thread_is_kept_while_a_commit_refers_to_it(make: Any, url: str) -> None:
    store = make()
    first = run(store.commit(follow("t", "c")))
    run(store.commit(put(make_record("b", "branch"), origin=first.record.key)))
    with Connection.connect(url) as connection, ThreadPoolExecutor(1) as threads:
        assert Rows(connection, Tables(None, "everstep_")).family("branch") == first.family
        deleting = threads.submit(run, store.delete("branch"))
        wait_until_blocked(url, deleting)
        connection.commit()
        assert deleting.result().checkpoints == 1
    assert run(store.thread("branch")) is None


def test_a_namespace_that_is_made_while_its_thread_is_deleted_goes_too(make: Any, url: str) -> None:
    store = make()
    run(store.commit(follow("t", "c")))
    with Connection.connect(url) as connection, ThreadPoolExecutor(1) as threads:
        Rows(connection, Tables(None, "everstep_")).create("t", "new", None)
        deleting = threads.submit(run, store.delete("t"))
        wait_until_blocked(url, deleting)
        connection.commit()
        assert deleting.result().checkpoints == 1
    assert run(store.thread("t")) is None
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM everstep_lines").fetchone() == (0,)


def wait_until_blocked(url: str, work: Future[Any]) -> None:
    """Return when `work` waits for a lock; fail at once if it ends without."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    def must_wait() -> None:
        assert not work.done(), "it waited for nobody"

    with psycopg.connect(url, autocommit=True) as connection:
        servers.wait_until(lambda: connection.execute(waiting).fetchone() is not None, "a lock", must_wait)


def test_a_filter_by_metadata_uses_its_index(make: Any, url: str) -> None:
    store = make()
    for n in range(3):
        record = make_record(f"c{n}", step=n, metadata={"kind": n, "odd\0key": float("nan")})
        run(store.commit(put(record)))
    assert ids(run(store.list_checkpoints(Query(filter={"kind": 1})))) == ["c1"]
    assert run(store.list_checkpoints(Query(filter={"kind": True}))) == []
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute("EXPLAIN SELECT 1 FROM everstep_checkpoints WHERE labels @> '{1}'").fetchall()
    assert "labels_idx" in str(plan)


@pytest.mark.parametrize("query", [Query(), Query(namespace=None), Query(order="oldest", hidden="also")])
def test_a_page_of_a_long_thread_is_found_without_looking_at_the_rest(make: Any, url: str, query: Query) -> None:
    store = make()
    for _ in range(300):
        run(store.commit(follow("t", "c")))
    counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'everstep_checkpoints'"
    with Connection.connect(url) as connection:
        connection.execute("ANALYZE everstep_checkpoints, everstep_lines, everstep_threads, everstep_names")
        connection.commit()
        found = Rows(connection, Tables(None, "everstep_")).list_checkpoints(replace(query, thread_id="t", limit=5))
        assert len(found) == 5
        (looked_at,) = connection.execute(counted).fetchone() or (0,)
    assert 5 <= looked_at < 50


@pytest.mark.parametrize("analyzed", [False, True])
def test_only_what_is_asked_for_is_looked_at(make: Any, url: str, analyzed: bool) -> None:
    store = make()
    keys = [Key(f"t{n % 3}", "", f"c-{n}") for n in range(600)]
    for key in keys:
        run(store.commit(put(make_record(key.checkpoint_id, key.thread_id, metadata={"k": 1}))))
        run(store.put_writes(key, [WRITE], []))
    counted = """SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables
                 WHERE relname IN ('everstep_checkpoints', 'everstep_writes')"""
    reads: list[tuple[int, Callable[[Rows], Any]]] = [
        (200, lambda rows: rows.load_many(keys[:200], writes=False)),
        (200, lambda rows: rows.load_many(keys[:200], writes=True)),
        *(
            (5, lambda rows, query=query: rows.list_checkpoints(replace(query, order="id", limit=5)))
            for query in (Query(), Query(namespace=None), Query(before_id="c-3"), Query(filter={"k": 1}))
            if analyzed or not query.filter
        ),
        (1, lambda rows: rows.list_checkpoints(Query(checkpoint_id="c-7", namespace=None))),
        (1, lambda rows: rows.list_checkpoints(Query(checkpoint_id="c-7", thread_id="t1", limit=9))),
    ]
    if analyzed:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ANALYZE")
    for count, read in reads:
        with Connection.connect(url) as connection:
            connection.execute("SET enable_seqscan = off")  # a table that was counted while it was small is scanned
            assert len(read(Rows(connection, Tables(None, "everstep_")))) == count
            (looked_at,) = connection.execute(counted).fetchone() or (0,)
        assert count <= looked_at < 3 * count + 50


def test_entries_of_the_same_label_are_told_apart(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("puts", "changing", "reading", "searching"):
        monkeypatch.setattr(
            f"everstep.stores.postgres.{name}.labels", lambda metadata, tags=(): [7] if metadata else None
        )
    store = make()
    for n in range(9):
        run(store.commit(put(make_record(f"c{n}", metadata={"k": n % 3}))))
    for thread_id in (None, "t"):
        query = Query(thread_id=thread_id, filter={"k": 1}, limit=2)
        assert ids(run(store.list_checkpoints(query))) == ["c7", "c4"]
        assert ids(run(store.list_checkpoints(replace(query, offset=1)))) == ["c4", "c1"]
        assert ids(run(store.list_checkpoints(replace(query, limit=9)))) == ["c7", "c4", "c1"]


def labels_of_before(metadata: Any, tags: Any = ()) -> list[int]:
    """Return the labels of schema 1, one per entry."""
    return [label for key, value in metadata.items() for label in labels({key: value}) or [hash(key)]]


def loop_metadata(n: int) -> dict[str, Any]:
    return {"source": "loop", "step": n, "parents": {}}


def test_entries_that_tell_nothing_apart_have_no_label(make: Any, url: str) -> None:
    store = make()
    for n in range(4):
        run(store.commit(put(make_record(f"c{n}", metadata=loop_metadata(n)))))
    run(store.commit(put(make_record("c4", metadata={"step": 4, "parents": {}}))))
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT DISTINCT labels FROM everstep_checkpoints").fetchall()
    assert sorted(len(row[0]) if row[0] is not None else 0 for row in found) == [0, 1]
    assert (None,) in found


@pytest.mark.parametrize("thread_id", ["t", None])
@pytest.mark.parametrize("is_old", [False, True], ids=["", "with labels of before"])
def test_entries_without_a_label_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, thread_id: str | None, is_old: bool
) -> None:
    store = make()
    with monkeypatch.context() as before:
        if is_old:
            for name in ("puts", "changing", "reading", "searching"):
                before.setattr(f"everstep.stores.postgres.{name}.labels", labels_of_before)
        for n in range(70):
            run(store.commit(put(make_record(f"c{n}", metadata=loop_metadata(n)))))

    def found(wanted: dict[str, Any], **options: Any) -> list[str]:
        return ids(run(store.list_checkpoints(Query(thread_id=thread_id, filter=wanted, **options))))

    assert found({"step": 3}) == found({"step": 3}, limit=1) == found({"step": 3, "source": "loop"}, limit=1) == ["c3"]
    assert found({"parents": {}}, limit=2) == ["c69", "c68"]
    assert found({"step": 3}, limit=1, offset=1) == found({"step": 70}, limit=1) == found({"step": 3}, limit=0) == []
    assert found({"step": 3, "source": "input"}) == found({"step": 3.0}) == found({"parents": []}) == []


def test_a_filter_without_a_label_looks_at_its_thread_alone(make: Any, url: str) -> None:
    store = make()
    for n in range(400):
        thread_id = "t" if n % 20 == 0 else "other"
        run(store.commit(put(make_record(f"c{n}", thread_id, metadata=loop_metadata(n)))))
    counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'everstep_checkpoints'"
    with Connection.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")  # so few rows are scanned as soon as they have been counted
        found = Rows(connection, Tables(None, "everstep_")).list_checkpoints(Query(thread_id="t", filter={"step": 40}))
        assert ids(found) == ["c40"]
        (looked_at,) = connection.execute(counted).fetchone() or (0,)
    assert 20 <= looked_at < 60


def test_one_damaged_checkpoint_among_many_is_reported(make: Any, url: str) -> None:
    store = make()
    keys = [Key("t", "", f"c-{n}") for n in (1, 2, 3)]
    for _ in keys:
        run(store.commit(follow("t", "c")))
    run(store.put_writes(keys[0], [WRITE], []))
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE everstep_writes SET info = set_byte(info, 9, 255 - get_byte(info, 9))")
    assert len(run(store.read_many(keys))) == 3
    with pytest.raises(CheckpointCorrupted):
        run(store.read_many(keys, writes=True))
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE everstep_checkpoints SET root = root || 'x'::bytea WHERE id = 'c-2'")
    with pytest.raises(CheckpointCorrupted) as caught:
        run(store.read_many(keys))
    assert caught.value.checkpoint_id == "c-2"


def test_plans_that_are_kept_use_indexes_although_they_were_made_on_small_tables(make: Any, url: str) -> None:
    store = make()
    database, tables = store._database, Tables(None, "everstep_")
    for _ in range(3):
        run(store.commit(follow("t", "c")))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE everstep_checkpoints, everstep_lines, everstep_families")
    counted = "SELECT sum(seq_scan) FROM pg_stat_xact_user_tables WHERE relname LIKE 'everstep%'"
    with database._pool.connection(time.monotonic() + 60) as connection, connection.transaction():
        before = connection.execute(counted).fetchone()
        for _ in range(10):
            seen = database._heads.get(("t", ""))
            prepared = prepare(follow("t", "c"), seen, seen.known)
            assert prepared is not None
            database._kept(prepared, Rows(connection, tables).put(prepared.values))
        assert connection.execute(counted).fetchone() == before
    assert run(head_id(store)) == "c-13"
