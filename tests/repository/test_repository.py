"""What a repository makes of the bytes that a store gives it."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.errors import CheckpointCorrupted
from everstep.repository.repository import verified
from everstep.stores.protocol import Object
from everstep.testing import make_object


@pytest.mark.parametrize("part", [{"children": 0}, {"children": ""}, {"children": None}, {"body": 1}, {"hash": "text"}])
def test_an_object_whose_parts_are_no_bytes_is_damaged(part: dict[str, Any]) -> None:
    """As in a row of SQLite of which one bit was flipped: it is the bit that says of which type a column is."""
    whole = make_object(b"body")
    assert verified([whole]) == {whole.hash: (b"", b"body")}
    damaged: Object = whole._replace(**part)
    with pytest.raises(CheckpointCorrupted, match="bytes"):
        verified([damaged])
