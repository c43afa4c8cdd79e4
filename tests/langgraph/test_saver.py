"""The saver's methods, each on both faces and on every store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

import everstep
from everstep import InvalidInput, UnstorableValue
from everstep.langgraph import CheckpointMetadata, CheckpointRecord, HarnessCheckpointer
from tests.conftest import OneFace
from tests.langgraph.tools import FacedSaver, at, checkpoint, number, numbers

# -- put and get -------------------------------------------------------------------------------------------------------


async def test_what_is_put_is_what_get_tuple_gives(saver: FacedSaver) -> None:
    given = checkpoint("c2", {"a": 1, "messages": ["x"]}, {"a": 3, "messages": 4})
    await saver.add("c1", {"a": 0})

    config = await saver.put(at(name="c1"), given, {"source": "loop", "step": 3}, {"a": 3, "messages": 4})

    assert config == at(name="c2")
    found = await saver.get_tuple(config)
    assert isinstance(found, CheckpointTuple)
    assert found.config == config
    assert found.checkpoint == given
    assert list(found.checkpoint["channel_values"]) == ["a", "messages"]
    assert found.metadata == {"source": "loop", "step": 3}
    assert found.parent_config == at(name="c1")
    assert found.pending_writes == []
    assert await saver.get(config) == given


async def test_channels_come_and_go_and_change_their_size_in_any_order(saver: FacedSaver) -> None:
    """Versions say what is as in the parent; a channel may have a version before it has a value."""
    steps: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({"a": 1, "b": 2}, {}),
        ({"a": 1, "b": 2, "late": 3}, {}),
        ({"late": 3, "b": "long " * 500, "a": 1}, {"b": 2}),
        ({"late": 3, "b": "short", "a": 1}, {"b": 3}),
        ({"late": 3, "b": [AIMessage("x", id="1")], "a": 1}, {"b": 4}),
        ({"b": [AIMessage("x", id="1")], "a": None}, {"a": 2}),
    ]
    versions = {"a": 1, "b": 1, "late": 1}
    for n, (values, new) in enumerate(steps):
        versions = {**versions, **new}
        parent = at(name=f"c{n - 1}") if n else at()
        await saver.put(parent, checkpoint(f"c{n}", values, versions), {}, new)
        assert await saver.values() == values
        assert list(await saver.values()) == list(values)

    for n, (values, _) in enumerate(steps):
        assert await saver.values(name=f"c{n}") == values


async def test_short_conversations_grow_in_any_channel(saver: FacedSaver) -> None:
    messages = [AIMessage("a", id="1"), HumanMessage("b", id="2"), AIMessage("c" * 2000, id="3"), HumanMessage("d")]
    for n in range(1, 5):
        parent = f"c{n - 1}" if n > 1 else None
        await saver.add(f"c{n}", {"other": messages[:n]}, parent=parent, versions={"other": n})

    for n in range(1, 5):
        assert await saver.values(name=f"c{n}") == {"other": messages[:n]}


async def test_a_put_that_was_refused_leaves_nothing_behind(make_saver: Any) -> None:
    """The conversation is written down before the next channel is refused; the next put goes on without it."""
    saver = make_saver()
    conversation: list[Any] = []
    await saver.add("0", {"messages": conversation})
    for n in range(1, 12):
        refused = [*conversation, HumanMessage("refused", id="r"), AIMessage("refused too", id="s")]
        with pytest.raises(UnstorableValue):
            await saver.add("r", {"messages": refused, "z": object()}, parent=str(n - 1))
        conversation.append(HumanMessage(f"message {n} " * 20, id=str(n)))
        await saver.add(str(n), {"messages": conversation}, parent=str(n - 1), versions={"messages": n})
    assert (await make_saver().values(name="11"))["messages"] == conversation


async def test_a_first_checkpoint_has_no_parent(saver: FacedSaver) -> None:
    found = await saver.get_tuple(await saver.add("c1", {}))

    assert found.parent_config is None
    assert found.parent_checkpoint_id is None


async def test_tuples_have_the_names_of_their_checkpoint_at_hand(saver: FacedSaver) -> None:
    found = await saver.get_tuple(await saver.add("c2", {}, ns="sub", parent="c1"))

    assert (found.thread_id, found.checkpoint_ns, found.checkpoint_id) == ("t", "sub", "c2")
    assert found.parent_checkpoint_id == "c1"


@pytest.mark.parametrize("name", [None, ""])
async def test_without_an_id_the_greatest_of_the_namespace_is_given(saver: FacedSaver, name: str | None) -> None:
    for n in (2, 3, 1):
        await saver.add(number(n), {"n": n})
    await saver.add(number(9), {"n": 9}, ns="sub")
    config = {"configurable": {"thread_id": "t", "checkpoint_id": name}}

    assert (await saver.get(config))["channel_values"] == {"n": 3}
    config["configurable"]["checkpoint_ns"] = "sub"
    assert (await saver.get(config))["channel_values"] == {"n": 9}


async def test_a_child_of_the_head_becomes_the_head_though_its_id_is_smaller(saver: FacedSaver) -> None:
    """A clock that steps back must not lose work."""
    await saver.add(number(5), {"n": 5})
    await saver.add(number(4), {"n": 4}, parent=number(5))

    assert await saver.values() == {"n": 4}


async def test_what_is_not_there_is_none(saver: FacedSaver) -> None:
    await saver.add("c1", {})

    for config in (at("other"), at(name="c0"), at(ns="sub"), at(ns="sub", name="c1"), at("other", name="c1")):
        assert await saver.get_tuple(config) is None
        assert await saver.get(config) is None
        assert await saver.get_record(config) is None
        assert await saver.listed(merge_ns(config)) == []


def merge_ns(config: dict[str, Any]) -> dict[str, Any]:
    return {"configurable": {"checkpoint_ns": "", **config["configurable"]}}


async def test_a_put_of_the_same_is_one_put(saver: FacedSaver) -> None:
    await saver.add(number(1), {"n": 1})
    await saver.add(number(2), {"n": 2}, parent=number(1))
    await saver.add(number(1), {"n": 1})

    assert await saver.ids(at()) == numbers([2, 1])
    assert await saver.values() == {"n": 2}


async def test_a_put_of_a_known_id_replaces_values_versions_and_metadata(saver: FacedSaver) -> None:
    await saver.add(number(1), {"n": 1, "gone": 1}, metadata={"step": 1, "old": True})
    await saver.add(number(2), {"n": 2}, parent=number(1))
    await saver.put_writes(at(name=number(1)), [("n", 7)], "task")

    await saver.add(number(1), {"n": "new"}, metadata={"step": 5}, versions={"n": 1})

    found = await saver.get_tuple(at(name=number(1)))
    assert found.checkpoint["channel_values"] == {"n": "new"}
    assert found.metadata == {"step": 5}
    assert found.pending_writes == [("task", "n", 7)]
    assert await saver.ids(at()) == numbers([2, 1])
    assert await saver.values() == {"n": 2}


async def test_a_checkpoint_without_an_id_gets_one_that_is_greater_than_earlier_ones(saver: FacedSaver) -> None:
    configs = []
    for n in range(5):
        given = {"channel_values": {"n": n}}
        configs.append(await saver.put(at(), given))
        assert "id" not in given

    names = [config["configurable"]["checkpoint_id"] for config in configs]
    assert names == sorted(set(names))
    assert all(uuid.UUID(name).version == 6 for name in names)
    assert await saver.values() == {"n": 4}
    assert [(await saver.get(config))["channel_values"]["n"] for config in configs] == list(range(5))


async def test_metadata_and_new_versions_may_be_left_out(saver: FacedSaver) -> None:
    await saver.put(at(), checkpoint("c1", {"a": 1, "b": [1]}))
    await saver.put(at(name="c1"), checkpoint("c2", {"a": 2, "b": [1, 2]}), None, None)

    assert await saver.values() == {"a": 2, "b": [1, 2]}
    assert (await saver.get_tuple(at())).metadata == {}


async def test_metadata_may_be_a_model(saver: FacedSaver) -> None:
    metadata = CheckpointMetadata(source_layer="planner", step=4, timestamp=12.5, parents={"": "p"}, writes={"a": 1})

    config = await saver.put(at(), checkpoint("c1", {"a": 1}), metadata)

    record = await saver.get_record(config)
    assert record.metadata == metadata
    assert CheckpointRecord.model_validate_json(record.model_dump_json()) == record
    assert (record.thread_id, record.checkpoint_ns, record.checkpoint_id) == ("t", "", "c1")
    assert record.checkpoint["channel_values"] == {"a": 1}


async def test_a_channel_that_is_new_but_has_no_value_is_empty(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": 1, "b": 2})
    await saver.add("c2", {"a": 1}, parent="c1", versions={"a": 1, "b": 2}, new={"b": 2})

    assert await saver.values() == {"a": 1}
    assert (await saver.get(at()))["channel_versions"] == {"a": 1, "b": 2}


async def test_all_of_a_checkpoint_comes_back_also_what_is_not_known(saver: FacedSaver) -> None:
    given = {
        **checkpoint("c1", {"a": 1}, {"a": "00000000000000000000000000000002.0.53"}),
        "versions_seen": {"__input__": {}, "node": {"a": "1.5"}, "__snapshot_bumps__": {"a": 3}},
        "updated_channels": None,
        "pending_sends": [{"x": 1}],
        "more": (1, 2),
    }

    await saver.put(at(), given, {"step": 1}, {})

    assert await saver.get(at()) == given


async def test_metadata_takes_scalars_of_the_config(saver: FacedSaver) -> None:
    config = {
        "metadata": {"run_id": "r1", "given": 1, "list": [1], "langgraph_step": 3},
        "configurable": {"user_id": "u", "flag": True, "ratio": 0.5, "__internal": 1, "none": None, "nul": "a\0b"},
    }

    await saver.add("c1", {}, config=config, metadata={"given": 2, "source": "loop"})

    assert (await saver.get_tuple(at())).metadata == {
        "given": 2, "source": "loop", "run_id": "r1", "user_id": "u", "flag": True, "ratio": 0.5, "nul": "ab",
    }  # fmt: skip


async def test_thread_ids_are_taken_as_text(saver: FacedSaver) -> None:
    thread = uuid.uuid4()
    await saver.add("c1", {"a": 1}, thread=thread)
    await saver.add("c1", {"a": 2}, thread=17)
    await saver.put_writes(at(17, name="c1"), [("a", 3)], "task")

    assert await saver.values(str(thread)) == await saver.values(thread) == {"a": 1}
    assert await saver.values("17") == {"a": 2}
    assert await saver.writes("17") == [("task", "a", 3)]
    assert [saved.thread_id for saved in await saver.listed(at(17))] == ["17"]
    await saver.copy_thread(17, 18)
    await saver.prune([17, thread])
    assert await saver.delete_thread(17) == 1
    assert await saver.get_tuple(at("17")) is None
    assert await saver.values("18") == {"a": 2}


# -- lists -------------------------------------------------------------------------------------------------------------


async def add_several(saver: FacedSaver) -> list[tuple[str, str, str]]:
    """Put checkpoints into two threads and namespaces, and return their keys in the order of lists."""
    keys = [("a", "", 1), ("a", "sub", 2), ("b", "", 3), ("a", "", 4), ("b", "sub", 5), ("a", "sub", 6), ("b", "", 7)]
    for thread, ns, n in keys:
        await saver.add(number(n), {"n": n}, thread, ns, metadata={"step": n, "odd": bool(n % 2)})
    return [(thread, ns, number(n)) for thread, ns, n in reversed(keys)]


async def test_lists_go_by_id_across_threads_and_namespaces(saver: FacedSaver) -> None:
    keys = await add_several(saver)

    assert await saver.keys(None) == await saver.keys() == keys
    assert await saver.keys(at("a", None)) == [key for key in keys if key[0] == "a"]
    for ns in ("", "sub"):
        assert await saver.keys(at("a", ns)) == [key for key in keys if key[:2] == ("a", ns)]
    assert await saver.keys(at("none", None)) == await saver.keys(at("a", "none")) == []


async def test_lists_by_id_before_filter_and_limit(saver: FacedSaver) -> None:
    keys = await add_several(saver)
    before = at("whatever", "", number(5))

    assert await saver.keys(at("a", None, number(4))) == [("a", "", number(4))]
    assert await saver.keys(at("a", "sub", number(4))) == []
    assert await saver.keys(None, before=before) == [key for key in keys if key[2] < number(5)]
    assert await saver.keys(at("a", ""), before=before) == [("a", "", number(4)), ("a", "", number(1))]
    assert await saver.keys(at("a", ""), before=before, limit=1) == [("a", "", number(4))]
    assert await saver.keys(at("a", "", number(4)), before=at("a", "", number(4))) == []
    assert await saver.keys(None, filter={"odd": True}, limit=3) == [keys[0], keys[2], keys[4]]
    assert await saver.keys(None, filter={"odd": True, "step": 5}, before=at("a", "", number(6))) == [keys[2]]
    for unnamed in (at("a"), at("a", "", ""), {"configurable": dict[str, Any]()}):
        assert await saver.keys(None, before=unnamed) == keys
    for limit in (0, 1, 3, 7, 100, None):
        assert await saver.keys(None, limit=limit) == keys[:limit]


async def test_lists_give_what_get_tuple_gives(saver: FacedSaver) -> None:
    await add_several(saver)
    await saver.put_writes(at("a", "", number(4)), [("n", "w"), ("m", [1])], "task")
    await saver.put_writes(at("b", "sub", number(5)), [("n", 5)], "task")

    for found in await saver.listed():
        assert found == await saver.get_tuple(found.config)
    writes = [found.pending_writes for found in await saver.listed()]
    assert writes == [[], [], [("task", "n", 5)], [("task", "n", "w"), ("task", "m", [1])], [], [], []]


FILTERS: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    ({"k": True}, [{"k": True}], [{"k": 1}, {"k": 1.0}, {"k": "true"}, {"k": "True"}]),
    ({"k": 1}, [{"k": 1}], [{"k": True}, {"k": 1.0}, {"k": "1"}]),
    ({"k": 1.0}, [{"k": 1.0}], [{"k": True}, {"k": 1}]),
    ({"k": 0}, [{"k": 0}], [{"k": False}, {"k": None}, {"k": ""}]),
    ({"k": None}, [{"k": None}], [{"other": None}, {"k": 0}, {"k": "null"}]),
    ({"k": "null"}, [{"k": "null"}], [{"k": None}]),
    ({"k": {"a": 1, "b": 2}}, [{"k": {"a": 1, "b": 2}}], [{"k": {"a": 1}}, {"k": {"a": True}}, {"k": {}}]),
    ({"k": [1, 2]}, [{"k": [1, 2]}], [{"k": [1]}, {"k": [2, 1]}, {"k": (1, 2)}, {"k": [1, 2, 3]}]),
    ({"k": {}}, [{"k": {}}], [{"k": []}, {"k": None}]),
    ({"a.b": 1}, [{"a.b": 1}], [{"a": {"b": 1}}]),
    ({"$.a": 1}, [{"$.a": 1}], [{"a": 1}]),
    ({"a b": 1}, [{"a b": 1}], [{"a": 1, "b": 1}]),
    ({"a'b": "c'd"}, [{"a'b": "c'd"}], [{"a'b": "cd"}]),
    ({'a"b\\': 'c"d\\'}, [{'a"b\\': 'c"d\\'}], [{'a"b': 'c"d'}]),
    ({"ключ 🔑": "знач"}, [{"ключ 🔑": "знач"}], [{"ключ": "знач"}]),
    ({"": ""}, [{"": ""}], [{}]),
    ({"x') OR ('1'='1": "' OR 1=1 --"}, [{"x') OR ('1'='1": "' OR 1=1 --"}], [{"x": 1}]),
    ({"k": "%"}, [{"k": "%"}], [{"k": "abc"}]),
    ({"k": "*"}, [{"k": "*"}], [{"k": "abc"}]),
    ({"run_id": "}}]|{{"}, [{"run_id": "}}]|{{"}], [{"run_id": "a"}]),
    ({"k": 2**70}, [{"k": 2**70}], [{"k": float(2**70)}]),
    ({"k": "a", "l": 1}, [{"k": "a", "l": 1, "m": 0}], [{"k": "a"}, {"l": 1}, {"k": "a", "l": 2}]),
]  # fmt: skip


@pytest.mark.parametrize("many", [False, True])
async def test_filters_are_exact(saver: FacedSaver, many: bool) -> None:
    """In one thread and in all, in whichever way the store looks."""
    for n, (wanted, matching, others) in enumerate(FILTERS):
        thread = f"t{n}" if many else "t"
        known = set(await saver.keys(None if many else at(thread)))
        for m, metadata in enumerate([*matching, *others]):
            await saver.add(number(100 * n + m), {}, thread, metadata={**metadata, "case": n})

        found = await saver.keys(None if many else at(thread), filter={**wanted, "case": n})

        assert found == [(thread, "", number(100 * n + m)) for m in reversed(range(len(matching)))], wanted
        assert not known & set(found)


async def test_filters_see_what_came_from_the_config(saver: FacedSaver) -> None:
    await saver.add("c1", {}, config={"metadata": {"run_id": "r1"}, "configurable": {"user": "u1"}})
    await saver.add("c2", {}, config={"metadata": {"run_id": "r2"}, "configurable": {"user": "u1"}})

    assert await saver.ids(at(), filter={"user": "u1"}) == ["c2", "c1"]
    assert await saver.ids(at(), filter={"user": "u1", "run_id": "r1"}) == ["c1"]
    assert await saver.ids(at(), filter={}) == await saver.ids(at(), filter=None) == ["c2", "c1"]


async def test_one_id_in_several_threads_at_the_borders_of_pages(saver: FacedSaver) -> None:
    """Pages have 16 checkpoints first: wherever a border falls, nothing is left out or given twice."""
    keys = []
    for n in range(12):
        for thread in ("a", "b", "c")[: 1 + n % 3]:
            await saver.add(number(n), {"n": n}, thread)
            keys.append((thread, "", number(n)))
    for limit in (None, 1, 2, 15, 16, 17, 18, 19, 20, len(keys)):
        found = await saver.keys(None, limit=limit)
        assert len(found) == len(set(found)) == min(limit or len(keys), len(keys))
        assert [key[2] for key in found] == sorted((key[2] for key in keys), reverse=True)[:limit]
    assert sorted(await saver.keys()) == sorted(keys)


async def test_more_ties_than_a_page_holds(saver: FacedSaver) -> None:
    threads = [f"t{n:02}" for n in range(20)]
    for thread in threads:
        for n in (1, 2, 3):
            await saver.add(number(n), {}, thread)

    found = await saver.keys()

    assert [key[2] for key in found] == numbers([3] * 20 + [2] * 20 + [1] * 20)
    assert sorted({key[0] for key in found}) == threads
    assert len(set(found)) == 60
    assert len(await saver.keys(None, before=at("t", "", number(2)))) == 20


async def test_a_long_list_in_pages(saver: FacedSaver) -> None:
    for n in range(40):
        await saver.add(number(n), {"n": n}, parent=number(n - 1) if n else None, metadata={"third": n % 3})

    assert await saver.ids(at()) == numbers(reversed(range(40)))
    assert await saver.ids(at(), limit=33) == numbers(reversed(range(7, 40)))
    assert await saver.ids(at(), filter={"third": 1}) == numbers(n for n in reversed(range(40)) if n % 3 == 1)
    assert [found.checkpoint["channel_values"]["n"] for found in await saver.listed(at())] == list(reversed(range(40)))


async def test_everything_works_while_a_list_is_read(saver: FacedSaver) -> None:
    for n in range(40):
        await saver.add(number(n), {"n": n})
    seen = []

    async def visit(found: Any) -> None:
        seen.append(found.checkpoint["id"])
        assert (await saver.get_tuple(found.config)) == found
        if found.checkpoint["id"] == number(30):
            await saver.add(number(50), {"n": 50})
            await saver.put_writes(found.config, [("n", 1)], "task")
            assert len(await saver.listed(at())) == 41

    if saver.face == "async":
        async for found in saver.whole.alist(at()):
            await visit(found)
    else:
        for found in saver.whole.list(at()):
            await visit(found)

    assert seen == numbers(reversed(range(40)))


async def test_a_thread_deleted_while_its_list_is_read_ends_the_list(saver: FacedSaver) -> None:
    for n in range(40):
        await saver.add(number(n), {"n": n})
    seen = []

    if saver.face == "async":
        async for found in saver.whole.alist(at()):
            seen.append(found.checkpoint["id"])
            await saver.delete_thread("t")
    else:
        for found in saver.whole.list(at()):
            seen.append(found.checkpoint["id"])
            await saver.delete_thread("t")

    assert 1 <= len(seen) <= 16  # what was read already may still be given
    assert seen == numbers(reversed(range(40)))[: len(seen)]


async def test_a_list_may_be_left_early(saver: FacedSaver) -> None:
    for n in range(3):
        await saver.add(number(n), {"n": n})

    if saver.face == "async":
        found = saver.whole.alist(at())
        assert (await anext(found)).checkpoint["id"] == number(2)
        await found.aclose()  # type: ignore[attr-defined]  # it is a generator
    else:
        assert next(saver.whole.list(at())).checkpoint["id"] == number(2)

    assert await saver.ids(at()) == numbers([2, 1, 0])


# -- writes ------------------------------------------------------------------------------------------------------------


async def test_of_two_ordinary_writes_in_one_place_the_first_stays(saver: FacedSaver) -> None:
    config = await saver.add("c1", {})
    await saver.put_writes(config, [("a", 1), ("b", 2)], "task")
    await saver.put_writes(config, [("a", "no"), ("other", "no"), ("c", 3)], "task")
    await saver.put_writes(config, [("a", 4)], "task 2")

    assert await saver.writes() == [
        ("task", "a", 1), ("task", "b", 2), ("task", "c", 3), ("task 2", "a", 4),
    ]  # fmt: skip


async def test_of_special_writes_the_last_stays(saver: FacedSaver) -> None:
    for channel in ("__error__", "__scheduled__", "__interrupt__", "__resume__"):
        config = await saver.add("c1", {}, channel)
        await saver.put_writes(config, [(channel, 1)], "task")
        await saver.put_writes(config, [(channel, [2])], "task")
        await saver.put_writes(config, [(channel, 3), (channel, 4)], "task 2")

        assert await saver.writes(channel) == [("task", channel, [2]), ("task 2", channel, 4)]


async def test_other_channels_of_langgraph_are_ordinary(saver: FacedSaver) -> None:
    for channel in ("__error_source_node__", "__no_writes__", "__return__", "__pregel_tasks"):
        config = await saver.add("c1", {}, channel)
        await saver.put_writes(config, [(channel, 1), (channel, 2)], "task")
        await saver.put_writes(config, [(channel, 3)], "task")

        assert await saver.writes(channel) == [("task", channel, 1), ("task", channel, 2)]


async def test_in_a_mixed_batch_each_write_has_its_own_rule(saver: FacedSaver) -> None:
    config = await saver.add("c1", {})
    await saver.put_writes(config, [("a", 1), ("__interrupt__", "old"), ("b", 2)], "task")
    await saver.put_writes(config, [("a", "no"), ("__interrupt__", "new"), ("b", "no"), ("__resume__", "r")], "task")

    assert await saver.writes() == [
        ("task", "__resume__", "r"), ("task", "__interrupt__", "new"), ("task", "a", 1), ("task", "b", 2),
    ]  # fmt: skip


async def test_writes_are_in_the_order_of_path_task_and_place_bytewise(saver: FacedSaver) -> None:
    config = await saver.add("c1", {})
    tasks = [
        ("~__pregel_pull, b", "1"), ("~__pregel_pull, B", "2"), ("", "9"), ("", "8"), ("~~0000000003", "0"),
        ("~__pregel_pull, ä", "3"), ("~__pregel_pull, a b", "4"), ("~__pregel_pull, a", "a"),
        ("~__pregel_pull, a", "B"), ("~__pregel_pull, a", "_"), ("~__pregel_pull, \U0001f600", "5"),
        ("~__pregel_pull, \uffff", "6"),
    ]  # fmt: skip
    for path, task in tasks:
        await saver.put_writes(config, [("x", 1), ("y", 2), ("__error__", 3)], task, path)

    ordered = [task for _, task in sorted(tasks, key=lambda pair: (pair[0].encode(), pair[1].encode()))]
    expected = [(task, channel) for task in ordered for channel in ("__error__", "x", "y")]
    assert [(task, channel) for task, channel, _ in await saver.writes()] == expected
    assert [(task, channel) for task, channel, _ in (await saver.listed(at()))[0].pending_writes] == expected


async def test_more_than_ten_writes_stay_in_order(saver: FacedSaver) -> None:
    config = await saver.add("c1", {})
    await saver.put_writes(config, [("x", n) for n in range(120)], "task")

    assert [value for *_, value in await saver.writes()] == list(range(120))


async def test_writes_may_come_before_their_checkpoint(saver: FacedSaver) -> None:
    await saver.put_writes(at(name="c1"), [("a", [1, 2])], "task")
    assert await saver.get_tuple(at(name="c1")) is None
    assert await saver.get_tuple(at()) is None
    assert await saver.listed(at()) == []

    await saver.add("c1", {"n": 1})

    assert await saver.writes() == [("task", "a", [1, 2])]


async def test_writes_belong_to_one_thread_namespace_and_checkpoint(saver: FacedSaver) -> None:
    for thread, ns, name in (("a", "", "c1"), ("a", "", "c2"), ("a", "sub", "c1"), ("b", "", "c1")):
        await saver.add(name, {}, thread, ns)
        await saver.put_writes(at(thread, ns, name), [("x", (thread, ns, name))], "task")

    for thread, ns, name in (("a", "", "c1"), ("a", "", "c2"), ("a", "sub", "c1"), ("b", "", "c1")):
        assert await saver.writes(thread, ns, name) == [("task", "x", (thread, ns, name))]


async def test_writes_need_no_namespace_in_their_config(saver: FacedSaver) -> None:
    await saver.add("c1", {})
    await saver.put_writes({"configurable": {"thread_id": "t", "checkpoint_id": "c1"}}, [("x", 1)], "task")

    assert await saver.writes() == [("task", "x", 1)]


async def test_no_writes_are_no_writes(saver: FacedSaver) -> None:
    await saver.put_writes(at(name="c1"), [], "task")
    await saver.add("c1", {})
    await saver.put_writes(at(name="c1"), (), "task")

    assert await saver.writes() == []
    assert await saver.keys() == [("t", "", "c1")]


async def test_large_writes(saver: FacedSaver) -> None:
    large = [{"n": n, "text": f"{n} " * 40} for n in range(300)]
    config = await saver.add("c1", {"list": large})
    await saver.put_writes(config, [("list", large), ("text", "x" * 300_000), ("list", large[:150])], "task")

    assert [value for *_, value in await saver.writes()] == [large, "x" * 300_000, large[:150]]


# -- deleting and copying ----------------------------------------------------------------------------------------------


async def test_delete_thread_takes_all_of_it_and_tells_how_much(saver: FacedSaver) -> None:
    keys = await add_several(saver)
    await saver.put_writes(at("a", "", number(4)), [("x", 1)], "task")
    await saver.put_writes(at("a", "", "early"), [("x", 1)], "task")

    assert await saver.delete_thread("a") == 4

    assert await saver.keys() == [key for key in keys if key[0] == "b"]
    assert await saver.delete_thread("a") == 0
    assert await saver.delete_thread("never") == 0
    await saver.add(number(4), {"n": 0}, "a")
    await saver.add("early", {"n": 0}, "a")
    assert await saver.writes("a", "", number(4)) == await saver.writes("a", "", "early") == []


async def test_a_deleted_thread_may_begin_anew(saver: FacedSaver) -> None:
    for turn in range(3):
        await saver.add("c1", {"messages": ["x" * 2000, turn]})
        await saver.add("c2", {"messages": ["x" * 2000, turn, 2]}, parent="c1", versions={"messages": 2})
        assert await saver.values() == {"messages": ["x" * 2000, turn, 2]}
        assert await saver.delete_thread("t") == 2


async def test_delete_for_runs(saver: FacedSaver) -> None:
    for n, (thread, ns, run) in enumerate(
        [("a", "", "r1"), ("a", "sub", "r1"), ("a", "", "r2"), ("b", "", "r1"), ("b", "", "r3"), ("b", "", None)]
    ):
        config = {"metadata": {"run_id": run}} if run else {}
        await saver.add(number(n), {"n": n, "text": "long " * 300}, thread, ns, config=config)
        await saver.put_writes(at(thread, ns, number(n)), [("n", n)], "task")
    await saver.put_writes(at("a", "", "early"), [("n", "early")], "task")

    await saver.delete_for_runs([])
    await saver.delete_for_runs(["unknown"])
    assert len(await saver.keys()) == 6
    await saver.delete_for_runs(["r1", "r3", "r1", "unknown"])

    assert await saver.keys() == [("b", "", number(5)), ("a", "", number(2))]
    assert await saver.values("a") == {"n": 2, "text": "long " * 300}
    assert await saver.writes("a") == [("task", "n", 2)]
    await saver.add(number(0), {}, "a")
    assert await saver.writes("a", "", number(0)) == []
    await saver.add("early", {}, "a")
    assert await saver.writes("a", "", "early") == [("task", "n", "early")]


async def test_prune_keeps_the_newest_of_each_namespace(saver: FacedSaver) -> None:
    for n in range(9):
        ns = "sub" if n % 3 == 0 else ""
        await saver.add(number(n), {"n": n, "messages": ["m"] * n}, "a", ns, versions={"n": n, "messages": n})
        await saver.put_writes(at("a", ns, number(n)), [("n", n)], "task")
        await saver.add(number(n), {"n": n}, "b")
    await saver.put_writes(at("a", "", "early"), [("n", "early")], "task")

    await saver.prune(["a", "unknown"])
    await saver.prune([])

    assert await saver.keys(at("a", None)) == [("a", "", number(8)), ("a", "sub", number(6))]
    assert await saver.values("a") == {"n": 8, "messages": ["m"] * 8}
    assert await saver.writes("a") == [("task", "n", 8)]
    assert await saver.writes("a", "sub") == [("task", "n", 6)]
    assert len(await saver.keys(at("b"))) == 9
    await saver.add("early", {}, "a")
    assert await saver.writes("a", "", "early") == [("task", "n", "early")]


async def test_prune_may_delete(saver: FacedSaver) -> None:
    keys = await add_several(saver)

    await saver.prune(["a", "unknown"], strategy="delete")

    assert await saver.keys() == [key for key in keys if key[0] == "b"]


async def test_prune_keeps_the_newest_though_it_came_first(saver: FacedSaver) -> None:
    for n in (2, 3, 1):
        await saver.add(number(n), {"n": n})

    await saver.prune(["t"])

    assert await saver.ids(at()) == numbers([3])


async def test_work_goes_on_after_a_prune(saver: FacedSaver) -> None:
    texts = [f"{n} " * 200 for n in range(6)]
    for n in range(4):
        await saver.add(number(n), {"messages": texts[:n]}, parent=number(n - 1) if n else None, versions={"m": n})
    await saver.prune(["t"])
    await saver.add(number(4), {"messages": texts[:5]}, parent=number(3), versions={"m": 4})
    await saver.add(number(5), {"messages": texts}, parent=number(2), versions={"m": 5})

    assert await saver.values(name=number(4)) == {"messages": texts[:5]}
    assert await saver.values(name=number(5)) == {"messages": texts}


async def test_copy_thread_copies_all_of_it(saver: FacedSaver) -> None:
    for n in range(6):
        ns, parent = ("sub", None) if n == 3 else ("", number(n - 1) if n not in (0, 4) else None)
        values = {"n": n, "messages": [f"{m} " * 100 for m in range(n)]}
        await saver.add(number(n), values, "a", ns, parent, metadata={"step": n, "run_id": f"r{n}"})
        await saver.put_writes(at("a", ns, number(n)), [("n", [n] * 300), ("__error__", n)], "task", f"~path {n}")
    await saver.put_writes(at("a", "", "early"), [("n", "early")], "task")
    before = await saver.listed(at("a", None))

    await saver.copy_thread("a", "b")

    assert await saver.listed(at("a", None)) == before
    copied = await saver.listed(at("b", None))
    assert [moved(found, "a") for found in copied] == before
    await saver.add("early", {}, "b")
    assert await saver.writes("b", "", "early") == [("task", "n", "early")]
    assert await saver.delete_thread("a") == 6
    assert [moved(found, "a") for found in (await saver.listed(at("b", None)))[1:]] == before


def moved(found: Any, thread: str) -> Any:
    """Return the tuple as it is called in another thread."""

    def renamed(config: Any) -> Any:
        return config and {"configurable": {**config["configurable"], "thread_id": thread}}

    return found._replace(config=renamed(found.config), parent_config=renamed(found.parent_config))


async def test_copies_are_apart(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": 1}, "a")
    await saver.copy_thread("a", "b")
    await saver.add("c2", {"a": "a"}, "a", parent="c1", versions={"a": 2})
    await saver.add("c2", {"a": "b"}, "b", parent="c1", versions={"a": 2})

    assert await saver.values("a") == {"a": "a"}
    assert await saver.values("b") == {"a": "b"}


async def test_what_is_not_there_cannot_be_copied(saver: FacedSaver) -> None:
    await saver.copy_thread("none", "b")

    assert await saver.keys() == []


async def test_a_thread_copied_to_itself_stays(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": 1})
    await saver.copy_thread("t", "t")

    assert await saver.keys() == [("t", "", "c1")]
    assert await saver.values() == {"a": 1}


# -- versions ----------------------------------------------------------------------------------------------------------


def test_versions_grow_in_every_form() -> None:
    saver = HarnessCheckpointer()
    assert isinstance(saver, BaseCheckpointSaver)
    assert (saver.get_next_version(None), saver.get_next_version(1)) == (1, 2)
    for text in ("00000000000000000000000000000007.0.12345", "00000000000000000000000000000007"):
        after = saver.get_next_version(text)
        assert isinstance(after, str)
        assert max(text, after) == after
        assert saver.get_next_version(after) > after


# -- bad input ---------------------------------------------------------------------------------------------------------


NOWHERE: list[Any] = [
    None, {}, {"configurable": None}, {"configurable": {}}, {"configurable": {"thread_id": None}}, "t", 3,
]  # fmt: skip


async def test_a_config_must_name_a_thread(saver: FacedSaver) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda config: saver.get_tuple(config),
        lambda config: saver.get(config),
        lambda config: saver.get_record(config),
        lambda config: saver.put(config, checkpoint("c1", {}), {}, {}),
        lambda config: saver.put_writes(config, [("a", 1)], "task"),
        lambda config: saver.put_writes(config, [], "task"),
        lambda config: saver.get_delta_channel_history(config=config, channels=["a"]),
    ]
    for config in NOWHERE:
        for call in calls:
            with pytest.raises(InvalidInput, match="thread"):
                await call(config)
    assert await saver.keys() == []


async def test_a_list_is_of_one_thread_unless_it_is_asked_for_all_of_them(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": 1}, thread="somebody's")

    for config in [*NOWHERE[1:], at(None, ""), at(None, name="c1"), {"configurable": {"user_id": "somebody"}}]:
        with pytest.raises(InvalidInput, match="thread"):
            await saver.listed(config)
    assert await saver.keys(None) == [("somebody's", "", "c1")]


BAD_PARTS: list[tuple[str, Any, str]] = [
    ("thread_id", "", "empty"),
    ("thread_id", "x" * 2000, "limit"),
    ("thread_id", "\ud800", "Unicode"),
    ("checkpoint_ns", 5, "string"),
    ("checkpoint_ns", "\ud800", "Unicode"),
    ("checkpoint_id", "\ud800", "Unicode"),
    ("checkpoint_id", "x" * 3000, "limit"),
]


async def test_parts_of_a_config_must_be_names(saver: FacedSaver) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda config: saver.get_tuple(config),
        lambda config: saver.put(config, checkpoint("c2", {}), {}, {}),
        lambda config: saver.put_writes(config, [("a", 1)], "task"),
        lambda config: saver.listed(config),
    ]
    for part, value, said in BAD_PARTS:
        for call in calls:
            with pytest.raises(InvalidInput, match=said):
                await call({"configurable": {"thread_id": "t", "checkpoint_id": "c1", part: value}})
    assert await saver.keys() == []


async def test_wrong_arguments_are_named(saver: FacedSaver) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: saver.listed(at(), limit=-1), "limit"),
        (lambda: saver.listed(at(), limit=1.5), "limit"),
        (lambda: saver.listed(at(), limit="1"), "limit"),
        (lambda: saver.listed(at(), limit=True), "limit"),
        (lambda: saver.listed(at(), before="c1"), "before"),
        (lambda: saver.listed("t"), "config"),
        (lambda: saver.listed(at(), filter="x"), "filter"),
        (lambda: saver.listed(at(), filter={1: 2}), "filter"),
        (lambda: saver.put(at(), None), "checkpoint"),
        (lambda: saver.put(at(), [1]), "checkpoint"),
        (lambda: saver.put(at(), checkpoint("", {})), "checkpoint_id"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "id": 5}), "checkpoint_id"),
        (lambda: saver.put(at(), checkpoint("c", {}), "metadata"), "metadata"),
        (lambda: saver.put(at(), checkpoint("c", {}), {1: 2}), "metadata"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "channel_values": 5}), "channel_values"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "channel_versions": [1]}), "channel_versions"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "versions_seen": 5}), "versions_seen"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "versions_seen": {"node": 5}}), "versions_seen"),
        (lambda: saver.put(at(), checkpoint("c", {}), {}, 5), "new_versions"),
        (lambda: saver.put(at(), {**checkpoint("c", {}), "channel_values": {5: 1}}), "channel"),
        (lambda: saver.put_writes(at(), [("a", 1)], "task"), "checkpoint_id"),
        (lambda: saver.put_writes(at(name="c"), [("a", 1)], 5), "task_id"),
        (lambda: saver.put_writes(at(name="c"), [("a", 1)], "task", 5), "task_path"),
        (lambda: saver.put_writes(at(name="c"), [(5, 1)], "task"), "channel"),
        (lambda: saver.put_writes(at(name="c"), ["abc"], "task"), "writes"),
        (lambda: saver.put_writes(at(name="c"), 5, "task"), "writes"),
        (lambda: saver.put_writes(at(name="c"), {"a": 1}, "task"), "writes"),
        (lambda: saver.put_writes(at(name="c"), [("a", 1, 2)], "task"), "writes"),
        (lambda: saver.prune(["t"], strategy="keep_some"), "strategy"),
        (lambda: saver.prune("t"), "thread_ids"),
        (lambda: saver.prune(None), "thread_ids"),
        (lambda: saver.delete_for_runs("r"), "run_ids"),
        (lambda: saver.delete_thread(None), "thread"),
        (lambda: saver.delete_thread(""), "thread"),
        (lambda: saver.copy_thread("", "b"), "thread"),
        (lambda: saver.copy_thread("t", None), "thread"),
    ]
    answers = [(said, await refusal(call)) for call, said in wrong]
    assert [(said, answer) for said, answer in answers if said not in answer] == []
    assert await saver.keys() == []


async def refusal(call: Callable[[], Any]) -> str:
    try:
        return f"gave {await call()!r}"
    except InvalidInput as refused:
        return str(refused)
    except Exception as error:
        return repr(error)


async def test_a_thread_of_the_engine_is_not_taken_for_one_of_langgraph(saver: FacedSaver) -> None:
    engine: Any = OneFace(everstep.CheckpointEngine(saver.whole.backend), saver.face)
    name = await engine.snapshot("t", [], {"a": 1}, {})
    calls: list[Callable[[], Any]] = [lambda: saver.get_tuple(at()), lambda: saver.add("c1", {}, parent=name)]
    for call in calls:
        with pytest.raises(InvalidInput, match="was not written by a LangGraph saver"):
            await call()
    assert await saver.listed(at()) == []


def test_wrong_options_are_named(tmp_path: Any) -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: HarnessCheckpointer(backend=5), "backend="),
        (lambda: HarnessCheckpointer("agent.db"), "not str; .*from_url"),  # type: ignore[arg-type]
        (lambda: HarnessCheckpointer(Path("agent.db")), "from_url"),  # type: ignore[arg-type]
        (lambda: HarnessCheckpointer(allow=["x"]), "allow="),  # type: ignore[list-item]
        (lambda: HarnessCheckpointer(retention=5), "retention"),  # type: ignore[arg-type]
        (lambda: HarnessCheckpointer.from_url(5), "URL"),  # type: ignore[arg-type]
        (lambda: HarnessCheckpointer.from_url("nothing://x"), "nothing"),
        (lambda: HarnessCheckpointer.from_url(str(tmp_path / "x.db"), no_such_option=1), "no_such_option"),  # type: ignore[call-arg]
    ]
    for call, said in wrong:
        with pytest.raises(InvalidInput, match=said):
            call()
