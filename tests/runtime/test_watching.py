"""What can be watched: figures of calls, spans of OpenTelemetry, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import everstep
from everstep.langgraph import HarnessCheckpointer
from everstep.repository.turns import Beaten, until_done
from everstep.runtime import calls, tracing
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Stored
from tests.faults.proxy import Proxy
from tests.tools import servers

WORDS = [{"role": "user", "content": "Hello"}]


# -- figures


def test_calls_are_counted_by_name_on_both_faces() -> None:
    engine = everstep.open("memory://")
    engine.sync.append("t", WORDS)
    engine.sync.append("t", WORDS)
    asyncio.run(engine.get_latest("t"))
    stats = engine.stats()
    assert stats == engine.sync.stats()
    assert {name: call.calls for name, call in stats.calls.items()} == {"append": 2, "get_latest": 1}
    assert stats.calls["append"].bytes_added > 0
    assert stats.calls["append"].objects_added == 0
    assert stats.calls["append"].seconds > 0
    assert stats.calls["get_latest"].bytes_added == 0


def test_what_a_call_adds_is_what_is_stored() -> None:
    engine = everstep.open("memory://").sync
    text = os.urandom(50_000).hex()
    engine.snapshot("t", WORDS, {"text": text}, {})
    first = engine.stats().calls["snapshot"]
    assert first.objects_added > 0
    assert 40_000 < first.bytes_added < 110_000
    engine.snapshot("t", [*WORDS, *WORDS], {"text": text}, {})
    assert engine.stats().calls["snapshot"].bytes_added < first.bytes_added + 1000


def test_a_call_inside_another_is_part_of_it() -> None:
    engine = everstep.open("memory://").sync
    with engine.thread("t") as live:
        live.messages.append(WORDS[0])
    engine.snapshot_safe("t", WORDS, {}, {})
    assert engine.stats().calls["save"].calls >= 1
    assert engine.stats().calls["snapshot"].calls == 1


def test_errors_are_counted() -> None:
    engine = everstep.open("memory://").sync
    with pytest.raises(everstep.InvalidInput):
        engine.append("", WORDS)
    assert (engine.stats().calls["append"].calls, engine.stats().calls["append"].errors) == (1, 1)


def test_engine_backend_and_saver_are_counted_together() -> None:
    saver = HarnessCheckpointer(backend=everstep.MemoryCheckpointer())
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = {"v": 4, "id": "1", "ts": "", "channel_values": {"a": "x" * 5000}, "channel_versions": {"a": 1}}
    put = saver.put(config, checkpoint, {}, {"a": 1})
    saver.put_writes(put, [("a", "y" * 5000)], "task")
    saver.get_tuple(put)
    assert list(saver.list(config))
    saver.engine.sync.checkpointer.list_threads()
    saver.delete_thread("t")
    calls = saver.engine.stats().calls
    assert {name: call.calls for name, call in calls.items()} == {
        "saver.put": 1,
        "saver.put_writes": 1,
        "saver.get_tuple": 1,
        "saver.list": 1,
        "backend.list_threads": 1,
        "saver.delete_thread": 1,
    }
    assert calls["saver.put"].bytes_added > 0
    assert calls["saver.put_writes"].bytes_added > 0


def test_tries_are_counted_and_told_to_those_who_look_closely(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "everstep")

    class Once(MemoryStore):
        """Another writer is first, once."""

        left = 1

        async def commit(self, change: Change) -> Stored | None:
            if self.left:
                self.left -= 1
                raise everstep.errors.HeadMoved("t", None, None)
            return await super().commit(change)

    engine = everstep.CheckpointEngine(everstep.StoreBackend(Once()))
    asyncio.run(engine.append("t", WORDS))
    assert engine.stats().calls["append"].retries == 1
    assert caplog.text.count("met another writer") == 1


def test_no_count_is_lost_among_threads() -> None:
    engine = everstep.open("memory://").sync

    def read() -> None:
        for _ in range(500):
            engine.get_latest("t")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.stats().calls["get_latest"].calls == 2000


@pytest.mark.parametrize("kind", ["postgres", "redis"])
@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_lost_connection_counts_as_a_try(kind: str, face: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "everstep")
    url = servers.postgres() if kind == "postgres" else servers.redis()
    options: dict[str, Any] = {} if kind == "postgres" else {"key_prefix": servers.redis_prefix()}
    if kind == "postgres":
        servers.clear_postgres()
    port = url.rsplit(":", 1)[1].split("/")[0]
    with Proxy(int(port)) as proxy:
        engine = everstep.open(url.replace(f":{port}", f":{proxy.port}"), **options)

        async def story() -> None:
            await engine.append("t", WORDS)
            proxy.lose_reply()
            await engine.append("t", WORDS)
            assert len((await engine.get_latest("t")).messages) == 2  # type: ignore[union-attr]
            await engine.close()

        if face == "async":
            asyncio.run(story())
        else:
            engine.sync.append("t", WORDS)
            proxy.lose_reply()
            engine.sync.append("t", WORDS)
            engine.sync.close()
    assert engine.stats().calls["append"].retries == 1
    assert "trying again" in caplog.text


@pytest.mark.parametrize("number", range(1, 25))
def test_ctrl_c_at_any_moment_leaves_no_call_behind(number: int) -> None:
    """A call that never ended would be part of every later one, with a deadline that has passed."""
    engine = everstep.open("memory://").sync
    left = [number]

    def strike(frame: FrameType, _event: str, _arg: object) -> None:
        """Python looks for signals where something is called and where it returns."""
        if frame.f_code.co_filename == calls.__file__:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            engine.append("t", WORDS)
    finally:
        sys.setprofile(None)
    assert left[0] <= 0
    assert calls.under_way() is None


# -- spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_every_public_call_is_one_span(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    engine = everstep.open(f"sqlite:///{tmp_path}/a.db").sync
    made = engine.append("t", WORDS)
    engine.rewind(made)
    engine.merge_branch(engine.branch(made, "b"), "t")
    engine.close()
    found = by_name(spans)
    assert list(found) == ["everstep.append", "everstep.rewind", "everstep.branch", "everstep.merge_branch"]
    told = attributes(found["everstep.append"])
    assert told.pop("everstep.bytes_added") > 0
    assert str(tmp_path) in told.pop("everstep.store")
    assert told == {"everstep.thread_id": "t", "everstep.objects_added": 0, "everstep.retries": 0}
    assert attributes(found["everstep.rewind"])["everstep.thread_id"] == "t"
    assert attributes(found["everstep.merge_branch"])["everstep.thread_id"] == "t"


def test_what_is_set_up_after_the_first_call_gets_the_spans_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.open("memory://").sync
    engine.append("t", WORDS)  # nobody asks for its span
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    engine.append("t", WORDS)
    assert list(by_name(exporter)) == ["everstep.append"]
    provider.shutdown()


def test_a_span_stands_below_the_callers(spans: InMemorySpanExporter) -> None:
    engine = everstep.open("memory://").sync
    with trace.get_tracer_provider().get_tracer("agent").start_as_current_span("turn") as turn:
        engine.append("t", WORDS)
    parent = by_name(spans)["everstep.append"].parent
    assert parent is not None
    assert parent.span_id == turn.get_span_context().span_id


def test_an_error_stands_in_its_span(spans: InMemorySpanExporter) -> None:
    engine = everstep.open("memory://").sync
    with pytest.raises(everstep.CheckpointNotFound):
        engine.rewind("ckpt-t-1-none")
    span = by_name(spans)["everstep.rewind"]
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


def test_without_a_provider_there_is_no_span() -> None:
    assert tracing.begin("append") is None


def test_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, everstep; everstep.open('memory://').sync.append('t', []); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the log


def test_what_changes_a_history_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everstep")
    engine = everstep.open(f"sqlite:///{tmp_path}/a.db").sync
    first = engine.append("t", WORDS)
    engine.append("t", WORDS)
    engine.rewind(first)
    engine.undo("t")
    engine.redo("t")
    branch = engine.branch(first, "b")
    engine.append(branch, WORDS)
    merge = engine.merge_branch(branch, "t")
    engine.collect()
    engine.collect("t", dry_run=True)
    engine.checkpointer.delete_before("t", 2)
    engine.checkpointer.delete_thread("t")
    engine.close()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    beginnings = [
        f"opened {tmp_path}/a.db",
        f"thread 't' is back at {first}; 1 left behind (hide)",
        "thread 't': undone: rewind of",
        "thread 't': done again: rewind of",
        f"thread {branch!r} begins at {first} of thread 't'",
        f"thread {branch!r} is merged into thread 't': {merge}",
        "collected all threads: GCReport(",
        "collected thread 't': GCReport(",
        "thread 't' deleted (before step 2): 1 checkpoints",
        "thread 't' deleted (whole): ",
    ]
    assert len(told) == len(beginnings), told
    for line, beginning in zip(told, beginnings, strict=True):
        assert line.startswith(beginning)


def test_an_ordinary_step_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everstep")
    engine = everstep.open("memory://").sync
    engine.append("t", WORDS)
    engine.get_latest("t")
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_server_that_is_opened_is_told_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everstep")
    options: dict[str, Any] = {} if kind == "postgres" else {"key_prefix": servers.redis_prefix()}
    url = servers.postgres() if kind == "postgres" else servers.redis()
    with everstep.open(url, **options).sync as engine:
        engine.get_latest("t")
        engine.get_latest("t")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["opened"]


def test_a_beaten_try_outside_of_a_call_is_no_trouble() -> None:
    tries = []

    async def attempt(_: object, is_first: bool) -> bool:
        tries.append(is_first)
        if is_first:
            raise Beaten
        return True

    assert run_to_end(until_done(MemoryStore(), "t", attempt, "a test"))
    assert tries == [True, False]
