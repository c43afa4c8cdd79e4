"""What a run records: entries in the metadata of its checkpoints, with their values in the results of tools.

A checkpoint of a run holds one entry or more: steps that end together share a commit. The metadata tells what happened,
so that a list of checkpoints shows it; the values (arguments, results, answers) are read when a run is taken up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everstep.durable.lasting import lasting_text
from everstep.stores.protocol import Key
from everstep.values import codec
from everstep.values.storable import UNSTORABLE, storable

ENTRIES = "run_entries"
"""Where the entries of a checkpoint stand in its metadata."""

# Larger arguments are known by their digest alone; a run would else store every document twice, as an
# argument and as what was made of it.
_ARGUMENTS_BYTES_MAX = 64_000
_MARK = UNSTORABLE.encode()


Name = tuple[str, str]
"""What kind of entry it is, and which one of its kind."""


class Entry(NamedTuple):
    """One thing that a run has done, or that was done to it."""

    about: Mapping[str, Any]
    """`op` and `key`, and what belongs to that kind of entry."""
    values: Mapping[str, Any]
    checkpoint: Key
    parent: Key | None
    """The checkpoint before."""

    @property
    def op(self) -> str:
        """What kind of entry it is: start, step, ask, answer, event, sleep, now, end, taken back."""
        return str(self.about["op"])

    @property
    def key(self) -> str:
        """Which one of its kind."""
        return str(self.about["key"])


class Draft(NamedTuple):
    """An entry that is to be recorded."""

    about: dict[str, Any]
    values: dict[str, Any] | None = None
    summary: str = ""
    tags: tuple[str, ...] = ()


def as_results(drafts: Sequence[Draft]) -> dict[str, Any] | None:
    """Return the results of tools of the checkpoint that records these; None if none of them has a value."""
    held: list[dict[str, Any]] = []
    for draft in drafts:
        if draft.values is None:
            continue
        named = {"key": draft.about["key"]}
        # A step may have any key, also one that other entries have.
        if draft.about["op"] != "step":
            named["op"] = draft.about["op"]
        held.append({**named, **draft.values})
    if not held:
        return None
    # One entry, which is the usual case, reads better by itself.
    if len(held) == 1:
        return held[0]
    return {"steps": held}


def values_by_name(results: Any) -> dict[Name, Mapping[str, Any]]:
    """Return the values of the entries of a checkpoint; empty if somebody has put something else in their place."""
    if not isinstance(results, dict):
        return {}
    held = results.get("steps", [results])
    if not isinstance(held, list):
        return {}
    found: dict[Name, Mapping[str, Any]] = {}
    for each in held:
        if isinstance(each, dict) and "key" in each:
            found[str(each.get("op", "step")), str(each["key"])] = each
    return found


class Arguments(NamedTuple):
    """The arguments of a call, as they were before it: a function may change what it is given."""

    digest: str
    """Equal arguments have equal ones."""
    packed: bytes | None
    """None if they are too large to be kept a second time."""

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments as they are now."""
        packed = _packed(args, kwargs)
        digest = hashlib.sha256(packed).hexdigest()[:32]
        if len(packed) > _ARGUMENTS_BYTES_MAX:
            return cls(digest, None)
        return cls(digest, packed)

    @property
    def shown(self) -> Mapping[str, Any]:
        """Return `args` and `kwargs`, as they are recorded; empty if they are too large for that."""
        if self.packed is None:
            return {}
        found: Mapping[str, Any] = codec.unpack(self.packed)
        return found


def _packed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    # In which order arguments are named does not matter to a function.
    kwargs = dict(sorted(kwargs.items()))
    try:
        packed = codec.pack({"args": list(args), "kwargs": kwargs}, "arguments", 1)
    except Exception:
        # Some of it cannot be stored.
        packed = None
    if packed is not None and _MARK not in packed:
        return packed
    shown = {"args": storable(list(args), 2, lasting_text), "kwargs": storable(kwargs, 2, lasting_text)}
    return codec.pack(shown)
