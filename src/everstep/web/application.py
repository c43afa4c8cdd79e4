"""`everstep.web.app`: the page and its interface as one ASGI application."""

from __future__ import annotations

import html
import http
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.errors import EverstepError, InvalidInput, StoreError
from everstep.views.redaction import Redact, redacting
from everstep.web import archives, events, openapi
from everstep.web.answers import error_response, failure_response, json_response, read_only_response, to_bytes
from everstep.web.archives import Handler
from everstep.web.endpoints import ENDPOINTS, Endpoint
from everstep.web.guard import BODY_BYTES_MAX, IMPORT_PATH, LOOPBACK_NAMES, Guard, is_api
from everstep.web.links import PAGES, as_json, read_link
from everstep.web.parameters import Text, read_body, read_query
from everstep.web.service import Service, Store

API = "/api/v1"
STATIC = Path(__file__).parent / "static"
_EVENTS = (Text(name="thread", about="The thread that is open.", can_be_empty=False),)


def app(
    store: Store,
    *,
    read_only: bool = False,
    token: str | None = None,
    allowed_hosts: Iterable[str] = LOOPBACK_NAMES,
    any_address: bool = False,
    demo: bool = False,
    redact: Redact | None = None,
) -> ASGIApp:
    """Return the page over a store (a URL, a path, an engine or a backend) as an application to serve or to mount.

    It answers only to the names in `allowed_hosts`. With `token`, only to those who show it. With `read_only` nothing
    can be changed. `redact` is called with every text that is shown, and returns it without secrets
    (`everstep.web.redact_secrets` knows the usual ones); then nothing can be changed or exported. An engine or backend
    that is passed in stays open when the application ends.
    """
    if isinstance(allowed_hosts, str):
        raise InvalidInput(f"allowed_hosts is a list of names; write [{allowed_hosts!r}]")
    service = Service(store, read_only=read_only, demo=demo, redact=redact, needs_token=token is not None)
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
        Route(f"{API}/export", archives.exporting(service), methods=["GET"]),
        Route(IMPORT_PATH, archives.importing(service), methods=["POST"]),
        Route(f"{API}/openapi.json", _document, methods=["GET"]),
        Mount("/static", _Files()),
        *[Route(path, _page(service), methods=["GET"]) for path in PAGES],
    ]
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error})
    # Below 2 kB the header of a compressed answer takes more than is saved.
    compressed = GZipMiddleware(inner, minimum_size=2000, compresslevel=4)

    async def redacted(scope: Scope, receive: Receive, send: Send) -> None:
        with redacting(service.redact):
            await compressed(scope, receive, send)

    return redacted


# -- the interface -----------------------------------------------------------------------------------------------------


def _route(service: Service, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        # Before anything is read of it.
        if endpoint.is_write and service.read_only and not endpoint.has_dry_run:
            return read_only_response()
        try:
            if endpoint.is_write:
                values = read_body(endpoint.parameters, await _body(request))
                if endpoint.changes(values) and service.read_only:
                    return read_only_response()
                return json_response(await endpoint.work(service, values))
            values = read_query(endpoint.parameters, request.scope["query_string"])
            return json_response(await _read(service, endpoint, values))
        except EverstepError as exc:
            return failure_response(exc)

    return Route(API + endpoint.path, answer, methods=[endpoint.method])


async def _read(service: Service, endpoint: Endpoint, values: dict[str, Any]) -> dict[str, Any]:
    """Return what an endpoint reads, from the file that is there now if it was replaced by another."""
    engine = service.engine
    try:
        return await endpoint.work(service, values)
    except StoreError:
        if not await service.reopen(engine):
            raise
        return await endpoint.work(service, values)


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
            return failure_response(exc)
        last_id = request.headers.get("last-event-id")
        engine = service.engine
        found = events.stream(
            engine,
            thread_id,
            last_id,
            lambda: service.is_stopping or service.engine is not engine,
            service.newest,
            lambda: service.reopen(engine),
        )
        return StreamingResponse(found, media_type="text/event-stream")

    return answer


async def _document(request: Request) -> Response:
    where = request.scope.get("root_path", "") + API
    return Response(to_bytes(openapi.document(where)), media_type="application/json")


async def _http_error(request: Request, exc: Exception) -> Response:
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    # A person who follows a wrong link is told so by the page.
    if status == 404 and not is_api(request.scope) and "text/html" in request.headers.get("accept", ""):
        return _index(request, status)
    detail = exc.detail if isinstance(exc, HTTPException) else "something went wrong"
    code = http.HTTPStatus(status).name.lower()
    hint = f"{API}/openapi.json lists what there is" if status in (404, 405) else None
    answer = error_response(status, code, detail, hint)
    # Such as which methods are allowed.
    if isinstance(exc, HTTPException) and exc.headers:
        answer.headers.update(exc.headers)
    return answer


# -- the page ----------------------------------------------------------------------------------------------------------


def _page(service: Service) -> Handler:
    async def answer(request: Request) -> Response:
        link = read_link(request.scope)
        if not link.wants_json:
            return _index(request)
        try:
            return json_response(await as_json(service, link))
        except EverstepError as exc:
            return failure_response(exc)

    return answer


def _index(request: Request, status: int = 200) -> Response:
    """Return the page itself. It says where it is mounted, so that links work under any prefix."""
    base = html.escape(request.scope.get("root_path", "") + "/", quote=True)
    text = (STATIC / "index.html").read_text(encoding="utf-8").replace("{{base}}", base)
    return Response(text, status, media_type="text/html", headers={"cache-control": "no-cache"})


class _Files(StaticFiles):
    """The files of the page. Browsers ask each time whether they have changed, so that no old one stays."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers["cache-control"] = "no-cache"
        return answer
