"""The layout of the source: who may import whom, and where a stranger finds what."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import everstep
from everstep.stores.sqlite.changing import Changing

SOURCE = Path(__file__).parents[2] / "src/everstep"

LAYERS = (
    {"version", "errors", "types", "reports"},
    {"runtime"},
    {"values", "config"},
    {"stores"},
    {"history"},
    {"repository", "retention"},
    {"opening"},
    {"backends"},
    {"timeline", "upkeep"},
    {"capture", "durable", "engine"},
    {"factory"},
    {"transfer", "langgraph", "testing", "views"},
    {"web"},
    {"cli"},
    {"__init__", "__main__"},
)
"""From the lowest to the highest. A module imports from its own layer and from lower ones."""

LOADED_BY_NAME = {("history/adapter.py", "langgraph")}
"""A thread says in its kind which adapter wrote it; that one is loaded when such a thread is met."""

FEATURES = {
    "rewind": "timeline/rewind.py",
    "undo and redo": "timeline/undo.py",
    "branch": "timeline/branch.py",
    "merge of two threads": "timeline/merge.py",
    "what a merge is done against": "history/merge_base.py",
    "retention at work": "retention/keeper.py",
    "which checkpoints a policy keeps": "retention/policies.py",
    "leases": "repository/claims.py",
    "what a durable run has recorded": "durable/journal.py",
    "the steps of a durable run": "durable/steps.py",
    "what a durable run waits for": "durable/waiting.py",
    "effects that are performed once": "repository/effects.py",
    "the SQL of SQLite": "stores/sqlite/rows.py",
    "the tables of SQLite, and how they are made": "stores/sqlite/schema.py",
    "how commits are put together on SQLite": "stores/sqlite/database.py",
    "what is done about a damaged SQLite file": "stores/sqlite/rebuilding.py",
    "the SQL of PostgreSQL": "stores/postgres/rows.py",
    "what happens on a Redis server": "stores/redis/redis-1.lua",
    "the blocking face": "runtime/blocking.py",
    "the cache of objects": "repository/cache.py",
    "which classes LangGraph threads may name": "langgraph/classes.py",
    "how a LangGraph checkpoint becomes bytes": "langgraph/encoding.py",
    "a LangGraph thread under another name": "langgraph/thread_copies.py",
    "import from LangGraph's own savers": "langgraph/importing.py",
    "copy from store to store": "transfer/copying.py",
    "diff": "history/diff.py",
    "a live thread": "capture/live.py",
    "what a store is": "stores/protocol.py",
    "what a commit means": "stores/transaction.py",
    "what a deletion means": "stores/deletion.py",
    "repair of a damaged store": "upkeep/repair.py",
    "backups": "transfer/backups.py",
    "the commands by name": "cli/catalog.py",
    "the HTTP interface": "web/endpoints.py",
}
"""What people look for, and the file that they should think of first."""


class Import(NamedTuple):
    file: str
    part: str
    line: int


def test_nobody_imports_from_a_higher_layer() -> None:
    upward = [
        found
        for found in imports()
        if layer(found.part) > layer(part_of(found.file)) and (found.file, found.part) not in LOADED_BY_NAME
    ]
    assert upward == []


def test_every_part_has_its_layer() -> None:
    parts = {part_of(file.relative_to(SOURCE).as_posix()) for file in SOURCE.rglob("*.py")}
    assert parts == set().union(*LAYERS)


def test_the_picture_shows_the_layers() -> None:
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text()
    drawn: list[set[str]] = []
    for line in page.split("```")[1].strip().split("\n"):
        drawn.append({name for name in re.split(r"\s+", line[:40].strip()) if name})
    heights = [{layer(name) for name in names} for names in drawn]
    assert all(len(height) == 1 for height in heights)
    assert heights == sorted(heights, key=max, reverse=True)
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()} - {"testing"}
    assert folders - set().union(*drawn) == set()


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_where_its_name_says(feature: str) -> None:
    assert (SOURCE / FEATURES[feature]).is_file()
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text()
    assert f"`{FEATURES[feature]}`" in page


def test_every_file_is_on_the_page_and_nothing_else() -> None:
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text()
    there = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert sorted(there - named) == []
    assert sorted(name for name in named - there if not (SOURCE.parents[1] / name).is_file()) == []


def test_no_test_module_imports_from_another() -> None:
    tests = Path(__file__).parents[1]
    borrowed = re.compile(r"^\s*(?:from|import) (tests[\w.]*\.test_\w+)", re.MULTILINE)
    found: list[tuple[str, str]] = []
    for path in tests.rglob("*.py"):
        for name in borrowed.findall(path.read_text()):
            found.append((path.relative_to(tests).as_posix(), name))
    assert found == []


def test_the_way_of_an_append_is_as_the_page_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (SOURCE.parents[1] / "docs/architecture.md").read_text()
    drawn = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|", page, re.MULTILINE)
    ways: list[list[tuple[str, str]]] = []
    insert = Changing._insert

    def look(self: Changing, *row: Any) -> None:
        ways.append([*_frames_above(sys._getframe()), ("stores/sqlite/changing.py", "_insert")])
        insert(self, *row)

    monkeypatch.setattr(Changing, "_insert", look)
    with everstep.open(tmp_path / "a.db").sync as engine:
        for text in ("one", "two", "three"):  # from the second on a head is remembered
            engine.append("t", [{"role": "user", "content": text}])
    assert ways[-1] == drawn
    assert f"These {len(drawn)} frames" in page


def _frames_above(frame: FrameType | None) -> list[tuple[str, str]]:
    """Return the file and the function of each frame that is ours, the outermost first."""
    found: list[tuple[str, str]] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(SOURCE):
            found.append((file.relative_to(SOURCE).as_posix(), frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def imports() -> Iterator[Import]:
    """Yield what the source imports of itself, inside functions too."""
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    yield from _of_ours(file, f"{node.module}.{alias.name}", node.lineno)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _of_ours(file, alias.name, node.lineno)


def _of_ours(file: str, name: str, line: int) -> Iterator[Import]:
    package, _, inner = name.partition(".")
    if package != "everstep":
        return
    part = inner.partition(".")[0]
    is_part = (SOURCE / part).is_dir() or (SOURCE / f"{part}.py").is_file()
    yield Import(file, part if part and is_part else "__init__", line)


def part_of(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)
