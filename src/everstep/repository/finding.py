"""Finding threads: what may be asked for, pages and their cursors, and what threads take."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from everstep.errors import InvalidInput
from everstep.reports import DamagedThread, Sizes, ThreadPage
from everstep.repository.repository import to_metadata
from everstep.runtime import checks
from everstep.stores.facts import Wanted
from everstep.stores.protocol import Hit, Key, Position, Query, Search, Store
from everstep.stores.records import pack_record
from everstep.types import CheckpointMetadata
from everstep.values.tree import hashes

logger = logging.getLogger("everstep")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAG_BYTES_MAX = 65536
_FETCHED_MAX = 500
_READ_MAX = 100
_DELETED_AT_ONCE = 100


def make_search(
    prefix: str = "",
    filter: Mapping[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
    tags: Iterable[str] = (),
    since: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Search:
    """Return what a caller asks for, checked."""
    if isinstance(tags, str):
        raise InvalidInput(f"tags is a list of tags; write [{tags!r}] for the one you mean")
    search = Search(
        prefix=checks.text(prefix, "prefix", checks.THREAD_ID_BYTES_MAX),
        filter=_filter(filter),
        tags=frozenset(checks.text(tag, "tag", _TAG_BYTES_MAX) for tag in tags),
        since=None if since is None else _micros(since),
        after=None if cursor is None else _unpack_cursor(cursor),
        limit=checks.count(limit, "limit"),
    )
    Wanted.of(search)  # a value that cannot be compared is refused here
    return search


async def page_of(store: Store, search: Search, offset: int = 0) -> ThreadPage:
    """Return the threads that a search finds, and where to go on."""
    if not search.limit:
        return ThreadPage()
    hits = await store.search(replace(search, limit=offset + search.limit + 1))
    shown = hits[offset : offset + search.limit]
    is_last = len(hits) <= offset + search.limit
    found: list[CheckpointMetadata] = []
    damaged: list[DamagedThread] = []
    for hit in shown:
        if hit.stored is not None:
            found.append(to_metadata(hit.stored))
        else:
            damaged.append(_damaged(hit))
    return ThreadPage(found, cursor=None if is_last else pack_cursor(shown[-1].position), damaged=damaged)


def _damaged(hit: Hit) -> DamagedThread:
    """Return a thread that cannot be read, and say so in the log: who looks at the others only must not miss it."""
    thread_id = hit.position.thread_id
    reason = hit.damage.reason if hit.damage is not None else "it cannot be read"
    logger.warning("thread %r is damaged, so it is not listed among the others: %s", thread_id, reason)
    return DamagedThread(thread_id, reason)


async def every_thread(store: Store, search: Search) -> AsyncIterator[str]:
    """Yield the names of all threads that a search finds; raise at a damaged one. They may be deleted meanwhile."""
    while True:
        hits = await store.search(replace(search, limit=_DELETED_AT_ONCE))
        for hit in hits:
            yield hit.whole.record.key.thread_id
        if len(hits) < _DELETED_AT_ONCE:
            return
        search = replace(search, after=hits[-1].position)


def check_deletion(search: Search, *, everything: bool) -> None:
    """Refuse to delete every thread by an empty filter, unless that is said."""
    is_empty = not (search.prefix or search.filter or search.tags or search.since is not None)
    if is_empty and not everything:
        raise InvalidInput(
            "delete_threads() without prefix, filter, tags or since would delete every thread; "
            "say everything=True if that is meant"
        )
    if everything and not is_empty:
        raise InvalidInput("everything=True deletes all threads; leave it out to delete those that were asked for")


def pack_cursor(position: Position) -> str:
    """Return a place in the order of threads as text."""
    return base64.urlsafe_b64encode(f"{position.active} {position.thread_id}".encode()).decode().rstrip("=")


def _unpack_cursor(cursor: str) -> Position:
    try:
        text = base64.urlsafe_b64decode(checks.kind(cursor, str, "cursor") + "==").decode()
        active, _, thread_id = text.partition(" ")
        return Position(checks.count(int(active), "cursor"), checks.thread_id(thread_id))
    except (ValueError, binascii.Error) as exc:
        raise InvalidInput("cursor is not one that list_threads() gave; pass page.cursor as it is") from exc


def _filter(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"filter is a mapping of metadata, not {type(given).__name__}")
    for key in given:
        checks.kind(key, str, "a key of filter")
    return dict(given)


def _micros(moment: datetime) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInput(f"since is a datetime with a timezone, not {checks.shown(moment)}; use datetime.now(UTC)")
    return max(0, (moment - _EPOCH) // timedelta(microseconds=1))


# -- sizes -------------------------------------------------------------------------------------------------------------


async def sizes_of_thread(store: Store, thread_id: str) -> Sizes:
    """Return what a thread takes; all zero if it is not there."""
    raw = await store.raw(thread_id, family_threads=True)
    if raw is None:
        return Sizes()
    own = _Measure(store, raw.family)
    await own.add(thread_id)
    others = _Measure(store, raw.family)
    for name in raw.family_threads:
        if name != thread_id:
            await others.add(name)
    shared = sum(size for key, size in own.objects.items() if key in others.objects)
    return replace(own.sizes, exclusive_bytes=sum(own.objects.values()) - shared, shared_bytes=shared)


async def sizes_of_all(store: Store) -> Sizes:
    """Return what all threads take together."""
    families: dict[str, list[str]] = {}
    position: int | None = 0
    while position is not None:
        outlines, position = await store.outlines(position)
        for outline in outlines:
            families.setdefault(outline.family, []).append(outline.thread_id)
    total = Sizes()
    for family, names in families.items():
        measure = _Measure(store, family)
        for name in names:
            await measure.add(name)
        found = replace(measure.sizes, exclusive_bytes=sum(measure.objects.values()))
        total = total + found
    return total


class _Measure:
    """What threads of one family take."""

    def __init__(self, store: Store, family: str) -> None:
        self._store = store
        self._family = family
        self.sizes = Sizes()
        self.objects: dict[bytes, int] = {}
        """The sizes of what was met."""

    async def add(self, thread_id: str) -> None:
        """Measure a thread; one that is not there (any more) takes nothing."""
        raw = await self._store.raw(thread_id)
        if raw is None:
            return
        roots = raw.roots()
        written = sum([len(write.children) + len(write.body) for _, write in raw.writes])
        listed = await self._store.list_checkpoints(Query(thread_id=thread_id, namespace=None, hidden="also"))
        keys = [stored.record.key for stored in listed]
        records = 0
        for start in range(0, len(keys), _READ_MAX):
            records += await self._add_records(keys[start : start + _READ_MAX], roots)
        wanted: set[bytes] = set()
        for children in roots:
            wanted.update(hashes(children))
        await self._add_objects(wanted)
        added = Sizes(threads=1, checkpoints=len(keys), record_bytes=records, write_bytes=written)
        self.sizes = self.sizes + added

    async def _add_records(self, keys: list[Key], roots: list[bytes]) -> int:
        size = 0
        for loaded in await self._store.read_many(keys):
            record = loaded.stored.record
            info, root = pack_record(record)
            size += len(info) + len(root) + len(record.children)
            roots.append(record.children)
        return size

    async def _add_objects(self, wanted: Collection[bytes]) -> None:
        level = [key for key in wanted if key not in self.objects]
        while level:
            below: set[bytes] = set()
            for start in range(0, len(level), _FETCHED_MAX):
                asked = level[start : start + _FETCHED_MAX]
                for obj in await self._store.fetch(self._family, asked, below=False):
                    self.objects[obj.hash] = len(obj.children) + len(obj.body)
                    below.update(hashes(obj.children))
            level = [key for key in below if key not in self.objects]
