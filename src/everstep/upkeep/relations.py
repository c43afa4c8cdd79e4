"""What must be true between the parts of a thread, and between the threads of a family. Pure.

Nothing here is a guess: each rule holds for every thread that the library wrote, whatever was rewound, undone, merged,
deleted or copied since. What retention may have taken is never missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from everstep.history.checkpoint_tree import is_among
from everstep.history.given_tags import says_which_tag
from everstep.history.labels import says_what
from everstep.history.operation_log import undo_of
from everstep.reports import Finding
from everstep.stores.covers import Covers
from everstep.stores.inspection import Entry, finding_about
from everstep.stores.protocol import ASIDE, Hidden, Key, RawLine, RawThread, SharedState
from everstep.upkeep.looking import Look

_OWN_ID = re.compile(r"ckpt-(.*)-(\d+)-[0-9a-f]+", re.DOTALL)
"""What the engine calls its checkpoints: the thread, and the step."""


def thread_findings(look: Look) -> Iterator[Finding]:
    """Yield what is wrong within a thread that nobody changed while it was read."""
    raw = look.raw
    # What is missing may be among those that could not be read: that is told already.
    if raw is None or not look.is_steady or look.has_gaps:
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
    yield from _name_findings(look.entries)


def _line_findings(
    raw: RawThread, namespace: str, line: RawLine, entries: Sequence[Entry], damaged: set[str]
) -> Iterator[Finding]:
    what = "the thread"
    if namespace:
        what = f"namespace {namespace!r}"
    yield from _head_findings(raw, what, line, entries, damaged)
    segments = {entry.segment for entry in entries}
    lost = segments - line.segments
    # Only the first of a namespace may follow nothing; that of a branch follows its origin.
    is_branch = raw.origin is not None and raw.origin.namespace == namespace
    if not is_branch:
        lost.discard(min(segments | line.segments, default=0))
    if lost:
        yield _finding("segment", f"what segment {min(lost)} of {what} follows is not stored", raw)
    yield from _order_findings(raw, entries)


def _head_findings(
    raw: RawThread, what: str, line: RawLine, entries: Sequence[Entry], damaged: set[str]
) -> Iterator[Finding]:
    # One that is under way has checkpoints before it has a head.
    is_copy = bool(raw.note)
    if line.head is None:
        has_visible = not all(entry.hidden for entry in entries)
        if has_visible and line.generation and not is_copy:
            yield _finding("head", f"{what} has checkpoints and no head", raw)
        return
    head = entry_of_id(entries, line.head)
    if head is None:
        # Otherwise that is told already.
        if line.head not in damaged:
            yield _finding("head", f"the head of {what} is not stored", raw, line.head)
    elif not line.head_was_moved and not is_copy and later_in_segment(entries, head):
        sentence = f"the head of {what} is older than the newest checkpoint that follows it"
        yield _finding("head", sentence, raw, line.head)


def entry_of_id(entries: Sequence[Entry], checkpoint_id: str) -> Entry | None:
    """Return the checkpoint of a namespace that has this id, if it is there."""
    for entry in entries:
        if entry.key.checkpoint_id == checkpoint_id:
            return entry
    return None


def later_in_segment(entries: Sequence[Entry], head: Entry) -> list[Entry]:
    """Return the checkpoints that follow another one in its segment, in order."""
    return [entry for entry in entries if entry.segment == head.segment and entry.seq > head.seq]


def only_parent(entry: Entry, by_key: Mapping[Key, Entry]) -> Entry | None:
    """Return the parent of a checkpoint, unless it has several, or that is not stored, or is itself."""
    if len(entry.parents) != 1 or entry.parents[0] == entry.key:
        return None
    return by_key.get(entry.parents[0])


def _order_findings(raw: RawThread, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Within a segment order of arrival is ancestry."""
    by_key: dict[Key, Entry] = {}
    before: dict[int, Entry] = {}
    for entry in entries:
        previous = before.get(entry.segment)
        before[entry.segment] = entry
        # Nearly all follow the one before them.
        if previous is not None and entry.parents == (previous.key,) and entry.segment <= previous.seq < entry.seq:
            continue
        by_key = by_key or {other.key: other for other in entries}
        found = _out_of_order(entry, previous, only_parent(entry, by_key))
        if found is not None:
            yield _finding(*found, raw, entry.key.checkpoint_id)


def _out_of_order(entry: Entry, previous: Entry | None, parent: Entry | None) -> tuple[str, str] | None:
    """Return what is wrong with the place of a checkpoint, as a kind of finding and in words."""
    if entry.segment > entry.seq:
        return "segment", "it stands before its segment"
    # Adapters name parents in their own way.
    if entry.kind or parent is None:
        return None
    if parent.seq > entry.seq:
        return "checkpoint", "it stands before its parent"
    if entry.segment != entry.seq and previous is not None and previous.key != parent.key:
        return "segment", "it does not follow the one before it in its segment"
    return None


def _name_findings(entries: Sequence[Entry]) -> Iterator[Finding]:
    for entry in entries:
        thread_id, _, checkpoint_id = entry.key
        # Most are called what they should be.
        if entry.kind or checkpoint_id.startswith(f"ckpt-{thread_id}-{entry.step}-"):
            continue
        named = _OWN_ID.fullmatch(checkpoint_id)
        # A checkpoint that somebody put, or that came from another thread, is called what it is called.
        if named is None or named[1] != thread_id:
            continue
        if int(named[2]) != entry.step:
            what = f"its step is {entry.step}, and its id says {named[2]}"
            yield finding_about("checkpoint", what, thread_id, checkpoint_id)


def _hidden_findings(raw: RawThread, entries: Sequence[Entry]) -> Iterator[Finding]:
    for stretch in raw.hidden:
        if stretch.namespace not in raw.lines:
            yield _finding("hidden", f"something of namespace {stretch.namespace!r} is hidden, which is not there", raw)
        elif not is_in_order(stretch):
            yield _finding("hidden", f"a hidden stretch has no sense: {stretch.after} to {stretch.to}", raw)
    covers = Covers(raw.hidden)
    if not covers:
        entries = [entry for entry in entries if entry.hidden]
    for entry in entries:
        is_covered = covers.hide(entry.key.namespace, entry.seq, entry.segment)
        if entry.hidden and not is_covered:
            yield _finding("hidden", "it is hidden, and nothing hides it", raw, entry.key.checkpoint_id)
        if is_covered and not entry.hidden:
            yield _finding("hidden", "it is shown, though something hides it", raw, entry.key.checkpoint_id)


def is_in_order(stretch: Hidden) -> bool:
    """Whether the numbers of a hidden stretch can be those of something."""
    return 0 <= stretch.after <= stretch.to and (stretch.segment or 0) <= stretch.to


def _pin_findings(raw: RawThread, entries: Sequence[Entry], is_damaged: bool) -> Iterator[Finding]:
    # Otherwise it may be one of those that cannot be read.
    if raw.pinned and not is_damaged:
        seqs = {entry.seq for entry in entries}
        for seq in sorted(raw.pinned - seqs):
            yield _finding("pin", f"checkpoint number {seq} is pinned, and not stored", raw)
    if not raw.pinned:
        entries = [entry for entry in entries if entry.pinned]
    for entry in entries:
        if entry.pinned != (entry.seq in raw.pinned):
            yield _finding("pin", "it is not listed as pinned, or is and is not", raw, entry.key.checkpoint_id)


def _log_findings(raw: RawThread) -> Iterator[Finding]:
    last = 0
    for operation in raw.operations:
        if operation.seq <= last:
            yield _finding("operation", f"operation {operation.seq} is out of order", raw)
        last = operation.seq
        if not says_which_tag(operation):
            yield _finding("operation", f"operation {operation.seq} is about a tag, and does not say which", raw)
        if not says_what(operation):
            yield _finding("operation", f"operation {operation.seq} is a {operation.kind}, and does not say what", raw)
        if "undo" not in operation.data:
            # It is one of somebody who does not undo.
            continue
        try:
            undo_of(operation)
            stood_on = int(operation.data["after"])
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            yield _finding("operation", f"operation {operation.seq} cannot be read", raw)
            continue
        if stood_on >= operation.seq:
            yield _finding("operation", f"operation {operation.seq} follows a later one", raw)


def _write_findings(raw: RawThread) -> Iterator[Finding]:
    for key, write in raw.writes:
        if key.namespace not in raw.lines:
            what = f"a pending write is of namespace {key.namespace!r}, which is not there"
            yield _finding("write", what, raw, key.checkpoint_id)
        if abs(write.idx) >= ASIDE and not is_among(write, key, raw.hidden):
            yield _finding("write", "a pending write is put aside, and nothing hides it", raw, key.checkpoint_id)


def family_findings(looks: Mapping[str, Look]) -> Iterator[Finding]:
    """Yield what is wrong between the threads of a family, of which nobody changed any."""
    raws: dict[str, RawThread] = {}
    seqs: dict[Key, int] = {}
    for name, look in looks.items():
        if look.raw is None or not look.is_steady or look.has_gaps:
            return
        raws[name] = look.raw
        for entry in look.entries:
            seqs[entry.key] = entry.seq
    for raw in raws.values():
        yield from _relative_findings(raw, raws)
        yield from _state_findings(raw, raws)
        if raw.origin is not None and raw.began and seqs.get(raw.origin) != raw.began:
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
    began: set[int] = set()
    branches: dict[str, set[str]] = {}
    for raw in raws.values():
        began.add(raw.began)
        if raw.origin is not None:
            branches.setdefault(raw.origin.thread_id, set()).add(raw.thread_id)
    for name, look in looks.items():
        if look.thread is None:
            continue
        stored = {entry.seq for entry in look.entries}
        expected = (began | raws[name].pinned) & stored
        if look.thread.protected & stored != expected:
            what = "what is protected does not follow from pins and branches"
            yield _finding("origin", what, raws[name])
        if set(look.thread.branches) != branches.get(name, set()):
            yield _finding("origin", "its branches are not those that say so", raws[name])


def _finding(kind: str, what: str, raw: RawThread, checkpoint_id: str | None = None) -> Finding:
    return finding_about(kind, what, raw.thread_id, checkpoint_id)
