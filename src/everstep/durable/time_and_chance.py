"""The time, and what is made by chance, as the code of a run is told: the same whenever the run is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from uuid import UUID

from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.entries import Draft
from everstep.durable.keys import Keys
from everstep.durable.recorder import Recorder
from everstep.durable.replay import Replay


@dataclass(frozen=True)
class TimeAndChance:
    """The times and numbers of one run."""

    keys: Keys
    code: CodeAtWork
    replay: Replay
    recorder: Recorder

    def now(self) -> datetime:
        """Return the time."""
        self.code.check_may_ask()
        key = self.keys.take("now", None)
        entry = self.replay.find("now", key)
        if entry is not None:
            return datetime.fromisoformat(entry.about["value"])
        moment = datetime.now(UTC)
        # If a crash comes before it is recorded, nothing that was done yet rests on this time.
        self.recorder.record_time(Draft({"op": "now", "key": key, "value": moment.isoformat()}))
        return moment

    def random(self) -> float:
        """Return a number from 0 up to 1."""
        return self._chance("random").random()

    def uuid(self) -> UUID:
        """Return a UUID."""
        return UUID(int=self._chance("uuid").getrandbits(128), version=4)

    def _chance(self, name: str) -> Random:
        self.code.check_may_ask()
        # Made from the seed and the key: nothing has to be recorded for each number.
        seed = self.replay.journal.beginning.about["seed"]
        return Random(f"{seed}/{self.keys.take(name, None)}")  # noqa: S311  # nothing rests on its being secret
