"""An assignment of kernels to partitions as matrices, for whoever wants the published formulation.

Nothing here computes with them: the solvers work on sets of kernels. Rows of ``A`` are kernels,
rows of the others are tensors (the edges of the graph), columns are partitions in the order in
which they run. Source: Ko et al. 2024 (arXiv 2412.16432), equations 1 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import Fault, SpecError
from meshwright.graph.kernels.graph import DataflowGraph

Matrix = NDArray[np.bool_]


@dataclass(frozen=True)
class AssignmentMatrices:
    """The five matrices under the letters of the source."""

    A: Matrix
    """Kernel by partition: where a kernel runs. Each row has a single one."""
    B: Matrix
    """A tensor stays inside a partition: both ends run there."""
    D: Matrix
    """A tensor crosses: its two end partitions."""
    L: Matrix
    """Lifetime of a crossing tensor: all partitions from its first end to its last."""
    H: Matrix
    """Home of a tensor: the partition of its producer. Masked by ``D``: of crossing ones only."""


def assignment_matrices(
    graph: DataflowGraph, partition: Sequence[int], num_partitions: int | None = None
) -> AssignmentMatrices:
    r"""Return the matrices of an assignment.

    With :math:`A_s` and :math:`A_d` the rows of producer and consumer of each tensor,

    .. math:: B = A_s \wedge A_d,\quad D = A_s \oplus A_d,\quad
              L = (A_s U_0 \oplus A_d U_1) \wedge \neg B,\quad H = A_s.

    :math:`U_0` is the upper triangle of ones with its diagonal, :math:`U_1` the one without:
    ``A U_0`` marks a partition and all later ones, ``A U_1`` only the later ones. With one
    triangle twice, a crossing tensor would lose its last partition, and the mask would do nothing.

    Parameters
    ----------
    partition
        Number of the partition of each kernel, from 0.
    num_partitions
        Columns; as many as are used where it is None.

    Raises
    ------
    SpecError
        Where a kernel would run before one that it reads, or a number is out of range.
    """
    number = np.asarray(partition, dtype=np.int64)
    columns = int(number.max(initial=-1)) + 1 if num_partitions is None else num_partitions
    _check(graph, number, columns)
    assigned: Matrix = number[:, None] == np.arange(columns)[None, :]
    source = assigned[[edge.producer for edge in graph.edges]]
    target = assigned[[edge.consumer for edge in graph.edges]]
    ones = np.ones((columns, columns), dtype=np.int64)
    from_source = (source @ np.triu(ones)).astype(np.bool_)
    after_target = (target @ np.triu(ones, 1)).astype(np.bool_)
    inside = source & target
    alive = (from_source ^ after_target) & ~inside
    return AssignmentMatrices(assigned, inside, source ^ target, alive, source)


def _check(graph: DataflowGraph, number: NDArray[np.int64], columns: int) -> None:
    """Raise all that is wrong with an assignment."""
    if len(number) != len(graph.kernels):
        message = f"{len(number)} numbers for {len(graph.kernels)} kernels"
        raise SpecError(Fault("partition", message), origin=graph.name)
    faults = [
        Fault(f"partition[{place}]", f"found {found}", f"from 0 to {columns - 1}")
        for place, found in enumerate(number)
        if not 0 <= found < columns
    ]
    for edge in graph.edges:
        if number[edge.producer] > number[edge.consumer]:
            names = (graph.kernels[edge.consumer].name, graph.kernels[edge.producer].name)
            message = "{!r} would run before {!r}, which it reads".format(*names)
            faults.append(Fault(f"partition[{edge.consumer}]", message))
    if faults:
        raise SpecError(faults, origin=graph.name)
