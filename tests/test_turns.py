"""Writers that others are faster than: after a few tries they get a turn, and every try has an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import everstep
from everstep import CheckpointGC, SnapshotConfig, StoreUnavailable
from everstep.errors import HeadMoved
from everstep.faces import run_to_end
from everstep.stores.protocol import Change, Store, Stored
from everstep.stores.redis import RedisStore
from tests import servers
from tests.conftest import OneFace, Place

TRIES = 3
TURNS = 5


class Beset:
    """A store on which somebody else is always a little faster, but for turns. Both faces count together."""

    def __init__(self, store: Store, rival: Callable[[str], object], tries: list[str]) -> None:
        self._store, self._rival, self.tries = store, rival, tries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def blocking(self) -> Any:
        return type(self)(self._store.blocking, self._rival, self.tries)

    async def commit(self, change: Change) -> Stored | None:
        self.tries.append(change.thread_id)
        self._rival(change.thread_id)
        return await self._store.commit(change)


class Hopeless(Beset):
    """The same, in turns too."""

    async def in_turn(
        self, thread_id: str, work: Callable[[Store], Coroutine[Any, Any, Any]], seconds: float = 0.0
    ) -> Any:
        async def beaten(inside: Store) -> Any:
            return await work(_Refusing(inside, self._rival, self.tries))

        return await self._store.in_turn(thread_id, beaten, seconds)


class _Refusing(Beset):
    async def commit(self, change: Change) -> Stored | None:
        self.tries.append("turn")
        raise HeadMoved(change.thread_id, "a head", "another")


class Race:
    """An engine that is always beaten, and the one that beats it."""

    def __init__(self, place: Place, face: str) -> None:
        self._place, self._face = place, face
        self._opened: list[Store] = []
        self.tries: list[str] = []
        self.rival: Any = everstep.CheckpointEngine(everstep.StoreBackend(self._open()), SnapshotConfig()).sync
        self.engine = self.make(Beset, self.say)

    def _open(self) -> Store:
        self._opened.append(self._place.open())
        return self._opened[-1]

    def say(self, thread_id: str) -> None:
        self.rival.append(thread_id, [{"role": "user", "content": "rival"}])

    def make(self, kind: type[Beset], rival: Callable[[str], object], **config: Any) -> Any:
        store: Any = kind(self._open(), rival, self.tries)
        return OneFace(everstep.CheckpointEngine(everstep.StoreBackend(store), SnapshotConfig(**config)), self._face)

    def words(self, thread_id: str = "t") -> list[str]:
        return [message["content"] for message in self.rival.get_latest(thread_id).messages]

    def close(self) -> None:
        for store in self._opened:
            run_to_end(store.blocking.close())


@pytest.fixture
def race(place: Place, face: str) -> Iterator[Race]:
    race = Race(place, face)
    race.say("t")
    yield race
    race.close()


async def test_an_append_that_is_always_beaten_gets_its_turn(race: Race) -> None:
    await race.engine.append("t", [{"role": "user", "content": "own"}])
    assert len(race.tries) == TRIES
    assert race.words() == ["rival"] * 4 + ["own"]


async def test_an_append_to_a_new_thread_that_is_always_beaten_gets_its_turn(race: Race) -> None:
    await race.engine.append("new", [{"role": "user", "content": "own"}], {"key": 1})
    assert len(race.tries) == TRIES
    assert race.words("new") == ["rival"] * 3 + ["own"]


async def test_an_append_that_names_a_head_is_told_of_another(race: Race) -> None:
    head = race.rival.get_latest("t").metadata.checkpoint_id
    with pytest.raises(HeadMoved):
        await race.engine.append("t", [{"role": "user", "content": "own"}], expected_head=head)
    assert len(race.tries) == 1


async def test_a_snapshot_whose_base_is_always_gone_gets_its_turn(race: Race) -> None:
    forgetful: Any = everstep.CheckpointEngine(
        everstep.StoreBackend(race._open()), SnapshotConfig(gc_policy=CheckpointGC.KEEP_LAST_N, gc_param=1)
    ).sync
    text = "a text that is long enough to be an object of its own " * 200
    engine = race.make(
        Beset, lambda thread_id: forgetful.snapshot(thread_id, [{"role": "user", "content": text}], {}, {})
    )
    forgetful.snapshot("s", [{"role": "user", "content": text}], {}, {})
    await engine.get_latest("s")
    await engine.snapshot("s", [{"role": "user", "content": text}, {"role": "user", "content": "own"}], {}, {})
    assert len(race.tries) == TRIES
    assert race.words("s") == [text, "own"]


async def test_a_rewind_and_its_undo_that_are_always_beaten_get_their_turns(race: Race) -> None:
    first = race.rival.get_latest("t").metadata.checkpoint_id
    race.say("t")
    await race.engine.rewind(first)
    assert len(race.tries) == TRIES
    assert race.words() == ["rival"]
    race.tries.clear()
    assert (await race.engine.undo("t")).kind == "rewind"
    assert len(race.tries) == TRIES
    assert race.words() == ["rival"] * 5
    race.tries.clear()
    assert (await race.engine.redo("t")).kind == "rewind"
    assert len(race.tries) == TRIES


async def test_a_rewind_that_deletes_does_so_after_its_turn(race: Race) -> None:
    first = race.rival.get_latest("t").metadata.checkpoint_id
    race.say("t")
    await race.engine.rewind(first, later="delete")
    assert len(race.tries) == TRIES
    assert [point.checkpoint_id for point in race.rival.list_time_travel_points("t")] == [first]


async def test_a_merge_that_is_always_beaten_gets_its_turn(race: Race) -> None:
    branch = race.rival.branch(race.rival.get_latest("t").metadata.checkpoint_id, "b")
    race.rival.append(branch, [{"role": "user", "content": "branch"}])
    merged = await race.engine.merge_branch(branch, "t")
    assert len(race.tries) == TRIES
    assert race.rival.get_latest("t").metadata.checkpoint_id == merged
    assert sorted(race.words()) == ["branch"] + ["rival"] * 4


async def test_what_is_beaten_in_its_turns_too_ends_with_an_error(race: Race) -> None:
    hopeless = race.make(Hopeless, race.say)
    with pytest.raises(StoreUnavailable, match="an append of thread 't' was overtaken"):
        await hopeless.append("t", [{"role": "user", "content": "own"}])
    assert race.tries.count("turn") == TURNS
    assert "own" not in race.words()
    race.tries.clear()
    await race.engine.append("t", [{"role": "user", "content": "own"}])
    assert len(race.tries) == TRIES, "a turn that ended without a change is in the way of others"


async def test_a_head_that_is_remembered_makes_the_next_append_one_try(race: Race, face: str) -> None:
    await race.engine.append("t", [{"role": "user", "content": "own"}])
    race.tries.clear()
    quiet = race.make(Beset, lambda _: None)
    await quiet.append("t", [{"role": "user", "content": "one"}])
    await quiet.append("t", [{"role": "user", "content": "two"}])
    assert len(race.tries) == 2


@pytest.fixture(params=["redis", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Callable[..., RedisStore]]:
    url, prefix = servers.redis() if request.param == "redis" else servers.redis_cluster(), servers.redis_prefix()
    opened: list[RedisStore] = []

    def make(**options: Any) -> RedisStore:
        opened.append(RedisStore(url, key_prefix=prefix, **options))
        return opened[-1]

    yield make
    for store in opened:
        run_to_end(store.blocking.close())


def test_the_turn_of_a_writer_that_has_died_ends(server: Callable[..., RedisStore]) -> None:
    engine: Any = everstep.CheckpointEngine(everstep.StoreBackend(server())).sync
    engine.append("t", [{"role": "user", "content": "one"}])
    dead = server()
    assert dead._server.take_turn("t", 0.0, time.monotonic() + 30) is not None
    hasty = everstep.CheckpointEngine(everstep.StoreBackend(server(timeout_seconds=0.1))).sync
    for _ in range(2):  # the first call is the one that gets to know the server
        with pytest.raises(StoreUnavailable):
            hasty.append("t", [{"role": "user", "content": "hasty"}])
    engine.append("t", [{"role": "user", "content": "two"}])
    assert [message["content"] for message in engine.get_latest("t").messages] == ["one", "two"]


def test_a_turn_is_not_longer_than_its_writer_has_time(
    server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = server()
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    engine.append("t", [{"role": "user", "content": "one"}])
    asked: list[Any] = []
    ask = store._server._ask

    def watch(at: float, verb: str, *args: Any, **options: Any) -> Any:
        asked.append((verb, *args))
        return ask(at, verb, *args, **options)

    monkeypatch.setattr(store._server, "_ask", watch)
    turn = store._server.take_turn("t", 1e6, time.monotonic() + 2)
    assert turn is not None
    assert [args[3] <= 2000 for args in asked if args[0] == "turn"] == [True]
    store._server.end_turn(turn, time.monotonic() + 2)


def test_a_change_that_is_planned_gets_a_turn_too(
    server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a checkpoint that follows an older one: it names no head, and only what it was planned on may change."""
    store = server()
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    other = server()
    rival = everstep.CheckpointEngine(everstep.StoreBackend(other)).sync
    first = engine.append("t", [{"role": "user", "content": "one"}])
    engine.append("t", [{"role": "user", "content": "two"}])
    plan = store._server._plan
    planned: list[int] = []

    def beaten(*args: Any) -> Any:
        made = plan(*args)
        planned.append(1)
        if len(planned) <= TRIES:
            rival.append("t", [{"role": "user", "content": "rival"}])
        else:
            with pytest.raises(StoreUnavailable, match="turns"):
                other._server.take_turn("t", 0.0, time.monotonic() + 0.2)
        return made

    monkeypatch.setattr(store._server, "_plan", beaten)
    engine.snapshot("t", [], {}, {}, parent_checkpoint_id=first)
    assert len(planned) == TRIES + 1
