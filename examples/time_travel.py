"""Back in time: a conversation takes a wrong turn, is rewound, goes on another way, and both ways are there.

python examples/time_travel.py
"""

from __future__ import annotations

import tempfile

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from models import chat_model

import everstep
from everstep.langgraph import HarnessCheckpointer

ANSWERS = {
    "Plan a day in Oslo.": "The museums in the morning, the fjord in the afternoon.",
    "It will rain.": "Then the museums all day.",
    "Add dinner.": "A table by the museums, at seven.",
    "It will be sunny.": "Then the fjord all day.",
}
CONFIG: RunnableConfig = {"configurable": {"thread_id": "day"}}

model = chat_model(lambda messages: ANSWERS[messages[-1].text])


def answer(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="everstep-example-") as folder,
        HarnessCheckpointer.from_url(f"{folder}/day.db") as saver,
    ):
        app = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(checkpointer=saver)
        engine = saver.engine.sync

        def say(text: str) -> None:
            app.invoke({"messages": [HumanMessage(text)]}, CONFIG)

        def show() -> None:
            for message in app.get_state(CONFIG).values["messages"]:
                print(f"  {message.type:<5} {message.text}")

        print("A conversation:")
        for text in ("Plan a day in Oslo.", "It will rain.", "Add dinner."):
            say(text)
        show()

        print("\nIts history, the newest first. Each turn is its input, what stood before the node, and after it:")
        history = list(app.get_state_history(CONFIG))
        for state in history:
            print(f"  {len(state.values['messages'])} messages, next {state.next}")

        print("\nIt will not rain. Back to the end of the first turn:")
        first = next(state for state in history if len(state.values["messages"]) == 2 and not state.next)
        # "keep" leaves the first way in the history. Without it that would be hidden until undo.
        result = engine.rewind(first.config["configurable"]["checkpoint_id"], later="keep")
        print(f"  {result.rewind_depth} checkpoints are left behind, none is lost")

        print("\nOn from there, another way:")
        say("It will be sunny.")
        show()

        print("\nUndo takes the rewind back, redo does it again:")
        for step in (engine.undo, engine.redo):
            print(f"  {step('day').kind}: {app.get_state(CONFIG).values['messages'][-1].text}")

        print("\nThe tree; @ is the head:")
        print(everstep.draw(engine.get_checkpoint_tree("day")))


if __name__ == "__main__":
    main()
