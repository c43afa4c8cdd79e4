"""The main job, as a story: an agent works, is killed in the middle of a tool call, goes on where it stopped; then its
history is rewound, branched, compared, merged, undone and redone.

    python examples/demo.py

No key and no server: the model and the tools are scripted. The agent runs in a process of its own, so that it can
really be killed with kill -9.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import everstep
from everstep import MergeConflict, SnapshotConfig, SnapshotTrigger

THREAD = "trip-to-oslo"
CONFIG = SnapshotConfig(gc_policy="keep_all")

# What the model would say: a thought, then a tool to call with its arguments (or none, when it is done).
SCRIPT: list[tuple[str, str, dict[str, Any]]] = [
    ("I should know the weather before I plan anything.", "weather", {"city": "Oslo", "days": 3}),
    ("Sun on Saturday. Let me see how to get there.", "trains", {"from": "Copenhagen", "to": "Oslo"}),
    ("The night train fits. Now a place to stay.", "hotels", {"city": "Oslo", "max_price": 150}),
    *(
        (f"What do guests say about the {name}?", "reviews", {"hotel": name})
        for name in ("Fjord View", "Old Mill", "Central", "Lighthouse", "Green Park", "Harbour", "Royal", "Station")
    ),
    ("The Fjord View is free and liked. What can we see?", "sights", {"city": "Oslo"}),
    ("Two museums and a walk. Is there a table for dinner?", "restaurants", {"city": "Oslo", "people": 2}),
    ("Good. I want to be sure the money is enough.", "budget", {"limit": 900}),
    ("Here is the plan: night train, fjord hotel, two museums, dinner on Saturday. 840 in all.", "", {}),
]


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """Return a long answer, the same for the same question."""
    rng = random.Random(f"{name}{sorted(arguments.items())}")
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(900)]
    return f"{name}: " + " ".join(words)


def agent(store_url: str, stuck_on: str) -> None:
    """Work until done. Every step is saved; whoever starts this again goes on from the last one."""
    engine = everstep.open(store_url, CONFIG).sync
    last = engine.get_latest(THREAD)
    if last is None:
        engine.append(THREAD, [{"role": "user", "content": "Plan a weekend in Oslo for two, under 900."}], {"turn": 0})
        say(1, "user asks for a weekend in Oslo")
    else:
        say(last.metadata.step, f"resumed: {len(last.messages)} messages, next is {last.next_node!r}")

    while (last := engine.get_latest(THREAD)) is not None:
        turn = last.state["turn"]
        if last.next_node.startswith("tool:"):
            call = last.messages[-1]["tool_call"]
            print(f"          ... tool {call['name']} is running", flush=True)
            if call["name"] == stuck_on:
                signal.pause()  # a slow tool: here the process will be killed
            result = run_tool(call["name"], call["arguments"])
            message = {"role": "tool", "name": call["name"], "content": result}
            trigger, tools_result, next_node = SnapshotTrigger.TOOL_CALL, {call["name"]: result[:60]}, "model"
            story = f"tool {call['name']} answered with {len(result):,} characters"
            turn += 1
        elif turn < len(SCRIPT):
            thought, tool, arguments = SCRIPT[turn]
            message = {"role": "assistant", "content": thought, "tool_call": {"name": tool, "arguments": arguments}}
            trigger, tools_result, next_node = SnapshotTrigger.LLM_CALL, {}, f"tool:{tool}" if tool else "end"
            story = f"model: {thought}"
            turn += not tool
        else:
            break
        engine.append(THREAD, [message], {"turn": turn}, tools_result, trigger, next_node)
        say(last.metadata.step + 1, story)
    engine.close()


def say(step: int, text: str) -> None:
    print(f"  step {step:>2}   {text}", flush=True)


def start(store_url: str, stuck_on: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "agent", store_url, stuck_on]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-demo-") as folder:
        path = Path(folder) / "agent.db"
        store_url = f"sqlite:///{path}"

        print("An agent plans a trip. Each model call and each tool call is a checkpoint in one SQLite file.\n")
        first = start(store_url, stuck_on="hotels")
        for line in first.stdout or ():
            print(line, end="")
            if "tool hotels is running" in line:
                os.kill(first.pid, signal.SIGKILL)
        print(f"\n          kill -9: the process is gone (exit {first.wait()}), in the middle of a tool call.\n")

        print("A new process opens the same file.\n")
        second = start(store_url)
        for line in second.stdout or ():
            print(line, end="")
        if second.wait() != 0:
            raise SystemExit("the resumed agent failed")

        with everstep.open(store_url, CONFIG).sync as engine:
            points = engine.list_time_travel_points(THREAD, 1000)
            if [p.step for p in points] != list(range(len(points), 0, -1)):
                raise SystemExit("a step is missing")
            print(f"\nDone: {len(points)} checkpoints, no step lost and none done twice.")
            explore(engine)
            sizes = {point.checkpoint_id: point.size_bytes for point in points}  # those that are hidden now included
            sizes |= {node["id"]: node["size_bytes"] for node in engine.get_checkpoint_tree(THREAD, 1000)["nodes"]}
            full_copies = sum(sizes.values())
        stored = sum(file.stat().st_size for file in path.parent.glob("agent.db*"))
        print(f"\nStored: {stored:,} bytes. A full copy per checkpoint would have taken {full_copies:,} bytes.")


def explore(engine: everstep.SyncEngine) -> None:
    """Go back to a decision, try two ways forward, compare them and merge both."""
    print("\nToo dear. Back to where the hotels were found:")
    result = engine.time_travel_to_step(THREAD, 7)
    if result is None:
        raise SystemExit("there is no step 7")
    print(
        f"  rewind  to step {result.checkpoint.metadata.step}: {result.rewind_depth} later ones are hidden, none lost"
    )

    here = result.checkpoint.metadata.checkpoint_id
    cheap, scenic = engine.branch(here, "cheap"), engine.branch(here, "scenic")
    print("  branch  twice from there, and go on in both:")
    go_on(engine, cheap, "The hostel by the station has a double room.", {"hotel": "Hostel"})
    go_on(engine, cheap, "The bus is 40 less than the train.", {"travel": "bus"})
    go_on(engine, scenic, "The lighthouse has one room left.", {"hotel": "Lighthouse"})
    go_on(engine, scenic, "A boat to the islands leaves at ten.", {"sunday": "islands"})

    print("\nCompared, cheap against scenic:")
    print(indented(engine.diff(head_of(engine, cheap), head_of(engine, scenic))))

    print("\nMerged into the trip, one after the other:")
    engine.merge_branch(cheap, THREAD)
    print("  merge   cheap: done")
    try:
        engine.merge_branch(scenic, THREAD)
    except MergeConflict as exc:
        for conflict in exc.conflicts:
            print(f"  merge   scenic: both changed {conflict.path}: {conflict.ours!r} here, {conflict.theirs!r} there")
    engine.merge_branch(scenic, THREAD, resolve={"state.hotel": "Lighthouse"})
    print(f"  merge   scenic, resolved: {shown_state(engine)}")
    undone = engine.undo(THREAD)
    print(f"  undo    {undone.kind}: {shown_state(engine)}")
    redone = engine.redo(THREAD)
    print(f"  redo    {redone.kind}: {shown_state(engine)}")

    print("\nThe whole history:\n")
    print(indented(everstep.draw(engine.get_checkpoint_tree(THREAD, 1000), width=100)))


def go_on(engine: everstep.SyncEngine, thread: str, thought: str, state: dict[str, Any]) -> None:
    """Add a model's step to a branch."""
    engine.append(thread, [{"role": "assistant", "content": thought}], state, trigger=SnapshotTrigger.LLM_CALL)
    name = thread.split("-branch-")[1].rsplit("-", 1)[0]
    print(f"          {name:<7} {thought}")


def head_of(engine: everstep.SyncEngine, thread: str) -> str:
    return engine.list_time_travel_points(thread, 1)[0].checkpoint_id


def shown_state(engine: everstep.SyncEngine) -> str:
    last = engine.get_latest(THREAD)
    return ", ".join(f"{key} {value}" for key, value in last.state.items() if key != "turn") if last else "nothing"


def indented(text: object) -> str:
    return "\n".join(f"  {line}" for line in str(text).splitlines())


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        agent(*sys.argv[2:])
    else:
        main()
