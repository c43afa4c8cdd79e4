"""What the command prints: tables on a terminal, plain columns in a pipe, or JSON and nothing else.

Standard output carries the answer only. Hints, warnings, questions and progress go to standard error.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.cli import text

SCHEMA = "everstep/v1"
PAGER_DEFAULT = "less"

# A column is cut down to this, and not further.
_CUT_MIN = 20
_STYLES = {
    "dim": "2",
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Output:
    """Where an answer goes, and how it looks there."""

    def __init__(self, form: str = "table", color: str = "auto", *, pager: bool = True, quiet: bool = False) -> None:
        self.form = form
        self.quiet = quiet
        self._pager = pager
        self.is_terminal = sys.stdout.isatty()
        self.has_color = _wants_color(color, self.is_terminal)
        self._paged: list[str] | None = None

    @property
    def is_json(self) -> bool:
        """Whether only JSON may be printed."""
        return self.form in ("json", "jsonl")

    @property
    def is_for_people(self) -> bool:
        """Whether somebody reads it on a terminal."""
        return self.is_terminal and not self.is_json

    @property
    def width(self) -> int:
        """How many characters a line of the terminal has."""
        return shutil.get_terminal_size((100, 24)).columns

    # -- JSON

    def document(self, fields: Mapping[str, Any], items: str | None = None) -> None:
        """Print an answer as JSON: one document, or with `--jsonl` each of its `items` in a line of its own."""
        if self.form == "jsonl" and items is not None:
            for item in fields[items]:
                self.json_line(item)
            return
        whole = {"schema": SCHEMA, **fields}
        self._write(to_json(whole, indent=None if self.form == "jsonl" else 2))

    def json_line(self, item: Any) -> None:
        """Print one item in a line of its own, at once."""
        whole = {"schema": SCHEMA, **item} if isinstance(item, Mapping) else item
        self._write(to_json(whole, indent=None))
        sys.stdout.flush()

    # -- text

    def paint(self, words: str, *styles: str) -> str:
        """Return words in a colour, where colours are shown."""
        codes = [_STYLES[style] for style in styles if style]
        if not self.has_color or not codes or not words:
            return words
        return f"\x1b[{';'.join(codes)}m{words}\x1b[0m"

    def age(self, moment: str) -> str:
        """Return when something was: how long ago it is for people, the time itself for programs."""
        if self.is_terminal:
            return text.describe_age(moment)
        return text.clean(moment)

    def line(self, words: str = "") -> None:
        """Print one line. Whoever calls this has made harmless what comes from the store."""
        if self._paged is not None:
            self._paged.append(words)
        else:
            self._write(words)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, wide: str = "") -> None:
        """Print rows in columns: aligned and cut to the terminal, or whole and parted by tabs in a pipe.

        `wide` is the column that is cut where a row is too long; if that is not enough, so is the widest of the others.
        A cell may be painted; its text is already clean.
        """
        rows = [list(row) for row in rows]
        if not self.is_terminal:
            for row in rows:
                self.line("\t".join(row))
            return
        widths = [len(name) for name in columns]
        for row in rows:
            widths = list(map(max, widths, map(_length, row)))
        if wide in columns:
            _fit(widths, columns.index(wide), self.width - 2 * (len(columns) - 1))
        self.line(self.paint(_aligned([name.upper() for name in columns], widths), "dim"))
        for row in rows:
            self.line(_aligned(row, widths))

    def hint(self, words: str) -> None:
        """Tell on standard error what one may do next; only to people."""
        if not self.quiet and not self.is_json and sys.stderr.isatty():
            sys.stderr.write(self.paint(f"hint: {words}", "dim") + "\n" if self.has_color else f"hint: {words}\n")

    def note(self, words: str) -> None:
        """Say on standard error what is not part of the answer."""
        if not self.quiet:
            sys.stderr.write(words + "\n")

    # -- pages

    def __enter__(self) -> Output:
        """Gather lines for the pager, where there is one."""
        if self.is_for_people and self._pager and _pager_command():
            self._paged = []
        return self

    def __exit__(self, *error: object) -> None:
        lines, self._paged = self._paged, None
        if lines is not None:
            _show_in_pager("\n".join(lines) + "\n" if lines else "")

    def _write(self, words: str) -> None:
        sys.stdout.write(words + "\n")


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON that is safe to show; text of other languages stays readable."""
    made = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=_refuse)
    return text.escape_json(made)


def _refuse(value: object) -> Any:
    raise TypeError(f"a {type(value).__name__} is no JSON; this is a bug in everstep")


def _wants_color(color: str, is_terminal: bool) -> bool:
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR")
    if forced:
        return forced != "0"
    return is_terminal and os.environ.get("TERM") != "dumb"


def _length(cell: str) -> int:
    """Return how many columns a cell takes; what paints it takes none."""
    plain = _plain(cell)
    if plain.isascii():
        return len(plain)
    # Letters of some languages are two columns wide.
    from rich.cells import cell_len

    return cell_len(plain)


def _plain(cell: str) -> str:
    if "\x1b" not in cell:
        return cell
    parts = cell.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])


def _fit(widths: list[int], wide: int, room: int) -> None:
    """Make columns narrower so that they fit: the wide one first, then the widest of the others."""
    others = [at for at in range(len(widths)) if at != wide]
    for at in (wide, max(others, key=widths.__getitem__, default=wide)):
        too_much = sum(widths) - room
        if too_much > 0:
            widths[at] = max(widths[at] - too_much, min(widths[at], _CUT_MIN))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for cell, width in zip(row, widths, strict=True):
        room = width - _length(cell)
        cells.append(cell + " " * room if room >= 0 else _cut(cell, width))
    return "  ".join(cells).rstrip()


def _cut(cell: str, width: int) -> str:
    """Return a cell in `width` columns. One that is painted loses its colour, since half of one could leak."""
    plain = _plain(cell)
    while _length(plain) > width - 1:
        plain = plain[: min(len(plain) - 1, width - 1)]
    return plain + "…" + " " * (width - 1 - _length(plain))


def _pager_command() -> list[str]:
    """Return the program that shows long answers, or nothing if there is none."""
    named = os.environ.get("EVERSTEP_PAGER")
    if named is None:
        named = os.environ.get("PAGER", PAGER_DEFAULT)
    words = shlex.split(named)
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return []
    return words


def _show_in_pager(words: str) -> None:
    command = _pager_command()
    # For `less`: leave at once if it fits, show colours, use no other screen.
    environment = {"LESS": "FRX", **os.environ}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:  # noqa: S603  # the user's own
        try:
            process.communicate(words.encode("utf-8", "replace"))
        except BrokenPipeError:
            pass  # it was left before its end
        except KeyboardInterrupt:
            # The pager decides what Ctrl-C means.
            process.wait()
