"""References: short texts that mean a checkpoint. One language for Python, the command line and the page.

    trip, trip@          the head                       trip@551fc2     the beginning of an id, or of its last part
    trip~3, trip@~3      three parents back             trip@milestone  the newest with that tag
    trip#42              the newest of step 42          trip@{2026-11-15T10:00}  the newest that is not later
    trip@cheap           the head of a branch with that name

A whole checkpoint id stands for itself, and `~3` may follow anything. Inside a known thread its name is left out. Where
none is known, `@`, `@~3`, `#42`, `@{...}`, the name of a branch, a tag and the beginning of an id mean the thread that
was active last; the beginning of an id that names its thread means that one.

Names of threads may hold any character, these signs included: so the whole text is tried as a thread, then as an id,
and then it is split at the last sign whose left part is a thread.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from everstep.errors import AmbiguousCheckpoint, CheckpointNotFound, InvalidInput
from everstep.history.adapter import described
from everstep.history.given_tags import NO_CHANGES
from everstep.reports import Reference
from everstep.runtime import checks
from everstep.stores.protocol import Key, Place, Query, Search, Store, Stored, Thread
from everstep.timeline.branch import branch_name, branch_ref
from everstep.timeline.labels import said_of
from everstep.timeline.tags import changes_of
from everstep.types import TASK_NAMESPACE

_PAGE = 1000
# A text of nothing but signs would otherwise be tried at every one of them, and each try is a read.
_SPLITS_MAX = 64
_REF_BYTES_MAX = 8192
# For a suggestion only: the names that were active last are the likeliest.
_SIMILAR_AMONG = 500
_CANDIDATES_MAX = 5

_SIGNS = re.compile(r"[@#~]")
_STEP = re.compile(r"#(-?[0-9]{1,18})")
_BACK = re.compile(r"~([0-9]{0,18})")
_TIME = re.compile(r"\{(.*)\}", re.DOTALL)
_OWN_ID = "ckpt-"
# One of these that is not found is gone: to look for what begins so would read a whole thread for nothing.
_WHOLE_ID = re.compile(r"ckpt-.*-[0-9]+-[0-9a-f]{16}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)


async def resolve(store: Store, ref: str, thread_id: str | None = None) -> Reference:
    """Return the checkpoint that `ref` means; with `thread_id` the thread is known and its name may be left out."""
    checks.text(ref, "ref", _REF_BYTES_MAX)
    if thread_id is None:
        found = await _anywhere(store, ref) or await _in_thread_not_named(store, ref)
        if found is None:
            raise await _no_thread(store, ref)
        return _reference(found)
    thread = await _thread(store, thread_id)
    if thread is None:
        raise await _no_thread(store, thread_id)
    inside = ref
    rest = ref.removeprefix(thread_id)
    if rest != ref and _SIGNS.match(rest) is not None:
        # With its name a reference is whole. To look for all of it among tags and ids would read the whole thread.
        inside = rest
    try:
        return _reference(await _inside(store, thread, inside))
    except CheckpointNotFound as exc:
        try:
            found = await _anywhere(store, ref)
        except CheckpointNotFound:
            raise exc from None
        if found is None:
            raise
        return _reference(found)


async def _anywhere(store: Store, ref: str) -> Stored | None:
    """Return the checkpoint that a whole reference means, one with the name of its thread; None if there is no such."""
    if not ref:
        raise InvalidInput("the reference is empty; name a thread, as in 'trip', or a checkpoint, as in 'trip#42'")
    thread = await _thread(store, ref)
    if thread is not None:
        return await _head(store, thread)
    found = await _by_whole_id(store, ref, None)
    if found is not None:
        return found
    missing: CheckpointNotFound | None = None
    for name, rest in _splits(ref):
        thread = await _thread(store, name)
        if thread is None:
            continue
        try:
            return await _inside(store, thread, rest)
        except CheckpointNotFound as exc:
            # The first one counts: it is about the longest name, which is most likely what was meant.
            missing = missing or exc
    if missing is not None:
        raise missing
    return None


async def _in_thread_not_named(store: Store, ref: str) -> Stored | None:
    """Return what a reference means that has no name of a thread: see the top of this file."""
    text, _ = _without_back(ref)
    if _WHOLE_ID.fullmatch(text):
        return None
    if _SIGNS.match(ref):
        newest = await _newest_thread(store)
        if newest is None:
            raise CheckpointNotFound(ref, None, reason="there is no thread in this store")
        return await _inside(store, newest, ref)
    thread = await _thread_in_id(store, text) or await _newest_thread(store)
    if thread is None:
        return None
    try:
        return await _inside(store, thread, ref)
    except CheckpointNotFound:
        # It may as well be the name of a thread that is mistyped.
        return None


async def _newest_thread(store: Store) -> Thread | None:
    """Return the thread that was active last, of those that have something to show."""
    for hit in await store.search(Search(limit=_SPLITS_MAX)):
        thread = await _thread(store, hit.position.thread_id)
        if thread is not None:
            return thread
    return None


async def _thread_in_id(store: Store, text: str) -> Thread | None:
    """Return the thread that the beginning of an id names, if it is one of the engine's own."""
    if not text.startswith(_OWN_ID):
        return None
    name = text.removeprefix(_OWN_ID)
    for _ in range(_SPLITS_MAX):
        name, sign, _ = name.rpartition("-")
        if not sign:
            break
        thread = await _thread(store, name)
        if thread is not None:
            return thread
    return None


def _splits(ref: str) -> Iterator[tuple[str, str]]:
    """Yield what may be a thread and the rest, the longest thread first."""
    places = [sign.start() for sign in _SIGNS.finditer(ref)]
    for place in places[::-1][:_SPLITS_MAX]:
        if place:
            yield ref[:place], ref[place:]


# -- inside a thread


async def _inside(store: Store, thread: Thread, rest: str) -> Stored:
    """Return what the rest of a reference means in a thread: with or without the sign that it begins with."""
    body = rest.removeprefix("@")
    if not body:
        return await _head(store, thread)
    found = await _by_whole_id(store, body, thread.thread_id)
    if found is not None:
        return found
    step = _STEP.fullmatch(body)
    if step is not None:
        return await _of_step(store, thread, int(step[1]))
    time = _TIME.fullmatch(body)
    if time is not None:
        return await _at_time(store, thread, time[1])
    # A name or a tag does not begin with this sign, so that nothing has to be read to find none.
    if not body.startswith("~"):
        branch = await _branch_called(store, thread, body)
        if branch is not None:
            return await _head(store, branch)
        found = await _by_tag_or_prefix(store, thread, body)
        if found is not None:
            return found
    base, count = _without_back(body)
    if base != body:
        return await _back(store, await _inside(store, thread, base), count, thread.thread_id)
    # Last, since it reads the logs of all branches.
    branch = await _branch_renamed(store, thread, body)
    if branch is not None:
        return await _head(store, branch)
    raise _missing(body, thread, "has no checkpoint whose id begins so, and none with that tag")


async def _branch_called(store: Store, thread: Thread, name: str) -> Thread | None:
    """Return the branch that was made with that name: this thread, one that began from it, or from one it came from.

    It comes before tags, since its first checkpoint has the name for a tag.
    """
    itself: list[str] = []
    async for nearby in _branches_nearby(store, thread):
        made = [each for each in nearby if branch_name(each) == name]
        if not made:
            continue
        # Lists show the names that branches have now. The old one of a branch still means it where it is free.
        called = await _called_now(store, nearby, name) or made
        if called != nearby[:1]:
            return await _thread(store, _only(name, called))
        # Those beside it, which are told next, may be called the same.
        itself = called
    return await _thread(store, itself[0]) if itself else None


async def _branch_renamed(store: Store, thread: Thread, name: str) -> Thread | None:
    """Return the branch that somebody has given this name later, of the same ones."""
    itself: list[str] = []
    async for nearby in _branches_nearby(store, thread):
        called = await _called_now(store, nearby, name)
        if called and called != nearby[:1]:
            return await _thread(store, _only(name, called))
        itself = called or itself
    return await _thread(store, itself[0]) if itself else None


async def _called_now(store: Store, threads: list[str], name: str) -> list[str]:
    """Return those of some threads that are branches of this name now."""
    branches = [each for each in threads if branch_name(each) is not None]
    labels = (await said_of(store, branches)).labels
    return [each for each in branches if (labels[each].name or branch_name(each)) == name]


async def _branches_nearby(store: Store, thread: Thread) -> AsyncIterator[list[str]]:
    """Yield a thread with those that began from it, then the same of the one that it came from, and so on."""
    at = thread.thread_id
    for _ in range(_SPLITS_MAX):
        found = await store.thread(at, branches=True)
        if found is None:
            return
        yield [at, *found.branches]
        if found.origin is None:
            return
        at = found.origin.thread_id


def _only(name: str, called: list[str]) -> str:
    """Return the only branch of a name."""
    if len(called) > 1:
        places = [(each, "") for each in called[:_CANDIDATES_MAX]]
        raise AmbiguousCheckpoint(
            name,
            places,
            candidates=called[:_CANDIDATES_MAX],
            more=len(called) > _CANDIDATES_MAX,
            advice="write the id of the branch that you mean",
        )
    return called[0]


def _without_back(body: str) -> tuple[str, int]:
    """Return what stands before `~3`, or before several of them, and how many parents that is together."""
    count = 0
    while True:
        base, sign, number = body.rpartition("~")
        if not sign or not _BACK.fullmatch(sign + number):
            return body, count
        body = base
        count += int(number or 1)


async def _head(store: Store, thread: Thread) -> Stored:
    namespace = _main_namespace(thread)
    loaded = None
    if namespace is not None:
        loaded = await store.read(thread.thread_id, namespace)
    if loaded is None:
        raise _missing("@", thread, "has no visible checkpoint; undo may bring some back")
    return loaded.stored


def _main_namespace(thread: Thread) -> str | None:
    """Return the namespace that a thread is about; None: all that it had is hidden."""
    # The namespace of tasks holds claims and effects, which nobody means by the name of a thread.
    names = [name for name in thread.heads if name != TASK_NAMESPACE]
    if "" in names:
        return ""
    return min(names, default=None)


async def _by_whole_id(store: Store, name: str, thread_id: str | None) -> Stored | None:
    try:
        places = await store.find(checks.checkpoint_id(name))
    except InvalidInput:
        return None
    if thread_id is not None:
        places = [key for key in places if key.thread_id == thread_id]
        # The thread's own namespace comes before those of its subgraphs.
        places = [key for key in places if not key.namespace] or places
    if len(places) > 1:
        candidates = [f"{key.thread_id}@{key.checkpoint_id}" for key in places]
        raise AmbiguousCheckpoint(name, [key[:2] for key in places], candidates=candidates, more=len(places) > 5)
    if not places:
        return None
    loaded = await store.read(*places[0])
    if loaded is None:
        return None
    return loaded.stored


async def _of_step(store: Store, thread: Thread, step: int) -> Stored:
    async for stored in _listed(store, Query(thread_id=thread.thread_id, namespace=_main(thread), step_max=step)):
        if stored.record.step == step:
            return stored
    raise _missing(f"#{step}", thread, "has no visible checkpoint of that step")


async def _at_time(store: Store, thread: Thread, text: str) -> Stored:
    try:
        moment = _aware(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise InvalidInput(
            f"{checks.shown(text)} is no time; write it as 2026-11-15, 2026-11-15T10:00 or 2026-11-15T10:00:30+01:00"
        ) from None
    async for stored in _listed(store, Query(thread_id=thread.thread_id, namespace=_main(thread))):
        try:
            created = _aware(datetime.fromisoformat(stored.record.created_at))
        except ValueError:  # a checkpoint that somebody put with a time of another form
            continue
        if created <= moment:
            return stored
    raise _missing(f"{{{text}}}", thread, "has no visible checkpoint of that time or before")


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment


async def _by_tag_or_prefix(store: Store, thread: Thread, text: str) -> Stored | None:
    """Return the newest checkpoint with that tag, or else the one whose id, or the last part of it, begins so."""
    begin: list[Stored] = []
    changes = await changes_of(store, [thread.thread_id])
    query = Query(thread_id=thread.thread_id, namespace=None, hidden="also")
    async for stored in _listed(store, query):
        tags = changes.get(stored.record.key, NO_CHANGES).applied_to(described(stored.record)[0])
        if not stored.hidden and text in tags:
            return stored
        name = stored.record.key.checkpoint_id
        last = _last_part(name)
        if last == text:
            return stored
        if name.startswith(text) or (last is not None and last.startswith(text)):
            begin.append(stored)
    if not begin:
        return None
    if len(begin) > 1:
        named = begin[:_CANDIDATES_MAX]
        places = [stored.record.key[:2] for stored in named]
        candidates = list(map(_short, named))
        raise AmbiguousCheckpoint(text, places, candidates=candidates, more=len(begin) > _CANDIDATES_MAX)
    return begin[0]


def _last_part(checkpoint_id: str) -> str | None:
    """Return the part of an id of the engine's own that was left to chance."""
    if not checkpoint_id.startswith(_OWN_ID):
        return None
    return checkpoint_id.rpartition("-")[2]


def _short(stored: Stored) -> str:
    key = stored.record.key
    return f"{key.thread_id}@{_last_part(key.checkpoint_id) or key.checkpoint_id} (step {stored.record.step})"


async def _back(store: Store, start: Stored, count: int, thread_id: str) -> Stored:
    """Return the checkpoint so many first parents back; what retention has removed is not counted."""
    at = start
    left = count
    while left:
        key = at.record.key
        older = Query(
            thread_id=key.thread_id, namespace=key.namespace, segment=at.segment, before_seq=at.seq, hidden="also"
        )
        inside = await store.count(older)
        if inside:
            # Inside a segment each checkpoint is the parent of the next: so the store counts the steps.
            steps = min(left, inside)
            listed = await store.list_checkpoints(replace(older, offset=steps - 1, limit=1))
            if not listed:
                break
            at = listed[0]
            left -= steps
            continue
        before = await _followed(store, at)
        if before is None:
            break
        at = before
        left -= 1
    if left:
        raise CheckpointNotFound(
            f"~{count}", thread_id, reason=f"{start.record.key.checkpoint_id!r} has only {count - left} ancestors"
        )
    return at


async def _followed(store: Store, first: Stored) -> Stored | None:
    """Return what the first checkpoint of a segment follows, or the nearest before it that is still stored."""
    follows: list[Place] = list((await store.segments(first.family, [first.segment])).get(first.segment, ()))
    seen: set[int] = {first.segment}
    while follows:
        place = follows[0]
        query = Query(
            thread_id=place.key.thread_id,
            namespace=place.key.namespace,
            segment=place.segment,
            before_seq=place.seq + 1,
            hidden="also",
            limit=1,
        )
        listed = await store.list_checkpoints(query)
        if listed:
            return listed[0]
        if place.segment in seen:
            return None
        seen.add(place.segment)
        follows = list((await store.segments(first.family, [place.segment])).get(place.segment, ()))
    return None


# -- looking


async def _thread(store: Store, name: str) -> Thread | None:
    """Return a thread that has something to show."""
    try:
        found = await store.thread(checks.thread_id(name), brief=True)
    except InvalidInput:
        return None
    if found is None or found.newest.keys() <= {TASK_NAMESPACE}:
        return None
    return found


def _main(thread: Thread) -> str:
    return _main_namespace(thread) or ""


async def _listed(store: Store, query: Query) -> AsyncIterator[Stored]:
    """Yield what a query asks for, newest first, page by page; never the record of a task."""
    before: int | None = None
    while True:
        page = await store.list_checkpoints(replace(query, before_seq=before, limit=_PAGE))
        for stored in page:
            if stored.record.key.namespace != TASK_NAMESPACE:
                yield stored
        if len(page) < _PAGE:
            return
        before = page[-1].seq


def _reference(stored: Stored) -> Reference:
    key: Key = stored.record.key
    return Reference(key.thread_id, key.namespace, key.checkpoint_id, stored.record.step)


def _missing(what: str, thread: Thread, reason: str) -> CheckpointNotFound:
    return CheckpointNotFound(what, thread.thread_id, reason=f"{what!r}: thread {thread.thread_id!r} {reason}")


async def _no_thread(store: Store, ref: str) -> CheckpointNotFound:
    """Return the error, with the names of threads that are close to what was written."""
    hits = await store.search(Search(limit=_SIMILAR_AMONG))
    names = [hit.position.thread_id for hit in hits]
    wanted = [ref, *[name for name, _ in _splits(ref)]][:4]
    similar: dict[str, None] = {}
    for text in wanted:
        matches = difflib.get_close_matches(text[:200], names, n=3, cutoff=0.6)
        similar |= dict.fromkeys(matches)
    # Somebody may know a branch by its name alone.
    branches = [branch_ref(name) for name in names if branch_name(name) == ref]
    similar |= dict.fromkeys(filter(None, branches))
    return CheckpointNotFound(
        ref, None, reason=f"there is no thread and no checkpoint {ref!r}", similar=list(similar)[:3]
    )
