"""How a run records: what ends together goes into one commit, and what no commit can take fails by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everstep.config import SnapshotTrigger
from everstep.durable import journal
from everstep.durable.calling import Face
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.entries import ENTRIES, Draft, as_results
from everstep.durable.live import RunLive
from everstep.durable.replay import Replay
from everstep.durable.statuses import DONE, RUNNING, WAITING
from everstep.errors import RunLost, SnapshotTooLarge, UnstorableValue
from everstep.repository.repository import Repository
from everstep.stores.protocol import Record
from everstep.values import codec

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

NOT_TAKEN = (UnstorableValue, SnapshotTooLarge)
"""Why a commit is not taken whose values are at fault: it would fail in the same way when it is tried again."""


@dataclass
class Recorder:
    """Makes the commits of one run, and keeps what is still to be recorded."""

    engine: CheckpointEngine
    repository: Repository
    name: str
    live: RunLive
    face: Face
    code: CodeAtWork
    replay: Replay
    waits: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    """What the run waits for, by key: each commit tells it."""
    told: tuple[str, list[Any]] | None = field(default=None, init=False)
    """The status and the waits that the last checkpoint tells of."""
    last_id: str | None = field(default=None, init=False)
    """The checkpoint up to which it is known what others have recorded."""
    _pending: list[Draft] = field(default_factory=list, init=False)
    _new_times: set[str] = field(default_factory=set, init=False)
    """The keys of times that the code was told, and that are not stored yet."""
    _refused: list[tuple[Draft, Exception]] = field(default_factory=list, init=False)
    """Drafts that no commit can take, each with the reason, until whoever made it has seen that."""

    def __post_init__(self) -> None:
        # Commits of one run are made one after the other: each names the head that it follows.
        self._lock = self.face.lock()

    async def record(self, *drafts: Draft, status: str | None = None) -> None:
        """Record entries, together with what else there is to record by now: one commit."""
        refused = await self.try_to_record(drafts, status)
        if refused is not None:
            raise refused

    async def try_to_record(self, drafts: Sequence[Draft], status: str | None = None) -> Exception | None:
        """Record entries; return why one of them can never be recorded, if that is so."""
        self._pending += drafts
        if drafts:
            await self.face.let_others()  # what ends at the same moment comes along
        async with self._lock:
            # Drafts are compared by identity: two steps may well record the same. Those that are not there any
            # more were taken along by another commit.
            if not drafts or any(draft is waiting for waiting in self._pending for draft in drafts):
                await self._save_pending(status)
            return self._why_refused(drafts)

    def record_later(self, draft: Draft) -> None:
        """Record an entry with the next commit."""
        self._pending.append(draft)

    def record_time(self, draft: Draft) -> None:
        """Record a time before the next step is called, or with what else comes first."""
        self._new_times.add(draft.about["key"])
        self._pending.append(draft)

    async def record_before_step(self) -> None:
        """Record what must be known if this process dies in the step that comes.

        The times that the code was told: it must be called with the same arguments then, and so with the same key. And
        that the run does not only wait, should that be what is recorded.
        """
        if not self._has_to_record():
            return
        async with self._lock:
            # Looked at again: another step may have had it recorded meanwhile.
            if self._has_to_record():
                await self._save_pending(None)

    def _has_to_record(self) -> bool:
        return bool(self._new_times) or (self.told is not None and self.told[0] == WAITING)

    def has_told_waits(self) -> bool:
        """Whether it is recorded that the run waits, for what it waits for now, and nothing else is to be recorded."""
        return not self._pending and self.told == (WAITING, list(self.waits.values()))

    async def _save_pending(self, status: str | None) -> None:
        with self.code.stopped_by_store():
            while not await self._save_what_can_be(status):
                pass

    async def _save_what_can_be(self, status: str | None) -> bool:
        """Save what is pending; False: some of it was refused, and the others are to be tried without it."""
        batch = self._pending
        self._pending = []
        try:
            await self._save(batch, status)
            return True
        except BaseException as error:
            # What could not be saved waits for the next commit, before all that has come since.
            kept = self._without_refused(batch, error)
            self._pending = kept + self._pending
            if len(kept) == len(batch):
                # Not what was to be recorded is at fault, but the messages or the state: the code has to be mended.
                # If it caught this, it would go another way than where the step is replayed.
                if isinstance(error, NOT_TAKEN):
                    self.code.stopped = error
                raise
            return not kept

    def _without_refused(self, batch: list[Draft], error: BaseException) -> list[Draft]:
        """Return what is left of a batch when those are taken out that made its commit fail."""
        if not isinstance(error, NOT_TAKEN):
            return batch
        kept: list[Draft] = []
        for draft in batch:
            reason = _why_not_taken(draft, error)
            if reason is None:
                kept.append(draft)
            else:
                self._refused.append((draft, reason))
        return kept

    def _why_refused(self, drafts: Sequence[Draft]) -> Exception | None:
        for place, (refused, reason) in enumerate(self._refused):
            if any(draft is refused for draft in drafts):
                del self._refused[place]
                return reason
        return None

    async def _save(self, batch: Sequence[Draft], status: str | None) -> None:
        waits = list(self.waits.values())
        if status is None:
            status = self._status_now()
        self.live.run_metadata = self._metadata(status, waits)
        seen = self.last_id
        told = status

        def status_after(parent_id: str | None) -> dict[str, Any]:
            # Others may have recorded just what the run waits for, and it does not know yet. If it said that it waits,
            # and its process died now, nobody would take it up.
            nonlocal told
            told = status
            if status == WAITING and parent_id != seen:
                told = RUNNING
            return {"run_status": told}

        made = await self.live.record(
            self.engine,
            _trigger(batch),
            as_results(batch),
            is_caught_up=status == DONE or (self.replay.is_caught_up and self.code.is_here()),
            metadata_after=status_after,
            **_about(batch),
        )
        self.told = (told, waits)
        for draft in batch:
            if draft.about["op"] == "now":
                self._new_times.discard(draft.about["key"])
        await self._look_for_others(made)

    def _metadata(self, status: str, waits: list[dict[str, Any]]) -> dict[str, Any]:
        metadata = {"run": self.name, "run_status": status, "run_waits": waits}
        if self.replay.repeats_effects:
            metadata["run_effects"] = "allow"
        return metadata

    def _status_now(self) -> str:
        # As long as anything else may be at work, others shall take the run up if this process dies.
        if self.waits and not self.code.is_side_by_side():
            return WAITING
        return RUNNING

    async def _look_for_others(self, made: str) -> None:
        """Note what others have recorded in the thread meanwhile: answers, events."""
        thread_id = self.live.thread_id
        recorded = self.replay.journal
        stored = self.repository.memory.head(thread_id, "")
        before = self.last_id
        self.last_id = made
        # What follows the last entry of ours at once has nothing of others in between.
        if stored is not None and stored.record.key.checkpoint_id == made and _follows(stored.record, before):
            recorded.last_seq = stored.seq
            return
        if before is not None and await self._is_left_behind(before):
            # The thread was rewound: what this attempt goes by is not what is recorded there any more.
            raise RunLost(thread_id)
        entries, seq = await journal.load_since(self.repository, thread_id, recorded.last_seq)
        recorded.last_seq = seq
        for entry in entries:
            if entry.op in ("answer", "event"):
                recorded.add(entry)
                self.waits.pop(entry.about.get("wait", entry.key), None)

    async def _is_left_behind(self, checkpoint_id: str) -> bool:
        loaded = await self.repository.store.read(self.live.thread_id, "", checkpoint_id)
        return loaded is None or loaded.stored.hidden


def _why_not_taken(draft: Draft, error: Exception) -> Exception | None:
    """Return why no commit can take a draft; None if it is not what made one fail with that error."""
    try:
        packed = codec.pack(draft.values, str(draft.about["key"]))
    except UnstorableValue as reason:
        return reason
    if isinstance(error, SnapshotTooLarge) and len(packed) > error.size_bytes_max:
        return error
    return None


def _follows(record: Record, before: str | None) -> bool:
    """Whether a checkpoint follows that one alone; without one, whether it is the first."""
    parents = [parent.checkpoint_id for parent in record.parents]
    if before is None:
        return not parents
    return parents == [before]


def _about(batch: Sequence[Draft]) -> dict[str, Any]:
    """Return what the checkpoint that records these says of them."""
    summaries = [draft.summary for draft in batch if draft.summary]
    tags: list[str] = []
    for draft in batch:
        tags.extend(draft.tags)
    return {
        "metadata": {ENTRIES: [draft.about for draft in batch]},
        "summary": "; ".join(summaries)[:200],
        "tags": tags,
    }


def _trigger(batch: Sequence[Draft]) -> SnapshotTrigger:
    ops = {draft.about["op"] for draft in batch}
    if "step" in ops:
        return SnapshotTrigger.TOOL_CALL
    if ops & {"start", "end"}:
        return SnapshotTrigger.TASK_BOUNDARY
    return SnapshotTrigger.STATE_CHANGE
