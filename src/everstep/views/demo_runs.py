"""The durable runs of the demo data: one that waits for a person, and one that failed and was resumed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from everstep.durable import running
from everstep.durable.functions import blocking_runner
from everstep.durable.run import SyncRun
from everstep.engine import SyncEngine
from everstep.runtime.blocking import run_to_end

Wait = Callable[[float], None]
"""Lets some time of the story pass."""


def tell_booking(engine: SyncEngine, thread: str, wait: Wait) -> None:
    """Tell of a trip that is planned, and is not paid for before a person has said so."""

    def find_trains(city: str) -> list[dict[str, Any]]:
        wait(1.4)
        return [{"to": city, "leaves": "08:25", "price": 389}, {"to": city, "leaves": "16:03", "price": 289}]

    def ask_model(trains: list[dict[str, Any]]) -> dict[str, Any]:
        wait(6.1)
        return {"train": trains[0]["leaves"], "hotel": "Bryggen", "nights": 2, "price": 412}

    def hold_seats(train: str) -> str:
        wait(0.8)
        return f"hold-{train.replace(':', '')}"

    def charge_card(price: int) -> str:
        return f"receipt for {price}"

    @engine.durable(name="book_trip")
    def book_trip(run: SyncRun, city: str) -> dict[str, Any]:
        run.messages.append({"role": "user", "content": f"A weekend in {city} for two, by train."})
        trains = run.step(find_trains, city)
        plan = run.step(ask_model, trains, retries=3)
        run.state["plan"] = plan
        run.messages.append({"role": "assistant", "content": f"The {plan['train']} train, {plan['nights']} nights."})
        run.state["hold"] = run.step(hold_seats, plan["train"], effect="once")
        if run.ask("Book it for 412?", plan) != "yes":
            return run.state
        run.state["receipt"] = run.step(charge_card, plan["price"], effect="once")
        return run.state

    runner = blocking_runner(engine._driven, book_trip._program)
    run_to_end(running.take_part(runner, thread, (["Bergen"], {})))


def tell_report(engine: SyncEngine, thread: str, wait: Wait) -> None:
    """Tell of a report that failed because a service was down, and was resumed when it was there again."""
    is_down = [True]

    def fetch_sales(week: str) -> dict[str, Any]:
        wait(2.2)
        return {"week": week, "orders": 412, "total": 38_120}

    def fetch_costs(week: str) -> dict[str, Any]:
        wait(5.0)
        if is_down[0]:
            raise TimeoutError("the ledger did not answer within 5 s")
        return {"week": week, "total": 29_440}

    def send_report(sales: dict[str, Any], costs: dict[str, Any]) -> str:
        wait(0.6)
        return f"sent: {sales['total'] - costs['total']:,} left"

    @engine.durable(name="weekly_report")
    def weekly_report(run: SyncRun, week: str) -> str:
        sales = run.step(fetch_sales, week)
        costs = run.step(fetch_costs, week, retries=2, backoff=0)
        run.state["week"] = week
        return run.step(send_report, sales, costs, effect="once")

    with suppress(TimeoutError):
        weekly_report("2026-W46", thread_id=thread)
    is_down[0] = False
    wait(600)
    engine.resume(thread)
