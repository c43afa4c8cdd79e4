"""Random operations, restarts included, against a plain model of dictionaries: each store gives the model's answers."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import everstep
from everstep import Checkpoint, CheckpointMetadata, SnapshotConfig
from everstep.stores.memory import MemoryStore
from everstep.stores.sqlite import SQLiteStore

THREADS = ("a", "b", "odd\0name\n")
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "ai"]), "content": st.text(max_size=20) | st.just("long " * 300)}
    ),
    max_size=4,
)
STATES = st.dictionaries(
    st.sampled_from(["k1", "k2", "plan", "é"]),
    st.one_of(
        st.integers(), st.text(max_size=5), st.binary(max_size=5), st.just(("t", 1.5, None)), st.just(["x" * 90] * 40)
    ),
    max_size=3,
)


class Model(RuleBasedStateMachine):
    """Two engines on one store (as two processes would be), and what they should hold."""

    kind = ""

    @initialize()
    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._memory = MemoryStore()
        self.threads: dict[str, list[Checkpoint]] = {}  # in the order of arrival
        self.heads: dict[str, str] = {}
        self.activity: list[str] = []
        self.puts = 0
        self._open()

    def _open(self) -> None:
        def store() -> Any:
            return self._memory if self.kind == "memory" else SQLiteStore(Path(self._folder.name) / "m.db")

        config = SnapshotConfig(gc_policy="keep_all")
        self.engines = [everstep.CheckpointEngine(everstep.StoreBackend(store()), config).sync for _ in range(2)]

    def teardown(self) -> None:
        if hasattr(self, "engines"):
            for engine in self.engines:
                engine.close()
            self._folder.cleanup()

    def _head(self, thread: str) -> Checkpoint | None:
        return next((c for c in self.threads.get(thread, ()) if c.metadata.checkpoint_id == self.heads[thread]), None)

    def _saved(
        self, thread: str, checkpoint_id: str, engine: int, expected: dict[str, Any], parent: Checkpoint | None
    ) -> None:
        """Note a step the engine says it saved, after checking the metadata it got."""
        found = self.engines[engine].get(checkpoint_id)
        assert found is not None
        step = parent.metadata.step + 1 if parent else 1
        assert checkpoint_id.startswith(f"ckpt-{thread}-{step}-")
        assert found.metadata.step == step
        assert found.metadata.parents == ([parent.metadata.checkpoint_id] if parent else [])
        assert {name: getattr(found, name) for name in expected} == expected
        self._note(thread, found)

    def _note(self, thread: str, checkpoint: Checkpoint) -> None:
        self.threads.setdefault(thread, []).append(copy.deepcopy(checkpoint))
        self.heads[thread] = checkpoint.metadata.checkpoint_id
        self.activity = [thread, *(t for t in self.activity if t != thread)]

    engine = st.integers(0, 1)
    thread = st.sampled_from(THREADS)

    @rule(engine=engine, thread=thread, messages=MESSAGES, state=STATES, tools=STATES, node=st.sampled_from(["", "n"]))
    def snapshot(self, engine: int, thread: str, messages: Any, state: Any, tools: Any, node: str) -> None:
        head = self._head(thread)
        checkpoint_id = self.engines[engine].snapshot(thread, messages, state, tools, next_node=node)
        expected = {"messages": messages, "state": state, "tools_result": tools, "next_node": node}
        self._saved(thread, checkpoint_id, engine, expected, head)

    @rule(engine=engine, thread=thread, messages=MESSAGES, state=STATES, tools=STATES)
    def append(self, engine: int, thread: str, messages: Any, state: Any, tools: Any) -> None:
        head = self._head(thread)
        checkpoint_id = self.engines[engine].append(thread, messages, state, tools)
        old = head or Checkpoint(CheckpointMetadata(thread, "none", 0))
        expected = {
            "messages": old.messages + messages,
            "state": old.state | state,
            "tools_result": old.tools_result | tools,
        }
        self._saved(thread, checkpoint_id, engine, expected, head)

    @rule(engine=engine, thread=thread, extra=MESSAGES, at=st.integers(0, 40))
    def snapshot_an_edited_head(self, engine: int, thread: str, extra: Any, at: int) -> None:
        head = self._head(thread)
        messages = copy.deepcopy(head.messages) if head else []
        messages[at : at + 1] = extra
        checkpoint_id = self.engines[engine].snapshot(thread, messages, {}, {})
        self._saved(thread, checkpoint_id, engine, {"messages": messages}, head)

    @precondition(lambda self: self.threads)
    @rule(engine=engine, data=st.data(), state=STATES)
    def snapshot_on_an_older_parent(self, engine: int, data: st.DataObject, state: Any) -> None:
        thread = data.draw(st.sampled_from(sorted(self.threads)))
        parent = data.draw(st.sampled_from(self.threads[thread]))
        parent_id = parent.metadata.checkpoint_id
        checkpoint_id = self.engines[engine].snapshot(thread, [], state, {}, parent_checkpoint_id=parent_id)
        self._saved(thread, checkpoint_id, engine, {"state": state}, parent)

    @rule(engine=engine, thread=thread, right=st.booleans(), appending=st.booleans(), state=STATES)
    def with_an_expected_head(self, engine: int, thread: str, right: bool, appending: bool, state: Any) -> None:
        head = self._head(thread)
        expected = head.metadata.checkpoint_id if head else None
        chosen = self.engines[engine]
        if not right:
            wrong = "ckpt-nobody-1-00000000" if expected is None else None
            with pytest.raises(everstep.HeadMoved):
                chosen.append(thread, [], state, expected_head=wrong) if appending else chosen.snapshot(
                    thread, [], state, {}, expected_head=wrong
                )
            return
        if appending:
            checkpoint_id = chosen.append(thread, [], state, expected_head=expected)
            state = (head.state if head else {}) | state
        else:
            checkpoint_id = chosen.snapshot(thread, [], state, {}, expected_head=expected)
        self._saved(thread, checkpoint_id, engine, {"state": state}, head)

    @rule(engine=engine, thread=thread, state=STATES, step=st.integers(-3, 50))
    def put_under_an_own_id(self, engine: int, thread: str, state: Any, step: int) -> None:
        self.puts += 1
        given = Checkpoint(
            CheckpointMetadata(thread, f"own-{self.puts}", step, parent_checkpoint_id="anything"), state=state
        )
        self.engines[engine].checkpointer.put(given)
        found = self.engines[engine].get(given.metadata.checkpoint_id)
        assert found is not None
        assert (found.state, found.metadata.step) == (state, step)
        self._note(thread, found)

    @precondition(lambda self: self.threads)
    @rule(engine=engine, data=st.data(), state=STATES, same=st.booleans())
    def put_again(self, engine: int, data: st.DataObject, state: Any, same: bool) -> None:
        thread = data.draw(st.sampled_from(sorted(self.threads)))
        at = data.draw(st.integers(0, len(self.threads[thread]) - 1))
        again = copy.deepcopy(self.threads[thread][at])
        if not same:
            again.state = state
        self.engines[engine].checkpointer.put(again)
        found = self.engines[1 - engine].get(again.metadata.checkpoint_id)
        assert found is not None
        assert found.state == again.state
        self.threads[thread][at] = found

    @rule(engine=engine, thread=thread)
    def save_something_unstorable(self, engine: int, thread: str) -> None:
        with pytest.raises(everstep.UnstorableValue):
            self.engines[engine].snapshot(thread, [{"content": object()}], {}, {})
        with pytest.raises(everstep.UnstorableValue):
            self.engines[engine].append(thread, [], {"x": object()})

    @rule(engine=engine, thread=thread)
    def delete_a_thread(self, engine: int, thread: str) -> None:
        gone = self.threads.pop(thread, [])
        self.heads.pop(thread, None)
        self.activity = [t for t in self.activity if t != thread]
        assert self.engines[engine].checkpointer.delete_thread(thread) == len(gone)

    @rule(engine=engine, thread=thread, step=st.integers(-2, 8))
    def delete_before(self, engine: int, thread: str, step: int) -> None:
        old = self.threads.get(thread, [])
        kept = [c for c in old if c.metadata.step >= step]
        assert self.engines[engine].checkpointer.delete_before(thread, step) == len(old) - len(kept)
        if not kept:
            self.threads.pop(thread, None)
            self.heads.pop(thread, None)
            self.activity = [t for t in self.activity if t != thread]
            return
        self.threads[thread] = kept
        if self._head(thread) is None:
            self.heads[thread] = kept[-1].metadata.checkpoint_id

    @rule()
    def restart(self) -> None:
        if self.kind != "memory":
            for engine in self.engines:
                engine.close()
        self._open()

    @rule(engine=engine)
    def read_everything(self, engine: int) -> None:
        for checkpoints in self.threads.values():
            for checkpoint in checkpoints:
                found = self.engines[engine].get(checkpoint.metadata.checkpoint_id)
                assert found == checkpoint
                assert found is not None
                assert list(found.state) == list(checkpoint.state)

    @invariant()
    def heads_and_lists_agree(self) -> None:
        if not hasattr(self, "engines"):
            return
        for n, engine in enumerate(self.engines):
            for thread in THREADS:
                assert engine.get_latest(thread) == self._head(thread), n
                listed = engine.list_time_travel_points(thread, 1000)
                assert listed == [c.metadata for c in reversed(self.threads.get(thread, []))]
            assert [m.thread_id for m in engine.checkpointer.list_threads()] == self.activity


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_behaves_like_the_model(store: str) -> None:
    machine = type(f"Model_{store}", (Model,), {"kind": store})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150 if store == "memory" else 80, stateful_step_count=30)
    )
