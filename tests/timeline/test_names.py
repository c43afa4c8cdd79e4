"""Names that are left to chance, when chance repeats itself: nothing is replaced, what is new gets another name."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import everstep
from everstep import StoreError
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager
from everstep.stores.protocol import Store
from tests.conftest import STORES, OneFace
from tests.langgraph.graphs import chat, human
from tests.langgraph.tools import at
from tests.timeline.own_backend import Own

OLD, NEW = "0" * 16, "1" * 16


class Chance:
    """Tokens as the test wants them; then new ones."""

    def __init__(self) -> None:
        self._next: list[str] = []
        self._numbers = itertools.count(1 << 40)

    def give(self, *tokens: str) -> None:
        self._next = list(tokens)

    def token_hex(self, size: int) -> str:
        return self._next.pop(0) if self._next else f"{next(self._numbers):0{2 * size}x}"


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> Chance:
    chance = Chance()
    monkeypatch.setattr("everstep.repository.new_names.secrets", SimpleNamespace(token_hex=chance.token_hex))
    return chance


@pytest.fixture
def either(request: pytest.FixtureRequest, kind: str, face: str) -> Any:
    """An engine on the store under test, or on a backend of somebody's own."""
    if kind == "own":
        return OneFace(everstep.CheckpointEngine(Own()), face)
    return request.getfixturevalue("engine")


on_any = pytest.mark.parametrize("kind", [*STORES, "own"], indirect=True)


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_name_has_64_random_bits() -> None:
    engine = everstep.CheckpointEngine(everstep.MemoryCheckpointer()).sync
    made = [engine.append("t", [said("hi")]) for _ in range(50)]
    made.append(engine.branch(made[0], "b"))
    tokens = [name.rpartition("-")[2] for name in made]
    assert {len(token) for token in tokens} == {16}
    numbers = [int(token, 16) for token in tokens]
    for bit in range(64):
        assert {number >> bit & 1 for number in numbers} == {0, 1}


async def test_an_append_replaces_nothing(engine: Any, chance: Chance) -> None:
    first = await engine.append("t", [said("one")])
    await engine.append("t", [said("two")])
    chance.give(OLD)
    kept = await engine.append("t", [said("kept")])
    await engine.snapshot("t", [said("other line")], {}, {}, parent_checkpoint_id=first)
    before = await engine.get(kept)

    chance.give(OLD, NEW)  # this one simply follows the head
    made = await engine.append("t", [said("new")])

    assert (kept, made) == (f"ckpt-t-3-{OLD}", f"ckpt-t-3-{NEW}")
    assert await engine.get(kept) == before
    assert [message["content"] for message in (await engine.get_latest("t")).messages] == ["other line", "new"]


async def test_what_a_rewind_left_behind_is_not_replaced(engine: Any, chance: Chance) -> None:
    first = await engine.append("t", [said("one")])
    chance.give(OLD)
    kept = await engine.append("t", [said("kept")])
    await engine.rewind(first)

    chance.give(OLD, NEW)
    made = await engine.snapshot("t", [said("new")], {}, {})

    assert made.endswith(NEW)
    assert [message["content"] for message in (await engine.get(kept)).messages] == ["one", "kept"]
    await engine.undo("t")
    assert (await engine.get_latest("t")).metadata.checkpoint_id == kept


@on_any
async def test_a_branch_has_a_name_of_its_own(either: Any, chance: Chance) -> None:
    first = await either.append("t", [said("one")])
    chance.give(OLD, NEW)
    kept = await either.branch(first, "b")
    await either.append(kept, [said("kept")])
    await either.append(f"t-branch-b-{NEW}", [said("a stranger")])

    chance.give(OLD, OLD, NEW)
    made = await either.branch(first, "b")

    assert len({kept, made, f"t-branch-b-{OLD}", f"t-branch-b-{NEW}"}) == 3
    assert [message["content"] for message in (await either.get_latest(kept)).messages] == ["one", "kept"]
    assert [message["content"] for message in (await either.get_latest(made)).messages] == ["one"]
    assert [message["content"] for message in (await either.get_latest(f"t-branch-b-{NEW}")).messages] == ["a stranger"]


@on_any
async def test_a_merge_replaces_nothing(either: Any, chance: Chance) -> None:
    first = await either.append("t", [said("one")])
    branch = await either.branch(first, "b")
    await either.append(branch, [said("theirs")])
    chance.give(OLD)
    kept = await either.append("t", [said("kept")])
    await either.snapshot("t", [said("one"), said("ours")], {}, {}, parent_checkpoint_id=first)
    before = await either.get(kept)
    assert before.metadata.step == 2
    await either.append("t", [], {"a": 1})
    chance.give(OLD)
    later = await either.append("t", [], {"b": 1})
    await either.snapshot("t", [said("one"), said("ours")], {}, {}, parent_checkpoint_id=later)
    await either.snapshot("t", [said("one"), said("ours")], {}, {}, parent_checkpoint_id=first)
    await either.append("t", [], {"c": 1})

    chance.give(OLD, NEW)  # step 4, as `later`
    made = await either.merge_branch(branch, "t")

    assert (later, made) == (f"ckpt-t-4-{OLD}", f"ckpt-t-4-{NEW}")
    assert (await either.get(later)).state == {"a": 1, "b": 1}
    assert (await either.get(kept)) == before
    assert len((await either.get(made)).messages) == 3


async def test_an_own_backend_is_asked_first(chance: Chance) -> None:
    engine = everstep.CheckpointEngine(Own())
    chance.give(OLD, OLD)
    first = await engine.append("t", [said("one")])
    kept = await engine.append("t", [said("kept")])
    chance.give(OLD, NEW)
    made = await engine.snapshot("t", [said("other")], {}, {}, parent_checkpoint_id=first)
    assert (kept, made) == (f"ckpt-t-2-{OLD}", f"ckpt-t-2-{NEW}")
    chance.give(OLD)
    last = await engine.append("t", [])
    await engine.snapshot("t", [], {}, {}, parent_checkpoint_id=made)
    again = (await engine.list_time_travel_points("t"))[0].step
    assert (last, again) == (f"ckpt-t-3-{OLD}", 3)
    await engine.snapshot("t", [], {}, {}, parent_checkpoint_id=first)
    chance.give(OLD, NEW)
    rewound = (await engine.rewind(made)).checkpoint.metadata.checkpoint_id
    assert rewound == f"ckpt-t-3-{NEW}"
    found = await engine.get(kept)
    assert found is not None
    assert found.messages == [said("one"), said("kept")]


@on_any
async def test_a_source_of_chance_that_is_none_is_an_error(either: Any, chance: Chance) -> None:
    first = await either.append("t", [said("one")])
    chance.give(*[OLD] * 1000)
    kept = await either.append("t", [said("kept")])
    branch = await either.branch(first, "b")

    with pytest.raises(StoreError, match="urandom"):
        await either.snapshot("t", [], {}, {}, parent_checkpoint_id=first)
    with pytest.raises(StoreError, match="urandom"):
        await either.branch(first, "b")

    assert [message["content"] for message in (await either.get(kept)).messages] == ["one", "kept"]
    assert (await either.get_latest(branch)).messages == [said("one")]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_of_two_writers_of_one_name_both_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    first = engine.append("t", [said("one")])
    local = threading.local()

    def token_hex(_: int) -> str:
        return str(next(local.tokens))

    monkeypatch.setattr("everstep.repository.new_names.secrets", SimpleNamespace(token_hex=token_hex))
    gate = threading.Barrier(2)
    made: dict[int, str] = {}

    def write(number: int) -> None:
        local.tokens = _tokens(number)
        gate.wait(30)
        made[number] = engine.snapshot("t", [said(f"of {number}")], {}, {}, parent_checkpoint_id=first)

    writers = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    assert len(set(made.values())) == 2
    assert f"ckpt-t-2-{OLD}" in made.values()
    for number, checkpoint_id in made.items():
        found = engine.get(checkpoint_id)
        assert found is not None
        assert found.messages == [said(f"of {number}")]


def _tokens(number: int) -> Iterator[str]:
    yield OLD
    for more in itertools.count():
        yield f"{number:08x}{more:08x}"


# -- LangGraph


async def test_a_checkpoint_that_a_saver_names_replaces_nothing(
    make_saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = make_saver()
    names = iter(["old", "old", "new"])
    monkeypatch.setattr("everstep.langgraph.saver.new_checkpoint_id", lambda: next(names))
    made = []
    for value in (1, 2):
        unnamed = {"v": 1, "ts": "", "channel_versions": {"a": value}, "versions_seen": {}}
        made.append(await saver.put(at(), {**unnamed, "channel_values": {"a": value}}, {}, {"a": value}))

    assert [config["configurable"]["checkpoint_id"] for config in made] == ["old", "new"]
    found = [await saver.get_tuple(config) for config in made]
    assert [each.checkpoint["channel_values"] for each in found] == [{"a": 1}, {"a": 2}]


def test_a_task_that_is_named_by_chance_is_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = HarnessCheckpointer()
    tasks = TaskManager(chat(saver), saver)
    names = iter([uuid.UUID(int=1), uuid.UUID(int=1), uuid.UUID(int=2)])
    monkeypatch.setattr("everstep.langgraph.tasks.uuid", SimpleNamespace(uuid4=lambda: next(names)))
    made = [tasks.create_task(human(number)) for number in (1, 2)]
    assert made == [str(uuid.UUID(int=1)), str(uuid.UUID(int=2))]
    assert {status["task_id"] for status in tasks.list_tasks()} == set(made)
