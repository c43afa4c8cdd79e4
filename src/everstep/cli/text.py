"""Texts of users and models, made harmless for a terminal; sizes and times for people. Pure.

What an agent wrote may hold escape sequences, marks that turn the direction of writing, or characters without a width:
none of them reaches a terminal.
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from typing import Any

from everstep.views import commands

# Controls, what breaks or turns lines, marks of direction, and characters that have no width or are not assigned.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb]+"
    "|[\U000e0000-\U000e007f]+"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def clean(value: object) -> str:
    """Return a text in one line that cannot move the cursor, colour the terminal or turn the line around."""
    text = value if isinstance(value, str) else str(value)
    return _SURROGATE.sub("\ufffd", _UNSAFE.sub(" ", text)).strip()


def as_argument(value: object) -> str:
    """Return a text as it is written in a shell, as part of a command that is shown."""
    return shlex.quote(clean(value))


def as_command(words: str, *arguments: object) -> str:
    """Return a command with its arguments as it is written in a shell: see `commands`."""
    return commands.as_command(words, *map(clean, arguments))


def clean_lines(value: str) -> list[str]:
    """Return the lines of a text, each made harmless; the space before each stays."""
    lines = []
    for line in value.replace("\r\n", "\n").split("\n"):
        body = line.expandtabs(4)
        indent = len(body) - len(body.lstrip(" "))
        lines.append(" " * min(indent, 80) + clean(body))
    return lines


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` characters."""
    if len(text) <= width:
        return text
    return text[: max(width - 1, 0)].rstrip() + "…" if width > 1 else text[:width]


def escape_json(text: str) -> str:
    """Return JSON with everything escaped that a terminal could take for more than a text."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def describe_bytes(count: int | None) -> str:
    """Return a size as people write it: 512 B, 1.2 kB, 3.4 MB."""
    if count is None:
        return ""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        # What would be rounded up to 1000.0 is told in the next unit.
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"


def describe_count(count: int, noun: str) -> str:
    """Return a number with its noun: 1 thread, 2 threads."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def describe_duration(millis: float | None) -> str:
    """Return how long something took as people write it: 880 ms, 2.2 s, 3 min 20 s; nothing if nobody knows."""
    if millis is None:
        return ""
    if millis < 999.5:
        return f"{millis:.0f} ms"
    seconds = millis / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{seconds / 3600:,.1f} h"


def describe_age(when: str | None, now: datetime | None = None) -> str:
    """Return how long ago a time was, in one word or two; the text itself if it is no time."""
    moment = parse_time(when)
    if moment is None:
        return clean(when or "")
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return moment.strftime("%Y-%m-%d %H:%M")
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 14, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return moment.strftime("%Y-%m-%d")


def parse_time(when: Any) -> datetime | None:
    """Return the time that a text in ISO 8601 says, in UTC if it names no zone; None if it is none."""
    try:
        moment = datetime.fromisoformat(when)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def short_id(checkpoint_id: str) -> str:
    """Return the part of an id that tells it from others: of ours the random end, of a UUID the first eight."""
    if checkpoint_id.startswith("ckpt-"):
        return clean(checkpoint_id.rsplit("-", 1)[-1][:8])
    return clean(checkpoint_id[:13])
