"""The values of a checkpoint as a tree, and one checkpoint in detail."""

from __future__ import annotations

import json

import pytest

import everstep
from everstep.errors import InvalidInput, PathNotFound
from everstep.views import checkpoint, paths, state
from tests.views.conftest import plan_trip


async def test_a_tree_is_opened_level_by_level(engine: everstep.CheckpointEngine) -> None:
    plan = [{"what": f"step {n}", "due/by~": n} for n in range(300)]
    await engine.append("t", [{"role": "user", "content": "x"}], {"plan": plan, "a/b": {"~": 1}, "none": None})
    top = await state.node(engine, "t")
    assert [child["key"] for child in top["children"]] == ["messages", "state", "tools_result", "next_node"]
    inside = await state.node(engine, "t", "/state")
    assert [(child["path"], child["type"], child["preview"]) for child in inside["children"]] == [
        ("/state/plan", "array", "300 items"),
        ("/state/a~1b", "object", "1 item"),
        ("/state/none", "null", "null"),
    ]
    assert [child["leaf"] for child in inside["children"]] == [False, False, True]
    part = await state.node(engine, "t", "/plan", offset=290, limit=200)
    assert (part["path"], part["count"], len(part["children"])) == ("/state/plan", 300, 10)
    for path in ("/plan/299/due~1by~0", "/state/plan/299/due~1by~0", "state.plan[299]['due/by~']"):
        assert (await state.node(engine, "t", path))["value"] == 299
    assert await state.value(engine, "t", "/a~1b") == {"~": 1}
    assert (await state.value(engine, "t"))["none"] is None
    with pytest.raises(PathNotFound, match="nothing at '/plan/300'"):
        await state.node(engine, "t", "/plan/300")
    with pytest.raises(InvalidInput, match="is no path"):
        await state.node(engine, "t", "plan")


async def test_search_finds_keys_and_values(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [{"role": "user", "content": "Oslo!"}], {"oslo": {"x": [1, "near oslo"]}, "y": 2})
    found = await state.search(engine, "t", "OSLO")
    assert [each["path"] for each in found["paths"]] == ["/messages/0/content", "/state/oslo", "/state/oslo/x/1"]
    assert found["more"] is False
    assert len((await state.search(engine, "t", "o", limit=1))["paths"]) == 1


async def test_hostile_values_are_shown_harmless(engine: everstep.CheckpointEngine) -> None:
    deep: object = 1
    for _ in range(97):
        deep = [deep]
    values = {
        "\x1b[31m": "\x1b[2J<script>alert(1)</script>\u202e",
        "big": "x" * 5_000_000,
        "deep": deep,
        "nan": float("nan"),
        "bytes": b"\x00\xff" * 100,
        "lone": "\ud800",
        "huge": 10**5000,
        "keys": {1: "a", (1, 2): "b", None: "c"},
    }
    made = await engine.append("t", [], values)
    top = await state.node(engine, "t", "/state")
    json.dumps(top, allow_nan=False).encode()
    assert all("\x1b" not in child["key"] + child["preview"] for child in top["children"])
    for child in top["children"]:
        inner = await state.node(engine, made, child["path"])
        text = json.dumps(inner, allow_nan=False)
        assert len(text) < 200_000
        for below in inner["children"]:
            json.dumps(await state.node(engine, made, below["path"]), allow_nan=False)
    assert (await state.node(engine, "t", "/nan"))["value"] == {"$type": "float", "text": "NaN"}
    assert len(await state.value(engine, "t", "/big")) == 5_000_000
    detail = await checkpoint.detail(engine, "t")
    assert len(json.dumps(detail, allow_nan=False)) < 100_000


def test_paths_are_read_and_written() -> None:
    for parts in (["state", "a/b~c", "", "0"], ["messages", "5", "content"], ["tools_result"]):
        assert paths.parsed(paths.pointer(parts)) == parts
    assert paths.parsed("messages['m3'].content") == ["messages", "m3", "content"]
    assert paths.parsed('state["it\'s"][2].x') == ["state", "it's", "2", "x"]


async def test_one_checkpoint_in_detail(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    found = await checkpoint.detail(engine, "trip#3")
    json.dumps(found)
    assert (found["kind"], found["title"], found["messages"]) == ("tool", "hotels answered", 3)
    assert [parent["id"] for parent in found["parents"]] == [trip.ids[1]]
    assert [(child["thread_id"], child["step"]) for child in found["children"]] == [
        (trip.cheap, 0),
        (trip.scenic, 0),
        ("trip", 4),
    ]
    assert found["state_keys"] == ["travel", "hotel"]
    assert found["tools_result"] == {"hotels": {"rooms": 1}}
    assert found["error"] is None
    assert found["copy"]["cli"] == f"everstep show {trip.ids[2]}"
    assert (await engine.resolve(found["copy"]["ref"])).checkpoint_id == trip.ids[2]
    assert found["copy"]["python"] == f"await engine.get('{trip.ids[2]}', thread_id='trip')"
    known = await checkpoint.detail(engine, "trip#2")
    assert (known["tokens"], known["duration_ms"], known["metadata"]["cost"]) == (42, 420, 0.01)
    top = await checkpoint.detail(engine, "trip")
    assert ([parent["thread_id"] for parent in top["parents"]], top["active"]) == (["trip", trip.scenic], True)


async def test_a_failure_is_told(engine: everstep.CheckpointEngine) -> None:
    @engine.snapshot_on("tool_call")
    async def search() -> None:
        raise RuntimeError("no \x1b[31mnetwork")

    async with engine.thread("t"):
        with pytest.raises(RuntimeError):
            await search()
    found = await checkpoint.detail(engine, "t")
    assert found["error"] == {"type": "RuntimeError", "message": "no network", "traceback": None}


async def test_objects_of_classes_that_are_not_known_here(engine: everstep.CheckpointEngine) -> None:
    from everstep.values import registry

    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    everstep.register(
        Order, name="shop:Order", to_state=lambda each: {"number": each.number}, from_state=lambda kept: Order(**kept)
    )
    await engine.append("t", [], {"order": Order(5)})
    registry._by_name.pop("shop:Order")
    registry._by_type.pop(Order)
    assert await state.value(engine, "t", "/order") == {"$type": "shop:Order", "fields": {"number": 5}}
    assert (await state.node(engine, "t", "/order/number"))["value"] == 5
    assert (await checkpoint.detail(engine, "t"))["state_keys"] == ["order"]
