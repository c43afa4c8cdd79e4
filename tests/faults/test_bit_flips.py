"""One flipped bit anywhere in the file: the right answer or an error of ours, never a wrong answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Hidden, Key, Operation, Pin, Query, Write
from everstep.stores.sqlite import opening as sqlite_opening
from everstep.stores.sqlite.schema import PAGE_BYTES
from everstep.stores.sqlite.store import SQLiteStore


def fill(path: Path) -> SQLiteStore:
    """Write a store with something in every table, and leave it open."""
    engine = everstep.open(f"sqlite:///{path}", everstep.SnapshotConfig(gc_policy="keep_all")).sync
    for n in range(30):
        engine.append("chat", [{"role": "user", "content": f"message {n} " * 30}], {"n": n, "text": "é" * n})
        engine.snapshot(f"thread {n % 5}", [], {"blob": random.Random(n).randbytes(400)}, {}, metadata={"n": n})
    engine.snapshot("chat", [], {}, {}, namespace="inner")
    work_on_a_branch(engine)
    engine.append("deleted", [{"role": "user", "content": "soon gone"}])
    engine.checkpointer.delete_thread("deleted")
    store = SQLiteStore(path).blocking
    listed = run_to_end(store.list_checkpoints(Query(thread_id="chat")))
    pin = Pin(listed[3].record.key, True)
    hide = Hidden("", listed[2].seq, listed[0].seq)
    run_to_end(store.commit(Change(thread_id="chat", pins=[pin], hide=[hide], log=Operation("rewind", {"n": 1}))))
    writes = [Write(f"task {n}", n, "channel", b"", b"value", 5, "path") for n in range(5)]
    run_to_end(store.put_writes(Key("chat", "", listed[5].record.key.checkpoint_id), writes, []))
    engine.close()
    return store


def work_on_a_branch(engine: everstep.SyncEngine) -> None:
    """Leave a branch that was merged, a rewind, and an operation that was taken back."""
    points = engine.list_time_travel_points("thread 1")
    branch = engine.branch(points[2].checkpoint_id, "side", thread_id="thread 1")
    engine.append(branch, [{"role": "user", "content": "beside"}])
    engine.merge_branch(branch, "thread 1", resolve="ours")
    engine.rewind(points[1].checkpoint_id, thread_id="thread 1")
    engine.rewind(points[3].checkpoint_id, thread_id="thread 1")
    engine.undo("thread 1")


def make(path: Path) -> None:
    run_to_end(fill(path).close())


def whole_page(backend: Any) -> Any:
    """Return a page of threads, or raise what is wrong with those that it names as damaged."""
    page = backend.list_threads(100)
    for thread in page.damaged:
        raise everstep.CheckpointCorrupted(thread.reason, thread_id=thread.thread_id)
    return page


def everything(path: Path) -> dict[str, Any]:
    """Return each answer the store gives, or the error of ours in its place."""
    answers: dict[str, Any] = {}
    store = SQLiteStore(path)
    backend = everstep.StoreBackend(store).sync

    def ask(question: str, call: Any) -> Any:
        try:
            answers[question] = call()
        except everstep.EverstepError as exc:
            answers[question] = exc
        return answers[question]

    try:
        ask("threads", lambda: whole_page(backend))
        names = [thread.thread_id for thread in answers["threads"]] if isinstance(answers["threads"], list) else []
        for thread in sorted({"chat", "deleted", *(f"thread {n}" for n in range(5)), *names}):
            ask(f"latest {thread}", lambda t=thread: backend.get_latest(t))
            ask(f"info {thread}", lambda t=thread: run_to_end(store.blocking.thread(t, branches=True, ancestry=True)))
            ask(f"raw {thread}", lambda t=thread: run_to_end(store.blocking.raw(t, family_threads=True)))
            ask(f"count {thread}", lambda t=thread: run_to_end(store.blocking.count(Query(thread_id=t))))
            ask(f"log {thread}", lambda t=thread: run_to_end(store.blocking.operations(t, 10)))
            query = Query(thread_id=thread, namespace=None, hidden="also")
            listed = ask(f"list {thread}", lambda q=query: run_to_end(store.blocking.list_checkpoints(q)))
            keys = [stored.record.key for stored in listed] if isinstance(listed, list) else []
            if keys:
                ask(f"read {thread}", lambda k=keys: run_to_end(store.blocking.read_many(k, writes=True)))
            for key in keys:
                ask(f"get {key}", lambda k=key: backend.get(k[2], thread_id=k[0], namespace=k[1]))
                ask(f"find {key}", lambda k=key: run_to_end(store.blocking.find(k[2])))
                ask(f"read {key}", lambda k=key: run_to_end(store.blocking.read(*k, writes=True)))
    finally:
        backend.close()
    return answers


@pytest.fixture(autouse=True)
def _nobody_is_making_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that looks damaged while it is opened is looked at again for a second: somebody may be making it."""
    monkeypatch.setattr(sqlite_opening, "_MAKING_SECONDS", 0.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    path = tmp_path_factory.mktemp("flips") / "original.db"
    make(path)
    data = path.read_bytes()
    answers = everything(path)
    assert not any(isinstance(answer, Exception) for answer in answers.values())
    assert len(answers) > 200
    return data, answers


def wrong_after(data: bytes, truth: dict[str, Any], path: Path) -> tuple[list[str], bool]:
    """Return the questions with silently wrong answers, and whether anything was noticed."""
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    path.write_bytes(data)
    answers = everything(path)
    wrong = [q for q, a in answers.items() if not isinstance(a, Exception) and a != truth.get(q)]
    return wrong, any(isinstance(answer, Exception) for answer in answers.values())


@pytest.mark.long
def test_single_bit_flips_are_never_silently_wrong(original: tuple[bytes, dict[str, Any]], tmp_path: Path) -> None:
    data, truth = original
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    places = [(at, bit) for at in range(100) for bit in (rng.randrange(8),)]  # the file's header
    places += [(rng.randrange(len(data)), rng.randrange(8)) for _ in range(300)]
    noticed = 0
    for at, bit in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        wrong, loud = wrong_after(bytes(flipped), truth, tmp_path / "flipped.db")
        assert wrong == [], f"seed {seed}: bit {bit} of byte {at}"
        noticed += loud
    assert noticed > len(places) // 4  # the others are in places that hold nothing


def forged(data: bytes, place: int) -> bytes:
    """Return `data` with a bit flipped at `place` and the page's checksum put right again."""
    flipped = bytearray(data)
    flipped[place] ^= 1
    start = place // PAGE_BYTES * PAGE_BYTES
    end = start + PAGE_BYTES
    flipped[end - 8 : end] = _page_checksum(bytes(flipped[start : end - 8]))
    return bytes(flipped)


def test_records_and_objects_have_checksums_of_their_own(
    original: tuple[bytes, dict[str, Any]], tmp_path: Path
) -> None:
    data, truth = original
    for text in (b"State: 1 keys", random.Random(7).randbytes(400)[:20]):
        places = [at for at in range(len(data)) if data.startswith(text, at)]
        found = [wrong_after(forged(data, place + 3), truth, tmp_path / "forged.db") for place in places]
        assert [wrong for wrong, _ in found if wrong] == []
        assert any(loud for _, loud in found)  # some places are left-overs in pages, which nobody reads


def test_this_test_can_fail(original: tuple[bytes, dict[str, Any]], tmp_path: Path) -> None:
    """Without page checksums a flip in an index would be a silently wrong answer, and is seen as one here."""
    data, truth = original
    places = [at for at in range(len(data)) if data.startswith(b"ckpt-thread 3-2-", at)]
    found = [wrong_after(forged(data, place + 12), truth, tmp_path / "forged.db")[0] for place in places]
    assert any(found)


def _page_checksum(page: bytes) -> bytes:
    """SQLite's page checksum: two running sums over little-endian words."""
    one = two = 0
    for at in range(0, len(page), 8):
        one = (one + int.from_bytes(page[at : at + 4], "little") + two) & 0xFFFFFFFF
        two = (two + int.from_bytes(page[at + 4 : at + 8], "little") + one) & 0xFFFFFFFF
    return one.to_bytes(4, "little") + two.to_bytes(4, "little")
