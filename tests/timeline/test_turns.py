"""Writers that others are faster than: after a few tries they get a turn, and every try has an end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import everstep
from everstep import CheckpointGC, CommitUnknown, SnapshotConfig, StoreUnavailable
from everstep.errors import BaseGone, HeadMoved
from everstep.repository import turns
from everstep.runtime.blocking import run_to_end
from everstep.stores import waiting
from everstep.stores.postgres.rows import Rows
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import BaseRef, Change, Draft, Query, Store, Stored
from everstep.stores.redis import turns as redis_turns
from everstep.stores.redis.server import Server
from everstep.stores.redis.store import RedisStore
from everstep.stores.redis.turns import Turn
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import follow, head_id, ids, make_object, make_record, put
from everstep.values import codec, pieces
from everstep.values.tree import writer
from tests.conftest import OneFace, Place
from tests.faults.proxy import Proxy
from tests.stores.postgres_tools import Wire
from tests.tools import servers

TRIES = 3
PASSED_MAX = 6
APPENDS = 1
"""An append is tried once without a turn: what it does in one takes no longer."""
TURNS = 5
PATIENCE = 60


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try counts as one, however slow the machine is."""
    monkeypatch.setattr(turns, "_TRIES_SECONDS", float("inf"))


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
    assert len(race.tries) == APPENDS
    assert race.words() == ["rival", "rival", "own"]


async def test_an_append_beside_other_writers_begins_with_its_turn(race: Race) -> None:
    """A try that rests on the head of its last save would be in vain."""
    await race.engine.append("t", [{"role": "user", "content": "one"}])
    race.say("t")
    race.tries.clear()
    await race.engine.append("t", [{"role": "user", "content": "two"}])
    assert race.tries == []
    assert race.words() == ["rival", "rival", "one", "rival", "two"]


async def test_an_append_needs_no_turn_when_the_others_have_stopped(race: Race) -> None:
    quiet = race.make(Beset, lambda _: None)
    await quiet.append("t", [{"role": "user", "content": "one"}])
    race.say("t")
    for number in range(3):
        race.tries.clear()
        await quiet.append("t", [{"role": "user", "content": str(number)}])
        assert len(race.tries) == [1, 0, 1][number]  # beaten; in a turn that finds nobody there; as if nothing had been
    assert race.words() == ["rival", "one", "rival", "0", "1", "2"]


async def test_a_slow_writer_gets_its_turn_at_once(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    first = race.rival.get_latest("t").metadata.checkpoint_id
    race.say("t")
    monkeypatch.setattr(turns, "_TRIES_SECONDS", 0.0)
    await race.engine.rewind(first)
    assert len(race.tries) == 1
    assert race.words() == ["rival"]


async def test_an_append_to_a_new_thread_that_is_always_beaten_gets_its_turn(race: Race) -> None:
    await race.engine.append("new", [{"role": "user", "content": "own"}], {"key": 1})
    assert len(race.tries) == APPENDS
    assert race.words("new") == ["rival", "own"]


def test_a_large_message_is_cut_into_pieces_once_however_often_it_is_beaten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes most of the time of its append, and in its turn others would wait for it."""
    text = "".join(f"word {n} " for n in range(20_000))
    cut = list[int]()

    class Counted(pieces.Layer):
        def __init__(self, data: bytes, *rest: Any) -> None:
            if len(data) > len(text):  # the hashes of pieces are cut as well
                cut.append(len(data))
            super().__init__(data, *rest)

    monkeypatch.setattr(writer, "Layer", Counted)
    rival = everstep.open(f"sqlite:///{tmp_path}/a.db").sync
    tries = list[str]()
    beset: Any = Beset(SQLiteStore(tmp_path / "a.db"), lambda name: rival.append(name, [{"content": "rival"}]), tries)
    engine = everstep.CheckpointEngine(everstep.StoreBackend(beset)).sync
    rival.append("t", [{"content": "rival"}])
    engine.append("t", [{"content": text}], {"state": 1})
    assert len(tries) == APPENDS
    assert cut == [len(codec.pack({"content": text}))]
    found = everstep.open(f"sqlite:///{tmp_path}/a.db").sync.get_latest("t")
    assert found is not None
    assert found.messages == [{"content": "rival"}] * (APPENDS + 1) + [{"content": text}]
    assert found.state == {"state": 1}
    engine.close()
    rival.close()


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


async def test_nobody_waits_for_a_function_of_the_callers(race: Race) -> None:
    """A function that decides a merge may ask a person. It gets more tries, and no turn."""
    race.rival.append("t", [], {"key": "base"})
    branch = race.rival.branch(race.rival.get_latest("t").metadata.checkpoint_id, "b")
    race.rival.append("t", [], {"key": "ours"})
    race.rival.append(branch, [], {"key": "theirs"})
    asked: list[str] = []

    def decide(conflict: everstep.Conflict) -> Any:
        race.say("t")  # another writer gets through while it decides, and so may the function itself
        asked.append(conflict.path)
        return "decided"

    with pytest.raises(StoreUnavailable, match="a merge of thread 't' was overtaken"):
        await race.engine.merge_branch(branch, "t", resolve=decide)
    assert len(asked) == turns.BEATEN_MAX
    quiet = race.make(Beset, lambda _: None)
    asked.clear()
    await quiet.merge_branch(branch, "t", resolve=lambda _: "decided")
    assert race.rival.get_latest("t").state == {"key": "decided"}


async def test_what_is_beaten_in_its_turns_too_ends_with_an_error(race: Race) -> None:
    hopeless = race.make(Hopeless, race.say)
    with pytest.raises(StoreUnavailable, match="an append of thread 't' was overtaken"):
        await hopeless.append("t", [{"role": "user", "content": "own"}])
    assert race.tries.count("turn") == TURNS
    assert "own" not in race.words()
    race.tries.clear()
    await race.engine.append("t", [{"role": "user", "content": "own"}])
    assert len(race.tries) == APPENDS, "a turn that ended without a change is in the way of others"


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
    turn = take_turn(dead, 1e6, time.monotonic() + PATIENCE)
    assert turn is not None
    hasty = everstep.CheckpointEngine(everstep.StoreBackend(server(timeout_seconds=0.1))).sync
    for _ in range(2):  # the first call is the one that gets to know the server
        with pytest.raises((StoreUnavailable, CommitUnknown)):  # by what it was waiting for when time was up
            hasty.append("t", [{"role": "user", "content": "hasty"}])
    dead._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + PATIENCE)
    assert take_turn(dead, 0.0, time.monotonic() + PATIENCE) is not None  # a short one, which nobody ends
    engine.append("t", [{"role": "user", "content": "two"}])
    assert [message["content"] for message in engine.get_latest("t").messages] == ["one", "two"]


def take_turn(store: RedisStore, seconds: float, deadline: float) -> Turn | None:
    return store._server.do(lambda redis: redis.take_turn("t", seconds), deadline)


def call(store: RedisStore, bucket: int, *args: Any) -> Any:
    return store._server.do(lambda redis: redis._call(bucket, *args), time.monotonic() + PATIENCE)


def length_of_line(store: RedisStore) -> int:
    def look(redis: Server) -> int:
        found = redis._ask("load", "t", "", "head", "", "0", "0")
        assert found is not None
        bucket, reply = found
        return int(redis._call(bucket, "get", "ZCARD", f"family:{reply[1].decode()}:line"))

    return store._server.do(look, time.monotonic() + PATIENCE)


class Waiter:
    """A writer on a thread of its own, in a store where somebody has a turn: it is in line when this is made."""

    def __init__(self, store: RedisStore, act: Callable[[], object]) -> None:
        before = length_of_line(store)
        self._thread = threading.Thread(target=act)
        self._thread.start()
        servers.wait_until(lambda: length_of_line(store) > before, "it is in line")

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns do not end by themselves, and nobody looks for one: they get in line."""
    monkeypatch.setattr(redis_turns, "_TURN_SECONDS_MIN", PATIENCE)
    monkeypatch.setattr(redis_turns, "_LOOK_SECONDS", PATIENCE)
    monkeypatch.setattr(redis_turns, "_FAR_SECONDS", 0.0)


@pytest.mark.usefixtures("only_told")
def test_those_who_wait_for_a_turn_are_served_in_the_order_of_coming(server: Callable[..., RedisStore]) -> None:
    """In turns, and with a change that met somebody else's turn: it gets in line too."""
    store = server(timeout_seconds=PATIENCE).blocking
    run_to_end(store.commit(follow("t", "c")))
    turn = take_turn(store, 0.0, time.monotonic() + PATIENCE)
    assert turn is not None
    waiters = list[Waiter]()
    for number in range(6):
        other = server(timeout_seconds=PATIENCE).blocking

        def write(other: RedisStore = other, name: str = f"own{number}", is_turn: bool = number % 2 == 0) -> None:
            if is_turn:
                run_to_end(other.in_turn("t", lambda inside: inside.commit(follow("t", name))))
            else:
                run_to_end(other.commit(follow("t", name)))

        waiters.append(Waiter(store, write))
    store._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + PATIENCE)
    for waiter in waiters:
        waiter.join()
    names = ids(run_to_end(store.list_checkpoints(Query(thread_id="t"))))
    assert names == [f"own{number}-{number + 2}" for number in reversed(range(6))] + ["c-1"]


@pytest.mark.usefixtures("only_told")
def test_a_turn_is_two_calls_and_to_wait_for_it_one_more(
    server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first with the head, the last with the commit: others wait for a far writer no longer than one of them."""
    store = server(timeout_seconds=PATIENCE).blocking
    for _ in range(2):
        run_to_end(store.commit(follow("t", "c")))
        run_to_end(store.in_turn("t", after_reading))  # the server gets to know the scripts
    sent = list[list[Any]]()
    send = store._server._link._send

    def watch(key: bytes, commands: list[Any], *rest: Any, **options: Any) -> Any:
        sent.append([command[0] for command in commands])
        return send(key, commands, *rest, **options)

    other = server(timeout_seconds=PATIENCE)
    monkeypatch.setattr(store._server._link, "_send", watch)
    run_to_end(store.in_turn("t", after_reading))
    assert sent == [[b"EVALSHA"]] * 2
    sent.clear()
    turn = take_turn(other, 0.0, time.monotonic() + PATIENCE)
    assert turn is not None
    waiter = Waiter(other, lambda: run_to_end(store.in_turn("t", after_reading)))
    other._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + PATIENCE)
    waiter.join()
    assert sent == [[b"EVALSHA"], [b"XREAD", b"EVALSHA"], [b"EVALSHA"]]


class Rival:
    """Has the turn, while a writer that is near waits for it."""

    def __init__(self, server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = server(timeout_seconds=PATIENCE).blocking
        run_to_end(self.store.commit(follow("t", "c")))
        self.near = server(timeout_seconds=PATIENCE).blocking
        for store in (self.store, self.near):
            store._server._round_trip_seconds = 0.0
        self.pauses = 0
        self.act: Callable[[int], object] = lambda _: None
        self.take()
        monkeypatch.setattr(waiting.Waiting, "pause", self._pause)

    def take(self) -> None:
        self.turn = take_turn(self.store, 0.0, time.monotonic() + PATIENCE)
        assert self.turn is not None

    def use(self) -> None:
        self.store._server.do(lambda redis: redis.commit(follow("t", "rival"), self.turn), time.monotonic() + PATIENCE)

    def _pause(self, _seconds: float) -> bool:
        self.pauses += 1
        self.act(self.pauses)
        return True

    def use_when_somebody_is_in_line(self) -> threading.Thread:
        def use() -> None:
            servers.wait_until(lambda: length_of_line(self.store) == 1, "it is in line")
            self.use()

        using = threading.Thread(target=use)
        using.start()
        return using


@pytest.fixture
def rival(server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch, only_told: None) -> Rival:
    return Rival(server, monkeypatch)


def test_a_near_writer_gets_in_line_when_others_came_first_too_often(rival: Rival) -> None:
    others: list[threading.Thread] = []

    def beat(pauses: int) -> None:
        assert length_of_line(rival.store) == 0
        rival.use()
        rival.take()
        if pauses == PASSED_MAX:
            others.append(rival.use_when_somebody_is_in_line())

    rival.act = beat
    run_to_end(rival.near.in_turn("t", after_reading))
    others[0].join(PATIENCE)
    assert rival.pauses == PASSED_MAX
    assert run_to_end(head_id(rival.store)) == f"own-{PASSED_MAX + 3}"  # nobody came in between


def test_a_near_writer_takes_a_turn_that_is_free(rival: Rival) -> None:
    def end(pauses: int) -> None:
        if pauses == 100:  # one long turn, in which nobody else came first
            rival.use()

    rival.act = end
    run_to_end(rival.near.in_turn("t", after_reading))
    assert rival.pauses == 100


def test_a_near_writer_gets_in_line_when_it_has_waited_long(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_turns, "_PASSED_SECONDS", 0.0)
    using = rival.use_when_somebody_is_in_line()
    run_to_end(rival.near.in_turn("t", after_reading))
    using.join(PATIENCE)
    assert rival.pauses == 0


def test_a_near_writer_gets_in_line_where_somebody_must_wait(rival: Rival, server: Callable[..., RedisStore]) -> None:
    """Its turn cannot be had before; and when all of those have been served, everybody looks for a turn again."""
    far = server(timeout_seconds=PATIENCE).blocking
    waiters = [
        Waiter(rival.store, lambda: run_to_end(far.in_turn("t", lambda inside: inside.commit(follow("t", "far")))))
    ]
    waiters.append(Waiter(rival.store, lambda: run_to_end(rival.near.in_turn("t", after_reading))))
    assert rival.pauses == 0
    rival.use()
    for waiter in waiters:
        waiter.join()
    assert run_to_end(head_id(rival.store)) == "own-4"
    assert rival.pauses == 0
    rival.take()
    rival.act = lambda _: rival.use()
    run_to_end(rival.near.in_turn("t", after_reading))
    assert rival.pauses == 1


def test_a_near_writer_gets_in_line_behind_the_turn_of_a_far_one(
    rival: Rival, server: Callable[..., RedisStore]
) -> None:
    rival.use()
    far = server(timeout_seconds=PATIENCE)
    turn = take_turn(far, 0.0, time.monotonic() + PATIENCE)
    assert turn is not None
    waiter = Waiter(rival.store, lambda: run_to_end(rival.near.in_turn("t", after_reading)))
    far._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + PATIENCE)
    waiter.join()
    assert rival.pauses == 0


def test_a_writer_is_far_if_no_round_trip_was_quick(rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_turns, "_FAR_SECONDS", 0.005)
    rival.near._server._round_trip_seconds = 0.006
    ask = rival.near._server._ask

    def slowly(*args: Any, **options: Any) -> Any:
        time.sleep(0.02)  # it takes longer than before, which says nothing of how far it is
        return ask(*args, **options)

    monkeypatch.setattr(rival.near._server, "_ask", slowly)
    using = rival.use_when_somebody_is_in_line()
    run_to_end(rival.near.in_turn("t", after_reading))
    using.join(PATIENCE)
    assert rival.pauses == 0
    assert rival.near._server._round_trip_seconds == 0.006
    monkeypatch.setattr(redis_turns, "_FAR_SECONDS", PATIENCE)
    rival.take()
    rival.act = lambda _: rival.use()
    run_to_end(rival.near.in_turn("t", after_reading))
    assert rival.pauses == 1


def test_nobody_waits_for_ever_for_one_who_died_in_line(server: Callable[..., RedisStore]) -> None:
    store = server(timeout_seconds=PATIENCE).blocking
    run_to_end(store.commit(follow("t", "c")))
    at = time.monotonic() + PATIENCE
    turn = take_turn(store, PATIENCE, at)
    assert turn is not None
    # The time of the first is over when it would be its turn; the second is given one, which lasts so long.
    for args in (("turn", "t", "first", 200, 1), ("turn", "t", "second", 200, PATIENCE * 1000)):
        reply = call(store, turn.bucket, *args)
        assert reply[0] == b"wait"
    store._server.do(lambda redis: redis.end_turn(turn), at)
    run_to_end(store.commit(follow("t", "own")))
    assert run_to_end(head_id(store)) == "own-2"


@pytest.mark.usefixtures("only_told")
async def test_more_tasks_than_threads_may_wait_for_a_turn(server: Callable[..., RedisStore]) -> None:
    """Whoever has the turn must not wait for a thread that those who wait for the turn have."""
    store = server(timeout_seconds=PATIENCE, max_threads=2)
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store))
    await engine.append("t", [])
    async with asyncio.timeout(PATIENCE):
        for _ in range(3):
            await asyncio.gather(*(engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(8)))
    found = await engine.get_latest("t")
    assert found is not None
    assert sorted(message["content"] for message in found.messages) == sorted([*map(str, range(8))] * 3)


def test_who_may_not_wait_on_the_server_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_turns, "_TURN_SECONDS_MIN", PATIENCE)
    with servers.ValkeyServer(durable=False) as own:
        with own.connect() as client:
            client.execute_command("ACL", "SETUSER", "modest", "on", ">pw", "~*", "+@all", "-@stream")
        store = RedisStore(own.url, timeout_seconds=PATIENCE).blocking
        run_to_end(store.commit(follow("t", "c")))
        modest = RedisStore(own.url.replace("//", "//modest:pw@"), timeout_seconds=PATIENCE).blocking
        turn = take_turn(modest, 0.0, time.monotonic() + PATIENCE)
        assert turn is not None
        waiter = Waiter(store, lambda: run_to_end(modest.in_turn("t", after_reading)))
        modest._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + PATIENCE)
        waiter.join()
        assert run_to_end(head_id(store)) == "own-2"
        for opened in (store, modest):
            run_to_end(opened.close())


def test_a_turn_is_not_longer_than_its_writer_has_time(
    server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = server()
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    engine.append("t", [{"role": "user", "content": "one"}])
    asked: list[Any] = []
    ask = store._server._ask

    def watch(verb: str, *args: Any, **options: Any) -> Any:
        asked.append((verb, *args))
        return ask(verb, *args, **options)

    monkeypatch.setattr(store._server, "_ask", watch)
    turn = take_turn(store, 1e6, time.monotonic() + 2)
    assert turn is not None
    assert [args[3] <= 2000 for args in asked if args[0] == "turn"] == [True]
    store._server.do(lambda redis: redis.end_turn(turn), time.monotonic() + 2)


def test_a_change_that_is_planned_gets_a_turn_too(
    server: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a checkpoint that follows an older one: it names no head, and only what it was planned on may change."""
    monkeypatch.setattr(redis_turns, "_TURN_SECONDS_MIN", PATIENCE)  # however slow the machine is, the turn is not over
    store = server(timeout_seconds=PATIENCE)
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
            with pytest.raises(StoreUnavailable):
                take_turn(other, 0.0, time.monotonic() + 0.2)
        return made

    monkeypatch.setattr(store._server, "_plan", beaten)
    engine.snapshot("t", [], {}, {}, parent_checkpoint_id=first)
    assert len(planned) == TRIES + 1


@pytest.fixture
def wire() -> Iterator[Wire]:
    servers.clear_postgres()
    wire = Wire(servers.postgres())
    yield wire
    wire.close()


async def after_reading(inside: Store) -> Stored | None:
    return await inside.commit(follow("t", "own", expect=await head_id(inside)))


@pytest.fixture
def behind_wire(wire: Wire) -> Iterator[Store]:
    store = PostgresStore(wire.url)
    run_to_end(store.blocking.commit(follow("t", "c")))
    yield store.blocking
    run_to_end(store.blocking.close())


def test_the_answer_to_a_turn_that_is_lost_is_looked_for(behind_wire: Store, wire: Wire) -> None:
    wire.lose = lambda data: b"COMMIT" in data
    stored = run_to_end(behind_wire.in_turn("t", after_reading))
    assert stored is not None
    assert stored.record.key.checkpoint_id == "own-2"
    assert run_to_end(head_id(behind_wire)) == "own-2"
    stored = run_to_end(behind_wire.commit(follow("t", "next")))
    assert stored is not None
    assert stored.record.step == 3


def test_a_turn_that_is_lost_before_its_end_is_taken_again(behind_wire: Store, wire: Wire) -> None:
    wire.lose = lambda data: b"everstep_alone" in data
    stored = run_to_end(behind_wire.in_turn("t", after_reading))
    assert stored is not None
    assert stored.record.key.checkpoint_id == "own-2"
    assert ids(run_to_end(behind_wire.list_checkpoints(Query(thread_id="t")))) == ["own-2", "c-1"]


@pytest.mark.parametrize("rivals", [0, 1])
def test_a_turn_that_is_lost_at_its_end_and_did_nothing_is_done_again(
    behind_wire: Store, monkeypatch: pytest.MonkeyPatch, rivals: int
) -> None:
    """By the same call if the head is as it was, else by another turn."""
    near = PostgresStore(servers.postgres()).blocking
    end = Rows.put_and_end

    def lost(rows: Rows, _values: Any) -> int | None:
        monkeypatch.setattr(Rows, "put_and_end", end)
        rows.connection.close()
        for _ in range(rivals):
            run_to_end(near.commit(follow("t", "rival")))
        raise psycopg.OperationalError("the server closed the connection")

    monkeypatch.setattr(Rows, "put_and_end", lost)
    stored = run_to_end(behind_wire.in_turn("t", after_reading))
    assert stored is not None
    assert stored.record.key.checkpoint_id == f"own-{2 + rivals}"
    assert run_to_end(head_id(behind_wire)) == f"own-{2 + rivals}"
    run_to_end(near.close())


def test_a_turn_is_two_round_trips(behind_wire: Store, wire: Wire) -> None:
    """One to take it and to see the head, one to write and to commit: others wait for no more than one of them."""
    before = wire.round_trips
    run_to_end(behind_wire.in_turn("t", after_reading))
    assert wire.round_trips - before == 2


def test_the_append_of_a_beaten_writer_holds_others_up_for_one_round_trip(wire: Wire) -> None:
    whole = PostgresStore(wire.url)
    far = everstep.CheckpointEngine(everstep.StoreBackend(whole)).sync
    near = everstep.CheckpointEngine(everstep.StoreBackend(PostgresStore(servers.postgres()))).sync
    for _ in range(2):
        far.append("t", [{"role": "user", "content": "far"}], {"key": 1})
        near.append("t", [{"role": "user", "content": "near"}], {"key": 2})
    before = wire.round_trips
    far.append("t", [{"role": "user", "content": "far"}], {"key": 3})
    assert wire.round_trips - before == 2
    found = far.get_latest("t")
    assert found is not None
    assert found.state == {"key": 3}
    far.close()
    near.close()


@pytest.mark.parametrize("face", ["async", "blocking"])
@pytest.mark.parametrize("namespace", ["", "other"])
async def test_a_checkpoint_that_may_follow_any_head_is_three_round_trips_beside_others(
    wire: Wire, face: str, namespace: str
) -> None:
    """Refused, then in a turn, though it leaves out what an older head has. Others wait for one of them."""
    whole = PostgresStore(wire.url)
    store = whole if face == "async" else whole.blocking
    rival = PostgresStore(servers.postgres()).blocking
    leaf = make_object(b"leaf")
    first = await store.commit(put(make_record("a", namespace=namespace, roots=[leaf]), leaf))
    assert first is not None
    base = BaseRef(first.record.key, first.digest)

    def following(name: str) -> Change:
        return Change(thread_id="t", namespace=namespace, build=lambda head: built(name, head, ()))

    def built(name: str, head: Stored | None, bases: Sequence[BaseRef]) -> Draft:
        assert head is not None
        record = make_record(name, namespace=namespace, roots=[leaf] if bases else [], step=head.record.step + 1)
        return Draft(record._replace(parents=(head.record.key,)), (), bases)

    await rival.commit(following("rival"))
    before = wire.round_trips
    change = Change(thread_id="t", namespace=namespace, build=lambda head: built("b", head, (base,)))
    stored = await store.commit(change)
    assert wire.round_trips - before == 3
    assert stored is not None
    found = await rival.read("t", namespace, objects=True)
    assert found is not None
    assert found.stored == stored
    assert [obj.hash for obj in found.objects] == [leaf.hash]
    await store.commit(following("c"))  # what was noted of the head is right
    assert wire.round_trips - before == 4
    for opened in (whole.blocking, rival):
        await opened.close()


def test_what_rests_on_a_checkpoint_that_is_gone_is_refused_in_a_turn_too(behind_wire: Store) -> None:
    rival = PostgresStore(servers.postgres()).blocking
    first = run_to_end(behind_wire.commit(follow("t", "c")))
    assert first is not None
    run_to_end(rival.commit(follow("t", "rival")))
    run_to_end(rival.delete("t", keys=[first.record.key]))

    def build(head: Stored | None) -> Draft:
        assert head is not None
        record = make_record("own", parents=[head.record.key.checkpoint_id], step=head.record.step + 1)
        return Draft(record, (), (BaseRef(first.record.key, first.digest),))

    with pytest.raises(BaseGone):
        run_to_end(behind_wire.commit(Change(thread_id="t", build=build)))
    assert run_to_end(head_id(behind_wire)) == "rival-3"
    run_to_end(rival.close())


def test_a_change_that_must_be_done_the_long_way_is_done_in_its_turn(behind_wire: Store, wire: Wire) -> None:
    """As one whose id is there: the short way is refused, and has ended the transaction."""
    first = run_to_end(behind_wire.read("t"))
    assert first is not None
    run_to_end(behind_wire.commit(follow("t", "d")))

    async def again(inside: Store) -> Stored | None:
        head = await inside.read("t")
        assert head is not None
        return await inside.commit(Change(thread_id="t", build=lambda _: Draft(first.stored.record, (), ())))

    assert run_to_end(behind_wire.in_turn("t", again)) == first.stored
    assert ids(run_to_end(behind_wire.list_checkpoints(Query(thread_id="t")))) == ["d-2", "c-1"]
    wire.lose = lambda data: b"COMMIT" in data and b"everstep_put" not in data
    assert run_to_end(behind_wire.in_turn("t", again)) == first.stored


def test_a_driver_that_cannot_send_statements_together_sends_them_one_by_one(
    behind_wire: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", classmethod(lambda _: False))
    stored = run_to_end(behind_wire.in_turn("t", after_reading))
    assert stored is not None
    assert run_to_end(head_id(behind_wire)) == "own-2"


def test_a_turn_that_fails_leaves_its_connection_usable(behind_wire: Store, wire: Wire) -> None:
    async def fail(inside: Store) -> None:
        await inside.commit(follow("t", "own", expect="another"))

    connections = len(wire.sent)
    for _ in range(2):
        with pytest.raises(HeadMoved):
            run_to_end(behind_wire.in_turn("t", fail))
    run_to_end(behind_wire.commit(follow("t", "d")))
    assert len(wire.sent) == connections


@pytest.mark.parametrize("face", ["async", "blocking"])
async def test_a_beaten_writer_learns_of_it_in_two_round_trips(wire: Wire, face: str) -> None:
    """It takes no lock for that: others would wait for a far one."""
    whole = PostgresStore(wire.url)
    store = whole if face == "async" else whole.blocking
    rival = PostgresStore(servers.postgres()).blocking
    for _ in range(2):
        await store.commit(follow("t", "own"))
    await rival.commit(follow("t", "rival"))
    before = wire.round_trips
    with pytest.raises(HeadMoved) as moved:
        await store.commit(follow("t", "own", expect="own-2")._replace(fresh=True))
    assert wire.round_trips - before == 2
    assert moved.value.actual == "rival-3"
    for opened in (whole.blocking, rival):
        await opened.close()


def test_a_turn_is_ended_by_the_server_if_its_client_falls_silent(behind_wire: Store) -> None:
    asked: Any = "SHOW idle_in_transaction_session_timeout"
    found: list[str] = []

    async def work(inside: Any) -> None:
        found.append(inside._rows.connection.execute(asked).fetchone()[0])

    run_to_end(behind_wire.in_turn("t", work))
    run_to_end(behind_wire._read(lambda rows: found.append(rows.connection.execute(asked).fetchone()[0])))  # type: ignore[attr-defined]
    assert found[0] not in ("0", found[1])
    assert found[1] == "0"


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_far_writer_gets_through_beside_four_near_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # its tries are slow
    if kind == "postgres":
        servers.clear_postgres()
    url, prefix = servers.postgres() if kind == "postgres" else servers.redis(), servers.redis_prefix()
    opened: list[Store] = []

    def make(place: str) -> Any:
        store: Store = PostgresStore(place) if kind == "postgres" else RedisStore(place, key_prefix=prefix)
        opened.append(store)
        return everstep.CheckpointEngine(everstep.StoreBackend(store)).sync

    done = threading.Event()
    counts = [0] * 4

    def write(number: int) -> None:
        near = make(url)
        while not done.is_set():
            near.append("t", [{"role": "user", "content": f"near {number}"}])
            counts[number] += 1

    make(url).append("t", [{"role": "user", "content": "first"}])
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port) as proxy:
        proxy.delay(0.015)
        far = make(url.replace(f":{port}", f":{proxy.port}"))
        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        try:
            servers.wait_until(lambda: all(counts), "the near writers are at work")
            for number in range(3):
                far.append("t", [{"role": "user", "content": f"far {number}"}])
        finally:
            done.set()
            for writer in writers:
                writer.join(PATIENCE)
        words = [message["content"] for message in make(url).get_latest("t").messages]
        assert [word for word in words if word.startswith("far")] == [f"far {number}" for number in range(3)]
        assert [words.count(f"near {number}") for number in range(4)] == counts
        for store in opened:
            run_to_end(store.blocking.close())


_SMALL_WRITER = """
import sys, everstep
engine = everstep.open("sqlite:///" + sys.argv[1]).sync
while True:
    engine.append("t", [{"role": "user", "content": "small"}])
    print("one", file=sys.stderr, flush=True)
"""


def test_a_large_append_gets_through_beside_two_small_writers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    engine = everstep.CheckpointEngine(everstep.SQLiteCheckpointer(path, busy_timeout_seconds=PATIENCE)).sync
    command = [sys.executable, "-c", _SMALL_WRITER, str(path)]
    told = [tmp_path / f"{number}.txt" for number in range(2)]
    writers = []
    try:
        for file in told:
            with file.open("wb") as output:
                writers.append(subprocess.Popen(command, stderr=output))
        servers.wait_until(lambda: all(file.stat().st_size > 10 for file in told), "the small writers are at work")
        name = engine.append("t", [{"role": "user", "content": os.urandom(2_500_000).hex()}])
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    found = engine.get(name)
    assert found is not None
    assert len(found.messages[-1]["content"]) == 5_000_000
    engine.close()
