"""Classes that no import can find again, by name: those that a function defines, most of all.

Such a class is known in this process once one of its objects was saved. The function may run again and define another
class of the same name. Then nobody can say which of them a reader wants: a graph would get objects of the class of
another graph, which pydantic refuses. So where there are several, none is rebuilt, and the reader gets plain data.

Only one class is held for each name, and only so many names, so a server that defines its classes anew for every
request does not keep them all.
"""

from __future__ import annotations

from everstep.values import class_looks
from everstep.values.registry import Registered

_NAMES_MAX = 1024


class LocalClasses:
    """At most one class for each name."""

    def __init__(self) -> None:
        self._entries: dict[str, Registered | None] = {}
        """None: there are several."""

    def add(self, entry: Registered) -> None:
        """Let objects of this class be rebuilt, unless another class has the same name."""
        if entry.name not in self._entries:
            while len(self._entries) >= _NAMES_MAX:
                self._entries.pop(next(iter(self._entries)), None)
            self._entries[entry.name] = entry
            return
        held = self._entries[entry.name]
        if held is not None and held.cls is not entry.cls:
            self._entries[entry.name] = None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def get(self, name: str) -> Registered | None:
        """Return how objects of this name are rebuilt; None if that is not known, or not certain."""
        entry = self._entries.get(name)
        if entry is None or class_looks.has_newer_twin(entry.cls):
            return None
        return entry


IN_PROCESS = LocalClasses()
"""Those that any saver of this process has saved."""
