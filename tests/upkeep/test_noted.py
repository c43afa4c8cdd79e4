"""Whether checkpoints are found by what they have: the part of a check that reads what a SQLite file notes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import everstep
from everstep.stores.facts import new_facts
from everstep.stores.records import unpack_found_by, unpack_id
from everstep.stores.sqlite import verify


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[tuple[apsw.Connection, dict[str, str]]]:
    """A file with two threads whose checkpoints have metadata and tags, and the ids of these by what they have."""
    path = tmp_path / "agent.db"
    ids: dict[str, str] = {}
    with everstep.open(path).sync as engine:
        ids["ada"] = engine.append("t", [], {}, metadata={"customer": "ada"})
        ids["ada again"] = engine.append("t", [], {}, metadata={"customer": "ada"})
        ids["grace"] = engine.append("t", [], {}, metadata={"customer": "grace"})
        ids["tagged"] = engine.append("t", [], {}, metadata={"customer": "grace"}, tags=["urgent"])
        ids["plain"] = engine.append("t", [], {})
        ids["another thread"] = engine.append("u", [], {}, metadata={"customer": "ada"})
    connection = apsw.Connection(str(path))
    yield connection, ids
    connection.close()


def unnoted(connection: apsw.Connection) -> list[str]:
    return [key.checkpoint_id for _, key in verify._unnoted(connection)]


def forget(connection: apsw.Connection, thread_id: str, ids: dict[str, str], names: list[str]) -> None:
    """Remove what a thread is found by, but for what these checkpoints have."""
    line = connection.execute(
        "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.name = ? AND l.namespace = ''", (thread_id,)
    ).get
    kept: set[int] = set()
    for info in [_info(connection, ids[name]) for name in names]:
        kept |= {fact.label for fact in new_facts(unpack_found_by(info), None)}
    for (label,) in connection.execute("SELECT label FROM facts WHERE line = ?", (line,)).fetchall():
        if label not in kept:
            connection.execute("DELETE FROM facts WHERE line = ? AND label = ?", (line, label))


def _info(connection: apsw.Connection, checkpoint_id: str) -> bytes:
    for name, info in connection.execute("SELECT id, info FROM checkpoints"):
        if unpack_id(name) == checkpoint_id:
            return bytes(info)
    raise AssertionError(checkpoint_id)


def test_what_is_noted_is_no_finding(noted: tuple[apsw.Connection, dict[str, str]]) -> None:
    connection, _ = noted
    assert unnoted(connection) == []


def test_each_checkpoint_that_would_not_be_found_is_named(noted: tuple[apsw.Connection, dict[str, str]]) -> None:
    connection, ids = noted
    forget(connection, "t", ids, ["grace"])
    assert unnoted(connection) == [ids["ada"], ids["ada again"], ids["tagged"]]


def test_one_that_comes_after_what_is_noted_is_looked_at_by_itself(
    noted: tuple[apsw.Connection, dict[str, str]],
) -> None:
    connection, ids = noted
    forget(connection, "t", ids, ["ada"])
    assert unnoted(connection) == [ids["grace"], ids["tagged"]]
    forget(connection, "t", ids, [])
    assert unnoted(connection) == [ids["ada"], ids["ada again"], ids["grace"], ids["tagged"]]


def test_each_thread_is_found_by_its_own(noted: tuple[apsw.Connection, dict[str, str]]) -> None:
    connection, ids = noted
    forget(connection, "u", ids, [])
    assert unnoted(connection) == [ids["another thread"]]


def test_what_one_thread_is_found_by_says_nothing_of_another(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with everstep.open(path).sync as engine:
        ids = {name: engine.append(name, [], {}, metadata={"customer": "ada"}) for name in "tu"}
    connection = apsw.Connection(str(path))
    forget(connection, "u", ids, [])
    assert unnoted(connection) == [ids["u"]]
    connection.close()


def test_what_cannot_be_read_is_told_elsewhere(noted: tuple[apsw.Connection, dict[str, str]]) -> None:
    connection, ids = noted
    forget(connection, "t", ids, [])
    for name in ("ada", "grace"):
        info = _info(connection, ids[name])
        # One does not match its checksum and can be decoded, the other cannot.
        damaged = bytes([info[0] ^ 1]) + info[1:] if name == "ada" else info[:20]
        connection.execute("UPDATE checkpoints SET info = ? WHERE info = ?", (damaged, info))
    assert unnoted(connection) == [ids["ada again"], ids["tagged"]]
