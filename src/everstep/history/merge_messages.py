"""Two continuations of one conversation woven into one: which message comes where. Pure; used by merge.

The result is a row of slots: what is in all three lists stays closed; every other slot says what base, ours and theirs
have there, and merge decides what becomes of it. New messages are put where they were added, ours before theirs.

What a maintainer would get wrong: a tool's result must follow its call. A model refuses a conversation in which
another message is between them, so what the other side added there moves behind the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from everstep.history.message_facts import Facts, Name, facts_of, name_path, unique_names
from everstep.values.tree import Node, Part
from everstep.values.walk import Items, Need, Walker, stretches, together

Origin = Literal["base", "ours", "theirs", "both"]


@dataclass(eq=False)
class Slot:
    """A place in the merged conversation, and what each side has there."""

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

    @property
    def calls(self) -> frozenset[str | int]:
        """The tool calls that the message is known to make."""
        return self.facts.calls if self.facts is not None else frozenset()

    @property
    def answers(self) -> tuple[str | int, ...]:
        """The tool calls whose results the message is known to hold."""
        if self.facts is None:
            return ()
        return self.facts.answers


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
        """Return what a message of the base has become here, if it is still there."""
        place = self.kept.get(base_place)
        return self.items.parts[place].node if place is not None else None

    def all_added(self) -> list[int]:
        return list(chain.from_iterable(self.added.values()))


def weave(walker: Walker, base: Items, ours: Items, theirs: Items, *, all_paths: bool) -> Need[Woven | None]:
    """Return the conversation with what both sides did to it; None if a side changed the order of messages.

    To know the index of a message may cost objects: unless `all_paths`, only slots that may conflict have a path.
    """
    lists, (to_ours, to_theirs) = yield from walker.align(base, ours, theirs)
    base, ours, theirs = lists
    clean = to_ours.keys() & to_theirs.keys()
    facts = yield from together(
        [
            _loose_facts(walker, base, clean),
            _loose_facts(walker, ours, set(to_ours.values())),
            _loose_facts(walker, theirs, set(to_theirs.values())),
        ]
    )
    names = unique_names(facts)
    length = len(base.parts)
    our_side = _side(ours, facts[1], names[1], to_ours, length, names[0])
    their_side = _side(theirs, facts[2], names[2], to_theirs, length, names[0])
    if our_side is None or their_side is None:
        return None
    weaver = _Weaver(base, facts[0], names[0], frozenset(clean), our_side, their_side)
    slots = weaver.slots()
    yield from weaver.name_the_nameless(walker, all_paths)
    stays = {to_ours[place] for place in clean}
    replaced = [part.node for place, part in enumerate(ours.parts) if place not in stays]
    slots = yield from _results_to_calls(walker, slots)
    return Woven(slots, ours, replaced)


def _loose_facts(walker: Walker, items: Items, known: Collection[int]) -> Need[dict[int, Facts]]:
    """Look into the messages that are not known to be the same elsewhere."""
    places: list[int] = []
    needs: list[Need[Facts]] = []
    for place, part in enumerate(items.parts):
        if place not in known:
            places.append(place)
            needs.append(facts_of(walker, part.node))
    found = yield from together(needs)
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
    # By content first: what is equal needs no name, and a name may be used twice.
    kept = matches | _matches_by_name(names, matches, base_names)
    kept = dict(sorted(kept.items()))
    # Where messages changed places, nothing tells between which of them a new one belongs.
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
    """Return what is new on a side, by the place in the base after which it comes; -1: before all of them."""
    base_place_of = {place: base_place for base_place, place in kept.items()}
    added: dict[int, list[int]] = defaultdict(list)
    last = -1
    for place in range(length):
        if place in base_place_of:
            last = base_place_of[place]
        else:
            added[last].append(place)
    if last in added and last < base_length - 1:
        # What comes at the end is new after all of the base, also if the base's own end was removed.
        added[base_length - 1] = added.pop(last)
    return added


class _Weaver:
    """Puts the slots in a row, before what is between calls and results is moved."""

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
        # These first: what is found out about twins and calls refers to the slots of the base.
        self.kept = [self._kept(place) for place in range(len(base.parts))]
        self.twins = _twins(ours, theirs)
        self.their_twins = set(self.twins.values())
        self.gone = {"ours": self._gone(ours), "theirs": self._gone(theirs)}

    def slots(self) -> list[Slot]:
        """Return all slots: each message of the base, and behind it what ours and then theirs added there."""
        slots = self._added_after(-1)  # before the first message of the base
        for place, slot in enumerate(self.kept):
            slots.append(slot)
            slots += self._added_after(place)
        return slots

    def _added_after(self, place: int) -> list[Slot]:
        slots: list[Slot] = []
        for new in self.ours.added.get(place, ()):
            slots.append(self._from_ours(new))
        for new in self.theirs.added.get(place, ()):
            if new not in self.their_twins:  # it is in the slot of ours already
                slots.append(self._from_one("theirs", new))
        return slots

    def name_the_nameless(self, walker: Walker, all_paths: bool) -> Need[None]:
        """Give messages of the base that may be in conflict the path of their index, if they have no id."""
        places: list[int] = []
        for place, slot in enumerate(self.kept):
            if slot.path != "messages" or slot.ours == slot.theirs:
                continue
            did_both_change = slot.base not in (slot.ours, slot.theirs)
            if all_paths or slot.clash or did_both_change:
                places.append(place)
        for place, index in (yield from walker.positions(self.base, places)).items():
            self.kept[place].path = f"messages[{index}]"

    def _kept(self, place: int) -> Slot:
        """Return what became of a part of the base."""
        part = self.base.parts[place]
        if place in self.clean:
            return _clean_slot(part)
        facts = Facts(calls=self._calls(place))
        slot = Slot("base", part.node, self.ours.node(place), self.theirs.node(place), facts=facts)
        name = self.names.get(place)
        if name is not None and name[0] == "id":
            slot.path = name_path(name)
        return slot

    def _calls(self, place: int) -> frozenset[str | int]:
        """Return the tool calls that a message of the base makes now, on one side or the other."""
        seen: list[Facts] = []
        for side in (self.ours, self.theirs):
            at = side.kept.get(place)
            if at in side.facts:
                seen.append(side.facts[at])
        # Each side has removed it or left it as it was, so its calls are as in the base.
        if not seen:
            return self.facts[place].calls
        return _all_calls(seen)

    def _gone(self, side: _Side) -> frozenset[str | int]:
        """Return the tool calls of the base that this side no longer has."""
        changed: list[Facts] = []
        for place, facts in self.facts.items():
            if side.node(place) != self.base.parts[place].node:
                changed.append(facts)
        return _all_calls(changed) - _all_calls(side.facts.values())

    def _from_ours(self, place: int) -> Slot:
        if place not in self.twins:
            return self._from_one("ours", place)
        ours = self.ours.items.parts[place].node
        theirs = self.theirs.items.parts[self.twins[place]].node
        # The same message by name or by call, with another content, has no base to settle it.
        slot = Slot("both", None, ours, theirs, clash=ours != theirs, facts=self.ours.facts[place])
        name = self.ours.names.get(place)
        if name is not None and name == self.theirs.names.get(self.twins[place]):
            slot.path = name_path(name)
        elif ours != theirs:
            slot.path = name_path(("tool_call_id", _common_answer(self.ours, place, self.theirs, self.twins[place])))
        return slot

    def _from_one(self, origin: Literal["ours", "theirs"], place: int) -> Slot:
        """Return a message that only one side added."""
        if origin == "ours":
            side = self.ours
            slot = Slot(origin, ours=side.items.parts[place].node, facts=side.facts[place])
        else:
            side = self.theirs
            slot = Slot(origin, theirs=side.items.parts[place].node, facts=side.facts[place])
        lost = (self.gone[_other(origin)] - self.gone[origin]).intersection(slot.answers)
        # The other side has dropped a call that was answered here, so whether the pair stays is a conflict.
        if lost:
            slot.call = self._slot_of_call(lost)
            slot.call.clash = True
        name = side.names.get(place)
        if name is not None:
            slot.path = name_path(name)
        return slot

    def _slot_of_call(self, calls: Collection[str | int]) -> Slot:
        """Return the message of the base that made the first of these calls."""
        return next(self.kept[place] for place, facts in self.facts.items() if not facts.calls.isdisjoint(calls))


def _clean_slot(part: Part) -> Slot:
    """Return the slot of a message, or of a group of messages, that is the same on all sides."""
    slot = Slot("base", part.node, part.node, part.node, clean=True)
    if part.level:
        slot.group = part
    return slot


def _other(origin: Origin) -> Origin:
    return "theirs" if origin == "ours" else "ours"


def _all_calls(seen: Iterable[Facts]) -> frozenset[str | int]:
    return frozenset(chain.from_iterable(facts.calls for facts in seen))


def _twins(ours: _Side, theirs: _Side) -> dict[int, int]:
    """Return new messages that are the same on both sides, ours -> theirs: at one place, by name, or by their call."""
    found = _equal_additions(ours, theirs)
    taken = set(found.values())
    # One dict holds both names and calls: a name is a pair and a call is not, so they cannot be mistaken.
    theirs_by: dict[Name | str | int, int] = {}
    for place in theirs.all_added():
        if place in taken:
            continue
        if place in theirs.names:
            theirs_by[theirs.names[place]] = place
        for call in theirs.facts[place].answers:
            theirs_by.setdefault(call, place)

    for mine in ours.all_added():
        if mine in found:
            continue
        for known_by in _known_by(ours, mine):
            twin = theirs_by.get(known_by)
            if twin is not None and twin not in taken:
                found[mine] = twin
                taken.add(twin)
                break
    return found


def _known_by(side: _Side, place: int) -> list[Name | str | int]:
    """Return what a message may be recognized by on the other side: its name first, then the calls it answers."""
    known: list[Name | str | int] = list(side.facts[place].answers)
    if place in side.names:
        known.insert(0, side.names[place])
    return known


def _equal_additions(ours: _Side, theirs: _Side) -> dict[int, int]:
    """Return what both sides have added at the same place, as far as it is equal."""
    found: dict[int, int] = {}
    for anchor, places in ours.added.items():
        for mine, other in zip(places, theirs.added.get(anchor, ()), strict=False):
            # Only what both began with: an equal message further down may be said twice on purpose.
            if ours.items.parts[mine].node != theirs.items.parts[other].node:
                break
            found[mine] = other
    return found


def _common_answer(ours: _Side, mine: int, theirs: _Side, other: int) -> str | int:
    return next(call for call in ours.facts[mine].answers if call in theirs.facts[other].answers)


# -- calls and results -------------------------------------------------------------------------------------------------


def _results_to_calls(walker: Walker, slots: list[Slot]) -> Need[list[Slot]]:
    """Move what the other side added between a call and its result behind the result."""
    # A copy, since what is moved changes the list while it is walked through.
    for slot in list(slots):
        is_result = slot.origin in ("ours", "theirs") and slot.answers
        if not is_result or _undisturbed(slots, slot) or not _foreign(slots, slot):
            continue
        call_at = yield from _call_at(walker, slots, slot)
        between = [place for place in _foreign(slots, slot) if place > call_at]
        slots = _moved_behind(slots, slot, _unrelated(slots, between))
    return slots


def _moved_behind(slots: list[Slot], result: Slot, places: set[int]) -> list[Slot]:
    """Return the slots with those at `places`, which are before `result`, behind it. All keep their order."""
    at = slots.index(result)
    before: list[Slot] = []
    moved: list[Slot] = []
    for place, slot in enumerate(slots[:at]):
        if place in places:
            moved.append(slot)
        else:
            before.append(slot)
    return [*before, result, *moved, *slots[at + 1 :]]


def _undisturbed(slots: list[Slot], slot: Slot) -> bool:
    """Whether the calls are in sight, with nothing between that the other side added: the usual case, and cheap."""
    wanted = set(slot.answers)
    # From the result upwards: a call usually comes just before its result.
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
    other = _other(slot.origin)
    return [place for place in range(slots.index(slot)) if slots[place].origin == other]


def _unrelated(slots: list[Slot], places: list[int]) -> set[int]:
    """Return the places without those results whose calls come before all of them: these may stay."""
    made: set[str | int] = set()
    found: set[int] = set()
    for place in places:
        answers = slots[place].answers
        made |= slots[place].calls
        if not answers or not made.isdisjoint(answers):
            found.add(place)
    return found


def _call_at(walker: Walker, slots: list[Slot], answer: Slot) -> Need[int]:
    """Return where the calls that `answer` is for begin; if that is before all foreign messages, any place there."""
    first = _foreign(slots, answer)[0]
    wanted = set(answer.answers)
    at = slots.index(answer)
    step = 8
    while at > first:
        at -= 1
        if slots[at].group is not None:
            at += yield from _open(walker, slots, at)
        if slots[at].facts is None:
            # Each look costs a reading, so it takes in more and more messages.
            yield from _look(walker, slots[max(first, at - step + 1) : at + 1])
            step *= 2
        calls = slots[at].calls
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
        slots[at : at + 1] = map(_clean_slot, parts)
        at += len(parts) - 1
        group = slots[at].group
    return at - start


def _look(walker: Walker, slots: list[Slot]) -> Need[None]:
    """Look at the last messages in a row that nobody has changed or looked at; stop at a closed group."""
    unread: list[Slot] = []
    needs: list[Need[Facts]] = []
    for slot in reversed(slots):
        if slot.group is not None:
            break
        if slot.facts is None and slot.base is not None:
            unread.append(slot)
            needs.append(facts_of(walker, slot.base))
    found = yield from together(needs)
    for slot, facts in zip(unread, found, strict=True):
        slot.facts = facts
