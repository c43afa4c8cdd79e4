"""Two continuations of one conversation woven into one: which messages stand where. Pure; used by merge.

The result is a row of slots: what is in all three lists stays closed; every other slot says what base, ours and theirs
have there, and merge decides what becomes of it. New messages stand where they were added, ours before theirs.

What a maintainer would get wrong: a tool's result must follow its call. A model refuses a conversation in which
another message stands between them, so what the other side added there moves behind the result.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from everstep.history.message_facts import Facts, Name, facts_of, name_path, unique_names
from everstep.values.tree import Node, Part
from everstep.values.walk import Items, Need, Walker, stretches, together

Origin = Literal["base", "ours", "theirs", "both"]


@dataclass(eq=False)
class Slot:
    """A place in the merged conversation, and what stands there on each side."""

    origin: Origin
    """Where the message came into the conversation."""
    base: Node | None = None
    ours: Node | None = None
    theirs: Node | None = None
    group: Part | None = None
    """A closed group of messages, the same on all sides."""
    clean: bool = False
    """Whether it is the same on all sides."""
    path: str = "messages"
    clash: bool = False
    """Whether it is a conflict, whatever the values are."""
    facts: Facts | None = None
    """None: not looked at yet."""
    call: Slot | None = None
    """For the result of a call that the other side dropped: the slot of the call, which is in conflict."""


class Woven(NamedTuple):
    """A merged conversation."""

    slots: list[Slot]
    ours: Items
    replaced: list[Node]
    """The messages of ours that are not `clean` in `slots`: they come from there, or not at all."""


class _Side(NamedTuple):
    """What one side made of the base."""

    items: Items
    facts: dict[int, Facts]
    names: dict[int, Name]
    kept: dict[int, int]
    """Places in the base -> places here, for messages that are still there, edited or not."""
    added: dict[int, list[int]]
    """Places of new messages, by the place in the base that they follow (-1: none)."""

    def node(self, base_place: int) -> Node | None:
        place = self.kept.get(base_place)
        return None if place is None else self.items.parts[place].node

    def all_added(self) -> list[int]:
        return list(itertools.chain(*self.added.values()))


def weave(walker: Walker, base: Items, ours: Items, theirs: Items, *, all_paths: bool) -> Need[Woven | None]:
    """Return the conversation with what both sides did to it; None if a side changed the order of messages.

    To know the index of a message may cost objects: unless `all_paths`, only slots that may conflict have a path.
    """
    lists, matches = yield from walker.align(base, ours, theirs)
    base, ours, theirs = lists
    clean = matches[0].keys() & matches[1].keys()
    known = [clean, set(matches[0].values()), set(matches[1].values())]
    facts = yield from together([_loose_facts(walker, *both) for both in zip(lists, known, strict=True)])
    names = unique_names(facts)
    sides = [_side(lists[n], facts[n], names[n], matches[n - 1], len(base.parts), names[0]) for n in (1, 2)]
    if sides[0] is None or sides[1] is None:
        return None
    weaver = _Weaver(base, facts[0], names[0], frozenset(clean), sides[0], sides[1])
    slots = weaver.slots()
    yield from weaver.name_the_nameless(walker, all_paths)
    stays = {matches[0][place] for place in clean}
    replaced = [part.node for place, part in enumerate(ours.parts) if place not in stays]
    return Woven((yield from _results_to_calls(walker, slots)), ours, replaced)


def _loose_facts(walker: Walker, items: Items, known: Collection[int]) -> Need[dict[int, Facts]]:
    places = [place for place in range(len(items.parts)) if place not in known]
    found = yield from together([facts_of(walker, items.parts[place].node) for place in places])
    return dict(zip(places, found, strict=True))


def _side(
    items: Items,
    facts: dict[int, Facts],
    names: dict[int, Name],
    matches: dict[int, int],
    base_length: int,
    base_names: dict[int, Name],
) -> _Side | None:
    """Find the messages of the base on a side: by content, by name, by place; None if they changed their order."""
    kept = matches | _matches_by_name(names, matches, base_names)
    kept = dict(sorted(kept.items()))
    if list(kept.values()) != sorted(kept.values()):
        return None
    # As many nameless messages on both sides of a stretch are the same ones, edited.
    for a, b in stretches(kept, base_length, len(items.parts)):
        if len(a) == len(b) and base_names.keys().isdisjoint(a) and names.keys().isdisjoint(b):
            kept.update(zip(a, b, strict=True))
    added = _added(kept, base_length, len(items.parts))
    return _Side(items, facts, names, kept, added)


def _matches_by_name(names: dict[int, Name], matches: dict[int, int], base_names: dict[int, Name]) -> dict[int, int]:
    """Return where messages of the base are on a side, if they have a name and are not matched yet."""
    taken = set(matches.values())
    free = {name: place for place, name in names.items() if place not in taken}
    found: dict[int, int] = {}
    for base_place, name in base_names.items():
        if base_place not in matches and name in free:
            found[base_place] = free[name]
    return found


def _added(kept: dict[int, int], base_length: int, length: int) -> dict[int, list[int]]:
    """Return what is new on a side, by the place in the base after which it stands; -1: before all of them."""
    base_place_of = {place: base_place for base_place, place in kept.items()}
    added: dict[int, list[int]] = defaultdict(list)
    last = -1
    for place in range(length):
        if place in base_place_of:
            last = base_place_of[place]
        else:
            added[last].append(place)
    if last in added and last < base_length - 1:
        # What stands at the end is new after all of the base, also if the base's own end was removed.
        added[base_length - 1] = added.pop(last)
    return added


class _Weaver:
    """Puts the slots in a row, before what stands between calls and results is moved."""

    def __init__(
        self,
        base: Items,
        facts: dict[int, Facts],
        names: dict[int, Name],
        clean: frozenset[int],
        ours: _Side,
        theirs: _Side,
    ) -> None:
        self.base = base
        self.facts = facts
        self.names = names
        self.clean = clean
        self.ours = ours
        self.theirs = theirs
        self.kept = [self._kept(place) for place in range(len(base.parts))]
        self.twins = _twins(ours, theirs)
        self.gone = {"ours": self._gone(ours), "theirs": self._gone(theirs)}

    def slots(self) -> list[Slot]:
        twins = set(self.twins.values())
        slots: list[Slot] = []
        for place in range(-1, len(self.base.parts)):
            slots.extend(self.kept[place : place + 1] if place >= 0 else [])
            slots.extend(self._from_ours(new) for new in self.ours.added.get(place, ()))
            fresh = [new for new in self.theirs.added.get(place, ()) if new not in twins]
            slots.extend(self._from_one("theirs", new) for new in fresh)
        return slots

    def name_the_nameless(self, walker: Walker, all_paths: bool) -> Need[None]:
        """Give messages of the base that may be in conflict the path of their index, if they have no id."""
        places = [
            place
            for place, slot in enumerate(self.kept)
            if slot.path == "messages"
            and slot.ours != slot.theirs
            and (all_paths or slot.clash or slot.base not in (slot.ours, slot.theirs))
        ]
        for place, index in (yield from walker.positions(self.base, places)).items():
            self.kept[place].path = f"messages[{index}]"

    def _kept(self, place: int) -> Slot:
        """Return what became of a part of the base."""
        part = self.base.parts[place]
        if place in self.clean:
            group = part if part.level else None
            return Slot("base", part.node, part.node, part.node, group, clean=True)
        seen = [side.facts[side.kept[place]] for side in (self.ours, self.theirs) if side.kept.get(place) in side.facts]
        calls = frozenset[str | int]().union(*(facts.calls for facts in seen or [self.facts[place]]))
        slot = Slot("base", part.node, self.ours.node(place), self.theirs.node(place), facts=Facts(calls=calls))
        name = self.names.get(place)
        if name is not None and name[0] == "id":
            slot.path = name_path(name)
        return slot

    def _gone(self, side: _Side) -> frozenset[str | int]:
        """Return the tool calls of the base that this side no longer has."""
        changed = [facts for place, facts in self.facts.items() if side.node(place) != self.base.parts[place].node]
        made = {call for facts in side.facts.values() for call in facts.calls}
        return frozenset(call for facts in changed for call in facts.calls if call not in made)

    def _from_ours(self, place: int) -> Slot:
        if place not in self.twins:
            return self._from_one("ours", place)
        ours = self.ours.items.parts[place].node
        theirs = self.theirs.items.parts[self.twins[place]].node
        slot = Slot("both", None, ours, theirs, clash=ours != theirs, facts=self.ours.facts[place])
        name = self.ours.names.get(place)
        if name is not None and name == self.theirs.names.get(self.twins[place]):
            slot.path = name_path(name)
        elif ours != theirs:
            slot.path = name_path(("tool_call_id", _common_answer(self.ours, place, self.theirs, self.twins[place])))
        return slot

    def _from_one(self, origin: Literal["ours", "theirs"], place: int) -> Slot:
        side, other = (self.ours, "theirs") if origin == "ours" else (self.theirs, "ours")
        node = side.items.parts[place].node
        facts = side.facts[place]
        slot = Slot(origin, ours=node, facts=facts) if origin == "ours" else Slot(origin, theirs=node, facts=facts)
        lost = {call for call in facts.answers if call in self.gone[other] and call not in self.gone[origin]}
        if lost:  # the other side dropped a call that was answered here: whether it stays is a conflict
            slot.call = next(self.kept[at] for at, known in self.facts.items() if not known.calls.isdisjoint(lost))
            slot.call.clash = True
        name = side.names.get(place)
        if name is not None:
            slot.path = name_path(name)
        return slot


def _twins(ours: _Side, theirs: _Side) -> dict[int, int]:
    """Return new messages that are the same on both sides, ours -> theirs: at one place, by name, or by their call."""
    found = _equal_additions(ours, theirs)
    taken = set(found.values())
    free = [place for place in theirs.all_added() if place not in taken]
    by_name = {theirs.names[place]: place for place in free if place in theirs.names}
    by_call: dict[str | int, int] = {}
    for place in free:
        for call in theirs.facts[place].answers:
            by_call.setdefault(call, place)

    for mine in ours.all_added():
        if mine in found:
            continue
        name = ours.names.get(mine)
        candidates = [by_name[name]] if name in by_name else []
        candidates += [by_call[call] for call in ours.facts[mine].answers if call in by_call]
        twin = next((place for place in candidates if place not in taken), None)
        if twin is not None:
            found[mine] = twin
            taken.add(twin)
    return found


def _equal_additions(ours: _Side, theirs: _Side) -> dict[int, int]:
    """Return what both sides have added at the same place, as far as it is equal."""
    found: dict[int, int] = {}
    for anchor, places in ours.added.items():
        for mine, other in zip(places, theirs.added.get(anchor, ()), strict=False):
            if ours.items.parts[mine].node != theirs.items.parts[other].node:
                break
            found[mine] = other
    return found


def _common_answer(ours: _Side, mine: int, theirs: _Side, other: int) -> str | int:
    return next(call for call in ours.facts[mine].answers if call in theirs.facts[other].answers)


# -- calls and results -------------------------------------------------------------------------------------------------


def _results_to_calls(walker: Walker, slots: list[Slot]) -> Need[list[Slot]]:
    """Move what the other side added between a call and its result behind the result."""
    for slot in [slot for slot in slots if slot.origin in ("ours", "theirs") and slot.facts and slot.facts.answers]:
        if _undisturbed(slots, slot) or not _foreign(slots, slot):
            continue
        call_at = yield from _call_at(walker, slots, slot)
        moved = _unrelated(slots, [place for place in _foreign(slots, slot) if place > call_at])
        at = slots.index(slot)
        stay = [slots[place] for place in range(at) if place not in moved]
        slots = [*stay, slot, *(slots[place] for place in sorted(moved)), *slots[at + 1 :]]
    return slots


def _undisturbed(slots: list[Slot], slot: Slot) -> bool:
    """Whether the calls are in sight, with nothing between that the other side added: the usual case, and cheap."""
    wanted = set((slot.facts or Facts()).answers)
    for place in range(slots.index(slot) - 1, -1, -1):
        seen = slots[place]
        if seen.facts is None or seen.origin not in ("base", "both", slot.origin):
            return False
        wanted -= seen.facts.calls
        if not wanted:
            return True
    return False


def _foreign(slots: list[Slot], slot: Slot) -> list[int]:
    """Return the places before `slot` of what the other side alone added."""
    other = "theirs" if slot.origin == "ours" else "ours"
    return [place for place in range(slots.index(slot)) if slots[place].origin == other]


def _unrelated(slots: list[Slot], places: list[int]) -> set[int]:
    """Return the places but for those of results to calls that stand before all of them: these may stay."""
    made: set[str | int] = set()
    found: set[int] = set()
    for place in places:
        facts = slots[place].facts or Facts()
        made |= facts.calls
        if not facts.answers or any(call in made for call in facts.answers):
            found.add(place)
    return found


def _call_at(walker: Walker, slots: list[Slot], answer: Slot) -> Need[int]:
    """Return where the calls that `answer` is for begin; if that is before all foreign messages, any place there."""
    first = _foreign(slots, answer)[0]
    wanted = set((answer.facts or Facts()).answers)
    at = slots.index(answer)
    step = 8
    while at > first:
        at -= 1
        if slots[at].group is not None:
            at += yield from _open(walker, slots, at)
        if slots[at].facts is None:
            yield from _look(walker, slots[max(first, at - step + 1) : at + 1])
            step *= 2
        calls = (slots[at].facts or Facts()).calls
        wanted -= calls
        if calls and not wanted:
            return at
    return first - 1


def _open(walker: Walker, slots: list[Slot], at: int) -> Need[int]:
    """Put what is in a closed group in its place, down to its last message; return how far away that is now."""
    start = at
    group = slots[at].group
    while group is not None:
        yield from walker.want([group.node.children])
        parts = walker.group(group)
        slots[at : at + 1] = [
            Slot("base", part.node, part.node, part.node, part if part.level else None, clean=True) for part in parts
        ]
        at += len(parts) - 1
        group = slots[at].group
    return at - start


def _look(walker: Walker, slots: list[Slot]) -> Need[None]:
    """Look at the last messages in a row that nobody has changed or looked at; stop at a closed group."""
    unread: list[Slot] = []
    for slot in reversed(slots):
        if slot.group is not None:
            break
        if slot.facts is None and slot.base is not None:
            unread.append(slot)
    found = yield from together([facts_of(walker, slot.base) for slot in unread if slot.base is not None])
    for slot, facts in zip(unread, found, strict=True):
        slot.facts = facts
