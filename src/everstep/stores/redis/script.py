"""The scripts of the Redis store, one for each thing to do, cut from one source."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

_DEFINED = re.compile(r"(?:local function |local |function verbs\.)(\w+)")
_WORD = re.compile(r"\w+")


class Script(NamedTuple):
    """A script and the name under which a server remembers it."""

    text: bytes
    sha: bytes


@functools.cache
def script(verb: str) -> Script:
    """Return the script that does one thing: its function, and those it needs. Making all of them takes time."""
    blocks = _blocks()
    needed = set()
    pending = [f"verbs.{verb}"]
    # A word in a function may be the name of another one; one that is not needed does no harm.
    while pending:
        name = pending.pop()
        if name in blocks and name not in needed:
            needed.add(name)
            pending += _WORD.findall(blocks[name])
    text = "".join(block for name, block in blocks.items() if name in needed) + f"return verbs.{verb}()\n"
    return Script(text.encode(), hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


@functools.cache
def _blocks() -> dict[str, str]:
    """Return the definitions of the source by name, in their order."""
    source = resources.files("everstep.stores.redis").joinpath("redis-1.lua").read_text()
    lines = [line for line in source.splitlines(keepends=True) if not line.startswith("--")]
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        if defined := _DEFINED.match(line):
            name = f"verbs.{defined[1]}" if line.startswith("function") else defined[1]
            found[name] = ""
        if name:
            found[name] += line
    return found
