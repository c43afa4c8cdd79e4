"""The stores on servers, beside bare writes through the same drivers. Part of `make bench`.

The servers are started here with durable settings; EVERSTEP_TEST_POSTGRES and EVERSTEP_TEST_REDIS are not used, since
nobody knows what else they do.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import redis

import everstep
from benchmarks.common import KEEP_ALL, durable, message, paired, ratio, report, words
from tests.faults.proxy import Proxy
from tests.tools import servers


def postgres(_: Path) -> None:
    """Rates, round trips and bytes on PostgreSQL."""
    with servers.PostgresServer() as server, psycopg.connect(server.url, autocommit=True) as bare:
        bare.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, body bytea)")
        _rate("PostgreSQL", server.url, lambda body: bare.execute("INSERT INTO bare (body) VALUES (%b)", (body,)), 0.4)
        _writers(server)
        _round_trips("PostgreSQL", server)
        engine = everstep.open(server.url, KEEP_ALL, table_prefix="size_").sync
        _fill(engine)
        bare.execute("VACUUM")
        names = bare.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'size\\_%'").fetchall()
        stored = sum(bare.execute("SELECT pg_total_relation_size(%s)", name).fetchone()[0] for name in names)  # type: ignore[index]
        report(
            "PostgreSQL: 400 steps of 1.2 kB, tables and indexes",
            f"{stored / 1e6:.3f} MB",
            "<= 1.5 MB",
            stored <= 1.5e6,
        )
        engine.close()


def valkey(_: Path) -> None:
    """Rates, round trips and bytes on Valkey."""
    with servers.ValkeyServer() as server:
        bare = redis.Redis.from_url(server.url)
        numbers = itertools.count()
        _rate("Valkey", server.url, lambda body: bare.set(f"bare:{next(numbers)}", body), 0.6)
        _round_trips("Valkey", server)
        bare.flushall()
        engine = everstep.open(server.url, KEEP_ALL).sync
        engine.snapshot("warm", [], {}, {})
        before = bare.info("memory")["used_memory"]
        _fill(engine)
        stored = bare.info("memory")["used_memory"] - before
        report("Valkey: 400 steps of 1.2 kB, memory", f"{stored / 1e6:.3f} MB", "<= 1.5 MB", stored <= 1.5e6)
        engine.close()
        bare.close()


def _fill(engine: Any) -> None:
    messages: list[Any] = []
    for _ in range(400):
        messages.append(message())
        engine.snapshot("t", messages, {"turn": len(messages)}, {})


def _rate(name: str, url: str, put: Callable[[bytes], Any], target: float) -> None:
    engine = everstep.open(url, KEEP_ALL).sync
    durable(engine, put, f"{name}: ", "a bare one-row write", target)
    engine.close()


# What one put does in the database, statement by statement, as pgbench can do it.
_LIKE_A_PUT = """\\set line :client_id + 1
BEGIN;
SELECT pg_advisory_xact_lock_shared(1, :line);
SELECT 1 FROM lines WHERE id = :line FOR NO KEY UPDATE;
SELECT 1 FROM rows WHERE id = :line;
INSERT INTO rows (body) VALUES (decode(repeat('ab', 1000), 'hex'));
SELECT n FROM lines WHERE id = :line;
INSERT INTO rows (body) VALUES (decode(repeat('ab', 200), 'hex'));
UPDATE lines SET n = n + 1 WHERE id = :line;
COMMIT;
"""


def _writers(server: servers.PostgresServer) -> None:
    """Eight asynchronous writers, each on a thread of its own, against one, and against pgbench."""
    engine = everstep.open(server.url, KEEP_ALL, max_size=8)
    loop = asyncio.new_event_loop()
    text = words(1200)

    async def one(name: str) -> None:
        for _ in range(100):
            await engine.append(name, [{"role": "user", "content": text}])

    async def many(count: int) -> None:
        await asyncio.gather(*(one(f"w{n}") for n in range(count)))

    arms = {"1": lambda: loop.run_until_complete(many(1)), "8": lambda: loop.run_until_complete(many(8))}
    seconds = paired(arms, 8)
    scale = 8 * ratio(seconds, "1", "8")
    shares = []
    for _ in range(3):
        started = time.perf_counter()
        loop.run_until_complete(many(8))
        shares.append(800 / (time.perf_counter() - started) / _pgbench(server))
    share = statistics.median(shares)
    reached = scale >= 4 or share >= 0.7
    report("PostgreSQL: 8 async writers against one, pool of 8", f"{scale:.1f}x", ">= 4x, or", reached)
    report("  against pgbench with as many statements", f"{share:.2f}x", ">= 0.7x", reached)
    loop.run_until_complete(engine.close())
    loop.close()


def _pgbench(server: servers.PostgresServer) -> float:
    """Return how many transactions like a put eight clients of pgbench make in a second."""
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS lines, rows")
        connection.execute("CREATE TABLE lines (id int PRIMARY KEY, n bigint)")
        connection.execute("INSERT INTO lines SELECT g, 0 FROM generate_series(1, 8) g")
        connection.execute("CREATE TABLE rows (id bigserial PRIMARY KEY, body bytea)")
    script = server.folder / "put.sql"
    script.write_text(_LIKE_A_PUT)
    arguments = ["-n", "-f", str(script), "-c", "8", "-j", "2", "-T", "2", server.url]
    done = subprocess.run([server.program("pgbench"), *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.split("tps = ")[1].split()[0])


def _round_trips(name: str, server: Any) -> None:
    """Count on the wire, at steady state."""
    with Proxy(server.port) as proxy:
        engine = everstep.open(server.url_at(proxy.port), KEEP_ALL).sync
        for n in range(3):
            engine.append("r", [{"role": "user", "content": str(n)}])
        calls: dict[str, Callable[[], Any]] = {
            "snapshot": lambda: engine.snapshot("r", [{"role": "user", "content": str(time.time_ns())}], {}, {}),
            "append": lambda: engine.append("r", [message()]),
            "get_latest": lambda: engine.get_latest("r"),
        }
        for what, call in calls.items():
            call()
            before = proxy.counts
            for _ in range(10):
                call()
            trips = (proxy.counts - before).round_trips / 10
            report(f"{name}: round trips per {what}", f"{trips:.1f}", "1", trips == 1)
        engine.close()
