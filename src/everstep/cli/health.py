"""What `everstep doctor` looks at: one function for each check, which only reads, and says what to do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from everstep import factory
from everstep.cli import text
from everstep.cli.session import require_store
from everstep.cli.settings import Settings
from everstep.config import SnapshotConfig
from everstep.engine import SyncEngine
from everstep.errors import CheckpointCorrupted, EverstepError, StoreMismatch
from everstep.opening.addresses import Place, place_of
from everstep.version import __version__

Status = Literal["ok", "warn", "fail"]

SPACE_MIN_BYTES = 200_000_000
SKEW_MAX_SECONDS = 5
_PYTHON_MIN = (3, 11)
# Of a look at a file, which may be very large.
_LOOK_SECONDS = 2.0
_STEPS_BETWEEN_LOOKS = 10_000
_BUSY_MS = 1000
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "9p",
    "ceph",
    "gluster",
    "lustre",
    "fuse.sshfs",
    "davfs",
    "vboxsf",
)
_DRIVERS = {"sqlite": "apsw", "postgres": "psycopg", "redis": "redis"}


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    status: Status
    message: str
    advice: str = ""
    error: EverstepError | None = None
    """Why the store could not be opened."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what each check finds, from the machine to what is stored."""
    yield check_versions()
    try:
        place = place_of(settings.store)
    except EverstepError as exc:
        yield Finding("address", "fail", str(exc), "name the store with --store or EVERSTEP_STORE", exc)
        return
    yield Finding("address", "ok", f"a store of kind {place.kind}, named by {settings.source}")
    yield from check_driver(place)
    if place.kind == "sqlite":
        yield from check_file(Path(place.where), settings)
    opened = list(check_open(settings))
    yield from opened
    if opened[0].status == "fail":
        return
    if place.kind == "sqlite":
        yield check_locks()
        yield check_content(Path(place.where))
    if place.kind == "postgres":
        # A server that hides its settings is no reason not to tell the rest.
        yield from _guarded("server", lambda: check_postgres(place.where))
    if place.kind == "redis":
        yield from _guarded("server", lambda: check_redis(place.where))


# -- this machine


def check_locks() -> Finding:
    """Look whether another SQLite in one process with a store sees its locks; a file has been opened by now."""
    from everstep.stores.sqlite import index_locks

    if index_locks.are_separate():
        return Finding("locks", "ok", "tables of yours may be in the same file, and written with Python's sqlite3")
    message = "a store and Python's sqlite3, in one process, do not see each other's locks here"
    status: Status = "warn" if sys.platform == "linux" else "ok"
    return Finding("locks", status, message, "give tables of yours a file of their own")


def check_versions() -> Finding:
    """Look at Python."""
    message = f"everstep {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.version_info < _PYTHON_MIN:
        return Finding("versions", "fail", message, "Python 3.11 or newer is needed")
    return Finding("versions", "ok", message)


def check_driver(place: Place) -> Iterator[Finding]:
    """Look whether the package is there that talks to the store."""
    package = _DRIVERS.get(place.kind)
    if package is None:
        return
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        yield Finding("driver", "fail", f"{package} is not installed", f"pip install 'everstep[{place.kind}]'")
        return
    more = ""
    if place.kind == "sqlite":
        import apsw

        more = f", SQLite {apsw.sqlite_lib_version()}"
    yield Finding("driver", "ok", f"{package} {version}{more}")


# -- a file


def check_file(path: Path, settings: Settings) -> Iterator[Finding]:
    """Look at a SQLite file and where it is."""
    folder = path.absolute().parent
    if not folder.is_dir():
        yield Finding("folder", "fail", f"there is no folder {folder}", "make it, or name another file")
        return
    yield check_file_system(folder)
    yield check_space(folder, path)
    if not os.access(folder, os.W_OK):
        advice = "SQLite needs a log beside the file: make the folder writable for this user"
        yield Finding("folder", "fail", f"{folder} cannot be written", advice)
    if path.exists():
        yield check_permissions(path)
    synchronous = settings.options.get("synchronous", "full")
    if synchronous != "full":
        message = f"synchronous is {text.clean(synchronous)}: a power cut may lose the last checkpoints"
        yield Finding("durability", "warn", message, "leave the option out: the default is full")


def check_content(path: Path, seconds: float = _LOOK_SECONDS) -> Finding:
    """Look for a short while at the structure of a file, and at the checksums of its pages."""
    import apsw

    from everstep.stores.sqlite.connecting import connect

    deadline = time.monotonic() + seconds
    advice = "everstep verify tells what is damaged; everstep repair saves what is whole"
    try:
        with closing(connect(path, _BUSY_MS)) as connection:
            connection.execute("PRAGMA query_only=1")
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            found = _quick_check(connection)
            if found != "ok":
                connection.pragma("checksum_verification", 0)
                without_checksums = _quick_check(connection)
    except apsw.InterruptError:
        message = f"what can be looked at in {seconds:g} s is sound; everstep verify looks at everything"
        return Finding("content", "ok", message)
    except apsw.BusyError:
        return Finding("content", "ok", "not looked at: somebody is writing")
    except apsw.Error as exc:
        return Finding("content", "fail", f"its structure is damaged: {exc}", advice)
    if found == "ok":
        return Finding("content", "ok", "its structure is sound; everstep verify looks at everything")
    if without_checksums == "ok":
        # Another SQLite program leaves such pages, too: to tell the two apart takes a look at everything.
        return Finding("content", "warn", "pages do not match their checksums", advice)
    return Finding("content", "fail", f"its structure is damaged: {text.cut(without_checksums, 200)}", advice)


def _quick_check(connection: Any) -> str:
    return str(connection.execute("PRAGMA quick_check(1)").get)


def check_permissions(path: Path) -> Finding:
    """Look whether others may read or write the file."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding("permissions", "fail", f"{path} cannot be read and written by this user", "chown or chmod it")
    if mode & 0o077:
        message = f"others on this machine may open {path} (mode {mode:o})"
        return Finding("permissions", "warn", message, f"chmod 600 {path}")
    return Finding("permissions", "ok", f"only its owner may open it (mode {mode:o})")


def check_space(folder: Path, path: Path) -> Finding:
    """Look whether there is room for the store to grow."""
    free = shutil.disk_usage(folder).free
    # A repair, and a migration, may need as much again as the store has.
    size = path.stat().st_size if path.exists() else 0
    needed = max(SPACE_MIN_BYTES, size)
    message = f"{text.describe_bytes(free)} free, the store has {text.describe_bytes(size)}"
    if free < needed:
        return Finding("space", "warn", message, "make room: a full disk stops every agent that writes here")
    return Finding("space", "ok", message)


def check_file_system(folder: Path, mounts: str | None = None) -> Finding:
    """Look whether the folder is on a network file system, whose locks SQLite cannot rely on."""
    kind = file_system_of(folder, mounts if mounts is not None else _mounts())
    if kind is None:
        return Finding("file system", "ok", "not known on this system")
    if kind.startswith(_NETWORK_FILE_SYSTEMS):
        message = f"{folder} is on a network file system ({kind}): its locks cannot be relied on, and files get damaged"
        return Finding("file system", "fail", message, "move the file to a local disk, or use PostgreSQL or Redis")
    if kind in ("tmpfs", "ramfs"):
        message = f"{folder} is in memory ({kind}): the store is gone when the machine stops"
        return Finding("file system", "warn", message, "move the file to a disk")
    return Finding("file system", "ok", f"local ({kind})")


def file_system_of(folder: Path, mounts: str) -> str | None:
    """Return the kind of the file system that a folder is on, from the list of mounts that Linux gives."""
    best: tuple[int, str] | None = None
    resolved = str(folder.resolve())
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Spaces in the name of a folder are written as octal numbers there.
        point = fields[1].encode().decode("unicode_escape")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        # The longest mount point counts: others are above it.
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), fields[2])
    return best[1] if best is not None else None


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# -- the store itself


def check_open(settings: Settings) -> Iterator[Finding]:
    """Open the store, and look at what it says and at the newest checkpoint."""
    try:
        require_store(settings.store, settings.source)
    except EverstepError as exc:
        yield Finding("store", "fail", str(exc), "everstep demo demo.db makes one to try", exc)
        return
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # Nothing may be let go by a command that only looks.
            engine = factory.open(settings.store, SnapshotConfig(gc_policy="keep_all"), **settings.options).sync
            with engine:
                found = engine.list_threads(1)
                millis = (time.monotonic() - began) * 1000
                address = engine.stats().store
                newest = _newest_time(engine)
        except EverstepError as exc:
            yield Finding("store", "fail", str(exc), _advice_for(exc), exc)
            return
    what = "it has threads" if found or found.damaged else "it is empty"
    yield Finding("store", "ok", f"{text.clean(address)} answers in {millis:.0f} ms; {what}")
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            advice = "set it on the server: what was acknowledged must be on disk"
            yield Finding("durability", "warn", str(warning.message), advice)
    yield check_clock(newest)


def check_clock(newest: datetime | None, now: datetime | None = None) -> Finding:
    """Look whether this machine's clock is behind what is stored."""
    now = now or datetime.now(UTC)
    if newest is not None and newest > now + timedelta(seconds=SKEW_MAX_SECONDS):
        ahead = newest - now
        message = f"the newest checkpoint is {ahead.total_seconds():,.0f} s in the future"
        advice = "set the clocks of the machines that write here: retention by age goes by them"
        return Finding("clock", "warn", message, advice)
    return Finding("clock", "ok", f"{now.isoformat(timespec='seconds')}")


def _newest_time(engine: SyncEngine) -> datetime | None:
    page = engine.list_threads(1)
    return text.parse_time(page[0].created_at) if page else None


def _advice_for(error: EverstepError) -> str:
    if isinstance(error, CheckpointCorrupted):
        return "everstep verify tells what is damaged; everstep repair saves what is whole"
    if isinstance(error, StoreMismatch):
        return "name another file: this one is no store, or was made by another version"
    if "password" in str(error).lower() or "auth" in str(error).lower():
        return "look at the user and the password in the URL"
    return "is the server running, and can this machine reach it?"


# -- servers


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds; a driver that fails is a finding too, but its text may hold a password."""
    try:
        yield from check()
    except Exception as exc:
        yield Finding(name, "warn", f"its settings could not be read ({type(exc).__name__})", "")


def check_postgres(dsn: str) -> Iterator[Finding]:
    """Look at the settings of a PostgreSQL server that decide what a crash may lose, and at its clock."""
    import psycopg

    names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        asked = ", ".join(f"current_setting('{name}')" for name in names)
        row: Any = connection.execute(f"SELECT {asked}, clock_timestamp()".encode()).fetchone()
    values = dict(zip(names, row, strict=False))
    yield Finding("server", "ok", f"PostgreSQL {text.clean(values['server_version'])}")
    for name, loss in (
        ("fsync", "a crash of its machine may damage everything"),
        ("full_page_writes", "a crash of its machine may damage pages"),
        ("synchronous_commit", "a crash of the server may lose the last checkpoints"),
    ):
        if values[name] == "off":
            yield Finding("durability", "warn", f"{name} is off: {loss}", f"ALTER SYSTEM SET {name} = on")
    yield check_skew(row[-1])


def check_redis(url: str) -> Iterator[Finding]:
    """Look at the settings of a Redis server that decide what a crash may lose, at its memory, and at its clock."""
    import redis

    if "+cluster://" in url:
        yield Finding("server", "ok", "a cluster: look at the settings of each of its servers")
        return
    client = redis.Redis.from_url(url, socket_timeout=10, decode_responses=True)
    try:
        info: Any = client.info()
        moment: Any = client.time()
        try:
            settings: Any = client.config_get("*")
        except redis.RedisError:
            # A hosted server hides them.
            settings = {}
    finally:
        client.close()
    yield Finding(
        "server", "ok", f"{text.clean(info.get('server_name', 'Redis'))} {text.clean(info.get('redis_version'))}"
    )
    yield from judge_redis(info, settings)
    yield check_skew(datetime.fromtimestamp(int(moment[0]) + int(moment[1]) / 1e6, UTC))


def judge_redis(info: dict[str, Any], settings: dict[str, str]) -> Iterator[Finding]:
    """Yield what the settings of a Redis server mean for checkpoints."""
    is_logged = settings.get("appendonly", "yes" if info.get("aof_enabled") else "no") == "yes"
    if not is_logged:
        message = "appendonly is off: a crash loses everything since the last dump"
        yield Finding("durability", "warn", message, "CONFIG SET appendonly yes, and in redis.conf")
    elif settings.get("appendfsync", "always") != "always":
        message = f"appendfsync is {settings['appendfsync']}: a crash of the machine loses about the last second"
        yield Finding("durability", "warn", message, "CONFIG SET appendfsync always, if that is too much to lose")
    policy = settings.get("maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    limit = int(settings.get("maxmemory", info.get("maxmemory", 0)) or 0)
    if policy != "noeviction":
        message = f"maxmemory-policy is {policy}: a full server drops parts of checkpoints"
        yield Finding("memory", "fail" if limit else "warn", message, "CONFIG SET maxmemory-policy noeviction")
    used = int(info.get("used_memory", 0))
    if limit and used > 0.9 * limit:
        message = f"{text.describe_bytes(used)} of {text.describe_bytes(limit)} are used"
        yield Finding("memory", "warn", message, "raise maxmemory, or apply retention")


def check_skew(server: datetime, now: datetime | None = None) -> Finding:
    """Look whether this machine and the server agree about the time."""
    apart = abs(((now or datetime.now(UTC)) - server).total_seconds())
    if apart > SKEW_MAX_SECONDS:
        message = f"this machine and the server are {apart:,.0f} s apart"
        return Finding("clock", "warn", message, "let both take the time from the same servers (NTP)")
    return Finding("clock", "ok", f"this machine and the server agree ({apart:.1f} s)")
