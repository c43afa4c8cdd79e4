"""One checkpoint as a row: what kind of step it was, what a person would call it, its marks and figures."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from everstep.config import SnapshotTrigger
from everstep.errors import CheckpointCorrupted
from everstep.history.adapter import described, is_own
from everstep.history.checkpoint_tree import branch_name
from everstep.history.given_tags import NO_CHANGES, TagChanges
from everstep.history.labels import NO_LABELS, Labels
from everstep.stores.protocol import Key, Record, Stored, Write
from everstep.views import errors, run_steps
from everstep.views.texts import as_text, branch_of, called, one_line, plain_text

DAMAGED = "damaged"
"""A checkpoint that is there and cannot be read."""
KINDS = ("input", "llm", "tool", "state", "fork", "merge", "interrupt", "error", DAMAGED)

_OWN_TAGS = frozenset(trigger.value for trigger in SnapshotTrigger) | {"branch", "merge", "error"}
_SOURCES = frozenset(("input", "loop", "update", "fork"))
# Summaries that the engine makes of the newest message: its role in brackets, then its text.
_MESSAGE = re.compile(r"\[([^\]\n]{1,40})\] ?(.*)", re.DOTALL)
# Summaries that a decorated call makes: its name, and how it ended.
_CALL = re.compile(r"(.+): (started|ok|error|cancelled|closed)", re.DOTALL)
_ENDINGS = {
    "started": "started",
    "ok": "answered",
    "error": "failed",
    "cancelled": "was cancelled",
    "closed": "was stopped",
}
_ROLES = {
    "user": "input",
    "human": "input",
    "assistant": "llm",
    "ai": "llm",
    "AIMessageChunk": "llm",
    "model": "llm",
    "tool": "tool",
    "function": "tool",
    "system": "input",
    "developer": "input",
}
_START = "__start__"


class Seen(NamedTuple):
    """What is known of a checkpoint besides its own record."""

    ran: Sequence[str] = ()
    """The nodes of a graph that made it."""
    question: str | None = None
    """What it waits for an answer to; None: for nothing."""
    was_asked: bool = False
    """It asked something that was answered."""
    failure: str | None = None
    """Why the step after it has failed."""
    was_retried: bool = False
    """A step after it failed, and then did not."""
    message: Any = None
    """The newest message, if it was looked at."""
    tag_changes: TagChanges = NO_CHANGES
    """Tags that were given to it or taken from it later."""
    note: str = ""
    """What somebody noted about it."""
    labels: Labels = NO_LABELS
    """What was said about its thread."""
    damage: CheckpointCorrupted | None = None
    """Why it, or what it holds, cannot be read."""


NOTHING = Seen()


def row_of(
    stored: Stored, seen: Seen, heads: Collection[Key], asked: str, *, next_node: str | None = None
) -> dict[str, Any]:
    """Return a row without its place in the graph; `asked` is the thread that somebody looks at."""
    record = stored.record
    key = record.key
    tags = [one_line(tag, 80) for tag in seen.tag_changes.applied_to(described(record)[0])]
    kind = kind_of(stored, seen)
    is_head = key in heads
    return {
        "id": key.checkpoint_id,
        "ref": f"{key.thread_id}@{key.checkpoint_id}",
        "thread_id": key.thread_id,
        "namespace": key.namespace,
        "step": record.step,
        "kind": kind,
        "title": title_of(stored, seen, kind),
        "damage": damage_as_json(seen.damage),
        "trigger": record.trigger,
        "next_node": one_line(record.next_node if next_node is None else next_node),
        "tags": tags,
        "note": plain_text(seen.note),
        "chips": _chips(stored, seen, is_head=is_head, asked=asked, kind=kind),
        "head": is_head,
        "active": is_head and key.thread_id == asked and not key.namespace,
        "pinned": stored.pinned,
        "hidden": stored.hidden,
        "created_at": one_line(record.created_at, 64),
        "duration_ms": run_steps.duration_ms(record) if run_steps.is_run(record) else _duration_ms(record.metadata),
        "tokens": tokens_of(record.metadata, seen.message),
        "cost": _number(record.metadata, ("cost", "cost_usd", "total_cost")),
        "added_bytes": stored.added_bytes,
        "parents": [parent.checkpoint_id for parent in record.parents],
    }


def damaged_row(stored: Stored, damage: CheckpointCorrupted, heads: Collection[Key], asked: str) -> dict[str, Any]:
    """Return the row of a checkpoint that cannot be read: its place and name, why, and what helps."""
    row = row_of(stored, Seen(damage=damage), heads, asked)
    return row | {
        # Nobody knows which step it was.
        "step": None,
        "kind": DAMAGED,
        "title": one_line(f"Cannot be read: {damage.reason}"),
        "added_bytes": None,
    }


def damage_as_json(damage: CheckpointCorrupted | None) -> dict[str, Any] | None:
    """Return why something cannot be read, and the commands that help; None if it can."""
    if damage is None:
        return None
    return {"reason": plain_text(str(damage.reason)), "hint": errors.hint(damage)}


# -- kinds


def kind_of(stored: Stored, seen: Seen = NOTHING) -> str:
    """Return what kind of step a checkpoint is."""
    record = stored.record
    if "error" in record.tags or seen.failure is not None or _error(record.metadata) is not None:
        return "error"
    # An empty question is one, too: somebody has to answer.
    if seen.question is not None:
        return "interrupt"
    if branch_name(record.tags) is not None and (record.step == 0 or not is_own(record.kind)):
        return "fork"
    if "merge" in record.tags and len(record.parents) > 1:
        return "merge"
    if is_own(record.kind):
        return _kind_of_step(stored)
    return _kind_of_graph(stored, seen)


def _kind_of_step(stored: Stored) -> str:
    record = stored.record
    of_run = run_steps.kind_of(record)
    if of_run is not None:
        return of_run
    if record.trigger == SnapshotTrigger.LLM_CALL:
        return "llm"
    if record.trigger == SnapshotTrigger.TOOL_CALL:
        call = _CALL.fullmatch(record.summary)
        if call is not None and call[2] == "error":
            return "error"
        return "tool"
    # Other triggers tell nothing about who acted, so the newest message does, as far as the summary quotes it.
    said = _MESSAGE.fullmatch(record.summary)
    if record.trigger == SnapshotTrigger.STATE_CHANGE or said is None:
        return "state"
    return _ROLES.get(said[1], "state")


def _kind_of_graph(stored: Stored, seen: Seen) -> str:
    source = stored.record.metadata.get("source")
    if source == "fork":
        return "fork"
    if source == "input" or list(seen.ran) == [_START]:
        return "input"
    role = role_of(seen.message)
    if role is not None:
        return _ROLES.get(role, "state")
    return "state"


def needs_message(stored: Stored) -> bool:
    """Whether only the newest message tells what a step is called: the answer of a tool, by its name."""
    record = stored.record
    if not is_own(record.kind) or (record.trigger and record.trigger not in ("tool_call", "manual")):
        return False
    said = _MESSAGE.match(record.summary)
    return said is not None and _ROLES.get(said[1]) == "tool"


def role_of(message: Any) -> str | None:
    """Return who says a message: `role`, or `type` as LangChain has it."""
    if type(message) is not dict:
        return None
    return as_text(message.get("role")) or as_text(message.get("type"))


# -- titles


def title_of(stored: Stored, seen: Seen, kind: str) -> str:
    """Return what a person would call the step."""
    record = stored.record
    if seen.failure is not None:
        return one_line(seen.failure)
    if seen.question:
        return one_line(f"Asks: {seen.question}")
    if seen.question is not None:
        return "Waits for an answer"
    if kind == "fork":
        return _title_of_fork(record)
    if kind == "merge":
        return one_line(f"Merge {branch_of(record.parents[1].thread_id)}")
    if not is_own(record.kind):
        return _title_of_graph(stored, seen)
    return run_steps.title_of(record) or _title_of_step(record, seen, kind)


def _title_of_fork(record: Record) -> str:
    name = branch_name(record.tags)
    if name is None:
        return "Fork"
    return one_line(f"Branch {name}")


def _title_of_step(record: Record, seen: Seen, kind: str) -> str:
    """Return what a person would call a step of the engine's own."""
    call = _CALL.fullmatch(record.summary)
    if call is not None and record.trigger in ("tool_call", "llm_call"):
        return one_line(f"{call[1]} {_ENDINGS[call[2]]}")
    error = _error(record.metadata)
    if error is not None:
        return one_line(error)
    if kind == "tool" and seen.message is not None:
        return _message_title(seen.message) or one_line(record.summary)
    said = _MESSAGE.fullmatch(record.summary)
    if said is not None:
        return one_line(said[2]) or _message_title(seen.message) or one_line(said[1])
    if record.summary.startswith("State: "):
        return "State saved"
    return one_line(record.summary) or "Step"


def _title_of_graph(stored: Stored, seen: Seen) -> str:
    record = stored.record
    if record.summary:
        return one_line(record.summary)
    said = _message_title(seen.message)
    if said:
        return said
    nodes = ", ".join(name for name in seen.ran if name != _START)
    if nodes:
        return one_line(nodes)
    names = {"input": "Input", "update": "State edited", "fork": "Fork"}
    source = record.metadata.get("source")
    # Somebody else's metadata may be anything.
    if type(source) is not str:
        return "Step"
    return names.get(source, "Step")


def _message_title(message: Any) -> str:
    """Return what a message says, or what it does if it says nothing."""
    if type(message) is not dict:
        return ""
    role = role_of(message)
    name = as_text(message.get("name"))
    if role in ("tool", "function") and name:
        if message.get("status") == "error" or message.get("is_error") is True:
            return one_line(f"{name} failed")
        return one_line(f"{name} answered")
    text = one_line(text_of(message.get("content")))
    calls = call_names(message)
    if not text and calls:
        return one_line(f"calls {', '.join(calls)}")
    return text


def text_of(content: Any) -> str:
    """Return the text of what a message holds: text, or blocks of it."""
    if type(content) is str:
        return content
    if type(content) is not list:
        return ""
    texts: list[str] = []
    for block in content:
        if type(block) is str:
            texts.append(block)
        elif type(block) is dict and type(block.get("text")) is str:
            texts.append(block["text"])
    return "\n".join(texts)


def call_names(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that a message calls."""
    names: list[Any] = []
    for call in dicts_in(message.get("tool_calls")):
        function = call.get("function")
        if type(function) is dict:
            call = function
        names.append(call.get("name"))
    for block in dicts_in(message.get("content")):
        if block.get("type") == "tool_use":
            names.append(block.get("name"))
    return [name for name in names if type(name) is str]


def dicts_in(value: Any) -> list[dict[str, Any]]:
    """Return the dicts in a list; nothing if it is none. What agents keep may have any shape."""
    if type(value) is not list:
        return []
    return [item for item in value if type(item) is dict]


# -- marks


def _chips(stored: Stored, seen: Seen, *, is_head: bool, asked: str, kind: str) -> list[dict[str, Any]]:
    record = stored.record
    key = record.key
    chips: list[dict[str, Any]] = []
    if key.namespace:
        chips.append(_chip(one_line(key.namespace.partition(":")[0], 40), "plain"))
    elif is_head and key.thread_id == asked:
        chips.append(_chip("HEAD", "branch"))
    elif is_head:
        chips.append(_chip(called(key.thread_id, seen.labels), "branch"))
    if not record.parents and record.step <= 1 and not key.namespace and seen.damage is None:
        chips.append(_chip("start", "plain"))
    marks = (
        (kind == "interrupt", "waits", "warn"),
        (kind == "error", "failed", "error"),
        (seen.damage is not None, DAMAGED, "error"),
        (seen.was_asked, "asked", "plain"),
        (seen.was_retried, "retried", "warn"),
        (stored.pinned, "pinned", "plain"),
        (stored.hidden, "hidden", "plain"),
        (is_head and seen.labels.is_archived, "archived", "plain"),
    )
    for is_so, text, tone in marks:
        if is_so:
            chips.append(_chip(text, tone))
    chips += starmap(_chip, run_steps.marks_of(record))
    for tag in seen.tag_changes.applied_to(_given_tags(record)):
        chips.append(_chip(one_line(tag, 40), "plain"))
    if seen.note:
        chips.append(_chip(one_line(seen.note, 60), "note"))
    return chips


def _given_tags(record: Record) -> list[str]:
    """Return the tags that people gave; what the others say stands in the title or in other chips."""
    own = _OWN_TAGS
    if not is_own(record.kind):
        own |= _SOURCES
    if run_steps.is_run(record):
        own |= run_steps.TAGS
    branch = branch_name(record.tags)
    return [tag for tag in record.tags if tag not in own and tag != branch]


def _chip(text: str, tone: str) -> dict[str, Any]:
    return {"text": text, "tone": tone, "lane": 0}


# -- figures


def _error(metadata: Mapping[str, Any]) -> str | None:
    """Return what the metadata says of a failure."""
    error = metadata.get("error")
    if type(error) is dict:
        return _error_line(error)
    return as_text(error) or None


def _error_line(error: Mapping[str, Any]) -> str:
    """Return the type and the text of an exception as it is kept."""
    kind = as_text(error.get("type")) or "Error"
    message = as_text(error.get("message")) or as_text(error.get("text"))
    if not message:
        return kind
    return f"{kind}: {message}"


def error_of(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the failure that the metadata tells of."""
    error = metadata.get("error")
    if type(error) is dict:
        return {
            "type": as_text(error.get("type")) or "Error",
            "message": as_text(error.get("message")) or as_text(error.get("text")) or "",
            "traceback": as_text(error.get("traceback")),
        }
    text = _error(metadata)
    if text is None:
        return None
    return {"type": "Error", "message": text, "traceback": None}


def _duration_ms(metadata: Mapping[str, Any]) -> float | None:
    millis = _number(metadata, ("duration_ms", "elapsed_ms", "latency_ms"))
    if millis is not None:
        return millis
    seconds = _number(metadata, ("duration_seconds", "seconds", "duration", "elapsed", "latency"))
    if seconds is None:
        return None
    return seconds * 1000


def tokens_of(metadata: Mapping[str, Any], message: Any = None) -> float | None:
    """Return how many tokens a step took, if somebody has noted it: in its metadata, or in its newest message."""
    found = _number(metadata, ("tokens", "total_tokens"))
    if found is not None:
        return found
    holders: list[Any] = [metadata]
    if type(message) is dict:
        holders += [message, message.get("response_metadata")]
    for holder in holders:
        if not isinstance(holder, Mapping):
            continue
        for name in ("usage_metadata", "usage", "token_usage"):
            counted = _counted(holder.get(name))
            if counted is not None:
                return counted
    return None


def _counted(usage: Any) -> float | None:
    if type(usage) is not dict:
        return None
    total = _number(usage, ("total_tokens", "total"))
    if total is not None:
        return total
    parts = [
        _number(usage, ("input_tokens", "prompt_tokens")),
        _number(usage, ("output_tokens", "completion_tokens")),
    ]
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return sum(known)


def _number(metadata: Mapping[str, Any], names: Sequence[str]) -> float | None:
    for name in names:
        found = metadata.get(name)
        if isinstance(found, (int, float)) and not isinstance(found, bool) and 0 <= found < 1e15:
            return found
    return None


# -- what pending writes tell


class Pending(NamedTuple):
    """The pending writes of a checkpoint that say how the step after it went."""

    question: Write | None = None
    """Waits for an answer."""
    was_asked: bool = False
    failure: Write | None = None
    was_retried: bool = False


def pending_of(writes: Sequence[Write]) -> Pending:
    """Return what the pending writes of a LangGraph checkpoint tell."""
    done = {write.task_id for write in writes if write.idx >= 0}
    answered = {write.task_id for write in writes if write.channel == "__resume__"}
    question: Write | None = None
    failure: Write | None = None
    was_asked = was_retried = False
    for write in writes:
        if write.channel == "__interrupt__":
            if write.task_id in done or write.task_id in answered:
                was_asked = True
            else:
                question = question or write
        elif write.channel == "__error__":
            if write.task_id in done:
                was_retried = True
            else:
                failure = failure or write
    return Pending(question, was_asked, failure, was_retried)


def nodes_of(writes: Sequence[Write]) -> list[str]:
    """Return the nodes of a graph that wrote these, in order."""
    names: dict[str, None] = {}
    for write in writes:
        kind, _, name = write.task_path.partition(", ")
        # Other tasks are known by a number, which tells people nothing.
        if kind.endswith("__pregel_pull") and name and write.idx >= 0:
            names[one_line(name, 80)] = None
    return list(names)


def question_text(value: Any) -> str:
    """Return what an interrupt asks, in one line."""
    asked = value
    # Interrupts come as tuples of lists of objects, one inside the other.
    while type(asked) in (list, tuple) and asked:
        asked = asked[0]
    if type(asked) is dict and "value" in asked:
        asked = asked["value"]
    if type(asked) is dict:
        for name in ("question", "prompt", "message", "text", "title", "description"):
            if type(asked.get(name)) is str:
                return one_line(asked[name])
        return one_line(", ".join(key for key in asked if type(key) is str))
    return one_line(as_text(asked) or "")


def failure_text(value: Any) -> str:
    """Return what failed, in one line: the text of an exception as it is kept."""
    if type(value) is dict:
        return one_line(_error_line(value))
    if type(value) is str:
        return one_line(value)
    return "Failed"
