"""A file that has something of everything, and all that can be read of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import everstep
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Hidden, Key, Operation, Pin, Query, Write
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


def wrong_after(data: bytes, truth: dict[str, Any], path: Path) -> tuple[list[str], bool]:
    """Return the questions with silently wrong answers, and whether anything was noticed."""
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    path.write_bytes(data)
    answers = everything(path)
    wrong = [q for q, a in answers.items() if not isinstance(a, Exception) and a != truth.get(q)]
    return wrong, any(isinstance(answer, Exception) for answer in answers.values())
