"""The matrices of an assignment say what they should, for random graphs and assignments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.assignment_matrices import assignment_matrices

from meshwright.base.errors import SpecError
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

DIMS = ("rows",)


@st.composite
def assigned_graphs(draw):
    """Return a random graph, a partition for each kernel that respects its order, and a count."""
    count = draw(st.integers(2, 9))
    kernels = []
    for number in range(count):
        before = [f"k{n}" for n in range(number)] or ["x"]
        sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3))
        reads = tuple(Operand(source, DIMS) for source in sources)
        kernels.append(Kernel(f"k{number}", Unit.VECTOR, DIMS, reads))
    graph = DataflowGraph("g", tuple(kernels), {"rows": 1}, {"x": DIMS}, ("k0",), "rows")
    columns = draw(st.integers(1, 6))
    partition = [0] * count
    for edge in graph.edges:
        lowest = max(partition[edge.producer], partition[edge.consumer])
        partition[edge.consumer] = draw(st.integers(lowest, columns - 1))
    return graph, partition, columns


@given(assigned_graphs())
def test_matrices_mark_what_they_are_defined_to_mark(case) -> None:
    graph, partition, columns = case
    found = assignment_matrices(graph, partition, columns)
    assert (found.A.sum(axis=1) == 1).all()
    assert found.A.argmax(axis=1).tolist() == partition
    for row, edge in enumerate(graph.edges):
        start, end = partition[edge.producer], partition[edge.consumer]
        for column in range(columns):
            assert found.B[row, column] == (start == end == column)
            assert found.D[row, column] == (start != end and column in (start, end))
            assert found.L[row, column] == (start != end and start <= column <= end)
            assert found.H[row, column] == (column == start)


@given(assigned_graphs())
def test_matrices_agree_with_one_another(case) -> None:
    found = assignment_matrices(*case)
    inside, crossing = found.B.any(axis=1), found.D.any(axis=1)
    assert (inside ^ crossing).all()
    assert not (found.D & ~found.L).any()
    assert not (found.B & found.L).any()
    assert (found.H & crossing[:, None] == found.H & found.D).all()


def test_lifetime_of_a_tensor_that_skips_a_partition() -> None:
    layer = gpt_layer(64, 4, 16, 32)
    partition = [0] * 11 + [2] * 7  # add0, which add1 reads again, is in 0; add1 in 2
    found = assignment_matrices(layer, partition, 4)
    row = next(
        place
        for place, edge in enumerate(layer.edges)
        if (edge.producer, edge.consumer) == (0, layer.number["add1"])
    )
    shown = {name: getattr(found, name)[row].astype(int).tolist() for name in "BDLH"}
    assert shown == {"B": [0, 0, 0, 0], "D": [1, 0, 1, 0], "L": [1, 1, 1, 0], "H": [1, 0, 0, 0]}


def test_an_order_that_cannot_run_is_refused() -> None:
    layer = gpt_layer(64, 4, 16, 32)
    with pytest.raises(SpecError, match="'ln1' would run before 'add0', which it reads"):
        assignment_matrices(layer, [1, 0, *[1] * 16])
    with pytest.raises(SpecError, match="17 numbers for 18 kernels"):
        assignment_matrices(layer, np.zeros(17, dtype=int))
