"""A graph stops and asks a human. One question is answered in two ways, and the results are compared.

    python examples/human_in_the_loop.py

Each answer is given in a branch that begins at the checkpoint with the question, so the model is not asked again.
"""

from __future__ import annotations

import tempfile
from typing import TypedDict

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from models import chat_model

from everstep.langgraph import HarnessCheckpointer


class Complaint(TypedDict, total=False):
    text: str
    proposal: str
    refund: int
    letter: str


def script(messages: list[BaseMessage]) -> str:
    order = messages[-1].text
    if order.startswith("Propose"):
        return "Refund the whole price, 80, and say sorry."
    return "We are sorry. You get your money back." if "80" in order else "We are sorry. Here is a voucher."


model = chat_model(script)


def propose(state: Complaint) -> Complaint:
    print("  propose: the model is asked")
    return {"proposal": model.invoke(f"Propose in one sentence what to do about: {state['text']}").text}


def decide(state: Complaint) -> Complaint:
    refund = interrupt({"question": "How much do we refund?", "proposal": state["proposal"]})
    print(f"  decide:  the human says {refund}")
    return {"refund": refund}


def write(state: Complaint) -> Complaint:
    return {
        "letter": model.invoke(f"Write two short sentences to a customer who gets a refund of {state['refund']}").text
    }


def config_of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="everstep-example-") as folder,
        HarnessCheckpointer.from_url(f"{folder}/complaints.db") as saver,
    ):
        graph = StateGraph(Complaint).add_sequence([propose, decide, write]).add_edge(START, "propose")
        app = graph.compile(checkpointer=saver)
        engine = saver.engine.sync

        print("A complaint comes in:")
        app.invoke({"text": "The kettle was broken when it came."}, config_of("complaint-7"))
        waiting = app.get_state(config_of("complaint-7"))
        print(f"  waiting at {waiting.next} with {waiting.interrupts[0].value}")

        print("\nThe question is answered in two branches:")
        question = waiting.config["configurable"]["checkpoint_id"]
        full = engine.branch(question, "full", thread_id="complaint-7")
        app.invoke(Command(resume=80), config_of(full))
        voucher = engine.branch(question, "voucher", thread_id="complaint-7")
        app.invoke(Command(resume=0), config_of(voucher))

        print("\nWhat differs, the full refund first:")
        heads = [app.get_state(config_of(thread)).config["configurable"]["checkpoint_id"] for thread in (full, voucher)]
        for difference in engine.diff(*heads):
            print(f"  {difference.path}: {difference.before!r} or {difference.after!r}")

        print("\nThe thread itself still waits. The full refund is taken over:")
        print(f"  before: next {app.get_state(config_of('complaint-7')).next}")
        engine.merge_branch(full, "complaint-7")
        after = app.get_state(config_of("complaint-7"))
        print(f"  after:  next {after.next}, refund {after.values['refund']}, letter {after.values['letter']!r}")


if __name__ == "__main__":
    main()
