"""What is deleted: checkpoints, threads, and what is left of a damaged one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from everstep.errors import CheckpointCorrupted, CommitUnknown, StoreError
from everstep.stores.deletion import Deletion
from everstep.stores.protocol import Deleted, Query
from everstep.stores.redis.committing import Committing
from everstep.stores.redis.items import bucket_of, escaped
from everstep.stores.redis.link import Unsure, translated


class Deleting(Committing):
    """Deletion."""

    def delete(self, deletion: Deletion) -> Deleted:
        self._check_allowed()
        try:
            return self._delete(deletion)
        except CheckpointCorrupted:
            if not deletion.is_whole:
                raise
            return self._wipe(deletion.thread_id)

    def _delete(self, deletion: Deletion) -> Deleted:
        thread_id = deletion.thread_id
        found = self._ask("index", thread_id)
        if found is None:
            return Deleted(0, frozenset())
        args: list[Any] = [int(deletion.spare), len(deletion.operations), *deletion.operations]
        namespaces = [name.decode() for name in found[1][1][::2]]
        args.append(len(namespaces))
        for namespace in namespaces:
            ids = self._ids_to_delete(deletion, namespace)
            args += (namespace, int(deletion.is_whole), len(ids), *ids)
            self._heads.doubt((thread_id, namespace))
        # Read before: an alias that somebody gives meanwhile, to a new thread of that name, must stay.
        own = bucket_of(thread_id)
        alias = self._call(own, "get", "GET", f"alias:{escaped(thread_id)}") if own != found[0] else None
        try:
            found = self._ask("delete", thread_id, *args, once=True)
        except Unsure as exc:
            raise CommitUnknown(None, thread_id, str(exc)) from exc
        if found is None:
            return Deleted(0, frozenset())
        _, (_, count, family, left) = found
        if left != b"thread" and alias is not None:
            # An alias that leads nowhere does no harm.
            with contextlib.suppress(StoreError):
                self._call(own, "unalias", thread_id, alias)
        # Of a family of which nothing is left there is nothing to sweep.
        if not count or left == b"nothing":
            return Deleted(count, frozenset())
        return Deleted(count, frozenset({family.decode()}))

    def _ids_to_delete(self, deletion: Deletion, namespace: str) -> Collection[str]:
        """Return which checkpoints of a namespace are to go; of one that goes whole none is named."""
        named = deletion.named(namespace)
        if named is not None or deletion.before_step is None:
            return named or ()
        step_max = deletion.before_step - 1
        query = Query(thread_id=deletion.thread_id, namespace=namespace, step_max=step_max, hidden="also")
        return [row.key.checkpoint_id for row in self._rows(query)]

    def _wipe(self, thread_id: str) -> Deleted:
        """Delete a damaged thread, with whatever is found of it by looking through the names of all keys."""
        buckets = {bucket for bucket, has in self._everywhere("has", thread_id) if has}
        count = 0
        families = set[str]()
        for bucket in buckets | {bucket_of(thread_id)}:
            keys = self._keys_like(bucket, f"thread:{literally(escaped(thread_id))}:*")
            count += sum(b":item:" in key for key in keys)
            found = set[str]()
            own = self._call(bucket, "get", "HGET", f"thread:{escaped(thread_id)}:heads", "family")
            if own is not None:
                found.add(own.decode())
            for key in self._keys_like(bucket, "family:*:threads"):
                name = key.removeprefix(self._base(bucket)).decode()
                if self._call(bucket, "get", "SISMEMBER", name, thread_id):
                    found.add(name.split(":")[1])
            self._call(bucket, "wipe", thread_id, len(found), *found, len(keys), *keys, writes=True)
            families |= found
        self._heads.forget_thread(thread_id)
        return Deleted(count, frozenset(families))

    def _keys_like(self, bucket: int, pattern: str) -> list[bytes]:
        """Return the keys of a bucket whose names match. It looks at all keys of the server."""
        base = self._base(bucket)
        cursor = b"0"
        found = set[bytes]()
        match = literally(base.decode()).encode() + pattern.encode()
        with translated():
            while True:
                reply = self._link.send(base, (b"SCAN", cursor, b"MATCH", match, b"COUNT", b"1000"), self._deadline.at)
                if isinstance(reply, Exception):
                    raise reply
                cursor = reply[0]
                found.update(reply[1])
                if cursor == b"0":
                    return sorted(found)


def literally(text: str) -> str:
    """Return a text as a pattern of Redis that matches it alone."""
    return "".join("\\" + char if char in "*?[]^\\" else char for char in text)
