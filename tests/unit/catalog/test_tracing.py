"""Factors of a tensor under views, worked out by hand: no framework is imported."""

from meshwright.catalog.graphs.operators import made_by
from meshwright.catalog.graphs.rules.calls import OpCall
from meshwright.catalog.graphs.tracing import GraphBuilder


def test_repeats_add_a_factor_only_where_an_axis_grows() -> None:
    """4 x 1 x 6 seen as 5 x 4 x 3 x 12: 5 is new, 1 becomes 3, 6 becomes 2 of 6; 4 is as it was."""
    to = GraphBuilder(word_bytes=2.0)
    value = to.input("x", (4, 1, 6), 2.0, ("batch", "one", "width"))
    seen = value.expanded((5, 4, 3, 12), to.num_names)
    assert seen.shape == (5, 4, 3, 12)
    assert [[factor.size for factor in axis] for axis in seen.axes] == [[5], [4], [3], [2, 6]]
    assert seen.places == value.places  # nothing is copied

    inside = value.expanded((4, 1, 12), to.num_names, inside=True)
    assert [[factor.size for factor in axis] for axis in inside.axes] == [[4], [], [6, 2]]


def test_a_reshape_splits_a_factor_and_a_transpose_moves_it() -> None:
    """6 x 8 as 6 x 2 x 4, then 2 x 6 x 4: the outer part of 8 comes first."""
    to = GraphBuilder(word_bytes=2.0)
    value = to.input("x", (6, 8), 2.0, ("rows", "columns"))
    heads = value.reshaped((6, 2, 4)).permuted((1, 0, 2))
    assert heads.shape == (2, 6, 4)
    assert [axis[0].name for axis in heads.axes] == ["columns.0", "rows", "columns.1"]


def called(to: GraphBuilder, operator: str, shape: tuple[int, ...], **arguments: object) -> object:
    """Return what an operator makes of its arguments."""
    call = OpCall("made", arguments, [shape], 2.0)
    return made_by(to, operator, call, node="made", written=operator, origin="here")


def test_a_tensor_overwritten_by_a_number_is_itself_and_by_a_part_a_move() -> None:
    """8 x 4 with rows 2 to 5 overwritten: 3 x 4 read, 8 x 4 written, nothing computed."""
    to = GraphBuilder(word_bytes=2.0)
    value = to.input("x", (8, 4), 2.0, ("rows", "columns"))
    assert called(to, "slice_scatter", (8, 4), self=value, src=0.0, dim=0) is value
    assert not to.kernels
    part = to.input("part", (3, 4), 2.0)
    put = called(to, "slice_scatter", (8, 4), self=value, src=part, dim=0)
    assert put.shape == (8, 4)
    assert to.kernels["made"].unit == "none"
    assert [read.name for read in to.kernels["made"].reads] == ["x", "part"]


def test_tensors_are_stacked_along_a_new_first_axis_unless_another_is_stated() -> None:
    to = GraphBuilder(word_bytes=2.0)
    both = [to.input(name, (5, 7), 2.0) for name in "ab"]
    assert called(to, "stack", (2, 5, 7), tensors=both).shape == (2, 5, 7)
    assert called(to, "stack", (5, 7, 2), tensors=both, dim=-1).shape == (5, 7, 2)
