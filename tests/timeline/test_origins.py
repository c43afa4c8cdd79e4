"""Several branches from one place: it is read once, and whatever others do to it meanwhile counts all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everstep.errors import AmbiguousCheckpoint, CheckpointNotFound
from everstep.stores.abilities import FindsOrigins
from everstep.stores.protocol import Store
from everstep.timeline import store as timeline
from tests.timeline.short_histories import latest, make_backend, numbers, state, write


@pytest.fixture
def here(make_engine: Callable[..., Any]) -> Any:
    return make_engine()


@pytest.fixture
def there(make_engine: Callable[..., Any]) -> Any:
    """An engine that remembers other things: as in another process."""
    return make_engine()


async def undo_and_redo(engine: Any, thread: str = "t") -> None:
    await engine.undo(thread)
    await engine.redo(thread)


async def test_a_place_is_read_once_for_several_branches(
    here: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = timeline._origin_in

    async def counted(store: Store, checkpoint_id: str) -> Any:
        looks.append(checkpoint_id)
        return await look(store, checkpoint_id)

    first, second = await write(here, 2)
    monkeypatch.setattr(timeline, "_origin_in", counted)

    branches = [await here.branch(first, f"b{number}") for number in range(3)]
    branches.append(await here.branch(first, "named", thread_id="t"))

    assert looks == ([first] if isinstance(store, FindsOrigins) else [first] * 4)
    assert len(set(branches)) == 4
    for branch in branches:
        assert await state(here, branch) == {"n": 1}
        assert (await here.get_latest(branch)).metadata.parents == [first]
    assert await latest(here) == second
    assert [done.kind for done in await here.operations("t")] == ["branch"] * 4
    assert (await here.verify()).ok


async def test_an_id_that_another_thread_has_by_now_is_ambiguous(here: Any, there: Any) -> None:
    (first,) = await write(here, 1)
    await here.branch(first, "one")
    found = await there.get(first)
    found.metadata.thread_id = "copy"
    await make_backend(there).put(found)

    with pytest.raises(AmbiguousCheckpoint):
        await here.branch(first, "two")
    assert (await here.branch(first, "two", thread_id="t")).startswith("t-branch-two-")
    assert (await here.branch(first, "two", thread_id="copy")).startswith("copy-branch-two-")


async def test_what_others_did_to_the_thread_meanwhile_can_be_redone(here: Any, there: Any) -> None:
    first, *_ = await write(here, 3)
    await here.branch(first, "one")
    await there.rewind(first)

    await here.branch(first, "two")

    # An entry that stood on an older one than the rewind could not be found by redo.
    await undo_and_redo(here)
    assert [done.undone for done in await here.operations("t")] == [False, False, False]
    await here.undo("t")
    await undo_and_redo(here)
    assert await numbers(here) == [1]


async def test_what_others_undid_meanwhile_stays_undone(here: Any, there: Any) -> None:
    first, *_ = await write(here, 3)
    await here.rewind(first)
    one = await here.branch(first, "one")
    await there.undo("t")

    await here.branch(first, "two")

    await undo_and_redo(here)
    assert [done.undone for done in await here.operations("t")] == [False, True, False]
    assert await here.get_latest(one) is None


async def test_a_place_that_was_deleted_is_not_found(here: Any, there: Any) -> None:
    (first,) = await write(here, 1)
    await here.branch(first, "one")
    await make_backend(there).delete_thread("t")

    with pytest.raises(CheckpointNotFound):
        await here.branch(first, "two")


async def test_a_place_that_was_deleted_and_is_back_is_where_it_is_now(here: Any, there: Any) -> None:
    (first,) = await write(here, 1)
    kept = await there.get(first)
    one = await here.branch(first, "one")
    await make_backend(there).delete_thread("t")
    await make_backend(there).put(kept)

    two = await here.branch(first, "two")

    await write(here, 1, two, start=2)
    await here.merge_branch(two, "t")
    assert await state(here) == {"n": 2}
    assert await state(here, one) == {"n": 1}
    assert (await here.verify()).ok


async def test_a_place_that_was_replaced_is_as_it_is_now(here: Any, there: Any) -> None:
    (first,) = await write(here, 1)
    await here.branch(first, "one")
    changed = await there.get(first)
    changed.state = {"n": 7}
    await make_backend(there).put(changed)

    assert await state(here, await here.branch(first, "two")) == {"n": 7}
