"""What a backend supplies to become a store: ordered keys and values, in transactions. Nothing else.

Keys and values are bytes. A key has 1 to `KEY_BYTES_MAX` bytes, and keys are in the order of their bytes. A value may
be of any size. `KeyValueStore` does the rest: see docs/own-backend.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from everstep.errors import CheckpointCorrupted
from everstep.stores.records import DIGEST_BYTES, digest

# LMDB, as it is built by default, takes no more than 511.
KEY_BYTES_MAX = 500


class Reading(Protocol):
    """A transaction that reads: everything is as it was at one moment."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None: it is not there."""

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys with their values, in order: `start` <= key < `end`. With `reverse` the greatest comes first.

        Nothing is changed by whoever goes through them, until he is done.
        """


class Writing(Reading, Protocol):
    """A transaction that writes, and reads what it has written."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key, whether it is there or not."""

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""


class KeyValues(Protocol):
    """A backend. It is used by many threads at once. After `close` everything raises StoreClosed.

    Errors of a driver come out as StoreError, or as CheckpointCorrupted where bytes are not what was written.
    """

    @property
    def address(self) -> str:
        """Where it is, for people: shown when a store is printed."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def finds_damage(self) -> bool:
        """Whether it notices by itself that a stored byte was changed. If not, each value gets a checksum."""

    @property
    def limit_seconds(self) -> float | None:
        """How long a call may wait for others; None: it never waits for a disk or for other processes.

        Asynchronous callers of a backend that waits are served on worker threads.
        """

    def read(self, deadline: float) -> AbstractContextManager[Reading]:
        """Begin to read. `deadline` is by `time.monotonic`; who cannot begin by then raises StoreUnavailable."""

    def write(self, deadline: float) -> AbstractContextManager[Writing]:
        """Begin to write, as the only one: other writers, in other processes too, wait until the block ends.

        At the end of the block all that it wrote is there, for good. If the block raises, nothing of it is.
        """

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""


class SealedReading:
    """A transaction whose values begin with a checksum of the key and the value."""

    def __init__(self, tx: Reading) -> None:
        self._tx = tx

    def get(self, key: bytes) -> bytes | None:
        value = self._tx.get(key)
        return _opened(key, value) if value is not None else None

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._tx.scan(start, end, reverse=reverse):
            yield key, _opened(key, value)


class SealedWriting(SealedReading):
    """The same for one that writes."""

    def __init__(self, tx: Writing) -> None:
        super().__init__(tx)
        self._put = tx.put
        self.delete = tx.delete

    def put(self, key: bytes, value: bytes) -> None:
        self._put(key, digest(key, value) + value)


def unchecked(tx: Reading) -> Reading:
    """Return a transaction that looks at no checksums: for deleting what is damaged."""
    return tx._tx if isinstance(tx, SealedReading) else tx


def _opened(key: bytes, value: bytes) -> bytes:
    plain = value[DIGEST_BYTES:]
    if digest(key, plain) != value[:DIGEST_BYTES]:
        raise CheckpointCorrupted("a stored value does not match its checksum")
    return plain
