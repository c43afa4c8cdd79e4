"""What a SQLite store gives to those who only check it: what every reader gets, and an error where a reader has one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import everstep
from everstep.errors import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.inspection import Entry, ReadsEntries
from everstep.stores.protocol import Key, Query, Record
from everstep.stores.records import DIGEST_BYTES, PLAIN_CODEC, check_record, digest, pack_record, unpack_record
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.connecting import checksum_vfs
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing.builders import make_record


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a thread that was rewound, pinned, branched and merged, and one of many steps."""
    path = tmp_path / "agent.db"
    with everstep.open(path).sync as engine:
        ids = [engine.append("t", [said(f"message {n}")], {"n": n}, tags=["x"] * (n % 2)) for n in range(6)]
        engine.pin(ids[1])
        engine.rewind(ids[2])
        engine.append("t", [said("another way")])
        branch = engine.branch(ids[2], "branch")
        engine.append(branch, [said("on the branch")])
        engine.merge_branch(branch, "t")
        for n in range(20):
            engine.append("long", [said("again")], metadata={"customer": f"c{n // 5}"})
    return path


def read_by_entries(store: SQLiteStore, thread_id: str, limit: int) -> list[Entry]:
    found: list[Entry] = []
    while True:
        after = found[-1].seq if found else 0
        page = run_to_end(store.read_entries(thread_id, "", after=after, limit=limit))
        found += page.entries
        if len(page.entries) < limit:
            return found


def read_one_by_one(store: SQLiteStore, thread_id: str) -> list[Entry]:
    listed = run_to_end(store.list_checkpoints(Query(thread_id=thread_id, namespace="", hidden="also", order="oldest")))
    roots = run_to_end(store.read_many([stored.record.key for stored in listed]))
    return [
        Entry(
            stored.record.key, stored.seq, stored.segment, stored.record.step, stored.record.kind,
            stored.record.parents, stored.pinned, stored.hidden, loaded.stored.record.children,
        )
        for stored, loaded in zip(listed, roots, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
def test_entries_are_what_readers_get(path: Path, limit: int) -> None:
    store = SQLiteStore(path).blocking
    assert isinstance(store, ReadsEntries)
    for thread_id in ("t", "long"):
        expected = read_one_by_one(store, thread_id)
        assert any(entry.hidden for entry in expected) == (thread_id == "t")
        assert read_by_entries(store, thread_id, limit) == expected
    assert run_to_end(store.read_entries("nobody", "", after=0, limit=5)).entries == []
    run_to_end(store.close())


def test_entries_are_counted_as_they_are_stored(path: Path) -> None:
    store = SQLiteStore(path).blocking
    page = run_to_end(store.read_entries("long", "", after=0, limit=500))
    run_to_end(store.close())
    connection = apsw.Connection(str(path))
    stored = connection.execute(
        """SELECT sum(length(CAST(c.id AS BLOB)) + length(c.info) + length(c.children) + length(c.root))
           FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread WHERE t.name = 'long'"""
    ).get
    connection.close()
    assert page.bytes == stored


def connected(path: Path, *, knows_checksums: bool) -> apsw.Connection:
    """Return a connection of another program, which computes the checksums of pages or does not."""
    connection = apsw.Connection(str(path), vfs=checksum_vfs() if knows_checksums else None)
    schema.add_functions(connection)
    return connection


def test_what_a_thread_would_not_be_found_by_is_told_with_the_entries(path: Path) -> None:
    connection = connected(path, knows_checksums=True)
    connection.execute("DELETE FROM facts")
    connection.close()
    store = SQLiteStore(path).blocking
    page = run_to_end(store.read_entries("long", "", after=0, limit=500))
    run_to_end(store.close())
    assert page.not_found_by == [entry.key for entry in page.entries]


@pytest.mark.parametrize("knows_checksums", [True, False], ids=["readable pages", "unreadable pages"])
@pytest.mark.parametrize("column", ["info", "root", "children", "step"])
def test_one_damaged_checkpoint_hides_no_other_from_a_check(path: Path, column: str, knows_checksums: bool) -> None:
    """What is wrong with an index is found next to what is wrong with a row of the same page."""
    connection = connected(path, knows_checksums=knows_checksums)
    seqs = [
        seq
        for (seq,) in connection.execute(
            """SELECT c.seq FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread
               WHERE t.name = 'long' ORDER BY c.seq"""
        )
    ]
    damaged = {"step": "step + 1"}.get(column, f"CAST({column} || x'00' AS BLOB)")
    connection.execute(f"UPDATE checkpoints SET {column} = {damaged} WHERE seq = ?", (seqs[7],))
    connection.execute("DELETE FROM facts")
    ids = [connection.execute("SELECT id FROM checkpoints WHERE seq = ?", (seq,)).get for seq in seqs]
    connection.close()
    with everstep.open(path).sync as engine:
        found = engine.verify("long").findings
    unfound = [finding.checkpoint_id for finding in found if finding.kind == "index"]
    whole = [*ids[:7], *ids[8:]]
    # Its metadata are whole where only its root is damaged, and then it is missing from the index as the others are.
    if column in ("root", "children"):
        whole = ids
    assert sorted(map(str, unfound)) == sorted(map(str, whole))
    if knows_checksums:
        assert [finding.checkpoint_id for finding in found if finding.kind == "checkpoint"] == [ids[7]]


# -- one record


def outcome(work: Any) -> Any:
    """Return what came out, or what a reader is told."""
    try:
        return work()
    except CheckpointCorrupted as exc:
        return exc.reason, exc.thread_id, exc.checkpoint_id


def both(record: Record, info: bytes, root: bytes) -> tuple[Any, Any]:
    """Return what a reader gets of a record, and what one who checks it does."""

    def read() -> Any:
        read = unpack_record(record.key, record.step, record.children, info, root)
        return read.kind, read.parents, list(read.tags), read.metadata

    def check() -> Any:
        checked = check_record(record.key, record.step, record.children, info, root)
        return checked.kind, checked.parents, list(checked.tags), checked.metadata

    return outcome(read), outcome(check)


RECORDS = [
    make_record("a"),
    make_record("b", tags=("one", "two"))._replace(parents=(Key("u", "sub", "x"), Key("t", "", "a-1"))),
    make_record("c", metadata={"when": (1, 2), "set": {3}, "deep": {"x": [None, 1.5]}})._replace(kind="langgraph"),
]


@pytest.mark.parametrize("record", RECORDS, ids=["plain", "parents", "adapter"])
def test_every_flipped_bit_of_a_record_is_found(record: Record) -> None:
    info, root = pack_record(record)
    read, checked = both(record, info, root)
    assert read == checked
    assert read[1] == record.parents
    for at in range(len(info) + len(root)):
        joined = bytearray(info + root)
        joined[at] ^= 1 << at % 8
        read, checked = both(record, bytes(joined[: len(info)]), bytes(joined[len(info) :]))
        assert read == checked
        assert "checksum" in read[0]


def sealed(record: Record, fields: Any) -> bytes:
    """Return what a record is listed by, with a right checksum and these fields in it."""
    name = "\0".join((str(record.step), str(len(record.key[0])), str(len(record.key[1])), *record.key)).encode()
    packed = PLAIN_CODEC.pack(fields, "metadata", 1)
    return digest(name, packed) + packed


WRONG: dict[str, tuple[int, Any]] = {
    "a time that is none": (0, [1]),
    "a time after all times": (0, 1 << 62),
    "a time before all times": (0, -(1 << 62)),
    "no parents": (1, None),
    "parents that are a text": (1, "abc"),
    "a parent of two names": (1, [["a", "b"]]),
    "a parent that is a number": (1, [7]),
    "tags that are a text": (2, "abc"),
    "sizes that are none": (7, None),
    "metadata that are a list": (8, []),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_writer_writes_is_refused_in_the_same_words(wrong: str) -> None:
    record = RECORDS[0]
    info, root = pack_record(record)
    fields = PLAIN_CODEC.unpack(info[DIGEST_BYTES:])
    assert sealed(record, fields) == info
    place, value = WRONG[wrong]
    fields[place] = value
    read, checked = both(record, sealed(record, fields), root)
    assert read == checked
    assert read[1:] == (record.key.thread_id, record.key.checkpoint_id)


@pytest.mark.parametrize("count", [0, 8, 10, 11])
def test_too_few_or_many_fields_are_refused_in_the_same_words(count: int) -> None:
    record = RECORDS[0]
    info, root = pack_record(record)
    fields = [*PLAIN_CODEC.unpack(info[DIGEST_BYTES:]), "more", "than", "that"][:count]
    read, checked = both(record, sealed(record, fields), root)
    assert read == checked
    assert read[1:] == (record.key.thread_id, record.key.checkpoint_id)


@pytest.mark.parametrize("change", ["body = 5", "children = 7", "body = ''", "children = 'x'"])
def test_an_object_that_is_no_bytes_is_found_and_set_aside(path: Path, change: str) -> None:
    """One flipped bit of a row's header makes a number or a text of what was bytes."""
    with closing(apsw.Connection(str(path), vfs=checksum_vfs())) as connection:
        schema.add_functions(connection)
        connection.execute(f"UPDATE objects SET {change} WHERE id = (SELECT max(id) FROM objects)")
    with everstep.open(path).sync as engine:
        (finding,) = engine.verify().findings
        assert (finding.kind, finding.thread_id) == ("object", "long")
        assert "something else than bytes" in finding.what
        engine.repair(keep=path.with_suffix(".jsonl"))
        assert engine.verify().ok
