"""Processes that are there at once: forked from one that has imported their modules already.

To import LangGraph takes a process a second, and some tests need three of them. Each is a process of its own, with
nothing in common with this one: only the modules were there before it was.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

_MESSAGE_BYTES = 1 << 16


class Child:
    """A process that runs `main` of a module with some texts; it is told and tells by lines."""

    def __init__(self, module: str, *arguments: str) -> None:
        its_input, told = os.pipe()
        tells, its_output = os.pipe()
        self.pid = _nursery().bring_forth([module, *arguments], [its_input, its_output])
        self._told = os.fdopen(told, "w", buffering=1)
        self._tells = os.fdopen(tells)

    def line(self) -> str:
        """Return the next line that it says; nothing if it has ended."""
        return self._tells.readline().rstrip("\n")

    def go_on(self) -> None:
        """Let one who waits for a line have it."""
        self._told.write("\n")

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """Kill it, and return when it is gone."""
        if self._tells.closed:
            return
        self.send(signal.SIGKILL)
        _nursery().wait_for(self.pid)
        self._tells.close()
        with contextlib.suppress(BrokenPipeError):
            self._told.close()


class _Nursery:
    """The process that others are forked from. It ends when this one does."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            command = [sys.executable, "-m", __name__, str(other.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        atexit.register(self._close)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()

    def bring_forth(self, what: list[str], ends: list[int]) -> int:
        """Return the number of a new process, which gets these ends of pipes as input and output."""
        socket.send_fds(self._socket, [json.dumps(what).encode()], ends)
        for end in ends:
            os.close(end)
        answer = self._socket.recv(_MESSAGE_BYTES).decode()
        if not answer.isdigit():
            raise RuntimeError(answer)
        return int(answer)

    def wait_for(self, pid: int) -> None:
        """Return when a process has ended."""
        self._socket.send(json.dumps(pid).encode())
        self._socket.recv(_MESSAGE_BYTES)


@functools.cache
def _nursery() -> _Nursery:
    return _Nursery()


def _serve(asked: socket.socket) -> tuple[Any, list[str]]:
    """Do what is asked for, one thing after the other. Return in each child, with what it shall do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the keyboard is for the tests
    while True:
        message, ends, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        what = json.loads(message)
        if isinstance(what, int):
            os.waitpid(what, 0)
            answer = "gone"
        else:
            answer = _fork(what[0])
        if answer == _CHILD:
            asked.close()
            _take_over(ends)
            return sys.modules[what[0]], what[1:]
        for end in ends:
            os.close(end)
        asked.send(answer.encode())


_CHILD = "0"


def _fork(module: str) -> str:
    """Return the number of the new process, `_CHILD` in it, or what stands in the way."""
    try:
        importlib.import_module(module)
        return str(os.fork())
    except Exception as exc:
        return repr(exc)


def _take_over(ends: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, end in enumerate(ends):
        os.dup2(end, place)
        os.close(end)


if __name__ == "__main__":
    module, arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    module.main(*arguments)
