"""Messages and large values to make trees of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.values.samples import Point, values


def large_values() -> st.SearchStrategy[Any]:
    """Values that are really in pieces."""
    text = st.text(max_size=40).map(lambda t: (t + "ab.\n") * 1200)
    item = values() | text | st.binary(max_size=20).map(lambda b: b * 2000)
    return st.one_of(
        st.lists(item, max_size=80),
        st.dictionaries(st.text(max_size=30), item, max_size=60),
        st.lists(item, max_size=40).map(tuple),
        st.dictionaries(st.integers(), item, max_size=40),
        st.sets(st.text(min_size=5), max_size=80),
        st.builds(Point, st.integers(), st.lists(item, max_size=30)),
    )


def message(n: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {n} " * 20}
