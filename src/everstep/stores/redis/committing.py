"""Commits: in one call of the script where that can be, else by a plan, until nothing has changed meanwhile."""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everstep.errors import BaseGone, CheckpointCorrupted, CommitUnknown, HeadMoved, StoreError, StoreUnavailable
from everstep.runtime.calls import tried_again
from everstep.stores.facts import is_noted, new_facts
from everstep.stores.heads import SeenHead
from everstep.stores.protocol import ANY, BaseRef, Change, Draft, Key, Object, Stored, Write
from everstep.stores.records import pack_record, record_digest
from everstep.stores.redis.adopt import Plan
from everstep.stores.redis.calls import LOST_MAX, KnownHead, ThreadSearch, bucket_of_family
from everstep.stores.redis.items import bucket_of, line_name, pack_item, pack_objects, pack_write, unpack_item
from everstep.stores.redis.link import AnswerLost, Unsure
from everstep.stores.redis.lists import number
from everstep.stores.redis.plan import Elsewhere, LineState, Stale
from everstep.stores.redis.turns import TakingTurns, Turn, Turns
from everstep.stores.transaction import Packed, added_bytes, apply, apply_writes, is_plain

# An end for the loop of plans; long before it a change has a turn of its own.
_TRIES = 100
_BEATEN_MAX = 3
"""So often others may be faster before a change is given a turn of its own."""


class _PreparedPut(NamedTuple):
    """A checkpoint that follows the head, ready to be sent."""

    args: Sequence[Any]
    raw: bytes
    """What its line is after it."""
    stored: Stored
    """As it will be stored, but for its number."""


class _Sending:
    """A change on its way to the server."""

    def __init__(self, line: tuple[str, str], turns: Turns) -> None:
        self.line = line
        self.turns = turns
        self.drafts: list[Draft] = []
        """What each try has built: the last one counts."""
        self.lost: list[Draft] = []
        """Those that were sent, and whose answers were lost."""

    def build(self, build: Callable[[Stored | None], Draft], head: Stored | None) -> Draft:
        """Build a draft, and note it."""
        self.drafts.append(build(head))
        return self.drafts[-1]


class Committing(TakingTurns):
    """Checkpoints and pending writes that are stored."""

    def commit(self, change: Change, turn: Turn | None = None) -> Stored | None:
        """Commit in one round trip if that can be, else by a plan."""
        self._check_allowed()
        home = change.thread_id
        start = functools.partial(self._search, change.thread_id)
        if change.origin is not None:
            # A branch is made where its origin is, and waits for the turns of that family.
            home = change.origin.thread_id
            start = functools.partial(self._search_beside, change.origin, change.thread_id)
        sending = _Sending((change.thread_id, change.namespace), Turns(self, home, turn))
        try:
            return self._commit(change, start, sending)
        except Unsure as exc:
            raise CommitUnknown(_name_of(sending.drafts), change.thread_id, str(exc)) from exc
        except StoreError as exc:
            if not sending.lost or isinstance(exc, CommitUnknown):
                raise
            # There was no time left to find out whether the call was done whose answer was lost.
            raise CommitUnknown(_name_of(sending.lost), change.thread_id) from exc
        finally:
            sending.turns.end()

    def _commit(self, change: Change, start: Callable[[], ThreadSearch], sending: _Sending) -> Stored | None:
        if change.build is not None:
            build = functools.partial(sending.build, change.build)
            change = change._replace(build=build)
            # What follows the head is newer than it, whatever its id.
            if is_plain(change) and change.head != "never":
                stored = self._put(change, build, sending)
                if stored is not None:
                    return stored
        return self._planned(lambda plan: apply(plan, change), start, sending)

    def _put(self, change: Change, build: Callable[[Stored | None], Draft], sending: _Sending) -> Stored | None:
        """Commit a checkpoint that follows the head as last seen; None: it must be planned."""
        turns = sending.turns
        for _ in range(_BEATEN_MAX):
            began = time.monotonic()
            seen = self._heads.get(sending.line)
            if seen is None or seen.known is None or not _may_follow(change, seen.known.head, turns):
                return None
            known = seen.known
            draft = build(known.head)
            put = self._prepare_put(change, draft, known, seen.generation + 1, turns.turn)
            if put is None:
                return None
            # Before the put: a bucket that is not registered is not looked at by those who list all threads.
            self._register(known.bucket)
            reply = self._sent(put.args, known.bucket, change.thread_id, draft, sending.lost)
            if reply[0] == b"wait":
                turns.take(time.monotonic() - began)
                continue
            if reply[0] == b"done":
                turns.note_change()
                return self._note_put(put, reply, seen, known)
            # The answer to a refused put holds the head that is there: the next try needs no read.
            self._see_head(sending.line, reply, known.bucket, seen)
            found = self._lost_and_found(sending.lost)
            if found is not None:
                return found
        return None

    def _note_put(self, put: _PreparedPut, reply: Sequence[Any], seen: SeenHead[KnownHead], known: KnownHead) -> Stored:
        """Note the head after a put that was done, and return it."""
        stored = put.stored._replace(seq=int(reply[1]))
        known = known._replace(raw=put.raw, head=stored, is_fresh=False)
        self._heads.note(stored.record.key[:2], stored.family, seen.generation + 1, known, seen, stored.seq)
        if reply[2] == b"1":
            self._renew_aliases(stored.family)
        return stored

    def _prepare_put(
        self, change: Change, draft: Draft, known: KnownHead, generation: int, turn: Turn | None
    ) -> _PreparedPut | None:
        """Return what to send for a checkpoint that follows a head; None: it is more than the short way does."""
        head = known.head
        record = draft.record
        line = change.thread_id, change.namespace
        fence = _fence(draft, head)
        if fence is None or record.key[:2] != line or record.parents != (head.record.key,):
            return None
        # What the thread cannot be found by yet is noted by a plan.
        if not all(is_noted(fact, known.labels) for fact in new_facts(record, head.record)):
            return None
        packed = Packed(record, *pack_record(record))
        added = added_bytes(draft, packed)
        # What the line is after this put: see `LineState`.
        raw = b"%d - %b %b" % (generation, packed.digest.hex().encode(), record.key.checkpoint_id.encode())
        verb: list[Any] = ["put"]
        # The shortest call neither renews a time to live nor removes anything.
        if turn is not None or self._life or known.is_fresh or change.prune:
            verb = ["put_and_prune", self._life, *line, head.family, len(change.prune), *change.prune]
        if turn is not None:
            verb[:1] = ["put_in_turn", turn.token]
        args = [
            *verb, line_name(*line), "@" + change.namespace, head.family, known.raw, raw, record.key.checkpoint_id,
            pack_item(packed, head.segment, added), change.thread_id, *fence, *pack_objects(draft.objects),
        ]  # fmt: skip
        stored = Stored(record, 0, head.family, digest=packed.digest, segment=head.segment, added_bytes=added)
        return _PreparedPut(args, raw, stored)

    def _see_head(self, line: tuple[str, str], reply: Sequence[bytes], bucket: int, since: Any) -> None:
        """Note the head that a refused put was answered with."""
        family, raw, seq, item = reply[1:]
        if not raw:
            # The plan that follows finds out what became of it.
            self._heads.doubt(line)
            return
        state = LineState(raw)
        known = None
        head_seq = number(seq) if seq else 0
        # After a head that was moved a new segment begins, which a plan makes.
        if seq and not state.head_was_moved:
            head = unpack_item(item, Key(*line, state.checkpoint_id), head_seq, family.decode())
            known = KnownHead(bucket, raw, state.check(head))
        self._heads.note(line, family.decode(), state.generation, known, since, head_seq)
        if known is not None and since is not None and raw == since.known.raw:
            # It was refused for another reason: its id is there.
            self._heads.doubt(line)

    def _planned_alone(
        self, work: Callable[[Plan], Stored | None], line: tuple[str, str], start: Callable[[], ThreadSearch]
    ) -> None:
        sending = _Sending(line, Turns(self, line[0]))
        try:
            self._planned(work, start, sending)
        finally:
            sending.turns.end()

    def _planned(
        self, work: Callable[[Plan], Stored | None], start: Callable[[], ThreadSearch], sending: _Sending
    ) -> Stored | None:
        """Plan and send until nothing has changed in between.

        A change that others were faster than too often gets a turn of its own.
        """
        turns = sending.turns
        since = self._heads.get(sending.line)
        checked = functools.partial(self._do_checked, work, since, sending)
        began = time.monotonic()
        for tries in range(_TRIES):
            if turns.turn is None and tries >= _BEATEN_MAX:
                turns.take((time.monotonic() - began) / tries)
            search = start()
            try:
                plan, stored = self._plan(checked, search)
            except Stale:
                continue
            if plan.is_empty:
                self._confirm(stored, search.bucket)
                return stored
            self._register(search.bucket)
            # A thread that it makes may have come to be elsewhere meanwhile.
            if not all(self._claimed(name, search) for name in plan.created):
                continue
            reply = self._send_plan(plan, search.bucket, sending)
            if reply[0] == b"wait":
                turns.take((time.monotonic() - began) / (tries + 1))
            elif reply[0] == b"done":
                turns.note_change()
                if self._is_kept(plan, search, sending.line):
                    self._note_plan(plan, sending.line, stored, search.bucket, since)
                    if reply[1] == b"1":
                        self._renew_aliases(plan.family_name)
                    return stored
            else:
                found = self._lost_and_found(sending.lost)
                if found is not None:
                    return found
        raise StoreUnavailable("too many writers at once; try again")

    def _do_checked(
        self, work: Callable[[Plan], Stored | None], since: SeenHead[KnownHead] | None, sending: _Sending, plan: Plan
    ) -> Stored | None:
        """Do the work of a plan, if what was seen of the line is not lost."""
        if since is not None:
            plan.line(*sending.line)
            family, generation = plan.generations.get(sending.line, (None, 0))
            self._check_seen(sending.line, family, generation, since)
        return work(plan)

    def _send_plan(self, plan: Plan, bucket: int, sending: _Sending) -> Any:
        args = plan.arguments(*sending.line)
        turn = sending.turns.turn
        if turn is not None:
            args[:1] = ["commit_in_turn", turn.token]
        # Each try has made a draft of its own: the last one is sent.
        draft = sending.drafts[-1] if sending.drafts else None
        return self._sent(args, bucket, sending.line[0], draft, sending.lost)

    def _plan(self, work: Callable[[Plan], Stored | None], search: ThreadSearch) -> tuple[Plan, Stored | None]:
        """Plan the work where its thread is, or would be."""
        nowhere: bytes | None = None
        while True:
            script = functools.partial(self._call, search.bucket)
            plan = Plan(script, search.bucket, self._life, search.thread_id)
            if nowhere is not None:
                if search.bucket == search.own and search.alias:
                    self._take_over(search)
                plan.accept_absence(nowhere, search.alias)
            try:
                return plan, work(plan)
            except Elsewhere as exc:
                if not search.go_on(exc.alias):
                    nowhere = exc.remains
            except CheckpointCorrupted as exc:
                raise exc.located(search.thread_id, None) from exc

    def _note_plan(self, plan: Plan, line: tuple[str, str], stored: Stored | None, bucket: int, since: Any) -> None:
        state = plan.state(*line)
        if state is None:
            return
        known = None
        seq = 0
        if stored is not None:
            seq = stored.seq
            is_head = (state.checkpoint_id, state.digest) == (stored.record.key.checkpoint_id, stored.digest.hex())
            if is_head and not state.head_was_moved:
                known = KnownHead(bucket, state.raw, stored, labels=plan.labels(line[0]))
        self._heads.note(line, plan.family_name, state.generation, known, since, seq)

    def _sent(self, args: Sequence[Any], bucket: int, thread_id: str, draft: Draft | None, lost: list[Draft]) -> Any:
        """Send a change. If its answer is lost, send it again: it names what it saw, so it is never done twice."""
        name = draft.record.key.checkpoint_id if draft is not None else None
        trouble: Exception | None = None
        for _ in range(LOST_MAX):
            try:
                reply = self._call_once(bucket, args)
            except AnswerLost as exc:
                trouble = exc
                # By identity: a draft may be sent more than once, and is noted once.
                if draft is not None and not any(draft is other for other in lost):
                    lost.append(draft)
                tried_again("an answer of Redis was lost")
                continue
            except Unsure as exc:
                raise CommitUnknown(name, thread_id, str(exc)) from exc
            except StoreError as exc:
                if trouble is None:
                    raise
                raise CommitUnknown(name, thread_id) from exc
            if reply[0] != b"done" and trouble is not None and draft is None:
                # It was changed since: by this very call, or by somebody else. There is no checkpoint to tell by.
                break
            return reply
        raise CommitUnknown(name, thread_id) from trouble

    def _lost_and_found(self, lost: Sequence[Draft]) -> Stored | None:
        """Return the checkpoint of a call whose answer was lost, if it was done."""
        for draft in lost:
            loaded = self.load(*draft.record.key, objects=False, writes=False)
            if loaded is not None and loaded.stored.digest == record_digest(*pack_record(draft.record)):
                self._heads.doubt(draft.record.key[:2])
                self._confirm(loaded.stored, bucket_of_family(loaded.stored.family))
                return loaded.stored
        return None

    def _confirm(self, stored: Stored | None, bucket: int) -> None:
        """Nothing had to be done: see that replicas have what is there."""
        if self._replicas and stored is not None:
            try:
                self._call(bucket, "confirm", stored.family, writes=True)
            except StoreUnavailable as exc:
                raise CommitUnknown(stored.record.key.checkpoint_id, stored.record.key.thread_id) from exc

    def _renew_aliases(self, family: str) -> None:
        """Let aliases live on with their family. They live much longer than it: what fails now is done next time."""
        bucket = bucket_of_family(family)
        with contextlib.suppress(StoreError):
            for name in self._call(bucket, "get", "SMEMBERS", f"family:{family}:threads"):
                thread_id = name.decode()
                if bucket_of(thread_id) != bucket:
                    # A new word each time, by which whoever has read the alias before notices that it was
                    # renewed.
                    value = f"{bucket} {uuid.uuid4().hex}"
                    self._call(bucket_of(thread_id), "renew_alias", thread_id, value, self._life)

    def put_writes(self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None) -> None:
        self._check_allowed()
        flat = _flat_writes(key.checkpoint_id, writes)
        packed = pack_objects(objects)
        rests_on: tuple[str, ...] = ("", "", "", "")
        if base is not None:
            rests_on = (*base.key, base.digest.hex())
        args = (key.namespace, key.checkpoint_id, self._life, *rests_on, len(packed), *packed, len(flat), *flat)
        try:
            found = self._ask("writes", key.thread_id, *args, writes=True)
            if found is None or found[1][0] == b"missing":
                # They come before the first checkpoint of their line, which a plan makes.
                start = functools.partial(self._search, key.thread_id)
                work = functools.partial(apply_writes, key=key, writes=writes, objects=objects, base=base)
                self._planned_alone(work, key[:2], start)
                return
            reply = found[1]
            if base is not None and reply[0] == b"base":
                raise BaseGone(f"{base.key} is no longer stored as it was")
            if reply[1] == b"1":
                self._renew_aliases(reply[2].decode())
        except Unsure as exc:
            raise CommitUnknown(key.checkpoint_id, key.thread_id, str(exc)) from exc


def _may_follow(change: Change, head: Stored, turns: Turns) -> bool:
    """Whether a change may follow this head. HeadMoved if others wait: to plan it would take longer, with that end."""
    if change.expect in (ANY, head.record.key.checkpoint_id):
        return True
    if turns.own and change.fresh:
        raise HeadMoved(change.thread_id, change.expect, head.record.key.checkpoint_id)
    return False


def _flat_writes(checkpoint_id: str, writes: Sequence[Write]) -> list[Any]:
    """Return writes as the script takes them."""
    flat: list[Any] = []
    for write in writes:
        # Special writes, whose numbers are negative, replace one another; of others the first one counts.
        which = "last" if write.idx < 0 else "first"
        flat += (which, *pack_write(checkpoint_id, write))
    return flat


def _fence(draft: Draft, head: Stored) -> tuple[str, bytes] | None:
    """Return what a draft rests on besides the head: the field of another namespace's head, and what is stored there.

    Empty texts if there is nothing else. None: it is more than that, or not such a head.
    """
    others = [base for base in draft.bases if base != BaseRef(head.record.key, head.digest)]
    if not others:
        return "", b""
    base = others[0]
    if len(others) > 1:
        return None
    # The script looks at the heads of one thread, and this one's own is checked anyway.
    if base.key.thread_id != head.record.key.thread_id or base.key[:2] == head.record.key[:2]:
        return None
    return "@" + base.key.namespace, b"%b %b" % (base.digest.hex().encode(), base.key.checkpoint_id.encode())


def _name_of(drafts: Sequence[Draft]) -> str | None:
    return drafts[-1].record.key.checkpoint_id if drafts else None
