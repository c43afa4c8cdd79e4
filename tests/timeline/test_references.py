"""What references mean: threads, steps, parents, prefixes, tags, times, and names that look like all of these."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from typing import Any

import pytest

import everstep
from everstep import AmbiguousCheckpoint, CheckpointNotFound, InvalidInput
from tests.tools.between import Between

pytestmark = pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"], indirect=True)


async def written(engine: Any, thread: str, count: int, **about: Any) -> list[str]:
    """Append so many steps and return their ids."""
    return [await engine.append(thread, [{"role": "user", "content": str(n)}], **about) for n in range(count)]


async def ids(engine: Any, *refs: str, **where: Any) -> list[str]:
    return [(await engine.resolve(ref, **where)).checkpoint_id for ref in refs]


async def test_a_thread_means_its_head_and_parents_are_counted_from_there(engine: Any) -> None:
    made = await written(engine, "trip", 5)
    assert await ids(engine, "trip", "trip@", "trip~0", "trip@~0") == [made[4]] * 4
    assert await ids(engine, "trip~", "trip~1", "trip@~3", "trip~3", "trip~1~2") == [made[3], made[3], *[made[1]] * 3]
    with pytest.raises(CheckpointNotFound, match="only 4 ancestors"):
        await engine.resolve("trip~5")


async def test_steps_ids_and_parts_of_ids(engine: Any) -> None:
    made = await written(engine, "trip", 3)
    token = made[1].rpartition("-")[2]
    same = ["trip#2", made[1], f"trip@{made[1]}", f"trip@{token}", f"trip@{token[:9]}"]
    assert await ids(engine, *same) == [made[1]] * 5
    assert await ids(engine, f"trip@{token}~1", f"{made[1]}") == [made[0], made[1]]
    found = await engine.resolve("trip#2")
    assert (found.thread_id, found.namespace, found.step) == ("trip", "", 2)
    assert str(found) == f"trip@{made[1]}"
    assert await engine.resolve(str(found)) == found
    with pytest.raises(CheckpointNotFound, match="no visible checkpoint of that step"):
        await engine.resolve("trip#9")


async def test_a_prefix_of_several_ids_names_them(engine: Any) -> None:
    made = await written(engine, "trip", 7)
    with pytest.raises(AmbiguousCheckpoint) as caught:
        await engine.resolve("trip@ckpt-")
    assert len(caught.value.candidates) == 5
    assert made[6].rpartition("-")[2] in str(caught.value)
    assert "and others" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).candidates == caught.value.candidates


async def test_a_tag_means_the_newest_and_hidden_ones_do_not_count(engine: Any) -> None:
    made = await written(engine, "trip", 2, tags=["milestone"])
    later = await written(engine, "trip", 2)
    assert await ids(engine, "trip@milestone", "trip@milestone~1") == [made[1], made[0]]
    await engine.rewind(made[0])
    assert await ids(engine, "trip@milestone", "trip") == [made[0], made[0]]
    assert await ids(engine, f"trip@{later[1]}", f"trip@{later[1][-16:-4]}") == [later[1], later[1]]
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("trip#3")


async def test_parents_are_those_of_the_line_not_the_newest_rows(engine: Any) -> None:
    made = await written(engine, "trip", 4)
    await engine.rewind(made[1])
    again = await written(engine, "trip", 2)
    branch = await engine.branch(made[2], "side", thread_id="trip")
    assert await ids(engine, "trip~2", "trip~3", f"{branch}~1", f"{branch}~3") == [made[1], made[0], made[2], made[0]]
    assert await ids(engine, f"trip@{made[3]}~1") == [made[2]]
    assert await ids(engine, "trip~1") == [again[0]]


async def test_parents_that_retention_took_are_passed_over(make_engine: Any) -> None:
    engine = make_engine(gc_policy="keep_last_n", gc_param=2)
    made = await written(engine, "trip", 1)
    await engine.pin(made[0])
    made += await written(engine, "trip", 9)
    assert await ids(engine, "trip~1", "trip~2") == [made[8], made[0]]


async def test_a_time_means_the_newest_that_is_not_later(engine: Any) -> None:
    made = await written(engine, "trip", 3)
    points = await engine.list_time_travel_points("trip")
    middle = datetime.fromisoformat(points[1].created_at)
    assert await ids(engine, f"trip@{{{middle.isoformat()}}}") == [made[1]]
    assert await ids(engine, f"trip@{{{(middle - timedelta(microseconds=1)).isoformat()}}}") == [made[0]]
    assert await ids(engine, f"trip@{{{middle.replace(tzinfo=None).isoformat()}}}~1") == [made[0]]
    with pytest.raises(CheckpointNotFound, match="of that time or before"):
        await engine.resolve("trip@{2001-01-01}")
    with pytest.raises(InvalidInput, match="is no time"):
        await engine.resolve("trip@{yesterday}")


async def test_names_may_hold_the_signs_of_the_language(engine: Any) -> None:
    names = ["a", "a@b", "a~1", "a#1", "a@b~2", "@", "x y/ä\u202e", "a@{2026-01-01}"]
    heads = {name: (await written(engine, name, 3))[-1] for name in names}
    for name in names:
        assert await ids(engine, name) == [heads[name]]
        found = await engine.resolve(f"{name}#2")
        assert (found.thread_id, found.step) == (name, 2)
        assert await engine.resolve(str(found)) == found
    assert (await engine.resolve("a@b~1")).thread_id == "a@b"
    assert (await engine.resolve("a~2")).step == 1


async def test_in_a_known_thread_its_name_is_left_out(engine: Any) -> None:
    made = await written(engine, "trip", 3)
    other = await written(engine, "other", 1)
    refs = ["@", "", "@~1", "~1", "#1", made[0][-16:], made[0], "trip#1", "other"]
    wanted = [made[2], made[2], made[1], made[1], made[0], made[0], made[0], made[0], other[0]]
    assert await ids(engine, *refs, thread_id="trip") == wanted
    with pytest.raises(CheckpointNotFound, match="none with that tag"):
        await engine.resolve("nothing", thread_id="trip")
    with pytest.raises(CheckpointNotFound, match="there is no thread"):
        await engine.resolve("@", thread_id="absent")


async def test_without_a_name_it_is_the_thread_that_was_active_last(engine: Any) -> None:
    other = await written(engine, "other", 4, tags=["milestone"])
    made = await written(engine, "trip", 3, tags=["milestone"])
    points = await engine.list_time_travel_points("trip")
    middle = datetime.fromisoformat(points[1].created_at)
    refs = ["@", "@~1", "~1", "#1", f"@{{{middle.isoformat()}}}", "milestone", "milestone~2", made[1][-16:-4]]
    assert await ids(engine, *refs) == [made[2], made[1], made[1], made[0], made[1], made[2], made[0], made[1]]
    # The beginning of an id that names another thread means that one.
    assert await ids(engine, other[1][:-6], f"{other[1][:-6]}~1") == [other[1], other[0]]
    with pytest.raises(AmbiguousCheckpoint):
        await engine.resolve("ckpt-other-")
    with pytest.raises(CheckpointNotFound, match="thread 'trip' has no visible checkpoint of that step"):
        await engine.resolve("#4")
    with pytest.raises(CheckpointNotFound, match="there is no thread and no checkpoint 'nothing'"):
        await engine.resolve("nothing")
    await engine.append("other", [])
    assert (await engine.resolve("@")).thread_id == "other"


async def test_a_branch_means_its_head_from_its_family(engine: Any) -> None:
    made = await written(engine, "trip", 2)
    await written(engine, "other", 1)
    cheap = await engine.branch(made[0], "cheap", thread_id="trip")
    later = await written(engine, cheap, 2)
    dear = await engine.branch(later[0], "dear", thread_id=cheap)
    assert await ids(engine, "trip@cheap", "trip@cheap~1", "cheap", "cheap~1") == [later[1], later[0]] * 2
    assert (await engine.resolve("dear")).thread_id == dear
    assert (await engine.resolve("cheap", thread_id=dear)).thread_id == cheap
    # Of another family it is not found.
    await written(engine, "other", 1)
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("cheap")
    await engine.branch(made[1], "cheap", thread_id="trip")
    with pytest.raises(AmbiguousCheckpoint, match="trip-branch-cheap"):
        await engine.resolve("trip@cheap")


async def test_what_is_not_in_a_known_thread_is_not_looked_for_in_the_last_one(engine: Any) -> None:
    await written(engine, "trip", 1)
    await written(engine, "other", 3, tags=["milestone"])
    for ref in ("#3", "@~2", "milestone", "~2"):
        with pytest.raises(CheckpointNotFound):
            await engine.resolve(ref, thread_id="trip")


async def test_in_an_empty_store_nothing_was_active_last(engine: Any) -> None:
    for ref in ("@", "#1"):
        with pytest.raises(CheckpointNotFound, match="there is no thread in this store"):
            await engine.resolve(ref)
    with pytest.raises(CheckpointNotFound, match="there is no thread and no checkpoint"):
        await engine.resolve("milestone")


async def test_a_name_that_is_mistyped_gets_the_ones_close_by(engine: Any) -> None:
    await written(engine, "trip-to-oslo", 1)
    with pytest.raises(CheckpointNotFound, match="did you mean 'trip-to-oslo'") as caught:
        await engine.resolve("trip-to-olso#1")
    assert caught.value.similar == ["trip-to-oslo"]
    with pytest.raises(InvalidInput, match="is empty"):
        await engine.resolve("")


async def test_what_is_hostile_ends_soon(engine: Any) -> None:
    await written(engine, "t", 1)
    for ref in ["~" * 8000, "@" * 8000, "t" + "~9" * 4000, "t@" + "~" * 5000, "#" * 3000]:
        with pytest.raises(CheckpointNotFound):
            await engine.resolve(ref)
    for ref in ["\ud800", "x" * 10_000]:
        with pytest.raises(InvalidInput):
            await engine.resolve(ref)


async def test_an_id_that_several_threads_hold_is_not_guessed(engine: Any, backend: Any) -> None:
    for thread in ("one", "two"):
        await backend.put(everstep.Checkpoint(everstep.CheckpointMetadata(thread, "same", 1)))
    with pytest.raises(AmbiguousCheckpoint, match=r"one@same, two@same|two@same, one@same"):
        await engine.resolve("same")
    assert (await engine.resolve("two@same")).thread_id == "two"


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_a_whole_reference_reads_no_list_in_a_known_thread(store: Any) -> None:
    between = Between(store)
    engine = everstep.CheckpointEngine(everstep.StoreBackend(between))
    made = await written(engine, "trip", 3)
    between.calls.clear()
    assert await ids(engine, f"trip@{made[1]}", "trip@~1", thread_id="trip") == [made[1], made[1]]
    assert await ids(engine, f"trip@{made[1]}", thread_id="trip") == [made[1]]
    assert between.calls.count("list_checkpoints") == 1  # for the parent
