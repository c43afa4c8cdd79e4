"""The command with its subcommands: each is imported when it is called. Errors end here, as text or JSON and a code."""

from __future__ import annotations

import codecs
import difflib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from everstep.cli import catalog, failures
from everstep.cli.session import Common, common_options, is_common
from everstep.cli.start import COMPLETE_VARIABLE
from everstep.version import __version__


class Command(click.Command):
    """A command that takes the common options besides its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = {name for parameter in self.params for name in parameter.opts}
        # A command that has an option of the same name means its own.
        self.params += [option for option in common_options() if not own & set(option.opts)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of its own first, those of every command below them."""
        _format_options(self, ctx, formatter)


class Group(click.Group):
    """A command with verbs of its own, such as `retention plan`."""

    command_class = Command

    def __init__(self, *args: Any, verb: str = "", **kwargs: Any) -> None:
        """`verb` is meant by a word that is none of the verbs, and no mistyped one."""
        super().__init__(*args, **kwargs)
        self.params += common_options()
        self._verb = verb

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs, then the options."""
        self.format_commands(ctx, formatter)
        _format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was named; one that is not there is an error that guesses what was meant."""
        name = args[0]
        # It stands behind `--`, so it is the name of something that the verb is about.
        if self._verb and name.startswith("-"):
            return super().resolve_command(ctx, [self._verb, "--", *args])
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.list_commands(ctx), 2)
            if self._verb and not close:
                return super().resolve_command(ctx, [self._verb, *args])
            meant = f"; did you mean {' or '.join(close)}?" if close else ""
            what = f"{ctx.info_name} has no command {name!r}"
            if self is not root:
                what = f"everstep {ctx.info_name} has no {name!r}"
            raise click.UsageError(what + meant, ctx)
        return super().resolve_command(ctx, args)


class _Root(Group):
    """The command itself."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named. A reader that leaves before its end is no error, which it is for click."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return 0

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # of the base
        return catalog.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # of the base
        module = catalog.module_of(cmd_name)
        if module is None:
            return None
        # Imported only now: with the modules of all commands each of them would take noticeably longer to
        # start.
        found: click.Command = import_module(module).COMMANDS[cmd_name]
        return found

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # of the base
        formatter.write(catalog.help_text())


def _format_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if record is not None:
            (shared if is_common(parameter) else own).append(record)
    for title, records in (("Options", own), ("Common options", shared)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


root = _Root(name="everstep", invoke_without_command=False)
root.params.append(
    click.Option(
        ["--version", "-V"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=lambda ctx, _, value: _show_version(ctx, value),
        help="Print the version.",
    )
)


def _show_version(ctx: click.Context, value: bool) -> None:
    if value:
        sys.stdout.write(f"everstep {__version__}\n")
        ctx.exit()


def command(name: str, **more: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a command of a function; its help begins with the line of the catalogue."""
    about = catalog.summary_of(name)

    def make(function: Callable[..., Any]) -> Command:
        details = function.__doc__ or ""
        made: Command = click.command(name, cls=Command, help=f"{about}\n\n{_dedent(details)}", **more)(function)
        made.short_help = about
        return made

    return make


def group(name: str, **more: Any) -> Callable[[Callable[..., Any]], Group]:
    """Return a decorator that makes a group of a function, with the line of the catalogue as its help."""

    def make(function: Callable[..., Any]) -> Group:
        made: Group = click.group(name, cls=Group, help=catalog.summary_of(name), **more)(function)
        return made

    return make


def _dedent(docstring: str) -> str:
    import inspect

    return inspect.cleandoc(docstring)


# -- running

_NO_LOG = logging.NullHandler()
_ESCAPED = "everstep.escaped"


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    common = Common()
    given = list(arguments)
    _escape_what_cannot_be_written()
    if COMPLETE_VARIABLE in os.environ:
        from everstep.cli.shells import register

        register()
    # What the library logs is for applications: here the answer says it. Without a handler Python would print it.
    logging.getLogger("everstep").addHandler(_NO_LOG)
    try:
        # Without click's own handling of errors, so that each of them is told in our form, and as JSON if
        # asked.
        result = root.main(
            given, prog_name="everstep", complete_var=COMPLETE_VARIABLE, standalone_mode=False, obj=common
        )
        # Here a closed pipe can still be noticed; at the exit it would be a traceback.
        sys.stdout.flush()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.exceptions.NoArgsIsHelpError as exc:
        sys.stderr.write(exc.format_message() + "\n")
        return failures.USAGE
    except BrokenPipeError:
        # Whoever read the answer had enough of it. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.Abort:
        # It was interrupted while it asked: the line of the question has not ended.
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        return failures.INTERRUPTED
    except KeyboardInterrupt:
        return failures.INTERRUPTED
    except Exception as exc:
        fields, code = failures.describe(exc)
        failures.report(fields, as_json=_wants_json(common, given))
        return code
    return result if isinstance(result, int) else 0


def _escape_what_cannot_be_written() -> None:
    """On a terminal, or in a pipe, that knows few characters write others as JSON does, in place of an error."""
    codecs.register_error(_ESCAPED, _as_json_escapes)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_ESCAPED)


def _as_json_escapes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _wants_json(common: Common, arguments: Sequence[str]) -> bool:
    """Whether JSON was asked for, be it in arguments that could not be read to their end."""
    if common.form is not None:
        return common.form != "table"
    following = pairwise([*arguments, ""])
    return any(word in ("--json", "--jsonl") or (word == "-o" and "json" in value) for word, value in following)
