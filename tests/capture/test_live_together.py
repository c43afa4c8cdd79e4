"""Live threads of one name beside each other, and beside others who write: nothing is lost, and conflicts are named."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep import CheckpointEngine, CommitUnknown, HeadMoved, SnapshotConfig, SnapshotTrigger, StoreBackend
from everstep.history.rebase import Conflict, Values, merge
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Store, Stored
from tests.conftest import STORES
from tests.timeline.own_backend import Own
from tests.tools import servers

ALL = list(SnapshotTrigger)

with_own = pytest.mark.parametrize("kind", [*STORES, "own"], indirect=True)


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def texts(messages: Any) -> list[str]:
    return [message["content"] for message in messages]


class Both:
    """One engine, through the face under test."""

    def __init__(self, engine: CheckpointEngine, face: str) -> None:
        self.engine, self.face = engine, face
        self.sync = engine.sync

    @contextlib.asynccontextmanager
    async def thread(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if self.face == "async":
            async with self.engine.thread(*args, **kwargs) as live:
                yield live
        else:
            with self.sync.thread(*args, **kwargs) as live:
                yield live

    async def save(self, live: Any, **about: Any) -> str:
        saved = live.save(**about)
        return str(await saved if self.face == "async" else saved)

    async def pause(self) -> None:
        if self.face == "async":
            await asyncio.sleep(0.001)
        else:
            threading.Event().wait(0.001)

    def latest(self) -> Any:
        found = self.sync.get_latest("t")
        assert found is not None
        return found


@pytest.fixture
def make(request: pytest.FixtureRequest, kind: str, face: str) -> Callable[..., Both]:
    """Engines on the store under test, or on one backend of somebody's own."""
    backend: Any = Own() if kind == "own" else StoreBackend(request.getfixturevalue("store"))
    return lambda **config: Both(CheckpointEngine(backend, SnapshotConfig(**config)), face)


@pytest.fixture
def both(make: Callable[..., Both]) -> Both:
    return make()


async def failing(both: Both, act: Callable[[Any], Any], error: BaseException | None = None) -> Any:
    """Run a block that may be left by an error, and return its live thread and what came out."""
    live = None
    try:
        async with both.thread("t") as live:
            act(live)
            if error is not None:
                raise error
    except (HeadMoved, ZeroDivisionError) as exc:
        return live, exc
    raise AssertionError("nothing was raised")


# -- what fits


@with_own
async def test_what_both_added_is_kept(both: Both) -> None:
    both.sync.append("t", [said("first")], {"kept": 1, "mine": 0, "gone": 0})
    async with both.thread("t") as outer, both.thread("t") as inner:
        messages, state = outer.messages, outer.state
        outer.messages.append(said("outer"))
        outer.state["mine"] = 1
        inner.messages.append(said("inner"))
        inner.state["theirs"] = {"deep": [1]}
        del inner.state["gone"]
        inner.tools_result["tool"] = "x"
        inner.next_node = "there"
    head = both.latest()
    assert texts(head.messages) == ["first", "inner", "outer"]
    assert head.state == {"kept": 1, "mine": 1, "theirs": {"deep": [1]}}
    assert (head.tools_result, head.next_node) == ({"tool": "x"}, "there")
    assert (outer.messages, outer.state) == (head.messages, head.state)
    assert outer.messages is messages
    assert outer.state is state


@with_own
async def test_a_live_thread_goes_on_with_what_others_did(both: Both) -> None:
    async with both.thread("t") as live:
        own = said("one")
        live.messages.append(own)
        await both.save(live)
        both.sync.append("t", [said("other")], {"theirs": 1})
        live.messages.append(said("two"))
        await both.save(live)
        assert texts(live.messages) == ["one", "other", "two"]
        assert live.messages[0] is own
        assert live.state == {"theirs": 1}
        live.state["theirs"] = 2  # known by now: no conflict
        own["content"] = "changed"
        await both.save(live)
        assert live.checkpoint_id == both.latest().metadata.checkpoint_id
    head = both.latest()
    assert texts(head.messages) == ["changed", "other", "two"]
    assert head.state == {"theirs": 2}
    assert head.metadata.step == 4  # leaving had nothing more to save


@with_own
async def test_the_same_message_of_both_is_kept_twice(both: Both) -> None:
    async with both.thread("t") as outer, both.thread("t") as inner:
        outer.messages.append(said("hello"))
        inner.messages.append(said("hello"))
        outer.state["k"] = inner.state["k"] = 1
    assert texts(both.latest().messages) == ["hello", "hello"]
    assert both.latest().state == {"k": 1}


async def test_an_edit_and_an_addition_fit(both: Both) -> None:
    both.sync.append("t", [said(text) for text in "abcd"])
    async with both.thread("t") as outer, both.thread("t") as inner:
        outer.messages[1:3] = [said("B")]
        inner.messages.append(said("e"))
        inner.messages[0]["content"] = "A"
        await both.save(inner)
        await both.save(outer)
        assert texts(outer.messages) == texts(both.latest().messages)
    assert texts(both.latest().messages) == ["A", "B", "d", "e"]


async def test_removing_and_adding_fit(both: Both) -> None:
    both.sync.append("t", [said(text) for text in "abcd"])
    async with both.thread("t") as outer, both.thread("t") as inner:
        del outer.messages[:2]
        inner.messages.append(said("e"))
    assert texts(both.latest().messages) == ["c", "d", "e"]


# -- what does not fit


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda live: live.state.__setitem__(name, value)


def _edit(text: str) -> Callable[[Any], None]:
    return lambda live: live.messages[0].__setitem__("content", text)


CONFLICTS: dict[str, tuple[Callable[[Any], None], Callable[[Any], None], tuple[str, ...]]] = {
    "a key": (_set("k", 1), _set("k", 2), ("state['k']",)),
    "equal for Python": (_set("k", 1), _set("k", True), ("state['k']",)),
    "set and removed": (_set("old", 1), lambda live: live.state.pop("old"), ("state['old']",)),
    "a message": (_edit("x"), _edit("y"), ("messages",)),
    "next node": (
        lambda live: setattr(live, "next_node", "a"), lambda live: setattr(live, "next_node", "b"), ("next_node",),
    ),
    "tools": (
        lambda live: live.tools_result.update(a=1), lambda live: live.tools_result.update(a=2), ("tools_result['a']",),
    ),
}  # fmt: skip


@with_own
@pytest.mark.parametrize("what", CONFLICTS)
async def test_what_both_changed_is_named_and_nothing_is_written(both: Both, what: str) -> None:
    mine, theirs, names = CONFLICTS[what]
    both.sync.append("t", [said("first")], {"old": 0})
    async with both.thread("t") as inner:
        theirs(inner)

        outer = both.thread("t")
        live = await outer.__aenter__()
        mine(live)
        live.messages.append(said("not lost"))
        await both.save(inner)
        with pytest.raises(HeadMoved) as caught:
            await outer.__aexit__(None, None, None)
    assert caught.value.conflicts == names
    assert names[0] in str(caught.value)
    assert caught.value.actual == both.latest().metadata.checkpoint_id
    assert both.latest().metadata.step == 2
    assert texts(live.messages)[-1] == "not lost"


async def test_a_conflict_can_be_settled_and_saved(both: Both) -> None:
    async with both.thread("t") as live:
        live.state.update(k=1, n=1)
        both.sync.append("t", [], {"k": 2})
        with pytest.raises(HeadMoved):
            await both.save(live)
        live.state["k"] = 2
        await both.save(live)
    assert both.latest().state == {"k": 2, "n": 1}


async def test_a_conflict_on_leaving_by_an_error_is_logged(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    def act(live: Any) -> None:
        live.state["k"] = 1
        both.sync.append("t", [], {"k": 2})

    with caplog.at_level(logging.ERROR, "everstep"):
        _, error = await failing(both, act, ZeroDivisionError())
    assert isinstance(error, ZeroDivisionError)
    assert "state['k']" in caplog.text
    assert both.latest().state == {"k": 2}


async def test_leaving_by_an_error_keeps_what_both_did(both: Both) -> None:
    def act(live: Any) -> None:
        live.messages.append(said("mine"))
        both.sync.append("t", [said("theirs")])

    await failing(both, act, ZeroDivisionError())
    head = both.latest()
    assert texts(head.messages) == ["theirs", "mine"]
    assert head.metadata.metadata["error"]["type"] == "ZeroDivisionError"


# -- a head that was moved back, and a thread that is gone


async def test_after_a_rewind_changes_go_onto_the_head_there_is(both: Both) -> None:
    first = both.sync.append("t", [said("first")], {"k": 0})
    async with both.thread("t") as live:
        live.messages.append(said("left behind"))
        live.state["k"] = 1
        await both.save(live)
        both.sync.rewind(first)
        live.messages.append(said("new"))
        await both.save(live)
        assert texts(live.messages) == ["first", "new"]
        assert live.state == {"k": 0}
        live.messages.append(said("more"))
    head = both.latest()
    assert texts(head.messages) == ["first", "new", "more"]
    assert head.metadata.step == 3


async def test_after_an_undo_changes_go_onto_the_head_there_is(both: Both) -> None:
    first = both.sync.append("t", [said("first")])
    both.sync.append("t", [said("second")])
    both.sync.rewind(first)
    async with both.thread("t") as live:
        live.messages.append(said("new"))
        both.sync.undo("t")
    assert texts(both.latest().messages) == ["first", "second", "new"]


@with_own
async def test_a_thread_that_was_deleted_is_not_begun_again(both: Both) -> None:
    both.sync.append("t", [said("first")])

    def act(live: Any) -> None:
        live.messages.append(said("new"))
        both.sync.checkpointer.delete_thread("t")

    live, error = await failing(both, act)
    assert isinstance(error, HeadMoved)
    assert error.actual is None
    assert both.sync.get_latest("t") is None
    assert texts(live.messages) == ["first", "new"]


# -- calls, scopes, intervals


async def test_calls_in_both_are_all_recorded(make: Callable[..., Both], caplog: pytest.LogCaptureFixture) -> None:
    one, two = make(), make()  # two engines, as two processes have
    first: Any = one.sync.snapshot_on("tool_call")(lambda text: f"first {text}")
    second: Any = two.sync.snapshot_on("tool_call")(lambda text: f"second {text}")
    with caplog.at_level(logging.WARNING, "everstep"):
        async with one.thread("t") as a, two.thread("t") as b:
            for turn in ("x", "y"):
                a.messages.append(said(f"a {turn}"))
                assert first(turn) == f"first {turn}"
                b.messages.append(said(f"b {turn}"))
                assert second(turn) == f"second {turn}"
    assert caplog.text == ""
    points = one.sync.list_time_travel_points("t")
    results = [one.sync.get(point.checkpoint_id).tools_result for point in points][::-1]  # type: ignore[union-attr]
    done = [(result["status"], result.get("result")) for result in results if result]
    expected = [
        pair
        for turn in ("x", "y")
        for name in ("first", "second")
        for pair in (("started", None), ("ok", f"{name} {turn}"))
    ]
    assert done[: len(expected)] == expected
    assert sorted(texts(one.latest().messages)) == ["a x", "a y", "b x", "b y"]


async def test_intervals_save_beside_each_other(make: Callable[..., Both]) -> None:
    both = make(triggers=ALL)
    async with both.thread("t", interval_seconds=0.002) as live:
        for number in range(5):
            live.messages.append(said(f"mine {number}"))
            both.sync.append("t", [said(f"theirs {number}")])
            wanted = {f"mine {number}", f"theirs {number}"}
            for _ in range(10_000):
                if wanted <= set(texts(both.latest().messages)):
                    break
                await both.pause()
    found = texts(both.latest().messages)
    assert sorted(found) == sorted(f"{who} {number}" for who in ("mine", "theirs") for number in range(5))


# -- many at once


@pytest.mark.parametrize("face", ["async"], indirect=True)
@with_own
async def test_tasks_with_live_threads_of_their_own_lose_nothing(both: Both) -> None:
    async def work(name: str) -> None:
        async with both.engine.thread("t") as live:
            for number in range(4):
                live.messages.append(said(f"{name} {number}"))
                live.state[f"{name} {number}"] = number
                await live.save()

    await asyncio.gather(*(work(name) for name in "abc"))
    wanted = sorted(f"{name} {number}" for name in "abc" for number in range(4))
    assert sorted(texts(both.latest().messages)) == wanted
    assert sorted(both.latest().state) == wanted


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_system_threads_with_live_threads_of_their_own_lose_nothing(both: Both) -> None:
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with both.sync.thread("t") as live:
                for number in range(4):
                    live.messages.append(said(f"{name} {number}"))
                    live.save()
        except BaseException as exc:
            failed.append(exc)

    workers = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert failed == []
    assert sorted(texts(both.latest().messages)) == sorted(f"{name} {n}" for name in "abc" for n in range(4))


PROCESS = """
import sys
import everstep

engine, name = everstep.open(sys.argv[1], **eval(sys.argv[2])).sync, sys.argv[3]
with engine.thread("t") as live:
    print("loaded", flush=True)
    sys.stdin.readline()
    for number in range(10):
        live.messages.append({"role": "user", "content": f"{name} {number}"})
        live.state[name] = number
        live.save()
"""


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"], indirect=True)
def test_two_processes_lose_nothing(both: Both, store: Store, kind: str, place: Any) -> None:
    both.sync.append("t", [said("first")])
    url, options = f"sqlite:///{place.path}", "{}"
    if kind == "postgres":
        url = servers.postgres()
    elif kind == "redis":
        url, options = servers.redis(), repr({"key_prefix": place._prefix})
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, url, options, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )
        for name in "ab"
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "loaded\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    head = both.latest()
    assert sorted(texts(head.messages)) == sorted(["first", *(f"{name} {n}" for name in "ab" for n in range(10))])
    assert head.state == {"a": 9, "b": 9}


class Quick:
    """A slow store that does not wait."""

    def __init__(self, store: Slow) -> None:
        self._store, self.blocking = store, self
        self.commit = functools.partial(MemoryStore.commit, store)
        self.read = functools.partial(MemoryStore.read, store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Slow(MemoryStore):
    """A store whose asynchronous calls take a random number of turns of the event loop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.calls: list[str] = []

    @property
    def blocking(self) -> Any:
        return Quick(self)

    async def in_turn(self, thread_id: str, work: Any, seconds: float = 0.0) -> Any:
        return await MemoryStore.in_turn(self, thread_id, lambda _: work(Quick(self)), seconds)

    async def commit(self, change: Change) -> Stored | None:
        self.calls.append("commit")
        await self._wait()
        stored = await super().commit(change)
        await self._wait()
        return stored

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append("read")
        await self._wait()
        return await super().read(*args, **kwargs)

    async def _wait(self) -> None:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
def test_saves_at_once_in_each_of_two_live_threads_lose_nothing_and_repeat_nothing(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Several tasks save in one live thread, with calls on both faces, while another one does the same."""
    engine = CheckpointEngine(StoreBackend(Slow(seed)))
    chance = random.Random(seed)

    @engine.snapshot_on("tool_call")
    async def tool(live: Any, text: str) -> None:
        live.messages.append(said(text))

    @engine.sync.snapshot_on("tool_call")
    def plain(live: Any, text: str) -> None:
        live.messages.append(said(text))

    async def work(live: Any, name: str) -> None:
        for number in range(4):
            text = f"{name} {number}"
            act = chance.randrange(4)
            if act == 0:
                await tool(live, text)
            elif act == 1:
                plain(live, text)
            else:
                live.messages.append(said(text))
            live.state[text] = number
            with contextlib.suppress(HeadMoved):  # it cannot be told whose is whose; a later save will
                await live.save()

    async def agent(name: str) -> None:
        async with engine.thread("t") as live:
            await asyncio.gather(*(work(live, f"{name}{task}") for task in range(3)))

    async def main() -> None:
        await asyncio.gather(agent("a"), agent("b"))

    with caplog.at_level(logging.ERROR, "everstep"):
        asyncio.run(main())
    head = engine.sync.get_latest("t")
    assert head is not None
    wanted = sorted(f"{name}{task} {number}" for name in "ab" for task in range(3) for number in range(4))
    assert sorted(texts(head.messages)) == wanted
    assert sorted(head.state) == wanted
    assert caplog.text == ""


# -- answers that were lost, and what it costs


class Forgetful(MemoryStore):
    """A store that loses the answer to a commit when told so."""

    loses = False

    async def commit(self, change: Change) -> Stored | None:
        stored = await super().commit(change)
        if self.loses:
            self.loses = False
            raise CommitUnknown(None, change.thread_id)
        return stored


def test_a_save_whose_answer_was_lost_is_known_again() -> None:
    store = Forgetful()
    engine = CheckpointEngine(StoreBackend(store)).sync
    with engine.thread("t") as live:
        live.messages.append(said("one"))
        store.loses = True
        with pytest.raises(CommitUnknown):
            live.save()
        live.messages.append(said("two"))
        live.save()
        live.messages.append(said("three"))
        store.loses = True
        with pytest.raises(CommitUnknown):
            live.save()
        engine.append("t", [said("other")])
        live.messages.append(said("four"))
    head = engine.get_latest("t")
    assert head is not None
    assert texts(head.messages) == ["one", "two", "three", "other", "four"]


def test_a_save_that_nobody_meets_is_one_commit_and_reads_nothing() -> None:
    store = Slow(0)
    engine = CheckpointEngine(StoreBackend(store))

    async def main() -> None:
        async with engine.thread("t") as live:
            live.messages.append(said("one"))
            await live.save()
            store.calls.clear()
            for number in range(5):
                live.messages.append(said(str(number)))
                await live.save()
            assert store.calls == ["commit"] * 5
            store.calls.clear()
        assert store.calls == []

    asyncio.run(main())


# -- the rules


LETTERS = st.lists(st.sampled_from("abc"), max_size=5)


@given(base=LETTERS, ours=LETTERS, theirs=LETTERS)
def test_a_merge_has_what_either_did(base: list[str], ours: list[str], theirs: list[str]) -> None:
    def values(messages: list[str]) -> Values:
        return Values([said(text) for text in messages], {}, {}, "")

    old, one, two = values(base), values(ours), values(theirs)
    assert merge(old, one, old).messages == one.messages
    assert merge(old, old, two).messages == two.messages
    more = merge(old, values([*base, *ours]), values([*base, *theirs]))
    assert texts(more.messages) == [*base, *theirs, *ours]


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        ("abc", "abcX", "abcY", "abcYX"),
        ("", "X", "Y", "YX"),
        ("abc", "aBc", "abcY", "aBcY"),
        ("abc", "abcX", "aBc", "aBcX"),
        ("abc", "aBcX", "abcY", "aBcYX"),
        ("abc", "abcX", "Abc", "AbcX"),
        ("abc", "abcX", "ab", "abX"),  # they went back
        ("abc", "abcX", "", "X"),
        ("abc", "bc", "abcY", "bcY"),
        ("abc", "sabc", "abcY", "sabcY"),
        ("abc", "Abc", "abC", "AbC"),
        ("abc", "abC", "Abc", "AbC"),
        ("abc", "aBc", "aBc", "aBc"),
        ("abc", "aBcX", "aBcY", "aBcYX"),
        ("abc", "aBc", "abYc", "aBYc"),
        ("abc", "aBc", "aDc", None),
        ("abc", "aXbc", "aYbc", None),
        ("abc", "ac", "aBc", None),
        ("abc", "abC", "abD", None),
        ("abcd", "ad", "abXcd", None),
    ],
)
def test_messages_fit_where_edits_do_not_overlap(base: str, ours: str, theirs: str, merged: str | None) -> None:
    def values(letters: str) -> Values:
        return Values([said(letter) for letter in letters], {}, {}, "")

    if merged is None:
        with pytest.raises(Conflict, match="messages"):
            merge(values(base), values(ours), values(theirs))
    else:
        assert texts(merge(values(base), values(ours), values(theirs)).messages) == list(merged)


KEYS = st.dictionaries(st.sampled_from([1, "1", True, "k", None]), st.sampled_from([0, False, 0.0, [1]]), max_size=3)


@given(base=KEYS, ours=KEYS, theirs=KEYS)
def test_keys_are_merged_one_by_one(base: Any, ours: Any, theirs: Any) -> None:
    def shape(mapping: Any) -> set[str]:
        return {f"{key!r}: {value!r}" for key, value in mapping.items()}

    def values(mapping: Any) -> Values:
        return Values([], mapping, {}, "")

    assert shape(merge(values(base), values(ours), values(base)).state) == shape(ours)
    assert shape(merge(values(base), values(base), values(theirs)).state) == shape(theirs)
    with contextlib.suppress(Conflict):
        merged = shape(merge(values(base), values(ours), values(theirs)).state)
        assert merged >= (shape(ours) & shape(theirs))
        assert merged <= (shape(ours) | shape(theirs))
