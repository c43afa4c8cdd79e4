"""Delta channels: what their values are made from, a value that was stored once and the writes since.

LangGraph leaves the value of such a channel out of most checkpoints, and makes it from the pending writes of ancestors.
So that these may be deleted, each checkpoint keeps the list of all these writes: that of its parent, with the parent's
own writes at its end. These come when the parent is stored already, so the line that is remembered of it lacks them:
they are read from the store before each put.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everstep.langgraph.channels import PLAIN, SEED, WRITES, Channels
from everstep.langgraph.configs import COUNTERS
from everstep.langgraph.decoding import Decoder
from everstep.langgraph.encoding import Delta
from everstep.langgraph.last_written import Line
from everstep.langgraph.reading import Reader
from everstep.langgraph.saved import node_of
from everstep.stores.protocol import Key, Loaded, Record, Store
from everstep.values import tree


def delta_names(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Return the channels whose values are to be made from writes: LangGraph counts these since the last value."""
    counted = metadata.get(COUNTERS) or {}
    values = checkpoint.get("channel_values") or {}
    return [name for name in counted if name not in values]


class DeltaReader:
    """Reads what the values of delta channels are made from, for the next put and for whoever asks."""

    def __init__(self, store: Store, channels: Channels, decoder: Decoder, reader: Reader) -> None:
        self._store = store
        self._channels = channels
        self._decoder = decoder
        self._reader = reader

    async def before(
        self, parent: Key, line: Line | None, names: Sequence[str]
    ) -> tuple[Line | None, dict[str, Delta]]:
        """Return the line of the parent, and what the values of these channels are made from in its successor.

        `line` is what is remembered of the parent. The one that is returned is of the same moment as the writes; None:
        the parent is not there.
        """
        loaded = await self._store.read(*parent, writes=True)
        if loaded is None:
            return None, {}

        def gather(found: Loaded, objects: Mapping[bytes, tree.Content]) -> tuple[Line, dict[str, Delta]]:
            items: dict[str, list[Any]] = {name: [] for name in names}
            for write in found.writes:
                if write.channel in items:
                    value = self._channels.plain(node_of(write), objects)
                    items[write.channel].append([write.task_id, write.body[0], value])
            current = line
            if current is None or current.base.digest != found.stored.digest:
                current = self._decoder.line(found.stored, objects)
            return current, {name: _delta(current, name, items[name]) for name in names}

        gathered = await self._reader.decode(loaded, gather)
        return gathered if gathered is not None else (None, {})

    async def history(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, names: Sequence[str], *, opened: bool
    ) -> dict[str, dict[str, Any]]:
        """Return what the values of channels at a checkpoint (None: the head) are made from: a seed, and writes.

        Unless `opened`, a seed that the checkpoint itself keeps is given as its node.
        """
        loaded = await self._store.read(thread_id, namespace, checkpoint_id)
        found: dict[str, dict[str, Any]] = {}
        if loaded is not None:
            kept = await self._reader.decode(
                loaded, lambda each, objects: (each, self._kept(each.stored.record, objects, names, opened))
            )
            loaded, found = kept if kept is not None else (None, {})
        missing = [name for name in names if name not in found]
        walked = await self._walked(loaded, missing) if missing else {}
        return {name: found.get(name) or walked[name] for name in names}

    def _kept(
        self, record: Record, objects: Mapping[bytes, tree.Content], names: Sequence[str], opened: bool
    ) -> dict[str, dict[str, Any]]:
        """Return what the checkpoint itself keeps of these channels' history."""
        channels = self._channels
        checkpoint = self._decoder.open(record, objects)
        forms = checkpoint.envelope.get("seeds", {})
        found = dict[str, dict[str, Any]]()
        for name in names:
            writes = checkpoint.rest.get(WRITES + name)
            seed = checkpoint.rest.get(SEED + name)
            if writes is not None:
                items = channels.delta_items(writes, objects)
                found[name] = {"writes": [(task, name, channels.read(form, value)) for task, form, value in items]}
                if seed is not None:
                    form = forms.get(name, PLAIN)
                    found[name]["seed"] = channels.value(form, seed, objects) if opened else seed
        return found

    async def _walked(self, target: Loaded | None, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what `history` does from the ancestors themselves: for checkpoints that keep no list."""
        writes: dict[str, list[tuple[str, str, Any]]] = {name: [] for name in names}
        seeds: dict[str, Any] = {}
        remaining = set(names)
        seen = set[Key]()
        parents = target.stored.record.parents if target is not None else ()
        while parents and remaining and parents[0] not in seen:
            seen.add(parents[0])
            saved = await self._reader.get(*parents[0], writes=True)
            if saved is None:
                break
            for write in reversed(saved.writes):
                if write[1] in remaining:
                    writes[write[1]].append(write)
            for name in remaining & saved.checkpoint["channel_values"].keys():
                seeds[name] = saved.checkpoint["channel_values"][name]
                remaining.discard(name)
            parents = saved.stored.record.parents
        found: dict[str, dict[str, Any]] = {name: {"writes": writes[name][::-1]} for name in names}
        for name, seed in seeds.items():
            found[name]["seed"] = seed
        return found


def _delta(line: Line, name: str, items: list[Any]) -> Delta:
    """Return what the value of a channel is made from that has these writes in the checkpoint of the line."""
    seed = line.channels.get(name)
    if seed is not None:
        return Delta(seed, None, items)
    return Delta(line.rest.get(SEED + name), line.rest.get(WRITES + name), items)
