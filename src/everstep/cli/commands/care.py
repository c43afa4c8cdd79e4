"""The care of a store: sizes, retention, space, deletion."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import Assignment, Moment, thread_argument, yes_options
from everstep.cli.group import command, group
from everstep.cli.rendering import tell_damage
from everstep.cli.session import Common, Session, confirm
from everstep.config import CheckpointGC, SnapshotConfig
from everstep.errors import InvalidInput
from everstep.reports import GCReport

_POLICIES = [policy.value for policy in CheckpointGC]


# -- retention


@group("retention")
def retention() -> None:
    """Which checkpoints are kept."""


def _policy_options(function: Any) -> Any:
    function = click.option("--keep", type=float, metavar="N", help="How many, or for keep_age how many seconds.")(
        function
    )
    return click.option("--policy", type=click.Choice(_POLICIES), help="Which checkpoints are kept.")(function)


@retention.command("show")
@_policy_options
@click.pass_obj
def retention_show(common: Common, policy: str | None, keep: float | None) -> None:
    """Show the policy that `plan` and `apply` use.

    It comes from --policy and --keep, or from `retention` in a config file. An application has a policy of its own,
    in its SnapshotConfig, which applies when it writes.
    """
    config, source = _policy(common, policy, keep)
    fields = {"policy": str(config.gc_policy), "param": config.gc_param, "source": source}
    if common.output.is_json:
        common.output.document(fields)
        return
    common.output.line(f"{_describe_policy(config)} ({source})")
    common.output.hint("everstep retention plan tells what would go")


@retention.command("plan")
@_policy_options
@thread_argument("thread", required=False)
@click.pass_obj
def retention_plan(common: Common, thread: str | None, policy: str | None, keep: float | None) -> None:
    """Tell what `apply` would remove, of one thread or of all."""
    config, source = _policy(common, policy, keep)
    with common.opened(config=config) as session:
        report = _collect(session, thread, dry_run=True)
    _show_collected(common, report, config, source)
    if report.checkpoints:
        common.output.hint("everstep retention apply removes them, for good")


@retention.command("apply")
@_policy_options
@thread_argument("thread", required=False)
@yes_options
@click.pass_obj
def retention_apply(
    common: Common, thread: str | None, policy: str | None, keep: float | None, yes: bool, dry_run: bool
) -> None:
    """Remove what the policy does not keep, of one thread or of all. This cannot be undone."""
    config, source = _policy(common, policy, keep)
    with common.opened(config=config) as session:
        report = _collect(session, thread, dry_run=True)
        if report.checkpoints and not dry_run:
            what = f"remove {text.describe_count(report.checkpoints, 'checkpoint')} for good"
            plan = [_describe_policy(config), _describe_collected(report)]
            confirm(common, what, plan, yes=yes, dry_run=False)
        if not dry_run:
            report = _collect(session, thread, dry_run=False)
    _show_collected(common, report, config, source)


def _policy(common: Common, policy: str | None, keep: float | None) -> tuple[SnapshotConfig, str]:
    """Return the policy that was asked for, or that of the settings, and where it comes from."""
    settings = common.settings
    source = "--policy"
    if policy is None:
        named = settings.retention.get("policy")
        policy = str(named) if named is not None else CheckpointGC.KEEP_ALL.value
        source = settings.source if named is not None else "default"
    # A number of the settings belongs to the policy that they name, and not to another one.
    if keep is None:
        keep = settings.retention.get("param") if source != "--policy" else None
    if keep is None and policy != CheckpointGC.KEEP_ALL.value:
        raise InvalidInput(f"{policy} needs a number: --keep 100")
    return SnapshotConfig(gc_policy=policy, gc_param=keep if keep is not None else 100), source


def _describe_policy(config: SnapshotConfig) -> str:
    if config.gc_policy is CheckpointGC.KEEP_ALL:
        return "keep_all: every checkpoint is kept"
    if config.gc_policy is CheckpointGC.KEEP_AGE:
        return f"keep_age: checkpoints of the last {config.gc_param:,.0f} seconds, and each head"
    if config.gc_policy is CheckpointGC.KEEP_LAST_N:
        return f"keep_last_n: the newest {config.gc_param:,.0f} of each thread"
    return f"keep_milestones: {config.gc_param:,.0f} of each thread, spread over its history"


def _collect(session: Session, thread: str | None, *, dry_run: bool) -> GCReport:
    if thread is not None:
        thread = session.thread_named(thread)
    return session.engine.collect(thread, dry_run=dry_run)


def _describe_collected(report: GCReport) -> str:
    verb = "would go" if report.dry_run else "removed"
    hidden = f" ({report.hidden:,} of them hidden)" if report.hidden else ""
    return (
        f"{text.describe_count(report.threads, 'thread')} looked at; "
        f"{text.describe_count(report.checkpoints, 'checkpoint')}{hidden} and "
        f"{text.describe_count(report.objects, 'object')} {verb}, about {text.describe_bytes(report.size_bytes)}"
    )


def _show_collected(common: Common, report: GCReport, config: SnapshotConfig, source: str) -> None:
    if common.output.is_json:
        policy = {"policy": str(config.gc_policy), "param": config.gc_param, "source": source}
        common.output.document({**dataclasses.asdict(report), "retention": policy})
        return
    common.output.line(_describe_collected(report))


@command("gc")
@thread_argument("thread", required=False)
@click.option("--dry-run", is_flag=True, help="Only tell what would happen.")
@click.pass_obj
def gc(common: Common, thread: str | None, dry_run: bool) -> None:
    """Removes no checkpoint, whatever the retention: only what deletions and rewinds have left behind."""
    config = SnapshotConfig(gc_policy=CheckpointGC.KEEP_ALL)
    with common.opened(config=config) as session:
        report = _collect(session, thread, dry_run=dry_run)
    _show_collected(common, report, config, "gc")


@command("stats")
@thread_argument("thread", required=False)
@click.pass_obj
def stats(common: Common, thread: str | None) -> None:
    """Of one thread or of all: what is stored, what it would be as full copies, and what only this thread needs."""
    from everstep.views import storage

    output = common.output
    with common.opened() as session:
        if thread is not None:
            thread = session.thread_meant(thread)
        found = session.run(storage.sizes, thread, plan=False)
    if output.is_json:
        output.document(found)
        return
    ratio = f", {found['ratio']:g} times that as full copies" if found["ratio"] is not None else ""
    rows = [
        ("threads", f"{found['threads']:,}"),
        ("checkpoints", f"{found['checkpoints']:,}"),
        ("stored", f"{text.describe_bytes(found['total_bytes'])}{ratio}"),
        ("records", text.describe_bytes(found["record_bytes"])),
        ("values", text.describe_bytes(found["exclusive_bytes"])),
        ("shared with others", text.describe_bytes(found["shared_bytes"])),
        ("pending writes", text.describe_bytes(found["write_bytes"])),
    ]
    output.table(("what", "size"), rows)
    tell_damage(output, found["damage"])
    output.hint("everstep retention plan tells what a policy would remove")


# -- deletion


@command("rm")
@thread_argument("threads", nargs=-1, required=True)
@yes_options
@click.pass_obj
def rm(common: Common, threads: Sequence[str], yes: bool, dry_run: bool) -> None:
    """They are gone for good: this cannot be undone. Branches of a thread are threads of their own, and stay."""
    with common.opened() as session:
        named = list(dict.fromkeys(map(session.thread_named, threads)))
        counts = {thread: session.count_checkpoints(thread) for thread in named}
        plan = [f"{text.clean(thread)}: {text.describe_count(counts[thread], 'checkpoint')}" for thread in named]
        what = f"delete {text.describe_count(len(named), 'thread')} for good"
        deleted = 0
        if confirm(common, what, plan, yes=yes, dry_run=dry_run):
            for thread in named:
                deleted += session.engine.checkpointer.delete_thread(thread)
    _show_deleted(common, named, sum(counts.values()) if dry_run else deleted, dry_run)


@command("purge")
@click.option("--prefix", default="", help="Threads whose names begin so.")
@click.option("--tag", "tags", multiple=True, help="Threads whose newest checkpoint has this tag.")
@click.option("--metadata", "filters", multiple=True, type=Assignment(), metavar="KEY=JSON", help="And this metadata.")
@click.option("--since", type=Moment(), help="Threads that were active since then.")
@click.option("--all", "everything", is_flag=True, help="All threads that there are.")
@yes_options
@click.pass_obj
def purge(
    common: Common,
    prefix: str,
    tags: Sequence[str],
    filters: Sequence[tuple[str, Any]],
    since: Any,
    everything: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """They are removed physically, with all that only they needed. Nothing can bring them back, not even undo."""
    if not (prefix or tags or filters or since or everything):
        raise click.UsageError("say which threads: --prefix, --tag, --metadata or --since; or --all of them")
    asked: dict[str, Any] = {
        "prefix": prefix,
        "tags": tags,
        "filter": dict(filters) or None,
        "since": since,
        "everything": everything,
    }
    with common.opened() as session:
        found = session.engine.delete_threads(**asked, dry_run=True)
        plan = [text.clean(thread) for thread in found.thread_ids]
        what = (
            f"remove {text.describe_count(len(found.thread_ids), 'thread')} with "
            f"{text.describe_count(found.checkpoints, 'checkpoint')} for good"
        )
        if found.thread_ids and confirm(common, what, plan, yes=yes, dry_run=dry_run):
            found = session.engine.delete_threads(**asked)
            # What only these threads needed is swept now: whoever purges wants it gone.
            session.engine.collect()
    _show_deleted(common, found.thread_ids, found.checkpoints, dry_run)


def _show_deleted(common: Common, threads: Sequence[str], checkpoints: int, dry_run: bool) -> None:
    if common.output.is_json:
        common.output.document({"threads": list(threads), "checkpoints": checkpoints, "dry_run": dry_run})
        return
    verb = "would be deleted" if dry_run else "deleted"
    common.output.line(
        f"{text.describe_count(len(threads), 'thread')} with {text.describe_count(checkpoints, 'checkpoint')} {verb}"
    )


# -- format


@command("migrate")
@click.pass_obj
def migrate(common: Common) -> None:
    """A store is brought to the newest format when it is opened. This opens it, and tells that it could."""
    with common.opened() as session:
        session.engine.list_threads(1)
        store = session.engine.stats().store
    if common.output.is_json:
        common.output.document({"store": store, "up_to_date": True})
        return
    common.output.line(f"{text.clean(store)} has the newest format")


COMMANDS: dict[str, click.Command] = {
    "retention": retention,
    "gc": gc,
    "stats": stats,
    "rm": rm,
    "purge": purge,
    "migrate": migrate,
}
