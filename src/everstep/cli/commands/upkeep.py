"""Is everything whole? `verify` tells, `repair` mends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.asking import thread_argument, yes_options
from everstep.cli.failures import FAILURE
from everstep.cli.group import command
from everstep.cli.progress import show_progress
from everstep.cli.session import Common, Session, confirm
from everstep.errors import CheckpointCorrupted, StoreMismatch
from everstep.reports import Finding


@command("verify")
@thread_argument("thread", required=False)
@click.pass_obj
def verify(common: Common, thread: str | None) -> int:
    """Every hash, checksum and reference is looked at, of one thread or of all. It changes nothing, and agents may
    write meanwhile. The exit code is 1 if something is wrong.
    """
    output = common.output
    with common.opened() as session, show_progress(output, "verifying") as progress:
        report = session.engine.verify(_meant(session, thread), progress=progress.count_threads)
    if output.is_json:
        fields = dataclasses.asdict(report)
        output.document({"ok": report.ok, "damaged_threads": report.damaged_threads, **fields}, "findings")
        return 0 if report.ok else FAILURE
    _show_findings(common, report.findings)
    looked = (
        f"{text.describe_count(report.threads, 'thread')}, {text.describe_count(report.checkpoints, 'checkpoint')}, "
        f"{text.describe_count(report.objects, 'object')}, {text.describe_bytes(report.bytes)}"
    )
    if report.ok:
        output.line(f"{output.paint('ok', 'green')}: {looked}: all is as it was written")
        return 0
    output.line(f"{output.paint('damaged', 'red')}: {looked}: {text.describe_count(len(report.findings), 'finding')}")
    output.hint("everstep repair --dry-run tells what can be done")
    return FAILURE


def _meant(session: Session, thread: str | None) -> str | None:
    """Return the thread that is to be looked at; None: all of them."""
    if thread is None:
        return None
    try:
        return session.thread_meant(thread)
    except (CheckpointCorrupted, StoreMismatch):
        # That is what the look is for.
        return thread


def _show_findings(common: Common, findings: Sequence[Finding]) -> None:
    """Show what is wrong, once for all checkpoints of a thread of which it says the same."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        where = text.clean(finding.thread_id or ", ".join(finding.threads))
        checkpoints = alike.setdefault((finding.kind, where, text.clean(finding.what)), [])
        if finding.checkpoint_id is not None:
            checkpoints.append(text.clean(finding.checkpoint_id))
    rows = []
    for (kind, where, what), checkpoints in alike.items():
        rows.append([kind, where, _describe_checkpoints(checkpoints), what])
    if rows:
        common.output.table(("kind", "thread", "checkpoint", "what"), rows, wide="what")


def _describe_checkpoints(ids: Sequence[str]) -> str:
    if len(ids) < 2:
        return "".join(ids)
    return f"{text.describe_count(len(ids), 'checkpoint')}, the first {ids[0]}"


@command("repair")
@thread_argument("thread", required=False)
@click.option("--keep", type=click.Path(dir_okay=False, path_type=Path), help="The file that gets what is set aside.")
@yes_options
@click.pass_obj
def repair(common: Common, thread: str | None, keep: Path | None, yes: bool, dry_run: bool) -> int:
    """What is damaged is set aside, in a file, by name; all that is whole stays readable, and heads move to the newest
    whole checkpoint. Nobody else should use the store meanwhile. The exit code is 1 if something is still wrong.
    """
    output = common.output
    with common.opened() as session, show_progress(output, "repairing") as progress:
        thread = _meant(session, thread)
        # Told before anything is changed, and asked for.
        report = session.engine.repair(thread, dry_run=True, progress=progress.count_threads)
        # A question must not stand behind a bar.
        progress.clear()
        if report.found and not dry_run:
            what = f"change {text.describe_count(len(report.threads), 'thread')}"
            plan = [text.clean(line) for line in str(report).splitlines()]
            confirm(common, what, plan, yes=yes, dry_run=False)
            report = session.engine.repair(thread, keep=keep, progress=progress.count_threads)
    if output.is_json:
        output.document({"ok": report.ok, **dataclasses.asdict(report), "dry_run": dry_run})
    else:
        for line in str(report).splitlines():
            output.line(text.clean(line))
    return 0 if report.ok or dry_run else FAILURE


COMMANDS: dict[str, click.Command] = {"verify": verify, "repair": repair}
