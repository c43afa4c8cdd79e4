"""What happens to values, lists and switches while other threads are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.values import codec, tree
from tests.langgraph_tools import FacedSaver


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
