"""The store of `examples/lmdb_store.py` beside itself: other processes, forks, two handles, a full file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from everstep.errors import StoreClosed, StoreFull
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query, Store, Stored
from everstep.testing.builders import follow, ids, make_object, make_record, put
from tests.tools.examples import EXAMPLES, lmdb_store, load

WRITER = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from lmdb_store import LMDBStore
from everstep.runtime.blocking import run_to_end
from everstep.testing.builders import follow
store = LMDBStore(sys.argv[1]).blocking
for _ in range(20):
    run_to_end(store.commit(follow("t", sys.argv[2])))
run_to_end(store.close())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run_to_end(lmdb_store(tmp_path / "store.lmdb").blocking.close())
    return tmp_path / "store.lmdb"


def test_writers_of_several_processes_line_up(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abc"]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]

    store = lmdb_store(path).blocking
    listed = run_to_end(store.list_checkpoints(Query(thread_id="t", order="oldest")))
    assert [stored.record.step for stored in listed] == list(range(1, 61))
    assert {name[0] for name in ids(listed)} == set("abc")
    run_to_end(store.close())


def test_both_sides_of_a_fork_go_on_though_another_thread_was_writing(path: Path) -> None:
    store: Any = load("lmdb_store").LMDBStore(path, timeout_seconds=10).blocking
    run_to_end(store.commit(follow("t", "before")))
    began = threading.Event()

    async def slow(inside: Store) -> Stored | None:
        began.set()
        threading.Event().wait(0.2)  # so that the fork comes meanwhile
        return await inside.commit(follow("t", "thread"))

    thread = threading.Thread(target=lambda: run_to_end(store.in_turn("t", slow)))
    thread.start()
    began.wait()
    child = os.fork()
    if child == 0:
        try:
            assert store._backend._database._environment is None  # a child must not use what its parent opened
            run_to_end(store.commit(follow("t", "child")))
            os._exit(0)
        finally:
            os._exit(1)
    thread.join()
    run_to_end(store.commit(follow("t", "parent")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = run_to_end(store.list_checkpoints(Query(thread_id="t")))
    assert {name.split("-")[0] for name in ids(found)} == {"before", "thread", "child", "parent"}
    run_to_end(store.close())


def test_two_handles_of_one_process_are_one_store(path: Path) -> None:
    one, two = lmdb_store(path).blocking, lmdb_store(path).blocking
    run_to_end(one.commit(follow("t", "c")))
    run_to_end(two.commit(follow("t", "c")))
    run_to_end(one.close())
    run_to_end(two.commit(follow("t", "c")))
    assert ids(run_to_end(two.list_checkpoints(Query(thread_id="t")))) == ["c-3", "c-2", "c-1"]
    with pytest.raises(StoreClosed):
        run_to_end(one.read("t"))
    run_to_end(two.close())


def test_a_full_file_says_so_and_stays_whole(tmp_path: Path) -> None:
    store = load("lmdb_store").LMDBStore(tmp_path / "small.lmdb", size_gigabytes_max=1 / 1024).blocking

    def fill() -> None:
        for n in range(100):
            leaf = make_object(random.Random(n).randbytes(50_000))
            run_to_end(store.commit(put(make_record(f"c{n}", step=n, roots=[leaf]), leaf)))
            made.append(f"c{n}")

    made: list[str] = []
    with pytest.raises(StoreFull, match="size_gigabytes_max"):
        fill()
    assert len(made) > 3
    assert ids(run_to_end(store.list_checkpoints(Query(thread_id="t")))) == made[::-1]
    run_to_end(store.close())
