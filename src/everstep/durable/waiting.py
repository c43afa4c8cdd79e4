"""What a run waits for: answers of people, events, times. What takes long is waited for without a process."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.durable.calling import Face
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.entries import Arguments, Draft
from everstep.durable.keys import KEY_MAX, Keys
from everstep.durable.leaving import Suspended
from everstep.durable.recorder import Recorder
from everstep.durable.replay import Replay
from everstep.errors import InvalidInput
from everstep.runtime import checks

# Shorter sleeps are slept here: letting a run go and taking it up again costs more than such a wait.
_LINGER_SECONDS = 1.0


@dataclass(frozen=True)
class Waiting:
    """The waits of one run."""

    face: Face
    keys: Keys
    code: CodeAtWork
    replay: Replay
    recorder: Recorder

    def ask(self, question: str, details: Any, key: str | None) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a question to a person."""
        text = checks.text(question, "question", 10_000)
        self.code.check_may_ask()
        return self._asked(self.keys.take("ask", key), text, details)

    async def ask_about_effect(self, effect: str, key: str, question: str, details: Any) -> Any:
        """Return what a person says of an effect. It does not matter how that was asked."""
        return await self._asked(key, question, details, {"effect": effect})

    async def _asked(self, key: str, question: str, details: Any, more: Mapping[str, Any] | None = None) -> Any:
        answers = self.replay.journal.answers
        waits = self.recorder.waits
        arguments = Arguments.of([question, details], {})
        asked = self.replay.find("ask", key)
        # An answer may be there already, from before a crash. Then there is nothing to wait for.
        if key not in answers:
            wait = {"kind": "ask", "key": key, "question": question, "args": arguments.digest}
            waits[key] = {**wait, **(more or {})}
            # A question that has changed before anybody has answered it is asked anew.
            if asked is None or asked.about.get("args") != arguments.digest:
                values = {"question": question, "details": details, "status": "waiting"}
                about = {"op": "ask", "key": key, "question": question, "args": arguments.digest}
                draft = Draft(about, values, f"Waits for an answer: {question}"[:200])
                refused = await self.recorder.try_to_record([draft])
                if refused is not None:
                    del waits[key]
                    raise refused
        # Looked up again: the answer may have come while the question was recorded.
        answer = answers.get(key)
        if answer is None:
            raise Suspended
        if more is None:
            self.replay.check_same_question(answer, asked, arguments)
        return answer.values.get("answer")

    def wait_for(self, event: str) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that waits for an event."""
        name = checks.text(event, "event", KEY_MAX)
        self.code.check_may_ask()
        return self._waited_for(name, self.keys.count(f"\nevent {name}"))

    async def _waited_for(self, event: str, number: int) -> Any:
        key = f"{event}#{number + 1}"
        asked = self.replay.find("wait", key)
        recorded = self.replay.journal
        if recorded.event(event, number) is None:
            self.recorder.waits[key] = {"kind": "event", "key": key, "event": event}
            if asked is None:
                about = {"op": "wait", "key": key, "event": event}
                await self.recorder.record(Draft(about, None, f"Waits for the event {event}"[:200]))
        # Looked up again: the event may have come while the wait was recorded.
        found = recorded.event(event, number)
        if found is None:
            raise Suspended
        # An event that came before the wait was recorded does not name it.
        self.recorder.waits.pop(key, None)
        return found.values.get("value")

    def sleep(self, seconds: float, key: str | None) -> Coroutine[Any, Any, None]:
        """Return the coroutine of a sleep."""
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < 1e10:
            raise InvalidInput(f"a run sleeps for a number of seconds, not {checks.shown(seconds)}")
        self.code.check_may_ask()
        return self._slept(self.keys.take("sleep", key), float(seconds))

    async def _slept(self, key: str, seconds: float) -> None:
        entry = self.replay.find("sleep", key)
        until = time.time() + seconds
        # A sleep that was begun before a crash ends when it was to end then.
        if entry is not None:
            until = float(entry.about["until"])
        is_long = until - time.time() > _LINGER_SECONDS
        if is_long:
            self.recorder.waits[key] = {"kind": "sleep", "key": key, "until": until}
        if entry is None:
            about = {"op": "sleep", "key": key, "until": until}
            await self.recorder.record(Draft(about, None, f"Sleeps for {seconds:g} s"))
        if is_long:
            raise Suspended
        await self.face.sleep(max(0.0, until - time.time()))
