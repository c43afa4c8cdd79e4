"""By which keys the world knows a step: the same in every try, process and branch, unless it shall happen once more."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from everstep.durable import undoing
from everstep.durable.entries import Arguments
from everstep.durable.replay import Replay
from everstep.repository.effects import Effect


@dataclass(frozen=True)
class Idempotency:
    """The idempotency keys of the steps of a run, and the keys of its effects."""

    thread_id: str
    replay: Replay

    def asked_as(self, key: str, arguments: Arguments) -> str:
        """Return by what a step is known: the same in every try, process and branch."""
        # Made from the checkpoint that the run began with, which its branches have in common; the name of the
        # thread they have not.
        start = self.replay.journal.beginning
        return f"{start.checkpoint.checkpoint_id}/{key}/{arguments.digest[:16]}"

    def performed_as(self, asked_as: str, before: Effect | None) -> str:
        """Return the idempotency key that a function is told: another one for what shall happen once more.

        Otherwise a service would give the result of what was undone since, or was performed outside of this branch.
        """
        if self.replay.repeats_effects:
            asked_as = f"{asked_as}/{hashlib.sha256(self.thread_id.encode()).hexdigest()[:12]}"
        return undoing.performed_as(asked_as, undoing.times_undone(before))

    def effect_key(self, key: str) -> str:
        """Return under which key the effect of a step is kept."""
        if self.replay.repeats_effects:
            # It may happen once in each thread then, not once in the family.
            return f"{self.thread_id}\n{key}"
        return key
