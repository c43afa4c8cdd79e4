"""Three-way merge of checkpoints, path by path. Pure; asks for objects as `values.walk` says.

First a plan is made without reading values: for each path the node of one side, or a conflict, or a container whose
parts are planned in turn. A side that left a path alone gives way to the other, whose node is taken unopened. Then
conflicts are settled, and only then is anything written.

What a maintainer would get wrong: a merged conversation must be, byte for byte, what writing it anew would give. Else
equal messages have different nodes, and every later comparison sees changes that are none. So groups of a list are
kept only where they would begin anew, and an item is written without a look at what it was. A value in pieces has no
such law: two nodes that differ are compared as values (`Walker.alike`) before anything is decided about them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.merge_messages import Slot, Woven, weave
from everstep.reports import Conflict
from everstep.types import MISSING
from everstep.values import codec, tree
from everstep.values.codec import Codec
from everstep.values.tree import Content, Node, Part
from everstep.values.walk import Entries, Need, Root, Values, Walker, bare, key_path, ready, together

Resolve: TypeAlias = str | Mapping[str, Any] | Callable[[Conflict], Any] | None
Key: TypeAlias = bytes | int
"""Of a part of a container: a packed key, or an index."""


class Merged(NamedTuple):
    """The outcome of a merge: values to be written, or conflicts."""

    nodes: list[Node]
    """Messages, state, tools_result; empty if there are conflicts."""
    objects: dict[bytes, Content]
    """What the nodes need and is not known to be below ours or theirs."""
    conflicts: list[Conflict]


@dataclass
class _Clash:
    """A path on which the sides do not agree."""

    path: str
    base: Node | None
    ours: Node | None
    theirs: Node | None
    node: Node | None = None
    """What was decided, if it is what one side has."""
    value: Any = MISSING
    """What was decided, if it is a new value; MISSING removes."""

    def take_side(self, side: str) -> None:
        """Decide for "ours" or "theirs"."""
        self.node = self.theirs
        if side == "ours":
            self.node = self.ours


@dataclass
class _Container:
    """A mapping or list whose parts are planned one by one."""

    path: str
    node: Node
    """As ours have it."""
    own: dict[Key, Node]
    """The parts of ours, in order."""
    parts: dict[Key, _Plan]
    """The parts of the result, in order."""
    is_list: bool
    stands_alone: frozenset[bytes] | None = None
    """For a mapping of items: the keys of values that stand alone in ours or theirs."""


_Plan: TypeAlias = "Node | _Clash | _Container | _Conversation | None"


class _Conversation(NamedTuple):
    """The messages, planned slot by slot."""

    woven: Woven
    loose: list[Slot]
    """The slots that are not the same on all sides."""
    plans: list[_Plan]
    """What becomes of them."""


def merge(
    base: Root,
    ours: Root,
    theirs: Root,
    *,
    resolve: Resolve = None,
    uncertain: frozenset[str] = frozenset(),
    ours_count: Callable[[str], bool] | None = None,
    reader: Codec | None = None,
    mappings_only: bool = False,
) -> Need[Merged]:
    """Return `ours` with what `theirs` did since `base`.

    A path that both changed, each in its own way, is a conflict, unless `resolve` settles it. At and below the
    `uncertain` paths the base counts for nothing: where the sides differ there, they are in conflict. What `ours_count`
    says of the messages, or of a key of the state, decides whether it stays as in ours whatever theirs did. With
    `mappings_only` a message can be resolved to a mapping only.
    """
    _check_resolve(resolve)
    walker = Walker([base, ours, theirs], reader)
    b, o, t = yield from together([walker.values(root) for root in (base, ours, theirs)])
    planner = _Planner(walker, uncertain, ours_count)
    plans = yield from together(
        [
            planner.messages(bare(b.messages), bare(o.messages), bare(t.messages)),
            planner.value("state", bare(b.state), bare(o.state), bare(t.state)),
            planner.tools_result(bare(b.tools_result), bare(o.tools_result), bare(t.tools_result)),
        ]
    )
    clashes = list(chain.from_iterable(map(_clashes, plans)))
    conflicts = yield from _settle(walker, clashes, resolve)
    # After the clashes are settled, since what they were settled with is checked here.
    if mappings_only:
        _check_messages(plans[0])
    if conflicts:
        return Merged([], {}, conflicts)
    builder = _Builder(walker)
    nodes = yield from together(map(builder.field, plans, Values._fields))
    sized = list(map(_sized, nodes, o, t))
    return Merged(sized, _new_objects(walker, sized, (ours, theirs)), [])


def _sized(node: Node, ours: Node, theirs: Node) -> Node:
    """Return the node with its size, which a node taken from a side has there."""
    if node.size:
        return node
    if node == bare(ours):
        return ours
    return theirs


def _new_objects(walker: Walker, nodes: Iterable[Node], sides: Iterable[Root]) -> dict[bytes, Content]:
    """Return the objects below `nodes` that are not seen to be below one of the sides."""

    def children_of(key: bytes) -> bytes | None:
        return walker.objects[key][0] if key in walker.objects else None

    # A merge names both sides as bases: what is below them is stored, and need not be sent again.
    old, _ = tree.reachable(b"".join(side.children for side in sides), children_of)
    found: dict[bytes, Content] = {}
    pending: list[bytes] = []
    for node in nodes:
        pending.extend(tree.hashes(node.children))
    while pending:
        key = pending.pop()
        if key not in old and key not in found:
            found[key] = walker.objects[key]
            pending.extend(tree.hashes(found[key][0]))
    return found


# -- planning ----------------------------------------------------------------------------------------------------------


class _Planner:
    """Decides, path by path, whose value is taken."""

    def __init__(
        self, walker: Walker, uncertain: frozenset[str], ours_count: Callable[[str], bool] | None = None
    ) -> None:
        self._walker = walker
        self._uncertain = uncertain
        self._ours_count = ours_count

    def value(
        self, path: str, base: Node | None, ours: Node | None, theirs: Node | None, certain: bool = True
    ) -> Need[_Plan]:
        """Plan one value: a side's node, a container whose parts are planned, or a conflict.

        If the base is not `certain`, the sides are in conflict wherever they differ.
        """
        certain = certain and path not in self._uncertain
        if ours == theirs or self._is_ours(path):
            return ours
        nodes: Sequence[Node | None] = (base, ours, theirs)
        # Where the base is one of the sides, equal bytes have answered the question already.
        if not certain or base not in (ours, theirs):
            # Equal values may have been written in different forms.
            nodes = yield from self._walker.alike(list(nodes))
        like_base, like_ours, like_theirs = nodes
        if like_ours == like_theirs:
            return ours
        if certain and not self._is_opened(path):
            if like_ours == like_base:
                return theirs
            if like_theirs == like_base:
                return ours
        container = yield from self._container(path, base, ours, theirs, certain)
        return container or _Clash(path, base, ours, theirs)

    def _container(
        self, path: str, base: Node | None, ours: Node | None, theirs: Node | None, certain: bool
    ) -> Need[_Container | None]:
        """Plan a value part by part; None if it is not the same kind of container on both sides."""
        if ours is None or theirs is None:
            return None
        container = yield from self._mapping(path, base, ours, theirs, certain)
        if container is None:
            container = yield from self._list(path, base, ours, theirs, certain)
        return container

    def _is_ours(self, path: str) -> bool:
        """Whether the caller says that our value counts, whatever theirs is."""
        return self._ours_count is not None and self._ours_count(path)

    def tools_result(self, base: Node, ours: Node, theirs: Node) -> Need[_Plan]:
        """Plan the results of tool calls. The record of one captured call is not mixed with another's: ours counts."""
        b, o, t = yield from self._walker.alike([base, ours, theirs])
        if o != t and b not in (o, t):
            for entries in (yield from self._entries(ours, theirs)):
                if entries is not None and entries.nodes.keys() >= _CALL_RECORD:
                    return ours
        return (yield from self.value("tools_result", base, ours, theirs))

    def _entries(self, *nodes: Node | None) -> Need[list[Entries | None]]:
        """Open mappings, and return None for what is no mapping or is not there."""
        needs: list[Need[Entries | None]] = []
        for node in nodes:
            if node is None:
                needs.append(ready(None))
            else:
                needs.append(self._walker.entries(node))
        return together(needs)

    def _is_opened(self, path: str) -> bool:
        """Whether a container must be opened although a side left it alone."""
        return self._uncertain_below(path) or (self._ours_count is not None and path == "state")

    def _uncertain_below(self, path: str) -> bool:
        return any(below.startswith((f"{path}.", f"{path}[")) for below in self._uncertain)

    def _mapping(
        self, path: str, base: Node | None, ours: Node, theirs: Node, certain: bool
    ) -> Need[_Container | None]:
        b, o, t = yield from self._entries(base, ours, theirs)
        if o is None or t is None:
            return None
        before: dict[Key, Node] = {}
        if b is not None:
            before = _keyed(b.nodes)
        elif base is not None and certain:
            return None  # it became a mapping on both sides: nothing tells how
        container = _Container(path, ours, _keyed(o.nodes), {}, is_list=False)
        container.stands_alone = _union(o.stands_alone, t.stands_alone)
        yield from self._parts(container, before, _keyed(t.nodes), certain)
        return container

    def _list(self, path: str, base: Node | None, ours: Node, theirs: Node, certain: bool) -> Need[_Container | None]:
        if base is None:
            # Both sides made a list: nothing tells which items belong together.
            return None
        found = yield from together(map(self._walker.list_of, (base, ours, theirs)))
        lists = [items for items in found if items is not None]
        if len(lists) < 3:
            return None
        before, mine, other = yield from together(map(self._walker.all_items, lists))
        if not _same_places(before, mine, other):
            return None
        container = _Container(path, ours, dict(enumerate(mine)), {}, is_list=True)
        yield from self._parts(container, dict(enumerate(before)), dict(enumerate(other)), certain)
        return container

    def _parts(
        self, container: _Container, base: dict[Key, Node], theirs: dict[Key, Node], certain: bool
    ) -> Need[None]:
        """Plan each part of a container: ours in their order, then what only theirs have."""
        ours = container.own
        open_keys: list[Key] = []
        needs: list[Need[_Plan]] = []
        for key in ours | theirs:
            mine = ours.get(key)
            other = theirs.get(key)
            # Set in this order, also where the plan comes later: this is the order of the keys of the result.
            container.parts[key] = mine
            if mine != other:
                open_keys.append(key)
                path = _part_path(container.path, key)
                needs.append(self.value(path, base.get(key), mine, other, certain))
        plans = yield from together(needs)
        container.parts.update(zip(open_keys, plans, strict=True))

    def messages(self, base: Node, ours: Node, theirs: Node) -> Need[_Plan]:
        """Plan the messages: a side's list as it is, or both woven into one."""
        if ours == theirs or self._is_ours("messages"):
            return ours
        # Without a base nothing tells which messages are new.
        if "messages" in self._uncertain:
            return _Clash("messages", base, ours, theirs)
        unsure = self._uncertain_below("messages")
        if ours == base and not unsure:
            return theirs
        if theirs == base and not unsure:
            return ours
        lists = yield from together(map(self._walker.messages, (base, ours, theirs)))
        woven = yield from weave(self._walker, *lists, all_paths=unsure)
        if woven is None:
            return _Clash("messages", base, ours, theirs)
        loose = [slot for slot in woven.slots if not slot.clean]
        plans = yield from together(map(self._slot, loose))
        return _Conversation(woven, loose, plans)

    def _slot(self, slot: Slot) -> Need[_Plan]:
        if slot.clash:
            return ready(_Clash(slot.path, slot.base, slot.ours, slot.theirs))
        return self.value(slot.path, slot.base, slot.ours, slot.theirs)


_CALL_RECORD = {codec.pack(key) for key in ("name", "args", "kwargs", "status")}


def _same_places(base: list[Node], ours: list[Node], theirs: list[Node]) -> bool:
    """Whether an index means the same in all three: items were changed in place, or added at the end by one side."""
    length = len(base)
    if len(theirs) == length:
        return len(ours) == length or _is_extended(base, ours)
    return len(ours) == length and _is_extended(base, theirs)


def _is_extended(base: list[Node], items: list[Node]) -> bool:
    length = len(base)
    return len(items) > length and items[:length] == base


def _union(ours: frozenset[bytes] | None, theirs: frozenset[bytes] | None) -> frozenset[bytes] | None:
    """Return the keys of both, or None if neither side has such keys."""
    if ours is None:
        return theirs
    if theirs is None:
        return ours
    return ours | theirs


def _keyed(nodes: dict[bytes, Node]) -> dict[Key, Node]:
    return dict[Key, Node](nodes.items())


def _part_path(path: str, key: Key) -> str:
    return f"{path}[{key}]" if isinstance(key, int) else key_path(path, key)


def _clashes(plan: _Plan) -> Iterator[_Clash]:
    """Return the conflicts of a plan, in the order of its paths."""
    if isinstance(plan, _Clash):
        yield plan
    elif isinstance(plan, _Container):
        for part in plan.parts.values():
            yield from _clashes(part)
    elif isinstance(plan, _Conversation):
        for part in plan.plans:
            yield from _clashes(part)


# -- settling ----------------------------------------------------------------------------------------------------------


def _check_resolve(resolve: object) -> None:
    if resolve is None or isinstance(resolve, Mapping) or callable(resolve):
        return
    if isinstance(resolve, str) and resolve in ("ours", "theirs"):
        return
    raise InvalidInput(
        f"resolve is 'ours', 'theirs', a mapping of path to value, or a function of a Conflict; not {resolve!r:.60}"
    )


def _settle(walker: Walker, clashes: list[_Clash], resolve: Resolve) -> Need[list[Conflict]]:
    """Decide each clash as `resolve` says, and return those that are left."""
    if isinstance(resolve, str):
        for clash in clashes:
            clash.take_side(resolve)
        return []
    if isinstance(resolve, Mapping):
        return (yield from _conflicts(walker, _settle_by_path(clashes, resolve)))
    conflicts = yield from _conflicts(walker, clashes)
    if resolve is None:
        return conflicts
    for clash, conflict in zip(clashes, conflicts, strict=True):
        _decide(clash, _called(resolve, conflict))
    return []


def _settle_by_path(clashes: list[_Clash], resolve: Mapping[str, Any]) -> list[_Clash]:
    """Decide the clashes whose paths are named, and return the others."""
    _check_paths(resolve, clashes)
    left: list[_Clash] = []
    for clash in clashes:
        if clash.path in resolve:
            _decide(clash, resolve[clash.path])
        else:
            left.append(clash)
    return left


def _conflicts(walker: Walker, clashes: list[_Clash]) -> Need[list[Conflict]]:
    """Return clashes as people see them, with the values of all sides."""
    nodes: list[Node | None] = []
    for clash in clashes:
        nodes += (clash.base, clash.ours, clash.theirs)
    values = yield from walker.read(nodes, MISSING)
    conflicts: list[Conflict] = []
    for clash, base, ours, theirs in zip(clashes, values[::3], values[1::3], values[2::3], strict=True):
        conflicts.append(Conflict(clash.path, base, ours, theirs))
    return conflicts


def _check_paths(resolve: Mapping[str, Any], clashes: list[_Clash]) -> None:
    paths = [clash.path for clash in clashes]
    # A path that is no conflict is a mistake of the caller's: to leave it out would look as if it had been
    # heard.
    for path in resolve:
        if path not in paths:
            real = ", ".join(paths[:10]) or "none"
            raise InvalidInput(f"resolve names {path!r:.200}, which is no conflict; the conflicts are: {real}")


def _called(resolve: Callable[[Conflict], Any], conflict: Conflict) -> Any:
    value = resolve(conflict)
    if inspect.isawaitable(value):
        # Closed, or Python would warn that it was never awaited.
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidInput("resolve must be a plain function, not an async one: it decides without waiting")
    return value


def _decide(clash: _Clash, value: Any) -> None:
    if clash.path == "messages" and not isinstance(value, list):
        raise InvalidInput(f"the messages must be resolved to a list, not {type(value).__name__}")
    if clash.path in ("state", "tools_result") and not isinstance(value, dict):
        raise InvalidInput(f"{clash.path} must be resolved to a dict, not {type(value).__name__}")
    clash.value = value


def _check_messages(plan: _Plan) -> None:
    """Refuse messages that were resolved to something else than mappings."""
    if isinstance(plan, _Clash) and isinstance(plan.value, list):
        for index, message in enumerate(plan.value):
            _check_message(message, f"messages[{index}]")
    if isinstance(plan, _Conversation):
        for part in plan.plans:
            if isinstance(part, _Clash) and part.value is not MISSING:
                _check_message(part.value, part.path)


def _check_message(message: object, path: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidInput(f"{path} must be resolved to a dict, as a message is one, not {type(message).__name__}")


# -- building ----------------------------------------------------------------------------------------------------------


class _Builder:
    """Writes a plan down, in the form that its value would have if it were written anew."""

    def __init__(self, walker: Walker) -> None:
        self._walker = walker
        self._writer = walker.writer

    def field(self, plan: _Plan, name: str) -> Need[Node]:
        """Build one of the three values of a checkpoint."""
        # Messages that were resolved as a whole are written in groups, as any conversation is.
        if name == "messages" and isinstance(plan, _Clash) and plan.value is not MISSING:
            return self._writer.list_node(plan.value, name)
        node = yield from self._node(plan, 0)
        if node is None:
            raise CheckpointCorrupted(f"the {name} of a stored checkpoint is missing")
        return node

    def _conversation(self, plan: _Conversation) -> Need[Node]:
        ours = plan.woven.ours
        replaced = plan.woven.replaced
        built = yield from self._built(plan.plans, 1)
        node_of = dict(zip(plan.loose, built, strict=True))
        for slot in plan.loose:
            # A result goes with its call, for a model refuses one without the other.
            if slot.call is not None and _is_lost(slot, slot.call, node_of[slot.call]):
                node_of[slot] = None
        new = [node for node in node_of.values() if node is not None]
        # The size of the list is corrected by what changed, so that the rest of it need not be read.
        gone_size, new_size = yield from together([self._walker.sizes_of(replaced), self._walker.sizes_of(new)])
        parts = _parts(plan.woven.slots, node_of)
        length = ours.length - len(replaced) + len(new)
        return (yield from self._walker.list_node(parts, length, ours.size - gone_size + new_size))

    def _built(self, plans: Iterable[_Plan], depth: int) -> Need[list[Node | None]]:
        """Build the parts of something, side by side."""
        nodes = yield from together(self._node(plan, depth) for plan in plans)
        return [node and bare(node) for node in nodes]

    def _node(self, plan: _Plan, depth: int) -> Need[Node | None]:
        if isinstance(plan, _Container):
            return (yield from self._container(plan, depth))
        if isinstance(plan, _Conversation):
            return (yield from self._conversation(plan))
        if not isinstance(plan, _Clash):
            return plan
        if plan.value is MISSING:
            return plan.node
        return self._writer.value(plan.value, plan.path, depth)

    def _container(self, plan: _Container, depth: int) -> Need[Node]:
        built = yield from self._built(plan.parts.values(), depth + 1)
        parts = {key: node for key, node in zip(plan.parts, built, strict=True) if node is not None}
        if plan.stands_alone is not None:
            return (yield from self._mapping(plan.stands_alone, parts))
        values = yield from self._walker.packed(list(parts.values()))
        if plan.is_list:
            packed = codec.list_of(values)
        else:
            keys = map(_packed_key, parts)
            packed = codec.mapping_of(list(zip(keys, values, strict=True)))
        # At the top, pieces of ours that did not change are shared. An item is written without a look at what it was.
        if depth == 0:
            return self._writer.packed(packed, (yield from self._walker.in_pieces(plan.node)))
        return self._writer.packed(packed)

    def _mapping(self, stands_alone: frozenset[bytes], parts: dict[Key, Node]) -> Need[Node]:
        """Write a mapping of items; what stands alone in one of the sides does so here."""
        small: list[Node] = []
        alone: list[Node] = []
        for part, node in parts.items():
            if _packed_key(part) in stands_alone:
                alone.append(node)
            else:
                small.append(node)
        values = iter((yield from self._walker.packed(small)))
        sizes = iter((yield from self._walker.each_size(alone)))
        entries: list[tuple[bytes, bytes | Node]] = []
        for part, node in parts.items():
            key = _packed_key(part)
            if key in stands_alone:
                entries.append((key, node._replace(size=next(sizes))))
            else:
                entries.append((key, next(values)))
        return self._writer.placed(self._writer.mapping(entries))


def _parts(slots: Iterable[Slot], node_of: Mapping[Slot, Node | None]) -> list[Part]:
    """Return the parts of a merged conversation; a slot without a node was removed."""
    parts: list[Part] = []
    for slot in slots:
        node = node_of[slot] if not slot.clean else slot.base
        if node is not None:
            parts.append(slot.group or Part(0, node))
    return parts


def _is_lost(result: Slot, call: Slot, node: Node | None) -> bool:
    """Whether the call that a result answers did not stay: the conflict was settled for the side that dropped it."""
    dropped = None
    if result.theirs is not None:
        dropped = call.ours
    elif result.ours is not None:
        dropped = call.theirs
    return node is None or node == dropped


def _packed_key(key: Key) -> bytes:
    return b"" if isinstance(key, int) else key
