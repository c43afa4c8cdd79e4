"""How rows are asked for: statements with the names of a schema filled in, and as few round trips as can be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Cursor, sql

from everstep.errors import InvalidInput
from everstep.runtime import checks
from everstep.stores.postgres.pool import Connection

TABLES = (
    "meta", "numbers", "families", "names", "threads", "shared_states", "lines", "segments", "checkpoints", "objects",
    "writes",
    "operations", "hidden", "covers", "cover_rest", "cover", "uncover_all", "uncover",
    "gone", "packed", "guard", "alone", "below", "keep", "put", "sealed", "begin", "branch", "attach", "is_followed",
    "stretches", "unswept", "item", "readable", "told", "overview", "load", "origin", "whole",
)  # fmt: skip
Values = Sequence[Any] | Mapping[str, Any]
_CHOICES = re.compile(r"\b(WHERE|JOIN|ORDER|GROUP|LIMIT|UPDATE|DELETE|count)\b")
"""Words of statements that can be done in more than one way."""


class Tables:
    """The SQL texts with the names of one schema and prefix filled in."""

    def __init__(self, schema: str | None, prefix: str) -> None:
        for name, value, pattern, bytes_max in (
            ("schema", schema, r"[\w-]+", 63),
            ("table_prefix", prefix, r"\w*", 40),
        ):
            if value is None and name == "schema":
                continue
            # Names become part of statements. They are quoted too, but a name that needs quoting is more
            # likely a mistake.
            if not isinstance(value, str) or not re.fullmatch(pattern, value) or len(value.encode()) > bytes_max:
                raise InvalidInput(f"{name} is a name of letters, digits and _, not {checks.shown(value)}")
        place = (schema,) if schema is not None else ()
        self._names = {name: sql.Identifier(*place, prefix + name).as_string(None) for name in TABLES}
        self._texts: dict[str, str] = {}
        self._prepared: dict[str, bool | None] = {}

    def prepares(self, text: str) -> bool | None:
        """Return False for a statement that must not be prepared, None for one that is when it is used often.

        The plan of one that is prepared is kept, however much the tables grow. So there must be one way to do it only:
        a new row, or the call of a function.
        """
        if text not in self._prepared:
            self._prepared[text] = False if _CHOICES.search(text) else None
        return self._prepared[text]

    def __call__(self, text: str) -> str:
        # Remembered: to fill in thirty names takes longer than many a statement.
        filled = self._texts.get(text)
        if filled is None:
            filled = text
            for name, quoted in self._names.items():
                filled = filled.replace("{" + name + "}", quoted)
            self._texts[text] = filled
        return filled


class Asking:
    """The tables, inside one transaction of one connection.

    What only changes rows waits until something is asked, or until the commit, and is sent together with that: a change
    takes as many round trips as it asks questions, however many rows it touches.
    """

    def __init__(self, connection: Connection, tables: Tables) -> None:
        self.connection = connection
        self._tables = tables
        self._unsent: list[tuple[str, Values]] = []

    def begin(self, mode: str = "") -> None:
        """Begin a transaction. Nothing is sent for it alone."""
        self._do(f"BEGIN {mode}")

    def commit(self) -> None:
        """Commit the transaction, together with what waits to be sent."""
        self._ask("COMMIT")

    def send(self) -> None:
        """Send what waits, for whoever uses the connection directly."""
        if self._unsent:
            self._ask("SELECT")

    def _do(self, text: str, values: Values = ()) -> None:
        """Run a statement that nobody waits for; an error comes out when it is sent."""
        self._unsent.append((text, values))

    def _ask(self, text: str, values: Values = ()) -> Cursor[Any]:
        """Run a statement, after those that were not sent yet, in one round trip."""
        # Nothing waits, so that a pipeline would only cost time.
        if not self._unsent:
            return self._execute(text, values, is_asked=True)
        return self._ask_together([(text, values)])[0]

    def _ask_together(self, asked: Sequence[tuple[str, Values]]) -> list[Cursor[Any]]:
        """Run statements, after those that were not sent yet, in one round trip."""
        # Taken out first: what has failed must not be sent again with the next statement.
        unsent = self._unsent
        self._unsent = []
        with self.connection.in_one_go():
            for text, values in unsent:
                self._execute(text, values, is_asked=False)
            return [self._execute(text, values, is_asked=True) for text, values in asked]

    def _execute(self, text: str, values: Values, *, is_asked: bool) -> Cursor[Any]:
        return self.connection.execute(self._tables(text), values, prepare=self._tables.prepares(text), binary=is_asked)

    def _all(self, text: str, values: Values = ()) -> list[Any]:
        return self._ask(text, values).fetchall()

    def _one(self, text: str, values: Values = ()) -> Any:
        return self._ask(text, values).fetchone()
