"""What a store may offer to those who check and mend it, beyond what every store does: see `upkeep`.

A store shows threads, checkpoints and objects through its own indexes. What these do not show (a row that belongs to
nothing, an index that lacks an entry, a checksum that only the store computes) it must look for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from everstep.reports import Finding
from everstep.stores.protocol import Part, RawThread, Stored


@runtime_checkable
class Checking(Protocol):
    """A store that can look at its own tables."""

    async def thread_names(self) -> list[str]:
        """Return the name of every thread that anything in the store tells of, damaged ones included."""
        ...

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with tables and indexes: all of it, not only the first. Content is left to readers."""
        ...


class Lost(NamedTuple):
    """Something that cannot be read, or belongs to nothing: as it is stored."""

    what: str
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    stored: Any = None
    """The row or the value, as far as it could be had."""


class Salvage(NamedTuple):
    """All that can be read of a thread, row by row."""

    raw: RawThread
    """With what could not be read left out; heads may name checkpoints that are not among these."""
    checkpoints: Sequence[Stored]
    """Those that are whole, but for their objects; with roots."""
    lost: Sequence[Lost]


@runtime_checkable
class Mending(Protocol):
    """A store that can read around what is damaged, and put a thread in the place of what is there of it."""

    async def salvage(self, thread_id: str) -> Salvage | None:
        """Return what can be read of a thread; None: nothing is there."""
        ...

    async def replace_thread(self, part: Part) -> None:
        """Remove every row of thread `part.thread_id`, and take the part over in its place: all of it, or nothing.

        What the part names besides it (other threads of the family) is adopted as it is, see `Store.adopt`.
        """
        ...

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Remove what belongs to nothing, make indexes anew, and return what went; with `dry_run` only tell."""
        ...
