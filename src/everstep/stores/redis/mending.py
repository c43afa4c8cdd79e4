"""All keys of a store looked at, and put right where they do not agree: see `checking`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.errors import StoreError
from everstep.reports import Finding
from everstep.stores.inspection import Lost as LostRow
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
        at = time.monotonic() + self._link.timeout_seconds
        if isinstance(key, str):
            key = key.encode()
        return self._send(at, self._base(bucket) + key, command.encode(), *encoded(args))

    def buckets(self, at: float) -> Iterator[Bucket]:
        """Look at the names of all keys, and yield the buckets that they are in."""
        self._check_server(at)
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

    def every_name(self, at: float) -> list[str]:
        found: set[str] = set()
        for bucket in self.buckets(at):
            found |= bucket.names()
        return sorted(found)

    def problems(self, at: float) -> list[Problem]:
        found: list[Problem] = []
        for bucket in self.buckets(at):
            try:
                found += bucket.problems()
            except (StoreError, ValueError, TypeError) as exc:  # a key of another type than it should have
                found.append(Problem(Finding("row", f"a bucket cannot be read: {exc}", None, None, ()), (), 0))
        return found

    def mend(self, at: float, *, dry_run: bool) -> list[LostRow]:
        """Put right what can be, until nothing more is found, and return what went."""
        lost: list[LostRow] = []
        for _ in range(_MENDING_ROUNDS):
            done = 0
            for bucket in self.buckets(at):
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
                        # Each thread has the time of one call: a repair of a large store takes longer than
                        # that in all.
                        at = time.monotonic() + self._link.timeout_seconds
                        self._call(bucket.number, at, "mend", thread_id, writes=True)
            if not done:
                break
        self._heads.clear()
        return lost

    def stored_rows(self, keys: Sequence[Key], at: float) -> list[LostRow]:
        found: list[LostRow] = []
        if not keys:
            return found
        for bucket, held in self._everywhere(at, "has", keys[0].thread_id):
            if not held:
                continue
            for key in keys:
                item = self.send_raw(bucket, "GET", f"thread:{line_name(*key[:2])}:item:{key.checkpoint_id}")
                found.append(LostRow("a checkpoint", *key, stored=item))
        return found
