"""Demo data: a few believable threads, the same each time but for the hour. For `everstep demo` and the page.

* `support-4711`: a long chat, 412 steps.
* `invoice-run-2026-11`: an agent that failed, was rewound and went on.
* `trip-to-oslo`: a story with three branches, of which two were merged, one of them with a conflict.
* `trip-to-bergen`: a durable run that waits for a person's answer before it pays.
* `report-week-46`: a durable run that failed, and was resumed without its recorded steps.
* `refund-0093`: a LangGraph workflow that waits for a person's answer; only where langgraph is installed.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from everstep.config import SnapshotTrigger
from everstep.engine import CheckpointEngine
from everstep.repository.new_names import TOKENS
from everstep.types import CLOCK
from everstep.views import demo_runs

CHAT = "support-4711"
AGENT = "invoice-run-2026-11"
STORY = "trip-to-oslo"
NOTES = "onboarding-ada"
WORKFLOW = "refund-0093"
BOOKING = "trip-to-bergen"
REPORT = "report-week-46"

# Of four steps each: long enough for the page to have something to scroll through.
_CHAT_TURNS = 103

Message = dict[str, Any]


class _Scene:
    """Tells the time and makes the names, so that the same things happen in the same way."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.random = random.Random(4711)  # noqa: S311  # to be repeatable is the point
        self._messages = 0
        self._at = now
        self.call_id = ""
        """Of the tool call that the model made last."""

    def begin(self, minutes_ago: float) -> None:
        """Go to a time before now."""
        self._at = self._now - timedelta(minutes=minutes_ago)

    def wait(self, seconds: float) -> None:
        """Let some time pass."""
        self._at += timedelta(seconds=seconds)

    def time(self) -> datetime:
        """Return the time, which moves on a little each time somebody looks."""
        self._at += timedelta(milliseconds=self.random.randint(3, 40))
        return min(self._at, self._now)

    def token(self) -> str:
        """Return the part of an id that would be left to chance."""
        return f"{self.random.getrandbits(64):016x}"

    def message(self, role: str, content: str, **more: Any) -> Message:
        """Return a message with an id of its own."""
        self._messages += 1
        return {"role": role, "content": content, "id": f"m{self._messages}", **more}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Be the clock, and what makes names, inside a block."""
        clock = CLOCK.set(self.time)
        tokens = TOKENS.set(self.token)
        try:
            yield
        finally:
            CLOCK.reset(clock)
            TOKENS.reset(tokens)


async def fill(engine: CheckpointEngine, *, now: datetime | None = None) -> dict[str, Any]:
    """Write the demo threads into an empty store, and tell what was written and what was left out.

    `now` is when the story ends: the present time, unless it shall be the same each time. The engine must keep all.
    """
    scene = _Scene((now or datetime.now(UTC)).replace(microsecond=0))
    with scene.on():
        await _tell_notes(engine, scene)
        await _tell_agent(engine, scene)
        await _tell_story(engine, scene)
        scene.begin(47)
        demo_runs.tell_report(engine.sync, REPORT, scene.wait)
        await _tell_chat(engine, scene)
        scene.begin(4)
        demo_runs.tell_booking(engine.sync, BOOKING, scene.wait)
    left_out = []
    if importlib.util.find_spec("langgraph") is None:
        left_out.append(f"{WORKFLOW}: langgraph is not installed")
    else:
        await _tell_workflow(engine)
    page = await engine.list_threads(50)
    return {"threads": [found.thread_id for found in page], "left_out": left_out}


# -- single steps


async def _user(engine: CheckpointEngine, scene: _Scene, thread: str, words: str, **state: Any) -> str:
    return await engine.append(thread, [scene.message("user", words)], state, next_node="model")


async def _model(
    engine: CheckpointEngine,
    scene: _Scene,
    thread: str,
    words: str,
    tool: str = "",
    arguments: dict[str, Any] | None = None,
    **state: Any,
) -> str:
    """Let the model say something, and maybe call a tool."""
    seconds = round(scene.random.uniform(0.7, 3.8), 2)
    scene.wait(seconds)
    used = len(words) // 4 + scene.random.randint(380, 1900)
    more: dict[str, Any] = {}
    if tool:
        scene.call_id = f"call_{scene.token()[:10]}"
        function = {"name": tool, "arguments": json.dumps(arguments or {})}
        more["tool_calls"] = [{"id": scene.call_id, "type": "function", "function": function}]
    return await engine.append(
        thread,
        [scene.message("assistant", words, **more)],
        state,
        trigger=SnapshotTrigger.LLM_CALL,
        next_node=f"tool:{tool}" if tool else "",
        metadata={
            "model": "demo-large",
            "duration_ms": int(seconds * 1000),
            "tokens": used,
            "cost": round(used * 4e-6, 6),
        },
    )


async def _tool(
    engine: CheckpointEngine,
    scene: _Scene,
    thread: str,
    name: str,
    arguments: dict[str, Any],
    result: Any,
    **state: Any,
) -> str:
    """Let a tool answer the call that the model made last."""
    seconds = round(scene.random.uniform(0.1, 2.4), 2)
    scene.wait(seconds)
    message = scene.message("tool", json.dumps(result), name=name, tool_call_id=scene.call_id)
    done = {"name": name, "args": [], "kwargs": arguments, "status": "ok", "result": result}
    return await engine.append(
        thread,
        [message],
        state,
        done,
        SnapshotTrigger.TOOL_CALL,
        "model",
        summary=f"{name} answered",
        metadata={"duration_ms": int(seconds * 1000)},
    )


async def _failure(
    engine: CheckpointEngine, scene: _Scene, thread: str, name: str, arguments: dict[str, Any], error: str
) -> str:
    """Let a tool fail, as the decorators of an agent write it down."""
    scene.wait(30)
    done = {"name": name, "args": [], "kwargs": arguments, "status": "error", "error": error}
    return await engine.append(
        thread,
        [],
        {"status": "failed"},
        done,
        SnapshotTrigger.TOOL_CALL,
        f"tool:{name}",
        tags=["error"],
        summary=f"{name} failed: {error}",
        metadata={"error": error, "duration_ms": 30_004},
    )


# -- a short conversation


async def _tell_notes(engine: CheckpointEngine, scene: _Scene) -> None:
    scene.begin(26 * 60)
    lines = (
        ("user", "Hi, I'm Ada. I start on Monday. What do I need?"),
        (
            "model",
            "Welcome, Ada! A laptop is ordered, your mailbox is ready, and Grace is your buddy.",
        ),
        ("user", "Great. Where do I go on Monday morning?"),
        ("model", "Second floor, ask for Grace at nine. She has your badge."),
        ("user", "Can I work from home on Fridays?"),
        ("model", "Yes, from your third week on. I have put it into your profile."),
    )
    for speaker, words in lines:
        scene.wait(20)
        if speaker == "user":
            await _user(engine, scene, NOTES, words, name="Ada", buddy="Grace")
        else:
            await _model(engine, scene, NOTES, words)


# -- an agent with an error and a rewind


async def _tell_agent(engine: CheckpointEngine, scene: _Scene) -> None:
    scene.begin(3 * 60 + 20)
    wanted = "Book the supplier invoices of November, and tell me what does not add up."
    await _user(engine, scene, AGENT, wanted, status="running", booked=0, open=[])
    await _model(engine, scene, AGENT, "I'll list the invoices first.", "list_invoices", {"month": "2026-11"})
    suppliers = ["Nordlys Print", "Kaffehuset", "Hansen & Lie", "Fjordnett", "Papirhuset", "Blå Taxi"]
    invoices = [
        {"number": f"2026-{1100 + at}", "supplier": name, "total": 240 + 137 * at} for at, name in enumerate(suppliers)
    ]
    await _tool(
        engine, scene, AGENT, "list_invoices", {"month": "2026-11"}, invoices, open=[i["number"] for i in invoices]
    )
    for at, invoice in enumerate(invoices[:3]):
        await _book(engine, scene, invoice, at + 1, invoices[at + 1 :])
    broken = invoices[3]
    arguments = {"number": broken["number"], "account": "6300"}
    await _model(engine, scene, AGENT, f"Now {broken['supplier']}, on account 6300.", "book", arguments)
    good = (await engine.list_time_travel_points(AGENT, 1))[0].checkpoint_id
    await _failure(engine, scene, AGENT, "book", arguments, "TimeoutError: the ledger did not answer within 30 s")
    guess = "The ledger seems to have taken it. I'll go on as if it were booked."
    await _model(engine, scene, AGENT, guess, booked=4, status="running")
    scene.wait(400)
    await engine.rewind(good)  # a person saw it: nothing was booked, and the agent must not go on so
    await _tool(engine, scene, AGENT, "book", arguments, {"ok": True, "entry": "8804"}, booked=4, status="running")
    for at, invoice in enumerate(invoices[4:], 5):
        await _book(engine, scene, invoice, at, invoices[at:])
    end = "All six are booked, 3,495 in all. Fjordnett is 12 % above October: you may want to ask them why."
    await _model(engine, scene, AGENT, end, status="done", open=[])
    await engine.pin((await engine.list_time_travel_points(AGENT, 1))[0].checkpoint_id)


async def _book(
    engine: CheckpointEngine, scene: _Scene, invoice: dict[str, Any], count: int, left: Sequence[dict[str, Any]]
) -> None:
    arguments = {"number": invoice["number"], "account": scene.random.choice(["6300", "6540", "6800"])}
    words = f"{invoice['supplier']}: {invoice['total']} on account {arguments['account']}."
    await _model(engine, scene, AGENT, words, "book", arguments)
    result = {"ok": True, "entry": str(8800 + count)}
    still_open = [other["number"] for other in left]
    await _tool(engine, scene, AGENT, "book", arguments, result, booked=count, open=still_open)


# -- the story


async def _tell_story(engine: CheckpointEngine, scene: _Scene) -> None:
    scene.begin(32)
    money = {"limit": 900, "left": 900}
    await _user(engine, scene, STORY, "Plan a weekend in Oslo for two, under 900.", budget=money, people=2)
    weather = {"city": "Oslo", "days": 3}
    sun = [{"day": "Friday", "sky": "rain", "high": 4}, {"day": "Saturday", "sky": "sun", "high": 6}]
    await _ask_tool(engine, scene, "I should know the weather before I plan anything.", "weather", weather, sun)
    trains = {"from": "Copenhagen", "to": "Oslo"}
    night = [{"leaves": "21:50", "arrives": "06:40", "price": 320, "kind": "night train"}]
    night_state: dict[str, Any] = {"travel": "night train", "budget": {**money, "left": 580}}
    await _ask_tool(
        engine, scene, "Sun on Saturday. Let me see how to get there.", "trains", trains, night, **night_state
    )
    hotels = [
        {"name": "Fjord View", "price": 149, "rooms": 4},
        {"name": "Hostel by the station", "price": 78, "rooms": 2},
        {"name": "Lighthouse", "price": 132, "rooms": 1},
    ]
    question = {"city": "Oslo", "max_price": 150}
    await _ask_tool(engine, scene, "The night train fits. Now a place to stay.", "hotels", question, hotels)
    here = (await engine.list_time_travel_points(STORY, 1))[0].checkpoint_id
    await _tell_first_plan(engine, scene)
    await engine.rewind(here)  # too dear: back to where the hotels were found
    scene.begin(6)
    cheap = await engine.branch(here, "cheap")
    scenic = await engine.branch(here, "scenic")
    family = await engine.branch(here, "family")
    await _model(engine, scene, cheap, "The hostel by the station has a double room.", hotel="Hostel", nights=2)
    bus: dict[str, Any] = {"travel": "bus", "budget": {"limit": 900, "left": 464}}
    await _model(engine, scene, cheap, "The bus is 40 less than the train.", **bus)
    await _model(engine, scene, scenic, "The lighthouse has one room left.", hotel="Lighthouse", nights=2)
    boat = {"leaves": "10:00", "from": "Aker Brygge", "price": 48}
    await _model(engine, scene, scenic, "Is there a boat to the islands?", "boats", {"day": "Sunday"})
    left = {"limit": 900, "left": 268}
    await _tool(engine, scene, scenic, "boats", {"day": "Sunday"}, boat, sunday="islands", budget=left)
    await _user(engine, scene, family, "Wait, my sister and her son come along.", people=4)
    await _model(engine, scene, family, "Then two rooms at the Fjord View.", hotel="Fjord View", nights=2)
    scene.wait(20)
    await engine.merge_branch(cheap, STORY)
    scene.wait(8)
    chosen = {"state.hotel": "Lighthouse", "state.budget.left": 312}
    await engine.merge_branch(scenic, STORY, resolve=chosen)


async def _ask_tool(
    engine: CheckpointEngine,
    scene: _Scene,
    words: str,
    tool: str,
    arguments: dict[str, Any],
    result: Any,
    **state: Any,
) -> None:
    await _model(engine, scene, STORY, words, tool, arguments)
    await _tool(engine, scene, STORY, tool, arguments, result, **state)


async def _tell_first_plan(engine: CheckpointEngine, scene: _Scene) -> None:
    """Tell the 23 steps that are hidden later."""
    places = ("Fjord View", "Old Mill", "Central", "Lighthouse", "Green Park", "Harbour", "Royal", "Station")
    for name in places:
        stars = round(scene.random.uniform(3.1, 4.8), 1)
        review = {"hotel": name, "stars": stars, "guests": scene.random.randint(40, 2400)}
        await _ask_tool(engine, scene, f"What do guests say about the {name}?", "reviews", {"hotel": name}, review)
    sights = ["Munch museum", "Opera roof", "Vigeland park", "Bygdøy ferry"]
    await _ask_tool(
        engine, scene, "The Fjord View is free and liked. What can we see?", "sights", {"city": "Oslo"}, sights
    )
    table = {"name": "Arakataka", "time": "19:30", "people": 2}
    words = "Two museums and a walk. Is there a table for dinner?"
    await _ask_tool(engine, scene, words, "restaurants", {"city": "Oslo", "people": 2}, table, dinner="Arakataka")
    spent = {"spent": 840, "left": 60}
    money = {"limit": 900, "left": 60}
    words = "Good. I want to be sure the money is enough."
    await _ask_tool(engine, scene, words, "budget", {"limit": 900}, spent, budget=money, hotel="Fjord View")
    plan = "Here is the plan: night train, fjord hotel, two museums, dinner on Saturday. 840 in all."
    await _model(engine, scene, STORY, plan, status="done")


# -- the long chat

_QUESTIONS = (
    ("Where is order {order}?", "find_order", "It left our warehouse in {city} and should be with you in {days} days."),
    (
        "Can I change the address of order {order} to {city}?",
        "change_address",
        "Done: order {order} now goes to {city}.",
    ),
    (
        "The {item} in order {order} is broken.",
        "open_claim",
        "I'm sorry. A new {item} is on its way.",
    ),
    ("Do you have the {item} in blue?", "find_stock", "Yes, {days} of them. Shall I put one aside for you?"),
    ("I'd like to send the {item} back.", "make_label", "The label is in your mail. You have {days} weeks to send it."),
    (
        "Was I charged twice for order {order}?",
        "find_payments",
        "No, the second one ends in {days} days by itself.",
    ),
    ("What does shipping to {city} cost?", "shipping_price", "{days}.90 to {city}, free above 80."),
    ("Is the {item} in order {order} covered by the warranty?", "find_warranty", "Yes, for two more years."),
)
_ITEMS = ("lamp", "desk", "chair", "kettle", "keyboard", "backpack", "bicycle bell", "tent", "coffee grinder", "rug")
_CITIES = ("Bergen", "Lyon", "Porto", "Graz", "Ghent", "Turku", "Split", "Leeds", "Malmö", "Trieste")


async def _tell_chat(engine: CheckpointEngine, scene: _Scene) -> None:
    """Tell 412 steps: a customer who comes back again and again."""
    scene.begin(_CHAT_TURNS * 1.9)
    for turn in range(_CHAT_TURNS):
        question, tool, answer = _QUESTIONS[turn * 5 % len(_QUESTIONS)]
        facts = {
            "order": 48_000 + scene.random.randint(0, 999),
            "item": scene.random.choice(_ITEMS),
            "city": scene.random.choice(_CITIES),
            "days": scene.random.randint(2, 6),
        }
        result = {**facts, "ok": True}
        scene.wait(scene.random.uniform(60, 160))
        await _user(engine, scene, CHAT, question.format(**facts), turn=turn + 1)
        arguments = {"order": facts["order"]}
        await _model(engine, scene, CHAT, "One moment, I'll look that up.", tool, arguments)
        await _tool(engine, scene, CHAT, tool, arguments, result)
        await _model(engine, scene, CHAT, answer.format(**facts), last_order=facts["order"])


# -- the workflow


async def _tell_workflow(engine: CheckpointEngine) -> None:
    """Run a graph of LangGraph up to a question that it asks a person."""
    from typing import TypedDict

    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    from everstep.langgraph import HarnessCheckpointer

    class Refund(TypedDict, total=False):
        customer: str
        amount: int
        reason: str
        risk: str
        approved: bool

    def read_claim(state: Refund) -> Refund:
        return {"customer": state["customer"], "amount": 249, "reason": "The tent leaks."}

    def rate_risk(state: Refund) -> Refund:
        return {"risk": "low" if state["amount"] < 500 else "high"}

    def ask_person(state: Refund) -> Refund:
        answer = interrupt({"question": f"Refund {state['amount']} to {state['customer']}?", "risk": state["risk"]})
        return {"approved": bool(answer)}

    builder = StateGraph(Refund)
    builder.add_node("read_claim", read_claim)
    builder.add_node("rate_risk", rate_risk)
    builder.add_node("ask_person", ask_person)
    builder.add_edge(START, "read_claim")
    builder.add_edge("read_claim", "rate_risk")
    builder.add_edge("rate_risk", "ask_person")
    builder.add_edge("ask_person", END)
    graph = builder.compile(checkpointer=HarnessCheckpointer(backend=engine.checkpointer))
    graph.invoke({"customer": "Ada"}, {"configurable": {"thread_id": WORKFLOW}})
