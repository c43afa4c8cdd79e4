"""Stores to do harm to: filled with everything there is, changed behind their backs, and put back as they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import psycopg
import redis as redis_py

import everstep
from everstep.errors import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.keyvalue.interface import SealedReading
from everstep.stores.keyvalue.store import KeyValueStore
from everstep.stores.memory import MemoryKeyValues
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Key, Store, Write
from everstep.stores.redis.store import RedisStore
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.store import SQLiteStore
from everstep.stores.transaction import now_micros
from everstep.values import tree
from tests.timeline.histories import seen
from tests.tools import servers

Harm = Callable[[], Any]


def engine_of(store: Store) -> Any:
    return everstep.CheckpointEngine(everstep.StoreBackend(store)).sync


def fill(store: Any) -> None:
    """Make a family with everything, that of `t`, and other threads that nothing may happen to."""
    engine = engine_of(store)
    for name in ("before", "t", "after"):
        for n in range(4):
            message = {"role": "user", "content": f"{name} {n} " + "long " * 900, "id": f"{name}{n}"}
            engine.append(name, [message], {"n": n}, metadata={"user": name}, tags=[name])
    engine.append("t", [], {"sub": 1}, namespace="ns")
    points = engine.list_time_travel_points("t")
    engine.pin(points[2].checkpoint_id, thread_id="t")
    branch = engine.branch(points[1].checkpoint_id, "b", thread_id="t")
    engine.append(branch, [{"role": "user", "content": "on the branch", "id": "branch"}])
    engine.rewind(points[1].checkpoint_id, thread_id="t")
    engine.append("t", [{"role": "user", "content": "another way", "id": "other"}], {"way": 2})
    engine.merge_branch(branch, "t", resolve="theirs")
    head = engine.append("t", [{"role": "user", "content": "last", "id": "last"}], tags=["kept"])
    key = Key("t", "", head)
    children = max(obj.hash for obj in run_to_end(store.read(*key, objects=True)).objects)
    body = tree.Node(children, b"", 0).body
    run_to_end(store.put_writes(key, [Write("task", 0, "channel", children, body, 0)], ()))


def family(store: Any) -> set[str]:
    """Return the threads that harm is done to."""
    return set(run_to_end(store.raw("t", family_threads=True)).family_threads)


class Site:
    """A store that can be harmed."""

    kind: str

    def __init__(self) -> None:
        self._opened: list[Any] = []
        self.touched: set[str] = set()

    def make(self) -> Any:
        raise NotImplementedError

    def open(self) -> Any:
        """Return a store that has seen nothing."""
        self._opened.append(self.make())
        return self._opened[-1].blocking

    def close_stores(self) -> None:
        for store in self._opened:
            run_to_end(store.blocking.close())
        self._opened.clear()

    def verified(self) -> everstep.VerifyReport:
        report: everstep.VerifyReport = engine_of(self.open()).verify()
        return report

    def others(self) -> dict[str, Any]:
        """Return all that can be seen of the threads that nothing was done to, read one by one."""
        store = self.open()
        engine = engine_of(store)
        found: dict[str, Any] = {}
        for name in ("before", "after"):
            found[name] = [
                (point.checkpoint_id, repr(engine.get(point.checkpoint_id, thread_id=name).to_dict()))
                for point in engine.list_time_travel_points(name, 1000)
            ]
        return found

    def readable(self) -> dict[str, str]:
        """Return the checkpoints of the family that can be read, with what they hold."""
        store = self.open()
        engine = engine_of(store)
        found: dict[str, str] = {}
        for name in sorted(self.touched):
            try:
                points = engine.list_time_travel_points(name, 1000)
            except CheckpointCorrupted:
                continue
            for point in points:
                try:
                    checkpoint = engine.get(point.checkpoint_id, thread_id=name)
                    found[f"{name} {point.checkpoint_id}"] = repr(checkpoint.to_dict()["state"])
                except (CheckpointCorrupted, AttributeError):
                    continue
        return found

    def keep(self) -> None:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError

    def harms(self) -> Iterator[tuple[str, Harm]]:
        """Yield every way to lose or change one thing of the family, by name."""
        raise NotImplementedError

    def flip(self, checkpoint_id: str) -> None:
        """Change a bit of what is stored about a checkpoint."""
        raise NotImplementedError

    def close(self) -> None:
        self.close_stores()


class KeyValueSite(Site):
    """Keys and values, with checksums or without."""

    def __init__(self, *, finds_damage: bool) -> None:
        super().__init__()
        self.kind = "memory" if finds_damage else "sealed"
        self._backend = MemoryKeyValues()
        self._backend.finds_damage = finds_damage
        self._kept: dict[bytes, bytes] = {}

    def make(self) -> Any:
        return KeyValueStore(self._backend)

    def close_stores(self) -> None:
        self._opened.clear()  # they share what is in memory

    def keep(self) -> None:
        self._kept = dict(self._backend._values)

    def put_back(self) -> None:
        with self._backend.write(0) as tx:
            for key in list(self._backend._values):
                if key not in self._kept:
                    tx.delete(key)
            for key, value in self._kept.items():
                if self._backend._values.get(key) != value:
                    tx.put(key, value)

    def set(self, key: bytes, value: bytes | None) -> None:
        with self._backend.write(0) as tx:
            if value is None:
                tx.delete(key)
            else:
                tx.put(key, value)

    def harms(self) -> Iterator[tuple[str, Harm]]:
        mine = _keys_of(self.make(), self.touched)
        for key, value in self._kept.items():
            table = key[:1].decode()
            if not any(part in key for part in mine) and len(key) > 1:
                continue
            yield f"{table} lost {key!r}", partial(self.set, key, None)
            if value and self.kind == "sealed":
                flipped = bytearray(value)
                flipped[len(value) // 2] ^= 4
                yield f"{table} flipped {key!r}", partial(self.set, key, bytes(flipped))
                yield f"{table} cut {key!r}", partial(self.set, key, value[:-1])

    def flip(self, checkpoint_id: str) -> None:
        (key,) = [key for key, value in self._kept.items() if key[:1] == b"c" and checkpoint_id.encode() in value[:80]]
        self.set(key, _changed(self._kept[key]))

    def opened(self) -> SealedReading:
        return SealedReading(self._backend)


def _keys_of(store: Any, names: set[str]) -> list[bytes]:
    """Return parts of keys that are of these threads alone: their names, their numbers, those of their lines."""
    found = [name.encode() + b"\0\0" for name in names]
    with store._backend.read(0) as tx:
        for key, value in tx.scan(b"m", b"n"):
            plain = value[8:] if not store._backend.finds_damage else value
            if plain.decode() in names:
                found += [key[:1] + key[1:9], *(table + key[1:9] for table in (b"f", b"r", b"o", b"b", b"m"))]
                found += [table + key[9:17] for table in (b"l", b"h", b"e", b"k", b"N")]
                for line, _ in tx.scan(b"L", b"M"):
                    line_name = store._backend._values[line]
                    if bytes([0xA0 + len(plain)]) + plain in line_name or (len(plain) > 31 and plain in line_name):
                        found += [table + line[1:] for table in (b"L", b"c", b"p", b"w", b"g", b"d")]
    return found


class SQLiteSite(Site):
    """A file."""

    kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "store.db"
        self._copy = folder / "store.copy"
        self._tables: dict[str, list[str]] = {}

    def make(self) -> Any:
        return SQLiteStore(self.path)

    def keep(self) -> None:
        self.close_stores()
        shutil.copyfile(self.path, self._copy)

    def put_back(self) -> None:
        self.close_stores()
        for end in ("-wal", "-shm"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        shutil.copyfile(self._copy, self.path)

    def do(self, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Run SQL as somebody would who knows the checksums of pages, and none of ours; triggers do not fire."""
        self.close_stores()
        from everstep.stores.sqlite.connecting import checksum_vfs

        flags = apsw.SQLITE_OPEN_READWRITE
        with closing(apsw.Connection(str(self.path), flags=flags, vfs=checksum_vfs())) as connection:
            schema.add_functions(connection)
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            return list(connection.execute(text, values))

    def harms(self) -> Iterator[tuple[str, Harm]]:
        family = self.do("SELECT family FROM threads WHERE name = 't'")[0][0]
        of_lines = f"line IN (SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.family = {family})"
        of_threads = f"thread IN (SELECT id FROM threads WHERE family = {family})"
        tables = {
            "families": f"id = {family}",
            "threads": f"family = {family}",
            "lines": of_threads,
            "segments": f"family = {family}",
            "checkpoints": of_lines,
            "objects": f"family = {family}",
            "writes": of_lines,
            "operations": of_threads,
            "hidden": of_lines,
            "covers": of_lines,
            "shared_states": f"low IN (SELECT id FROM threads WHERE family = {family})",
            "facts": of_lines,
            "counters": "1",
        }
        for table, condition in tables.items():
            columns = [row[1] for row in self.do(f"PRAGMA table_info({table})")]
            keys = [row[1] for row in self.do(f"PRAGMA table_info({table})") if row[5]] or ["rowid"]
            rows = self.do(f"SELECT {', '.join(keys)} FROM {table} WHERE {condition}")
            for row in rows:
                where = " AND ".join(f"{key} IS {_literal(value)}" for key, value in zip(keys, row, strict=True))
                yield f"{table} lost {row!r}", partial(self.do, f"DELETE FROM {table} WHERE {where}")
            for column in columns:
                row = rows[0]
                where = " AND ".join(f"{key} IS {_literal(value)}" for key, value in zip(keys, row, strict=True))
                value = self.do(f"SELECT {column} FROM {table} WHERE {where}")[0][0]
                other = _changed(value)
                text = f"UPDATE OR REPLACE {table} SET {column} = {_literal(other)} WHERE {where}"
                yield f"{table}.{column} changed", partial(self.do, text)

    def flip(self, checkpoint_id: str) -> None:
        ((info,),) = self.do("SELECT info FROM checkpoints WHERE id = ?", (checkpoint_id,))
        self.do("UPDATE checkpoints SET info = ? WHERE id = ?", (_changed(info), checkpoint_id))


def _literal(value: Any) -> str:
    return str(apsw.format_sql_value(value))


def _changed(value: Any) -> Any:
    if value is None:
        return 1
    if isinstance(value, int):
        return value + 1000
    if isinstance(value, str):
        return chr(ord(value[0]) ^ 1) + value[1:] if value else "x"
    flipped = bytearray(value)
    if not flipped:
        return b"x" * 16
    flipped[len(flipped) // 2] ^= 4
    return bytes(flipped)


class PostgresSite(Site):
    """Tables."""

    kind = "postgres"
    TABLES = (
        "families", "names", "threads", "lines", "segments", "checkpoints", "objects", "writes", "operations",
        "hidden", "covers", "shared_states", "gone",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        servers.clear_postgres()
        self._connection = psycopg.connect(servers.postgres(), autocommit=True)
        self._connection.execute("SET session_replication_role = replica")  # a row that is lost fires no trigger
        self._kept: dict[str, list[tuple[Any, ...]]] = {}
        self._columns: dict[str, list[str]] = {}

    def make(self) -> Any:
        return PostgresStore(servers.postgres(), max_size=2)

    def do(self, text: str, values: Any = ()) -> list[Any]:
        done = self._connection.execute(text.encode(), values)
        return done.fetchall() if done.description else []

    def columns(self, table: str) -> list[str]:
        if table not in self._columns:
            rows = self.do(
                """SELECT column_name FROM information_schema.columns WHERE table_name = %s AND is_generated = 'NEVER'
                   ORDER BY ordinal_position""",
                (f"everstep_{table}",),
            )
            self._columns[table] = [name for (name,) in rows]
        return self._columns[table]

    def keep(self) -> None:
        for table in self.TABLES:
            self._kept[table] = self.do(f"SELECT {', '.join(self.columns(table))} FROM everstep_{table}")

    def put_back(self) -> None:
        self.close_stores()
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for table, rows in self._kept.items():
                self.do(f"DELETE FROM everstep_{table}")
                columns = self.columns(table)
                places = ", ".join(["%s"] * len(columns))
                text = f"INSERT INTO everstep_{table} ({', '.join(columns)}) VALUES ({places})"
                cursor.executemany(text.encode(), rows)

    def harms(self) -> Iterator[tuple[str, Harm]]:
        family = self.do("SELECT family FROM everstep_names WHERE name = 't'")[0][0]
        for table in self.TABLES:
            if table == "gone":
                continue
            own = f"id = {family}" if table == "families" else f"family = {family}"
            count = self.do(f"SELECT count(*) FROM everstep_{table} WHERE {own}")[0][0]
            for n in range(count):
                place = f"(SELECT ctid FROM everstep_{table} r WHERE {own} ORDER BY r::text OFFSET {n} LIMIT 1)"
                text = f"DELETE FROM everstep_{table} WHERE ctid = {place}"
                yield f"{table} lost {n}", partial(self.do, text)
            for column in self.columns(table):
                place = f"(SELECT ctid FROM everstep_{table} r WHERE {own} ORDER BY r::text LIMIT 1)"
                yield f"{table}.{column} changed", partial(self._change, table, column, place)

    def _change(self, table: str, column: str, place: str) -> None:
        ((value,),) = self.do(f"SELECT {column} FROM everstep_{table} WHERE ctid = {place}")
        if isinstance(value, bool):
            other: Any = not value
        elif isinstance(value, (int, bytes, str)) or value is None:
            other = _changed(value)
        elif isinstance(value, list):
            other = [1]
        else:
            other = value.replace(year=1999)
        kind = self.do(
            "SELECT data_type FROM information_schema.columns WHERE table_name = %s AND column_name = %s",
            (f"everstep_{table}", column),
        )[0][0]
        if value is None and kind == "bytea":
            other = b"x"
        if value is None and kind == "ARRAY":
            other = [1]
        try:
            self.do(f"UPDATE everstep_{table} SET {column} = %s WHERE ctid = {place}", (other,))
        except psycopg.errors.UniqueViolation:
            self.do(f"UPDATE everstep_{table} SET {column} = %s WHERE ctid = {place}", (1 << 50,))

    def flip(self, checkpoint_id: str) -> None:
        name = checkpoint_id.encode()
        ((info,),) = self.do("SELECT info FROM everstep_checkpoints WHERE id = %s", (name,))
        self.do("UPDATE everstep_checkpoints SET info = %s WHERE id = %s", (_changed(info), name))

    def close(self) -> None:
        super().close()
        self._connection.close()


class RedisSite(Site):
    """Keys of a prefix."""

    kind = "redis"

    def __init__(self) -> None:
        super().__init__()
        self._prefix = servers.redis_prefix()
        self.client: Any = redis_py.Redis.from_url(servers.redis())
        self._kept: dict[bytes, bytes] = {}

    def make(self) -> Any:
        return RedisStore(servers.redis(), key_prefix=self._prefix)

    def names(self) -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self._prefix}*", 1000))

    def keep(self) -> None:
        self._kept = {name: self.client.dump(name) for name in self.names()}

    def put_back(self) -> None:
        self.close_stores()
        with self.client.pipeline(transaction=False) as pipeline:
            for name in set(self.names()) - set(self._kept):
                pipeline.delete(name)
            for name, value in self._kept.items():
                pipeline.restore(name, 0, value, replace=True)
            pipeline.execute()

    def harms(self) -> Iterator[tuple[str, Harm]]:
        (family,) = {self.client.hget(name, "family") for name in self._kept if name.endswith(b"thread:t:heads")}
        bucket = next(name for name in self._kept if name.endswith(b"thread:t:heads")).rsplit(b"thread:", 1)[0]
        parts = (*(f"thread:{name}:".encode() for name in self.touched), b"family:" + family)
        shared = (b"active", b"names", b"facts", b"ids", b"counts")
        for name in self._kept:
            own = name.removeprefix(bucket)
            is_own = own.startswith(parts)
            if not name.startswith(bucket) or not (is_own or own in shared or own.startswith(b"fact:")):
                continue
            yield from self._harms_of(name, own.decode(errors="replace"), is_own)

    def flip(self, checkpoint_id: str) -> None:
        (name,) = [name for name in self._kept if name.endswith(f":item:{checkpoint_id}".encode())]
        self.client.set(name, _changed(self.client.get(name)))

    def _kin(self) -> set[bytes]:
        return {name.encode() for name in self.touched}

    def _harms_of(self, name: bytes, own: str, is_own: bool) -> Iterator[tuple[str, Harm]]:
        client = self.client
        kind = client.type(name)
        if is_own:
            yield f"{own} lost", lambda: client.delete(name)
        if kind == b"string":
            value = client.get(name)
            yield f"{own} flipped", lambda: client.set(name, _changed(value))
            yield f"{own} cut", lambda: client.set(name, value[:-3])
        elif kind == b"hash":
            for field, value in client.hgetall(name).items():
                if is_own or field in self._kin() or field.startswith((b"t-", b"ckpt-t")):
                    yield f"{own} {field!r} lost", partial(client.hdel, name, field)
                    if is_own:
                        other = _changed(value)
                        yield f"{own} {field!r} changed", partial(client.hset, name, field, other)
        elif kind == b"zset":
            for member in client.zrange(name, 0, -1):
                if is_own or member in self._kin():
                    yield f"{own} {member!r} lost", partial(client.zrem, name, member)
            if is_own:
                yield f"{own} extra", lambda: client.zadd(name, {"nothing": now_micros()})
        elif kind == b"set":
            for member in client.smembers(name):
                if is_own or member in self._kin():
                    yield f"{own} {member!r} lost", partial(client.srem, name, member)
            if is_own and not own.endswith(":threads"):
                yield f"{own} extra", lambda: client.sadd(name, "nothing")

    def close(self) -> None:
        super().close()
        for name in self.names():
            self.client.delete(name)
        self.client.close()


def site(kind: str, folder: Path) -> Site:
    """Return a store of a kind, filled and kept."""
    made: Site
    if kind == "sqlite":
        made = SQLiteSite(folder)
    elif kind == "postgres":
        made = PostgresSite()
    elif kind == "redis":
        made = RedisSite()
    else:
        made = KeyValueSite(finds_damage=kind == "memory")
    store = made.open()
    fill(store)
    made.touched = family(store)
    made.keep()
    return made


__all__ = ["Site", "engine_of", "seen", "site"]
