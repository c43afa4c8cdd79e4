"""Heads as this process saw them last, for stores on servers.

Two uses: a commit that names the head it follows needs one round trip, and a head whose generation went down tells that
the server lost writes it had acknowledged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

from everstep.errors import HeadRegressed

K = TypeVar("K")
_HEADS_MAX = 10_000


class Seen(NamedTuple, Generic[K]):
    """A head as it was seen."""

    family: str
    generation: int
    known: K | None
    """What the store wants to know about it; None: ask the server."""


class Heads(Generic[K]):
    """The last heads, by thread and namespace. May be used from several threads."""

    def __init__(self, size_max: int = _HEADS_MAX) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], Seen[K]] = OrderedDict()
        self._size_max = size_max

    def get(self, line: tuple[str, str]) -> Seen[K] | None:
        """Return the head as last seen. Call it before asking the server, and hand the answer to `note`."""
        with self._lock:
            return self._seen.get(line)

    def check(self, line: tuple[str, str], family: str, generation: int, since: Seen[K] | None) -> None:
        """Raise HeadRegressed if what the server answered is older than `since`, which `get` gave before the call.

        Only that counts: another thread of this process may have moved the head meanwhile. After the error the line is
        forgotten, and the next call goes on.
        """
        if since is not None and since.family == family and generation < since.generation:
            self.forget(line)
            raise HeadRegressed(line[0], since.generation, generation)

    def note(self, line: tuple[str, str], family: str, generation: int, known: K | None, since: Seen[K] | None) -> None:
        """Check what the server answered, and remember it."""
        self.check(line, family, generation, since)
        with self._lock:
            last = self._seen.get(line)
            if last is not None and last.family == family and generation < last.generation:
                return  # another thread has a newer answer
            self._seen[line] = Seen(family, generation, known)
            self._seen.move_to_end(line)
            if len(self._seen) > self._size_max:
                self._seen.popitem(last=False)

    def doubt(self, line: tuple[str, str]) -> None:
        """Keep the generation, but ask the server for the rest."""
        with self._lock:
            seen = self._seen.get(line)
            if seen is not None:
                self._seen[line] = seen._replace(known=None)

    def forget(self, line: tuple[str, str]) -> None:
        """Drop a line that is gone."""
        with self._lock:
            self._seen.pop(line, None)

    def rest(self) -> None:
        """Before a fork: nobody may be inside."""
        self._lock.acquire()

    def wake(self) -> None:
        """After it."""
        self._lock.release()
