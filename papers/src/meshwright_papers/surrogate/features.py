"""Features of a placed plan for the surrogate: numbers without units, from the closed form.

Shares of the closed form divide its time, degrees and blocks tell which ranks share links, and the
machine gives the speed of links relative to chips.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.energy import least_link_j
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    StrategyColumns,
)

MESSAGE_PARTS = (
    TimePart.TP_COMM, TimePart.CP_COMM, TimePart.TATP_STREAM, TimePart.PP_COMM, TimePart.DP_COMM,
)  # fmt: skip
COMPUTED_PARTS = (TimePart.COMPUTE, TimePart.MAIN_MEMORY, TimePart.RECOMPUTE, TimePart.LAUNCH)
SHOWN_PARTS = (
    *MESSAGE_PARTS, TimePart.BUBBLE, TimePart.RECOMPUTE, TimePart.OVERLAP_SLOWDOWN,
    TimePart.OPTIMIZER,
)  # fmt: skip
LEAST_SHARE = 1e-4
"""Least share of a step that counts; smaller ones are equal to it."""
DEGREES = (*AXES, "num_virtual_stages", "micro_batch_size")
SIDES = ("columns", "rows")

FEATURES = (
    *(f"share {name}" for name in SHOWN_PARTS),
    "forward passes", "backward passes", "hidden", "sums once a step", "HBM busy", "links busy",
    "streams within bubble",
    "link energy share",
    *(f"log2 {name}" for name in DEGREES),
    "log2 micro-batches",
    "sequence parallel", "ulysses", "zero 1", "zero 2", "zero 3", "reshards", "selective", "full",
    "overlaps tp", "gpipe", "interleaved", "zero bubble",
    "log2 columns", "log2 rows", "torus", "log10 link bytes/s", "log10 latency",
    "message half MB", "log10 HBM bytes/s", "log10 SRAM bytes",
    "log2 sequence", "log2 hidden", "log2 layers of a chunk", "uneven stages", "edges over layers",
    *(f"log2 {axis} members over {side}" for axis in AXES for side in SIDES),
    *(f"log2 {axis} apart over {side}" for axis in AXES for side in SIDES),
    *(f"{axis} has a cycle" for axis in AXES),
    "tatp is odd",
    "messages over step", "computation over step", "links busy over messages",
    "hidden over messages",
)  # fmt: skip
"""Names of the features, in order. A share is the logarithm to base 10 of seconds over those of
the step."""


def features(problem: Problem, network: AxisNetwork, alone: Priced, bare: Priced) -> FloatArray:
    """Return the features of one strategy in each of some placements, a row for each.

    Parameters
    ----------
    network
        The groups of the placements, a row for each.
    alone, bare
        The closed form on the same groups, and that of chips that compute in no time.
    """
    time, strategy = alone.step.time, alone.strategy
    step_s = time.total_s
    pipeline = alone.pipeline
    columns = [
        *(_share(time[name], step_s) for name in SHOWN_PARTS),
        pipeline.num_micro_batches * pipeline.forward_window_s / step_s,
        pipeline.num_micro_batches * pipeline.backward_window_s / step_s,
        *_busy(problem, alone),
        _share(_link_energy_j(problem, alone), _energy_j(alone)),
        *(np.log2(getattr(strategy, name)) for name in DEGREES),
        np.log2(pipeline.num_micro_batches),
        *_plan_options(alone.plan_options),
        *_machine(problem),
        *_model(problem, strategy),
        *_blocks(network),
        *_cycles(problem, network),
        np.mod(strategy.tatp, 2.0) * (strategy.tatp > 1.0),
        *_messages(problem, alone, bare),
    ]
    table = np.empty((len(strategy.tp), len(columns)))
    for number, column in enumerate(columns):
        table[:, number] = column
    return table


def computation_s(alone: Priced) -> Any:
    """Return the computation of the slowest device in a step, in closed form [s]."""
    return sum(alone.step.time[name] for name in COMPUTED_PARTS)


def messages_s(bare: Priced) -> Any:
    """Return the messages of a step on chips that compute in no time, in closed form [s]."""
    return sum(bare.step.time[name] for name in MESSAGE_PARTS)


def _messages(problem: Problem, alone: Priced, bare: Priced) -> list[Any]:
    """Return the loads of a step beside its messages, as shares.

    Chips that compute in no time stream the smaller tensor; the plan may stream the other one,
    which computation hides: then links are busy for longer than these messages take.
    """
    step_s, sent_s, work = alone.step.time.total_s, messages_s(bare), alone.pipeline.mean
    assert work is not None
    links_s = work.link_traffic_bytes / problem.system.levels[0].bandwidth_bytes_per_s
    return [
        _share(sent_s, step_s),
        _share(computation_s(alone), step_s),
        _share(links_s, sent_s),
        _share(alone.pipeline.hidden_s, sent_s),
    ]


def _share(part: Any, whole: Any) -> Any:
    """Return the logarithm of a share [1]."""
    return np.log10(part / whole + LEAST_SHARE)


def _link_energy_j(problem: Problem, alone: Priced) -> Any:
    """Return the energy of the links of one device in closed form [J]."""
    return least_link_j(problem, alone.plan_options, alone.strategy, alone.pipeline)


def _energy_j(alone: Priced) -> Any:
    """Return the energy of one device and its part of the overhead in closed form [J]."""
    return alone.step.energy_j / alone.step.num_devices


def _busy(problem: Problem, alone: Priced) -> list[Any]:
    """Return other loads of a step, over the step: hidden messages, sums, memory, links [1]."""
    time, price, link = alone.step.time, alone.pipeline, problem.system.levels[0]
    step_s, work = time.total_s, price.mean
    assert work is not None
    return [
        price.hidden_s / step_s,
        price.tp_per_step_s / step_s,
        price.memory_traffic_bytes / problem.rates.memory_bytes_per_s / step_s,
        work.link_traffic_bytes / link.bandwidth_bytes_per_s / step_s,
        np.minimum(time[TimePart.TATP_STREAM], time[TimePart.BUBBLE]) / step_s,
    ]


def _model(problem: Problem, strategy: StrategyColumns) -> list[Any]:
    """Return the features of the model, and the evenness of its stages."""
    model, chunks = problem.model, strategy.pp * strategy.num_virtual_stages
    most = np.ceil(model.num_layers / chunks)
    return [
        np.log2(problem.workload.sequence_length),
        np.log2(model.hidden_size),
        np.log2(most),
        most * chunks / model.num_layers - 1.0,
        model.vocab_size / (model.hidden_size * most * 12.0),
    ]


def _plan_options(plan_options: PlanOptions) -> list[float]:
    """Return the categorical choices as flags."""
    stage, recompute, schedule = (
        plan_options.zero_stage,
        plan_options.recompute,
        plan_options.schedule,
    )
    flags = (
        plan_options.sequence_parallel,
        plan_options.context_kind is ContextKind.ULYSSES,
        stage == 1, stage == 2, stage == 3,
        plan_options.reshard_after_forward,
        recompute is Recompute.SELECTIVE, recompute is Recompute.FULL,
        plan_options.overlap_tensor_parallel,
        schedule is ScheduleKind.GPIPE, schedule is ScheduleKind.INTERLEAVED,
        schedule is ScheduleKind.ZERO_BUBBLE,
    )  # fmt: skip
    return [float(flag) for flag in flags]


def _machine(problem: Problem) -> list[float]:
    """Return the features of devices and links."""
    columns, rows = problem.system.levels
    memories = problem.system.chip.memories
    hbm_bytes_per_s = memories[-1].bandwidth_bytes_per_s or 1.0
    return [
        np.log2(columns.size),
        np.log2(rows.size),
        float(columns.kind == "torus"),
        np.log10(columns.bandwidth_bytes_per_s),
        np.log10(columns.latency_s),
        columns.message_half_bytes / 1e6,
        np.log10(hbm_bytes_per_s),
        np.log10(memories[0].capacity_bytes),
    ]


def _blocks(network: AxisNetwork) -> list[Any]:
    """Return the sides of the block of each axis, and the distance between members."""
    reaches = [network.placement.reaches[axis] for axis in AXES]
    sizes = [np.log2(size) for reach in reaches for size in reach.sizes]
    apart = [
        np.where(size > 1, np.log2(distance), 0.0)
        for reach in reaches
        for size, distance in zip(reach.sizes, reach.apart, strict=True)
    ]
    return [*sizes, *apart]


def _cycles(problem: Problem, network: AxisNetwork) -> list[Any]:
    """Return flags of the axes with a cycle of neighbours: in their block, or around a torus."""
    across, along = problem.system.levels
    is_torus = across.kind == "torus"
    found = []
    for axis in AXES:
        columns, rows = network.placement.reaches[axis].sizes
        is_block = (columns > 1) & (rows > 1) & (np.mod(columns * rows, 2.0) == 0.0)
        is_round = ((columns == across.size) & (rows == 1)) | (
            (columns == 1) & (rows == along.size)
        )
        found.append((is_block | (is_round & is_torus)).astype(np.float64))
    return found
