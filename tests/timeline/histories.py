"""Random histories through the engine's own methods, and all that can be seen of them.

What is chosen depends on the seed and on what is visible, so that two stores that hold the same go the same way.
"""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

import everstep
from everstep import CheckpointNotFound, EverstepError
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Query, Store, Write
from everstep.values import codec

NAMESPACES = ("", "", "", "sub")


class Walker:
    """Does one thing after another to a store."""

    def __init__(self, backend: Any, seed: int, *, deletes_threads: bool = True, **config: Any) -> None:
        self.backend = backend
        self.store: Store = backend.store.blocking
        self.engine = everstep.CheckpointEngine(backend, everstep.SnapshotConfig(**config)).sync
        self._random = random.Random(seed)
        self._count = 0
        self._deletes_threads = deletes_threads

    def walk(self, steps: int) -> list[str]:
        return [self.step() for _ in range(steps)]

    def step(self) -> str:
        """Do something, and tell what; what is refused is part of it."""
        self._count += 1
        act = self._random.choice(ACTS)
        try:
            return f"{act.__name__}: {act(self)}"
        except (EverstepError, LookupError) as exc:
            return f"{act.__name__}: {type(exc).__name__}"

    # -- what there is to choose from

    def thread(self) -> str:
        names = [head.record.key.thread_id for head in run_to_end(self.store.list_threads(1000, 0))]
        return self._random.choice(names or ["t"])

    def checkpoint(self, thread_id: str, hidden: Any = "no") -> Key:
        namespace = self._random.choice(NAMESPACES)
        query = Query(thread_id=thread_id, namespace=namespace, hidden=hidden)
        listed = run_to_end(self.store.list_checkpoints(query))
        if not listed:
            raise CheckpointNotFound("any", thread_id)
        return self._random.choice(listed).record.key

    # -- what can be done

    def append(self) -> str:
        thread_id = self._random.choice(["t", "u", self.thread(), self.thread(), self.thread()])
        messages = [{"role": "user", "content": f"{self._count}", "id": f"m{self._count}"}]
        if self._random.random() < 0.2:
            messages += [{"role": "tool", "content": "long " * 400 + str(self._count)}] * 5
        state = {self._random.choice("abc"): self._count}
        return self.engine.append(thread_id, messages, state, namespace=self._random.choice(NAMESPACES), tags=["tag"])

    def follow_an_older_one(self) -> str:
        key = self.checkpoint(self.thread())
        return self.engine.snapshot(
            key.thread_id, [], {"d": self._count}, {}, parent_checkpoint_id=key.checkpoint_id, namespace=key.namespace
        )

    def branch(self) -> str:
        key = self.checkpoint(self.thread(), "also")
        return self.engine.branch(key.checkpoint_id, "b", thread_id=key.thread_id, namespace=key.namespace)

    def merge(self) -> str:
        return self.engine.merge_branch(self.thread(), self.thread(), resolve="theirs")

    def rewind(self) -> str:
        key = self.checkpoint(self.thread())
        later = self._random.choice(["hide", "hide", "keep", "delete"])
        result = self.engine.rewind(key.checkpoint_id, later=later, thread_id=key.thread_id, namespace=key.namespace)  # type: ignore[arg-type]
        return f"{later} {result.rewind_depth} of {result.snapshot_count_before}"

    def undo(self) -> str:
        return self.engine.undo(self.thread()).kind

    def redo(self) -> str:
        return self.engine.redo(self.thread()).kind

    def pin(self) -> str:
        key = self.checkpoint(self.thread(), "also")
        pin = self._random.choice([self.engine.pin, self.engine.pin, self.engine.unpin])
        pin(key.checkpoint_id, thread_id=key.thread_id, namespace=key.namespace)
        return key.checkpoint_id

    def write(self) -> str:
        key = self.checkpoint(self.thread(), "also")
        if self._random.random() < 0.2:
            key = key._replace(checkpoint_id=f"later {self._count}")
        loaded = run_to_end(self.store.read(*key, objects=True))
        children = min(obj.hash for obj in loaded.objects) if loaded is not None and loaded.objects else b""
        write = Write(f"task {self._count % 5}", self._random.choice([0, 1, -1]), "channel", children, b"w", 1)
        run_to_end(self.store.put_writes(key, [write], loaded.objects if loaded is not None else []))
        return key.checkpoint_id

    def replace(self) -> str:
        key = self.checkpoint(self.thread(), "also")
        found = self.backend.sync.get(key.checkpoint_id, thread_id=key.thread_id, namespace=key.namespace)
        found.state["replaced"] = self._count
        return str(self.backend.sync.put(found))

    def delete_checkpoint(self) -> str:
        key = self.checkpoint(self.thread(), "also")
        only = run_to_end(self.store.count(Query(thread_id=key.thread_id, namespace=None, hidden="also"))) == 1
        if only and not self._deletes_threads:
            return "not the last one"
        run_to_end(self.store.delete(key.thread_id, keys=[key]))
        return key.checkpoint_id

    def delete_thread(self) -> str:
        if self._random.random() < 0.8 or not self._deletes_threads:
            return "not this time"
        thread_id = self.thread()
        return f"{thread_id} {self.backend.sync.delete_thread(thread_id)}"

    def collect(self) -> str:
        return str(self.engine.collect().checkpoints)


ACTS = [
    *[Walker.append] * 8, *[Walker.rewind] * 3, *[Walker.branch] * 2, *[Walker.merge] * 2, *[Walker.undo] * 3,
    *[Walker.redo] * 2, *[Walker.write] * 2, Walker.pin, Walker.follow_an_older_one, Walker.replace,
    Walker.delete_checkpoint, Walker.delete_thread, Walker.collect,
]  # fmt: skip


def same_tokens(monkeypatch: pytest.MonkeyPatch, first: int = 0) -> None:
    """Let ids be the same in every run from here."""
    tokens = itertools.count(first)
    ours = SimpleNamespace(token_hex=lambda size: f"{next(tokens):0{2 * size}x}")
    monkeypatch.setattr("everstep.repository.new_names.secrets", ours)  # drivers take tokens too


def seen(store: Store, *, times: bool = True) -> dict[str, Any]:
    """Return all that can be seen of a store, but its numbers.

    Without `times` also without generations: a store may count on from where a deleted namespace left off.
    """
    store = store.blocking
    backend = everstep.StoreBackend(store)
    engine = everstep.CheckpointEngine(backend).sync
    names = [head.record.key.thread_id for head in run_to_end(store.list_threads(1000, 0, headless=True))]
    found: dict[str, Any] = {
        "threads": [metadata.to_dict() for metadata in backend.sync.list_threads(1000)],
        "every thread": sorted(names),
    }
    for name in names:
        query = Query(thread_id=name, namespace=None, hidden="also")
        listed = run_to_end(store.list_checkpoints(query))
        thread = run_to_end(store.thread(name, branches=True))
        assert thread is not None
        found[name] = {
            "tree": engine.get_checkpoint_tree(name),
            "log": [(o.kind, o.created_at, o.undone, o.details) for o in engine.operations(name, 1000)],
            "thread": (
                thread.origin,
                {ns: head if times else head[0] for ns, head in thread.heads.items()},
                sorted(thread.branches),
                sorted(thread.shared_states),
            ),
            "visible": {ns: engine.list_time_travel_points(name, 1000, namespace=ns) for ns in set(NAMESPACES)},
            "checkpoints": [_seen_checkpoint(store, backend, s) for s in listed],
            "differences": [
                str(engine.diff(a.record.key[2], b.record.key[2], thread_id=name).changes)
                for a, b in zip(listed[1:6], listed, strict=False)
                if a.record.key.namespace == b.record.key.namespace == ""
            ],
        }
    return found if times else _without_times(found)


def _seen_checkpoint(store: Store, backend: Any, stored: Any) -> Any:
    key = stored.record.key
    loaded = run_to_end(store.read(*key, writes=True))
    assert loaded is not None
    whole = backend.sync.get(key.checkpoint_id, thread_id=key.thread_id, namespace=key.namespace)
    values = codec.pack([whole.messages, whole.state, whole.tools_result])
    writes = [write._replace(seq=0) for write in loaded.writes]
    return stored.record, stored.pinned, stored.hidden, loaded.stored.record, values, writes


def _without_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_times(value) for key, value in found.items() if key != "created_at"}
    if hasattr(found, "_fields"):
        return tuple(
            _without_times(value) for name, value in zip(found._fields, found, strict=True) if name != "created_at"
        )
    if isinstance(found, (list, tuple)):
        return [_without_times(item) for item in found]
    if isinstance(found, everstep.CheckpointMetadata):
        return _without_times(found.to_dict())
    return "a time" if isinstance(found, str) and found[:2] == "20" and "+00:00" in found else found
