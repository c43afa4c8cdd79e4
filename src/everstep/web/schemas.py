"""What the answers of the interface look like, as JSON schemas: the words of the OpenAPI document.

They name what is always there, and its type. Answers may have more: readers leave out what they do not know.
"""

from __future__ import annotations

from typing import Any

from everstep.views import rows, runs

Schema = dict[str, Any]


def _object(about: str, **fields: Schema) -> Schema:
    """Return the schema of an object that always has these fields."""
    return {"type": "object", "description": about, "properties": fields, "required": list(fields)}


def _answer(about: str, **fields: Schema) -> Schema:
    """Return the schema of a whole answer, which says which version of the documents it is."""
    return _object(about, schema={"const": "everstep/v1"}, **fields)


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _is(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANY: Schema = {"description": 'Any JSON; what JSON has no word for is {"$type": ..., "text": ...}.'}
KIND: Schema = {"enum": list(rows.KINDS)}
STATUS: Schema = {"enum": list(runs.STATUSES)}
OP: Schema = {"enum": ["added", "removed", "changed", "edited"]}

_DAMAGE = _or_null(
    _object("Why it cannot be read, or not all of it, and the commands that help.", reason=TEXT, hint=TEXT)
)
_FACTS: dict[str, Schema] = {
    "id": TEXT,
    "ref": TEXT,
    "thread_id": TEXT,
    "namespace": TEXT,
    "step": WHOLE,
    "kind": KIND,
    "title": TEXT,
    "damage": _DAMAGE,
    "trigger": TEXT,
    "next_node": TEXT,
    "tags": _list(TEXT),
    "note": TEXT,
    "head": FLAG,
    "pinned": FLAG,
    "hidden": FLAG,
    "created_at": TEXT,
    "duration_ms": _or_null(NUMBER),
    "tokens": _or_null(NUMBER),
    "added_bytes": _or_null(WHOLE),
}

_WAIT: dict[str, Schema] = {
    "kind": {"enum": ["ask", "event", "sleep"]},
    "key": TEXT,
    "question": _or_null(TEXT),
    "event": _or_null(TEXT),
    "until": _or_null(TEXT),
    "effect": _or_null(TEXT),
}
_RUN: dict[str, Schema] = {
    "thread_id": TEXT,
    "name": TEXT,
    "status": STATUS,
    "steps": COUNT,
    "updated_at": TEXT,
    "head": TEXT,
    "summary": TEXT,
    "waits": _list(_object("What it waits for.", **_WAIT)),
}

SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        "What went wrong.",
        error=_object("In words.", code=TEXT, message=TEXT, hint=_or_null(TEXT)),
    ),
    "Info": _answer(
        "The store.",
        version=TEXT,
        store=TEXT,
        kind=TEXT,
        read_only=FLAG,
        demo=FLAG,
        reach=_object(
            "How commands and Python reach it from elsewhere.",
            command=TEXT,
            python=_or_null(TEXT),
            options=TEXT,
            note=_or_null(TEXT),
            needs_token=FLAG,
        ),
        import_bytes_max=COUNT,
    ),
    "Thread": _object(
        "A thread, as its newest checkpoint tells.",
        thread_id=TEXT,
        name=TEXT,
        archived=FLAG,
        kind={"enum": ["engine", "langgraph", "task", "run"]},
        status=_or_null({"enum": ["damaged", *STATUS["enum"]]}),
        steps=WHOLE,
        updated_at=TEXT,
        summary=TEXT,
        tags=_list(TEXT),
        metadata=OBJECT,
        branches=COUNT,
        origin=_or_null(TEXT),
        head=_or_null(TEXT),
    ),
    "ThreadPage": _answer("Threads.", threads=_list(_is("Thread")), cursor=_or_null(TEXT)),
    "Edge": _object(
        "A line within one row, from a lane at its top to one at its bottom.",
        **{"from": COUNT, "to": COUNT, "kind": {"enum": ["pass", "in", "out", "both"]}, "gap": FLAG},
    ),
    "Chip": _object(
        "A mark on a row.", text=TEXT, tone={"enum": ["branch", "warn", "error", "plain", "note"]}, lane=COUNT
    ),
    "Row": _object(
        "A checkpoint as a row of the graph; one that is damaged has its place and its name, as far as they are known.",
        **{**_FACTS, "step": _or_null(WHOLE)},
        active=FLAG,
        chips=_list(_is("Chip")),
        parents=_list(TEXT),
        lane=COUNT,
        edges=_list(_is("Edge")),
    ),
    "HistoryPage": _answer(
        "Rows.",
        thread_id=TEXT,
        rows=_list(_is("Row")),
        cursor=_or_null(TEXT),
        total=COUNT,
        counts={"type": "object", "additionalProperties": COUNT},
        hidden_by_filter=COUNT,
        lanes=COUNT,
        damage=_DAMAGE,
    ),
    "Changed": _answer(
        "By id.",
        changed={
            "type": "object",
            "additionalProperties": _object("In words.", text=TEXT, keys=_list(TEXT), messages=OBJECT),
        },
    ),
    "Place": _answer("A row.", id=TEXT, place=_or_null(COUNT)),
    "Reference": _answer("A checkpoint.", ref=TEXT, thread_id=TEXT, namespace=TEXT, id=TEXT, step=WHOLE),
    "Detail": _answer(
        "A checkpoint.",
        **_FACTS,
        parents=_list(ANY),
        children=_list(ANY),
        metadata=OBJECT,
        size_bytes=COUNT,
        messages=COUNT,
        state_keys=_list(TEXT),
        writes=_list(ANY),
        tools_result=ANY,
        tools_result_is_own=FLAG,
        error=_or_null(OBJECT),
        copy=_object("The same elsewhere.", python=TEXT, cli=TEXT, curl=TEXT),
    ),
    "StateChange": _object("A path.", op=OP, path=TEXT, before=ANY, after=ANY, words=_or_null(_list(_list(TEXT)))),
    "MessageChange": _object("A message.", op=OP, role=_or_null(TEXT), before=ANY, after=ANY),
    "Comparison": _answer(
        "What changed.",
        a=ANY,
        b=ANY,
        state=_list(_is("StateChange")),
        messages=_list(_is("MessageChange")),
        counts=OBJECT,
        patch=_or_null(_list(OBJECT)),
    ),
    "Message": _object(
        "A message.", index=COUNT, role=_or_null(TEXT), text=TEXT, parts=_list(OBJECT), tool_calls=_list(OBJECT)
    ),
    "MessagePage": _answer("A conversation.", messages=_list(_is("Message")), cursor=_or_null(TEXT), total=COUNT),
    "MessageSide": _object(
        "One of two conversations.",
        id=TEXT,
        ref=TEXT,
        thread_id=TEXT,
        messages=_list(_is("Message")),
        total=COUNT,
        more=COUNT,
    ),
    "MessagePair": _answer(
        "Two conversations, from where they part.", common=COUNT, a=_is("MessageSide"), b=_is("MessageSide")
    ),
    "StateChild": _object(
        "A part of a value.", key=TEXT, path=TEXT, type=TEXT, size_bytes=COUNT, preview=TEXT, leaf=FLAG
    ),
    "StateNode": _answer(
        "A value, one level of it.",
        path=TEXT,
        type=TEXT,
        size_bytes=COUNT,
        count=COUNT,
        children=_list(_is("StateChild")),
        value=ANY,
    ),
    "StateSearch": _answer(
        "Where it stands.", paths=_list(_object("A place.", path=TEXT, type=TEXT, preview=TEXT)), more=FLAG
    ),
    "Value": _answer("A value.", pointer=TEXT, value=ANY),
    "Blame": _answer(
        "Who wrote it; of what is left out nobody can tell.",
        thread_id=TEXT,
        path=TEXT,
        changes=_list(OBJECT),
        left_out=_list(_object("A checkpoint that cannot be compared, and why.", id=TEXT, reason=TEXT)),
        damage=_DAMAGE,
        looked_at=COUNT,
        cursor=_or_null(TEXT),
    ),
    "Operation": _object("A change of a head.", id=WHOLE, kind=TEXT, created_at=TEXT, undone=FLAG, text=TEXT),
    "Bar": _object(
        "A step on the time axis, which is from 0 to 1.",
        id=TEXT,
        ref=TEXT,
        thread_id=TEXT,
        step=WHOLE,
        kind=TEXT,
        title=TEXT,
        lane=COUNT,
        created_at=TEXT,
        duration_ms=_or_null(NUMBER),
        left=NUMBER,
        width=NUMBER,
    ),
    "Timing": _answer(
        "Steps as bars, the oldest first.",
        thread_id=TEXT,
        total=COUNT,
        shown_ms=NUMBER,
        cuts=_list(_object("A wait that is left out.", at=NUMBER, left_out_ms=NUMBER)),
        bars=_list(_is("Bar")),
    ),
    "Tag": _object("A tag of a thread.", tag=TEXT, checkpoints=COUNT, newest=TEXT, step=WHOLE),
    "Tags": _answer("Tags.", thread_id=TEXT, tags=_list(_is("Tag"))),
    "Operations": _answer("The log.", operations=_list(_is("Operation"))),
    "Run": _object("A durable run.", **_RUN),
    "RunPage": _answer("Durable runs.", runs=_list(_is("Run")), cursor=_or_null(TEXT), more=FLAG),
    "RunEntry": _object(
        "Something that a run has recorded: a step, a question, its answer.",
        op=TEXT,
        key=TEXT,
        status=_or_null(TEXT),
        effect=_or_null(TEXT),
        tries=_or_null(COUNT),
        failures=_list(TEXT),
        seconds=_or_null(NUMBER),
        text=TEXT,
        step=WHOLE,
        id=TEXT,
        ref=TEXT,
        created_at=TEXT,
    ),
    "WholeRun": _answer(
        "A durable run.",
        **{**_RUN, "waits": _list(_object("What it waits for.", **_WAIT, details=ANY))},
        origin=_or_null(TEXT),
        entries=_list(_is("RunEntry")),
        cursor=_or_null(TEXT),
        arguments=_or_null(OBJECT),
        result=ANY,
        error=_or_null(_object("Why it failed.", type=TEXT, message=TEXT)),
        branches=_list(_object("A branch.", thread_id=TEXT, name=TEXT, status=STATUS, origin=_or_null(TEXT))),
        effects=_list(_object("An effect.", key=TEXT, status=TEXT, thread_id=TEXT, at=TEXT, result=ANY)),
    ),
    "Answered": _answer("Done.", thread_id=TEXT, id=TEXT, status=STATUS),
    "Told": _answer("Done.", thread_id=TEXT, id=TEXT, event=TEXT, status=STATUS),
    "Storage": _answer(
        "Sizes.",
        threads=COUNT,
        checkpoints=COUNT,
        record_bytes=COUNT,
        exclusive_bytes=COUNT,
        shared_bytes=COUNT,
        write_bytes=COUNT,
        total_bytes=COUNT,
        full_bytes=COUNT,
        left_out=COUNT,
        damage=_DAMAGE,
    ),
    "Verified": _answer(
        "What was looked at, and what is wrong.",
        ok=FLAG,
        threads=COUNT,
        checkpoints=COUNT,
        objects=COUNT,
        bytes=COUNT,
        findings=_list(
            _object(
                "Something wrong.",
                kind=TEXT,
                thread_id=_or_null(TEXT),
                checkpoint_id=_or_null(TEXT),
                what=TEXT,
                threads=_list(TEXT),
            )
        ),
        more=COUNT,
    ),
    "RewindPlan": _answer("What a rewind would do.", id=TEXT, hidden=COUNT, which=_list(OBJECT), text=TEXT),
    "Rewound": _answer("Done.", thread_id=TEXT, id=TEXT, step=WHOLE, left_behind=COUNT),
    "Done": _answer("Done.", operation=_is("Operation")),
    "Forked": _answer("Done.", thread_id=TEXT, id=TEXT),
    "MergePlan": _answer("What a merge would do.", auto=COUNT, conflicts=_list(OBJECT), result=OBJECT),
    "Merged": _answer("Done.", thread_id=TEXT, id=TEXT),
    "Tagged": _answer("Done.", thread_id=TEXT, id=TEXT, step=WHOLE, tag=TEXT, given=FLAG),
    "Pinned": _answer("Done.", thread_id=TEXT, id=TEXT, pinned=FLAG),
    "Collected": _answer(
        "What was removed, or would be.",
        threads=COUNT,
        checkpoints=COUNT,
        hidden=COUNT,
        objects=COUNT,
        size_bytes=COUNT,
        dry_run=FLAG,
    ),
    "Branches": _answer(
        "A family of threads.",
        thread_id=TEXT,
        branches=_list(
            _object(
                "One of them, with its head.",
                thread_id=TEXT,
                name=TEXT,
                is_branch=FLAG,
                archived=FLAG,
                origin=_or_null(TEXT),
                id=TEXT,
                step=_or_null(WHOLE),
                updated_at=TEXT,
            )
        ),
    ),
    "Branch": _answer("What a branch is called, and whether it is archived.", thread_id=TEXT, name=TEXT, archived=FLAG),
    "Noted": _answer("What is noted.", thread_id=TEXT, id=TEXT, step=WHOLE, note=TEXT),
    "Deleted": _answer("What is gone, or would be.", threads=_list(TEXT), checkpoints=COUNT, dry_run=FLAG),
    "Imported": _answer(
        "What came with a file.",
        threads=COUNT,
        checkpoints=COUNT,
        objects=COUNT,
        bytes=COUNT,
        skipped=COUNT,
        verified=COUNT,
        thread_ids=_list(TEXT),
        kept_ids=_list(TEXT),
    ),
}
