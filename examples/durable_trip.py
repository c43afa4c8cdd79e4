"""A trip is planned and paid for by a durable run, whose process is killed twice: in between two steps, and just after
the card was charged. Each time another process goes on, and nothing that was recorded is done again.

    python examples/durable_trip.py

No key and no server: the model and the services are scripted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import everstep

THREAD = "trip-to-oslo"

engine = everstep.open(os.environ.get("TRIP_STORE", "memory://")).sync


def say(words: str) -> None:
    """Print at once: this process may not live long."""
    print(f"   {words}", flush=True)


def die_at(place: str) -> None:
    """Be killed by kill -9, if this is the place for it."""
    if os.environ.get("TRIP_DIES_AT") == place:
        say("kill -9")
        os.kill(os.getpid(), signal.SIGKILL)


# -- what the agent does: each of these costs time or money


def fetch_weather(city: str) -> str:
    say(f"fetch_weather({city!r}) is called")
    return "sun on Saturday"


def ask_model(weather: str) -> dict[str, Any]:
    die_at("ask_model")
    say(f"ask_model({weather!r}) is called")
    return {"hotel": "Fjord View", "price": 412}


def charge_card(price: int) -> str:
    say(f"charge_card({price}) is called; the idempotency key ends in {everstep.step_key()[-16:-12]}...")
    die_at("charge_card")
    return "receipt 7"


@engine.durable
def plan_trip(run: everstep.SyncRun, city: str) -> dict[str, Any]:
    """Plan a trip, ask a person, and pay."""
    weather = run.step(fetch_weather, city)
    plan = run.step(ask_model, weather, retries=3)
    if run.ask("Book it?", plan) != "yes":
        return {"booked": False}
    receipt = run.step(charge_card, plan["price"], effect="once")
    run.state["booked"] = plan["hotel"]
    return {"booked": True, "receipt": receipt}


# -- the story


def in_a_process(what: str, dies_at: str = "") -> None:
    """Do something in a process of its own, which may be killed."""
    environment = {**os.environ, "TRIP_DIES_AT": dies_at}
    done = subprocess.run([sys.executable, __file__, what], env=environment, check=False)
    if done.returncode != (-signal.SIGKILL if dies_at else 0):
        raise SystemExit(f"{what} ended with {done.returncode}")


def show() -> None:
    """Show how the run stands."""
    [run] = engine.runs()
    waits = "".join(f", waits for an answer to: {wait.question}" for wait in run.waits)
    say(f"the run is {run.status}{waits}")


def main() -> None:
    """Tell the story: this process only looks, answers, and starts others."""
    print("1. A trip is planned, and its process is killed before the model is asked")
    in_a_process("start", dies_at="ask_model")
    show()
    print("\n2. Another process takes it up: the weather is there, only the model is asked")
    in_a_process("recover")
    show()
    print("\n3. A person says yes; the process is killed just after the card was charged")
    engine.answer(THREAD, "yes")
    in_a_process("recover", dies_at="charge_card")
    show()
    print("\n4. Nobody knows whether the card was charged. The run does not guess: it asks")
    in_a_process("recover")
    show()
    print("\n5. A person looks it up: it was, with receipt 7")
    engine.answer(THREAD, everstep.happened("receipt 7"))
    in_a_process("recover")
    say(f"the result is {engine.resume(THREAD)}")
    show()
    print("\n6. Every step is in the history, and can be gone back to")
    for point in reversed(engine.list_time_travel_points(THREAD)):
        say(f"step {point.step}  {point.summary}")


ROLES = {"story": main, "start": lambda: plan_trip("Oslo", thread_id=THREAD), "recover": engine.recover}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        ROLES[sys.argv[1]]()
        engine.close()
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRIP_STORE"] = str(Path(folder) / "trip.db")
            sys.exit(subprocess.run([sys.executable, __file__, "story"], check=False).returncode)
