"""What the compatibility preset is told: an application, and a system with step-wise efficiencies.

The fields are those of Calculon 0.1.0 in SI units; a category of a system stands for one engine,
one memory or one network tier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from meshwright.base.errors import UnknownNameError
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
    """Zero: the tier is absent."""
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
    """One network tier: its size, its rate, and what a collective moves on it."""

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
    """Compute and memory time of a layer are added, or the larger one counts."""
    networks: tuple[NetworkTier, ...]

    def without_host_memory(self) -> System:
        """Return the same system whose host-memory tier is absent."""
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
    """Return what is kept of the peer's own files."""
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
