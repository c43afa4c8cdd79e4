"""Commands as they are written in a shell, for people to copy. Pure."""

from __future__ import annotations

import shlex


def as_command(words: str, *arguments: str) -> str:
    """Return a command: `words` are its name with its options, `arguments` the names that it is about.

    An argument that begins with `-` would be taken for an option, so `--` says before it that no more of them follow.
    """
    parts = ["everstep", words]
    if any(argument.startswith("-") for argument in arguments):
        parts.append("--")
    for argument in arguments:
        parts.append(shlex.quote(argument))
    return " ".join(parts)
