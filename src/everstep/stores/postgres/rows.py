"""All that is done to the tables, as one class: asked, read, changed, removed. Each has a file of its own."""

from __future__ import annotations

from everstep.stores.postgres.removing import Removing


class Rows(Removing):
    """The tables, inside one transaction of one connection."""
