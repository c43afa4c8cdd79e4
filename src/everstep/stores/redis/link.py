"""Talking to Redis or Valkey: one server or a cluster, one script, deadlines, and every driver error translated.

The driver connects, authenticates and speaks the protocol; its own retries are off, because only the store knows what
may be sent twice. A call that was sent and not answered raises `AnswerLost`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from everstep.errors import (
    CheckpointCorrupted,
    DurabilityWarning,
    EverstepError,
    InvalidInput,
    MissingDependency,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.runtime import forks
from everstep.runtime.calls import tried_again
from everstep.stores.open_files import too_many_behind
from everstep.stores.redis.items import pairs
from everstep.stores.redis.script import script

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
    from redis.retry import Retry
except ImportError as exc:
    raise MissingDependency("redis", "redis") from exc

_parse_url: Any = redis.connection.parse_url
_SERVER_MIN = (7, 0)
_SETTINGS = (b"maxmemory", b"maxmemory-policy", b"appendonly", b"appendfsync")
# How many calls are sent at once: the server keeps the answers in memory until the last is sent.
_TOGETHER = 128
_PAUSE_SECONDS = 0.002
# How many buckets one call of a script looks into: everybody else waits for it.
_IN_EACH = 64
_WAITS_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)

_OPTIONS = ("db", "username", "password", "client_name", "path", "connection_class")
_REFUSALS = (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.BusyLoadingError)
"""Answers of the server that the driver takes for trouble with the connection."""

Address = tuple[str, int]


class AnswerLost(Exception):
    """A call was sent, but its answer did not come: it may have been done."""


class Unsure(Exception):
    """A change was made, or may have been, but it cannot be relied upon."""


class NotReplicated(Unsure):
    """A call was done, but fewer replicas than asked for have confirmed it."""

    def __init__(self, confirmed: int, wanted: int) -> None:
        super().__init__(f"{confirmed} of {wanted} replicas confirmed it in time")


class Link:
    """The connections of one store in one process."""

    fork_order = 1

    def __init__(self, url: str, timeout_seconds: float, wait_replicas: int, allow_eviction: bool) -> None:
        self._replicas = wait_replicas
        self._allow_eviction = allow_eviction
        self._timeout = timeout_seconds
        self._addresses, self._is_cluster, self._settings = _parsed(url, timeout_seconds)
        self._lock = threading.Lock()
        self._pools: dict[Address, _Pool] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._closed = False
        forks.register(self)

    @property
    def address(self) -> str:
        """Where the servers are, without user and password."""
        if "path" in self._settings:
            return f"unix://{self._settings['path']}"
        scheme = "redis"
        if self._settings.get("connection_class") is redis.SSLConnection:
            scheme = "rediss"
        hosts = ",".join(f"{host}:{port}" for host, port in self._addresses)
        if self._is_cluster:
            return f"{scheme}+cluster://{hosts}"
        return f"{scheme}://{hosts}/{self._settings.get('db', 0)}"

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for pool in self._pools.values():
                pool.close()
            self._pools = {}
            self._slots = []

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            # The parent's connections are left to it.
            self._pools = {}
            self._slots = []
        self._lock.release()

    def run(self, base: bytes, args: Sequence[Any], deadline: float, *, writes: bool = False) -> Any:
        """Run a script, named by the first argument, on a bucket.

        What was not sent is tried again; what was, raises AnswerLost. A change is confirmed by as many replicas as the
        store asks for, or raises NotReplicated.
        """
        text, sha = script(args[0])
        reply = self.send(base, (b"EVALSHA", sha, 1, base, *args[1:]), deadline, writes=writes)
        # The server has forgotten its scripts, as after a restart. The text comes along this time.
        if isinstance(reply, redis.exceptions.NoScriptError):
            reply = self.send(base, (b"EVAL", text, 1, base, *args[1:]), deadline, writes=writes)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run_when(self, base: bytes, key: bytes, seconds: float, args: Sequence[Any], deadline: float) -> Any:
        """Run a script when something has come into a stream, or after so many seconds.

        The server waits, and goes on to the script by itself: no round trip is lost in between. Where it is not
        allowed to wait, this is a short pause.
        """
        text, sha = script(args[0])
        # The server's wait must be over before ours is, or its answer would be taken for lost.
        seconds = min(seconds, (_patience(deadline) - time.monotonic()) * 0.8)
        waiting = (b"XREAD", b"BLOCK", max(1, int(seconds * 1000)), b"STREAMS", key, b"0")
        told, reply = self._send(base, [waiting, (b"EVALSHA", sha, 1, base, *args[1:])], deadline)
        if isinstance(told, Exception):
            time.sleep(min(max(seconds, 0.0), _PAUSE_SECONDS))
        if isinstance(reply, redis.exceptions.NoScriptError):
            reply = self.send(base, (b"EVAL", text, 1, base, *args[1:]), deadline)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run_many(self, verb: str, calls: Sequence[tuple[bytes, Sequence[Any]]], deadline: float) -> list[Any]:
        """Run a script on many buckets, each with its arguments, in few round trips.

        Where that gave no answer there is an error in its place: ask again with `run`.
        """
        text, sha = script(verb)
        groups: dict[int, tuple[_Pool, list[int]]] = {}
        replies: list[Any] = [None] * len(calls)
        for n, (base, _) in enumerate(calls):
            try:
                pool = self._pool_of(base, deadline)
            except (redis.RedisError, OSError) as exc:
                replies[n] = exc
            else:
                groups.setdefault(id(pool), (pool, []))[1].append(n)
        for pool, members in groups.values():
            for first in range(0, len(members), _TOGETHER):
                part = members[first : first + _TOGETHER]
                commands = [(b"EVALSHA", sha, 1, calls[n][0], *calls[n][1]) for n in part]
                # With its text once, so that the server knows it for the others.
                commands[0] = (b"EVAL", text, *commands[0][2:])
                try:
                    found = self._exchange(pool, commands, _patience(deadline))
                except (AnswerLost, redis.RedisError, OSError) as exc:
                    found = [exc] * len(part)
                for n, reply in zip(part, found, strict=True):
                    replies[n] = reply
        return replies

    def run_on_each(self, verb: str, bases: Sequence[bytes], args: Sequence[Any], deadline: float) -> list[Any]:
        """Run a script on many buckets with the same arguments, many in one call where they are on one server.

        There is another script for that, whose name ends in "_in_each". The answers are those of `run_many`.
        """
        if self._is_cluster:
            return self.run_many(verb, [(base, args) for base in bases], deadline)
        text, sha = script(f"{verb}_in_each")
        groups = [bases[start : start + _IN_EACH] for start in range(0, len(bases), _IN_EACH)]
        commands: list[tuple[Any, ...]] = [(b"EVALSHA", sha, len(group), *group, *args) for group in groups]
        if not commands:
            return []
        commands[0] = (b"EVAL", text, *commands[0][2:])
        found: list[Any]
        try:
            found = self._exchange(self._pool_of(bases[0], deadline), commands, _patience(deadline))
        except (AnswerLost, redis.RedisError, OSError) as exc:
            found = [exc] * len(commands)
        replies: list[Any] = []
        for group, reply in zip(groups, found, strict=True):
            if isinstance(reply, Exception):
                # It takes the place of the answer of each bucket.
                reply = [reply] * len(group)
            replies += reply
        return replies

    def send(self, key: bytes, command: tuple[Any, ...], deadline: float, *, writes: bool = False) -> Any:
        """Send a command to the server that has this key, and return its answer, which may be an error."""
        replies = self._send(key, [command], deadline, is_confirmed=writes and self._replicas > 0)
        if len(replies) > 1 and not isinstance(replies[0], Exception):
            confirmed = replies[1]
            if isinstance(confirmed, Exception):
                raise NotReplicated(0, self._replicas) from confirmed
            if confirmed < self._replicas:
                raise NotReplicated(confirmed, self._replicas)
        return replies[0]

    @property
    def timeout_seconds(self) -> float:
        """How long one command may take."""
        return self._timeout

    def scan(self, match: bytes, seconds: float) -> Iterator[list[bytes]]:
        """Yield the names of keys that match, a page at a time, each within so many seconds: of every server."""
        deadline = time.monotonic() + seconds
        addresses = [self._addresses[0]]
        if self._is_cluster:
            addresses = sorted({address for _, _, address in self._look_up_slots(deadline)})
        for address in addresses:
            cursor = b"0"
            while True:
                until = time.monotonic() + seconds
                command = (b"SCAN", cursor, b"MATCH", match, b"COUNT", b"1000")
                (reply,) = self._exchange(self._pool(address), [command], until)
                if isinstance(reply, Exception):
                    raise reply
                cursor = reply[0]
                yield reply[1]
                if cursor == b"0":
                    break

    def _send(
        self, key: bytes, commands: list[tuple[Any, ...]], deadline: float, *, is_confirmed: bool = False
    ) -> list[Any]:
        # The deadline ends it: see below.
        for tries in range(1 << 30):
            until = _patience(deadline)
            # The server ends a WAIT up to a tenth of a second late.
            wait_ms = max(1, int((until - time.monotonic()) * 900) - 150)
            sent = [*commands, (b"WAIT", self._replicas, wait_ms)] if is_confirmed else commands
            trouble: Exception | None = None
            replies: list[Any] = []
            try:
                replies = self._exchange(self._pool_of(key, deadline), sent, until)
                if isinstance(replies[0], Exception):
                    trouble = replies[0]
            except (redis.ConnectionError, redis.TimeoutError, OSError) as exc:
                trouble = exc
            if not self._is_passing(trouble):
                if not replies and trouble is not None:
                    raise trouble
                return replies
            with self._lock:
                # Somebody else may have this slot now.
                self._slots = []
            pause = _WAITS_SECONDS[min(tries, len(_WAITS_SECONDS) - 1)]
            if time.monotonic() + pause >= deadline:
                raise trouble or AssertionError
            time.sleep(pause)
            tried_again("the cluster was not ready (%s)", type(trouble).__name__)
        raise AssertionError("unreachable")

    def _is_passing(self, trouble: Exception | None) -> bool:
        """Whether nothing was done, and a cluster may soon do it: a slot has moved, a replica takes over."""
        if trouble is None or not self._is_cluster:
            return False
        if isinstance(trouble, _REFUSALS[:2]):
            return False
        kinds = (
            # And MOVED. Half a slot is never worked on, so ASK is not followed.
            redis.exceptions.AskError,
            redis.exceptions.TryAgainError,
            redis.exceptions.ClusterDownError,
            redis.exceptions.BusyLoadingError,
            redis.exceptions.ReadOnlyError,
            redis.ConnectionError,
            redis.TimeoutError,
            OSError,
        )
        return isinstance(trouble, kinds)

    def _exchange(self, pool: _Pool, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        """Return the answers, errors included, or raise AnswerLost. Any other error means that nothing was sent."""
        connection = pool.take(until)
        replies: list[Any] = []
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            for _ in commands:
                if connection._sock:
                    replies.append(_answer(connection, until))
                else:
                    # The driver has hung up after an error: that is the answer to the others, too.
                    replies.append(replies[-1])
        except (redis.ConnectionError, redis.TimeoutError, OSError) as exc:
            connection.disconnect()
            with self._lock:
                self._slots = []
            raise AnswerLost from exc
        except BaseException:
            # Nobody knows what it would answer next.
            connection.disconnect()
            raise
        if connection._sock:
            pool.give_back(connection)
        return replies

    # -- where a key is

    def _pool_of(self, key: bytes, deadline: float) -> _Pool:
        with self._lock:
            if self._closed:
                raise StoreClosed("this Redis store is closed")
            slots = self._slots
        if not self._is_cluster:
            return self._pool(self._addresses[0])
        if not slots:
            slots = self._look_up_slots(deadline)
            with self._lock:
                self._slots = slots
        slot = key_slot(key)
        for first, last, address in slots:
            if first <= slot <= last:
                return self._pool(address)
        raise redis.exceptions.ClusterDownError(f"no server has slot {slot}")

    def _pool(self, address: Address) -> _Pool:
        with self._lock:
            if self._closed:
                raise StoreClosed("this Redis store is closed")
            pool = self._pools.get(address)
            if pool is None:
                settings = dict(self._settings)
                if "path" not in settings:
                    settings["host"], settings["port"] = address
                pool = self._pools[address] = _Pool(settings)
            return pool

    def _look_up_slots(self, deadline: float) -> list[tuple[int, int, Address]]:
        """Ask the nodes one after the other, those that answered last first: none may use up the time of the others."""
        trouble: Exception = redis.exceptions.ClusterDownError("the cluster has no slots yet")
        nodes = list(dict.fromkeys((*self._addresses, *list(self._pools))))
        for address in nodes:
            until = time.monotonic() + max(_left(deadline) / len(nodes), 0.2)
            found = self._ask_slots(address, min(until, deadline))
            if isinstance(found, redis.AuthenticationError):
                raise found
            if isinstance(found, Exception):
                if "cluster support disabled" in str(found):
                    raise StoreMismatch("this server is not part of a cluster; use a redis:// URL")
                trouble = found
                # It is asked last the next time.
                self._addresses = [*(other for other in self._addresses if other != address), address]
            elif found:
                return [_slots(row, address[0]) for row in found]
        raise trouble

    def _ask_slots(self, address: Address, until: float) -> Any:
        """Return what a node says of the slots, or what is the matter with it."""
        try:
            return self._exchange(self._pool(address), [(b"CLUSTER", b"SLOTS")], until)[0]
        except AnswerLost as exc:
            if isinstance(exc.__cause__, Exception):
                return exc.__cause__
            return exc
        except (redis.ConnectionError, redis.TimeoutError, OSError) as exc:
            return exc

    # -- what the server can do

    def check_server(self, key: bytes, deadline: float) -> None:
        """Refuse a server that cannot keep what it is given, and warn of one that may lose it in a crash."""
        info, config = self._send(key, [(b"INFO",), (b"CONFIG", b"GET", *_SETTINGS)], deadline)
        # Not let in, or still loading.
        if isinstance(info, redis.ConnectionError):
            raise info
        facts = _facts(info)
        version = facts.get("redis_version", "7.0").split(".")
        if tuple(int(part) for part in version[:2]) < _SERVER_MIN:
            raise StoreMismatch(f"the server speaks like Redis {'.'.join(version)}; 7.0 or newer is needed")
        if facts.get("cluster_enabled") == "1" and not self._is_cluster:
            raise StoreMismatch("this server is part of a cluster; use a redis+cluster:// URL")
        settings = _settings(config)
        policy = settings.get("maxmemory-policy", facts.get("maxmemory_policy", "noeviction"))
        limit = settings.get("maxmemory", facts.get("maxmemory", "0"))
        if policy != "noeviction" and limit != "0" and not self._allow_eviction:
            raise StoreMismatch(
                f"the server drops keys when its memory is full (maxmemory-policy {policy}), which would lose parts of "
                "checkpoints; set it to noeviction"
            )
        _warn_of_losses(settings, facts)


def _warn_of_losses(settings: dict[str, str], facts: dict[str, str]) -> None:
    synced = settings.get("appendfsync")
    # Many services do not let clients look at their settings; what the server says of itself is always there.
    is_logged = facts.get("aof_enabled") == "1"
    if "appendonly" in settings:
        is_logged = settings["appendonly"] == "yes"
    if not is_logged:
        what = "appendonly is off: a crash of the server loses everything since its last dump"
    elif synced is not None and synced != "always":
        what = f"appendfsync is {synced}: a crash of the machine loses about the last second, or more"
    else:
        return
    warnings.warn(f"Redis may lose acknowledged checkpoints; {what}", DurabilityWarning, stacklevel=2)


def _facts(info: Any) -> dict[str, str]:
    if not isinstance(info, bytes):
        return {}
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _settings(config: Any) -> dict[str, str]:
    if not isinstance(config, list):
        return {}
    return dict(pairs([part.decode(errors="replace") for part in config]))


def _parsed(url: str, timeout_seconds: float) -> tuple[list[Address], bool, dict[str, Any]]:
    """Return addresses, whether it is a cluster, and the driver's settings. No message holds a part of the URL."""
    scheme, _, rest = url.partition("://")
    is_cluster = scheme.endswith("+cluster")
    scheme = scheme.removesuffix("+cluster")
    if scheme not in ("redis", "rediss", "unix") or (is_cluster and scheme == "unix"):
        raise InvalidInput("a Redis URL begins with redis://, rediss://, redis+cluster:// or rediss+cluster://")
    parts = _split(f"{scheme}://{rest}")
    if parts is None:
        raise InvalidInput(
            "the Redis URL cannot be read; it is redis://user:password@host:port/database, and special characters in "
            "the password are written as %XX"
        )
    addresses, found, path = parts
    # The path of a unix:// URL names a file.
    if scheme != "unix":
        _check_path(path)
    _check_options(found)
    if is_cluster and found.pop("db", 0):
        raise InvalidInput("a cluster has only database 0")
    if len(addresses) > 1 and not is_cluster:
        raise InvalidInput("only the URL of a cluster names several hosts")
    settings: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "socket_keepalive": True,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        **found,
    }
    return addresses, is_cluster, settings


def _split(url: str) -> tuple[list[Address], dict[str, Any], str] | None:
    """Return the addresses in a URL, the settings that the driver finds in it, and its path; None: it has none.

    An error, or its text, would quote from the password: none comes out of here.
    """
    try:
        parts = urlsplit(url)
        login, at, hosts = parts.netloc.rpartition("@")
        first, *others = hosts.split(",")
        found = _parse_url(parts._replace(netloc=login + at + first).geturl())
        addresses = [(found.pop("host", "localhost"), found.pop("port", 6379))]
        for other in others:
            host = urlsplit(f"//{other}")
            addresses.append((host.hostname or "localhost", host.port or 6379))
    except (ValueError, TypeError):
        return None
    is_cut = not at and parts.scheme != "unix" and _is_cut(parts.path, parts.query)
    if parts.fragment or is_cut:
        return None
    return addresses, found, parts.path


def _is_cut(path: str, query: str) -> bool:
    """Whether a login seems to reach into the path or the options, because of a / or ? in its password."""
    loose = [part for part in query.split("&") if "=" not in part]
    return "@" in path or any("@" in part for part in loose)


def _check_path(path: str) -> None:
    if path.strip("/") and not path.strip("/").isdecimal():
        raise InvalidInput("the path of a Redis URL is the number of a database, such as /0")


def _check_options(found: dict[str, Any]) -> None:
    for name in found:
        if name not in _OPTIONS and not name.startswith("ssl_"):
            # Not by its name: with a ? in a password a part of that stands here.
            raise InvalidInput(
                f"the Redis URL has an option that is not known; known are {', '.join(sorted(_OPTIONS))}"
            )


def _slots(row: Sequence[Any], asked: str) -> tuple[int, int, Address]:
    """Return the first and the last slot of a node, and its address, as the node that was asked tells them."""
    first, last, node = row[:3]
    return first, last, (_host(node[0]) or asked, node[1])


def _host(name: bytes | None) -> str:
    """Return the host of a node as the cluster gives it; "": the one that was asked."""
    if name is None or name == b"?":
        return ""
    return name.decode()


def _left(until: float) -> float:
    """Return the seconds until then; a timeout if there are none."""
    left = until - time.monotonic()
    if left <= 0:
        raise redis.TimeoutError("no time left")
    return left


def _patience(deadline: float) -> float:
    """Return until when to wait for one answer: if it does not come there must be time to ask again."""
    left = _left(deadline)
    # Two fifths of what is left, so that a lost answer can be asked for twice; but not less than two seconds,
    # which a slow server may need.
    return time.monotonic() + max(left * 0.4, min(left, 2))


def _answer(connection: Any, until: float) -> Any:
    """Return an answer, which may be an error; after some of those the driver hangs up."""
    connection._sock.settimeout(_left(until))
    try:
        return connection.read_response()
    except (redis.ResponseError, *_REFUSALS) as exc:
        return exc


class _Pool:
    """Connections to one server, the last used first. Opening one takes no longer than the caller has time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = dict(settings)
        self._kind = self._settings.pop("connection_class", redis.Connection)
        self._idle: deque[Any] = deque()
        self._closed = False

    def take(self, until: float) -> Any:
        """Return a connection that is ready, and waits until then for what is sent."""
        left = _left(until)
        while True:
            try:
                # The one that was used last, since the others may have been closed for being idle.
                connection = self._idle.pop()
            except IndexError:
                break
            with contextlib.suppress(redis.RedisError, OSError):
                # Something to read before anything was asked means that the server has hung up.
                if not connection.can_read(0):
                    connection._sock.settimeout(left)
                    return connection
            # The server has closed it.
            connection.disconnect()
        connection = self._kind(**self._settings)
        connection.socket_timeout = connection.socket_connect_timeout = left
        connection.connect()
        return connection

    def give_back(self, connection: Any) -> None:
        self._idle.append(connection)
        # The store may have been closed while this one was in use.
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            # Another thread may take the last one meanwhile.
            with contextlib.suppress(IndexError):
                self._idle.pop().disconnect()


@contextmanager
def translated(*, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the driver's errors into ours. Their texts never hold the password."""
    passed: tuple[type[Exception], ...] = (Unsure, *but)
    try:
        yield
    except EverstepError:
        raise
    except passed:
        raise
    except AnswerLost as exc:
        raise StoreUnavailable("Redis did not answer in time; try again") from exc.__cause__
    except redis.exceptions.OutOfMemoryError as exc:
        raise StoreFull(f"the Redis server has no memory left (maxmemory); nothing was written ({exc})") from exc
    except redis.exceptions.ReadOnlyError as exc:
        raise StoreReadOnly(f"this Redis server is a read-only replica; use its master: {exc}") from exc
    except redis.exceptions.NoPermissionError as exc:
        raise StoreReadOnly(f"Redis does not let this user do that: {exc}") from exc
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as exc:
        raise StoreError(f"Redis refused the name or password: {exc}") from exc
    except (redis.exceptions.BusyLoadingError, redis.exceptions.ClusterDownError, redis.exceptions.AskError) as exc:
        raise StoreUnavailable(f"Redis is not ready: {exc}; try again") from exc
    except redis.ResponseError as exc:
        raise _refused(exc) from exc
    except (redis.TimeoutError, TimeoutError) as exc:
        raise StoreUnavailable("Redis did not answer in time; try again") from exc
    except (redis.ConnectionError, OSError) as exc:
        raise too_many_behind(exc) or StoreUnavailable(f"Redis cannot be reached: {exc}") from exc
    except redis.RedisError as exc:
        raise StoreError(f"Redis: {type(exc).__name__}: {exc}") from exc


def _refused(exc: redis.ResponseError) -> EverstepError:
    text = str(exc)
    if text.startswith("CORRUPTED"):
        return CheckpointCorrupted(text.partition(" script: ")[0].removeprefix("CORRUPTED "))
    if text.startswith("WRONGTYPE"):
        return StoreMismatch(f"a key of another kind is in the way: {text}; use another key_prefix")
    if text.startswith(("NOPERM", "ACL failure")):
        return StoreReadOnly(f"Redis does not let this user do that: {text}")
    if text.startswith("MISCONF"):
        what = f"Redis cannot write to its disk; nothing was written ({text})"
        if "No space" in text:
            return StoreFull(what)
        return StoreUnavailable(what)
    if text.startswith(("BUSY", "NOREPLICAS", "TRYAGAIN", "MASTERDOWN")):
        return StoreUnavailable(f"Redis is busy: {text}; try again")
    if text.startswith("DB index"):
        return StoreMismatch("the server has no database of the number that the Redis URL names")
    return StoreError(f"Redis: {text}")
