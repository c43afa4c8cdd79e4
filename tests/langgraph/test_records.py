"""Records: the pydantic models, the views that take and give them, and the saver where LangGraph is not installed."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import everstep
from everstep import AmbiguousCheckpoint, InvalidInput, UnstorableValue
from everstep.langgraph import (
    CheckpointBackend,
    CheckpointerConfig,
    CheckpointMetadata,
    CheckpointRecord,
    HarnessCheckpointer,
    MemoryBackend,
    PostgresBackend,
    RecordBackend,
    RedisBackend,
    SQLiteBackend,
)
from everstep.runtime.blocking import run_to_end
from everstep.stores.redis.items import bucket_of
from tests.langgraph import bare_saver
from tests.langgraph.tools import FacedSaver, at, checkpoint, run_without, write_chat
from tests.tools import servers

View = MemoryBackend | SQLiteBackend | PostgresBackend | RedisBackend


@pytest.fixture
def config(kind: str, tmp_path: Path) -> CheckpointerConfig:
    """The configuration of an empty backend of each kind."""
    if kind == "postgres":
        servers.clear_postgres()
        return CheckpointerConfig(backend=CheckpointBackend.POSTGRES, postgres_dsn=servers.postgres())
    if kind in ("redis", "cluster"):
        url = servers.redis() if kind == "redis" else servers.redis_cluster()
        return CheckpointerConfig(backend=CheckpointBackend.REDIS, redis_url=url, key_prefix=servers.redis_prefix())
    return CheckpointerConfig(backend=CheckpointBackend(kind), sqlite_path=str(tmp_path / "records.db"))


@pytest.fixture
def make_view(config: CheckpointerConfig) -> Iterator[Callable[[], View]]:
    classes: dict[CheckpointBackend, type[View]] = {
        CheckpointBackend.MEMORY: MemoryBackend,
        CheckpointBackend.SQLITE: SQLiteBackend,
        CheckpointBackend.POSTGRES: PostgresBackend,
        CheckpointBackend.REDIS: RedisBackend,
    }
    opened: list[View] = []

    def make() -> View:
        opened.append(classes[config.backend](config))
        return opened[-1]

    yield make
    for view in opened:
        run_to_end(view.backend.store.blocking.close())


@pytest.fixture
def view(make_view: Callable[[], View]) -> View:
    return make_view()


def record(name: str, values: Any = None, thread: str = "t", ns: str = "", **more: Any) -> CheckpointRecord:
    given = {"checkpoint": {"channel_values": values if values is not None else {}}, **more}
    return CheckpointRecord(thread_id=thread, checkpoint_id=name, checkpoint_ns=ns, **given)


def names(records: list[CheckpointRecord]) -> list[str]:
    return [each.checkpoint_id for each in records]


# -- models ------------------------------------------------------------------------------------------------------------


def test_models_have_the_fields_and_defaults_that_were_published() -> None:
    assert list(CheckpointMetadata.model_fields) == ["source_layer", "step", "timestamp", "parents", "writes"]
    assert list(CheckpointRecord.model_fields) == [
        "checkpoint", "checkpoint_id", "checkpoint_ns", "metadata", "parent_checkpoint_id", "thread_id",
    ]  # fmt: skip
    made = CheckpointRecord(checkpoint={}, checkpoint_id="c", thread_id="t")
    assert (made.checkpoint_ns, made.parent_checkpoint_id) == ("", None)
    assert [str(kind) for kind in CheckpointBackend] == ["memory", "sqlite", "postgres", "redis"]
    config = CheckpointerConfig()
    assert (config.backend, config.ttl_seconds) == (CheckpointBackend.MEMORY, None)
    assert CheckpointerConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError, match="thread_id"):
        CheckpointRecord(checkpoint={}, checkpoint_id="c")  # type: ignore[call-arg]


def test_json_keeps_numbers_that_are_none() -> None:
    infinite = record("c", {"n": [math.inf, -math.inf]}, metadata=CheckpointMetadata(timestamp=math.inf))

    assert CheckpointRecord.model_validate_json(infinite.model_dump_json()) == infinite
    back = CheckpointRecord.model_validate_json(record("c", {"n": math.nan}).model_dump_json())
    assert math.isnan(back.checkpoint["channel_values"]["n"])


def test_wrong_options_of_a_backend_are_named() -> None:
    with pytest.raises(InvalidInput, match="hurry"):
        HarnessCheckpointer(CheckpointerConfig(options={"hurry": True}))
    with pytest.raises(InvalidInput, match="CheckpointerConfig"):
        MemoryBackend({"backend": "memory"})  # type: ignore[arg-type]


def test_the_class_of_a_view_says_where_its_records_are(tmp_path: Path) -> None:
    view = SQLiteBackend(CheckpointerConfig(sqlite_path=str(tmp_path / "a.db")))

    assert view.config.backend is CheckpointBackend.SQLITE
    assert isinstance(view.backend, everstep.SQLiteCheckpointer)
    run_to_end(view.backend.store.blocking.close())


async def test_the_record_of_a_graphs_checkpoint(saver: FacedSaver) -> None:
    metadata = {"source": "loop", "step": 3, "writes": None, "parents": {"": "p"}, "run_id": "r"}
    config = await saver.add("c2", {"a": 1}, ns="sub", parent="c1", metadata=metadata)

    found = await saver.get_record(config)

    assert found == CheckpointRecord(
        thread_id="t",
        checkpoint_id="c2",
        checkpoint_ns="sub",
        parent_checkpoint_id="c1",
        checkpoint=checkpoint("c2", {"a": 1}),
        metadata=CheckpointMetadata.model_validate(
            {**metadata, "writes": {}, "source_layer": "loop", "timestamp": 1767323045.678901}
        ),
    )
    assert CheckpointRecord.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("ts", "seconds"),
    [
        ("1970-01-01T00:01:00", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("some time ago", 0.0),
    ],
)
def test_the_time_of_a_record_is_that_of_its_checkpoint(ts: str, seconds: float) -> None:
    saver = HarnessCheckpointer()
    found = saver.get_record(saver.put(at(), {**checkpoint("c", {}), "ts": ts}))
    assert found is not None
    assert found.metadata.timestamp == seconds


@pytest.mark.parametrize("metadata", [{"step": "first"}, {"timestamp": "now"}, {"writes": [1]}, {"parents": {"": 1}}])
async def test_metadata_that_no_record_has_is_named(saver: FacedSaver, metadata: dict[str, Any]) -> None:
    config = await saver.add("c1", {}, metadata=metadata)

    assert (await saver.get_tuple(config)).metadata == metadata
    with pytest.raises(InvalidInput, match=f"'c1'.*{next(iter(metadata))}.*get_tuple"):
        await saver.get_record(config)


# -- views -------------------------------------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [
    {},
    {"channel_values": {"messages": ["a", "b"], "n": 1}},
    {"id": "c"},
    {"id": None, "ts": None, "v": None, "channel_values": None, "channel_versions": None, "versions_seen": None},
    {"ts": "2026-01-02T03:04:05+00:00"},
    {"ts": "yesterday"},
    {"ts": 1767323045.5},
    {"v": 4, "updated_channels": None},
    {"updated_channels": ["a"], "pending_sends": []},
    {"channel_values": ["not", "a", "dict"], "channel_versions": 3, "versions_seen": "x"},
    {"channel_values": {1: "a", None: "b"}, "channel_versions": {2: 3}},
    {"versions_seen": {"node": [1]}, "channel_versions": {"a": "1.5"}},
    {"own": {"deep": [1, 1.0, True, None, "text\x00", {"a": []}]}, "odd": 1, "absent": 2, "more": 3, "forms": 4},
    {"channel_values": {"big": ["x" * 300] * 40, "tuple": (1, {2}), "bytes": b"\x00", "int": 10**40}},
    checkpoint("c", {"messages": [{"role": "user", "content": "hi"}], "a": {"b": [1]}}),
]

METADATA: dict[str, Any] = {
    "source_layer": "planner\x00",
    "step": 3,
    "timestamp": 1767323045.25,
    "parents": {"": "p"},
    "writes": {"a": [1.0, {"b": 1}]},
    "source": "loop",
    "tags": ["x"],
    "none": None,
}


@pytest.mark.parametrize("shape", SHAPES, ids=[", ".join(map(str, shape))[:40] or "empty" for shape in SHAPES])
async def test_what_was_put_comes_back_equal(make_view: Callable[[], View], kind: str, shape: dict[str, Any]) -> None:
    metadata = CheckpointMetadata.model_validate(METADATA)
    given = CheckpointRecord(
        thread_id="t", checkpoint_id="c", checkpoint=shape, metadata=metadata, parent_checkpoint_id="p"
    )
    view = make_view()

    assert await view.aput(given) == "c"

    for reader in (view, *([make_view()] if kind != "memory" else [])):
        assert await reader.aget("t") == given
        assert await reader.aget("t", "c") == given
        assert await reader.alist("t") == [given]
    graph = await HarnessCheckpointer(backend=view).aget_tuple(at())
    assert graph is not None
    assert graph.checkpoint["id"] == "c"
    assert graph.metadata["step"] == 3
    for part in ("channel_values", "channel_versions", "versions_seen"):
        assert isinstance(graph.checkpoint[part], dict)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["ts", "v", "channel_values", "channel_versions", "versions_seen", "updated_channels", "more", "odd", "seeds", "~"]
)


@given(
    checkpoints=st.lists(st.dictionaries(FIELDS, PLAIN, max_size=6), min_size=1, max_size=4),
    writes=st.dictionaries(st.text(max_size=3), PLAIN, max_size=2),
    step=st.integers(-(2**62), 2**62),
    follows=st.booleans(),
)
def test_any_json_comes_back_equal(
    checkpoints: list[dict[str, Any]], writes: dict[str, Any], step: int, follows: bool
) -> None:
    asyncio.run(check_any_json(checkpoints, CheckpointMetadata(step=step, writes=writes), follows))


async def check_any_json(checkpoints: list[dict[str, Any]], metadata: CheckpointMetadata, follows: bool) -> None:
    view, given, parent = MemoryBackend(), list[CheckpointRecord](), None
    for n, shape in enumerate(checkpoints):
        given.append(record(f"c{n}", checkpoint=shape, metadata=metadata, parent_checkpoint_id=parent))
        parent = f"c{n}" if follows else None
        await view.aput(CheckpointRecord.model_validate_json(given[-1].model_dump_json()))

    assert await view.alist("t") == given[::-1]
    for each in given:
        found = await view.aget("t", each.checkpoint_id)
        assert found is not None
        assert text_of(found) == text_of(each)  # to Python 1, 1.0 and True are equal


def text_of(record: CheckpointRecord) -> str:
    return json.dumps(json.loads(record.model_dump_json()), sort_keys=True)


async def test_the_order_is_that_of_puts_whatever_the_ids(view: View) -> None:
    for name in ("c9", "c10", "b", "z", "a"):
        await view.aput(record(name))

    assert names(await view.alist("t")) == ["a", "z", "b", "c10", "c9"]
    assert await view.aget("t") == (await view.alist("t", limit=1))[0]
    assert names(await view.alist("t", limit=2)) == ["a", "z"]
    assert await view.alist("t", limit=0) == []
    with pytest.raises(InvalidInput, match="limit"):
        await view.alist("t", limit=-1)


async def test_a_long_list_comes_whole(view: View) -> None:
    for n in range(140):
        await view.aput(record(str(n), {"n": n}, parent_checkpoint_id=str(n - 1) if n else None))

    assert [each.checkpoint["channel_values"]["n"] for each in await view.alist("t")] == list(range(140))[::-1]


async def test_a_record_of_a_known_id_replaces_it_where_it_stands(view: View) -> None:
    first, second = record("c1", {"n": 1}), record("c2", {"n": 2})
    for each in (first, second, first):
        await view.aput(each)
    assert await view.alist("t") == [second, first]

    changed = record("c1", {"n": "new"}, metadata=CheckpointMetadata(step=8))
    await view.aput(changed)

    assert await view.alist("t") == [second, changed]
    assert await view.aget("t") == second


async def test_the_same_record_again_is_not_written(view: View) -> None:
    given = record("c1", {"n": 1})
    await view.aput(given)
    before = await view.backend.store.read("t")

    await view.aput(CheckpointRecord.model_validate_json(given.model_dump_json()))

    assert await view.backend.store.read("t") == before


async def test_namespaces(view: View) -> None:
    root, sub, other = record("c1", {"n": 1}), record("c2", {"n": 2}, ns="sub"), record("c3", {"n": 3}, ns="other|x:1")
    for each in (root, sub, other):
        await view.aput(each)

    assert await view.aget("t") == root
    assert await view.aget("t", "c2") == sub
    assert await view.aget("t", namespace="other|x:1") == other
    assert await view.alist("t") == [other, sub, root]
    assert await view.aget("t", "c2", namespace="") is None
    again = record("c2", {"n": 4})
    await view.aput(again)
    with pytest.raises(AmbiguousCheckpoint, match="'sub'"):
        await view.aget("t", "c2")
    assert await view.aget("t", "c2", namespace="sub") == sub
    assert await view.aget("t", "c2", namespace="") == again


async def test_deleting_and_what_is_not_there(view: View) -> None:
    for each in (record("c1"), record("c2", ns="sub"), record("c1", thread="u")):
        await view.aput(each)

    assert await view.adelete("t") == 2

    assert await view.adelete("t") == 0
    assert await view.aget("t") is None
    assert await view.aget("t", "c1") is None
    assert await view.alist("t") == []
    assert names(await view.alist("u")) == ["c1"]


async def test_a_view_and_a_saver_see_the_same_threads(view: View) -> None:
    saver = HarnessCheckpointer(backend=view)
    await view.aput(record("c1", {"n": 1, "messages": ["a"]}, metadata=CheckpointMetadata(source_layer="x", step=1)))

    found = await saver.aget_tuple(at())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": 1, "messages": ["a"]}
    given = checkpoint("c2", {"n": 2, "messages": ["a", "b"]})
    await saver.aput(found.config, given, {"step": 2}, {"n": 1, "messages": 1})

    newest = await view.aget("t")
    assert newest is not None
    assert (newest.checkpoint, newest.metadata.step, newest.parent_checkpoint_id) == (given, 2, "c1")
    assert newest == await saver.aget_record(at())
    assert names(await view.alist("t")) == ["c2", "c1"]
    changed = newest.model_copy(update={"checkpoint": checkpoint("c2", {"n": 3})})
    await view.aput(changed)
    after = await saver.aget(at())
    assert after["channel_values"] == {"n": 3}
    assert await saver.adelete_thread("t") == 2
    assert await view.aget("t") is None


async def test_messages_of_a_graph_pass_through_records(view: View) -> None:
    saver = HarnessCheckpointer(backend=view)
    write_chat(saver)
    (chat,) = await view.alist("chat")

    assert await view.aput(chat.model_copy(update={"thread_id": "copy"})) == "c1"

    copied, original = await saver.aget(at("copy")), await saver.aget(at("chat"))
    assert copied == original
    assert type(copied["channel_values"]["messages"][0]).__name__ == "HumanMessage"
    dumped = CheckpointRecord.model_validate_json(chat.model_dump_json(fallback=repr))
    assert dumped.checkpoint["channel_values"]["messages"][0]["content"] == "hello"


async def test_records_that_make_no_sense_are_refused(view: View) -> None:
    from langchain_core.messages import HumanMessage

    for wrong, said in [
        (record("c", checkpoint={"id": "other"}), "'c'.*'other'"),
        (record("1", checkpoint={"id": 1}), "says 1"),
        (record(""), "empty"),
        (record("c", thread=""), "empty"),
        (record("c", thread="x" * 2000), "limit"),
        (record("c", ns="\ud800"), "Unicode"),
        (record("c", parent_checkpoint_id=""), "empty"),
        ({"thread_id": "t"}, "CheckpointRecord"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            await view.aput(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnstorableValue, match=r"channel_values|lock"):
        await view.aput(record("c", {"lock": object()}))
    with pytest.raises(UnstorableValue, match="HumanMessage"):
        await view.aput(record("c", metadata=CheckpointMetadata(writes={"a": HumanMessage("x")})))
    for call in (lambda: view.aget(""), lambda: view.aget("t", ""), lambda: view.alist(""), lambda: view.adelete("")):
        with pytest.raises(InvalidInput, match="empty"):
            await call()
    assert await view.alist("t") == []


async def test_a_model_as_metadata_is_kept_as_it_is_or_refused(saver: FacedSaver) -> None:
    from langchain_core.messages import HumanMessage

    kept = CheckpointMetadata.model_validate({"step": 1, "writes": {"a": (1, {"b": 2})}, "own": [1]})
    found = await saver.get_tuple(await saver.put(at(), checkpoint("c1", {}), kept))
    assert found.metadata == dict(kept)
    assert found.metadata["writes"]["a"] == (1, {"b": 2})
    with pytest.raises(UnstorableValue, match="HumanMessage"):
        await saver.put(at(), checkpoint("c2", {}), CheckpointMetadata(writes={"a": HumanMessage("x")}))


async def test_a_step_that_no_database_holds_stays_in_the_metadata(view: View) -> None:
    given = record("c", metadata=CheckpointMetadata(step=2**70))
    await view.aput(given)
    assert await view.aget("t") == given


async def test_threads_of_the_engine_are_refused(view: View) -> None:
    engine = everstep.CheckpointEngine(view.backend)
    name = await engine.snapshot("t", [], {"n": 1}, {})

    for call in (lambda: view.aget("t"), lambda: view.aget("t", name), lambda: view.alist("t")):
        with pytest.raises(InvalidInput, match="not written by a LangGraph saver"):
            await call()
    with pytest.raises(InvalidInput, match="not written by a LangGraph saver"):
        await view.aput(record("c"))


async def test_a_view_is_closed_with_its_block(tmp_path: Path) -> None:
    config = CheckpointerConfig(sqlite_path=str(tmp_path / "a.db"))
    async with SQLiteBackend(config) as view:
        await view.aput(record("c1"))
    with pytest.raises(everstep.StoreClosed):
        await view.aget("t")
    async with SQLiteBackend(config) as view:
        assert names(await view.alist("t")) == ["c1"]


OTHER = """
import asyncio, sys
from everstep.langgraph import CheckpointRecord, CheckpointerConfig, RedisBackend, SQLiteBackend

async def main(config, given):
    async with (RedisBackend if config.backend == "redis" else SQLiteBackend)(config) as view:
        print((await view.aget("t", "c1")).model_dump_json())
        await view.aput(CheckpointRecord.model_validate_json(given))

asyncio.run(main(CheckpointerConfig.model_validate_json(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_another_process_sees_the_same(config: CheckpointerConfig, view: View) -> None:
    first = record("c1", {"messages": [1, 1.5, None, "x"]}, metadata=CheckpointMetadata(writes={"a": True}))
    second = record("c2", {"messages": [2]}, parent_checkpoint_id="c1")
    await view.aput(first)

    command = [sys.executable, "-W", "ignore::everstep.DurabilityWarning", "-c", OTHER, config.model_dump_json()]
    done = subprocess.run([*command, second.model_dump_json()], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert CheckpointRecord.model_validate_json(done.stdout) == first
    assert await view.alist("t") == [second, first]


# -- what is not installed ---------------------------------------------------------------------------------------------


def test_the_saver_works_without_langgraph_and_langchain(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with HarnessCheckpointer.from_url(str(path)) as saver:
        write_chat(saver)

    script = f"import runpy; runpy.run_path({bare_saver.__file__!r}, run_name='__main__')"
    done = run_without(bare_saver.MISSING, script, str(path))

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_process_that_only_reads_rebuilds_what_is_langgraphs_own(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with HarnessCheckpointer.from_url(str(path)) as saver:
        write_chat(saver)
    code = (
        "import sys; from everstep.langgraph import HarnessCheckpointer\n"
        "saver = HarnessCheckpointer.from_url(sys.argv[1])\n"
        "assert 'langgraph.types' not in sys.modules\n"
        "found = saver.get_tuple({'configurable': {'thread_id': 'interrupted'}})\n"
        "print(found.pending_writes[0][2][0].value)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.stdout == "why\n", done.stderr
    read = "print([m.type for m in saver.get({'configurable': {'thread_id': 'chat'}})['channel_values']['messages']])"
    done = run_without(["langgraph"], "\n".join([*code.splitlines()[:2], read]), str(path))
    assert done.stdout == "['human', 'ai', 'tool', 'system']\n", done.stderr


def test_without_pydantic_the_extra_is_named() -> None:
    done = run_without(["pydantic"], "import everstep.langgraph")
    assert "MissingDependency: pydantic is not installed; run: pip install 'everstep[langgraph]'" in done.stderr


@pytest.mark.parametrize(
    ("driver", "view", "extra"), [("psycopg", "PostgresBackend", "postgres"), ("redis", "RedisBackend", "redis")]
)
def test_a_missing_driver_is_named(driver: str, view: str, extra: str) -> None:
    done = run_without([driver], f"from everstep.langgraph import {view}; {view}()")
    assert f"MissingDependency: {driver} is not installed; run: pip install 'everstep[{extra}]'" in done.stderr


def test_everstep_itself_imports_nothing_of_this() -> None:
    code = (
        "import sys, everstep\n"
        "packages = {'pydantic', 'langgraph', 'langchain_core', 'everstep.langgraph'}\n"
        "print(sorted(packages & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- Redis keys --------------------------------------------------------------------------------------------------------

LIFE = 1000


@pytest.mark.parametrize("life", [None, LIFE])
def test_the_keys_of_a_thread_on_redis(life: int | None) -> None:
    prefix = servers.redis_prefix()
    config = CheckpointerConfig(
        backend=CheckpointBackend.REDIS, redis_url=servers.redis(), key_prefix=prefix, ttl_seconds=life
    )
    thread, secret = "a thread: {1}", "swordfish"
    inner = {"configurable": {"thread_id": thread, "openai_api_key": secret, "user": "u1"}}
    client: Any = redis_py.Redis.from_url(servers.redis(), decode_responses=True)
    raw: Any = redis_py.Redis.from_url(servers.redis())
    with HarnessCheckpointer(config) as saver, client, raw:
        for name in ("c1", "c3", "c2"):
            given = checkpoint(name, {"messages": ["hello"], "long": ["x" * 400] * 5})
            saver.put(inner, given, {"source": "loop", "step": int(name[1])})
            saver.put_writes(at(thread, name=name), [("n", 1)], "task")

        start = f"{prefix}{{{bucket_of(thread)}}}:thread:a thread%3A %7B1%7D"
        keys = set(client.scan_iter(f"{prefix}*", 1000))
        assert {f"{start}::index", f"{start}:heads", *(f"{start}::item:c{n}" for n in (1, 2, 3))} <= keys
        assert client.zrange(f"{start}::index", 0, -1) == ["c1", "c3", "c2"]
        for n in (1, 2, 3):
            item = json.loads(client.get(f"{start}::item:c{n}"))
            assert item["metadata"] == {"source": "loop", "step": n, "user": "u1"}
            assert (item["thread_id"], item["checkpoint_id"], item["step"]) == (thread, f"c{n}", n)
            assert item["root"]
        assert not any(secret.encode() in raw.dump(key) for key in keys)
        lives = {key: client.ttl(key) for key in keys}
        for key in (f"{start}::index", f"{start}:heads"):
            assert (lives[key] == -1) if life is None else (0 < lives[key] <= LIFE)
        for key in (f"{start}::item:c{n}" for n in (1, 2, 3)):
            assert (lives[key] == -1) if life is None else (LIFE <= lives[key] <= 2 * LIFE)
        assert saver.delete_thread(thread) == 3
        assert not [key for key in client.scan_iter(f"{prefix}*", 1000) if ":thread:" in key]


async def test_a_saver_lists_records_as_it_lists_tuples() -> None:
    saver = HarnessCheckpointer()
    config: Any = at("t")
    for n in range(5):
        config = saver.put(config, checkpoint(f"0{n}", {"n": n}), {"source": "loop", "step": n, "parents": {}})
    tuples = list(saver.list(at("t"), filter={"source": "loop"}, limit=3))
    records = list(saver.list_records(at("t"), filter={"source": "loop"}, limit=3))
    assert (
        [record.checkpoint_id for record in records] == [found.checkpoint_id for found in tuples] == ["04", "03", "02"]
    )
    assert records[0] == saver.get_record(at("t"))
    assert [record async for record in saver.alist_records(at("t"), before=tuples[1].config)] == [
        *saver.list_records(at("t"), before=tuples[1].config)
    ]
    with pytest.raises(InvalidInput):
        saver.list_records(at("t"), limit=-1)
    with pytest.raises(InvalidInput):
        saver.alist_records(at("t"), limit=-1)


def test_the_metadata_of_a_tuple_reads_by_attribute_too() -> None:
    saver = HarnessCheckpointer()
    config = saver.put(at("t"), checkpoint("01", {}), {"source": "input", "step": 7, "parents": {}, "run_id": "r"})
    found, record = saver.get_tuple(config), saver.get_record(config)
    assert found is not None
    assert record is not None
    metadata: Any = found.metadata
    for name in (*CheckpointMetadata.model_fields, "run_id", "source"):
        assert getattr(metadata, name) == getattr(record.metadata, name)
    assert metadata == {"source": "input", "step": 7, "parents": {}, "run_id": "r"}
    with pytest.raises(AttributeError, match="no 'colour'"):
        _ = metadata.colour
    for copied in (copy.deepcopy(metadata), pickle.loads(pickle.dumps(metadata)), json.loads(json.dumps(metadata))):
        assert type(copied) is dict
        assert copied == metadata
    again = saver.put(at("t"), checkpoint("02", {}), metadata)
    assert saver.get_tuple(again).metadata.step == 7  # type: ignore[union-attr]


async def test_the_record_level_backends_share_a_base_that_can_be_subclassed() -> None:
    for built_in in (MemoryBackend, SQLiteBackend, PostgresBackend, RedisBackend):
        assert issubclass(built_in, RecordBackend)

    class Own(RecordBackend):
        def __init__(self) -> None:
            self.held: list[CheckpointRecord] = []

        async def aput(self, record: CheckpointRecord) -> str:
            self.held.append(record)
            return record.checkpoint_id

        async def aget(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointRecord | None:
            found = await self.alist(thread_id)
            return next((r for r in found if checkpoint_id in (None, r.checkpoint_id)), None)

        async def alist(self, thread_id: str, *, limit: int | None = None) -> list[CheckpointRecord]:
            return [r for r in reversed(self.held) if r.thread_id == thread_id][:limit]

        async def adelete(self, thread_id: str) -> int:
            return len(await self.alist(thread_id))

    record = CheckpointRecord(checkpoint={}, checkpoint_id="c1", thread_id="t")
    async with Own() as own:
        await own.aput(record)
        assert await own.aget("t") == record
        with pytest.raises(InvalidInput, match="not Own"):
            HarnessCheckpointer(backend=own)

    class Audited(MemoryBackend):
        async def aput(self, record: CheckpointRecord) -> str:
            return await super().aput(record.model_copy(update={"checkpoint": {"seen": True}}))

    async with Audited() as audited:
        await audited.aput(record)
        assert (await audited.aget("t")).checkpoint == {"seen": True}  # type: ignore[union-attr]
