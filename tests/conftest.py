"""The stores under test, each on both faces, and how coroutine tests are run."""

from __future__ import annotations

import asyncio
import inspect
import os
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import everstep
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Store
from everstep.stores.redis.store import RedisStore
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite import schema as sqlite_schema
from everstep.stores.sqlite import verify as sqlite_verify
from everstep.stores.sqlite.store import SQLiteStore
from tests.tools import examples, memory_files, servers

# The same examples in every run, so that a red run is red everywhere; EVERSTEP_TEST_RANDOM=1 looks for new ones.
settings.register_profile(
    "everstep",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=not os.environ.get("EVERSTEP_TEST_RANDOM"),
)
settings.load_profile("everstep")

FACES = ("async", "blocking")
STORES = ("memory", "sqlite", "postgres", "redis", "cluster")
WITH_EXAMPLES = (*STORES, "lmdb")
"""Those and the store of `examples/lmdb_store.py`."""


REDIS_AND_FACE = [("redis", "async"), ("cluster", "blocking")]
"""How Redis is met above the stores: half of the tests have the one, half the other. The contract of stores has both
kinds of server on both faces."""


WORKERS_FACE = {"sqlite": "blocking", "postgres": "async"}
"""Where tests start processes of their own, which is slow, each other store has one face."""


def pytest_configure() -> None:
    memory_files.use_memory()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the contract of stores proves already: the other face of a test on a server."""
    there = {item.nodeid for item in items}
    left_out = [item for item in items if not there.isdisjoint(_stand_ins(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if there.isdisjoint(_stand_ins(item))]
    # Long ones first: in the end no worker waits for one that the other has just begun.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def _stand_ins(item: pytest.Item) -> list[str]:
    """Return the variants of a test each of which is enough without this one."""
    spec = getattr(item, "callspec", None)
    params = spec.params if spec is not None else {}
    kind, face = params.get("kind"), params.get("face")
    if face not in FACES or "stores" in item.path.parts:
        return []
    if kind in ("redis", "cluster"):
        preferred = REDIS_AND_FACE if _half(item) else REDIS_AND_FACE[::-1]
        order = [*preferred, ("redis", "blocking"), ("cluster", "async")]
        better = order[: order.index((kind, face))]
        return [_variant(item, {kind: other_kind, face: other_face}) for other_kind, other_face in better]
    other_face = FACES[1 - FACES.index(face)]
    return [_variant(item, {face: other_face})] if _one_face(item, kind) == other_face else []


def _one_face(item: pytest.Item, kind: str | None) -> str | None:
    """Return the face that a test has on a store, if it has but one there."""
    if "workers" in getattr(item, "fixturenames", ()):
        return WORKERS_FACE.get(kind or "")
    if kind == "postgres":  # half of the tests have the one, half the other
        return FACES[_half(item)]
    return None


def _half(item: pytest.Item) -> int:
    """Return 0 for half of the tests and 1 for the other half, by their names."""
    return zlib.crc32(item.nodeid.partition("[")[0].encode()) % 2


def _variant(item: pytest.Item, others: Mapping[str, str]) -> str:
    """Return the name of a test with other parameters."""
    name, _, words = item.nodeid.partition("[")
    for word, other in others.items():
        words = words.replace(word, other, 1)
    return f"{name}[{words}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests: to their end on the blocking face, in an event loop on the other."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    coroutine = pyfuncitem.obj(**arguments)
    if pyfuncitem.funcargs.get("face") == "blocking":
        run_to_end(coroutine)
    else:
        asyncio.run(coroutine)
    return True


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[Place]:
    place = Place(kind, tmp_path)
    yield place
    if kind == "sqlite" and place.path.exists():
        check_whole(place.path)


def check_whole(path: Path) -> None:
    """Whatever a test did to a file through the store: every row has its checksum, and none contradicts another.

    Content is left aside, since some tests store what is damaged.
    """
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        if connection.pragma("application_id") == sqlite_schema.APPLICATION_ID:
            sqlite_verify.verify(connection, content=False)


class Place:
    """Where a store of some kind lives; it can be left and come back to."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self._folder = kind, folder
        self._memory = MemoryStore()
        self._prefix = servers.redis_prefix()
        self._is_clear = False

    @property
    def path(self) -> Path:
        return self._folder / "store.db"

    def open(self) -> Store:
        if self.kind == "memory":
            return self._memory
        if self.kind == "sqlite":
            return SQLiteStore(self.path)
        if self.kind == "lmdb":
            return examples.lmdb_store(self._folder / "store.lmdb")
        if self.kind == "postgres":
            if not self._is_clear:
                servers.clear_postgres()
                self._is_clear = True
            return PostgresStore(servers.postgres(), max_size=4)
        url = servers.redis() if self.kind == "redis" else servers.redis_cluster()
        return RedisStore(url, key_prefix=self._prefix)

    async def reopen(self, store: Store) -> Store:
        if self.kind == "memory":
            return store
        await store.close()
        return self.open()


@pytest.fixture
def store(place: Place, face: str) -> Iterator[Store]:
    store = place.open()
    yield store if face == "async" else store.blocking
    run_to_end(store.blocking.close())


@pytest.fixture
def reopen(place: Place, face: str, store: Store) -> Iterator[Callable[[], Awaitable[Store]]]:
    opened: list[Store] = []

    async def reopened() -> Store:
        again = await place.reopen(store)
        opened.append(again)
        return again if face == "async" else again.blocking

    yield reopened
    for again in opened:
        run_to_end(again.blocking.close())


class OneFace:
    """An engine or backend whose methods are awaited whichever face is under test."""

    def __init__(self, target: Any, face: str) -> None:
        self._target, self._face = target, face

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target.sync if self._face == "blocking" else self._target, name)
        if self._face == "async" or not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call


@pytest.fixture
def backend(store: Store, face: str) -> Any:
    return OneFace(everstep.StoreBackend(_whole(store)), face)


@pytest.fixture
def make_engine(store: Store, face: str) -> Callable[..., Any]:
    """An engine on the store under test, with the configuration given."""
    return lambda **config: OneFace(
        everstep.CheckpointEngine(everstep.StoreBackend(_whole(store)), everstep.SnapshotConfig(**config)), face
    )


@pytest.fixture
def engine(make_engine: Callable[..., Any]) -> Any:
    return make_engine()


@pytest.fixture
def make_saver(place: Place, face: str) -> Iterator[Callable[..., Any]]:
    """A saver for LangGraph with the options given, on the store under test: the same one for every saver."""
    from everstep.langgraph import HarnessCheckpointer
    from tests.langgraph.tools import FacedSaver

    store = place.open()
    yield lambda **options: FacedSaver(HarnessCheckpointer(backend=store, **options), face)
    run_to_end(store.blocking.close())


@pytest.fixture
def saver(make_saver: Callable[..., Any]) -> Any:
    return make_saver()


@pytest.fixture
def begin(place: Place, face: str) -> Iterator[Callable[..., Any]]:
    """A story with a graph on the store under test; see `tests.langgraph_stories`."""
    from tests.langgraph.stories import Story

    store = place.open()
    yield lambda told, **options: Story(store, told, face, **options)
    run_to_end(store.blocking.close())


def _whole(store: Store) -> Store:
    return store


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERSTEP_STORE", raising=False)


def pytest_sessionfinish() -> None:
    servers.clear_redis()


def pytest_report_header() -> str:
    import apsw

    return f"SQLite {apsw.sqlite_lib_version()}, pid {os.getpid()}"
