"""The text graph: exact drawings, and laws on random trees. A drawing can be read back, and says the edges again."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import InvalidInput
from everstep.history.drawing import LANES_MAX, draw

Dag = list[list[int]]
"""The parents of node 0, 1, ...: a parent has the greater number."""


def make_tree(*lines: str, thread: str = "trip", **more: Any) -> dict[str, Any]:
    """Return a tree from lines such as `m3 < m2 b1`: a child and its parents. `~m2` is a parent behind a gap.

    The letters of an id name its thread ("m" is `thread`), the digits its step.
    """
    nodes, edges = [], []
    for line in lines:
        child, _, parents = line.partition(" < ")
        nodes.append(make_node(child, thread))
        for parent in parents.split():
            edge = {"from": parent.lstrip("~"), "to": child, "gap": parent.startswith("~")}
            edges.append(edge | {"from_thread": _thread(edge["from"], thread), "to_thread": _thread(child, thread)})
    return {"thread_id": thread, "total_checkpoints": len(nodes), "nodes": nodes, "edges": edges} | more


def make_node(name: str, thread: str) -> dict[str, Any]:
    return {"id": name, "thread_id": _thread(name, thread), "step": int(name.lstrip("abcdefm")), "summary": name}


def _thread(name: object, thread: str) -> str:
    letter = str(name)[0]
    return thread if letter == "m" else letter


def change(tree: dict[str, Any], name: str, **keys: Any) -> dict[str, Any]:
    """Set keys of one node and return the tree."""
    next(node for node in tree["nodes"] if node["id"] == name).update(keys)
    return tree


def assert_drawn(tree: dict[str, Any], expected: str, width: int | None = None) -> None:
    assert draw(tree, width=width) == dedent(expected).strip("\n")


# Drawings


def test_a_straight_line_has_one_lane_and_no_connectors():
    tree = change(make_tree("m3 < m2", "m2 < m1", "m1"), "m3", head=True)
    assert_drawn(
        tree,
        """
        @  step 3  (HEAD trip) m3
        *  step 2  m2
        *  step 1  m1
        """,
    )


def test_the_main_thread_is_lane_0_though_a_branch_is_newer():
    tree = make_tree("b3 < b2", "m3 < m2", "b2 < m1", "m2 < m1", "m1")
    change(change(tree, "b3", head=True), "m3", head=True)
    change(tree, "b2", branch="plan b", tags=["branch", "plan b", "retry"])
    assert_drawn(
        tree,
        """
          @  step 3  (HEAD b) b3
        @ |  step 3  (HEAD trip) m3
        | *  step 2  (branch 'plan b') [retry] b2
        * |  step 2  m2
        |/
        *  step 1  m1
        """,
    )


def test_a_branch_from_the_head_goes_on_in_its_lane():
    tree = change(make_tree("b3 < m2", "m2 < m1", "m1"), "m2", head=True)
    assert_drawn(
        tree,
        """
        *  step 3  b3
        @  step 2  (HEAD trip) m2
        *  step 1  m1
        """,
    )


def test_the_line_of_the_head_is_straight_and_what_was_rewound_joins_it():
    tree = change(make_tree("m9 < m1", "m3 < m2", "m2 < m1", "m1"), "m3", head=True)
    assert_drawn(
        tree,
        """
          *  step 9  m9
        @ |  step 3  (HEAD trip) m3
        * |  step 2  m2
        |/
        *  step 1  m1
        """,
    )


def test_the_main_line_prefers_its_own_thread_to_a_newer_branch():
    tree = change(make_tree("b3 < m2", "m3 < m2", "m2"), "m2", head=True)
    assert_drawn(
        tree,
        """
          *  step 3  b3
        * |  step 3  m3
        |/
        @  step 2  (HEAD trip) m2
        """,
    )


def test_two_branches_and_a_merge():
    tree = make_tree("m5 < m4", "m4 < m3 b3", "c3 < c2", "m3 < m1", "b3 < b2", "c2 < m1", "b2 < m1", "m1")
    assert_drawn(
        tree,
        """
        *  step 5  m5
        *  step 4  m4
        |\\
        | | *  step 3  c3
        * | |  step 3  m3
        | * |  step 3  b3
        | | *  step 2  c2
        |_|/
        | *  step 2  b2
        |/
        *  step 1  m1
        """,
    )


def test_criss_cross_merges():
    tree = make_tree("m4 < m3 b3", "b3 < b2 m2", "m3 < m2 b2", "b2 < m1", "m2 < m1", "m1")
    assert_drawn(
        tree,
        """
        *  step 4  m4
        |\\
        | *  step 3  b3
        | |\\
        * | |  step 3  m3
        |_|/
        |\\|
        | *  step 2  b2
        * |  step 2  m2
        |/
        *  step 1  m1
        """,
    )


def test_a_merge_of_two_parents_that_both_have_lanes_ends_its_own():
    tree = make_tree("m4 < m2", "b3 < b1", "c4 < c1", "b4 < m2 c1", "c1", "b1", "m2")
    assert_drawn(
        tree,
        """
        *  step 4  m4
        | *  step 3  b3
        | | *  step 4  c4
        | | | *  step 4  b4
        |_|_|/|
        | | |/
        | | *  step 1  c1
        | *  step 1  b1
        *  step 2  m2
        """,
    )


def test_a_merge_of_the_main_line_leads_to_lane_0():
    tree = make_tree("b4 < b3 m3", "b3 < m2", "m3 < m2", "m2")
    assert_drawn(
        tree,
        """
          *  step 4  b4
         /|
        | *  step 3  b3
        * |  step 3  m3
        |/
        *  step 2  m2
        """,
    )


def test_a_new_lane_is_the_leftmost_free_one():
    tree = make_tree("m9 < m5", "b9 < m5", "m5 < m1", "c9 < c8", "d9 < m1", "c8 < m1", "m1")
    assert_drawn(
        tree,
        """
        *  step 9  m9
        | *  step 9  b9
        |/
        *  step 5  m5
        | *  step 9  c9
        | | *  step 9  d9
        |_|/
        | *  step 8  c8
        |/
        *  step 1  m1
        """,
    )


def test_of_several_free_lanes_the_leftmost_is_taken():
    tree = make_tree("m9 < m1", "b9 < b8", "c9 < c8", "d9 < d8", "d8", "b8", "c8", "e9", "m1")
    assert_drawn(
        tree,
        """
        *  step 9  m9
        | *  step 9  b9
        | | *  step 9  c9
        | | | *  step 9  d9
        | | | *  step 8  d8
        | * |  step 8  b8
        |   *  step 8  c8
        | *  step 9  e9
        *  step 1  m1
        """,
    )


def test_gaps_are_dotted_below_the_child():
    tree = make_tree("m9 < ~m5", "b7 < ~m5", "m5 < m4 ~c4", "m4 < ~m1", "c4 < m1", "m1")
    assert_drawn(
        tree,
        """
        *  step 9  m9
        :
        | *  step 7  b7
        |:
        *  step 5  m5
        |:
        * |  step 4  m4
        : |
        | *  step 4  c4
        |/
        *  step 1  m1
        """,
    )


def test_a_gap_and_a_fork_share_a_row():
    tree = make_tree("b9 < m5", "m9 < ~m5", "m5 < ~m4 b4", "m4", "b4")
    assert_drawn(
        tree,
        """
          *  step 9  b9
        * |  step 9  m9
        :/
        *  step 5  m5
        :\\
        * |  step 4  m4
          *  step 4  b4
        """,
    )


def test_notes_and_tags():
    tree = make_tree("m3 < m2", "m2 < m1", "m1")
    change(tree, "m3", head=True, pinned=True, tags=["tool_call", "retry"])
    change(tree, "m2", hidden=True, summary="")
    change(tree, "m1", branch="b", pinned=True, hidden=True, tags=["b", "branch"])
    assert_drawn(
        tree,
        """
        @  step 3  (HEAD trip, pinned) [tool_call, retry] m3
        *  step 2  (hidden)
        *  step 1  (branch 'b', pinned, hidden) m1
        """,
    )


def test_the_tag_branch_stays_where_no_branch_begins():
    assert draw(change(make_tree("m1"), "m1", tags=["branch"], branch=None)) == "*  step 1  [branch] m1"


def test_hostile_text_stays_in_its_row_and_moves_nothing():
    tree = make_tree("m2 < m1", "m1", thread="tr\x1b]0;x\x07ip")
    change(
        tree, "m2", head=True, tags=["a\nb", "\x9b31m", "\r\n"], summary="one\r\n*  step 9\u2028two\x00\x1b[2J\u202etxt"
    )
    change(tree, "m1", branch="x\u2066y\u2069", summary="\ud800 caf\u00e9 \x85\x7f\t")
    assert_drawn(
        tree,
        """
        @  step 2  (HEAD tr ]0;x ip) [a b, 31m] one *  step 9 two [2J txt
        *  step 1  (branch 'x y') \ufffd caf\u00e9
        """,
    )


@pytest.mark.parametrize("nodes", [[], ()])
def test_no_nodes(nodes):
    assert draw({"nodes": nodes}) == "(no checkpoints)"


def test_what_is_not_shown_is_counted():
    assert draw(make_tree("m2", total_checkpoints=40)) == "*  step 2  m2\n(39 older checkpoints not shown)"
    assert draw(make_tree("m2", total_checkpoints=2)) == "*  step 2  m2\n(1 older checkpoint not shown)"
    assert draw({"nodes": [], "total_checkpoints": 5}) == "(5 older checkpoints not shown)"


def test_rows_are_cut_at_the_width():
    tree = change(make_tree("m12 < m11", "b12 < m11", "m11"), "m12", head=True, summary="x" * 100)
    assert_drawn(
        tree,
        """
        @  step 12  (HEA...
        | *  step 12  b12
        |/
        *  step 11  m11
        """,
        width=19,
    )


def test_a_cut_never_takes_the_mark():
    tree = make_tree("m2 < m1", "b2 < m1", "c2 < b1", "d2 < b1", "b1", "m1")
    assert_drawn(
        tree,
        """
        *
        | *
        |/
        | *
        | | *
        |
        | *
        *
        """,
        width=2,
    )


@pytest.mark.parametrize("width", [0, 1])
def test_the_smallest_width_leaves_the_lanes_up_to_the_mark(width):
    assert draw(make_tree("m1", "m0"), width=width).split() == ["*", "*"]


def test_without_a_width_only_the_summary_is_cut():
    tree = change(make_tree("m1"), "m1", tags=["t" * 90], summary="s" * 61)
    assert draw(tree) == f"*  step 1  [{'t' * 90}] {'s' * 57}..."
    assert draw(change(tree, "m1", summary="s" * 60)).endswith(" " + "s" * 60)


def test_an_id_may_stand_in_two_threads():
    nodes = [
        {"id": "x", "thread_id": "b", "step": 3, "summary": "copy"},
        {"id": "y", "thread_id": "trip", "step": 2},
        {"id": "x", "thread_id": "trip", "step": 1, "summary": "original"},
    ]
    edges = [
        {"from": "x", "to": "y", "from_thread": "trip", "to_thread": "trip"},
        {"from": "x", "to": "x", "from_thread": "trip", "to_thread": "b"},
    ]
    assert_drawn(
        {"thread_id": "trip", "nodes": nodes, "edges": edges},
        """
          *  step 3  copy
        * |  step 2
        |/
        *  step 1  original
        """,
    )


def test_an_edge_without_threads_means_the_first_node_of_that_id():
    nodes = [{"id": "y", "step": 3}, {"id": "x", "thread_id": "b", "step": 2}, {"id": "x", "step": 1}]
    assert_drawn(
        {"thread_id": "trip", "nodes": nodes, "edges": [{"from": "x", "to": "y"}]},
        """
        *  step 3
        *  step 2

        *  step 1
        """,
    )


def test_all_keys_but_the_id_may_be_missing():
    assert draw({"nodes": [{"id": "x"}, {"id": "y", "head": True}]}) == "*  step ?\n\n@  step ?  (HEAD)"


def test_a_lane_ends_where_the_parent_is_not_in_the_tree():
    edges = [{"from": "gone", "to": "m2"}, {"from": "m2", "to": "gone"}, {"from": "m1"}, None]
    tree = make_tree("m2", "b1")
    assert_drawn(
        tree | {"edges": edges},
        """
        *  step 2  m2

        *  step 1  b1
        """,
    )


def test_an_edge_said_twice_and_one_to_itself_are_drawn_once_and_never():
    said = make_tree("b3 < b1", "m2 < m1 m1 m2", "m1", "b1")
    assert draw(said) == draw(make_tree("b3 < b1", "m2 < m1", "m1", "b1"))


def test_a_wrong_order_is_sorted():
    assert_drawn(
        make_tree("m1", "m2 < m1", "m3 < m2", "b2 < m1"),
        """
        *  step 3  m3
        *  step 2  m2
        | *  step 2  b2
        |/
        *  step 1  m1
        """,
    )


def test_a_circle_is_opened_at_the_first_of_its_nodes():
    assert_drawn(
        make_tree("m5 < m2", "m2 < m1", "m1 < m3 m0", "m3 < m2", "m0"),
        """
        *  step 5  m5
        *  step 2  m2
        *  step 1  m1
        |\\
        * |  step 3  m3
          *  step 0  m0
        """,
    )


def test_lanes_from_the_41st_on_share_a_column():
    branches = [f"b{n} < c{n}" for n in range(1, LANES_MAX + 2)]
    joins = [f"d9 < c{LANES_MAX + 1}", "e9 < c1"]
    roots = [f"c{n}" for n in range(LANES_MAX + 1, 0, -1)]
    rows = draw(make_tree("m9 < m1", *branches, *joins, *roots, "m1")).split("\n")

    pipes = "| " * LANES_MAX
    assert rows[39:50] == [
        pipes[:78] + "*  step 39  b39",
        pipes + "*  step 40  (lane 40) b40",
        pipes + "*  step 41  (lane 41) b41",
        pipes + "*  step 9  (lane 42) d9",
        pipes + "+",
        pipes + "*  step 9  (lane 42) e9",
        "| |" + "_|" * 38 + "/+",
        pipes + "*  step 41  (lane 41) c41",
        pipes + "*  step 40  (lane 40) c40",
        pipes[:78] + "*  step 39  c39",
        pipes[:76] + "*  step 38  c38",
    ]


@pytest.mark.parametrize(
    "tree",
    [None, [], {}, {"nodes": None}, {"nodes": {}}, {"nodes": [1]}, {"nodes": [{}]}, {"nodes": [{"id": 1}]}],
)
def test_what_is_not_a_tree_is_refused(tree):
    with pytest.raises(InvalidInput, match="checkpoint tree"):
        draw(tree)


@pytest.mark.parametrize("width", [-1, True, "80", 1.5])
def test_a_width_is_a_whole_number(width):
    with pytest.raises(InvalidInput, match="width"):
        draw(make_tree("m1"), width=width)


# Laws


@st.composite
def dags(draw_value: st.DrawFn, parents_max: int = 2) -> Dag:
    count = draw_value(st.integers(1, 25))
    return [
        draw_value(
            st.lists(st.integers(child + 1, min(count - 1, child + 8)), max_size=parents_max, unique=True)
            if child < count - 1
            else st.just([])
        )
        for child in range(count)
    ]


def make_dag_tree(dag: Dag, threads: list[int], order: list[int] | None = None) -> dict[str, Any]:
    """Return the tree in which node n has the step n; the threads go round."""
    names = [f"t{threads[n % len(threads)]}" for n in range(len(dag))]
    nodes = [{"id": f"n{n}", "thread_id": names[n], "step": n} for n in order or range(len(dag))]
    edges = [
        {"from": f"n{parent}", "to": f"n{child}", "from_thread": names[parent], "to_thread": names[child]}
        for child, parents in enumerate(dag)
        for parent in parents
    ]
    return {"thread_id": "t0", "total_checkpoints": len(dag), "nodes": nodes, "edges": edges}


ROW = re.compile(r"(?P<lanes>[ |]*\*[ |]*?)  step (?P<step>\d+)")


def read_steps(drawing: str) -> list[int]:
    return [int(row["step"]) for row in map(ROW.fullmatch, drawing.split("\n")) if row]


def read_edges(drawing: str) -> set[tuple[int, int]]:
    """Return the edges, child and parent, that the lines of a drawing say."""
    lanes: dict[int, set[int]] = {}
    edges: set[tuple[int, int]] = set()
    here, child = -1, -1
    for row in drawing.split("\n"):
        found = ROW.fullmatch(row)
        signs = found["lanes"] if found else row
        goes_on = signs[2 * here : 2 * here + 1].strip()
        if here >= 0 and goes_on:
            lanes.setdefault(here, set()).add(child)
        elif here >= 0:
            lanes.pop(here, None)
        if found:
            here, child = signs.index("*") // 2, int(found["step"])
            edges |= {(above, child) for above in lanes.pop(here, set())}
            continue
        if row.strip(" |"):
            follow_connector(row, lanes, here, child)
        here = here if goes_on else -1
    return edges


def follow_connector(row: str, lanes: dict[int, set[int]], here: int, child: int) -> None:
    corner = re.search(r"[/\\]", row)
    assert corner is not None
    right = (corner.start() + 1) // 2
    left = right - 1
    while left > 0 and row[2 * left - 1] in "_-":
        left -= 1
    assert here in (left, right), row
    if here == right or corner[0] == "\\":
        lanes.setdefault(left + right - here, set()).add(child)
    else:
        lanes.setdefault(left, set()).update(lanes.pop(right))


def open_edges(dag: Dag, row: int) -> int:
    """Return the number of edges that begin, pass or end in a row."""
    return sum(child <= row <= parent for child, parents in enumerate(dag) for parent in parents)


THREADS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(dags(), THREADS)
def test_a_drawing_says_each_node_once_and_all_edges(dag, threads):
    drawing = draw(make_dag_tree(dag, threads))

    assert read_steps(drawing) == list(range(len(dag)))
    assert read_edges(drawing) == {(child, parent) for child, parents in enumerate(dag) for parent in parents}


@given(dags(parents_max=4), THREADS)
def test_more_than_two_parents_are_drawn_too(dag, threads):
    edges = {(child, parent) for child, parents in enumerate(dag) for parent in parents}
    assert read_edges(draw(make_dag_tree(dag, threads))) == edges


@given(dags(), THREADS, st.data())
def test_in_any_order_given_children_stand_above_their_parents(dag, threads, data):
    order = data.draw(st.permutations(range(len(dag))))
    drawing = draw(make_dag_tree(dag, threads, order))

    place = {step: row for row, step in enumerate(read_steps(drawing))}
    assert sorted(place) == list(range(len(dag)))
    assert all(place[child] < place[parent] for child, parents in enumerate(dag) for parent in parents)
    assert read_edges(drawing) == {(child, parent) for child, parents in enumerate(dag) for parent in parents}


@given(st.lists(st.lists(st.integers(0, 11), max_size=3), min_size=1, max_size=12), THREADS)
def test_circles_lose_edges_but_no_nodes(links, threads):
    dag = [[parent for parent in parents if parent < len(links)] for parents in links]
    drawing = draw(make_dag_tree(dag, threads))

    assert sorted(read_steps(drawing)) == list(range(len(dag)))
    assert read_edges(drawing) <= {(child, parent) for child, parents in enumerate(dag) for parent in parents}


@given(dags(), THREADS)
def test_lanes_are_at_most_the_open_edges_and_one(dag, threads):
    """Lane 0 counts as open while it is kept for the main line."""
    rows = [found["lanes"] for found in map(ROW.fullmatch, draw(make_dag_tree(dag, threads)).split("\n")) if found]

    main = next((row for row, signs in enumerate(rows) if signs.startswith("*")), len(rows))
    bounds = [open_edges(dag, row) + (row < main) + 1 for row in range(len(rows))]
    assert all(len(signs.split()) <= bound for signs, bound in zip(rows, bounds, strict=True))
    assert all((len(signs) + 1) // 2 <= max(bounds[: row + 1]) for row, signs in enumerate(rows))


@given(dags(), THREADS)
def test_the_line_of_first_parents_below_the_main_thread_is_straight(dag, threads):
    tree = make_dag_tree(dag, threads)
    row = next((n for n, node in enumerate(tree["nodes"]) if node["thread_id"] == "t0"), None)
    rows = [found["lanes"] for found in map(ROW.fullmatch, draw(tree).split("\n")) if found]

    while row is not None:
        assert rows[row].startswith("*")
        row = dag[row][0] if dag[row] else None


TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(["\x1b[2J", "\n@  step 1", "\u202e", "\u2028", "\ud800"])
NODES = st.fixed_dictionaries(
    {"id": TEXT},
    optional={
        "thread_id": TEXT,
        "step": st.integers(0, 99) | TEXT,
        "tags": st.lists(TEXT, max_size=3),
        "summary": TEXT | st.none(),
        "head": st.booleans(),
        "branch": TEXT | st.none(),
        "pinned": st.booleans(),
        "hidden": st.booleans(),
    },
)
UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.lists(NODES, max_size=6), TEXT, st.none() | st.integers(0, 30))
def test_any_text_is_one_row_and_safe_and_fits(nodes, thread, width):
    tree = {"thread_id": thread, "nodes": nodes, "edges": []}
    drawing = draw(tree, width=width)

    rows = drawing.split("\n")
    assert len([row for row in rows if row]) == max(len(nodes), 1)
    assert not UNSAFE.search(drawing)
    assert all(row == row.rstrip() for row in rows)
    if width is not None and nodes:
        assert all(len(row) <= max(width, 3) for row in rows)
    assert drawing == draw(tree, width=width)
