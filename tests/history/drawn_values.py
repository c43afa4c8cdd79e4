"""Strategies for the values that are compared and merged."""

from __future__ import annotations

from hypothesis import strategies as st

LONG = "x" * 3000

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "text", LONG, 1.0, 0.0, b"b"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "odd key", "c"]), inner, max_size=4)
        | st.dictionaries(st.sampled_from([1, "a"]), inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=12,
)

STATES = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), PLAIN, max_size=4)

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"content": st.sampled_from(["one", "two", LONG])}, optional={"id": st.sampled_from(["m1", "m2", "m3", 1, 2])}
    )
    | st.sampled_from([1, "text"]),
    max_size=6,
)
