"""How people open a store: addresses, options, `with`, and what an open thing says of itself."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import InvalidInput, StoreUnavailable
from everstep.langgraph import CheckpointBackend, CheckpointerConfig, HarnessCheckpointer, MemoryBackend
from everstep.langgraph.tasks import TaskManager
from everstep.opening import options
from everstep.stores.memory import MemoryStore
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.redis.store import RedisStore
from everstep.stores.sqlite.store import SQLiteStore

OPENERS: dict[str, Any] = {
    "open": everstep.open,
    "from the environment": lambda _: everstep.open(),
    "saver": lambda path: HarnessCheckpointer.from_url(path).engine,
    "saver, as others call it": lambda path: HarnessCheckpointer.from_conn_string(path).engine,
    "backend": lambda path: everstep.CheckpointEngine(everstep.SQLiteCheckpointer(path)),
    "factory": lambda path: everstep.CheckpointEngine(everstep.create_checkpointer(db_path=path)),
    "engine factory": lambda path: asyncio.run(everstep.create_checkpoint_engine(db_path=path)),
    "configuration": lambda path: (
        HarnessCheckpointer(CheckpointerConfig(backend=CheckpointBackend.SQLITE, sqlite_path=path)).engine
    ),
}


@pytest.mark.parametrize("address", ["agent.db", "./agent.db", "sqlite:///agent.db", Path("agent.db")])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_path_is_taken_wherever_a_url_is(
    opener: str, address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTEP_STORE", str(address))
    with OPENERS[opener](address).sync as engine:
        engine.snapshot("t", [], {"n": 1}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["agent.db"]
    copied = everstep.MemoryCheckpointer()
    assert everstep.copy(address, copied).checkpoints == 1


def test_options_in_the_url_of_a_file_are_refused_and_a_question_mark_has_a_form(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give them to open"):
        everstep.open(f"sqlite:///{tmp_path}/agent.db?synchronous=off")

    with everstep.open(f"sqlite:///{tmp_path}/why%3F.db").sync as engine:
        engine.append("t", [{"role": "user", "content": "hello"}])
    assert "why?.db" in [path.name for path in tmp_path.iterdir()]


def test_memory_as_sqlite_writes_it_is_memory() -> None:
    assert isinstance(everstep.open(":memory:").checkpointer, everstep.MemoryCheckpointer)
    with pytest.raises(InvalidInput, match="new, empty"):
        everstep.copy(":memory:", everstep.MemoryCheckpointer())


def test_the_options_are_those_of_the_stores() -> None:
    stores = {"memory": MemoryStore, "sqlite": SQLiteStore, "postgres": PostgresStore, "redis": RedisStore}
    for kind, store in stores.items():
        known = options.KNOWN[kind]
        taken = list(inspect.signature(store).parameters)
        assert sorted(taken) == sorted([known.place, *known.names] if known.place else known.names)
        assert set(known.aliases.values()) <= set(taken)
        assert not {*known.aliases, *known.advice} & set(taken)
        assert not set(known.aliases) & set(known.advice)


@pytest.mark.parametrize("name", ["redis_url", "conn_string", "connection_string", "url"])
def test_redis_by_the_names_that_people_know(name: str) -> None:
    place: Any = {name: "redis://:pw@cache:7777/3"}
    backend = everstep.create_checkpointer("redis", **place, socket_timeout=7)
    assert repr(backend) == "<RedisCheckpointer redis://cache:7777/3, open>"
    assert backend.limit_seconds == 7


@pytest.mark.parametrize("name", ["conn_string", "connection_string", "conninfo", "url", "dsn"])
def test_postgres_by_the_names_that_people_know(name: str) -> None:
    dsn = "postgresql://me:pw@host:7777/agents"
    place: Any = {name: dsn}
    backend = everstep.create_checkpointer("postgres", **place, min_size=2, max_size=9, command_timeout=7)
    assert repr(backend) == "<PostgresCheckpointer postgresql://host:7777/agents, open>"
    assert backend.limit_seconds == 7
    assert everstep.PostgresCheckpointer(dsn, pool_size=3, timeout=8).limit_seconds == 8


CALLS: dict[str, Any] = {
    "everstep.open": lambda **o: everstep.open("postgresql://h", **o),
    "create_checkpointer": lambda **o: everstep.create_checkpointer("postgres", **o),
    "create_checkpoint_engine": lambda **o: asyncio.run(everstep.create_checkpoint_engine("postgres", **o)),
    "PostgresCheckpointer": everstep.PostgresCheckpointer,
    "HarnessCheckpointer.from_url": lambda **o: HarnessCheckpointer.from_url("postgresql://h", **o),
    "HarnessCheckpointer.from_conn_string": lambda **o: HarnessCheckpointer.from_conn_string("postgresql://h", **o),
    "CheckpointerConfig.options": lambda **o: HarnessCheckpointer(
        CheckpointerConfig(backend=CheckpointBackend.POSTGRES, options=o)
    ),
}
MORE_OPTIONS = {"everstep.open": ["config"], "create_checkpoint_engine": ["config"]}


@pytest.mark.parametrize("caller", CALLS)
def test_a_misspelt_option_lists_those_of_what_was_called(caller: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CALLS[caller](max_sise=3)
    text = str(caught.value)
    assert text.startswith(f"{caller} has no option 'max_sise': did you mean max_size? its options are ")
    more = MORE_OPTIONS.get(caller, [])
    if caller.startswith("Harness"):
        more = ["serde", "strict", "allow", "retention", "is_secret"]
    assert text.partition("options are ")[2] == ", ".join(sorted([*options.KNOWN["postgres"].names, *more]))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "option", "advice"),
    [
        ("postgresql://h", "password", "into the URL"),
        ("postgresql://h", "max_overflow", "max_size"),
        ("redis://h", "ttl", "ttl_seconds"),
        ("redis://h", "max_connections", "max_threads"),
        ("agent.db", "check_same_thread", "leave it out"),
        ("memory://", "synchronous", "its options are config"),
    ],
)
def test_a_name_that_has_no_place_here_is_told_ours(url: str, option: str, advice: str) -> None:
    options: Any = {option: "s3cret"}
    with pytest.raises(InvalidInput, match=advice) as caught:
        everstep.open(url, None, **options)
    assert "s3cret" not in str(caught.value)


def test_an_option_under_two_names_is_refused() -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds twice"):
        everstep.PostgresCheckpointer("postgresql://h", timeout_seconds=1, command_timeout=2)
    for twice in (
        lambda: everstep.open("redis://a", redis_url="redis://b"),  # type: ignore[call-arg]
        lambda: everstep.RedisCheckpointer("redis://a", redis_url="redis://b"),
        lambda: everstep.SQLiteCheckpointer("a.db", database="b.db"),
    ):
        with pytest.raises(InvalidInput, match="twice"):
            twice()


@pytest.mark.parametrize(
    "enter",
    [
        lambda: everstep.open("memory://"),
        everstep.MemoryCheckpointer,
        MemoryBackend,
        lambda: everstep.open("memory://").thread("t"),
    ],
)
def test_a_plain_with_is_told_what_to_write(enter: Any) -> None:
    with pytest.raises(InvalidInput, match=r"`async with`.*\.sync as engine"), enter():
        raise AssertionError("entered")


@pytest.mark.parametrize(
    "enter",
    [
        lambda: everstep.open("memory://").sync,
        lambda: everstep.MemoryCheckpointer().sync,
        lambda: everstep.open("memory://").sync.thread("t"),
    ],
)
async def test_an_async_with_of_a_blocking_face_is_told_what_to_write(enter: Any) -> None:
    with pytest.raises(InvalidInput, match=r"plain `with`"):
        async with enter():
            raise AssertionError("entered")


URLS = {
    "memory://": "memory://",
    "sqlite:////somewhere/agent.db": "sqlite:////somewhere/agent.db",
    "postgresql://me:s3cret@host:7777/agents?sslmode=require": "postgresql://host:7777/agents",
    "postgresql:///": "postgresql://",
    "redis://me:s3cret@cache:7777/3": "redis://cache:7777/3",
    "rediss://:s3cret@cache": "rediss://cache:6379/0",
    "redis+cluster://:s3cret@a:1,b:2": "redis+cluster://a:1,b:2",
    "unix://:s3cret@/run/redis.sock": "unix:///run/redis.sock",
}


@pytest.mark.parametrize("url", URLS)
def test_what_is_open_says_where_without_the_password(url: str) -> None:
    engine, where = everstep.open(url), URLS[url]
    backend: Any = engine.checkpointer
    kind = type(backend).__name__
    saver = HarnessCheckpointer(backend=backend)
    live = engine.thread("talk")
    shown = {
        repr(engine): f"<CheckpointEngine {where}, open>",
        repr(engine.sync): f"<SyncEngine {where}, open>",
        repr(backend): f"<{kind} {where}, open>",
        repr(backend.sync): f"<SyncBackend {where}, open>",
        repr(backend.store): f"<{type(backend.store).__name__} {where}, open>",
        repr(saver): f"<HarnessCheckpointer {where}, open>",
        repr(live): f"<LiveThread {where}, 'talk', not live, open>",
        repr(engine.sync.thread("talk")): f"<SyncLiveThread {where}, 'talk', not live, open>",
    }
    assert list(shown) == list(shown.values())
    engine.sync.close()
    things = (engine, engine.sync, backend, backend.sync, backend.store, saver, live)
    assert all(repr(thing).endswith(", closed>") for thing in things)


def test_a_live_thread_says_that_it_is_live() -> None:
    with everstep.open("memory://").sync.thread("talk") as live:
        assert repr(live) == "<SyncLiveThread memory://, 'talk', live, open>"


@pytest.mark.parametrize("url", ["sqlite:///agent.db", "postgresql://me@127.0.0.1:1/x", "redis://127.0.0.1:1"])
def test_the_limit_of_open_files_is_said(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with everstep.open("other.db").sync as other:
        other.get_latest("t")  # so that the driver is loaded
    engine = everstep.open(url, timeout=2).sync
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with pytest.raises(OSError, match="Too many"):  # noqa: PT012  # which one fails is not known beforehand
            while len(held) < 256:
                held.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(StoreUnavailable, match="ulimit -n"):
            engine.get_latest("t")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    engine.close()


def texts_of_errors() -> Iterator[tuple[str, str]]:
    """Yield (where, text) of the texts that are raised, the parts of each together."""
    for file in sorted(Path(everstep.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            raised = node.exc if isinstance(node, ast.Raise) else None
            is_message = isinstance(node, ast.FunctionDef) and node.name == "__init__" and file.name == "errors.py"
            if raised is not None or is_message:
                parts = [part.value for part in ast.walk(raised or node) if isinstance(part, ast.Constant)]
                yield file.name, " ".join(part for part in parts if isinstance(part, str))


def test_the_methods_that_errors_name_exist() -> None:
    """A name with () is a method of the engine, unless the text says of what else it is one."""
    seen: set[str] = set()
    for where, text in texts_of_errors():
        for name, more in re.findall(r"(?<!its )\b([A-Za-z_.]+)\(\)((?: of a \w+)?)", text):
            seen.add(name)
            if name.endswith("_tasks"):
                owner: Any = TaskManager
            elif more == " of a backend":
                owner = everstep.CheckpointBackend
            elif "langgraph.step" in text and "step" in name:
                owner = everstep.langgraph
            elif hasattr(everstep, name.removeprefix("everstep.")) or name == "model_dump":
                continue
            else:
                owner = everstep.CheckpointEngine
            assert hasattr(owner, name.rpartition(".")[2]), f"{where}: {text}"
    assert {
        "list_time_travel_points",
        "list_checkpoints",
        "undo",
        "redo",
        "operations",
        "list_tasks",
        "register",
    } <= seen
