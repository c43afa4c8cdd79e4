"""A store of your own in one file: checkpoints in an LMDB database, for several threads and processes.

pip install lmdb
python examples/lmdb_store.py

LMDB keeps ordered keys and values in a file that is mapped into memory. Readers wait for nobody, and there is one
writer at a time among all processes. That is all that `KeyValueStore` asks for. So this file opens and closes the
database, begins and ends transactions, and translates errors. It passes everstep.testing.StoreContract: see
docs/own-backend.md.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

import everstep
from everstep.errors import CheckpointCorrupted, StoreClosed, StoreError, StoreFull, StoreUnavailable
from everstep.runtime import forks
from everstep.stores.keyvalue.store import KeyValueStore


class LMDBStore(KeyValueStore):
    """A store in an LMDB database."""

    def __init__(self, path: str | os.PathLike[str], **options: float) -> None:
        super().__init__(LMDBKeyValues(path, **options))


class LMDBTransaction:
    """Keys and values, as `everstep.stores.keyvalue.interface` wants them."""

    def __init__(self, tx: lmdb.Transaction[bytes]) -> None:
        self._tx = tx

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._tx.get(key)
        return value

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._tx.cursor() as cursor:
            if not reverse:
                if cursor.set_range(start):
                    for key, value in cursor.iternext():
                        if key >= end:
                            return
                        yield key, value
                return
            # `set_range` goes to the first key that is not less than `end`: the one before it is the first we want.
            is_found = cursor.prev() if cursor.set_range(end) else cursor.last()
            if is_found:
                for key, value in cursor.iterprev():
                    if key < start:
                        return
                    yield key, value

    def put(self, key: bytes, value: bytes) -> None:
        self._tx.put(key, value)

    def delete(self, key: bytes) -> None:
        self._tx.delete(key)


class LMDBKeyValues:
    """The backend. All that use one file in a process share one `_Database`: LMDB must not open a file twice."""

    finds_damage = False  # LMDB has no checksums, so each value gets one

    def __init__(
        self, path: str | os.PathLike[str], *, size_gigabytes_max: float = 64, timeout_seconds: float = 30
    ) -> None:
        """The file is sparse: `size_gigabytes_max` is only how large it may become.

        `timeout_seconds` bounds how long a call waits for writers of this process. Those of others are waited for as
        long as they take: LMDB has no limit for that.
        """
        self._path = Path(path).absolute()
        self._size_bytes_max = int(size_gigabytes_max * 2**30)
        self.limit_seconds = timeout_seconds
        self.is_closed = False
        self._database = _databases.setdefault(str(self._path), _Database(self._path))
        self._database.join()

    @property
    def address(self) -> str:
        return f"lmdb://{self._path}"

    @contextmanager
    def read(self, deadline: float) -> Iterator[LMDBTransaction]:  # noqa: ARG002  # readers wait for nobody
        self._check_open()
        with (
            _translated(self._path),
            self._database.entered(self._size_bytes_max) as environment,
            environment.begin() as tx,
        ):
            yield LMDBTransaction(tx)

    @contextmanager
    def write(self, deadline: float) -> Iterator[LMDBTransaction]:
        self._check_open()
        with (
            _translated(self._path),
            self._database.one_writer(deadline),
            self._database.entered(self._size_bytes_max) as environment,
            environment.begin(write=True) as tx,  # commits at its end, or aborts if something is raised
        ):
            yield LMDBTransaction(tx)

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreClosed(f"the store {self._path} is closed")

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._database.leave()


class _Database:
    """A file that is opened when it is needed. Nobody may be inside when it is closed, or when the process forks."""

    fork_order = 1

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self._gate = threading.Condition()
        self._users = self._inside = 0
        self._environment: lmdb.Environment | None = None
        forks.register(self)

    def join(self) -> None:
        with self._gate:
            self._users += 1

    def leave(self) -> None:
        with self._gate:
            self._users -= 1
            if not self._users:
                self._close()

    @contextmanager
    def one_writer(self, deadline: float) -> Iterator[None]:
        """Wait for other writers of this process. LMDB would do it too, but without an end."""
        if not self._writing.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise StoreUnavailable(f"{self._path}: other writers took too long")
        try:
            yield
        finally:
            self._writing.release()

    @contextmanager
    def entered(self, size_bytes_max: int) -> Iterator[lmdb.Environment]:
        with self._gate:
            if not self._users:
                raise StoreClosed(f"the store {self._path} is closed")
            if self._environment is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._environment = lmdb.open(str(self._path), map_size=size_bytes_max, subdir=False, mode=0o600)
                self._environment.reader_check()  # readers that died would keep old pages alive
            environment = self._environment
            self._inside += 1
        try:
            yield environment
        finally:
            with self._gate:
                self._inside -= 1
                self._gate.notify_all()

    def _close(self) -> None:
        self._gate.wait_for(lambda: self._inside == 0)
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def before_fork(self) -> None:
        """Before a fork: a child must not use what its parent has opened. Both open it again when they need it."""
        self._writing.acquire()
        self._gate.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._gate.release()
        self._writing.release()


_databases: dict[str, _Database] = {}


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn LMDB's errors into Everstep's."""
    try:
        yield
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as exc:
        raise CheckpointCorrupted(f"{path} is damaged: {exc}") from exc
    except lmdb.MapFullError as exc:
        raise StoreFull(f"{path} is as large as it may become: open it with a larger size_gigabytes_max") from exc
    except (lmdb.Error, OSError) as exc:
        raise StoreError(f"{path}: {exc}") from exc


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-example-") as folder:
        path = Path(folder) / "agent.lmdb"
        for text in ("Hello", "Here again, after a restart", "This was a mistake"):
            with everstep.CheckpointEngine(everstep.StoreBackend(LMDBStore(path))).sync as engine:
                engine.append("chat", [{"role": "user", "content": text}])
                show("saved  ", engine)
        with everstep.CheckpointEngine(everstep.StoreBackend(LMDBStore(path))).sync as engine:
            engine.time_travel_to_step("chat", 2)
            show("rewound", engine)
            engine.undo("chat")
            show("undone ", engine)


def show(what: str, engine: everstep.SyncEngine) -> None:
    latest = engine.get_latest("chat")
    assert latest is not None
    print(f"{what}  step {latest.metadata.step}: {[message['content'] for message in latest.messages]}")


if __name__ == "__main__":
    main()
