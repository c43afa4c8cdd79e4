"""Laws of looking into trees: nothing is opened that need not be, and what is put together again is as if new."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.values import codec, tree, walk
from tests.values.samples import values
from tests.values.shelves import Shelf
from tests.values.trees import large_values, message


def node_of(value: Any, shelf: Shelf) -> tree.Node:
    return tree.Writer(objects=shelf.objects).value(value, "v")


# -- packed bytes


@given(st.lists(values(), max_size=8), st.dictionaries(st.text(max_size=4), values(), max_size=6))
@settings(max_examples=20)
def test_the_items_of_packed_bytes_are_their_values(items: list[Any], mapping: dict[str, Any]) -> None:
    assert codec.listed(codec.pack(items)) == [codec.pack(item) for item in items]
    assert codec.items(codec.pack(mapping)) == [codec.pack(part) for pair in mapping.items() for part in pair]


@given(
    st.lists(values(), max_size=8) | st.lists(st.tuples(st.integers(), st.text()), max_size=5),
    st.dictionaries(st.text(max_size=4) | st.integers() | st.tuples(st.integers()), values(), max_size=6),
)
@settings(max_examples=40)
def test_packed_parts_are_put_together_as_the_packer_does(items: list[Any], mapping: dict[Any, Any]) -> None:
    parts = [codec.pack(item) for item in items]
    assert codec.listed(codec.pack(items)) == parts
    assert codec.list_of(parts) == codec.pack(items)
    pairs = [(codec.pack(key), codec.pack(value)) for key, value in mapping.items()]
    assert codec.pairs(codec.pack(mapping)) == pairs
    assert codec.mapping_of(pairs) == codec.pack(mapping)


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_taken_for_packed_ones_end_in_an_error_of_ours(packed: bytes) -> None:
    for read in (codec.items, codec.untagged, codec.listed, codec.pairs):
        try:
            read(packed)
        except EverstepError:
            pass


@given(values() | large_values())
@settings(max_examples=25)
def test_the_size_of_any_node_is_at_most_one_object_away(value: Any) -> None:
    shelf = Shelf()
    node = node_of(value, shelf)
    assert shelf.run(walk.Walker().size_of(walk.bare(node))) == len(codec.pack(value))
    assert shelf.asked <= 1


# -- asking


def asks(*keys: bytes) -> walk.Need[bytes]:
    out = b""
    for key in keys:
        answer = yield [key]
        out += answer[key][1]
    return out


def test_what_is_wanted_at_the_same_time_is_one_question() -> None:
    shelf = Shelf()
    shelf.objects = {bytes([n]) * 16: (b"", b"%d" % n) for n in range(9)}
    a, b, c = (bytes([n]) * 16 for n in (1, 2, 3))
    assert shelf.run(walk.together([asks(a, b), walk.ready(b"x"), asks(), asks(c)])) == [b"12", b"x", b"", b"3"]
    assert shelf.trips == 2


def test_a_missing_object_is_corruption() -> None:
    shelf = Shelf()
    node = node_of(["x" * 5000, "y" * 5000], shelf)
    for key in list(shelf.objects):
        gone = shelf.objects.pop(key)
        with pytest.raises(CheckpointCorrupted, match=key.hex()):
            shelf.run(walk.Walker().read([node]))
        shelf.objects[key] = gone


@given(st.lists(values() | large_values(), max_size=3))
@settings(max_examples=20)
def test_reading_gives_the_values(many: list[Any]) -> None:
    shelf = Shelf()
    nodes = [node_of(value, shelf) for value in many]
    read = shelf.run(walk.Walker().read([*nodes, None], "none"))
    assert [codec.pack(value) for value in read] == [codec.pack(value) for value in [*many, "none"]]
    assert shelf.trips <= 8


def test_values_kept_whole_are_the_same_as_split_ones() -> None:
    shelf = Shelf()
    fields = ([message(n) for n in range(300)], {"a": "x" * 3000, "b": {1: "y" * 3000}}, {"t": (1, 2)})
    whole, split = shelf.root(*fields, whole=True), shelf.root(*fields)
    found = [shelf.run(walk.Walker([root]).values(root)) for root in (whole, split)]
    assert [[walk.bare(node) for node in one] for one in found[:1]] == [[walk.bare(node) for node in found[1]]]


# -- containers


@given(st.dictionaries(st.text(max_size=8) | st.integers(), values() | st.text().map(lambda t: t * 500), max_size=40))
@settings(max_examples=20)
def test_a_mapping_opens_into_entries(mapping: dict[Any, Any]) -> None:
    shelf = Shelf()
    walker = walk.Walker()
    entries = shelf.run(walker.entries(node_of(mapping, shelf)))
    expected = {codec.pack(key): walk.bare(node_of(value, shelf)) for key, value in mapping.items()}
    assert list(entries.nodes.items()) == list(expected.items())


@given(st.dictionaries(st.text(max_size=8), values() | st.text(min_size=1).map(lambda t: t * 5000), max_size=20))
@settings(max_examples=20)
def test_a_mapping_of_items_joins_and_opens_in_its_order(mapping: dict[str, Any]) -> None:
    shelf = Shelf()
    writer = tree.Writer(objects=shelf.objects)
    entries: list[tuple[bytes, bytes | tree.Node]] = []
    for key, value in mapping.items():
        packed = codec.pack(value)
        entries.append((codec.pack(key), packed if len(packed) < 100 else writer.packed(packed)))
    node = writer.placed(writer.mapping(entries))
    assert node.size == len(codec.pack(mapping))
    assert shelf.run(walk.Walker().packed([node])) == [codec.pack(mapping)]
    found = shelf.run(walk.Walker().entries(node))
    expected = {codec.pack(key): walk.bare(node_of(value, shelf)) for key, value in mapping.items()}
    assert list(found.nodes.items()) == list(expected.items())
    alone = {codec.pack(key) for key, value in mapping.items() if len(codec.pack(value)) >= 100}
    assert found.stands_alone == alone


def test_a_value_in_pieces_is_compared_as_a_value() -> None:
    """Its pieces depend on what it was before."""
    shelf, walker = Shelf(), walk.Walker()
    writer = tree.Writer(objects=shelf.objects)
    before = writer.value("x" * 9_000, "v")
    other = writer.value("y" + "x" * 9_000, "v", old=tree.made_of(before))
    anew = writer.value("y" + "x" * 9_000, "v")
    assert walk.bare(other) != walk.bare(anew)
    same, also, different = shelf.run(walker.alike([walk.bare(node) for node in (other, anew, before)]))
    assert same == also != different


@pytest.mark.parametrize(
    "value", [1, "x" * 99999, (1, 2), {1, 2}, b"z" * 99999, [1], ["x" * 9999] * 9, bytearray(9999)]
)
def test_what_is_no_mapping_does_not_open_as_one(value: Any) -> None:
    shelf = Shelf()
    assert shelf.run(walk.Walker().entries(node_of(value, shelf))) is None
    assert (shelf.run(walk.Walker().list_of(node_of(value, shelf))) is None) is (type(value) is not list)


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60), st.booleans())
def test_matches_are_equal_and_in_order(a: list[int], b: list[int], wide: bool) -> None:
    if wide:
        a, b = [n * 7 + place // 9 for place, n in enumerate(a)], [n * 7 + place // 9 for place, n in enumerate(b)]
    found = walk.match(a, b)
    assert all(a[here] == b[there] for here, there in found.items())
    assert list(found) == sorted(found)
    assert list(found.values()) == sorted(set(found.values()))
    loose = walk.stretches(found, len(a), len(b))
    assert [p for s in loose for p in s.a] == [p for p in range(len(a)) if p not in found]
    assert [p for s in loose for p in s.b] == [p for p in range(len(b)) if p not in found.values()]


@given(st.lists(st.integers(), unique=True, max_size=60), st.data())
def test_what_was_taken_out_or_put_in_is_all_that_finds_no_match(items: list[int], data: st.DataObject) -> None:
    removed = data.draw(st.sets(st.sampled_from(items), max_size=9)) if items else set()
    longer = [part for item in items for part in ([item, f"new {item}"] if item % 5 == 0 else [item])]
    changed = [item for item in longer if item not in removed]
    assert len(walk.match(items, changed)) == len(items) - len(removed)


def test_long_sequences_are_matched_without_comparing_each_with_each() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, str(other))

        __hash__ = str.__hash__

    a, b = ([Counted(f"{side}{n}") for n in range(10_000)] for side in "ab")
    assert walk.match(a, b) == {}
    assert len(walk.match(a, [Counted(str(item)) for item in a[::-1]])) >= 1
    worst = [n % 100 for n in range(10_000)]
    assert walk.match(worst, worst[::-1]) is not None
    assert Counted.compared < 100_000


@given(st.lists(st.integers(0, 40), max_size=40))
def test_the_longest_rising_run(numbers: list[int]) -> None:
    run = [numbers[place] for place in walk.rising(numbers)]
    assert run == sorted(set(run))
    best = [0] * (len(numbers) + 1)
    for at, number in enumerate(numbers):
        best[at] = 1 + max([best[n] for n in range(at) if numbers[n] < number], default=0)
    assert len(run) == max(best)


EDITED = [
    lambda items, at: items[:at] + items[at + 1 :],
    lambda items, at: [*items[:at], message(-1), *items[at:]],
    lambda items, at: [*items[:at], message(-2), *items[at + 1 :]],
    lambda items, at: [*items, message(-3)],
    lambda items, at: items[at:] + items[:at],
    lambda items, at: items[:at],
]


def _items(shelf: Shelf, walker: walk.Walker, items: list[Any]) -> walk.Items:
    found = shelf.run(walker.list_of(tree.Writer(objects=shelf.objects).list_node(items, "v")))
    assert found is not None
    return found  # type: ignore[no-any-return]


@given(st.sampled_from([5, 60, 700, 4000]), st.data())
@settings(max_examples=25)
def test_lists_are_opened_only_where_they_differ(length: int, data: st.DataObject) -> None:
    local = data.draw(st.booleans())
    edits, ats = st.sampled_from(EDITED[:4] if local else EDITED), st.integers(0, length)
    make = data.draw(st.sampled_from([message, lambda n: n, lambda n: message(n % 3), lambda n: message(0)]))
    base = [make(n) for n in range(length)]
    others = [data.draw(edits)(base, data.draw(ats)) for _ in range(2)]
    shelf, walker = Shelf(), walk.Walker()
    opened = [_items(shelf, walker, items) for items in (base, *others)]

    lists, matches = shelf.run(walker.align(*opened))

    for other, found in zip(lists[1:], matches, strict=True):
        assert all(lists[0].parts[here] == other.parts[there] for here, there in found.items())
    assert all(place in found for found in matches for place, part in enumerate(lists[0].parts) if part.level)
    if make is message and local:
        assert shelf.asked < 150
    for items, list_ in zip((base, *others), lists, strict=True):
        nodes = shelf.run(walker.all_items(list_))
        assert shelf.run(walker.read(nodes)) == items


@given(st.integers(1, 3000), st.data())
@settings(max_examples=15)
def test_positions_are_indexes(length: int, data: st.DataObject) -> None:
    base = [message(n) for n in range(length)]
    at = data.draw(st.integers(0, length - 1))
    changed = [*base[:at], message(-1), *base[at + 1 :]]
    shelf, walker = Shelf(), walk.Walker()
    lists, (found,) = shelf.run(walker.align(_items(shelf, walker, base), _items(shelf, walker, changed)))
    (loose,) = walk.stretches(found, len(lists[0].parts), len(lists[1].parts))
    (place,) = loose.b
    assert shelf.run(walker.positions(lists[1], [place])) == {place: at}


@given(st.sampled_from([0, 5, 60, 700, 4000]), st.integers(0, 10_000), st.data())
@settings(max_examples=30)
def test_a_list_put_together_from_parts_is_the_list_written_anew(length: int, seed: int, data: st.DataObject) -> None:
    make = data.draw(st.sampled_from([message, lambda n: n, lambda n: message(n % 3), lambda n: message(0)]))
    base = [make(n + seed) for n in range(length)]
    at = data.draw(st.integers(0, length))
    changed = data.draw(st.sampled_from(EDITED))(base, at)
    shelf, walker = Shelf(), walk.Walker()
    opened = [_items(shelf, walker, items) for items in (base, changed)]
    lists, _ = shelf.run(walker.align(*opened))

    node = shelf.run(walker.list_node(lists[1].parts, lists[1].length, lists[1].size))

    assert node[:3] == tree.Writer().list_node(changed, "v")[:3]
    _, unknown = tree.reachable(node.children, lambda key: (shelf.objects.get(key) or (None,))[0])
    assert not unknown


@given(st.lists(st.tuples(st.integers(0, 900), st.sampled_from(["different", "equal", "tiny"])), max_size=4))
@settings(max_examples=25)
def test_lists_put_end_to_end_are_the_long_list_written_anew(pieces: list[tuple[int, str]]) -> None:
    """Groups of the second list no longer begin where a group may begin."""
    makers: dict[str, Any] = {"different": message, "equal": lambda _: message(0), "tiny": lambda n: n}
    lists = [[makers[kind](n) for n in range(length)] for length, kind in pieces]
    shelf, walker = Shelf(), walk.Walker()
    opened = [_items(shelf, walker, items) for items in lists]
    parts = [part for items in opened for part in items.parts]

    node = shelf.run(walker.list_node(parts, sum(map(len, lists)), sum(items.size for items in opened)))

    assert node[:3] == tree.Writer().list_node([item for items in lists for item in items], "v")[:3]


# -- paths


def test_paths_are_different_for_different_keys() -> None:
    keys: Iterable[Any] = [
        "a",
        "a b",
        "1",
        1,
        1.0,
        "x" * 5000,
        "x" * 5001,
        "\n",
        "é",
        "'",
        10**5000,
        10**5000 + 1,
        (1, "a"),
    ]
    paths = [walk.key_path("state", codec.pack(key)) for key in keys]
    assert len(set(paths)) == len(paths)
    assert paths[:4] == ["state.a", "state['a b']", "state['1']", "state[1]"]
    assert all(len(path) < 100 and path.isprintable() for path in paths)


# -- hostile bytes


@given(st.binary(max_size=80), st.binary(max_size=48), st.integers(0, 3))
@settings(max_examples=60)
def test_any_bytes_as_a_node_end_in_an_error_of_ours(body: bytes, children: bytes, level: int) -> None:
    shelf, walker = Shelf(), walk.Walker()
    node = tree.Node(children, body, 0)
    for read in (
        lambda: tree.opened_group(level, children, body),
        lambda: tree.opened(children, body),
        lambda: tree.packed_size(children, body),
        lambda: shelf.run(walker.entries(node)) if body else None,
        lambda: shelf.run(walker.list_of(node)) if body else None,
        lambda: shelf.run(walker.values(walk.Root(children, body, (1, 1, 1)))),
    ):
        try:
            read()
        except EverstepError:
            pass


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_damaged_objects_end_in_an_error_of_ours_or_some_value(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf()
    node = node_of({f"k{n}": ["x" * 100] * n for n in range(40)}, shelf)
    for key in rng.sample(sorted(shelf.objects), min(3, len(shelf.objects))):
        children, body = shelf.objects[key]
        at = rng.randrange(len(body))
        shelf.objects[key] = children, body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    walker = walk.Walker()
    try:
        entries = shelf.run(walker.entries(node))
        for item in entries.nodes.values() if entries else ():
            found = shelf.run(walker.list_of(item))
            shelf.run(walker.all_items(found)) if found else None
    except EverstepError:
        pass


def test_a_list_that_unfolds_without_end_is_stopped() -> None:
    shelf, walker = Shelf(), walk.Walker()

    def add(children: bytes, body: bytes) -> bytes:
        key = tree.address(children, body)
        shelf.objects[key] = children, body
        return key

    key = add(add(b"", bytes((tree.REST,)) + codec.pack("x" * 100)) * 30, bytes((tree.GROUP, 60, 0)))
    for _ in range(9):
        key = add(key * 30, bytes((tree.NODES,)))
    size = tree.number_bytes(1000)
    body = bytes((tree.LIST, 100)) + size + bytes((11, 1, *([0] * 10)))
    found = shelf.run(walker.list_of(tree.Node(key, body, 0)))
    with pytest.raises(CheckpointCorrupted):
        shelf.run(walker.all_items(found))
