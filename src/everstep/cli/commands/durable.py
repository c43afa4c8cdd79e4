"""Durable runs: which there are, what they wait for, answers and events, and taking them up."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from everstep.cli import text
from everstep.cli.apps import load_engines
from everstep.cli.asking import read_json_or_text, thread_argument
from everstep.cli.failures import RunFailed
from everstep.cli.group import command
from everstep.cli.output import to_json
from everstep.cli.rendering import brief, describe_wait, show_facts, show_json
from everstep.cli.session import Common, show_warnings
from everstep.errors import EverstepError, RunNotFound

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine
    from everstep.reports import RunInfo

_STATUSES = ("running", "interrupted", "waiting", "ready", "done", "failed", "paused")
_STYLES = {"failed": "red", "waiting": "yellow", "interrupted": "yellow", "done": "green", "error": "red", "ok": ""}
_STEPS_AT_ONCE = 200
# For steps that are plain functions, besides a thread for each run.
_THREADS_OF_STEPS = 32
_RESULT_CHARS_MAX = 2000


# -- looking


@command("runs")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs in this state.")
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="How many, at most.")
@click.option("--cursor", help="Go on where a page before has ended.")
@click.pass_obj
def runs(common: Common, status: str | None, limit: int, cursor: str | None) -> None:
    """The one that was active last comes first.

    running: somebody runs it. interrupted: nobody does, and it is not at its end. waiting: for an answer, an event or a
    time. ready: that has come. paused: a branch that nobody has taken up yet.
    """
    from everstep.views import runs as view

    output = common.output
    with common.opened() as session:
        found = session.run(view.page, status=status, limit=limit, cursor=cursor)
    if output.is_json:
        output.document(found, "runs")
        return
    rows = [_run_row(common, run) for run in found["runs"]]
    output.table(("thread", "function", "status", "steps", "active", "what"), rows, wide="what")
    if not rows:
        output.note("no runs")
    elif found["cursor"]:
        output.hint("there are more: raise --limit, or choose a --status")
    waiting = [run["thread_id"] for run in found["runs"] if run["status"] == "waiting"]
    if waiting:
        output.hint(f"{text.as_command('run', waiting[0])} shows what it waits for")


def _run_row(common: Common, run: Mapping[str, Any]) -> list[str]:
    output = common.output
    when = output.age(run["updated_at"])
    status = _painted(common, run["status"])
    name = text.clean(run["name"])
    return [text.clean(run["thread_id"]), name, status, str(run["steps"]), when, text.clean(run["summary"])]


def _painted(common: Common, status: str | None) -> str:
    return common.output.paint(text.clean(status or ""), _STYLES.get(status or "", ""))


@command("run")
@thread_argument()
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of its newest steps.")
@click.pass_obj
def run(common: Common, thread: str, limit: int | None) -> None:
    """Steps are listed in their order, with how often they were tried and how long they took."""
    output = common.output
    with common.opened() as session:
        found = _whole_run(session.run, thread, limit)
    if output.is_json:
        output.document(found, "entries")
        return
    with output:
        _show_run(common, found)
    asked = [wait for wait in found["waits"] if wait["kind"] == "ask"]
    if asked:
        output.hint(_how_to_answer(found["thread_id"], asked[0], len(asked)))


def _whole_run(view: Callable[..., Any], thread: str, limit: int | None) -> dict[str, Any]:
    """Return a run with all of its steps, or so many of them."""
    from everstep.views import runs as views

    left = limit if limit is not None else sys.maxsize
    found: dict[str, Any] = view(views.one, thread, limit=min(left, _STEPS_AT_ONCE))
    while found["cursor"] is not None and len(found["entries"]) < left:
        count = min(left - len(found["entries"]), _STEPS_AT_ONCE)
        earlier = view(views.one, thread, limit=count, cursor=found["cursor"])
        found["entries"] = earlier["entries"] + found["entries"]
        found["cursor"] = earlier["cursor"]
        # They are told by the page that has the beginning of the run.
        found["arguments"] = found["arguments"] or earlier["arguments"]
    return found


def _show_run(common: Common, found: Mapping[str, Any]) -> None:
    output = common.output
    output.line(f"{output.paint(text.clean(found['name']), 'bold')}  {_painted(common, found['status'])}")
    called = ""
    if found["arguments"]:
        called = text.cut(_arguments_text(found["arguments"]), 300)
    result = ""
    if found["status"] == "done":
        result = text.cut(brief(found["result"]), _RESULT_CHARS_MAX)
    error = ""
    if found["error"]:
        error = text.clean(f"{found['error']['type']}: {found['error']['message']}")
    show_facts(
        output,
        (
            ("thread", text.clean(found["thread_id"])),
            ("branch of", text.clean(found["origin"] or "")),
            ("active", f"{text.describe_age(found['updated_at'])}, {text.clean(found['updated_at'])}"),
            ("called with", called),
            ("result", result),
            ("error", error),
        ),
    )
    for wait in found["waits"]:
        _show_wait(common, wait)
    output.line()
    rows = [_entry_row(common, entry) for entry in found["entries"] if _is_shown(entry)]
    output.table(("step", "what", "status", "tries", "took", "effect", "when", "about"), rows, wide="about")
    _show_rest(common, found)


def _arguments_text(called: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if isinstance(called["args"], list):
        parts += map(brief, called["args"])
    if isinstance(called["kwargs"], Mapping):
        for name, value in called["kwargs"].items():
            parts.append(f"{text.clean(name)}={brief(value)}")
    return ", ".join(parts)


def _show_wait(common: Common, wait: Mapping[str, Any]) -> None:
    output = common.output
    line = output.paint(describe_wait(wait), "yellow")
    if wait["kind"] == "ask":
        line += output.paint(f"  (key {text.clean(wait['key'])})", "dim")
    output.line(line)
    if wait["details"] is not None:
        for line in to_json(wait["details"]).split("\n"):
            output.line(f"    {line}")


def _is_shown(entry: Mapping[str, Any]) -> bool:
    return bool(entry["op"] == "step" or entry["text"])


def _entry_row(common: Common, entry: Mapping[str, Any]) -> list[str]:
    output = common.output
    name = entry["op"]
    about = entry["text"]
    if entry["op"] == "step":
        name = entry["key"]
        about = ""
        if entry["failures"]:
            about = entry["failures"][-1]
    tries = ""
    if entry["tries"] is not None:
        tries = str(entry["tries"])
    effect = entry["effect"] or ""
    if output.is_terminal:
        # What is the usual case is left out for people.
        tries = tries if tries != "1" else ""
        effect = effect if effect != "retry" else ""
    return [
        f"#{entry['step']}",
        text.clean(name),
        _painted(common, entry["status"]),
        tries,
        text.describe_duration(None if entry["seconds"] is None else entry["seconds"] * 1000),
        text.clean(effect),
        output.age(entry["created_at"]),
        text.clean(about),
    ]


def _show_rest(common: Common, found: Mapping[str, Any]) -> None:
    output = common.output
    if found["cursor"] is not None:
        output.line(output.paint("… and those before", "dim"))
    if found["effects"]:
        output.line()
        output.line(output.paint("Effects of this run and its branches", "bold"))
        for effect in found["effects"]:
            line = f"  {text.clean(effect['key'])}  {_painted(common, effect['status'])}"
            if effect["thread_id"] != found["thread_id"]:
                line += f"  in {text.clean(effect['thread_id'])}"
            output.line(line)
    if found["branches"]:
        output.line()
        output.line(output.paint("Branches", "bold"))
        for branch in found["branches"]:
            output.line(f"  {text.clean(branch['thread_id'])}  {_painted(common, branch['status'])}")


def _how_to_answer(thread: str, wait: Mapping[str, Any], count: int) -> str:
    key = f" --key {text.as_argument(wait['key'])}" if count > 1 else ""
    if wait["effect"] is not None:
        happened = text.as_command(f"answer{key} --happened RESULT", thread)
        return f"{happened}, or --did-not-happen"
    return text.as_command(f"answer{key}", thread, "VALUE")


# -- answers and events


@command("answer")
@thread_argument()
@click.argument("value", required=False)
@click.option("--key", help="Which question, if the run waits for several answers.")
@click.option("--happened", "result", metavar="JSON", help="The effect that is asked about happened, with this result.")
@click.option("--did-not-happen", is_flag=True, help="The effect that is asked about did not happen: perform it now.")
@click.pass_obj
def answer(
    common: Common, thread: str, value: str | None, key: str | None, result: str | None, did_not_happen: bool
) -> None:
    """VALUE is JSON, or plain text where it is none: yes, 42, {"seats": 2}.

    A run that was cut off while it performed an effect asks whether that happened. Find out, and answer it with
    --happened or --did-not-happen.
    """
    from everstep.types import MISSING
    from everstep.views import runs as view

    given = [value is not None, result is not None, did_not_happen]
    if sum(given) != 1:
        raise click.UsageError("give one of VALUE, --happened and --did-not-happen", click.get_current_context())
    did_happen = None if value is not None else not did_not_happen
    with common.opened() as session:
        done = session.run(
            view.answer,
            thread,
            MISSING if value is None else read_json_or_text(value),
            key=key,
            did_happen=did_happen,
            result=None if result is None else read_json_or_text(result),
        )
    _show_taken(common, done, "answered")


@command("signal")
@thread_argument()
@click.argument("event")
@click.argument("value", required=False)
@click.pass_obj
def signal(common: Common, thread: str, event: str, value: str | None) -> None:
    """VALUE is JSON, or plain text where it is none. The run need not wait for the event yet."""
    from everstep.views import runs as view

    given = None if value is None else read_json_or_text(value)
    with common.opened() as session:
        done = session.run(view.signal, thread, event, given)
    _show_taken(common, done, f"told of {text.clean(event)}")


def _show_taken(common: Common, done: Mapping[str, Any], what: str) -> None:
    output = common.output
    if output.is_json:
        output.document(done)
        return
    output.line(f"{text.clean(done['thread_id'])} is {what}; it is {text.clean(done['status'])}")
    if done["status"] == "ready":
        output.hint("a worker takes it up: everstep recover app.py --watch")


# -- taking up


@command("resume")
@click.argument("program")
@click.argument("thread")
@click.option("--wait", "is_patient", is_flag=True, help="Wait for what the run waits for, to its end.")
@click.option(
    "--on-change",
    type=click.Choice(["error", "fork", "rerun"]),
    help="What to do if the code asks for something else than is recorded.",
)
@click.pass_obj
def resume(common: Common, program: str, thread: str, is_patient: bool, on_change: str | None) -> None:
    """PROGRAM is what has the durable functions: app.py, package.module, or module:engine. Its engine says which store
    it is. The run goes on until it ends or has to wait. One that failed is tried again at the step that failed.
    """
    _refuse_store(common)
    engine = _engine_with(load_engines(program), thread)
    part = _run_alone(_resume(engine, thread, on_change, is_patient=is_patient), [engine])
    from everstep.views.json_values import to_json as as_json

    info, result = part
    fields = {
        "thread_id": info.thread_id,
        "name": info.name,
        "status": info.status,
        "result": as_json(result) if info.status == "done" else None,
        "waits": [wait.question or wait.event or wait.kind for wait in info.waits],
    }
    output = common.output
    if output.is_json:
        output.document(fields)
        return
    output.line(f"{text.clean(info.thread_id)} is {_painted(common, info.status)}")
    if info.status == "done" and result is not None:
        show_json(output, "result", fields["result"])
    for wait in fields["waits"]:
        output.line(f"waits: {text.clean(wait)}")


async def _resume(
    engine: CheckpointEngine, thread: str, on_change: str | None, *, is_patient: bool
) -> tuple[RunInfo, Any]:
    from everstep.durable import lists
    from everstep.durable.live import repository_of

    try:
        if is_patient:
            result = await lists.resume(engine, thread, on_change)
            name = thread
        else:
            part = await lists.resume_once(engine, thread, on_change)
            result, name = part.result, part.thread_id
    except EverstepError:
        raise
    except Exception as exc:
        raise RunFailed(f"run {thread!r} has failed: {type(exc).__name__}: {exc}") from exc
    return await lists.info_of(repository_of(engine), name), result


def _engine_with(engines: Sequence[CheckpointEngine], thread: str) -> CheckpointEngine:
    """Return the engine on whose store the run is."""
    from everstep.errors import CheckpointNotFound

    # A program may have several engines, each with a store of its own.
    for engine in engines:
        with contextlib.suppress(CheckpointNotFound):
            if engine.sync.resolve("@", thread_id=thread).thread_id == thread:
                return engine
    raise RunNotFound(thread)


@command("recover")
@click.argument("program")
@click.option("--watch", is_flag=True, help="Go on for ever: be a worker.")
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(1), help="How many runs at a time.")
@click.pass_obj
def recover(common: Common, program: str, watch: bool, concurrency: int) -> None:
    """PROGRAM is what has the durable functions: app.py, package.module, or module:engine. Its engine says which store
    it is. Taken up is what has got its answer, its event or its time, and what its owner has left by dying.

    Any number of workers may watch one store, on any number of machines: a run is held by one of them. Ctrl-C or
    SIGTERM stops a worker: steps that are running come to their end, then their runs are let go. A second one ends it
    at once, as a crash would.
    """
    from everstep.durable.worker import Worker

    _refuse_store(common)
    engines = load_engines(program)
    told: list[RunInfo] = []

    def tell(info: RunInfo) -> None:
        told.append(info)
        if watch:
            _show_line(common, info)

    async def work() -> None:
        worker = Worker(
            engines,
            concurrency,
            told=tell,
            troubled=lambda exc: common.output.note(f"the store does not answer: {text.clean(str(exc))}"),
        )
        with _stopping(worker.stop, common):
            await (worker.watch() if watch else worker.take_up_all())

    if watch:
        names = sorted({name for engine in engines for name in engine._programs.names()})
        common.output.note(f"watching for runs of {', '.join(map(text.clean, names))}; Ctrl-C stops")
    _run_alone(work(), engines, concurrency + _THREADS_OF_STEPS)
    output = common.output
    if watch:
        return
    if output.is_json:
        output.document({"runs": [_fields(info) for info in told]}, "runs")
        return
    for info in told:
        _show_line(common, info)
    if not told:
        output.note("no run has anything to do")


def _fields(info: RunInfo) -> dict[str, Any]:
    return {
        "thread_id": info.thread_id,
        "name": info.name,
        "status": info.status,
        "head": info.checkpoint_id,
        "updated_at": info.updated_at,
    }


def _show_line(common: Common, info: RunInfo) -> None:
    """Print at once how a run stands that was taken up."""
    if common.output.is_json:
        common.output.json_line(_fields(info))
        return
    common.output.line(f"{text.clean(info.thread_id)}\t{text.clean(info.name)}\t{_painted(common, info.status)}")
    sys.stdout.flush()


def _refuse_store(common: Common) -> None:
    if common.store is not None or common.profile is not None:
        raise click.UsageError(
            "the engine of the program says which store it is; leave out --store and --profile",
            click.get_current_context(),
        )


def _run_alone(work: Coroutine[Any, Any, Any], engines: Sequence[CheckpointEngine], threads: int = 0) -> Any:
    """Return what comes of some work in an event loop of its own, and close the engines after it."""

    async def whole() -> Any:
        if threads:
            # Runs of plain functions take a thread each; those must never take the last one from the steps of others.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads, "everstep-worker"))
        try:
            return await work
        finally:
            for engine in engines:
                await engine.close()

    with show_warnings():
        return asyncio.run(whole())


@contextlib.contextmanager
def _stopping(stop: Callable[[], None], common: Common) -> Any:
    """Call `stop` at the first signal to end; at the second one leave that to the system."""
    loop = asyncio.get_running_loop()
    known = (signals.SIGINT, signals.SIGTERM)

    def heard(number: signals.Signals) -> None:
        for each in known:
            loop.remove_signal_handler(each)
            # The next one ends the process, as a crash would: the runs are taken up by others.
            signals.signal(each, signals.SIG_DFL)
        common.output.note(f"{number.name}: steps that are running come to their end; once more ends it at once")
        stop()

    before = {each: signals.getsignal(each) for each in known}
    for each in known:
        loop.add_signal_handler(each, heard, each)
    try:
        yield
    finally:
        for each in known:
            loop.remove_signal_handler(each)
            signals.signal(each, before[each])


COMMANDS: dict[str, click.Command] = {
    "runs": runs,
    "run": run,
    "answer": answer,
    "signal": signal,
    "resume": resume,
    "recover": recover,
}
