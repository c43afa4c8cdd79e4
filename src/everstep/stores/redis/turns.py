"""Turns: a writer's time to change a family while others wait for it, in line if they were passed too often."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from everstep.errors import StoreError, StoreUnavailable
from everstep.runtime.calls import tried_again
from everstep.stores.protocol import Loaded
from everstep.stores.redis.calls import encoded
from everstep.stores.redis.link import AnswerLost, Link, translated
from everstep.stores.redis.reading import Reading
from everstep.stores.waiting import Rhythm, Waiting

_TURN_SECONDS_MIN = 0.5
_TURN_FACTOR = 4
"""A turn lasts so many times longer than its work took before: others wait so long for a writer that has died."""
_LOOK_SECONDS = 0.1
"""Whoever waits for a turn is told when it is there, and looks so often in case that was lost."""
_RHYTHM = Rhythm(early=(0.0003, 0.001), late=(0.002, 0.004), late_after=0.005)
"""How often to look whether another's turn is over, before one gets in line: a near writer needs a millisecond."""
_PASSED_MAX = 6
_PASSED_SECONDS = 0.5
"""Whoever so many changes of others came before, or who has waited so long, gets in line. Sooner would be of no use: to
hand turns on in order takes longer than to take one that is free."""
_FAR_SECONDS = 0.003
"""If the quickest round trip takes longer, to look for a turn is of no use: who is far gets in line at once."""


class Turn:
    """A writer's turn to change a family while others wait."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.family = ""
        self.bucket = 0
        self.head: Loaded | None = None
        """Of the thread's own namespace, as it was when the turn began."""
        self.is_used = False
        """A change was made in it, which ended it."""

    def must_wait(self) -> None:
        """Get in line with the next look, and let others do so too: see the script."""
        self.token = f"!{self.token}"

    def take_head(self, thread_id: str, namespace: str) -> Loaded | None:
        """Return this head, once: it need not be asked for while others wait."""
        head = self.head
        if head is None or head.stored.record.key[:2] != (thread_id, namespace):
            return None
        self.head = None
        return head


class _Waiter:
    """A writer that waits for a turn: it looks again and again, and gets in line if others are faster."""

    def __init__(self, deadline: float) -> None:
        self._waiting = Waiting(_RHYTHM, deadline)
        self._began = time.monotonic()
        self._changes_before: int | None = None
        self.told_in: float | None = None
        """In line it is told when it is its turn, or looks after so many seconds."""

    def is_passed_too_often(self, changes: int) -> bool:
        """Whether others came first too often, or it waits for too long; there have been so many changes by now."""
        if self._changes_before is None:
            self._changes_before = changes
        is_late = time.monotonic() - self._began >= _PASSED_SECONDS
        return is_late or changes - self._changes_before >= _PASSED_MAX

    def wait(self, seconds: float) -> None:
        """Wait a little for a turn that ends within so many seconds."""
        self.told_in = None
        self._waiting.pause(seconds)


class Turns:
    """The turn that a change is made in: one that was given with it, or its own."""

    def __init__(self, server: TakingTurns, home: str, turn: Turn | None = None) -> None:
        """`home` is a thread of the family."""
        self._server = server
        self._home = home
        self.turn = turn
        self.own: list[Turn] = []

    def take(self, seconds: float) -> None:
        """Get in line, for work that takes so long. What was had before is over."""
        self.end()
        self.turn = self._server.take_turn(self._home, seconds)
        if self.turn is not None:
            self.own.append(self.turn)

    def note_change(self) -> None:
        """Note that a change was made, which has ended the turn."""
        if self.turn is not None:
            self.turn.is_used = True

    def end(self) -> None:
        """Let others go on, if its own turn was not used."""
        for turn in self.own:
            if not turn.is_used:
                self._server.end_turn(turn)
        self.own = []


class TakingTurns(Reading):
    """How a writer gets its turn."""

    def __init__(self, link: Link, prefix: str, life_ms: int, wait_replicas: int) -> None:
        super().__init__(link, prefix, life_ms, wait_replicas)
        self._round_trip_seconds = math.inf
        """The quickest so far, of those that ask for a turn: others were held up by something."""

    def take_turn(self, thread_id: str, seconds: float) -> Turn | None:
        """Wait for a turn in a thread's family, for work that takes so long; None: there is no such thread.

        Nobody is passed by others for long: then they get in line, where whoever came first is served first.
        """
        self._check_allowed()
        turn = Turn()
        line = thread_id, ""
        place = _Waiter(self._deadline.at)
        # Who is far loses to every near writer that looks more often.
        if self._round_trip_seconds > _FAR_SECONDS:
            turn.must_wait()
        while True:
            since = self._heads.get(line)
            args = _turn_arguments(turn, thread_id, seconds, self._deadline.at)
            reply = self._ask_for_turn(turn, place, args)
            if reply is None:
                return None
            if reply[0] == b"done":
                turn.family = reply[1].decode()
                turn.head = self._read(line, turn.bucket, reply[2], since, is_head=True)
                return turn
            turn.family = reply[2].decode()
            is_in_line = reply[4] == b"1"
            if is_in_line:
                place.told_in = min(reply[1] / 1000, _LOOK_SECONDS)
            elif place.is_passed_too_often(int(reply[3])):
                turn.must_wait()
            else:
                place.wait(reply[1] / 1000)

    def _ask_for_turn(self, turn: Turn, place: _Waiter, args: Sequence[Any]) -> Any:
        """Ask for a turn, when it is told that it is there or at once; None: there is no such thread."""
        if place.told_in is not None:
            reply = self._call_when_told(turn, place.told_in, args)
            if reply is not None and reply[0] != b"absent":
                return reply
        asked = time.monotonic()
        found = self._ask(*args)
        self._round_trip_seconds = min(self._round_trip_seconds, time.monotonic() - asked)
        if found is None:
            return None
        turn.bucket, reply = found
        return reply

    def _call_when_told(self, turn: Turn, seconds: float, args: Sequence[Any]) -> Any:
        """Ask for a turn again when it is there, or when the one before must be over; None: the answer was lost."""
        base = self._base(turn.bucket)
        key = b"%bfamily:%b:turn:%b" % (base, turn.family.encode(), turn.token.encode())
        with translated(but=(AnswerLost,)):
            try:
                return self._link.run_when(base, key, seconds, [args[0], *encoded(args[1:])], self._deadline.at)
            except AnswerLost:
                tried_again("an answer of Redis was lost")
                return None

    def end_turn(self, turn: Turn) -> None:
        """Let others go on. What fails here ends by itself."""
        with contextlib.suppress(StoreError):
            self._call(turn.bucket, "end_turn", turn.family, turn.token)


def _turn_arguments(turn: Turn, thread_id: str, seconds: float, deadline: float) -> tuple[Any, ...]:
    """Return what to ask a turn by, for work that takes so long."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise StoreUnavailable("other writers had their turns for too long; nothing was written, try again")
    lasting = min(max(seconds * _TURN_FACTOR, _TURN_SECONDS_MIN), left)
    return "turn", thread_id, turn.token, _milliseconds(lasting), _milliseconds(left)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
