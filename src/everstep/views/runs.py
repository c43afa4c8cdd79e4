"""Durable runs: pages of them, and one with its steps, what it waits for, how it ended, its branches and effects."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everstep.durable import lists
from everstep.durable.entries import values_by_name
from everstep.durable.unknown_effects import did_not_happen, happened
from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput, RunNotFound
from everstep.reports import RunInfo, RunWait
from everstep.repository.effects import Effects, host_of
from everstep.repository.finding import make_search
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Hit, Place, Query, Record, Search, Store, Stored
from everstep.timeline.labels import said_of
from everstep.types import MISSING
from everstep.views import run_steps
from everstep.views.json_values import to_json
from everstep.views.reading import number_of_cursor, repository_of, values_of
from everstep.views.scanning import Scan
from everstep.views.texts import as_text, called, one_line, origin_ref, plain_text

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

STATUSES = lists.STATUSES
LIMIT_MAX = 1000
_BATCH = 200
_SCANNED_MAX = 2000
_VALUE_BYTES_MAX = 20_000
_BRANCHES_MAX = 50
_EFFECTS_MAX = 50
_QUESTION_CHARS_MAX = 10_000
# Recorded so that a replay gives the same, and of no interest to a reader.
_LEFT_OUT = frozenset(("now",))


# -- pages of runs


async def page(
    engine: CheckpointEngine, *, status: str | None = None, limit: int = 50, cursor: str | None = None
) -> dict[str, Any]:
    """Return runs, the one that was active last first; `cursor` is that of the page before.

    For `ready` and `interrupted` runs that wait or are running are looked at, up to 2,000 of them.
    """
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"status is one of {', '.join(STATUSES)}, not {checks.shown(status)}")
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    repository = repository_of(engine)
    # One search for each status that the head of such a run may have; together they are one list.
    searches = [make_search(filter={"run_status": each}, cursor=cursor) for each in lists.stored_as(status)]
    scan = Scan[dict[str, Any]](limit, _SCANNED_MAX)
    while scan.goes_on:
        for hit in scan.look_at(await _search_all(repository.store, searches), _BATCH):
            if hit.stored is None or not run_steps.is_run(hit.stored.record):
                # One that cannot be read is named in the list of threads.
                continue
            info = await lists.info_at(repository, hit.stored)
            if status is None or info.status == status:
                scan.add(hit, _shown(info, hit.stored))
        if scan.last is not None:
            searches = [replace(each, after=scan.last.position) for each in searches]
    shown, next_cursor = scan.end()
    return {"runs": shown, "cursor": next_cursor, "more": scan.is_cut_short}


async def _search_all(store: Store, searches: Sequence[Search]) -> list[Hit]:
    """Return what several searches find next, the most recently active first."""
    hits: list[Hit] = []
    for search in searches:
        hits += await store.search(replace(search, limit=_BATCH + 1))
    hits.sort(key=lambda hit: hit.position, reverse=True)
    return hits


def _shown(info: RunInfo, head: Stored) -> dict[str, Any]:
    summary = run_steps.title_of(head.record) or one_line(head.record.summary)
    question = run_steps.question_of(head.record)
    # It matters more than what was done last.
    if question is not None:
        summary = one_line(f"Asks: {question}")
    return {
        "thread_id": info.thread_id,
        "name": one_line(info.name),
        "status": info.status,
        "steps": max(0, head.record.step),
        "updated_at": one_line(info.updated_at, 64),
        "head": info.checkpoint_id,
        "summary": summary,
        "waits": [_wait(wait) for wait in info.waits],
    }


def _wait(wait: RunWait) -> dict[str, Any]:
    question = None
    if wait.question is not None:
        question = plain_text(wait.question)[:_QUESTION_CHARS_MAX]
    return {
        "kind": wait.kind,
        "key": wait.key,
        "question": question,
        "event": wait.event,
        "until": _time(wait.until),
        "effect": wait.effect,
    }


def _time(seconds: float | None) -> str | None:
    """Return a moment as text; one that is too far away for a calendar is moved to where it ends."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(min(max(seconds, 0.0), 2e11), UTC).isoformat()


# -- one run


async def one(
    engine: CheckpointEngine, thread_id: str, *, limit: int = 200, cursor: str | None = None
) -> dict[str, Any]:
    """Return a run and its newest steps, in order; with `cursor`, that of the page before, the steps before those."""
    limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
    before = number_of_cursor(cursor, "a page of a run")
    repository = repository_of(engine)
    store = repository.store
    loaded = await store.read(checks.thread_id(thread_id))
    if loaded is None or not run_steps.is_run(loaded.stored.record):
        raise RunNotFound(thread_id)
    head = loaded.stored
    info = await lists.info_at(repository, head)
    listed: list[Stored] = []
    is_whole = True
    async for stored in _line(store, head, before):
        if len(listed) == limit:
            is_whole = False
            break
        if run_steps.entries_of(stored.record):
            listed.append(stored)
    thread = await store.thread(thread_id, branches=True, brief=True)
    branches: Sequence[str] = ()
    if thread is not None:
        branches = thread.branches
    listed.reverse()
    entries: list[dict[str, Any]] = []
    for stored in listed:
        entries += _entries(stored)
    told = _shown(info, head)
    return told | {
        "origin": origin_ref(thread),
        "waits": [wait | {"details": await _details(repository, listed, wait)} for wait in told["waits"]],
        "entries": entries,
        "cursor": None if is_whole else str(listed[0].seq),
        **await _ends(repository, info, listed),
        "branches": await _branches(repository, branches),
        "effects": await _effects(repository, thread_id),
    }


def _entries(stored: Stored) -> list[dict[str, Any]]:
    return [_entry(stored, about) for about in run_steps.entries_of(stored.record) if about["op"] not in _LEFT_OUT]


def _entry(stored: Stored, about: Mapping[str, Any]) -> dict[str, Any]:
    record = stored.record
    failures = about.get("failures")
    if not isinstance(failures, list):
        failures = []
    tries = run_steps.number_of(about, "tries")
    if tries is not None:
        tries = int(tries)
    return {
        "op": one_line(str(about["op"]), 20),
        "key": one_line(run_steps.text_of(about, "key")),
        "name": one_line(run_steps.text_of(about, "name")),
        "status": one_line(run_steps.text_of(about, "status"), 20) or None,
        "effect": one_line(run_steps.text_of(about, "effect"), 20) or None,
        "tries": tries,
        "failures": [one_line(str(each), 500) for each in failures],
        "seconds": run_steps.number_of(about, "seconds"),
        "until": _time(run_steps.number_of(about, "until")),
        "text": _text(record, about),
        "step": record.step,
        "id": record.key.checkpoint_id,
        "ref": f"{record.key.thread_id}@{record.key.checkpoint_id}",
        "created_at": one_line(record.created_at, 64),
        "hidden": stored.hidden,
    }


def _text(record: Record, about: Mapping[str, Any]) -> str:
    """Return the words of an entry: its question, its event, its error, or what its checkpoint is called."""
    for name in ("question", "event", "error"):
        found = as_text(about.get(name))
        if found:
            return one_line(found, 500)
    return one_line(run_steps.title_of_entry(record, about))


async def _ends(repository: Repository, info: RunInfo, listed: Sequence[Stored]) -> dict[str, Any]:
    """Return what a run was called with, and how it ended, where that is on this page."""
    found: dict[str, Any] = {"arguments": None, "result": None, "error": None}
    for stored in listed:
        ops = {str(each["op"]): each for each in run_steps.entries_of(stored.record)}
        if "start" in ops:
            values = await _values(repository, stored, "start", "start")
            found["arguments"] = {name: _json(values.get(name)) for name in ("args", "kwargs")}
        if "end" in ops:
            values = await _values(repository, stored, "end", "end")
            if info.status == "done":
                found["result"] = _json(values.get("result"))
            if info.status == "failed":
                found["error"] = _error(values.get("error"))
    return found


def _error(kept: Any) -> dict[str, Any] | None:
    if not isinstance(kept, dict):
        return None
    return {
        "type": one_line(str(kept.get("type", "")).rpartition(":")[2]),
        "message": plain_text(str(kept.get("text", "")))[:_VALUE_BYTES_MAX],
    }


async def _details(repository: Repository, listed: Sequence[Stored], wait: Mapping[str, Any]) -> Any:
    """Return what was given with a question."""
    for stored in reversed(listed):
        for about in run_steps.entries_of(stored.record):
            if about["op"] == "ask" and about.get("key") == wait["key"]:
                return _json((await _values(repository, stored, "ask", str(wait["key"]))).get("details"))
    return None


async def _values(repository: Repository, stored: Stored, op: str, key: str) -> Mapping[str, Any]:
    """Return the values of one entry; nothing where they cannot be read, which whoever opens the checkpoint is told."""
    return values_by_name(await _results(repository, stored)).get((op, key), {})


async def _results(repository: Repository, stored: Stored) -> Mapping[str, Any]:
    # Lists leave out where the values are.
    loaded = await repository.store.read(*stored.record.key)
    if loaded is None:
        return {}
    try:
        return (await values_of(repository, loaded.stored)).tools_result
    except (CheckpointCorrupted, CheckpointNotFound):
        return {}


def _json(value: Any) -> Any:
    return to_json(value, max_bytes=_VALUE_BYTES_MAX)


async def _branches(repository: Repository, names: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    labels = (await said_of(repository.store, names[:_BRANCHES_MAX])).labels
    for name in names[:_BRANCHES_MAX]:
        thread = await repository.store.thread(name, brief=True)
        try:
            info = await lists.info_of(repository, name)
        except RunNotFound:
            continue
        found.append(
            {
                "thread_id": name,
                "name": called(name, labels[name]),
                "status": info.status,
                "origin": origin_ref(thread),
                "updated_at": one_line(info.updated_at, 64),
            }
        )
    return found


async def _effects(repository: Repository, thread_id: str) -> list[dict[str, Any]]:
    """Return the newest effects of the family, whatever became of the steps that performed them."""
    effects = Effects(repository, await host_of(repository, thread_id))
    found: list[dict[str, Any]] = []
    for stored in (await effects.stored())[:_EFFECTS_MAX]:
        about = stored.record.metadata.get("effect")
        if not isinstance(about, dict):
            continue
        values = await _results(repository, stored)
        found.append(
            {
                "key": one_line(as_text(values.get("step")) or run_steps.text_of(about, "key").rpartition("\n")[2]),
                "name": one_line(run_steps.text_of(about, "name")),
                "status": one_line(run_steps.text_of(about, "status"), 20),
                "thread_id": run_steps.text_of(about, "thread"),
                "undo": as_text(about.get("undo")),
                "at": one_line(run_steps.text_of(about, "at") or stored.record.created_at, 64),
                "result": _json(values.get("result")),
            }
        )
    return found


# -- answers and events


async def answer(
    engine: CheckpointEngine,
    thread_id: str,
    value: Any = MISSING,
    *,
    key: str | None = None,
    did_happen: bool | None = None,
    result: Any = None,
) -> dict[str, Any]:
    """Answer a question of a run: with a value, or with whether an effect happened, and what its result is."""
    repository = repository_of(engine)
    info = await lists.info_of(repository, checks.thread_id(thread_id))
    asked = [wait for wait in info.waits if wait.kind == "ask" and (key is None or wait.key == key)]
    # If it is not clear which one is meant, or there is none, the engine says so below.
    effect = None
    if len(asked) == 1:
        effect = asked[0].effect
        if did_happen is not None and effect is None:
            raise InvalidInput(f"the question {asked[0].key!r} is not about an effect; give the answer itself")
    if did_happen:
        value = happened(result)
    elif did_happen is not None:
        value = did_not_happen()
    elif effect is not None:
        raise InvalidInput(
            f"nobody knows whether {effect!r} happened: find out, and say that it happened, with its result, or that "
            "it did not"
        )
    elif value is MISSING:
        raise InvalidInput("give the answer")
    made = await engine.answer(thread_id, value, key=key)
    return {"thread_id": thread_id, "id": made, "status": (await lists.info_of(repository, thread_id)).status}


async def signal(engine: CheckpointEngine, thread_id: str, event: str, value: Any = None) -> dict[str, Any]:
    """Tell a run of an event."""
    made = await engine.signal(thread_id, event, value)
    status = (await lists.info_of(repository_of(engine), thread_id)).status
    return {"thread_id": thread_id, "id": made, "event": event, "status": status}


# -- the line of a run


async def _line(store: Store, head: Stored, before: int | None) -> AsyncIterator[Stored]:
    """Yield the checkpoints that a run has made up to its head, the newest first, down to where it began."""
    lines: list[_Segment] = []
    begun_at: dict[int, int] = {}

    async def add(place: Place) -> None:
        after = begun_at.get(place.segment, 0)
        if after >= place.seq:
            # What lies there is on its way already.
            return
        begun_at[place.segment] = place.seq
        line = _Segment(store, place, after, before)
        await push(line)

    async def push(line: _Segment) -> None:
        if await line.fill():
            heapq.heappush(lines, line)
        elif not line.after:
            follows = await store.segments(head.family, [line.place.segment])
            for place in follows.get(line.place.segment, ()):
                await add(place)

    await add(head.place)
    while lines:
        line = heapq.heappop(lines)
        stored = line.rows.popleft()
        yield stored
        if not any(about["op"] == "start" for about in run_steps.entries_of(stored.record)):
            await push(line)


class _Segment:
    """The checkpoints of one segment that are left, up to a place."""

    def __init__(self, store: Store, place: Place, after: int, before: int | None) -> None:
        self.place = place
        self.after = after
        self._store = store
        self._before = place.seq + 1 if before is None else min(before, place.seq + 1)
        self._is_over = False
        self.rows: deque[Stored] = deque()

    def __lt__(self, other: _Segment) -> bool:
        return self.rows[0].seq > other.rows[0].seq

    async def fill(self) -> bool:
        """Make sure that there is a row, if there is one left; return whether there is."""
        if not self.rows and not self._is_over:
            listed = await self._store.list_checkpoints(
                Query(
                    thread_id=self.place.key.thread_id,
                    namespace=self.place.key.namespace,
                    segment=self.place.segment,
                    after_seq=self.after,
                    before_seq=self._before,
                    hidden="also",
                    limit=_BATCH,
                )
            )
            self._is_over = len(listed) < _BATCH
            if listed:
                self._before = listed[-1].seq
            self.rows.extend(listed)
        return bool(self.rows)
