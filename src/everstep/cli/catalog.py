"""The commands by name: where each is defined, and one line about it. Imports nothing, so that help comes at once."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than everything here

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Look": {
        "threads": ("looking", "List threads, or search them."),
        "log": ("looking", "Show the history of a thread, as a list or as a graph."),
        "show": ("inspecting", "Show one checkpoint: what it holds, and what it changed."),
        "get": ("inspecting", "Print one value as JSON, for scripts."),
        "diff": ("inspecting", "Compare any two checkpoints."),
        "blame": ("inspecting", "Tell which steps have changed a value."),
        "tail": ("looking", "Follow what agents write, as it happens."),
    },
    "Go back, fork, merge": {
        "rewind": ("history", "Make an earlier checkpoint the head; later ones are hidden, not deleted."),
        "undo": ("history", "Take back the last rewind, fork, merge, pin, tag, note or name."),
        "redo": ("history", "Do again what undo took back."),
        "ops": ("history", "Show the log of operations of a thread."),
        "fork": ("history", "Start a branch at a checkpoint, with other values if you like."),
        "merge": ("history", "Merge a branch into another thread; conflicts are listed."),
        "replay": ("history", "Tell what would run next from a checkpoint, and which results are there already."),
    },
    "Durable runs": {
        "runs": ("durable", "List durable runs, and how they stand."),
        "run": ("durable", "Show one run: its steps, what it waits for, how it ended."),
        "answer": ("durable", "Answer a question of a run."),
        "signal": ("durable", "Tell a run of an event that it waits for."),
        "resume": ("durable", "Take one run up, also one that failed, with the code of your program."),
        "recover": ("durable", "Take up every run that has something to do; --watch for ever, as a worker."),
    },
    "Names": {
        "branch": ("names", "List the branches of a thread; rename, archive or delete one."),
        "tag": ("names", "List the tags of a thread, give a checkpoint one, or take it away."),
        "note": ("names", "Note something about a checkpoint, or print what is noted."),
        "pin": ("names", "Keep a checkpoint from retention."),
        "unpin": ("names", "Leave a checkpoint to retention again."),
    },
    "Move": {
        "copy": ("moving", "Copy histories from one store to another."),
        "export": ("archives", "Write threads into one portable file."),
        "import": ("archives", "Read threads from such a file."),
        "backup": ("archives", "Save a store into a folder; later runs add what is new."),
        "restore": ("archives", "Fill a store from a backup."),
        "import-langgraph": ("moving", "Bring over threads from LangGraph's own savers."),
    },
    "Care": {
        "stats": ("care", "Show what threads take in storage."),
        "retention": ("care", "Show, try or apply which checkpoints are kept."),
        "gc": ("care", "Give back the space of what nothing needs any more."),
        "verify": ("upkeep", "Check everything that is stored, and name what is damaged."),
        "repair": ("upkeep", "Set aside what is damaged, and keep all that is whole."),
        "migrate": ("care", "Tell whether the store has the newest format."),
        "rm": ("care", "Delete threads."),
        "purge": ("care", "Delete all threads that match, physically and for good."),
        "doctor": ("doctor", "Check the store, its settings and this machine, and say what to do."),
    },
    "Start": {
        "ui": ("starting", "Open the page in a browser."),
        "demo": ("starting", "Make a store with demo data."),
        "config": ("starting", "Show which store is used, and why."),
        "completion": ("starting", "Print the completion script for bash, zsh or fish."),
    },
}
"""For each section of the help: name, module of `everstep.cli.commands`, one line."""

HEAD = """\
everstep: look into a store of checkpoints, go back, fork, merge, and take care of it.

Usage: everstep COMMAND [OPTIONS] [ARGUMENTS]
"""

FOOT = """\
Options of every command:
  --store URL              the store: a file or a URL (or EVERSTEP_STORE, or a config file)
  --profile NAME           one of the stores that a config file names
  --json, --jsonl          one JSON document, or one per line; -o table|json|jsonl
  --color WHEN             auto, always or never
  --no-pager, -q           write to the terminal at once; no hints
  --help, --version

A checkpoint is written as THREAD (its newest), THREAD@~3 (three back), THREAD#42 (step 42),
THREAD@1f3a (the begin of an id), THREAD@TAG or THREAD@{2026-11-15T10:00}. Without THREAD
(@, @~3, #42) it is the thread that was active last.

Try it:  everstep demo demo.db && everstep log --store demo.db --graph trip-to-oslo
"""


def module_of(name: str) -> str | None:
    """Return the module that defines a command, or None if there is no such command."""
    for commands in SECTIONS.values():
        if name in commands:
            return "everstep.cli.commands." + commands[name][0]
    return None


def summary_of(name: str) -> str:
    """Return the one line about a command."""
    return next(commands[name][1] for commands in SECTIONS.values() if name in commands)


def names() -> list[str]:
    """Return the names of all commands, in the order of the help."""
    return [name for commands in SECTIONS.values() for name in commands]


def help_text() -> str:
    """Return what `everstep --help` prints."""
    parts = [HEAD]
    width = max(map(len, names()))
    for title, commands in SECTIONS.items():
        lines = [f"  {name:<{width}}  {about}" for name, (_, about) in commands.items()]
        parts.append(f"{title}:\n" + "\n".join(lines) + "\n")
    parts.append(FOOT)
    return "\n".join(parts)
