"""Tags as people see them: on rows, in the log, and in a list of their own."""

from __future__ import annotations

import everstep
from everstep.views import checkpoint, history, operations, tags


async def test_a_tag_that_was_given_later_is_seen_wherever_tags_are(engine: everstep.CheckpointEngine) -> None:
    ids = [await engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(3)]
    await engine.tag(ids[0], "good")
    await engine.tag(ids[1], "good")
    rows = (await history.page(engine, "t"))["rows"]
    assert [[chip["text"] for chip in row["chips"]] for row in rows] == [["HEAD"], ["good"], ["start", "good"]]
    assert "good" in (await checkpoint.detail(engine, "t@good"))["tags"]
    listed = (await tags.listing(engine, "t"))["tags"]
    good = next(one for one in listed if one["tag"] == "good")
    assert (good["checkpoints"], good["newest"], good["step"]) == (2, ids[1], 2)
    newest = (await operations.log(engine, "t"))["operations"][0]
    assert newest["text"] == "tag #2 good"


async def test_the_tag_that_most_have_is_listed_first(engine: everstep.CheckpointEngine) -> None:
    ids = [await engine.append("t", [], {"n": n}, tags=["rare"] if n == 2 else []) for n in range(3)]
    for checkpoint_id in ids[:2]:
        await engine.tag(checkpoint_id, "good")
    await engine.untag(ids[2], "rare")
    await engine.tag(ids[2], "last")
    listed = (await tags.listing(engine, "t"))["tags"]
    named = [(one["tag"], one["checkpoints"]) for one in listed if one["tag"] in ("good", "last", "rare")]
    assert named == [("good", 2), ("last", 1)]


async def test_a_thread_that_is_a_part_of_another_has_tags_of_its_own(engine: everstep.CheckpointEngine) -> None:
    first = await engine.append("t", [], {})
    await engine.tag(first, "good")
    branch = await engine.branch(first, "b")
    await engine.append(branch, [], {})
    assert "good" not in [one["tag"] for one in (await tags.listing(engine, branch))["tags"]]
