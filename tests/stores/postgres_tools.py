"""For the tests of the PostgreSQL store: a server to be administered, and a look at what goes over the wire."""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Callable
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.tools import servers


@functools.cache
def own_postgres() -> OwnPostgres:
    """Return a server that all tests share: a test may add roles to it, but not stop it."""
    return OwnPostgres()


class OwnPostgres(servers.PostgresServer):
    """A running server whose settings, roles and rules can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.start()
        # No machine crashes here, only processes: waiting for the disk would show nothing and take minutes.
        for setting in ("fsync", "full_page_writes"):
            self.do(f"ALTER SYSTEM SET {setting} = off")
        self.do("SELECT pg_reload_conf()")

    def do(self, *statements: str) -> None:
        """Run statements as a superuser."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def url_of(self, role: str, password: str = "", database: str = "postgres") -> str:
        host = quote(str(self.folder), safe="")
        return f"postgresql://{role}:{quote(password, safe='')}@/{database}?host={host}&port={self.port}"

    def ask_for_password(self, role: str) -> None:
        """Let a role in only with its password."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {role} scram-sha-256\n" + rules.read_text())
        self.do("SELECT pg_reload_conf()")


_KEY_DATA = b"K\0\0\0\x0c"
"""What the server says before the number of its process."""


class Wire:
    """Stands between a client and a server on the same machine: counts, and does harm when told to."""

    def __init__(self, url: str) -> None:
        self._given = conninfo_to_dict(url)
        self.sent: list[bytes] = []
        """What each connection has sent, in order."""
        self.lose: Callable[[bytes], bool] = lambda _: False
        """For which request the answer is lost, and the connection with it; once."""
        self.is_hole = False
        """Nothing comes through, and nobody is told."""
        self.is_pooler = False
        """It gives clients the number of a process of its own, as PgBouncer does."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        user, password = (quote(str(self._given.get(name) or ""), safe="") for name in ("user", "password"))
        host, port = self._listener.getsockname()
        return f"postgresql://{user}:{password}@{host}:{port}/{self._given.get('dbname', '')}?sslmode=disable"

    def close(self) -> None:
        for each in self._open:
            each.close()

    @property
    def messages(self) -> list[tuple[bytes, bytes]]:
        """Every message that clients sent after they had introduced themselves: its type and its content."""
        found = []
        for data in self.sent:
            at = int.from_bytes(data[:4], "big")
            while at < len(data):
                size = int.from_bytes(data[at + 1 : at + 5], "big")
                found.append((data[at : at + 1], data[at + 5 : at + 1 + size]))
                at += 1 + size
        return found

    @property
    def round_trips(self) -> int:
        """How often a client waited for an answer: each one is asked for by a Sync or a simple Query."""
        return sum(kind in (b"S", b"Q") for kind, _ in self.messages)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connected()
            self._open += [client, server]
            self.sent.append(b"")
            losing = threading.Event()
            number = len(self.sent) - 1
            for work in (self._upward, self._downward):
                threading.Thread(target=work, args=(client, server, losing, number), daemon=True).start()

    def _connected(self) -> socket.socket:
        host, port = str(self._given["host"]), int(self._given.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _upward(self, client: socket.socket, server: socket.socket, losing: threading.Event, number: int) -> None:
        while data := _received(client):
            if self.is_hole:
                continue
            if self.lose(data):
                self.lose = lambda _: False
                losing.set()
            self.sent[number] += data
            _send(server, data)
        _shut(server)

    def _downward(self, client: socket.socket, server: socket.socket, losing: threading.Event, _: int) -> None:
        while data := _received(server):
            if losing.is_set():
                break  # it was done, and nobody will know
            if self.is_pooler and _KEY_DATA in data:
                start, end = data.split(_KEY_DATA, 1)
                data = start + _KEY_DATA + bytes(4) + end[4:]
            if not self.is_hole:
                _send(client, data)
        _shut(client)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _send(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        pass  # it is gone already: the other way round it will be noticed


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone already
