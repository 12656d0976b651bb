"""Search spaces: a problem, the choices left open, and the legal divisions of replicas."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, groups_of
from meshwright.base.cluster import HERE, Cluster
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.communication import OPEN, AxisPlacement
from meshwright.cost.problem import Problem
from meshwright.sharding.axes import all_rules
from meshwright.sharding.launching import (
    has_expert_ranks,
    has_expert_shards,
    has_shards,
    has_zero,
    is_order,
    launched,
    launches_of,
    may_offload,
)
from meshwright.sharding.rules import Case
from meshwright.sharding.space import (
    Choices,
    axis_orders,
    divisors,
    first_orders,
    order_name,
    stream_choices,
)
from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    StrategyColumns,
    Streamed,
    StreamForm,
    axes_mask,
    take,
)
from meshwright.spec.workload import Launches

ZERO_CHOICES = ((0, True), (1, True), (2, True), (3, True), (3, False))
"""ZeRO stage, and whether weights are dropped between forward and backward pass."""

GRID_AXES = ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate", "ep", "etp")
"""Degrees of a strategy that divide the devices."""

EXPERTS_REGROUP = "ep-devices"
"""Rule on which members of one family differ."""


@dataclass(frozen=True)
class SearchSpace:
    """A problem, and the choices that the user left open."""

    problem: Problem
    choices: Choices
    is_open: bool = False
    """Whether axes are still to be placed on a grid: prices are then lower bounds."""
    cluster: Cluster = field(default=HERE, compare=False, repr=False)
    """Workers that share the search."""

    @property
    def of_worker(self) -> SearchSpace:
        """The space as a worker gets it."""
        problem = replace(self.problem, shared=None)
        return replace(self, problem=problem, cluster=HERE)

    def placement(self, order: tuple[str, ...], columns: StrategyColumns) -> AxisPlacement:
        """Return the placement of the axes in one order."""
        return OPEN if self.is_open else self.problem.axis_placement(order, columns)

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """Kinds of offload that are legal under some ZeRO stage."""
        return tuple(kind for kinds in self.first_offloads.values() for kind in kinds)

    @property
    def first_offloads(self) -> dict[tuple[int, bool], tuple[Offload, ...]]:
        """Kinds of offload that are legal under each ZeRO choice, and under none before it.

        On one shard all stages are the same plan, but an engine may move something to the host
        under some of them only: DeepSpeed does under ZeRO 1 to 3.
        """
        found: dict[tuple[int, bool], tuple[Offload, ...]] = {}
        for choice in self.zero_choices:
            known = {kind for kinds in found.values() for kind in kinds}
            kinds = self.offloads_under(choice[0])
            found[choice] = tuple(kind for kind in kinds if kind not in known)
        return found

    def offloads_under(self, stage: int) -> tuple[Offload, ...]:
        """Return the kinds of offload that are legal under a ZeRO stage."""
        kinds = (Offload.NONE,) if self.problem.system.host is None else tuple(Offload)
        return tuple(
            kind
            for kind in kinds
            if self.choices.keeps("offload", kind) and may_offload(self.launches, kind, stage)
        )

    @property
    def launches(self) -> Launches | None:
        """Launches of the framework of the question; None where it names none."""
        return launches_of(self.problem.workload)

    @property
    def zero_choices(self) -> tuple[tuple[int, bool], ...]:
        """ZeRO stages that are allowed; without ZeRO there is one shard."""
        keeps, launches = self.choices.keeps, self.launches
        allowed = [
            (stage, reshard)
            for stage, reshard in ZERO_CHOICES
            if keeps("zero_stage", stage) and (stage < 3 or keeps("reshard_after_forward", reshard))
        ]
        if launches is not None:
            drops = launches.drops_gathered_weights
            allowed = [
                (stage, reshard)
                for stage, reshard in allowed
                if stage in launches.zero_stages and (stage < 3 or reshard in drops)
            ]
        return tuple(z for z in allowed if z[0] or keeps("dp_shard", 1))

    @property
    def overlaps_data_parallel(self) -> bool:
        """Whether data-parallel communication overlaps computation: yes, unless it is fixed.

        Without contention it is never slower: hidden time costs only a share of itself. On shared
        links it may be slower: computation slows down for longer messages.
        """
        known = None if self.launches is None else self.launches.overlaps_data_parallel
        return bool(launched((True,), known)) and self.choices.keeps("overlap_data_parallel", True)

    def overlaps_tensor_parallel(self, splits_tokens: bool) -> bool:
        """Whether collectives of tp overlap products: where the software does that and can.

        It is never slower: hidden time costs only a share of itself. A framework needs tokens
        that are split over tp (:data:`~meshwright.sharding.launching.DEGREES`, ``async-tp``).
        """
        overlaps = self.problem.workload.software.async_tensor_parallel
        return overlaps and (splits_tokens or self.launches is None)

    @property
    def stream_choices(self) -> tuple[tuple[Streamed, StreamForm], ...]:
        """Streamed tensors, and the form of each stream."""
        return stream_choices(self.choices, has_grid=self.problem.has_grid)

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of the axes on the levels; a single level leaves nothing to order."""
        if self.is_open or len(self.problem.system.levels) == 1:
            return axis_orders(False)[:1]
        orders = axis_orders(self.problem.has_grid)
        if self.launches is not None:
            known = self.launches.axis_orders
            orders = tuple(order for order in orders if is_order(order, known, known[0]))
        if self.problem.num_experts:
            orders = tuple(order for order in orders if order[-1] == "pp")
        kept = tuple(order for order in orders if self.choices.keeps("axis_order", order))
        if not kept:
            allowed = ", ".join(sorted({order_name(order) for order in orders}))
            raise SpecError(
                Fault("--with axis_order", "is not searched for this model here", allowed)
            )
        return kept


def orders_of(space: SearchSpace, columns: StrategyColumns) -> BoolArray:
    """Return the orders of the axes to try for each row, shape (orders, rows).

    Orders that differ only in axes of one device are the same plan; the first one is kept.
    """
    keeps: BoolArray = first_orders(space.orders)[:, axes_mask(columns)] == 1
    return keeps


def member_choices(space: SearchSpace, columns: StrategyColumns) -> tuple[FloatArray, FloatArray]:
    """Return the ways to offload whole replicas, and to shard and offload each division of them."""
    number = np.zeros((2, len(columns.tp)))
    for (stage, _), first in space.first_offloads.items():
        number[0] += is_whole(space, stage, columns) * len(first)
        if stage > 0:
            starts = has_zero(space.launches, stage, columns)
            number[1] += starts * len(space.offloads_under(stage))
    return number[0], number[1]


def is_whole(space: SearchSpace, stage: int, columns: StrategyColumns) -> BoolArray:
    """Return the rows that start with one shard: any without ZeRO, else those of one replica."""
    starts = has_zero(space.launches, stage, columns) & space.choices.keeps("dp_shard", 1)
    starts &= has_expert_ranks(space.launches, stage, columns)
    return starts if stage == 0 else starts & (columns.dp * columns.cp == 1)


def num_divisions(space: SearchSpace, columns: StrategyColumns) -> tuple[FloatArray, FloatArray]:
    """Return the number of legal divisions of the replicas into shards, and of illegal ones.

    One device is no shard: neither dp_shard nor cp divides anything then.
    """
    # Most rows differ in micro-batches and virtual stages, which do not matter here.
    first, group = groups_of(getattr(columns, name) for name in GRID_AXES)
    grids = take(columns, first)
    shards = {dp: dp_shard_degrees(space, int(dp)) for dp in np.unique(grids.dp).tolist()}
    degrees = [shards[dp] for dp in grids.dp.tolist()]
    index = np.repeat(np.arange(len(first)), [len(some) for some in degrees])
    shard = np.array([one for some in degrees for one in some], dtype=float)
    divided = take(grids, index)
    divided = replace(divided, dp_shard=shard, dp_replicate=divided.dp / shard)
    counts = (divided.dp_shard * divided.cp > 1) & is_divided(space, divided)
    regroups = experts_regroup(space, divided)
    legal, refused = (
        np.asarray(np.bincount(index, weights=some, minlength=len(first)), dtype=float)
        for some in (counts & regroups, counts & ~regroups)
    )
    return legal[group], refused[group]


def is_divided(space: SearchSpace, columns: StrategyColumns) -> BoolArray:
    """Return the rows with replicas that the framework divides into shards in this way."""
    found = has_shards(space.launches, columns)
    found &= has_expert_shards(space.launches, space.problem.model, columns)
    return found & has_expert_ranks(space.launches, 1, columns)


def experts_regroup(space: SearchSpace, columns: StrategyColumns) -> BoolArray:
    """Return the rows with experts that find their devices among the shards of one replica.

    Families are judged with all replicas whole; ZeRO keeps replicas apart.
    """
    if not space.problem.num_experts:
        return np.ones(len(columns.tp), dtype=bool)
    sharded = PlanOptions(zero_stage=1)
    case = Case(space.problem.model, space.problem.workload, sharded, columns)
    regroups: BoolArray = ~all_rules()[EXPERTS_REGROUP].breaks(case)
    return regroups


def dp_shard_degrees(space: SearchSpace, dp: int) -> tuple[int, ...]:
    """Return the ways to divide data replicas into shards: degrees of dp_shard."""
    launches = space.launches
    may_replicate = launches is None or "dp_replicate" in launches.axes
    return space.choices.of("dp_shard", tuple(divisors(dp)) if may_replicate else (dp,))
