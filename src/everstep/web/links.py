"""Addresses of the page: what each names, and the same as JSON where `.json` stands behind it."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from starlette.types import Scope

from everstep.reports import Reference
from everstep.views import changes, checkpoint, runs, state, storage, threads, transcript
from everstep.web.service import Service

PAGES = ("/", "/.json", "/storage", "/storage.json", "/runs", "/runs.json", "/t/{rest:path}")
"""Every address of the page, as routes."""
_FIELDS_MAX = 50


class Link(NamedTuple):
    """What an address names."""

    view: str = "threads"
    thread_id: str | None = None
    ref: str | None = None
    tab: str | None = None
    versus: str | None = None
    """The checkpoint that it is compared with."""
    wants_json: bool = False


def read_link(scope: Scope) -> Link:
    """Return what the address of a request names.

    Names may hold slashes, which a link writes as %2F: so it is taken apart before it is decoded. A name that no path
    can hold (browsers take `..` for the way up, however it is written) stands behind a question mark: `/t/?thread=..`.
    """
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0].removeprefix(scope.get("root_path", ""))
    wants_json = path.endswith(".json")
    parts = [unquote(part) for part in path.removesuffix(".json").strip("/").split("/")]
    asked = _query(scope)
    thread_id = parts[1] if len(parts) > 1 else asked.get("thread", [None])[0]
    if parts[0] != "t" or thread_id is None:
        return Link(view=parts[0] or "threads", wants_json=wants_json)
    ref = parts[3] if len(parts) > 3 and parts[2] == "c" else None
    return Link(
        view="thread",
        thread_id=thread_id,
        ref=ref or asked.get("c", [None])[0],
        tab=asked.get("tab", [None])[0],
        versus=asked.get("vs", [None])[0],
        wants_json=wants_json,
    )


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_FIELDS_MAX)
    except ValueError:  # nobody has written that many by hand
        return {}


async def as_json(service: Service, link: Link) -> dict[str, Any]:
    """Return what the page shows at an address."""
    engine = service.engine
    if link.view == "storage":
        return await storage.sizes(engine, plan=False)
    if link.view == "runs":
        return await runs.page(engine)
    if link.thread_id is None:
        return await threads.page(engine)
    if link.ref is None and link.tab is None:
        return await service.history(link.thread_id)
    ref = await engine.resolve(link.ref or "@", thread_id=link.thread_id)
    return await _tab(service, link, ref)


async def _tab(service: Service, link: Link, ref: Reference) -> dict[str, Any]:
    """Return what a tab shows of a checkpoint; without one, all that is known about it."""
    engine = service.engine
    other: Reference | None = None
    if link.versus is not None:
        other = await engine.resolve(link.versus, thread_id=link.thread_id)
    match link.tab:
        case "messages" if other is not None:
            return await transcript.pair(engine, other, ref)
        case "messages":
            return await transcript.page(engine, ref, bytes_max=transcript.SHOWN_BYTES_MAX)
        case "state":
            return await state.node(engine, ref, "")
        case "run":
            return await runs.one(engine, ref.thread_id)
        case "diff" | "changes":
            return await changes.compare(engine, other, ref)
        case None if other is not None:
            return await changes.compare(engine, other, ref)
        case _:
            return await checkpoint.detail(engine, ref)
