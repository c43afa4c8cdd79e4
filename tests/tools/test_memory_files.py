"""Files of the tests lie in memory only where that does no harm."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from tests.tools.memory_files import ROOM_BYTES, use_memory


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a test run does, on a machine that has room."""
    monkeypatch.setenv("TMPDIR", "somewhere")  # so that it is put back in the end
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    has(monkeypatch, disk_bytes=ROOM_BYTES, memory_bytes=ROOM_BYTES)


def has(monkeypatch: pytest.MonkeyPatch, *, disk_bytes: int, memory_bytes: int, flags: int = 0) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk_bytes))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory_bytes))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))


def test_they_lie_in_memory_where_there_is_room(tmp_path: Path) -> None:
    use_memory(tmp_path)
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize(
    ("disk_bytes", "memory_bytes", "flags"),
    [(ROOM_BYTES - 1, ROOM_BYTES, 0), (ROOM_BYTES, ROOM_BYTES - 1, 0), (ROOM_BYTES, ROOM_BYTES, os.ST_NOEXEC)],
)
def test_not_where_they_could_do_harm(
    disk_bytes: int, memory_bytes: int, flags: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, disk_bytes=disk_bytes, memory_bytes=memory_bytes, flags=flags)
    use_memory(tmp_path)
    assert "TMPDIR" not in os.environ


def test_not_where_there_is_no_such_folder(tmp_path: Path) -> None:
    use_memory(tmp_path / "none")
    assert "TMPDIR" not in os.environ


def test_a_place_that_was_chosen_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "chosen")
    use_memory(tmp_path)
    assert os.environ["TMPDIR"] == "chosen"
