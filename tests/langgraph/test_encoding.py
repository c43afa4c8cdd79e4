"""Checkpoints as bytes and back, without a store: over a parent only what changed is new."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from everstep.langgraph.channels import Channels
from everstep.langgraph.classes import Kinds
from everstep.langgraph.decoding import Decoder
from everstep.langgraph.encoding import Encoder
from everstep.langgraph.last_written import Line
from everstep.langgraph.saved import Pending, Saved
from everstep.repository.cache import ObjectCache
from everstep.repository.repository import Encoded
from everstep.stores.protocol import Key, Loaded, Record, Stored, Write
from everstep.values import tree
from tests.langgraph.same import assert_same, assert_same_channels
from tests.langgraph.tools import checkpoint

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Bench:
    """Encodes and decodes by the same rules, and keeps all objects, as a store does."""

    def __init__(self) -> None:
        channels = Channels(Kinds())
        self.rules = channels.rules
        self.memory = ObjectCache()
        self.encoder = Encoder(channels, self.memory)
        self.decoder = Decoder(channels)

    def encode(
        self, given: Mapping[str, Any], parent: Line | None = None, new: Any = None, odd: Mapping[str, Any] = NOTHING
    ) -> tuple[Encoded, Line]:
        found = self.encoder.encode(given, new, parent, {}, odd)
        assert found is not None
        self.memory.add(found[0].objects)
        return found

    def decode(self, stored: Stored, *writes: Write, objects: Any = None) -> Saved:
        loaded = Loaded(stored, 0, (), writes)
        return self.decoder.saved(loaded, None, self.memory.contents if objects is None else objects)


def stored(given: Mapping[str, Any], values: Encoded) -> Stored:
    """Return the checkpoint as a store gives it back."""
    key = Key("t", "", given.get("id", "unnamed"))
    return Stored(Record(key, 0, (), given.get("ts", "now"), values.children, values.body, values.sizes), 1, "f")


def chat(count: int) -> list[HumanMessage]:
    return [HumanMessage(f"message {n} " * 20, id=str(n)) for n in range(count)]


def test_each_checkpoint_of_a_chain_comes_back_and_adds_only_what_is_new() -> None:
    bench = Bench()
    small = {f"small{n}": f"{n} " * 250 for n in range(30)}
    added: list[int] = []
    chain: list[tuple[dict[str, Any], Stored]] = []
    parent = None
    for n in range(1, 6):
        values = {"messages": chat(5 + n), "n": n, "same": "x" * 20_000, **small}
        new = {"messages": n, "n": n, "same": n}
        given = checkpoint(f"c{n}", values, {**dict.fromkeys(small, 1), **new})
        encoded, parent = bench.encode(given, parent, new)
        added.append(encoded.added_bytes)
        chain.append((given, stored(given, encoded)))

    for given, kept in chain:
        found = bench.decode(kept).checkpoint
        assert_same_channels(found.pop("channel_values"), given.pop("channel_values"))
        assert found == given
    assert added[0] > 30_000
    assert max(added[1:]) < added[0] / 4


def test_a_line_that_was_decoded_serves_as_the_parent_as_well_as_one_that_was_encoded() -> None:
    bench = Bench()
    first = checkpoint("c1", {"messages": chat(20), "state": {"plan": "p" * 9000}, "n": 1})
    values, encoded = bench.encode(first)
    decoded = bench.decoder.line(stored(first, values), bench.memory.contents)
    decoded.checked_by = bench.rules
    second = checkpoint("c2", {"messages": chat(21), "state": {"plan": "p" * 9000 + "q"}, "n": 2})

    over_encoded, _ = bench.encode(second, encoded)
    over_decoded, _ = bench.encode(second, decoded)

    assert over_decoded.objects == over_encoded.objects
    assert (over_decoded.children, over_decoded.body) == (over_encoded.children, over_encoded.body)


@pytest.mark.parametrize(
    "change",
    [
        {"later_field": [1, {"a": b"b"}], "pending_sends": []},
        {"updated_channels": None},
        {"v": 1, "versions_seen": {}},
    ],
)
def test_the_fields_of_a_checkpoint_come_back(change: dict[str, Any]) -> None:
    bench = Bench()
    given = {**checkpoint("c1", {"a": 1}), **change}

    found = bench.decode(stored(given, bench.encode(given)[0]))

    assert_same(dict(sorted(found.checkpoint.items())), dict(sorted(given.items())))
    assert (found.absent, dict(found.odd)) == ((), {})


def test_fields_that_are_absent_or_odd_are_told() -> None:
    bench = Bench()
    given = checkpoint("c1", {"a": 1})
    del given["v"], given["updated_channels"]

    found = bench.decode(stored(given, bench.encode(given, odd={"versions_seen": "none"})[0]))

    assert found.absent == ("v",)
    assert found.odd == {"versions_seen": "none"}
    assert found.checkpoint == {**given, "v": 1}


def test_what_lacked_an_object_is_decoded_when_it_is_given() -> None:
    bench = Bench()
    given = checkpoint("c1", {"messages": chat(200), "a": "x" * 20_000})
    values, _ = bench.encode(given)
    rows, objects = bench.encoder.encode_writes([Pending("task", 0, "a", "y" * 9000, "path")])
    objects = {**values.objects, **objects}
    assert len(objects) > 100

    for lacking in objects:
        others = {key: content for key, content in objects.items() if key != lacking}
        reader = Bench()  # which remembers nothing
        with pytest.raises(tree.MissingObject):
            reader.decode(stored(given, values), *rows, objects=others)
        found = reader.decode(stored(given, values), *rows, objects=objects)
        assert_same_channels(found.checkpoint["channel_values"], given["channel_values"])
        assert found.writes == [("task", "a", "y" * 9000)]
