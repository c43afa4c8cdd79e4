"""Laws of the tree: joining gives the packed bytes back, and a change re-uses what it did not touch."""

from __future__ import annotations

import base64
import functools
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everstep.errors import CheckpointCorrupted, EverstepError, UnstorableValue
from everstep.repository.repository import squeezed_objects, verified
from everstep.stores import records
from everstep.stores.protocol import Key, Object, Record
from everstep.values import codec, compress, overlap, tree
from tests.values.samples import check_read, same, values
from tests.values.trees import large_values, message


def written(value: Any, known: Any = frozenset()) -> tuple[tree.Node, tree.Writer]:
    writer = tree.Writer(known)
    return writer.value(value, "v"), writer


def written_list(items: list[Any], known: Any = frozenset()) -> tuple[tree.Node, tree.Writer]:
    writer = tree.Writer(known)
    return writer.list_node(items, "v"), writer


def listed(items: list[Any]) -> bytes:
    """Return a list as it is packed item by item."""
    return b"".join([codec.array_header(len(items)), *map(codec.pack, items)])


def joined(node: tree.Node, objects: dict[bytes, tree.Content]) -> bytes:
    return b"".join(tree.Reader(objects, node.size).fields(node.children, node.body, 1)[0])


@given(values() | large_values())
@settings(max_examples=300)
def test_joining_gives_back_the_packed_bytes(value: Any) -> None:
    node, writer = written(value)
    packed = codec.pack(value)
    assert node.size == len(packed)
    assert joined(node, writer.objects) == packed


@given(values() | large_values())
def test_equal_values_without_a_history_have_equal_trees(value: Any) -> None:
    node, writer = written(value)
    again, other = written(codec.unpack(codec.pack(value)))
    assert (node, writer.objects) == (again, other.objects)
    known, unknown = tree.reachable(node.children, lambda key: writer.objects[key][0])
    assert (known, unknown) == (set(writer.objects), [])
    _, nothing_new = written(value, known)
    assert (nothing_new.objects, nothing_new.added_bytes) == ({}, 0)


@given(st.lists(values(), max_size=60), st.lists(values(), max_size=40))
def test_extending_is_writing_the_longer_list(start: list[Any], more: list[Any]) -> None:
    node, writer = written_list(start)
    longer = writer.extended(node, more, "v")
    whole, whole_writer = written_list(start + more)
    assert longer == whole
    assert whole_writer.objects.items() <= writer.objects.items()


@pytest.mark.parametrize("added", [1, 3, 40])
def test_extending_a_list_leaves_it_as_it_was(added: int) -> None:
    """A list may be extended again, by something else: the first attempt was refused, or somebody else was first."""
    more = [f"refused {n}" for n in range(added)]
    other = [f"other {n}" for n in range(added)]
    for length in range(0, 200, 9):  # open ends of every length, on one level and on several
        start = [f"item {n}" for n in range(length)]
        node, writer = written_list(start)
        longer, _ = written_list(start + other)
        writer.extended(node, more, "v")
        writer.extended_packed(node, [codec.pack(item) for item in more])
        with pytest.raises(UnstorableValue):
            writer.extended(node, [*more, object()], "v")
        assert node == written_list(start)[0]
        assert writer.extended(node, other, "v") == longer
        assert writer.extended_packed(node, [codec.pack(item) for item in other]) == longer


@pytest.mark.parametrize("length", [10, 100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize("item", ["different", "equal", "tiny", "tiny equal", "period"])
def test_an_append_adds_few_objects_at_any_length(length: int, item: str) -> None:
    makers: dict[str, Any] = {
        "different": message,
        "equal": lambda _: message(0),
        "tiny": lambda n: n,
        "tiny equal": lambda _: 7,
        "period": lambda n: message(n % 3),
    }
    make = makers[item]
    node, writer = written_list([make(n) for n in range(length)])
    most = 0
    for n in range(length, length + 100):
        before = len(writer.objects)
        node = writer.extended(node, [make(n)], "v")
        most = max(most, len(writer.objects) - before)
        assert len(node.children) + len(node.body) < 6_000
    assert most <= 9


EDITS = {
    "append": lambda items, at, new: [*items, new],
    "insert": lambda items, at, new: [*items[:at], new, *items[at:]],
    "delete": lambda items, at, new: [*items[:at], *items[at + 1 :]],
    "edit": lambda items, at, new: [*items[:at], new, *items[at + 1 :]],
    "delete many": lambda items, at, new: [*items[:at], *items[at + 50 :]],
}


@functools.cache
def written_once(make: Any, seed: int) -> tuple[list[Any], tree.Writer]:
    """Return a long list and who wrote it: many edits begin with the same one."""
    items = [make(n + seed * 10_000) for n in range(4_000)]
    return items, written_list(items)[1]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(
    "make",
    [message, lambda n: n * 1_000_003, lambda n: f"short {n % 10}", lambda n: hash((n, 1)) % 2 == 0],
    ids=["large", "small", "few", "booleans"],
)
@given(at=st.integers(0, 4_000), seed=st.integers(0, 3))
@settings(max_examples=12)
def test_an_edit_anywhere_re_uses_the_rest(edit: str, make: Any, at: int, seed: int) -> None:
    items, writer = written_once(make, seed)
    changed = EDITS[edit](items, at, make(-seed - 1))
    node, new = written_list(changed, set(writer.objects))
    assert len(new.objects) <= 30
    assert joined(node, writer.objects | new.objects) == codec.pack(changed)


@pytest.mark.parametrize("edit", EDITS)
@given(at=st.integers(0, 4_000), length=st.sampled_from([1, 5, 60, 700, 4_000]))
@settings(max_examples=12)
def test_a_list_written_over_the_old_one_is_the_list_written_anew(edit: str, at: int, length: int) -> None:
    items = [message(n) for n in range(length)]
    node, writer = written_list(items)
    changed = EDITS[edit](items, at, message(-1))
    old, new = (overlap.chunked(each, codec.DEFAULT, "v") for each in (items, changed))
    over = tree.Writer()
    found = over.replaced(node, overlap.overlap(new, old), len(new.packed()), writer.objects)
    whole, _ = written_list(changed)
    assert found[:3] == whole[:3]
    assert len(over.objects) <= 30
    assert joined(found, writer.objects | over.objects) == codec.pack(changed)


def over_it(value: Any, old: tree.Node) -> tuple[tree.Node, tree.Writer]:
    """Write a value over the pieces of the one before it."""
    writer = tree.Writer()
    return writer.value(value, "v", old=tree.made_of(old)), writer


@given(at=st.integers(0, 2_999))
@settings(max_examples=20)
def test_changing_one_key_of_a_mapping_re_uses_the_rest(at: int) -> None:
    mapping: dict[str, Any] = {f"key {n}": message(n) for n in range(3_000)}
    node, writer = written(mapping)
    changed = mapping | {f"key {at}": message(-1)}
    other, new = over_it(changed, node)
    assert len(new.objects) <= 5
    assert joined(other, writer.objects | new.objects) == codec.pack(changed)


def test_adding_and_removing_keys_re_uses_the_rest() -> None:
    mapping: dict[str, Any] = {f"key {n}": message(n) for n in range(3_000)}
    node, writer = written(mapping)
    added = {f"new {n}": n for n in range(3)} | mapping
    removed = {k: v for k, v in mapping.items() if k != "key 1500"}
    far_apart = mapping | {f"key {n}": "changed" for n in (5, 900, 1800, 2999)}
    for changed in (added, removed, far_apart):
        other, new = over_it(changed, node)
        assert len(new.objects) <= 12
        assert joined(other, writer.objects | new.objects) == codec.pack(changed)


@given(st.data())
@settings(max_examples=60)
def test_a_value_laid_over_any_other_joins_to_itself(data: st.DataObject) -> None:
    """Whatever the old pieces are, and whoever left them."""
    rng = random.Random(data.draw(st.integers(0, 1000)))
    sizes = st.sampled_from([5_000, 70_000, 600_000, 3_000_000])
    start = rng.randrange(100_000)
    text = _long_prose()[start : start + data.draw(sizes)]
    node, writer = written(text)
    objects = dict(writer.objects)
    for _ in range(data.draw(st.integers(1, 6))):
        at = rng.randrange(len(text))
        cut = rng.choice([0, 1, 50, 5_000, len(text) // 2])
        text = text[:at] + "new" * rng.choice([0, 1, 40, 4_000]) + text[at + cut :] + "x" * 5_000
        node, new = over_it(text, node)
        objects |= new.objects
        assert joined(node, objects) == codec.pack(text)
        opened = tree.in_pieces(node, objects)
        assert opened == node.made
        assert opened is not None
        assert b"".join(opened.parts()) == codec.pack(text)


def test_what_is_added_again_and_again_leaves_few_small_pieces() -> None:
    value = ["x" * 300_000]
    node, writer = written(value)
    objects, added = dict(writer.objects), 0
    for n in range(1_000):
        value.append(f"a line of a log, number {n}")
        node, new = over_it(value, node)
        objects |= new.objects
        added += sum(len(body) for children, body in new.objects.values() if not children)
    assert joined(node, objects) == codec.pack(value)
    pieces = tree.made_of(node).levels[0].pieces  # type: ignore[union-attr]  # it is in pieces
    assert len([piece for piece in pieces if len(piece) < 2_000]) <= 12
    assert added < 12 * 35_000  # each byte is written a few times


def _prose(rng: random.Random, size: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(size // 6))


@functools.cache
def _long_prose() -> str:
    """Return a text to take others from: to make one takes longer than to write it."""
    return _prose(random.Random(0), 3_300_000)


def _base64ish(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=size))


def _chinese(rng: random.Random, size: int) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(size // 3))


@pytest.mark.parametrize(
    "kind",
    [
        _prose,
        _base64ish,
        _chinese,
        lambda rng, size: rng.randbytes(size),
        lambda rng, size: bytearray(rng.randbytes(size)),
        lambda rng, size: "".join(rng.choices("acgt", k=size)),
    ],
)
def test_an_edit_in_a_long_text_re_uses_the_rest(kind: Any) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        text = kind(rng, 300_000)
        node, writer = written(text)
        at = rng.randrange(len(text))
        new_part = "changed" if isinstance(text, str) else b"changed"
        for changed in (text[:at] + new_part + text[at:], text[:at] + text[at + 9 :], text + new_part):
            other, new = over_it(changed, node)
            assert new.added_bytes <= 15_000
            assert joined(other, writer.objects | new.objects) == codec.pack(changed)


def test_equal_items_do_not_degenerate() -> None:
    node, writer = written_list([message(1)] * 100_000)
    assert len(writer.objects) < 40
    assert joined(node, writer.objects) == codec.pack([message(1)] * 100_000)


def test_known_objects_cost_nothing_but_are_still_referred_to() -> None:
    items = [message(n) for n in range(100)]
    node, writer = written_list(items)
    again, new = written_list(items, set(writer.objects))
    assert again == node
    assert new.objects == {}


def test_the_depth_limit_counts_from_the_top_through_split_containers() -> None:
    def nested(levels: int, filler: int) -> Any:
        value: Any = ["x" * filler]
        for _ in range(levels - 1):
            value = [value, "x" * filler]
        return value

    for filler in (0, 3_000):
        node, writer = written(nested(codec.DEPTH_MAX, filler))
        assert joined(node, writer.objects) == codec.pack(nested(codec.DEPTH_MAX, filler))
        with pytest.raises(UnstorableValue, match="deeper"):
            written(nested(codec.DEPTH_MAX + 1, filler))


# -- hostile bytes


KEY = Key("t", "", "c")


def as_stored(node: tree.Node, objects: dict[bytes, tree.Content]) -> list[bytes]:
    """Return every column that a store keeps of a checkpoint with this value: of its record, then of each object."""
    info, root = records.pack_record(Record(KEY, 1, (), "", node.children, node.body, (node.size,)))
    columns = [node.children, info, root]
    for row in squeezed_objects(objects):
        columns += [row.hash, row.children, row.body]
    return columns


def as_read(columns: list[bytes]) -> tuple[Any, Record]:
    """Return the value and the record that a reader makes of these columns."""
    children, info, root = columns[:3]
    record = records.unpack_record(KEY, 1, children, info, root)
    objects = verified([Object(*columns[at : at + 3]) for at in range(3, len(columns), 3)])
    node = tree.Node(record.children, record.body, record.sizes[0])
    return codec.unpack(joined(node, objects)), record


@given(st.lists(values(), max_size=60), st.data())
def test_a_damaged_checkpoint_is_an_error_of_ours_or_the_same_value(items: list[Any], data: st.DataObject) -> None:
    node, writer = written_list(items)
    columns = as_stored(node, writer.objects)
    value, record = as_read(columns)
    assert same(value, items)
    place = data.draw(st.sampled_from([n for n, column in enumerate(columns) if column]))
    damaged = bytearray(columns[place])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    columns[place] = bytes(damaged)
    try:
        found, found_record = as_read(columns)
    except EverstepError:
        return
    assert found_record == record
    assert same(found, items)  # a byte of what is compressed may say nothing


@given(st.lists(values(), max_size=60), st.data())
def test_a_damaged_node_is_an_error_of_ours_or_of_the_size_it_claims(items: list[Any], data: st.DataObject) -> None:
    """This is what a forger can do who makes new checksums; whoever only damages a byte is noticed by its hash."""
    node, writer = written_list(items)
    bodies = [(None, node.body)] + [(key, body) for key, (_, body) in writer.objects.items()]
    key, body = data.draw(st.sampled_from(bodies))
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:at] + bytes([body[at] ^ data.draw(st.integers(1, 255))]) + body[at + 1 :]
    objects = dict(writer.objects)
    if key is None:
        node = node._replace(body=damaged)
    else:
        objects[key] = objects[key][0], damaged
        assert tree.mismatched(objects) == [key]
    try:
        packed = joined(node, objects)
    except EverstepError:
        return
    assert len(packed) <= node.size
    check_read(packed)


@given(
    st.binary(max_size=100) | st.binary(max_size=100).map(lambda data: bytes((tree.LIST,)) + data),
    st.binary(max_size=64),
)
@example(body=b"\x00\x01\x01\x07", children=b"")  # bytes behind its end
@example(body=b"\x00\x01\x01", children=bytes(16))  # a child that nothing refers to
def test_any_bytes_as_a_node_are_a_node_or_an_error_of_ours(body: bytes, children: bytes) -> None:
    try:
        (parts,) = tree.Reader({}, 1000).fields(children, body, 1)
        assert sum(map(len, parts)) <= 1000
        assert children == b""  # whatever it refers to is missing
    except EverstepError:
        pass
    try:
        assert tree.nodes(children, body, [1]) == [tree.Node(children, body, 1)]
    except EverstepError:
        pass
    try:
        longer = tree.Writer().extended(tree.Node(children, body, 1), [1], "v")
        assert tree.opened(longer.children, longer.body).length == tree.opened(children, body).length + 1
    except EverstepError:
        pass


def test_a_tree_that_unfolds_without_end_is_stopped() -> None:
    """Each object holds the one below it many times: small when stored, huge when joined."""
    objects: dict[bytes, tree.Content] = {}

    def add(children: bytes, body: bytes) -> bytes:
        key = tree.address(children, body)
        objects[key] = children, body
        return key

    key = add(b"", bytes((tree.REST,)) + codec.pack("x" * 1000))
    for size in (1, 900_000):
        for _ in range(12):
            refs = key * 64
            key = add(refs, bytes((tree.LIST, 64)) + tree.number_bytes(size) + bytes((1, 128, 1, 0)))
        with pytest.raises(CheckpointCorrupted):
            tree.Reader(objects, 1_000_000).fields(key, bytes((tree.REF,)), 1)


def test_nodes_that_claim_too_much_are_stopped() -> None:
    huge = tree.number_bytes(1 << 40)
    for body in (
        bytes((tree.PIECES,)) + huge + b"\x01\x00" + bytes(16),
        bytes((tree.PIECES, 50, 1)) + huge + bytes(16),
        bytes((tree.PIECES, 50)) + huge + b"\x00" + bytes(16),
        bytes((tree.MAP,)) + huge + b"\x32\x00\x00\x01\x80",
        bytes((tree.MAP, 50, 50)) + huge,
        bytes((tree.LIST,)) + huge + b"\x32\x01\x00",
        bytes((tree.LIST, 50)) + huge + b"\x01\x00",
    ):
        with pytest.raises(CheckpointCorrupted):
            tree.Reader({}, 100).fields(b"", body, 1)
    objects: dict[bytes, tree.Content] = {}
    key = tree.address(b"", bytes((tree.REST,)))
    objects[key] = b"", bytes((tree.REST,))
    for _ in range(8):
        children = key * 30
        key = tree.address(children, bytes((tree.NODES,)))
        objects[key] = children, bytes((tree.NODES,))
    with pytest.raises(CheckpointCorrupted):
        tree.Reader(objects, 1000).fields(key, bytes((tree.PIECES, 50, 9, 1)) + bytes(16), 1)


def test_missing_objects_are_named() -> None:
    node, writer = written_list([message(n) for n in range(50)])
    key = next(iter(writer.objects))
    objects = {k: v for k, v in writer.objects.items() if k != key}
    with pytest.raises(CheckpointCorrupted, match=key.hex()):
        joined(node, objects)


# -- compression


@given(st.binary(max_size=5_000) | st.text(max_size=500).map(lambda t: (t * 20).encode()))
def test_what_is_squeezed_expands(body: bytes) -> None:
    stored = compress.squeeze(body)
    assert compress.expand(stored) == body
    assert len(stored) <= len(body) + 1


@pytest.mark.parametrize("size", [0, 47, 48, 1 << 16, (1 << 16) + 1, 1 << 20, 50 << 20])
def test_any_size_of_very_regular_data_expands(size: int) -> None:
    body = bytes(size)
    assert compress.expand(compress.squeeze(body)) == body


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """Stored bodies with one byte changed, which may be one that says how large the body is."""
    body = (draw(st.binary(min_size=1, max_size=50)) * draw(st.integers(1, 3_000)))[: draw(st.integers(1, 150_000))]
    stored = bytearray(compress.squeeze(body))
    stored[draw(st.integers(0, min(len(stored), 12) - 1))] ^= draw(st.integers(1, 255))
    return bytes(stored)


@given(st.binary(max_size=300) | damaged_bodies())
def test_any_stored_bytes_expand_or_are_an_error_of_ours(stored: bytes) -> None:
    assert compress.expand(compress.PLAIN + stored) == stored
    for data in (stored, compress.ZSTD + stored, compress.ZSTD_DICTIONARY + stored):
        try:
            body = compress.expand(data)
        except CheckpointCorrupted:
            continue
        assert compress.expand_all([data]) == [body]
        assert len(body) <= max(1 << 20, 256 * len(data))


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(500_000_000))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)
    trailing = compress.squeeze(b"abc" * 1000) + b"more"
    for data in (
        compress.ZSTD + bomb,
        compress.ZSTD_DICTIONARY + bomb,
        compress.ZSTD + unsized,
        trailing,
        b"\x09abc",
        b"",
    ):
        with pytest.raises(CheckpointCorrupted):
            compress.expand(data)


def test_what_is_compressed_in_passing_is_no_larger_than_with_care_if_it_is_long() -> None:
    """The versions of many channels: they repeat one another, which the dictionary only hides."""
    versions = codec.pack({f"channel {number}": number for number in range(200)})
    stored = compress.squeeze_fast(versions)
    assert compress.expand(stored) == versions
    assert len(stored) <= len(compress.squeeze(versions))


def test_images_and_numbers_are_stored_as_they_are_and_text_beside_them_is_not() -> None:
    """To read them back compressed would take three times as long, and save a quarter at most."""
    rng = random.Random(1)
    image = base64.b64encode(rng.randbytes(24 << 10))
    text = " ".join([f"word{rng.randrange(999)}" for _ in range(4000)]).encode()
    bodies = [text, image, image[::-1], text, image, text]

    stored = compress.squeeze_all(bodies)

    assert [body[:1] for body in stored] == [
        compress.ZSTD if body is text else compress.PLAIN for body in bodies
    ]  # the sample of a text that follows an image is text, too
    assert compress.expand_all(stored) == bodies


@pytest.mark.parametrize("size", [5_000, 30_000])
def test_a_long_item_of_a_list_is_one_object(size: int) -> None:
    item = "".join([f"{n} " for n in range(size)])[:size]
    writer = tree.Writer()
    writer.list_node([item], "messages")
    assert [body for _, body in writer.objects.values()] == [bytes((tree.REST,)) + codec.pack(item)]


def test_very_long_items_are_cut_into_large_pieces() -> None:
    writer = tree.Writer()
    node = writer.list_node([random.Random(1).randbytes(200_000)], "messages")
    assert len(writer.objects) == 1 + 6
    assert b"".join(tree.Reader(writer.objects).fields(node.children, node.body, 1)[0])[1:] == codec.pack(
        random.Random(1).randbytes(200_000)
    )
