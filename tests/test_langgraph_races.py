"""What happens to values, lists and switches while other threads are at work."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import everstep
from everstep.langgraph import HarnessCheckpointer, channels, threads
from everstep.langgraph.quiet import QUIET
from everstep.repository import Encoded, encoded
from everstep.values import codec, tree
from tests.langgraph_tools import FacedSaver, at, checkpoint


class Meddling:
    """Runs something while it is packed, as another thread may."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        self.action = action

    def state(self) -> list[Any]:
        self.action()
        return []


everstep.register(Meddling, name="tests.Meddling", to_state=Meddling.state, from_state=lambda _: Meddling())


def test_a_list_that_shrinks_while_it_is_packed_is_packed_as_it_was() -> None:
    inner: list[Any] = [(n,) for n in range(3000)]
    inner[0] = Meddling(lambda: inner.__delitem__(slice(10, None)))

    found = codec.unpack(codec.pack({"a": [inner]}))

    assert found["a"][0][1:] == [(n,) for n in range(1, 3000)]


@pytest.mark.parametrize("change", [lambda d: d.update({f"new {n}": n for n in range(100)}), lambda d: d.clear()])
def test_a_dict_that_changes_while_it_is_packed_is_packed_as_it_was(change: Callable[[dict[str, Any]], None]) -> None:
    inner: dict[str, Any] = {str(n): (n,) for n in range(50)}
    inner["0"] = Meddling(lambda: change(inner))

    found = codec.unpack(codec.pack((inner,)))

    assert list(found[0]) == [str(n) for n in range(50)]


async def test_all_parts_of_a_large_value_are_of_one_moment(saver: FacedSaver) -> None:
    value: dict[str, Any] = {"text": "x" * 5000, "more": {"seen": 0}}
    value["meddler"] = Meddling(lambda: value["more"].update(seen=value["more"]["seen"] + 1))

    config = await saver.add("c1", {"value": value})
    await saver.put_writes(config, [("value", value)], "task")

    found = await saver.get_tuple(config)
    assert found.checkpoint["channel_values"]["value"]["more"] == {"seen": 0}
    assert found.pending_writes[0][2]["more"] == {"seen": 1}


class Forgetful(dict[bytes, tree.Content]):
    """A memory out of which everything is taken by another thread after one has looked."""

    def __contains__(self, key: object) -> bool:
        return True


def test_an_object_that_leaves_memory_is_said_to_be_missing() -> None:
    node = tree.Writer().value({str(n): "x" * 100 for n in range(50)}, "value")

    with pytest.raises(tree.MissingObject):
        tree.entries(node, Forgetful())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_the_collector_as_it_was_though_a_thread_was_building() -> None:
    saver = HarnessCheckpointer()
    saver.put(at(), checkpoint("c1", {"messages": [HumanMessage("x", id="1")]}))
    inside, leave = threading.Event(), threading.Event()

    def build() -> None:
        with QUIET:
            inside.set()
            leave.wait(60)

    builder = threading.Thread(target=build)
    builder.start()
    try:
        assert inside.wait(60)
        assert not gc.isenabled()
        child = os.fork()
        if child == 0:
            before = gc.isenabled()
            list(saver.list(at()))
            os._exit(0 if before and gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    finally:
        leave.set()
        builder.join()
    assert gc.isenabled()


def test_what_is_remembered_of_large_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_TEMPLATES_BYTES_MAX", 1 << 20)
    saver = HarnessCheckpointer()
    for n in range(100):
        saver.put(at(f"t{n}"), checkpoint("c1", {"messages": [HumanMessage(str(n) * 50_000, id=str(n))]}))

    found = [len(saved.checkpoint["channel_values"]["messages"][0].content) for saved in saver.list(None)]

    assert len(found) == 100
    assert min(found) == 50_000
    assert len(saver._channels._templates) < 30


def test_a_large_dict_of_which_one_value_changed_sends_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def counted(nodes: Any, writer: tree.Writer, base: Any, **options: Any) -> Encoded:
        sent.append(len(writer.objects))
        return encoded(nodes, writer, base, **options)

    monkeypatch.setattr(threads, "encoded", counted)
    saver, value = HarnessCheckpointer(), {str(n): "x" * n for n in range(2000)}
    for n in range(1, 5):
        value = value if n == 4 else value | {"7": f"changed {n}" * 20}
        versions = {"value": n}
        saver.put(
            at(name=f"c{n - 1}" if n > 1 else None), checkpoint(f"c{n}", {"value": value}, versions), {}, versions
        )

    assert sent[0] > 500
    assert max(sent[1:3]) < 10
    assert sent[3] == 0
    assert saver.get(at(name="c4"))["channel_values"] == {"value": value}
    others = HarnessCheckpointer(backend=saver.backend.store)
    assert others.get(at(name="c3"))["channel_values"] == {"value": value}
