"""What the code of a run asks for, held against what is recorded: the same is replayed, another is refused or forks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.durable.calling import Options
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.entries import Arguments, Entry
from everstep.durable.journal import Journal
from everstep.durable.leaving import Forked
from everstep.durable.live import RunLive
from everstep.durable.programs import Program
from everstep.errors import ReplayMismatch
from everstep.reports import Difference


@dataclass
class Replay:
    """What is recorded of a run, and how far its code has come with it."""

    program: Program
    live: RunLive
    code: CodeAtWork
    journal: Journal = field(default_factory=Journal, init=False)
    repeats_effects: bool = field(default=False, init=False)
    """Whether the run is in a branch that performs effects again."""
    is_caught_up: bool = field(default=True, init=False)
    """Whether the code has made again all that is recorded, as far as it goes one step after the other."""

    def begin(self, recorded: Journal) -> None:
        """Go by what was recorded before: the code begins once more."""
        self.journal = recorded
        self.live.is_replaying = True
        self.is_caught_up = False

    def find(self, op: str, key: str) -> Entry | None:
        """Return what is recorded of something that the code asks for now."""
        # Not yet when it asks for the last thing that is recorded: what it makes of that comes after.
        self.is_caught_up = not self.journal.has_more()
        self.code.note_where()
        found = self.journal.find(op, key)
        # Once the code has caught up with what is recorded, decorated calls are saved again.
        if self.live.is_replaying and not self.journal.has_more():
            self.live.is_replaying = False
        return found

    def is_same_step(self, entry: Entry, arguments: Arguments, options: Options) -> bool:
        """Whether the step that is recorded is the one that is asked for; False: it may be done anew."""
        if entry.about["args"] == arguments.digest:
            return True
        self.check_not_forked_at(entry)
        if self.program.on_change == "rerun" and options.effect == "none" and entry.about["effect"] == "none":
            return False
        what = f"has recorded step {entry.key!r} with other arguments than the code asks for now"
        raise self._mismatch(entry, what, entry.values, arguments)

    def check_same_question(self, answer: Entry, asked: Entry | None, arguments: Arguments) -> None:
        """Raise if an answer was given to another question than the code asks now."""
        if answer.about.get("args") == arguments.digest:
            return
        self.check_not_forked_at(asked or answer)
        recorded = {"args": [answer.about["question"]]}
        if asked is not None:
            recorded["args"].append(asked.values.get("details"))
        what = f"has recorded an answer to another question than the code asks now as {answer.key!r}"
        raise self._mismatch(answer, what, recorded, arguments)

    def _mismatch(self, entry: Entry, what: str, recorded: Mapping[str, Any], arguments: Arguments) -> ReplayMismatch:
        differences = differences_of(recorded, arguments.shown)
        mismatch = ReplayMismatch(self.live.thread_id, entry.key, what, differences)
        # Remembered, since the code may catch the error: what it would do after that is not what the run does.
        self.code.stopped = mismatch
        return mismatch

    def check_all_asked_for(self) -> None:
        """Raise if the code has come to its end without some of the steps that are recorded."""
        left = self.journal.not_asked_for()
        # With "rerun", steps without an effect may have gone from the code: nothing in the world speaks of
        # them.
        if self.program.on_change == "rerun":
            left = [entry for entry in left if entry.about.get("effect") != "none"]
        if not left:
            return
        self.check_not_forked_at(left[0])
        names = ", ".join([repr(entry.key) for entry in left[:5]])
        raise ReplayMismatch(
            self.live.thread_id, left[0].key, f"has recorded steps that the code does not ask for any more: {names}"
        )

    def check_not_forked_at(self, entry: Entry) -> None:
        """Raise Forked if the run goes on in a branch from there: it shall, or does so already."""
        # What it does already holds for whoever takes it up now.
        if self.program.on_change == "fork" or entry.key in self.journal.forks:
            raise Forked(entry)


def differences_of(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Difference]:
    """Return in what the arguments of two calls differ."""
    before = _by_path(recorded)
    after = _by_path(asked)
    found: list[Difference] = []
    # A dictionary keeps the order in which the paths come, and each of them once.
    for path in dict.fromkeys([*before, *after]):
        if path not in after:
            found.append(Difference(path, "removed", before[path], None))
        elif path not in before:
            found.append(Difference(path, "added", None, after[path]))
        elif before[path] != after[path]:
            found.append(Difference(path, "changed", before[path], after[path]))
    return found


def _by_path(shown: Mapping[str, Any]) -> dict[str, Any]:
    positional = {f"args[{place}]": value for place, value in enumerate(shown.get("args", []))}
    return positional | {f"kwargs.{name}": value for name, value in shown.get("kwargs", {}).items()}
