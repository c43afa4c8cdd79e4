"""What a store is: start reading here.

A store keeps checkpoints (records), the objects their values are made of, heads, pending writes, and a log of
operations. It sees bytes, hashes and a few columns; it never opens a body. One method changes a thread (`commit`), all
or nothing; the others read, attach writes, or remove.

Rules that hold for every store:

* A checkpoint is named by its Key: thread, namespace, id. Several threads may have a checkpoint of the same id.
* `seq` is the store's own order: later commits in a family get greater numbers, never used twice. Lists go by it.
* A thread belongs to a family for life; a branch belongs to its origin's. Objects are shared inside a family only.
* A segment is a stretch of a namespace in which every checkpoint follows the one before: inside it, order of arrival is
  ancestry. It is named by the seq of its first checkpoint. A checkpoint that follows anything else (an explicit older
  parent, a head that was moved, a merge, a branch's origin) starts a new segment, and the store keeps what that one
  follows as long as the family lives, also when those checkpoints or threads are deleted. So ancestry stays exact
  and needs no walk through history.
* Once a call returns, what it did survives a crash. If it raises one of our errors, it did nothing, except
  CommitUnknown, which says so.
* What a thread has lost (its head points to a checkpoint that is missing, its head is older than the newest checkpoint
  that follows it, a row that others count on is gone) is CheckpointCorrupted with the name of the thread, never None,
  an empty list, or a beginning at step 1. Other threads go on. A damaged thread can be deleted as a whole.
* Deleting what is not there is not an error. Driver errors come out as StoreError or CheckpointCorrupted.
* Methods are coroutines. A store's blocking face never suspends in them, so that `faces.run_to_end` can drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from everstep.errors import CheckpointCorrupted
from everstep.values.walk import Root

T = TypeVar("T")

__all__ = [
    "ANY",
    "ASIDE",
    "SHARED_STATES_MAX",
    "AnyHead",
    "BaseRef",
    "Change",
    "Deleted",
    "Draft",
    "Hidden",
    "Hit",
    "Key",
    "Loaded",
    "Move",
    "Newest",
    "Object",
    "Operation",
    "Outline",
    "Part",
    "Pin",
    "Place",
    "Position",
    "Query",
    "RawLine",
    "RawThread",
    "Record",
    "Root",
    "Search",
    "SharedState",
    "Store",
    "Stored",
    "Swept",
    "Thread",
    "Write",
]  # fmt: skip


class AnyHead(Enum):
    """The type of ANY."""

    ANY = "any"


ANY: Final = AnyHead.ANY
"""As an expected head: whatever it is."""


class Key(NamedTuple):
    """The full name of a checkpoint."""

    thread_id: str
    namespace: str
    checkpoint_id: str


class Object(NamedTuple):
    """Immutable bytes under their hash; `children` are the hashes it refers to, joined."""

    hash: bytes
    children: bytes
    body: bytes
    """Squeezed: see `values.compress`."""


class Record(NamedTuple):
    """A checkpoint as a store sees it: searchable metadata and the root of its values. Never changed after commit."""

    key: Key
    step: int
    parents: tuple[Key, ...]
    created_at: str
    children: bytes
    """The hashes the root refers to, joined. Marking starts here."""
    body: bytes
    """The root's own bytes."""
    sizes: tuple[int, ...]
    """The packed size of each of the values the root holds, in order."""
    tags: tuple[str, ...] = ()
    summary: str = ""
    next_node: str = ""
    trigger: str = ""
    kind: str = ""
    """Who wrote it: "" for the engine, else the adapter."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    repeats: int | None = None
    """What repetition in the values costs at most (see `values.tree`), if they are large and somebody has looked.

    A hint for who writes the next one. Readers look for themselves.
    """

    @property
    def root(self) -> Root:
        """The root of the values."""
        return Root(self.children, self.body, self.sizes)

    def with_root(self, root: Root) -> Record:
        """Return the same about other values."""
        return self._replace(children=root.children, body=root.body, sizes=root.sizes)


class Stored(NamedTuple):
    """A record, and what the store knows about it."""

    record: Record
    seq: int
    family: str
    pinned: bool = False
    hidden: bool = False
    """Set when reading and listing; not on what `commit` returns or hands to `build`."""
    digest: bytes = b""
    """A checksum of the record: tells a replaced checkpoint from the one that was read."""
    segment: int = 0
    added_bytes: int = 0
    """What the commit sent with it: an estimate of what deleting it may free."""
    entry: int = 0
    """On what `commit` returns: the number of the entry that the change added to a log; 0: it added none."""

    @property
    def place(self) -> Place:
        """Its place in the ancestry."""
        return Place(self.record.key, self.segment, self.seq)


class Place(NamedTuple):
    """Where a checkpoint is, or was, in the ancestry: its segment, and its seq in it."""

    key: Key
    segment: int
    seq: int


class RememberedOrigin(NamedTuple):
    """What was known of the checkpoint that a branch begins with, some time before."""

    place: Place
    top: int
    """The newest entry in its thread's log, which was not undone; 0: the log was empty."""


class BaseRef(NamedTuple):
    """A checkpoint whose objects a draft may leave out."""

    key: Key
    digest: bytes


class Draft(NamedTuple):
    """A checkpoint ready to be committed."""

    record: Record
    objects: Sequence[Object]
    """Every object reachable from the record, but those reachable from `bases`."""
    bases: Sequence[BaseRef] = ()


class Move(NamedTuple):
    """Set the head of a namespace to a stored checkpoint, or to nothing."""

    namespace: str
    checkpoint_id: str | None


class Hidden(NamedTuple):
    """A stretch of a namespace that is stored but not listed: `after` < seq <= `to`, of one segment or (None) of all.

    With `writes_of` it is the pending writes of that checkpoint that are hidden instead, by their own seq. They are put
    aside: what the same task writes anew is kept beside them, and makes room if they are shown again.
    """

    namespace: str
    after: int
    to: int
    segment: int | None = None
    writes_of: str | None = None
    operation: int = 0
    """The operation that hides it; 0: the one that is logged in the same change."""


class Pin(NamedTuple):
    """Set or lift the mark that retention must keep a checkpoint."""

    key: Key
    pinned: bool


SHARED_STATES_MAX = 8
"""How many common states of a pair of threads are kept: after an undo or rewind an older one counts again."""


class SharedState(NamedTuple):
    """A state that two threads had in common. Its objects are kept, whatever becomes of the checkpoint."""

    place: Place
    root: Root


class Operation(NamedTuple):
    """An entry of a thread's log."""

    kind: str
    data: Mapping[str, Any]
    seq: int = 0
    """Given by the store."""
    undone: bool = False


class Change(NamedTuple):
    """What one commit does to a thread: everything, or nothing.

    `build` makes the new checkpoint. It is called with the head that the checkpoint will follow (None: the namespace
    is empty), inside the commit, so it must be quick, pure and repeatable; what it raises comes out of `commit`.
    """

    thread_id: str
    namespace: str = ""
    expect: str | AnyHead | None = ANY
    """The head must have this id, or (None) there must be no head; else HeadMoved."""
    build: Callable[[Stored | None], Draft] | None = None
    head: Literal["always", "newer", "never"] = "always"
    """Whether the head moves to the new checkpoint; "newer": if its id is greater than the head's or its parent is
    the head. A checkpoint that replaces one of the same id never moves the head."""
    prune: Sequence[int] = ()
    """Checkpoints of this namespace (by seq) that retention lets go, if they are not protected: see `Store.delete`.

    Not if the new checkpoint starts a segment: somebody has changed what is visible since this was planned."""
    fresh: bool = False
    """The ids of the new checkpoints, and with `origin` the id of the thread, were made for this change by chance.

    They replace nothing: where one is in use already, with other content, IdTaken is raised and nothing is done."""
    origin: Key | None = None
    """The thread begins here as a branch, and joins that family."""
    shared_states: Mapping[str, SharedState] = MappingProxyType({})
    """By thread: what this one has in common with it from now on. The newest 8 of each pair of threads are kept."""
    moves: Sequence[Move] = ()
    show: Collection[int] = ()
    """Operations (by seq) whose hidden stretches of this thread are lifted, before anything is hidden."""
    hide: Sequence[Hidden] = ()
    pins: Sequence[Pin] = ()
    log: Operation | None = None
    amend: Sequence[Operation] = ()
    """Operations (by seq) whose data is replaced and whose mark as undone is turned over; else HeadMoved."""
    log_thread: str | None = None
    """The thread of the family whose log `log` and `amend` are about; None: this one."""
    other_namespaces: Sequence[Draft] = ()
    """More new checkpoints, each in another namespace of this thread, and its head from now on.

    HeadMoved if one names parents, and the first of that namespace is not its head; if none is, it must have no head.
    """
    writes: Sequence[tuple[Key, Write]] = ()
    """Pending writes of the new checkpoints. The objects they need are in the drafts."""
    remembered: RememberedOrigin | None = None
    """BaseGone unless `origin` is still so, and the only checkpoint of its id. For stores that are `FindsOrigins`."""


ASIDE: Final = 1 << 32
"""Pending writes that are hidden have an idx beyond this, so that their places are free."""


class Write(NamedTuple):
    """A pending result attached to a checkpoint. Its value is a node: `children` and `body`."""

    task_id: str
    idx: int
    channel: str
    children: bytes
    body: bytes
    size: int
    task_path: str = ""
    seq: int = 0
    """Given by the store."""


class Loaded(NamedTuple):
    """One checkpoint, with what was asked for."""

    stored: Stored
    generation: int
    """Counts the moves of the namespace's head. Never goes down, unless the store lost writes."""
    objects: Sequence[Object] = ()
    writes: Sequence[Write] = ()


class Thread(NamedTuple):
    """What a store knows about a thread."""

    thread_id: str
    family: str
    origin: Key | None
    """Where it began as a branch."""
    heads: Mapping[str, tuple[str, int]]
    """By namespace: the id of the head and its generation."""
    newest: Mapping[str, int]
    """By namespace: the highest seq."""
    hidden: Mapping[int, Sequence[Hidden]]
    """By operation: what it hides."""
    segments: Mapping[int, Sequence[Place]]
    """What each segment of the thread follows, in the order of parents. Only the first of a namespace may be absent."""
    ancestry: Mapping[int, Sequence[Place]]
    """If asked for: what every segment of the family follows, also the segments of deleted threads."""
    branches: Sequence[str]
    """If asked for: the threads that began as branches of this one, in the order they did."""
    shared_states: Mapping[str, Sequence[SharedState]]
    """By thread: the last states in common with it, the oldest first."""
    protected: frozenset[int]
    """The seqs of checkpoints that retention must keep: pinned ones, and those where living branches began."""
    garbage: float
    """About how much of what the family holds nobody needs, as a share of what is needed."""

    def head_id(self, namespace: str) -> str | None:
        """Return the id of the head, if there is one."""
        head = self.heads.get(namespace)
        return head[0] if head is not None else None


class Outline(NamedTuple):
    """What a collection must know of a thread to pass it over."""

    thread_id: str
    family: str
    most: int
    """How many checkpoints the longest of its namespaces has, hidden ones included."""
    has_log: bool
    is_swept: bool
    """Whether the family was swept, and nothing has gone since that may have left objects nobody needs."""


class Newest(NamedTuple):
    """The newest checkpoints of a thread and of the branches that came from it."""

    listed: Sequence[Stored]
    """Newest first."""
    heads: frozenset[Key]
    """The heads of the threads that are looked at."""
    total: int
    """How many checkpoints these threads list."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which checkpoints to list or count."""

    thread_id: str | None = None
    """None: of every thread."""
    namespace: str | None = ""
    """None: of every namespace."""
    checkpoint_id: str | None = None
    """Only this id."""
    before_id: str | None = None
    """Only ids smaller than this one, by code points."""
    before_seq: int | None = None
    after_seq: int | None = None
    step_max: int | None = None
    segment: int | None = None
    protected: bool | None = None
    """Only those that retention must keep (see Thread), or only the others."""
    filter: Mapping[str, Any] = field(default_factory=dict)
    """Metadata that must be there and be exactly equal: as encoded bytes, so 1, 1.0 and True differ."""
    order: Literal["seq", "id", "oldest"] = "seq"
    """Newest first, greatest id first, or oldest first."""
    hidden: Literal["no", "also", "only"] = "no"
    limit: int | None = None
    offset: int = 0


class Position(NamedTuple):
    """The place of a thread in the order of activity."""

    active: int
    """Microseconds since 1970, by the clock of the store: when a head of it moved last."""
    thread_id: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which threads to find. What is asked of a checkpoint is asked of the one that the thread is listed by."""

    prefix: str = ""
    """What the name begins with, code point by code point."""
    filter: Mapping[str, Any] = field(default_factory=dict)
    """As in Query."""
    tags: frozenset[str] = frozenset()
    """All of these."""
    since: int | None = None
    """Only threads that were active then (microseconds since 1970) or later."""
    after: Position | None = None
    """Only threads that come after this place in the order."""
    limit: int = 50


class Hit(NamedTuple):
    """A thread that was found."""

    stored: Stored | None
    """What it is listed by: see `Store.list_threads`. None: that cannot be read."""
    position: Position
    damage: CheckpointCorrupted | None = None
    """Why it cannot be read. Whether it has what was asked for is then known as far as an index tells."""

    @property
    def whole(self) -> Stored:
        """What it is listed by; CheckpointCorrupted with its name if that cannot be read."""
        if self.stored is None:
            raise self.damage or CheckpointCorrupted("it cannot be read", thread_id=self.position.thread_id)
        return self.stored


class Deleted(NamedTuple):
    """What a deletion removed."""

    checkpoints: int
    families: frozenset[str]
    """Families that may now hold objects nobody needs: sweep them."""


class Swept(NamedTuple):
    """What a sweep removed."""

    objects: int
    size_bytes: int
    finished: bool = True


class RawLine(NamedTuple):
    """A namespace of a thread, as another store can take it over."""

    head: str | None
    head_was_moved: bool
    """The head was moved: what comes next starts a segment."""
    generation: int
    active: int
    """Microseconds since 1970: orders threads by activity, nothing else."""
    segments: frozenset[int] = frozenset()
    """The segments of this namespace that the store keeps something about: see `Thread.segments`."""
    newest: int = 0
    """The highest seq. Not looked at by `adopt`."""


class RawThread(NamedTuple):
    """All that a store keeps of a thread besides its checkpoints and their objects, as of one moment."""

    thread_id: str
    family: str
    """The store's own name for it. Not looked at by `adopt`."""
    identity: bytes
    """The family's name among all of all stores: that of the store, chosen at random when it was made, and `family`, if
    that is never used twice. Not looked at by `adopt`: a copy is a family of its own."""
    lines: Mapping[str, RawLine]
    """By namespace: all that there are, those without a head included."""
    origin: Key | None = None
    began: int = 0
    """The seq of the origin; 0: there is none, or it is not stored any more."""
    pinned: frozenset[int] = frozenset()
    """By seq."""
    hidden: Sequence[Hidden] = ()
    """In any order."""
    operations: Sequence[Operation] = ()
    """The whole log, the oldest first."""
    writes: Sequence[tuple[Key, Write]] = ()
    """All pending writes by seq: hidden ones, and those whose checkpoint is not stored, included."""
    shared_states: Mapping[str, Sequence[SharedState]] = MappingProxyType({})
    note: bytes = b""
    """Whatever `adopt` was given to keep with the thread; nobody else changes it."""
    family_threads: Sequence[str] = ()
    """If asked for: every thread of the family, this one included. Not looked at by `adopt`."""

    @property
    def active(self) -> int:
        """When it was active last, in any of its namespaces."""
        return max((line.active for line in self.lines.values()), default=0)

    def roots(self) -> list[bytes]:
        """Return what it refers to besides its checkpoints: the children of pending writes, and of states in common."""
        found = [write.children for _, write in self.writes]
        for shared_states in self.shared_states.values():
            found += [common.root.children for common in shared_states]
        return found


class Part(NamedTuple):
    """A part of a family that comes from another store. Its numbers are the ones it shall have here.

    Numbers (of checkpoints, segments, writes, operations) are reserved first, by a part of its own: see `Store.adopt`.
    """

    thread_id: str
    """A thread of the family, the same for all parts: made (empty, in a new family) if it is not there."""
    note: bytes | None = None
    """To be kept with that thread; None: leave it."""
    reserve: int = 0
    objects: Sequence[Object] = ()
    checkpoints: Sequence[Stored] = ()
    """With their seq, segment and added bytes. `family`, `hidden`, `digest` and `pinned` are not looked at."""
    packed: Mapping[Key, tuple[bytes, bytes]] = MappingProxyType({})
    """What `records.pack_record` gives for checkpoints, of those where the sender has it at hand."""
    segments: Mapping[int, Sequence[Place]] = MappingProxyType({})
    """What segments of the family follow. `threads` says which namespace each belongs to; others belong to none."""
    gone: Sequence[Key] = ()
    """Checkpoints that go, whatever they are. Their threads are among `threads`, which set heads and writes."""
    threads: Sequence[RawThread] = ()


class Store(Protocol):
    """Keeps checkpoints. See the top of this file for the rules that hold throughout."""

    @property
    def blocking(self) -> Store:
        """The same store, with methods that never suspend."""

    @property
    def limit_seconds(self) -> float | None:
        """How long a public call on this store may take as a whole; None: it never waits. See `deadlines`."""

    async def in_turn(self, thread_id: str, work: Callable[[Store], Coroutine[Any, Any, T]], seconds: float = 0.0) -> T:
        """Return what `work` does on the store it is given, while no other writer changes the thread's family.

        For writers that others were faster than too often; those then wait. `work` reads and commits, once and as its
        last act, on that store alone. It may be run again, and on another thread. `seconds` is about how long it takes.
        A store that cannot keep others away for ever (the holder may have died) may let one in: what is committed
        names the head that it saw, as always, so that this is noticed.
        """

    async def clock(self) -> float:
        """Return the time in seconds since 1970, by the clock that all users of the store share if there is one."""

    async def commit(self, change: Change) -> Stored | None:
        """Apply `change` and return the checkpoint it made, if any.

        A draft whose id is stored already is compared by content: the same is a no-op (`expect` is not looked at
        then, so a retry is safe), another replaces it in place and keeps its seq and the head, or is IdTaken if the
        id is `fresh`. Its `bases` must be stored exactly as named, else BaseGone. A head moved to, or a pin on, a
        checkpoint that is not stored is CheckpointNotFound.
        """

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        """Attach writes to a checkpoint, which need not be stored yet. Creates the thread if need be.

        One (task_id, idx) holds one write: with idx >= 0 the first stays, with idx < 0 the last wins.
        """

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        """Return a checkpoint (None: the head), hidden or not; with `objects`, everything below its root.

        Writes come in the order (task_path, task_id, idx), hidden ones left out.
        """

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        """Return these checkpoints, hidden or not, in the order asked for; what is missing is left out. No objects."""

    async def find(self, checkpoint_id: str) -> list[Key]:
        """Return every checkpoint of that id, in any thread."""

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        """Return these objects and, unless told not to, everything below them. What is missing is left out."""

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        """Return checkpoints in the order asked for. No objects are read."""

    async def count(self, query: Query) -> int:
        """Return how many checkpoints `list_checkpoints` would give."""

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        """Return the head of each thread's root namespace (or of its first), most recently active first.

        With `headless` also threads that have only hidden checkpoints, each by one of them. A damaged thread keeps its
        place in the order as far as it is known: who asks for a page with it gets CheckpointCorrupted with its name,
        and the other pages stay as they are.
        """

    async def search(self, search: Search) -> list[Hit]:
        """Return threads, most recently active first, and among those of one moment the greatest name first.

        Each is shown as by `list_threads`; one that is damaged takes nothing from the others: it has its place among
        them, with the damage instead of a checkpoint. It costs about what there is to find, not what the store holds:
        see `facts` for what is looked up in an index.
        """

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        """Return what is known about a thread; if `brief` without `hidden`, `segments` and `protected`, which grow."""

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        """Return the segments of a namespace that began after a seq, in order, but for those hidden as a whole.

        A stretch that covers the beginning of a segment covers all of it: a segment that was left behind grows no more.
        """

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        """Return what these segments of a family follow, also if they are segments of deleted threads.

        A segment that the store keeps nothing about is left out: it follows nothing. With `older` there may be others
        as well, about so many that began just before: whoever goes back is likely to ask for them next.
        """

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        """Return the newest visible checkpoints of a thread in all namespaces but `without`; None: it has no head.

        With `branches` also the checkpoints of its branches, of their branches, and so on; threads without a head
        are left out, with what came from them.
        """

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:
        """Return some of the threads that have checkpoints, and from which position to go on; None: these are all."""

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        """Return the newest entries of the thread's log, newest first."""

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        """Delete the named checkpoints, or all that have a smaller step, or (with neither) the whole thread.

        `deletion.delete` is what this means:

        * With `spare` (retention) protected checkpoints stay: heads, pinned ones, and those where a living branch
          began. Without it nothing is protected.
        * The pending writes of a checkpoint, hidden ones included, go exactly when it does. Early writes, whose
          checkpoint is not stored, go when they are named, with `spare` too, and with the whole thread; by a step
          they stay, since they have none.
        * A head that is gone falls back to the newest checkpoint left in its namespace that is not hidden, or to
          none: one more generation, and what comes next starts a segment. The thread does not become active by it.
        * Hidden stretches that have nothing left to hide are dropped. `operations` are entries of the log to drop as
          well; otherwise the log stays whole, also where it names what is gone.
        * A namespace with neither checkpoints nor pending writes is gone. What its segments followed stays known to the
          family. One of that name that comes later may count generations on from there.
        * A thread without namespaces is gone, with its log and all states it had in common with others, and is not
          counted any more where it began. One that has early writes only is still there, with its log; it is not
          listed.
        * Objects stay until `sweep`, but for a family without threads, whose objects go at once.

        What a commit prunes follows the first two rules; the rest is left to the next deletion.
        """

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        """Remove the family's objects that no checkpoint, write or common state reaches, and give the space back.

        With `effort` look at about so many objects and go on from there in the next call. With `pretend` remove
        nothing: tell what would go if these checkpoints were deleted.
        """

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        """Return a thread as another store can take it over, its checkpoints left aside."""

    async def adopt(self, part: Part) -> int:
        """Take over a part of a family from another store: all of it, or nothing. For `copying` and `staging` alone.

        Threads that are not there are made, in the family of `part.thread_id`; one that is there in another family is
        InvalidInput. Applying the same part again changes nothing more, but for what it reserves. In this order:

        * `reserve`: set aside so many numbers that this family will not get otherwise, and return the highest that it
          may have used before: the caller numbers what comes from there on. (A store that numbers all families
          together reserves among all of them; one that does not returns 0 for a new family.) Later commits get
          greater numbers than those reserved. Nothing to reserve: what is returned has no meaning.
        * `gone`, then `objects`, `checkpoints`, `segments`: put, or replaced where the same key is there. A new
          checkpoint is not pinned and moves no head, so a thread that has no head yet stays unlisted. Nothing is
          checked: what a checkpoint needs may come in another part, before it.
        * `threads`: each becomes exactly as given, with its heads, `head_was_moved`, generations, activity, pins (of
          the checkpoints that are stored), hidden stretches, log, pending writes, origin and note, and has no other
          namespaces. The states in common with each thread of the family that is named are replaced; others stay. A
          head that is neither stored nor in this part is CheckpointNotFound.
        """

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        """Take over whole threads that are not here yet, each as a new family; HeadMoved if one is here. For `staging`.

        Each part has one thread, its own, with `objects`, `checkpoints`, `segments` and pending writes, and nothing
        else. Its numbers are from 1 to `reserve`; the store adds to all of them what it takes to make them its own.
        All threads come in one transaction, or in few: where threads are kept apart from one another each comes whole,
        but some may have come when others are refused.
        """

    async def close(self) -> None:
        """Let go of everything. Calls after it raise StoreClosed; closing twice is fine."""
