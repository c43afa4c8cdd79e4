"""What happens to values, lists and switches while other threads are at work."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import everstep
from everstep.langgraph import HarnessCheckpointer, channels, encoding
from everstep.langgraph.gc_pause import QUIET
from everstep.repository.repository import Encoded, encoded
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Query
from everstep.values import codec, tree
from tests.conftest import OneFace
from tests.langgraph.tools import FacedSaver, at, checkpoint, number
from tests.tools.between import Between


class Meddling:
    """Runs something while it is packed, as another thread may."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        self.action = action

    def state(self) -> list[Any]:
        self.action()
        return []


everstep.register(Meddling, name="tests.Meddling", to_state=Meddling.state, from_state=lambda _: Meddling())


def test_a_list_that_shrinks_while_it_is_packed_is_packed_as_it_was() -> None:
    inner: list[Any] = [(n,) for n in range(3000)]
    inner[0] = Meddling(lambda: inner.__delitem__(slice(10, None)))

    found = codec.unpack(codec.pack({"a": [inner]}))

    assert found["a"][0][1:] == [(n,) for n in range(1, 3000)]


@pytest.mark.parametrize("change", [lambda d: d.update({f"new {n}": n for n in range(100)}), lambda d: d.clear()])
def test_a_dict_that_changes_while_it_is_packed_is_packed_as_it_was(change: Callable[[dict[str, Any]], None]) -> None:
    inner: dict[str, Any] = {str(n): (n,) for n in range(50)}
    inner["0"] = Meddling(lambda: change(inner))

    found = codec.unpack(codec.pack((inner,)))

    assert list(found[0]) == [str(n) for n in range(50)]


async def test_all_parts_of_a_large_value_are_of_one_moment(saver: FacedSaver) -> None:
    value: dict[str, Any] = {"text": "x" * 5000, "more": {"seen": 0}}
    value["meddler"] = Meddling(lambda: value["more"].update(seen=value["more"]["seen"] + 1))

    config = await saver.add("c1", {"value": value})
    await saver.put_writes(config, [("value", value)], "task")

    found = await saver.get_tuple(config)
    assert found.checkpoint["channel_values"]["value"]["more"] == {"seen": 0}
    assert found.pending_writes[0][2]["more"] == {"seen": 1}


class Forgetful(dict[bytes, tree.Content]):
    """A memory out of which everything is taken by another thread after one has looked."""

    def __contains__(self, key: object) -> bool:
        return True


def test_an_object_that_leaves_memory_is_said_to_be_missing() -> None:
    node = tree.Writer().value({str(n): "x" * 100 for n in range(500)}, "value")

    with pytest.raises(tree.MissingObject):
        tree.entries(node, Forgetful())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_the_collector_as_it_was_though_a_thread_was_building() -> None:
    saver = HarnessCheckpointer()
    saver.put(at(), checkpoint("c1", {"messages": [HumanMessage("x", id="1")]}))
    inside, leave = threading.Event(), threading.Event()

    def build() -> None:
        with QUIET:
            inside.set()
            leave.wait(60)

    builder = threading.Thread(target=build)
    builder.start()
    try:
        assert inside.wait(60)
        assert not gc.isenabled()
        child = os.fork()
        if child == 0:
            before = gc.isenabled()
            list(saver.list(at()))
            os._exit(0 if before and gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    finally:
        leave.set()
        builder.join()
    assert gc.isenabled()


def test_what_is_remembered_of_large_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_TEMPLATES_BYTES_MAX", 1 << 20)
    saver = HarnessCheckpointer()
    for n in range(100):
        saver.put(at(f"t{n}"), checkpoint("c1", {"messages": [HumanMessage(str(n) * 50_000, id=str(n))]}))

    found = [len(saved.checkpoint["channel_values"]["messages"][0].content) for saved in saver.list(None)]

    assert len(found) == 100
    assert min(found) == 50_000
    assert len(saver._channels._templates) < 30


def test_a_large_dict_of_which_one_value_changed_sends_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def counted(nodes: Any, writer: tree.Writer, base: Any, **options: Any) -> Encoded:
        sent.append(len(writer.objects))
        return encoded(nodes, writer, base, **options)

    monkeypatch.setattr(encoding, "encoded", counted)
    saver, value = HarnessCheckpointer(), {str(n): "x" * n for n in range(2000)}
    for n in range(1, 5):
        value = value if n == 4 else value | {"7": f"changed {n}" * 20}
        versions = {"value": n}
        saver.put(
            at(name=f"c{n - 1}" if n > 1 else None), checkpoint(f"c{n}", {"value": value}, versions), {}, versions
        )

    assert sent[0] > 50
    assert max(sent[1:3]) < 10
    assert sent[3] == 0
    assert saver.get(at(name="c4"))["channel_values"] == {"value": value}
    others = HarnessCheckpointer(backend=saver.backend.store)
    assert others.get(at(name="c3"))["channel_values"] == {"value": value}


# -- what another process does between a record and its objects ---------------------------------------


def large(text: str) -> dict[str, Any]:
    """Return a value that is stored apart from the record."""
    return {"text": [f"{text} {n} " * 40 for n in range(40)]}


def sweep(saver: FacedSaver, thread: str = "t") -> None:
    """Take away what nothing refers to any more."""
    store = saver.whole.backend.store.blocking
    loaded = run_to_end(store.read(thread))
    assert loaded is not None
    run_to_end(store.sweep(loaded.stored.family))


@pytest.fixture
def between(saver: FacedSaver) -> Between:
    return Between(saver.whole.backend.store)


@pytest.fixture
def here(between: Between, saver: FacedSaver) -> FacedSaver:
    """A saver in whose way things happen; `saver` is what another process does."""
    return FacedSaver(HarnessCheckpointer(backend=between), saver.face)


async def test_what_is_deleted_between_its_record_and_its_objects_is_not_there(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    await here.add("c1", {"value": large("first")})
    await saver.add("c2", {"value": large("second")}, parent="c1", metadata={"run_id": "r"})
    await saver.put_writes(at(name="c2"), [("value", large("pending"))], "task")

    between.after("read", lambda: saver.whole.delete_for_runs(["r"]))
    assert await here.get_tuple(at(name="c2")) is None
    assert between.is_over

    assert (await here.get_tuple(at())).checkpoint["id"] == "c1"


async def test_a_head_that_is_deleted_before_its_objects_are_read_is_the_one_before_it(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    await here.add("c1", {"value": large("first")})
    await saver.add("c2", {"value": large("second")}, parent="c1", metadata={"run_id": "r"})

    between.after("read", lambda: saver.whole.delete_for_runs(["r"]))
    assert await here.values() == {"value": large("first")}
    assert between.is_over

    between.after("read", lambda: saver.whole.delete_thread("t"))
    await saver.add("c3", {"value": large("third")}, parent="c1")
    assert await here.get_tuple(at()) is None
    assert between.is_over


@pytest.mark.parametrize("call", ["read", "fetch"])
async def test_what_is_replaced_between_its_record_and_its_objects_is_of_one_moment(
    saver: FacedSaver, here: FacedSaver, between: Between, call: str
) -> None:
    await here.add("c1", {"value": large("first")})
    await saver.add("c2", {"value": large("second")}, parent="c1", metadata={"of": "second"})
    await saver.put_writes(at(name="c2"), [("value", large("pending"))], "task")

    def replace() -> None:
        whole = saver.whole
        whole.put(at(name="c1"), checkpoint("c2", {"value": large("other")}), {"of": "other"}, {"value": 1})
        whole.put_writes(at(name="c2"), [("value", large("more"))], "task 2")
        sweep(saver)

    after = between.after if call == "read" else between.before
    after(call, replace)
    found = await here.get_tuple(at())
    assert between.is_over

    assert (found.checkpoint["channel_values"]["value"], found.metadata["of"]) == (large("other"), "other")
    assert [value for _, _, value in found.pending_writes] == [large("pending"), large("more")]
    config = await here.add(
        "c3", {"value": large("other"), "n": 1}, parent="c2", versions={"value": 1, "n": 1}, new={"n": 1}
    )
    assert (await saver.get_tuple(config)).checkpoint["channel_values"]["value"] == large("other")


async def test_what_was_replaced_is_not_shown_as_it_is_remembered(saver: FacedSaver, here: FacedSaver) -> None:
    await here.add("c1", {"value": large("first")})
    await saver.add("c1", {"value": large("other")})
    assert await here.values() == {"value": large("other")}


async def test_what_follows_a_checkpoint_that_was_replaced_is_whole(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    """What is as in the parent is left out, and the parent is another by now."""

    def replace() -> None:
        saver.whole.put(at(), checkpoint("c1", {"value": large("other")}), {}, {"value": 1})
        sweep(saver)

    await here.add("c1", {"value": large("first"), "n": 1})
    between.before("commit", replace)
    values = {"value": large("first"), "n": 2}
    await here.add("c2", values, parent="c1", versions={"value": 1, "n": 2}, new={"n": 2})

    assert between.is_over
    assert await saver.values(name="c2") == values
    assert await here.values(name="c1") == await saver.values(name="c1") == {"value": large("other")}


async def test_writes_to_a_checkpoint_that_was_replaced_are_whole(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    """What came with the checkpoint is left out, and that is another by now."""

    def replace() -> None:
        saver.whole.put(at(), checkpoint("c1", {"value": large("other")}), {}, {"value": 1})
        sweep(saver)

    config = await here.add("c1", {"value": large("first")})
    between.before("put_writes", replace)
    await here.put_writes(config, [("value", large("first"))], "task")

    assert between.is_over
    assert await saver.writes(name="c1") == [("task", "value", large("first"))]


async def test_what_is_deleted_while_a_page_is_read_is_left_out_of_the_list(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    for n in range(1, 6):
        await saver.add(f"c{n}", {"value": large(str(n))}, metadata={"run_id": "r" if n in (2, 4) else "s"})
    between.before("fetch", lambda: saver.whole.delete_for_runs(["r"]))

    found = await here.listed(at())

    assert between.is_over
    assert [each.checkpoint["id"] for each in found] == ["c5", "c3", "c1"]
    assert [each.checkpoint["channel_values"]["value"] for each in found] == [large("5"), large("3"), large("1")]


async def test_what_is_deleted_while_a_thread_is_copied_is_not_copied(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    for n in range(1, 4):
        await saver.add(f"c{n}", {"value": large(str(n))}, metadata={"run_id": "r" if n == 2 else "s"})
        await saver.put_writes(at(name=f"c{n}"), [("value", large(f"pending {n}"))], "task")
    between.after("read_many", lambda: saver.whole.delete_for_runs(["r"]))

    await here.copy_thread("t", "copy")

    assert between.is_over
    found = await saver.listed(at("copy"))
    assert [each.checkpoint["id"] for each in found] == ["c3", "c1"]
    assert [each.checkpoint["channel_values"]["value"] for each in found] == [large("3"), large("1")]
    assert [each.pending_writes[0][2] for each in found] == [large("pending 3"), large("pending 1")]


async def test_a_copy_that_is_deleted_meanwhile_goes_on_with_the_rest(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    same = large("same")
    for n in range(1, 4):
        await saver.add(f"c{n}", {"value": same, "n": n})
    between.before(
        "commit",
        lambda: saver.whole.delete_thread("copy"),
        lambda change: change.thread_id == "copy" and between.calls.count("commit") == 2,
    )

    await here.copy_thread("t", "copy")

    assert between.is_over
    found = await saver.listed(at("copy"))
    assert [each.checkpoint["channel_values"] for each in found] == [{"value": same, "n": 3}, {"value": same, "n": 2}]


@pytest.mark.parametrize("size", ["large", "small"])
async def test_writes_of_what_is_deleted_while_it_is_copied_are_not_copied(
    saver: FacedSaver, here: FacedSaver, between: Between, size: str
) -> None:
    await saver.add("c1", {"n": 1})
    await saver.add("c2", {"n": 2}, metadata={"run_id": "r"})
    pending = large("pending") if size == "large" else size
    await saver.put_writes(at(name="c2"), [("value", pending)], "task")
    await saver.put_writes(at(name="c9"), [("value", large("early"))], "task")
    between.after("raw", lambda: saver.whole.delete_for_runs(["r"]))

    await here.copy_thread("t", "copy")

    assert between.is_over
    raw = run_to_end(saver.whole.backend.store.blocking.raw("copy"))
    assert raw is not None
    assert {key.checkpoint_id for key, _ in raw.writes} == {"c9"}
    await saver.add("c9", {"n": 9}, thread="copy")
    assert (await saver.writes("copy", name="c9"))[0][2] == large("early")


def delta(count: int) -> dict[str, Any]:
    """Return the metadata of a checkpoint whose channel `log` is to be made from writes."""
    return {"counters_since_delta_snapshot": {"log": [count, count]}}


async def delta_history(saver: FacedSaver, name: str) -> tuple[Any, list[Any]]:
    found = (await saver.get_delta_channel_history(config=at(name=name), channels=["log"]))["log"]
    return found.get("seed"), [value for _, _, value in found["writes"]]


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_delta_channel_goes_on_from_its_parent_as_that_is_by_now(
    saver: FacedSaver, here: FacedSaver, remembered: bool
) -> None:
    first = here if remembered else saver
    await first.add("c1", {"log": large("first")})
    await saver.add("c1", {"log": large("other")})
    await saver.put_writes(at(name="c1"), [("log", large("written"))], "task")
    sweep(saver)

    await here.add("c2", {}, parent="c1", versions={"log": 1}, new={}, metadata=delta(1))

    assert await delta_history(saver, "c2") == (large("other"), [large("written")])


async def test_a_delta_channel_whose_parent_is_replaced_before_its_objects_are_read(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    await saver.add("c1", {"log": large("first")})
    await saver.put_writes(at(name="c1"), [("log", large("written"))], "task")

    def replace() -> None:
        saver.whole.put(at(), checkpoint("c1", {"log": large("other")}), {}, {"log": 1})
        saver.whole.put_writes(at(name="c1"), [("log", large("more"))], "task 2")
        sweep(saver)

    between.after("read", replace)
    await here.add("c2", {}, parent="c1", versions={"log": 1}, new={}, metadata=delta(1))

    assert between.is_over
    assert await delta_history(saver, "c2") == (large("other"), [large("written"), large("more")])


async def test_a_delta_channel_whose_parent_is_deleted_before_its_objects_are_read(
    saver: FacedSaver, here: FacedSaver, between: Between
) -> None:
    await saver.add("c1", {"log": large("first")})
    between.after("read", lambda: saver.whole.delete_thread("t"))

    await here.add("c2", {}, parent="c1", versions={"log": 1}, new={}, metadata=delta(1))

    assert between.is_over
    assert await delta_history(saver, "c2") == (None, [])


def test_a_damaged_object_is_told_of_the_checkpoint_that_needs_it_alone() -> None:
    store = MemoryStore()
    saver = HarnessCheckpointer(backend=store)
    for n in range(1, 4):
        saver.put(at(), checkpoint(f"c{n}", {"value": large(str(n))}), {}, {"value": 1})
    loaded = run_to_end(store.read("t", "", "c2", objects=True))
    assert loaded is not None
    damaged = loaded.objects[0]
    family = loaded.stored.family
    run_to_end(store._write(lambda rows: rows.add_objects(family, [damaged._replace(body=damaged.body[:-1] + b"?")])))

    listing = HarnessCheckpointer(backend=store).list(at())

    assert next(listing).checkpoint["channel_values"] == {"value": large("3")}
    with pytest.raises(everstep.CheckpointCorrupted) as caught:
        next(listing)
    assert caught.value.checkpoint_id == "c2"
    older = HarnessCheckpointer(backend=store).list(at(), before=at(name="c2"))
    assert [found.checkpoint["channel_values"] for found in older] == [{"value": large("1")}]


@pytest.mark.parametrize("begun", [True, False])
async def test_what_a_subgraph_remembers_since_is_in_the_merge(
    saver: FacedSaver, here: FacedSaver, between: Between, begun: bool
) -> None:
    """The graph itself has not moved: a run of it is in the middle of a step."""
    engine = OneFace(here.whole.engine, saver.face)
    await saver.add(number(1), {"n": 1})
    if begun:
        await saver.add(number(2), {"log": ["base"]}, ns="memory")
    branch = await engine.branch(number(1), "b", thread_id="t", namespace="")
    await saver.add(number(3), {"n": 3}, thread=branch, parent=number(1), versions={"n": 2})
    parent = number(2) if begun else None
    theirs = ["base", "theirs"] if begun else ["theirs"]
    await saver.add(number(4), {"log": theirs}, thread=branch, ns="memory", parent=parent, versions={"log": 2})
    meanwhile = checkpoint(number(5), {"log": ["base", "meanwhile"], "m": 1}, {"log": 3, "m": 1})
    between.before(
        "commit",
        lambda: saver.whole.put(at(ns="memory", name=parent), meanwhile, {}, {"log": 3, "m": 1}),
        lambda change: change.log is not None and change.log.kind == "merge",
    )

    await engine.merge_branch(branch, "t", resolve="ours")

    assert between.is_over
    assert (await saver.values())["n"] == 3
    assert (await saver.values(ns="memory"))["m"] == 1


# -- retention ---------------------------------------------------------------------------------------------------------


def keeping(between: Between, count: int, face: str) -> FacedSaver:
    return FacedSaver(HarnessCheckpointer(backend=between, retention=everstep.SnapshotConfig(gc_param=count)), face)


async def test_a_put_that_fails_lets_nothing_go(saver: FacedSaver, between: Between) -> None:
    def fail() -> None:
        raise everstep.StoreUnavailable("no network")

    here = keeping(between, 2, saver.face)
    for n in (1, 2, 3):
        await here.add(number(n), {"n": n}, parent=number(n - 1) if n > 1 else None)
    for _ in range(2):
        between.before("commit", fail)
        with pytest.raises(everstep.StoreUnavailable):
            await here.add(number(4), {"n": 4}, parent=number(3))
        assert await saver.ids(at()) == [number(3), number(2)]
    await here.add(number(4), {"n": 4}, parent=number(3))
    assert await saver.ids(at()) == [number(4), number(3)]


async def test_what_was_planned_before_somebody_went_back_is_planned_anew(saver: FacedSaver, between: Between) -> None:
    here, store = keeping(between, 3, saver.face), saver.whole.backend.store
    for n in (1, 2, 3):
        await here.add(number(n), {"n": n}, parent=number(n - 1) if n > 1 else None)
    saver.whole.engine.sync.rewind(number(1), thread_id="t", namespace="")
    for n in (4, 5, 6):
        await here.add(number(n), {"n": n}, parent=number(n - 1) if n > 4 else number(1))
    assert await saver.ids(at()) == [number(6), number(5), number(4)]
    hidden = run_to_end(store.blocking.list_checkpoints(Query(thread_id="t", hidden="only")))
    assert [stored.record.key.checkpoint_id for stored in hidden] == [number(3), number(2)]
