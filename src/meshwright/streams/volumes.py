"""Bytes that a tensor stream moves, and which tensor of an operator travels.

A linear layer is Y (S x F) = X (S x H) W (H x F): S tokens of the whole group, H in, F out. Each
member of N receives (N - 1) / N of the streamed tensor.
"""

from __future__ import annotations

from enum import IntEnum

from meshwright.base.arrays import N


def received_bytes(tensor_bytes: N, num_members: N) -> N:
    """Bytes that one member receives when a tensor streams once: rho * size, rho = (N - 1) / N."""
    return tensor_bytes * (num_members - 1) / num_members


class Transfer(IntEnum):
    """What travels for an operator."""

    WEIGHTS = 0
    """Or keys and values: tokens stay split."""
    INPUTS = 1
    """From tokens to columns."""
    SUMS = 2
    """Accumulators of the output: from columns to tokens."""
    NOTHING = 3
    """Columns stay split."""
