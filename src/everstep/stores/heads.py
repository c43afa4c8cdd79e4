"""Heads as this process saw them last, for stores on servers.

Two uses: a commit that names the head it follows needs one round trip, and a head that went back, or is gone though
nobody deleted it, tells that the server lost writes it had acknowledged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from everstep.errors import HeadRegressed
from everstep.runtime import forks

K = TypeVar("K")
_HEADS_MAX = 10_000


class SeenHead(NamedTuple, Generic[K]):
    """A head as it was seen."""

    family: str
    generation: int
    known: K | None
    """What the store wants to know about it; None: ask the server."""
    seq: int = 0
    """The highest seq that a head of this line was seen to have; 0: not known."""


class Heads(Generic[K]):
    """The last heads, by thread and namespace. May be used from several threads."""

    def __init__(self, size_max: int = _HEADS_MAX) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], SeenHead[K]] = OrderedDict()
        self._namespaces: dict[str, dict[str, None]] = {}
        """By thread: the namespaces of it that are in `_seen`."""
        self._size_max = size_max
        self._fork_guard = forks.hold(self._lock, 2)

    def get(self, line: tuple[str, str]) -> SeenHead[K] | None:
        """Return the head as last seen. Call it before asking the server, and hand the answer to `note`."""
        with self._lock:
            return self._seen.get(line)

    def any_of(self, thread_id: str) -> tuple[str, SeenHead[K]] | None:
        """Return a namespace of the thread, and its head as last seen; None: nothing of the thread was seen."""
        with self._lock:
            for namespace in self._namespaces.get(thread_id, ()):
                return namespace, self._seen[thread_id, namespace]
        return None

    def check(
        self,
        line: tuple[str, str],
        family: str | None,
        generation: int,
        since: SeenHead[K] | None,
        was_deleted: Callable[[SeenHead[K]], bool] | None = None,
    ) -> None:
        """Raise HeadRegressed if what the server answered is older than `since`, which `get` gave before the call.

        Only that counts: another thread of this process may have moved the head meanwhile. A `family` of None means
        that the line is not there. If it is not, or is in another family, `was_deleted` asks the server whether what
        was seen was deleted or has ended, so that this is no loss. After the error the line is forgotten (the whole
        thread, if all of it is lost), and the next call goes on.
        """
        if since is None:
            return
        if since.family == family:
            if generation < since.generation:
                self.forget(line)
                raise HeadRegressed(line[0], since.generation, generation)
        elif was_deleted is not None and not was_deleted(since):
            self.forget_thread(line[0])
            raise HeadRegressed(line[0], since.generation, 0)

    def note(
        self,
        line: tuple[str, str],
        family: str,
        generation: int,
        known: K | None,
        since: SeenHead[K] | None,
        seq: int = 0,
    ) -> None:
        """Check what the server answered, and remember it."""
        self.check(line, family, generation, since)
        with self._lock:
            last = self._seen.get(line)
            if last is not None and last.family == family:
                if generation < last.generation:
                    # Another thread has a newer answer.
                    return
                seq = max(seq, last.seq)
            self._seen[line] = SeenHead(family, generation, known, seq)
            self._seen.move_to_end(line)
            self._namespaces.setdefault(line[0], {})[line[1]] = None
            if len(self._seen) > self._size_max:
                self._drop(next(iter(self._seen)))

    def doubt(self, line: tuple[str, str]) -> None:
        """Keep the generation, but ask the server for the rest."""
        with self._lock:
            seen = self._seen.get(line)
            if seen is not None:
                self._seen[line] = seen._replace(known=None)

    def forget(self, line: tuple[str, str]) -> None:
        """Drop a line that is gone."""
        with self._lock:
            self._drop(line)

    def forget_thread(self, thread_id: str) -> None:
        """Drop all lines of a thread."""
        with self._lock:
            for namespace in list(self._namespaces.get(thread_id, ())):
                self._drop((thread_id, namespace))

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._seen.clear()
            self._namespaces.clear()

    def _drop(self, line: tuple[str, str]) -> None:
        if self._seen.pop(line, None) is None:
            return
        thread_id, namespace = line
        left = self._namespaces[thread_id]
        del left[namespace]
        if not left:
            del self._namespaces[thread_id]
