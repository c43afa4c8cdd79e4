"""The journal of a run: all that it has recorded on the line of its head, and what of it the code has asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.durable.entries import ENTRIES, Entry, Name, values_by_name
from everstep.errors import CheckpointCorrupted
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Place, Query, Store, Stored

_PAGE = 1_000


class Journal:
    """What a run has recorded."""

    def __init__(self) -> None:
        self.start: Entry | None = None
        self.end: Entry | None = None
        """How it ended; None if it did not, or was taken up since."""
        self.answers: dict[str, Entry] = {}
        self.again: set[str] = set()
        """Steps that ended the run by their failure, and are tried again."""
        self.taken_back: Entry | None = None
        """That its effects are being taken back, to rewind it."""
        self.forks: dict[str, str] = {}
        """Branches in which the run has gone on, each by the step that it begins before."""
        self.last_seq = 0
        self._ahead: set[Name] = set()
        """What is recorded, and the code has not come to yet."""
        self._recorded: dict[Name, Entry] = {}
        self._events: dict[str, list[Entry]] = {}

    @property
    def beginning(self) -> Entry:
        """How the run began."""
        if self.start is None:
            raise CheckpointCorrupted("the beginning of the run is not stored any more")
        return self.start

    def add(self, entry: Entry) -> None:
        """Note an entry, newer than all before."""
        if entry.op == "start":
            self.start = entry
        elif entry.op == "end":
            self.end = entry
        elif entry.op == "answer":
            self.answers[entry.key] = entry
        elif entry.op == "event":
            self._events.setdefault(str(entry.about["event"]), []).append(entry)
        elif entry.op == "fork":
            self.forks[str(entry.about["before"])] = str(entry.about["to"])
        elif entry.op == "taken back":
            self.taken_back = entry
        elif entry.op == "resume":
            self._take_up(entry.about["again"])
        else:
            self._recorded[entry.op, entry.key] = entry
            if entry.op in ("step", "sleep"):
                self._ahead.add((entry.op, entry.key))

    def _take_up(self, again: Sequence[str]) -> None:
        # A failed step is forgotten: when the code comes to it, it is called as if for the first time.
        self.end = None
        self.again.update(again)
        failed = {("step", key) for key in again}
        is_after = False
        for name in list(self._recorded):
            is_after = is_after or name in failed
            # What came after a failure may have come of it, and need not come again.
            if is_after:
                self._ahead.discard(name)
        for name in failed:
            self._recorded.pop(name, None)

    def find(self, op: str, key: str) -> Entry | None:
        """Return what is recorded under that key, and note that the code has come to it."""
        self._ahead.discard((op, key))
        return self._recorded.get((op, key))

    def event(self, name: str, number: int) -> Entry | None:
        """Return the event of that name, by its number among them; None: it has not come yet."""
        found = self._events.get(name, [])
        if number >= len(found):
            return None
        return found[number]

    def not_asked_for(self) -> list[Entry]:
        """Return recorded steps that the code has not come to, the oldest first."""
        return [entry for name, entry in self._recorded.items() if name in self._ahead and entry.op == "step"]

    def steps(self) -> list[Entry]:
        """Return the recorded steps, the oldest first."""
        return [entry for entry in self._recorded.values() if entry.op == "step"]

    def has_more(self) -> bool:
        """Whether there are recorded steps that the code has not come to yet."""
        return bool(self._ahead)


async def load(repository: Repository, head: Stored) -> Journal:
    """Return the journal of the run that a checkpoint belongs to, as it was there."""
    journal = Journal()
    for entry in await entries_of(repository, await _line_of(repository.store, head)):
        journal.add(entry)
    journal.last_seq = head.seq
    return journal


async def load_since(repository: Repository, thread_id: str, seq: int) -> tuple[list[Entry], int]:
    """Return what was recorded in a thread after that checkpoint, and up to which one was looked."""
    listed = await repository.store.list_checkpoints(Query(thread_id=thread_id, after_seq=seq, order="oldest"))
    if listed:
        seq = listed[-1].seq
    return await entries_of(repository, listed), seq


async def entries_of(repository: Repository, records: Sequence[Stored]) -> list[Entry]:
    """Return the entries of checkpoints of one family, with their values."""
    holding = [stored for stored in records if stored.record.metadata.get(ENTRIES)]
    results: list[Any] = []
    for start in range(0, len(holding), _PAGE):
        results += await repository.tools_results(holding[start : start + _PAGE])
    found: list[Entry] = []
    for stored, held in zip(holding, results, strict=True):
        found += _entries(stored, values_by_name(held))
    return found


def _entries(stored: Stored, values: Mapping[Name, Mapping[str, Any]]) -> Iterable[Entry]:
    record = stored.record
    parent: Key | None = next(iter(record.parents), None)
    for about in record.metadata[ENTRIES]:
        yield Entry(about, values.get((str(about["op"]), str(about["key"])), {}), record.key, parent)


async def _line_of(store: Store, head: Stored) -> list[Stored]:
    """Return the checkpoints that a run has made up to one of them, the oldest first."""
    # By number: segments may be reached by more than one way, and each checkpoint counts once.
    found: dict[int, Stored] = {}
    looked_at: dict[int, int] = {}
    places: list[Place] = [head.place]
    while places:
        place = places.pop()
        from_seq = looked_at.get(place.segment, 0)
        if from_seq >= place.seq:
            continue
        looked_at[place.segment] = place.seq
        listed = await _segment(store, place, from_seq)
        # A thread may have several runs, one after the other: only the last beginning counts.
        begun = [stored.seq for stored in listed if _is_start(stored)]
        first = max(begun, default=0)
        for stored in listed:
            if stored.seq >= first:
                found[stored.seq] = stored
        # A run that began in an earlier segment, as after a branch, goes on there.
        if not begun and not from_seq:
            places += (await store.segments(head.family, [place.segment])).get(place.segment, ())
    return [found[seq] for seq in sorted(found)]


async def _segment(store: Store, place: Place, after_seq: int) -> list[Stored]:
    """Return the checkpoints of a segment up to a place, the oldest first."""
    listed: list[Stored] = []
    last_seq = after_seq
    while True:
        page = await store.list_checkpoints(
            Query(
                thread_id=place.key.thread_id,
                namespace=place.key.namespace,
                segment=place.segment,
                after_seq=last_seq,
                before_seq=place.seq + 1,
                hidden="also",
                order="oldest",
                limit=_PAGE,
            )
        )
        listed += page
        if len(page) < _PAGE:
            return listed
        last_seq = page[-1].seq


def _is_start(stored: Stored) -> bool:
    return any(about["op"] == "start" for about in stored.record.metadata.get(ENTRIES, ()))
