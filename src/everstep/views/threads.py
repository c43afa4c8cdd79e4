"""The threads of a store: pages, the most recently active first, searched by text, tags, metadata and status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.adapter import described, is_own
from everstep.repository.finding import make_search
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Hit, Key, Loaded, Record, Store, Stored, Thread
from everstep.types import TASK_NAMESPACE
from everstep.views import rows, run_steps
from everstep.views.json_values import to_json
from everstep.views.reading import last_messages, repository_of
from everstep.views.scanning import Scan
from everstep.views.texts import one_line, origin_ref

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

DAMAGED = "damaged"
STATUSES = ("failed", "waiting", "interrupted", DAMAGED)
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
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Return threads, the most recently active first; `cursor` is that of the page before.

    `text` finds threads whose name, summary, tags or metadata (`customer=ada`) contain it, `status` those that have
    failed, wait for an answer, were interrupted or are damaged; a durable run has all of its own. Both look at up to
    2,000 threads; `more` says that there are some that were not looked at. A damaged thread has its place among the
    others, with what is wrong with it as its summary.
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
        with_text = [hit for hit in hits if _has_text(hit, wanted)]
        for hit, thread in await _described(repository, with_text):
            if status is None or thread["status"] == status:
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


def _has_text(hit: Hit, text: str) -> bool:
    if not text:
        return True
    if hit.stored is None:
        return text in hit.position.thread_id.casefold()
    record = hit.stored.record
    tags, summary = described(record)
    holders = [hit.position.thread_id, summary, *tags, *_texts_in(record.metadata)]
    return any(text in holder.casefold() for holder in holders)


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


async def _described(repository: Repository, hits: Sequence[Hit]) -> list[tuple[Hit, dict[str, Any]]]:
    store = repository.store
    whole = [hit.stored.record for hit in hits if hit.stored is not None]
    loaded = await _heads(store, [record.key for record in whole if not is_own(record.kind)])
    found: list[tuple[Hit, dict[str, Any]]] = []
    for hit in hits:
        if hit.stored is None:
            found.append((hit, _shown_damaged(hit)))
            continue
        try:
            about = await _about(store, hit.position.thread_id)
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


async def _heads(store: Store, keys: Sequence[Key]) -> dict[Key, Loaded]:
    """Return these checkpoints with their writes, those that can be read."""
    if not keys:
        return {}
    try:
        return {each.stored.record.key: each for each in await store.read_many(keys, writes=True)}
    except CheckpointCorrupted:
        if len(keys) == 1:
            # Whoever opens it is told.
            return {}
    # One of them is damaged, and has spoiled the answer about all: halves are tried until it stands alone.
    middle = len(keys) // 2
    return {**await _heads(store, keys[:middle]), **await _heads(store, keys[middle:])}


async def _summary(repository: Repository, stored: Stored, head: Loaded | None) -> str:
    """Return what a thread is about, in one line: what its latest step is called."""
    if head is None or stored.record.summary:
        seen = rows.Seen(question=run_steps.question_of(stored.record))
        return rows.title_of(stored, seen, rows.kind_of(stored, seen))
    key = head.stored.record.key
    try:
        said = await last_messages(repository, {key: head.stored})
    except CheckpointCorrupted:  # whoever opens it is told
        return ""
    seen = rows.Seen(message=said[key])
    return rows.title_of(head.stored, seen, rows.kind_of(head.stored, seen))


async def _about(store: Store, thread_id: str) -> _About:
    try:
        thread = await store.thread(thread_id, branches=True, brief=True)
    except CheckpointCorrupted:  # it is listed all the same, so that somebody can look at it
        return _About(None, None, False)
    if thread is None or TASK_NAMESPACE not in thread.heads:
        return _About(thread, None, False)
    loaded = await store.read(thread_id, TASK_NAMESPACE)
    task = loaded.stored.record.metadata.get("task") if loaded is not None else None
    if not isinstance(task, Mapping):
        return _About(thread, None, False)
    is_task = task.get("is_task", True) is not False
    return _About(thread, task, not is_task)


def _shown_damaged(hit: Hit) -> dict[str, Any]:
    """Return a thread that cannot be read: its name, and why, where others have what they are about."""
    return {
        "thread_id": hit.position.thread_id,
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
    branches = 0
    if about.thread is not None:
        branches = len(about.thread.branches)
    return {
        "thread_id": hit.position.thread_id,
        "kind": _kind(record, about),
        "status": _status(record, about, head),
        "steps": max(0, record.step),
        "updated_at": _moment(hit),
        "summary": summary,
        "tags": [one_line(tag, 80) for tag in tags],
        "metadata": to_json(dict(record.metadata), max_bytes=_METADATA_BYTES_MAX),
        "branches": branches,
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
