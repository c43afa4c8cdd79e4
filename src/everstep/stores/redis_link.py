"""Talking to Redis or Valkey: one server or a cluster, one script, deadlines, and every driver error translated.

The driver connects, authenticates and speaks the protocol; its own retries are off, because only the store knows what
may be sent twice. A call that was sent and not answered raises `Lost`.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from everstep.errors import (
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
from everstep.stores.redis_script import script

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.crc import key_slot
    from redis.retry import Retry
except ImportError as exc:
    raise MissingDependency("redis", "redis") from exc

_parse_url: Any = redis.connection.parse_url
_SERVER_MIN = (7, 0)
_TOGETHER = 128
_WAITS_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)

UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, OSError)
"""What the driver raises when nothing was sent."""

Address = tuple[str, int]


class Lost(Exception):
    """A call was sent, but its answer did not come: it may have been done."""


class NotReplicated(Exception):
    """A call was done, but fewer replicas than asked for have confirmed it."""

    def __init__(self, confirmed: int, wanted: int) -> None:
        super().__init__(f"{confirmed} of {wanted} replicas confirmed it in time")


class Link:
    """The connections of one store in one process."""

    def __init__(self, url: str, timeout_seconds: float, wait_replicas: int, allow_eviction: bool) -> None:
        self._timeout, self._replicas, self._allow_eviction = timeout_seconds, wait_replicas, allow_eviction
        self._addresses, self._is_cluster, self._settings = _parsed(url, timeout_seconds)
        self._lock = threading.Lock()
        self._pools: dict[Address, redis.ConnectionPool] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.let_go()

    def let_go(self) -> None:
        """Drop every connection; the next call opens new ones."""
        for pool in self._pools.values():
            pool.disconnect()
        self._pools, self._slots = {}, []

    def rest(self) -> None:
        self._lock.acquire()

    def wake(self, *, in_child: bool) -> None:
        if in_child:
            self._pools, self._slots = {}, []  # the parent's connections are left to it
        self._lock.release()

    def run(self, base: bytes, args: Sequence[Any], deadline: float, *, writes: bool = False) -> Any:
        """Run a script, named by the first argument, on a bucket.

        What was not sent is tried again; what was, raises Lost. A change is confirmed by as many replicas as the
        store asks for, or raises NotReplicated.
        """
        text, sha = script(args[0])
        reply = self.send(base, (b"EVALSHA", sha, 1, base, *args[1:]), deadline, writes=writes)
        if isinstance(reply, redis.exceptions.NoScriptError):
            reply = self.send(base, (b"EVAL", text, 1, base, *args[1:]), deadline, writes=writes)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run_many(self, bases: Sequence[bytes], args: Sequence[Any], deadline: float) -> list[Any]:
        """Run a script on many buckets, with few round trips."""
        groups: dict[int, tuple[redis.ConnectionPool, list[int]]] = {}
        replies: list[Any] = [None] * len(bases)
        for n, base in enumerate(bases):
            try:
                pool = self._pool_of(base, deadline)
            except (redis.RedisError, OSError):
                continue  # asked for one by one below
            groups.setdefault(id(pool), (pool, []))[1].append(n)
        for pool, members in groups.values():
            for first in range(0, len(members), _TOGETHER):
                part = members[first : first + _TOGETHER]
                commands = [(b"EVALSHA", script(args[0]).sha, 1, bases[n], *args[1:]) for n in part]
                try:
                    found = self._exchange(pool, commands, deadline)
                except (Lost, redis.RedisError, OSError):
                    continue
                for n, reply in zip(part, found, strict=True):
                    replies[n] = reply
        return [
            self.run(base, args, deadline) if reply is None or isinstance(reply, Exception) else reply
            for base, reply in zip(bases, replies, strict=True)
        ]

    def send(self, key: bytes, command: tuple[Any, ...], deadline: float, *, writes: bool = False) -> Any:
        """Send a command to the server that has this key, and return its answer, which may be an error."""
        commands = [command]
        if writes and self._replicas:
            commands.append((b"WAIT", self._replicas, max(1, int((deadline - time.monotonic()) * 900))))
        replies = self._send(key, commands, deadline)
        if len(replies) > 1 and not isinstance(replies[0], Exception):
            if isinstance(replies[1], Exception):
                raise replies[1]
            if replies[1] < self._replicas:
                raise NotReplicated(replies[1], self._replicas)
        return replies[0]

    def _send(self, key: bytes, commands: Sequence[tuple[Any, ...]], deadline: float) -> list[Any]:
        for tries in range(1 << 30):
            try:
                replies = self._exchange(self._pool_of(key, deadline), commands, deadline)
                trouble = replies[0] if isinstance(replies[0], Exception) else None
            except UNREACHABLE as exc:
                trouble = exc
            if not self._is_passing(trouble):
                if isinstance(trouble, UNREACHABLE):
                    raise trouble
                return replies
            with self._lock:
                self._slots = []  # somebody else may have this slot now
            pause = _WAITS_SECONDS[min(tries, len(_WAITS_SECONDS) - 1)]
            if time.monotonic() + pause >= deadline:
                raise trouble or AssertionError
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _is_passing(self, trouble: Exception | None) -> bool:
        """Whether nothing was done, and a cluster may soon do it: a slot has moved, a replica takes over."""
        if trouble is None or not self._is_cluster:
            return False
        if isinstance(trouble, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
            return False
        kinds = (
            redis.exceptions.AskError,  # and MOVED; half a slot is never worked on, so ASK is not followed
            redis.exceptions.TryAgainError,
            redis.exceptions.ClusterDownError,
            redis.exceptions.BusyLoadingError,
            redis.exceptions.ReadOnlyError,
            *UNREACHABLE,
        )
        return isinstance(trouble, kinds)

    def _exchange(self, pool: redis.ConnectionPool, commands: Sequence[tuple[Any, ...]], deadline: float) -> list[Any]:
        connection: Any = pool.get_connection()
        replies: list[Any] = []
        try:
            packed = connection.pack_commands(commands)
            try:
                connection.send_packed_command(packed, check_health=False)
                for _ in commands:
                    if not connection.can_read(max(deadline - time.monotonic(), 0.001)):
                        raise redis.TimeoutError("no answer in time")
                    try:
                        replies.append(connection.read_response())
                    except redis.ResponseError as exc:
                        replies.append(exc)
            except UNREACHABLE as exc:
                connection.disconnect()
                raise Lost from exc
            except BaseException:
                connection.disconnect()  # nobody knows what it would answer next
                raise
        finally:
            pool.release(connection)
        return replies

    # -- where a key is

    def _pool_of(self, key: bytes, deadline: float) -> redis.ConnectionPool:
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

    def _pool(self, address: Address) -> redis.ConnectionPool:
        with self._lock:
            if self._closed:
                raise StoreClosed("this Redis store is closed")
            pool = self._pools.get(address)
            if pool is None:
                settings = dict(self._settings)
                if "path" not in settings:
                    settings["host"], settings["port"] = address
                pool = self._pools[address] = redis.ConnectionPool(**settings)
            return pool

    def _look_up_slots(self, deadline: float) -> list[tuple[int, int, Address]]:
        trouble: Exception | None = None
        for address in dict.fromkeys((*self._addresses, *list(self._pools))):
            try:
                found = self._exchange(self._pool(address), [(b"CLUSTER", b"SLOTS")], deadline)[0]
            except (Lost, *UNREACHABLE) as exc:
                trouble = exc.__cause__ if isinstance(exc, Lost) and isinstance(exc.__cause__, Exception) else exc
                if isinstance(trouble, redis.AuthenticationError):
                    break
                continue
            if isinstance(found, Exception):
                if "cluster support disabled" in str(found):
                    raise StoreMismatch("this server is not part of a cluster; use a redis:// URL")
                trouble = found
                continue
            if found:
                return [(row[0], row[1], (row[2][0].decode() or address[0], row[2][1])) for row in found]
            trouble = redis.exceptions.ClusterDownError("the cluster has no slots yet")
        raise trouble or AssertionError("no address")

    # -- what the server can do

    def check_server(self, key: bytes, deadline: float) -> None:
        """Refuse a server that cannot keep what it is given, and warn of one that may lose it in a crash."""
        info, config = self._send(key, [(b"INFO",), (b"CONFIG", b"GET", b"*")], deadline)
        if isinstance(info, (redis.AuthenticationError, redis.exceptions.BusyLoadingError)):
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
    if settings.get("appendonly", "yes" if facts.get("aof_enabled") == "1" else "no") != "yes":
        what = "appendonly is off: a crash of the server loses everything since its last dump"
    elif synced is not None and synced != "always":
        what = f"appendfsync is {synced}: a crash of the machine loses about the last second, or more"
    else:
        return
    warnings.warn(f"Redis may lose acknowledged checkpoints; {what}", DurabilityWarning, stacklevel=2)


def _facts(info: Any) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _settings(config: Any) -> dict[str, str]:
    if not isinstance(config, list):  # many services do not let clients look
        return {}
    texts = [part.decode(errors="replace") for part in config]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _parsed(url: str, timeout_seconds: float) -> tuple[list[Address], bool, dict[str, Any]]:
    """Return addresses, whether it is a cluster, and the driver's settings."""
    scheme, _, rest = url.partition("://")
    is_cluster = scheme.endswith("+cluster")
    scheme = scheme.removesuffix("+cluster")
    if scheme not in ("redis", "rediss", "unix") or (is_cluster and scheme == "unix"):
        raise InvalidInput("a Redis URL begins with redis://, rediss://, redis+cluster:// or rediss+cluster://")
    hosts = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
    first, *others = hosts.split(",") if scheme != "unix" else [hosts]
    try:
        found = _parse_url(f"{scheme}://{rest.replace(hosts, first, 1) if others else rest}")
        addresses = [(found.pop("host", "localhost"), found.pop("port", 6379))]
        addresses += [(at.hostname or "localhost", at.port or 6379) for at in (urlsplit(f"//{o}") for o in others)]
    except (ValueError, TypeError) as exc:
        raise InvalidInput(_hushed(f"the Redis URL cannot be read: {exc}", rest)) from None
    if is_cluster and found.pop("db", 0):
        raise InvalidInput("a cluster has only database 0")
    settings: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, 10),
        "socket_keepalive": True,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": 10_000,
        **found,
    }
    return addresses, is_cluster, settings


def _hushed(text: str, rest: str) -> str:
    """Return the text without the secrets that the URL holds."""
    name, _, secret = rest.rpartition("@")[0].partition(":")
    query = parse_qs(urlsplit("//" + rest).query)
    for part in (secret, unquote(secret), *query.get("password", ())):
        if part:
            text = text.replace(part, "***")
    return text.replace(name, "***") if name and not secret else text


@contextmanager
def translated(*, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the driver's errors into ours. Their texts never hold the password."""
    try:
        yield
    except EverstepError:
        raise
    except but:
        raise
    except Lost as exc:
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
        raise StoreUnavailable(f"Redis cannot be reached: {exc}") from exc
    except redis.RedisError as exc:
        raise StoreError(f"Redis: {type(exc).__name__}: {exc}") from exc


def _refused(exc: redis.ResponseError) -> StoreError:
    text = str(exc)
    if text.startswith("WRONGTYPE"):
        return StoreMismatch(f"a key of another kind is in the way: {text}; use another key_prefix")
    if text.startswith("NOPERM"):
        return StoreReadOnly(f"Redis does not let this user do that: {text}")
    if text.startswith("MISCONF"):
        kind = StoreFull if "No space" in text else StoreUnavailable
        return kind(f"Redis cannot write to its disk; nothing was written ({text})")
    if text.startswith(("BUSY", "NOREPLICAS", "TRYAGAIN", "MASTERDOWN")):
        return StoreUnavailable(f"Redis is busy: {text}; try again")
    return StoreError(f"Redis: {text}")
