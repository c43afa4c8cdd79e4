"""Three-way merge of checkpoints, path by path. Pure; asks for objects as `values.walk` says.

First a plan is made without reading values: for each path the node of one side, or a conflict, or a container whose
parts are planned in turn. A side that left a path alone gives way to the other, whose node is taken unopened. Then
conflicts are settled, and only then is anything written.

What a maintainer would get wrong: a merged conversation must be, byte for byte, what writing it anew would give. Else
equal messages have different nodes, and every later comparison sees changes that are none. So groups of a list are
kept only where they would begin anew, and an item is written without a look at what it was. A value in pieces has no
such law: two nodes that differ are compared as values (`Walker.alike`) before anything is said about them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.merge_messages import Slot, Woven, weave
from everstep.reports import Conflict
from everstep.types import MISSING
from everstep.values import codec, tree
from everstep.values.codec import Codec
from everstep.values.tree import Content, Node, Part
from everstep.values.walk import Need, Root, Values, Walker, bare, key_path, ready, together

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
    clashes = [clash for plan in plans for clash in _clashes(plan)]
    conflicts = yield from _settle(walker, clashes, resolve)
    if mappings_only:
        _check_messages(plans[0])
    if conflicts:
        return Merged([], {}, conflicts)
    builder = _Builder(walker)
    nodes = yield from together([builder.field(*both) for both in zip(plans, Values._fields, strict=True)])
    sized = [_sized(node, mine, other) for node, mine, other in zip(nodes, o, t, strict=True)]
    return Merged(sized, _new_objects(walker, sized, (ours, theirs)), [])


def _sized(node: Node, ours: Node, theirs: Node) -> Node:
    """Return the node with its size, which a node taken from a side has there."""
    if node.size:
        return node
    return ours if node == bare(ours) else theirs


def _new_objects(walker: Walker, nodes: Iterable[Node], sides: Iterable[Root]) -> dict[bytes, Content]:
    """Return the objects below `nodes` that are not seen to be below one of the sides."""

    def children_of(key: bytes) -> bytes | None:
        return walker.objects[key][0] if key in walker.objects else None

    old, _ = tree.reachable(b"".join(side.children for side in sides), children_of)
    found: dict[bytes, Content] = {}
    pending = [key for node in nodes for key in tree.hashes(node.children)]
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
        certain = certain and path not in self._uncertain
        if ours == theirs or self._is_ours(path):
            return ours
        b = base
        o = ours
        t = theirs
        if not certain or base not in (ours, theirs):
            # Equal values may have been written in different forms.
            b, o, t = yield from self._walker.alike([base, ours, theirs])
        if o == t:
            return ours
        if certain and b in (o, t) and not self._is_opened(path):
            return theirs if o == b else ours
        if ours is not None and theirs is not None:
            container = yield from self._mapping(path, base, ours, theirs, certain)
            if container is None:
                container = yield from self._list(path, base, ours, theirs, certain)
            if container is not None:
                return container
        return _Clash(path, base, ours, theirs)

    def _is_ours(self, path: str) -> bool:
        """Whether the caller says that our value counts, whatever theirs is."""
        return self._ours_count is not None and self._ours_count(path)

    def tools_result(self, base: Node, ours: Node, theirs: Node) -> Need[_Plan]:
        """Plan the results of tool calls. The record of one captured call is not mixed with another's: ours counts."""
        b, o, t = yield from self._walker.alike([base, ours, theirs])
        if o != t and b not in (o, t):
            opened = yield from together([self._walker.entries(node) for node in (ours, theirs)])
            if any(entries is not None and entries.nodes.keys() >= _CALL_RECORD for entries in opened):
                return ours
        return (yield from self.value("tools_result", base, ours, theirs))

    def _is_opened(self, path: str) -> bool:
        """Whether a container must be opened although a side left it alone."""
        return self._uncertain_below(path) or (self._ours_count is not None and path == "state")

    def _uncertain_below(self, path: str) -> bool:
        return any(below.startswith((f"{path}.", f"{path}[")) for below in self._uncertain)

    def _mapping(
        self, path: str, base: Node | None, ours: Node, theirs: Node, certain: bool
    ) -> Need[_Container | None]:
        b, o, t = yield from together(
            self._walker.entries(node) if node is not None else ready(None) for node in (base, ours, theirs)
        )
        if o is None or t is None:
            return None
        if b is None and base is not None and certain:
            return None  # it became a mapping on both sides: nothing tells how
        container = _Container(path, ours, _keyed(o.nodes), {}, is_list=False)
        alone = [entries.stands_alone for entries in (o, t) if entries.stands_alone is not None]
        if alone:
            container.stands_alone = frozenset().union(*alone)
        before = _keyed(b.nodes) if b is not None else {}
        yield from self._parts(container, before, _keyed(t.nodes), certain)
        return container

    def _list(self, path: str, base: Node | None, ours: Node, theirs: Node, certain: bool) -> Need[_Container | None]:
        found = yield from together(
            self._walker.list_of(node) if node is not None else ready(None) for node in (base, ours, theirs)
        )
        lists = [items for items in found if items is not None]
        if len(lists) < 3:
            return None
        nodes = yield from together(self._walker.all_items(items) for items in lists)
        if not _same_places(*nodes):
            return None
        b, o, t = [dict[Key, Node](enumerate(items)) for items in nodes]
        container = _Container(path, ours, o, {}, is_list=True)
        yield from self._parts(container, b, t, certain)
        return container

    def _parts(
        self, container: _Container, base: dict[Key, Node], theirs: dict[Key, Node], certain: bool
    ) -> Need[None]:
        """Plan each part of a container: ours in their order, then what only theirs have."""
        ours = container.own
        container.parts = {key: ours.get(key) for key in [*ours, *(key for key in theirs if key not in ours)]}
        open_keys = [key for key in container.parts if ours.get(key) != theirs.get(key)]
        plans = yield from together(
            self.value(_part_path(container.path, key), base.get(key), ours.get(key), theirs.get(key), certain)
            for key in open_keys
        )
        container.parts.update(zip(open_keys, plans, strict=True))

    def messages(self, base: Node, ours: Node, theirs: Node) -> Need[_Plan]:
        if ours == theirs or self._is_ours("messages"):
            return ours
        if "messages" in self._uncertain:
            return _Clash("messages", base, ours, theirs)
        unsure = self._uncertain_below("messages")
        if base in (ours, theirs) and not unsure:
            return theirs if ours == base else ours
        lists = yield from together([self._walker.messages(node) for node in (base, ours, theirs)])
        woven = yield from weave(self._walker, *lists, all_paths=unsure)
        if woven is None:
            return _Clash("messages", base, ours, theirs)
        loose = [slot for slot in woven.slots if not slot.clean]
        return _Conversation(woven, loose, (yield from together([self._slot(slot) for slot in loose])))

    def _slot(self, slot: Slot) -> Need[_Plan]:
        if slot.clash:
            return ready(_Clash(slot.path, slot.base, slot.ours, slot.theirs))
        return self.value(slot.path, slot.base, slot.ours, slot.theirs)


_CALL_RECORD = {codec.pack(key) for key in ("name", "args", "kwargs", "status")}


def _same_places(base: list[Node], ours: list[Node], theirs: list[Node]) -> bool:
    """Whether an index means the same in all three: items were changed in place, or added at the end by one side."""
    length = len(base)
    if len(ours) == len(theirs) == length:
        return True
    longer, other = (ours, theirs) if len(theirs) == length else (theirs, ours)
    return len(other) == length < len(longer) and longer[:length] == base


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
            clash.node = clash.ours if resolve == "ours" else clash.theirs
        return []
    if isinstance(resolve, Mapping):
        _check_paths(resolve, clashes)
        for clash in clashes:
            if clash.path in resolve:
                _decide(clash, resolve[clash.path])
        return (yield from _conflicts(walker, [clash for clash in clashes if clash.path not in resolve]))
    conflicts = yield from _conflicts(walker, clashes)
    if resolve is None:
        return conflicts
    for clash, conflict in zip(clashes, conflicts, strict=True):
        _decide(clash, _called(resolve, conflict))
    return []


def _conflicts(walker: Walker, clashes: list[_Clash]) -> Need[list[Conflict]]:
    nodes = [node for clash in clashes for node in (clash.base, clash.ours, clash.theirs)]
    values = yield from walker.read(nodes, MISSING)
    return [Conflict(clash.path, *values[at * 3 : at * 3 + 3]) for at, clash in enumerate(clashes)]


def _check_paths(resolve: Mapping[str, Any], clashes: list[_Clash]) -> None:
    paths = [clash.path for clash in clashes]
    for path in resolve:
        if path not in paths:
            real = ", ".join(paths[:10]) if paths else "none"
            raise InvalidInput(f"resolve names {path!r:.200}, which is no conflict; the conflicts are: {real}")


def _called(resolve: Callable[[Conflict], Any], conflict: Conflict) -> Any:
    value = resolve(conflict)
    if inspect.isawaitable(value):
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
            if slot.call is not None and _is_lost(slot, node_of[slot.call]):
                node_of[slot] = None
        new = [node for node in node_of.values() if node is not None]
        gone_size, new_size = yield from together([self._walker.sizes_of(replaced), self._walker.sizes_of(new)])
        parts: list[Part] = []
        for slot in plan.woven.slots:
            node = slot.base if slot.clean else node_of[slot]
            if node is not None:
                parts.append(slot.group or Part(0, node))
        length = ours.length - len(replaced) + len(new)
        return (yield from self._walker.list_node(parts, length, ours.size - gone_size + new_size))

    def _built(self, plans: Iterable[_Plan], depth: int) -> Need[list[Node | None]]:
        """Build the parts of something, side by side."""
        nodes = yield from together(
            ready(plan) if plan is None or isinstance(plan, Node) else self._node(plan, depth) for plan in plans
        )
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
            packed = codec.mapping_of([(_key(key), value) for key, value in zip(parts, values, strict=True)])
        if depth == 0:
            return self._writer.packed(packed, (yield from self._walker.in_pieces(plan.node)))
        return self._writer.packed(packed)

    def _mapping(self, stands_alone: frozenset[bytes], parts: dict[Key, Node]) -> Need[Node]:
        """Write a mapping of items; what stands alone in one of the sides does so here."""
        together = {_key(key): node for key, node in parts.items() if _key(key) not in stands_alone}
        packed = yield from self._walker.packed(list(together.values()))
        small = dict(zip(together, packed, strict=True))
        alone = [node for key, node in parts.items() if _key(key) in stands_alone]
        sizes = iter((yield from self._walker.each_size(alone)))
        entries: list[tuple[bytes, bytes | Node]] = []
        for part, node in parts.items():
            key = _key(part)
            entries.append((key, small[key] if key in small else node._replace(size=next(sizes))))
        return self._writer.placed(self._writer.mapping(entries))


def _is_lost(result: Slot, call: Node | None) -> bool:
    """Whether the call that a result answers did not stay: the conflict was settled for the side that dropped it."""
    dropped = result.call.theirs if result.call is not None and result.ours is not None else None
    if result.call is not None and result.theirs is not None:
        dropped = result.call.ours
    return call is None or call == dropped


def _key(key: Key) -> bytes:
    return b"" if isinstance(key, int) else key
