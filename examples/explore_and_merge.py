"""Three ways are tried from one checkpoint, each is scored, and the best one is merged.

    python examples/explore_and_merge.py

The thread itself goes on meanwhile, so both sides have changed the same channels: the graph's reducers join them.
"""

from __future__ import annotations

import operator
import re
import tempfile
from typing import Annotated, TypedDict

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from models import chat_model

import everstep
from everstep import MergeConflict
from everstep.langgraph import HarnessCheckpointer

WAYS = ("cheap", "cultural", "adventurous")
SCRIPT = {
    "cheap": "A walk through the old town, 0",
    "cultural": "The opera, 60",
    "adventurous": "A kayak on the fjord, 45",
    "old town": "6",
    "opera": "7",
    "kayak": "9",
}


class Trip(TypedDict, total=False):
    way: str
    plan: Annotated[list[str], operator.add]
    cost: Annotated[int, operator.add]
    score: int


def script(messages: list[BaseMessage]) -> str:
    return next(answer for word, answer in SCRIPT.items() if word in messages[-1].text)


model = chat_model(script)


def suggest(state: Trip) -> Trip:
    order = f"Name one {state['way']} thing to do in Oslo and its price in euros, as 'thing, number'. Nothing else."
    thing, _, price = model.invoke(order).text.rpartition(",")
    return {"plan": [thing], "cost": number(price)}


def rate(state: Trip) -> Trip:
    return {"score": number(model.invoke(f"Rate from 0 to 10, with a number only: {state['plan'][-1]}").text)}


def number(text: str) -> int:
    found = re.search(r"\d+", text)
    return int(found[0]) if found else 0


def config_of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="everstep-example-") as folder,
        HarnessCheckpointer.from_url(f"{folder}/trips.db") as saver,
    ):
        app = StateGraph(Trip).add_sequence([suggest, rate]).add_edge(START, "suggest").compile(checkpointer=saver)
        engine = saver.engine.sync

        start = app.update_state(config_of("trip"), {"plan": ["The train to Oslo"], "cost": 50})
        print("Three branches from one checkpoint:")
        branches = {}
        for way in WAYS:
            branches[way] = engine.branch(start["configurable"]["checkpoint_id"], way, thread_id="trip")
            found = app.invoke({"way": way}, config_of(branches[way]))
            print(f"  {way:<12} {found['plan'][-1]}: score {found['score']}, {found['cost']} in all")

        app.update_state(config_of("trip"), {"plan": ["A room near the station"], "cost": 70})
        print("Meanwhile a room is booked in the thread itself.")

        best = max(WAYS, key=lambda way: app.get_state(config_of(branches[way])).values["score"])
        print(f"\nThe best is {best}. Merged path by path, somebody has to decide:")
        try:
            engine.merge_branch(branches[best], "trip")
        except MergeConflict as exc:
            for conflict in exc.conflicts:
                print(f"  {conflict.path}: {conflict.ours!r} here, {conflict.theirs!r} there")

        print("Merged by the graph's reducers:")
        engine.merge_branch(branches[best], "trip", graph=app)
        merged = app.get_state(config_of("trip")).values
        print(f"  plan {merged['plan']}, cost {merged['cost']}")

        print("\nThe tree:")
        print(everstep.draw(engine.get_checkpoint_tree("trip"), width=100))


if __name__ == "__main__":
    main()
