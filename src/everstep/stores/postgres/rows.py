"""All that is done to the tables, as one class: asked, read, changed, removed, taken over. Each has its own file."""

from __future__ import annotations

from everstep.stores.postgres.adopt import Adopting


class Rows(Adopting):
    """The tables, inside one transaction of one connection."""
