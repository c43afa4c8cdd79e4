"""A run of DBOS, for `benchmarks.durable_runs`. A script of its own, run by an environment that has DBOS and not us."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found,unused-ignore]


@DBOS.step()  # type: ignore[untyped-decorator,unused-ignore]
def work(number: int, words: int) -> dict[str, Any]:
    return {"number": number, "text": " ".join([str((number + 7) * word % 9973) for word in range(words)])}


@DBOS.workflow()  # type: ignore[untyped-decorator,unused-ignore]
def flow(steps: int, words: int) -> int:
    for number in range(steps):
        work(number, words)
    return steps


def seconds(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def fork_and_wait(workflow: str, steps: int) -> tuple[float, float]:
    """Return the seconds until a fork is made, and until it has run to its end."""
    began = time.perf_counter()
    fork = DBOS.fork_workflow(workflow, steps)
    forked = time.perf_counter() - began
    while DBOS.get_workflow_status(fork.workflow_id).status not in ("SUCCESS", "ERROR"):
        time.sleep(0.001)
    return forked, time.perf_counter() - began


def main(url: str, steps: int, words: int) -> None:
    config: Any = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False}
    DBOS(config=config)
    DBOS.launch()
    flow(10, 0)
    found: dict[str, float] = {}
    with SetWorkflowID("small results"):
        found["step"] = seconds(lambda: flow(steps, 0)) / steps
    found["start"] = min([seconds(lambda: flow(0, 0)) for _ in range(10)])
    forks = [fork_and_wait("small results", steps) for _ in range(5)]
    found["fork"] = min([forked for forked, _ in forks])
    found["resume"] = min([whole for _, whole in forks])
    with SetWorkflowID("large results"):
        flow(steps, words)
    forks = [fork_and_wait("large results", steps) for _ in range(5)]
    found["large_fork"] = min([forked for forked, _ in forks])
    print(json.dumps(found))
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
