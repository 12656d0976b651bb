"""Parts of a step by key: the parts of its time, and of the memory of a device.

A new kind of communication or of memory is one more key; no list repeats the names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np

from meshwright.base.arrays import Num, names_of, number_at


class StepPhase(StrEnum):
    """When a part of a step arises."""

    PASSES = "passes"
    """Time in the passes of the micro-batches: does not depend on how data-parallel state is
    sharded."""
    UPDATE = "update"
    """Around the update: synchronisation, optimizer, host traffic."""
    WHOLE = "whole"
    """A share of everything before it."""


class TimePart(StrEnum):
    """Parts of the time of a step, in the order of summation; values are the names in JSON."""

    phase: StepPhase
    axis: str | None
    """Axis of the exposed communication in this part; None: no communication."""

    def __new__(cls, name: str, phase: StepPhase, axis: str | None = None) -> Self:
        """Return the part with its phase and axis."""
        part = str.__new__(cls, name)
        part._value_, part.phase, part.axis = name, phase, axis
        return part

    COMPUTE = "compute_s", StepPhase.PASSES
    """Forward, input gradients and weight gradients: kernels that arithmetic limits."""
    MAIN_MEMORY = "main_memory_s", StepPhase.PASSES
    """Kernels of the same passes that the main memory limits."""
    RECOMPUTE = "recompute_s", StepPhase.PASSES
    LAUNCH = "launch_s", StepPhase.PASSES
    """Waiting for the host to launch kernels."""
    TP_COMM = "tp_comm_s", StepPhase.PASSES, "tp"
    """Exposed communication of tensor and sequence parallelism."""
    CP_COMM = "cp_comm_s", StepPhase.PASSES, "cp"
    EP_COMM = "ep_comm_s", StepPhase.PASSES, "ep"
    TATP_STREAM = "tatp_stream_s", StepPhase.PASSES, "tatp"
    """Rounds of tensor streams that wait for a link or for memory."""
    PP_COMM = "pp_comm_s", StepPhase.PASSES, "pp"
    BUBBLE = "bubble_s", StepPhase.PASSES
    DP_COMM = "dp_comm_s", StepPhase.UPDATE, "dp"
    """Exposed synchronisation of gradients and parameters."""
    OVERLAP_SLOWDOWN = "overlap_slowdown_s", StepPhase.UPDATE
    """Seconds by which concurrent transfers slow computation down."""
    OPTIMIZER = "optimizer_s", StepPhase.UPDATE
    OFFLOAD = "offload_s", StepPhase.UPDATE
    JITTER = "jitter_s", StepPhase.WHOLE
    """Waiting for the slowest of many devices."""
    THROTTLE = "throttle_s", StepPhase.WHOLE
    """Slowed down, so that the mean power stays below a cap."""


class MemoryPart(StrEnum):
    """Parts of the memory of a device, in the order of summation; values are names in JSON."""

    WEIGHTS = "weights_bytes"
    GRADIENTS = "gradients_bytes"
    STATES = "states_bytes"
    """States of the optimizer."""
    GATHERED = "gathered_bytes"
    """Whole layers that ZeRO-3, offload or a stream brings in for a while."""
    ACTIVATIONS = "activations_bytes"
    """Kept for the backward pass by all micro-batches in flight."""
    LOGITS = "logits_bytes"
    """Tensors as wide as the vocabulary, their gradients among them."""
    TEMPORARY = "temporary_bytes"
    """Gradients of activations, a recomputed layer, buffers of messages, copies of an update."""
    WORKSPACE = "workspace_bytes"
    """Workspace of libraries of matrix products, from the allocator."""
    FRAGMENTATION = "fragmentation_bytes"
    """Memory the allocator holds beyond the tensors: remainders of blocks, too small for any
    tensor, and places of other streams."""
    BUFFERS = "buffers_bytes"
    """Runtime and communication library."""
    MARGIN = "margin_bytes"
    """Memory left free, as a guard against errors of the model."""


TENSORS = (
    MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.STATES, MemoryPart.GATHERED,
    MemoryPart.ACTIVATIONS, MemoryPart.LOGITS, MemoryPart.TEMPORARY,
)  # fmt: skip
"""Categories of tensors: each byte of a tensor is in one of them."""


K = TypeVar("K", bound=StrEnum)


@dataclass(frozen=True)
class Parts(Generic[K]):
    """Columns by key, in the order of summation; each a number or of shape (rows,)."""

    columns: dict[K, Num]

    def __getitem__(self, part: K) -> Num:
        return self.columns[part]

    @property
    def total(self) -> Num:
        """The sum of all parts, from the first to the last."""
        return reduce(operator.add, self.columns.values())

    def plus(self, parts: Mapping[K, Num]) -> Self:
        """Return these parts with others after them; a part of the same key is replaced."""
        return replace(self, columns={**self.columns, **parts})

    def row(self, index: int = 0) -> dict[str, float]:
        """Return one row as plain numbers by name in JSON; a number stands for all its rows."""
        return {part.value: number_at(column, index) for part, column in self.columns.items()}


class StepTime(Parts[TimePart]):
    """The time of a step, or of its first phases, on the slowest stage [s]."""

    @property
    def total_s(self) -> Num:
        """All of it [s]."""
        return self.total


@dataclass(frozen=True)
class MemoryUse(Parts[MemoryPart]):
    """The memory of one device where all parts together are most [bytes]."""

    most: dict[MemoryPart, Num] = field(default_factory=dict)
    """The most of each category of tensors at any moment of a step [bytes]."""

    def most_row(self, index: int = 0) -> dict[str, float]:
        """Return one row of ``most`` as plain numbers by name in JSON."""
        return {part.value: number_at(column, index) for part, column in self.most.items()}

    @property
    def total_bytes(self) -> Num:
        """All of it [bytes]."""
        return self.total

    @property
    def allocator_bytes(self) -> Num:
        """Memory that the allocator of the framework holds: without runtime and margin [bytes]."""
        return self.total - self[MemoryPart.BUFFERS] - self[MemoryPart.MARGIN]


Record = TypeVar("Record")


def by_field(combine: Callable[..., Num], *records: Record) -> Record:
    """Return a record with numbers combined from several records; what it holds likewise."""
    first: Any = records[0]
    if isinstance(first, dict):
        every = cast(Sequence[Any], records)
        return cast(Record, {key: combine(*(one[key] for one in every)) for key in first})
    parts = {}
    kind: Any = type(first)
    for name in names_of(kind):
        values = [getattr(record, name) for record in records]
        is_number = isinstance(values[0], (float, np.ndarray, int))
        is_whole = not is_number and (is_dataclass(values[0]) or isinstance(values[0], dict))
        parts[name] = by_field(combine, *values) if is_whole else combine(*values)
    return cast(Record, kind(**parts))


def sum_of(zero: Record, records: Sequence[Record]) -> Record:
    """Return the sum of records, field by field; ``zero`` without records."""
    return by_field(lambda *parts: sum(parts), zero, *records)
