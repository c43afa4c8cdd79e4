"""A thread with very many checkpoints, made in seconds: a few are saved as always, and the rest are taken over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import everstep
from everstep import SnapshotConfig
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Part, Query, RawThread, Store, Stored
from everstep.stores.sqlite.store import SQLiteStore

_AT_ONCE = 20_000
_SEEDS = 40


def fill(path: Path, thread_id: str, count: int) -> None:
    """Write a thread of `count` checkpoints into the file."""
    config = SnapshotConfig(gc_policy="keep_all")
    with everstep.open(path, config, synchronous="off").sync as engine:
        for step in range(_SEEDS):
            trigger = "llm_call" if step % 2 else "tool_call"
            role = "assistant" if step % 2 else "tool"
            message = {"role": role, "name": "search", "content": f"case {step}: the answer was checked and kept"}
            engine.append(thread_id, [message], {"turn": step}, trigger=trigger)
    store = SQLiteStore(path, synchronous="off")
    try:
        run_to_end(_extend(store.blocking, thread_id, count))
    finally:
        run_to_end(store.blocking.close())


async def _extend(store: Store, thread_id: str, count: int) -> None:
    listed = await store.list_checkpoints(Query(thread_id=thread_id, namespace=""))
    loaded = await store.read_many([stored.record.key for stored in listed])
    seeds = [found.stored for found in loaded]
    raw = await store.raw(thread_id)
    assert raw is not None
    missing = count - len(seeds)
    first = await store.adopt(Part(thread_id, reserve=missing)) + 1
    made: list[Stored] = []
    for stored in _following(seeds, first, missing):
        made.append(stored)
        if len(made) == _AT_ONCE:
            await store.adopt(Part(thread_id, checkpoints=made))
            made = made[-1:]
    last = made[-1]
    await store.adopt(Part(thread_id, checkpoints=made, threads=[_moved(raw, last)]))


def _following(seeds: list[Stored], first: int, count: int) -> Iterator[Stored]:
    """Yield copies of the seeds, one after the other, each the child of the one before."""
    before = seeds[0] if seeds[0].seq > seeds[-1].seq else seeds[-1]
    moment = datetime.fromisoformat(before.record.created_at)
    for number in range(count):
        seed = seeds[number % len(seeds)]
        thread_id, namespace, _ = before.record.key
        moment += timedelta(milliseconds=40)
        record = seed.record._replace(
            key=Key(thread_id, namespace, f"ckpt-{thread_id}-{before.record.step + 1}-{number:016x}"),
            step=before.record.step + 1,
            parents=(before.record.key,),
            created_at=moment.isoformat(timespec="microseconds"),
        )
        before = seed._replace(record=record, seq=first + number, segment=before.segment)
        yield before


def _moved(raw: RawThread, head: Stored) -> RawThread:
    """Return the thread with another head."""
    lines = {name: line._replace(head=head.record.key.checkpoint_id) for name, line in raw.lines.items()}
    return raw._replace(lines=lines)
