"""How a run stands, as the metadata of its head tells."""

from __future__ import annotations

RUNNING = "running"
WAITING = "waiting"
READY = "ready"
DONE = "done"
FAILED = "failed"
PAUSED = "paused"
"""Nobody takes it up by itself: a branch that was made, or a run that goes on in a branch."""
