"""Damage to files, as a disk does it that nobody has noticed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from everstep.stores.sqlite import schema
from everstep.stores.sqlite.connecting import checksum_vfs


def damage_checkpoint(path: Path, thread_id: str, step: int) -> str:
    """Change a bit of what a SQLite store says about a step of a thread, and return the id of its checkpoint."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checksum_vfs())) as connection:
        schema.add_functions(connection)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        rows = connection.execute(
            """SELECT c.seq, c.id, c.info FROM checkpoints c JOIN lines l ON l.id = c.line
               JOIN threads t ON t.id = l.thread WHERE t.name = ? AND c.step = ? ORDER BY c.seq DESC LIMIT 1""",
            (thread_id, step),
        )
        ((seq, checkpoint_id, info),) = rows.fetchall()
        assert isinstance(info, bytes)
        flipped = bytearray(info)
        flipped[len(flipped) // 2] ^= 4
        connection.execute("UPDATE checkpoints SET info = ? WHERE seq = ?", (bytes(flipped), seq))
    return str(checkpoint_id)


def pages_of(path: Path, table: str) -> list[int]:
    """Return the pages of a SQLite file that hold the rows of a table."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=checksum_vfs())) as connection:
        found = connection.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,))
        return [page for (page,) in found]


def break_page(path: Path, page: int) -> None:
    """Write over all of a page but its first bytes, which say what kind of page it is."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    start = (page - 1) * size
    content[start + 8 : start + size] = b"\xa5" * (size - 8)
    path.write_bytes(content)
