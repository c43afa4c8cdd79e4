"""The servers of the tests: nothing stays behind, and what is done to them happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.tools import watcher
from tests.tools.servers import PostgresServer, Server, ValkeyCluster, ValkeyServer, wait_until

START_BOTH = """
import sys, time
from tests.tools.servers import PostgresServer, ValkeyServer
servers = [PostgresServer(durable=False), ValkeyServer(durable=False)]
for server in servers:
    print(server.start().folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, None])
def test_nothing_stays_behind_however_the_process_ends(number: signal.Signals | None) -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    starter = subprocess.Popen(
        [sys.executable, "-c", START_BOTH], cwd=root, env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starter.stdin is not None
    assert starter.stdout is not None
    folders = [Path(starter.stdout.readline().strip()) for _ in range(2)]
    assert all(watcher.inside(folder) for folder in folders)

    if number is None:
        starter.stdin.close()
    else:
        starter.send_signal(number)
    starter.wait(60)

    wait_until(lambda: not any(folder.exists() for folder in folders), "the folders to go")
    assert not any(watcher.inside(folder) for folder in folders)
    starter.stdin.close()
    starter.stdout.close()


@pytest.fixture(params=[PostgresServer, ValkeyServer])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as server:
        yield server


def read(server: Server) -> list[str]:
    if isinstance(server, PostgresServer):
        with server.connect() as connection:
            return [row[0] for row in connection.execute("SELECT word FROM words")]
    assert isinstance(server, ValkeyServer)
    with server.connect() as client:
        return list(client.lrange("words", 0, -1))


def write(server: Server, word: str) -> None:
    if isinstance(server, PostgresServer):
        with server.connect() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS words (word text)")
            connection.execute("INSERT INTO words VALUES (%s)", (word,))
    else:
        assert isinstance(server, ValkeyServer)
        with server.connect() as client:
            client.rpush("words", word)


def test_a_server_comes_back_with_its_data_and_its_url(server: Server) -> None:
    url = server.url
    write(server, "first")
    server.kill()
    assert not server.alive
    server.start()
    write(server, "second")
    server.restart(immediate=True)
    write(server, "third")
    server.restart()

    assert read(server) == ["first", "second", "third"]
    assert server.url == url


def test_a_paused_server_answers_later(server: Server) -> None:
    write(server, "word")
    server.pause()
    assert {process.status() for process in watcher.inside(server.folder)} == {"stopped"}
    server.resume()

    assert read(server) == ["word"]


def test_a_paused_server_can_be_killed(server: Server) -> None:
    write(server, "word")
    server.pause()
    server.kill()
    server.start()

    assert read(server) == ["word"]


def test_wrong_password_is_refused() -> None:
    with PostgresServer(durable=False) as server, pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url.replace("everstep%20test", "wrong"))


def test_a_cluster_goes_on_without_a_master_and_takes_it_back() -> None:
    with ValkeyCluster() as cluster:
        old = cluster.master_of("key")
        (replica,) = cluster.replicas_of(old)
        with old.connect() as direct:
            direct.set("key", "value")
            assert direct.wait(1, 60_000) == 1

        cluster.kill(old)
        assert cluster.wait_for_failover("key", old) is replica
        with replica.connect() as direct:
            assert direct.get("key") == "value"

        old.start()
        cluster.wait_until_whole()
        assert cluster.replicas_of(replica) == [old]
