"""What all operators of a plan share: taken from the best plans with one strategy for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.cost.problem import Problem
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import AXES, PlanOptions, Strategy, Streamed
from meshwright.train.search import Progress, search
from meshwright.train.space import SearchSpace
from meshwright.wafer.operators.options import Degrees, Frame

NUM_UNIFORM = 24
"""Plans with one strategy for all whose frames are tried."""
MOST_STAGES = 2
"""Stages of ZeRO that are tried with the same layers."""
ONE_STAGE: Mapping[str, tuple[object, ...]] = {
    "pp": (1,), "context_kind": ("ring",), "offload": ("none",),
}  # fmt: skip
"""What is looked at: operators of one stage, with all state on the device."""


@dataclass(frozen=True)
class Base:
    """Frames that differ in their stage of ZeRO alone: their layers cost the same."""

    frame: Frame
    structures: tuple[PlanOptions, ...]


def likely_bases(
    problem: Problem, most: int, *,
    allowed: Mapping[str, tuple[object, ...]] | None = None, progress: Progress | None = None,
) -> list[Base]:  # fmt: skip
    """Return the frames of the best plans with one strategy for all operators.

    Parameters
    ----------
    most
        Bases that are returned at most: the sequences of a micro-batch, and recomputation.
    allowed
        What is fixed.
    """
    choices = Choices({**(allowed or {}), **ONE_STAGE})
    result = search(SearchSpace(problem, choices), top=NUM_UNIFORM, progress=progress)
    found: dict[tuple[int, int, str], dict[PlanOptions, None]] = {}
    blocks = frozenset(
        _degrees(entry.strategy) for entry in result.found
        if entry.structure.streamed is Streamed.BOTH
    )  # fmt: skip
    for entry in result.found:
        strategy, structure = entry.strategy, entry.structure
        sequences = int(strategy.dp * strategy.micro_batch_size)
        key = (int(strategy.num_devices), sequences, str(structure.recompute))
        stages = found.setdefault(key, {})
        if len(stages) < MOST_STAGES:
            stages[_shared(structure)] = None
    return [
        Base(Frame(next(iter(structures)), devices, sequences, blocks), tuple(structures))
        for (devices, sequences, _), structures in list(found.items())[:most]
    ]


def _degrees(strategy: Strategy) -> Degrees:
    """Return the degrees of an option."""
    return int(strategy.tp), int(strategy.cp), int(strategy.dp), int(strategy.tatp)


def _shared(structure: PlanOptions) -> PlanOptions:
    """Return a structure without what the options choose."""
    return PlanOptions(
        zero_stage=structure.zero_stage,
        reshard_after_forward=structure.reshard_after_forward,
        recompute=structure.recompute,
        overlap_data_parallel=structure.overlap_data_parallel,
        overlap_tensor_parallel=structure.overlap_tensor_parallel,
        stream_form=structure.stream_form,
        axis_order=AXES,
    )
