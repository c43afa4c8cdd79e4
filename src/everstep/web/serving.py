"""`everstep.web.serve`: the page on a port of this machine, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from everstep.config import SnapshotConfig
from everstep.errors import InvalidInput, MissingDependency, StoreUnavailable
from everstep.factory import DEFAULT_URL
from everstep.factory import open as open_store
from everstep.opening.addresses import Address, without_password
from everstep.views.redaction import Redact
from everstep.web.guard import LOOPBACK_NAMES, Guard, is_loopback

if TYPE_CHECKING:
    import uvicorn

    from everstep.engine import CheckpointEngine
    from everstep.web.service import Service

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not listened on
_TOKEN_BYTES = 24
_TOKEN_LENGTH_MIN = 16


def serve(
    store_url: Address | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    read_only: bool = False,
    token: str | None = None,
    open_browser: bool = True,
    demo: bool = False,
    langgraph: str | None = None,
    options: Mapping[str, Any] | None = None,
    redact: Redact | None = None,
) -> None:
    """Serve the page over a store until Ctrl-C.

    On another address than this machine's own it asks for `token`; "auto" makes one and prints it. `demo` shows a
    store in memory, filled with examples; `langgraph`, the URL of one of LangGraph's own savers, a copy of its threads
    as they are now, which cannot be changed. A port of 0 takes any that is free. `options` are those that
    `everstep.open` takes besides the URL; `redact` is that of `everstep.web.app`.
    """
    try:
        import uvicorn
    except ImportError as exc:
        raise MissingDependency("uvicorn", "ui") from exc
    from everstep.web.application import application
    from everstep.web.service import Service

    token = _checked_token(host, token)
    # The port is taken before anything else is done: what it is has to be known for the link.
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        names = list(LOOPBACK_NAMES)
        if host in _EVERYWHERE:
            names.append(socket.gethostname())
        else:
            names.append(host)
        if langgraph is not None:
            service = _langgraph_service(langgraph, redact, needs_token=token is not None)
        elif demo:
            service = Service(
                _demo_engine(), read_only=read_only, demo=True, redact=redact, needs_token=token is not None
            )
        else:
            service = Service(
                _address(store_url),
                read_only=read_only,
                options=options,
                redact=redact,
                needs_token=token is not None,
            )
        guarded = Guard(application(service), allowed_hosts=names, any_address=host in _EVERYWHERE, token=token)
        link = _link(host, port, token, _first_place(demo))
        print(f"Everstep is at {link}", file=sys.stderr, flush=True)  # noqa: T201  # what the person waits for
        config = uvicorn.Config(
            guarded,
            # Not whichever parser is installed: the limits below, and what is refused, are those of this one.
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            limit_concurrency=500,
            h11_max_incomplete_event_size=64 * 1024,
        )
        server = uvicorn.Server(config)
        shut_down = server.shutdown

        async def stop(sockets: list[socket.socket] | None = None) -> None:
            # Otherwise live updates would be waited for, and then be torn off.
            service.is_stopping = True
            await shut_down(sockets)

        server.shutdown = stop  # type: ignore[method-assign]
        if open_browser:
            # A thread, since the server takes this one.
            threading.Thread(target=_open_when_ready, args=(server, link), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _checked_token(host: str, token: str | None) -> str | None:
    if token == "auto":
        return secrets.token_urlsafe(_TOKEN_BYTES)
    if token is None and not is_loopback(host):
        raise InvalidInput(
            f"on {host or 'all addresses'} everybody who reaches this machine could read and change the store; give a "
            "token (--token auto makes one), or leave the host as it is: 127.0.0.1"
        )
    if token is not None and len(token) < _TOKEN_LENGTH_MIN and not is_loopback(host):
        raise InvalidInput(
            f"a token has at least {_TOKEN_LENGTH_MIN} characters where others can try to guess it; "
            "--token auto makes one"
        )
    return token


def _address(store_url: Address | None) -> Address:
    if store_url is not None:
        return store_url
    return os.environ.get("EVERSTEP_STORE") or DEFAULT_URL


def _langgraph_service(url: str, redact: Redact | None = None, *, needs_token: bool = False) -> Service:
    """Return what shows the threads of one of LangGraph's own savers: they are copied into memory, and only read."""
    from everstep.langgraph.importing import import_langgraph
    from everstep.web.service import Service

    engine = open_store("memory://", SnapshotConfig(gc_policy="keep_all"))
    import_langgraph(url, engine, verify=False, quiet=True)
    address = f"LangGraph, {without_password(url)}"
    return Service(engine, read_only=True, address=address, redact=redact, needs_token=needs_token)


def _first_place(demo: bool) -> str:
    """Return where the page opens: the demo where there is most to see."""
    if not demo:
        return ""
    from everstep.views.demo import STORY

    return f"t/{STORY}"


def _demo_engine() -> CheckpointEngine:
    from everstep.views import demo as demo_data

    engine = open_store("memory://", SnapshotConfig(gc_policy="keep_all"))
    asyncio.run(demo_data.fill(engine))
    return engine


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there: it is taken before anything is printed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # Whoever follows the link at once waits, and is not refused.
        listening.listen(128)
    except OSError as exc:
        listening.close()
        raise StoreUnavailable(
            f"port {port} of {host or 'all addresses'} is taken; choose another with --port"
        ) from exc
    return listening


def _link(host: str, port: int, token: str | None, place: str = "") -> str:
    name = "127.0.0.1" if host in _EVERYWHERE else host
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}/{place}" + (f"?token={quote(token)}" if token is not None else "")


def _open_when_ready(server: uvicorn.Server, link: str) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.05)
    if server.started:
        webbrowser.open(link)
