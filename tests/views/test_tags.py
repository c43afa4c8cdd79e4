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
    assert newest["text"] == f"tag {ids[1].rpartition('-')[2][:8]} good"
