"""For the tests of stores that lose single rows or keys: a thread with everything, and what must be true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from everstep import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Hidden, Key, Move, Operation, Pin, Query, Root, SharedState, Store, Write
from everstep.testing import follow, make_object, make_record, put

WRITE = Write("task", 0, "channel", b"", b"value", 5)


class Site(Protocol):
    """Where a store is, which can be put back as it was."""

    def open(self) -> Any:
        """Return a store that has seen nothing."""
        ...

    def put_back(self) -> None: ...


def go(coroutine: Any) -> Any:
    return run_to_end(coroutine)


def fill(store: Any) -> None:
    """Make a thread with everything there is, a branch of it, and two others that have nothing to do with them."""
    leaf = make_object(b"leaf")
    for name in ("t", "before", "after"):
        first = make_record(f"{name}-1", name, roots=[leaf])
        go(store.commit(put(first, leaf)))
        for n in (2, 3):
            go(store.commit(put(make_record(f"{name}-{n}", name, roots=[leaf], step=n), leaf)))
    second, third = (go(store.read("t", "", name)).stored.seq for name in ("t-2", "t-3"))
    rewind = Change("t", moves=[Move("", "t-2")], hide=[Hidden("", second, third)], log=Operation("rewind", {}))
    go(store.commit(rewind))
    go(store.commit(put(make_record("t-4", "t", roots=[leaf], step=3, parents=["t-2"]), leaf)))
    go(store.commit(put(make_record("n-1", "t", "ns"))))
    origin = Key("t", "", "t-2")
    common = SharedState(go(store.read(*origin)).stored.place, Root(b"", b"", ()))
    go(store.commit(put(make_record("b-1", "branch"), origin=origin, shared_states={"t": common})))
    go(store.commit(Change("t", pins=[Pin(origin, True)], log=Operation("pin", {}))))
    go(store.put_writes(Key("t", "", "t-4"), [WRITE], ()))


LOOKS: dict[str, Callable[[Any], Any]] = {
    "head": lambda store: store.read("t", objects=True, writes=True),
    "head of a namespace": lambda store: store.read("t", "ns"),
    "many": lambda store: store.read_many([Key("t", "", f"t-{n}") for n in (1, 2, 3, 4)]),
    "list": lambda store: store.list_checkpoints(Query(thread_id="t", namespace=None)),
    "list of all": lambda store: store.list_checkpoints(Query(thread_id="t", namespace=None, hidden="also")),
    "page": lambda store: store.list_checkpoints(Query(thread_id="t", limit=2)),
    "count": lambda store: store.count(Query(thread_id="t", namespace=None)),
    "thread": lambda store: store.thread("t", branches=True, ancestry=True),
    "operations": lambda store: store.operations("t", 10),
    "logs": lambda store: store.logs(["before", "t", "branch", "absent"], 10),
    "origins": lambda store: store.origins("t"),
    "raw": lambda store: store.raw("t"),
    "first checkpoint": lambda store: store.read("t", "", "t-1"),
    "pinned checkpoint": lambda store: store.read("t", "", "t-2"),
    "hidden checkpoint": lambda store: store.read("t", "", "t-3"),
}
THE_SAME: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("after", objects=True),
    "list": lambda store: store.list_checkpoints(Query(thread_id="before")),
    "thread": lambda store: store.thread("before", branches=True, ancestry=True),
    "raw": lambda store: store.raw("after", family_threads=True),
    "first": lambda store: store.list_threads(1, 0),
}


def view(store: Any, looks: dict[str, Callable[[Store], Any]]) -> dict[str, Any]:
    """Return what each look gives, and for those that fail the error."""
    found: dict[str, Any] = {}
    for name, look in looks.items():
        try:
            found[name] = go(look(store))
        except CheckpointCorrupted as exc:
            found[name] = exc
    return found


def check_append(site: Site, what: Any, *, is_damaged: bool) -> None:
    """A commit goes on exactly where the thread ended, or tells."""
    try:
        stored = go(site.open().commit(follow("t", "more")))
    except CheckpointCorrupted:
        if not is_damaged:
            raise
        return
    assert stored.record.step == 4, what
    assert stored.record.parents == (Key("t", "", "t-4"),), what


def check_listing(site: Site, what: Any) -> None:
    """The damaged thread is on its page as it was, or makes that page fail; it is never left out."""
    fresh = site.open()
    names: set[str | None] = set()
    for offset in range(4):
        try:
            page = go(fresh.list_threads(1, offset))
            names |= {stored.record.key.thread_id for stored in page}
        except CheckpointCorrupted as exc:
            names.add(exc.thread_id)
    assert names == {"t", "branch", "before", "after"}, what


ALL_OF_THEM: dict[str, Callable[[Store], Any]] = {
    "list": lambda store: store.list_checkpoints(Query(namespace=None, hidden="also")),
    "page": lambda store: store.list_checkpoints(Query(namespace=None, hidden="also", limit=100)),
    "one namespace": lambda store: store.list_checkpoints(Query(namespace="")),
    "page of one namespace": lambda store: store.list_checkpoints(Query(namespace="", limit=100)),
    "by id": lambda store: store.list_checkpoints(Query(namespace=None, checkpoint_id="t-2")),
    "find": lambda store: store.find("t-2"),
}
"""What is asked of all threads at once."""


def check_delete(site: Site, what: Any) -> None:
    """A damaged thread can be deleted, and begun anew."""
    fresh = site.open()
    go(fresh.delete("t"))
    assert go(fresh.read("t")) is None, what
    assert go(fresh.list_checkpoints(Query(thread_id="t", namespace=None, hidden="also"))) == [], what
    assert go(fresh.commit(follow("t", "anew"))).record.step == 1, what
    assert go(fresh.read("before")).stored.record.step == 3, what
