"""Inputs of the compatibility preset: an application, and a system with step-wise efficiencies.

The fields are those of Calculon 0.1.0 in SI units; a category of a system stands for one engine,
one memory or one network tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from meshwright.base.arrays import FloatArray, Num, larger, where
from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.catalog.files import load_file
from meshwright.spec.declaration import (
    BytesPerSecond,
    Count,
    Declaration,
    Flops,
    FlopsPerSecond,
    MessageBytes,
    Seconds,
    Source,
)

DataType = Literal["float8", "float16", "bfloat16", "float32"]
Operation = Literal["p2p", "reduce_scatter", "all_gather", "all_reduce"]
Fraction = Annotated[float, Field(gt=0, le=1)]

BYTES_PER_ELEMENT: Mapping[str, float] = {
    "float8": 1.0, "float16": 2.0, "bfloat16": 2.0, "float32": 4.0,
}  # fmt: skip


class Application(Declaration):
    """A stack of equal transformer blocks; no embedding, no logits, no loss."""

    hidden_size: Count
    feedforward_size: Count
    sequence_size: Count
    num_heads: Count
    head_size: Count
    num_blocks: Count


class FlopsStep(Declaration):
    """The efficiency of operations of at least this size [FLOP]."""

    at_least_flops: Flops
    efficiency: Fraction


class BytesStep(Declaration):
    """The efficiency of accesses of at least this size [B]."""

    at_least_bytes: MessageBytes
    efficiency: Fraction


def _check_steps(sizes: Sequence[float]) -> None:
    """Refuse steps that do not fall, or that leave small sizes uncovered."""
    if not sizes or sizes[-1] != 0:
        raise ValueError("steps: the last step must start at 0")
    if any(upper <= lower for upper, lower in pairwise(sizes)):
        raise ValueError("steps: each step must start below the one before it")


class Engine(Declaration):
    """A compute engine: its peak, and its efficiency by the size of the operation."""

    peak_flops_per_s: FlopsPerSecond
    steps: tuple[FlopsStep, ...]

    @model_validator(mode="after")
    def _steps_cover_all_sizes(self) -> Self:
        _check_steps([step.at_least_flops for step in self.steps])
        return self


class MemoryTier(Declaration):
    """A memory: capacity, bandwidth, and efficiency by the size of the access."""

    capacity_bytes: MessageBytes
    """Capacity of the tier [B]; 0: the tier is absent."""
    bandwidth_bytes_per_s: BytesPerSecond
    steps: tuple[BytesStep, ...]

    @model_validator(mode="after")
    def _steps_cover_all_sizes(self) -> Self:
        _check_steps([step.at_least_bytes for step in self.steps])
        return self


class OperationCost(Declaration):
    """Bytes moved per byte of payload among n participants: scale * (1 + offset / n)."""

    scale: Annotated[float, Field(gt=0)]
    offset: float


class NetworkTier(Declaration):
    """One network tier: its size, its rate, and the volume of collectives on it."""

    bandwidth_bytes_per_s: BytesPerSecond
    efficiency: Fraction
    num_processors: Count
    latency_s: Seconds
    must_be_filled: bool
    processor_usage: Annotated[float, Field(ge=0, lt=1)]
    """Share of the compute engine that drives the transfers of an overlap."""
    operations: Mapping[Operation, OperationCost]


class System(Declaration):
    """One system file of the peer."""

    matrix: Mapping[DataType, Engine]
    vector: Mapping[DataType, Engine]
    memory: MemoryTier
    host_memory: MemoryTier
    processing: Literal["no_overlap", "roofline"]
    """Whether compute and memory time of a layer are added, or the larger one counts."""
    networks: tuple[NetworkTier, ...]

    def without_host_memory(self) -> System:
        """Return the system without its host-memory tier."""
        absent = self.host_memory.model_copy(update={"capacity_bytes": 0.0})
        return self.model_copy(update={"host_memory": absent})


class PeerCatalog(Declaration):
    """Applications and systems that the peer ships, by its names."""

    name: str
    sources: Mapping[str, Source]
    applications: Mapping[str, Application]
    systems: Mapping[str, System]


@cache
def peer_catalog() -> PeerCatalog:
    """Return the data kept from the peer's own files."""
    return load_file(PeerCatalog, Path(__file__).with_name("facts.yaml"))


def application_named(name: str) -> Application:
    """Return an application by the peer's name, such as ``gpt3-175B``."""
    known = peer_catalog().applications
    if name not in known:
        raise UnknownNameError("application", name, known)
    return known[name]


def system_named(name: str) -> System:
    """Return a system by the peer's name, such as ``a100_80g``."""
    known = peer_catalog().systems
    if name not in known:
        raise UnknownNameError("system", name, known)
    return known[name]


Column = FloatArray
"""Numbers of many plans, or of one; every formula of this folder works on any shape."""


@dataclass(frozen=True)
class Rate:
    """A peak rate and its efficiency by the size of the operation."""

    peak_per_s: float
    thresholds: tuple[float, ...]
    """Rising; the first is 0."""
    efficiencies: tuple[float, ...]

    def seconds(self, amount: Num) -> Num:
        """Return the time of one operation of this size [s]: amount / (peak * efficiency)."""
        efficiency: Num = self.efficiencies[0]
        for threshold, value in zip(self.thresholds[1:], self.efficiencies[1:], strict=True):
            efficiency = where(amount >= threshold, value, efficiency)
        return amount / (self.peak_per_s * efficiency)


@dataclass(frozen=True)
class Links:
    """The network tier of one axis: one column per property."""

    bandwidth_bytes_per_s: Column
    """Bandwidth times its efficiency."""
    latency_s: Column
    processor_usage: Column
    scale: dict[Operation, Column]
    offset: dict[Operation, Column]

    def seconds(self, operation: Operation, num_bytes: Num, participants: Num) -> Num:
        """Return the time of one transfer [s].

        latency + scale * bytes * (1 + offset / participants) / bandwidth; the latency is paid
        once, whatever the number of participants.
        """
        moved = num_bytes * self.scale[operation]
        moved = moved + moved / participants * self.offset[operation]
        return self.latency_s + moved / self.bandwidth_bytes_per_s


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

    def busy_s(self, compute_s: Num, memory_s: Num) -> Num:
        """Return the time of a layer from its compute and memory times [s]."""
        return larger(compute_s, memory_s) if self.is_roofline else compute_s + memory_s


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
