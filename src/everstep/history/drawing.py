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

# Controls, line separators and the marks that turn the direction of text: what they do would not stay in the
# row.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def draw(tree: Mapping[str, Any], *, width: int | None = None) -> str:
    """Return the graph of a checkpoint tree, as `get_checkpoint_tree` gives it, without a newline at the end.

    Rows longer than `width` characters end with `...`, but a row is never cut before its mark. Without `width` only
    summaries are cut, at 60 characters. Edges to nodes that are not in the tree are left out, and so are edges that
    close a circle.
    """
    nodes = _nodes(tree)
    if width is not None:
        width = checks.count(width, "width")
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
        for row in lanes.leave(index, lane, parents[index]):
            rows.append(_cut(row, width))
    notice = _notice(tree, len(nodes))
    # Never cut, since half a number would be a wrong one.
    if notice:
        rows.append(notice)
    return "\n".join(rows)


# Reading the tree


def _nodes(tree: object) -> Sequence[Node]:
    if not isinstance(tree, Mapping) or not isinstance(tree.get("nodes"), list | tuple):
        raise InvalidInput(f"a checkpoint tree is a mapping with a list of nodes, not {shown(tree)}")
    nodes: Sequence[Node] = tree["nodes"]
    for node in nodes:
        if not isinstance(node, Mapping) or not isinstance(node.get("id"), str):
            raise InvalidInput(f"a node of a checkpoint tree is a mapping with an id, not {shown(node)}")
    return nodes


def _thread(node: Node, tree: Mapping[str, Any]) -> str:
    for thread in (node.get("thread_id"), tree.get("thread_id")):
        if isinstance(thread, str):
            return thread
    return ""


def _edges(tree: Mapping[str, Any], nodes: Sequence[Node], threads: Sequence[str]) -> tuple[Parents, Gaps]:
    """Return the parents of each node and the gaps; edges that cannot be read, or are there twice, are left out."""
    find = _Names(nodes, threads).find
    # Tuples and not lists, since tuples of numbers cost the garbage collector nothing.
    parents: list[tuple[int, ...]] = [()] * len(nodes)
    gaps: set[tuple[int, int]] = set()
    edges = tree.get("edges")
    if not isinstance(edges, list | tuple):
        return parents, gaps
    for edge in edges:
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
        if thread is None:
            return self._by_id.get(name)
        return None


def _ordered(parents: Parents) -> tuple[Sequence[int], Parents]:
    """Return the nodes with children before parents, and the edges that this order allows.

    An order that is right is kept as it is.
    """
    # The usual case: a tree of the engine's own comes newest first, so no edge leads up.
    if _is_in_order(parents):
        return range(len(parents)), parents
    order = _sorted(parents)
    row_of = {index: row for row, index in enumerate(order)}
    kept: list[tuple[int, ...]] = []
    for child, found in enumerate(parents):
        # An edge that leads up closes a circle.
        down = [parent for parent in found if row_of[child] < row_of[parent]]
        kept.append(tuple(down))
    return order, kept


def _is_in_order(parents: Parents) -> bool:
    return all(child < min(found) for child, found in enumerate(parents) if found)


def _sorted(parents: Parents) -> list[int]:
    """Return all nodes, children first where no circle forbids it, otherwise in the order given."""
    waiting = [0] * len(parents)
    for found in parents:
        for parent in found:
            waiting[parent] += 1
    ready = [index for index, children in enumerate(waiting) if not children]
    # A heap, so that among those that could come next the order given is kept.
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
    top = own[0]
    for index in own:
        if nodes[index].get("head"):
            top = index
            break
    # Up to the newest checkpoint of the line: the head may have been moved back to an older one.
    while top in child_any:
        top = child_own.get(top, child_any[top])
    return top


# Lanes


class _Lanes:
    """The lanes between two rows as text."""

    def __init__(self, gaps: Gaps) -> None:
        self._gaps = gaps
        self._lanes = Lanes[int]()
        # The lanes that pass in the shared column.
        self._folded: set[int] = set()
        # The lane of the row above, if it ended there without a connector: two checkpoints that have nothing
        # to do with one another would look like parent and child.
        self._ended: int | None = None
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
        if links and links[0].kind in ("own", "moved"):
            return self._go_on(node, lane, links[0], links[1:])
        rows: list[str] = []
        for link in links:
            is_last = link == links[-1]
            # The lane ends in the corner of its last connector; the others begin beside it.
            rows += self._link_row(node, lane, link, passes=not is_last)
        self._put(lane, " ")
        self._ended = None
        if not rows:
            self._ended = lane
        return rows

    def _go_on(self, node: int, lane: int, own: Link[int], others: Sequence[Link[int]]) -> list[str]:
        """Return the connector rows of a lane that leads on to the first parent."""
        self._ended = None
        rows = self._inherit(own)
        for link in others:
            rows += self._link_row(node, lane, link, passes=True)
        if (node, own.target) in self._gaps:
            # The gap is shown in the row below the child; if there is none, it gets one.
            rows = rows or [self.row()]
            rows[0] = _overlaid(rows[0], lane, ":")
        return rows

    def _link_row(self, node: int, lane: int, link: Link[int], *, passes: bool) -> list[str]:
        """Return the connector from a node to one parent; `passes` says whether the node's own lane goes on."""
        sign = "|" if passes else " "
        self._put(lane, sign)
        rows = self._connector(lane, link.end, gap=(node, link.target) in self._gaps)
        self._put(link.end, "|")
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
        """Return the row that leads from one lane to another. The corner is beside the right one of them."""
        left, right = sorted((_column(start), _column(end)))
        if left == right:  # both are in the shared column
            return []
        if start > end:
            line = "_"
            corner = "/"
        else:
            line = "-"
            corner = "\\"
        if gap:
            corner = ":"
        # Lanes that pass stay to be seen, and the connector runs between them.
        between = self._text[left + 1 : right - 1].replace(" ", line)
        row = self._text[: left + 1] + between + corner + self._text[right:]
        return [row.rstrip()]

    def _put(self, lane: int, sign: str) -> None:
        if lane < LANES_MAX:
            self._text = _overlaid(self._text, lane, sign)
            return
        if sign == " ":
            self._folded.discard(lane)
        else:
            self._folded.add(lane)
        shared = "+" if self._folded else " "
        self._text = _overlaid(self._text, lane, shared)


def _column(lane: int) -> int:
    return 2 * min(lane, LANES_MAX)


def _overlaid(row: str, lane: int, sign: str) -> str:
    column = _column(lane)
    return row[:column] + sign + row[column + 1 :]


# Text


def _node_row(node: Node, thread: str, lanes: _Lanes, lane: int, width: int | None) -> str:
    notes = _notes(node, thread)
    # The shared column does not tell which lane it is.
    if lane >= LANES_MAX:
        notes.append(f"lane {lane}")
    mark = "@" if node.get("head") else "*"
    row = f"{lanes.row(lane, mark)}  {_label(node, notes, width)}"
    return _cut(row, width, keep=_column(lane) + 1)


def _label(node: Node, notes: Sequence[str], width: int | None) -> str:
    step = _clean(node["step"]) if node.get("step") is not None else "?"
    label = f"step {step} "
    if notes:
        label += f" ({', '.join(notes)})"
    tags = _tags(node)
    if tags:
        label += f" [{', '.join(tags)}]"
    summary = _clean(node.get("summary"))
    if width is None:  # otherwise the row as a whole is cut
        summary = _cut(summary, SUMMARY_CHARS_MAX)
    return f"{label} {summary}".rstrip()


def _notes(node: Node, thread: str) -> list[str]:
    notes = []
    if node.get("head"):
        place = f"{_clean(thread)} {_clean(node.get('namespace'))}"
        notes.append(f"HEAD {place.strip()}".rstrip())
    if node.get("branch"):
        notes.append(f"branch '{_clean(node['branch'])}'")
    for word in ("pinned", "hidden"):
        if node.get(word):
            notes.append(word)
    return notes


def _tags(node: Node) -> list[str]:
    """Return the tags to print, without those that the note about a branch repeats."""
    tags = node.get("tags")
    branch = node.get("branch")
    if not tags or not isinstance(tags, list | tuple):
        return []
    texts: list[str] = []
    for tag in tags:
        if branch and tag in ("branch", branch):
            continue
        text = _clean(tag)
        if text:
            texts.append(text)
    return texts


def _clean(value: object) -> str:
    """Return `value` as text that stays in its row: runs of controls become one space, lone surrogates U+FFFD."""
    if value is None:
        return ""
    text = value
    if not isinstance(text, str):
        text = shown(value)
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


def _notice(tree: Mapping[str, Any], drawn: int) -> str:
    """Return the last line, or "" if there is nothing to say."""
    total = tree.get("total_checkpoints")
    if isinstance(total, int) and total > drawn:
        missing = total - drawn
        plural = "" if missing == 1 else "s"
        return f"({missing} older checkpoint{plural} not shown)"
    if not drawn:
        return "(no checkpoints)"
    return ""
