"""What a store may offer to those who check and mend it, beyond what every store does: see `upkeep`.

A store shows threads, checkpoints and objects through its own indexes. What these do not show (a row that belongs to
nothing, an index that lacks an entry, a checksum that only the store computes) it must look for itself.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from everstep.stores.protocol import Key, Store

if TYPE_CHECKING:
    from everstep.reports import Finding


@runtime_checkable
class Checking(Protocol):
    """A store that can look at its own tables."""

    async def thread_names(self) -> list[str]:
        """Return the name of every thread that anything in the store tells of, damaged ones included."""

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with tables and indexes: all of it, not only the first. Content is left to readers.

        StoreMismatch if nothing tells that this was ever a store: then it is somebody else's, and not damaged.
        """


class Entry(NamedTuple):
    """A checkpoint, as far as it must be remembered to be compared with others."""

    key: Key
    seq: int
    segment: int
    step: int
    kind: str
    parents: tuple[Key, ...]
    pinned: bool
    hidden: bool
    children: bytes


class EntryPage(NamedTuple):
    """Checkpoints that follow one another, read and found whole."""

    entries: list[Entry]
    family: str | None
    """Of their thread; None if there are none."""
    bytes: int
    """What they take in the store, as far as that is known."""
    not_found_by: list[Key]
    """Those that would not be found by their tags or metadata: the index lacks what they have."""


@runtime_checkable
class ReadsEntries(Protocol):
    """A store that checks a page of checkpoints without making of each what a reader gets.

    What they are found by is looked at on the way, and not by `check_tables`: nothing is unpacked twice.
    """

    def read_entries(self, thread_id: str, namespace: str, *, after: int, limit: int) -> Coroutine[Any, Any, EntryPage]:
        """Return the checkpoints of a line behind a number, oldest first, hidden ones too; raise where a reader would.

        Only for stores that look at their own indexes (`Checking`): whether an id leads to the row is not tried here.
        """

    async def check_found_by(self) -> list[Finding]:
        """Return what `EntryPage.not_found_by` would, of all threads, for a store that is too damaged to be read."""


def finding_about(kind: str, what: str, thread_id: str | None, checkpoint_id: str | None = None) -> Finding:
    """Return what is wrong with something of one thread, or of none."""
    from everstep.reports import Finding  # only those who check a store need it

    threads: tuple[str, ...] = ()
    if thread_id is not None:
        threads = (thread_id,)
    return Finding(kind, what, thread_id, checkpoint_id, threads)


def not_found_by(key: Key) -> Finding:
    """Return what is wrong with an index that lacks what a checkpoint has."""
    what = "the checkpoint would not be found by its metadata or tags"
    return finding_about("index", what, key.thread_id, key.checkpoint_id)


class Lost(NamedTuple):
    """Something that cannot be read, or belongs to nothing: as it is stored."""

    what: str
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    stored: Any = None
    """The row or the value, as far as it could be had."""


@runtime_checkable
class Mending(Protocol):
    """A store that can put its tables right."""

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make tables and indexes agree, and return what went for it; with `dry_run` only tell.

        What cannot be read goes, but for checkpoints that others can name and delete, and so does what belongs to
        nothing. What follows from other rows is made from them anew. Whatever is whole stays.
        """

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return these checkpoints as they are stored, to be kept elsewhere before they go."""


@runtime_checkable
class Rehearsing(Protocol):
    """A store that can be copied with all its damage, so that a repair can be tried."""

    def rehearsal(self) -> AbstractAsyncContextManager[Store]:
        """Return a copy that is there as long as it is used. OSError or StoreError if there is none to be had."""
