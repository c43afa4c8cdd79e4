"""Single rows of the SQLite store that are lost, and pages of an earlier time: told, and no harm to other threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite.schema import PAGE_BYTES
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import follow, ids

LOOKS: dict[str, Callable[[Any], Any]] = {
    "read": lambda store: store.read("t"),
    "thread": lambda store: store.thread("t"),
    "raw": lambda store: store.raw("t"),
    "threads": lambda store: store.list_threads(10, 0),
    "commit": lambda store: store.commit(follow("t", "more")),
}
LOSSES = {
    "the head's checkpoint": "DELETE FROM checkpoints WHERE seq = (SELECT max(seq) FROM checkpoints WHERE line = 1)",
    "the head's last moves": "UPDATE lines SET head = head - 2, generation = generation - 2 WHERE id = 1",
    "the namespace": "DELETE FROM lines WHERE id = 1",
    "a head of another thread": "UPDATE lines SET head = (SELECT max(seq) FROM checkpoints) WHERE id = 1",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three steps in each of the threads t and other."""
    path = tmp_path / "store.db"
    store = SQLiteStore(path).blocking
    for thread_id in ("t", "other"):
        for _ in range(3):
            run_to_end(store.commit(follow(thread_id, thread_id)))
    run_to_end(store.close())
    return path


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("look", LOOKS)
def test_what_a_thread_has_lost_is_told_and_harms_no_other(path: Path, loss: str, look: str) -> None:
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        connection.execute(LOSSES[loss])
    store = SQLiteStore(path).blocking
    if (look, loss) != ("threads", "the namespace"):  # the order of threads is in the namespaces
        with pytest.raises(CheckpointCorrupted) as caught:
            run_to_end(LOOKS[look](store))
        assert caught.value.thread_id == "t"
    other = run_to_end(store.read("other"))
    assert other is not None
    assert other.stored.record.step == 3
    assert run_to_end(store.thread("other")) is not None
    assert ids(run_to_end(store.list_threads(1, 0))) == ["other-3"]
    assert run_to_end(store.commit(follow("other", "other"))) is not None
    run_to_end(store.delete("t"))
    assert run_to_end(store.read("t")) is None
    assert ids(run_to_end(store.list_threads(10, 0))) == ["other-4"]
    run_to_end(store.close())


def answers(path: Path) -> dict[str, Any]:
    """Return what can be read of two threads, or the error of ours in its place."""
    found: dict[str, Any] = {}
    store = SQLiteStore(path)
    backend = everstep.StoreBackend(store).sync

    def ask(question: str, call: Callable[[], Any]) -> None:
        try:
            found[question] = call()
        except everstep.EverstepError as exc:
            found[question] = exc

    ask("threads", lambda: whole_page(backend))
    for thread_id in ("old", "short"):
        ask(f"latest {thread_id}", lambda t=thread_id: backend.get_latest(t))  # type: ignore[misc]
        ask(f"head {thread_id}", lambda t=thread_id: run_to_end(store.blocking.read(t)))  # type: ignore[misc]
        ask(f"thread {thread_id}", lambda t=thread_id: run_to_end(store.blocking.thread(t)))  # type: ignore[misc]
        ask(f"commit {thread_id}", lambda t=thread_id: next_step(store, t))  # type: ignore[misc]
    backend.close()
    return found


def whole_page(backend: Any) -> Any:
    """Return a page of threads, or raise what is wrong with those that it names as damaged."""
    page = backend.list_threads(100)
    for thread in page.damaged:
        raise everstep.CheckpointCorrupted(thread.reason, thread_id=thread.thread_id)
    return page


def next_step(store: SQLiteStore, thread_id: str) -> int | None:
    """Return the step at which the thread would go on; nothing is kept."""
    seen: list[int | None] = []

    def build(head: Any) -> Any:
        seen.append(head.record.step if head is not None else None)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_to_end(store.blocking.commit(follow(thread_id, "x")._replace(build=build)))
    return seen[0]


def test_a_page_of_an_earlier_time_is_never_a_shorter_thread(tmp_path: Path) -> None:
    """Each page in turn is put back to what it was before the last steps, as after a lost write."""
    path = tmp_path / "store.db"
    keep_all = everstep.SnapshotConfig(gc_policy="keep_all")

    def work(steps: int) -> None:
        with everstep.open(f"sqlite:///{path}", keep_all).sync as engine:
            for n in range(steps):
                engine.append("old", [{"content": f"message {n} " * 20}], {"n": n})
                if n % 5 == 0:
                    engine.append("short", [{"content": f"message {n}"}])

    work(30)
    before = path.read_bytes()
    work(30)
    after, truth = path.read_bytes(), answers(path)
    assert not any(isinstance(answer, Exception) for answer in truth.values())
    loud = 0
    for at in range(PAGE_BYTES, len(before), PAGE_BYTES):
        if before[at : at + PAGE_BYTES] != after[at : at + PAGE_BYTES]:
            path.write_bytes(after[:at] + before[at : at + PAGE_BYTES] + after[at + PAGE_BYTES :])
            found = answers(path)
            wrong = [q for q, a in found.items() if not isinstance(a, Exception) and a != truth[q]]
            assert wrong == [], f"page {at // PAGE_BYTES + 1}"
            loud += any(isinstance(answer, Exception) for answer in found.values())
    assert loud >= 3


def test_a_moved_head_is_older_than_what_followed_it(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        steps = [engine.append("u", [{"content": str(n)}]) for n in range(5)]
        engine.rewind(steps[1], later="keep")
        latest = engine.get_latest("u")
        assert latest is not None
        assert latest.metadata.step == 2
    store = SQLiteStore(path).blocking
    assert len(run_to_end(store.list_checkpoints(Query(thread_id="u")))) == 5
    run_to_end(store.close())
