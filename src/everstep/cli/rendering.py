"""Views as text: rows of a history, one checkpoint, differences, conversations. Everything from a store is cleaned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everstep.cli import text
from everstep.cli.output import Output, to_json

_KIND_STYLES = {"error": "red", "interrupt": "yellow", "merge": "magenta", "fork": "magenta", "input": "cyan"}
_CHIP_STYLES = {"branch": "green", "warn": "yellow", "error": "red"}
_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_WORD_STYLES = {"-": "red", "+": "green"}
_WORD_SIGNS = {"-": ("[-", "-]"), "+": ("{+", "+}")}
_VALUE_CHARS_MAX = 200
_WORDS_CHARS_MAX = 2000

Row = Mapping[str, Any]


def row_columns(output: Output) -> tuple[str, ...]:
    """Return the columns of rows of a history; a program that reads them needs no heading."""
    if not output.is_terminal:
        return ()
    return ("step", "id", "when", "kind", "what", "marks")


def row_cells(output: Output, row: Row, changed: Mapping[str, Any] | None = None) -> list[str]:
    """Return one row of a history: short for people, whole for programs."""
    title = text.clean(row["title"])
    if changed is not None and changed.get("text"):
        title += output.paint(f" · {text.clean(changed['text'])}", "dim")
    if not output.is_terminal:
        marks = ",".join(text.clean(chip["text"]) for chip in row["chips"])
        return [step_text(row), text.clean(row["id"]), text.clean(row["created_at"]), row["kind"], title, marks]
    kind = output.paint(row["kind"], _KIND_STYLES.get(row["kind"], "dim"))
    step = f"#{step_text(row)}"
    if row["head"]:
        step = output.paint(step, "bold")
    when = output.paint(text.describe_age(row["created_at"]), "dim")
    return [step, output.paint(text.short_id(row["id"]), "yellow"), when, kind, title, chips_text(output, row["chips"])]


def step_text(row: Row) -> str:
    """Return the number of a step; of a checkpoint that cannot be read nobody knows it."""
    return "?" if row["step"] is None else str(row["step"])


def chips_text(output: Output, chips: Sequence[Mapping[str, Any]]) -> str:
    """Return the marks of a row, side by side."""
    return " ".join(output.paint(text.clean(chip["text"]), _CHIP_STYLES.get(chip["tone"], "dim")) for chip in chips)


def show_facts(output: Output, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values below one another; those without a value are left out."""
    given = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        output.line(f"{output.paint(f'{name:<{width}}', 'dim')}  {value}")


def show_checkpoint(output: Output, found: Row) -> None:
    """Print what one checkpoint is."""
    marks = chips_text(output, found["chips"])
    output.line(f"{output.paint(text.clean(found['title']), 'bold')}  {marks}".rstrip())
    parents: list[str] = []
    for parent in found["parents"]:
        # One that more is told about.
        if not isinstance(parent, str):
            parent = parent.get("ref", "")
        parents.append(text.clean(parent))
    size = f"{text.describe_bytes(found['size_bytes'])}, added {text.describe_bytes(found['added_bytes'])}"
    metadata = ""
    if found["metadata"]:
        metadata = brief(found["metadata"])
    show_facts(
        output,
        (
            ("checkpoint", text.clean(found["ref"])),
            ("step", f"{found['step']}, {found['kind']}"),
            ("made", f"{text.describe_age(found['created_at'])}, {text.clean(found['created_at'])}"),
            ("took", _cost_text(found)),
            ("parents", ", ".join(parents)),
            ("next", text.clean(found["next_node"])),
            ("tags", ", ".join(map(text.clean, found["tags"]))),
            ("note", text.clean(found["note"])),
            ("metadata", metadata),
            ("size", size),
            ("messages", f"{found['messages']:,}"),
            ("state", text.cut(", ".join(map(text.clean, found["state_keys"])), 300)),
        ),
    )


def tell_damage(output: Output, damage: Row | None) -> None:
    """Say on standard error that something cannot be read, and what helps, if that is so."""
    if damage is None:
        return
    # Also where nobody looks at a terminal: what is missing must not pass unnoticed.
    output.note(f"not all can be read: {text.clean(damage['reason'])}")
    output.note(text.clean(damage["hint"]))


def _cost_text(found: Row) -> str:
    """Return what a step took, as far as somebody has noted it."""
    parts: list[str] = []
    if found["duration_ms"] is not None:
        parts.append(text.describe_duration(found["duration_ms"]))
    if found["tokens"] is not None:
        parts.append(f"{found['tokens']:,.0f} tokens")
    if found["cost"] is not None:
        parts.append(f"{found['cost']:.4f}")
    return ", ".join(parts)


def show_json(output: Output, title: str, value: Any) -> None:
    """Print a value under its title."""
    output.line()
    output.line(output.paint(title, "bold"))
    for line in to_json(value).split("\n"):
        output.line(f"  {line}")


# -- differences


def counts_text(counts: Mapping[str, Any]) -> str:
    """Return the figures of a comparison in a line."""
    parts = []
    for name, count in counts.items():
        if isinstance(count, Mapping):
            inner = ", ".join(f"{number} {word}" for word, number in count.items() if number)
            parts.append(f"{name}: {inner or 'nothing'}")
        else:
            parts.append(f"{name}: {count}")
    return "; ".join(parts)


def show_changes(output: Output, found: Row) -> None:
    """Print what is different: the state by path, then the messages."""
    for change in found["state"]:
        show_change(output, change)
    for change in found["messages"]:
        show_message_change(output, change)


def show_change(output: Output, change: Row) -> None:
    """Print what became of one path of the state."""
    sign, color = _SIGNS[change["op"]]
    path = text.clean(change["path"])
    before = text.cut(brief(change["before"]), _VALUE_CHARS_MAX)
    after = text.cut(brief(change["after"]), _VALUE_CHARS_MAX)
    if change["op"] == "added":
        words = output.paint(after, "green")
    elif change["op"] == "removed":
        words = output.paint(before, "red")
    else:
        words = f"{output.paint(before, 'red')} -> {output.paint(after, 'green')}"
    output.line(f"{output.paint(sign, color)} {path}: {words}")


def show_message_change(output: Output, change: Row) -> None:
    """Print what became of one message."""
    sign, color = _SIGNS[change["op"]]
    role = text.clean(change["role"] or "message")
    head = f"{output.paint(sign, color)} {output.paint(f'[{role}]', 'dim')} "
    if change["op"] == "changed" and change["words"]:
        body = words_text(output, change["words"])
    elif change["op"] == "removed":
        body = message_text(change["before"])
    else:
        body = message_text(change["after"])
    # Colours of our own, in words that are clean already; cleaning them again would show the codes.
    if "\x1b" in body:
        lines = body.split("\n")
    else:
        lines = text.clean_lines(text.cut(body, _WORDS_CHARS_MAX))
    output.line(head + lines[0])
    for line in lines[1:]:
        output.line("    " + line)


def words_text(output: Output, words: Sequence[Sequence[str]]) -> str:
    """Return a text with what was taken out and put in; signs say so where there are no colours."""
    parts = []
    for sign, given in words:
        piece = " "
        if given.strip():
            piece = " ".join(text.clean_lines(given))
        if sign == " ":
            parts.append(piece)
        elif output.has_color:
            parts.append(output.paint(piece, _WORD_STYLES[sign]))
        else:
            opening, closing = _WORD_SIGNS[sign]
            parts.append(f"{opening}{piece}{closing}")
    return " ".join(parts)


def message_text(message: Any) -> str:
    """Return what a message says; as JSON if it is no plain text."""
    if isinstance(message, Mapping):
        content = message.get("content")
        if isinstance(content, str) and content:
            return content
    return brief(message)


def brief(value: Any) -> str:
    """Return a value in one line of JSON."""
    if isinstance(value, Mapping) and value.get("$type") == "missing":
        return "(none)"
    return to_json(value, indent=None)


# -- conversations


def show_messages(output: Output, found: Row) -> None:
    """Print a conversation: who says what, tools with their results."""
    for message in found["messages"]:
        who = text.clean(message["role"])
        if message.get("name"):
            who += f" {text.clean(message['name'])}"
        output.line()
        output.line(f"{output.paint(str(message['index']), 'dim')} {output.paint(who, 'bold')}")
        for line in text.clean_lines(message["text"] or ""):
            output.line(f"    {line}".rstrip())
        for call in message["tool_calls"]:
            answer = "no answer yet"
            if call["result"]:
                answer = text.cut(text.clean(call["result"]["text"]), _VALUE_CHARS_MAX)
            called = f"{text.clean(call['name'])}({text.cut(brief(call['args']), _VALUE_CHARS_MAX)})"
            output.line(f"    {output.paint('→', 'cyan')} {called}: {answer}")


def describe_wait(wait: Mapping[str, Any]) -> str:
    """Return what a durable run waits for, in a few words."""
    match wait["kind"]:
        case "ask":
            return f"waits for an answer: {text.clean(wait['question'] or '')}"
        case "event":
            return f"waits for the event {text.clean(wait['event'] or '')}"
        case "sleep":
            return f"sleeps until {text.clean(wait['until'] or '')}"
        case _:
            return text.clean(wait["kind"])
