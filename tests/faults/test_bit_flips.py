"""One flipped bit anywhere in the file: the right answer or an error of ours, never a wrong answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.blocking import run_to_end
from everstep.stores.sqlite import opening as sqlite_opening
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.faults.contents import everything, fill, wrong_after


def make(path: Path) -> None:
    run_to_end(fill(path).close())


@pytest.fixture(autouse=True)
def _nobody_is_making_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that looks damaged while it is opened is looked at again for a second: somebody may be making it."""
    monkeypatch.setattr(sqlite_opening, "_MAKING_SECONDS", 0.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    path = tmp_path_factory.mktemp("flips") / "original.db"
    make(path)
    data = path.read_bytes()
    answers = everything(path)
    assert not any(isinstance(answer, Exception) for answer in answers.values())
    assert len(answers) > 200
    return data, answers


@pytest.mark.long
def test_single_bit_flips_are_never_silently_wrong(original: tuple[bytes, dict[str, Any]], tmp_path: Path) -> None:
    data, truth = original
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    places = [(at, bit) for at in range(100) for bit in (rng.randrange(8),)]  # the file's header
    places += [(rng.randrange(len(data)), rng.randrange(8)) for _ in range(300)]
    noticed = 0
    for at, bit in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        wrong, loud = wrong_after(bytes(flipped), truth, tmp_path / "flipped.db")
        assert wrong == [], f"seed {seed}: bit {bit} of byte {at}"
        noticed += loud
    assert noticed > len(places) // 4  # the others are in places that hold nothing


def forged(data: bytes, place: int) -> bytes:
    """Return `data` with a bit flipped at `place` and the page's checksum put right again."""
    flipped = bytearray(data)
    flipped[place] ^= 1
    start = place // PAGE_BYTES * PAGE_BYTES
    end = start + PAGE_BYTES
    flipped[end - 8 : end] = _page_checksum(bytes(flipped[start : end - 8]))
    return bytes(flipped)


def test_records_and_objects_have_checksums_of_their_own(
    original: tuple[bytes, dict[str, Any]], tmp_path: Path
) -> None:
    data, truth = original
    for text in (b"State: 1 keys", random.Random(7).randbytes(400)[:20]):
        places = [at for at in range(len(data)) if data.startswith(text, at)]
        found = [wrong_after(forged(data, place + 3), truth, tmp_path / "forged.db") for place in places]
        assert [wrong for wrong, _ in found if wrong] == []
        assert any(loud for _, loud in found)  # some places are left-overs in pages, which nobody reads


def test_this_test_can_fail(original: tuple[bytes, dict[str, Any]], tmp_path: Path) -> None:
    """Without page checksums a flip in an index would be a silently wrong answer, and is seen as one here."""
    data, truth = original
    places = [at for at in range(len(data)) if data.startswith(b"ckpt-thread 3-2-", at)]
    found = [wrong_after(forged(data, place + 12), truth, tmp_path / "forged.db")[0] for place in places]
    assert any(found)


def _page_checksum(page: bytes) -> bytes:
    """SQLite's page checksum: two running sums over little-endian words."""
    one = two = 0
    for at in range(0, len(page), 8):
        one = (one + int.from_bytes(page[at : at + 4], "little") + two) & 0xFFFFFFFF
        two = (two + int.from_bytes(page[at + 4 : at + 8], "little") + one) & 0xFFFFFFFF
    return one.to_bytes(4, "little") + two.to_bytes(4, "little")
