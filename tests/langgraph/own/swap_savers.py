"""A pytest plugin: LangGraph's own tests run against Everstep's saver. See `__main__` for how they are started.

It is loaded before LangGraph's `conftest.py`. The stock memory saver, which tests make and subclass, becomes one of
ours on the store under test, and so does what the fixtures for checkpointers give out. Tests for other savers are left
out. Nothing of LangGraph itself is changed.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import langchain_core.language_models.base
import langgraph.checkpoint.memory
import psycopg
import pytest

from everstep.backends import MemoryCheckpointer, PostgresCheckpointer, RedisCheckpointer, SQLiteCheckpointer
from everstep.langgraph import HarnessCheckpointer

STORE = os.environ["EVERSTEP_LANGGRAPH_STORE"]
URL = os.environ.get("EVERSTEP_LANGGRAPH_URL", "")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")

# LangGraph's tests compare what a model says of its versions, and expect that LangChain is not installed beside it.
langchain_core.language_models.base._get_langchain_version = functools.cache(lambda: None)

_CHOSEN = {
    "sync_checkpointer": ("memory", "memory_migrate_sends"),
    "async_checkpointer": ("memory",),
    "sync_store": ("in_memory",),
    "async_store": ("in_memory",),
    "cache": ("memory", "sqlite"),
}
"""The parameters of LangGraph's fixtures that need no server of theirs."""

_OTHER_SAVERS = {
    "test_delta_channel_snapshot_version_based": "looks into the memory saver's dict of blobs",
    "test_bulk_update_state_replays_updates_in_the_order_given": "looks into the memory saver's dict of writes",
    "test_abulk_update_state_replays_updates_in_the_order_given": "looks into the memory saver's dict of writes",
    "test_anever_written_channel_is_not_walked": "expects an async method to call the blocking one, as in memory",
    "test_counter_reset_after_supersteps_snapshot": "expects a snapshot in later checkpoints, which only memory gives",
    "test_remote_graph_basic_invoke": "needs a server of LangGraph's",
    "test_remote_graph_stream_messages_tuple": "needs a server of LangGraph's",
}
"""Tests of what one of LangGraph's savers is like inside; most of them fail on its other savers, too."""
_OTHER_FILES = {"test_prune_postgres.py": "what LangGraph's PostgreSQL saver does at pruning, and its SQL"}

_numbers = itertools.count()
_folder = tempfile.TemporaryDirectory()
_opened: list[Any] = []
"""The savers of the running test."""


class EverstepSaver(HarnessCheckpointer):
    """Everstep's saver on a store of its own, made as the stock memory saver is."""

    def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
        del factory  # the dict that the stock saver keeps everything in
        super().__init__(backend=_new_backend(), serde=serde)
        _opened.append(self)


def _new_backend() -> Any:
    if STORE == "memory":
        return MemoryCheckpointer()
    if STORE == "sqlite":
        return SQLiteCheckpointer(Path(_folder.name) / f"{next(_numbers)}.db")
    if STORE == "redis":
        return RedisCheckpointer(URL, key_prefix=f"langgraph-{WORKER}-{next(_numbers)}:")
    # To make tables takes long, so the first saver of every test has the same ones; see _clear_tables.
    return PostgresCheckpointer(URL, table_prefix=f"own_{WORKER}_{len(_opened)}_", max_size=4)


def _clear_tables(savers: int) -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        for number in range(savers):
            prefix = f"own_{WORKER}_{number}_"
            found = connection.execute(
                "SELECT tablename FROM pg_tables WHERE starts_with(tablename, %s)", (prefix,)
            ).fetchall()
            for (table,) in found:
                if table != f"{prefix}meta":
                    connection.execute(f"DELETE FROM {table}".encode())


@contextmanager
def _saver_for_fixture() -> Iterator[Any]:
    yield EverstepSaver()


def _replace_savers() -> None:
    memory: Any = langgraph.checkpoint.memory
    memory.InMemorySaver = memory.MemorySaver = EverstepSaver
    # These modules are LangGraph's, and can only be imported now: they name the class that was just replaced.
    import tests.conftest_checkpointer as fixtures  # type: ignore[import-not-found,unused-ignore]

    fixtures._checkpointer_memory = _saver_for_fixture


_replace_savers()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that can use a checkpointer, and whose fixtures need no other server."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        is_other = item.path.name in _OTHER_FILES or getattr(item, "originalname", "") in _OTHER_SAVERS
        wanted = not is_other and _may_use_saver(item.path) and _has_chosen_fixtures(item)
        (kept if wanted else dropped).append(item)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


_sources: dict[Path, bool] = {}


def _may_use_saver(path: Path) -> bool:
    if path not in _sources:
        _sources[path] = re.search("checkpointer|MemorySaver", path.read_text()) is not None
    return _sources[path]


def _has_chosen_fixtures(item: pytest.Item) -> bool:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return all(parameters[name] in chosen for name, chosen in _CHOSEN.items() if name in parameters)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark the report of a test that has made a saver."""
    report = yield
    if call.when == "call" and _opened:
        report.user_properties.append(("uses_saver", True))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close the savers of a test, after its fixtures have ended."""
    savers = len(_opened)
    while _opened:
        _opened.pop().close()
    if STORE == "postgres" and savers:
        _clear_tables(savers)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how the tests that used a saver went."""
    counts: list[str] = []
    for outcome in ("passed", "failed", "skipped", "xfailed"):
        reports = terminalreporter.stats.get(outcome, [])
        using = [report for report in reports if ("uses_saver", True) in getattr(report, "user_properties", [])]
        counts.append(f"{len(using)} {outcome}")
    terminalreporter.write_line(f"tests that used a checkpointer, on {STORE}: {', '.join(counts)}")
