"""Who runs a thread: one record in a namespace of its own of the thread, and its claim.

A claim is a lease: `until` is renewed while the task runs. The head of the namespace is compared and swapped, and the
record before goes in the same commit, so that there is one record, and the claim's own. Every checkpoint of the run is
committed behind it, as behind a fence: the store refuses what comes after a takeover, whatever clocks say.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everstep.errors import HeadMoved, LeaseHeld, LeaseLost
from everstep.repository.new_names import new_token
from everstep.repository.repository import Repository
from everstep.repository.step import new_record
from everstep.repository.turns import BEATEN_MAX, overtaken
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import BaseRef, Key, Query, Record, Store, Stored
from everstep.types import TASK_NAMESPACE, utc_now

logger = logging.getLogger("everstep")

RETURNED = "returned"
FAILED = "failed"
"""How the last run ended; "" if it did not."""

_RENEWALS_PER_LEASE = 3
_STRAY_MAX = 16  # records of older claims that are looked for


class Owner(NamedTuple):
    """A process, so that it can be told from a later one with its number, and one run in it."""

    host: str
    pid: int
    machine: str
    """The boot and the namespace of process numbers; "" where there is no telling."""
    started: str
    run: str


def this_process() -> Owner:
    """Return this process, for a new run."""
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, _machine(), _own_start(pid), secrets.token_hex(8))


@functools.lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    """Return when this process was started; "" if that cannot be told. By its number: a fork has another."""
    started = _started(pid) if _machine() else None
    return started or ""


def is_dead(owner: Owner) -> bool:
    """Whether the process has ended for certain: it was on this machine, and is not there any more."""
    if not owner.machine or owner.machine != _machine():
        return False
    started = _started(owner.pid)
    return started is not None and started != owner.started


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return when a process was started, in ticks since boot; "" if it has ended; None if that cannot be told."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before may hold anything
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)  # a process of another user may be hidden from /proc
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return None


class Task(NamedTuple):
    """What is kept of a task besides its checkpoints."""

    created_at: str
    owner: Owner | None = None
    until: float = 0.0
    """Seconds since 1970 by the clock of the store: so long is it the owner's."""
    ended: str = ""
    error: Mapping[str, Any] | None = None
    """The last failure: `type`, `text`, and the `checkpoint_id` it happened after."""
    input: Mapping[str, Any] | None = None
    """What it is to begin with, as long as there is no checkpoint: `form` and `value`, or `refused`: why not."""
    is_task: bool = True
    """Whether it is a task of a TaskManager, and not only a thread that `send` runs."""
    last: str | None = None
    """The checkpoint at which the last run came to an end of its own; None if something else ended it."""
    seen_at: float = 0.0
    """When it was looked at, by the clock of the store. Not stored."""

    @property
    def runs(self) -> bool:
        """Whether somebody ran it when it was looked at, as far as can be told."""
        return self.owner is not None and self.until > self.seen_at and not is_dead(self.owner)


class Found(NamedTuple):
    """A task as it is stored."""

    task: Task
    stored: Stored


class Claims:
    """The records of tasks over one face of a store. `held` and `lost` are what its users call these errors."""

    def __init__(
        self, repository: Repository, held: type[LeaseHeld] = LeaseHeld, lost: type[LeaseLost] = LeaseLost
    ) -> None:
        self.repository = repository
        self.held = held
        self.lost = lost
        self._store = repository.store

    def over(self, repository: Repository) -> Claims:
        """Return the same over another face of the store."""
        return Claims(repository, self.held, self.lost)

    async def find(self, task_id: str) -> Found | None:
        """Return the record of a task, without its input."""
        loaded = await self._store.read(task_id, TASK_NAMESPACE)
        if loaded is None:
            return None
        task = _task(loaded.stored.record)
        if task.owner is not None:
            task = task._replace(seen_at=await self._store.clock())
        return Found(task, loaded.stored)

    async def given(self, found: Found) -> Mapping[str, Any] | None:
        """Return the input that is kept with the record."""
        loaded = await self.repository.load(*found.stored.record.key)
        return loaded[1][1].get("input") if loaded is not None else None

    async def take(
        self,
        task_id: str,
        found: Found | None,
        lease_seconds: float,
        given: Any = None,
        *,
        is_task: bool = True,
    ) -> Claim:
        """Claim a task: a new one (None), or one as it was found. HeadMoved if it is not so any more."""
        if found is not None and found.task.runs and found.task.owner is not None:
            raise self.held(task_id, found.task.owner.host, found.task.owner.pid)
        before: Stored | None = None
        task = Task(utc_now(), input=given, is_task=is_task)
        if found is not None:
            before = found.stored
            task = await self._taken_over(found, is_task=is_task)
        task = task._replace(owner=this_process(), until=await self._store.clock() + lease_seconds)
        stored = await self.swap(task_id, task, before)
        if found is not None and found.task.owner is not None:
            logger.info("task %r is taken over from %s", task_id, found.task.owner)
        await self._remove_older(task_id, stored)
        return Claim(task_id, task, stored, lease_seconds, self)

    async def _taken_over(self, found: Found, *, is_task: bool) -> Task:
        """Return a task as it is when somebody takes it up again."""
        task = found.task
        if task.owner is not None:  # its run was cut off: how an earlier one ended says nothing any more
            task = task._replace(ended="")
        kept = await self.given(found) if task.is_task else None  # a turn keeps none
        return task._replace(input=kept, is_task=is_task or task.is_task)

    async def _remove_older(self, task_id: str, stored: Stored) -> None:
        """Delete older records of a claim. Mostly there are none: a record goes with the next one.

        What stayed would be a fence for its old owner.
        """
        # Those of claims have the greatest ids of the namespace, so that the effects of a run are not listed with them.
        query = Query(thread_id=task_id, namespace=TASK_NAMESPACE, hidden="also", order="id", limit=_STRAY_MAX)
        older: list[Key] = []
        for other in await self._store.list_checkpoints(query):
            if other.seq < stored.seq and not other.record.kind:
                older.append(other.record.key)
        if older:
            await self._store.delete(task_id, keys=older)

    async def swap(self, task_id: str, task: Task, before: Stored | None) -> Stored:
        """Put a record in the place of another, or (None) where there is none; HeadMoved if that is not so."""
        token = new_token()

        def make_new_id() -> None:
            nonlocal token
            token = new_token()

        return await self.repository.save(
            task_id,
            ([], {"input": dict(task.input)} if task.input is not None else {}, {}),
            lambda head: _record(task_id, task, head, token),
            namespace=TASK_NAMESPACE,
            expect=before.record.key.checkpoint_id if before is not None else None,
            prune=[before.seq] if before is not None else [],
            head=before,
            make_new_id=make_new_id,
        )


class Claim:
    """A task that this process runs: renewed by a thread until it is let go, and a fence around what the run puts."""

    def __init__(self, task_id: str, task: Task, stored: Stored, lease_seconds: float, claims: Claims) -> None:
        self.task_id = task_id
        self.task = task
        self.epoch = stored.record.step
        """Greater than that of every claim of the thread before."""
        self._stored = stored
        self._lease = lease_seconds
        self._claims = claims
        repository = claims.repository
        self._blocking = claims.over(repository.over(repository.store.blocking))
        self._ended = threading.Event()
        self._lost = False
        self._pid = os.getpid()

    # -- as a fence

    @property
    def thread_id(self) -> str:
        """The thread that is claimed."""
        return self.task_id

    @property
    def base(self) -> BaseRef:
        """Where the claim stands now."""
        if self._lost or os.getpid() != self._pid:
            raise self._claims.lost(self.task_id)
        return BaseRef(self._stored.record.key, self._stored.digest)

    async def find(self, store: Store) -> None:
        """Look where it stands now; LeaseLost if it is not this run's any more."""
        loaded = await store.read(self.task_id, TASK_NAMESPACE)
        if loaded is None or _task(loaded.stored.record).owner != self.task.owner or os.getpid() != self._pid:
            self._lost = True
            raise self._claims.lost(self.task_id)
        self._stored = loaded.stored

    # -- as a lease

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease meanwhile."""
        # A thread on both faces: an event loop may be busy for longer than a lease.
        thread = threading.Thread(target=self._renew, name=f"everstep-claim-{self.task_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()

    def _renew(self) -> None:
        while not self._ended.wait(self._lease / _RENEWALS_PER_LEASE):
            try:
                now = run_to_end(self._blocking._store.clock())
                task = self.task._replace(until=now + self._lease)
                self._stored = run_to_end(self._swapped(self._blocking, task))
            except LeaseLost:
                if self._ended.is_set():
                    return
                logger.warning("task %r was taken over while this process was not renewing its claim", self.task_id)
                return
            except Exception:  # tried again before the lease runs out, and nothing is lost if it does
                if not self._ended.is_set():
                    logger.warning("the claim of task %r could not be renewed", self.task_id, exc_info=True)

    async def release(
        self, ended: str, error: Mapping[str, Any] | None, *, begun: bool, last: str | None = None
    ) -> None:
        """Let the task go: it may be run by others from now on. LeaseLost if it is."""
        task = self.task._replace(owner=None, until=0.0, ended=ended, error=error, last=last)
        # Where the record is from now on is not remembered: a renewal on its way must not take it for the claim's own.
        await self._swapped(self._claims, task._replace(input=None) if begun else task)

    async def give_back(self) -> None:
        """Let the thread go as it was before, and leave nothing where there is nothing else. LeaseLost as above."""
        task = self.task._replace(owner=None, until=0.0)
        stored = await self._swapped(self._claims, task)
        is_empty = await self._claims._store.read(self.task_id) is None
        if is_empty and not task.is_task and task.input is None:
            # By its name: if somebody has claimed the thread meanwhile, that record is another one, and stays.
            await self._claims._store.delete(self.task_id, keys=[stored.record.key])

    async def _swapped(self, claims: Claims, task: Task) -> Stored:
        """Put another record in the place of this claim's, wherever that is by now, and return it."""
        for _ in range(BEATEN_MAX):
            try:
                return await claims.swap(self.task_id, task, self._stored)
            except HeadMoved:
                await self.find(claims._store)
        raise overtaken("a renewal of the claim", self.task_id)


def _record(task_id: str, task: Task, head: Stored | None, token: str) -> Record:
    # Where nothing is left of earlier claims their numbers are not known. The time is greater than all of them.
    step = head.record.step + 1 if head is not None else int(time.time() * 1000)
    kept = {
        "created_at": task.created_at,
        "owner": list(task.owner) if task.owner is not None else None,
        "until": task.until,
        "ended": task.ended,
        "error": dict(task.error) if task.error is not None else None,
        "is_task": task.is_task,
        "last": task.last,
    }
    return new_record(
        Key(task_id, TASK_NAMESPACE, f"!task-{step}-{token}"),  # less than the ids of a graph
        step,
        (head.record.key,) if head is not None else (),
        summary=f"{'Task' if task.is_task else 'Turn'}: {'running' if task.owner else task.ended or 'stopped'}",
        metadata={"task": kept},
    )


def _task(record: Record) -> Task:
    kept = record.metadata["task"]
    owner = Owner(*kept["owner"]) if kept["owner"] is not None else None
    return Task(
        created_at=kept["created_at"],
        owner=owner,
        until=kept["until"],
        ended=kept["ended"],
        error=kept["error"],
        # Records of older versions have no more than the fields above.
        is_task=kept.get("is_task", True),
        last=kept.get("last"),
    )
