"""What operations cost after many others: counted, not timed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

import everstep
from everstep import SnapshotConfig
from everstep.history import checkpoint_tree
from everstep.history.ancestry import Ancestry
from everstep.runtime.blocking import run_to_end
from everstep.stores.covers import Covers
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Hidden, Key, Place
from tests.tools import servers
from tests.tools.between import is_call

KEEP_ALL = SnapshotConfig(gc_policy="keep_all")
HELLO = [{"role": "user", "content": "hello"}]


class Counting:
    """A store that counts its calls, and the parts of what they return."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = self.parts = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not is_call(name):
            return method

        async def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            found = await method(*args, **options)
            self.parts += _parts(found)
            return found

        return counted

    @property
    def blocking(self) -> Counting:
        return self


def _parts(found: Any) -> int:
    """Return how many lists, tuples and mappings a value is made of."""
    if isinstance(found, dict):
        return 1 + sum(_parts(part) for part in found.values())
    if isinstance(found, (list, tuple, frozenset)):
        return 1 + sum(_parts(part) for part in found)
    return 0


class Costs:
    """An engine on a counting store."""

    def __init__(self) -> None:
        self.store = Counting(MemoryStore())
        self.engine = everstep.CheckpointEngine(everstep.StoreBackend(self.store), KEEP_ALL).sync
        self.first = self.engine.append("t", HELLO)

    def of(self, act: Any) -> tuple[int, int]:
        self.store.calls = self.store.parts = 0
        act()
        return self.store.calls, self.store.parts


@pytest.mark.parametrize("undone", [0, 3, 40])
def test_undo_and_redo_read_as_much_of_the_log_as_was_undone(undone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs()
    for _ in range(300):
        costs.engine.append("t", HELLO)
        costs.engine.rewind(costs.first)
    read: list[int] = []
    operations = MemoryStore.operations

    async def counted(self: MemoryStore, thread_id: str, limit: int) -> Any:
        found = await operations(self, thread_id, limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(MemoryStore, "operations", counted)
    for _ in range(undone):
        costs.engine.undo("t")
    read.clear()
    costs.engine.undo("t")
    costs.engine.redo("t")
    assert max(read) <= max(16 * undone, 16)


def _merged(count: int, *, new_branches: bool) -> Costs:
    """Return an engine on which a thread was merged into another so many times."""
    costs = Costs()
    branch = costs.engine.branch(costs.first, "b")
    for n in range(count):
        if new_branches:
            branch = costs.engine.branch(costs.engine.append("t", HELLO), "b")
        costs.engine.append(branch, [{"role": "user", "content": f"{n}"}])
        costs.engine.merge_branch(branch, "t")
    costs.engine.append(branch, HELLO)
    costs.engine.append("t", HELLO)
    return costs


def test_a_tree_costs_what_it_shows_however_many_branches_there_are() -> None:
    found = []
    for count in (40, 400):
        costs = Costs()
        for _ in range(count):
            costs.engine.branch(costs.first, "b")
        shown: dict[str, Any] = {}
        cost = costs.of(lambda c=costs, s=shown: s.update(c.engine.get_checkpoint_tree("t", limit=20)))
        assert (len(shown["nodes"]), shown["total_checkpoints"]) == (20, count + 1)
        found.append((cost[0], cost[1] - count))  # the heads are among what is returned
    assert found[1] == found[0]


# -- rewinds -----------------------------------------------------------------------------------------------------------


def _rewound(engine: everstep.SyncEngine, count: int) -> str:
    """Let a thread go on and back so many times, and return where it goes back to."""
    first = engine.append("t", HELLO)
    for _ in range(count):
        engine.append("t", HELLO)
        engine.append("t", HELLO)
        engine.rewind(first)
    return first


def _acts(engine: everstep.SyncEngine, first: str) -> dict[str, Any]:
    """Return what is counted, in the order in which it is done."""
    return {
        "append": lambda: engine.append("t", HELLO),
        "list": lambda: engine.list_time_travel_points("t"),
        "get": lambda: engine.get(first),
        "rewind": lambda: engine.rewind(first),
    }


def test_after_many_rewinds_operations_ask_for_no_more() -> None:
    found = []
    for count in (5, 50):
        costs = Costs()
        first = _rewound(costs.engine, count)
        found.append({name: costs.of(act) for name, act in _acts(costs.engine, first).items()})
    assert found[1] == found[0]


class _Steps:
    """Counts what SQLite does, in steps of its virtual machine by the hundred."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.set_progress_handler(self._step, 100)

    def _step(self) -> bool:
        self.count += 1
        return False


def test_after_many_rewinds_sqlite_looks_at_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = _Steps()
    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, steps.watch])
    found = []
    for count in (20, 200):
        with everstep.open(f"sqlite:///{tmp_path}/{count}.db", KEEP_ALL, synchronous="off").sync as engine:
            first = _rewound(engine, count)
            costs = {}
            for name, act in _acts(engine, first).items():
                steps.count = 0
                act()
                costs[name] = steps.count
            found.append(costs)
    for name, few in found[0].items():
        # A rewind counts what is left visible, and for that what is hidden: some ten steps for each, in an index.
        assert found[1][name] <= few * 1.3 + 60, (name, found)


def test_after_many_rewinds_a_server_looks_at_no_more() -> None:
    found = []
    with servers.ValkeyServer(durable=False) as server, server.connect() as client:
        for count in (20, 200):
            with everstep.open(server.url, KEEP_ALL, key_prefix=f"after{count}:").sync as engine:
                first = _rewound(engine, count)
                for act in _acts(engine, first).values():
                    act()  # scripts that are new to the server are sent twice
                costs = {}
                for name, act in _acts(engine, first).items():
                    client.config_resetstat()
                    act()
                    calls = sum(row["calls"] for row in client.info("commandstats").values())
                    costs[name] = calls, client.info("stats")["total_net_output_bytes"]
                found.append(costs)
    for name, (calls, sent) in found[0].items():
        assert found[1][name][0] <= calls + 2, (name, found)
        assert found[1][name][1] <= sent * 1.1, (name, found)


@pytest.mark.parametrize("seed", range(100))
def test_covers_are_the_union_of_stretches(seed: int) -> None:
    rng = random.Random(seed)
    stretches = []
    for _ in range(rng.randint(0, 12)):
        after = rng.randint(0, 30)
        run = rng.choice([None, None, 1, 7])
        writes_of = rng.choice([None, None, None, "id"])
        stretches.append(Hidden(rng.choice(["", "n"]), after, after + rng.randint(1, 10), run, writes_of))
    covers = Covers(stretches)
    for namespace, run, seq in itertools.product(["", "n"], [1, 2, 7], range(45)):
        expected = any(
            h.writes_of is None and h.namespace == namespace and h.segment in (None, run) and h.after < seq <= h.to
            for h in stretches
        )
        assert covers.hide(namespace, seq, run) is expected


# -- collections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [KEEP_ALL, SnapshotConfig(gc_param=10)], ids=["keep_all", "keep_last_n"])
def test_a_collection_with_nothing_to_do_takes_one_look(config: SnapshotConfig) -> None:
    store = Counting(MemoryStore())
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store), config).sync
    for n in range(40):
        for _ in range(10):
            engine.append(f"t{n}", HELLO)
    engine.collect()
    store.calls = 0
    report = engine.collect()
    assert (report.threads, report.checkpoints, report.objects) == (40, 0, 0)
    assert store.calls == 1
    engine.append("t7", HELLO)  # under KEEP_LAST_N the oldest one goes with it
    store.calls = 0
    engine.collect()
    assert store.calls <= 8


def test_what_was_deleted_is_collected_though_everything_was_swept() -> None:
    engine = everstep.open("memory://", KEEP_ALL).sync
    for n in range(3):
        engine.append("t", [{"role": "user", "content": f"{n} " * 300}])
    engine.collect()
    store: Any = engine.checkpointer._driven.store
    run_to_end(
        store.delete("t", keys=[Key("t", "", point.checkpoint_id) for point in engine.list_time_travel_points("t")[1:]])
    )
    run_to_end(store.delete("t", keys=[Key("t", "", engine.list_time_travel_points("t")[0].checkpoint_id)]))
    engine.append("t", HELLO)
    engine.collect()
    assert engine.collect().objects == 0


# -- ancestry ----------------------------------------------------------------------------------------------------------


def _family(seed: int) -> tuple[dict[int, tuple[Place, ...]], list[Place]]:
    """Return runs that follow one another at random, and all their places."""
    rng = random.Random(seed)
    segments: dict[int, tuple[Place, ...]] = {}
    places: list[Place] = []
    last: dict[int, Place] = {}
    for seq in range(1, rng.randint(2, 40)):
        if places and rng.random() < 0.6:
            run = rng.choice(list(last))
        else:
            run = seq
            follows = rng.sample(places, min(len(places), rng.choice([0, 1, 1, 2, 2, 3])))
            segments[run] = tuple(follows)
        place = Place(Key(f"t{rng.randint(0, 2)}", "", f"{seq}"), run, seq)
        last[run] = place
        places.append(place)
    return segments, places


def _all_ancestors(place: Place, segments: dict[int, tuple[Place, ...]], places: Sequence[Place]) -> set[Place]:
    found: set[Place] = set()
    pending = [place]
    while pending:
        at = pending.pop()
        own = [other for other in places if other.segment == at.segment and other.seq <= at.seq]
        pending += [followed for followed in segments[at.segment] if followed not in found] if at not in found else []
        found.update(own)
    return found


@pytest.mark.parametrize("seed", range(300))
async def test_common_ancestors_are_the_best_ones(seed: int) -> None:
    segments, places = _family(seed)
    rng = random.Random(seed)
    ours = rng.sample(places, min(len(places), rng.choice([1, 1, 2])))
    theirs = rng.sample(places, min(len(places), rng.choice([1, 1, 2])))
    ancestors = {place: _all_ancestors(place, segments, places) for place in places}
    mine = set().union(*(ancestors[place] for place in ours))
    shared = mine & set().union(*(ancestors[place] for place in theirs))
    best = {place for place in shared if not any(place in ancestors[other] for other in shared - {place})}

    async def read(wanted: Any, older: int) -> Any:
        return {run: segments[run] for run in wanted if segments[run]}

    found = await Ancestry(read).common(ours, theirs)
    assert set(found) == best
    assert [place.seq for place in found] == sorted((place.seq for place in best), reverse=True)
    known = checkpoint_tree.Ancestors(ours)
    for place in rng.sample(places, len(places)):
        assert await Ancestry(read).walk(known.hold(place)) is (place in mine)


async def test_ways_through_other_threads_can_be_left_aside() -> None:
    first, other = Place(Key("t", "", "1"), 1, 1), Place(Key("b", "", "2"), 2, 2)
    segments = {2: (first,), 3: (other,)}

    async def read(wanted: Any, older: int) -> Any:
        return {run: segments[run] for run in wanted if run in segments}

    last = Place(Key("t", "", "3"), 3, 3)
    assert await Ancestry(read).walk(checkpoint_tree.Ancestors([last]).hold(first))
    assert not await Ancestry(read).walk(checkpoint_tree.Ancestors([last], "t").hold(first))


@pytest.mark.parametrize("new_branches", [False, True])
async def test_the_base_of_a_merge_is_found_near_the_heads(new_branches: bool) -> None:
    """However many merges there were before: the walk ends where nothing can change any more."""
    steps = []
    for count in (10, 100):
        costs = _merged(count, new_branches=new_branches)
        tree = costs.engine.get_checkpoint_tree("t", limit=4)
        branch = next(n["thread_id"] for n in tree["nodes"] if n["thread_id"] != "t")
        store = costs.store._store
        ours, theirs = (await store.read("t")).stored, (await store.read(branch)).stored
        asked: list[int] = []

        async def read(wanted: Any, older: int, found: Any = store, family: Any = ours.family, a: Any = asked) -> Any:
            a += wanted
            return await found.segments(family, wanted)

        bases = await Ancestry(read).common([ours.place], [theirs.place])
        assert [base.key.thread_id for base in bases] == [branch]
        steps.append(len(asked))
    assert steps[1] == steps[0] < 10
