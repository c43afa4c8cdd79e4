"""The tables, made and brought up to date; whether the server is one that keeps its promises."""

from __future__ import annotations

from importlib import resources

import psycopg

from everstep.errors import StoreMismatch
from everstep.stores.postgres.asking import Tables
from everstep.stores.postgres.pool import Connection

# Tables of earlier versions were never released, so there is nothing to bring up from them.
SCHEMA_FIRST = 13
SCHEMA_VERSION = 14
SERVER_VERSION_MIN = 14
# Any number will do, as long as it is the same for everybody.
_MIGRATION_LOCK = 0x45565354
_LOSSES = {
    "synchronous_commit": "a crash of the server may lose the checkpoints of its last moments",
    "fsync": "a crash of its machine may lose or damage everything",
    "full_page_writes": "a crash of its machine may damage everything",
}


def check_server(connection: Connection) -> str:
    """Refuse a server that will not do. Return what one may lose that acknowledges too early; mostly nothing."""
    names = ("server_version_num", "default_transaction_isolation", *_LOSSES)
    asked = ", ".join(f"current_setting('{name}')" for name in names)
    version, isolation, *settings = connection.execute(f"SELECT {asked}".encode()).fetchone() or ("0", "")
    if int(version) // 10_000 < SERVER_VERSION_MIN:
        raise StoreMismatch(f"PostgreSQL {int(version) // 10_000} is too old; {SERVER_VERSION_MIN} or newer is needed")
    # What others committed while a lock was waited for must be seen.
    if isolation != "read committed":
        raise StoreMismatch(
            f"default_transaction_isolation is {isolation!r} here, 'read committed' is needed; for example: "
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
        )
    losses: list[str] = []
    for (name, loss), value in zip(_LOSSES.items(), settings, strict=True):
        if value == "off":
            losses.append(f"{name} is off: {loss}")
    return "; ".join(losses)


def migrate(connection: Connection, tables: Tables, schema: str | None) -> None:
    """Bring the tables up to date; several processes may try at once."""
    version = _version(connection, tables)
    if version == SCHEMA_VERSION:
        return
    if version > SCHEMA_VERSION:
        raise StoreMismatch(
            f"the tables were made by a newer Everstep: their schema is {version}, this one knows "
            f"{SCHEMA_VERSION}; upgrade everstep"
        )
    if 0 < version < SCHEMA_FIRST:
        raise StoreMismatch(
            f"the tables were made by a version before the first release: their schema is {version}, which is not "
            "read any more; give the store another schema or table_prefix"
        )
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        if schema is not None and not _has_schema(connection, schema):
            connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(schema)))
        for number in range(max(_version(connection, tables) + 1, SCHEMA_FIRST), SCHEMA_VERSION + 1):
            text = resources.files("everstep.stores.postgres").joinpath(f"sql/postgres-{number}.sql").read_text()
            connection.execute(tables(text).encode(), prepare=False)  # several commands
        connection.execute(tables("UPDATE {meta} SET version = %s"), (SCHEMA_VERSION,))


def _has_schema(connection: Connection, schema: str) -> bool:
    return connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is not None


def _version(connection: Connection, tables: Tables) -> int:
    """Return the version of the tables; 0: there are none."""
    # Naming a table makes the server look at what others have done to the schema since; without one it may answer
    # from before this transaction waited for its lock.
    query = "SELECT to_regclass(%s) FROM pg_catalog.pg_class LIMIT 1"
    if connection.execute(query, (tables("{meta}"),)).fetchone() == (None,):
        return 0
    row = connection.execute(tables("SELECT version FROM {meta}")).fetchone()
    return int(row[0]) if row is not None else 0
