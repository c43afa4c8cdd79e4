"""Many at once: threads, tasks, both faces of one saver, copies of it, several event loops, and use after closing."""

from __future__ import annotations

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import everstep
from everstep import StoreClosed
from everstep.langgraph import CheckpointBackend, CheckpointerConfig, HarnessCheckpointer
from tests.conftest import Place
from tests.langgraph.graphs import chat, human
from tests.langgraph.same import assert_same, assert_same_channels
from tests.langgraph.tools import at, checkpoint, number, numbers

WORKERS = 16
STEPS = 4


@pytest.fixture
def saver(place: Place) -> Any:
    with HarnessCheckpointer(backend=place.open()) as saver:
        yield saver


def conversation(thread: str, steps: int) -> list[Any]:
    return [HumanMessage(f"{thread} says {n}", id=f"{thread}-{n}") for n in range(steps)]


def together(work: Any, count: int = WORKERS) -> list[Any]:
    """Run the same in several threads that begin at once."""
    barrier = threading.Barrier(count)

    def one(n: int) -> Any:
        barrier.wait()
        return work(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def talk(saver: HarnessCheckpointer, thread: str) -> None:
    config: Any = at(thread)
    for step in range(STEPS):
        values = {"messages": conversation(thread, step + 1)}
        config = saver.put(config, checkpoint(number(step), values, {"messages": step}), {}, {"messages": step})
        saver.put_writes(config, [("messages", values["messages"][-1:]), ("n", step)], f"task {step}")


async def atalk(saver: HarnessCheckpointer, thread: str) -> None:
    config: Any = at(thread)
    for step in range(STEPS):
        values = {"messages": conversation(thread, step + 1)}
        config = await saver.aput(config, checkpoint(number(step), values, {"messages": step}), {}, {"messages": step})
        await saver.aput_writes(config, [("messages", values["messages"][-1:]), ("n", step)], f"task {step}")


def assert_talked(saver: HarnessCheckpointer, thread: str) -> None:
    listed = list(saver.list(at(thread)))
    assert [found.checkpoint["id"] for found in listed] == numbers(reversed(range(STEPS)))
    for step, found in enumerate(reversed(listed)):
        messages = conversation(thread, step + 1)
        assert_same(found.checkpoint["channel_values"], {"messages": messages})
        assert_same(found.pending_writes, [(f"task {step}", "messages", messages[-1:]), (f"task {step}", "n", step)])


def test_many_threads_each_on_its_own_thread(saver: HarnessCheckpointer) -> None:
    together(lambda n: talk(saver, f"t{n}"))

    for n in range(WORKERS):
        assert_talked(saver, f"t{n}")


async def test_many_tasks_each_on_its_own_thread(saver: HarnessCheckpointer) -> None:
    await asyncio.gather(*(atalk(saver, f"t{n}") for n in range(WORKERS)))

    for n in range(WORKERS):
        assert_talked(saver, f"t{n}")
    await saver.aclose()


def on_one_thread(n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    values = {"messages": conversation("root", 3) + conversation(str(n), 2), "n": n}
    return at("t", "", "root"), checkpoint(number(n), values, {"messages": 2, "n": 2})


def assert_all_on_one_thread(saver: HarnessCheckpointer) -> None:
    names = [found.checkpoint["id"] for found in saver.list(at())]
    assert names == ["root", *numbers(reversed(range(WORKERS)))]
    for n in range(WORKERS):
        found = saver.get_tuple(at(name=number(n)))
        assert found is not None
        assert_same(found.checkpoint["channel_values"], on_one_thread(n)[1]["channel_values"])
        assert found.pending_writes == [(f"task {m}", "n", m) for m in sorted(range(WORKERS), key=str)]


def test_many_threads_on_one_thread(saver: HarnessCheckpointer) -> None:
    """All of them children of one checkpoint, with equal versions, each with writes for all."""
    saver.put(at(), checkpoint("root", {"messages": conversation("root", 3)}))

    def work(n: int) -> None:
        saver.put(*on_one_thread(n), {}, {"messages": 2, "n": 2})
        for m in range(WORKERS):
            saver.put_writes(at(name=number(m)), [("n", n)], f"task {n}")

    together(work)

    assert_all_on_one_thread(saver)


async def test_many_tasks_on_one_thread(saver: HarnessCheckpointer) -> None:
    await saver.aput(at(), checkpoint("root", {"messages": conversation("root", 3)}))

    async def work(n: int) -> None:
        await saver.aput(*on_one_thread(n), {}, {"messages": 2, "n": 2})
        await asyncio.gather(*(saver.aput_writes(at(name=number(m)), [("n", n)], f"task {n}") for m in range(WORKERS)))

    await asyncio.gather(*map(work, range(WORKERS)))

    assert_all_on_one_thread(saver)
    await saver.aclose()


def test_the_same_put_from_many_threads_is_one_put(saver: HarnessCheckpointer) -> None:
    given = checkpoint("c1", {"messages": conversation("t", 20)})
    together(lambda n: saver.put(at(), given))
    together(lambda n: saver.put_writes(at(name="c1"), [("n", 1), ("__error__", "x")], "task"))

    (found,) = saver.list(at())
    assert_same(found.checkpoint["channel_values"], given["channel_values"])
    assert found.pending_writes == [("task", "__error__", "x"), ("task", "n", 1)]


def test_readers_and_writers_at_once(saver: HarnessCheckpointer) -> None:
    """Whatever a reader finds is whole."""
    saver.put(at(), checkpoint(number(0), {"messages": conversation("t", 1)}))
    done = threading.Event()

    def write() -> None:
        for n in range(1, 25):
            versions = {"messages": n}
            given = checkpoint(number(n), {"messages": conversation("t", n + 1)}, versions)
            saver.put(at(name=number(n - 1)), given, {}, versions)
        done.set()

    def read() -> list[int]:
        seen: list[int] = []
        while not done.is_set() or not seen:
            found = saver.get_tuple(at())
            assert found is not None
            seen.append(int(found.checkpoint["id"]))
            assert_same(found.checkpoint["channel_values"]["messages"], conversation("t", seen[-1] + 1))
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        pool.submit(write).result()
        for reader in readers:
            seen = reader.result()
            assert seen == sorted(seen)


async def test_one_saver_from_both_faces_at_once(saver: HarnessCheckpointer) -> None:
    """Blocking calls from worker threads, tasks in the loop, and blocking calls inside the loop."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(4) as pool:
        threads = [loop.run_in_executor(pool, talk, saver, f"thread {n}") for n in range(4)]
        tasks = [asyncio.create_task(atalk(saver, f"task {n}")) for n in range(4)]
        talk(saver, "inside")
        await asyncio.gather(*threads, *tasks)

    for name in ("inside", *(f"{kind} {n}" for kind in ("thread", "task") for n in range(4))):
        assert_talked(saver, name)
        assert (await saver.aget(at(name))) == saver.get(at(name))
    await saver.aclose()


async def test_blocking_calls_work_inside_a_running_loop(saver: HarnessCheckpointer) -> None:
    config = saver.put(at(), checkpoint("c1", {"a": 1}))
    saver.put_writes(config, [("a", 2)], "task")
    saver.copy_thread("t", "copy")
    saver.prune(["copy"])

    assert [found.checkpoint["id"] for found in saver.list(at())] == ["c1"]
    assert (await saver.aget_tuple(at("copy"))).pending_writes == [("task", "a", 2)]  # type: ignore[union-attr]
    assert saver.delete_thread("t") == 1
    await saver.aclose()


def test_a_second_event_loop(saver: HarnessCheckpointer) -> None:
    """Pools of connections belong to a loop: each one gets its own."""
    for n in range(3):
        asyncio.run(atalk(saver, f"t{n}"))
        assert asyncio.run(saver.aget(at(f"t{n}")))["id"] == number(STEPS - 1)
    for n in range(3):
        assert_talked(saver, f"t{n}")


def test_two_event_loops_at_once(saver: HarnessCheckpointer) -> None:
    together(lambda n: asyncio.run(atalk(saver, f"t{n}")), 3)

    for n in range(3):
        assert_talked(saver, f"t{n}")


@pytest.mark.parametrize("made", ["copy", "with_allowlist"])
def test_copies_share_what_the_saver_has(saver: HarnessCheckpointer, made: str) -> None:
    clone = copy.copy(saver) if made == "copy" else saver.with_allowlist([("some.module", "Name")])
    assert isinstance(clone, HarnessCheckpointer)
    assert clone is not saver
    assert clone.backend is saver.backend

    together(lambda n: talk((saver, clone)[n % 2], f"t{n}"), 6)

    for n in range(6):
        assert_talked((clone, saver)[n % 2], f"t{n}")
    asyncio.run(atalk(clone, "async"))
    assert_talked(saver, "async")


def test_what_a_copy_deletes_is_deleted(saver: HarnessCheckpointer) -> None:
    clone = saver.with_allowlist([])
    talk(saver, "t")
    assert_talked(clone, "t")
    clone.delete_thread("t")
    assert saver.get_tuple(at("t")) is None
    saver.put(at(), checkpoint("c", {"messages": conversation("t", 2)}, {"messages": 1}), {}, {})
    assert_same(clone.get(at("t"))["channel_values"], {"messages": conversation("t", 2)})


def test_two_savers_on_one_store_see_each_other(place: Place) -> None:
    """What one remembers of a thread is never taken for what the other has made of it."""
    store = place.open()
    with HarnessCheckpointer(backend=store) as one:
        two = HarnessCheckpointer(backend=store if place.kind == "memory" else place.open())
        messages = conversation("t", 40)
        one.put(at(), checkpoint("c1", {"messages": messages[:20]}, {"messages": 1}))
        assert_same(two.get(at())["channel_values"]["messages"], messages[:20])
        two.put(at(), checkpoint("c1", {"messages": messages[20:]}, {"messages": 1}))  # replaced under the same id
        two.put(at(name="c1"), checkpoint("c2", {"messages": messages}, {"messages": 2}), {}, {"messages": 2})
        assert_same(one.get(at(name="c1"))["channel_values"]["messages"], messages[20:])
        one.put(at(name="c1"), checkpoint("c3", {"messages": messages[20:], "n": 1}, {"messages": 1}), {}, {"n": 1})
        assert_same_channels(two.get(at(name="c3"))["channel_values"], {"messages": messages[20:], "n": 1})
        two.delete_thread("t")
        one.put(at(name="c3"), checkpoint("c4", {"messages": messages, "n": 1}, {"messages": 3}), {}, {})
        assert_same_channels(two.get(at())["channel_values"], {"messages": messages, "n": 1})
        assert [found.checkpoint["id"] for found in one.list(at())] == ["c4"]
        two.close()


def test_a_stale_memory_of_the_parent_is_not_used(place: Place) -> None:
    """Another saver replaced the parent meanwhile: what was left out of `new_versions` comes from the checkpoint."""
    store = place.open()
    with HarnessCheckpointer(backend=store) as one:
        two = HarnessCheckpointer(backend=store if place.kind == "memory" else place.open())
        big = conversation("t", 30)
        one.put(at(), checkpoint("c1", {"a": "old", "messages": big}, {"a": 1, "messages": 1}))
        two.put(at(), checkpoint("c1", {"a": "new", "messages": big[:3]}, {"a": 1, "messages": 1}))

        one.put(at(name="c1"), checkpoint("c2", {"a": "new", "messages": big[:3]}, {"a": 1, "messages": 1}), {}, {})

        for reader in (one, two):
            assert_same_channels(reader.get(at())["channel_values"], {"a": "new", "messages": big[:3]})
        two.close()


# -- opening and closing -----------------------------------------------------------------------------------------------


async def test_after_closing_every_call_says_so(place: Place, face: str) -> None:
    saver: Any = HarnessCheckpointer(backend=place.open())
    if face == "blocking":
        saver.put(at(), checkpoint("c1", {}))
        saver.close()
        calls: Any = [
            lambda: saver.get_tuple(at()), lambda: saver.put(at(), checkpoint("c2", {})),
            lambda: saver.put_writes(at(name="c1"), [("a", 1)], "task"), lambda: list(saver.list(at())),
            lambda: saver.delete_thread("t"), lambda: saver.prune(["t"]), lambda: saver.copy_thread("t", "b"),
            lambda: saver.delete_for_runs(["r"]), lambda: copy.copy(saver).get(at()),
            lambda: saver.with_allowlist([]).get(at()),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StoreClosed):
                call()
        saver.close()
        return
    await saver.aput(at(), checkpoint("c1", {}))
    await saver.aclose()
    for call in (
        lambda: saver.aget_tuple(at()), lambda: saver.aput(at(), checkpoint("c2", {})),
        lambda: saver.aput_writes(at(name="c1"), [("a", 1)], "task"), lambda: anext(saver.alist(at())),
        lambda: saver.adelete_thread("t"), lambda: saver.aprune(["t"]), lambda: saver.acopy_thread("t", "b"),
        lambda: saver.adelete_for_runs(["r"]),
    ):  # fmt: skip
        with pytest.raises(StoreClosed):
            await call()
    await saver.aclose()


def test_a_saver_is_a_context_manager_of_both_kinds(tmp_path: Any) -> None:
    path = tmp_path / "a.db"
    with HarnessCheckpointer.from_conn_string(str(path)) as saver:
        saver.put(at(), checkpoint("c1", {"a": 1}))
    with pytest.raises(StoreClosed):
        saver.get(at())

    async def again() -> Any:
        async with HarnessCheckpointer.from_url(f"sqlite:///{path}") as reopened:
            return await reopened.aget(at())

    assert asyncio.run(again())["channel_values"] == {"a": 1}


async def test_the_setup_that_other_savers_need_may_be_called_and_awaited() -> None:
    saver = HarnessCheckpointer()

    saver.setup()
    await saver.setup()

    assert saver.get_tuple(at()) is None


def test_a_saver_by_configuration(tmp_path: Any) -> None:
    config = CheckpointerConfig(backend=CheckpointBackend.SQLITE, sqlite_path=str(tmp_path / "a.db"))
    with HarnessCheckpointer(config) as saver:
        assert saver.config is config
        saver.put(at(), checkpoint("c1", {"a": 1}))
    assert (tmp_path / "a.db").exists()
    with HarnessCheckpointer() as saver:
        assert saver.config.backend is CheckpointBackend.MEMORY
        assert saver.get_tuple(at()) is None


def test_a_saver_on_a_backend_of_the_engine(tmp_path: Any) -> None:
    backend = everstep.SQLiteCheckpointer(str(tmp_path / "a.db"))
    with HarnessCheckpointer(backend=backend) as saver:
        assert saver.backend is backend
        chat(saver).invoke(human(0), at())
        shown = everstep.CheckpointEngine(backend).sync.get_latest("t")
        assert shown is not None
        assert [message["content"] for message in shown.messages] == ["question 0", "answer 1 to question 0"]
        assert shown.state["turns"] == 1


def test_retention_is_applied_after_puts(place: Place) -> None:
    policy = everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=5)
    with HarnessCheckpointer(backend=place.open(), retention=policy) as saver:
        messages = conversation("t", 60)
        for n in range(60):
            versions = {"messages": n}
            given = checkpoint(number(n), {"messages": messages[: n + 1]}, versions)
            saver.put(at(name=number(n - 1) if n else None), given, {}, versions)
        listed = list(saver.list(at()))
        assert 5 <= len(listed) < 30
        for found in listed:
            length = int(found.checkpoint["id"]) + 1
            assert_same(found.checkpoint["channel_values"]["messages"], messages[:length])
    with HarnessCheckpointer() as saver:
        for n in range(120):
            saver.put(at(), checkpoint(number(n), {}))
        assert len(list(saver.list(at()))) == 120
