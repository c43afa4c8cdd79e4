"""All keys of a store looked at, and put right where they do not agree: see `checking`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.errors import StoreError
from everstep.reports import Finding
from everstep.stores.inspection import Lost
from everstep.stores.protocol import Key
from everstep.stores.redis.calls import encoded
from everstep.stores.redis.checking import Bucket, Problem
from everstep.stores.redis.deleting import Deleting, literally
from everstep.stores.redis.items import bucket_of, escaped, line_name
from everstep.stores.redis.link import translated

# What one fix takes away may be what another finding is about, so it is looked again, and not for ever.
_MENDING_ROUNDS = 4


class Mending(Deleting):
    """Checks and repairs."""

    def send_raw(self, bucket: int, command: str, key: str | bytes, *args: Any) -> Any:
        """Send a command about one key of a bucket, and return its answer; none of the scripts is asked."""
        if isinstance(key, str):
            key = key.encode()
        name = self._base(bucket) + key
        return self.do(lambda _: self._send(name, command.encode(), *encoded(args)), self._soon())

    def _soon(self) -> float:
        """Return when a call must be done that has the time of one: to look at a large store takes longer in all."""
        return time.monotonic() + self._link.timeout_seconds

    def buckets(self) -> Iterator[Bucket]:
        """Look at the names of all keys, and yield the buckets that they are in."""
        self._check_server()
        keys: dict[int, list[bytes]] = {}
        pattern = re.compile(re.escape(self._prefix) + rb"\{(\d+)\}:(.*)", re.DOTALL)
        match = literally(self._prefix.decode()).encode() + b"{*"
        with translated():
            for page in self._link.scan(match, self._link.timeout_seconds):
                for key in page:
                    found = pattern.fullmatch(key)
                    if found:
                        keys.setdefault(int(found[1]), []).append(found[2])
        for bucket, names in sorted(keys.items()):
            yield Bucket(bucket, self.send_raw, sorted(set(names)), self._alias_of)

    def _alias_of(self, thread_id: str) -> bytes:
        return self.send_raw(bucket_of(thread_id), "GET", f"alias:{escaped(thread_id)}") or b""

    def every_name(self) -> list[str]:
        found: set[str] = set()
        for bucket in self.buckets():
            found |= bucket.names()
        return sorted(found)

    def problems(self) -> list[Problem]:
        found: list[Problem] = []
        for bucket in self.buckets():
            try:
                found += bucket.problems()
            except (StoreError, ValueError, TypeError) as exc:  # a key of another type than it should have
                found.append(Problem(Finding("row", f"a bucket cannot be read: {exc}", None, None, ()), (), 0))
        return found

    def mend(self, *, dry_run: bool) -> list[Lost]:
        """Put right what can be, until nothing more is found, and return what went."""
        lost: list[Lost] = []
        for _ in range(_MENDING_ROUNDS):
            done = 0
            for bucket in self.buckets():
                for problem in [*bucket.unreadable(), *bucket.problems()]:
                    for command in problem.fix:
                        kept = bucket.stored(command)
                        if kept is not None:
                            lost.append(kept._replace(thread_id=problem.finding.thread_id))
                        if not dry_run:
                            self.send_raw(problem.bucket, *command)
                            done += 1
                if not dry_run:
                    for thread_id in bucket.thread_ids():
                        self._mend_thread(bucket.number, thread_id)
            if not done:
                break
        self._heads.clear()
        return lost

    def _mend_thread(self, bucket: int, thread_id: str) -> None:
        self.do(lambda _: self._call(bucket, "mend", thread_id, writes=True), self._soon())

    def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        found: list[Lost] = []
        if not keys:
            return found
        for bucket, held in self._everywhere("has", keys[0].thread_id):
            if not held:
                continue
            for key in keys:
                item = self.send_raw(bucket, "GET", f"thread:{line_name(*key[:2])}:item:{key.checkpoint_id}")
                found.append(Lost("a checkpoint", *key, stored=item))
        return found
