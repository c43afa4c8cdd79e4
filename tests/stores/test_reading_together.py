"""What stores on servers tell of many threads at once is what they tell of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from everstep.errors import CheckpointCorrupted
from everstep.stores.abilities import ReadsTogether
from everstep.stores.protocol import Change, Key, Move, Store, Write
from everstep.testing import follow, make_record, put
from everstep.testing.builders import make_object
from everstep.values.tree import hashes
from tests.tools import servers

NAMES = ["one", "moved", "branch", "early", "absent", "ünï:{%}\n", "two"]


async def fill(store: Any) -> None:
    for name in ("one", "two", "ünï:{%}\n"):
        await store.commit(follow(name, "a"))
        await store.commit(follow(name, "b"))
        await store.commit(put(make_record("sub", name, namespace="ns")))
    await store.commit(put(make_record("a", "moved")))
    await store.commit(put(make_record("b", "moved", parents=["a"], step=2)))
    await store.commit(Change(thread_id="moved", moves=[Move("", "a")]))
    await store.commit(put(make_record("begun", "branch"), origin=Key("moved", "", "a")))
    await store.put_writes(Key("early", "", "c"), [Write("task", 0, "channel", b"", b"\0", 0)], ())


@pytest.fixture(params=["postgres", "redis", "cluster"])
def kind(request: pytest.FixtureRequest) -> str:
    """Those that are far away: the others are asked thread by thread."""
    return str(request.param)


@pytest.fixture
def together(store: Store) -> Any:
    assert isinstance(store, ReadsTogether)
    return store


async def test_threads_that_are_there_are_told_together(together: Any) -> None:
    await fill(together)
    expected = {name for name in NAMES if await together.thread(name, brief=True) is not None}
    assert "absent" not in expected
    assert await together.present(NAMES) == expected
    assert await together.present([]) == set()


async def test_heads_are_told_together(together: Any) -> None:
    await fill(together)
    lines = [(name, namespace) for name in NAMES for namespace in ("", "ns")]
    expected: dict[tuple[str, str], str] = {}
    for line in lines:
        loaded = await together.read(*line)
        if loaded is not None:
            expected[line] = loaded.stored.record.key.checkpoint_id
    assert expected["moved", ""] == "a"
    assert len(expected) == 8
    assert await together.heads(lines) == expected


async def test_objects_of_many_families_are_fetched_together(together: Any) -> None:
    await fill(together)
    wanted: dict[str, Sequence[bytes]] = {}
    expected: set[bytes] = set()
    for name in ("one", "two", "moved"):
        inner = make_object(name.encode())
        root = make_object(b"root", inner)
        await together.commit(put(make_record("with objects", name, "objects", roots=[root]), root, inner))
        stored = (await together.read(name, "objects")).stored
        wanted[stored.family] = [*hashes(stored.record.children), b"\1" * 16]
        expected |= {obj.hash for obj in await together.fetch(stored.family, wanted[stored.family])}
    assert {obj.hash for obj in await together.fetch_many(wanted)} == expected
    assert len(expected) == 6


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_lost_head_is_told(together: Any) -> None:
    """Else an import that lost a row would seem to have another head. Redis checks a line with each read."""
    await fill(together)
    with psycopg.connect(servers.postgres(), autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "UPDATE everstep_lines l SET head = (SELECT min(seq) FROM everstep_checkpoints c WHERE c.line = l.id) "
            "WHERE l.thread = (SELECT thread FROM everstep_names WHERE name = 'one') AND l.namespace = ''"
        )
    with pytest.raises(CheckpointCorrupted, match="'one'"):
        await together.heads([("one", "")])
