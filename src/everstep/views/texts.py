"""Text from agents and models as one safe line: no control characters, no escapes, nothing that turns lines around."""

from __future__ import annotations

import re
from typing import Any

from everstep.history.labels import Labels
from everstep.stores.protocol import Key, Thread
from everstep.timeline.branch import branch_name

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
_SPACES = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Marks that turn the direction of text, and could make a name look like another one.
_TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

TITLE_CHARS_MAX = 200
NAME_CHARS_MAX = 80


def one_line(text: str, limit: int = TITLE_CHARS_MAX) -> str:
    """Return the beginning of a text as one line that cannot do anything but be read."""
    # Only the beginning is cleaned: a text may be a whole document, and a title shows 200 characters of it.
    begin = text[: 4 * limit]
    clean = _SPACES.sub(" ", _TURNS.sub("", _ESCAPES.sub("", begin))).strip()
    clean = _SURROGATE.sub("\ufffd", clean)
    if len(clean) <= limit and len(begin) == len(text):
        return clean
    return clean[: limit - 1].rstrip() + "…"


def plain_text(text: str) -> str:
    """Return a text that may have lines, without what a terminal or a page would obey."""
    clean = _SURROGATE.sub("\ufffd", _TURNS.sub("", _ESCAPES.sub("", text)))
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", clean)


def branch_of(thread_id: str) -> str:
    """Return what people call a thread: of a branch the name that it was given, without what it began from."""
    # Of a name that nobody could see, such as a space, what it is written as.
    return called_like(branch_name(thread_id) or thread_id) or called_like(ascii(thread_id))


def called(thread_id: str, labels: Labels) -> str:
    """Return what people call a thread now: a branch may have got another name since it was made."""
    return called_like(labels.name) or branch_of(thread_id)


def called_like(name: str) -> str:
    """Return the name of a branch as lists show it."""
    return one_line(name, NAME_CHARS_MAX)


def origin_ref(thread: Thread | None) -> str | None:
    """Return where a thread began as a branch, as a reference; None if it did not, or is gone."""
    if thread is None:
        return None
    return place_ref(thread.origin)


def place_ref(place: Key | None) -> str | None:
    """Return a checkpoint as a reference; None of none."""
    if place is None:
        return None
    return f"{place.thread_id}@{place.checkpoint_id}"


def as_text(value: Any) -> str | None:
    """Return a value if it is text."""
    if type(value) is not str:
        return None
    return value
