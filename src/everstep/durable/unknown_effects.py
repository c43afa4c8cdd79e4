"""Effects that were begun, and of which nobody knows whether they happened: what is asked about them, and answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import InvalidInput
from everstep.runtime import checks


class Unknown(NamedTuple):
    """An effect that was begun, and of which nobody knows whether it happened. For the function of `on_unknown`."""

    thread_id: str
    key: str
    step_key: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def happened(result: Any = None) -> dict[str, Any]:
    """Return the answer to whether an effect happened: it did, and this is its result."""
    return {"happened": True, "result": result}


def did_not_happen() -> dict[str, Any]:
    """Return the answer to whether an effect happened: it did not, so it may be performed now."""
    return {"happened": False}


def check_happened(key: str, answer: Any) -> None:
    """Raise InvalidInput if an answer does not say whether an effect happened."""
    if not isinstance(answer, dict) or not isinstance(answer.get("happened"), bool):
        raise InvalidInput(
            f"whether {key!r} happened is answered by everstep.happened(result) or everstep.did_not_happen(), "
            f"not {checks.shown(answer)}"
        )
