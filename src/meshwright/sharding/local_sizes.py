"""What one rank holds of a tensor: degrees of axes and groups, local sizes of dims.

Shards may be uneven: the size returned is that of the largest one, and whole heads or whole
columns of gate and up are never cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

from meshwright.base.arrays import N, Num, ceil_div, larger
from meshwright.graph.op import TOKEN_DIMS, UNITS_OF_DIM, Tensor
from meshwright.sharding.algebra import Split
from meshwright.sharding.strategy import StrategyOf

FLAT = "elements"
"""Key of a split that cuts a weight as a flat row of elements, wherever a cut falls: the shards
of ZeRO, and the parts of a weight that travel in a stream."""


def degree_of(axis: str, strategy: StrategyOf[N], sizes: Mapping[str, Num] | None = None) -> N:
    """Return the number of ranks along an axis or in a group of axes.

    ``dp_shard*cp`` is a product. ``edp`` is what is left for data parallelism of the experts:
    dp * cp * tp / (ep * etp); ``edp_shard`` is the part of it that shards (1 where the experts
    already take all shards), ``edp_replicate`` the rest. ``tp/kv_heads`` counts
    the ranks that hold the same key head: tp over the number of heads, 1 at least.
    """
    group, _, shared = axis.partition("/")
    degree = cast(N, prod(_axis_degree(name, strategy) for name in group.split("*")))
    if not shared:
        return degree
    assert sizes is not None
    heads = cast(float, sizes[shared])  # no token dim, so one number
    return larger(ceil_div(degree, heads), 1.0)


def _axis_degree(axis: str, s: StrategyOf[N]) -> N:
    """Return the degree of one axis."""
    if axis == "edp":
        return s.dp * s.cp * s.tp / (s.ep * s.etp)
    if axis == "edp_shard":
        return larger(s.dp_shard * s.cp * s.tp / (s.ep * s.etp), 1.0)
    if axis == "edp_replicate":
        return _axis_degree("edp", s) / _axis_degree("edp_shard", s)
    return cast(N, getattr(s, axis))


def local_size(
    dim: str, axes: tuple[str, ...], sizes: Mapping[str, Num], strategy: StrategyOf[Num]
) -> Num:
    """Return the size of a dim on the rank that holds most of it.

    Token dims are bound for one data-parallel rank, and the axes that split them (dp or edp among
    them) split the tokens of all data-parallel ranks.
    """
    size = sizes[dim]
    if dim in TOKEN_DIMS:
        size = size * strategy.dp if axes else size
    if not axes:
        return size
    degree = degree_of("*".join(axes), strategy)
    units = sizes[UNITS_OF_DIM[dim]] if dim in UNITS_OF_DIM else size
    return size / units * ceil_div(units, degree)


def local_elements(
    tensor: Tensor, split: Split, sizes: Mapping[str, Num], strategy: StrategyOf[Num]
) -> Num:
    """Return the elements of a tensor on one rank.

    Rows that visit experts are grouped by expert: axes that split the experts split those rows.
    """
    grouped = () if "experts" in tensor.dims else split.get("experts", ())
    elements: Num = 1.0
    for dim in tensor.dims:
        axes = split.get(dim, ())
        axes = (*axes, *grouped) if dim == "routed_tokens" else axes
        elements = elements * local_size(dim, axes, sizes, strategy)
    return elements / degree_of("*".join(split[FLAT]), strategy) if FLAT in split else elements
