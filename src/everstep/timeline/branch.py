"""Branching: a new thread that begins at a checkpoint. Nothing is copied, its first checkpoint names the same root."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from everstep.errors import BaseGone, InvalidInput, StoreUnavailable
from everstep.history import operation_log
from everstep.history.adapter import adapter_of
from everstep.repository.new_names import new_token, under_new_name
from everstep.repository.step import checkpoint_id, new_record, run_fields
from everstep.runtime import checks
from everstep.stores.abilities import Origin
from everstep.stores.protocol import BaseRef, Change, Draft, Key, Record, RememberedOrigin, SharedState, Stored
from everstep.timeline.workspace import Workspace
from everstep.types import RUN_KIND

logger = logging.getLogger("everstep")

_BRANCH_ID = re.compile(r"(.*)-branch-(.+)-[0-9a-f]{16}", re.DOTALL)

# How often a branch is begun anew from a checkpoint that others replace meanwhile.
_TRIES = 10


class Branch(NamedTuple):
    """A branch that was begun."""

    thread_id: str
    origin: Origin | None
    """Where it begins, as it is from now on; None: that must be read again."""


class _Names:
    """The names of a new branch and of its first checkpoint, as far as they are left to chance."""

    def __init__(self, source: str, name: str) -> None:
        """`source` is the thread that it comes from."""
        self.source = source
        self._name = name
        self.rename()

    def rename(self) -> None:
        """Make others: these are in use already."""
        self.thread_id = branch_id(self.source, self._name)
        self._first_id: str | None = None

    def first_id(self) -> str:
        """Return the id of its first checkpoint. An adapter makes ids of its own, and asks for none here."""
        if self._first_id is None:
            self._first_id = checkpoint_id(self.thread_id, 0)
        return self._first_id


async def branch(
    work: Workspace, remembered: Origin | None, find: Callable[[], Awaitable[Origin]], name: str, effects: str
) -> Branch:
    """Start a thread at a checkpoint that `find` reads; one that is `remembered` from earlier need not be read."""
    origin = remembered or await find()
    names = _Names(origin.stored.record.key.thread_id, name)
    for _ in range(_TRIES):
        begin = partial(_branch, work, origin, names, name, effects, is_remembered=origin is remembered)
        try:
            made = await under_new_name(begin, names.rename)
        except BaseGone:
            # It was replaced meanwhile: begin with what is there now.
            origin = await find()
            if origin.stored.record.key.thread_id != names.source:
                names = _Names(origin.stored.record.key.thread_id, name)
        else:
            log_branch(made.thread_id, origin.stored.record.key)
            return made
    at = origin.stored.record.key.checkpoint_id
    raise StoreUnavailable(f"checkpoint {at!r} changes faster than a branch begins; try again")


async def _branch(
    work: Workspace, found: Origin, names: _Names, name: str, effects: str, *, is_remembered: bool
) -> Branch:
    origin = found.stored
    source = origin.record.key
    thread_id = names.thread_id
    adapter = adapter_of(origin.record.kind)
    since = None
    if adapter is not None:
        origin, drafts, writes = await adapter.beginning(work.repository, origin, thread_id, name)
        drafts = [_with_effects(drafts[0], effects), *drafts[1:]]
        # An adapter may add namespaces to the branch later, and undo takes them away too.
        since = 0
    else:
        drafts = [_first_of_branch(origin, thread_id, names.first_id(), name, effects)]
        writes = []
    namespaces = [draft.record.key.namespace for draft in drafts]
    undo = operation_log.Undo(thread_id, dict.fromkeys(namespaces), [], dict.fromkeys(namespaces, 0), since=since)
    details = {"checkpoint_id": source.checkpoint_id, "thread_id": thread_id, "name": name}
    stored = await work.store.commit(
        Change(
            thread_id=thread_id,
            namespace=namespaces[0],
            build=lambda _: drafts[0],
            fresh=True,
            origin=origin.record.key,
            shared_states={source.thread_id: SharedState(origin.place, origin.record.root)},
            other_namespaces=drafts[1:],
            writes=writes,
            log=operation_log.entry("branch", details, undo, found.top, origin.seq),
            log_thread=source.thread_id,
            remembered=RememberedOrigin(origin.place, found.top) if is_remembered else None,
        )
    )
    # The checkpoint that a branch begins with is protected from now on, and a plan may hold it.
    work.keeper.forget(source.thread_id)
    if adapter is not None or stored is None or not stored.entry:
        return Branch(thread_id, None)
    return Branch(thread_id, Origin(origin, stored.entry))


def log_branch(made: str, source: Key) -> None:
    """Tell that a branch was begun."""
    logger.info("thread %r begins at %s of thread %r", made, source.checkpoint_id, source.thread_id)


def branch_id(thread_id: str, name: str) -> str:
    """Return the id of a new branch."""
    made = f"{thread_id}-branch-{name}-{new_token()}"
    if len(made.encode()) > checks.THREAD_ID_BYTES_MAX:
        raise InvalidInput(
            f"the branch's thread id, made of its origin's id and its name, would be {len(made.encode()):,} bytes; "
            f"the limit is {checks.THREAD_ID_BYTES_MAX:,}: choose a shorter name, or branch nearer the root"
        )
    return made


def branch_name(thread_id: str) -> str | None:
    """Return the name that a branch was given, from the id that `branch_id` made; None of any other thread."""
    found = _BRANCH_ID.fullmatch(thread_id)
    if found is None:
        return None
    return found[2]


def branch_ref(thread_id: str) -> str | None:
    """Return the id of a branch as people write it, `trip@cheap`; None of any other thread."""
    found = _BRANCH_ID.fullmatch(thread_id)
    if found is None:
        return None
    return f"{found[1]}@{found[2]}"


def _first_of_branch(origin: Stored, thread_id: str, first_id: str, name: str, effects: str) -> Draft:
    source = origin.record.key
    record = new_record(
        Key(thread_id, source.namespace, first_id),
        0,
        (source,),
        tags=("branch", name),
        summary=f"Branch '{name}' from {source.checkpoint_id}",
        next_node=origin.record.next_node,
        **_fields(origin.record, effects),
    )
    root = origin.record.root
    record = record._replace(children=root.children, body=root.body, sizes=root.sizes, repeats=origin.record.repeats)
    # The branch sends no objects: the store checks that its origin, which reaches all of them, is still
    # there.
    return Draft(record, (), (BaseRef(source, origin.digest),))


def _with_effects(draft: Draft, effects: str) -> Draft:
    """Return the first checkpoint of a branch with what it may do; what its origin may is no part of it."""
    record = draft.record
    metadata = dict(record.metadata)
    # A branch of a branch that may repeat effects may not do so by itself.
    metadata.pop("run_effects", None)
    if effects == "allow":
        metadata["run_effects"] = effects
    return draft._replace(record=record._replace(metadata=metadata))


def _fields(origin: Record, effects: str) -> dict[str, Any]:
    """Return the kind and the metadata of the first checkpoint. A branch of a durable run waits to be taken up."""
    fields = run_fields(origin)
    if fields.get("kind") == RUN_KIND:
        fields["metadata"] = {**fields["metadata"], "run_status": "paused", "run_effects": effects}
    return fields
