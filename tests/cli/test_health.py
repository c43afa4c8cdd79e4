"""What `everstep doctor` finds, and what it advises."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from everstep.cli import health
from tests.cli.conftest import Done, Run, start_process
from tests.tools import servers

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
//share /mnt/my\\040share cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "status"),
    [
        ("/var/lib", "ext4", "ok"),
        ("/home/ada/agent", "nfs4", "fail"),
        ("/homes", "ext4", "ok"),
        ("/tmp", "tmpfs", "warn"),
        ("/mnt/my share/x", "cifs", "fail"),
    ],
)
def test_a_network_file_system_is_found(folder: str, kind: str, status: str) -> None:
    assert health.file_system_of(Path(folder), MOUNTS) == kind
    assert health.check_file_system(Path(folder), MOUNTS).status == status


def test_a_file_that_others_may_read_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch(0o600)
    assert health.check_permissions(path).status == "ok"
    os.chmod(path, 0o644)
    assert health.check_permissions(path).advice == f"chmod 600 {path}"


def test_clocks_that_disagree_are_a_warning() -> None:
    assert health.check_clock(NOON, NOON).status == "ok"
    assert health.check_clock(None, NOON).status == "ok"
    assert health.check_clock(NOON + timedelta(minutes=2), NOON).status == "warn"
    assert health.check_skew(NOON - timedelta(minutes=2), NOON).status == "warn"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}, []),
        ({"appendonly": "no"}, ["durability warn"]),
        ({"appendonly": "yes", "appendfsync": "everysec"}, ["durability warn"]),
        ({"appendonly": "yes", "maxmemory-policy": "allkeys-lru", "maxmemory": "100"}, ["memory fail", "memory warn"]),
        ({"appendonly": "yes", "maxmemory-policy": "allkeys-lru"}, ["memory warn"]),
    ],
)
def test_settings_of_redis_are_judged(settings: dict[str, str], found: list[str]) -> None:
    judged = health.judge_redis({"used_memory": 95}, settings)
    assert [f"{finding.check} {finding.status}" for finding in judged] == found


def test_little_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    assert health.check_space(tmp_path, path).status == "ok"
    little = shutil.disk_usage(tmp_path)._replace(free=health.SPACE_MIN_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)
    assert health.check_space(tmp_path, path).status == "warn"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def content_of(done: Done) -> tuple[str, str]:
    (found,) = [check for check in done.json["checks"] if check["check"] == "content"]
    return found["status"], found["advice"]


def test_a_damaged_file_is_told_and_what_helps(own_file: Path) -> None:
    whole = start_process("doctor", "--store", own_file, "--json")
    assert (whole.code, content_of(whole)[0]) == (0, "ok")

    # A byte in the middle of an object: only the checksum of its page tells.
    at = own_file.read_bytes().rindex(b"Lighthouse")
    flip(own_file, at)
    flipped = start_process("doctor", "--store", own_file, "--json")
    assert content_of(flipped)[0] == "warn"
    assert "everstep verify" in content_of(flipped)[1]

    # The header of a page in the middle.
    page_bytes = int.from_bytes(own_file.read_bytes()[16:18], "big")
    flip(own_file, own_file.stat().st_size // page_bytes // 2 * page_bytes)
    broken = start_process("doctor", "--store", own_file, "--json")
    assert (broken.code, content_of(broken)[0]) == (1, "fail")


def test_a_file_that_was_cut_off_is_not_taken_for_a_server(own_file: Path) -> None:
    content = own_file.read_bytes()
    own_file.write_bytes(content[: len(content) // 2])
    done = start_process("doctor", "--store", own_file, "--json")

    assert done.code == 1
    assert "everstep repair" in done.json["checks"][-1]["advice"]


def test_a_look_at_a_large_file_ends_in_time(demo_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_STEPS_BETWEEN_LOOKS", 1)
    found = health.check_content(demo_file, seconds=0)

    assert found.status == "ok"
    assert "in 0 s" in found.message


def test_a_healthy_file(run: Run, demo_file: Path) -> None:
    done = run("doctor", "--store", demo_file, "--json")

    assert done.code == 0
    assert {check["check"] for check in done.json["checks"]} >= {"versions", "driver", "space", "permissions", "store"}
    assert not [check for check in done.json["checks"] if check["status"] == "fail"]


def test_a_file_that_is_no_store(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear reader, this is no database. " * 100)

    done = run("doctor", "--store", path)

    assert done.code == 1
    assert "fail\tstore" in done.out


def test_servers_whose_settings_weaken_durability(run: Run) -> None:
    postgres = run("doctor", "--store", servers.postgres(), "--json").json
    redis = run("doctor", "--store", servers.redis(), "--json").json

    for found in (postgres, redis):
        checks = {check["check"]: check for check in found["checks"]}
        assert checks["server"]["status"] == "ok"
        assert checks["store"]["status"] == "ok"
        assert checks["clock"]["status"] == "ok"
        assert checks["durability"]["status"] == "warn"  # the test servers do not wait for the disk
        assert checks["durability"]["advice"]
