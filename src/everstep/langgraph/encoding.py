"""Checkpoints and pending writes as bytes: a checkpoint is written over its parent, so that only what changed is new.

Nothing here asks a store. What the parent has is left out of a checkpoint on trust: its line says so, and that may be
wrong by now. So whoever commits what `encode` gives must name the parent as the base, and use `encode_whole` if it is
gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.langgraph.channels import LIST_CHANNEL, SEED, WRITES, Channels, Small, Written, repeats_max
from everstep.langgraph.envelope import envelope_of
from everstep.langgraph.last_written import Line
from everstep.langgraph.saved import Pending
from everstep.repository.cache import ObjectCache
from everstep.repository.repository import Encoded, encoded
from everstep.runtime import checks
from everstep.stores.protocol import BaseRef, Key, Write
from everstep.values import costs, tree
from everstep.values.tree import repetition

_FEW_OBJECTS = 32  # so many are sent sooner than those of the parent are looked up
_NONE = object()  # the version of a channel of which none is known
_UNCOMMITTED = BaseRef(Key("", "", ""), b"")  # the base of a line until its checkpoint is stored


class Delta(NamedTuple):
    """What the value of a delta channel is made from, which has none of its own in the checkpoint."""

    seed: Written | None
    """The last value that was stored."""
    before: Written | None
    """The writes since, as the parent keeps them."""
    items: list[Any]
    """The parent's own: [task, form, value]."""


class Encoder:
    """Encodes by one saver's rules for values. `memory` has the objects that are at hand."""

    def __init__(self, channels: Channels, memory: ObjectCache) -> None:
        self._channels = channels
        self._memory = memory
        self._codec = channels.kinds.codec

    def encode(
        self,
        checkpoint: Mapping[str, Any],
        new_versions: Mapping[str, Any] | None,
        parent: Line | None,
        deltas: Mapping[str, Delta],
        odd: Mapping[str, Any],
    ) -> tuple[Encoded, Line] | None:
        """Return a checkpoint ready to be committed, and its line, whose base is for whoever commits it.

        A channel that `new_versions` does not name is as in the parent; with None all are looked at. Return None if all
        of the parent would have to be looked at, and is not in memory any more.
        """
        channels = self._channels
        writer = tree.Writer(packer=self._codec)
        versions = dict(checkpoint.get("channel_versions") or {})
        written, small = self._encode_channels(writer, checkpoint, versions, new_versions, parent)
        conversation = written.get(LIST_CHANNEL)
        if conversation is not None and not conversation.top:
            conversation = None  # it stands among the others
        others = written
        if conversation is not None:
            others = dict(written)
            del others[LIST_CHANNEL]
        rest = self._encode_deltas(writer, deltas, whole=parent is None) if deltas else {}
        envelope = envelope_of(checkpoint, versions, written, rest, odd, has_conversation=conversation is not None)
        node = conversation.node if conversation is not None else None
        state = channels.mapping(writer, others, small, parent.state if parent is not None else None)
        envelope_node, packed_envelope = channels.envelope(writer, envelope, rest)
        if parent is not None and len(writer.objects) > _FEW_OBJECTS:
            self._leave_out_replaced(writer, parent, written)
        nodes = [node or tree.EMPTY_LIST, state, envelope_node]
        values = encoded(nodes, writer, parent.base if parent is not None else None, thorough=True)
        size = sum(values.sizes)
        known = versions  # a channel without one is looked at each time
        if None in versions.values():
            known = {name: version for name, version in versions.items() if version is not None}
        line = Line(_UNCOMMITTED, written, rest, state, size, small, known, packed_envelope, channels.rules)
        line.fresh = frozenset(values.objects)
        if size >= repetition.REPEATS_FREE:
            weigh_new = functools.partial(self._weight_of_new, writer, envelope, rest, parent)
            line.repeats = self._cost_of_repeats(values, parent, weigh_new)
            if line.repeats is None:
                return None
        return values, line

    def encode_whole(
        self, checkpoint: Mapping[str, Any], deltas: Mapping[str, Delta], odd: Mapping[str, Any]
    ) -> tuple[Encoded, Line]:
        """Return a checkpoint with every object that it needs, and its line."""
        found = self.encode(checkpoint, None, None, deltas, odd)
        if found is None:
            raise RuntimeError("an object of a checkpoint that was just written is not at hand")
        return found

    def encode_writes(self, pending: Sequence[Pending]) -> tuple[list[Write], dict[bytes, tree.Content]]:
        """Return pending writes as they are stored, and the objects they are made of."""
        writer = tree.Writer(packer=self._codec)
        rows: list[Write] = []
        for task_id, idx, channel, value, task_path in pending:
            form, node = self._channels.pending(writer, channel, value)
            if node.size >= repetition.REPEATS_FREE:
                cost = tree.repeats(node.children, node.body, writer.objects.get, repeats_max())
                tree.check_repeats(cost, repeats_max(), node.size, channel)
            rows.append(Write(task_id, idx, channel, node.children, bytes((form,)) + node.body, node.size, task_path))
        return rows, writer.objects

    # -- channels

    def _encode_channels(
        self,
        writer: tree.Writer,
        checkpoint: Mapping[str, Any],
        versions: Mapping[str, Any],
        new_versions: Mapping[str, Any] | None,
        parent: Line | None,
    ) -> tuple[dict[str, Written], Small]:
        """Write the values of the channels. Those that have not changed stay as they are in the parent."""
        channels = self._channels
        values = dict(checkpoint.get("channel_values") or {})
        # A saver with other rules may have written the parent: what it let through is looked at again, whole.
        is_checked = parent is not None and parent.checked_by is channels.rules
        before: Mapping[str, Written] = parent.channels if parent is not None else {}
        changed: Collection[str] = values
        if parent is not None and is_checked and new_versions is not None:
            changed = _changed(values, versions, new_versions, parent.versions)
        is_alike = parent is not None and list(values) == list(before)
        written = dict(before) if is_alike else {name: before[name] for name in values if name in before}
        if len(written) < len(values):  # a channel may have had a version, but no value
            changed = dict.fromkeys([*changed, *[name for name in values if name not in before]])
        objects = self._memory.contents
        for name in changed:
            value = values[name]
            old = before.get(name)
            if old is None:
                checks.text(name, "the name of a channel")
            elif not is_checked:
                old = old._replace(shape=None)
            top = name == LIST_CHANNEL and channels.stands_alone(name, value)
            written[name] = channels.written(writer, name, value, old, objects, top=top)
        if parent is not None and is_alike:
            return written, channels.small(written, parent.small, changed)
        written = {name: written[name] for name in values}
        return written, channels.small(written)

    def _encode_deltas(self, writer: tree.Writer, deltas: Mapping[str, Delta], *, whole: bool) -> dict[str, Written]:
        """Write what the values of delta channels are made from; `whole`: nothing of it may be left out."""
        found: dict[str, Written] = {}
        for name, delta in deltas.items():
            seed = delta.seed
            before = delta.before
            if seed is not None:
                # What stood by itself stands in a mapping here, where it is written one level deeper.
                found[SEED + name] = self._channels.anew(writer, seed) if whole or seed.top else seed
            if whole and before is not None:
                before = self._channels.anew(writer, before)
            found[WRITES + name] = self._channels.extended(writer, name, before, delta.items)
        return found

    def _leave_out_replaced(self, writer: tree.Writer, parent: Line, written: Mapping[str, Written]) -> None:
        """Leave out the objects that channels had before, and that are stored with the parent."""
        for name, old in parent.channels.items():
            if old.node is not None and written.get(name) is not old:
                writer.leave_out(tree.reachable(old.node.children, self._memory.children_of)[0])

    # -- what repeats itself: a reader refuses a few stored bytes that stand for too many

    def _cost_of_repeats(self, values: Encoded, parent: Line | None, weigh_new: Callable[[], int]) -> int | None:
        """Return what repetition in a large checkpoint costs at most; raise if it could not be read.

        All that is new may be a repetition. Only when that would be too much all of it is looked at; None: that cannot
        be done with what is in memory.
        """
        fresh = values.objects
        held = self._memory.contents

        def content(key: bytes) -> tree.Content | None:
            return fresh.get(key) or held.get(key)

        before = parent.repeats if parent is not None else None
        is_mostly_new = before is None or tree.is_mostly_new(values.added_bytes, sum(values.sizes))
        if is_mostly_new and tree.repeats_nothing(values.children, content):
            return 0
        if before is not None:
            bound = before + weigh_new()
            if bound <= tree.writable_repeats(repeats_max()):
                return bound

        def below(key: bytes) -> bytes | None:
            found = content(key)
            return None if found is None else found[0]

        if tree.reachable(values.children, below)[1]:
            return None
        cost = tree.repeats(values.children, values.body, content, repeats_max())
        tree.check_repeats(cost, repeats_max(), sum(values.sizes), "checkpoint")
        return cost

    def _weight_of_new(
        self, writer: tree.Writer, envelope: Mapping[str, Any], rest: Mapping[str, Written], parent: Line | None
    ) -> int:
        """Return what all weighs that is new in a checkpoint, at most."""
        added = writer.weight_at_most() + costs.weight(self._codec.pack(envelope, "checkpoint"))
        if parent is None:
            return added
        for name, value in rest.items():
            if name not in parent.rest:  # it stood elsewhere in the parent, and may now stand here as well
                added += costs.weight_at_most(value.packed)
        return added


def _changed(
    values: Mapping[str, Any], versions: Mapping[str, Any], new_versions: Mapping[str, Any], known: Mapping[str, Any]
) -> list[str]:
    """Return the names of the values that may be others than those of the versions that are `known`."""
    if versions == {**known, **new_versions} and values.keys() <= versions.keys():
        return [name for name in new_versions if name in values]  # few of many, without a look at each
    return [name for name in values if name in new_versions or known.get(name, _NONE) != versions.get(name)]
