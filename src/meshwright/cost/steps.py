"""From the pipeline to the whole step: data-parallel state, update, memory, energy, money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from typing import Any, TypeVar, cast

import numpy as np

from meshwright.base.arrays import larger
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.data_parallel import Exposure, plain
from meshwright.cost.energy import step_cost_usd, total_energy_j
from meshwright.cost.layers import Collectives
from meshwright.cost.memory import MemoryUse, ShardDegrees, StageState, host_bytes, memory_use
from meshwright.cost.power import step_energy_parts_j, throttled
from meshwright.cost.problem import Problem
from meshwright.cost.stages import PipelinePrice
from meshwright.cost.step import (
    DataParallelLinks,
    StepTime,
    gradient_sync,
    offload_step_s,
    optimizer_step_s,
    sharding_copies_s,
    step_time,
)
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import Offload, StrategyOf, Structure
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import HostLink

Record = TypeVar("Record")


@dataclass(frozen=True)
class SyncLinks:
    """Collectives over the data-parallel axes of dense parameters, and of expert parameters."""

    dense: DataParallelLinks
    expert: DataParallelLinks | None


@dataclass(frozen=True)
class StepPrice:
    """The price of a step for columns of strategies."""

    time: StepTime
    memory: tuple[MemoryUse, ...]
    """Of the first, the fullest middle and the last stage."""
    host_bytes: Any
    """On the host, for one device [bytes]."""
    energy_j: Any
    energy_parts_j: dict[str, Any]
    """By part, as far as they can be told apart; empty: not known [J]."""
    cost_usd: Any
    num_devices: Any
    flops: Any
    """Executed by the slowest device [FLOP]."""

    @property
    def memory_bytes(self) -> Any:
        """Memory of the fullest device [bytes]."""
        return reduce(larger, [use.total_bytes for use in self.memory])


def take_rows(record: Record, rows: Any) -> Record:
    """Return the named rows of a record of columns; numbers stay as they are."""
    result: Any = record
    if isinstance(record, np.ndarray):
        result = record[rows]
    elif isinstance(record, tuple):
        result = tuple(take_rows(entry, rows) for entry in record)
    elif isinstance(record, dict):
        result = {name: take_rows(entry, rows) for name, entry in record.items()}
    elif is_dataclass(record) and not isinstance(record, type):
        parts = {f.name: take_rows(getattr(record, f.name), rows) for f in fields(record)}
        result = type(record)(**parts)
    return cast(Record, result)


def joined(records: Sequence[Record]) -> Record:
    """Return records of columns put after one another."""
    first: Any = records[0]
    result: Any = first
    if isinstance(first, np.ndarray):
        result = np.concatenate([cast(Any, record) for record in records])
    elif isinstance(first, tuple):
        entries = zip(*[cast(Any, record) for record in records], strict=True)
        result = tuple(joined(list(entry)) for entry in entries)
    elif isinstance(first, dict):
        result = {name: joined([cast(Any, r)[name] for r in records]) for name in first}
    elif is_dataclass(first) and not isinstance(first, type):
        parts = {f.name: joined([getattr(r, f.name) for r in records]) for f in fields(first)}
        result = type(first)(**parts)
    return cast(Record, result)


def sync_links(problem: Problem, collectives: Collectives) -> SyncLinks:
    """Return the data-parallel collectives for the strategies of a network."""
    s = collectives.network.strategy
    dense = _links(collectives, "dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
    degrees = s.dp_shard * s.cp
    experts = None
    if problem.num_experts:
        shard_degree = degree_of("edp_shard", s)
        experts = _links(collectives, "edp_shard", "edp_replicate", "edp", shard_degree)
    return SyncLinks(_with_degrees(dense, degrees), experts)


def _links(
    collectives: Collectives, shard: str, replicate: str, everyone: str, degrees: Any = 1.0
) -> DataParallelLinks:
    return DataParallelLinks(
        reduce_scatter=collectives.transfer(CollectiveKind.REDUCE_SCATTER, shard),
        all_gather=collectives.transfer(CollectiveKind.ALL_GATHER, shard),
        replicate_all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, replicate),
        all_reduce=collectives.transfer(CollectiveKind.ALL_REDUCE, everyone),
        degrees=degrees,
    )


def _with_degrees(links: DataParallelLinks, degrees: Any) -> DataParallelLinks:
    parts = {f.name: getattr(links, f.name) for f in fields(links)}
    return DataParallelLinks(**{**parts, "degrees": degrees})


def price_step(
    problem: Problem,
    structure: Structure,
    strategy: StrategyOf[Any],
    price: PipelinePrice,
    links: SyncLinks,
) -> StepPrice:
    """Return the whole step for columns of strategies, whose pipelines have these prices."""
    shards = shard_degrees(problem, strategy)
    time = step_times(problem, structure, shards, price, links)
    time = throttled(problem, structure, strategy, price, time)
    on_host = [
        host_bytes(state, shards, structure, problem.workload.optimizer) for state in price.states
    ]
    parts_j = step_energy_parts_j(problem, structure, strategy, price, time)
    return StepPrice(
        time=time,
        memory=step_memory(problem, structure, shards, price.states),
        host_bytes=reduce(larger, on_host),
        energy_j=total_energy_j(parts_j, time.total_s),
        energy_parts_j=parts_j,
        cost_usd=step_cost_usd(problem.system.chip, time.total_s, strategy.num_devices),
        num_devices=strategy.num_devices,
        flops=price.flops,
    )


def step_times(
    problem: Problem,
    structure: Structure,
    shards: ShardDegrees,
    price: PipelinePrice,
    links: SyncLinks,
) -> StepTime:
    """Return the time of the step, in parts; the states of single stages do not matter."""
    optimizer, heaviest = problem.workload.optimizer, price.heaviest
    kinds = [(heaviest.dense_params, links.dense)]
    if links.expert is not None:
        kinds.append((heaviest.expert_params, links.expert))
    software = problem.workload.software
    synced = gradient_sync(
        kinds, price.pipeline, structure, optimizer, sums_whole=software.sums_whole_gradients
    )
    if structure.zero_stage == 3 and software.copies_shards:
        copied = sharding_copies_s(
            heaviest, price.pipeline, structure, problem.engine.elementwise_bytes_per_s
        )
        synced = Exposure(synced.exposed_s + copied, synced.hidden_s)
    optimizer_s = optimizer_step_s(
        heaviest, shards, structure, optimizer, problem.engine.memory_bytes_per_s
    )
    offloaded = plain(0.0 * optimizer_s)
    if structure.offload is not Offload.NONE:
        offloaded = offload_step_s(
            heaviest, shards, price.pipeline, structure, optimizer,
            host_of(problem).bandwidth_bytes_per_s,
        )  # fmt: skip
    return step_time(
        price.pipeline, synced, optimizer_s, offloaded,
        sigma=problem.calibration.overlap_slowdown, jitter=price.jitter,
    )  # fmt: skip


def host_of(problem: Problem) -> HostLink:
    """Return the host that takes what is offloaded.

    Raises
    ------
    SpecError
        When the system has none.
    """
    host = problem.system.host
    if host is None:
        message = f"{problem.system.name} has no host memory to offload to"
        raise SpecError(Fault("offload", message, "offload=none"))
    return host


def step_memory(
    problem: Problem, structure: Structure, shards: ShardDegrees, states: Sequence[StageState]
) -> tuple[MemoryUse, ...]:
    """Return the memory of each stage: of the first, the fullest middle and the last one."""
    return tuple(
        memory_use(
            state, shards, structure, problem.workload.optimizer,
            capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
            margin_fraction=problem.calibration.memory_margin_fraction,
            buffer_bytes=problem.calibration.communication_buffer_bytes,
            communicator_bytes=problem.calibration.communicator_bytes,
            allocator_factor=problem.calibration.allocator_factor,
        )
        for state in states
    )  # fmt: skip


def fits_memory(
    problem: Problem, structure: Structure, shards: ShardDegrees, states: Sequence[StageState]
) -> tuple[Any, Any]:
    """Return the memory of the fullest device [bytes], and whether device and host hold it."""
    uses = step_memory(problem, structure, shards, states)
    needed = reduce(larger, [use.total_bytes for use in uses])
    fits = needed <= problem.system.chip.main_memory.capacity_bytes
    if structure.offload is not Offload.NONE:
        for state in states:
            on_host = host_bytes(state, shards, structure, problem.workload.optimizer)
            fits = fits & (on_host <= host_of(problem).capacity_bytes)
    return needed, fits


def shard_degrees(problem: Problem, strategy: StrategyOf[Any]) -> ShardDegrees:
    """Return over how many devices the state of dense and of expert parameters is split."""
    dense = strategy.dp_shard * strategy.cp
    if not problem.num_experts:
        return ShardDegrees(dense=dense, expert=1.0)
    return ShardDegrees(dense=dense, expert=degree_of("edp_shard", strategy))
