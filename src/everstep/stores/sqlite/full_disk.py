"""Deleting where the disk is full.

Every commit is written to the log first, so that deleting needs room before it gives any back. So a little is set
aside while there is room: a companion file that holds nothing, and that is given up when a deletion does not fit. Then
the log can be moved into the file and cut off, and what is to go is deleted in steps that fit where the log was. A
crash between two steps leaves a thread without its oldest checkpoints, and the rest of it whole; deleting it again
goes on.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep.errors import StoreFull
from everstep.stores.deletion import Deletion
from everstep.stores.protocol import Deleted, Swept
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sweeping import Driver, Sweep

_STEP_FIRST, _STEP_MAX, _SMALLER = 16, 512, 4  # checkpoints, objects or pages
_SWEEPS_MAX = 10  # of a family, if others remove objects of it meanwhile
_LENT_BYTES = 65_536


class Reserve:
    """Room on the disk beside a database. Whatever goes wrong with it, the store works as it would without."""

    def __init__(self, database: Path) -> None:
        self._database = os.path.realpath(database)
        self._path = f"{self._database}-reserve"

    def keep(self, size_bytes: int, leaving_bytes: int) -> None:
        """Have so much set aside, if so much is left for others then."""
        try:
            held = self._held_bytes()
            if held >= size_bytes or self._free_bytes() - (size_bytes - held) < leaving_bytes:
                return
            self._allocate(size_bytes)
        except OSError:
            # A part of it may be there; there is no room, or no right to it.
            self.give_up()

    def lend(self) -> bool:
        """Give up what SQLite needs to open a database; return whether there was something to give."""
        try:
            held = self._held_bytes()
            if held:
                os.truncate(self._path, max(held - _LENT_BYTES, 0))
        except OSError:
            return False
        return held > 0

    def give_up(self) -> int:
        """Let others have the room; return how much it was."""
        try:
            held = self._held_bytes()
            os.unlink(self._path)
        except OSError:
            return 0
        return held

    def _held_bytes(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _free_bytes(self) -> int:
        found = os.statvfs(os.path.dirname(self._database))
        return found.f_bavail * found.f_frsize

    def _allocate(self, size_bytes: int) -> None:
        """Make the file so long. Who may use the database may use it too, and nobody else."""
        mode = os.stat(self._database).st_mode & 0o777
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            if os.fstat(handle).st_mode & 0o777 != mode:  # the umask took something away
                os.fchmod(handle, mode)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size_bytes)
            else:
                os.write(handle, bytes(size_bytes))
        finally:
            os.close(handle)


class Steps:
    """Deletions in steps. A commit that does not fit is tried again without the log before it, and then in parts."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def delete(self, deletion: Deletion) -> Deleted:
        """Do what `Store.delete` says."""
        thread_id = deletion.thread_id
        family = await self._driver.read(lambda rows: rows.family(thread_id))
        left = await self._driver.read(lambda rows: rows.doomed_keys(deletion))
        count = 0

        async def step(size: int) -> bool:
            nonlocal left, count
            some = Deletion(thread_id, left[:size], spare=deletion.spare)
            count += await self._driver.write(lambda rows: rows.delete_some(some), thread_id)
            left = left[size:]
            return bool(left)

        def finish(rows: Rows) -> Deleted:
            return rows.delete(deletion)

        if left:
            await _in_steps(step)
        if await self._driver.read(lambda rows: _is_empty(rows, thread_id)):
            # With the last thread of a family all its objects go at once. So those that nobody needs go before.
            await self.sweep(family)
        last = await self._driver.write(finish, thread_id)
        return Deleted(count + last.checkpoints, frozenset({family})) if count else last

    async def sweep(self, family: str) -> Swept:
        """Remove all objects of a family that nobody needs."""
        sweep = Sweep(family)
        for _ in range(_SWEEPS_MAX):
            if await self._swept(sweep):
                break
            sweep = Sweep(family)
        return sweep.swept

    async def shrink(self) -> None:
        """Give free pages back to the file system."""

        async def step(size: int) -> bool:
            return await self._driver.write(lambda rows: bool(rows.shrink(size)), "")

        await _in_steps(step)

    async def _swept(self, sweep: Sweep) -> bool:
        """Carry a sweep to its end; return False if it was overtaken."""
        is_valid = True

        async def step(size: int) -> bool:
            nonlocal is_valid
            is_valid = await sweep.go_on(self._driver, size)
            return is_valid and not sweep.swept.finished

        await _in_steps(step)
        return is_valid


def _is_empty(rows: Rows, thread_id: str) -> bool:
    """Whether a thread is there, and nothing in it."""
    lines = rows.lines(thread_id)
    return bool(lines) and all(rows.is_empty(line) for line in lines)


async def _in_steps(step: Callable[[int], Awaitable[bool]]) -> None:
    """Call `step` with how much to do at once until it says that nothing is left, with less where that did not fit."""
    size = _STEP_FIRST
    size_max = _STEP_MAX
    while True:
        try:
            is_more_left = await step(size)
        except StoreFull:
            if size == 1:
                raise
            size = size_max = max(1, size // _SMALLER)
            continue
        if not is_more_left:
            return
        size = min(2 * size, size_max)
