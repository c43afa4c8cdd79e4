"""Random stories on threads of the LangGraph saver: turns, answers, crashes, and every operation that can be undone.

Each run of a node leaves an entry in the log that no other run leaves. So whatever is done, an entry stands once where
it belongs, and nowhere else.
"""

from __future__ import annotations

import itertools
import operator
import random
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import everstep
from everstep import CannotUndo, MergeConflict
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.sqlite.store import SQLiteStore
from tests.langgraph.stories import Story, World, name_of

STEPS = 30


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    rounds: int


class Inner(TypedDict):
    memory: Annotated[list[str], operator.add]


def everything(checkpointer: Any, world: World) -> Any:
    """Nodes side by side, a join, a subgraph beside a node, a question in it, and a loop."""
    number = itertools.count()

    def entry(name: str) -> str:
        world.did(name)
        found = f"{name}#{next(number)}"
        world.entries.append(found)
        return found

    def node(name: str) -> Any:
        def run(_: Any) -> dict[str, Any]:
            return {"log": [entry(name)]}

        return run

    def ask(_: Any) -> dict[str, Any]:
        answer = interrupt("deep?")
        world.did("ask")
        return {"memory": [answer]}

    def before(_: Any) -> dict[str, Any]:
        world.did("before")
        return {"memory": ["before"]}

    def count(state: Any) -> dict[str, Any]:
        return {"log": [entry("count")], "rounds": state.get("rounds", 0) + 1}

    inner: Any = StateGraph(Inner)
    inner.add_node("before", before)
    inner.add_node("ask", ask)
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    graph: Any = StateGraph(State)
    for name in ("left", "right", "join", "beside"):
        graph.add_node(name, node(name))
    graph.add_node("inner", inner.compile())
    graph.add_node("count", count)
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_edge(["left", "right"], "join")
    graph.add_edge("join", "inner")
    graph.add_edge("join", "beside")
    graph.add_edge(["inner", "beside"], "count")
    graph.add_conditional_edges("count", lambda state: "join" if state["rounds"] % 2 else END, ["join", END])
    return graph.compile(checkpointer)


FAILING = {"left": ["right"], "right": ["left"], "join": [], "before": [], "count": []}
"""Nodes that may fail, and what is stored before they do."""


class Done(NamedTuple):
    kind: str
    before: Any
    """What its thread was before; None: it did not change."""
    branch: str = ""


class Random:
    """A story, and what is expected of it."""

    def __init__(self, story: Story, seed: int) -> None:
        self.story, self.chance = story, random.Random(seed)
        self.threads: list[str] = ["t"]
        self.known: dict[tuple[str, str], Any] = {}
        """What a checkpoint was when it was first seen."""
        self.done: dict[str, list[Done]] = {"t": []}
        self.undone: dict[str, list[Done]] = {"t": []}
        self.owed: dict[str, set[str]] = {"t": set()}
        """What ran in a thread and has to be in its log once it comes to rest."""

    async def step(self) -> None:
        thread = self.chance.choice(self.threads)
        state, (head, *_) = await self.story.state(thread), await self.story.history(thread)
        acts = ["rewind", "branch", "undo", "redo", "merge"]
        acts += ["answer"] * 4 if state.interrupts else ["go on", "killed"] * 2 if head.next else ["turn"] * 4
        act = self.chance.choice(acts)
        await getattr(self, "_" + act.replace(" ", "_"))(thread, state)
        for each in self.threads:
            await self._check(each)

    async def _check(self, thread: str) -> None:
        history = await self.story.history(thread)
        for found in history:
            log = found.values.get("log", [])
            assert len(set(log)) == len(log), f"twice: {log}"
            seen = self.known.setdefault((thread, name_of(found)), (log, found.next, found.metadata["step"]))
            assert seen == (log, found.next, found.metadata["step"])
        state = await self.story.state(thread)
        assert name_of(state) == name_of(history[0])
        if not state.next:
            assert self.owed[thread] <= set(state.values["log"]), "lost"
            self.owed[thread] = set()

    # -- the graph

    async def _run(self, given: Any, thread: str) -> None:
        self.story.world.entries = []
        await self.story.turn(given, thread)
        self.owed[thread] |= set(self.story.world.entries)

    async def _turn(self, thread: str, _: Any) -> None:
        await self._run({"log": [f"in#{self.chance.random()}"]}, thread)

    async def _answer(self, thread: str, _: Any) -> None:
        await self._run({"deep?": str(self.chance.random())}, thread)

    async def _go_on(self, thread: str, _: Any) -> None:
        await self._run(None, thread)

    async def _killed(self, thread: str, state: Any) -> None:
        could = [name for name in FAILING if name in state.next or ("inner" in state.next and name == "before")]
        if not could or any(task.state and name_of_state(task) for task in state.tasks):
            return
        failing = self.chance.choice(could)
        after = [name for name in FAILING[failing] if name in state.next]
        self.story.world.entries = []
        await self.story.killed(None, thread, failing, after)
        if not {"before"} & {failing}:
            self.owed[thread] |= set(self.story.world.entries)

    # -- operations

    async def _rewind(self, thread: str, _: Any) -> None:
        history = await self.story.history(thread)
        position = self.chance.randrange(len(history))
        target, before = history[position], await self.story.whole(thread)
        if not await self._logged(thread, self.story.engine.rewind(name_of(target), thread_id=thread)):
            assert await self.story.whole(thread) == before
            return
        self._did(thread, Done("rewind", before))
        after = await self.story.history(thread)
        state = await self.story.state(thread)
        assert (state.values, state.next) == (target.values, target.next)
        assert [name_of(found) for found in after] == [name_of(found) for found in history[position:]]
        assert after[1:] == history[position + 1 :]
        self.owed[thread] = set()

    async def _branch(self, thread: str, _: Any) -> None:
        if len(self.threads) > 4:
            return
        target = self.chance.choice(await self.story.history(thread))
        before = await self.story.whole(thread)
        branch = await self.story.engine.branch(name_of(target), "b", thread_id=thread)
        self._did(thread, Done("branch", None, branch))
        self.threads.append(branch)
        self.done[branch], self.undone[branch], self.owed[branch] = [], [], set()
        (first,) = await self.story.history(branch)
        assert (first.values, first.next) == (target.values, target.next)
        assert [task.result for task in first.tasks] == [task.result for task in target.tasks]
        assert await self.story.whole(thread) == before

    async def _merge(self, thread: str, _: Any) -> None:
        other = self.chance.choice(self.threads)
        if other == thread:
            return
        before, untouched = await self.story.whole(thread), await self.story.whole(other)
        ours, theirs = await self.story.history(thread), await self.story.history(other)
        try:
            call = self.story.engine.merge_branch(other, thread, graph=self.story.app, resolve=_rounds)
            if not await self._logged(thread, call):
                assert await self.story.whole(thread) == before
                return
        except MergeConflict:
            assert await self.story.whole(thread) == before
            return
        self._did(thread, Done("merge", before))
        merged = set((await self.story.state(thread)).values["log"])
        assert merged == set(ours[0].values.get("log", ())) | set(theirs[0].values.get("log", ()))
        assert await self.story.whole(other) == untouched
        self.owed[thread] = set()

    async def _undo(self, thread: str, _: Any) -> None:
        if not self.done[thread]:
            with pytest.raises(CannotUndo):
                await self.story.engine.undo(thread)
            return
        found, now = self.done[thread][-1], await self.story.whole(thread)
        inside = await self.story.whole(found.branch) if found.branch else None
        await self.story.engine.undo(thread)
        self.done[thread].pop()
        self.undone[thread].append(found._replace(before=inside if found.branch else now))
        if found.branch:
            self.threads.remove(found.branch)
            assert await self.story.history(found.branch) == []
            assert await self.story.whole(thread) == now
        else:
            assert await self.story.whole(thread) == found.before
            self.owed[thread] = set()

    async def _redo(self, thread: str, _: Any) -> None:
        if not self.undone[thread]:
            with pytest.raises(CannotUndo):
                await self.story.engine.redo(thread)
            return
        found, now = self.undone[thread].pop(), await self.story.whole(thread)
        await self.story.engine.redo(thread)
        if found.branch:
            self.threads.append(found.branch)
            self.done[thread].append(found._replace(before=None))
            assert await self.story.whole(found.branch) == found.before
            assert await self.story.whole(thread) == now
        else:
            self.done[thread].append(found._replace(before=now))
            again = await self.story.whole(thread)
            if found.kind == "merge":  # what was written meanwhile to the checkpoint before it stands there
                again["listed"] = found.before["listed"]
                again["history"] = [
                    old if name_of(new) < name_of(again["state"]) and new.values == old.values else new
                    for new, old in zip(again["history"], found.before["history"], strict=True)
                ]
            assert again == found.before
            self.owed[thread] = set()

    def _did(self, thread: str, done: Done) -> None:
        self.done[thread].append(done)
        self.undone[thread] = []

    async def _logged(self, thread: str, call: Any) -> bool:
        """Whether a call did something that can be undone."""
        before = await self.story.engine.operations(thread)
        await call
        return bool(await self.story.engine.operations(thread) != before)

    async def looked_at(self) -> None:
        """Everything can be shown, and compared."""
        tree = await self.story.engine.get_checkpoint_tree("t")
        drawn = everstep.draw(tree)
        points = await self.story.engine.list_time_travel_points("t")
        assert re.search(r"\(HEAD t[,)]", drawn) is not None
        chosen = self.chance.choices(points, k=2)
        first, second = [await self.story.engine.get(point.checkpoint_id, thread_id="t") for point in chosen]
        changes = await self.story.engine.diff(*(point.checkpoint_id for point in chosen), thread_id="t")
        assert bool([change for change in changes.changes if change.path != "next_node"]) == (
            first.state != second.state
        )


def name_of_state(task: Any) -> bool:
    """Whether a task runs a subgraph that may have begun."""
    return bool(task.interrupts)


def _rounds(conflict: Any) -> Any:
    if conflict.path != "state.rounds":
        raise MergeConflict([conflict])
    return conflict.ours


async def told(story: Story, seed: int) -> None:
    random_story = Random(story, seed)
    await story.turn({"log": ["in#0"]})
    for _ in range(STEPS):
        await random_story.step()
    await random_story.looked_at()


@pytest.mark.parametrize("seed", [1, 6, 236, 284, 297, 309, 325, 413, 435, 504])
def test_a_random_story(seed: int) -> None:
    run_to_end(told(Story(MemoryStore(), everything), seed))


@pytest.mark.parametrize("seed", [103, 460])
def test_a_random_story_in_a_file(tmp_path: Path, seed: int) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    run_to_end(told(Story(store, everything), seed))
    run_to_end(store.blocking.close())
