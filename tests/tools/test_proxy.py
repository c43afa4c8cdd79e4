"""The proxy of the fault tests, in front of a server that answers every line with its capitals."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.tools.servers import wait_until


class Shouter(socketserver.ThreadingTCPServer):
    """Keeps what it heard."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.heard: list[bytes] = []


class Handler(socketserver.StreamRequestHandler):
    server: Shouter

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.heard.append(line)
                self.wfile.write(line.upper())
        except ConnectionError:
            pass  # a reset is what some tests are about


@pytest.fixture
def shouter() -> Iterator[Shouter]:
    with Shouter() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(shouter: Shouter) -> Iterator[Proxy]:
    with Proxy(shouter.server_address[1]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
        yield client


def say(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return listen(client, len(line))


def listen(client: socket.socket, size: int) -> bytes:
    """Return what comes, up to so many bytes; less if the connection ends."""
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.05)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(30)
    return False


def test_everything_passes_and_is_counted(proxy: Proxy, client: socket.socket) -> None:
    assert say(client, b"one\n") == b"ONE\n"
    assert say(client, b"two\nthree\n") == b"TWO\nTHREE\n"
    counts = proxy.counts
    assert (counts.connections, counts.requests, counts.round_trips) == (1, 2, 2)
    assert (counts.bytes_up, counts.bytes_down, counts.lost) == (14, 14, 0)
    assert proxy.asked == [b"one\n", b"two\nthree\n"]


def test_much_passes_unharmed(proxy: Proxy, client: socket.socket) -> None:
    line = b"x" * 1_000_000 + b"\n"
    assert say(client, line) == line.upper()


def test_the_reply_to_the_nth_request_is_lost(proxy: Proxy, client: socket.socket, shouter: Shouter) -> None:
    proxy.lose_reply(2)
    assert say(client, b"one\n") == b"ONE\n"
    assert say(client, b"two\n") == b""
    assert shouter.heard == [b"one\n", b"two\n"]
    assert proxy.counts.lost == 1

    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as another:
        assert say(another, b"three\n") == b"THREE\n"


def test_every_reply_from_the_nth_on_is_lost(proxy: Proxy, client: socket.socket, shouter: Shouter) -> None:
    proxy.lose_reply(2, onwards=True)
    assert say(client, b"one\n") == b"ONE\n"
    assert say(client, b"two\n") == b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as another:
        assert say(another, b"three\n") == b""
    assert shouter.heard == [b"one\n", b"two\n", b"three\n"]

    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as another:
        assert say(another, b"four\n") == b"FOUR\n"


def test_replies_are_swallowed_and_the_connection_stays(proxy: Proxy, client: socket.socket, shouter: Shouter) -> None:
    proxy.swallow_replies()
    client.sendall(b"one\n")
    wait_until(lambda: proxy.counts.bytes_down == 4, "the answer")
    assert is_silent(client)
    assert shouter.heard == [b"one\n"]

    proxy.heal()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_black_hole_passes_nothing_until_it_is_healed(proxy: Proxy, client: socket.socket, shouter: Shouter) -> None:
    say(client, b"one\n")
    proxy.black_hole()
    client.sendall(b"two\n")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as another:
        another.sendall(b"three\n")
        assert is_silent(client)
        assert is_silent(another)
        assert shouter.heard == [b"one\n"]

        proxy.heal()
        assert listen(client, 4) == b"TWO\n"
        assert listen(another, 6) == b"THREE\n"


def test_what_a_client_sent_into_a_black_hole_arrives_although_it_has_gone(proxy: Proxy, shouter: Shouter) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client:
        say(client, b"one\n")
        proxy.black_hole()
        client.sendall(b"two\n")
    assert shouter.heard == [b"one\n"]
    proxy.heal()
    wait_until(lambda: shouter.heard == [b"one\n", b"two\n"], "what was sent late")


def test_reset_ends_connections_and_lets_new_ones_in(proxy: Proxy, client: socket.socket) -> None:
    say(client, b"one\n")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as another:
        assert say(another, b"two\n") == b"TWO\n"


def test_delay_keeps_the_order(proxy: Proxy, client: socket.socket, shouter: Shouter) -> None:
    proxy.delay(0.02)
    for n in range(5):
        client.sendall(b"line %d\n" % n)
    assert listen(client, 35) == b"".join(b"LINE %d\n" % n for n in range(5))


def test_the_connection_is_cut_in_the_middle_of_a_request(
    proxy: Proxy, client: socket.socket, shouter: Shouter
) -> None:
    say(client, b"one\n")
    proxy.cut_after(2)
    assert say(client, b"two\n") == b""
    assert proxy.counts.bytes_up == 6
    wait_until(lambda: shouter.heard == [b"one\n", b"tw"], "the end of the connection")


def test_an_absent_server_is_a_reset_connection() -> None:
    with (
        Proxy(1) as proxy,
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as client,
    ):
        client.recv(1)
