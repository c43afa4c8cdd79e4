"""Threads in a file and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli import schemas
from tests.cli.conftest import Run, start_process


def test_threads_go_through_a_file(run: Run, demo_file: Path, tmp_path: Path) -> None:
    out = run("export", "trip-to-oslo", "-o", tmp_path / "t.everstep", "--store", demo_file, "--json").json
    done = start_process("import", tmp_path / "t.everstep", "--store", tmp_path / "new.db", "--json")

    assert done.code == 0, done.err
    schemas.check("import", done.json)
    assert done.json["threads"] == out["threads"] == 4
    before = run("log", "trip-to-oslo", "--all", "--json", "--store", demo_file).json
    after = run("log", "trip-to-oslo", "--all", "--json", "--store", tmp_path / "new.db").json
    assert [row["id"] for row in after["rows"]] == [row["id"] for row in before["rows"]]
    again = run("import", tmp_path / "t.everstep", "--store", tmp_path / "new.db", "--json").json
    assert again["checkpoints"] == 0


def test_a_deleted_thread_comes_back_beside_its_branches(run: Run, own_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.everstep"
    run("export", "trip-to-oslo", "-o", file, "--store", own_file)
    before = run("log", "trip-to-oslo", "--all", "--json", "--store", own_file).json
    branches = run("branch", "list", "trip-to-oslo", "--json", "--store", own_file).json["branches"]
    names = {branch["thread_id"] for branch in branches} - {"trip-to-oslo"}
    run("rm", "trip-to-oslo", "--yes", "--store", own_file)

    told = run("import", file, "--store", own_file)
    again = run("import", file, "--store", own_file, "--json").json

    assert told.code == 0, told.err
    assert told.out.startswith("1 thread: ")
    assert "left as they are in the store: " in told.err
    schemas.check("import", again)
    assert again["thread_ids"] == ["trip-to-oslo"]
    assert set(again["kept_ids"]) == names
    after = run("log", "trip-to-oslo", "--all", "--json", "--store", own_file).json
    own = [row["id"] for row in before["rows"] if row["thread_id"] == "trip-to-oslo"]
    assert [row["id"] for row in after["rows"]] == own


def test_a_pipe_holds_only_the_file(demo_file: Path, tmp_path: Path) -> None:
    everstep = f"{sys.executable} -m everstep"
    command = f"{everstep} export onboarding-ada -o - --store {demo_file} | {everstep} import - --store new.db"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 thread: 6 checkpoints brought in")


def test_what_to_export_must_be_said(run: Run, demo_file: Path, tmp_path: Path) -> None:
    assert run("export", "-o", tmp_path / "t.everstep", "--store", demo_file).code == 2
    assert run("export", "nobody", "-o", tmp_path / "t.everstep", "--store", demo_file).code == 3
    assert not (tmp_path / "t.everstep").exists()


def test_a_damaged_file_is_refused(run: Run, demo_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.everstep"
    run("export", "onboarding-ada", "-o", path, "--store", demo_file)
    path.write_bytes(path.read_bytes()[:-100])

    done = run("import", path, "--store", tmp_path / "new.db", "--json")

    assert done.code in (1, 2)
    assert done.out == ""


def test_a_backup_is_restored_to_any_point(run: Run, own_file: Path, tmp_path: Path) -> None:
    first = run("backup", tmp_path / "b", "--store", own_file, "--json").json
    run("rm", "onboarding-ada", "--yes", "--store", own_file)
    second = run("backup", tmp_path / "b", "--store", own_file, "--json").json

    done = start_process("restore", tmp_path / "b", "--at", "1", "--store", tmp_path / "one.db", "--json")
    newest = run("restore", tmp_path / "b", "--store", tmp_path / "two.db", "--json")

    assert (first["number"], second["number"]) == (1, 2)
    assert second["threads"] == 0
    assert done.code == 0, done.err
    schemas.check("restore", done.json)
    assert newest.json["threads"] == done.json["threads"] - 1
    assert run("log", "onboarding-ada", "--store", tmp_path / "one.db").code == 0
    assert run("log", "onboarding-ada", "--store", tmp_path / "two.db").code == 3


def test_a_copy_of_a_damaged_store_names_what_is_left_out(run: Run, own_file: Path, tmp_path: Path) -> None:
    done = run("copy", own_file, tmp_path / "whole.db", "--skip-damaged", "--json").json
    assert done["damaged"] == []
