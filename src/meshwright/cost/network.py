"""Which levels of the network each axis crosses, given the order of the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Num, smaller, where
from meshwright.collectives.group import Group, Reach, make_block_group, make_group
from meshwright.network.placement import block_reaches, uses_blocks
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import StrategyColumns
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.system import NetworkLevel, SystemSpec

Columns = Group[FloatArray]
"""A group for each row of columns of strategies."""

DATA_PARALLEL_ONLY = "network-data-parallel-only"
"""Rule: a network between slices or pods carries dp only."""


def level_efficiencies(system: SystemSpec, calibration: CalibrationOf[Num]) -> tuple[Num, ...]:
    """Return the share of link bandwidth that is reached on each level [1].

    Grids and the innermost switch are fast networks; switches between hosts are slow ones.
    """
    fast, slow = calibration.fast_network_efficiency, calibration.slow_network_efficiency
    return tuple(
        fast if index == 0 or level.kind in ("torus", "mesh") else slow
        for index, level in enumerate(system.levels)
    )


@dataclass(frozen=True)
class AxisPlacement:
    """Where the members of each axis lie, by axis, for columns of strategies."""

    strides: Mapping[str, FloatArray]
    """Devices between neighbours, as devices are numbered along the levels [devices]."""
    reaches: Mapping[str, Reach[FloatArray]]
    """The block that an axis fills, where axes fill blocks; empty on other networks."""

    def keys(self, axes: Sequence[str]) -> list[FloatArray]:
        """Return the columns that tell the placements of some axes apart."""
        parts = [self.strides[axis] for axis in axes]
        for axis in axes:
            if axis in self.reaches:
                parts += [_code(self.reaches[axis].sizes), _code(self.reaches[axis].apart)]
        return parts


def _code(columns: Sequence[FloatArray]) -> FloatArray:
    """Return one number for each row of columns of whole numbers below 65,536: at most three."""
    return reduce(lambda code, column: code * 65_536.0 + column, columns)


def place_axes(
    levels: Sequence[NetworkLevel], axis_order: tuple[str, ...], strategy: StrategyColumns,
    num_experts: int, *, in_blocks: bool = True,
) -> AxisPlacement:  # fmt: skip
    """Return where axes lie: in blocks on a mesh, one after the other along the levels elsewhere.

    Experts borrow the devices of other axes, which is not yet worked out for blocks.

    Parameters
    ----------
    in_blocks
        Without it axes lie one after the other on a mesh too.
    """
    strides = strides_of(axis_order, strategy)
    is_blocked = in_blocks and uses_blocks(levels) and not num_experts
    return AxisPlacement(strides, block_reaches(levels, axis_order, strategy) if is_blocked else {})


def strides_of(axis_order: tuple[str, ...], strategy: StrategyColumns) -> dict[str, FloatArray]:
    """Return the devices between neighbours on each axis, for one order of the axes [devices]."""
    strides: dict[str, FloatArray] = {}
    stride = strategy.tp * 0.0 + 1.0
    for axis in axis_order:
        strides[axis] = stride
        stride = stride * getattr(strategy, axis)
    inner = stride * 0.0 + 1.0
    strides["etp"] = inner
    strides["ep"] = inner * strategy.etp
    strides["edp"] = strides["edp_shard"] = inner * strategy.etp * strategy.ep
    strides["edp_replicate"] = strides["edp"] * degree_of("edp_shard", strategy)
    return strides


@dataclass(frozen=True)
class AxisNetwork:
    """The groups of each axis for columns of strategies; rows may differ in their axis order."""

    levels: Sequence[NetworkLevel]
    efficiency: tuple[Num, ...]
    strategy: StrategyColumns
    placement: AxisPlacement
    sizes: Mapping[str, Num]
    """Sizes of dims that groups such as ``tp/kv_heads`` share."""
    experts_per_token: int = 0
    """Where tokens go to a host once: experts that each visits; 0 where each copy is sent."""
    slowdown: Mapping[str, Num] = field(default_factory=dict)
    """By axis, as it is asked for: how much slower its links are than links of its own, because
    a placement shares them; 1 where it is not named."""

    def group(self, axis: str) -> Columns:
        """Return the group of an axis, or of several written as their product (``a*b``)."""
        group = self._private_group(axis)
        named = axis if axis in self.slowdown else axis.partition("/")[0]
        return _slower(group, self.slowdown[named]) if named in self.slowdown else group

    def _private_group(self, axis: str) -> Columns:
        names, _, shared = axis.partition("/")
        if shared:
            degree = degree_of(axis, self.strategy, self.sizes)
            return self._group(names.split("*")[0], degree)
        members = [self._group(name, degree_of(name, self.strategy)) for name in names.split("*")]
        group = reduce(_joined, members)
        is_dispatch = axis == "ep" and self.experts_per_token > 1
        return deduplicated(group, self.experts_per_token) if is_dispatch else group

    def _group(self, axis: str, degree: FloatArray) -> Columns:
        whole = degree + 0.0 * self.strategy.tp
        strided = make_group(self.levels, self.placement.strides[axis], whole, self.efficiency)
        if axis not in self.placement.reaches:
            return strided
        reach = _part_of(self.placement.reaches[axis], whole)
        fits = reach.sizes[0] > 0
        return _chosen(fits, make_block_group(self.levels, reach, self.efficiency), strided)


def _slower(group: Columns, times: Num) -> Columns:
    """Return a group whose links take so many times as long for each byte."""
    return Group(
        tuple(
            replace(
                span,
                bandwidth_bytes_per_s=span.bandwidth_bytes_per_s / times,
                message_half_bytes=span.message_half_bytes / times,
            )
            for span in group.spans
        )
    )


def _part_of(reach: Reach[FloatArray], degree: FloatArray) -> Reach[FloatArray]:
    """Return the innermost ``degree`` members of a group; none where they are no block."""
    left = np.asarray(degree).astype(np.int64)
    sizes = []
    for size in reach.sizes:
        taken = np.gcd(left, np.asarray(size).astype(np.int64))
        left = left // np.maximum(taken, 1)
        sizes.append(taken)
    return Reach(tuple(np.where(left == 1, size, 0) * 1.0 for size in sizes), reach.apart)


def _chosen(first: BoolArray, one: Columns, other: Columns) -> Columns:
    """Return a group with the spans of one where ``first`` holds, and of another elsewhere."""
    spans = []
    for a, b in zip(one.spans, other.spans, strict=True):
        spans.append(
            replace(
                b,
                size=where(first, a.size, b.size),
                bandwidth_bytes_per_s=where(
                    first, a.bandwidth_bytes_per_s, b.bandwidth_bytes_per_s
                ),
                latency_s=where(first, a.latency_s, b.latency_s),
                message_half_bytes=where(first, a.message_half_bytes, b.message_half_bytes),
                closes=where(first, a.closes, b.closes),
            )
        )
    return Group(tuple(spans))


def copies_per_host(num_hosts: FloatArray, experts_per_token: int) -> FloatArray:
    """Return how many of the experts of a token lie on each host that it goes to, on average.

    k / (n (1 - (1 - 1/n)^k)): k experts fall on n hosts evenly and independently. One host: k.
    Source: expected occupied cells (Feller 1968, section IV.2). Assumes: no limit on the hosts of
    a token, which some models have (priced high for them).
    """
    missed = 1.0 + 0.0 * num_hosts
    for _ in range(experts_per_token):
        missed = missed * (1.0 - 1.0 / num_hosts)
    return experts_per_token / (num_hosts * (1.0 - missed))


def deduplicated(group: Columns, experts_per_token: int) -> Columns:
    """Return a group whose links between hosts carry each token once.

    The bytes of an all-to-all count every copy, so those links count as that much faster.
    """
    outer = group.spans[1:]
    if not outer:
        return group
    num_hosts = reduce(mul, [span.size for span in outer])
    copies = copies_per_host(num_hosts, experts_per_token)
    faster = [
        replace(span, bandwidth_bytes_per_s=span.bandwidth_bytes_per_s * copies)
        if not span.is_grid
        else span
        for span in outer
    ]
    return Group((group.spans[0], *faster))


def crosses_data_parallel_network(network: AxisNetwork) -> BoolArray:
    """Return the rows in which an axis other than dp crosses a network that carries dp only."""
    crosses: BoolArray = network.strategy.tp < 0
    for axis in ("tp", "tatp", "cp", "pp", "ep"):
        for level, span in zip(network.levels, network.group(axis).spans, strict=True):
            if level.data_parallel_only:
                crosses = crosses | (span.size > 1)
    return crosses


def _joined(first: Columns, second: Columns) -> Columns:
    """Return the group over two axes: members multiply at each level, the slower links count.

    An axis with one member at a level uses none of its links.
    """
    spans = []
    for a, b in zip(first.spans, second.spans, strict=True):
        both = smaller(a.bandwidth_bytes_per_s, b.bandwidth_bytes_per_s)
        own, other = a.size > 1, b.size > 1
        spans.append(
            replace(
                a,
                size=a.size * b.size,
                bandwidth_bytes_per_s=where(
                    own,
                    where(other, both, a.bandwidth_bytes_per_s),
                    b.bandwidth_bytes_per_s,
                ),
                latency_s=a.latency_s + (b.latency_s - a.latency_s) * (b.size > a.size),
                closes=where(own, where(other, a.closes * b.closes, a.closes), b.closes),
            )
        )
    return Group(tuple(spans))
