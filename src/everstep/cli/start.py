"""Where the command starts. Help and version are printed before anything else is imported."""

from __future__ import annotations

import os
import sys

# As in `typing`, which takes longer to import than everything here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPLETE_VARIABLE = "_EVERSTEP_COMPLETE"
"""Set by the completion scripts of shells."""

_MISSING = "everstep: the command line is not installed; run: pip install 'everstep[cli]'\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: those of the process), and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE_VARIABLE not in os.environ:
        answer = _answer_at_once(given)
        if answer is not None:
            sys.stdout.write(answer)
            return 0
    try:
        import click  # noqa: F401  # only to see whether it is there
    except ImportError:
        sys.stderr.write(_MISSING)
        return 1
    try:
        from everstep.cli.group import run

        return run(given)
    except KeyboardInterrupt:
        # It came before the command had begun: to import all that it needs takes a moment.
        return 130


def _answer_at_once(arguments: Sequence[str]) -> str | None:
    """Return the answer to the arguments that need no command, or None."""
    if list(arguments) in ([], ["--help"], ["-h"], ["help"]):
        from everstep.cli.catalog import help_text

        return help_text()
    if list(arguments) in (["--version"], ["-V"]):
        from everstep.version import __version__

        return f"everstep {__version__}\n"
    return None
