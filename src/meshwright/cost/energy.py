"""Energy of a step, and its slowdown by a cap on the mean power.

An unknown quantity stays unknown (NaN); it is never zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from meshwright.base.arrays import Mask, Num, larger, positive_part, where
from meshwright.collectives.registry import least_sent_bytes
from meshwright.cost.parts import StepTime, TimePart
from meshwright.cost.pipeline import MeanWork, PipelinePrice, SyncCounts, counts_of
from meshwright.cost.problem import Problem
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import PlanOptions, StrategyOf
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import ChipSpec, SystemSpec
from meshwright.spec.workload import OptimizerPreset

UNKNOWN = math.nan


def link_energy_j(system: SystemSpec, link_bytes: Num) -> Num | None:
    """Return the energy of bytes that each cross one link [J]; None where it is not known."""
    if not system.levels:
        return 0.0 * link_bytes
    least = system.link_energy_j_per_byte
    return None if least is None else link_bytes * least


def dynamic_parts_j(
    chip: ChipSpec, busy_s: Num, flops: Num, memory_bytes: Num, link_j: Num | None
) -> dict[str, Num]:
    """Return the energy of the work of one device on top of its idle power [J]; empty: not known.

    Where the energy of single operations is stated, FLOPs and memory bytes times theirs, and that
    of the links. Otherwise the rest of the peak power while the device computes.

    Parameters
    ----------
    busy_s
        Seconds in which the device computes.
    flops, memory_bytes
        FLOPs and bytes that cross its main memory.
    link_j
        Energy of the bytes that it sends, link by link [J]; None: not known.

    Source: energies of operations as in TEMP (arXiv 2512.14256), Table I.
    """
    memory = chip.main_memory
    per_flop, per_byte = chip.energy_j_per_flop, memory.energy_j_per_byte
    if per_flop is not None and per_byte is not None and link_j is not None:
        return {
            "compute_j": flops * per_flop,
            "memory_j": memory_bytes * per_byte,
            "links_j": link_j,
        }
    if chip.peak_power_w is None or chip.idle_power_w is None:
        return {}
    return {"busy_j": (chip.peak_power_w - chip.idle_power_w) * busy_s}


def system_parts_j(
    system: SystemSpec, dynamic_j: Mapping[str, Num], step_s: Num, num_devices: Num
) -> dict[str, Num]:
    """Return the energy of a step of all devices used, by part [J]; empty: not known.

    The work of each device, idle power over the whole step, and hosts, fans and switches.

    Parameters
    ----------
    dynamic_j
        Energy of one device by part: :func:`dynamic_parts_j`.
    """
    idle_w = system.chip.idle_power_w
    if idle_w is None or not dynamic_j:
        return {}
    parts = {name: energy_j * num_devices for name, energy_j in dynamic_j.items()}
    parts["idle_j"] = idle_w * step_s * num_devices
    return {**parts, "overhead_j": system.overhead_power_fraction * sum(parts.values())}


def total_energy_j(parts_j: Mapping[str, Num], step_s: Num) -> Num:
    """Return the sum of the parts [J]; NaN without parts."""
    return sum(parts_j.values()) if parts_j else step_s * UNKNOWN


def idle_power_w(system: SystemSpec, num_devices: Num) -> Num:
    """Return the power of idle devices, overhead included [W]; NaN: not known."""
    idle_w = UNKNOWN if system.chip.idle_power_w is None else system.chip.idle_power_w
    return num_devices * idle_w * (1.0 + system.overhead_power_fraction)


def least_step_s(
    system: SystemSpec, dynamic_j: Num, busiest_j: Num, num_devices: Num
) -> Num:  # fmt: skip
    """Return the step time at which the mean power meets the caps of a system [s]; 0 without caps.

    (n E (1 + o)) / (W - n I (1 + o)) for the whole system, E / (W - I) for each device: work takes
    the same energy however slowly it is done, idle power takes more. Infinite where idle power
    alone is more than a cap.

    Parameters
    ----------
    dynamic_j
        Energy of the work of one device on top of its idle power, on average [J].
    busiest_j
        Energy of that work on the device with the most of it [J].
    """
    overhead, least_s = 1.0 + system.overhead_power_fraction, 0.0 * dynamic_j
    if system.max_power_w is not None:
        room_w = system.max_power_w - idle_power_w(system, num_devices)
        least_s = larger(least_s, _drawn_s(num_devices * dynamic_j * overhead, room_w))
    if system.max_device_power_w is not None:
        room_w = system.max_device_power_w - (system.chip.idle_power_w or 0.0)
        least_s = larger(least_s, _drawn_s(busiest_j, room_w + 0.0 * dynamic_j))
    return least_s


def _drawn_s(energy_j: Num, power_w: Num) -> Num:
    """Return the seconds to draw an energy at a power; infinite without power."""
    has_room = power_w > 0
    return where(has_room, energy_j / where(has_room, power_w, 1.0), math.inf)


IDLE_ABOVE_CAP = "power-idle-above-cap"
"""Rule: devices draw more than a cap allows before they do anything."""


def step_energy_parts_j(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], price: PipelinePrice,
    time: StepTime, link_j: Num | None = None, num_devices: Num | None = None,
) -> dict[str, Num]:  # fmt: skip
    """Return the energy of a step of all devices in use, by part [J]; empty: not known.

    Parameters
    ----------
    link_j
        Energy of all links, for each rank [J]; if not given, that of the least bytes of any
        algorithm, each over one link.
    num_devices
        Devices in use; if not given, one for each rank. Fewer devices do the work of all ranks.
    """
    if link_j is None:
        link_j = least_link_j(problem, plan_options, strategy, price)
    mean_j, _ = _device_parts_j(problem, price, time, link_j)
    num_devices = strategy.num_devices if num_devices is None else num_devices
    own_j = {part: rank_j * strategy.num_devices / num_devices for part, rank_j in mean_j.items()}
    return system_parts_j(problem.system, own_j, time.total_s, num_devices)


def least_link_j(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], price: PipelinePrice
) -> Num | None:
    """Return the energy of the least bytes that a device sends in a step [J]; None: not known.

    Over the links of its layers and stages, and over the data-parallel axes.
    """
    work, optimizer = mean_work(price), problem.workload.optimizer
    counts = counts_of(price, plan_options, problem.workload.software)
    shards, replicas = strategy.dp_shard * strategy.cp, strategy.dp_replicate
    sent = synced_bytes(work.dense_params, shards, replicas, counts, plan_options, optimizer)
    if problem.num_experts:
        shards, replicas = (degree_of(f"edp_{name}", strategy) for name in ("shard", "replicate"))
        sent = sent + synced_bytes(
            work.expert_params, shards, replicas, counts, plan_options, optimizer
        )
    return link_energy_j(problem.system, work.link_traffic_bytes + sent)


def throttled(
    problem: Problem, plan_options: PlanOptions, strategy: StrategyOf[Num], price: PipelinePrice,
    time: StepTime, link_j: Num | None = None, num_devices: Num | None = None,
) -> StepTime:  # fmt: skip
    """Return the time of a step that draws no more than the caps of its system.

    Parameters
    ----------
    link_j, num_devices
        As in :func:`step_energy_parts_j`; if not given, the fewest devices that hold the ranks.
    """
    if not problem.system.is_power_capped:
        return time
    if link_j is None:
        link_j = least_link_j(problem, plan_options, strategy, price)
    free_s = time.total_s - time[TimePart.THROTTLE]
    least_s = _capped_s(problem, strategy, price, time, link_j, num_devices)
    return time.plus({TimePart.THROTTLE: positive_part(least_s - free_s)})


def least_pipeline_s(problem: Problem, strategy: StrategyOf[Num], price: PipelinePrice) -> Num:
    """Return the step that the passes alone take below the caps [s]; 0 without caps.

    However the state is sharded, its messages and its update only add.
    """
    if not problem.system.is_power_capped:
        return 0.0 * price.flops
    link_j = link_energy_j(problem.system, mean_work(price).link_traffic_bytes)
    return _capped_s(problem, strategy, price, price.time, link_j)


def _capped_s(
    problem: Problem, strategy: StrategyOf[Num], price: PipelinePrice, time: StepTime,
    link_j: Num | None, num_devices: Num | None = None,
) -> Num:  # fmt: skip
    """Return the step time at which the mean power meets the caps [s]."""
    mean_j, busiest_j = (
        sum(parts.values()) for parts in _device_parts_j(problem, price, time, link_j)
    )
    num_ranks = strategy.num_devices
    num_devices = problem.least_devices(num_ranks) if num_devices is None else num_devices
    own_j = mean_j * (num_ranks / num_devices)
    return least_step_s(problem.system, own_j, busiest_j, num_devices)


def _device_parts_j(
    problem: Problem, price: PipelinePrice, time: StepTime, link_j: Num | None
) -> tuple[dict[str, Num], dict[str, Num]]:
    """Return the energy of the work of a device on top of its idle power, by part [J].

    On average, and on the slowest stage. An update that ``time`` leaves out takes nothing.
    """
    chip, work = problem.system.chip, mean_work(price)
    update_s = time.columns.get(TimePart.OPTIMIZER, 0.0)
    update_bytes = update_s * problem.rates.memory_bytes_per_s
    passes = (TimePart.COMPUTE, TimePart.MAIN_MEMORY, TimePart.RECOMPUTE)
    busiest_s = sum(time[part] for part in passes) + update_s
    mean_busy_s = work.busy_s + work.update_share * update_s
    mean_bytes = work.memory_traffic_bytes + work.update_share * update_bytes
    most_bytes = price.memory_traffic_bytes + update_bytes
    return (
        dynamic_parts_j(chip, mean_busy_s, work.flops, mean_bytes, link_j),
        dynamic_parts_j(chip, busiest_s, price.flops, most_bytes, link_j),
    )


def idles_above_cap(system: SystemSpec, num_devices: Num) -> Mask:
    """Return whether devices draw more than a cap allows before they do anything."""
    idle = num_devices < 0
    if system.max_power_w is not None:
        idle = idle | (idle_power_w(system, num_devices) >= system.max_power_w)
    if system.max_device_power_w is not None:
        idle = idle | ((system.chip.idle_power_w or 0.0) >= system.max_device_power_w)
    return idle


def mean_work(price: PipelinePrice) -> MeanWork:
    """Return the work of one device in a step, on average over all stages."""
    assert price.mean is not None
    return price.mean


def synced_bytes(
    params: Num, shards: Num, replicas: Num, counts: SyncCounts, plan_options: PlanOptions,
    optimizer: OptimizerPreset,
) -> Num:  # fmt: skip
    """Return the least bytes a rank sends to synchronise parameters in a step [bytes].

    Parameters
    ----------
    params
        Parameters on one rank, before they are sharded [1].
    shards, replicas
        Ranks that share one copy of the state, and copies [1].
    counts
        Transfers in a step, by kind.
    """
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    stage = plan_options.zero_stage
    weight_bytes = params * optimizer.gathered_bytes_per_param(stage)
    if stage == 0:
        kind = CollectiveKind.ALL_REDUCE
        sent: Num = least_sent_bytes(kind, gradient_bytes, shards * replicas)
        return sent
    scattered = least_sent_bytes(CollectiveKind.REDUCE_SCATTER, gradient_bytes, shards)
    gathered = least_sent_bytes(CollectiveKind.ALL_GATHER, weight_bytes, shards)
    summed = least_sent_bytes(CollectiveKind.ALL_REDUCE, gradient_bytes / shards, replicas)
    num_gathers = counts.forward_gathers + counts.backward_gathers
    result: Num = (
        counts.scatters * scattered + num_gathers * gathered + counts.replica_sums * summed
    )
    return result
