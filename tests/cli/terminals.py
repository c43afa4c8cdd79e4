"""The command on a terminal of its own, as a person sees it."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple


class Seen(NamedTuple):
    """What a person saw, and how the command ended."""

    code: int
    screen: str


def start_on_terminal(
    *arguments: object, answers: str = "", after: str = "", environment: Mapping[str, str] | None = None
) -> Seen:
    """Run the command on a pseudo-terminal 120 characters wide, and type `answers` once `after` is seen."""
    process, terminal = pty.fork()
    if process == 0:  # pragma: no cover  # in the child
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # who runs the tests in the background has it ignored
        os.environ.update({"TERM": "xterm", "COLUMNS": "120", "LINES": "50", **(environment or {})})
        os.execv(sys.executable, [sys.executable, "-m", "everstep", *map(str, arguments)])
    seen = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
        if answers and after.encode() in seen:
            os.write(terminal, answers.encode())
            answers = ""
    else:
        os.kill(process, 9)
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return Seen(os.waitstatus_to_exitcode(status), seen.decode(errors="replace").replace("\r\n", "\n"))
