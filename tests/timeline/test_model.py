"""Random operations, restarts included, against a plain model of dictionaries: each store gives the model's answers.

The model is written from the specification, with the most naive means: it keeps every checkpoint there ever was with
links to its parents, deleted ones too, a set of hidden checkpoints for each operation, and a stack of operations per
thread. It shares no code with what it checks. Where the specification says nothing, what the code does was taken if it
is sensible; those places are marked "Silent:".
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import everstep
from everstep import MISSING, Checkpoint, CheckpointMetadata, Conflict, SnapshotConfig
from everstep.stores.memory import MemoryStore
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.redis.store import RedisStore
from everstep.stores.sqlite.store import SQLiteStore
from tests.tools import servers

THREADS = ("a", "b", "odd\0name\n")
NAMESPACES = ("", "sub")
VALUES = st.sampled_from(
    [0, 1, True, 1.0, "", "x", None, b"y", 2**70, ("t", 1.5, None), "long " * 300, ["x" * 90] * 40]
)
STATES = st.dictionaries(st.sampled_from(["k1", "k2", "plan", "n"]), VALUES, max_size=3)
TEXTS = st.lists(st.sampled_from(["", "hi", "é\ud800", "long " * 300]), max_size=3)
POLICIES = (("keep_last_n", 1), ("keep_last_n", 3), ("keep_milestones", 2), ("keep_milestones", 4), ("keep_age", 3600))
OLD = timedelta(hours=2)

Line = tuple[str, str]
"""A thread and a namespace."""


@dataclass(eq=False)
class Node:
    """A checkpoint, for ever."""

    line: Line
    order: int
    parents: tuple[Node, ...]
    """What it follows, whatever has become of that."""
    value: Checkpoint
    stored: bool = True
    pruned: bool = False
    """Whether it was retention that took it."""
    replaced: bool = False

    @property
    def id(self) -> str:
        return self.value.metadata.checkpoint_id

    @property
    def step(self) -> int:
        return self.value.metadata.step

    @property
    def is_old(self) -> bool:
        created = datetime.fromisoformat(self.value.metadata.created_at)
        return datetime.now(UTC) - created > OLD / 2

    def __repr__(self) -> str:
        return f"<{self.id}{'' if self.stored else ' gone'} of {[p.id for p in self.parents]}>"


@dataclass(eq=False)
class Op:
    """An operation: what was, so that it can be brought back."""

    id: int
    kind: str
    thread: str
    """The thread whose head or pin it is about."""
    made_at: int
    """Nothing older is needed to undo it."""
    heads: dict[str, Node | None] = field(default_factory=dict)
    """By namespace: the head to go to."""
    hide: set[Node] = field(default_factory=set)
    """What to hide then."""
    since: dict[str, int] = field(default_factory=dict)
    """By namespace: what is newer is new, and will be hidden as well."""
    pin: tuple[Node, bool] | None = None
    undone: bool = False
    family: object = None
    """Of that thread. Another thread of its name is another thread."""


def exact(value: Any) -> Any:
    """Return something that is equal for values that are the same, types and the order of keys included."""
    if isinstance(value, dict):
        return dict, [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [exact(item) for item in value]
    return type(value), value


def same(a: Any, b: Any) -> bool:
    return bool(exact(a) == exact(b))


def parts(checkpoint: Checkpoint) -> list[Any]:
    return [checkpoint.messages, checkpoint.state, checkpoint.tools_result]


def ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    pending = [node]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.parents)
    return found


def best_common(a: Node, b: Node) -> list[Node]:
    shared = ancestors(a) & ancestors(b)
    return [node for node in shared if not any(node in ancestors(other) for other in shared if other is not node)]


class Expected:
    """What a merge should give: values, and what is in conflict by path (all messages under "messages")."""

    def __init__(self, base: Node, ours: Node, theirs: Node, choose: Callable[[Conflict], Any]) -> None:
        b, o, t = base.value, ours.value, theirs.value
        self.conflicts: dict[str, Conflict] = {}

        def chosen(conflict: Conflict) -> Any:
            self.conflicts[conflict.path] = conflict
            return choose(conflict)

        self.state = merged_dicts("state", b.state, o.state, t.state, chosen)
        self.tools_result = merged_dicts("tools_result", b.tools_result, o.tools_result, t.tools_result, chosen)
        self.messages, self.ordered = merged_messages(b.messages, o.messages, t.messages, chosen)


def merged_dicts(path: str, base: Any, ours: Any, theirs: Any, choose: Callable[[Conflict], Any]) -> dict[str, Any]:
    result = {}
    for key in ours | theirs:
        b, o, t = (side.get(key, MISSING) for side in (base, ours, theirs))
        if same(o, t) or same(t, b):
            value = o
        elif same(o, b):
            value = t
        else:
            value = choose(Conflict(f"{path}.{key}", b, o, t))
        if value is not MISSING:
            result[key] = value
    return result


def merged_messages(
    base: list[Any], ours: list[Any], theirs: list[Any], choose: Callable[[Conflict], Any]
) -> tuple[list[Any], bool]:
    """Return the merged messages, and whether their order is certain."""
    if same(ours, theirs) or same(theirs, base):
        return ours, True
    if same(ours, base):
        return theirs, True
    b, o, t = ({m["id"]: m for m in side} for side in (base, ours, theirs))
    for side in (o, t):
        if [name for name in side if name in b] != [name for name in b if name in side]:
            # Silent: one side changed the order. The code calls it a conflict of the whole conversation.
            return choose(Conflict("messages", base, ours, theirs)), True
    result = []
    for name in [*b, *(n for n in o if n not in b), *(n for n in t if n not in b and n not in o)]:
        one, mine, other = (side.get(name, MISSING) for side in (b, o, t))
        if same(mine, other) or same(other, one):
            value = mine
        elif same(mine, one):
            value = other
        else:
            value = choose(Conflict("messages", one, mine, other))
        if value is not MISSING:
            result.append(value)
    at_end = all([name in b for name in side] == sorted((name in b for name in side), reverse=True) for side in (o, t))
    return result, at_end and not any(name in t and name not in b for name in o)


class Model(RuleBasedStateMachine):
    """Engines on one store (as several processes would be), and what they should hold."""

    kind = ""

    # -- the model ------------------------------------------------------------------------------------------------

    @initialize(whole=st.booleans())
    def start(self, whole: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "m.db"
        if self.kind == "postgres":
            servers.clear_postgres()
        self._memory = MemoryStore()
        self._prefix = servers.redis_prefix()
        self.whole = whole  # the second engine does not split its values
        self.names = list(THREADS)
        self.nodes: list[Node] = []
        self.heads: dict[Line, Node | None] = {}
        self.hidden: dict[Op, set[Node]] = {}
        self.logs: dict[str, list[Op]] = {}
        self.redo_stacks: dict[str, list[Op]] = {}
        self.began: dict[str, Node] = {}  # by branch
        self.families: dict[str, object] = {}
        self.shared_states: dict[frozenset[str], Node] = {}
        self.activity: list[str] = []  # most recent first; headless threads too
        self.count = self.turn = 0
        self._engines: dict[Any, Any] = {}

    def teardown(self) -> None:
        if hasattr(self, "_engines"):
            self._close()
            self._folder.cleanup()

    def _close(self) -> None:
        if self.kind != "memory":
            for engine in self._engines.values():
                engine.close()
        self._engines = {}

    def _store(self) -> Any:
        if self.kind == "memory":
            return self._memory
        if self.kind == "postgres":
            return PostgresStore(servers.postgres())
        if self.kind in ("redis", "cluster"):
            url = servers.redis() if self.kind == "redis" else servers.redis_cluster()
            return RedisStore(url, key_prefix=self._prefix)
        return SQLiteStore(self._path)

    def _made(self, **config: Any) -> Any:
        return everstep.CheckpointEngine(everstep.StoreBackend(self._store()), SnapshotConfig(**config)).sync

    def engine(self, number: int) -> Any:
        """Return an engine that keeps all, or (from 2 on) one with a policy. They live until the next restart."""
        if number not in self._engines:
            if number < 2:
                made = self._made(gc_policy="keep_all", delta_snapshots=not (self.whole and number == 1))
            else:
                policy, param = POLICIES[number - 2]
                made = self._made(gc_policy=policy, gc_param=param)
            self._engines[number] = made
        return self._engines[number]

    def number(self) -> int:
        self.count += 1
        return self.count

    def at(self, line: Line) -> list[Node]:
        """Return what is stored of a line, oldest first."""
        return [node for node in self.nodes if node.stored and node.line == line]

    def of(self, thread: str) -> list[Node]:
        return [node for node in self.nodes if node.stored and node.line[0] == thread]

    def is_hidden(self, node: Node) -> bool:
        return any(node in hidden for hidden in self.hidden.values())

    def visible(self, line: Line) -> list[Node]:
        return [node for node in self.at(line) if not self.is_hidden(node)]

    def head(self, line: Line) -> Node | None:
        return self.heads.get(line)

    def move(self, line: Line, node: Node | None) -> None:
        self.heads[line] = node
        self.activity = [line[0], *(name for name in self.activity if name != line[0])]

    def newest(self, line: Line) -> int:
        return max((node.order for node in self.at(line)), default=0)

    def later(self, target: Node) -> list[Node]:
        """Return what came later on the target's line: what follows it in its own thread, by whatever path there."""
        found = {target}
        for node in self.nodes:
            if node.line == target.line and any(parent in found for parent in node.parents):
                found.add(node)
        return [node for node in self.nodes if node in found and node is not target and node.stored]

    def note(self, engine: int, line: Line, checkpoint_id: str, parents: Sequence[Node | None]) -> Node:
        """Take up a checkpoint the engine says it saved; the head moves to it."""
        value = self.engine(engine).get(checkpoint_id)
        assert value is not None
        followed = tuple(parent for parent in parents if parent is not None)
        node = Node(line, self.number(), followed, copy.deepcopy(value))
        self.nodes.append(node)
        self.families.setdefault(line[0], object())
        self.move(line, node)
        return node

    def saved(self, engine: int, line: Line, checkpoint_id: str, parent: Node | None, **expected: Any) -> Node:
        """Note a step, after checking what it should be."""
        node = self.note(engine, line, checkpoint_id, [parent])
        metadata = node.value.metadata
        step = parent.step + 1 if parent else 1
        assert checkpoint_id.startswith(f"ckpt-{line[0]}-{step}-")
        assert (metadata.step, metadata.namespace, metadata.pinned) == (step, line[1], False)
        assert metadata.parents == ([parent.id] if parent else [])
        for name, value in expected.items():
            assert same(getattr(node.value, name), value), name
        if engine >= 2:
            self.retained(self.engine(engine), node, *POLICIES[engine - 2])
        return node

    def save(self, line: Line, call: Callable[[], str]) -> str | None:
        """Run what saves a checkpoint; a thread of which everything is hidden refuses it."""
        if self.head(line) is None and self.at(line) and self.is_taken_back(line[0]):
            # Silent: that is a branch whose beginning was undone; it would be begun anew beside its hidden self.
            with pytest.raises(everstep.InvalidInput):
                call()
            return None
        return call()

    def is_taken_back(self, thread: str) -> bool:
        ops = [op for log in self.logs.values() for op in log if op.kind == "branch" and op.thread == thread]
        return any(op.undone and self.families.get(thread) is op.family for op in ops)

    def removed(self, nodes: Iterable[Node], *, pruned: bool = False) -> int:
        """Delete checkpoints. A head falls back to the newest that is left and visible."""
        gone = [node for node in nodes if node.stored]
        for node in gone:
            node.stored, node.pruned = False, pruned
        for line in {node.line for node in gone}:
            head = self.head(line)
            if head is not None and not head.stored:
                left = self.visible(line)
                self.heads[line] = left[-1] if left else None  # not an activity
            if not self.at(line):
                self.heads.pop(line, None)
        for thread in {node.line[0] for node in gone}:
            if not self.of(thread):
                self._dropped(thread)
        return len(gone)

    def _dropped(self, thread: str) -> None:
        for op in self.logs.pop(thread, []):
            # Silent: what an operation of a deleted thread had hidden elsewhere (an undone branch) stays hidden.
            if op.thread == thread:
                self.hidden.pop(op, None)
        self.redo_stacks.pop(thread, None)
        self.began.pop(thread, None)
        self.families.pop(thread, None)
        self.shared_states = {pair: node for pair, node in self.shared_states.items() if thread not in pair}
        self.activity = [name for name in self.activity if name != thread]

    def logged(self, thread: str, op: Op, hide: Iterable[Node] = ()) -> None:
        newest = self.engine(0).operations(thread, 1)
        if op.kind == "merge" and (
            not newest or newest[0].id <= max((old.id for old in self.logs.get(thread, [])), default=0)
        ):
            self.redo_stacks[thread] = []
            oldest = min(node.order for node in self.of(thread) if self.engine(0).get(node.id) is not None)
            assert (
                op.made_at < oldest
            )  # the engine's own policy has taken what it would go back to, and trimmed the log
            return
        assert [(entry.kind, entry.undone) for entry in newest] == [(op.kind, False)]
        op.id = newest[0].id
        op.family = self.families[op.thread]
        self.logs.setdefault(thread, []).append(op)
        self.redo_stacks[thread] = []
        self.hidden[op] = set(hide)

    # -- retention ------------------------------------------------------------------------------------------------

    def is_protected(self, node: Node) -> bool:
        # Silent: an undone branch lives as long as something of it is stored.
        return node.value.metadata.pinned or node in self.began.values()

    def candidates(self, line: Line) -> tuple[list[Node], list[Node]]:
        """Return what a policy counts: the visible and the hidden, apart."""
        visible, head = self.visible(line), self.head(line)
        # A head that is the newest is one of the N; an older one stays on top.
        shown = [n for n in visible if not self.is_protected(n) and (n is not head or n is visible[-1])]
        return shown, [n for n in self.at(line) if self.is_hidden(n) and not self.is_protected(n)]

    def must_go(self, nodes: list[Node], policy: str, param: int) -> set[Node]:
        """Return what a policy does not keep of these; not for milestones."""
        gone = [n for n in nodes if n.is_old] if policy == "keep_age" else nodes[: max(len(nodes) - param, 0)]
        return {node for node in gone if policy != "keep_all" and self.head(node.line) is not node}

    def check_milestones(self, nodes: list[Node], gone: set[Node], count: int) -> None:
        left, steps = [n for n in nodes if n not in gone], [n.step for n in nodes]
        assert len([n for n in left if n is not self.head(n.line)]) <= count
        if nodes:
            assert nodes[-1] in left
            assert nodes[0] in left
        if steps == list(range(steps[0], steps[0] + len(steps))) if steps else False:
            assert len(left) >= min(len(nodes), count / 2)
            gaps = {b.step - a.step for a, b in itertools.pairwise(left[:-1])}
            assert len(gaps) <= 1, steps

    def observed(self, engine: Any, nodes: Iterable[Node]) -> set[Node]:
        return {node for node in nodes if node.stored and engine.get(node.id) is None}

    def retained(self, engine: Any, node: Node, policy: str, param: int, *, fresh: bool = False) -> None:
        """Check what retention did with a snapshot: what must stay stays. A `fresh` engine has nothing to catch up."""
        line = node.line
        gone = self.observed(engine, self.at(line))
        visible, hidden = self.candidates(line)
        assert gone <= {*visible, *hidden}, "spared"
        assert self.head(line) not in gone
        if policy == "keep_milestones":
            if fresh:
                self.check_milestones(visible, gone & {*visible}, param)
        elif fresh:  # a plan that another engine has made stale may keep too much for a while
            assert gone & {*hidden} <= self.must_go(hidden, policy, param), "hidden ones that should stay"
            assert gone & {*visible} <= self.must_go(visible, policy, param), "ones that should stay"
            if node.parents:
                assert gone & {*visible} == self.must_go(visible, policy, param)
        self.removed(gone, pruned=True)
        self.trimmed(line[0])

    def trimmed(self, thread: str) -> None:
        """Take over what retention trimmed of the log, which is nothing that could still be undone."""
        left = {op.id for op in self.engine(0).operations(thread, 1000)}
        oldest = min((node.order for node in self.of(thread)), default=0)
        for op in self.logs.get(thread, []):
            assert op.id in left or op.made_at < oldest, op
        self.logs[thread] = [op for op in self.logs.get(thread, []) if op.id in left]
        self.redo_stacks[thread] = [op for op in self.redo_stacks.get(thread, []) if op.id in left]

    # -- what rules choose from -----------------------------------------------------------------------------------

    any_engine = st.sampled_from([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6])
    keeping = st.integers(0, 1)
    index = st.integers(0, 60)
    namespace = st.sampled_from(["", "", "", "sub"])

    def thread(self, at: int) -> str:
        """Return a thread: one of the three, or a branch, deleted ones included."""
        return self.names[at % len(self.names)]

    def node(self, at: int, line: Line | None = None, *, seen: bool = False) -> Node | None:
        """Return a stored checkpoint, newest first; of a line; not a hidden one."""
        found = [n for n in self.nodes if n.stored and line in (None, n.line) and not (seen and self.is_hidden(n))]
        return found[-1 - at % len(found)] if found else None

    def messages(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text, "id": f"m{self.number()}"} for text in texts]

    # -- saving ---------------------------------------------------------------------------------------------------

    @rule(engine=any_engine, at=index, ns=namespace, texts=TEXTS, state=STATES, tools=STATES, next_=st.booleans())
    def snapshot(self, engine: int, at: int, ns: str, texts: Any, state: Any, tools: Any, next_: bool) -> None:
        line = self.thread(at), ns
        head, messages, node = self.head(line), self.messages(texts), "go" if next_ else ""
        made = self.save(
            line,
            lambda: self.engine(engine).snapshot(line[0], messages, state, tools, next_node=node, namespace=ns),
        )
        if made:
            self.saved(engine, line, made, head, messages=messages, state=state, tools_result=tools, next_node=node)

    @rule(engine=any_engine, at=index, ns=namespace, texts=TEXTS, state=STATES, tools=STATES)
    def append(self, engine: int, at: int, ns: str, texts: Any, state: Any, tools: Any) -> None:
        line = self.thread(at), ns
        head, messages = self.head(line), self.messages(texts)
        made = self.save(line, lambda: self.engine(engine).append(line[0], messages, state, tools, namespace=ns))
        if made is None:
            return
        old = head.value if head else Checkpoint(CheckpointMetadata(line[0], "none", 0))
        self.saved(
            engine, line, made, head,
            messages=old.messages + messages, state=old.state | state, tools_result=old.tools_result | tools,
        )  # fmt: skip

    @rule(
        engine=any_engine, at=index, ns=namespace, place=index, state=STATES, texts=TEXTS,
        how=st.sampled_from(["edit", "edit", "remove", "remove", "insert", "swap"]),
    )  # fmt: skip
    def edit(self, engine: int, at: int, ns: str, place: int, state: Any, texts: Any, how: str) -> None:
        """Save the head with a message changed, gone, put between or moved, and a key of the state gone."""
        line = self.thread(at), ns
        head = self.head(line)
        messages = copy.deepcopy(head.value.messages) if head else []
        values = (head.value.state | state) if head else state
        if messages:
            place %= len(messages)
            if how == "edit":
                messages[place]["content"] = f"edited {self.number()}"
            elif how == "swap":
                messages[0], messages[place] = messages[place], messages[0]
            else:
                messages[place : place + (how == "remove")] = [] if how == "remove" else self.messages(texts)
        for key in list(values)[place % 3 : place % 3 + 1]:
            values.pop(key)
        made = self.save(line, lambda: self.engine(engine).snapshot(line[0], messages, values, {}, namespace=ns))
        if made:
            self.saved(engine, line, made, head, messages=messages, state=values, tools_result={})

    @rule(engine=any_engine, at=index, state=STATES)
    def snapshot_on_an_older_parent(self, engine: int, at: int, state: Any) -> None:
        # Silent: a hidden parent will do. What is saved is visible, its parent stays hidden.
        parent = self.node(at)
        if parent is None:
            return
        thread, ns = parent.line
        messages = parent.value.messages
        made = self.save(
            parent.line,
            lambda: self.engine(engine).snapshot(
                thread, messages, state, {}, parent_checkpoint_id=parent.id, namespace=ns
            ),
        )
        if made:
            self.saved(engine, parent.line, made, parent, state=state)

    @rule(engine=any_engine, at=index, state=STATES)
    def snapshot_on_a_parent_that_is_not_there(self, engine: int, at: int, state: Any) -> None:
        thread = self.thread(at)
        gone = [n for n in self.nodes if not n.stored]
        others = [n for n in self.nodes if n.line != (thread, "")]
        for node in [*gone[-1:], *others[-1:]]:
            with pytest.raises(everstep.CheckpointNotFound):
                self.engine(engine).snapshot(thread, [], state, {}, parent_checkpoint_id=node.id)

    @rule(engine=any_engine, at=index, right=st.booleans(), appending=st.booleans(), state=STATES)
    def with_an_expected_head(self, engine: int, at: int, right: bool, appending: bool, state: Any) -> None:
        line = self.thread(at), ""
        head = self.head(line)
        expected = head.id if head else None
        chosen = self.engine(engine)

        def save(expected: str | None) -> str:
            if appending:
                return str(chosen.append(line[0], [], state, expected_head=expected))
            return str(chosen.snapshot(line[0], [], state, {}, expected_head=expected))

        if not right:
            with pytest.raises(everstep.HeadMoved):
                save("ckpt-nobody-1-00000000" if expected is None else None)
            return
        made = self.save(line, lambda: save(expected))
        before = head.value.state if head and appending else {}
        if made:
            self.saved(engine, line, made, head, state=before | state)

    @rule(
        engine=keeping, at=index, ns=namespace, parent_at=index, state=STATES, step=st.integers(-3, 12),
        parent=st.sampled_from(["none", "unknown", "stored"]), old=st.booleans(),
    )  # fmt: skip
    def put(self, engine: int, at: int, ns: str, parent_at: int, state: Any, step: int, parent: str, old: bool) -> None:
        """Put a checkpoint of one's own. Without a parent it follows the head; an unknown one is kept as a name."""
        line = self.thread(at), ns
        chosen = self.node(parent_at, line) if parent == "stored" else None
        name = chosen.id if chosen else ("anything" if parent == "unknown" else None)
        follows = self.head(line) if name is None else chosen
        metadata = CheckpointMetadata(line[0], f"own-{self.number()}", step, name, namespace=ns)
        if old:
            metadata.created_at = (datetime.now(UTC) - OLD).isoformat()
        given = Checkpoint(metadata, state=state)
        if self.save(line, lambda: self.engine(engine).checkpointer.put(given)) is None:
            return
        node = self.note(engine, line, metadata.checkpoint_id, [follows])
        assert (node.value.state, node.step) == (state, step)
        assert node.value.metadata.parent_checkpoint_id == name

    @rule(engine=keeping, at=index, state=STATES, other=st.booleans())
    def put_again(self, engine: int, at: int, state: Any, other: bool) -> None:
        node = self.node(at)
        if node is None:
            return
        again = copy.deepcopy(node.value)
        if other:
            again.state = state
        if not same(again.state, node.value.state):
            if self.save(node.line, lambda: self.engine(engine).checkpointer.put(again)) is None:
                return
            node.replaced = True
        else:
            self.engine(engine).checkpointer.put(again)
        found = self.engine(1 - engine).get(node.id)
        assert same(found.state, again.state)
        node.value = found

    @rule(engine=any_engine, at=index)
    def save_something_unstorable(self, engine: int, at: int) -> None:
        with pytest.raises(everstep.UnstorableValue):
            self.engine(engine).snapshot(self.thread(at), [{"content": object()}], {}, {})
        with pytest.raises(everstep.UnstorableValue):
            self.engine(engine).append(self.thread(at), [], {"x": object()})

    # -- deleting -------------------------------------------------------------------------------------------------

    @rule(engine=any_engine, at=index)
    def delete_a_thread(self, engine: int, at: int) -> None:
        thread = self.thread(at)
        # Silent: hidden ones are deleted and counted too.
        assert self.engine(engine).checkpointer.delete_thread(thread) == self.removed(self.of(thread))

    @rule(engine=any_engine, at=index, step=st.integers(-2, 6))
    def delete_before(self, engine: int, at: int, step: int) -> None:
        thread = self.thread(at)
        count = self.engine(engine).checkpointer.delete_before(thread, step)
        assert count == self.removed([n for n in self.of(thread) if n.step < step])

    # -- going back -----------------------------------------------------------------------------------------------

    def rewound(self, target: Node, later: str, result: Any) -> None:
        """Check the result of a rewind and do it in the model."""
        line, before = target.line, self.visible(target.line)
        left = [node for node in self.later(target) if node in before]
        assert (result.thread_id, result.rewind_depth) == (line[0], len(left))
        assert (result.snapshot_count_before, result.can_replay) == (len(before), True)
        assert result.checkpoint == target.value
        head = self.head(line)
        if head is target and later != "delete" and (later == "keep" or not left):
            return  # nothing to do, nothing to undo
        if later == "delete":
            if head is not target or left:
                self.move(line, target)
            self.removed(self.later(target))  # hidden ones of before too; and it is final: no entry in the log
            return
        op = Op(0, "rewind", line[0], self.newest(line), {line[1]: head}, set(), {line[1]: self.count})
        self.logged(line[0], op, left if later == "hide" else ())
        self.move(line, target)

    @rule(engine=any_engine, at=index, later=st.sampled_from(["hide", "hide", "keep", "delete"]))
    def rewind(self, engine: int, at: int, later: str) -> None:
        target = self.node(at)
        if target is None:
            return
        if self.is_hidden(target):
            # Silent: a hidden one is refused, with the advice to undo or to branch.
            with pytest.raises(everstep.InvalidInput):
                self.engine(engine).rewind(target.id, later=later)
            return
        self.rewound(target, later, self.engine(engine).rewind(target.id, later=later))

    @rule(engine=any_engine, at=index)
    def name_one_that_is_gone(self, engine: int, at: int) -> None:
        gone = [n.id for n in self.nodes if not n.stored] or ["nobody"]
        name, chosen = gone[-1 - at % len(gone)], self.engine(engine)
        here = self.node(at)
        calls = [chosen.rewind, chosen.pin, chosen.unpin, lambda i: chosen.branch(i, "x"), lambda i: chosen.diff(i, i)]
        for call in calls:
            with pytest.raises(everstep.CheckpointNotFound):
                call(name)
        if here is not None:
            with pytest.raises(everstep.CheckpointNotFound):
                chosen.diff(here.id, name)

    @rule(engine=any_engine, at=index, ns=namespace, step=st.integers(-2, 8))
    def time_travel(self, engine: int, at: int, ns: str, step: int) -> None:
        line = self.thread(at), ns
        reached = [node for node in self.visible(line) if node.step <= step]
        result = self.engine(engine).time_travel_to_step(line[0], step, namespace=ns)
        if not reached:
            assert result is None
            return
        self.rewound(reached[-1], "hide", result)

    def swap(self, op: Op) -> None:
        """Undo or redo: go to the other heads, show what was hidden, hide what it says and what is new since."""
        if op.pin is not None:
            node, pinned = op.pin
            node.value.metadata.pinned = pinned
            op.pin = node, not pinned
        hide = set(op.hide)
        for ns, since in op.since.items():
            hide |= {node for node in self.at((op.thread, ns)) if node.order > since}
            op.since[ns] = self.count
        op.hide, self.hidden[op] = self.hidden[op], hide
        for ns, head in op.heads.items():
            op.heads[ns] = self.head((op.thread, ns))
            self.move((op.thread, ns), head)
        op.undone = not op.undone

    def toggled(self, thread: str, op: Op | None, call: Callable[[str], Any]) -> bool:
        impossible = (
            op is None
            or self.families.get(op.thread) is not op.family
            or any(head is not None and not head.stored for head in op.heads.values())
            or (op.pin is not None and not op.pin[0].stored)
        )
        if op is None or impossible:
            with pytest.raises(everstep.CannotUndo):
                call(thread)
            return False
        elsewhere = {node for other, nodes in self.hidden.items() if other is not op for node in nodes}
        if any(head in elsewhere for head in op.heads.values()):
            # Silent: a head that something else hides is refused (in a branch that is undone itself).
            with pytest.raises(everstep.CannotUndo):
                call(thread)
            return False
        done = call(thread)
        self.swap(op)
        assert (done.id, done.kind, done.undone) == (op.id, op.kind, op.undone)
        return True

    @rule(engine=any_engine, at=index)
    def undo(self, engine: int, at: int) -> None:
        thread = self.thread(at)
        done = [op for op in self.logs.get(thread, []) if not op.undone]
        op = done[-1] if done else None
        if self.toggled(thread, op, self.engine(engine).undo) and op is not None:
            self.redo_stacks[thread].append(op)

    @rule(engine=any_engine, at=index)
    def redo(self, engine: int, at: int) -> None:
        thread = self.thread(at)
        stack = self.redo_stacks.get(thread, [])
        if self.toggled(thread, stack[-1] if stack else None, self.engine(engine).redo):
            stack.pop()

    # -- pins -----------------------------------------------------------------------------------------------------

    @rule(engine=any_engine, at=index, pinned=st.booleans())
    def pin(self, engine: int, at: int, pinned: bool) -> None:
        # Silent: hidden ones can be pinned; a pin that is there already is not logged.
        node = self.node(at)
        if node is None:
            return
        chosen = self.engine(engine)
        (chosen.pin if pinned else chosen.unpin)(node.id)
        if node.value.metadata.pinned != pinned:
            node.value.metadata.pinned = pinned
            op = Op(0, "pin" if pinned else "unpin", node.line[0], node.order, pin=(node, not pinned))
            self.logged(node.line[0], op)

    # -- branches and merges --------------------------------------------------------------------------------------

    @rule(engine=any_engine, at=index, name=st.sampled_from(["x", "é y"]))
    def branch(self, engine: int, at: int, name: str) -> None:
        source = self.node(at)
        if source is None or len(self.names) > 9:
            return
        thread = self.engine(engine).branch(source.id, name)
        assert thread.startswith(f"{source.line[0]}-branch-{name}-")
        line, family = (thread, source.line[1]), self.families[source.line[0]]
        first = self.engine(engine).get_latest(thread, namespace=line[1])
        assert all(same(*both) for both in zip(parts(first), parts(source.value), strict=True))
        metadata = first.metadata
        assert (metadata.step, metadata.parents, first.next_node) == (0, [source.id], source.value.next_node)
        assert (metadata.tags, metadata.summary) == (["branch", name], f"Branch '{name}' from {source.id}")
        self.note(engine, line, metadata.checkpoint_id, [source])
        self.names.append(thread)
        self.families[thread] = family
        self.began[thread] = source
        self.shared_states[frozenset((thread, source.line[0]))] = source
        op = Op(0, "branch", thread, source.order, {line[1]: None}, set(), {line[1]: 0})
        self.logged(source.line[0], op)

    @rule(
        engine=any_engine, at=index, other=index, ns=namespace,
        resolve=st.sampled_from(["none", "none", "ours", "theirs", "function", "mapping"]),
    )  # fmt: skip
    def merge(self, engine: int, at: int, other: int, ns: str, resolve: str) -> None:
        into, branch = self.thread(at), self.thread(other)
        relatives = [n for n in self.families if n != into and self.families.get(into) is self.families[n]]
        if relatives and other % 8:  # mostly one that can be merged
            branch = relatives[other % len(relatives)]
        ours, theirs = self.head((into, ns)), self.head((branch, ns))
        call = self.engine(engine).merge_branch
        related = into in self.families and self.families.get(into) is self.families.get(branch)
        if into == branch or ours is None or theirs is None or not related:
            with pytest.raises(everstep.InvalidInput):
                call(branch, into, namespace=ns)
            return
        bases = best_common(ours, theirs)
        if not bases:
            with pytest.raises(everstep.InvalidInput):
                call(branch, into, namespace=ns)
            return
        if theirs in bases:
            assert call(branch, into, namespace=ns) == ours.id  # everything is merged already
            return
        self._merged(engine, ours, theirs, bases, resolve)

    def _merged(self, engine: int, ours: Node, theirs: Node, bases: list[Node], resolve: str) -> None:
        (into, ns), (branch, _) = ours.line, theirs.line
        choose = CHOICES[resolve]
        certain = len(bases) == 1 and not bases[0].replaced
        expected = Expected(bases[0], ours, theirs, choose) if certain else None

        def call(how: Any) -> str:
            return str(self.engine(engine).merge_branch(branch, into, resolve=how, namespace=ns))

        try:
            made = call({"ours": "ours", "theirs": "theirs", "function": choose}.get(resolve))
        except everstep.MergeConflict as caught:
            assert resolve in ("none", "mapping")
            check_conflicts(caught.conflicts, ours, theirs, expected)
            if resolve == "none":
                return  # and nothing was written, as the invariants will find
            made = call({conflict.path: choose(conflict) for conflict in caught.conflicts})
        except everstep.InvalidInput:
            # A base may be gone for good, but only by somebody's own deletion.
            gone = [base for base in ancestors(ours) & ancestors(theirs) if not base.stored and not base.pruned]
            assert gone
            assert self.shared_states.get(frozenset((into, branch))) not in bases
            return
        else:
            if expected is not None and resolve in ("none", "mapping"):
                assert not expected.conflicts
        newest, now = self.newest(ours.line), self.count
        node = self.note(engine, ours.line, made, [ours, theirs])
        metadata, follow = node.value.metadata, theirs if ours in bases else ours
        assert metadata.parents == [ours.id, theirs.id]
        assert (metadata.step, metadata.tags) == (ours.step + 1, ["merge"])
        assert node.value.next_node == follow.value.next_node
        if ours in bases and certain:
            assert all(same(*both) for both in zip(parts(node.value), parts(theirs.value), strict=True))
        check_merge(node, ours, theirs, expected)
        self.shared_states[frozenset((into, branch))] = theirs
        self.logged(into, Op(0, "merge", into, newest, {ns: ours}, set(), {ns: now}))
        if engine >= 2:
            self.retained(self.engine(engine), node, *POLICIES[engine - 2])

    # -- diff and tree --------------------------------------------------------------------------------------------

    @rule(engine=any_engine, one=index, two=index)
    def diff(self, engine: int, one: int, two: int) -> None:
        a, b = self.node(one), self.node(two)
        if a is None or b is None:
            return
        found = self.engine(engine).diff(a.id, b.id)
        assert (found.a, found.b) == (a.id, b.id)
        equal = all(same(*both) for both in zip(parts(a.value), parts(b.value), strict=True))
        assert (not found) == (equal and a.value.next_node == b.value.next_node)
        for name in ("state", "tools_result"):
            before, after = getattr(a.value, name), getattr(b.value, name)
            for key in before | after:
                told = any(c.path == f"{name}.{key}" or c.path.startswith(f"{name}.{key}[") for c in found)
                assert told or same(before.get(key, MISSING), after.get(key, MISSING)), key

    @rule(engine=any_engine, at=index, branches=st.booleans())
    def tree(self, engine: int, at: int, branches: bool) -> None:
        thread = self.thread(at)
        shown, pending = [], [thread]
        while pending:
            # Silent: what began in a branch without a head (an undone one) is not looked for.
            name = pending.pop()
            if any(self.head((name, ns)) is not None for ns in NAMESPACES):
                shown.append(name)
                pending += [b for b in self.began if branches and self.is_branch(b, name)]
        listed = [n for n in self.nodes if n.stored and n.line[0] in shown and not self.is_hidden(n)]
        tree = self.engine(engine).get_checkpoint_tree(thread, 1000, branches=branches)
        assert (tree["thread_id"], tree["total_checkpoints"]) == (thread, len(listed))
        assert [node["id"] for node in tree["nodes"]] == [node.id for node in reversed(listed)]
        for told, node in zip(tree["nodes"], reversed(listed), strict=True):
            metadata = node.value.metadata
            assert (told["step"], told["tags"], told["summary"]) == (node.step, metadata.tags, metadata.summary)
            assert (told["thread_id"], told["namespace"]) == node.line
            assert told["created_at"] == metadata.created_at
            assert told["head"] == (self.head(node.line) is node)
            assert told["pinned"] == metadata.pinned
        self._check_edges(listed, tree["edges"])

    def is_branch(self, branch: str, thread: str) -> bool:
        if self.began[branch].line[0] != thread:
            return False
        # Of this thread, not of an older one of that name, which was deleted.
        return self.families[branch] is self.families[thread]

    def _check_edges(self, listed: list[Node], edges: list[dict[str, Any]]) -> None:
        for node in listed:
            mine = {edge["from"]: edge["gap"] for edge in edges if edge["to"] == node.id}
            direct = {parent.id for parent in node.parents if parent in listed}
            near = {found.id for found in nearest(node, set(listed))}
            assert direct <= mine.keys() <= near, (node, mine, near)
            assert bool(mine) == bool(near)
            for source, gap in mine.items():
                assert gap == (source not in direct and bool(node.value.metadata.parents)), (node, source)
        assert {edge["to"] for edge in edges} <= {node.id for node in listed}

    # -- collecting -----------------------------------------------------------------------------------------------

    @rule(policy=st.sampled_from([*POLICIES, ("keep_last_n", 2), ("keep_all", 1)]), at=index, one=st.booleans())
    def collect(self, policy: tuple[str, int], at: int, one: bool) -> None:
        name, param = policy
        threads = [self.thread(at)] if one else list(self.activity)
        threads = [thread for thread in threads if self.of(thread)]
        with self.fresh(policy) as engine:
            told = engine.collect(self.thread(at) if one else None, dry_run=True)
            report = engine.collect(self.thread(at) if one else None)
        assert report.threads == told.threads == len(threads)
        gone = self.observed(self.engine(0), self.nodes)
        assert report.checkpoints == len(gone)
        assert report.hidden == len([node for node in gone if self.is_hidden(node)])
        seen: set[Node] = set()
        for thread in threads:
            for ns in NAMESPACES:
                visible, hidden = self.candidates((thread, ns))
                for nodes in (visible, hidden):
                    mine = gone & {*nodes}
                    if name == "keep_milestones":
                        self.check_milestones(nodes, mine, param)
                    else:
                        assert mine == self.must_go(nodes, name, param)
                    seen |= mine
            self.removed([node for node in seen if node.line[0] == thread], pruned=True)
            self.trimmed(thread)
        assert seen == gone
        if all(self.of(thread) for thread in threads):
            assert told.checkpoints == report.checkpoints
            assert (told.objects, told.size_bytes) == (report.objects, report.size_bytes)

    @contextmanager
    def fresh(self, policy: tuple[str, int]) -> Iterator[Any]:
        engine = self._made(gc_policy=policy[0], gc_param=policy[1])
        yield engine
        if self.kind != "memory":
            engine.close()

    @rule(policy=st.sampled_from(POLICIES), at=index, ns=namespace, states=st.lists(STATES, min_size=1, max_size=5))
    def save_with_another_policy(self, policy: tuple[str, int], at: int, ns: str, states: list[Any]) -> None:
        line = self.thread(at), ns
        with self.fresh(policy) as engine:
            for state in states:
                head = self.head(line)
                made = self.save(line, lambda: str(engine.append(line[0], [], state, namespace=ns)))  # noqa: B023
                if made is None:
                    return
                node = self.saved(0, line, made, head, state=(head.value.state if head else {}) | state)
                self.retained(engine, node, *policy, fresh=True)

    @rule()
    def restart(self) -> None:
        self._close()

    # -- after each step ------------------------------------------------------------------------------------------

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "_engines"):
            return
        self.turn += 1
        engine = self.engine(self.turn % 2)
        for thread in self.names:
            for ns in NAMESPACES:
                head = self.head((thread, ns))
                assert engine.get_latest(thread, namespace=ns) == (head.value if head else None)
                listed = engine.list_time_travel_points(thread, 1000, namespace=ns)
                assert listed == [n.value.metadata for n in reversed(self.visible((thread, ns)))]
                assert head is None or not self.is_hidden(head)
            told = [(op.id, op.kind, op.undone) for op in engine.operations(thread, 1000)]
            assert told == [(op.id, op.kind, op.undone) for op in reversed(self.logs.get(thread, []))]
        active = [t for t in self.activity if any(self.head((t, ns)) for ns in NAMESPACES)]
        assert [m.thread_id for m in engine.checkpointer.list_threads()] == active
        self.read_all(engine)
        if self.kind == "memory" or self.turn % 8 == 0:
            with self.fresh(("keep_all", 1)) as reader:  # one that remembers nothing: all must be in the store
                self.read_all(reader)

    def read_all(self, engine: Any) -> None:
        for node in self.nodes:
            found = engine.get(node.id)
            assert found == (node.value if node.stored else None)
            if node.stored:
                assert all(same(*both) for both in zip(parts(found), parts(node.value), strict=True))


CHOICES: dict[str, Callable[[Conflict], Any]] = {
    "none": lambda conflict: conflict.ours,
    "ours": lambda conflict: conflict.ours,
    "theirs": lambda conflict: conflict.theirs,
    "function": lambda conflict: conflict.ours if conflict.path.startswith("messages") else "decided",
    "mapping": lambda conflict: conflict.ours if conflict.path.startswith("messages") else "decided",
}


def check_conflicts(found: list[Conflict], ours: Node, theirs: Node, expected: Expected | None) -> None:
    for conflict in found:
        assert not same(conflict.ours, conflict.theirs)
    if expected is None:
        for field_ in ("state", "tools_result"):
            for key, value in getattr(ours.value, field_).items():
                if same(value, getattr(theirs.value, field_).get(key, MISSING)):
                    assert f"{field_}.{key}" not in [conflict.path for conflict in found]
        return
    told = {conflict.path: conflict for conflict in found if not conflict.path.startswith("messages")}
    in_messages = any(conflict.path.startswith("messages") for conflict in found)
    assert in_messages == ("messages" in expected.conflicts)
    wanted = {path: conflict for path, conflict in expected.conflicts.items() if path != "messages"}
    assert told.keys() == wanted.keys()
    for path, conflict in told.items():
        for name in ("base", "ours", "theirs"):
            assert same(getattr(conflict, name), getattr(wanted[path], name)), path


def check_merge(node: Node, ours: Node, theirs: Node, expected: Expected | None) -> None:
    found = node.value
    for name in ("state", "tools_result"):
        mine, other, result = getattr(ours.value, name), getattr(theirs.value, name), getattr(found, name)
        if expected is not None:
            wanted = getattr(expected, name)
            assert result.keys() == wanted.keys()  # Silent: their order
            assert all(same(result[key], wanted[key]) for key in wanted)
        for key in mine | other | result:
            one, two, three = (side.get(key, MISSING) for side in (mine, other, result))
            if same(one, two):
                assert same(three, one), key
            else:
                assert same(three, one) or same(three, two) or three == "decided", key
    names = [message["id"] for message in found.messages]
    assert len(names) == len({*names})
    if expected is not None:
        if expected.ordered:
            assert same(found.messages, expected.messages)
        wanted = {message["id"]: message for message in expected.messages}
        assert names == [name for name in names if name in wanted]
        assert len(names) == len(wanted)
        assert all(same(message, wanted[message["id"]]) for message in found.messages)
    else:
        both = {m["id"] for m in ours.value.messages} & {m["id"] for m in theirs.value.messages}
        assert both <= {*names}


def nearest(node: Node, listed: set[Node]) -> set[Node]:
    """Return the nearest ancestors that are listed, on every way back."""
    found: set[Node] = set()
    seen: set[Node] = set()
    pending = list(node.parents)
    while pending:
        parent = pending.pop()
        if parent in listed:
            found.add(parent)
        elif parent not in seen:
            seen.add(parent)
            pending.extend(parent.parents)
    return found


EXAMPLES = [("memory", 120), ("sqlite", 60), ("postgres", 16), ("redis", 25), ("cluster", 12)]


@pytest.mark.long
@pytest.mark.parametrize(("store", "examples"), EXAMPLES)
def test_a_store_behaves_like_the_model(store: str, examples: int) -> None:
    machine = type(f"Model_{store}", (Model,), {"kind": store})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
