"""Durable programs made at random, killed at every commit and inside their steps, failing, and taken up again.

The result, the messages and the state are those of an undisturbed run; effects are performed once, other steps at least
once; what is recorded is not called again. EVERSTEP_EXAMPLES says how many programs are tried.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep.durable import functions, running
from everstep.repository import claims
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Store
from everstep.stores.sqlite.store import SQLiteStore
from everstep.types import TASK_NAMESPACE

EXAMPLES: dict[type, int] = {MemoryStore: 120, SQLiteStore: 40}
"""How many programs each store gets in an ordinary run; the servers fewer."""
EXAMPLES_ON_SERVERS = 12
ATTEMPTS_MAX = 60


class Killed(BaseException):
    """Stands for the end of a process: nothing that it does later has an effect."""


class Stumbled(Exception):
    """What the code of a program raises, and does not catch."""


# -- programs


@dataclass(frozen=True)
class Do:
    """A step."""

    name: str
    effect: str
    failures: int
    """How often it fails before it succeeds."""


@dataclass(frozen=True)
class Ask:
    """A question."""

    name: str


@dataclass(frozen=True)
class Wait:
    """An event that is waited for."""

    name: str


@dataclass(frozen=True)
class Nap:
    """A short sleep."""


@dataclass(frozen=True)
class Note:
    """Something that is put into messages and state."""

    text: str


@dataclass(frozen=True)
class Broken:
    """A step that fails, whose failure the code catches."""

    name: str


@dataclass(frozen=True)
class Stumble:
    """An error that ends the run when the code comes there for the first time. Then it is taken up again."""

    name: str


@dataclass(frozen=True)
class Together:
    """Programs side by side, each in a scope of its own."""

    branches: tuple[tuple[Any, ...], ...]


names = st.sampled_from(["a", "b", "c"])
once = st.builds(Do, names, st.just("once"), st.just(0))
single = st.one_of(
    once,
    once,
    once,
    st.builds(Do, names, st.sampled_from(["none", "retry", "once"]), st.just(0)),
    st.builds(Do, names, st.sampled_from(["none", "retry"]), st.integers(1, 2)),
    st.builds(Ask, names),
    st.builds(Wait, names),
    st.builds(Nap),
    st.builds(Note, st.sampled_from(["x", "y"])),
    st.builds(Broken, names),
    st.builds(Stumble, names),
)
several = st.lists(single, min_size=1, max_size=3).map(tuple)
together = st.builds(Together, st.lists(several, min_size=2, max_size=3).map(tuple))
programs = st.lists(st.one_of(single, single, together), min_size=1, max_size=5)
COMMITS = ("checkpoint", "claim", "effect begun", "effect done")
CALLS = ("inside none", "inside retry", "inside once", "inside broken")
# By number, or at the first point of a kind: most points are those of claims and checkpoints.
places = st.one_of(st.integers(1, 14), st.sampled_from(COMMITS + CALLS), st.sampled_from(COMMITS[2:]))
kills = st.lists(st.tuples(places, st.sampled_from(["before", "after"])), min_size=1, max_size=4)
ends = st.one_of(st.just(None), st.tuples(st.sampled_from(["rewind", "branch"]), st.integers(0, 30)))


Kill = tuple[int | str, str]
"""Where a process is killed, and whether before that or after it."""


class Calls(NamedTuple):
    """What was called, in all attempts."""

    all: Counter[str]
    performed: Counter[str]
    """Effects that really happened: the process was killed after that, or not at all."""


class Gate:
    """Lets commits and calls through until the process is to be killed."""

    def __init__(self) -> None:
        self.left = 0
        """How many points are left until it is killed; 0: it is not."""
        self.kind = ""
        """At which kind of points it is killed; empty: it is not."""
        self.when = "before"
        self.is_dead = False
        self.killed: Counter[tuple[str, str]] = Counter()

    def begin(self, kill: Kill | None) -> None:
        self.is_dead = False
        self.left = 0
        self.kind = ""
        if kill is None:
            return
        place, self.when = kill
        if isinstance(place, str):
            self.kind = place
        else:
            self.left = place

    @contextmanager
    def point(self, label: str) -> Iterator[None]:
        """Pass something that happens or does not."""
        self.check()
        self.left -= 1
        is_last = self.left == 0 or self.kind == label
        if is_last and self.when == "before":
            self._kill(label)
        yield
        if is_last:
            self._kill(label)
        self.check()

    def check(self) -> None:
        if self.is_dead:
            raise Killed

    def _kill(self, label: str) -> None:
        self.is_dead = True
        self.killed[label, self.when] += 1
        raise Killed


def label_of(change: Change) -> str:
    """Return what a commit is about."""
    if change.build is None:
        return "other"
    record = change.build(None).record if change.namespace == TASK_NAMESPACE and change.head == "never" else None
    if record is not None:
        return f"effect {record.metadata['effect']['status']}"
    return "claim" if change.namespace == TASK_NAMESPACE else "checkpoint"


class Gated:
    """A store whose commits pass a gate."""

    def __init__(self, store: Any, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, change: Change) -> Any:
        with self._gate.point(label_of(change)):
            return await self._store.commit(change)

    async def delete(self, *args: Any, **kwargs: Any) -> Any:
        self._gate.check()
        return await self._store.delete(*args, **kwargs)


class Trial:
    """One program on one store."""

    def __init__(self, store: Any, program: Sequence[Any], *, stumbles: bool = True) -> None:
        self.gate = Gate()
        self._stumbles = stumbles
        self._stumbled: set[str] = set()
        self.calls = Calls(Counter(), Counter())
        self.recorded: set[str] = set()
        self.held: list[Any] = []
        """The messages and the state that it ended with."""
        self._store = store
        self._program = program
        self._tries: Counter[str] = Counter()

    def engine(self, *, is_gated: bool = True) -> everstep.CheckpointEngine:
        """Return a new engine, as another process has one."""
        engine = everstep.CheckpointEngine(everstep.StoreBackend(self._store))
        if is_gated:
            repository: Any = engine._timeline.repository  # type: ignore[attr-defined]
            repository.store = Gated(repository.store, self.gate)
        return engine

    # -- what the program does

    async def code(self, run: everstep.Run) -> Any:
        return await self._all(run, self._program)

    async def _all(self, run: everstep.Run, program: Sequence[Any]) -> list[Any]:
        return [await self._one(run, each) for each in program]

    async def _one(self, run: everstep.Run, each: Any) -> Any:
        if isinstance(each, Do):
            options: dict[str, Any] = {"effect": each.effect}
            if each.failures:
                options |= {"retries": each.failures, "backoff": 0}
            return await run.step(self._do, each.name, each.effect, each.failures, **options)
        if isinstance(each, Broken):
            try:
                return await run.step(self._broken, each.name)
            except ValueError as error:
                return f"caught {error}"
        if isinstance(each, Stumble):
            if self._stumbles and each.name not in self._stumbled:
                self._stumbled.add(each.name)
                raise Stumbled
            return None
        if isinstance(each, Ask):
            return await run.ask(f"{each.name}?")
        if isinstance(each, Wait):
            return await run.wait_for(each.name)
        if isinstance(each, Nap):
            return await run.sleep(0.0001)
        if isinstance(each, Note):
            run.messages.append({"role": "assistant", "content": each.text})
            run.state[each.text] = run.state.get(each.text, 0) + 1
            return run.state[each.text]
        return await run.gather(*(self._scoped(run, n, branch) for n, branch in enumerate(each.branches)))

    async def _scoped(self, run: everstep.Run, number: int, program: Sequence[Any]) -> list[Any]:
        with run.scope(f"branch {number}"):
            # Notes in parallel branches would be put in the order of who is faster.
            return await self._all(run, [each for each in program if not isinstance(each, (Note, Wait))])

    async def _do(self, name: str, effect: str, failures: int) -> str:
        key = everstep.step_key()
        await asyncio.sleep(0)
        with self.gate.point(f"inside {effect}"):
            self.calls.all[key] += 1
            self._tries[key] += 1
            if self._tries[key] <= failures:
                raise RuntimeError("flaky")
            self.calls.performed[key] += 1
        return f"{name} done"

    async def _broken(self, name: str) -> str:
        with self.gate.point("inside broken"):
            self.calls.all[everstep.step_key()] += 1
        raise ValueError(name)

    # -- running it

    async def attempt(self, kill: Kill | None) -> str:
        """Run it until it ends, waits or is killed, as a process of its own; return which."""
        self.gate.begin(kill)
        engine = self.engine()
        work = engine.durable(self.code, name="work")  # type: ignore[call-overload]
        before = Counter(self.calls.all)
        try:
            handle = await work.start(thread_id="t")
            await asyncio.wait([handle._task])
            part = handle._task.result()
            ended = "done" if part.is_done else "waiting"
        except Killed:
            ended = "killed"
        except Stumbled:
            ended = "failed"
        again = {key for key in self.calls.all if self.calls.all[key] > before[key]} & self.recorded
        assert not again, f"recorded, and called again: {again}"
        return ended

    async def look(self) -> None:
        """Note what is recorded, by the keys of its steps."""
        engine = self.engine(is_gated=False)
        points = await engine.list_time_travel_points("t", 1000)
        entries = [entry for point in points for entry in point.metadata.get("run_entries", ())]
        start = [point.checkpoint_id for point in points if any(e["op"] == "start" for e in entries_of(point))]
        steps = [entry for entry in entries if entry["op"] == "step"]
        keys = Counter(entry["key"] for entry in steps)
        assert all(number == 1 for number in keys.values()), f"recorded more than once: {keys}"
        self.recorded = {f"{start[0]}/{entry['key']}/{entry['args'][:16]}" for entry in steps}

    async def answer_all(self, thread_id: str = "t") -> None:
        """Do what the run waits for."""
        engine = self.engine(is_gated=False)
        [info] = [info for info in await engine.runs() if info.thread_id == thread_id]
        for wait in info.waits:
            if wait.kind == "event":
                await engine.signal(thread_id, str(wait.event), f"event {wait.event}")
            elif str(wait.question).startswith("Did "):
                await engine.answer(thread_id, self._fate(wait.key.rpartition("?")[0]), key=wait.key)
            else:
                await engine.answer(thread_id, f"answer to {wait.question}", key=wait.key)

    def _fate(self, key: str) -> Any:
        """Return whether an effect happened, as somebody knows who looks."""
        happened = [each for each in self.calls.performed if each.split("/", 1)[1].rpartition("/")[0] == key]
        return everstep.happened(_result_of(key)) if happened else everstep.did_not_happen()

    async def to_the_end(self, kills: Sequence[Kill]) -> Any:
        """Run it with these kills, and return its result."""
        left = list(kills)
        for _ in range(ATTEMPTS_MAX):
            ended = await self.attempt(left.pop(0) if left else None)
            await self.look()
            if ended == "done":
                engine = self.engine(is_gated=False)
                result = await engine.durable(self.code, name="work")(thread_id="t")  # type: ignore[call-overload]
                head = await engine.get_latest("t")
                assert head is not None
                self.held = [head.messages, head.state]
                return result
            if ended == "waiting":
                await self.answer_all()
        raise AssertionError("it did not come to an end")


def entries_of(point: everstep.CheckpointMetadata) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = point.metadata.get("run_entries", [])
    return found


def _result_of(key: str) -> str:
    """Return what an effect gives: its function is `_do`, and its name is in the arguments."""
    return f"effect of {key}"


async def undisturbed(program: Sequence[Any]) -> tuple[Any, Any]:
    """Return the result of a program that nothing happens to, and what it holds then."""
    trial = Trial(MemoryStore(), program, stumbles=False)
    result = await trial.to_the_end([])
    return result, trial.held


KILLED: Counter[tuple[str, str]] = Counter()
"""Where processes were killed, over all examples of a run."""


async def check(store: Any, program: Sequence[Any], kills: Sequence[Kill], end: Any) -> None:
    """Run a program with kills, and compare it with an undisturbed run."""
    expected, held = await undisturbed(program)
    trial = Trial(store, program)
    with mock.patch.object(claims, "is_dead", return_value=True):
        found = await trial.to_the_end(kills)
    KILLED.update(trial.gate.killed)
    assert _without_fates(found) == _without_fates(expected)
    assert trial.held == held
    effects = dict(trial.calls.performed)
    once = [key for key in effects if await _is_once(trial, key)]
    assert all(effects[key] == 1 for key in once), f"performed more than once: {effects}"
    if end is not None:
        how, number = end
        await _go_back(trial, how, number, found)
        assert all(trial.calls.performed[key] == 1 for key in once)


async def _is_once(trial: Trial, key: str) -> bool:
    points = await trial.engine(is_gated=False).list_time_travel_points("t", 1000)
    name = key.split("/", 1)[1].rpartition("/")[0]
    return any(e["op"] == "step" and e["key"] == name and e["effect"] == "once" for p in points for e in entries_of(p))


async def _go_back(trial: Trial, how: str, number: int, found: Any) -> None:
    """Rewind to a checkpoint of the run, or branch there, and go on: the end is the same."""
    trial.gate.begin(None)
    engine = trial.engine(is_gated=False)
    engine.durable(trial.code, name="work")  # type: ignore[call-overload]
    points = await engine.list_time_travel_points("t", 1000)
    point = points[number % len(points)]
    thread_id = "t"
    if how == "rewind":
        await engine.rewind(point.checkpoint_id)
    else:
        thread_id = await engine.branch(point.checkpoint_id, "again")
    for _ in range(ATTEMPTS_MAX):
        [info] = [info for info in await engine.runs() if info.thread_id == thread_id]
        if info.status == "done":
            break
        if info.status == "waiting":
            await trial.answer_all(thread_id)
        await _take_up(engine, thread_id)
    assert _without_fates(await engine.resume(thread_id)) == _without_fates(found)


async def _take_up(engine: everstep.CheckpointEngine, thread_id: str) -> None:
    runner = functions.async_runner(engine, engine._programs.find("work"))
    await running.take_part(runner, thread_id, None)


def _without_fates(result: Any) -> Any:
    """Return a result in which it does not matter who told it."""
    if isinstance(result, list):
        return [_without_fates(each) for each in result]
    return (
        "effect" if isinstance(result, str) and (result.startswith("effect of") or result.endswith(" done")) else result
    )


def examples(store: object) -> int:
    return int(os.environ.get("EVERSTEP_EXAMPLES", 0)) or EXAMPLES.get(type(store), EXAMPLES_ON_SERVERS)


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_programs_that_are_killed_come_to_the_same_end(store: Store) -> None:
    whole = getattr(store, "whole", store)
    loop = asyncio.get_running_loop()
    count = 0

    @settings(max_examples=examples(whole), database=None)
    @given(programs, kills, ends)
    def run(program: list[Any], kills: list[Kill], end: Any) -> None:
        nonlocal count
        count += 1
        asyncio.run_coroutine_threadsafe(_fresh(whole, program, kills, end), loop).result()

    await asyncio.to_thread(run)
    assert count > 1
    if os.environ.get("EVERSTEP_EXAMPLES"):
        print(count, "programs, killed at", sorted(KILLED.items()))
    if examples(whole) >= 2_000:
        rare = [place for place in itertools.product(COMMITS, ("before", "after")) if KILLED[place] < 50]
        assert not rare, f"hardly ever killed there: {rare}"


async def _fresh(store: Any, program: list[Any], kills: list[Kill], end: Any) -> None:
    await everstep.CheckpointEngine(everstep.StoreBackend(store)).delete_threads(everything=True)
    await check(store, program, kills, end)
