"""The HTTP interface as a table: each endpoint with its parameters, what it calls and what it answers with.

Nothing is decided here. An endpoint reads its parameters, calls one function of `everstep.views` or one method of the
engine, and hands back the JSON. The OpenAPI document is made from the same table (`openapi.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from everstep import version
from everstep.errors import InvalidInput
from everstep.reports import Finding
from everstep.types import MISSING
from everstep.views import (
    actions,
    blame,
    branches,
    changes,
    checkpoint,
    history,
    operations,
    rows,
    runs,
    state,
    storage,
    tags,
    threads,
    timing,
    transcript,
)
from everstep.views.reading import require_thread
from everstep.web.parameters import Flag, Json, Many, Parameter, Text, Whole
from everstep.web.service import IMPORT_BYTES_MAX, Service

Values = dict[str, Any]
Work = Callable[[Service, Values], Awaitable[dict[str, Any]]]

# A damaged table can have thousands of them, and nobody reads those on a page.
FINDINGS_MAX = 200

THREAD = Text(name="thread", about="The name of a thread.", required=True, can_be_empty=False)
REF = Text(
    name="ref",
    required=True,
    can_be_empty=False,
    about="A checkpoint: `thread`, `thread@~3`, `thread#42`, `thread@prefix`, `thread@tag`, or a whole id.",
)
OPEN_THREAD = Text(name="thread", about="The thread that is open: then `@~3`, `#42`, a prefix or a tag are enough.")
SOURCE = Text(name="source", about="The thread whose work is taken.", required=True, can_be_empty=False)
INTO = Text(name="into", about="The thread that gets it.", required=True, can_be_empty=False)
ONE_THREAD = Text(name="thread", about="One thread; else all.", can_be_empty=False)
CURSOR = Text(name="cursor", about="Where the page before ended: its `cursor`.", chars_max=65536)


@dataclass(frozen=True)
class Endpoint:
    """One line of the interface."""

    method: str
    path: str
    work: Work
    parameters: tuple[Parameter, ...]
    answer: str
    """The name of the schema of what it answers with."""
    about: str
    has_dry_run: bool = False
    """Whether it only tells what it would do, if it is asked to with `dry_run`."""

    @property
    def is_write(self) -> bool:
        """Whether it changes something, and takes a JSON body."""
        return self.method == "POST"

    def changes(self, values: Values) -> bool:
        """Whether it changes something when it is given these values."""
        return self.is_write and not (self.has_dry_run and values["dry_run"])


# -- reading -----------------------------------------------------------------------------------------------------------


async def _info(service: Service, _: Values) -> dict[str, Any]:
    return {
        "version": version.__version__,
        "store": service.address,
        "kind": service.kind,
        "read_only": service.read_only,
        "demo": service.demo,
        "reach": service.reach._asdict(),
        "import_bytes_max": IMPORT_BYTES_MAX,
    }


async def _threads(service: Service, values: Values) -> dict[str, Any]:
    return await threads.page(
        service.engine,
        text=values["text"] or "",
        prefix=values["prefix"] or "",
        tags=values["tag"],
        since=_moment(values["since"]),
        status=values["status"],
        archived=values["archived"],
        limit=values["limit"],
        cursor=values["cursor"],
    )


async def _history(service: Service, values: Values) -> dict[str, Any]:
    return await service.history(
        values["thread"],
        offset=values["offset"],
        cursor=values["cursor"],
        limit=values["limit"],
        kinds=values["kind"],
        errors=values["errors"],
        user_turns=values["user_turns"],
        path=values["path"],
        text=values["text"],
        hidden=values["hidden"],
        branches=values["branches"],
    )


async def _changed(service: Service, values: Values) -> dict[str, Any]:
    return {"changed": await history.changed(service.engine, values["thread"], values["id"])}


async def _place(service: Service, values: Values) -> dict[str, Any]:
    return await service.places.find(values["thread"], values["id"])


async def _resolve(service: Service, values: Values) -> dict[str, Any]:
    found = await service.engine.resolve(values["ref"], thread_id=values["thread"])
    return {
        "ref": str(found),
        "thread_id": found.thread_id,
        "namespace": found.namespace,
        "id": found.checkpoint_id,
        "step": found.step,
    }


async def _checkpoint(service: Service, values: Values) -> dict[str, Any]:
    return await checkpoint.detail(service.engine, await _reference(service, values))


async def _compare(service: Service, values: Values) -> dict[str, Any]:
    a = values["a"]
    if a is not None:
        a = await service.engine.resolve(a, thread_id=values["thread"])
    b = await service.engine.resolve(values["b"], thread_id=values["thread"])
    return await changes.compare(service.engine, a, b, path=values["path"])


async def _messages(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    return await transcript.page(
        service.engine,
        ref,
        limit=values["limit"],
        cursor=values["cursor"],
        bytes_max=transcript.SHOWN_BYTES_MAX,
    )


async def _pair(service: Service, values: Values) -> dict[str, Any]:
    a = await service.engine.resolve(values["a"], thread_id=values["thread"])
    b = await service.engine.resolve(values["b"], thread_id=values["thread"])
    return await transcript.pair(service.engine, a, b, limit=values["limit"])


async def _state(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    path = values["path"] or ""
    return await state.node(service.engine, ref, path, offset=values["offset"], limit=values["limit"])


async def _state_search(service: Service, values: Values) -> dict[str, Any]:
    return await state.search(service.engine, await _reference(service, values), values["text"])


async def _value(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    pointer = values["pointer"] or ""
    return {"pointer": pointer, "value": await state.value(service.engine, ref, pointer)}


async def _blame(service: Service, values: Values) -> dict[str, Any]:
    return await blame.history_of(service.engine, values["thread"], values["path"], limit=values["limit"])


async def _operations(service: Service, values: Values) -> dict[str, Any]:
    # An unknown thread is an error, and no empty list.
    await require_thread(service.engine, values["thread"])
    return await operations.log(service.engine, values["thread"], limit=values["limit"])


async def _timing(service: Service, values: Values) -> dict[str, Any]:
    return await timing.bars(service.engine, values["thread"], limit=values["limit"], branches=values["branches"])


async def _branches(service: Service, values: Values) -> dict[str, Any]:
    return await branches.family(service.engine, values["thread"], archived=values["archived"])


async def _tags(service: Service, values: Values) -> dict[str, Any]:
    return await tags.listing(service.engine, values["thread"])


async def _runs(service: Service, values: Values) -> dict[str, Any]:
    return await runs.page(service.engine, status=values["status"], limit=values["limit"], cursor=values["cursor"])


async def _run(service: Service, values: Values) -> dict[str, Any]:
    return await runs.one(service.engine, values["thread"], limit=values["limit"], cursor=values["cursor"])


async def _storage(service: Service, values: Values) -> dict[str, Any]:
    return await storage.sizes(service.engine, values["thread"], plan=False)


async def _verify(service: Service, values: Values) -> dict[str, Any]:
    # Whoever mistypes a name must not be told that all is well.
    if values["thread"] is not None:
        await require_thread(service.engine, values["thread"])
    report = await service.engine.verify(values["thread"])
    return {
        "ok": report.ok,
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "objects": report.objects,
        "bytes": report.bytes,
        "findings": [_finding(finding) for finding in report.findings[:FINDINGS_MAX]],
        "more": max(0, len(report.findings) - FINDINGS_MAX),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "thread_id": finding.thread_id,
        "checkpoint_id": finding.checkpoint_id,
        "what": finding.what,
        "threads": list(finding.threads),
    }


async def _plan_rewind(service: Service, values: Values) -> dict[str, Any]:
    return await actions.plan_rewind(service.engine, await _reference(service, values))


async def _plan_merge(service: Service, values: Values) -> dict[str, Any]:
    return await actions.plan_merge(service.engine, values["source"], values["into"])


async def _plan_delete(service: Service, values: Values) -> dict[str, Any]:
    return await actions.delete(service.engine, values["thread"], dry_run=True)


# -- changing ----------------------------------------------------------------------------------------------------------


async def _rewind(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    done = await service.engine.rewind(
        ref.checkpoint_id, later=values["later"] or "hide", thread_id=ref.thread_id, namespace=ref.namespace
    )
    made = done.checkpoint.metadata
    return {
        "thread_id": done.thread_id,
        "id": made.checkpoint_id,
        "step": made.step,
        "left_behind": done.rewind_depth,
    }


async def _undo(service: Service, values: Values) -> dict[str, Any]:
    await require_thread(service.engine, values["thread"])
    return {"operation": operations.shown(await service.engine.undo(values["thread"]))}


async def _redo(service: Service, values: Values) -> dict[str, Any]:
    await require_thread(service.engine, values["thread"])
    return {"operation": operations.shown(await service.engine.redo(values["thread"]))}


async def _fork(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    return await actions.fork(
        service.engine, ref, values["name"], set=values["set"] or {}, patch=values["patch"], messages=values["messages"]
    )


async def _merge(service: Service, values: Values) -> dict[str, Any]:
    return await actions.merge(service.engine, values["source"], values["into"], values["resolve"])


async def _delete(service: Service, values: Values) -> dict[str, Any]:
    return await actions.delete(service.engine, values["thread"])


async def _pin(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    act = service.engine.pin if values["pinned"] else service.engine.unpin
    await act(ref.checkpoint_id, thread_id=ref.thread_id, namespace=ref.namespace)
    return {"thread_id": ref.thread_id, "id": ref.checkpoint_id, "pinned": values["pinned"]}


async def _tag(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    act = service.engine.tag if values["given"] else service.engine.untag
    await act(ref.checkpoint_id, values["tag"], thread_id=ref.thread_id, namespace=ref.namespace)
    return {
        "thread_id": ref.thread_id,
        "id": ref.checkpoint_id,
        "step": ref.step,
        "tag": values["tag"],
        "given": values["given"],
    }


async def _note(service: Service, values: Values) -> dict[str, Any]:
    ref = await _reference(service, values)
    await service.engine.note(ref.checkpoint_id, values["note"], thread_id=ref.thread_id, namespace=ref.namespace)
    return {"thread_id": ref.thread_id, "id": ref.checkpoint_id, "step": ref.step, "note": values["note"].strip()}


async def _rename(service: Service, values: Values) -> dict[str, Any]:
    await actions.rename(service.engine, values["thread"], values["name"])
    return await _named_branch(service, values["thread"])


async def _archive(service: Service, values: Values) -> dict[str, Any]:
    act = service.engine.archive_branch if values["archived"] else service.engine.unarchive_branch
    await act(values["thread"])
    return await _named_branch(service, values["thread"])


async def _named_branch(service: Service, thread_id: str) -> dict[str, Any]:
    found = await threads.one(service.engine, thread_id)
    return {"thread_id": thread_id, "name": found["name"], "archived": found["archived"]}


async def _answer(service: Service, values: Values) -> dict[str, Any]:
    outcome = values["outcome"]
    return await runs.answer(
        service.engine,
        values["thread"],
        MISSING if values["value"] is None else values["value"],
        key=values["key"],
        did_happen=None if outcome is None else outcome == "happened",
        result=values["result"],
    )


async def _signal(service: Service, values: Values) -> dict[str, Any]:
    return await runs.signal(service.engine, values["thread"], values["event"], values["value"])


async def _collect(service: Service, values: Values) -> dict[str, Any]:
    if values["thread"] is not None:
        await require_thread(service.engine, values["thread"])
    report = await service.collect(
        values["thread"], policy=values["policy"], param=values["param"], dry_run=values["dry_run"]
    )
    return {
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "hidden": report.hidden,
        "objects": report.objects,
        "size_bytes": report.size_bytes,
        "dry_run": report.dry_run,
    }


# -- the table ---------------------------------------------------------------------------------------------------------

_FILTERS = (
    Many(name="kind", about="Only checkpoints of these kinds.", choices=rows.KINDS),
    Flag(name="errors", about="Only what went wrong."),
    Flag(name="user_turns", about="Only what a person said."),
    Text(name="path", about="Only checkpoints that changed this path, such as `state.plan`."),
    Text(name="text", about="Only checkpoints whose summary or tags contain this."),
    Flag(name="hidden", about="Those that a rewind has hidden too."),
    Flag(name="branches", about="The branches of the thread too.", unless_given=True),
)
_RESOLUTION = {
    "description": (
        'What both sides changed: "ours", "theirs", or for each path {"take": "ours" | "theirs" | "base" | "both"}, '
        '{"value": ...} or {"remove": true}.'
    ),
    "anyOf": [{"enum": ["ours", "theirs"]}, {"type": "object"}, {"type": "null"}],
}

ENDPOINTS = (
    Endpoint("GET", "/info", _info, (), "Info", "Which store this is, and what may be done with it."),
    Endpoint(
        "GET",
        "/threads",
        _threads,
        (
            Text(name="text", about="Threads whose name or summary contains this."),
            Text(name="prefix", about="Threads whose name begins so."),
            Many(name="tag", about="Threads whose newest checkpoint has all of these tags.", most=20),
            Text(name="since", about="Threads that were active then or later: a time in ISO 8601.", chars_max=64),
            Text(name="status", about="Threads in this state.", choices=threads.STATUSES),
            Flag(name="archived", about="Branches that were archived too."),
            Whole(name="limit", about="How many.", least=1, most=200, unless_given=50),
            CURSOR,
        ),
        "ThreadPage",
        "Threads, the most recently active first.",
    ),
    Endpoint(
        "GET",
        "/history",
        _history,
        (
            THREAD,
            Whole(name="offset", about="How many rows to leave out at the top; not together with a filter or cursor."),
            CURSOR,
            Whole(name="limit", about="How many.", least=1, most=200, unless_given=200),
            *_FILTERS,
        ),
        "HistoryPage",
        "The checkpoints of a thread and its branches as rows of a graph, the newest first.",
    ),
    Endpoint(
        "GET",
        "/changed",
        _changed,
        (THREAD, Many(name="id", about="Ids of checkpoints.", required=True, most=200)),
        "Changed",
        "What each of these checkpoints changed, in a few words.",
    ),
    Endpoint(
        "GET",
        "/place",
        _place,
        (THREAD, Text(name="id", about="The id of a checkpoint.", required=True)),
        "Place",
        "Which row of the whole history a checkpoint is.",
    ),
    Endpoint("GET", "/resolve", _resolve, (REF, OPEN_THREAD), "Reference", "Which checkpoint a reference names."),
    Endpoint("GET", "/checkpoint", _checkpoint, (REF, OPEN_THREAD), "Detail", "One checkpoint, without its values."),
    Endpoint(
        "GET",
        "/compare",
        _compare,
        (
            Text(name="a", about="The one before; the first parent of `b` if left out.", can_be_empty=False),
            Text(name="b", about="The one after.", required=True, can_be_empty=False),
            OPEN_THREAD,
            Text(name="path", about="Only what changed here, such as `/plan` or `/messages/3`.", can_be_empty=False),
        ),
        "Comparison",
        "What changed from one checkpoint to another.",
    ),
    Endpoint(
        "GET",
        "/messages",
        _messages,
        (REF, OPEN_THREAD, Whole(name="limit", about="How many.", least=1, most=200, unless_given=100), CURSOR),
        "MessagePage",
        "The conversation as of a checkpoint; the newest page first, each page in order.",
    ),
    Endpoint(
        "GET",
        "/messages/pair",
        _pair,
        (
            Text(name="a", about="A checkpoint.", required=True, can_be_empty=False),
            Text(name="b", about="Another one, such as the head of a branch.", required=True, can_be_empty=False),
            OPEN_THREAD,
            Whole(name="limit", about="How many of each.", least=1, most=200, unless_given=50),
        ),
        "MessagePair",
        "Two conversations, from where they part.",
    ),
    Endpoint(
        "GET",
        "/state",
        _state,
        (
            REF,
            OPEN_THREAD,
            Text(name="path", about="Where to look: the `path` of a child; empty for all of it."),
            Whole(name="offset", about="How many children to leave out.", unless_given=0),
            Whole(name="limit", about="How many children.", least=1, most=500, unless_given=200),
        ),
        "StateNode",
        "One level of the values of a checkpoint.",
    ),
    Endpoint(
        "GET",
        "/state/search",
        _state_search,
        (REF, OPEN_THREAD, Text(name="text", about="What to look for.", required=True, can_be_empty=False)),
        "StateSearch",
        "Where a text stands in the values of a checkpoint.",
    ),
    Endpoint(
        "GET",
        "/value",
        _value,
        (REF, OPEN_THREAD, Text(name="pointer", about="A JSON pointer or a path; empty for everything.")),
        "Value",
        "A value as a whole.",
    ),
    Endpoint(
        "GET",
        "/blame",
        _blame,
        (
            THREAD,
            Text(name="path", about="A path, such as `state.plan`.", required=True, can_be_empty=False),
            Whole(name="limit", about="How many.", least=1, most=200, unless_given=50),
        ),
        "Blame",
        "Which checkpoints changed a path.",
    ),
    Endpoint(
        "GET",
        "/operations",
        _operations,
        (THREAD, Whole(name="limit", about="How many.", least=1, most=500, unless_given=50)),
        "Operations",
        "Rewinds, branches, merges, pins, tags, notes and names of a thread, the newest first.",
    ),
    Endpoint(
        "GET",
        "/timing",
        _timing,
        (
            THREAD,
            Whole(name="limit", about="How many of the newest steps.", least=1, most=200, unless_given=200),
            Flag(name="branches", about="Also the branches that came from it.", unless_given=True),
        ),
        "Timing",
        "The newest steps as bars on a time axis without long waits.",
    ),
    Endpoint(
        "GET",
        "/branches",
        _branches,
        (THREAD, Flag(name="archived", about="Those that were archived too.", unless_given=True)),
        "Branches",
        "The threads of a family, with what each is called and its head.",
    ),
    Endpoint(
        "GET",
        "/tags",
        _tags,
        (THREAD,),
        "Tags",
        "The tags of a thread, with the newest checkpoint of each.",
    ),
    Endpoint(
        "GET",
        "/runs",
        _runs,
        (
            Text(name="status", about="Runs in this state.", choices=runs.STATUSES),
            Whole(name="limit", about="How many.", least=1, most=200, unless_given=50),
            CURSOR,
        ),
        "RunPage",
        "Durable runs, the one that was active last first.",
    ),
    Endpoint(
        "GET",
        "/run",
        _run,
        (THREAD, Whole(name="limit", about="How many steps.", least=1, most=1000, unless_given=200), CURSOR),
        "WholeRun",
        "A durable run with its newest steps, what it waits for, how it ended, its branches and effects.",
    ),
    Endpoint(
        "GET",
        "/storage",
        _storage,
        (ONE_THREAD,),
        "Storage",
        "What is stored, and what retention would remove.",
    ),
    Endpoint(
        "GET",
        "/verify",
        _verify,
        (ONE_THREAD,),
        "Verified",
        "Every hash, checksum and reference looked at; what is wrong, if anything is.",
    ),
    Endpoint("GET", "/rewind", _plan_rewind, (REF, OPEN_THREAD), "RewindPlan", "What a rewind would do."),
    Endpoint(
        "POST",
        "/rewind",
        _rewind,
        (REF, OPEN_THREAD, Text(name="later", about="What becomes of what came later.", choices=("hide", "keep"))),
        "Rewound",
        "Make a checkpoint the head. What came later is hidden; undo brings it back.",
    ),
    Endpoint("POST", "/undo", _undo, (THREAD,), "Done", "Take the newest operation of a thread back."),
    Endpoint("POST", "/redo", _redo, (THREAD,), "Done", "Do again what undo took back last."),
    Endpoint(
        "POST",
        "/fork",
        _fork,
        (
            REF,
            OPEN_THREAD,
            Text(name="name", about="The name of the branch.", required=True, can_be_empty=False, chars_max=128),
            Json(name="set", about="New values by JSON pointer.", type="object"),
            Json(name="patch", about="A JSON patch (RFC 6902).", type="array", more={"items": {"type": "object"}}),
            Json(
                name="messages",
                about="The conversation to begin with.",
                type="array",
                more={"items": {"type": "object"}},
            ),
        ),
        "Forked",
        "Start a branch at a checkpoint, perhaps with other values.",
    ),
    Endpoint(
        "GET",
        "/merge",
        _plan_merge,
        (SOURCE, INTO),
        "MergePlan",
        "What a merge would do, and what both sides changed.",
    ),
    Endpoint(
        "POST",
        "/merge",
        _merge,
        (
            SOURCE,
            INTO,
            Json(name="resolve", about="What to do about conflicts.", more=_RESOLUTION),
        ),
        "Merged",
        "Merge one thread into another of its family.",
    ),
    Endpoint("GET", "/delete", _plan_delete, (THREAD,), "Deleted", "What the deletion of a thread would remove."),
    Endpoint("POST", "/delete", _delete, (THREAD,), "Deleted", "Delete a thread for good. Its branches stay."),
    Endpoint(
        "POST",
        "/pin",
        _pin,
        (REF, OPEN_THREAD, Flag(name="pinned", about="Pin it, or leave it to retention again.", unless_given=True)),
        "Pinned",
        "Keep a checkpoint from retention.",
    ),
    Endpoint(
        "POST",
        "/tag",
        _tag,
        (
            REF,
            OPEN_THREAD,
            Text(name="tag", about="The tag.", required=True, can_be_empty=False),
            Flag(name="given", about="Give the tag, or take it away.", unless_given=True),
        ),
        "Tagged",
        "Give a checkpoint a tag, or take one away.",
    ),
    Endpoint(
        "POST",
        "/note",
        _note,
        (
            REF,
            OPEN_THREAD,
            Text(name="note", about="What to note; nothing takes a note away.", required=True, chars_max=8192),
        ),
        "Noted",
        "Note something about a checkpoint.",
    ),
    Endpoint(
        "POST",
        "/rename",
        _rename,
        (
            Text(name="thread", about="The thread of a branch.", required=True, can_be_empty=False),
            Text(name="name", about="Its name; empty: the one that it was made with.", required=True, chars_max=512),
        ),
        "Branch",
        "Call a branch by another name. Its thread keeps its id.",
    ),
    Endpoint(
        "POST",
        "/archive",
        _archive,
        (
            Text(name="thread", about="The thread of a branch.", required=True, can_be_empty=False),
            Flag(name="archived", about="Archive it, or put it back into the lists.", unless_given=True),
        ),
        "Branch",
        "Leave a branch out of lists; nothing else changes.",
    ),
    Endpoint(
        "POST",
        "/answer",
        _answer,
        (
            THREAD,
            Text(name="key", about="Which question, if there are several.", can_be_empty=False),
            Json(name="value", about="The answer."),
            Text(
                name="outcome",
                about="In place of the answer, where it is asked whether an effect happened.",
                choices=("happened", "did_not_happen"),
            ),
            Json(name="result", about="What an effect that happened has resulted in."),
        ),
        "Answered",
        "Answer a question of a durable run.",
    ),
    Endpoint(
        "POST",
        "/signal",
        _signal,
        (
            THREAD,
            Text(name="event", about="The name of the event.", required=True, can_be_empty=False, chars_max=125),
            Json(name="value", about="What comes with it."),
        ),
        "Told",
        "Tell a durable run of an event.",
    ),
    Endpoint(
        "POST",
        "/collect",
        _collect,
        (
            ONE_THREAD,
            Text(
                name="policy",
                about="Which policy; else that of the engine.",
                choices=("keep_all", "keep_last_n", "keep_age", "keep_milestones"),
            ),
            Whole(name="param", about="How many it keeps, or for how many seconds.", least=1, most=10**12),
            Flag(name="dry_run", about="Only tell.", unless_given=True),
        ),
        "Collected",
        "Apply the retention policy now, and give space back.",
        has_dry_run=True,
    ),
)


async def _reference(service: Service, values: Values) -> Any:
    return await service.engine.resolve(values["ref"], thread_id=values["thread"])


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput("since is a time in ISO 8601, such as 2026-11-15T10:00Z") from exc
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
