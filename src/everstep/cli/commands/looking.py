"""Threads and their histories, as they are or as they grow. Nothing here changes anything."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import Assignment, Moment, thread_argument
from everstep.cli.group import command
from everstep.cli.rendering import row_cells, row_columns, step_text, tell_damage
from everstep.cli.session import Common, Session
from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.drawing import draw

# The same as in the views, which are not imported for a list of words: every command would start later.
_KINDS = ("input", "llm", "tool", "state", "fork", "merge", "interrupt", "error", "damaged")
_PAGE = 200
# In characters.
_AXIS_WIDTH = 40
# What a drawn graph says in other ways.
_MARKS_OF_GRAPH = ("HEAD", "pinned", "hidden", "start")
_STATUS_STYLES = {"failed": "red", "waiting": "yellow", "interrupted": "yellow", "damaged": "red"}
_STATUSES = ("failed", "waiting", "interrupted", "running", "ready", "done", "paused", "damaged")


@command("threads")
@click.argument("query", required=False, default="")
@click.option("--prefix", default="", help="Only threads whose names begin so.")
@click.option("--tag", "tags", multiple=True, help="Only threads whose newest checkpoint has this tag; repeatable.")
@click.option("--metadata", "filters", multiple=True, type=Assignment(), metavar="KEY=JSON", help="With this metadata.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only threads in this state.")
@click.option("--since", type=Moment(), metavar="TIME", help="Active since then: a time, or 2h, 3d ago.")
@click.option("--archived", is_flag=True, help="Branches that were archived too.")
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="How many, at most.")
@click.option("--cursor", help="Go on where a page before has ended.")
@click.pass_obj
def threads(
    common: Common,
    query: str,
    prefix: str,
    tags: Sequence[str],
    filters: Sequence[tuple[str, Any]],
    status: str | None,
    since: Any,
    archived: bool,
    limit: int,
    cursor: str | None,
) -> None:
    """QUERY finds threads whose name or summary contains it. The most recently active come first."""
    from everstep.views import threads as view

    output = common.output
    with common.opened() as session:
        found = session.run(
            view.page,
            text=query,
            prefix=prefix,
            tags=tags,
            filter=dict(filters) or None,
            status=status,
            since=since,
            archived=archived,
            limit=limit,
            cursor=cursor,
        )
    if output.is_json:
        output.document(found, "threads")
        return
    names = _names_of(found["threads"]) if output.is_terminal else {}
    rows = [_thread_row(common, thread, names) for thread in found["threads"]]
    columns = ("thread", "status", "steps", "active", "branches", "summary")
    output.table(columns, rows, wide="summary")
    if not rows:
        is_narrowed = any((query, prefix, tags, filters, status, since))
        output.note("no thread matches" if is_narrowed else "no threads")
    elif found.get("cursor"):
        output.hint("there are more: raise --limit, or narrow it down with a word")
    if rows:
        output.hint(text.as_command("log", found["threads"][0]["thread_id"]))


def _names_of(threads: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what people may call branches: `trip@cheap`, if `trip` is listed and no other branch would be meant."""
    listed = {thread["thread_id"] for thread in threads}
    found: dict[str, str] = {}
    for thread in threads:
        origin = (thread["origin"] or "").rpartition("@")[0]
        if origin in listed:
            found[thread["thread_id"]] = f"{origin}@{thread['name']}"
    counts = Counter(found.values())
    return {thread: name for thread, name in found.items() if counts[name] == 1 and len(name) < len(thread)}


def _thread_row(common: Common, thread: dict[str, Any], names: Mapping[str, str]) -> list[str]:
    output = common.output
    status = text.clean(thread["status"] or "")
    when = output.age(thread["updated_at"])
    if output.is_terminal:
        status = output.paint(status, _STATUS_STYLES.get(status, ""))
    branches = str(thread["branches"]) if thread["branches"] or not output.is_terminal else ""
    name = text.clean(names.get(thread["thread_id"], thread["thread_id"]))
    if output.is_terminal and not name.strip():
        # Nobody sees it otherwise.
        name = text.as_argument(thread["thread_id"])
    return [name, status, f"{thread['steps']}", when, branches, text.clean(thread["summary"])]


# -- history


@command("log")
@thread_argument("thread", required=False)
@click.option("--graph", is_flag=True, help="Draw branches and merges.")
@click.option("--all", "everything", is_flag=True, help="With the thread's branches, and with what is hidden.")
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="How many, at most.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only steps of this kind; repeatable.")
@click.option("--errors", is_flag=True, help="Only what failed.")
@click.option("--user-turns", is_flag=True, help="Only what people said.")
@click.option("--path", metavar="PATH", help="Only steps that changed this, such as state.plan or /plan.")
@click.option("--text", "words", metavar="WORDS", help="Only steps with these words.")
@click.option("--stat", is_flag=True, help="Tell what each step changed.")
@click.option("--time", "times", is_flag=True, help="Show how long steps took, as bars; the oldest first.")
@click.pass_obj
def log(
    common: Common,
    thread: str | None,
    graph: bool,
    everything: bool,
    limit: int,
    kinds: Sequence[str],
    errors: bool,
    user_turns: bool,
    path: str | None,
    words: str | None,
    stat: bool,
    times: bool,
) -> None:
    """Newest first. Without a thread it is the one that was active last."""
    output = common.output
    wanted = {"kinds": kinds, "errors": errors, "user_turns": user_turns, "path": path, "text": words}
    with common.opened() as session:
        name = session.thread_meant(thread)
        _require_head(session, name)
        if graph and not output.is_json:
            _refuse(wanted, "--graph draws every step; leave it out, or the filters")
            try:
                _draw(common, session, name, limit)
            except CheckpointCorrupted as exc:
                # The list goes on around it.
                output.note(f"the graph cannot be drawn: {text.clean(exc.what)}")
            else:
                return
        if times:
            _refuse({**wanted, "stat": stat}, "--time shows every step; leave it out, or the filters and --stat")
            _show_times(common, session, name, limit)
            return
        pages = _pages(session, name, limit, hidden=everything, branches=everything or graph, **wanted)
        if output.form == "jsonl":
            _stream(common, pages)
            return
        found = _together(pages)
        changed = _changed(session, name, found["rows"]) if stat else {}
    if output.is_json:
        output.document({**found, "changed": changed} if stat else found, "rows")
        return
    _show_rows(common, found, changed)


def _require_head(session: Session, thread: str) -> None:
    """Refuse a thread that has no head: if all of it is hidden, the error says what may bring it back."""
    try:
        session.engine.resolve("@", thread_id=thread)
    except CheckpointCorrupted:
        # What can be read is shown around it.
        return


def _refuse(filters: Mapping[str, Any], why: str) -> None:
    if any(filters.values()):
        raise InvalidInput(why)


def _stream(common: Common, pages: Iterable[dict[str, Any]]) -> None:
    """Print rows one by one, as they come: a long history need not fit into memory."""
    for page in pages:
        for row in page["rows"]:
            common.output.json_line(row)


def _show_rows(common: Common, found: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
    output = common.output
    with output:
        cells = [row_cells(output, row, changed.get(row["ref"])) for row in found["rows"]]
        output.table(row_columns(output) or ("",) * 6, cells, wide="what")
    if not cells and found["hidden_by_filter"]:
        output.note(f"no step matches; {found['hidden_by_filter']:,} are left out by the filter")
    elif found["cursor"] is not None:
        output.hint(f"{found['total']:,} steps in all; -n shows more")
    _tell_damage(common, found)


def _tell_damage(common: Common, found: Mapping[str, Any]) -> None:
    """Say what helps where something of a history cannot be read."""
    if found["damage"] is not None:
        tell_damage(common.output, found["damage"])
        return
    for row in found["rows"]:
        if row["damage"] is not None:
            # Its row says why it cannot be read. What helps is told also where nobody looks at a terminal.
            common.output.note(text.clean(row["damage"]["hint"]))
            return


def _show_times(common: Common, session: Session, thread: str, limit: int) -> None:
    """Show steps as bars on one axis: a mark where nobody noted how long a step took."""
    from everstep.views import timing

    found = session.run(timing.bars, thread, limit=min(limit, _PAGE))
    output = common.output
    if output.is_json:
        output.document(found, "bars")
        return
    rows = []
    for bar in found["bars"]:
        begin = min(_AXIS_WIDTH - 1, int(bar["left"] * _AXIS_WIDTH))
        width = max(1, round(bar["width"] * _AXIS_WIDTH))
        took = text.describe_duration(bar["duration_ms"])
        rows.append([f"#{bar['step']}", text.clean(bar["title"]), (" " * begin + "━" * width)[:_AXIS_WIDTH], took])
    with output:
        output.table(("step", "what", "time", "took"), rows, wide="what")
    if found["cuts"]:
        output.note(f"{text.describe_count(len(found['cuts']), 'long wait')} left out of the axis")


def _pages(session: Session, thread: str, limit: int, **wanted: Any) -> Iterator[dict[str, Any]]:
    """Yield pages with up to so many rows together, so that a long history streams."""
    from everstep.views import history

    cursor: str | None = None
    left = limit
    while left > 0:
        page = session.run(history.page, thread, limit=min(left, _PAGE), cursor=cursor, **wanted)
        yield page
        # A page may have fewer rows than asked for although more follow, so the cursor decides, not the
        # count.
        left -= len(page["rows"])
        cursor = page["cursor"]
        if cursor is None:
            return


def _together(pages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return several pages as one."""
    whole: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    hidden = 0
    rows: list[Any] = []
    for page in pages:
        # The last page counts for all that is not added up, above all for the cursor.
        whole = page
        rows += page["rows"]
        counts.update(page["counts"])
        hidden += page["hidden_by_filter"]
    return {**whole, "rows": rows, "counts": dict(counts), "hidden_by_filter": hidden}


def _changed(session: Session, thread: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what each row changed, by reference."""
    from everstep.views import history

    found: dict[str, Any] = {}
    for start in range(0, len(rows), _PAGE):
        names = [row["ref"] for row in rows[start : start + _PAGE]]
        found |= session.run(history.changed, thread, names)
    return found


def _draw(common: Common, session: Session, thread: str, limit: int) -> None:
    output = common.output
    tree = _with_words(session, session.engine.get_checkpoint_tree(thread, limit), limit)
    drawn = draw(tree, width=output.width if output.is_terminal else None)
    with output:
        for line in text.clean_lines(drawn):
            output.line(_painted_lanes(common, line))


def _with_words(session: Session, tree: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return a tree with the words that rows have elsewhere: what a person would call each step, and each branch."""
    from everstep.views import branches

    told: dict[tuple[str, str, str], dict[str, Any]] = {}
    for page in _pages(session, tree["thread_id"], limit, branches=True):
        for row in page["rows"]:
            told[row["thread_id"], row["namespace"], row["id"]] = row
    names = _short_names(session.run(branches.family, tree["thread_id"])["branches"])
    nodes: list[dict[str, Any]] = []
    for node in tree["nodes"]:
        row = told.get((node["thread_id"], node["namespace"], node["id"]))
        node = {**node, "thread_id": names.get(node["thread_id"], node["thread_id"])}
        if row is not None:
            # A fork says in its title which branch begins there.
            marks = [chip["text"] for chip in row["chips"] if chip["text"] not in _MARKS_OF_GRAPH]
            node |= {
                "summary": row["title"],
                "tags": [mark for mark in marks if mark != node["thread_id"]],
                "branch": None,
            }
        nodes.append(node)
    edges: list[dict[str, Any]] = []
    for edge in tree["edges"]:
        ends = {end: names.get(edge[end], edge[end]) for end in ("from_thread", "to_thread") if end in edge}
        edges.append({**edge, **ends})
    return {**tree, "thread_id": names.get(tree["thread_id"], tree["thread_id"]), "nodes": nodes, "edges": edges}


def _short_names(family: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what the threads of a family are called, as far as no other one is called the same."""
    counts = Counter(branch["name"] for branch in family)
    return {branch["thread_id"]: branch["name"] for branch in family if counts[branch["name"]] == 1}


def _painted_lanes(common: Common, line: str) -> str:
    """Return a row of the graph with its lanes in colours."""
    # What stands in brackets is about the whole graph.
    if not common.output.has_color or line.startswith("("):
        return line
    lanes, step, rest = line.partition("step ")
    colors = ("green", "magenta", "yellow", "blue", "cyan")
    painted = []
    for column, sign in enumerate(lanes):
        painted.append(common.output.paint(sign, colors[column // 2 % len(colors)]) if sign != " " else sign)
    return "".join(painted) + step + rest


# -- live


@command("tail")
@thread_argument("thread", required=False)
@click.option("--limit", "-n", type=click.IntRange(1), help="Stop after so many.")
@click.option("--past", default=0, show_default=True, type=click.IntRange(0), help="Begin with so many that are there.")
@click.option("--interval", default=0.5, show_default=True, type=click.FloatRange(0.05), help="Seconds between looks.")
@click.pass_obj
def tail(common: Common, thread: str | None, limit: int | None, past: int, interval: float) -> None:
    """Of one thread with its branches, or of all threads. It ends with Ctrl-C."""
    output = common.output
    shown = 0
    with common.opened() as session:
        if thread is not None:
            thread = session.thread_meant(thread)
        for row in _follow(session, thread, past, interval):
            if output.is_json:
                output.json_line(row)
            else:
                when = text.clean(row["created_at"])[11:19] if output.is_terminal else text.clean(row["created_at"])
                where = text.clean(row["thread_id"])
                output.line(f"{when}\t{where}\t#{step_text(row)}\t{row['kind']}\t{text.clean(row['title'])}")
                # In a pipe the text would else stay here until the buffer is full.
                sys.stdout.flush()
            shown += 1
            if shown == limit:
                return


def _follow(session: Session, thread: str | None, past: int, interval: float) -> Iterator[dict[str, Any]]:
    """Yield rows that are new, oldest first, for ever."""
    heads: dict[str, str] = {}
    is_first = True
    while True:
        for name, before in _moved(session, thread, heads):
            # Of all threads only what comes from now on is told: what there is already may be very much.
            rows = [] if is_first and thread is None else _newest_rows(session, name)
            if is_first:
                yield from reversed(rows[:past])
            else:
                yield from reversed(_above(rows, before))
        is_first = False
        time.sleep(interval)


def _moved(session: Session, thread: str | None, heads: dict[str, str]) -> list[tuple[str, str | None]]:
    """Return the threads whose head is another than before, with the head that they had, and remember the new ones."""
    if thread is not None:
        now = {thread: session.engine.resolve("@", thread_id=thread).checkpoint_id}
    else:
        now = {found.thread_id: found.checkpoint_id for found in session.engine.list_threads(_PAGE)}
    moved = [(name, heads.get(name)) for name, head in now.items() if heads.get(name) != head]
    heads.update(now)
    # The thread that was active last comes first in the list, and last in what is told.
    return moved[::-1]


def _above(rows: Sequence[dict[str, Any]], before: str | None) -> Sequence[dict[str, Any]]:
    """Return the rows that came after a head; after a rewind, which hides it, the new head."""
    if before is None:
        return rows
    ids = [row["id"] for row in rows]
    return rows[: ids.index(before)] if before in ids else rows[:1]


def _newest_rows(session: Session, thread: str) -> list[dict[str, Any]]:
    from everstep.views import history

    rows: list[dict[str, Any]] = session.run(history.page, thread, limit=_PAGE, branches=False)["rows"]
    return rows


COMMANDS: dict[str, click.Command] = {"threads": threads, "log": log, "tail": tail}
