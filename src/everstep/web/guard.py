"""Who may talk to the page. Everything that comes in passes here first, and everything that goes out gets its headers.

A server on this machine is no private place: any web page that the person visits can send requests to it, and with a
name that it controls (DNS rebinding) even read the answers. So names are on a list, writes prove that they come from
the page itself or from a program, and nothing here ever allows another origin.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.errors import InvalidInput
from everstep.web.answers import error_response

BODY_BYTES_MAX = 16 * 1024 * 1024
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
WRITES = ("POST", "PUT", "PATCH", "DELETE")
IMPORT_PATH = "/api/v1/import"
"""The only write whose body is a file."""

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer. No header of CORS is among them: no other origin may read anything."""


class HostName(NamedTuple):
    """What a Host header names."""

    name: str
    port: str


class Guard:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = LOOPBACK_NAMES,
        any_address: bool = False,
        token: str | None = None,
    ) -> None:
        """`any_address` also lets addresses in numbers pass: no rebinding can forge those."""
        # Anything else could not be sent in a header, and the page would be closed to everybody.
        if token is not None and (not token or not token.isascii() or not token.isprintable()):
            raise InvalidInput("a token is a text of printable ASCII characters")
        self._app = app
        self._names = {name.lower().strip("[]") for name in allowed_hosts}
        self._any_address = any_address
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # There are no web sockets here.
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        target = refusal if refusal is not None else self._app
        await target(scope, receive, with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        # A proxy may go by the one and the server by the other: then what follows is a request to one of them only.
        if "content-length" in headers and "transfer-encoding" in headers:
            refused = error_response(400, "two_lengths", "a body has a length or comes in chunks, not both")
            refused.headers["connection"] = "close"
            return refused
        given = headers.getlist("host")
        # Two of them could be read differently by a proxy and by us.
        if len(given) != 1:
            return error_response(400, "bad_host", "a request has exactly one Host header")
        host = parse_host(given[0])
        if host is None or not self._is_allowed(host.name):
            return error_response(
                421,
                "unknown_host",
                "this name is not on the list of names that the page answers to",
                "open it as 127.0.0.1, or start it with the name it shall have (allowed_hosts)",
            )
        return self._token_refusal(scope, headers, host) or origin_refusal(scope, headers, given[0])

    def _is_allowed(self, name: str) -> bool:
        return name in self._names or (self._any_address and is_address(name))

    def _token_refusal(self, scope: Scope, headers: Headers, host: HostName) -> Response | None:
        """Return None for whoever shows the token; a link with the token in it is answered with a cookie."""
        if self._token is None:
            return None
        # Cookies know no ports: without it two pages on one machine would overwrite each other's token.
        cookie = f"everstep-{host.port or 'token'}"
        if self._is_token(_cookie(headers, cookie)) or self._is_token(_bearer(headers)):
            return None
        in_link, other = _token_in_link(scope)
        is_page = scope["method"] == "GET" and not is_api(scope)
        if is_page and self._is_token(in_link):
            # The token leaves the address bar at once, so that no history and no Referer holds it.
            answer = RedirectResponse(scope["path"] + (f"?{other}" if other else ""), status_code=303)
            is_secure = scope.get("scheme") == "https"
            answer.set_cookie(cookie, self._token, httponly=True, samesite="strict", secure=is_secure, path="/")
            return answer
        if is_page and _path_of(scope) == _LOOKS_PATH:
            return None
        if is_page:
            return _form_for_the_token(scope, was_wrong=bool(in_link))
        return error_response(
            401,
            "token_needed",
            "this page asks for its token",
            "open the link that `everstep ui` printed, or send Authorization: Bearer TOKEN",
        )

    def _is_token(self, given: str) -> bool:
        # The time this takes must not tell how much of a guess was right.
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())


def origin_refusal(scope: Scope, headers: Headers, host: str) -> Response | None:
    """Return why a request is not answered because of where it comes from, or None.

    A browser says so in Sec-Fetch-Site or Origin, and no script can forge either. Reading asks only that they do not
    name another place: programs send none of them. Writing asks that one of them is there, and for JSON, which no form
    can send; nor can it send the type of a file that is imported.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    is_own_origin = origin is not None and urlsplit(origin).netloc.lower() == host.lower()
    is_foreign = site in ("cross-site", "same-site") or (origin is not None and not is_own_origin)
    is_write = scope["method"] in WRITES
    if is_write and (is_foreign or not (site == "same-origin" or is_own_origin)):
        return error_response(
            403,
            "foreign_origin",
            "only the page itself may change anything",
            "a program says so with the header Origin: http://" + host,
        )
    wanted = _body_type(scope)
    if is_write and headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        return error_response(415, "not_json", f"the body of this write is {wanted}")
    is_visit = headers.get("sec-fetch-mode") == "navigate"  # somebody follows a link; the answer stays here
    if is_foreign and not is_visit:
        return error_response(403, "foreign_origin", "another site may not read this")
    return None


def with_headers(send: Send) -> Send:
    """Return `send` as one that adds the headers of every answer."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            # What agents have said and done must not stay in the cache of a browser that others use too.
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
        await send(message)

    return send_with_headers


def parse_host(text: str) -> HostName | None:
    """Return the name and port of a Host header, or None if it is none."""
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    return HostName(found["name"].strip("[]").lower(), found["port"] or "")


def is_address(name: str) -> bool:
    """Whether a host is an address in numbers."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    name = host.strip("[]").lower()
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def _path_of(scope: Scope) -> str:
    # An application may have mounted us below a path of its own.
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


def is_api(scope: Scope) -> bool:
    """Whether a request is for the interface rather than the page."""
    return _path_of(scope).startswith("/api/")


def _body_type(scope: Scope) -> str:
    return "application/octet-stream" if _path_of(scope) == IMPORT_PATH else "application/json"


def _cookie(headers: Headers, name: str) -> str:
    for line in headers.getlist("cookie"):
        for part in line.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
    return ""


def _bearer(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _token_in_link(scope: Scope) -> tuple[str, str]:
    """Return the token of a query, and the query without it."""
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return "", ""
    found = [value for name, value in pairs if name == "token"]
    return found[0] if found else "", urlencode([pair for pair in pairs if pair[0] != "token"])


_LOOKS_PATH = "/static/page.css"
"""What the form for the token looks like. Anybody may read it: it is in the package."""
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Everstep</title><link rel="stylesheet" href="{looks}">
<main class="alone sign-in"><h1>Everstep</h1><p>{about}</p>
<form><label class="field">Token <input name="token" type="password" autocomplete="off" autofocus required></label>
<button class="primary">Open</button></form></main>
</html>
"""
_ABOUT = "This page asks for its token. It is in the link that <code>everstep ui</code> printed when it was started."
_ABOUT_WRONG = "That is not the token of this page. It is in the link that <code>everstep ui</code> printed last."


def _form_for_the_token(scope: Scope, *, was_wrong: bool) -> Response:
    looks = html.escape(scope.get("root_path", "") + _LOOKS_PATH, quote=True)
    text = _FORM.format(looks=looks, about=_ABOUT_WRONG if was_wrong else _ABOUT)
    return Response(text, status_code=401, media_type="text/html")
