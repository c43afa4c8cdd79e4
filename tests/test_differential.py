"""One random sequence of operations gives the same answers on every store."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import everstep
from everstep.faces import run_to_end
from tests.conftest import STORES, Place
from tests.histories import Walker, seen

POLICIES: list[dict[str, Any]] = [
    {"gc_policy": "keep_all"},
    {"gc_policy": "keep_last_n", "gc_param": 8},
    {"gc_policy": "keep_milestones", "gc_param": 6},
]


@pytest.mark.parametrize("seed", range(6))
def test_the_same_answers_everywhere(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, looks = zip(*(lived(kind, seed, tmp_path / kind, monkeypatch) for kind in STORES), strict=True)
    for kind, others_told, look in zip(STORES[1:], told[1:], looks[1:], strict=True):
        for turn, (one, other) in enumerate(zip(told[0], others_told, strict=True)):
            assert one == other, (kind, turn)
        assert looks[0] == look, kind
    assert len(set(told[0])) > 40


def lived(kind: str, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Any]:
    """Return what a walk on a new store was answered, and what could be seen at its end."""
    folder.mkdir()
    tokens = itertools.count()
    ours = SimpleNamespace(token_hex=lambda _: f"{next(tokens):08x}")
    for module in ("everstep.steps", "everstep.timeline"):  # drivers take tokens too
        monkeypatch.setattr(f"{module}.secrets", ours)
    store = Place(kind, folder).open()
    told = Walker(everstep.StoreBackend(store), seed, **POLICIES[seed % len(POLICIES)]).walk(120)
    look = seen(store, times=False)
    run_to_end(store.blocking.close())
    return told, without_generations(look)


def without_generations(look: dict[str, Any]) -> dict[str, Any]:
    """A store may count on from where a deleted namespace left off, or begin anew."""
    for what in look.values():
        if isinstance(what, dict):
            origin, heads, *rest = what["thread"]
            what["thread"] = origin, {name: head for name, (head, _) in heads.items()}, *rest
    return look
