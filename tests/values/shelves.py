"""Objects in memory, and walks over them."""

from __future__ import annotations

from typing import Any

from everstep.repository.repository import packed_whole
from everstep.values import tree, walk


class Shelf:
    """Objects of some checkpoints, and how often they were asked for."""

    def __init__(self) -> None:
        self.objects: dict[bytes, tree.Content] = {}
        self.asked = self.trips = 0

    def root(
        self, messages: Any = (), state: Any = None, tools_result: Any = None, *, whole: bool = False
    ) -> walk.Root:
        fields = [list(messages), {} if state is None else state, {} if tools_result is None else tools_result]
        writer = tree.Writer(objects=self.objects)
        nodes = [writer.whole(packed_whole(fields))] if whole else written(writer, fields)
        return walk.Root(
            b"".join(n.children for n in nodes), b"".join(n.body for n in nodes), tuple(n.size for n in nodes)
        )

    def run(self, need: walk.Need[Any]) -> Any:
        """Answer what is asked; nothing may be asked for twice."""
        self.asked = self.trips = 0
        seen: set[bytes] = set()
        try:
            wanted = next(need)
            while True:
                assert wanted
                assert not seen & set(wanted)
                seen |= set(wanted)
                self.asked, self.trips = len(seen), self.trips + 1
                wanted = need.send({key: self.objects[key] for key in wanted if key in self.objects})
        except StopIteration as done:
            return done.value


def written(writer: tree.Writer, fields: list[Any]) -> list[tree.Node]:
    return [
        writer.list_node(fields[0], "messages"),
        writer.value(fields[1], "state"),
        writer.value(fields[2], "tools_result"),
    ]
