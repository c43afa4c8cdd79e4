"""Redis or Valkey, one server or a cluster. See redis-1.lua for the keys, and `link` for the connections.

A family lives in one of 128 buckets, that of its first thread's name; a branch whose own name gives another bucket
has an alias there. The usual commit and the usual read are one call of the script; everything else is planned on what
was read (`plan`) and sent as one call that checks that nothing has changed.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import logging
import math
import re
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from everstep.errors import (
    BaseGone,
    CheckpointCorrupted,
    CommitUnknown,
    HeadMoved,
    InvalidInput,
    StoreError,
    StoreUnavailable,
)
from everstep.reports import Finding
from everstep.runtime import checks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.runtime.calls import tried_again
from everstep.stores.facts import is_noted, new_facts
from everstep.stores.inspection import Lost as LostRow
from everstep.stores.protocol import (
    ANY,
    BaseRef,
    Change,
    Deleted,
    Draft,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Part,
    Place,
    Query,
    RawThread,
    Search,
    Store,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.records import pack_record, record_digest
from everstep.stores.redis.calls import LOST_MAX, Known, ThreadSearch, bucket_of_family, encoded
from everstep.stores.redis.checking import Bucket, Problem, confirmed
from everstep.stores.redis.items import bucket_of, escaped, line_name, pack_item, pack_objects, pack_write, unpack_item
from everstep.stores.redis.link import Link, Lost, Unsure, translated
from everstep.stores.redis.lists import number
from everstep.stores.redis.plan import Elsewhere, LineState, Plan, Stale
from everstep.stores.redis.reading import Reading
from everstep.stores.sweeping import Sweeps
from everstep.stores.transaction import Packed, added_bytes, adopt, adopt_new, apply, apply_writes, is_plain
from everstep.stores.waiting import Rhythm, Waiting
from everstep.stores.workers import AsyncDriver, Driver

logger = logging.getLogger("everstep")

T = TypeVar("T")
# An end for the loop of plans; long before it a change has a turn of its own.
_TRIES = 100
_BEATEN_MAX = 3
"""So often others may be faster before a change is given a turn of its own."""
_TURN_SECONDS_MIN = 0.5
_TURN_FACTOR = 4
"""A turn lasts so many times longer than its work took before: others wait so long for a writer that has died."""
_LOOK_SECONDS = 0.1
"""Whoever waits for a turn is told when it is there, and looks so often in case that was lost."""
_RHYTHM = Rhythm(early=(0.0003, 0.001), late=(0.002, 0.004), late_after=0.005)
"""To look whether another writer's turn is over, before one gets in line: that of a near one takes a millisecond."""
_PASSED_MAX = 6
_PASSED_SECONDS = 0.5
"""Whoever so many changes of others came before, or who has waited so long, gets in line. Sooner would be of no use: to
hand turns on in order takes longer than to take one that is free."""
_FAR_SECONDS = 0.003
"""If the quickest round trip takes longer, to look for a turn is of no use: who is far gets in line at once."""


# What one fix takes away may be what another finding is about, so it is looked again, and not for ever.
_MENDING_ROUNDS = 4


class RedisStore:
    """A store on a Redis or Valkey server or cluster. `blocking` is the same for callers that may wait."""

    _turn: _Turn | None = None
    """What changes are made in, if this is what a turn works on."""

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        key_prefix: str = "everstep:",
        ttl_seconds: float | None = None,
        wait_replicas: int = 0,
        timeout_seconds: float = 30.0,
        allow_eviction: bool = False,
        max_threads: int = 32,
    ) -> None:
        """Nothing is opened yet.

        With `wait_replicas` a commit returns when so many replicas have it. `max_threads` carry asynchronous callers.
        """
        _check_options(key_prefix, ttl_seconds, wait_replicas, timeout_seconds, max_threads)
        link = Link(checks.kind(url, str, "url"), timeout_seconds, wait_replicas, allow_eviction)
        life_ms = 0
        if ttl_seconds is not None:
            life_ms = max(1, round(ttl_seconds * 1000))
        self._server = _Server(link, key_prefix, life_ms, wait_replicas)
        self._driver: Driver = AsyncDriver(timeout_seconds, max_threads)
        # Made once, since the blocking face is asked for with every call that drives a coroutine.
        self._twin = object.__new__(RedisStore)
        self._twin._server = self._server
        self._twin._driver = Driver(timeout_seconds)
        self._twin._twin = self._twin

    @property
    def blocking(self) -> RedisStore:
        return self._twin

    @property
    def limit_seconds(self) -> float:
        return self._driver.timeout_seconds

    @property
    def address(self) -> str:
        """Where it is, without user and password."""
        return self._server.address

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._server.is_closed

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    async def in_turn(self, thread_id: str, work: Callable[[Store], Coroutine[Any, Any, T]], seconds: float = 0.0) -> T:
        """Others are told to wait: see `verbs.turn` in the script."""
        context = contextvars.copy_context()

        def whole(at: float) -> T:
            # On one thread from its beginning to its end: else those who wait might have all the threads, and whoever
            # has the turn might wait for one of them.
            turn = self._server.take_turn(thread_id, seconds, at)
            inside = object.__new__(RedisStore)
            inside.__dict__.update(self._twin.__dict__)
            inside._turn = turn
            try:
                return context.run(run_to_end, work(inside))
            finally:
                if turn is not None and not turn.is_used:
                    self._server.end_turn(turn, at)

        return await self._run(whole)

    async def commit(self, change: Change) -> Stored | None:
        return await self._run(lambda at: self._server.commit(change, at, self._turn))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._run(lambda at: self._server.put_writes(key, writes, objects, base, at))

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        if self._turn is not None and checkpoint_id is None and not objects and not writes:
            head = self._turn.take_head(thread_id, namespace)
            if head is not None:
                return head
        return await self._run(lambda at: self._server.load(thread_id, namespace, checkpoint_id, objects, writes, at))

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._run(lambda at: self._server.load_many(keys, writes, at)) if keys else []

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._run(lambda at: self._server.find(checkpoint_id, at))

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        return await self._run(lambda at: self._server.fetch(family, hashes, below, at))

    async def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> list[Object]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.fetch_many(wanted, at))

    async def present(self, thread_ids: Sequence[str]) -> set[str]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.present(thread_ids, at))

    async def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.heads(lines, at))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._about(query.thread_id, lambda at: self._server.list_checkpoints(query, at))

    async def clock(self) -> float:
        return await self._run(lambda at: self._server.clock(at))

    async def count(self, query: Query) -> int:
        return await self._about(query.thread_id, lambda at: self._server.count(query, at))

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        return await self._run(lambda at: self._server.list_threads(limit, offset, headless, at))

    async def search(self, search: Search) -> list[Hit]:
        return await self._run(lambda at: self._server.search(search, at))

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        return await self._about(
            thread_id, lambda at: self._server.thread(thread_id, branches, ancestry, at, brief=brief)
        )

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        return await self._run(lambda at: self._server.started(thread_id, namespace, after, at))

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        return await self._run(lambda at: self._server.segments(family, segments, older, at))

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        return await self._run(lambda at: self._server.newest(thread_id, limit, branches, without, at))

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:  # noqa: ARG002  # all at once
        return await self._run(lambda at: self._server.outlines(at))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._about(thread_id, lambda at: self._server.operations(thread_id, limit, at))

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        return await self._run(lambda at: self._server.delete(thread_id, keys, before_step, spare, operations, at))

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        driver = _SweepDriver(self._driver, self._server, pretend=pretend is not None)
        return (await self._server.sweeps.run(driver, family, effort, pretend))[0]

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        return await self._about(thread_id, lambda at: self._server.raw(thread_id, family_threads, at))

    async def adopt(self, part: Part) -> int:
        return await self._run(lambda at: self._server.adopt(part, at))

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        # One after the other: each family is in one bucket, and a script works on one bucket.
        for part in parts:
            await self._run(lambda at, part=part: self._server.adopt_new(part, at))  # type: ignore[misc]

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._run(self._server.every_name)

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with keys and indexes: see `Checking`."""
        found = await self._run(lambda at: confirmed(lambda: self._server.problems(at)))
        return [problem.finding for problem in found]

    async def mend_tables(self, *, dry_run: bool) -> list[LostRow]:
        """Make keys and indexes agree: see `Mending`."""
        return await self._run(lambda at: self._server.mend(at, dry_run=dry_run))

    async def stored_rows(self, keys: Sequence[Key]) -> list[LostRow]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._run(lambda at: self._server.stored_rows(keys, at))

    async def close(self) -> None:
        if isinstance(self._driver, AsyncDriver):
            self._driver.dismiss()
        self._server.close()

    async def _about(self, thread_id: str | None, work: Callable[[float], T]) -> T:
        """Read something about a thread (None: about all of them)."""
        return await self._run(lambda at: self._server.about_thread(thread_id, work, at))

    async def _run(self, work: Callable[[float], T]) -> T:
        return await self._driver.run(work)


def _check_options(
    key_prefix: str, ttl_seconds: float | None, wait_replicas: int, timeout_seconds: float, max_threads: int
) -> None:
    # Braces in a key say which part of it decides about the slot, and ours are around the number of the
    # bucket.
    if not isinstance(key_prefix, str) or "{" in key_prefix or "}" in key_prefix:
        raise InvalidInput(f"key_prefix is a text without braces, not {checks.shown(key_prefix)}")
    _check_number("ttl_seconds", ttl_seconds or 1)
    _check_number("timeout_seconds", timeout_seconds)
    _check_number("max_threads", max_threads)
    if ttl_seconds is not None and not ttl_seconds:
        raise InvalidInput("ttl_seconds is a number greater than 0, or None for no end")
    checks.count(wait_replicas, "wait_replicas")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e10:
        raise InvalidInput(f"{name} is a number greater than 0, not {checks.shown(value)}")


class _Turn:
    """A writer's turn to change a family while others wait."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.family = ""
        self.bucket = 0
        self.head: Loaded | None = None
        """Of the thread's own namespace, as it was when the turn began."""
        self.is_used = False
        """A change was made in it, which ended it."""

    def must_wait(self) -> None:
        """Get in line with the next look, and let others do so too: see the script."""
        self.token = f"!{self.token}"

    def take_head(self, thread_id: str, namespace: str) -> Loaded | None:
        """Return this head, once: it need not be asked for while others wait."""
        head = self.head
        if head is None or head.stored.record.key[:2] != (thread_id, namespace):
            return None
        self.head = None
        return head


class _Place:
    """Where a writer stands that waits for a turn: it looks again and again, and gets in line if others are faster."""

    def __init__(self, deadline: float) -> None:
        self._waiting = Waiting(_RHYTHM, deadline)
        self._began = time.monotonic()
        self._changes_before: int | None = None
        self.told_in: float | None = None
        """In line it is told when it is its turn, or looks after so many seconds."""

    def is_passed_too_often(self, changes: int) -> bool:
        """Whether others came first too often, or it waits for too long; there have been so many changes by now."""
        if self._changes_before is None:
            self._changes_before = changes
        is_late = time.monotonic() - self._began >= _PASSED_SECONDS
        return is_late or changes - self._changes_before >= _PASSED_MAX

    def wait(self, seconds: float) -> None:
        """Wait a little for a turn that ends within so many seconds."""
        self.told_in = None
        self._waiting.pause(seconds)


class _Turns:
    """The turn that a change is made in: one that was given with it, or its own."""

    def __init__(self, server: _Server, home: str, at: float, turn: _Turn | None = None) -> None:
        """`home` is a thread of the family."""
        self._server = server
        self._home = home
        self._at = at
        self.turn = turn
        self.own: list[_Turn] = []

    def take(self, seconds: float) -> None:
        """Get in line, for work that takes so long. What was had before is over."""
        self.end()
        self.turn = self._server.take_turn(self._home, seconds, self._at)
        if self.turn is not None:
            self.own.append(self.turn)

    def note_change(self) -> None:
        """Note that a change was made, which has ended the turn."""
        if self.turn is not None:
            self.turn.is_used = True

    def end(self) -> None:
        """Let others go on, if its own turn was not used."""
        for turn in self.own:
            if not turn.is_used:
                self._server.end_turn(turn, self._at)
        self.own = []


class _PreparedPut(NamedTuple):
    """A checkpoint that follows the head, ready to be sent."""

    args: Sequence[Any]
    raw: bytes
    """What its line is after it."""
    stored: Stored
    """As it will be stored, but for its number."""


class _Server(Reading):
    """What the store does, blocking. Each call takes its deadline."""

    def __init__(self, link: Link, prefix: str, life_ms: int, wait_replicas: int) -> None:
        super().__init__(link, prefix, life_ms, wait_replicas)
        self.sweeps = Sweeps()
        self._round_trip_seconds = math.inf
        """The quickest so far, of those that ask for a turn: others were held up by something."""

    # -- changing

    def take_turn(self, thread_id: str, seconds: float, at: float) -> _Turn | None:
        """Wait for a turn in a thread's family, for work that takes so long; None: there is no such thread.

        Nobody is passed by others for long: then they get in line, where whoever came first is served first.
        """
        self._check_allowed(at)
        turn = _Turn()
        line = thread_id, ""
        place = _Place(at)
        # Who is far loses to every near writer that looks more often.
        if self._round_trip_seconds > _FAR_SECONDS:
            turn.must_wait()
        while True:
            left = at - time.monotonic()
            if left <= 0:
                raise StoreUnavailable("other writers had their turns for too long; nothing was written, try again")
            lasting = min(max(seconds * _TURN_FACTOR, _TURN_SECONDS_MIN), left)
            args = ("turn", thread_id, turn.token, _milliseconds(lasting), _milliseconds(left))
            since = self._heads.get(line)
            reply = None
            if place.told_in is not None:
                reply = self._call_when_told(turn, place.told_in, args, at)
            if reply is None or reply[0] == b"absent":
                asked = time.monotonic()
                found = self._ask(at, *args)
                self._round_trip_seconds = min(self._round_trip_seconds, time.monotonic() - asked)
                if found is None:
                    return None
                turn.bucket, reply = found
            if reply[0] == b"done":
                turn.family = reply[1].decode()
                turn.head = self._read(line, turn.bucket, reply[2], since, at, is_head=True)
                return turn
            turn.family = reply[2].decode()
            is_in_line = reply[4] == b"1"
            if is_in_line:
                place.told_in = min(reply[1] / 1000, _LOOK_SECONDS)
            elif place.is_passed_too_often(int(reply[3])):
                turn.must_wait()
            else:
                place.wait(reply[1] / 1000)

    def _call_when_told(self, turn: _Turn, seconds: float, args: Sequence[Any], at: float) -> Any:
        """Ask for a turn again when it is there, or when the one before must be over; None: the answer was lost."""
        base = self._base(turn.bucket)
        key = b"%bfamily:%b:turn:%b" % (base, turn.family.encode(), turn.token.encode())
        with translated(but=(Lost,)):
            try:
                return self._link.run_when(base, key, seconds, [args[0], *encoded(args[1:])], at)
            except Lost:
                tried_again("an answer of Redis was lost")
                return None

    def end_turn(self, turn: _Turn, at: float) -> None:
        """Let others go on. What fails here ends by itself."""
        with contextlib.suppress(StoreError):
            self._call(turn.bucket, at, "end_turn", turn.family, turn.token)

    def commit(self, change: Change, at: float, turn: _Turn | None = None) -> Stored | None:
        """Commit in one round trip if that can be, else by a plan."""
        self._check_allowed(at)
        drafts: list[Draft] = []
        lost: list[Draft] = []
        build = change.build
        start = functools.partial(self._search, change.thread_id)
        home = change.thread_id
        if change.origin is not None:
            # A branch is made where its origin is, and waits for the turns of that family.
            start = functools.partial(self._search_beside, change.origin, change.thread_id, at)
            home = change.origin.thread_id
        turns = _Turns(self, home, at, turn)
        line = (change.thread_id, change.namespace)
        if build is not None:
            build = functools.partial(_noted, drafts, build)
            change = change._replace(build=build)
        try:
            # What follows the head is newer than it, whatever its id.
            if build is not None and is_plain(change) and change.head != "never":
                stored = self._put(change, build, lost, at, turns)
                if stored is not None:
                    return stored
            return self._planned(lambda plan: apply(plan, change), line, drafts, lost, start, at, turns)
        except Unsure as exc:
            raise CommitUnknown(_name_of(drafts), change.thread_id, str(exc)) from exc
        except StoreError as exc:
            if not lost or isinstance(exc, CommitUnknown):
                raise
            # There was no time left to find out whether the call was done whose answer was lost.
            raise CommitUnknown(_name_of(lost), change.thread_id) from exc
        finally:
            turns.end()

    def _put(
        self, change: Change, build: Callable[[Stored | None], Draft], lost: list[Draft], at: float, turns: _Turns
    ) -> Stored | None:
        """Commit a checkpoint that follows the head as last seen; None: it must be planned."""
        line = change.thread_id, change.namespace
        for _ in range(_BEATEN_MAX):
            began = time.monotonic()
            seen = self._heads.get(line)
            if seen is None or seen.known is None:
                return None
            known = seen.known
            head = known.head
            if change.expect is not ANY and change.expect != head.record.key.checkpoint_id:
                if turns.own and change.fresh:
                    # Others wait: to plan it would take longer, with the same end.
                    raise HeadMoved(change.thread_id, change.expect, head.record.key.checkpoint_id)
                return None
            draft = build(head)
            put = self._prepare_put(change, draft, known, seen.generation + 1, turns.turn)
            if put is None:
                return None
            # Before the put: a bucket that is not registered is not looked at by those who list all threads.
            self._register(known.bucket, at)
            reply = self._sent(put.args, known.bucket, change.thread_id, draft, lost, at)
            if reply[0] == b"wait":
                turns.take(time.monotonic() - began)
                continue
            if reply[0] == b"done":
                turns.note_change()
                stored = put.stored._replace(seq=int(reply[1]))
                known = known._replace(raw=put.raw, head=stored, is_fresh=False)
                self._heads.note(line, head.family, seen.generation + 1, known, seen, stored.seq)
                if reply[2] == b"1":
                    self._renew_aliases(head.family, at)
                return stored
            # The answer to a refused put holds the head that is there: the next try needs no read.
            self._see_head(line, reply, known.bucket, seen)
            found = self._lost_and_found(lost, at)
            if found is not None:
                return found
        return None

    def _prepare_put(
        self, change: Change, draft: Draft, known: Known, generation: int, turn: _Turn | None
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
        head_seq = 0
        if seq:
            head_seq = number(seq)
        # After a head that was moved a new segment begins, which a plan makes.
        if seq and not state.head_was_moved:
            head = unpack_item(item, Key(*line, state.checkpoint_id), head_seq, family.decode())
            known = Known(bucket, raw, state.check(head))
        self._heads.note(line, family.decode(), state.generation, known, since, head_seq)
        if known is not None and since is not None and raw == since.known.raw:
            # It was refused for another reason: its id is there.
            self._heads.doubt(line)

    def _planned_alone(
        self, work: Callable[[Plan], Stored | None], line: tuple[str, str], start: Callable[[], ThreadSearch], at: float
    ) -> None:
        turns = _Turns(self, line[0], at)
        try:
            self._planned(work, line, (), [], start, at, turns)
        finally:
            turns.end()

    def _planned(
        self,
        work: Callable[[Plan], Stored | None],
        line: tuple[str, str],
        drafts: Sequence[Draft],
        lost: list[Draft],
        start: Callable[[], ThreadSearch],
        at: float,
        turns: _Turns,
    ) -> Stored | None:
        """Plan and send until nothing has changed in between.

        A change that others were faster than too often gets a turn of its own.
        """
        since = self._heads.get(line)
        began = time.monotonic()

        def checked(plan: Plan) -> Stored | None:
            """Do the work, if what was seen of the line is not lost."""
            if since is not None:
                plan.line(*line)
                family, generation = plan.generations.get(line, (None, 0))
                self._check_seen(line, family, generation, since, at)
            return work(plan)

        for tries in range(_TRIES):
            if turns.turn is None and tries >= _BEATEN_MAX:
                turns.take((time.monotonic() - began) / tries)
            search = start()
            try:
                plan, stored = self._plan(checked, search, at)
            except Stale:
                continue
            if plan.is_empty:
                self._confirm(stored, search.bucket, at)
                return stored
            self._register(search.bucket, at)
            # A thread that it makes may have come to be elsewhere meanwhile.
            if not all(self._claimed(name, search, at) for name in plan.created):
                continue
            reply = self._send_plan(plan, search.bucket, line, drafts, lost, at, turns.turn)
            if reply[0] == b"wait":
                turns.take((time.monotonic() - began) / (tries + 1))
                continue
            if reply[0] == b"done":
                turns.note_change()
                if not self._is_kept(plan, search, line, at):
                    continue
                self._note_plan(plan, line, stored, search.bucket, since)
                if reply[1] == b"1":
                    self._renew_aliases(plan.family_name, at)
                return stored
            found = self._lost_and_found(lost, at)
            if found is not None:
                return found
        raise StoreUnavailable("too many writers at once; try again")

    def _send_plan(
        self,
        plan: Plan,
        bucket: int,
        line: tuple[str, str],
        drafts: Sequence[Draft],
        lost: list[Draft],
        at: float,
        turn: _Turn | None,
    ) -> Any:
        args = plan.arguments(*line)
        if turn is not None:
            args[:1] = ["commit_in_turn", turn.token]
        # Each try has made a draft of its own: the last one is sent.
        draft: Draft | None = None
        if drafts:
            draft = drafts[-1]
        return self._sent(args, bucket, line[0], draft, lost, at)

    def _plan(
        self, work: Callable[[Plan], Stored | None], search: ThreadSearch, at: float
    ) -> tuple[Plan, Stored | None]:
        """Plan the work where its thread is, or would be."""
        nowhere: bytes | None = None
        while True:
            script = functools.partial(self._call, search.bucket, at)
            plan = Plan(script, search.bucket, self._life, search.thread_id)
            if nowhere is not None:
                if search.bucket == search.own and search.alias:
                    self._take_over(search, at)
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
                known = Known(bucket, state.raw, stored, labels=plan.labels(line[0]))
        self._heads.note(line, plan.family_name, state.generation, known, since, seq)

    def _sent(
        self, args: Sequence[Any], bucket: int, thread_id: str, draft: Draft | None, lost: list[Draft], at: float
    ) -> Any:
        """Send a change. If its answer is lost, send it again: it names what it saw, so it is never done twice."""
        name: str | None = None
        if draft is not None:
            name = draft.record.key.checkpoint_id
        trouble: Exception | None = None
        for _ in range(LOST_MAX):
            try:
                reply = self._call_once(bucket, at, args)
            except Lost as exc:
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

    def _lost_and_found(self, lost: Sequence[Draft], at: float) -> Stored | None:
        """Return the checkpoint of a call whose answer was lost, if it was done."""
        for draft in lost:
            loaded = self.load(*draft.record.key, objects=False, writes=False, at=at)
            if loaded is not None and loaded.stored.digest == record_digest(*pack_record(draft.record)):
                self._heads.doubt(draft.record.key[:2])
                self._confirm(loaded.stored, bucket_of_family(loaded.stored.family), at)
                return loaded.stored
        return None

    def _confirm(self, stored: Stored | None, bucket: int, at: float) -> None:
        """Nothing had to be done: see that replicas have what is there."""
        if self._replicas and stored is not None:
            try:
                self._call(bucket, at, "confirm", stored.family, writes=True)
            except StoreUnavailable as exc:
                raise CommitUnknown(stored.record.key.checkpoint_id, stored.record.key.thread_id) from exc

    def _renew_aliases(self, family: str, at: float) -> None:
        """Let aliases live on with their family. They live much longer than it: what fails now is done next time."""
        bucket = bucket_of_family(family)
        with contextlib.suppress(StoreError):
            for name in self._call(bucket, at, "get", "SMEMBERS", f"family:{family}:threads"):
                thread_id = name.decode()
                if bucket_of(thread_id) != bucket:
                    # A new word each time, by which whoever has read the alias before notices that it was
                    # renewed.
                    value = f"{bucket} {uuid.uuid4().hex}"
                    self._call(bucket_of(thread_id), at, "renew_alias", thread_id, value, self._life)

    def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None, at: float
    ) -> None:
        self._check_allowed(at)
        flat: list[Any] = []
        for write in writes:
            # Special writes, whose numbers are negative, replace one another; of others the first one counts.
            which = "first"
            if write.idx < 0:
                which = "last"
            flat += (which, *pack_write(key.checkpoint_id, write))
        packed = pack_objects(objects)
        rests_on: tuple[str, ...] = ("", "", "", "")
        if base is not None:
            rests_on = (*base.key, base.digest.hex())
        args = (key.namespace, key.checkpoint_id, self._life, *rests_on, len(packed), *packed, len(flat), *flat)
        try:
            found = self._ask(at, "writes", key.thread_id, *args, writes=True)
            if found is None or found[1][0] == b"missing":
                # They come before the first checkpoint of their line, which a plan makes.
                start = functools.partial(self._search, key.thread_id)
                work = functools.partial(apply_writes, key=key, writes=writes, objects=objects, base=base)
                self._planned_alone(work, key[:2], start, at)
                return
            reply = found[1]
            if base is not None and reply[0] == b"base":
                raise BaseGone(f"{base.key} is no longer stored as it was")
            if reply[1] == b"1":
                self._renew_aliases(reply[2].decode(), at)
        except Unsure as exc:
            raise CommitUnknown(key.checkpoint_id, key.thread_id, str(exc)) from exc

    def delete(
        self,
        thread_id: str,
        keys: Collection[Key] | None,
        before_step: int | None,
        spare: bool,
        operations: Collection[int],
        at: float,
    ) -> Deleted:
        self._check_allowed(at)
        try:
            return self._delete(thread_id, keys, before_step, spare, operations, at)
        except CheckpointCorrupted:
            if keys is not None or before_step is not None:
                raise
            return self._wipe(thread_id, at)

    def _wipe(self, thread_id: str, at: float) -> Deleted:
        """Delete a damaged thread, with whatever is found of it by looking through the names of all keys."""
        buckets = {bucket for bucket, has in self._everywhere(at, "has", thread_id) if has}
        count = 0
        families = set[str]()
        for bucket in buckets | {bucket_of(thread_id)}:
            keys = self._keys_like(bucket, f"thread:{_literally(escaped(thread_id))}:*", at)
            count += sum(b":item:" in key for key in keys)
            found = set[str]()
            own = self._call(bucket, at, "get", "HGET", f"thread:{escaped(thread_id)}:heads", "family")
            if own is not None:
                found.add(own.decode())
            for key in self._keys_like(bucket, "family:*:threads", at):
                name = key.removeprefix(self._base(bucket)).decode()
                if self._call(bucket, at, "get", "SISMEMBER", name, thread_id):
                    found.add(name.split(":")[1])
            self._call(bucket, at, "wipe", thread_id, len(found), *found, len(keys), *keys, writes=True)
            families |= found
        self._heads.forget_thread(thread_id)
        return Deleted(count, frozenset(families))

    def _keys_like(self, bucket: int, pattern: str, at: float) -> list[bytes]:
        """Return the keys of a bucket whose names match. It looks at all keys of the server."""
        base = self._base(bucket)
        cursor = b"0"
        found = set[bytes]()
        match = _literally(base.decode()).encode() + pattern.encode()
        with translated():
            while True:
                reply = self._link.send(base, (b"SCAN", cursor, b"MATCH", match, b"COUNT", b"1000"), at)
                if isinstance(reply, Exception):
                    raise reply
                cursor = reply[0]
                found.update(reply[1])
                if cursor == b"0":
                    return sorted(found)

    # -- checking: see `checking`

    def send_raw(self, bucket: int, command: str, key: str | bytes, *args: Any) -> Any:
        """Send a command about one key of a bucket, and return its answer; none of the scripts is asked."""
        at = time.monotonic() + self._link.timeout_seconds
        if isinstance(key, str):
            key = key.encode()
        return self._send(at, self._base(bucket) + key, command.encode(), *encoded(args))

    def buckets(self, at: float) -> Iterator[Bucket]:
        """Look at the names of all keys, and yield the buckets that they are in."""
        self._check_server(at)
        keys: dict[int, list[bytes]] = {}
        pattern = re.compile(re.escape(self._prefix) + rb"\{(\d+)\}:(.*)", re.DOTALL)
        match = _literally(self._prefix.decode()).encode() + b"{*"
        with translated():
            for page in self._link.scan(match, self._link.timeout_seconds):
                for key in page:
                    found = pattern.fullmatch(key)
                    if found:
                        keys.setdefault(int(found[1]), []).append(found[2])
        for bucket, names in sorted(keys.items()):
            yield Bucket(bucket, self.send_raw, sorted(set(names)), self._alias_of)

    def _alias_of(self, thread_id: str) -> bytes:
        return self.send_raw(bucket_of(thread_id), "GET", f"alias:{escaped(thread_id)}") or b""

    def every_name(self, at: float) -> list[str]:
        found: set[str] = set()
        for bucket in self.buckets(at):
            found |= bucket.names()
        return sorted(found)

    def problems(self, at: float) -> list[Problem]:
        found: list[Problem] = []
        for bucket in self.buckets(at):
            try:
                found += bucket.problems()
            except (StoreError, ValueError, TypeError) as exc:  # a key of another type than it should have
                found.append(Problem(Finding("row", f"a bucket cannot be read: {exc}", None, None, ()), (), 0))
        return found

    def mend(self, at: float, *, dry_run: bool) -> list[LostRow]:
        """Put right what can be, until nothing more is found, and return what went."""
        lost: list[LostRow] = []
        for _ in range(_MENDING_ROUNDS):
            done = 0
            for bucket in self.buckets(at):
                for problem in [*bucket.unreadable(), *bucket.problems()]:
                    for command in problem.fix:
                        kept = bucket.stored(command)
                        if kept is not None:
                            lost.append(kept._replace(thread_id=problem.finding.thread_id))
                        if not dry_run:
                            self.send_raw(problem.bucket, *command)
                            done += 1
                if not dry_run:
                    for thread_id in bucket.thread_ids():
                        # Each thread has the time of one call: a repair of a large store takes longer than
                        # that in all.
                        at = time.monotonic() + self._link.timeout_seconds
                        self._call(bucket.number, at, "mend", thread_id, writes=True)
            if not done:
                break
        self._heads.clear()
        return lost

    def stored_rows(self, keys: Sequence[Key], at: float) -> list[LostRow]:
        found: list[LostRow] = []
        if not keys:
            return found
        for bucket, held in self._everywhere(at, "has", keys[0].thread_id):
            if not held:
                continue
            for key in keys:
                item = self.send_raw(bucket, "GET", f"thread:{line_name(*key[:2])}:item:{key.checkpoint_id}")
                found.append(LostRow("a checkpoint", *key, stored=item))
        return found

    def _delete(
        self,
        thread_id: str,
        keys: Collection[Key] | None,
        before_step: int | None,
        spare: bool,
        operations: Collection[int],
        at: float,
    ) -> Deleted:
        found = self._ask(at, "index", thread_id)
        if found is None:
            return Deleted(0, frozenset())
        args: list[Any] = [int(spare), len(operations), *operations]
        is_whole = keys is None and before_step is None
        namespaces = [name.decode() for name in found[1][1][::2]]
        args.append(len(namespaces))
        for namespace in namespaces:
            ids = self._ids_to_delete(thread_id, namespace, keys, before_step, at)
            args += (namespace, int(is_whole), len(ids), *ids)
            self._heads.doubt((thread_id, namespace))
        # Read before: an alias that somebody gives meanwhile, to a new thread of that name, must stay.
        alias = None
        own = bucket_of(thread_id)
        if own != found[0]:
            alias = self._call(own, at, "get", "GET", f"alias:{escaped(thread_id)}")
        try:
            found = self._ask(at, "delete", thread_id, *args, once=True)
        except Unsure as exc:
            raise CommitUnknown(None, thread_id, str(exc)) from exc
        if found is None:
            return Deleted(0, frozenset())
        _, (_, count, family, left) = found
        if left != b"thread" and alias is not None:
            # An alias that leads nowhere does no harm.
            with contextlib.suppress(StoreError):
                self._call(own, at, "unalias", thread_id, alias)
        # Of a family of which nothing is left there is nothing to sweep.
        if not count or left == b"nothing":
            return Deleted(count, frozenset())
        return Deleted(count, frozenset({family.decode()}))

    def _ids_to_delete(
        self, thread_id: str, namespace: str, keys: Collection[Key] | None, before_step: int | None, at: float
    ) -> list[str]:
        """Return which checkpoints of a namespace are to go; without `keys` and `before_step` it goes whole."""
        if keys is not None:
            return [key.checkpoint_id for key in keys if key[:2] == (thread_id, namespace)]
        if before_step is not None:
            query = Query(thread_id=thread_id, namespace=namespace, step_max=before_step - 1, hidden="also")
            return [row.key.checkpoint_id for row in self._rows(query, at)]
        return []

    # -- copying: see `transaction.adopt`

    def adopt(self, part: Part, at: float) -> int:
        self._check_allowed(at)
        highest = 0
        family = self._family_of(part.thread_id, at)
        names = {stored.record.key.thread_id for stored in part.checkpoints}
        names.update(raw.thread_id for raw in part.threads)
        for name in names:
            # It may be in another bucket, where no plan looks.
            if self._family_of(name, at) not in (None, family):
                raise InvalidInput(f"thread {name!r} exists and is not of the family of {part.thread_id!r}")

        def work(plan: Plan) -> None:
            nonlocal highest
            highest = adopt(plan, part)

        self._take_over_planned(part, work, at)
        return highest

    def adopt_new(self, part: Part, at: float) -> None:
        self._check_allowed(at)
        self._take_over_planned(part, lambda plan: adopt_new(plan, [part]), at)

    def _take_over_planned(self, part: Part, work: Callable[[Plan], None], at: float) -> None:
        # Generations come from elsewhere: they may be lower than those seen here.
        taken_over = {part.thread_id, *(raw.thread_id for raw in part.threads)}
        for name in taken_over:
            self._heads.forget_thread(name)
        start = functools.partial(self._search, part.thread_id)
        try:
            self._planned_alone(work, (part.thread_id, ""), start, at)
        except Unsure as exc:
            raise CommitUnknown(None, part.thread_id, str(exc)) from exc
        finally:
            for name in taken_over:
                self._heads.forget_thread(name)

    # -- sweeping: see `sweeping`

    def sweep_start(
        self, family: str, without: Collection[Key], pretend: bool, at: float
    ) -> tuple[int, int, int, list[bytes]] | None:
        """Begin an epoch: what is sent again from now on is of it, and not removed."""
        names = [f"thread:{line_name(key[0], key[1])}:item:{key[2]}" for key in without]
        keys = [self._base(bucket_of_family(family)) + name.encode() for name in names]
        found = self._call(bucket_of_family(family), at, "roots", family, int(pretend), len(keys), *keys)
        if not found:
            return None
        epoch, removals, doomed, roots = found
        last_epoch = int(epoch)
        # What was stored up to the epoch before this sweep may go; one that only pretends has begun no epoch.
        if not pretend:
            last_epoch -= 1
        return int(removals), int(doomed), last_epoch, roots

    def links(self, family: str, wanted: Sequence[bytes], at: float) -> list[tuple[bytes, bytes, int]]:
        flat = self._call(bucket_of_family(family), at, "links", family, len(wanted), *wanted)
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def objects_after(
        self, family: str, last: bytes, limit: int, at: float
    ) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        """Return (hash, epoch, size); the server's cursor says from where to go on."""
        cursor, flat = self._call(bucket_of_family(family), at, "scan", family, last or b"0", limit)
        found = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        if cursor == b"0":
            return found, None
        return found, cursor

    def remove_objects(
        self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int, at: float
    ) -> int | None:
        flat = list(itertools.chain(*doomed))
        removals = self._call(bucket_of_family(family), at, "discard", family, expected_sweeps, len(flat), *flat)
        if not removals:
            return None
        return int(removals)

    def sweep_begin(self, family: str, ticket: int, at: float) -> None:
        self._call(bucket_of_family(family), at, "sweep", family, ticket)

    def sweep_end(self, family: str, live_bytes: int, doomed_bytes: int, ticket: int, at: float) -> None:
        self._call(bucket_of_family(family), at, "swept", family, live_bytes, doomed_bytes, ticket)


class _SweepDriver:
    """How a sweep gets at a family: each of its steps is a call of its own."""

    def __init__(self, driver: Driver, server: _Server, *, pretend: bool) -> None:
        self._driver = driver
        self._server = server
        self._pretend = pretend

    async def read(self, work: Callable[[Any], T]) -> T:
        return await self._driver.run(lambda at: work(_SweepRows(self._server, self._pretend, at)))

    async def write(self, work: Callable[[Any], T], thread_id: str) -> T:  # noqa: ARG002  # a family's, not a thread's
        return await self.read(work)


class _SweepRows:
    def __init__(self, server: _Server, pretend: bool, at: float) -> None:
        self.links = functools.partial(server.links, at=at)
        self.objects_after = functools.partial(server.objects_after, at=at)
        self.remove_objects = functools.partial(server.remove_objects, at=at)
        self.sweep_end = functools.partial(server.sweep_end, at=at)
        self.sweep_begin = functools.partial(server.sweep_begin, at=at)
        self.sweep_start = functools.partial(server.sweep_start, pretend=pretend, at=at)


def _noted(drafts: list[Draft], build: Callable[[Stored | None], Draft], head: Stored | None) -> Draft:
    drafts.append(build(head))
    return drafts[-1]


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _fence(draft: Draft, head: Stored) -> tuple[str, bytes] | None:
    """Return what a draft rests on besides the head: the field of another namespace's head, and what stands there.

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
    if not drafts:
        return None
    return drafts[-1].record.key.checkpoint_id


def _literally(text: str) -> str:
    """Return a text as a pattern of Redis that matches it alone."""
    return "".join("\\" + char if char in "*?[]^\\" else char for char in text)
