r"""A checkpoint tree as text, in the manner of `git log --graph --oneline`. Pure; newest row first.

One lane leads to one checkpoint, however many children it has: a child whose parent already has a lane joins it in
the row below the child. A lane never moves, a first parent stays in its child's lane unless it has one further
left, and a new lane is the leftmost free one: see `lanes`. Lane 0 is kept for the main line: the newest line through
the head of the tree's own thread.

    * @  a checkpoint, a thread's head            |    a lane that passes
    |/   the right lane joins the left one        |_|/ the same, across another lane
    |\   the right lane is a parent of the left   |-|\ the same, across another lane
    :    checkpoints between were removed: below the child in its lane, or in place of a connector's corner

Lanes from the 41st on share one column, so that rows stay short: `+` says that some pass there, a checkpoint in one
of them says which ("lane 57", counted from 0), and connectors from one of them to another are not drawn.

Every text from the data goes through `_clean`: what an agent wrote cannot move the cursor, colour the terminal or
begin a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import Any

from everstep.errors import InvalidInput
from everstep.history.lanes import Lanes, Link
from everstep.runtime import checks
from everstep.runtime.checks import shown

LANES_MAX = 40
SUMMARY_CHARS_MAX = 60

Node = Mapping[str, Any]
Parents = Sequence[tuple[int, ...]]
"""For each node the indexes of its parents, the first parent first."""
Gaps = Set[tuple[int, int]]
"""The edges, child and parent, between which checkpoints were removed."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def draw(tree: Mapping[str, Any], *, width: int | None = None) -> str:
    """Return the graph of a checkpoint tree, as `get_checkpoint_tree` gives it, without a newline at the end.

    Rows longer than `width` characters end with `...`, but a row is never cut before its mark. Without `width` only
    summaries are cut, at 60 characters. Edges to nodes that are not in the tree are left out, and so are edges that
    close a circle.
    """
    nodes = _nodes(tree)
    width = None if width is None else checks.count(width, "width")
    threads = [_thread(node, tree) for node in nodes]
    parents, gaps = _edges(tree, nodes, threads)
    order, parents = _ordered(parents)
    lanes = _Lanes(gaps)
    top = _main_top(tree, nodes, threads, order, parents)
    if top is not None:
        lanes.keep(top)
    rows: list[str] = []
    for index in order:
        lane, broken = lanes.enter(index)
        if broken:
            rows.append(_cut(lanes.row(), width))
        rows.append(_node_row(nodes[index], threads[index], lanes, lane, width))
        rows += [_cut(row, width) for row in lanes.leave(index, lane, parents[index])]
    return "\n".join([*rows, *_notice(tree, len(nodes))])


# Reading the tree


def _nodes(tree: object) -> Sequence[Node]:
    nodes = tree.get("nodes") if isinstance(tree, Mapping) else None
    if not isinstance(nodes, list | tuple):
        raise InvalidInput(f"a checkpoint tree is a mapping with a list of nodes, not {checks.shown(tree)}")
    for node in nodes:
        if not isinstance(node, Mapping) or not isinstance(node.get("id"), str):
            raise InvalidInput(f"a node of a checkpoint tree is a mapping with an id, not {checks.shown(node)}")
    return nodes


def _thread(node: Node, tree: Mapping[str, Any]) -> str:
    for thread in (node.get("thread_id"), tree.get("thread_id")):
        if isinstance(thread, str):
            return thread
    return ""


def _edges(tree: Mapping[str, Any], nodes: Sequence[Node], threads: Sequence[str]) -> tuple[Parents, Gaps]:
    """Return the parents of each node and the gaps; edges that cannot be read, or are said twice, are left out."""
    find = _Names(nodes, threads).find
    parents: list[tuple[int, ...]] = [()] * len(nodes)  # Tuples of numbers cost the garbage collector nothing.
    gaps = set()
    edges = tree.get("edges")
    for edge in edges if isinstance(edges, list | tuple) else ():
        if not isinstance(edge, Mapping):
            continue
        child = find(edge.get("to"), edge.get("to_thread"))
        parent = find(edge.get("from"), edge.get("from_thread"))
        if child is None or parent is None or child == parent or parent in parents[child]:
            continue
        parents[child] += (parent,)
        if edge.get("gap"):
            gaps.add((child, parent))
    return parents, gaps


class _Names:
    """Finds nodes by thread and id, or by id alone: then the first node of that id."""

    def __init__(self, nodes: Sequence[Node], threads: Sequence[str]) -> None:
        self._by_id: dict[str, int] = {}
        self._by_both: dict[tuple[str, str], int] = {}
        for index, node in enumerate(nodes):
            self._by_id.setdefault(node["id"], index)
            self._by_both.setdefault((threads[index], node["id"]), index)

    def find(self, name: object, thread: object) -> int | None:
        if not isinstance(name, str):
            return None
        if isinstance(thread, str):
            return self._by_both.get((thread, name))
        return self._by_id.get(name) if thread is None else None


def _ordered(parents: Parents) -> tuple[Sequence[int], Parents]:
    """Return the nodes with children before parents, and the edges that this order allows.

    An order that is right is kept as it is.
    """
    if all(child < min(found) for child, found in enumerate(parents) if found):
        return range(len(parents)), parents
    order = _sorted(parents)
    place = {index: row for row, index in enumerate(order)}
    kept = [tuple(p for p in found if place[child] < place[p]) for child, found in enumerate(parents)]
    return order, kept


def _sorted(parents: Parents) -> list[int]:
    """Return all nodes, children first where no circle forbids it, otherwise in the order given."""
    waiting = [0] * len(parents)
    for found in parents:
        for parent in found:
            waiting[parent] += 1
    ready = [index for index, children in enumerate(waiting) if not children]
    heapify(ready)
    order: dict[int, None] = {}
    for given in range(len(parents)):
        _place_ready(ready, waiting, parents, order)
        if given not in order:
            ready.append(given)  # Nothing else is ready: a circle is opened here.
    _place_ready(ready, waiting, parents, order)
    return list(order)


def _place_ready(ready: list[int], waiting: list[int], parents: Parents, order: dict[int, None]) -> None:
    while ready:
        index = heappop(ready)
        order[index] = None
        for parent in parents[index]:
            waiting[parent] -= 1
            if not waiting[parent] and parent not in order:
                heappush(ready, parent)


def _main_top(
    tree: Mapping[str, Any],
    nodes: Sequence[Node],
    threads: Sequence[str],
    order: Sequence[int],
    parents: Parents,
) -> int | None:
    """Return the newest node of the main line, or None if the tree's own thread is not in it.

    From the thread's head the line goes up from first parent to child, in the same thread where it can.
    """
    own = [index for index in order if threads[index] == tree.get("thread_id")]
    if not own:
        return None
    child_own: dict[int, int] = {}
    child_any: dict[int, int] = {}
    for child in order:
        for parent in parents[child][:1]:
            child_any.setdefault(parent, child)
            if threads[parent] == threads[child]:
                child_own.setdefault(parent, child)
    top = next((index for index in own if nodes[index].get("head")), own[0])
    while top in child_any:
        top = child_own.get(top, child_any[top])
    return top


# Lanes


class _Lanes:
    """The lanes between two rows as text."""

    def __init__(self, gaps: Gaps) -> None:
        self._gaps = gaps
        self._lanes = Lanes[int]()
        self._folded: set[int] = set()  # the lanes that pass in the shared column
        self._ended: int | None = None  # the lane of the row above, if it ended there without a connector
        self._text = " " * (2 * LANES_MAX + 1)

    def keep(self, node: int) -> None:
        """Keep the leftmost free lane for `node`; it is blank until something leads there."""
        self._lanes.keep(node)

    def enter(self, node: int) -> tuple[int, bool]:
        """Return the lane of `node`, and whether a row must part it from the node above, to which it has no edge."""
        lane, ended = self._lanes.enter([node])
        return lane, not ended and lane == self._ended

    def leave(self, node: int, lane: int, parents: Sequence[int]) -> list[str]:
        """Lead from `node` to its parents and return the connector rows this takes."""
        links = self._lanes.leave(lane, parents)
        goes_on = bool(links) and links[0].kind in ("own", "moved")
        rows = self._inherit(links[0]) if goes_on else []
        others = links[1:] if goes_on else links
        for link in others:
            self._put(lane, " " if not goes_on and link == others[-1] else "|")
            rows += self._connector(lane, link.end, gap=(node, link.target) in self._gaps)
            self._put(link.end, "|")
        if not goes_on:
            self._put(lane, " ")
        elif (node, links[0].target) in self._gaps:
            rows[:1] = [_overlaid(rows[0] if rows else self.row(), lane, ":")]
        self._ended = lane if not goes_on and not rows else None
        return rows

    def row(self, lane: int | None = None, mark: str = "") -> str:
        """Return the lanes as they pass, with `mark` in one of them."""
        if lane is None:
            return self._text.rstrip()
        return _overlaid(self._text, lane, mark).rstrip()

    def _inherit(self, link: Link[int]) -> list[str]:
        self._put(link.end, "|")
        if link.kind == "own":
            return []
        self._put(link.start, " ")
        return self._connector(link.start, link.end, gap=False)

    def _connector(self, start: int, end: int, *, gap: bool) -> list[str]:
        """Return the row that leads from one lane to another. The corner stands beside the right one of them."""
        left, right = sorted((_column(start), _column(end)))
        if left == right:
            return []
        line, corner = ("_", "/") if start > end else ("-", "\\")
        between = self._text[left + 1 : right - 1].replace(" ", line)
        return [(self._text[: left + 1] + between + (":" if gap else corner) + self._text[right:]).rstrip()]

    def _put(self, lane: int, sign: str) -> None:
        if lane >= LANES_MAX:
            (self._folded.discard if sign == " " else self._folded.add)(lane)
            sign = "+" if self._folded else " "
        self._text = _overlaid(self._text, lane, sign)


def _column(lane: int) -> int:
    return 2 * (lane if lane < LANES_MAX else LANES_MAX)


def _overlaid(row: str, lane: int, sign: str) -> str:
    column = _column(lane)
    return row[:column] + sign + row[column + 1 :]


# Text


def _node_row(node: Node, thread: str, lanes: _Lanes, lane: int, width: int | None) -> str:
    notes = _notes(node, thread)
    if lane >= LANES_MAX:
        notes.append(f"lane {lane}")
    row = lanes.row(lane, "@" if node.get("head") else "*") + "  " + _label(node, notes, width)
    return _cut(row, width, keep=_column(lane) + 1)


def _label(node: Node, notes: Sequence[str], width: int | None) -> str:
    step = node.get("step")
    tags = _tags(node)
    summary = _clean(node.get("summary"))
    label = f"step {'?' if step is None else _clean(step)} "
    if notes:
        label += f" ({', '.join(notes)})"
    if tags:
        label += f" [{', '.join(tags)}]"
    return f"{label} {_cut(summary, SUMMARY_CHARS_MAX) if width is None else summary}".rstrip()


def _notes(node: Node, thread: str) -> list[str]:
    notes = []
    if node.get("head"):
        place = f"{_clean(thread)} {_clean(node.get('namespace'))}"
        notes.append(f"HEAD {place.strip()}".rstrip())
    if node.get("branch"):
        notes.append(f"branch '{_clean(node['branch'])}'")
    return notes + [word for word in ("pinned", "hidden") if node.get(word)]


def _tags(node: Node) -> list[str]:
    """Return the tags to print, without those that the note about a branch says already."""
    tags = node.get("tags")
    branch = node.get("branch")
    if not tags or not isinstance(tags, list | tuple):
        return []
    said = ("branch", branch) if branch else ()
    return [text for text in (_clean(tag) for tag in tags if tag not in said) if text]


def _clean(value: object) -> str:
    """Return `value` as text that stays in its row: runs of controls become one space, lone surrogates U+FFFD."""
    text = value if isinstance(value, str) else "" if value is None else shown(value)
    if not text.isprintable():
        text = _SURROGATE.sub("\ufffd", _UNSAFE.sub(" ", text))
    return text.strip()


def _cut(text: str, width: int | None, keep: int = 0) -> str:
    """Return `text` in at most `width` characters, but with at least the first `keep`. No room, no dots."""
    if width is None or len(text) <= width:
        return text
    if width < keep + 3:
        return text[: max(width, keep)].rstrip()
    return text[: width - 3] + "..."


def _notice(tree: Mapping[str, Any], shown: int) -> list[str]:
    """Return the last line, if there is something to say. It is never cut: half a number would be a wrong one."""
    total = tree.get("total_checkpoints")
    missing = total - shown if isinstance(total, int) else 0
    if missing > 0:
        return [f"({missing} older checkpoint{'' if missing == 1 else 's'} not shown)"]
    return [] if shown else ["(no checkpoints)"]
