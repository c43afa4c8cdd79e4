"""What a checkpoint of a durable run tells of its steps, from its record alone: titles, kinds, marks, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everstep.durable.entries import ENTRIES
from everstep.stores.protocol import Record
from everstep.types import RUN_KIND
from everstep.views.texts import as_text, one_line

TAGS = frozenset(("start", "done", "answer", "event"))
"""Tags that runs give to their checkpoints; what they say stands in the title."""

_FROM_OUTSIDE = frozenset(("start", "answer", "event"))


def is_run(record: Record) -> bool:
    """Whether a checkpoint belongs to a durable run."""
    return record.kind == RUN_KIND


def entries_of(record: Record) -> list[Mapping[str, Any]]:
    """Return what a checkpoint of a run records."""
    return [each for each in _dicts(record, ENTRIES) if "op" in each]


def _dicts(record: Record, name: str) -> list[Mapping[str, Any]]:
    """Return what the metadata of a run lists; nothing if somebody has put something else there."""
    found = record.metadata.get(name)
    # Anybody may put metadata of this name on a checkpoint that is no run's.
    if not is_run(record) or not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, dict)]


def _steps_of(record: Record) -> list[Mapping[str, Any]]:
    return [each for each in entries_of(record) if each["op"] == "step"]


def waits_of(record: Record) -> list[Mapping[str, Any]]:
    """Return what a run waits for, as of a checkpoint."""
    return _dicts(record, "run_waits")


def question_of(record: Record) -> str | None:
    """Return the first question that a run waits for an answer to."""
    for wait in waits_of(record):
        if wait.get("kind") == "ask":
            return text_of(wait, "question")
    return None


def kind_of(record: Record) -> str | None:
    """Return what kind of row it is; None: as the trigger says."""
    ops = {str(each["op"]) for each in entries_of(record)}
    if "step" in ops:
        return "tool"
    if ops & _FROM_OUTSIDE:
        return "input"
    return None


def title_of(record: Record) -> str:
    """Return what a person would call it; "" if it records nothing."""
    titles = [_steps_title(_steps_of(record))]
    for each in entries_of(record):
        titles.append(title_of_entry(record, each))
    return one_line(", ".join(filter(None, titles)))


def _steps_title(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return steps that were recorded together in one line, those that failed last."""
    done: list[str] = []
    parts: list[str] = []
    for each in steps:
        if each.get("status") == "ok":
            done.append(text_of(each, "key"))
        else:
            parts.append(_failed_step(each))
    if done:
        parts.insert(0, f"{', '.join(done)} done")
    return one_line(", ".join(parts))


def _failed_step(about: Mapping[str, Any]) -> str:
    title = f"{text_of(about, 'key')} failed"
    failures = about.get("failures")
    if isinstance(failures, list) and failures and isinstance(failures[-1], str):
        title += f": {failures[-1]}"
    return title


def title_of_entry(record: Record, about: Mapping[str, Any]) -> str:
    """Return what a person would call one thing that is no step; "" if it is not worth a word."""
    name = as_text(record.metadata.get("run")) or "run"
    match about["op"]:
        case "start":
            return f"{text_of(about, 'name') or name} started"
        case "end" if about.get("status") == "failed":
            return f"{name} failed: {text_of(about, 'error')}"
        case "end":
            return f"{name} done"
        case "resume":
            return f"{name} taken up again"
        case "ask":
            return f"Asked: {text_of(about, 'question')}"
        case "answer":
            return f"Answer to: {text_of(about, 'question') or text_of(about, 'key')}"
        case "event":
            return f"Event {text_of(about, 'event')}"
        case "sleep":
            return "Sleeps"
        case "wait" if about.get("event"):
            return f"Waits for the event {text_of(about, 'event')}"
        case "wait":
            return record.summary.partition(": ")[2].capitalize()
        case _:
            return ""


def marks_of(record: Record) -> list[tuple[str, str]]:
    """Return marks, each with its tone: how often a step was tried, and that it is performed once."""
    marks: list[tuple[str, str]] = []
    steps = _steps_of(record)
    tries = max([number_of(each, "tries") or 0 for each in steps], default=0)
    if tries > 1:
        marks.append((f"{tries:.0f} tries", "warn"))
    if any(each.get("effect") == "once" for each in steps):
        marks.append(("once", "plain"))
    return marks


def duration_ms(record: Record) -> float | None:
    """Return how long the longest of its steps took."""
    times = [number_of(each, "seconds") for each in _steps_of(record)]
    # Steps that run at once are recorded together, so their times must not be added up.
    known = [seconds * 1000 for seconds in times if seconds is not None]
    return max(known, default=None)


def number_of(about: Mapping[str, Any], name: str) -> float | None:
    """Return a number of an entry, if it is one."""
    found = about.get(name)
    # Metadata may have been written by anybody, and a page must not show an infinite number of tries.
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1e15:
        return None
    return found


def text_of(about: Mapping[str, Any], name: str) -> str:
    """Return a text of an entry; "" if there is none."""
    return as_text(about.get(name)) or ""
