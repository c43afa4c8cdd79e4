"""What LangGraph's own savers hold, read as it is: nothing is ever written there.

See `stock_sqlite`, `stock_postgres` and `stock_memory`. Values go through the savers' own serializer. Bytes that were
met a moment ago are not decoded again: what is returned may share parts with what was returned before, so nobody may
change it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput, MissingDependency
from everstep.langgraph.saved import Pending
from everstep.langgraph.stock_values import remembering, stock_serializer
from everstep.opening.addresses import place_of
from everstep.stores.protocol import Key


class SourceEntry(NamedTuple):
    """A checkpoint as a list of the source shows it."""

    key: Key
    parent: Key | None
    size_bytes: int = 0
    """About what it takes by itself; channels that are kept beside it do not count."""


class Attached(NamedTuple):
    """The pending writes of a checkpoint as a list of the source shows them."""

    names: Sequence[tuple[str, int]]
    """Task and number."""
    size_bytes: int


class Outline(NamedTuple):
    """What there is of a thread, without values."""

    entries: Sequence[SourceEntry]
    """In any order."""
    heads: Mapping[str, str]
    """By namespace: the id that the stock saver takes for the newest."""
    written: Mapping[Key, Attached]
    """The pending writes, by the checkpoint they belong to."""


class SourceRow(NamedTuple):
    """A checkpoint of the source, with its values and pending writes."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: Sequence[Pending]
    size_bytes: int
    """What was read for it."""


class Source(ABC):
    """What a stock saver holds. Inside `reading` it is seen as of one moment."""

    def __init__(self, name: str, serde: Any) -> None:
        self.name = name
        self._serde = serde
        self._decode = remembering(serde)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While inside, everything is seen as of one moment."""
        with self.translated():
            self._begin()
        try:
            yield
        finally:
            with self.translated():
                self._end()

    @abstractmethod
    def threads(self) -> dict[str, int]:
        """Return every thread and how many checkpoints it has, those that were active last at the end."""

    @property
    def sees_many(self) -> bool:
        """Whether several threads may be seen as of one moment."""
        return True

    @abstractmethod
    def outlines(self, thread_ids: Sequence[str]) -> list[Outline]:
        """Return what there is of some threads, in their order."""

    @abstractmethod
    def metadata(self, thread_id: str, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        """Return the metadata of checkpoints."""

    @abstractmethod
    def rows(self, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[SourceRow]:
        """Yield checkpoints of threads that were outlined, in the order given."""

    @abstractmethod
    def writes(self, key: Key) -> tuple[list[Pending], int]:
        """Return the writes of a checkpoint, and their size."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Return what the tables take on disk."""

    @abstractmethod
    def saver(self) -> Any:
        """Return the stock saver over the same connection: it sees what we see."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def translated(self) -> contextlib.AbstractContextManager[None]:
        """Turn the driver's errors into ours."""

    def _loaded(self, kind: Any, data: Any, key: Key, what: str = "the checkpoint") -> Any:
        try:
            return self._decode.loads_typed((kind, data))
        except Exception as exc:
            refused = getattr(getattr(self._serde, "_unpack_ext_hook", None), "refused", None)
            if refused is not None:
                refused.add_note(f"{what}, thread {key.thread_id!r}, checkpoint {key.checkpoint_id!r} of the source")
                raise refused from None
            raise CheckpointCorrupted(
                f"{what} of the source cannot be read by its serializer ({exc!r:.200}); pass the one that wrote it as "
                "serde=",
                thread_id=key.thread_id,
                checkpoint_id=key.checkpoint_id,
            ) from exc


def open_source(url: object, serde: Any) -> Source:
    """Return the database at a URL or path, or a saver in memory: see `import_langgraph`.

    `serde` is the serializer that wrote it; None: the stock one, or the one of the saver.
    """
    from everstep.langgraph.stock_memory import MemorySource
    from everstep.langgraph.stock_postgres import PostgresSource
    from everstep.langgraph.stock_sqlite import SQLiteSource

    if all(hasattr(url, name) for name in ("storage", "writes", "blobs", "serde")):
        return MemorySource(url, serde)
    serde = serde if serde is not None else stock_serializer()
    kind, where = place_of(url)
    if kind == "sqlite":
        return SQLiteSource(where, serde)
    if kind == "postgres":
        return PostgresSource(where, serde)
    raise InvalidInput(
        "LangGraph's own savers are read from sqlite:///path and postgresql://..., or as an InMemorySaver, not from "
        "elsewhere"
    )


def entry_of(
    thread_id: str, namespace: str, checkpoint_id: str, parent_id: str | None, size_bytes: int = 0
) -> SourceEntry:
    """Return a row of a list of checkpoints as an entry."""
    key = Key(thread_id, namespace, checkpoint_id)
    parent = key._replace(checkpoint_id=parent_id) if parent_id else None
    return SourceEntry(key, parent, size_bytes)


def out_of_shape(key: Key) -> CheckpointCorrupted:
    """Return the error for what is no checkpoint."""
    return CheckpointCorrupted(
        "the checkpoint in the source is out of shape", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id
    )


def needed_to_verify(package: str) -> MissingDependency:
    """Return the error for a stock saver that is not installed."""
    return MissingDependency(package, instead=f"pip install {package}, or pass verify=False")
