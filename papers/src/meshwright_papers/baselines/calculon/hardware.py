"""A declared system as arrays: rates with step-wise efficiency, and networks taken by tier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, larger, where
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright_papers.baselines.calculon.declarations import (
    BYTES_PER_ELEMENT,
    Engine,
    MemoryTier,
    NetworkTier,
    Operation,
    System,
)

Column = FloatArray
"""Numbers of many plans, or of one; every formula of this folder works on any shape."""


@dataclass(frozen=True)
class Rate:
    """A peak rate and its efficiency by the size of the operation."""

    peak_per_s: float
    thresholds: tuple[float, ...]
    """Rising; the first is 0."""
    efficiencies: tuple[float, ...]

    def seconds(self, amount: Column) -> Column:
        """Return the time of one operation of this size [s]: amount / (peak * efficiency)."""
        efficiency: Any = self.efficiencies[0]
        for threshold, value in zip(self.thresholds[1:], self.efficiencies[1:], strict=True):
            efficiency = where(amount >= threshold, value, efficiency)
        seconds: Column = amount / (self.peak_per_s * efficiency)
        return seconds


@dataclass(frozen=True)
class Links:
    """The network tier of one axis: one column per property."""

    bandwidth_bytes_per_s: Column
    """Bandwidth times its efficiency."""
    latency_s: Column
    processor_usage: Column
    scale: dict[Operation, Column]
    offset: dict[Operation, Column]

    def seconds(self, operation: Operation, num_bytes: Column, participants: Any) -> Column:
        """Return the time of one transfer [s].

        latency + scale * bytes * (1 + offset / participants) / bandwidth; the latency is paid
        once, whatever the number of participants.
        """
        moved = num_bytes * self.scale[operation]
        moved = moved + moved / participants * self.offset[operation]
        seconds: Column = self.latency_s + moved / self.bandwidth_bytes_per_s
        return seconds


@dataclass(frozen=True)
class Machine:
    """A system at one data type."""

    matrix: Rate
    vector: Rate
    memory: Rate
    host_memory: Rate
    memory_capacity_bytes: float
    host_capacity_bytes: float
    bytes_per_element: float
    is_roofline: bool
    networks: Links
    """All tiers, near to far."""
    network_sizes: Column
    must_be_filled: Column

    @property
    def num_networks(self) -> int:
        """Number of network tiers."""
        return int(self.network_sizes.size)

    def links(self, tier: Any) -> Links:
        """Return the network of each plan, given the tier that it uses."""
        index = np.asarray(tier, dtype=np.int64)
        net = self.networks
        return Links(
            bandwidth_bytes_per_s=net.bandwidth_bytes_per_s[index],
            latency_s=net.latency_s[index],
            processor_usage=net.processor_usage[index],
            scale={operation: column[index] for operation, column in net.scale.items()},
            offset={operation: column[index] for operation, column in net.offset.items()},
        )

    def busy_s(self, compute_s: Column, memory_s: Column) -> Column:
        """Return the time of a layer whose compute and memory times are known [s]."""
        busy: Column = larger(compute_s, memory_s) if self.is_roofline else compute_s + memory_s
        return busy


def machine_of(system: System, data_type: str) -> Machine:
    """Return a system as arrays, at one data type.

    Raises
    ------
    SpecError
        When an engine of the system has no rate for the data type.
    """
    engines = {"matrix": system.matrix, "vector": system.vector}
    faults = [
        Fault(f"{name}.{data_type}", "the engine has no such data type", nearest(data_type, engine))
        for name, engine in engines.items()
        if data_type not in engine
    ]
    if faults:
        raise SpecError(faults)
    return Machine(
        matrix=_engine_rate(system.matrix[data_type]),  # type: ignore[index]
        vector=_engine_rate(system.vector[data_type]),  # type: ignore[index]
        memory=_memory_rate(system.memory),
        host_memory=_memory_rate(system.host_memory),
        memory_capacity_bytes=system.memory.capacity_bytes,
        host_capacity_bytes=system.host_memory.capacity_bytes,
        bytes_per_element=BYTES_PER_ELEMENT[data_type],
        is_roofline=system.processing == "roofline",
        networks=_all_links(system.networks),
        network_sizes=_column(tier.num_processors for tier in system.networks),
        must_be_filled=_column(tier.must_be_filled for tier in system.networks),
    )


def _column(values: Iterable[float]) -> Column:
    return np.array(list(values), dtype=np.float64)


def _engine_rate(engine: Engine) -> Rate:
    steps = engine.steps[::-1]
    return Rate(
        engine.peak_flops_per_s,
        tuple(step.at_least_flops for step in steps),
        tuple(step.efficiency for step in steps),
    )


def _memory_rate(memory: MemoryTier) -> Rate:
    steps = memory.steps[::-1]
    return Rate(
        memory.bandwidth_bytes_per_s,
        tuple(step.at_least_bytes for step in steps),
        tuple(step.efficiency for step in steps),
    )


def _all_links(tiers: tuple[NetworkTier, ...]) -> Links:
    operations: tuple[Operation, ...] = ("p2p", "reduce_scatter", "all_gather", "all_reduce")
    return Links(
        bandwidth_bytes_per_s=_column(t.bandwidth_bytes_per_s * t.efficiency for t in tiers),
        latency_s=_column(t.latency_s for t in tiers),
        processor_usage=_column(t.processor_usage for t in tiers),
        scale={op: _column(t.operations[op].scale for t in tiers) for op in operations},
        offset={op: _column(t.operations[op].offset for t in tiers) for op in operations},
    )
