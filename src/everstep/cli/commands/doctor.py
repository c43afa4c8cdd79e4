"""`everstep doctor`."""

from __future__ import annotations

import click

from everstep.cli import text
from everstep.cli.failures import FAILURE, UNREACHABLE
from everstep.cli.group import command
from everstep.cli.health import Finding, examine
from everstep.cli.session import Common
from everstep.errors import StoreUnavailable

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


@command("doctor")
@click.pass_obj
def doctor(common: Common) -> int:
    """It changes nothing. The exit code is 0 if nothing has failed (warnings are none), 5 if the store cannot be
    reached, otherwise 1.
    """
    output = common.output
    findings = []
    for finding in examine(common.settings):
        findings.append(finding)
        # Each as it comes: a server that does not answer may take its time.
        if not output.is_json:
            _show(common, finding)
    if output.is_json:
        worst = next((status for status in ("fail", "warn") if _has(findings, status)), "ok")
        output.document({"status": worst, "checks": [_fields(finding) for finding in findings]}, "checks")
    return _exit_code(findings)


def _fields(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "status": finding.status,
        "message": text.clean(finding.message),
        "advice": text.clean(finding.advice),
    }


def _has(findings: list[Finding], status: str) -> bool:
    return any(finding.status == status for finding in findings)


def _exit_code(findings: list[Finding]) -> int:
    if any(isinstance(finding.error, StoreUnavailable) for finding in findings):
        return UNREACHABLE
    return FAILURE if _has(findings, "fail") else 0


def _show(common: Common, finding: Finding) -> None:
    output = common.output
    mark, color = _MARKS[finding.status]
    words = [text.clean(part) for part in (finding.check, finding.message)]
    if not output.is_terminal:
        output.line("\t".join([finding.status, *words, text.clean(finding.advice)]))
        return
    output.line(f"{output.paint(f'{mark:<4}', color)}  {words[0]:<12} {words[1]}")
    if finding.advice:
        output.line(f"{'':<19}{output.paint('-> ' + text.clean(finding.advice), 'bold')}")


COMMANDS: dict[str, click.Command] = {"doctor": doctor}
