"""What the JSON of each command looks like. Nothing may be missing, and nothing may be of another type."""

from __future__ import annotations

from typing import Any

import jsonschema

TEXT = {"type": "string"}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d"}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}
ANY: dict[str, Any] = {}
OBJECT = {"type": "object"}


def fields(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def document(**properties: Any) -> dict[str, Any]:
    """Return the schema of a whole answer."""
    return fields(schema={"const": "everstep/v1"}, **properties)


THREAD = fields(
    thread_id=TEXT,
    name=TEXT,
    archived=FLAG,
    kind={"enum": ["engine", "langgraph", "task", "run"]},
    status={"enum": [None, "failed", "waiting", "interrupted", "running", "ready", "done", "paused"]},
    steps=COUNT,
    updated_at=TIME,
    summary=TEXT,
    tags=TEXTS,
    metadata=OBJECT,
    branches=COUNT,
    origin=maybe(TEXT),
    head=TEXT,
)
DAMAGE = maybe(fields(reason=TEXT, hint=TEXT))
ROW = fields(
    id=TEXT,
    ref=TEXT,
    thread_id=TEXT,
    namespace=TEXT,
    step={"type": "integer"},
    kind={"enum": ["input", "llm", "tool", "state", "fork", "merge", "interrupt", "error"]},
    title=TEXT,
    damage=DAMAGE,
    trigger=TEXT,
    next_node=TEXT,
    tags=TEXTS,
    chips=listed(fields(text=TEXT, tone={"enum": ["branch", "warn", "error", "plain", "note"]}, lane=COUNT)),
    head=FLAG,
    active=FLAG,
    pinned=FLAG,
    hidden=FLAG,
    created_at=TIME,
    duration_ms=maybe({"type": "number"}),
    tokens=maybe({"type": "number"}),
    cost=maybe({"type": "number"}),
    added_bytes=COUNT,
    parents=TEXTS,
)
_LANES = {"lane": COUNT, "edges": listed(OBJECT)}
_UNKNOWN = {
    "kind": {"const": "damaged"},
    "step": {"type": "null"},
    "created_at": {"const": ""},
    "added_bytes": {"type": "null"},
}
DAMAGED = {**ROW, "properties": {**ROW["properties"], **_LANES, **_UNKNOWN}}
PLACED = {**ROW, "properties": {**ROW["properties"], **_LANES}}
_ROWS = listed({"anyOf": [PLACED, DAMAGED]})
NAMED = fields(id=TEXT, ref=TEXT, thread_id=TEXT, step=maybe({"type": "integer"}))
CHANGES = {
    "state": listed(
        fields(
            op={"enum": ["added", "removed", "changed"]}, path=TEXT, before=ANY, after=ANY, words=maybe(listed(TEXTS))
        )
    ),
    "messages": listed(
        fields(op={"enum": ["added", "removed", "changed"]}, id=ANY, index=ANY, role=maybe(TEXT), before=ANY, after=ANY)
    ),
}
COMPARED = fields(a=maybe(NAMED), b=NAMED, counts=OBJECT, patch=maybe(listed(OBJECT)), **CHANGES)
CONFLICT = fields(path=TEXT, base=ANY, ours=ANY, theirs=ANY)
MESSAGE = fields(
    index=COUNT, id=ANY, role=maybe(TEXT), text=TEXT, parts=listed(OBJECT), tool_calls=listed(OBJECT), raw=ANY
)
_DETAIL = {**ROW["properties"], "parents": listed(NAMED)}
OPERATION = fields(id=COUNT, kind=TEXT, created_at=TIME, undone=FLAG, details=OBJECT)
ERROR = document(error=fields(code=TEXT, message=TEXT, hint=TEXT))
RUN_STATUS = {"enum": ["running", "interrupted", "waiting", "ready", "done", "failed", "paused"]}
_WAIT = {
    "kind": {"enum": ["ask", "event", "sleep"]}, "key": TEXT, "question": maybe(TEXT), "event": maybe(TEXT),
    "until": maybe(TIME), "effect": maybe(TEXT),
}  # fmt: skip
_RUN = {
    "thread_id": TEXT, "name": TEXT, "status": RUN_STATUS, "steps": COUNT, "updated_at": TIME, "head": TEXT,
    "summary": TEXT, "waits": listed(fields(**_WAIT)),
}  # fmt: skip
ENTRY = fields(
    op=TEXT, key=TEXT, name=TEXT, status=maybe(TEXT), effect=maybe(TEXT), tries=maybe(COUNT), failures=TEXTS,
    seconds=maybe({"type": "number"}), until=maybe(TIME), text=TEXT, step=COUNT, id=TEXT, ref=TEXT, created_at=TIME,
    hidden=FLAG,
)  # fmt: skip
_COLLECTED = {
    "threads": COUNT, "checkpoints": COUNT, "hidden": COUNT, "objects": COUNT, "size_bytes": COUNT, "dry_run": FLAG,
    "retention": fields(policy=TEXT, param={"type": "number"}, source=TEXT),
}  # fmt: skip
_DELETED = document(threads=TEXTS, checkpoints=COUNT, dry_run=FLAG)
_BRANCH = document(thread_id=TEXT, name=TEXT, archived=FLAG)
_PINNED = document(thread_id=TEXT, id=TEXT, step=COUNT, pinned=FLAG)

DOCUMENTS: dict[str, dict[str, Any]] = {
    "threads": document(threads=listed(THREAD), cursor=maybe(TEXT)),
    "log": document(
        thread_id=TEXT, rows=_ROWS, cursor=maybe(TEXT), total=COUNT, counts=OBJECT, hidden_by_filter=COUNT,
        lanes=COUNT, damage=DAMAGE,
    ),
    "tail": PLACED,
    "show": document(
        **_DETAIL, children=listed(NAMED), metadata=OBJECT, size_bytes=COUNT, messages=COUNT, state_keys=TEXTS,
        writes=listed(OBJECT), tools_result=ANY, error=maybe(OBJECT), changes=COMPARED, state=OBJECT,
        copy=fields(python=TEXT, cli=TEXT, curl=TEXT),
        transcript=fields(messages=listed(MESSAGE), cursor=maybe(TEXT), total=COUNT),
    ),
    "get": ANY,
    "diff": {**COMPARED, "required": [*COMPARED["required"], "schema"]},
    "blame": document(
        thread_id=TEXT, path=TEXT, changes=listed(ROW), left_out=listed(fields(id=TEXT, reason=TEXT)),
        damage=DAMAGE, looked_at=COUNT, cursor=maybe(TEXT),
    ),
    "rewind": document(thread_id=TEXT, id=TEXT, step=COUNT, left_behind=COUNT, later=TEXT, dry_run=FLAG),
    "fork": document(thread_id=TEXT, id=TEXT, ref=TEXT, step=COUNT),
    "merge": document(
        source=TEXT, into=TEXT, auto=COUNT, conflicts=listed(CONFLICT), resolved=COUNT, dry_run=FLAG, id=maybe(TEXT)
    ),
    "replay": document(
        ref=TEXT, next_node=TEXT, waits=listed(OBJECT), results=listed(OBJECT), again=TEXTS, python=TEXT
    ),
    "stats": document(
        thread_id=maybe(TEXT), threads=COUNT, checkpoints=COUNT, total_bytes=COUNT, full_bytes=COUNT,
        ratio=maybe({"type": "number"}), record_bytes=COUNT, exclusive_bytes=COUNT, shared_bytes=COUNT,
        left_out=COUNT, damage=DAMAGE,
    ),
    "export": document(file=TEXT, threads=COUNT, checkpoints=COUNT, objects=COUNT, bytes=COUNT),
    "backup": document(folder=TEXT, number=COUNT, threads=COUNT, checkpoints=COUNT, bytes=COUNT, unchanged=COUNT),
    "restore": document(threads=COUNT, checkpoints=COUNT, objects=COUNT, bytes=COUNT, skipped=COUNT, verified=COUNT),
    "import": document(
        threads=COUNT, checkpoints=COUNT, objects=COUNT, bytes=COUNT, skipped=COUNT, verified=COUNT, thread_ids=TEXTS,
        kept_ids=TEXTS,
    ),
    "undo": document(thread_id=TEXT, undo=OPERATION),
    "redo": document(thread_id=TEXT, redo=OPERATION),
    "ops": document(thread_id=TEXT, operations=listed(OPERATION)),
    "branch list": document(
        thread_id=TEXT,
        branches=listed(
            fields(name=TEXT, thread_id=TEXT, archived=FLAG, origin=maybe(TEXT), id=TEXT, step=COUNT, updated_at=TIME)
        ),
    ),
    "branch rename": _BRANCH,
    "branch archive": _BRANCH,
    "branch unarchive": _BRANCH,
    "note": document(thread_id=TEXT, id=TEXT, step=COUNT, note=TEXT),
    "branch delete": _DELETED,
    "tag REF": document(thread_id=TEXT, id=TEXT, step=COUNT, tag=TEXT, given=FLAG),
    "tag": document(thread_id=TEXT, tags=listed(fields(tag=TEXT, checkpoints=COUNT, newest=TEXT, step=COUNT))),
    "pin": _PINNED,
    "unpin": _PINNED,
    "copy": document(threads=COUNT, checkpoints=COUNT, objects=COUNT, bytes=COUNT, skipped=COUNT, verified=COUNT),
    "import-langgraph": document(threads=COUNT, checkpoints=COUNT, writes=COUNT, skipped=COUNT, verified=COUNT),
    "retention show": document(policy=TEXT, param={"type": "number"}, source=TEXT),
    "retention plan": document(**_COLLECTED),
    "retention apply": document(**_COLLECTED),
    "gc": document(**_COLLECTED),
    "rm": _DELETED,
    "purge": _DELETED,
    "migrate": document(store=TEXT, up_to_date=FLAG),
    "verify": document(
        ok=FLAG, threads=COUNT, checkpoints=COUNT, objects=COUNT, bytes=COUNT, damaged_threads=TEXTS,
        findings=listed(fields(kind=TEXT, what=TEXT, thread_id=maybe(TEXT), checkpoint_id=maybe(TEXT), threads=TEXTS)),
    ),
    "repair": document(ok=FLAG, found=listed(OBJECT), actions=TEXTS, threads=TEXTS, left=listed(OBJECT), dry_run=FLAG),
    "doctor": document(
        status={"enum": ["ok", "warn", "fail"]},
        checks=listed(fields(check=TEXT, status={"enum": ["ok", "warn", "fail"]}, message=TEXT, advice=TEXT)),
    ),
    "runs": document(runs=listed(fields(**_RUN)), cursor=maybe(TEXT), more=FLAG),
    "run": document(
        **{**_RUN, "waits": listed(fields(**_WAIT, details=ANY))}, origin=maybe(TEXT), entries=listed(ENTRY),
        cursor=maybe(TEXT), arguments=maybe(fields(args=ANY, kwargs=ANY)), result=ANY,
        error=maybe(fields(type=TEXT, message=TEXT)),
        branches=listed(fields(thread_id=TEXT, name=TEXT, status=RUN_STATUS, origin=maybe(TEXT), updated_at=TIME)),
        effects=listed(
            fields(key=TEXT, name=TEXT, status=TEXT, thread_id=TEXT, undo=maybe(TEXT), at=TIME, result=ANY)
        ),
    ),
    "answer": document(thread_id=TEXT, id=TEXT, status=RUN_STATUS),
    "signal": document(thread_id=TEXT, id=TEXT, event=TEXT, status=RUN_STATUS),
    "resume": document(thread_id=TEXT, name=TEXT, status=RUN_STATUS, result=ANY, waits=TEXTS),
    "recover": document(
        runs=listed(fields(thread_id=TEXT, name=TEXT, status=RUN_STATUS, head=TEXT, updated_at=TIME))
    ),
    "demo": document(store=TEXT, threads=TEXTS, left_out=TEXTS),
    "config": document(store=TEXT, kind=TEXT, source=TEXT, files=TEXTS, profiles=TEXTS),
    "completion": document(shell=TEXT, script=TEXT),
}  # fmt: skip
"""By command. `ui` has none: it serves the page until it is stopped."""


def check(command: str, answer: Any) -> None:
    """Fail if an answer of a command is not as its schema says."""
    jsonschema.validate(answer, DOCUMENTS[command])
