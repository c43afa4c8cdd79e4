"""Single rows of the PostgreSQL store that are lost: told for the thread they belong to, and no harm to others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from everstep import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Change, Key, Move, Operation, Store
from everstep.testing import follow
from tests.stores.losses import ALL_OF_THEM, LOOKS, THE_SAME, check_append, check_delete, check_listing, fill, go, view
from tests.tools import servers

LOSABLE = (
    "names", "families", "threads", "lines", "checkpoints", "segments", "operations", "hidden", "covers",
)  # fmt: skip


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
        for name in (*LOSABLE, "objects", "writes", "shared_states", "gone"):
            self._kept[name] = self.rows(name)

    def put_back(self) -> None:
        with self.connection.transaction():
            self.connection.execute("SET LOCAL session_replication_role = replica")  # without triggers
            for name, rows in self._kept.items():
                self.connection.execute(f"DELETE FROM everstep_{name}".encode())
                for row in rows:
                    values = row[:-1] if name == "lines" else row  # the last column of these is made from another
                    places = ", ".join(["%s"] * len(values))
                    self.connection.execute(f"INSERT INTO everstep_{name} VALUES ({places})".encode(), values)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT * FROM everstep_{name} r ORDER BY r::text".encode()).fetchall()

    def lose(self, name: str, number: int) -> None:
        """Delete the row that comes at this place in the order of `rows`."""
        self.connection.execute("SET session_replication_role = replica")  # a row that is lost fires no trigger
        self.connection.execute(
            f"""DELETE FROM everstep_{name} WHERE ctid =
                (SELECT ctid FROM everstep_{name} r ORDER BY r::text OFFSET {number} LIMIT 1)""".encode()
        )

    def close(self) -> None:
        self.connection.close()
        for store in self._opened:
            run_to_end(store.blocking.close())


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.close()


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
        for check in (check_listing, check_delete):
            database.put_back()
            database.lose(table, number)
            check(database, row)
        database.put_back()
    assert noticed, table


@pytest.mark.parametrize("table", ["lines", "threads"])
def test_what_all_threads_are_asked_leaves_none_out(database: Database, table: str) -> None:
    store = database.open()
    fill(store)
    truth = view(store, ALL_OF_THEM)
    family = int(go(store.read("t")).stored.family)
    database.keep()
    noticed = 0
    for number, row in enumerate(database.rows(table)):
        if not is_about(table, row, family):
            continue
        database.lose(table, number)
        for name, value in view(database.open(), ALL_OF_THEM).items():
            if isinstance(value, CheckpointCorrupted):
                assert value.thread_id in ("t", "branch"), (row, name, value)
                noticed += 1
            else:
                assert value == truth[name], (row, name)
        database.put_back()
    assert noticed > len(ALL_OF_THEM)


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


def test_a_family_that_lost_a_thread_is_not_removed_with_another(database: Database) -> None:
    """Its table of threads says that none is left, and their objects would go."""
    store = database.open()
    fill(store)
    kept = database.rows("objects")
    database.connection.execute("DELETE FROM everstep_threads WHERE name = 't'")
    go(database.open().delete("branch"))
    assert database.rows("objects") == kept
