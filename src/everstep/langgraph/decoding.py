"""Stored checkpoints and pending writes as values again, or as the lines that successors are written over. Pure.

All is made of a record and of objects that are given. One that is not among these is a MissingObject: `reading` fetches
it and asks once more. So nothing may be changed here before everything is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.langgraph.channels import CHAT, LIST_CHANNEL, PLAIN, SEED, Channels
from everstep.langgraph.envelope import checkpoint_of, is_complete
from everstep.langgraph.last_written import Line
from everstep.langgraph.saved import Saved, node_of
from everstep.stores.protocol import BaseRef, Loaded, Record, Stored
from everstep.values import tree


class Opened(NamedTuple):
    """A stored checkpoint, opened one step."""

    conversation: tree.Node
    state: tree.Node
    """The mapping of all other channels."""
    envelope: dict[str, Any]
    packed: bytes | None
    """The envelope, if it is kept so."""
    rest: Mapping[str, tree.Node]
    """What delta channels are made from."""


class Decoder:
    """Decodes by one saver's rules for values.

    With `shares` the same message of several checkpoints is one object: for readers that change nothing.
    """

    def __init__(self, channels: Channels, *, shares: bool = False) -> None:
        self.rules = channels.rules
        """Stands for the rules that it goes by."""
        self._channels = channels
        self._shares = shares

    def saved(self, loaded: Loaded, line: Line | None, objects: Mapping[bytes, tree.Content]) -> Saved:
        """Return a checkpoint with its values and writes. `line` is what is remembered under its name."""
        # Writes first: these are small, and values would be made for nothing if one of them is not at hand.
        writes = self.writes(loaded, objects)
        if line is not None and line.base.digest != loaded.stored.digest:
            line = None  # it has been replaced since
        envelope, values = self._values(line, loaded.stored.record, objects)
        checkpoint = checkpoint_of(loaded.stored.record, envelope, values)
        return Saved(loaded.stored, checkpoint, writes, tuple(envelope.get("absent", ())), envelope.get("odd", {}))

    def writes(self, loaded: Loaded, objects: Mapping[bytes, tree.Content]) -> list[tuple[str, str, Any]]:
        """Return the writes of a checkpoint: task, channel, value."""
        return [
            (write.task_id, write.channel, self._channels.value(write.body[0], node_of(write), objects))
            for write in loaded.writes
        ]

    def line(self, stored: Stored, objects: Mapping[bytes, tree.Content]) -> Line:
        """Return a checkpoint as it was written."""
        opened = self.open(stored.record, objects)
        channels = self._channels
        forms = opened.envelope.get("forms", {})
        versions = opened.envelope["channel_versions"]
        found = channels.opened(forms, opened.state, objects)
        if LIST_CHANNEL in forms and LIST_CHANNEL not in found and tree.is_list(opened.conversation):
            found[LIST_CHANNEL] = channels.thawed(forms[LIST_CHANNEL], opened.conversation, objects, top=True)
        # Versions are compared when the next checkpoint is written: only those without a way to compare of their own.
        known = {name: version for name, version in versions.items() if type(version) in (int, float, str)}
        seeds = opened.envelope.get("seeds", {})
        rest = {
            name: channels.thawed(seeds.get(name.removeprefix(SEED), PLAIN), node, objects)
            for name, node in opened.rest.items()
        }
        base = BaseRef(stored.record.key, stored.digest)
        size = sum(stored.record.sizes)
        state = channels.thawed_mapping(opened.state, objects)
        small = channels.small(found)
        return Line(base, found, rest, state, size, small, known, opened.packed)

    def open(self, record: Record, objects: Mapping[bytes, tree.Content]) -> Opened:
        """Return the parts of a checkpoint: its envelope as values, all others as nodes."""
        if len(record.sizes) != 3:
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        conversation, state, rest = tree.nodes(record.children, record.body, record.sizes)
        packed = self._channels.packed_envelope(rest, objects)
        kept: Mapping[str, tree.Node] = {}
        if packed is not None:
            envelope = self._channels.unpacked_envelope(packed)
        else:
            envelope, kept = self._channels.opened_envelope(rest, objects)
        if not is_complete(envelope):
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        return Opened(conversation, state, envelope, packed, kept)

    def _values(
        self, line: Line | None, record: Record, objects: Mapping[bytes, tree.Content]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the envelope of a checkpoint, and the values of its channels."""
        channels = self._channels
        if line is not None and line.envelope is not None:
            envelope = channels.unpacked_envelope(line.envelope)
            return envelope, channels.unwritten_all(line.channels, line.small, envelope.get("forms", {}))
        opened = self.open(record, objects)
        if line is not None:
            return opened.envelope, channels.unwritten_all(line.channels, line.small, opened.envelope.get("forms", {}))
        values = channels.mapping_of(opened.state, objects)
        for name, form in opened.envelope.get("forms", {}).items():
            if name in values:
                values[name] = channels.read(form, values[name])
            elif name == LIST_CHANNEL and form == CHAT:
                values[name] = channels.conversation(opened.conversation, objects, shares=self._shares)
            elif name == LIST_CHANNEL:
                values[name] = channels.value(form, opened.conversation, objects)
        return opened.envelope, values
