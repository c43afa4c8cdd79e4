"""Asking the script: the bucket that a thread is kept in, and calls to one bucket or to many."""

from __future__ import annotations

import logging
import secrets
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from everstep.errors import (
    CheckpointCorrupted,
    InvalidInput,
    StoreError,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.runtime import checks
from everstep.runtime.calls import tried_again
from everstep.stores.heads import Heads
from everstep.stores.protocol import Key, Stored
from everstep.stores.redis.items import bucket_of, escaped
from everstep.stores.redis.link import AnswerLost, Link, Unsure, translated
from everstep.stores.redis.plan import CommitPlan, Stale
from everstep.stores.transaction import not_of_family

logger = logging.getLogger("everstep")
T = TypeVar("T")

# The first that is released.
FORMAT_VERSION = b"11"

LOST_MAX = 3
"""So often a call is made whose answer was lost."""
# What is remembered of threads that are not kept in the bucket of their name: most are.
_ALIASES_MAX = 10_000


class ThreadSearch:
    """Where a thread may be kept: where it was last, in the bucket of its name, or where an alias there says."""

    def __init__(self, thread_id: str, known: OrderedDict[str, int]) -> None:
        self.thread_id = thread_id
        self.own = bucket_of(thread_id)
        self._known = known
        self.bucket = known.get(thread_id, self.own)
        self.alias = b""
        self._is_last = False

    def go_on(self, alias: bytes) -> bool:
        """Go to the next bucket, after the thread was not found in this one; False: it is nowhere.

        A thread that is nowhere would be made in the bucket where the search ended.
        """
        is_own = self.bucket == self.own
        if is_own:
            self.alias = alias
        else:
            self._known.pop(self.thread_id, None)
        if self._is_last:
            return False
        self._is_last = is_own
        if is_own and alias:
            self.bucket = bucket_of_alias(alias)
        else:
            self.bucket = self.own
        if self.bucket != self.own:
            self._known[self.thread_id] = self.bucket
            if len(self._known) > _ALIASES_MAX:
                self._known.popitem(last=False)
        return not is_own or self.bucket != self.own

    def end_at(self, bucket: int) -> None:
        """The thread is nowhere, and would be made here."""
        self.bucket = bucket
        self._is_last = True


class KnownHead(NamedTuple):
    """A head as this process saw it last."""

    bucket: int
    raw: bytes
    head: Stored
    is_fresh: bool = True
    """This process has not put after it yet: the first put ends a time to live that others gave the family."""
    labels: frozenset[int] = frozenset()
    """What the thread can be found by besides what its head has, as far as this process knows."""


class _Deadline(threading.local):
    """When what a thread is doing must be done, as a time of `time.monotonic`."""

    at = 0.0


class Calls:
    """Calls of the script, blocking: each is part of some work that has a deadline, see `do`."""

    def __init__(self, link: Link, prefix: str, life_ms: int, wait_replicas: int) -> None:
        self._link = link
        self._prefix = prefix.encode()
        self._life = life_ms
        self._replicas = wait_replicas
        self._heads: Heads[KnownHead] = Heads()
        self._aliases: OrderedDict[str, int] = OrderedDict()
        self._registered: set[int] = set()
        self._checked = self._is_allowed = False
        self._deadline = _Deadline()

    def do(self, work: Callable[[Self], T], deadline: float) -> T:
        """Return what some work does with the server, on this thread: all that it asks for must be done by then."""
        before = self._deadline.at
        self._deadline.at = deadline
        try:
            return work(self)
        finally:
            self._deadline.at = before

    @property
    def address(self) -> str:
        return self._link.address

    @property
    def is_closed(self) -> bool:
        return self._link.is_closed

    def close(self) -> None:
        self._link.close()

    # -- calls

    def _base(self, bucket: int) -> bytes:
        return b"%b{%d}:" % (self._prefix, bucket)

    def _check_server(self) -> None:
        """Once per process: see that the server can be used."""
        if self._checked:
            return
        with translated():
            self._link.check_server(self._base(0), self._deadline.at)
        found = self._send(self._prefix + b"format", b"GET")
        if found == b"1":
            raise StoreMismatch(
                f"the keys under {self._prefix.decode()!r} were made by a version before the first release, which are "
                "not read any more; give the store another key_prefix"
            )
        if found not in (None, FORMAT_VERSION):
            raise StoreMismatch(
                f"the keys under {self._prefix.decode()!r} have format {checks.shown(found)}, this Everstep knows "
                f"{FORMAT_VERSION.decode()}; upgrade everstep"
            )
        self._checked = True
        logger.info("opened %s", self.address)

    def _send(self, key: bytes, command: bytes, *args: Any, writes: bool = False) -> Any:
        """Send a command about a key, past the scripts, and return its answer; an error comes out as ours."""
        with translated():
            reply = self._link.send(key, (command, key, *args), self._deadline.at, writes=writes)
            if isinstance(reply, Exception):
                raise reply
        return reply

    def _call(self, bucket: int, *args: Any, writes: bool = False) -> Any:
        """Call the script. If its answer was lost it is called again; a change may then have been made: Unsure."""
        trouble: AnswerLost | None = None
        for _ in range(LOST_MAX):
            try:
                return self._call_once(bucket, args, writes=writes)
            except AnswerLost as exc:
                trouble = exc
                tried_again("an answer of Redis was lost")
            except StoreError as exc:
                if writes and trouble is not None:
                    raise Unsure("its answer was lost") from exc
                raise
        if writes:
            raise Unsure("its answer was lost") from trouble
        raise StoreUnavailable("Redis did not answer in time; try again") from trouble

    def _call_once(self, bucket: int, args: Sequence[Any], *, writes: bool = True) -> Any:
        """Call the script; if the answer was lost, AnswerLost comes out."""
        self._check_server()
        with translated(but=(AnswerLost,)):
            try:
                return self._link.run(
                    self._base(bucket), [args[0], *encoded(args[1:])], self._deadline.at, writes=writes
                )
            except AnswerLost:
                # After a failover to a replica that was behind, the registration may be gone.
                self._registered.clear()
                raise

    def _everywhere(self, verb: str, *args: Any) -> Iterator[tuple[int, Any]]:
        """Call the script on every bucket in use."""
        buckets = self._buckets()
        yield from zip(buckets, self._call_many(verb, [(bucket, args) for bucket in buckets]), strict=True)

    def _in_each(self, buckets: Sequence[int], verb: str, *args: Any) -> Iterator[tuple[int, Any]]:
        """Call a script that has a twin for many buckets on these."""
        self._check_server()
        with translated():
            replies = self._link.run_on_each(
                verb, [self._base(bucket) for bucket in buckets], encoded(args), self._deadline.at
            )
        yield from zip(buckets, self._answered(verb, [(bucket, args) for bucket in buckets], replies), strict=True)

    def _buckets(self) -> list[int]:
        self._check_server()
        members = self._send(self._prefix + b"buckets", b"SMEMBERS")
        return sorted(int(member) for member in members)

    def _call_many(self, verb: str, calls: Sequence[tuple[int, Sequence[Any]]]) -> Iterator[Any]:
        """Call a script on buckets, each with its arguments, in few round trips. No change is made this way."""
        self._check_server()
        with translated():
            sent = [(self._base(bucket), encoded(args)) for bucket, args in calls]
            replies = self._link.run_many(verb, sent, self._deadline.at)
        yield from self._answered(verb, calls, replies)

    def _answered(self, verb: str, calls: Sequence[tuple[int, Sequence[Any]]], replies: Sequence[Any]) -> Iterator[Any]:
        """Yield replies; where there is an error instead, the bucket is asked by itself."""
        if any(isinstance(reply, AnswerLost) for reply in replies):
            self._registered.clear()
        for (bucket, args), reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                yield self._call(bucket, verb, *args)
            else:
                yield reply

    def _ask(
        self, verb: str, thread_id: str, *args: Any, writes: bool = False, once: bool = False
    ) -> tuple[int, Any] | None:
        """Call a script about a thread where that is kept; None: there is no such thread."""
        try:
            return self._ask_unnamed(verb, thread_id, *args, writes=writes, once=once)
        except CheckpointCorrupted as exc:
            raise exc.located(thread_id, None) from exc

    def _ask_unnamed(self, verb: str, thread_id: str, *args: Any, writes: bool, once: bool) -> tuple[int, Any] | None:
        search = self._search(thread_id)
        while True:
            if once:
                # What was done cannot be done again, so that a lost answer could not be had by asking once more.
                try:
                    reply = self._call_once(search.bucket, (verb, thread_id, *args))
                except AnswerLost as exc:
                    raise Unsure("its answer was lost") from exc
            else:
                reply = self._call(search.bucket, verb, thread_id, *args, writes=writes)
            if reply[0] != b"absent":
                return search.bucket, reply
            if not search.go_on(reply[1]):
                return None

    def _ask_many(self, verb: str, calls: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        """Call a script about threads where those are kept, in few round trips; None: there is no such thread.

        Each call names its thread first.
        """
        searches = [self._search(thread_id) for thread_id, *_ in calls]
        found: list[Any] = [None] * len(calls)
        pending = list(range(len(calls)))
        while pending:
            replies = self._call_many(verb, [(searches[n].bucket, calls[n]) for n in pending])
            for n in pending:
                try:
                    found[n] = next(replies)
                except CheckpointCorrupted as exc:
                    raise exc.located(calls[n][0], None) from exc
            # Those that were not found are looked for where they may be besides; None: there is no such thread.
            absent = [n for n in pending if found[n][0] == b"absent"]
            pending = [n for n in absent if searches[n].go_on(found[n][1])]
            for n in set(absent) - set(pending):
                found[n] = None
        return found

    # -- where a thread is kept

    def _search(self, thread_id: str) -> ThreadSearch:
        return ThreadSearch(thread_id, self._aliases)

    def _search_beside(self, origin: Key, thread_id: str) -> ThreadSearch:
        """Return where a branch of this checkpoint is or will be."""
        search = self._search(thread_id)
        found = self._ask("checkpoint", *origin)
        if found is not None:
            while (reply := self._call(search.bucket, "look", thread_id, ""))[0] == b"absent":
                if not search.go_on(reply[1]):
                    search.end_at(found[0])
                    break
            if search.bucket != found[0]:
                raise not_of_family(thread_id)
        return search

    def _claimed(self, thread_id: str, home: ThreadSearch) -> bool:
        """Note where a thread that a plan makes will be kept: that may make more than the one it is about."""
        if thread_id == home.thread_id:
            return self._claim(home)
        search = self._search(thread_id)
        while (reply := self._call(search.bucket, "look", thread_id, ""))[0] == b"absent":
            if not search.go_on(reply[1]):
                search.end_at(home.bucket)
                return self._claim(search)
        return False

    def _claim(self, search: ThreadSearch) -> bool:
        """Note where a thread will be kept, just before it is; False: it has come to be elsewhere."""
        if search.bucket == search.own:
            return True
        return self._set_alias(search, search.bucket)

    def _set_alias(self, search: ThreadSearch, bucket: int) -> bool:
        """Give a thread's alias a new word, which makes it ours; False: it is not as it was found."""
        # The random part tells one claim from another that leads to the same bucket.
        value = f"{bucket} {uuid.uuid4().hex}".encode()
        reply = self._call(search.own, "alias", search.thread_id, value, search.alias, self._life, writes=True)
        if reply[0] != b"done":
            return False
        search.alias = value
        return True

    def _take_over(self, search: ThreadSearch) -> None:
        """Before a thread is made in the bucket of its name, though an alias leads elsewhere.

        Who left it may be about to make the thread there. With a new word in the alias they find out (`_is_kept`); if
        they were first, the thread is there.
        """
        bucket = bucket_of_alias(search.alias)
        if not self._set_alias(search, bucket):
            raise Stale
        if self._call(bucket, "look", search.thread_id, "")[0] == b"found":
            raise not_of_family(search.thread_id)

    def _is_kept(self, plan: CommitPlan, search: ThreadSearch, line: tuple[str, str]) -> bool:
        """Whether the alias of a thread that was just made still leads to it; if not, the thread is taken back."""
        if line[0] not in plan.created or search.bucket == search.own:
            return True
        raw = b""
        state = plan.state(*line)
        if state is not None:
            raw = state.raw
        try:
            if self._call(search.own, "get", "GET", f"alias:{escaped(line[0])}") == search.alias:
                return True
            return bool(self._call(search.bucket, "retract", *line, raw)[0] != b"done")
        except StoreError:  # it is made; that this could not be asked does not unmake it
            return True

    def _register(self, bucket: int) -> None:
        """Note that a bucket is in use, before it is."""
        if bucket in self._registered:
            return
        # Each is set only if it is not there yet, so that several processes may do it at once.
        self._send(self._prefix + b"format", b"SET", FORMAT_VERSION, b"NX", writes=True)
        self._send(self._prefix + b"identity", b"SET", secrets.token_bytes(16), b"NX", writes=True)
        self._send(self._prefix + b"buckets", b"SADD", bucket, writes=True)
        self._registered.add(bucket)

    def _check_allowed(self) -> None:
        """Once per process: refuse to begin what the server would break off in the middle of a script."""
        if self._is_allowed:
            return
        denied = self._call(0, "denied")
        if denied:
            names = ", ".join(name.decode() for name in denied)
            raise StoreReadOnly(f"Redis does not let this user write: {names} under {self._prefix.decode()!r}")
        self._is_allowed = True


def bucket_of_alias(alias: bytes) -> int:
    """Return the bucket that an alias leads to."""
    try:
        return int(alias.split(b" ", 1)[0])
    except ValueError:
        raise CheckpointCorrupted(f"the alias of a thread cannot be read: {alias[:100]!r}") from None


def bucket_of_family(family: str) -> int:
    """Return the bucket that a family is kept in, which its name begins with."""
    try:
        return int(family.split(".", 1)[0])
    except ValueError:
        raise InvalidInput(f"there is no family {family!r} in a Redis store") from None


def encoded(args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a script as the driver takes them. Names may hold what UTF-8 does not."""
    return [arg.encode("utf-8", "surrogatepass") if isinstance(arg, str) else arg for arg in args]
