"""A TCP proxy that counts what passes and spoils it on command.

It has a thread and an event loop of its own; a command holds when it returns. A request is a burst of bytes from a
client before the server says something; with the answer it is a round trip.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")
LOOPBACK = "127.0.0.1"


class Counts(NamedTuple):
    """What has passed so far."""

    connections: int = 0
    requests: int = 0
    round_trips: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    lost: int = 0
    """Connections that were cut by `lose_reply` or `cut_after`."""

    def __sub__(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


class Proxy:
    """Stands in front of one server, on `port`."""

    def __init__(self, upstream_port: int, upstream_host: str = LOOPBACK) -> None:
        self.upstream = upstream_host, upstream_port
        self.asked: list[bytes] = []
        """How each request began; whoever looks may clear it."""
        self._links: set[_Link] = set()
        self._counts = Counts()
        self._open = asyncio.Event()
        self._open.set()
        self._swallowing = False
        self._latency = 0.0
        self._lose_in: int | None = None
        self._losing_on = False
        self._cut_in: int | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._await(self._loop.create_server(lambda: _Client(self), LOOPBACK, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def links(self) -> int:
        """How many connections there are now."""
        return len(self._links)

    # -- commands

    def lose_reply(self, nth: int = 1, *, onwards: bool = False) -> None:
        """Forward the n-th request from now, and close its connection when the server answers: nobody hears it.

        With `onwards` it goes on so until `heal`.
        """

        def command() -> None:
            self._lose_in, self._losing_on = nth, onwards

        self._run(command)

    def swallow_replies(self) -> None:
        """Forward requests and throw the answers away, until `heal`. Connections stay open."""
        self._run(lambda: setattr(self, "_swallowing", True))

    def black_hole(self) -> None:
        """Forward nothing either way, until `heal`; then everything arrives late. New connections are accepted."""
        self._run(lambda: self._flow(on=False))

    def reset(self) -> None:
        """End all connections with a reset."""
        self._run(self._abort)

    def delay(self, seconds: float) -> None:
        """Let everything take that much longer, each way."""
        self._run(lambda: setattr(self, "_latency", seconds))

    def cut_after(self, size_bytes: int) -> None:
        """Forward so many bytes of requests, then close the connection in the middle of one."""
        self._run(lambda: setattr(self, "_cut_in", size_bytes))

    def heal(self) -> None:
        """Forward as if nothing had been. A connection whose answers were swallowed is reset."""
        self._run(self._heal)

    def close(self) -> None:
        """End it all. Safe to call twice."""
        if self._loop.is_closed():
            return
        self._run(self._server.close)
        self._run(self._abort)
        self._run(lambda: [task.cancel() for task in self._opening])
        self._await(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in the loop

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def _run(self, command: Callable[[], object]) -> None:
        async def run() -> None:
            command()

        self._await(run())

    def _count(self, **more: int) -> None:
        self._counts = self._counts._replace(**{name: getattr(self._counts, name) + n for name, n in more.items()})

    def _flow(self, *, on: bool) -> None:
        if on == self._open.is_set():
            return
        (self._open.set if on else self._open.clear)()
        for link in self._links:
            link.flow(on=on)

    def _abort(self) -> None:
        for link in list(self._links):
            link.abort()

    def _heal(self) -> None:
        for link in list(self._links):
            if link.deaf:
                link.abort()
        self._swallowing, self._latency, self._lose_in, self._cut_in = False, 0.0, None, None
        self._flow(on=True)

    async def _settle(self) -> None:
        while self._links or self._opening:
            await asyncio.sleep(0)

    def _welcome(self, client: asyncio.Transport) -> _Link:
        self._count(connections=1)
        link = _Link(self, client)
        self._links.add(link)
        task = self._loop.create_task(self._connect(link))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return link

    async def _connect(self, link: _Link) -> None:
        try:
            await self._open.wait()
            await self._loop.create_connection(lambda: _Upstream(link), *self.upstream)
        except OSError:
            link.abort()


class _Link:
    """A client's connection and its counterpart at the server."""

    def __init__(self, proxy: Proxy, client: asyncio.Transport) -> None:
        self._proxy, self._client = proxy, client
        self._server: asyncio.Transport | None = None
        self._living: set[asyncio.Transport] = {client}
        self._asking = self._doomed = False
        self.deaf = False
        """Whether an answer was thrown away."""
        client.pause_reading()

    def connected(self, server: asyncio.Transport) -> None:
        self._server = server
        self._living.add(server)
        if self._client not in self._living:
            self._proxy._links.add(self)
            server.close()
        elif self._proxy._open.is_set():
            self._client.resume_reading()
        else:
            server.pause_reading()

    def ask(self, data: bytes) -> None:
        """Pass on what the client says."""
        proxy = self._proxy
        if not self._asking:
            self._asking = True
            proxy._count(requests=1)
            # Many statements may come at once, and what they end with counts too.
            proxy.asked.append(data[:200] + data[200:][-100:])
            if proxy._lose_in is not None:
                proxy._lose_in -= 1
                if proxy._lose_in == 0:
                    self._doomed, proxy._lose_in = True, 1 if proxy._losing_on else None
        if proxy._cut_in is not None:
            data, proxy._cut_in = data[: proxy._cut_in], proxy._cut_in - len(data)
        proxy._count(bytes_up=len(data))
        self._later(lambda: self._server.write(data) if self._server is not None else None)
        if proxy._cut_in is not None and proxy._cut_in <= 0:
            proxy._cut_in = None
            self._lose()

    def answer(self, data: bytes) -> None:
        """Pass on what the server says."""
        proxy = self._proxy
        if self._doomed:
            self._lose()
            return
        if self._asking:
            self._asking = False
            proxy._count(round_trips=1)
        proxy._count(bytes_down=len(data))
        if proxy._swallowing:
            self.deaf = True
        else:
            self._later(lambda: self._client.write(data))

    def ended(self, transport: asyncio.Transport) -> None:
        """Close the other side too, when what was said before has passed."""
        self._living.discard(transport)
        other = self._server if transport is self._client else self._client
        if other is None or other not in self._living:
            self._proxy._links.discard(self)
        else:
            self._later(other.close)

    def flow(self, *, on: bool) -> None:
        if self._server is None:
            return  # `connected` looks at it
        for transport in (self._client, self._server):
            if not transport.is_closing():
                (transport.resume_reading if on else transport.pause_reading)()

    def abort(self) -> None:
        """Reset both connections."""
        for transport in self._living:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            transport.abort()

    def _lose(self) -> None:
        self._proxy._count(lost=1)
        self._doomed = False
        if self._server is not None:
            self._server.close()
        self._client.close()

    def _later(self, act: Callable[[], object]) -> None:
        if self._proxy._latency:
            self._proxy._loop.call_later(self._proxy._latency, act)
        else:
            act()


class _End(asyncio.Protocol):
    """One side of a link."""

    _transport: asyncio.Transport
    _link: _Link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.ended(self._transport)


class _Client(_End):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link = self._proxy._welcome(self._transport)

    def data_received(self, data: bytes) -> None:
        self._link.ask(data)


class _Upstream(_End):
    def __init__(self, link: _Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link.connected(self._transport)

    def data_received(self, data: bytes) -> None:
        self._link.answer(data)
