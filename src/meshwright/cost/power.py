"""Energy of a step by its parts, and how far a cap on its mean power slows it down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.base.arrays import positive_part
from meshwright.cost.data_parallel import synced_bytes
from meshwright.cost.energy import (
    dynamic_parts_j,
    idle_power_w,
    least_step_s,
    link_energy_j,
    system_parts_j,
)
from meshwright.cost.problem import Problem
from meshwright.cost.stages import MeanWork, PipelinePrice
from meshwright.cost.step import StepTime
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import StrategyOf, Structure
from meshwright.spec.system import SystemSpec

IDLE_ABOVE_CAP = "power-idle-above-cap"
"""Rule: devices draw more than a cap allows before they do anything."""


def step_energy_parts_j(
    problem: Problem, structure: Structure, strategy: StrategyOf[Any], price: PipelinePrice,
    time: StepTime, link_j: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the energy of a step of all devices in use, by part [J]; empty: not known.

    Parameters
    ----------
    link_j
        Of all links, for each device in use [J]; if not given, that of the bytes that no algorithm
        does without, each over one link.
    """
    work = _mean_of(price)
    if link_j is None:
        link_j = least_link_j(problem, structure, strategy, work, price)
    busy_s = work.busy_s + time.optimizer_s
    memory_bytes = work.memory_traffic_bytes + _update_bytes(problem, time)
    system = problem.system
    dynamic_j = dynamic_parts_j(system.chip, busy_s, work.flops, memory_bytes, link_j)
    return system_parts_j(system, dynamic_j, time.total_s, strategy.num_devices)


def least_link_j(
    problem: Problem, structure: Structure, strategy: StrategyOf[Any], work: MeanWork,
    price: PipelinePrice,
) -> Any:  # fmt: skip
    """Return the energy of what a device sends at the least in a step [J]; None: not known."""
    num_bytes = work.link_traffic_bytes + data_parallel_bytes(
        problem, structure, strategy, work, price.pipeline.num_micro_batches
    )
    return link_energy_j(problem.system, num_bytes)


def data_parallel_bytes(
    problem: Problem, structure: Structure, strategy: StrategyOf[Any], work: MeanWork,
    num_micro_batches: Any,
) -> Any:  # fmt: skip
    """Return what a device sends at the least over the data-parallel axes in a step [bytes]."""
    optimizer = problem.workload.optimizer
    sent = synced_bytes(
        work.dense_params, strategy.dp_shard * strategy.cp, strategy.dp_replicate,
        num_micro_batches, structure, optimizer,
    )  # fmt: skip
    if not problem.num_experts:
        return sent
    shards, replicas = (degree_of(f"edp_{name}", strategy) for name in ("shard", "replicate"))
    return sent + synced_bytes(
        work.expert_params, shards, replicas, num_micro_batches, structure, optimizer
    )


def throttled(
    problem: Problem, structure: Structure, strategy: StrategyOf[Any], price: PipelinePrice,
    time: StepTime, link_j: Any = None,
) -> StepTime:  # fmt: skip
    """Return the time of a step that draws no more than the caps of its system.

    Parameters
    ----------
    link_j
        As in :func:`step_energy_parts_j`.
    """
    system = problem.system
    if not system.is_power_capped:
        return time
    work = _mean_of(price)
    if link_j is None:
        link_j = least_link_j(problem, structure, strategy, work, price)
    free_s = time.total_s - time.throttle_s
    update = _update_bytes(problem, time)
    mean_j = dynamic_parts_j(
        system.chip, work.busy_s + time.optimizer_s, work.flops,
        work.memory_traffic_bytes + update, link_j,
    )  # fmt: skip
    busiest_j = dynamic_parts_j(
        system.chip, time.compute_s + time.recompute_s + time.optimizer_s, price.flops,
        price.memory_traffic_bytes + update, link_j,
    )  # fmt: skip
    least_s = least_step_s(
        system, sum(mean_j.values()), sum(busiest_j.values()), strategy.num_devices
    )
    return replace(time, throttle_s=positive_part(least_s - free_s))


def least_pipeline_s(
    problem: Problem, strategy: StrategyOf[Any], price: PipelinePrice
) -> Any:  # fmt: skip
    """Return the step that the passes alone take below the caps [s]; 0 without caps.

    No way to shard the state takes less: its messages and its update only add.
    """
    system = problem.system
    if not system.is_power_capped:
        return 0.0 * price.flops
    work, pipeline = _mean_of(price), price.pipeline
    link_j = link_energy_j(system, work.link_traffic_bytes)
    mean_j = dynamic_parts_j(
        system.chip, work.busy_s, work.flops, work.memory_traffic_bytes, link_j
    )
    busiest_j = dynamic_parts_j(
        system.chip, pipeline.compute_s + pipeline.recompute_s, price.flops,
        price.memory_traffic_bytes, link_j,
    )  # fmt: skip
    return least_step_s(system, sum(mean_j.values()), sum(busiest_j.values()), strategy.num_devices)


def idles_above_cap(system: SystemSpec, num_devices: Any) -> Any:
    """Return whether devices draw more than a cap allows before they do anything."""
    idle = num_devices < 0
    if system.max_power_w is not None:
        idle = idle | (idle_power_w(system, num_devices) >= system.max_power_w)
    if system.max_device_power_w is not None:
        idle = idle | ((system.chip.idle_power_w or 0.0) >= system.max_device_power_w)
    return idle


def _update_bytes(problem: Problem, time: StepTime) -> Any:
    """Return the memory traffic of the update [bytes]."""
    return time.optimizer_s * problem.engine.memory_bytes_per_s


def _mean_of(price: PipelinePrice) -> MeanWork:
    """Return what a device does on average."""
    assert price.mean is not None
    return price.mean
