"""Options: ways to split one micro-batch of the whole model over the devices of a grid.

An option is a set of degrees, the place of its axes, and a streamed tensor. The sequences of a
micro-batch and the choices for the whole model (:class:`SharedChoices`) are equal for all options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray, take_rows
from meshwright.base.cluster import HERE, Cluster
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.network.placement import Nesting, Ranks, all_choices
from meshwright.search.exhaustive import Found, Progress
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, expert_degrees, factorizations
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    PlanOptions,
    Strategy,
    StrategyColumns,
    Streamed,
    make_strategy,
    row,
    stack,
    take,
)
from meshwright.topology.network import Network
from meshwright.train.search import search
from meshwright.train.space import SearchSpace
from meshwright.wafer.price import axes_laid, laid_network, physical_network, ranks_of
from meshwright.wafer.search import place

MOST_OPTIONS = 6_000
"""Options that are priced at most; large grids get fewer ways to lay each set of degrees."""


Degrees = tuple[int, int, int, int]
"""Degrees of tp, cp, dp and tatp."""
Cut = tuple[tuple[int, int, int], ...]
"""By level of the grid: devices in use, and the members of the pipeline axis with their distance.
Ways to lay strategies with the same cut have the same devices in each stage."""
TENSORS = (Streamed.WEIGHTS, Streamed.INPUTS, Streamed.BOTH)


@dataclass(frozen=True)
class SharedChoices:
    """Choices shared by all operators of a plan."""

    plan_options: PlanOptions
    """Plan options; their order of axes and streamed tensor are left to the options."""
    num_devices: int
    """Devices of all stages."""
    num_sequences: int
    """Sequences of one micro-batch of all data-parallel ranks together."""
    blocks: frozenset[Degrees] = frozenset()
    """Degrees for which both tensors may stream."""
    num_stages: int = 1
    num_virtual_stages: int = 1
    num_replicas: int = 1
    """Groups of data-parallel ranks with a copy of the sharded state each, where dp allows it."""
    cut: Cut | None = None
    """The devices of each stage; None: those of the first way to lay a strategy."""


def cut_of(choice: Nesting) -> Cut:
    """Return the devices in use, and the place of the pipeline axis among them.

    On a grid of 8 columns and 6 rows, two stages of 8 x 3 devices: ((8, 1, 1), (6, 2, 3)).
    """
    sides, at = np.array(choice.shapes), choice.axes.index("pp")
    apart = np.where(sides[at] > 1, sides[:at].prod(axis=0), 1)
    return tuple(zip(sides.prod(axis=0).tolist(), sides[at].tolist(), apart.tolist(), strict=True))


Way = tuple[Strategy, Nesting]
"""A strategy, and a way to lay it."""


def _used(choice: Nesting) -> list[tuple[str, tuple[int, ...]]]:
    """Return the axes of more than one device with their blocks."""
    laid = zip(choice.axes, choice.shapes, strict=True)
    return [(axis, tuple(shape)) for axis, shape in laid if max(shape) > 1]


@dataclass(frozen=True)
class Options:
    """Columns of options under one frame, legal ones only."""

    frame: SharedChoices
    columns: StrategyColumns
    option_sets: tuple[PlanOptions, ...]
    """Plan options of each row: streamed tensor, order of the axes, and whether sequences are split
    over tp."""
    choices: tuple[Nesting, ...]
    """Place of the axes of each row."""
    network: AxisNetwork

    def __len__(self) -> int:
        return len(self.option_sets)

    def strategy(self, index: int) -> Strategy:
        """Return the degrees of one option."""
        return row(self.columns, index)

    def ranks(self, problem: Problem, index: int, physical: Network) -> Ranks:
        """Return the ranks of one option on their devices."""
        found = ranks_of(problem, self.strategy(index), self.choices[index], physical)
        assert found is not None
        return found

    def laid_as(self, way: Way) -> list[int]:
        """Return the rows of a strategy that is laid in one way, with each streamed tensor."""
        strategy, used = way[0], _used(way[1])
        return [
            row
            for row, choice in enumerate(self.choices)
            if _used(choice) == used and self.strategy(row) == strategy
        ]

    @property
    def streamed(self) -> IntArray:
        """Streamed tensor of each row, as its place in ``TENSORS``."""
        return np.array([TENSORS.index(plan_options.streamed) for plan_options in self.option_sets])

    @property
    def codes(self) -> IntArray:
        """A number for each row: equal where degrees and streamed tensor are equal."""
        columns = [getattr(self.columns, axis) for axis in (*AXES, "ep", "etp")]
        table = np.stack([*columns, self.streamed]).T
        return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)

    def under(self, plan_options: PlanOptions) -> Options:
        """Return the options under plan options that change no layer, such as a stage of ZeRO."""
        own = tuple(
            replace(
                plan_options,
                streamed=before.streamed,
                sequence_parallel=before.sequence_parallel,
                axis_order=before.axis_order,
            )
            for before in self.option_sets
        )
        return replace(self, frame=replace(self.frame, plan_options=plan_options), option_sets=own)

    def take(self, rows: IntArray | BoolArray) -> Options:
        """Return some of the options."""
        numbers = np.arange(len(self))[rows]
        return Options(
            self.frame,
            take(self.columns, numbers),
            tuple(self.option_sets[number] for number in numbers.tolist()),
            tuple(self.choices[number] for number in numbers.tolist()),
            take_rows(self.network, numbers),
        )


def all_options(problem: Problem, frame: SharedChoices, physical: Network) -> Options | None:
    """Return every legal option, in every way to lay it; None without legal options."""
    strategies = list(_legal(problem, frame))
    each = max(1, MOST_OPTIONS // max(len(strategies), 1))
    rows = [
        (strategy, replace(plan_options, axis_order=choice.axes), choice)
        for strategy, plan_options in strategies
        for choice in _ways(problem, frame, strategy, plan_options, each)
        if not problem.num_experts or ranks_of(problem, strategy, choice, physical) is not None
    ]
    if not rows:
        return None
    found, option_sets, choices = zip(*rows, strict=True)
    columns = stack(list(found))
    network = laid_network(problem, axes_laid(choices), columns)
    return Options(frame, columns, tuple(option_sets), tuple(choices), network)


def _ways(
    problem: Problem, frame: SharedChoices, strategy: Strategy, plan_options: PlanOptions,
    most: int,
) -> Sequence[Nesting]:  # fmt: skip
    """Return the ways to lay a strategy on the devices of the stages."""
    if frame.cut is None:
        return all_choices(plan_options, strategy, problem.grid_sides, most=most)
    every = all_choices(plan_options, strategy, problem.grid_sides)
    return list(islice((choice for choice in every if cut_of(choice) == frame.cut), most))


def _legal(problem: Problem, frame: SharedChoices) -> Iterator[tuple[Strategy, PlanOptions]]:
    """Yield the degrees that no rule refuses, with the streamed tensor."""
    of_stage = frame.num_devices // frame.num_stages
    columns = stack(
        [
            make_strategy(
                tp=tp,
                cp=cp,
                dp_replicate=copies,
                dp_shard=dp // copies,
                tatp=tatp,
                ep=ep,
                etp=etp,
                pp=frame.num_stages,
                num_virtual_stages=frame.num_virtual_stages,
                micro_batch_size=frame.num_sequences // dp,
            )
            for tp, cp, dp, tatp in factorizations(of_stage, 4).tolist()
            if frame.num_sequences % dp == 0
            for copies in sorted({1, frame.num_replicas})
            if dp % copies == 0
            for ep, etp in expert_degrees(problem.num_experts, tp, cp, dp)
        ]
    )
    degrees = zip(
        *(getattr(columns, axis).tolist() for axis in ("tp", "cp", "dp", "tatp")), strict=True
    )
    is_block = np.array([each in frame.blocks for each in degrees])
    for streamed in TENSORS:
        for is_split in (True, False):
            plan_options = replace(
                frame.plan_options, streamed=streamed, sequence_parallel=is_split, axis_order=AXES
            )
            mine = (columns.tp > 1) == is_split
            if streamed is not Streamed.WEIGHTS:
                mine &= (columns.tatp > 1) & (is_block | (streamed is Streamed.INPUTS))
            for index in np.flatnonzero(mine & ~_refused(problem, plan_options, columns)).tolist():
                yield row(columns, index), plan_options


def _refused(problem: Problem, plan_options: PlanOptions, columns: StrategyColumns) -> BoolArray:
    """Return the rows that a rule refuses under a set of plan options.

    ZeRO may have nothing to shard under some options of a plan that has it for others.
    """
    chip = problem.system.chip
    is_alone = columns.dp_shard * columns.cp == 1
    found = np.zeros(len(columns.tp), dtype=bool)
    for stage, rows in ((plan_options.zero_stage, ~is_alone), (0, is_alone)):
        for refusal in all_refusals(
            problem.model, problem.workload, columns, replace(plan_options, zero_stage=stage),
            tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
        ):  # fmt: skip
            found |= refusal.mask & rows
    return found


NUM_UNIFORM = 24
"""Plans with one strategy for all operators that give the frames to try."""
MOST_STAGES = 2
"""Stages of ZeRO that are tried with the same layers."""
PLAYED: Mapping[str, tuple[object, ...]] = {"context_kind": ("ring",), "offload": ("none",)}
"""Plan options that are tried: all state on the device."""


def has_frame(plan_options: PlanOptions) -> bool:
    """Tell whether operators may choose their strategies under some plan options."""
    is_mixed = plan_options.vocabulary_parallel or plan_options.overlap_expert_parallel
    is_mixed |= plan_options.kinds_of_recomputation > 1 or plan_options.uses_host
    return not is_mixed and plan_options.context_kind is ContextKind.RING


def shared_options(plan_options: PlanOptions) -> PlanOptions:
    """Return the plan options that all operators share, without the choices of each."""
    return replace(plan_options, streamed=Streamed.AUTO, sequence_parallel=True, axis_order=AXES)


@dataclass(frozen=True)
class Base:
    """Frames that differ in their stage of ZeRO alone: their layers have equal costs."""

    frame: SharedChoices
    option_sets: tuple[PlanOptions, ...]
    uniform_s: float = 0.0
    """Step time of the best strategy for all operators, on private links [s]."""
    way: Way | None = None
    """A strategy for all operators that is among the assignments."""


def frame_of(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions, cut: Cut | None = None
) -> SharedChoices:
    """Return the choices that a strategy for all operators shares with others.

    Parameters
    ----------
    cut
        The devices of each stage; None: all devices, or those on which it is placed best.
    """
    is_whole = strategy.pp == 1 and strategy.num_devices == np.prod(problem.grid_sides)
    if cut is None and not is_whole:
        placing = place(problem, plan_options, strategy, physical_network(problem))
        cut = cut_of(placing.price.nesting) if placing is not None else None
    both = plan_options.streamed is Streamed.BOTH
    degrees = (int(strategy.tp), int(strategy.cp), int(strategy.dp), int(strategy.tatp))
    return SharedChoices(
        shared_options(plan_options),
        int(strategy.num_devices),
        int(strategy.dp * strategy.micro_batch_size),
        frozenset([degrees] if both else []),
        int(strategy.pp),
        int(strategy.num_virtual_stages),
        int(strategy.dp_replicate),
        cut,
    )


def likely_bases(
    problem: Problem, most: int, num_stages: int = 1, *,
    allowed: Mapping[str, tuple[object, ...]] | None = None, cluster: Cluster = HERE,
    progress: Progress | None = None,
) -> list[Base]:  # fmt: skip
    """Return the frames of the best plans with one strategy for all operators.

    Parameters
    ----------
    most
        Most bases returned: each has its pipeline, its sequences of a micro-batch, and its
        recomputation.
    allowed
        Values that plan options may take.
    """
    choices = Choices({**(allowed or {}), **PLAYED, "pp": (num_stages,)})
    space = SearchSpace(problem, choices, cluster=cluster)
    result = search(space, top=NUM_UNIFORM, progress=progress)
    blocks = frozenset(
        (int(each.tp), int(each.cp), int(each.dp), int(each.tatp))
        for entry in result.found
        for each in [entry.strategy]
        if entry.plan_options.streamed is Streamed.BOTH
    )  # fmt: skip
    found: dict[tuple[object, ...], dict[PlanOptions, Found]] = {}
    for entry in result.found:
        strategy, own = entry.strategy, entry.plan_options
        shared = shared_options(own)
        layers = replace(shared, zero_stage=1, reshard_after_forward=True)
        sequences = strategy.dp * strategy.micro_batch_size
        if has_frame(own):
            key = (strategy.num_devices, sequences, strategy.num_virtual_stages, layers)
            stages = found.setdefault(key, {})
            if len(stages) < MOST_STAGES:
                stages.setdefault(shared, entry)
    bases = []
    for stages in list(found.values())[:most]:
        first = next(iter(stages.values()))
        frame = frame_of(problem, first.strategy, first.plan_options)
        bases.append(Base(replace(frame, blocks=blocks), tuple(stages), first.time_s))
    return bases
