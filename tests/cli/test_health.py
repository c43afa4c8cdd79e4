"""What `everstep doctor` finds, and what it advises."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from everstep.cli import health
from tests.cli.conftest import Run
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
