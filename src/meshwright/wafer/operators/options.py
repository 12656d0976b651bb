"""Options: ways to split one micro-batch of the whole model over the devices of a grid.

An option is a set of degrees, the place of its axes, and a streamed tensor. The sequences of a
micro-batch and the choices for the whole model (:class:`SharedChoices`) are equal for all options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray, take_rows
from meshwright.base.cluster import HERE, Cluster
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.network.placement import Nesting, Ranks, all_choices
from meshwright.search.exhaustive import Progress
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, expert_degrees, factorizations
from meshwright.sharding.strategy import (
    AXES,
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
from meshwright.wafer.price import axes_laid, laid_network, ranks_of

MOST_OPTIONS = 6_000
"""Options that are priced at most; large grids get fewer ways to lay each set of degrees."""


Degrees = tuple[int, int, int, int]
"""Degrees of tp, cp, dp and tatp."""
TENSORS = (Streamed.WEIGHTS, Streamed.INPUTS, Streamed.BOTH)


@dataclass(frozen=True)
class SharedChoices:
    """Choices shared by all operators of a plan."""

    plan_options: PlanOptions
    """Plan options; their order of axes and streamed tensor are left to the options."""
    num_devices: int
    num_sequences: int
    """Sequences of one micro-batch of all data-parallel ranks together."""
    blocks: frozenset[Degrees] = frozenset()
    """Degrees for which both tensors may stream."""


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
        for choice in all_choices(plan_options, strategy, problem.grid_sides, most=each)
        if not problem.num_experts or ranks_of(problem, strategy, choice, physical) is not None
    ]
    if not rows:
        return None
    found, option_sets, choices = zip(*rows, strict=True)
    columns = stack(list(found))
    network = laid_network(problem, axes_laid(choices), columns)
    return Options(frame, columns, tuple(option_sets), tuple(choices), network)


def _legal(problem: Problem, frame: SharedChoices) -> Iterator[tuple[Strategy, PlanOptions]]:
    """Yield the degrees that no rule refuses, with the streamed tensor."""
    columns = stack(
        [
            make_strategy(
                tp=tp,
                cp=cp,
                dp_shard=dp,
                tatp=tatp,
                ep=ep,
                etp=etp,
                micro_batch_size=frame.num_sequences // dp,
            )
            for tp, cp, dp, tatp in factorizations(frame.num_devices, 4).tolist()
            if frame.num_sequences % dp == 0
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
ONE_STAGE: Mapping[str, tuple[object, ...]] = {
    "pp": (1,), "context_kind": ("ring",), "offload": ("none",),
}  # fmt: skip
"""Plan options that are tried: operators of one stage, with all state on the device."""


@dataclass(frozen=True)
class Base:
    """Frames that differ in their stage of ZeRO alone: their layers have equal costs."""

    frame: SharedChoices
    option_sets: tuple[PlanOptions, ...]


def likely_bases(
    problem: Problem, most: int, *,
    allowed: Mapping[str, tuple[object, ...]] | None = None, cluster: Cluster = HERE,
    progress: Progress | None = None,
) -> list[Base]:  # fmt: skip
    """Return the frames of the best plans with one strategy for all operators.

    Parameters
    ----------
    most
        Most bases returned: each has its sequences of a micro-batch, and its recomputation.
    allowed
        Values that plan options may take.
    """
    choices = Choices({**(allowed or {}), **ONE_STAGE})
    space = SearchSpace(problem, choices, cluster=cluster)
    result = search(space, top=NUM_UNIFORM, progress=progress)
    found: dict[tuple[int, int, str], dict[PlanOptions, None]] = {}
    blocks = frozenset(
        (int(each.tp), int(each.cp), int(each.dp), int(each.tatp))
        for entry in result.found
        for each in [entry.strategy]
        if entry.plan_options.streamed is Streamed.BOTH
    )  # fmt: skip
    for entry in result.found:
        strategy, plan_options = entry.strategy, entry.plan_options
        sequences = int(strategy.dp * strategy.micro_batch_size)
        key = (int(strategy.num_devices), sequences, str(plan_options.recompute))
        stages = found.setdefault(key, {})
        # Choices of the options are left out of the frame.
        shared = PlanOptions(
            zero_stage=plan_options.zero_stage,
            reshard_after_forward=plan_options.reshard_after_forward,
            recompute=plan_options.recompute,
            overlap_data_parallel=plan_options.overlap_data_parallel,
            overlap_tensor_parallel=plan_options.overlap_tensor_parallel,
            stream_form=plan_options.stream_form,
            axis_order=AXES,
        )
        if len(stages) < MOST_STAGES:
            stages[shared] = None
    return [
        Base(SharedChoices(next(iter(option_sets)), devices, sequences, blocks), tuple(option_sets))
        for (devices, sequences, _), option_sets in list(found.items())[:most]
    ]
