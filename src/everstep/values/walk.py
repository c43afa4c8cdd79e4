"""Looking into stored trees, one level at a time. Pure: what is needed is asked for, never fetched here.

Whatever may need objects is a generator: it yields the hashes it wants to see, and is sent their contents (shallow:
an object's children are hashes again). Each yield is a round trip to a server, so ask for everything that is known to
be needed at once: `together` runs many generators side by side, and their wishes go out as one.

Nodes in here are bare, without size and history. A value that is kept packed is opened by writing its parts, in
memory, as values without a history: such nodes, and the items of lists, are equal exactly when their values are. A
value in pieces that was stored is not like that: its pieces depend on what it was before. `alike` writes it anew.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from everstep.errors import CheckpointCorrupted
from everstep.values import codec, tree
from everstep.values.tree import Content, Node, Part

R = TypeVar("R")
Need: TypeAlias = Generator[Collection[bytes], Mapping[bytes, Content], R]
"""A computation that asks for objects by hash, and ends with an R."""

_LCS_CELLS_MAX = 4096  # small stretches without unique parts are matched exactly; larger ones are left unmatched
_SMALL_VALUES_MAX = 1 << 20
_PARTS_FREE = 1 << 15  # parts of a list that are looked at though few objects hold them: about two seconds
_PARTS_PER_OBJECT = 64  # no group holds more
_ROUNDS_MAX = 16  # how often a stretch is cut at unique parts: bounds the work on hostile sequences


class Root(NamedTuple):
    """The values of a checkpoint, as its record holds them: nodes one after the other."""

    children: bytes
    body: bytes
    sizes: tuple[int, ...]


class Values(NamedTuple):
    """The three values of a checkpoint, split."""

    messages: Node
    """Always a list node."""
    state: Node
    tools_result: Node


class Entries(NamedTuple):
    """A mapping, opened: the values as entries, by packed key, in order."""

    nodes: dict[bytes, Node]
    stands_alone: frozenset[bytes] | None = None
    """The keys of values that stand alone in a mapping of items; None: the mapping is kept packed."""


class Items(NamedTuple):
    """A list, opened as far as needed; groups among its parts are closed."""

    parts: list[Part]
    length: int
    """How many items it has, those in closed groups included."""
    size: int
    """Of all items, packed."""


def bare(node: Node) -> Node:
    """Return the node without what is not part of its value."""
    return Node(node.children, node.body, 0)


def together(needs: Iterable[Need[R]]) -> Need[list[R]]:
    """Run all of `needs` side by side, ask for what they want in one go, and return their results in order."""
    results: dict[int, R] = {}
    waiting: dict[int, tuple[Need[R], Collection[bytes]]] = {}
    for place, need in enumerate(needs):
        try:
            waiting[place] = need, next(need)
        except StopIteration as done:
            results[place] = done.value
    while waiting:
        asked: set[bytes] = set()
        for _, wanted in waiting.values():
            asked.update(wanted)
        answer = yield asked
        for place, (need, _) in list(waiting.items()):
            try:
                waiting[place] = need, need.send(answer)
            except StopIteration as done:
                results[place] = done.value
                del waiting[place]
    return [results[place] for place in range(len(results))]


def ready(value: R) -> Need[R]:
    """Ask for nothing and return `value`: stands beside others in `together`."""
    return value
    yield  # type: ignore[unreachable]  # makes it a generator


class Walker:
    """One look around: remembers every object it has seen or made, and asks for each only once."""

    def __init__(self, roots: Iterable[Root] = (), reader: codec.Codec | None = None) -> None:
        """`reader` turns bytes into values and back; None: as the engine does."""
        self.objects: dict[bytes, Content] = {}
        self._codec = reader or codec.DEFAULT
        self.writer = tree.Writer(objects=self.objects, packer=self._codec)
        self._answer: Mapping[bytes, Content] = {}
        self._lengths: dict[bytes, int] = {}
        self._stored_bytes = self._mapped = 0
        self._size_max = sum([sum(root.sizes) for root in roots]) or tree.VALUE_BYTES_MAX

    # -- nodes

    def want(self, keys: Iterable[bytes]) -> Need[None]:
        """Make sure that these objects are in memory."""
        unknown = {key for key in keys if key not in self.objects}
        if not unknown:
            return
        answer = yield unknown
        if answer is not self._answer:  # it also holds what others asked for at the same time: all of it, and once
            self.objects.update(answer)
            self._answer = answer
            self._stored_bytes += sum([len(body) for _, body in answer.values()])
        for key in unknown:
            if key not in self.objects:
                raise CheckpointCorrupted(f"the object {key.hex()} is missing")

    def resolve(self, node: Node) -> Need[Node]:
        """Return the node itself, or what it refers to."""
        if node.body != tree.REF_BODY:
            return node
        yield from self.want([node.children])
        return Node(*self._content(node.children), 0)

    def size_of(self, node: Node) -> Need[int]:
        """Return how large the node's value is when packed."""
        inner = yield from self.resolve(node)
        return tree.packed_size(inner.children, inner.body)

    def each_size(self, nodes: Iterable[Node]) -> Need[list[int]]:
        """Return how large the value of each node is."""
        return (yield from together(map(self.size_of, nodes)))

    def sizes_of(self, nodes: Iterable[Node]) -> Need[int]:
        """Return how large the nodes' values are together."""
        return sum((yield from self.each_size(nodes)))

    def values(self, root: Root) -> Need[Values]:
        """Return the values of a checkpoint, split if they are kept whole."""
        nodes = tree.nodes(*root)
        if len(nodes) == 1 and nodes[0].body == bytes((tree.WHOLE,)):
            yield from self.want([nodes[0].children])
            packed = whole(Node(*self._content(nodes[0].children), 0))
            if packed is None or not codec.is_list(packed):
                raise CheckpointCorrupted("a stored checkpoint is out of shape")
            nodes = self._split(codec.items(packed))
        if len(nodes) != len(Values._fields) or not tree.is_list(nodes[0]):
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        return Values(*nodes)

    def _split(self, fields: list[bytes]) -> list[Node]:
        if len(fields) != len(Values._fields) or not codec.is_list(fields[0]):
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
        return [self.writer.packed_list(fields[0]), *[self.writer.packed(field) for field in fields[1:]]]

    def _content(self, key: bytes) -> Content:
        children, body = self.objects[key]
        if not body or body[0] in (tree.REF, tree.WHOLE):
            raise CheckpointCorrupted("a stored node is out of shape")
        return children, body

    # -- mappings

    def entries(self, node: Node) -> Need[Entries | None]:
        """Open a mapping; None if the value is something else. The values stay closed."""
        inner = yield from self.resolve(node)
        if inner.body[0] == tree.MAP:
            return (yield from self._opened_mapping(inner))
        packed = yield from self._packed_unless_list(inner)
        if packed is not None:
            self._check_parts(codec.part_count(packed))
        pairs = codec.pairs(packed) if packed is not None else None
        if pairs is None:
            return None
        nodes = {key: bare(self.writer.packed(value)) for key, value in pairs}
        if len(nodes) != len(pairs):
            raise CheckpointCorrupted("a stored mapping is out of shape")
        return Entries(nodes)

    def _opened_mapping(self, inner: Node) -> Need[Entries]:
        found = tree.opened_mapping(inner.children, inner.body)
        self._check(found.length, found.size)
        self._mapped += found.length
        self._check_parts(self._mapped)  # together: mappings of mappings of mappings, which nobody writes
        (together,) = yield from self.packed([found.together])
        nodes: dict[bytes, Node] = {}
        for key, value in found.ordered(together):
            nodes[key] = value if isinstance(value, Node) else bare(self.writer.packed(value))
        if len(nodes) != found.length:
            raise CheckpointCorrupted("a stored mapping is out of shape")
        return Entries(nodes, frozenset([key for _, key, _ in found.alone]))

    def _packed_unless_list(self, inner: Node) -> Need[bytes | None]:
        """Return the packed value of a node; None if it is a list of items."""
        if inner.body[0] == tree.PIECES:
            return (yield from self.packed([inner]))[0]
        return whole(inner)

    # -- lists

    def list_of(self, node: Node) -> Need[Items | None]:
        """Open a list one step, its groups stay closed; None if the value is something else."""
        inner = yield from self.resolve(node)
        if inner.body[0] == tree.LIST:
            found = tree.opened(inner.children, inner.body)
            self._check(found.length, found.size)
            return Items(found.parts, found.length, found.size - len(codec.array_header(found.length)))
        packed = yield from self._packed_unless_list(inner)
        if packed is not None:
            self._check_parts(codec.part_count(packed))
        items = codec.listed(packed) if packed is not None else None
        if items is None:
            return None
        parts = [Part(0, bare(self.writer.item(item))) for item in items]
        return Items(parts, len(parts), sum(map(len, items)))

    def messages(self, node: Node) -> Need[Items]:
        """Open the messages of a checkpoint, which are always a list."""
        items = yield from self.list_of(node)
        if items is None:
            raise CheckpointCorrupted("the messages of a stored checkpoint are no list")
        return items

    def all_items(self, found: Items) -> Need[list[Node]]:
        """Return every item of a list, closed."""
        parts = yield from self._opened(found.parts, found.length)
        if len(parts) != found.length:
            raise CheckpointCorrupted("a stored list is not as long as it says")
        return [part.node for part in parts]

    def group(self, part: Part) -> list[Part]:
        """Return the parts of a group that is in memory."""
        return tree.opened_group(part.level, *self.objects[part.node.children])

    def _opened(self, parts: list[Part], length: int) -> Need[list[Part]]:
        """Return the parts with every group opened, down to level 0."""
        while groups := [part.node.children for part in parts if part.level]:
            yield from self.want(groups)
            parts = self._replaced(parts, (), length)
        return parts

    def _replaced(self, parts: list[Part], kept: Collection[int], length: int, least: int = 1) -> list[Part]:
        """Return the parts with each group from level `least` up in place of which its own parts now stand."""
        opened: list[Part] = []
        for place, part in enumerate(parts):
            if part.level < least or place in kept:
                opened.append(part)
            else:
                opened.extend(self.group(part))
        if len(opened) > length:  # a group holds at least one item: more groups than items are forged
            raise CheckpointCorrupted("a stored list has more groups than it can fill")
        self._check_parts(len(opened))
        return opened

    def _check_parts(self, count: int) -> None:
        """Refuse a container of which a few objects make more parts than there is memory for."""
        if count > _PARTS_FREE + _PARTS_PER_OBJECT * len(self.objects) + self._stored_bytes:
            raise CheckpointCorrupted("a stored list repeats parts of itself too often to be compared; it can be read")

    def _check(self, length: int, size: int) -> None:
        if not length <= size <= self._size_max:
            raise CheckpointCorrupted("a stored value is larger than its record says")

    def align(self, base: Items, *others: Items) -> Need[tuple[list[Items], list[dict[int, int]]]]:
        """Open lists until the groups left are in all of them; return the lists and, for each other, base -> other.

        The matches are in order on both sides. A group stays closed only if it is matched in every other list.
        """
        lists = [base, *others]
        while True:
            matches = [match(lists[0].parts, other.parts) for other in lists[1:]]
            kept = _matched_everywhere(len(lists[0].parts), matches)
            loose = list[Part]()
            for list_, keep in zip(lists, kept, strict=True):
                loose += _loose_groups(list_.parts, keep)
            if not loose:
                return lists, matches
            # The highest level only: the groups inside may be just those that seem unmatched on the other side.
            level = max(part.level for part in loose)
            yield from self.want(part.node.children for part in loose if part.level == level)
            for place, keep in enumerate(kept):
                found = lists[place]
                lists[place] = found._replace(parts=self._replaced(found.parts, keep, found.length, level))

    def positions(self, found: Items, places: Collection[int]) -> Need[dict[int, int]]:
        """Return the index in the list of the items that stand at these places among its parts."""
        groups = [place for place, part in enumerate(found.parts) if part.level]
        # Before the first group, and behind the last one, it is enough to count from one end.
        inner = max([place for place in places if groups and groups[0] < place < groups[-1]], default=0)
        asked = [place for place in groups if place < inner]
        counts = yield from together([self._length(found.parts[place]) for place in asked])
        indexes = _indexes(found, dict(zip(asked, counts, strict=True)))
        return {place: indexes[place] for place in places}

    def _length(self, part: Part) -> Need[int]:
        """Return how many items are in a group; of one that occurs again, without looking again."""
        key = part.node.children
        if key not in self._lengths:
            yield from self.want([key])
            inside = self.group(part)
            if part.level > 1:
                once = {below.node.children: below for below in inside}
                yield from together(map(self._length, once.values()))
                self._lengths[key] = sum([self._lengths[below.node.children] for below in inside])
            else:
                self._lengths[key] = len(inside)
        return self._lengths[key]

    def list_node(self, parts: list[Part], length: int, size: int) -> Need[Node]:
        """Write a list of parts, groups among them, as `tree.Writer` would write it from its items.

        Where a group ends depends on what stands in it alone. So a finished group that begins where a group may begin
        is taken as it is; any other is opened.
        """
        levels = tree.Levels(self.writer, [[]], [[]])
        pending = parts[::-1]
        ahead = 1
        count = 0
        while pending:
            part = pending.pop()
            count += 1
            self._check_parts(count)
            if levels.takes(part.level):
                levels.add_part(part.node, part.level)
                continue
            if part.node.children not in self.objects:
                near = [part, *(later for later in pending[: -ahead - 1 : -1] if later.level)]
                yield from self.want(group.node.children for group in near)
                ahead *= 2  # a list of equal items may have to be opened to its end
            pending.extend(reversed(self.group(part)))
        return levels.list_node(length, size + len(codec.array_header(length)))

    # -- whole values

    def packed(self, nodes: Sequence[Node]) -> Need[list[bytes]]:
        """Return the packed values of nodes; asks for everything below them, level by level."""
        pending = {key for node in nodes for key in tree.hashes(node.children)}
        seen: set[bytes] = set()
        while pending:
            yield from self.want(pending)
            seen |= pending
            pending = {key for found in pending for key in tree.hashes(self.objects[found][0])} - seen
        # What is new is no larger than all roots and all that was written, but for small values, which stand inline.
        size_max = self._size_max + self.writer.added_bytes + _SMALL_VALUES_MAX
        joined: dict[Content, bytes] = {}
        for children, body, *_ in nodes:
            if (children, body) not in joined:
                parts = tree.Reader(self.objects, size_max).fields(children, body, 1)[0]
                joined[children, body] = b"".join(parts)
        return [joined[node.children, node.body] for node in nodes]

    def alike(self, nodes: Sequence[Node | None]) -> Need[list[Node | None]]:
        """Return nodes that are equal exactly if their values are: those in pieces are written anew."""
        stored = [node for node in nodes if node is not None]
        opened = yield from together(map(self.resolve, stored))
        cut: list[Node] = []
        for node, inner in zip(stored, opened, strict=True):
            if inner.body[0] in (tree.PIECES, tree.MAP):
                cut.append(node)
        anew: dict[Node | None, Node] = {}
        for node, packed in zip(cut, (yield from self.packed(cut)), strict=True):
            anew[node] = bare(self.writer.item(packed))
        return [anew.get(each, each) for each in nodes]

    def in_pieces(self, node: Node) -> Need[tree.InPieces | None]:
        """Open a value in pieces; None if it is kept otherwise."""
        inner = yield from self.resolve(node)
        if inner.body[0] != tree.PIECES:
            return None
        yield from self.packed([inner])
        return tree.in_pieces(inner, self.objects)

    def read(self, nodes: Sequence[Node | None], absent: Any = None) -> Need[list[Any]]:
        """Return the Python values of nodes, and `absent` for None."""
        packed = iter((yield from self.packed([node for node in nodes if node is not None])))
        found: list[Any] = []
        for node in nodes:
            if node is None:
                found.append(absent)
            else:
                found.append(self._codec.unpack(next(packed)))
        return found


def _matched_everywhere(count: int, matches: Sequence[Mapping[int, int]]) -> list[set[int]]:
    """Return which of the first `count` places are matched in all others; and for each of these, where."""
    shared = set(range(count))
    for found in matches:
        shared &= found.keys()
    return [shared, *[set(map(found.__getitem__, shared)) for found in matches]]


def _loose_groups(parts: Sequence[Part], kept: Collection[int]) -> list[Part]:
    """Return the groups among these parts but for those at the places that are kept."""
    return [part for place, part in enumerate(parts) if part.level and place not in kept]


def _indexes(found: Items, lengths: Mapping[int, int]) -> dict[int, int]:
    """Return the index in the list of what stands at each place, counted from both ends as far as lengths are known."""
    indexes: dict[int, int] = {}
    at = 0
    for place, part in enumerate(found.parts):
        if part.level and place not in lengths:
            break
        indexes[place] = at
        at += lengths.get(place, 1)
    for back, part in enumerate(reversed(found.parts), 1):
        if part.level:
            break
        indexes[len(found.parts) - back] = found.length - back
    return indexes


def read_values(root: Root) -> Need[list[Any]]:
    """Read the three values of a checkpoint back."""
    walker = Walker()
    nodes = yield from walker.values(root)
    return (yield from walker.read(list(nodes)))


def whole(node: Node) -> bytes | None:
    """Return the packed value of a node that holds it whole."""
    if node.body[0] == tree.REST:
        packed = node.body[1:]
    elif node.body[0] == tree.PACKED:
        packed = node.body[2:]
        if node.body[1:2] != bytes((min(len(packed), 0xFF),)):  # it is small: its size is one byte
            raise CheckpointCorrupted("a stored node is out of shape")
    else:
        return None
    if not packed:
        raise CheckpointCorrupted("a stored value is cut short")
    return packed


def key_path(path: str, packed_key: bytes) -> str:
    """Return the path of a packed key inside the mapping at `path`, different for different keys."""
    key = codec.unpack(packed_key)
    if type(key) is str and key.isidentifier() and len(key) <= 60:
        return f"{path}.{key}"
    return f"{path}[{shown(key)}]"


def shown(key: Any) -> str:
    """Return a key as it stands in a path: its repr, or the beginning and a digest of one that is too long."""
    try:
        text = repr(key)
    except Exception:  # an integer too long to print, a class of somebody's own
        text = f"a {type(key).__name__} " + "." * 60
    if len(text) <= 60:
        return text
    return f"{text[:40]}...#{hashlib.sha256(codec.pack(key)).hexdigest()[:8]}"


# -- matching ----------------------------------------------------------------------------------------------------------


def match(a: Sequence[Hashable], b: Sequence[Hashable]) -> dict[int, int]:
    """Return places in `a` -> places in `b` where the same stands, in order on both sides, for what is in both.

    First what both begin and end with, then what occurs once in each (patience), and the same again in between.
    """
    numbers: dict[Hashable, int] = {}
    left = _numbered(a, numbers)
    right = _numbered(b, numbers)
    found: dict[int, int] = {}
    pending = [(range(len(left)), range(len(right)), _ROUNDS_MAX)]
    while pending:
        x, y, rounds = pending.pop()
        x, y = _trimmed(left, right, x, y, found)
        if not x or not y or not rounds:
            continue
        anchors = _anchors(left, right, x, y)
        found.update(anchors)
        starts = [(x.start, y.start), *((here + 1, there + 1) for here, there in anchors)]
        ends = [*anchors, (x.stop, y.stop)]
        if anchors:
            for (x_start, y_start), (x_stop, y_stop) in zip(starts, ends, strict=True):
                pending.append((range(x_start, x_stop), range(y_start, y_stop), rounds - 1))
    return dict(sorted(found.items()))


def _numbered(parts: Sequence[Hashable], numbers: dict[Hashable, int]) -> list[int]:
    """Return the numbers of parts, the same for the same; a part that has none gets the next one."""
    return [numbers.setdefault(part, len(numbers)) for part in parts]


def _trimmed(left: list[int], right: list[int], x: range, y: range, found: dict[int, int]) -> tuple[range, range]:
    """Add to `found` what both stretches begin and end with, and return what is between."""
    start = 0
    end = 0
    most = min(len(x), len(y))
    while start < most and left[x[start]] == right[y[start]]:
        found[x[start]] = y[start]
        start += 1
    while start + end < most and left[x[-1 - end]] == right[y[-1 - end]]:
        found[x[-1 - end]] = y[-1 - end]
        end += 1
    return x[start : len(x) - end], y[start : len(y) - end]


def _anchors(left: list[int], right: list[int], x: range, y: range) -> list[tuple[int, int]]:
    """Return pairs of places with equal parts, rising on both sides: of unique parts, or of any in a small stretch."""
    here = _places(left, x)
    there = _places(right, y)
    unique = list[int]()
    opposite = list[int]()
    for part, places in here.items():
        others = there.get(part, ())
        if len(places) == 1 and len(others) == 1:
            unique.append(places[0])
            opposite.append(others[0])
    if unique:
        return [(unique[place], opposite[place]) for place in rising(opposite)]
    if len(x) * len(y) <= _LCS_CELLS_MAX and not here.keys().isdisjoint(there):
        return _common(left, right, x, y)
    return []


def _places(parts: list[int], stretch: range) -> dict[int, list[int]]:
    """Return where each part of a stretch stands, in the order of coming."""
    found: dict[int, list[int]] = {}
    for place in stretch:
        found.setdefault(parts[place], []).append(place)
    return found


def rising(numbers: Sequence[int]) -> list[int]:
    """Return the places of a longest rising run in `numbers`, not necessarily side by side."""
    ends: list[int] = []  # the least number with which a run of this length can end
    places: list[int] = []
    before: list[int] = []
    for place, number in enumerate(numbers):
        length = bisect_left(ends, number)
        before.append(places[length - 1] if length else -1)
        ends[length : length + 1] = [number]
        places[length : length + 1] = [place]
    run: list[int] = []
    place = places[-1] if places else -1
    while place >= 0:
        run.append(place)
        place = before[place]
    return run[::-1]


def _common(left: list[int], right: list[int], x: range, y: range) -> list[tuple[int, int]]:
    """Return a longest common run of two small stretches."""
    rows = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i in range(len(x) - 1, -1, -1):
        for j in range(len(y) - 1, -1, -1):
            equal = left[x[i]] == right[y[j]]
            rows[i][j] = rows[i + 1][j + 1] + 1 if equal else max(rows[i + 1][j], rows[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(x) and j < len(y):
        if left[x[i]] == right[y[j]]:
            pairs.append((x[i], y[j]))
            i = i + 1
            j = j + 1
        elif rows[i + 1][j] >= rows[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


class Stretch(NamedTuple):
    """What is unmatched between two neighbouring matches: places on both sides."""

    a: range
    b: range


def stretches(matches: Mapping[int, int], a_length: int, b_length: int) -> list[Stretch]:
    """Return the unmatched stretches of two sequences, in order; `matches` must rise on both sides."""
    found: list[Stretch] = []
    a_at = b_at = 0
    for a_place, b_place in [*matches.items(), (a_length, b_length)]:
        if a_at < a_place or b_at < b_place:
            found.append(Stretch(range(a_at, a_place), range(b_at, b_place)))
        a_at = a_place + 1
        b_at = b_place + 1
    return found
