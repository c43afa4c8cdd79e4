"""The threads of a store: pages, the most recently active first, searched by text, tags, metadata and status."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.adapter import described, is_own
from everstep.history.labels import NO_LABELS, Labels
from everstep.repository.around_damage import readable
from everstep.repository.finding import make_search
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.abilities import ReadsFamilies
from everstep.stores.protocol import Hit, Loaded, Record, Store, Stored, Thread
from everstep.timeline.branch import branch_name
from everstep.timeline.labels import is_branch, said_around, said_of
from everstep.types import TASK_NAMESPACE
from everstep.views import rows, run_steps
from everstep.views.history import look_at_pending
from everstep.views.json_values import to_json
from everstep.views.reading import last_messages, repository_of
from everstep.views.rows import DAMAGED
from everstep.views.scanning import Scan
from everstep.views.texts import branch_of, called, one_line, origin_ref

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

STATUSES = ("failed", "waiting", "interrupted", "running", "ready", "done", "paused", DAMAGED)
LIMIT_MAX = 1000
SCANNED_MAX = 2000
"""Threads that a page looks at for those with a text or a status, before it says how far it came."""
_BATCH = 200
_METADATA_BYTES_MAX = 4000
_REASON_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def page(
    engine: CheckpointEngine,
    *,
    text: str = "",
    prefix: str = "",
    tags: Iterable[str] = (),
    filter: Mapping[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
    since: datetime | None = None,
    status: str | None = None,
    archived: bool = False,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Return threads, the most recently active first; `cursor` is that of the page before.

    `text` finds threads whose name, summary, tags or metadata (`customer=ada`) contain it, `status` those that have
    failed, wait for an answer, were interrupted or are damaged; a durable run has all of its own. Both look at up to
    2,000 threads; `more` says that there are some that were not looked at. A damaged thread has its place among the
    others, with what is wrong with it as its summary.

    Branches that were archived are left out, so that a page may have fewer than `limit`; `archived` lists them too.
    """
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"status is one of {', '.join(STATUSES)}, not {checks.shown(status)}")
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    repository = repository_of(engine)
    search = make_search(prefix, filter, tags, since, 1, cursor)
    wanted = checks.text(text, "text").casefold()
    is_scan = bool(wanted or status)
    count = limit
    # A page with a filter looks at more than it shows.
    if is_scan:
        count = _BATCH
    scan = Scan[dict[str, Any]](limit, SCANNED_MAX)
    while scan.goes_on:
        hits = scan.look_at(await repository.store.search(replace(search, limit=count + 1)), count)
        for hit, thread in await _described(repository, await _with_text(repository.store, hits, wanted)):
            if (status is None or thread["status"] == status) and (archived or not thread["archived"]):
                scan.add(hit, thread)
        if scan.last is not None:
            search = replace(search, after=scan.last.position)
        if not is_scan:
            break
    shown, next_cursor = scan.end()
    answer: dict[str, Any] = {"threads": shown, "cursor": next_cursor}
    if is_scan:
        answer["more"] = scan.is_cut_short
    return answer


async def one(engine: CheckpointEngine, thread_id: str) -> dict[str, Any]:
    """Return one thread as a page has it."""
    repository = repository_of(engine)
    reference = await engine.resolve("@", thread_id=checks.thread_id(thread_id))
    search = make_search(prefix=thread_id)
    while True:
        hits = await repository.store.search(search)
        for hit in hits:
            if hit.position.thread_id == reference.thread_id:
                return (await _described(repository, [hit]))[0][1]
        if len(hits) < search.limit:
            raise InvalidInput(f"thread {thread_id!r} has no head any more")
        search = replace(search, after=hits[-1].position)


async def _with_text(store: Store, hits: Sequence[Hit], text: str) -> Sequence[Hit]:
    """Return the threads that contain a text."""
    if not text:
        return hits
    found: list[Hit] = []
    # Only a branch can have got another name, and only then is its log read.
    others: list[str] = []
    for hit in hits:
        thread_id = hit.position.thread_id
        if not _has_text(hit, text) and branch_name(thread_id) is not None:
            others.append(thread_id)
    labels = (await said_around(store, others))[0].labels
    for hit in hits:
        name = labels.get(hit.position.thread_id, NO_LABELS).name
        if text in name.casefold() or _has_text(hit, text):
            found.append(hit)
    return found


def _has_text(hit: Hit, text: str) -> bool:
    holders = [hit.position.thread_id]
    if hit.stored is not None:
        record = hit.stored.record
        tags, summary = described(record)
        holders += [summary, *tags, *_texts_in(record.metadata)]
    return any(text in holder.casefold() for holder in holders)


async def _labels(store: Store, thread_id: str) -> Labels:
    try:
        return (await said_of(store, [thread_id])).labels[thread_id]
    except CheckpointCorrupted:  # it is listed all the same, so that somebody can look at it
        return NO_LABELS


def _texts_in(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the entries of metadata as they are searched for: `customer=ada`."""
    for name, value in metadata.items():
        if isinstance(value, (str, int, float)):
            yield f"{name}={value}"


class _About(NamedTuple):
    thread: Thread | None
    task: Mapping[str, Any] | None
    """What is kept of a task, if the thread is one."""
    is_turn: bool
    """It is no task, but `send` runs it."""
    labels: Labels = NO_LABELS
    """What was said about it later, if it is a branch."""
    branches: int = 0
    """How many began from it."""


async def _described(repository: Repository, hits: Sequence[Hit]) -> list[tuple[Hit, dict[str, Any]]]:
    store = repository.store
    whole = [hit.stored.record for hit in hits if hit.stored is not None]
    # Whoever opens one that cannot be read is told.
    loaded = (await readable(store, [record.key for record in whole if not is_own(record.kind)], writes=True)).loaded
    known = await _known_of(store, hits)
    found: list[tuple[Hit, dict[str, Any]]] = []
    for hit in hits:
        if hit.stored is None:
            found.append((hit, _shown_damaged(hit)))
            continue
        try:
            about = await _about(store, hit.position.thread_id, known)
            head = loaded.get(hit.stored.record.key)
            shown = _shown(hit, about, head, await _summary(repository, hit.stored, head))
            if run_steps.is_run(hit.stored.record):
                # It takes longer to load than a list of threads to be made.
                from everstep.durable import lists

                shown["status"] = (await lists.info_at(repository, hit.stored)).status
        except CheckpointCorrupted as exc:
            shown = _shown_damaged(hit._replace(stored=None, damage=exc))
        found.append((hit, shown))
    return found


async def _summary(repository: Repository, stored: Stored, head: Loaded | None) -> str:
    """Return what a thread is about, in one line: what its latest step is called."""
    if head is None or stored.record.summary:
        seen = rows.Seen(question=run_steps.question_of(stored.record))
        return rows.title_of(stored, seen, rows.kind_of(stored, seen))
    key = head.stored.record.key
    try:
        seen = await look_at_pending(repository, head)
        # What it asks for, or what failed, says more than what was said last.
        if seen.question is None and seen.failure is None:
            said = await last_messages(repository, {key: head.stored})
            seen = rows.Seen(message=said[key])
    except CheckpointCorrupted:  # whoever opens it is told
        return ""
    return rows.title_of(head.stored, seen, rows.kind_of(head.stored, seen))


class _Known(NamedTuple):
    """What is known of the threads of a page together."""

    labels: Mapping[str, Labels]
    """What was said about branches, as far as their names tell that they are some."""
    branches: Mapping[str, int]
    """How many began from a thread, of the threads whose family has several on the page."""


async def _known_of(store: Store, hits: Sequence[Hit]) -> _Known:
    """Ask about the threads of a page together: a page may show many of a family that has thousands."""
    families: dict[str, list[str]] = {}
    for hit in hits:
        if hit.stored is not None:
            families.setdefault(hit.stored.family, []).append(hit.position.thread_id)
    branches: Counter[str] = Counter()
    for names in families.values():
        if len(names) > 1 and isinstance(store, ReadsFamilies):
            with contextlib.suppress(CheckpointCorrupted):
                began = await store.origins(names[0])
                branches.update(dict.fromkeys(names, 0))
                branches.update(origin.thread_id for origin in began.values())
    named = [hit.position.thread_id for hit in hits if branch_name(hit.position.thread_id) is not None]
    return _Known((await said_around(store, named))[0].labels, branches)


async def _about(store: Store, thread_id: str, known: _Known) -> _About:
    count = known.branches.get(thread_id)
    try:
        thread = await store.thread(thread_id, branches=count is None, brief=True)
    except CheckpointCorrupted:  # it is listed all the same, so that somebody can look at it
        return _About(None, None, False)
    if thread is not None and count is None:
        count = len(thread.branches)
    labels = known.labels.get(thread_id, NO_LABELS)
    # Its name does not tell that it is a branch.
    if thread is not None and is_branch(thread) and thread_id not in known.labels:
        labels = await _labels(store, thread_id)
    about = _About(thread, None, False, labels, count or 0)
    if thread is None or TASK_NAMESPACE not in thread.heads:
        return about
    loaded = await store.read(thread_id, TASK_NAMESPACE)
    task = loaded.stored.record.metadata.get("task") if loaded is not None else None
    if not isinstance(task, Mapping):
        return about
    is_task = task.get("is_task", True) is not False
    return about._replace(task=task, is_turn=not is_task)


def _shown_damaged(hit: Hit) -> dict[str, Any]:
    """Return a thread that cannot be read: its name, and why, where others have what they are about."""
    return {
        "thread_id": hit.position.thread_id,
        "name": branch_of(hit.position.thread_id),
        "archived": False,
        "kind": "engine",
        "status": DAMAGED,
        "steps": 0,
        "updated_at": _moment(hit),
        "summary": one_line(hit.damage.reason, _REASON_MAX) if hit.damage is not None else "",
        "tags": [],
        "metadata": {},
        "branches": 0,
        "origin": None,
        "head": None,
    }


def _moment(hit: Hit) -> str:
    return (_EPOCH + timedelta(microseconds=hit.position.active)).isoformat()


def _shown(hit: Hit, about: _About, head: Loaded | None, summary: str) -> dict[str, Any]:
    record = hit.whole.record
    tags = described(record)[0]
    return {
        "thread_id": hit.position.thread_id,
        "name": called(hit.position.thread_id, about.labels),
        "archived": about.labels.is_archived,
        "kind": _kind(record, about),
        "status": _status(record, about, head),
        "steps": max(0, record.step),
        "updated_at": _moment(hit),
        "summary": summary,
        "tags": [one_line(tag, 80) for tag in tags],
        "metadata": to_json(dict(record.metadata), max_bytes=_METADATA_BYTES_MAX),
        "branches": about.branches,
        "origin": origin_ref(about.thread),
        "head": record.key.checkpoint_id,
    }


def _kind(record: Record, about: _About) -> str:
    if about.task is not None and not about.is_turn:
        return "task"
    return record.kind or "engine"


def _status(record: Record, about: _About, head: Loaded | None) -> str | None:
    """Return what a person should look at; None: nothing, as far as is known."""
    pending = rows.Pending()
    if head is not None:
        pending = rows.pending_of(head.writes)
    if about.task is not None:
        return _status_of_task(about.task, pending)
    if pending.failure is not None or _has_failed(record):
        return "failed"
    if pending.question is not None:
        return "waiting"
    return None


def _status_of_task(task: Mapping[str, Any], pending: rows.Pending) -> str | None:
    if _is_run(task):
        return None
    if task.get("ended") == "failed":
        return "failed"
    if pending.question is not None:
        return "waiting"
    # Somebody ran it, and neither came to its end nor goes on.
    if task.get("owner") is not None:
        return "interrupted"
    return None


def _has_failed(record: Record) -> bool:
    return "error" in record.tags or rows.error_of(record.metadata) is not None


def _is_run(task: Mapping[str, Any]) -> bool:
    """Whether somebody runs a task, as far as its lease tells."""
    until = task.get("until")
    return task.get("owner") is not None and isinstance(until, (int, float)) and until > time.time()
