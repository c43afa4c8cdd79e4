"""Threads in one portable file, and backups of a store."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import thread_argument
from everstep.cli.group import command
from everstep.cli.progress import show_progress
from everstep.cli.session import Common


@command("export")
@thread_argument("threads", nargs=-1)
@click.option(
    "--to", "-o", "file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file, new; or -."
)
@click.option("--all", "everything", is_flag=True, help="All threads that there are.")
@click.pass_obj
def export(common: Common, threads: Sequence[str], file: Path, everything: bool) -> None:
    """A thread comes with its family: its branches, and the thread it came from. `everstep import` reads the file into
    any store.
    """
    from everstep.transfer.exporting import export_threads

    if bool(threads) == everything:
        raise click.UsageError("name the threads to export, or say --all")
    target: Any = sys.stdout.buffer if str(file) == "-" else file
    with common.opened() as session, show_progress(common.output, "exporting") as progress:
        # A name that does not exist is told before the file is begun.
        named = [session.thread_meant(thread) for thread in threads]
        report = export_threads(session.engine, target, named or None, progress=progress.count_checkpoints)
    if target is not file:
        # Nothing but the file may be in the pipe.
        return
    if common.output.is_json:
        common.output.document({"file": str(file), **dataclasses.asdict(report)})
        return
    common.output.line(
        f"{file}: {text.describe_count(report.threads, 'thread')}, "
        f"{text.describe_count(report.checkpoints, 'checkpoint')}, {text.describe_bytes(report.bytes)}"
    )
    common.output.hint(text.as_command("import --store URL", file))


@command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--thread", "threads", multiple=True, metavar="THREAD", help="Only the family of this one; repeatable.")
@click.option("--verify/--no-verify", default=True, help="Read everything back and compare.")
@click.pass_obj
def import_(common: Common, file: Path, threads: Sequence[str], verify: bool) -> None:
    """Everything in it is checked, so it may come from anybody. Run it again after a crash: it goes on."""
    from everstep.transfer.exporting import import_threads

    source: Any = sys.stdin.buffer if str(file) == "-" else file
    # Into a store that is not there yet is the usual case here, unlike in all commands that look.
    with common.opened(create=True) as session, show_progress(common.output, "importing") as progress:
        report = import_threads(
            source, session.engine, threads or None, verify=verify, progress=progress.count_checkpoints
        )
    _show_copied(common, report)


@command("backup")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.pass_obj
def backup(common: Common, folder: Path) -> None:
    """The store may be in use. The first backup holds everything, later ones into the same folder what has changed
    since; `everstep restore` brings back any of them.
    """
    from everstep.transfer.backups import backup as back_up

    output = common.output
    with common.opened() as session, show_progress(output, "backing up") as progress:
        report = back_up(session.engine, folder, progress=progress.count_checkpoints)
    if output.is_json:
        output.document({"folder": str(folder), **dataclasses.asdict(report)})
        return
    output.line(
        f"{folder}: backup {report.number}: {text.describe_count(report.threads, 'thread')} written, "
        f"{report.unchanged:,} unchanged, {text.describe_bytes(report.bytes)}"
    )
    output.hint(text.as_command(f"restore --store URL --at {report.number}", folder))


@command("restore")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", metavar="NUMBER|TIME", help="The backup of that number, or the newest at that time.")
@click.option("--verify/--no-verify", default=True, help="Read everything back and compare.")
@click.pass_obj
def restore(common: Common, folder: Path, at: str | None, verify: bool) -> None:
    """Into the store that is named, best a new one: nothing in it is overwritten. Run it again after a crash."""
    from everstep.transfer.backups import restore as bring_back

    moment = int(at) if at is not None and at.isdecimal() else at
    with common.opened(create=True) as session, show_progress(common.output, "restoring") as progress:
        report = bring_back(folder, session.engine, moment, verify=verify, progress=progress.count_checkpoints)
    _show_copied(common, report)


def _show_copied(common: Common, report: Any) -> None:
    if common.output.is_json:
        common.output.document(dataclasses.asdict(report))
        return
    common.output.line(
        f"{text.describe_count(report.threads, 'thread')}: {text.describe_count(report.checkpoints, 'checkpoint')} "
        f"brought in, {report.skipped:,} were there already"
    )
    if report.kept_ids:
        # They belong to what came, so somebody may wonder why they are as before.
        common.output.note(f"left as they are in the store: {', '.join(map(text.clean, report.kept_ids))}")


COMMANDS: dict[str, click.Command] = {
    "export": export,
    "import": import_,
    "backup": backup,
    "restore": restore,
}
