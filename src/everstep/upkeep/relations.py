"""What must be true between the parts of a thread, and between the threads of a family. Pure.

Nothing here is a guess: each rule holds for every thread that the library wrote, whatever was rewound, undone, merged,
deleted or copied since. What retention may have taken is never missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from everstep.history.operation_log import undo_of
from everstep.reports import Finding
from everstep.stores.covers import Covers
from everstep.stores.protocol import ASIDE, Hidden, RawLine, RawThread, SharedState, Write
from everstep.upkeep.looking import Entry, Look

_OWN_ID = re.compile(r"ckpt-(.*)-(\d+)-[0-9a-f]+", re.DOTALL)
"""What the engine calls its checkpoints: the thread, and the step."""


def thread_findings(look: Look) -> Iterator[Finding]:
    """Yield what is wrong within a thread that nobody changed while it was read."""
    raw = look.raw
    if raw is None or not look.is_steady:
        return
    lines: dict[str, list[Entry]] = {}
    for entry in look.entries:
        lines.setdefault(entry.key.namespace, []).append(entry)
    damaged = {finding.checkpoint_id for finding in look.findings if finding.checkpoint_id is not None}
    for namespace, line in raw.lines.items():
        yield from _line_findings(raw, namespace, line, lines.get(namespace, []), damaged)
    yield from _hidden_findings(raw, look.entries)
    yield from _pin_findings(raw, look.entries, bool(damaged))
    yield from _log_findings(raw)
    yield from _write_findings(raw)
    for entry in look.entries:
        yield from _entry_findings(entry)


def _line_findings(
    raw: RawThread, namespace: str, line: RawLine, entries: Sequence[Entry], damaged: set[str]
) -> Iterator[Finding]:
    where = f"of namespace {namespace!r}" if namespace else "of the thread"
    by_id = {entry.key.checkpoint_id: entry for entry in entries}
    head = by_id.get(line.head) if line.head is not None else None
    if line.head is not None and head is None and line.head not in damaged:
        yield _finding("head", f"the head {where} is not stored", raw, line.head)
    if head is not None and not line.head_was_moved and not raw.note:
        later = [entry for entry in entries if entry.segment == head.segment and entry.seq > head.seq]
        if later:
            yield _finding(
                "head", f"the head {where} is older than the newest checkpoint that follows it", raw, line.head
            )
    visible = [entry for entry in entries if not entry.hidden]
    if line.head is None and visible and line.generation and not raw.note:
        yield _finding("head", f"{where.removeprefix('of ')} has checkpoints and no head", raw)
    segments = {entry.segment for entry in entries}
    # Only the first of a namespace may follow nothing; that of a branch follows its origin.
    is_branch = raw.origin is not None and raw.origin.namespace == namespace
    first = min(segments | line.segments, default=0) if not is_branch else 0
    lost = sorted(segments - line.segments - {first})
    if lost:
        yield _finding("segment", f"what segment {lost[0]} {where} follows is not stored", raw)
    yield from _order_findings(raw, entries)


def _order_findings(raw: RawThread, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Within a segment order of arrival is ancestry."""
    by_key = {entry.key: entry for entry in entries}
    before: dict[int, Entry] = {}
    for entry in entries:
        previous = before.get(entry.segment)
        before[entry.segment] = entry
        if entry.segment > entry.seq:
            yield _finding("segment", "it stands before its segment", raw, entry.key.checkpoint_id)
            continue
        parent = by_key.get(entry.parents[0]) if len(entry.parents) == 1 else None
        if entry.kind or parent is None or entry.key == parent.key:
            continue
        if parent.seq > entry.seq:
            yield _finding("checkpoint", "it stands before its parent", raw, entry.key.checkpoint_id)
        elif entry.segment != entry.seq and previous is not None and previous.key != parent.key:
            yield _finding(
                "segment", "it does not follow the one before it in its segment", raw, entry.key.checkpoint_id
            )


def _entry_findings(entry: Entry) -> Iterator[Finding]:
    named = _OWN_ID.fullmatch(entry.key.checkpoint_id)
    if named is not None and not entry.kind and named[1] == entry.key.thread_id and int(named[2]) != entry.step:
        what = f"its step is {entry.step}, and its id says {named[2]}"
        thread_id, _, checkpoint_id = entry.key
        yield Finding("checkpoint", what, thread_id, checkpoint_id, (thread_id,))


def _hidden_findings(raw: RawThread, entries: Sequence[Entry]) -> Iterator[Finding]:
    for stretch in raw.hidden:
        if stretch.namespace not in raw.lines:
            yield _finding("hidden", f"something of namespace {stretch.namespace!r} is hidden, which is not there", raw)
        elif not 0 <= stretch.after <= stretch.to or (stretch.segment or 0) > stretch.to:
            yield _finding("hidden", f"a hidden stretch has no sense: {stretch.after} to {stretch.to}", raw)
    covers = Covers(raw.hidden)
    for entry in entries:
        if entry.hidden != covers.hide(entry.key.namespace, entry.seq, entry.segment):
            state = "hidden, and nothing hides it" if entry.hidden else "shown, though something hides it"
            yield _finding("hidden", f"it is {state}", raw, entry.key.checkpoint_id)


def _pin_findings(raw: RawThread, entries: Sequence[Entry], is_damaged: bool) -> Iterator[Finding]:
    seqs = {entry.seq for entry in entries}
    for seq in sorted(raw.pinned - seqs) if not is_damaged else ():
        yield _finding("pin", f"checkpoint number {seq} is pinned, and not stored", raw)
    for entry in entries:
        if entry.pinned != (entry.seq in raw.pinned):
            yield _finding("pin", "it is not listed as pinned, or is and is not", raw, entry.key.checkpoint_id)


def _log_findings(raw: RawThread) -> Iterator[Finding]:
    last = 0
    for operation in raw.operations:
        if operation.seq <= last:
            yield _finding("operation", f"operation {operation.seq} is out of order", raw)
        last = operation.seq
        if "undo" not in operation.data:
            continue  # of somebody who does not undo
        try:
            undo_of(operation)
            stood_on = int(operation.data["after"])
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            yield _finding("operation", f"operation {operation.seq} cannot be read", raw)
            continue
        if stood_on >= operation.seq:
            yield _finding("operation", f"operation {operation.seq} follows a later one", raw)


def _write_findings(raw: RawThread) -> Iterator[Finding]:
    hidden = [stretch for stretch in raw.hidden if stretch.writes_of is not None]
    for key, write in raw.writes:
        if key.namespace not in raw.lines:
            what = f"a pending write is of namespace {key.namespace!r}, which is not there"
            yield _finding("write", what, raw, key.checkpoint_id)
        if abs(write.idx) >= ASIDE and not any(_hides(s, key.namespace, key.checkpoint_id, write) for s in hidden):
            yield _finding("write", "a pending write is put aside, and nothing hides it", raw, key.checkpoint_id)


def _hides(stretch: Hidden, namespace: str, checkpoint_id: str, write: Write) -> bool:
    place = stretch.namespace, stretch.writes_of
    return place == (namespace, checkpoint_id) and stretch.after < write.seq <= stretch.to


def family_findings(looks: Mapping[str, Look]) -> Iterator[Finding]:
    """Yield what is wrong between the threads of a family, of which nobody changed any."""
    raws = {name: look.raw for name, look in looks.items() if look.raw is not None and look.is_steady}
    if len(raws) < len(looks):
        return
    entries = {entry.key: entry for look in looks.values() for entry in look.entries}
    for raw in raws.values():
        yield from _relative_findings(raw, raws)
        yield from _state_findings(raw, raws)
        if raw.origin is not None and raw.began:
            origin = entries.get(raw.origin)
            if origin is None or origin.seq != raw.began:
                yield _finding("origin", f"it began at {raw.origin.checkpoint_id!r}, which has another number", raw)
    yield from _protection_findings(looks, raws)


def _relative_findings(raw: RawThread, raws: Mapping[str, RawThread]) -> Iterator[Finding]:
    for name in raw.family_threads:
        if name not in raws:
            yield _finding("thread", f"thread {name!r} of its family is not there", raw)
        elif raws[name].family != raw.family:
            yield _finding("thread", f"thread {name!r} says that it is of another family", raw)
    if raw.thread_id not in raw.family_threads:
        yield _finding("thread", "its family does not know it", raw)


def _state_findings(raw: RawThread, raws: Mapping[str, RawThread]) -> Iterator[Finding]:
    for other, states in raw.shared_states.items():
        if other not in raws:
            yield _finding("shared state", f"it has states in common with {other!r}, which is not there", raw)
        elif _states(raws[other].shared_states.get(raw.thread_id, ())) != _states(states):
            yield _finding("shared state", f"{other!r} has other states in common with it", raw)


def _states(states: Sequence[SharedState]) -> list[SharedState]:
    return sorted(states, key=lambda state: state.place.seq)


def _protection_findings(looks: Mapping[str, Look], raws: Mapping[str, RawThread]) -> Iterator[Finding]:
    """A checkpoint where a living branch began is protected as long as it is stored."""
    began = {raw.began for raw in raws.values() if raw.began}
    for name, look in looks.items():
        if look.thread is None:
            continue
        stored = {entry.seq for entry in look.entries}
        expected = (began & stored) | (raws[name].pinned & stored)
        if look.thread.protected & stored != expected:
            what = "what is protected does not follow from pins and branches"
            yield _finding("origin", what, raws[name])
        branches = {raw.thread_id for raw in raws.values() if raw.origin is not None and raw.origin.thread_id == name}
        if set(look.thread.branches) != branches:
            yield _finding("origin", "its branches are not those that say so", raws[name])


def _finding(kind: str, what: str, raw: RawThread, checkpoint_id: str | None = None) -> Finding:
    return Finding(kind, what, raw.thread_id, checkpoint_id, (raw.thread_id,))
