"""Kill -9 during rewind, undo, branch, merge, retention and collection, round after round on one SQLite file.

    python kill_history.py PATH ROUNDS SEED [PLANT]

In each round four processes work at once and are killed together:

* the traveller is alone on the thread "tale" and its branches. What it did is followed by a model (`Tale`), so after a
  kill everything about these threads is known: the operation under way is there as a whole or not at all.
* the writer saves to "shared" and to a branch of it, with retention in every commit, and makes and deletes threads.
* the changer rewinds, undoes, branches and merges "shared" under the writer's hands.
* the collector applies retention to everything and sweeps.

One of them is the victim. It kills itself at a random one of the calls that an operation of the chosen kind consists
of, or is killed a random moment after it said that it begins one; the others die wherever they are just then. Then a
new engine looks at the file. PLANT makes something be lost, which must be noticed: see PLANTS.
"""

from __future__ import annotations

import copy
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

import everstep
from everstep import CannotUndo, CheckpointNotFound, MergeConflict, SnapshotConfig
from everstep.engine import SyncEngine
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query, Stored
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.values.tree import hashes

KEEP = 6
"""The N of KEEP_LAST_N, for everybody: small, so that most commits prune."""
PATIENCE_SECONDS = 60
"""Nothing waits so long unless it hangs."""
TALE, SHARED = "tale", "shared"
CHANGES = ("rewind", "undo", "redo", "branch", "merge")
KINDS = (*CHANGES, "pin", "save", "delete")
AIMS = ("delete", "remove_objects", "sweep_end", "_mark")
"""Functions of the store that a collector is killed in."""
VICTIMS = (
    *(("traveller", kind, "") for kind in KINDS), ("collector", "collect", AIMS[0]), ("writer", "save", "prune"),
    *(("changer", kind, "") for kind in CHANGES), *(("collector", "collect", aim) for aim in AIMS[1:]),
    ("writer", "save", ""),
)  # fmt: skip
PLANTS = {
    "early": "children say that a call is done before they make it",
    "object": "an object that a checkpoint needs is deleted",
    "checkpoint": "the newest checkpoint of a thread is deleted, and the head falls back",
    "entry": "the newest entry of a log is deleted",
    "hidden": "what an operation hid is shown again",
    "head": "a head is moved and nothing else",
    "unpin": "a pin is lifted",
    "garbage": "an object that nobody needs is added to a family that is not there",
}


def config() -> SnapshotConfig:
    return SnapshotConfig(gc_policy="keep_last_n", gc_param=KEEP)


# -- what was done to "tale", as it should be stored -------------------------------------------------------------------


def message(thread_id: str, n: int) -> dict[str, Any]:
    return {"id": f"{thread_id} {n}", "role": "user", "content": f"{thread_id} says {n}. " * (1 + n % 30)}


@dataclass(frozen=True)
class Item:
    """A checkpoint as it must read back."""

    thread_id: str
    step: int
    parents: tuple[str, ...]
    messages: tuple[dict[str, Any], ...]
    state: dict[str, Any]
    """The results of tools are the same."""


@dataclass
class Line:
    """A thread: everything that was ever in it, what of it is visible, and where it began."""

    all: list[str] = field(default_factory=list)
    visible: tuple[str, ...] = ()
    head: str | None = None
    origin: str | None = None


@dataclass(eq=False)
class Entry:
    """An operation. Undo and redo put the thread back to `other`, and keep there what was until then."""

    id: int
    kind: str
    key: str
    """The checkpoint or the branch it is about."""
    made_at: str
    after: Entry | None
    thread_id: str
    other: tuple[tuple[str, ...], str | None] = ((), None)
    undone: bool = False


@dataclass
class Log:
    entries: list[Entry] = field(default_factory=list)

    def top(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if not entry.undone), None)

    def to_redo(self) -> Entry | None:
        top = self.top()
        return next((e for e in reversed(self.entries) if e.undone and self._known(e.after) is top), None)

    def _known(self, entry: Entry | None) -> Entry | None:
        return entry if any(entry is known for known in self.entries) else None

    def push(self, op: int, kind: str, key: str, made_at: str, thread_id: str) -> Entry:
        entry = Entry(op, kind, key, made_at, self.top(), thread_id)
        self.entries.append(entry)
        return entry

    def shown(self) -> list[list[Any]]:
        return [[e.id, e.kind, e.key, e.undone] for e in self.entries]


@dataclass
class Tale:
    """What must be stored of the traveller's threads."""

    items: dict[str, Item] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=lambda: {TALE: Line()})
    log: Log = field(default_factory=Log)
    pins: set[str] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)
    """Checkpoints that were once not among the newest N, visible or hidden: retention may have taken them."""
    n: int = 0
    _op: int = 0

    def apply(self, kind: str, args: list[Any], result: Any, op: int = 0) -> None:
        """Do to the model what an operation did to the store; `op` is its number in the log."""
        self._op = op
        getattr(self, f"_{kind}")(*args, result)
        self._age()

    def protected(self) -> set[str]:
        return self.pins | {line.origin for line in self.lines.values() if line.origin is not None}

    def may_be_trimmed(self, entry: Entry) -> bool:
        """Whether all that there was at the time of an operation, and of those before, may be gone: then it may too."""
        entries, known = self.log.entries, self.lines[TALE].all
        last = max(known.index(e.made_at) for e in entries[: entries.index(entry) + 1])
        return all(i in self.may_go and i not in self.protected() for i in known[: last + 1])

    def merged(self, ours: str, theirs: str) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
        """Return the values of a merge: a branch only adds messages and sets a key of its own."""
        one, two = self.items[ours], self.items[theirs]
        origin = self.lines[two.thread_id].origin
        old = self.items[origin].messages if origin is not None else ()
        new = tuple(m for m in two.messages if m not in old)
        mine = f"at {two.thread_id}"
        return one.messages + new, one.state | ({mine: two.state[mine]} if mine in two.state else {})

    def ancestors(self, checkpoint_id: str) -> set[str]:
        found, pending = set[str](), [checkpoint_id]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self.items[name].parents
        return found

    def unmerged(self) -> list[str]:
        """Return the branches that began on the present line, have something to give and were not merged into it."""
        head = self.lines[TALE].head
        known = self.ancestors(head) if head is not None else set[str]()
        merged = {self.items[i].thread_id for i in known}
        return [
            name
            for name, line in self.lines.items()
            if line.origin in known and line.head is not None and len(line.visible) > 1 and name not in merged
        ]

    # -- operations

    def _save(self, thread_id: str, n: int, how: str, made: str) -> None:
        line = self.lines[thread_id]
        old = self.items[line.head] if line.head is not None else None
        messages = old.messages if old is not None and how != "fresh" else ()
        state = old.state if old is not None and how != "fresh" else {}
        self._add(thread_id, made, (*messages, message(thread_id, n)), {**state, f"at {thread_id}": n})
        self.n = max(self.n, n)

    def _add(
        self, thread_id: str, made: str, messages: tuple[dict[str, Any], ...], state: dict[str, Any], *parents: str
    ) -> None:
        line = self.lines[thread_id]
        step = self.items[line.head].step + 1 if line.head is not None else 1
        before = (line.head,) if line.head is not None else ()
        self.items[made] = Item(thread_id, step, (*before, *parents), messages, state)
        line.all.append(made)
        line.visible, line.head = (*line.visible, made), made

    def _rewind(self, target: str, result: Any) -> None:
        line = self.lines[TALE]
        if result == "refused":
            if target not in self.may_go - self.protected():
                raise AssertionError(f"rewind to {target} was refused")
            return
        entry = self.log.push(self._op, "rewind", target, line.all[-1], TALE)
        entry.other = line.visible, line.head
        line.visible = line.visible[: line.visible.index(target) + 1]
        line.head = target

    def _undo(self, result: Any) -> None:
        for entry in [e for e in reversed(self.log.entries) if not e.undone]:
            if result == "refused" and self._is_final(entry):
                return
            if result in (None, entry.id):
                self._swap(entry)
                return
            if not self.may_be_trimmed(entry):
                raise AssertionError(f"undo gave {result}, though {entry.kind} {entry.key} could be undone")
            if result != "refused":
                self.log.entries.remove(entry)
        if result != "refused":
            raise AssertionError(f"{result} was undone, which was not there to undo")

    def _redo(self, result: Any) -> None:
        entry = self.log.to_redo()
        if result == "refused":
            if entry is not None and not self._is_final(entry) and not self._may_be_cut():
                raise AssertionError(f"redo of {entry.kind} {entry.key} was refused")
            return
        if entry is None or result not in (None, entry.id):
            entry = next((e for e in self.log.entries if e.id == result and e.undone and self._may_be_cut()), None)
        if entry is None:
            raise AssertionError(f"{result} was redone, which was not there to redo")
        self._swap(entry)

    def _swap(self, entry: Entry) -> None:
        entry.undone = not entry.undone
        if entry.kind in ("pin", "unpin"):
            self.pins ^= {entry.key}
            return
        line = self.lines[entry.thread_id]
        entry.other, line.visible, line.head = (line.visible, line.head), *entry.other

    def _is_final(self, entry: Entry) -> bool:
        """Whether what it takes to undo or redo an operation may be gone."""
        if entry.thread_id not in self.lines:
            return True
        needed = entry.key if entry.kind in ("pin", "unpin") else entry.other[1]
        return needed in self.may_go - self.protected()

    def _may_be_cut(self) -> bool:
        """Whether the log may have lost entries, on which others stand."""
        return any(self.may_be_trimmed(entry) for entry in self.log.entries)

    def _branch(self, source: str, _name: str, result: Any) -> None:
        if result == "refused":
            if source not in self.may_go - self.protected():
                raise AssertionError(f"branch from {source} was refused")
            return
        thread_id, first = result
        origin = self.items[source]
        self.items[first] = Item(thread_id, 0, (source,), origin.messages, origin.state)
        self.lines[thread_id] = Line([first], (first,), first, source)
        self.log.push(self._op, "branch", thread_id, source, thread_id)

    def _merge(self, branch: str, made: str) -> None:
        line, theirs = self.lines[TALE], self.lines[branch].head
        if line.head is None or theirs is None:
            raise AssertionError("nothing to merge")
        values, before, newest = self.merged(line.head, theirs), (line.visible, line.head), line.all[-1]
        self._add(TALE, made, *values, theirs)
        self.log.push(self._op, "merge", made, newest, TALE).other = before

    def _pin(self, target: str, result: Any) -> None:
        if result == "refused":
            if target not in self.may_go - self.protected():
                raise AssertionError(f"pinning {target} was refused")
            return
        self.log.push(self._op, "unpin" if target in self.pins else "pin", target, target, TALE)
        self.pins ^= {target}

    def _delete(self, branch: str, _result: Any) -> None:
        del self.lines[branch]

    def _age(self) -> None:
        protected = self.protected()
        for line in self.lines.values():
            shown = set(line.visible)
            for kin in ([i for i in line.all if i in shown], [i for i in line.all if i not in shown]):
                self.may_go |= set([i for i in kin if i not in protected][:-KEEP])

    def trim(self, log: list[list[Any]]) -> None:
        """Take off what the log has lost and may have."""
        held = {entry[0] for entry in log}
        self.log.entries = [e for e in self.log.entries if e.id in held or not self.may_be_trimmed(e)]


# -- the children ------------------------------------------------------------------------------------------------------


class Pipe:
    """Tells the parent what begins and what is done, and kills this process in the middle of a chosen operation."""

    def __init__(self, into: int, rng: random.Random, fatal: str | None, aim: str, early: bool) -> None:
        """`fatal` is the kind of operation to be killed in, `aim` the function in it ("": anywhere)."""
        self._into, self._rng, self._fatal, self._aim, self._early = into, rng, fatal, aim, early
        self._calls = self._until = self._usual = 0
        self._aimed = False

    def tell(self, *what: Any) -> None:
        os.write(self._into, json.dumps([*what, time.monotonic()]).encode() + b"\n")

    def do(self, kind: str, args: list[Any], call: Callable[[], Any]) -> Any:
        """Make the call, which returns its result and its number in the log, and say so before and after."""
        self.tell("begin", kind, args)
        if self._early:
            self.tell("end", kind, args, ["lost", "lost"] if kind == "branch" else "lost", 10**9)
        result = self._watched(call) if kind == self._fatal else call()
        if not self._early:
            self.tell("end", kind, args, *result)
        return result

    def _watched(self, call: Callable[[], Any]) -> Any:
        """Make a call and die in it: at one of as many inner calls as the last one had, or soon after the aim."""
        self._calls, self._aimed = 0, not self._aim
        usual = 10 if self._aim else self._usual
        self._until = 1 + self._rng.randrange(usual) if usual else 0
        sys.setprofile(self._count)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self._usual = self._calls

    def _count(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self._aimed = self._aimed or frame.f_code.co_name == self._aim
        self._calls += self._aimed
        if self._calls == self._until:
            self.tell("killed", self._aim or frame.f_code.co_name)
            os.kill(os.getpid(), signal.SIGKILL)


def or_refused(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (CannotUndo, CheckpointNotFound, MergeConflict):
        return "refused"


class Traveller:
    """Works on "tale" alone, keeping the model as it goes."""

    def __init__(self, path: str, pipe: Pipe, rng: random.Random, tale: Tale) -> None:
        self._engine = everstep.open(f"sqlite:///{path}", config()).sync
        self._pipe, self._rng, self._tale = pipe, rng, tale

    def run(self, favourite: str | None) -> None:
        kinds = [*KINDS, "save", "save", "save", *([favourite] * 6 if favourite in KINDS else [])]
        while True:
            kind = self._rng.choice(kinds)
            getattr(self, f"_{kind}")()

    def _do(self, kind: str, args: list[Any], call: Callable[[], Any]) -> None:
        self._tale.apply(kind, args, *self._pipe.do(kind, args, lambda: logged(self._engine, TALE, kind, call)))

    def _save(self) -> None:
        tale, rng, engine = self._tale, self._rng, self._engine
        thread_id = rng.choice([name for name, line in tale.lines.items() if line.head is not None or name == TALE])
        line, n = tale.lines[thread_id], tale.n + 1
        old = tale.items[line.head] if line.head is not None else None
        how = rng.choice(["append", "snapshot"])
        if len(tale.lines) == 1 and (old is None or len(old.messages) > 40):
            how = "fresh"
        new, state = message(thread_id, n), {f"at {thread_id}": n}
        if how == "append":
            self._do("save", [thread_id, n, how], lambda: engine.append(thread_id, [new], state, state))
            return
        kept = old if old is not None and how != "fresh" else None
        messages = [*(kept.messages if kept is not None else ()), new]
        state = {**(kept.state if kept is not None else {}), **state}
        self._do("save", [thread_id, n, how], lambda: engine.snapshot(thread_id, messages, state, state))

    def _some(self) -> str | None:
        """Return a visible checkpoint of "tale" that is not the head: most often one that must be there."""
        before = self._tale.lines[TALE].visible[:-1]
        recent = before[-KEEP + 1 :] if self._rng.random() < 0.8 else before
        return self._rng.choice(recent) if recent else None

    def _rewind(self) -> None:
        if (target := self._some()) is not None:
            self._do("rewind", [target], lambda: or_refused(lambda: bool(self._engine.rewind(target))))

    def _undo(self) -> None:
        self._do("undo", [], lambda: or_refused(lambda: self._engine.undo(TALE).id))

    def _redo(self) -> None:
        if self._tale.log.to_redo() is None:
            self._undo()
        self._do("redo", [], lambda: or_refused(lambda: self._engine.redo(TALE).id))

    def _branch(self) -> None:
        if len(self._tale.lines) > 4:
            self._delete()
        if (source := self._some()) is None:
            return
        name = f"b{self._rng.randrange(10**9)}"

        def branch() -> Any:
            thread_id = self._engine.branch(source, name)
            return [thread_id, self._engine.list_time_travel_points(thread_id)[-1].checkpoint_id]

        self._do("branch", [source, name], lambda: or_refused(branch))

    def _merge(self) -> None:
        ready = self._tale.unmerged()
        if ready:
            branch = self._rng.choice(ready)
            self._do("merge", [branch], lambda: self._engine.merge_branch(branch, TALE))
            return
        self._branch()
        idle = [name for name, line in self._tale.lines.items() if name != TALE and len(line.visible) == 1]
        for name in idle[-1:]:
            n = self._tale.n + 1
            call = lambda: self._engine.append(name, [message(name, n)], {f"at {name}": n}, {f"at {name}": n})  # noqa: B023, E731
            self._do("save", [name, n, "append"], call)

    def _pin(self) -> None:
        pins = self._tale.pins
        target = self._rng.choice(sorted(pins)) if len(pins) > 2 else self._some()
        if target is not None:
            change = self._engine.unpin if target in pins else self._engine.pin
            self._do("pin", [target], lambda: or_refused(lambda: change(target)))

    def _delete(self) -> None:
        branches = [name for name in self._tale.lines if name != TALE]
        if branches:
            name = self._rng.choice(branches)
            self._do("delete", [name], lambda: self._engine.checkpointer.delete_thread(name))


LOGGED = ("rewind", "branch", "merge", "pin")


def logged(engine: SyncEngine, thread_id: str, kind: str, call: Callable[[], Any]) -> list[Any]:
    """Return what the call returns, and the number it has in the log if it has one."""
    result = call()
    return [result, engine.operations(thread_id, 1)[0].id if kind in LOGGED and result != "refused" else 0]


def shared_values(thread_id: str, n: int) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Return what the writer saves under that number: a stretch of messages that moves on, and some state."""
    messages = [message(thread_id, i) for i in range(max(n - 12, 0), n)]
    return messages, {"n": n, "text": f"{thread_id} {n} " * 20}, {"square": n * n}


class Writer:
    """Saves to a thread and its branch; now and then makes and deletes a thread of its own."""

    def __init__(self, path: str, pipe: Pipe, rng: random.Random, threads: list[str], n: int) -> None:
        self._engine = everstep.open(f"sqlite:///{path}", config()).sync
        self._pipe, self._rng, self._threads, self._n = pipe, rng, threads, n

    def run(self, _favourite: str | None) -> None:
        while True:
            self._n += 1
            n, thread_id = self._n, self._rng.choice(self._threads)
            values = shared_values(thread_id, n)
            call = lambda: [self._engine.snapshot(thread_id, *values, tags=[f"n={n}"]), 0]  # noqa: B023, E731
            self._pipe.do("save", [thread_id, n], call)
            if n % 7 == 0:
                self._engine.snapshot(f"scrap {n}", *shared_values("scrap", n))
                self._engine.checkpointer.delete_thread(f"scrap {n}")


class Changer:
    """Changes the history of "shared" while others write it."""

    def __init__(self, path: str, pipe: Pipe, rng: random.Random, beside: str) -> None:
        self._engine = everstep.open(f"sqlite:///{path}", config()).sync
        self._pipe, self._rng, self._beside = pipe, rng, beside
        self._branches: list[str] = []

    def run(self, favourite: str | None) -> None:
        kinds = ["rewind", "undo", "redo", "branch", "merge", *([favourite] * 4 if favourite else [])]
        while True:
            getattr(self, f"_{self._rng.choice(kinds)}")()

    def _do(self, kind: str, args: list[Any], call: Callable[[], Any]) -> Any:
        call_refused = lambda: or_refused(call)  # noqa: E731
        return self._pipe.do(kind, args, lambda: logged(self._engine, SHARED, kind, call_refused))[0]

    def _some(self) -> str | None:
        points = self._engine.list_time_travel_points(SHARED, KEEP)[1:]
        return self._rng.choice(points).checkpoint_id if points else None

    def _rewind(self) -> None:
        if (target := self._some()) is not None:
            self._do("rewind", [target], lambda: bool(self._engine.rewind(target)))

    def _undo(self) -> None:
        done = (operation for operation in self._engine.operations(SHARED, 100) if not operation.undone)
        if (last := next(done, None)) is None or last.details.get(
            "thread_id"
        ) != self._beside:  # that one is written to
            self._do("undo", [], lambda: self._engine.undo(SHARED).id)

    def _redo(self) -> None:
        if not any(operation.undone for operation in self._engine.operations(SHARED, 5)):
            self._undo()
        self._do("redo", [], lambda: self._engine.redo(SHARED).id)

    def _branch(self) -> None:
        if (source := self._some()) is not None:
            name = f"b{self._rng.randrange(10**9)}"
            made = self._do("branch", [source, name], lambda: self._engine.branch(source, name))
            if made != "refused":
                self._engine.append(made, [], {f"side {made}": made})
                self._branches.append(made)

    def _merge(self) -> None:
        while not self._branches:
            self._branch()
        branch = self._branches.pop()
        if self._engine.get_latest(branch) is not None:  # else the branch was undone
            self._do("merge", [branch], lambda: self._engine.merge_branch(branch, SHARED))
        self._do("delete", [branch], lambda: self._engine.checkpointer.delete_thread(branch))


class Collector:
    def __init__(self, path: str, pipe: Pipe) -> None:
        self._engine = everstep.open(f"sqlite:///{path}", config()).sync
        self._pipe = pipe

    def run(self, _favourite: str | None) -> None:
        while True:
            self._pipe.do("collect", [], lambda: [self._engine.collect().checkpoints, 0])


# -- one round ---------------------------------------------------------------------------------------------------------

Lines = list[list[Any]]


@dataclass
class Round:
    """What is to be killed, and what the children said."""

    number: int
    victim: str
    kind: str
    aim: str
    by_itself: bool
    said: dict[str, Lines] = field(default_factory=dict)
    place: str = ""
    """The function in which the victim killed itself."""

    def pending(self, role: str) -> list[Any] | None:
        last = self.said[role][-1:]
        return last[0] if last and last[0][0] == "begin" else None


def run_child(
    role: str, round_: Round, path: str, pipe: Pipe, rng: random.Random, tale: Tale, threads: list[str]
) -> None:
    child: Any
    if role == "traveller":
        child = Traveller(path, pipe, rng, tale)
    elif role == "writer":
        child = Writer(path, pipe, rng, threads, round_.number * 100_000)
    elif role == "changer":
        child = Changer(path, pipe, rng, threads[1])
    else:
        child = Collector(path, pipe)
    child.run(round_.kind if role == round_.victim else None)


def run_round(path: str, round_: Round, seed: int, tale: Tale, threads: list[str], early: bool) -> None:
    """Start the children, kill them, and note what they said."""
    reading: dict[int, str] = {}
    children: dict[str, int] = {}
    rng = random.Random(f"{seed} {round_.number}")
    for role in ("traveller", "writer", "changer", "collector"):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            own = random.Random(f"{seed} {round_.number} {role}")
            fatal = round_.kind if role == round_.victim and round_.by_itself else None
            pipe = Pipe(into, own, fatal, round_.aim, early)
            try:
                os.close(out)
                run_child(role, round_, path, pipe, own, tale, threads)
            except BaseException:
                pipe.tell("error", f"{role}: {traceback.format_exc()[-1500:]}")
            finally:
                os._exit(1)
        os.close(into)
        reading[out], children[role] = role, child
    data = dict.fromkeys(reading.values(), b"")
    if not _listen(round_, reading, data, rng):
        data[round_.victim] += json.dumps(["error", f"{round_.victim} hangs in {round_.kind}"]).encode() + b"\n"
    for child in children.values():
        os.kill(child, signal.SIGKILL)
    for child in children.values():
        os.waitpid(child, 0)
    for out, role in reading.items():
        while more := os.read(out, 1 << 16):
            data[role] += more
        os.close(out)
    for role, lines in data.items():
        said = [json.loads(line) for line in lines.split(b"\n")[:-1]]
        round_.said[role] = [line for line in said if line[0] != "killed"]
        round_.place = next((f"{role} {line[1]}" for line in said if line[0] == "killed"), round_.place)


def _listen(round_: Round, reading: dict[int, str], data: dict[str, bytes], rng: random.Random) -> bool:
    """Take in what the children say until the victim is dead or is to be killed; False: that never came."""
    begins, after = f'["begin", "{round_.kind}"'.encode(), 3 + rng.randrange(12)
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        for out in select.select(list(reading), [], [], 1)[0]:
            more = os.read(out, 1 << 16)
            role = reading[out]
            data[role] += more
            if not more:
                return True  # one of them is dead: the victim, or one that failed and said so
            if role != round_.victim or round_.by_itself:
                continue
            lines = data[role].split(b"\n")
            begun = [n for n, line in enumerate(lines) if line.startswith(begins)]
            if len(begun) >= after and begun[-1] >= len(lines) - 2:
                moment = time.perf_counter() + rng.uniform(0, 0.01 if round_.kind == "collect" else 0.003)
                while time.perf_counter() < moment:
                    pass
                return True
    return False


# -- looking at the file -----------------------------------------------------------------------------------------------


class Look:
    """A new engine on the file, and what it finds."""

    def __init__(self, path: str) -> None:
        self._path = path
        engine = everstep.open(f"sqlite:///{path}", config())
        self.engine = engine.sync
        self._store: Any = engine.checkpointer.blocking.store  # type: ignore[attr-defined]

    def stored(self, thread_id: str) -> list[Stored]:
        """Return every checkpoint of a thread, hidden or not, oldest first."""
        found: list[Stored] = run_to_end(
            self._store.list_checkpoints(Query(thread_id=thread_id, hidden="also", order="oldest"))
        )
        return found

    def protected(self, thread_id: str) -> frozenset[int]:
        thread = run_to_end(self._store.thread(thread_id))
        return thread.protected if thread is not None else frozenset()

    def branches(self, thread_id: str) -> list[str]:
        thread = run_to_end(self._store.thread(thread_id, branches=True))
        return list(thread.branches) if thread is not None else []

    def visible(self, thread_id: str) -> list[str]:
        points = self.engine.list_time_travel_points(thread_id, 100_000)
        return [point.checkpoint_id for point in reversed(points)]

    def head(self, thread_id: str) -> str | None:
        found = self.engine.get_latest(thread_id)
        return found.metadata.checkpoint_id if found is not None else None

    def log(self, thread_id: str) -> list[list[Any]]:
        """Return the operations, oldest first, as `Log.shown` does."""
        return [
            [o.id, o.kind, o.details["thread_id" if o.kind == "branch" else "checkpoint_id"], o.undone]
            for o in reversed(self.engine.operations(thread_id, 5000))
        ]

    def threads(self) -> list[str]:
        return [head.record.key.thread_id for head in run_to_end(self._store.list_threads(10_000, 0, headless=True))]

    def file_faults(self) -> list[str]:
        """Return what is wrong with the file itself: pages, and objects that are missing or that nobody needs."""
        connection = apsw.Connection(self._path, vfs=sqlite_connecting.checksum_vfs())
        faults = []
        if (verdict := connection.pragma("integrity_check")) != "ok":
            faults.append(f"integrity_check: {verdict}")
        objects: dict[int, dict[bytes, bytes]] = {}
        for family, key, children in connection.execute("SELECT family, hash, children FROM objects"):
            objects.setdefault(family, {})[key] = children
        needed: dict[int, set[bytes]] = {}
        roots = connection.execute(
            """SELECT t.family, c.children FROM checkpoints c JOIN lines l ON l.id = c.line
               JOIN threads t ON t.id = l.thread
               UNION ALL SELECT t.family, c.children FROM shared_states c JOIN threads t ON t.id = c.low"""
        )
        for family, children in roots:
            needed.setdefault(family, set()).update(hashes(children))
        for family in objects.keys() | needed.keys():
            held, met = objects.get(family, {}), needed.get(family, set())
            pending = list(met)
            while pending:
                fresh = set(hashes(held.get(pending.pop(), b""))) - met
                met |= fresh
                pending += fresh
            if missing := len(met - held.keys()):
                faults.append(f"family {family}: {missing} objects are missing")
            if left := len(held.keys() - met):
                faults.append(f"family {family}: {left} objects are left that nobody needs")
        connection.close()
        return faults


def tale_faults(look: Look, tale: Tale) -> list[str]:
    """Return where the store is not what the model says."""
    faults: list[str] = []
    alive = {name for name in look.threads() if name.startswith(TALE)}
    expected = {name for name, line in tale.lines.items() if line.all}
    if alive != expected:
        return [f"threads {sorted(alive ^ expected)} are there, or not, against what was done"]
    protected = tale.protected()
    for name in expected:
        line, stored = tale.lines[name], look.stored(name)
        ids = [s.record.key.checkpoint_id for s in stored]
        held = set(ids)
        if ids != [i for i in line.all if i in held]:
            faults.append(f"{name} holds something unknown, or in another order: {ids} against {line.all}")
            continue
        lost = [i for i in line.all if i not in held and (i not in tale.may_go or i in protected)]
        faults += [f"{name} has lost {i}" for i in lost]
        if look.head(name) != line.head:
            faults.append(f"{name}: the head is {look.head(name)}, not {line.head}")
        if look.visible(name) != [i for i in line.visible if i in held]:
            faults.append(f"{name}: visible are {look.visible(name)}, not {line.visible}")
        for found in stored:
            faults += item_faults(look, found, tale)
    faults += log_faults(look.log(TALE), tale.log)
    return faults


def item_faults(look: Look, stored: Stored, tale: Tale) -> list[str]:
    thread_id, namespace, name = stored.record.key
    item = tale.items[name]
    found = look.engine.get(name, thread_id=thread_id, namespace=namespace)
    if found is None:
        return [f"{thread_id}: {name} is listed but not there"]
    faults = []
    if (stored.record.step, tuple(p.checkpoint_id for p in stored.record.parents)) != (item.step, item.parents):
        faults.append(f"{thread_id}: {name} has step {stored.record.step} and parents {stored.record.parents}")
    if (found.messages, found.state, found.tools_result) != (list(item.messages), item.state, item.state):
        kept = f"{[m['id'] for m in found.messages]} {found.state} {found.tools_result}"
        faults.append(f"{thread_id}: {name} holds {kept}, not {[m['id'] for m in item.messages]} {item.state}")
    if stored.pinned != (name in tale.pins):
        faults.append(f"{thread_id}: {name} is {'' if stored.pinned else 'not '}pinned")
    return faults


def log_faults(found: list[list[Any]], log: Log) -> list[str]:
    if found == log.shown():
        return []
    more, fewer = [e for e in found if e not in log.shown()], [e for e in log.shown() if e not in found]
    return [f"in the log are {more}, not {fewer}"]


def follow(look: Look, tale: Tale, said: Lines) -> tuple[Tale, list[str], str]:
    """Return the model after what the traveller said, what is wrong, and what became of the operation under way."""
    log = look.log(TALE)
    for what, *rest in said:
        if what == "end":
            try:
                tale.apply(*rest[:4])
            except (AssertionError, LookupError, ValueError) as exc:
                return tale, [f"{rest[0]} {rest[1]} -> {rest[2]}: {exc!r}"], ""
    tale.trim(log)
    without = tale_faults(look, tale)
    if not said or said[-1][0] != "begin":
        return tale, without, ""
    if not without:
        return tale, [], "not done"
    _, kind, args, _ = said[-1]
    after = copy.deepcopy(tale)
    try:
        after.apply(kind, args, _result(look, tale, kind, args), log[-1][0] if log else 0)
    except (AssertionError, LookupError, ValueError, StopIteration) as exc:
        return tale, [f"{kind} {args} is not there as a whole, nor not at all: {without}; {exc!r}"], ""
    after.trim(log)
    with_it = tale_faults(look, after)
    if with_it:
        return tale, [f"{kind} {args} is not there as a whole: {with_it}; nor not at all: {without}"], ""
    return after, [], "done"


def _result(look: Look, tale: Tale, kind: str, args: list[Any]) -> Any:
    """Return what an operation would have returned, had it been allowed to."""
    if kind == "branch":
        thread_id = next(name for name in look.branches(TALE) if name.startswith(f"{TALE}-branch-{args[1]}-"))
        return [thread_id, look.visible(thread_id)[0]]
    if kind in ("save", "merge"):
        thread_id = args[0] if kind == "save" else TALE
        head = look.head(thread_id)
        if head is None or head in tale.items:
            raise LookupError("there is no new head")
        return head
    return None


def there_and_back_faults(look: Look, tale: Tale) -> tuple[Tale, list[str]]:
    """Undo and redo must work on what was left, and come back to where they began."""
    before = {name: (look.visible(name), look.head(name)) for name in tale.lines}
    log = look.log(TALE)
    undone = or_refused(lambda: look.engine.undo(TALE).id)
    try:
        tale.apply("undo", [], undone)
    except AssertionError as exc:
        return tale, [f"undo after the kill: {exc}"]
    faults = tale_faults(look, tale)
    if undone != "refused":
        tale.apply("redo", [], look.engine.redo(TALE).id)
        after = {name: (look.visible(name), look.head(name)) for name in tale.lines}
        if before != after or log != look.log(TALE):
            faults.append(f"undo and redo lead to {after}, not back to {before}")
    return tale, faults


def shared_faults(look: Look, round_: Round, threads: list[str]) -> list[str]:
    """Return what is wrong with the threads that several processes worked on."""
    faults: list[str] = []
    for thread_id in (*threads, *look.branches(SHARED)):
        stored = look.stored(thread_id)
        held = {s.record.key.checkpoint_id: s for s in stored}
        visible, head = look.visible(thread_id), look.head(thread_id)
        if (visible[-1] if visible else None) != head:
            faults.append(f"{thread_id}: the head is {head}, visible are {visible}")
        before = None
        for name in visible:  # oldest first: each follows the one before, unless retention has cut between them
            parent = held[name].record.parents[0].checkpoint_id if held[name].record.parents else None
            if parent != before and parent in held:
                faults.append(f"{thread_id}: {name} follows {parent}, which is hidden or elsewhere, not {before}")
            before = name
        for found in stored:
            faults += shared_item_faults(look, found, held)
    faults += recent_faults(look, round_, threads)
    log = {key for _, _, key, _ in look.log(SHARED)}
    merges = [s.record.key.checkpoint_id for s in look.stored(SHARED)[1:] if "merge" in s.record.tags]
    faults += [f"{SHARED}: {name} is not in the log" for name in (*merges, *look.branches(SHARED)) if name not in log]
    return faults


def shared_item_faults(look: Look, stored: Stored, held: dict[str, Stored]) -> list[str]:
    thread_id, namespace, name = stored.record.key
    found = look.engine.get(name, thread_id=thread_id, namespace=namespace)
    if found is None:
        return [f"{thread_id}: {name} is listed but not there"]
    number = next((int(tag[2:]) for tag in stored.record.tags if tag.startswith("n=")), None)
    if number is not None and (found.messages, found.state, found.tools_result) != shared_values(thread_id, number):
        return [f"{thread_id}: {name} is not what was saved as {number}"]
    parents = [look.engine.get(p.checkpoint_id, thread_id=p.thread_id, namespace="") for p in stored.record.parents]
    if not parents or parents[0] is None or number is not None:
        return []
    values, expected = (found.messages, found.state), [(parents[0].messages, parents[0].state)]
    if "merge" in stored.record.tags:
        side = stored.record.parents[1].thread_id
        expected = [(parents[0].messages, {**parents[0].state, f"side {side}": side})]
        if parents[1] is None:
            return []  # the branch was deleted after the merge, and the target may have been its unmoved origin
        expected.append((parents[1].messages, parents[1].state))
    elif "branch" not in stored.record.tags:
        return []
    return [] if values in expected else [f"{thread_id}: {name} is not what comes of its parents"]


def recent_faults(look: Look, round_: Round, threads: list[str]) -> list[str]:
    """Return the writer's newest checkpoints that are missing though fewer than N newer ones can have come."""
    faults = []
    merges = [said[-1] for said in round_.said["changer"] if said[:2] == ["end", "merge"]]
    changer, writer = round_.pending("changer"), round_.pending("writer")
    for thread_id in threads:
        held = {s.record.key.checkpoint_id for s in look.stored(thread_id)}
        saves = [s for s in round_.said["writer"] if s[0] == "end" and s[2][0] == thread_id]
        newer = int(writer is not None and writer[2][0] == thread_id)
        for _, _, _, name, _, at in reversed(saves):
            merged = sum(when > at for when in merges) + (changer is not None) if thread_id == SHARED else 0
            if newer + merged < KEEP and name not in held:
                faults.append(f"{thread_id}: {name} was acknowledged and is among the newest, but is lost")
            newer += 1
    return faults


def apply_shared(log: Log, kind: str, args: list[Any], result: Any, op: int) -> None:
    """Do to the log of "shared", where only the changer logs, what an operation did."""
    if result == "refused" or kind == "delete":
        return
    if kind in ("undo", "redo"):
        entry = next((e for e in log.entries if e.id == result), None)
        if entry is None or entry.undone == (kind == "undo"):
            raise AssertionError(f"{kind} took {result}: {entry}")
        entry.undone = not entry.undone
    else:
        log.push(op, kind, args[0] if kind == "rewind" else result, "", SHARED)


def follow_shared(look: Look, log: Log, said: Lines) -> tuple[list[str], str]:
    """Bring the log up to date with what the changer said; return what is wrong, and what became of the last thing."""
    found = look.log(SHARED)
    held = {entry[0] for entry in found}
    for what, *rest in said:
        if what == "end":
            try:
                apply_shared(log, *rest[:4])
            except AssertionError as exc:
                return [f"{SHARED}: {exc}"], ""
    log.entries = [entry for entry in log.entries if entry.id in held]  # old entries go with retention
    pending = said[-1] if said and said[-1][0] == "begin" else None
    without = log_faults(found, log)
    if not without or pending is None:
        return without, "not done" if pending is not None else ""
    _, kind, args, _ = pending
    swapped = [e.id for e, (*_, undone) in zip(log.entries, found, strict=False) if e.undone != undone]
    result = (swapped or [0])[0] if kind in ("undo", "redo") else found[-1][2]
    try:
        apply_shared(log, kind, args, result, found[-1][0])
    except AssertionError as exc:
        return [*without, f"{exc}"], ""
    faults = log_faults(found, log)
    return ([f"{SHARED}: {kind} {args} is neither logged nor not: {without}; {faults}"] if faults else []), "done"


def collected_faults(look: Look, tale: Tale) -> list[str]:
    """Collecting takes what the policy lets go, exactly; twice is once; what is left reads back."""
    expected: dict[str, list[str]] = {}
    for name in look.threads():
        stored, protected, head = look.stored(name), look.protected(name), look.head(name)
        shown = set(look.visible(name))
        newest = max((s.seq for s in stored if s.record.key.checkpoint_id in shown), default=0)
        gone: set[int] = set()
        for visible in (True, False):
            kin = [
                s.seq for s in stored
                if (s.record.key.checkpoint_id in shown) == visible and s.seq not in protected
                and not (s.record.key.checkpoint_id == head and s.seq != newest)
            ]  # fmt: skip
            gone |= set(kin[:-KEEP])
        expected[name] = [s.record.key.checkpoint_id for s in stored if s.seq not in gone]
    look.engine.collect()
    faults = []
    for name, ids in expected.items():
        if (left := [s.record.key.checkpoint_id for s in look.stored(name)]) != ids:
            faults.append(f"{name}: collect left {left}, not {ids}")
    again = look.engine.collect()
    if again.objects or again.checkpoints:
        faults.append(f"a second collect found {again}")
    tale.trim(look.log(TALE))
    return [*faults, *tale_faults(look, tale), *look.file_faults()]


def plant(path: str, what: str) -> bool:
    """Spoil the file; return whether there was something to spoil."""
    connection = sqlite_connecting.connect(Path(path), 1000)
    tale = f"(SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.name = '{TALE}')"
    newest = f"(SELECT max(seq) FROM checkpoints WHERE line = {tale})"
    sql = {
        "object": f"""DELETE FROM objects WHERE hash = (SELECT substr(children, 1, 16) FROM checkpoints
                      WHERE seq = {newest}) AND family = (SELECT family FROM threads WHERE name = '{TALE}')""",
        "checkpoint": f"DELETE FROM checkpoints WHERE seq = {newest}",
        "entry": f"""DELETE FROM operations WHERE seq = (SELECT max(o.seq) FROM operations o JOIN threads t
                     ON t.id = o.thread WHERE t.name = '{TALE}')""",
        "hidden": f"""DELETE FROM hidden AS h WHERE line = {tale} AND EXISTS (SELECT 1 FROM checkpoints c
                      WHERE c.line = h.line AND c.seq > h.after AND c.seq <= h.upto)""",
        "head": f"""UPDATE lines SET head = (SELECT max(seq) FROM checkpoints WHERE line = {tale} AND seq <> head)
                    WHERE id = {tale} AND (SELECT count(*) FROM checkpoints WHERE line = {tale}) > 1""",
        "unpin": f"UPDATE checkpoints SET pinned = 0 WHERE pinned AND line = {tale}",
        "garbage": "INSERT INTO objects (family, hash, children, body) VALUES (999999, x'00', x'', x'')",
    }[what]
    connection.execute(sql)
    spoiled = connection.changes() > 0
    connection.close()
    return spoiled


def set_up(path: str, tale: Tale) -> list[str]:
    """Make the threads and return those that the writer writes to."""
    engine = everstep.open(f"sqlite:///{path}", config()).sync
    for n in range(1, 4):
        made = engine.append(TALE, [message(TALE, n)], {f"at {TALE}": n}, {f"at {TALE}": n})
        tale.apply("save", [TALE, n, "append"], made)
    first = engine.snapshot(SHARED, *shared_values(SHARED, 1), tags=["n=1"])
    beside = engine.branch(first, "beside")
    engine.close()
    return [SHARED, beside]


def main(path: str, rounds: int, seed: int, planted: str | None) -> None:
    tale, shared, faults = Tale(), Log(), list[str]()
    hit, outcome, acknowledged, places = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    threads = set_up(path, tale)
    apply_shared(shared, "branch", [], threads[1], 1)
    for number in range(rounds):
        victim, kind, aim = VICTIMS[number % len(VICTIMS)]
        round_ = Round(number, victim, kind, aim, by_itself=bool(aim) or number % 3 != 2)
        run_round(path, round_, seed, copy.deepcopy(tale), threads, planted == "early")
        places[round_.place] += 1
        wrong = [line[1] for said in round_.said.values() for line in said if line[0] == "error"]
        for role, said in round_.said.items():
            acknowledged.update(f"{role} {line[1]}" for line in said if line[0] == "end")
            if (pending := round_.pending(role)) is not None:
                hit[f"{role} {pending[1]}"] += 1
        if planted in PLANTS and planted != "early" and not faults and number:
            plant(path, planted)
        try:
            look = Look(path)
            found, became = follow_shared(look, shared, round_.said["changer"])
            outcome[f"changer {became}"] += 1
            tale, more, became = follow(look, tale, round_.said["traveller"])
            outcome[f"traveller {became}"] += 1
            wrong += [*found, *more, *shared_faults(look, round_, threads)]
            if not wrong:
                tale, more = there_and_back_faults(look, tale)
                wrong += more or collected_faults(look, tale)
            for branch in look.branches(SHARED)[1:]:
                look.engine.checkpointer.delete_thread(branch)
            look.engine.close()
        except everstep.EverstepError as exc:
            wrong.append(f"looking at the file: {exc!r}")
        if wrong:
            faults += [f"round {number} ({victim}, {kind}): {fault}" for fault in wrong]
            break  # the model has lost the thread
    print(
        json.dumps(
            {
                "rounds": number + 1,
                "acknowledged": dict(acknowledged),
                "hit": dict(hit),
                "places": dict(places),
                "outcome": dict(outcome),
                "faults": faults[:20],
                "bytes": os.path.getsize(path),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
