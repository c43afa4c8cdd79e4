"""Moving in: what LangGraph's own savers hold is here afterwards, all of it, and graphs go on as they would have."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import gc
import hashlib
import importlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Send
from pydantic import BaseModel

import everstep
from everstep.errors import (
    CheckpointCorrupted,
    InvalidInput,
    MissingDependency,
    StoreMismatch,
    StoreUnavailable,
    UnregisteredType,
)
from everstep.langgraph import (
    HarnessCheckpointer,
    ImportProgress,
    ImportReport,
    aimport_langgraph,
    import_batches,
    import_comparing,
    import_langgraph,
    importing,
    stock_postgres,
)
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.equality import SameItems
from everstep.langgraph.tasks import TaskManager
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Change, Key, Move, Part, Query
from everstep.stores.redis.store import RedisStore
from everstep.stores.staging import StagingStore
from tests.conftest import Place
from tests.langgraph.graphs import GRAPHS, Pickled, asking, chat, delta_chat, human, shapes
from tests.langgraph.same import assert_same, assert_same_channels
from tests.langgraph.tools import at, checkpoint, numbers, run_without
from tests.tools import servers

SOURCES = ("sqlite", "async sqlite", "postgres", "async postgres")


class Stock:
    """A database of one of LangGraph's own savers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.path = kind, folder / "stock.db"
        self.is_async, self.is_postgres = kind.startswith("async"), kind.endswith("postgres")
        if self.is_postgres:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")

    @property
    def url(self) -> str:
        return stock_database() if self.is_postgres else f"sqlite:///{self.path}"

    @contextlib.contextmanager
    def saver(self, serde: Any = None) -> Iterator[Any]:
        kind: Any = PostgresSaver if self.is_postgres else SqliteSaver
        with kind.from_conn_string(self.url if self.is_postgres else str(self.path)) as saver:
            if serde is not None:
                saver.serde = serde
            saver.setup()
            yield saver

    def run(self, build: Callable[[Any], Any], inputs: list[Any], thread: str, **configurable: Any) -> None:
        """Run a graph on this thread, turn by turn; "sync", so that what is saved does not depend on how fast."""
        config = {"configurable": {"thread_id": thread, **configurable}}
        if self.is_async:
            asyncio.run(self._run(build, inputs, config))
            return
        with self.saver() as saver:
            graph = build(saver)
            for given in inputs:
                graph.invoke(given, config, durability="sync")

    async def _run(self, build: Callable[[Any], Any], inputs: list[Any], config: Any) -> None:
        kind: Any = AsyncPostgresSaver if self.is_postgres else AsyncSqliteSaver
        async with kind.from_conn_string(self.url if self.is_postgres else str(self.path)) as saver:
            await saver.setup()
            graph = build(saver)
            for given in inputs:
                await graph.ainvoke(given, config, durability="sync")


@functools.cache
def stock_database() -> str:
    """Return the URL of a database with the tables of a PostgresSaver."""
    base, _, _ = servers.postgres().rpartition("/")
    name = f"stock_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(servers.postgres(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with PostgresSaver.from_conn_string(f"{base}/{name}") as saver:
        saver.setup()
    return f"{base}/{name}"


@pytest.fixture(params=SOURCES)
def any_stock(request: pytest.FixtureRequest, tmp_path: Path) -> Stock:
    return Stock(request.param, tmp_path)


@pytest.fixture(params=("sqlite", "postgres"))
def stock(request: pytest.FixtureRequest, tmp_path: Path) -> Stock:
    return Stock(request.param, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Stock:
    return Stock("sqlite", tmp_path)


@pytest.fixture
def saver() -> Iterator[HarnessCheckpointer]:
    with HarnessCheckpointer() as saver:
        yield saver


def moved(source: Stock, target: Any, **options: Any) -> ImportReport:
    return import_langgraph(source.url, target, quiet=True, **options)


def tuples(saver: Any, thread: str) -> list[Any]:
    """Return everything there is of a thread: the greatest id first, over all namespaces."""
    found = sorted(saver.list(at(thread, None)), key=lambda one: one.config["configurable"]["checkpoint_ns"])
    return sorted(found, key=lambda one: one.config["configurable"]["checkpoint_id"], reverse=True)


def assert_imported(source: Stock, target: HarnessCheckpointer, thread: str, serde: Any = None) -> None:
    with source.saver(serde) as saver:
        expected, found = tuples(saver, thread), tuples(target, thread)
        assert len(expected) > 0
        assert [one.config for one in found] == [one.config for one in expected]
        for one, wanted in zip(found, expected, strict=True):
            assert_same_channels(one.checkpoint["channel_values"], wanted.checkpoint["channel_values"])
            assert_same(one.pending_writes, wanted.pending_writes)
            assert one.parent_config == wanted.parent_config
            assert one.metadata == wanted.metadata
            assert {**one.checkpoint, "channel_values": 0} == {**wanted.checkpoint, "channel_values": 0}
        for namespace in {one.config["configurable"]["checkpoint_ns"] for one in expected}:
            head: Any = target.get_tuple(at(thread, namespace))
            assert head.config == saver.get_tuple(at(thread, namespace)).config


def history(build: Callable[[Any], Any], saver: Any, thread: str) -> list[Any]:
    return list(build(saver).get_state_history(at(thread, None)))


def as_lists(value: Any) -> Any:
    """Return the value with lists for tuples: stock savers make them so of what is new."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


# -- everything comes along --------------------------------------------------------------------------------------------


def test_every_graph_is_there_afterwards_and_goes_on_as_before(any_stock, tmp_path):
    for name, (build, inputs) in GRAPHS.items():
        any_stock.run(build, inputs[:-1], name)
    url = f"sqlite:///{tmp_path / 'ours.db'}"

    report = moved(any_stock, url)

    assert report.threads == len(GRAPHS)
    assert report.checkpoints == report.verified > 0
    with HarnessCheckpointer.from_url(url) as saver:
        for name, (build, _) in GRAPHS.items():
            assert_imported(any_stock, saver, name)
            with any_stock.saver() as other:
                assert history(build, saver, name) == history(build, other, name)
        for name, (build, inputs) in GRAPHS.items():
            any_stock.run(build, inputs[-1:], name)
            build(saver).invoke(inputs[-1], at(name, None), durability="sync")
            with any_stock.saver() as other:
                assert as_lists(shapes(history(build, saver, name))) == as_lists(shapes(history(build, other, name)))


def test_into_every_store(place: Place, file, monkeypatch):
    monkeypatch.setattr(import_batches, "_BATCH_MAX", 4)  # so that a thread takes several
    names = ("delta chat", "asking", "nested", "fan")
    for name in names:
        file.run(*GRAPHS[name], name)
    store = place.open()

    report = moved(file, store)

    saver = HarnessCheckpointer(backend=store)
    for name in names:
        assert_imported(file, saver, name)
    assert report.verified == report.checkpoints
    assert (report.target_bytes or 0) > 0 if place.kind in ("sqlite", "postgres") else report.target_bytes is None
    saver.close()


def test_forks_come_along(stock, saver):
    stock.run(chat, [human(n) for n in range(4)], "t")
    with stock.saver() as other:
        graph = chat(other)
        early = list(graph.get_state_history(at("t", None)))[6]
        graph.update_state(early.config, human(50), "answer")
        graph.invoke(None, graph.update_state(early.config, human(60), "answer"))

    moved(stock, saver)

    assert_imported(stock, saver, "t")
    assert saver.get_tuple(early.config).config == early.config
    order = [one.record.key.checkpoint_id for one in rows(saver)[0]]
    assert order == sorted(order)  # as they were made


def test_updates_and_branches_of_delta_channels_come_along(stock, saver):
    stock.run(delta_chat, [human(n) for n in range(7)], "t")
    with stock.saver() as other:
        graph = delta_chat(other)
        early = list(graph.get_state_history(at("t", None)))[8]
        graph.invoke(human(99), early.config)

    moved(stock, saver)

    assert_imported(stock, saver, "t")
    with stock.saver() as other:
        assert history(delta_chat, saver, "t") == history(delta_chat, other, "t")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    inner: Any = None


class Model(BaseModel):
    name: str
    tags: list[str] = []


ODD = {
    "deque": collections.deque([1, 2]), "set": {1, 2}, "frozen": frozenset("ab"), "bytes": b"\x00\xff", "none": None,
    "array": bytearray(b"abc"), "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "span": dt.timedelta(seconds=1.5),
    "decimal": decimal.Decimal("1.10"), "uuid": uuid.UUID(int=5), "enum": Colour.RED, "point": Point(1, Point(2)),
    "model": Model(name="m", tags=["a"]), "numbers": {1: "one", (2): 2.5}, "float": -0.0, "many": [1, 1.0, True, "1"],
    "numpy": numpy.arange(6, dtype="int16").reshape(2, 3), "send": Send("node", {"a": [1]}), "text": "x" * 5000,
    "messages": [HumanMessage("a", id="1"), AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c"}], id="2"),
                 ToolMessage("r", tool_call_id="c", artifact={"b": b"x"}, id="3", more=1)],
    "mixed": ["text", HumanMessage("b")], "nested": {"messages": [AIMessage("c")], "deep": [[[{}]]]},
}  # fmt: skip


def put_chain(saver: Any, values: list[dict[str, Any]], thread: str = "t", ns: str = "", **metadata: Any) -> list[Any]:
    """Put checkpoints that follow one another; return their configs."""
    configs, config = [], at(thread, ns)
    for name, one in zip(numbers(range(len(values))), values, strict=True):
        config = saver.put(
            config, checkpoint(name, one), {"source": "loop", "step": 1, **metadata}, dict.fromkeys(one, 1)
        )
        configs.append(config)
    return configs


def test_odd_values_are_those_that_the_stock_saver_reads(stock, saver):
    with stock.saver() as other:
        last = put_chain(other, [ODD])[-1]
        other.put_writes(last, [("a", ODD), ("b", None), ("__interrupt__", [1]), ("c", 2)], "task", "~path")
        other.put_writes(last, [("late", 1)], "another", "~earlier")

    report = moved(stock, saver)

    assert_imported(stock, saver, "t")
    assert report.writes == 5


def test_names_of_namespaces_and_threads_may_be_anything(stock, saver):
    names = ["thread one", "ünïcode/😀", "a:b|c", "'; --"]
    with stock.saver() as other:
        for thread, ns in itertools.product(names, ["", *names]):
            put_chain(other, [{"n": 1}, {"n": 2}], thread, ns)

    moved(stock, saver)

    for thread in names:
        assert_imported(stock, saver, thread)


def test_writes_without_a_checkpoint_wait_for_it(stock, saver):
    with stock.saver() as other:
        put_chain(other, [{"n": 1}])
        other.put_writes(at("t", "", "later"), [("n", 2)], "task")
        other.put_writes(at("only writes", "", "c"), [("n", 3)], "task")

    assert moved(stock, saver).writes == 2
    again = moved(stock, saver)
    assert (again.threads, again.writes) == (2, 0)

    saver.put(at("t", "", "00000000"), checkpoint("later", {"n": 9}))
    assert saver.get_tuple(at("t", "", "later")).pending_writes == [("task", "n", 2)]


def test_a_parent_that_is_not_there_or_goes_in_circles(stock, saver):
    with stock.saver() as other:
        other.put(at("t", "", "gone"), checkpoint("b", {"n": 1}), {}, {"n": 1})
        other.put(at("t", "", "d"), checkpoint("c", {"n": 2}), {}, {"n": 1})
        other.put(at("t", "", "c"), checkpoint("d", {"n": 3}), {}, {"n": 1})

    moved(stock, saver)

    assert_imported(stock, saver, "t")


def test_the_head_is_the_greatest_id_also_where_a_clock_went_back(stock, saver):
    with stock.saver() as other:
        for name, parent in (("5", None), ("9", "5"), ("7", "9"), ("8", "7")):
            other.put(at("t", "", parent), checkpoint(name, {"n": name}), {}, {"n": 1})

    moved(stock, saver)

    assert saver.get_tuple(at("t")).config["configurable"]["checkpoint_id"] == "9"
    assert_imported(stock, saver, "t")
    assert [one.record.key.checkpoint_id for one in rows(saver)[0]] == ["5", "9", "7", "8"]  # none before its parent


def test_a_thread_can_be_chosen(stock, saver):
    with stock.saver() as other:
        for thread in ("a", "b", "c"):
            put_chain(other, [{"n": 1}], thread)

    assert moved(stock, saver, thread_ids=["c", "a"]).threads == 2

    assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {"a", "c"}


def test_the_thread_that_was_active_last_is_so_afterwards(file, tmp_path):
    for name in ("z", "a", "m"):
        file.run(chat, [human(1)], name)
    engine = everstep.open(f"sqlite:///{tmp_path / 'ours.db'}").sync

    moved(file, engine)

    assert [one.thread_id for one in engine.checkpointer.list_threads()] == ["m", "a", "z"]
    engine.close()


# -- serializers, secrets, old tables ----------------------------------------------------------------------------------


class Turned:
    """A cipher, of sorts."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "turned", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "turned"
        return ciphertext[::-1]


@pytest.mark.parametrize("serde", [EncryptedSerializer(Turned()), Pickled()], ids=["encrypted", "of one's own"])
def test_a_serializer_of_the_source(stock, saver, serde):
    with stock.saver(serde) as other:
        last = put_chain(other, [{"messages": [HumanMessage("a")]}, {"messages": [HumanMessage("a"), AIMessage("b")]}])[
            -1
        ]
        other.put_writes(last, [("messages", AIMessage("c"))], "task")

    moved(stock, saver, serde=serde)

    assert_imported(stock, saver, "t", serde)
    with pytest.raises(CheckpointCorrupted, match="serde=") as caught:
        moved(stock, HarnessCheckpointer())
    assert caught.value.thread_id == "t"


def test_a_target_may_have_a_serializer_of_its_own(file):
    file.run(chat, [human(1)], "t")
    with HarnessCheckpointer(serde=EncryptedSerializer(Turned())) as saver:
        moved(file, saver)
        assert_imported(file, saver, "t")


def test_secrets_stay_behind(stock, saver):
    stock.run(chat, [human(1)], "t", openai_api_key="sk-1234", user_id="u1")

    report = moved(stock, saver)

    found = list(saver.list(at("t", None)))
    assert report.secrets == report.checkpoints == len(found) > 0
    assert all("sk-1234" not in str(one.metadata) and one.metadata["user_id"] == "u1" for one in found)
    with stock.saver() as other:
        assert all(one.metadata["openai_api_key"] == "sk-1234" for one in other.list(at("t", None)))
    again = moved(stock, saver)
    assert (again.checkpoints, again.secrets, again.skipped) == (0, 0, len(found))


def test_what_is_a_secret_is_for_the_target_to_say(file):
    file.run(chat, [human(1)], "t", openai_api_key="sk-1234", user_id="u1")
    with HarnessCheckpointer(is_secret=lambda name: name == "user_id") as saver:
        moved(file, saver)
        head: Any = saver.get_tuple(at("t"))
        metadata = head.metadata
    assert metadata["openai_api_key"] == "sk-1234"
    assert "user_id" not in metadata


def test_a_class_that_is_gone_is_not_lost_in_silence(stock, saver, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_old.py").write_text("import dataclasses\n@dataclasses.dataclass\nclass Plan:\n    city: str\n")
    plan = importlib.import_module("of_old").Plan("Oslo")
    with stock.saver() as other:
        put_chain(other, [{"point": Point(1, plan)}])
    monkeypatch.delitem(sys.modules, "of_old")
    (tmp_path / "of_old.py").unlink()
    importlib.invalidate_caches()

    with pytest.raises(UnregisteredType, match=r"of_old\.Plan"):
        moved(stock, saver)

    assert list(saver.list(None)) == []
    moved(stock, saver, serde=JsonPlusSerializer())
    assert saver.get_tuple(at("t")).checkpoint["channel_values"]["point"] == Point(1, {"city": "Oslo"})


def test_a_file_from_before_task_paths(tmp_path, saver, file):
    with file.saver() as other:
        last = put_chain(other, [{"n": 1}, {"n": 2}])[-1]
        other.put_writes(last, [("a", 1), ("b", 2)], "task", "~path")
    with contextlib.closing(sqlite3.connect(file.path)) as connection:
        connection.execute("ALTER TABLE writes DROP COLUMN task_path")
        connection.commit()

    report = moved(file, saver)

    assert (report.writes, report.verified) == (2, 2)
    assert saver.get_tuple(at("t")).pending_writes == [("task", "a", 1), ("task", "b", 2)]
    with contextlib.closing(sqlite3.connect(file.path)) as connection:
        assert "task_path" not in [row[1] for row in connection.execute("PRAGMA table_info(writes)")]


def test_tables_from_before_task_paths(tmp_path, saver):
    source = Stock("postgres", tmp_path)
    with source.saver() as other:
        last = put_chain(other, [{"n": 1}])[-1]
        other.put_writes(last, [("a", 1)], "task")
    with psycopg.connect(source.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        try:
            with pytest.raises(StoreMismatch, match="verify=False"):
                moved(source, saver)
            moved(source, saver, verify=False)
        finally:
            connection.execute("ALTER TABLE checkpoint_writes ADD COLUMN task_path TEXT NOT NULL DEFAULT ''")
    assert_imported(source, saver, "t")


def test_old_checkpoints_with_pending_sends(stock, saver):
    """SQLite keeps them in the checkpoint; PostgreSQL makes a channel of the parent's writes."""
    with stock.saver() as other:
        old = {
            **checkpoint("a", {"n": 1}),
            "v": 3,
            "pending_sends": [Send("node", 1)] if stock.kind == "sqlite" else [],
        }
        first = other.put(at("t"), old, {}, {"n": 1})
        other.put_writes(first, [("__pregel_tasks", Send("node", {"m": 1})), ("__pregel_tasks", Send("b", 2))], "task")
        other.put(first, {**checkpoint("b", {"n": 2}), "v": 3}, {}, {"n": 1})

    moved(stock, saver)

    assert_imported(stock, saver, "t")
    if stock.is_postgres:
        sends = saver.get_tuple(at("t", "", "b")).checkpoint["channel_values"]["__pregel_tasks"]
        assert sends == [Send("node", {"m": 1}), Send("b", 2)]


# -- again and again ---------------------------------------------------------------------------------------------------


def rows(saver: HarnessCheckpointer) -> list[Any]:
    """Return all that the store has, numbers included."""
    store = saver.backend.store.blocking
    query = Query(namespace=None, hidden="also", order="oldest")
    stored = run_to_end(store.list_checkpoints(query))
    raws = [run_to_end(store.raw(name)) for name in sorted({one.record.key.thread_id for one in stored})]
    return [stored, raws]


def test_a_second_import_changes_nothing(stock, saver):
    for name in ("delta chat", "asking", "nested"):
        stock.run(*GRAPHS[name], name)
    first = moved(stock, saver)
    before = rows(saver)

    second = moved(stock, saver)

    assert rows(saver) == before
    assert (second.checkpoints, second.writes, second.bytes_read) == (0, 0, 0)
    assert (second.threads, second.skipped, second.verified) == (3, first.checkpoints, first.checkpoints)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_source_has_got_since_is_added(stock, saver, name):
    build, inputs = GRAPHS[name]
    for given in inputs:
        stock.run(build, [given], name)
        moved(stock, saver)
        assert_imported(stock, saver, name)


def test_an_interrupt_that_was_replaced_since(stock, saver):
    stock.run(asking, [{"items": [0]}], "t")
    moved(stock, saver)
    before = saver.get_tuple(at("t")).pending_writes
    stock.run(asking, [Command(resume="one")], "t")

    report = moved(stock, saver)

    assert report.checkpoints == 0
    assert report.writes == 3  # the answer, as input and at its task, and the next question
    assert saver.get_tuple(at("t")).pending_writes != before
    assert_imported(stock, saver, "t")


def test_a_special_write_that_alone_was_replaced_since(stock, saver):
    with stock.saver() as other:
        last = put_chain(other, [{"n": 1}])[-1]
        other.put_writes(last, [("__interrupt__", "first"), ("__resume__", 1)], "task")
        moved(stock, saver)
        other.put_writes(last, [("__interrupt__", "second")], "task")

    assert moved(stock, saver).writes == 1

    assert saver.get_tuple(last).pending_writes == [("task", "__resume__", 1), ("task", "__interrupt__", "second")]


KILLED = """
import sys
from everstep.langgraph import import_batches, import_langgraph
from everstep.stores.staging import StagingStore

source, target, where, after, import_batches._BATCH_MAX = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])

def stand_still():
    print("now", flush=True)
    sys.stdin.read()

def told(now):
    if now.checkpoints_done >= after:
        stand_still()

made = 0
commit = StagingStore.commit
async def committing(*arguments, **options):
    global made
    made += 1
    if made == after:
        stand_still()
    return await commit(*arguments, **options)

if where == "within":
    StagingStore.commit = committing
import_langgraph(source, target, quiet=True, progress=told if where == "after" else None)
"""


@pytest.mark.parametrize("after", [1, 7, 16])
@pytest.mark.parametrize(("where", "batch"), [("after", 1), ("after", 5), ("within", 5)])
def test_whoever_is_killed_goes_on_later(file, tmp_path, where, after, batch):
    """After a batch of checkpoints, or while one is made."""
    for name in ("delta chat", "nested"):
        file.run(*GRAPHS[name], name)
    url = f"sqlite:///{tmp_path / 'ours.db'}"
    command = [sys.executable, "-c", KILLED, file.url, url, where, str(after), str(batch)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL

    with HarnessCheckpointer.from_url(url) as saver:
        report = moved(file, saver)
        assert report.skipped >= (after if where == "after" else after - batch)
        assert report.checkpoints > 0
        for name in ("delta chat", "nested"):
            assert_imported(file, saver, name)
    whole = tmp_path / "whole.db"
    moved(file, f"sqlite:///{whole}")
    assert os.path.getsize(tmp_path / "ours.db") <= 1.1 * os.path.getsize(whole)


def test_a_source_that_is_written_to_is_seen_as_of_one_moment(stock, saver, monkeypatch):
    monkeypatch.setattr(import_comparing, "_TOLD_EACH", 1)
    stock.run(delta_chat, [human(n) for n in range(3)], "t")
    with stock.saver() as other:
        before = len(tuples(other, "t"))
        told = itertools.count()

        def told_once(_: ImportProgress) -> None:
            if next(told) == 4:
                delta_chat(other).invoke(human(9), at("t", None))

        report = moved(stock, saver, progress=told_once)

        assert report.checkpoints == report.verified == before < len(tuples(other, "t"))
    assert moved(stock, saver).checkpoints > 0
    assert_imported(stock, saver, "t")


@pytest.mark.parametrize("name", ["delta chat", "nested", "forks"])
def test_how_large_a_batch_is_makes_no_difference(file, monkeypatch, name):
    if name == "forks":
        put_forks(file)
    else:
        file.run(*GRAPHS[name], name)
    found = []
    for size in (1, 3, 500):
        monkeypatch.setattr(import_batches, "_BATCH_MAX", size)
        with HarnessCheckpointer() as saver:
            moved(file, saver)
            assert_imported(file, saver, name)
            stored, raws = rows(saver)
            places = {one.seq: one.record.key for one in stored}
            shape = [(one.record, places[one.segment]) for one in stored]
            heads = [{ns: line[:3] for ns, line in raw.lines.items()} for raw in raws]
            segments = [{places[segment] for line in raw.lines.values() for segment in line.segments} for raw in raws]
            thread: Any = run_to_end(saver.backend.store.blocking.thread(name))
            follows = {places[segment]: [place.key for place in before] for segment, before in thread.segments.items()}
            writes = [(key, write._replace(seq=0)) for raw in raws for key, write in raw.writes]
            found.append((shape, heads, segments, follows, writes))
    assert found[0] == found[1] == found[2]


def put_forks(source: Stock) -> None:
    """Put checkpoints that follow not the newest one, and not the newest of their own line."""
    with source.saver() as other:
        for name, parent in (("1", None), ("2", "1"), ("3", "1"), ("4", "3"), ("5", "2"), ("6", "5"), ("7", "4")):
            last = other.put(at("forks", "", parent), checkpoint(name, {"n": [name], "m": 1}), {}, {"n": 1, "m": 1})
            other.put_writes(last, [("n", name)], "task")


def test_how_many_queries_and_commits_a_thread_takes_does_not_depend_on_its_length(tmp_path, monkeypatch):
    source = Stock("postgres", tmp_path)
    source.run(chat, [human(n) for n in range(3)], "short")
    source.run(chat, [human(n) for n in range(30)], "long")
    queries = counted(monkeypatch, psycopg.Cursor, "execute")
    commits = [counted(monkeypatch, MemoryStore, name) for name in COMMITS]
    found = {}
    for thread in ("short", "long"):
        before = len(queries), sum(map(len, commits))
        with HarnessCheckpointer() as saver:
            report = moved(source, saver, thread_ids=[thread])
        found[thread] = len(queries) - before[0], sum(map(len, commits)) - before[1]
    assert report.checkpoints == report.verified > 100
    assert found["long"] == found["short"]
    assert found["long"][0] <= 20
    assert found["long"][1] == 1


def test_many_small_threads_are_read_by_few_queries_and_written_in_one_commit(tmp_path, saver, monkeypatch):
    source = Stock("postgres", tmp_path)
    with source.saver() as other:
        for n in range(40):
            put_chain(other, [{"n": n}, {"n": [n]}], f"t{n}")
    queries = counted(monkeypatch, psycopg.Cursor, "execute")
    commits = [counted(monkeypatch, MemoryStore, name) for name in COMMITS]

    report = moved(source, saver)

    assert (report.threads, report.checkpoints, report.verified) == (40, 80, 80)
    assert len(queries) <= 20 + 40  # the stock saver lists each thread by itself
    assert sum(map(len, commits)) == 1


@pytest.fixture(params=["postgres", "redis"])
def on_server(request: pytest.FixtureRequest) -> Iterator[HarnessCheckpointer]:
    store: Any = RedisStore(servers.redis(), key_prefix=servers.redis_prefix())
    if request.param == "postgres":
        servers.clear_postgres()
        store = PostgresStore(servers.postgres())
    with contextlib.closing(HarnessCheckpointer(backend=store)) as saver:
        yield saver


def test_a_server_is_asked_about_many_new_threads_at_once(file, on_server, monkeypatch):
    kind = type(on_server.backend.store)
    with file.saver() as other:
        for n in range(30):
            put_chain(other, [{"n": n, "text": str(n) * 900}, {"n": [n]}], f"t{n}")
    alone = [counted(monkeypatch, kind, name) for name in ("thread", "read", "fetch", "raw", "list_checkpoints")]
    together = [counted(monkeypatch, kind, name) for name in ("present", "heads", "fetch_many", "read_many")]

    report = moved(file, on_server)

    assert (report.threads, report.checkpoints, report.verified) == (30, 60, 60)
    assert sum(map(len, alone)) == 0
    assert list(map(len, together)) == [1, 1, 1, 1]
    assert moved(file, on_server).skipped == 60


def test_a_head_that_differs_is_found_among_many_threads(file, on_server, monkeypatch):
    kind = type(on_server.backend.store)
    with file.saver() as other:
        for n in range(3):
            put_chain(other, [{"n": n}, {"n": [n]}], f"t{n}")
    heads = kind.heads

    async def wrongly(self: Any, lines: Any) -> Any:
        return {**await heads(self, lines), ("t1", ""): "another"}

    monkeypatch.setattr(kind, "heads", wrongly)
    with pytest.raises(CheckpointCorrupted, match="the head is 'another'") as caught:
        moved(file, on_server)
    assert caught.value.thread_id == "t1"


def test_the_collector_pauses_while_small_threads_are_brought_and_not_between(file, saver, monkeypatch):
    monkeypatch.setattr(importing, "_GROUP_THREADS", 2)
    with file.saver() as other:
        for n in range(4):
            put_chain(other, [{"n": n}, {"n": [n]}], f"t{n}")
    seen: list[tuple[str, bool]] = []

    def looking(name: str) -> Callable[..., Any]:
        method = getattr(MemoryStore, name)

        def look(self: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(self, StagingStore):
                seen.append((name, gc.isenabled()))
            return method(self, *arguments, **options)

        return look

    for name in ("thread", "adopt_new", "read_many"):
        monkeypatch.setattr(MemoryStore, name, looking(name))
    moved(file, saver)

    group = [("thread", True), ("thread", True), ("adopt_new", False), ("read_many", False)]
    assert seen == group * 2
    assert gc.isenabled()


COMMITS = ("adopt", "adopt_new", "commit", "put_writes")


def counted(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> list[Any]:
    """Return a list that gets an entry with each call of a method. What is gathered in memory is no commit."""
    calls: list[Any] = []
    method = getattr(kind, name)

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(self, StagingStore):
            calls.append(arguments)
        return method(self, *arguments, **options)

    monkeypatch.setattr(kind, name, counting)
    return calls


def test_threads_that_are_brought_together_are_one_call_in_the_statistics(file, saver, monkeypatch):
    monkeypatch.setattr(importing, "_GROUP_THREADS", 2)
    for thread in ("a", "b", "c"):
        file.run(chat, [human(1), human(2)], thread)

    moved(file, saver)

    calls = saver.engine.stats().calls
    assert calls.keys() == {"import_langgraph"}
    assert calls["import_langgraph"].calls == 2
    assert calls["import_langgraph"].bytes_added > 0


def test_what_is_in_memory_does_not_grow_with_the_source(tmp_path, saver, monkeypatch):
    """Neither what is read at once nor what is put at once."""
    source = Stock("postgres", tmp_path)
    with source.saver() as other:
        config = at("t")
        for name in numbers(range(30)):
            values = {"n": os.urandom(2000), "m": name}
            config = other.put(config, checkpoint(name, values, {"n": name, "m": name}), {}, {"n": name, "m": name})
    for module, name in (
        (import_batches, "_BATCH_BYTES"),
        (stock_postgres, "_GROUP_BYTES"),
        (import_comparing, "_COMPARED_BYTES"),
    ):
        monkeypatch.setattr(module, name, 10_000)
    sent = counted(monkeypatch, MemoryStore, "adopt")
    sent_new = counted(monkeypatch, MemoryStore, "adopt_new")
    read = counted(monkeypatch, Threads, "read_some")

    assert moved(source, saver).verified == 30

    parts = [part for (parts,) in sent_new for part in parts] + [part for (part,) in sent]
    sizes = [sum(len(obj.body) for obj in part.objects) for part in parts]
    assert len(sizes) > 6
    assert max(sizes) < 15_000
    assert max(len(keys) for (keys,) in read) <= 5


def test_one_that_cannot_be_read_is_named_among_many(stock, saver):
    with stock.saver() as other:
        configs = put_chain(other, [{"n": [n]} for n in range(9)])
        other.serde = Pickled()
        changed = {**checkpoint("00000005", {"n": [5]}), "channel_versions": {"n": "bad"}}
        other.put(configs[4], changed, {"source": "loop", "step": 1}, {"n": "bad"})

    with pytest.raises(CheckpointCorrupted, match="serde=") as caught:
        moved(stock, saver)

    assert caught.value.checkpoint_id == "00000005"
    assert list(saver.list(None)) == []


def test_one_that_the_stock_saver_cannot_read_is_named_among_many(stock, saver):
    with stock.saver() as other:
        configs = put_chain(other, [{"n": [n]} for n in range(9)])
        moved(stock, saver)
        other.serde = Pickled()
        changed = {**checkpoint("00000005", {"n": [5]}), "channel_versions": {"n": "bad"}}
        other.put(configs[4], changed, {"source": "loop", "step": 1}, {"n": "bad"})

    with pytest.raises(CheckpointCorrupted, match="stock saver cannot read") as caught:
        moved(stock, saver)

    assert caught.value.checkpoint_id == "00000005"


def test_one_that_cannot_be_put_is_named_among_many(file, saver):
    with file.saver() as other:
        configs = put_chain(other, [{"n": n} for n in range(4)])
        odd = {**checkpoint("bad", {"n": 1}), "channel_values": {"n": 1, 5: "no name of a channel"}}
        other.put(configs[-1], odd, {}, {"n": 1})

    with pytest.raises(InvalidInput) as caught:
        moved(file, saver)

    assert caught.value.__notes__ == ["thread 't', checkpoint 'bad'"]


def test_somebody_else_who_writes_to_the_thread_meanwhile_loses_nothing(stock, saver, monkeypatch):
    monkeypatch.setattr(import_batches, "_BATCH_MAX", 2)
    with stock.saver() as other:
        put_chain(other, [{"n": n} for n in range(6)])
    config = at("t", "", "00000001")

    def told(now: ImportProgress) -> None:
        if now.checkpoints_done == 2:
            saver.put(config, checkpoint("99999999", {"n": "mine"}), {}, {"n": 1})
            saver.put_writes(at("t", "", "99999999"), [("n", 5)], "task")

    with pytest.raises(InvalidInput, match="gone on in the target"):
        moved(stock, saver, progress=told)

    head: Any = saver.get_tuple(at("t"))
    assert head.checkpoint["channel_values"] == {"n": "mine"}
    assert head.pending_writes == [("task", "n", 5)]


def test_somebody_else_who_makes_the_thread_at_the_last_moment_loses_nothing(stock, saver, monkeypatch):
    with stock.saver() as other:
        put_chain(other, [{"n": n} for n in range(6)])
    adopt_new = MemoryStore.adopt_new

    async def adopt_late(self: MemoryStore, parts: list[Part]) -> None:
        saver.put(at("t"), checkpoint("99999999", {"n": "mine"}), {}, {"n": 1})
        await adopt_new(self, parts)

    monkeypatch.setattr(MemoryStore, "adopt_new", adopt_late)
    with pytest.raises(InvalidInput, match="changed in the target by somebody else"):
        moved(stock, saver)

    assert [one.checkpoint["channel_values"] for one in saver.list(at("t"))] == [{"n": "mine"}]


def test_somebody_else_who_is_first_at_the_last_moment_loses_nothing(stock, saver, monkeypatch):
    with stock.saver() as other:
        put_chain(other, [{"n": n} for n in range(3)])
        moved(stock, saver)
        put_chain(other, [{"n": n} for n in range(6)])
    send = StagingStore.send

    async def send_late(self: StagingStore) -> None:
        saver.put(at("t"), checkpoint("99999999", {"n": "mine"}), {}, {"n": 1})
        await send(self)

    monkeypatch.setattr(StagingStore, "send", send_late)
    with pytest.raises(InvalidInput, match="changed in the target by somebody else"):
        moved(stock, saver)

    values = [one.checkpoint["channel_values"]["n"] for one in saver.list(at("t"))]
    assert values == ["mine", 2, 1, 0]


def test_a_message_that_differs_is_found_among_those_that_were_compared_before(saver):
    same = SameItems(saver._channels.kinds.codec)
    ours: list[Any] = [HumanMessage(str(n), id=str(n)) for n in range(4)]
    theirs = [HumanMessage(str(n), id=str(n)) for n in range(4)]
    assert same.lists(ours[:3], theirs[:3])

    assert same.lists(ours, theirs)
    assert not same.lists([*ours[:3], HumanMessage("3", id="other")], theirs)
    assert not same.lists([ours[1], ours[0], *ours[2:]], theirs)
    assert not same.lists(ours[:3], theirs)
    assert not same.lists([*ours[:3], AIMessage("3", id="3")], theirs)


# -- from memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_an_in_memory_saver_is_a_source_too(saver, name):
    build, inputs = GRAPHS[name]
    memory: Any = InMemorySaver()
    for given in inputs:
        build(memory).invoke(given, at(name, None), durability="sync")
        report = import_langgraph(memory, saver, quiet=True)
        assert report.verified == report.checkpoints + report.skipped > 0
    assert history(build, saver, name) == history(build, memory, name)
    assert (report.bytes_read > 0) is (report.checkpoints > 0)
    assert report.source_bytes > 0
    assert import_langgraph(memory, saver, quiet=True).checkpoints == 0


def test_writes_without_a_checkpoint_in_memory_come_along(saver):
    memory: Any = InMemorySaver()
    put_chain(memory, [{"n": 1}])
    memory.put_writes(at("t", "", "later"), [("n", 2)], "task")
    memory.put_writes(at("only writes", "", "c"), [("n", 3)], "task")

    assert import_langgraph(memory, saver, quiet=True).writes == 2

    saver.put(at("t", "", "00000000"), checkpoint("later", {"n": 9}))
    assert saver.get_tuple(at("t", "", "later")).pending_writes == [("task", "n", 2)]


def test_a_saver_in_memory_that_is_written_to_is_seen_as_of_one_moment(saver, monkeypatch):
    monkeypatch.setattr(import_batches, "_BATCH_MAX", 2)
    memory: Any = InMemorySaver()
    delta_chat(memory).invoke(human(1), at("t", None))
    before = len(list(memory.list(at("t", None))))
    told = itertools.count()

    def told_once(_: ImportProgress) -> None:
        if next(told) == 0:
            delta_chat(memory).invoke(human(9), at("t", None))

    report = import_langgraph(memory, saver, quiet=True, progress=told_once)

    assert report.checkpoints == report.verified == before < len(list(memory.list(at("t", None))))
    assert import_langgraph(memory, saver, quiet=True).checkpoints > 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_changed_value_in_the_target_is_found(stock, saver):
    with stock.saver() as other:
        configs = put_chain(other, [{"n": 1, "m": [{"deep": 1}]}, {"n": 1, "m": [{"deep": 1}]}], ns="inner")
    moved(stock, saver)
    found = saver.get_tuple(configs[0])
    for changed in (
        {"n": True, "m": [{"deep": 1}]},
        {"n": 1, "m": [{"deep": 1.0}]},
        {"n": 1},
        {"n": 1, "m": [], "x": 1},
    ):
        saver.put(at("t", "inner"), {**found.checkpoint, "channel_values": changed}, found.metadata)

        with pytest.raises(CheckpointCorrupted) as caught:
            moved(stock, saver)

        assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", "00000000")
        assert caught.value.path is not None
        assert caught.value.path.startswith("n" if changed["n"] is True else "m")
    saver.put(at("t", "inner"), found.checkpoint, found.metadata)
    assert moved(stock, saver).verified == 2


def test_a_changed_value_is_found_before_anything_is_written(stock, saver):
    with stock.saver() as other:
        configs = put_chain(other, [{"n": 1}, {"n": 2}])
        moved(stock, saver)
        found = saver.get_tuple(configs[0])
        saver.put(at("t"), {**found.checkpoint, "channel_values": {"n": 5}}, found.metadata)
        before = rows(saver)
        other.put_writes(configs[1], [("n", 4)], "task")
        with pytest.raises(CheckpointCorrupted, match="'n'"):
            moved(stock, saver)
        assert rows(saver) == before
        other.put(configs[1], checkpoint("new", {"n": 3}), {}, {"n": 1})

    with pytest.raises(CheckpointCorrupted, match="'n'"):
        moved(stock, saver)

    assert rows(saver) == before


@pytest.mark.parametrize("fault", ["write", "history", "seed", "early seed", "head", "field", "parent", "missing"])
def test_other_differences_are_found(stock, saver, monkeypatch, fault):
    stock.run(delta_chat, [human(n) for n in range(4)], "t")
    moved(stock, saver)
    if fault == "head":
        older = list(saver.list(at("t", "")))[1].config["configurable"]["checkpoint_id"]
        run_to_end(saver.backend.store.blocking.commit(Change("t", moves=[Move("", older)])))
    else:
        plant(monkeypatch, fault)

    with pytest.raises(CheckpointCorrupted) as caught:
        moved(stock, saver)

    assert caught.value.thread_id == "t"
    expected = {
        "write": "pending writes",
        "history": "history of ",
        "seed": "history of ",
        "early seed": "history of ",
        "field": "versions_seen",
    }.get(fault)
    assert caught.value.path is None if expected is None else expected in str(caught.value.path)


def plant(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let the target show something else than it should, in its third checkpoint."""
    read_some, history_of = Threads.read_some, Threads.history

    async def wrongly_read(self: Threads, keys: Any) -> Any:
        found = await read_some(self, keys)
        saved = found[2]
        if fault == "write":
            found[2] = saved._replace(writes=saved.writes[:-1])
        elif fault == "field":
            found[2] = saved._replace(checkpoint={**saved.checkpoint, "versions_seen": {}})
        elif fault == "missing":
            del found[2]
        elif fault == "parent":
            record = saved.stored.record._replace(parents=())
            found[2] = saved._replace(stored=saved.stored._replace(record=record))
        return found

    async def wrong_history(self: Threads, *place: Any, **options: Any) -> Any:
        found = await history_of(self, *place, **options)
        if fault == "history":
            return {name: {**one, "writes": one["writes"][1:]} for name, one in found.items()}
        if fault == "seed" or (options.get("opened", True) and len(found) == 1):  # one is asked for within a line
            return {name: {**one, "seed": 5} for name, one in found.items()}
        return found

    monkeypatch.setattr(Threads, "read_some", wrongly_read)
    if fault in ("history", "seed", "early seed"):
        monkeypatch.setattr(Threads, "history", wrong_history)


def test_without_verify_values_are_not_looked_at(file, saver):
    with file.saver() as other:
        configs = put_chain(other, [{"n": 1}])
    moved(file, saver)
    found = saver.get_tuple(configs[0])
    saver.put(at("t"), {**found.checkpoint, "channel_values": {"n": 5}}, found.metadata)

    report = moved(file, saver, verify=False)

    assert (report.skipped, report.verified) == (1, 0)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("different", ["metadata", "parent"])
def test_an_id_that_stands_for_something_else_is_refused(stock, saver, different, verify):
    with stock.saver() as other:
        put_chain(other, [{"n": 1}, {"n": 2}, {"n": 3}])
    metadata = {"source": "input", "step": 5} if different == "metadata" else {"source": "loop", "step": 1}
    parent = "00000000" if different == "metadata" else None
    saver.put(at("t", "", parent), checkpoint("00000001", {"n": 2}), metadata)
    before = rows(saver)

    with pytest.raises(InvalidInput, match=r"'00000001' of thread 't'.*delete_thread"):
        moved(stock, saver, verify=verify)

    assert rows(saver) == before


def test_a_thread_of_the_engine_is_refused(stock, saver):
    with stock.saver() as other:
        put_chain(other, [{"n": 1}])
    engine = everstep.CheckpointEngine(saver.backend).sync
    engine.snapshot("t", [], {"mine": 1}, {})
    before = rows(saver)

    with pytest.raises(InvalidInput, match="not written by a LangGraph saver"):
        moved(stock, saver)

    assert rows(saver) == before


def test_a_thread_that_has_gone_on_in_the_target(stock, saver):
    stock.run(chat, [human(1)], "t")
    moved(stock, saver)
    chat(saver).invoke(human(2), at("t", None))
    before = rows(saver)

    assert moved(stock, saver).checkpoints == 0
    assert rows(saver) == before

    stock.run(chat, [human(3)], "t")
    with pytest.raises(InvalidInput, match="gone on in the target"):
        moved(stock, saver)
    assert rows(saver) == before


@pytest.mark.parametrize("later", ["hide", "keep"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_thread_that_was_taken_back_in_the_target_stays_so(stock, saver, later, depth):
    stock.run(chat, [human(1), human(2)], "t")
    moved(stock, saver)
    target = list(saver.list(at("t")))[depth]
    saver.engine.sync.rewind(target.checkpoint["id"], thread_id="t", namespace="", later=later)
    before, head = rows(saver), saver.get_tuple(at("t"))

    assert moved(stock, saver).writes == 0

    assert rows(saver) == before
    assert saver.get_tuple(at("t")) == head
    stock.run(chat, [human(3)], "t")
    if depth:
        with pytest.raises(InvalidInput, match="gone on in the target"):
            moved(stock, saver)
        assert rows(saver) == before
        saver.engine.sync.undo("t")
    moved(stock, saver)
    assert_imported(stock, saver, "t")


def test_a_thread_that_was_taken_back_and_hides_nothing_stays_so(stock, saver):
    with stock.saver() as other:
        last = put_chain(other, [{"n": 1}, {"n": 2}, {"n": 3}])[-1]
        moved(stock, saver)
        first = list(saver.list(at("t")))[-1].checkpoint["id"]
        saver.engine.sync.rewind(first, thread_id="t", namespace="", later="keep")
        other.put(last, checkpoint("99999999", {"n": 4}), {}, {"n": 1})
    before = rows(saver)

    with pytest.raises(InvalidInput, match="gone on in the target"):
        moved(stock, saver)

    assert rows(saver) == before
    assert saver.get_tuple(at("t")).checkpoint["id"] == first


def test_a_pin_in_the_target_is_no_reason_to_stop(stock, saver):
    stock.run(chat, [human(1)], "t")
    moved(stock, saver)
    first = list(saver.list(at("t")))[-1].checkpoint["id"]
    saver.engine.sync.pin(first, thread_id="t", namespace="")
    stock.run(chat, [human(2)], "t")

    assert moved(stock, saver).checkpoints > 0

    assert_imported(stock, saver, "t")


def test_writes_that_wait_are_not_added_to_a_thread_that_has_gone_on(stock, saver):
    with stock.saver() as other:
        put_chain(other, [{"n": 1}])
        moved(stock, saver)
        saver.put(at("t", "", "00000000"), checkpoint("later", {"n": 9}), {}, {"n": 1})
        other.put_writes(at("t", "", "later"), [("n", 2)], "task")
    before = rows(saver)

    assert moved(stock, saver).writes == 0

    assert rows(saver) == before
    assert saver.get_tuple(at("t", "", "later")).pending_writes == []


def test_a_thread_that_is_a_task_in_the_target(stock, saver):
    stock.run(chat, [human(1)], "t")
    stock.run(chat, [human(1)], "u")
    moved(stock, saver)
    first = list(saver.list(at("t")))[-1].checkpoint["id"]
    TaskManager(chat(saver), saver).rollback_task("t", first)
    before = rows(saver)

    assert moved(stock, saver).threads == 2

    assert rows(saver) == before


def test_what_was_deleted_in_the_target_comes_back(stock, saver):
    stock.run(chat, [human(n) for n in range(3)], "t")
    moved(stock, saver)
    keys = [Key("t", "", one.checkpoint["id"]) for one in list(saver.list(at("t")))[2:5]]
    run_to_end(saver.backend.store.blocking.delete("t", keys=keys))

    assert moved(stock, saver).checkpoints == 3

    assert_imported(stock, saver, "t")


def test_a_file_is_never_changed_nor_made(tmp_path, saver, file):
    file.run(delta_chat, [human(n) for n in range(3)], "t")
    before = hashlib.sha256(file.path.read_bytes()).hexdigest()
    file.path.chmod(0o400)

    moved(file, saver)

    assert hashlib.sha256(file.path.read_bytes()).hexdigest() == before
    with pytest.raises(InvalidInput, match="no such file"):
        import_langgraph(f"sqlite:///{tmp_path / 'none.db'}", saver)
    assert not (tmp_path / "none.db").exists()


def test_a_plain_path_is_a_file_too(file, saver):
    file.run(chat, [human(1)], "t")
    assert import_langgraph(str(file.path), saver, quiet=True).threads == 1
    assert import_langgraph(file.path, saver, quiet=True).skipped > 0


def test_a_file_in_a_folder_that_cannot_be_written(file, saver, tmp_path, monkeypatch):
    """SQLite wants to make files beside one in WAL mode; where it cannot, the file is read as it is."""
    file.run(chat, [human(1)], "t")
    connect, asked = sqlite3.connect, []

    def refusing(name: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(str(name).rpartition("?")[2])
        if asked[-1] == "mode=ro":
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name, *arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", refusing)
    assert moved(file, saver).verified > 0
    assert asked == ["mode=ro", "immutable=1"]
    (tmp_path / "stock.db-wal").write_bytes(b"somebody is writing")
    with pytest.raises(StoreUnavailable):
        moved(file, saver)


def test_what_the_stock_saver_cannot_read_is_said(stock, saver):
    with stock.saver() as other:
        configs = put_chain(other, [{"n": [1]}])
        moved(stock, saver)
        other.serde = Pickled()
        changed = {**checkpoint("00000000", {"n": [1]}), "channel_versions": {"n": 2}}
        other.put(at("t"), changed, {"source": "loop", "step": 1}, {"n": 2})

    with pytest.raises(CheckpointCorrupted, match="stock saver cannot read") as caught:
        moved(stock, saver)

    assert caught.value.checkpoint_id == configs[0]["configurable"]["checkpoint_id"]


def test_other_files_are_refused(tmp_path, saver):
    text, empty, ours, mine = (tmp_path / name for name in ("text", "empty.db", "ours.db", "mine.db"))
    text.write_text("no database at all, but long enough to look at" * 100)
    empty.touch()
    everstep.open(f"sqlite:///{ours}").sync.snapshot("t", [], {}, {})
    with contextlib.closing(sqlite3.connect(mine)) as connection:
        connection.execute("CREATE TABLE checkpoints (id)")
    for path, reason in ((text, "SQLite"), (empty, "tables"), (ours, r"everstep\.copy"), (mine, "tables")):
        with pytest.raises(StoreMismatch, match=reason):
            import_langgraph(path, saver)
    with pytest.raises(InvalidInput):
        import_langgraph(tmp_path, saver)


def test_other_databases_are_refused(saver):
    with pytest.raises(StoreMismatch, match="PostgresSaver"):
        import_langgraph(servers.postgres(), saver)
    with pytest.raises(StoreUnavailable):
        import_langgraph(f"postgresql://nobody:pw@127.0.0.1:{servers.free_port()}/x", saver)


def test_a_password_is_not_shown(saver):
    for url in ("postgresql://nobody:s3cret@127.0.0.1:{}/x", "postgresql://nobody@127.0.0.1:{}/x?password=s3cret"):
        with pytest.raises(StoreUnavailable) as caught:
            import_langgraph(url.format(servers.free_port()), saver)
        assert "s3cret" not in str(caught.value)


def test_wrong_arguments(file, saver):
    file.run(chat, [human(1)], "t")
    for source in (None, "", "redis://localhost", "sqlite://x", 5):
        with pytest.raises(InvalidInput):
            import_langgraph(source, saver)
    for target in ("memory://", ":memory:", None, 5):
        with pytest.raises(InvalidInput):
            moved(file, target)
    with pytest.raises(InvalidInput, match="'nobody'"):
        moved(file, saver, thread_ids=["nobody"])
    with pytest.raises(InvalidInput, match="list of thread ids"):
        moved(file, saver, thread_ids="t")
    assert list(saver.list(None)) == []


def test_without_the_stock_saver_there_is_no_verifying(file, tmp_path):
    file.run(chat, [human(1)], "t")
    code = (
        "import sys\n"
        "from everstep.langgraph import import_langgraph\n"
        "sys.modules['langgraph.checkpoint.sqlite'] = None\n"
        "try:\n    import_langgraph(sys.argv[1], sys.argv[2], quiet=True)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "print(import_langgraph(sys.argv[1], sys.argv[2], verify=False, quiet=True).threads)\n"
    )
    done = run_without((), code, file.url, f"sqlite:///{tmp_path / 'ours.db'}")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(MissingDependency.__name__)
    assert "pip install langgraph-checkpoint-sqlite, or pass verify=False" in first
    assert second == "1"


# -- what is told ------------------------------------------------------------------------------------------------------


def test_progress_goes_up_to_the_totals(stock, saver, monkeypatch):
    monkeypatch.setattr(import_comparing, "_TOLD_EACH", 1)
    for thread in ("a", "b"):
        stock.run(chat, [human(n) for n in range(2)], thread)
    told: list[ImportProgress] = []

    report = moved(stock, saver, progress=told.append)

    steps = [dataclasses.astuple(one) for one in told]
    assert all(one <= other for a, b in itertools.pairwise(steps) for one, other in zip(a, b, strict=True))
    last = told[-1]
    assert (last.threads_done, last.threads_total) == (2, 2)
    assert last.checkpoints_done == last.checkpoints_total == last.checkpoints_verified == report.checkpoints
    assert last.bytes_read == report.bytes_read > 0


def test_sizes_are_printed_unless_quiet(file, tmp_path, capsys):
    file.run(chat, [human(1)], "t")
    url = f"sqlite:///{tmp_path / 'ours.db'}"

    report: Any = import_langgraph(file.url, url)

    printed = capsys.readouterr()
    assert f"before: {report.source_bytes / 1e3:,.1f} kB; after: {report.target_bytes / 1e3:,.1f} kB" in printed.out
    assert report.target_bytes == os.path.getsize(tmp_path / "ours.db")
    assert printed.err == ""
    assert report.source_bytes >= os.path.getsize(file.path)
    assert report.seconds > 0
    assert report.mb_per_second == report.bytes_read / 1e6 / report.seconds
    import_langgraph(file.url, url, quiet=True)
    assert capsys.readouterr() == ("", "")
    import_langgraph(file.url, HarnessCheckpointer())
    assert "cannot tell" in capsys.readouterr().out


def test_a_terminal_gets_a_line_that_goes_away(file, saver, capsys, monkeypatch):
    file.run(chat, [human(1)], "t")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    import_langgraph(file.url, saver)

    shown = capsys.readouterr().err
    assert "checkpoints" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_report_goes_to_json(file, saver):
    file.run(chat, [human(1)], "t")
    assert json.loads(json.dumps(dataclasses.asdict(moved(file, saver))))["threads"] == 1


# -- without blocking --------------------------------------------------------------------------------------------------


def test_the_asynchronous_twin_lets_the_loop_go_on(stock, saver):
    stock.run(delta_chat, [human(n) for n in range(3)], "t")
    seen: list[int] = []

    async def story() -> ImportReport:
        reached = asyncio.Event()
        loop = asyncio.get_running_loop()
        answered = threading.Event()

        def told(_: ImportProgress) -> None:
            loop.call_soon_threadsafe(reached.set)
            seen.append(answered.wait(60))  # only a loop that goes on can answer

        async def answer() -> None:
            await reached.wait()
            answered.set()

        report, _ = await asyncio.gather(aimport_langgraph(stock.url, saver, quiet=True, progress=told), answer())
        return report

    report = asyncio.run(story())

    assert all(seen)
    assert report.verified == report.checkpoints > 0
    assert_imported(stock, saver, "t")


def test_a_cancelled_import_ends_and_can_go_on(file, saver, monkeypatch):
    monkeypatch.setattr(import_batches, "_BATCH_MAX", 1)
    file.run(chat, [human(n) for n in range(4)], "t")

    async def story() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        may_go_on = threading.Event()

        def told(now: ImportProgress) -> None:
            if now.checkpoints_done == 3:
                loop.call_soon_threadsafe(begun.set)
                may_go_on.wait(60)

        work = asyncio.create_task(aimport_langgraph(file.url, saver, quiet=True, progress=told))
        await begun.wait()
        work.cancel()
        loop.call_soon(may_go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(story())

    assert 0 < len(list(saver.list(at("t")))) < 12
    assert moved(file, saver).skipped > 0
    assert_imported(file, saver, "t")


def test_errors_come_out_of_the_asynchronous_twin(tmp_path, saver):
    with pytest.raises(InvalidInput):
        asyncio.run(aimport_langgraph(str(tmp_path / "none.db"), saver))


# -- size --------------------------------------------------------------------------------------------------------------


def test_the_result_is_about_what_the_saver_would_have_written(file, tmp_path):
    turns = [human(n) for n in range(60)]
    file.run(chat, turns, "t")
    with HarnessCheckpointer.from_url(f"sqlite:///{tmp_path / 'own.db'}") as own:
        for given in turns:
            chat(own).invoke(given, at("t", None))

    moved(file, f"sqlite:///{tmp_path / 'ours.db'}")

    assert os.path.getsize(tmp_path / "ours.db") <= 1.2 * os.path.getsize(tmp_path / "own.db")


def test_retention_of_the_target_waits_for_its_next_put(file, tmp_path):
    file.run(chat, [human(n) for n in range(4)], "t")
    retention = everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=2)
    with HarnessCheckpointer(retention=retention) as saver:
        report = moved(file, saver)
        assert len(list(saver.list(at("t")))) == report.checkpoints > 2
