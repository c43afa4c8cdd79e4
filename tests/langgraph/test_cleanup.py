"""Retention by age over a whole store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import everstep
from everstep import errors
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager, cleanup_old_checkpoints, cleanup_old_checkpoints_sync
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query
from tests.langgraph.graphs import in_memory
from tests.langgraph.scripts import Script, Work, log
from tests.langgraph.tools import FacedSaver, at, checkpoint

TASK = "6f1e1315-d859-61c3-8003-4caf3dd1f4ba"


@pytest.fixture
def cleaned(face: str) -> Callable[..., Any]:
    async def call(*args: Any, **options: Any) -> Any:
        if face == "async":
            return await cleanup_old_checkpoints(*args, **options)
        return cleanup_old_checkpoints_sync(*args, **options)

    return call


class Planted:
    """Checkpoints of any age."""

    def __init__(self, saver: FacedSaver) -> None:
        self.saver = saver

    async def put(
        self,
        name: str,
        days: float,
        thread: str = "t",
        ns: str = "",
        parent: str | None = None,
        root: str | None = None,
    ) -> Any:
        made = checkpoint(name, {"n": name})
        made["ts"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        metadata = {"parents": {"": root}} if root is not None else {}
        return await self.saver.put(at(thread, ns, parent), made, metadata, {"n": 1})

    async def line(self, *ages: float, thread: str = "t") -> None:
        before = None
        for number, days in enumerate(ages, 1):
            await self.put(f"c{number}", days, thread, parent=before)
            before = f"c{number}"

    async def ids(self, thread: str = "t", ns: str = "") -> list[str]:
        return sorted(key[2] for key in await self.saver.keys(at(thread, ns)))

    async def namespaces(self, thread: str = "t") -> set[str]:
        return {key[1] for key in await self.saver.keys(at(thread, None))}


@pytest.fixture
def planted(saver: FacedSaver) -> Planted:
    return Planted(saver)


async def test_old_checkpoints_go_and_idle_threads_keep_their_heads(
    planted: Planted, saver: FacedSaver, cleaned: Callable[..., Any]
) -> None:
    await planted.line(10, 8, 6, 1)
    await planted.line(30, 20, thread="idle")
    before = await saver.keys(None)
    report = await cleaned(saver.whole, 7, dry_run=True)
    assert (report.checkpoints, report.threads, report.dry_run) == (3, 2, True)
    assert await saver.keys(None) == before

    report = await cleaned(saver.whole, 7)
    assert (report.checkpoints, report.threads, report.dry_run) == (3, 2, False)
    assert await planted.ids() == ["c3", "c4"]
    assert await planted.ids("idle") == ["c2"]
    assert await saver.values(thread="idle") == {"n": "c2"}
    assert (await cleaned(saver.whole)).checkpoints == 0
    assert (await cleaned(saver.whole, 0.5)).checkpoints == 1
    assert await planted.ids() == ["c4"]


async def test_space_is_given_back(saver: FacedSaver, planted: Planted, cleaned: Callable[..., Any]) -> None:
    made = checkpoint("c0", {"text": "".join(map(str, range(5000)))})
    made["ts"] = "2020-01-01T00:00:00+00:00"
    await saver.put(at(), made, {}, {"text": 1})
    await planted.put("c1", 1, parent="c0")
    foreseen = await cleaned(saver.whole, dry_run=True)
    report = await cleaned(saver.whole)
    assert report.objects == foreseen.objects > 0
    assert report.size_bytes == foreseen.size_bytes > 1000


async def test_a_head_keeps_what_its_unfinished_nodes_need(planted: Planted, cleaned: Callable[..., Any]) -> None:
    await planted.line(20, 10)
    done, open_, deep, younger = (f"node:{TASK}{n}" for n in range(4))
    await planted.put("s1", 20, ns=done, root="c1")
    await planted.put("s2", 19, ns=done, root="c1", parent="s1")
    await planted.put("s1", 10, ns=open_, root="c2")
    await planted.put("s2", 10, ns=open_, root="c2", parent="s1")
    await planted.put("s1", 10, ns=f"{open_}|{deep}", root="c2")
    await planted.put("s1", 2, ns=younger, root="c1")
    await planted.put("s1", 20, ns="memory")
    await planted.put("s2", 20, ns="memory", parent="s1")
    await cleaned(planted.saver.whole, 7)
    assert await planted.namespaces() == {"", open_, f"{open_}|{deep}", younger, "memory"}
    assert await planted.ids(ns=open_) == ["s2"]
    assert await planted.ids(ns="memory") == ["s2"]


async def test_whole_threads_go_if_nothing_in_them_is_young(
    planted: Planted, saver: FacedSaver, cleaned: Callable[..., Any]
) -> None:
    await planted.line(30, 20, thread="idle")
    await planted.put("s1", 20, thread="idle", ns="memory")
    await planted.line(30, 20, thread="half")
    await planted.put("s1", 1, thread="half", ns="memory")
    assert (await cleaned(saver.whole, whole_threads=True, dry_run=True)).checkpoints == 4
    report = await cleaned(saver.whole, whole_threads=True)
    assert report.checkpoints == 4
    assert run_to_end(saver.whole.backend.store.blocking.thread("idle")) is None
    assert await planted.namespaces("half") == {"", "memory"}
    assert await planted.ids("half") == ["c2"]


async def test_pins_and_beginnings_of_branches_stay(
    planted: Planted, saver: FacedSaver, cleaned: Callable[..., Any]
) -> None:
    await planted.line(30, 20, 10)
    await planted.line(30, 20, 10, thread="origin")
    engine = everstep.CheckpointEngine(saver.whole.backend).sync
    engine.pin("c1", thread_id="t", namespace="")
    branch = engine.branch("c2", "other", thread_id="origin", namespace="")
    for whole in (False, True):
        await cleaned(saver.whole, 7, whole_threads=whole)
        assert await planted.ids() == ["c1", "c3"]
        assert await planted.ids("origin") == ["c2", "c3"]
        assert await planted.ids(branch) == ["c2"]  # it is older than the branch


async def test_threads_of_the_engine_go_by_the_same_rule(saver: FacedSaver, cleaned: Callable[..., Any]) -> None:
    backend = saver.whole.backend
    engine = everstep.CheckpointEngine(backend).sync
    old = "2020-01-01T00:00:00+00:00"
    for step in (1, 2, 3):
        metadata = everstep.CheckpointMetadata(
            thread_id="e", checkpoint_id=f"c{step}", step=step, created_at=old,
            parent_checkpoint_id=f"c{step - 1}" if step > 1 else None,
        )  # fmt: skip
        backend.sync.put(everstep.Checkpoint(metadata, [], {"n": step}, {}))
    engine.rewind("c2", thread_id="e")
    for given in (everstep.CheckpointEngine(backend), backend, backend.store):
        assert (await cleaned(given, 7, dry_run=True)).hidden == 1
    report = await cleaned(backend, 7)
    assert (report.checkpoints, report.hidden) == (2, 1)
    listed = run_to_end(backend.store.blocking.list_checkpoints(Query(thread_id="e", hidden="also")))
    assert [stored.record.key.checkpoint_id for stored in listed] == ["c2"]


async def test_tasks_can_be_resumed_after_it(saver: FacedSaver, cleaned: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=lambda _: 1 / 0, end=log("end"))
    tasks = TaskManager(script.graph(), saver.whole)
    tasks.create_task({"logs": []}, task_id="t")
    before = tasks.get_task_status("t")
    await cleaned(saver.whole, 0)
    assert len(await saver.keys(at())) == 1
    assert tasks.get_task_status("t") == before
    script.acts["act"] = log("act")
    assert tasks.resume_task("t") == {"logs": ["look", "act", "end"]}
    await cleaned(saver.whole, 0, whole_threads=True)
    assert tasks.get_task_status("t") == {"task_id": "t", "status": "not_found"}


def asking(checkpointer: Any, memory: Any) -> Any:
    """A graph in a graph, which asks: kept per call, or (True) with a memory of its own."""
    inner: Any = StateGraph(Work)
    inner.add_node("look", log("look"))
    inner.add_node("ask", lambda _: {"logs": [interrupt("?")]})
    inner.add_edge(START, "look").add_edge("look", "ask")
    graph: Any = StateGraph(Work)
    graph.add_node("before", log("before"))
    graph.add_node("inner", inner.compile(checkpointer=memory))
    graph.add_node("end", log("end"))
    graph.add_edge(START, "before").add_edge("before", "inner").add_edge("inner", "end")
    return graph.compile(checkpointer)


@pytest.mark.parametrize("memory", [None, True])
async def test_a_question_in_a_subgraph_can_be_answered_after_it(
    saver: FacedSaver, cleaned: Callable[..., Any], memory: Any
) -> None:
    found = []
    for checkpointer in (saver.whole, in_memory()):
        app = asking(checkpointer, memory)
        app.invoke({"logs": []}, at("t"))
        if checkpointer is saver.whole:
            assert (await cleaned(checkpointer, 0)).checkpoints > 0
        found.append(app.invoke(Command(resume="yes"), at("t")))
    assert found[0] == found[1]
    before = {key[1] for key in await saver.keys(at("t", None))}
    assert len(before) == 2
    await cleaned(saver.whole, 0)
    assert {key[1] for key in await saver.keys(at("t", None))} == ({"", "inner"} if memory else {""})


@pytest.mark.parametrize("days", [-1, float("nan"), "7", True, None])
def test_days_are_checked(days: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="days"):
        cleanup_old_checkpoints_sync(HarnessCheckpointer(), days)


def test_it_needs_a_store() -> None:
    with pytest.raises(errors.InvalidInput, match="not str"):
        cleanup_old_checkpoints_sync("store")


def test_for_ever_is_kept_what_is_to_be_kept_for_ever() -> None:
    saver = HarnessCheckpointer()
    made = checkpoint("c1", {"n": 1})
    made["ts"] = "0001-01-01T00:00:00+00:00"
    saver.put(at(), made)
    assert cleanup_old_checkpoints_sync(saver, float("inf"), whole_threads=True).checkpoints == 0
