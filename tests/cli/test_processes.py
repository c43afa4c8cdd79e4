"""Each command once in a process of its own, its JSON against a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from everstep.cli import catalog, group
from tests.cli import schemas
from tests.cli.conftest import start_process

LOOKING: dict[str, list[str]] = {
    "threads": ["threads", "oslo", "--limit", "2"],
    "log": ["log", "trip-to-oslo", "-n", "5", "--stat", "--all"],
    "ops": ["ops", "trip-to-oslo"],
    "show": ["show", "trip-to-oslo", "--state", "--messages", "--io"],
    "get": ["get", "trip-to-oslo", "/budget"],
    "diff": ["diff", "trip-to-oslo~1", "trip-to-oslo"],
    "blame": ["blame", "trip-to-oslo", "/hotel"],
    "replay": ["replay", "refund-0093"],
    "runs": ["runs", "--status", "waiting"],
    "run": ["run", "trip-to-bergen"],
    "stats": ["stats", "trip-to-oslo"],
    "backup": ["backup", "backups"],
    "export": ["export", "trip-to-oslo", "-o", "trip.everstep"],
    "branch list": ["branch", "list", "trip-to-oslo"],
    "tag": ["tag", "invoice-run-2026-11"],
    "retention show": ["retention", "show"],
    "retention plan": ["retention", "plan", "--policy", "keep_last_n", "--keep", "10"],
    "verify": ["verify", "trip-to-oslo"],
    "migrate": ["migrate"],
    "doctor": ["doctor"],
    "config": ["config"],
    "completion": ["completion", "zsh"],
}
CHANGING: dict[str, list[str]] = {
    "undo": ["undo", "trip-to-oslo"],
    "rewind": ["rewind", "trip-to-oslo#7"],
    "fork": ["fork", "trip-to-oslo", "-b", "tent", "--set", "/hotel=Tent"],
    "tag REF": ["tag", "trip-to-oslo~2", "good"],
    "note": ["note", "trip-to-oslo~2", "the last good one"],
    "branch rename": ["branch", "rename", "trip-to-oslo@cheap", "by bus"],
    "branch archive": ["branch", "archive", "trip-to-oslo@cheap"],
    "branch unarchive": ["branch", "unarchive", "trip-to-oslo@cheap"],
    "pin": ["pin", "trip-to-oslo~2"],
    "unpin": ["unpin", "invoice-run-2026-11"],
    "retention apply": ["retention", "apply", "support-4711", "--policy", "keep_last_n", "--keep", "10", "--yes"],
    "gc": ["gc"],
    "repair": ["repair", "trip-to-oslo"],
    "rm": ["rm", "onboarding-ada", "--yes"],
    "purge": ["purge", "--prefix", "trip-to-oslo-branch", "--yes"],
    "copy": ["copy", "own.db", "other.db"],
    "answer": ["answer", "trip-to-bergen", "yes"],
    "signal": ["signal", "trip-to-bergen", "paid", '{"by": "card"}'],
}
APART = {
    "resume",
    "recover",
    "demo",
    "redo",
    "branch delete",
    "tail",
    "import-langgraph",
    "import",
    "restore",
    "merge",
    "ui",
}
"""Those that have a test of their own."""


def test_every_command_is_tried() -> None:
    names = set()
    with click.Context(group.root) as ctx:
        for name in catalog.names():
            found = group.root.get_command(ctx, name)
            if isinstance(found, click.Group):
                names |= {f"{name} {verb}" for verb in found.commands}
            else:
                names.add(name)
    names.add("tag REF")  # the same command with a tag does something else
    assert names == {*LOOKING, *CHANGING, *APART}
    assert names - {"ui"} == set(schemas.DOCUMENTS)


@pytest.mark.parametrize("name", LOOKING)
def test_commands_that_look(name: str, demo_file: Path) -> None:
    done = start_process(*LOOKING[name], "--json", "--store", demo_file)

    assert done.code == 0, done.err
    assert done.err == ""
    schemas.check(name, done.json)


@pytest.mark.parametrize("name", CHANGING)
def test_commands_that_change(name: str, own_file: Path) -> None:
    done = start_process("--json", *CHANGING[name], "--store", own_file)

    assert done.code == 0, done.err
    assert done.err == ""
    schemas.check(name, done.json)


def test_demo_makes_a_store_once(tmp_path: Path) -> None:
    done = start_process("demo", "new.db", "--json", cwd=tmp_path)

    assert done.code == 0, done.err
    schemas.check("demo", done.json)
    again = start_process("demo", "new.db", "--json", cwd=tmp_path)
    assert again.code == 2
    assert again.error["code"] == "invalid_input"


def test_import_of_langgraphs_own_file(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "stock.db")) as saver:
        config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}
        saver.put(config, empty_checkpoint(), {"source": "input", "step": -1}, {})

    done = start_process("import-langgraph", tmp_path / "stock.db", "--store", tmp_path / "ours.db", "--json")

    assert done.code == 0, done.err
    schemas.check("import-langgraph", done.json)
    assert done.json["threads"] == 1
