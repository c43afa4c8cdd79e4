"""Arguments of several commands: references, threads, times, JSON. Threads are completed by the shell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

from everstep.cli import text
from everstep.cli.session import Common, Session

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"\s*(\d{1,6})\s*(s|m|min|h|d|w)\s*", re.IGNORECASE)
# More than a shell would show.
_COMPLETED_MAX = 100

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def thread_argument(name: str = "thread", **more: Any) -> Decorator:
    """Return a decorator for an argument that is the name of a thread."""
    return click.argument(name, shell_complete=complete_threads, **more)


def ref_argument(name: str = "ref", **more: Any) -> Decorator:
    """Return a decorator for an argument that means a checkpoint: it begins with the name of a thread."""
    return thread_argument(name, **more)


def yes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--yes` and `--dry-run`, for what destroys or changes much."""
    function = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Only tell what would happen.")(function)


def complete_threads(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the threads whose names begin so, and behind `THREAD@` its branches and tags.

    A shell that completes must never see an error.
    """
    try:
        common = ctx.find_object(Common) or Common()
        with common.opened() as session:
            page = session.engine.list_threads(_COMPLETED_MAX, prefix=incomplete)
            found = [CompletionItem(item.thread_id, help=text.cut(text.clean(item.summary), 60)) for item in page]
            thread, sign, begun = incomplete.rpartition("@")
            if sign and not found:
                for name, what in _names_in(session, thread).items():
                    if name.startswith(begun):
                        found.append(CompletionItem(f"{thread}@{name}", help=what))
    except Exception:
        return []
    return found


def _names_in(session: Session, thread: str) -> dict[str, str]:
    """Return what may stand behind the name of a thread, and what it is: its branches and its tags."""
    from everstep.views import branches, tags

    found: dict[str, str] = {}
    for one in session.run(branches.family, thread)["branches"]:
        if one["is_branch"]:
            found[one["name"]] = "branch"
    for one in session.run(tags.listing, thread)["tags"]:
        found.setdefault(one["tag"], "tag")
    return found


class Moment(click.ParamType[datetime]):
    """A point in time: ISO 8601, or how long ago, such as `2h` or `3d`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time with its zone; UTC if none is named."""
        if isinstance(value, datetime):
            return value
        span = _SPAN.fullmatch(value)
        if span is not None:
            return datetime.now(UTC) - timedelta(seconds=int(span[1]) * _UNITS[span[2].lower()])
        found = text.parse_time(value)
        if found is None:
            self.fail(
                f"{value!r} is no time; write 2026-11-15, 2026-11-15T10:00 or, for a while ago, 2h or 3d", param, ctx
            )
        return found


class Assignment(click.ParamType[tuple[str, Any]]):
    """A name and a value, such as `/plan/hotel="Lighthouse"`: JSON, or plain text where it is none."""

    name = "assignment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Return the name, and the value that the JSON stands for."""
        if isinstance(value, tuple):
            return value
        name, sign, given = value.partition("=")
        if not sign or not name:
            self.fail(f"{value!r} has no name and value; write it as name=value", param, ctx)
        return name, read_json_or_text(given)


def read_json_or_text(given: str) -> Any:
    """Return the value that a JSON text stands for; a text that is no JSON stands for itself."""
    try:
        return json.loads(given)
    except ValueError:
        return given


def read_json_file(file: Any, what: str) -> Any:
    """Return what a file of JSON holds."""
    try:
        return json.load(file)
    except (ValueError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{what} is no JSON: {exc}") from exc
