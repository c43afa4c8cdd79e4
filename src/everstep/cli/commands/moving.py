"""Histories from one place to another: stores, files, backups, LangGraph's own savers."""

from __future__ import annotations

import dataclasses

import click

from everstep.cli import text
from everstep.cli.group import command
from everstep.cli.progress import show_progress
from everstep.cli.session import Common, blocking_backend, complete_files, require_store, show_warnings


@command("copy")
@click.argument("source", metavar="SOURCE_URL", shell_complete=complete_files)
@click.argument("target", metavar="TARGET_URL", shell_complete=complete_files)
@click.option(
    "--thread", "threads", multiple=True, metavar="THREAD", help="Only the family of this thread; repeatable."
)
@click.option("--verify/--no-verify", default=True, help="Read everything back and compare.")
@click.option("--skip-damaged", is_flag=True, help="Bring what can be read of a damaged store, and name the rest.")
@click.pass_obj
def copy(common: Common, source: str, target: str, threads: tuple[str, ...], verify: bool, skip_damaged: bool) -> None:
    """Branches, merges, tags, pins and the log of operations come along. Run it again after a crash, or later: it
    goes on where it stopped, and brings what is new.
    """
    from everstep.transfer.copying import copy as copy_histories

    # A mistyped source would otherwise be made, empty, and copied.
    require_store(source)
    with show_warnings(), show_progress(common.output, "copying") as progress:
        report = copy_histories(
            source,
            target,
            threads or None,
            verify=verify,
            skip_damaged=skip_damaged,
            progress=progress.count_checkpoints,
        )
    fields = dataclasses.asdict(report)
    if common.output.is_json:
        common.output.document(fields)
        return
    common.output.line(
        f"{text.describe_count(report.threads, 'thread')}: {text.describe_count(report.checkpoints, 'checkpoint')} "
        f"sent, {report.skipped:,} were there already, {report.verified:,} verified"
    )
    for finding in report.damaged:
        common.output.note(f"left out: {text.clean(finding)}")


@command("import-langgraph")
@click.argument("source", metavar="URL", shell_complete=complete_files)
@click.option("--thread", "threads", multiple=True, metavar="THREAD", help="Only this thread; may be repeated.")
@click.option("--verify/--no-verify", default=True, help="Read everything back and compare.")
@click.pass_obj
def import_langgraph(common: Common, source: str, threads: tuple[str, ...], verify: bool) -> None:
    """URL is sqlite:///path, a path or postgresql://..., as LangGraph's SqliteSaver and PostgresSaver write them. It
    is only read. Ids stay as they are, so a graph goes on where it was.
    """
    from everstep.langgraph.importing import import_langgraph as import_threads

    with common.opened(create=True) as session, show_progress(common.output, "importing") as progress:
        report = import_threads(
            source,
            blocking_backend(session.engine._driven),
            thread_ids=threads or None,
            verify=verify,
            quiet=True,
            progress=progress.count_checkpoints,
        )
    if common.output.is_json:
        common.output.document(dataclasses.asdict(report))
        return
    common.output.line(
        f"{text.describe_count(report.threads, 'thread')}: {text.describe_count(report.checkpoints, 'checkpoint')} and "
        f"{text.describe_count(report.writes, 'pending write')} brought over, {report.skipped:,} were there already, "
        f"{report.verified:,} verified"
    )
    if report.target_bytes is not None:
        sizes = (text.describe_bytes(report.source_bytes), text.describe_bytes(report.target_bytes))
        common.output.line(f"{sizes[0]} there, {sizes[1]} here")
    if report.secrets:
        common.output.note(f"{report.secrets:,} entries of metadata were left behind: their names are those of secrets")


COMMANDS: dict[str, click.Command] = {"copy": copy, "import-langgraph": import_langgraph}
