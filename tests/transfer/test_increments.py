"""Increments of a backup: as small as what changed, and as hard to fool as any file."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep import CheckpointCorrupted, CheckpointEngine, InvalidInput, MemoryCheckpointer, SnapshotConfig
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Key, Write
from everstep.testing.builders import make_object
from everstep.transfer import backups, families
from everstep.transfer.archive import CHANGED, CHECKPOINTS, DONE, END, KEPT, OBJECTS, ROWS, Item, ItemReader, ItemWriter
from everstep.transfer.frames import INCREMENT_VERSION
from everstep.transfer.increments import _Patch, _stretches
from everstep.values import compress
from tests.timeline.histories import Walker, seen
from tests.tools.between import Between
from tests.transfer.copies import Killed, Make, Recording, stopping_after

OLD = Path(__file__).parent / "backups_of_format_1"


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def restored(folder: Path, at: Any = None) -> dict[str, Any]:
    target = MemoryCheckpointer()
    everstep.restore(folder, target, at)
    return seen(target.store)


def a_message() -> dict[str, str]:
    return {"role": "user", "content": secrets.token_hex(100)}


def a_long_thread(steps: int) -> tuple[MemoryCheckpointer, list[str]]:
    """Return a store with one thread, and the ids of its checkpoints."""
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source, SnapshotConfig(gc_policy="keep_all")).sync
    return source, [engine.append("t", [a_message()], {"n": n}) for n in range(steps)]


# -- size --------------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Any, str], object]] = {
    "append": lambda engine, _: engine.append("t", [a_message()], {"n": 0}),
    "pin": lambda engine, middle: engine.pin(middle),
    "tag": lambda engine, middle: engine.tag(middle, "good"),
    "rewind": lambda engine, middle: engine.rewind(middle),
    "branch": lambda engine, middle: engine.branch(middle, "b"),
    "delete": lambda engine, middle: engine.rewind(middle, later="delete"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_increment_takes_what_changed_however_long_the_thread_is(change: str, tmp_path: Path) -> None:
    for steps in (100, 500):
        source, ids = a_long_thread(steps)
        folder = tmp_path / str(steps)
        everstep.backup(source, folder)
        whole = size_of(folder)
        engine = CheckpointEngine(source, SnapshotConfig(gc_policy="keep_all"))
        CHANGES[change](engine.sync, ids[steps // 2])
        report = everstep.backup(source, folder)
        assert report.bytes < 2000
        assert size_of(folder) - whole < 3000  # with the lists, which name a family and a backup more
        assert whole > 100 * steps
        assert restored(folder) == seen(source.store)


def test_many_increments_take_what_was_written(tmp_path: Path) -> None:
    source, _ = a_long_thread(100)
    everstep.backup(source, tmp_path)
    engine = CheckpointEngine(source, SnapshotConfig(gc_policy="keep_all")).sync
    sizes = []
    for _ in range(20):
        engine.append("t", [a_message()], {})
        report = everstep.backup(source, tmp_path)
        sizes.append(report.bytes)
        assert (report.checkpoints, report.threads) == (1, 1)
    # A message, and the end of a list that is still open: never what the increments before it took.
    assert max(sizes) < 2000


def test_the_list_of_families_takes_what_changed_too(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for n in range(300):
        engine.append(f"t{n}", [], {"n": n})
    everstep.backup(source, tmp_path)
    moments = [seen(source.store)]
    for n in range(12):
        for k in range(40):
            engine.append(f"t{(7 * n + k) % 300}", [], {"again": n})
        source.sync.delete_thread(f"t{299 - n}")
        everstep.backup(source, tmp_path)
        moments.append(seen(source.store))
    sizes = [(tmp_path / f"{number:06}.families").stat().st_size for number in range(1, 14)]
    small = [size for size in sizes if size < sizes[0] / 4]
    assert len(small) >= 10
    assert len(small) < 12  # now and then all are listed again, so few lists are read
    for number in (1, 7, 13):
        assert restored(tmp_path, number) == moments[number - 1]


def test_what_only_one_thread_of_a_family_did_does_not_bring_the_others(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    first = engine.append("t", [a_message()], {})
    for n in range(100):
        engine.branch(first, f"b{n}")
        engine.append(f"b{n}", [a_message()], {})
    everstep.backup(source, tmp_path)
    engine.append("b77", [a_message()], {})
    assert everstep.backup(source, tmp_path).bytes < 2000
    source.sync.delete_thread("b3")
    assert everstep.backup(source, tmp_path).bytes < 2000
    assert restored(tmp_path) == seen(source.store)


# -- content -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [("sqlite", "memory"), ("postgres", "sqlite"), ("redis", "memory")])
def test_every_store_at_every_point(one: str, other: str, tmp_path: Path, make: Make) -> None:
    source = make(one)
    walker = Walker(source, 11, gc_policy="keep_last_n", gc_param=8)
    moments = []
    for _ in range(6):
        walker.walk(8)
        everstep.backup(source, tmp_path)
        moments.append(seen(source.store))
    for number, moment in enumerate(moments, 1):
        target = make(other)
        everstep.restore(tmp_path, target, number)
        assert seen(target.store) == moment
        assert CheckpointEngine(target).sync.verify().ok


def test_nothing_is_brought_back_that_nobody_needs(tmp_path: Path) -> None:
    """What was deleted since an earlier file stays in that file."""
    source = MemoryCheckpointer()
    walker = Walker(source, 5, gc_policy="keep_last_n", gc_param=5)
    for _ in range(8):
        walker.walk(20)
        everstep.backup(source, tmp_path)
    copied = everstep.copy(source, MemoryCheckpointer())
    brought = everstep.restore(tmp_path, MemoryCheckpointer())
    assert brought == copied


def test_objects_that_came_with_what_was_deleted_since(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    long = secrets.token_hex(5000)
    first = engine.append("t", [], {"n": 0})
    engine.append("t", [], {"n": 1, "long": long})
    everstep.backup(source, tmp_path)
    last = engine.append("t", [], {"n": 2, "long": long})
    points = {point.checkpoint_id for point in engine.list_time_travel_points("t")}
    keys = [Key("t", "", name) for name in points - {first, last}]
    run_to_end(source.store.blocking.delete("t", keys=keys))
    report = everstep.backup(source, tmp_path)
    assert report.bytes < 2000
    assert restored(tmp_path) == seen(source.store)


def back_up_while_the_head_is_replaced(source: MemoryCheckpointer, head: str, folder: Path) -> None:
    """Make a backup during which the head of a thread is deleted, and another one comes, before it is read."""

    def replace_the_head() -> None:
        deleted = run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", head)]))
        for family in deleted.families:
            run_to_end(source.store.blocking.sweep(family))
        CheckpointEngine(source).sync.append("t", [a_message()], {"n": 9})

    between = Between(source.store)
    between.before("read_many", replace_the_head)
    everstep.backup(between, folder)
    assert between.is_over


def test_a_head_that_is_gone_before_it_was_read_takes_another_pass(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for n in range(4):
        engine.append("t", [a_message()], {"n": n})
    everstep.backup(source, tmp_path)
    last = engine.append("t", [{"role": "user", "content": secrets.token_hex(900)}], {"n": 4})
    back_up_while_the_head_is_replaced(source, last, tmp_path)
    kinds = [item[0] for item in items_of(tmp_path / "000002.everstep")]
    assert kinds.count(CHANGED) == kinds.count(DONE) == 2
    assert restored(tmp_path) == seen(source.store)
    engine.append("t", [a_message()], {"n": 10})
    assert everstep.backup(source, tmp_path).checkpoints == 1
    assert restored(tmp_path) == seen(source.store)


def test_a_second_pass_tells_what_changed_since_the_file_before_and_not_since_the_first(tmp_path: Path) -> None:
    """Rows of the first pass stand elsewhere than in the file before: a pin comes before most of them."""
    source, ids = a_long_thread(4)
    engine = CheckpointEngine(source).sync
    everstep.backup(source, tmp_path)
    engine.pin(ids[1])
    last = engine.append("t", [{"role": "user", "content": secrets.token_hex(900)}], {"n": 4})
    back_up_while_the_head_is_replaced(source, last, tmp_path)
    kinds = [item[0] for item in items_of(tmp_path / "000002.everstep")]
    assert kinds.count(CHANGED) == 2
    assert restored(tmp_path) == seen(source.store)


def test_values_that_only_a_pending_write_needs_are_brought_back(tmp_path: Path) -> None:
    source, ids = a_long_thread(2)
    key = Key("t", "", ids[1])
    leaf = make_object(secrets.token_bytes(5000))
    write = Write("task", 0, "channel", leaf.hash, b"body", 5000, "path")
    run_to_end(source.store.blocking.put_writes(key, [write], [leaf]))
    everstep.backup(source, tmp_path)
    CheckpointEngine(source).sync.append("t", [a_message()], {})
    everstep.backup(source, tmp_path)
    for number in (1, 2):
        target = MemoryCheckpointer()
        everstep.restore(tmp_path, target, number)
        assert CheckpointEngine(target).sync.verify().ok
        found = run_to_end(target.store.blocking.read("t", "", ids[1], writes=True))
        assert found is not None
        assert [held.children for held in found.writes] == [leaf.hash]
        fetched = run_to_end(target.store.blocking.fetch(found.stored.family, [leaf.hash]))
        assert [compress.expand(obj.body) for obj in fetched] == [compress.expand(leaf.body)]


def test_a_checkpoint_that_was_deleted_and_put_again_is_not_written_again(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    ids = [engine.append("t", [a_message()], {"n": n}) for n in range(3)]
    last = engine.get(ids[2])
    assert last is not None
    everstep.backup(source, tmp_path)
    run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", ids[2])]))
    source.sync.put(last)
    assert everstep.backup(source, tmp_path).checkpoints == 0
    engine.append("t", [], {})
    assert everstep.backup(source, tmp_path).checkpoints == 1
    assert restored(tmp_path) == seen(source.store)


def test_when_most_was_deleted_since_the_chain_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "_FEW", 0)
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source, SnapshotConfig(gc_policy="keep_last_n", gc_param=10)).sync
    written = []
    for n in range(60):
        engine.append("t", [a_message()], {"n": n})
        written.append(everstep.backup(source, tmp_path).checkpoints)
        assert restored(tmp_path) == seen(source.store)
    assert 3 <= len([count for count in written[10:] if count >= 10]) <= 6


def test_folders_of_older_versions_are_read_and_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    shutil.copytree(OLD, folder)
    first, second = MemoryCheckpointer(), MemoryCheckpointer()
    everstep.restore(folder, first, 1)
    everstep.restore(folder, second, 2)
    assert [len(CheckpointEngine(one).sync.list_time_travel_points("trip")) for one in (first, second)] == [3, 3]
    latest = CheckpointEngine(second).sync.get_latest("other")
    assert latest is not None
    assert latest.state["b"] == 1
    assert CheckpointEngine(first).sync.get_latest("other") is None

    engine = CheckpointEngine(second).sync
    points = [seen(first.store), seen(second.store)]
    for n in range(3):  # the restored store is another, so its families are new at first
        engine.append("trip", [a_message()], {"n": n})
        everstep.backup(second, folder)
        points.append(seen(second.store))
    assert size_of(folder) < 2 * size_of(OLD) + 10_000
    for number, expected in enumerate(points, 1):
        assert restored(folder, number) == expected


def test_a_family_of_an_older_version_is_written_whole_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for name in ("t", "idle"):
        for n in range(5):
            engine.append(name, [a_message()], {"n": n})
    everstep.backup(source, tmp_path)
    as_of_an_older_version(tmp_path)
    assert everstep.backup(source, tmp_path).unchanged == 2
    engine.append("t", [a_message()], {})
    report = everstep.backup(source, tmp_path)
    assert (report.checkpoints, report.unchanged) == (6, 1)
    engine.append("t", [a_message()], {})
    assert everstep.backup(source, tmp_path).checkpoints == 1
    assert restored(tmp_path) == seen(source.store)


def as_of_an_older_version(folder: Path) -> None:
    """Let the only backup of a folder look as it did before increments held less than families."""
    path = folder / "000001.families"
    path.write_text(json.dumps({name: held[:2] for name, held in json.loads(path.read_text()).items()}))
    seal(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["backups"][0]["changes"]
    manifest["format"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))


# -- damage, and going on ----------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A folder with three backups of one family that rest on one another."""
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for n in range(6):
        engine.append("t", [a_message()], {"n": n})
    for n in range(3):
        everstep.backup(source, tmp_path)
        middle = engine.append("t", [a_message()], {"m": n})
        engine.pin(middle)
        engine.branch(middle, f"b{n}")
    return tmp_path


def test_an_increment_is_not_imported_by_itself(chain: Path) -> None:
    everstep.import_threads(chain / "000001.everstep", MemoryStore())
    with pytest.raises(InvalidInput, match="use restore with its folder"):
        everstep.import_threads(chain / "000002.everstep", MemoryStore())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_bit_that_is_flipped_anywhere_in_a_chain(number: int, chain: Path) -> None:
    expected = restored(chain)
    path = chain / f"{number:06}.everstep"
    content = path.read_bytes()
    chance = random.Random(number)
    for place in [*range(40), *chance.sample(range(len(content)), 60)]:
        changed = bytearray(content)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            assert restored(chain) == expected  # what it holds besides the family is not read
        except (CheckpointCorrupted, InvalidInput):
            continue
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        try:
            assert restored(chain) == expected
        except (CheckpointCorrupted, InvalidInput):
            continue
        assert size > len(content) - 60  # all but the last item


@pytest.mark.parametrize("number", [1, 2])
def test_a_chain_that_is_damaged_is_not_rested_on(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, _ = a_long_thread(20)
    engine = CheckpointEngine(source).sync
    for _ in range(2):
        everstep.backup(source, tmp_path)
        engine.append("t", [a_message()], {})
    path = tmp_path / f"{number:06}.everstep"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "everstep"):
        report = everstep.backup(source, tmp_path)
    assert report.checkpoints == 22
    assert "cannot be read, so the family of thread 't' is written whole" in caplog.text
    assert restored(tmp_path) == seen(source.store)
    with pytest.raises(CheckpointCorrupted):
        restored(tmp_path, 2)


def test_a_restore_that_broke_off_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "PART_CHECKPOINTS", 10)
    source = MemoryCheckpointer()
    walker = Walker(source, 21, gc_policy="keep_last_n", gc_param=20)
    for _ in range(4):
        walker.walk(30)
        everstep.backup(source, tmp_path)
    expected = seen(source.store)
    counted = Recording(MemoryStore())
    everstep.restore(tmp_path, counted)
    assert len(counted.parts) >= 10
    for stop in range(len(counted.parts)):
        target = MemoryCheckpointer()
        recording = Recording(target.store)
        recording.before = stopping_after(stop)
        with pytest.raises(Killed):
            everstep.restore(tmp_path, recording)
        everstep.restore(tmp_path, target)
        assert seen(target.store) == expected, stop
        again = everstep.restore(tmp_path, target)
        assert (again.checkpoints, again.objects) == (0, 0)


# -- malice ------------------------------------------------------------------------------------------------------------


def items_of(path: Path) -> list[Item]:
    with path.open("rb") as content:
        reader = ItemReader(content)
        found: list[Item] = []
        while not found or found[-1][0] != END:
            item = reader.read()
            if item is None:
                reader.fill()
            else:
                found.append(item)
        return found


def write_items(path: Path, items: list[Item]) -> None:
    with path.open("wb") as out:
        writer = ItemWriter(out, INCREMENT_VERSION)
        for item in items:
            writer.add(item)
        writer.flush()


def seal(folder: Path) -> None:
    """Let the manifest have the checksums of the lists as they are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["backups"]:
        content = (folder / f"{entry['number']:06}.families").read_bytes()
        entry["check"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def all_of(items: list[Item], kind: int) -> list[Item]:
    return [item for item in items if item[0] == kind]


def setting(kind: int, *path: int, to: Any) -> Callable[[list[Item]], None]:
    def forge(items: list[Item]) -> None:
        inner: Any = all_of(items, kind)[0]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return forge


def dropping(kind: int) -> Callable[[list[Item]], None]:
    return lambda items: items.remove(all_of(items, kind)[0])


def doubling(kind: int) -> Callable[[list[Item]], None]:
    def forge(items: list[Item]) -> None:
        item = all_of(items, kind)[0]
        items.insert(items.index(item), list(item))

    return forge


FORGED = {
    "keeps nothing": setting(KEPT, 2, to=0),
    "keeps more than there is": setting(KEPT, 2, to=1 << 40),
    "keeps from behind the end": setting(KEPT, 1, to=1 << 40),
    "keeps rows twice": doubling(KEPT),
    "keeps a negative number": setting(KEPT, 1, to=-1),
    "has rows twice": doubling(ROWS),
    "has no rows": dropping(ROWS),
    "has a row that is no bytes": setting(ROWS, 1, 0, to="row"),
    "has a row that is no row": setting(ROWS, 1, 0, to=b"\x01"),
    "has a row of no kind": setting(ROWS, 1, 0, to=b"\x91\x63"),
    "has a row that cannot be read": setting(ROWS, 1, 0, to=b"\xc1"),
    "has a thread without fields": setting(ROWS, 1, 0, to=b"\x91\x02"),
    "has a pin of no thread": setting(ROWS, 1, 0, to=b"\x92\xfd\x01"),
    "has an entry without fields": setting(ROWS, 1, 0, to=b"\x91\x08"),
    "rests on itself": setting(CHANGED, 2, 0, to=2),
    "rests on what came later": setting(CHANGED, 2, 0, to=3),
    "rests on a file that is not there": setting(CHANGED, 2, 0, to=0),
    "rests on no place": setting(CHANGED, 2, 1, to=1 << 50),
    "rests on another checksum": setting(CHANGED, 2, 2, to=b"\0" * 16),
    "rests on a short checksum": setting(CHANGED, 2, 2, to=b"\0"),
    "has another number of rows": setting(CHANGED, 3, to=5),
    "is of another family": setting(CHANGED, 1, to=b"another"),
    "brings no objects": dropping(OBJECTS),
    "brings an object without a body": setting(OBJECTS, 1, to=[b""]),
    "brings an object that refers to nothing": setting(OBJECTS, 1, 0, to=b"\0" * 16),
    "brings no checkpoints": dropping(CHECKPOINTS),
    "brings a checkpoint of no entry": setting(CHECKPOINTS, 1, 0, 0, to=99),
    "brings a checkpoint that refers to nothing": setting(CHECKPOINTS, 1, 0, 2, to=b"\0" * 16),
    "brings a checkpoint with other metadata": setting(CHECKPOINTS, 1, 0, 3, to=b"\x90"),
    "is not done": dropping(DONE),
    "is done and not whole": setting(DONE, 1, to=False),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_increment_that_was_forged_is_refused(name: str, tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for n in range(6):
        engine.append("t", [{"role": "user", "content": secrets.token_hex(2000)}], {"n": n})
    everstep.backup(source, tmp_path)
    engine.append("t", [{"role": "user", "content": secrets.token_hex(2000)}], {"m": n})
    everstep.backup(source, tmp_path)
    path = tmp_path / "000002.everstep"
    items = items_of(path)
    write_items(path, items)
    assert restored(tmp_path) == seen(source.store)
    FORGED[name](items)
    write_items(path, items)
    target = MemoryCheckpointer()
    with pytest.raises((CheckpointCorrupted, InvalidInput)):
        everstep.restore(tmp_path, target)
    assert seen(target.store)["threads"] == []


def test_a_list_that_leads_to_an_earlier_file_is_refused(chain: Path) -> None:
    """All that it leads to is whole, and is what the thread was at the backup before."""
    [(identity, earlier)] = json.loads((chain / "000002.families").read_text()).items()
    later = json.loads((chain / "000003.families").read_text())[identity]
    number, token = later[:2]
    assert number != earlier[0]
    assert token != earlier[1]
    (chain / "000003.families").write_text(json.dumps({identity: [earlier[0], token, *earlier[2:]]}))
    seal(chain)
    target = MemoryCheckpointer()
    with pytest.raises(CheckpointCorrupted, match="not as it was then"):
        everstep.restore(chain, target)
    assert seen(target.store)["threads"] == []


# -- rows --------------------------------------------------------------------------------------------------------------

_ROWS = st.lists(st.sampled_from([bytes([n]) for n in range(12)]), max_size=20)


@settings(max_examples=400)
@given(before=_ROWS, after=_ROWS, new=st.sets(st.sampled_from([bytes([n]) for n in range(3)])))
def test_stretches_give_the_rows_and_use_each_once(before: list[bytes], after: list[bytes], new: set[bytes]) -> None:
    found: list[bytes] = []
    used: list[int] = []
    brought: list[bytes] = []
    for stretch in _stretches(before, after, new):
        if isinstance(stretch, range):
            used += stretch
            found += before[stretch.start : stretch.stop]
        else:
            brought += stretch
            found += stretch
    assert found == after
    assert len(used) == len(set(used))
    assert [row for row in after if row in new] == [row for row in brought if row in new]


def test_a_row_stays_once_however_many_there_are_said_to_be() -> None:
    """Else a small file could tell of very many."""
    patch = _Patch([b"a", b"b"], 4)
    assert patch.add([KEPT, 0, 2])
    for item in ([KEPT, 0, 2], [KEPT, 1, 1]):
        with pytest.raises(CheckpointCorrupted, match="keeps what is not there"):
            patch.add(item)
