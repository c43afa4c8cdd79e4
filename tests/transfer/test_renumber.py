"""Numbers in another store: their order and equality stay, whatever is reserved when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep import CheckpointCorrupted
from everstep.history import operation_log
from everstep.stores.protocol import Hidden
from everstep.transfer.renumber import CHECKPOINT, KINDS, WRITE, Note, Numbers, Stretch, pack_note, unpack_note

steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5000), st.integers(0, 300)), min_size=1, max_size=12)


@given(st.integers(0, 10**15), steps)
def test_numbers_keep_their_order_and_are_all_reserved(first: int, steps: list[tuple[int, int, int]]) -> None:
    """A source goes on, and is copied after each step, while others take numbers in the target."""
    numbers, used, given_out = Numbers(), 0, dict[tuple[int, int], int]()
    highest = dict.fromkeys(KINDS, 0)
    for kind, more, others in steps:
        lowest = highest[kind] + 1 if highest[kind] else first + 1
        highest[kind] = lowest + more
        seen = [(kind, lowest), (kind, highest[kind])]
        spans = {kind: (min(n for k, n in [*given_out, *seen] if k == kind), highest[kind])}
        size = numbers.needed(spans)
        if size:
            numbers.add(used, size, spans)
            used += size
        used += others
        for each in seen:
            given_out[each] = numbers(*each)
            assert numbers.covers(*each)
        assert {each: numbers(*each) for each in given_out} == given_out
        assert all(numbers.reserved(number) for number in given_out.values())
    for kind in KINDS:
        found = [given_out[each] for each in sorted(given_out) if each[0] == kind]
        assert all(one < other for one, other in itertools.pairwise(found))
    assert len(numbers.stretches) <= 2 + len(steps)


def test_stretches_grow_so_that_they_stay_few() -> None:
    numbers, used = Numbers(), 0
    for top in range(1, 200_000, 100):
        size = numbers.needed({CHECKPOINT: (1, top)})
        if size:
            numbers.add(used, size, {CHECKPOINT: (1, top)})
            used += size + 7  # somebody else took some
    assert len(numbers.stretches) < 12


def test_a_kind_that_comes_later_begins_a_stretch_of_its_own_if_there_is_no_room() -> None:
    numbers = Numbers([Stretch(0, 100, (0, None, None))])
    size = numbers.needed({WRITE: (1000, 1500)})
    numbers.add(100, size, {WRITE: (1000, 1500)})
    assert [numbers(WRITE, n) for n in (1000, 1500)] == [102, 602]
    assert [numbers(CHECKPOINT, n) for n in (1, 100, 101)] == [1, 100, 101]


def test_none_stays_none_and_a_bound_below_all_stays_below() -> None:
    numbers = Numbers([Stretch(100, 50, (10, None, None))])
    assert [numbers(CHECKPOINT, n) for n in (0, 5, 10, 11, 60)] == [0, 100, 100, 101, 150]
    assert not numbers.covers(CHECKPOINT, 61)
    assert not numbers.covers(WRITE, 1)


def test_each_kind_of_number_in_an_entry_is_its_own() -> None:
    hide = [Hidden("", 1, 2, 3), Hidden("", 4, 5, None, "c")]
    undo = operation_log.Undo("t", {"": "c"}, hide, {"": 6, "sub": 0})
    entry = operation_log.entry("rewind", {}, undo, 7, 8)._replace(seq=9)

    found = operation_log.renumbered(
        entry, lambda n: n + 100 if n else 0, operation=lambda n: n + 300 if n else 0, write=lambda n: n + 200
    )

    assert (found.seq, found.data["after"], found.data["made_at_seq"]) == (309, 307, 108)
    back = operation_log.undo_of(found)
    assert back.newest == {"": 106, "sub": 0}
    assert back.hide == [Hidden("", 101, 102, 103, None, 309), Hidden("", 204, 205, None, "c", 309)]


def test_notes_come_back() -> None:
    note = Note(b"id", [Stretch(1, 2, (3, None, 0))], b"print")
    assert unpack_note(pack_note(note)) == note
    for wrong in (b"", b"\xc0", pack_note(note)[:-1], b"\x93\x01\x02\x03"):
        with pytest.raises(CheckpointCorrupted):
            unpack_note(wrong)
