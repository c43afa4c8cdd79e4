"""What some stores can do besides what `protocol` asks of all: ways that are quicker, and bytes that go at once.

Whoever uses one of these asks with `isinstance` first, and does without it on other stores.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from everstep.stores.protocol import Key, Loaded, Object, Operation, Query, Stored


@runtime_checkable
class ReadsPages(Protocol):
    """A store that gives a page of checkpoints whole as easily as it lists them."""

    def read_page(self, query: Query) -> Coroutine[Any, Any, list[Loaded]]:
        """Return what `list_checkpoints` lists, with roots and pending writes, all as of one moment."""


@runtime_checkable
class ReadsTogether(Protocol):
    """A store on a server, which is asked about many threads in few round trips. For readers of whole stores."""

    def present(self, thread_ids: Sequence[str]) -> Coroutine[Any, Any, set[str]]:
        """Return which of these threads are there. A thread is there if `Store.thread` gives anything, or damage."""

    def heads(self, lines: Sequence[tuple[str, str]]) -> Coroutine[Any, Any, dict[tuple[str, str], str]]:
        """Return the ids of the heads of these lines, those that `Store.read` would give; no head is left out."""

    def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> Coroutine[Any, Any, list[Object]]:
        """Return these objects, by family, and everything below them. What is missing is left out."""


@runtime_checkable
class ReadsFamilies(Protocol):
    """A store that tells of all threads of a family at once: a family may have very many."""

    def logs(self, thread_ids: Sequence[str], limit: int) -> Coroutine[Any, Any, dict[str, list[Operation]]]:
        """Return what `Store.operations` gives for each of these threads."""

    def origins(self, thread_id: str) -> Coroutine[Any, Any, dict[str, Key]]:
        """Return where the branches of a thread's family began, by their names, the oldest first."""


class Origin(NamedTuple):
    """What a branch begins with, as of one moment."""

    stored: Stored
    top: int
    """The operation of its thread that undo would take back; 0: there is none."""


@runtime_checkable
class FindsOrigins(Protocol):
    """A store that reads in one look what a branch begins with, and checks `Change.remembered`."""

    async def origin(self, checkpoint_id: str) -> Origin | None:
        """Return the checkpoint of that id, and the top of its thread's log; None: they must be asked for one by one.

        So it is if there is none of that id, or several, or if the log must be looked through.
        """


@runtime_checkable
class Erasing(Protocol):
    """A store whose files hold deleted bytes for a while, and can be rid of them at once."""

    async def erase_deleted(self) -> None:
        """Leave nothing of what was deleted in the files of the store."""
