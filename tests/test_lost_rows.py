"""Single rows of the PostgreSQL store that are lost: told for the thread they belong to, and no harm to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from everstep import CheckpointCorrupted
from everstep.faces import run_to_end
from everstep.stores.postgres import PostgresStore
from everstep.stores.protocol import Change, Common, Hidden, Key, Move, Operation, Pin, Query, Root, Store, Write
from everstep.testing import follow, make_object, make_record, put
from tests import servers

LOSABLE = (
    "names", "families", "threads", "lines", "checkpoints", "runs", "operations", "hidden",
)  # fmt: skip
WRITE = Write("task", 0, "channel", b"", b"value", 5)


class Database:
    """The tables, which can be put back as they were."""

    def __init__(self) -> None:
        servers.clear_postgres()
        self.connection = psycopg.connect(servers.postgres(), autocommit=True)
        self._opened: list[PostgresStore] = []
        self._kept: dict[str, list[tuple[Any, ...]]] = {}

    def open(self) -> Any:
        """Return a store that has seen nothing."""
        self._opened.append(PostgresStore(servers.postgres(), max_size=2))
        return self._opened[-1].blocking

    def keep(self) -> None:
        for name in (*LOSABLE, "writes", "commons", "gone"):
            self._kept[name] = self.rows(name)

    def put_back(self) -> None:
        with self.connection.transaction():
            for name, rows in self._kept.items():
                self.connection.execute(f"DELETE FROM everstep_{name}".encode())
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    self.connection.execute(f"INSERT INTO everstep_{name} VALUES ({places})".encode(), row)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT * FROM everstep_{name} r ORDER BY r::text".encode()).fetchall()

    def lose(self, name: str, number: int) -> None:
        """Delete the row that comes at this place in the order of `rows`."""
        self.connection.execute(
            f"""DELETE FROM everstep_{name} WHERE ctid =
                (SELECT ctid FROM everstep_{name} r ORDER BY r::text OFFSET {number} LIMIT 1)""".encode()
        )

    def close(self) -> None:
        self.connection.close()
        for store in self._opened:
            run_to_end(store.blocking.close())


def go(coroutine: Any) -> Any:
    return run_to_end(coroutine)


def fill(store: Any) -> None:
    """Make a thread with everything there is, a branch of it, and two others that have nothing to do with them."""
    leaf = make_object(b"leaf")
    for name in ("t", "before", "after"):
        first = make_record(f"{name}-1", name, roots=[leaf])
        go(store.commit(put(first, leaf)))
        for n in (2, 3):
            go(store.commit(put(make_record(f"{name}-{n}", name, roots=[leaf], step=n), leaf)))
    second, third = (go(store.read("t", "", name)).stored.seq for name in ("t-2", "t-3"))
    rewind = Change("t", moves=[Move("", "t-2")], hide=[Hidden("", second, third)], log=Operation("rewind", {}))
    go(store.commit(rewind))
    go(store.commit(put(make_record("t-4", "t", roots=[leaf], step=3, parents=["t-2"]), leaf)))
    go(store.commit(put(make_record("n-1", "t", "ns"))))
    origin = Key("t", "", "t-2")
    common = Common(go(store.read(*origin)).stored.place, Root(b"", b"", ()))
    go(store.commit(put(make_record("b-1", "branch"), origin=origin, commons={"t": common})))
    go(store.commit(Change("t", pins=[Pin(origin, True)], log=Operation("pin", {}))))
    go(store.put_writes(Key("t", "", "t-4"), [WRITE], ()))


LOOKS: dict[str, Callable[[Store], Any]] = {
    "head": lambda store: store.read("t", objects=True, writes=True),
    "head of a namespace": lambda store: store.read("t", "ns"),
    "many": lambda store: store.read_many([Key("t", "", f"t-{n}") for n in (1, 2, 3, 4)]),
    "list": lambda store: store.list_checkpoints(Query(thread_id="t", namespace=None)),
    "list of all": lambda store: store.list_checkpoints(Query(thread_id="t", namespace=None, hidden="also")),
    "page": lambda store: store.list_checkpoints(Query(thread_id="t", limit=2)),
    "count": lambda store: store.count(Query(thread_id="t", namespace=None)),
    "thread": lambda store: store.thread("t", branches=True, ancestry=True),
    "operations": lambda store: store.operations("t", 10),
    "raw": lambda store: store.raw("t"),
    "first checkpoint": lambda store: store.read("t", "", "t-1"),
    "pinned checkpoint": lambda store: store.read("t", "", "t-2"),
    "hidden checkpoint": lambda store: store.read("t", "", "t-3"),
}
THE_SAME: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("after", objects=True),
    "list": lambda store: store.list_checkpoints(Query(thread_id="before")),
    "thread": lambda store: store.thread("before", branches=True, ancestry=True),
    "raw": lambda store: store.raw("after", kin=True),
    "first": lambda store: store.list_threads(1, 0),
}


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.close()


def view(store: Any, looks: dict[str, Callable[[Store], Any]]) -> dict[str, Any]:
    """Return what each look gives, and for those that fail the error."""
    found: dict[str, Any] = {}
    for name, look in looks.items():
        try:
            found[name] = go(look(store))
        except CheckpointCorrupted as exc:
            found[name] = exc
    return found


def is_about(name: str, row: tuple[Any, ...], family: int) -> bool:
    return b"t" in row if name == "names" else row[0] == family


@pytest.mark.parametrize("table", LOSABLE)
def test_a_lost_row_is_told_for_its_thread_alone(database: Database, table: str) -> None:
    store = database.open()
    fill(store)
    go(store.commit(follow("after", "last")))
    truth, others = view(store, LOOKS), view(store, THE_SAME)
    family = int(go(store.read("t")).stored.family)
    database.keep()
    noticed = 0
    for number, row in enumerate(database.rows(table)):
        if not is_about(table, row, family):
            continue
        database.lose(table, number)
        fresh = database.open()
        found = view(fresh, LOOKS)
        damage = {name: value for name, value in found.items() if isinstance(value, CheckpointCorrupted)}
        for name, value in found.items():
            if name in damage:
                assert value.thread_id in ("t", "branch", None), (row, name, value)
            elif (table, name) != ("checkpoints", "page"):  # a page is not worth counting all that there are
                assert value == truth[name], (row, name)
        assert view(fresh, THE_SAME) == others, row
        noticed += bool(damage)
        check_append(database, row, is_damaged=bool(damage))
        check_listing(database, row)
        check_delete(database, row)
    assert noticed, table


def check_append(database: Database, row: Any, *, is_damaged: bool) -> None:
    """A commit goes on exactly where the thread ended, or tells."""
    fresh = database.open()
    try:
        stored = go(fresh.commit(follow("t", "more")))
    except CheckpointCorrupted:
        if not is_damaged:
            raise
        return
    assert stored.record.step == 4, row
    assert stored.record.parents == (Key("t", "", "t-4"),), row
    go(fresh.delete("t", keys=[stored.record.key]))
    database.put_back()


def check_listing(database: Database, row: Any) -> None:
    """The damaged thread is on its page as it was, or makes that page fail; it is never left out."""
    fresh = database.open()
    names: set[str | None] = set()
    for offset in range(4):
        try:
            page = go(fresh.list_threads(1, offset))
            names |= {stored.record.key.thread_id for stored in page}
        except CheckpointCorrupted as exc:
            names.add(exc.thread_id)
    assert names == {"t", "branch", "before", "after"}, row


def check_delete(database: Database, row: Any) -> None:
    fresh = database.open()
    go(fresh.delete("t"))
    assert go(fresh.read("t")) is None, row
    assert go(fresh.list_checkpoints(Query(thread_id="t", namespace=None, hidden="also"))) == [], row
    assert go(fresh.commit(follow("t", "anew"))).record.step == 1, row
    assert go(fresh.read("before")).stored.record.step == 3, row
    database.put_back()


OLD_ROWS = {
    "the head": """UPDATE everstep_lines SET (head, generation) =
                   (SELECT seq, 2 FROM everstep_checkpoints WHERE id = 'c-2')""",
    "the whole row": """UPDATE everstep_lines SET (head, generation, stored) =
                        (SELECT seq, 2, 2 FROM everstep_checkpoints WHERE id = 'c-2')""",
}


@pytest.mark.parametrize("harm", OLD_ROWS.values(), ids=OLD_ROWS)
def test_a_head_that_is_older_than_its_newest_checkpoint_is_told(database: Database, harm: str) -> None:
    """As if one page of the table were an older version of itself."""
    store = database.open()
    for _ in range(4):
        go(store.commit(follow("t", "c")))
    database.connection.execute(harm.encode())
    for look in (LOOKS["head"], LOOKS["thread"], LOOKS["raw"], lambda store: store.commit(follow("t", "c"))):
        with pytest.raises(CheckpointCorrupted, match="older") as caught:
            go(look(database.open()))
        assert caught.value.thread_id == "t"
    go(database.open().delete("t"))
    assert go(database.open().read("t")) is None


def test_a_head_whose_checkpoint_is_missing_is_told(database: Database) -> None:
    store = database.open()
    for _ in range(4):
        go(store.commit(follow("t", "c")))
    database.connection.execute("DELETE FROM everstep_checkpoints WHERE id = 'c-4'")
    looks: list[Callable[[Store], Any]] = [
        LOOKS["head"], LOOKS["thread"], LOOKS["raw"], LOOKS["count"],
        lambda store: store.commit(follow("t", "c")),
        lambda store: store.commit(Change("t", log=Operation("x", {}))),
        lambda store: store.commit(Change("t", moves=[Move("", "c-1")])),
    ]  # fmt: skip
    for look in looks:
        with pytest.raises(CheckpointCorrupted, match="points to a checkpoint that is missing") as caught:
            go(look(database.open()))
        assert caught.value.thread_id == "t"
    go(database.open().delete("t", keys=[Key("t", "", "c-3")]))
    assert go(database.open().read("t")).stored.record.step == 2, "a deletion sets the head to the newest that is left"


def test_what_a_lost_namespace_refers_to_is_not_swept(database: Database) -> None:
    store = database.open()
    fill(store)
    family = go(store.read("t")).stored.family
    database.keep()
    kept = database.rows("objects")
    for number in range(len(database.rows("lines"))):
        database.lose("lines", number)
        go(database.open().sweep(family))
        assert database.rows("objects") == kept
        database.put_back()
