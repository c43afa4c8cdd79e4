"""The published backend methods, the data classes and the factories."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import AmbiguousCheckpoint, Checkpoint, CheckpointMetadata, InvalidInput
from everstep.errors import StoreUnavailable
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Swept


def checkpoint(checkpoint_id: str = "c1", thread_id: str = "t", step: int = 1, **more: Any) -> Checkpoint:
    values = {name: more.pop(name) for name in ("messages", "state", "tools_result", "next_node") if name in more}
    return Checkpoint(CheckpointMetadata(thread_id, checkpoint_id, step, **more), **values)


async def test_put_stores_what_it_is_given(backend: Any) -> None:
    given = checkpoint(
        "mine", step=42, parent_checkpoint_id="elsewhere", created_at="yesterday", tags=["a", "b"], summary="s",
        trigger="manual", metadata={"k": (1, 2)}, messages=[{"role": "user"}], state={"a": 1}, next_node="n",
    )  # fmt: skip
    assert await backend.put(given) == "mine"
    read = await backend.get("mine")
    given.metadata.size_bytes = read.metadata.size_bytes
    assert read == given


async def test_put_twice_is_one_and_other_content_replaces(backend: Any) -> None:
    one = checkpoint(state={"v": 1})
    await backend.put(one)
    await backend.put(checkpoint("c2", step=2))
    await backend.put(one)
    assert [m.checkpoint_id for m in await backend.list_checkpoints("t")] == ["c2", "c1"]
    await backend.put(checkpoint(state={"v": 2}))
    assert [m.checkpoint_id for m in await backend.list_checkpoints("t")] == ["c2", "c1"]
    assert (await backend.get("c1")).state == {"v": 2}
    assert (await backend.get_latest("t")).metadata.checkpoint_id == "c2"


async def test_the_parent_named_last_counts(backend: Any) -> None:
    first = CheckpointMetadata("t", "c1", 1, parent_checkpoint_id="a")
    for parent in ("b", None):
        changed = dataclasses.replace(first, checkpoint_id=f"to {parent}", parent_checkpoint_id=parent or "x")
        changed.parent_checkpoint_id = parent
        await backend.put(Checkpoint(changed))
        assert (await backend.get(f"to {parent}")).metadata.parent_checkpoint_id == parent


async def test_an_id_in_two_threads_must_be_named_fully(backend: Any) -> None:
    for thread_id, namespace in (("a", ""), ("a", "sub"), ("b", "")):
        await backend.put(checkpoint("same", thread_id, namespace=namespace, state={"at": thread_id + namespace}))
    with pytest.raises(AmbiguousCheckpoint) as caught:
        await backend.get("same")
    assert len(caught.value.places) == 3
    with pytest.raises(AmbiguousCheckpoint):
        await backend.get("same", thread_id="a")
    assert (await backend.get("same", thread_id="a", namespace="sub")).state == {"at": "asub"}
    assert (await backend.get("same", thread_id="b")).state == {"at": "b"}
    assert await backend.get("same", thread_id="c") is None


@pytest.mark.parametrize("wrong", [{"thread_id": ""}, {"thread_id": 3}, {"namespace": 3}])
async def test_a_place_that_is_none_is_refused_whether_the_id_is_there_or_not(backend: Any, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        await backend.get("nowhere", **wrong)


async def test_threads_are_listed_by_activity(backend: Any) -> None:
    for name in ("a", "b", "c", "a"):
        await backend.put(checkpoint(f"{name}{len(await backend.list_checkpoints(name))}", name))
    assert [m.thread_id for m in await backend.list_threads()] == ["a", "c", "b"]
    assert [m.thread_id for m in await backend.list_threads(limit=1, offset=1)] == ["c"]
    assert await backend.list_threads(limit=0) == []


async def test_deletion_is_exact(backend: Any) -> None:
    for step in range(1, 6):
        await backend.put(checkpoint(f"c{step}", step=step, messages=[{"n": n} for n in range(step)]))
    await backend.put(checkpoint("x", "other"))
    assert await backend.delete_before("t", 3) == 2
    assert [m.step for m in await backend.list_checkpoints("t")] == [5, 4, 3]
    assert (await backend.get("c3")).messages == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert await backend.delete_thread("t") == 3
    assert await backend.delete_thread("t") == 0
    assert await backend.get("c5") is None
    assert await backend.get("x") is not None


async def test_a_thread_that_was_deleted_can_be_written_again(backend: Any) -> None:
    big = [{"content": f"{n} " * 500} for n in range(50)]
    await backend.put(checkpoint("c1", messages=big))
    await backend.delete_thread("t")
    await backend.put(checkpoint("c2", messages=big))
    assert (await backend.get_latest("t")).messages == big


async def test_lists_can_be_filtered(backend: Any) -> None:
    await backend.put(checkpoint("c1", metadata={"user": "a"}))
    await backend.put(checkpoint("c2", metadata={"user": "b"}))
    assert [m.checkpoint_id for m in await backend.list_checkpoints("t", filter={"user": "a"})] == ["c1"]


@pytest.mark.parametrize(
    "bad",
    [
        checkpoint(""),
        checkpoint("x" * 5000),
        checkpoint(thread_id=""),
        checkpoint(step="1"),  # type: ignore[arg-type]
        checkpoint(step=2**62),
        checkpoint(tags="a"),
        checkpoint(tags=[1]),
        checkpoint(parents=["a", "b", "c"]),
        checkpoint(parents=[5]),
        checkpoint(summary=None),
        checkpoint(created_at=5),
        checkpoint(metadata=5),
        checkpoint(messages=()),
        checkpoint(state=None),
        checkpoint(tools_result=[]),
        checkpoint(next_node=None),
        {"metadata": {}},
        None,
    ],
)
async def test_an_impossible_checkpoint_is_refused(backend: Any, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        await backend.put(bad)
    assert await backend.list_threads() == []


async def test_unstorable_metadata_is_refused(backend: Any) -> None:
    with pytest.raises(everstep.UnstorableValue):
        await backend.put(checkpoint(metadata={"k": object()}))
    assert await backend.list_threads() == []


async def test_impossible_numbers_are_refused(backend: Any) -> None:
    for call in (
        backend.list_threads(limit=-1),
        backend.list_threads(offset=-1),
        backend.list_checkpoints("t", limit="5; DROP TABLE"),
        backend.list_checkpoints("t", offset=1.0),
        backend.delete_before("t", None),
        backend.delete_before("t", "1"),
    ):
        with pytest.raises(InvalidInput):
            await call


def test_a_checkpoint_becomes_a_dict_and_back() -> None:
    given = checkpoint("c", parent_checkpoint_id="p", tags=["x"], messages=[{"a": 1}], state={"s": 1}, next_node="n")
    data = given.to_dict()
    assert set(data) == {"metadata", "messages", "state", "tools_result", "next_node"}
    assert data["metadata"]["parent_checkpoint_id"] == "p"
    assert Checkpoint.from_dict(data) == given


def test_missing_optional_keys_get_their_defaults() -> None:
    read = Checkpoint.from_dict({"metadata": {"thread_id": "t", "checkpoint_id": "c", "step": 1}})
    assert (read.messages, read.state, read.tools_result, read.next_node) == ([], {}, {}, "")
    assert read.metadata.tags == []


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"metadata": None},
        {"metadata": {"thread_id": "t"}},
        {"metadata": {"thread_id": "t", "checkpoint_id": "c", "step": 1}, "stat": {}},
        None,
    ],
)
def test_an_impossible_dict_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        Checkpoint.from_dict(data)


def test_open_knows_its_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with everstep.open("memory://").sync as engine:
        assert engine.snapshot("t", [], {}, {})
    with everstep.open(f"sqlite:///{tmp_path}/a b.db").sync as engine:
        assert engine.snapshot("t", [], {}, {})
    assert (tmp_path / "a b.db").exists()
    monkeypatch.chdir(tmp_path)
    with everstep.open().sync as engine:
        engine.snapshot("t", [], {}, {})
    assert (tmp_path / "checkpoints.db").exists()
    monkeypatch.setenv("EVERSTEP_STORE", "sqlite:///from-env%20.db")
    with everstep.open(config=everstep.SnapshotConfig()).sync as engine:
        engine.snapshot("t", [], {}, {})
    assert (tmp_path / "from-env .db").exists()


@pytest.mark.parametrize(
    "url", ["mysql://x", "sqlite://", "sqlite:///", "sqlite:a.db", "memory://x", "", b"a.db", 5, "postgres", "redis"]
)
def test_an_unknown_url_lists_the_known_ones(url: Any) -> None:
    with pytest.raises(InvalidInput):
        everstep.open(url)
    if isinstance(url, str) and url.startswith("mysql"):
        with pytest.raises(InvalidInput, match="sqlite:///"):
            everstep.open(url)


def test_factories(tmp_path: Path) -> None:
    assert isinstance(everstep.create_checkpointer("memory", db_path="ignored"), everstep.MemoryCheckpointer)
    made = everstep.create_checkpointer(db_path=str(tmp_path / "x.db"), synchronous="normal")
    assert isinstance(made, everstep.SQLiteCheckpointer)
    engine = asyncio.run(everstep.create_checkpoint_engine("memory", config=everstep.SnapshotConfig(gc_param=5)))
    assert engine.config.gc_param == 5
    for wrong in ({"backend": "mongo"}, {"backend": "sqlite", "colour": "red"}, {"backend": "sqlite", "db_path": ""}):
        with pytest.raises(InvalidInput):
            everstep.create_checkpointer(**wrong)  # type: ignore[arg-type]


def test_a_backend_is_a_context_manager() -> None:
    async def main() -> None:
        async with everstep.MemoryCheckpointer() as backend:
            await backend.put(checkpoint())
            assert backend.sync.get("c1") is not None

    asyncio.run(main())
    with everstep.MemoryCheckpointer().sync as sync:
        assert sync.get_latest("t") is None


async def test_a_deletion_that_was_done_is_not_reported_as_refused() -> None:
    """Giving the space back comes after it, and can be done another time."""

    class Unswept(MemoryStore):
        async def sweep(self, *_: Any, **__: Any) -> Swept:
            raise StoreUnavailable("gone")

    backend = everstep.StoreBackend(Unswept())
    await backend.put(checkpoint("c1"))
    await backend.put(checkpoint("c2", step=2))
    assert await backend.delete_before("t", 2) == 1
    engine = everstep.CheckpointEngine(backend)
    first = await engine.append("u", [], {"n": 1})
    last = await engine.append("u", [], {"n": 2})
    await engine.rewind(first, later="delete")
    assert await engine.get(last) is None


def _in_a_live_thread(engine: everstep.SyncEngine, messages: list[Any]) -> None:
    with engine.thread("t") as live:
        live.messages += messages


WAYS: dict[str, Any] = {
    "snapshot": lambda engine, messages: engine.snapshot("t", messages, {}, {}),
    "append": lambda engine, messages: engine.append("t", messages),
    "live thread": _in_a_live_thread,
    "backend": lambda engine, messages: engine.checkpointer.put(checkpoint("c1", messages=messages)),
}


@pytest.mark.parametrize("messages", [["hello"], [None], [{"role": "user"}, ("role", "user")], [{}, {}, object()]])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_message_is_refused_with_its_place(way: str, messages: list[Any]) -> None:
    with everstep.open("memory://").sync as engine:
        with pytest.raises(InvalidInput, match=rf"messages\[{len(messages) - 1}\] is a dict") as caught:
            WAYS[way](engine, messages)
        assert type(messages[-1]).__name__ in str(caught.value)
        assert engine.get_latest("t") is None


def test_a_message_that_is_appended_again_is_there_twice() -> None:
    """Append does not look at the conversation: docs/concepts.md says why."""
    message = {"id": "m1", "role": "user", "content": "hello"}
    with everstep.open("memory://").sync as engine:
        engine.append("t", [message])
        engine.append("t", [message])
        assert engine.get_latest("t").messages == [message, message]  # type: ignore[union-attr]
