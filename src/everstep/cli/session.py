"""What every command shares: options that may stand anywhere, the open store, questions before something is lost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import click

from everstep.cli import text
from everstep.cli.failures import NeedsYes, StoreNotThere
from everstep.cli.output import Output
from everstep.cli.settings import Settings, find_settings
from everstep.config import SnapshotConfig
from everstep.errors import CheckpointNotFound, UnsupportedByBackend
from everstep.opening.addresses import Place, is_in_memory, place_of

if TYPE_CHECKING:
    from everstep.backends import StoreBackend
    from everstep.engine import CheckpointEngine, SyncEngine

P = ParamSpec("P")
R = TypeVar("R")


class Session:
    """An open store, for one command."""

    def __init__(self, engine: CheckpointEngine, output: Output) -> None:
        self.engine: SyncEngine = engine.sync
        self._output = output
        from everstep.engine import CheckpointEngine

        # Views are coroutine functions of an engine: on one over the blocking face of the store they never suspend.
        self._driven = CheckpointEngine(blocking_backend(engine), engine.config)

    def run(
        self,
        view: Callable[Concatenate[CheckpointEngine, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Return what a view, or another coroutine function of an engine, gives. It never waits for an event loop."""
        from everstep.runtime.blocking import run_to_end

        return run_to_end(view(self._driven, *args, **kwargs))

    def thread_meant(self, name: str | None) -> str:
        """Return the thread with that name, or that a reference is about; None: the one that was active last."""
        if name is None:
            newest = self.newest_thread()
            if self._output.is_terminal:
                self._output.note(f"{text.clean(newest)}, which was active last:")
            return newest
        # One whose checkpoints are all hidden, or cannot be read, is a thread nevertheless.
        if self.count_checkpoints(name):
            return name
        return self.engine.resolve(name).thread_id

    def thread_named(self, name: str) -> str:
        """Return the thread that has that name, or the branch that is named with its thread, as in `trip@cheap`.

        For what destroys nothing less will do.
        """
        if self.count_checkpoints(name):
            return name
        # This says what may have been meant.
        meant = self.engine.resolve(name).thread_id
        from everstep.views import threads

        thread, _, branch = name.rpartition("@")
        if not thread or self.run(threads.one, meant)["name"] != branch:
            raise CheckpointNotFound(name, reason=f"{name!r} means a checkpoint, and neither a thread nor a branch")
        return meant

    def count_checkpoints(self, thread: str) -> int:
        """Return how many checkpoints a thread has, hidden ones included; 0: there is no such thread."""
        return self.run(_count_checkpoints, thread)

    def newest_thread(self) -> str:
        """Return the thread that was active last; an error if there is none."""
        page = self.engine.list_threads(1)
        # What is done with it will tell what is wrong with it.
        if page.damaged:
            return page.damaged[0].thread_id
        if not page:
            raise CheckpointNotFound("", reason="there is no thread in this store")
        return page[0].thread_id


async def _count_checkpoints(engine: CheckpointEngine, thread: str) -> int:
    from everstep.stores.protocol import Query
    from everstep.views.reading import repository_of

    query = Query(thread_id=thread, namespace=None, hidden="also")
    return await repository_of(engine).store.count(query)


def blocking_backend(engine: CheckpointEngine) -> StoreBackend:
    """Return the backend of an engine on the face that never suspends."""
    from everstep.backends import StoreBackend

    backend = engine.checkpointer
    if not isinstance(backend, StoreBackend):
        raise UnsupportedByBackend(f"{type(backend).__name__} is not a store of Everstep")
    return backend.blocking


@dataclass
class Common:
    """The options of every command. They may stand before or after its name."""

    store: str | None = None
    profile: str | None = None
    form: str | None = None
    color: str = "auto"
    pager: bool = True
    quiet: bool = False

    @cached_property
    def output(self) -> Output:
        """Where the answer goes."""
        return Output(self.form or "table", self.color, pager=self.pager, quiet=self.quiet)

    @cached_property
    def settings(self) -> Settings:
        """Which store it is."""
        return find_settings(self.store, self.profile)

    @contextmanager
    def opened(self, *, create: bool = False, config: SnapshotConfig | None = None) -> Iterator[Session]:
        """Open the store, and close it in the end. Only with `create` a file that is not there is made."""
        # This takes a while, and help and mistakes need no store.
        from everstep import factory

        settings = self.settings
        if not create:
            require_store(settings.store, settings.source)
        # Nothing that is done from a shell may start the retention that an application has chosen otherwise.
        config = config or SnapshotConfig(gc_policy="keep_all")
        with show_warnings():
            engine = factory.open(settings.store, config, **settings.options)
            with engine.sync:
                yield Session(engine, self.output)


def require_store(address: str, source: str = "") -> Place:
    """Return which store an address names; StoreNotThere if that is a file that does not exist, or empty memory."""
    place = place_of(address)
    if is_in_memory(address):
        raise StoreNotThere("a store in memory lives in its own process only; name a file or a server with --store")
    if place.kind == "sqlite" and not Path(place.where).exists():
        if source == "default":
            raise StoreNotThere("no store was named, and there is no checkpoints.db in this folder")
        raise StoreNotThere(f"there is no store at {place.where}" + (f" ({source})" if source else ""))
    return place


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print warnings as one line each on standard error, such as that a server may lose what it acknowledged."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        sys.stderr.write(f"warning: {text.clean(str(message))}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # The file and line of a warning say nothing to who calls this.
        warnings.showwarning = show
        yield


def confirm(common: Common, what: str, plan: Sequence[str], *, yes: bool, dry_run: bool) -> bool:
    """Show what would happen and return whether it shall. Without a terminal `--yes` is needed."""
    if not common.output.is_json and (dry_run or not yes):
        for line in plan:
            # In a dry run the plan is the answer, otherwise it is part of a question.
            (common.output.line if dry_run else _say)(line)
    if dry_run:
        return False
    if yes:
        return True
    if common.output.is_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NeedsYes(what)
    if not click.confirm(f"{what[:1].upper()}{what[1:]}?", err=True):
        stop("nothing was changed")
    return True


def stop(words: str, code: int = 1) -> NoReturn:
    """End the command after a word about why."""
    _say(words)
    raise click.exceptions.Exit(code)


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")


# -- the options of every command


def common_options() -> list[click.Parameter]:
    """Return the options that every command and group takes."""
    return [
        _option("--store", "store", metavar="URL", help="The store: a file or a URL.", shell_complete=complete_files),
        _option("--profile", "profile", metavar="NAME", help="A store that a config file names."),
        _option("--json", "form", flag_value="json", help="Print one JSON document."),
        _option("--jsonl", "form", flag_value="jsonl", help="Print one JSON document per line."),
        _option(
            "--output",
            "form",
            short="-o",
            type=click.Choice(["table", "json", "jsonl"]),
            help="The form of the answer.",
        ),
        _option("--color", "color", type=click.Choice(["auto", "always", "never"]), help="Whether to use colours."),
        _option("--no-pager", "pager", flag_value=False, help="Write to the terminal at once."),
        _option("--quiet", "quiet", short="-q", flag_value=True, help="No hints and notes."),
    ]


def _option(name: str, field: str, *, short: str = "", **more: Any) -> click.Option:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(ctx.ensure_object(Common), field, value)

    if "flag_value" in more:
        more |= {"is_flag": True, "default": None, "type": click.UNPROCESSED}
    names = [word for word in (short, name, name.strip("-").replace("-", "_")) if word]
    return click.Option(names, callback=keep, expose_value=False, is_eager=True, **more)


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete the name of a file: a store may be one."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def is_common(parameter: click.Parameter) -> bool:
    """Whether this is one of the options that every command takes."""
    return isinstance(parameter, click.Option) and parameter.callback is not None and not parameter.expose_value
