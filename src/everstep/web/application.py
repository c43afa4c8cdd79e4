"""`everstep.web.app`: the page and its interface as one ASGI application."""

from __future__ import annotations

import html
import http
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from everstep.errors import EverstepError, InvalidInput
from everstep.transfer.exporting import export_threads_async
from everstep.views import checkpoint, errors
from everstep.web import events, openapi
from everstep.web.answers import error_response, json_response, to_bytes
from everstep.web.endpoints import ENDPOINTS, Endpoint
from everstep.web.guard import BODY_BYTES_MAX, LOOPBACK_NAMES, Guard
from everstep.web.parameters import Text, read_body, read_query
from everstep.web.service import Service, Store

Handler = Callable[[Request], Awaitable[Response]]

API = "/api/v1"
STATIC = Path(__file__).parent / "static"
_EXPORT = (Text(name="thread", about="A thread; its branches come along.", required=True, can_be_empty=False),)
_EVENTS = (Text(name="thread", about="The thread that is open.", can_be_empty=False),)


def app(
    store: Store,
    *,
    read_only: bool = False,
    token: str | None = None,
    allowed_hosts: Iterable[str] = LOOPBACK_NAMES,
    any_address: bool = False,
    demo: bool = False,
) -> ASGIApp:
    """Return the page over a store (a URL, a path, an engine or a backend) as an application to serve or to mount.

    It answers only to the names in `allowed_hosts`. With `token`, only to those who show it. With `read_only` nothing
    can be changed. An engine or backend that is passed in stays open when the application ends.
    """
    if isinstance(allowed_hosts, str):
        raise InvalidInput(f"allowed_hosts is a list of names; write [{allowed_hosts!r}]")
    service = Service(store, read_only=read_only, demo=demo)
    return Guard(application(service), allowed_hosts=allowed_hosts, any_address=any_address, token=token)


def application(service: Service) -> ASGIApp:
    """Return the application over a service, as it is behind the guard."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    routes: list[BaseRoute] = [_route(service, endpoint) for endpoint in ENDPOINTS]
    routes += [
        Route(f"{API}/events", _events(service), methods=["GET"]),
        Route(f"{API}/export", _export(service), methods=["GET"]),
        Route(f"{API}/openapi.json", _document, methods=["GET"]),
        Mount("/static", _Files()),
        Route("/", _page(service), methods=["GET"]),
        Route("/storage", _page(service), methods=["GET"]),
        Route("/runs", _page(service), methods=["GET"]),
        Route("/t/{rest:path}", _page(service), methods=["GET"]),
    ]
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error})
    # Below 2 kB the header of a compressed answer takes more than is saved.
    return GZipMiddleware(inner, minimum_size=2000, compresslevel=4)


# -- the interface -----------------------------------------------------------------------------------------------------


def _route(service: Service, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        if endpoint.is_write and service.read_only:
            return error_response(
                403, "read_only", "this page only shows the store", "start it without --read-only to change anything"
            )
        try:
            if endpoint.is_write:
                values = read_body(endpoint.parameters, await _body(request))
            else:
                values = read_query(endpoint.parameters, request.scope["query_string"])
            return json_response(await endpoint.work(service, values))
        except EverstepError as exc:
            return _failure(exc)

    return Route(API + endpoint.path, answer, methods=[endpoint.method])


async def _body(request: Request) -> bytes:
    """Return the body, of which only so much is ever read."""
    # Looked at first, so that a body which says that it is too large is not read at all.
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > BODY_BYTES_MAX:
        raise _too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise _too_large()
    return bytes(body)


def _too_large() -> HTTPException:
    return HTTPException(413, f"a body has at most {BODY_BYTES_MAX:,} bytes")


def _events(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            thread_id = read_query(_EVENTS, request.scope["query_string"])["thread"]
        except EverstepError as exc:
            return _failure(exc)
        last_id = request.headers.get("last-event-id")
        found = events.stream(service.engine, thread_id, last_id, lambda: service.is_stopping)
        return StreamingResponse(found, media_type="text/event-stream")

    return answer


def _export(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        # A file and not memory: a family may be larger than what the server should hold.
        folder = tempfile.TemporaryDirectory(prefix="everstep-export-")
        try:
            thread_id = read_query(_EXPORT, request.scope["query_string"])["thread"]
            # This says that there is no such thread before a file is begun.
            await service.engine.resolve("@", thread_id=thread_id)
            file = Path(folder.name) / "export"
            await export_threads_async(service.engine, file, [thread_id])
        except EverstepError as exc:
            folder.cleanup()
            return _failure(exc)
        # The name of a thread may hold anything, and goes into a header here.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", thread_id).strip(".-")[:80] or "thread"
        # The file goes when it was sent, or nobody wants it any more.
        return FileResponse(
            file,
            media_type="application/octet-stream",
            filename=f"{name}.everstep",
            background=BackgroundTask(folder.cleanup),
        )

    return answer


async def _document(request: Request) -> Response:
    where = request.scope.get("root_path", "") + API
    return Response(to_bytes(openapi.document(where)), media_type="application/json")


async def _http_error(_: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    detail = exc.detail if isinstance(exc, HTTPException) else "something went wrong"
    code = http.HTTPStatus(status).name.lower()
    hint = f"{API}/openapi.json lists what there is" if status in (404, 405) else None
    answer = error_response(status, code, detail, hint)
    # Such as which methods are allowed.
    if isinstance(exc, HTTPException) and exc.headers:
        answer.headers.update(exc.headers)
    return answer


def _failure(exc: EverstepError) -> Response:
    return Response(to_bytes(errors.as_json(exc)), errors.answer(exc).http_status, media_type="application/json")


# -- the page ----------------------------------------------------------------------------------------------------------


def _page(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        thread_id, ref, wants_json = _deep_link(request)
        if not wants_json or thread_id is None:
            return _index(request)
        try:
            if ref is None:
                return json_response(await service.history(thread_id))
            found = await service.engine.resolve(ref, thread_id=thread_id)
            return json_response(await checkpoint.detail(service.engine, found))
        except EverstepError as exc:
            return _failure(exc)

    return answer


def _index(request: Request) -> Response:
    """Return the page itself. It says where it is mounted, so that links work under any prefix."""
    base = html.escape(request.scope.get("root_path", "") + "/", quote=True)
    text = (STATIC / "index.html").read_text(encoding="utf-8").replace("{{base}}", base)
    return Response(text, media_type="text/html", headers={"cache-control": "no-cache"})


def _deep_link(request: Request) -> tuple[str | None, str | None, bool]:
    """Return the thread and the checkpoint that a link names, and whether it asks for JSON.

    Names may hold slashes, which a link writes as %2F: so it is taken apart before it is decoded.
    """
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0].removeprefix(request.scope.get("root_path", ""))
    wants_json = path.endswith(".json")
    parts = [unquote(part) for part in path.removesuffix(".json").strip("/").split("/")]
    thread_id = parts[1] if len(parts) > 1 and parts[0] == "t" else None
    ref = parts[3] if len(parts) > 3 and parts[2] == "c" else None
    return thread_id, ref, wants_json


class _Files(StaticFiles):
    """The files of the page. Browsers ask each time whether they have changed, so that no old one stays."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "no-cache"
        return answer
