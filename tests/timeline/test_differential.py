"""One random sequence of operations gives the same answers on every store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.runtime.blocking import run_to_end
from tests.conftest import WITH_EXAMPLES, Place
from tests.timeline.histories import Walker, same_tokens, seen

POLICIES: list[dict[str, Any]] = [
    {"gc_policy": "keep_all"},
    {"gc_policy": "keep_last_n", "gc_param": 8},
    {"gc_policy": "keep_milestones", "gc_param": 6},
]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_the_same_answers_everywhere(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = WITH_EXAMPLES
    told, looks = zip(*(lived(kind, seed, tmp_path / kind, monkeypatch) for kind in kinds), strict=True)
    for kind, others_told, look in zip(kinds[1:], told[1:], looks[1:], strict=True):
        for turn, (one, other) in enumerate(zip(told[0], others_told, strict=True)):
            assert one == other, (kind, turn)
        assert looks[0] == look, kind
    assert len(set(told[0])) > 40


def lived(kind: str, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Any]:
    """Return what a walk on a new store was answered, and what could be seen at its end."""
    folder.mkdir()
    same_tokens(monkeypatch)
    store = Place(kind, folder).open()
    told = Walker(everstep.StoreBackend(store), seed, **POLICIES[seed % len(POLICIES)]).walk(120)
    look = seen(store, times=False)
    run_to_end(store.blocking.close())
    return told, look
