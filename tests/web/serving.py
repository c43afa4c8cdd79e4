"""The page on a port, as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from everstep.web import app


@contextmanager
def served(store: Any, **options: Any) -> Iterator[str]:
    """Serve a store in a thread of this process; give the address."""
    config = uvicorn.Config(
        app(store, **options), host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1, ws="none"
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    if not server.is_up.wait(30):
        raise RuntimeError("the server did not start")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


class _Server(uvicorn.Server):
    """One that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    def install_signal_handlers(self) -> None:
        """Leave signals to the tests."""
