"""A process on a small disk: a VFS below the store that has room for so many bytes. It says what became of its threads.

The disk has to be there before the checksums are loaded, which happens once in a process: so it needs one of its own.
"""

import os
import sys
from pathlib import Path
from typing import Any

import apsw

import everstep
from everstep.stores.sqlite import database as sqlite_database

sqlite_database._RESERVE_FROM_PAGES = 256  # a small disk is filled quickly
DISK_BYTES = 4 << 20
_STEPS = {"large": 6, "small": 2, "other": 1}


class _File(apsw.VFSFile):
    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        grows = offset + len(data) > self.xFileSize()
        if grows and used_bytes() + len(data) > DISK_BYTES:
            raise apsw.FullError("the small disk is full")
        super().xWrite(data, offset)


class _Disk(apsw.VFS):
    def __init__(self) -> None:
        self._below = apsw.vfs_names()[0]
        super().__init__("small disk", self._below, makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return _File(self._below, name, flags)


folder = Path(sys.argv[1])
disk = _Disk()
kept: dict[str, list[str]] = {}


def used_bytes() -> int:
    return sum(file.stat().st_size for file in os.scandir(folder))


def opened(policy: str = "keep_all", steps: int = 100) -> everstep.SyncEngine:
    config = everstep.SnapshotConfig(gc_policy=policy, gc_param=steps)
    return everstep.open(folder / "agent.db", config, synchronous="off").sync


def fill(engine: everstep.SyncEngine) -> int:
    """Append until the disk is full, and return how often it went well."""
    count = 0
    while True:
        for thread_id, steps in _STEPS.items():
            for _ in range(steps):
                text = os.urandom(1000).hex()
                try:
                    engine.append(thread_id, [{"role": "user", "content": text}])
                except everstep.StoreFull:
                    return count
                kept.setdefault(thread_id, []).append(text)
                count += 1


def check(engine: everstep.SyncEngine) -> None:
    """Every thread has what was appended to it, and nothing else."""
    for thread_id in _STEPS:
        found = engine.get_latest(thread_id)
        messages = [message["content"] for message in found.messages] if found is not None else []
        assert messages == kept.get(thread_id, []), thread_id


def main() -> None:
    with opened() as engine, opened("keep_last_n", 1) as collector:
        print("filled", fill(engine) > 500)
        check(engine)
        print("deleted", engine.checkpointer.delete_before("large", len(kept["large"])) == len(kept["large"]) - 1)
        check(engine)
        print("filled", fill(engine) > 0)
        print("collected", collector.collect().checkpoints > 100)
        check(engine)
        print("filled", fill(engine) > 0)
        print("deleted", engine.checkpointer.delete_thread("large") > 0)
        del kept["large"]
        check(engine)
        print("shorter", used_bytes() < DISK_BYTES * 2 // 3)
        print("filled", fill(engine) > 300)
        check(engine)
        print("deleted", engine.checkpointer.delete_thread("small") > 0)
        del kept["small"]
        check(engine)


if __name__ == "__main__":
    main()
