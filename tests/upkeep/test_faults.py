"""Every row, key, column and field of a family is lost or changed, one at a time: each is found, for the right thread.

`UNNOTICED` says what cannot be: what nothing else tells of, or what does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.upkeep.sites import Site, site

KINDS = ("memory", "sealed", "sqlite", "postgres", "redis")
UNNOTICED = {
    # Entries of the log that hide nothing, pending writes and common states are told of by nothing else.
    "memory": r"[ew]\slost",
    "sealed": r"[ew]\slost",
    "sqlite": r"families\.swept|objects\.id|operations\slost|writes\slost|shared_states\slost|facts\.key",
    # Its rows have no checksums of their own: the server has those, of pages.
    "postgres": r"""families\.(format|sweeps|live|generation|shift|swept)|threads\.note|lines\.(head_was_moved
                    |generation|active|unreferenced|incoming)|checkpoints\.(seq|added|pinned)|objects\.id|writes(\slost
                    |\.seq)|operations\.undone|hidden\.(after|operation)|covers\.upto|shared_states\slost""",
    "redis": r".*:heads\sb'(made|version|sizes)'|family:\S+\sb'(format|seq|sizes)'",
}
ELSEWHERE = {
    # What is not of one thread; or was, and is put into the place of another's by the change.
    "memory": r"[$#@]\s",
    "sealed": r"[$#@]\s",
    "sqlite": r"""counters|families\.id|threads\.(name|began)|lines\.(id|thread)|lines\slost|\w+\.line\s
                  |operations\.thread|shared_states\.low""",
    "postgres": r"names\.name|threads\.name|(writes|shared_states)\.family",
    "redis": r"nothing",
}
"""What is found, and may name other threads or none."""


@pytest.fixture(params=KINDS)
def harmed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = site(str(request.param), tmp_path)
    yield made
    made.close()


@pytest.mark.long
def test_every_harm_is_found_for_its_thread(harmed: Site) -> None:
    assert harmed.verified().ok
    unnoticed = re.compile(UNNOTICED[harmed.kind], re.VERBOSE)
    elsewhere = re.compile(ELSEWHERE[harmed.kind], re.VERBOSE)
    tried: set[str] = set()
    for name, harm in list(harmed.harms()):
        kind = name.split(" b'")[0]
        if harmed.kind in ("sqlite", "postgres") and kind.split("lost")[0] in tried:
            continue  # a row of a table is as good as another
        tried.add(kind.split("lost")[0])
        harmed.put_back()
        harm()
        report = harmed.verified()
        if unnoticed.match(name):
            assert set(report.damaged_threads) <= harmed.touched, (name, str(report))
            continue
        assert not report.ok, name
        if not elsewhere.match(name):
            assert report.damaged_threads, (name, str(report))
            assert set(report.damaged_threads) <= harmed.touched, (name, str(report))
    assert len(tried) > 15
