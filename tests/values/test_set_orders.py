"""Sets are packed in order, whatever sets were packed before them."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from everstep.errors import UnstorableValue
from everstep.values import codec
from everstep.values.set_orders import SetOrders


def changed(members: set[Any], rng: random.Random, make: Any) -> set[Any]:
    """Return a set like this one: some are gone, some are new."""
    gone = rng.sample(sorted(members), rng.choice((0, 0, 1, 20)))
    return (members - set(gone)) | {make(rng.randrange(10**6)) for _ in range(rng.choice((0, 1, 30)))}


def test_members_are_in_order_whatever_was_asked_for_before() -> None:
    rng = random.Random(1)
    orders = SetOrders()
    texts = {f"member {n}" for n in range(600)}
    numbers = set(range(500))
    for _ in range(60):
        texts = changed(texts, rng, "new {}".format)
        numbers = changed(numbers, rng, int)
        for members in (texts, numbers, set(list(texts)[:300]), {f"{n} other" for n in range(400)}):
            assert orders.use(list(members), list) == sorted(members)


def test_little_is_remembered_however_many_sets_there_are() -> None:
    orders = SetOrders()
    for count in range(20):
        members = [f"{count} {n}" for n in range(300 + count)]
        assert orders.use(members, list) == sorted(members)
    large = [f"large {n}" for n in range(99_900)]
    assert orders.use(large, list) == sorted(large)
    kept = [len(order.ordered) for order in orders._orders]
    assert kept == [99_900]
    orders.use([str(n) for n in range(300)], len)
    assert [len(order.ordered) for order in orders._orders] == [300]


def test_an_order_that_failed_is_forgotten() -> None:
    orders = SetOrders()
    members = list(map(str, range(300)))
    orders.use(members, len)

    def fail(_: list[Any]) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        orders.use([*members, "new"], fail)
    assert not orders._orders
    assert orders.use(members, list) == sorted(members)


def test_threads_that_pack_sets_at_once_do_not_see_those_of_one_another() -> None:
    wrong: list[Any] = []

    def pack(seed: int) -> None:
        rng = random.Random(seed)
        members = {f"member {n}" for n in range(400)}
        for _ in range(60):
            members = changed(members, rng, "new {}".format)
            expected = codec.pack(sorted(members))
            packed = codec.pack(members)
            if not packed.endswith(expected) or codec.unpack(packed) != members:
                wrong.append(members)

    threads = [threading.Thread(target=pack, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_member_of_a_class_of_its_own_is_not_taken_for_the_text_that_it_equals() -> None:
    class Name(str):
        pass

    members = {f"member {n}" for n in range(300)}
    codec.pack(members)
    members.remove("member 7")
    members.add(Name("member 7"))
    with pytest.raises(UnstorableValue, match="Name"):
        codec.pack(members)


def test_numbers_and_what_equals_them_stay_apart() -> None:
    numbers: set[Any] = set(range(300))
    codec.pack(numbers)
    numbers.remove(1)
    numbers.add(True)
    found = codec.unpack(codec.pack(numbers))
    assert found == numbers
    assert {type(member) for member in found} == {int, bool}
