"""Finding threads: what may be asked for, pages and their cursors."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from everstep.errors import InvalidInput
from everstep.reports import DamagedThread, ThreadPage
from everstep.repository.repository import to_metadata
from everstep.runtime import checks
from everstep.stores.facts import Wanted
from everstep.stores.protocol import Hit, Position, Search, Store
from everstep.types import CheckpointMetadata

logger = logging.getLogger("everstep")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAG_BYTES_MAX = 65536
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
