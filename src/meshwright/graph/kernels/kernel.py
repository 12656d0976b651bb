"""A kernel: its dims, its inputs and weights, and the one tensor it writes.

Everything about splitting follows from dims. Take a kernel that computes
``scores[heads, tokens, keys]`` from ``query[heads, tokens, head_dim]`` and
``key[heads, keys, head_dim]``. Split over ``heads``, all three tensors are split there; over
``tokens``, the keys are needed whole; over ``head_dim``, which is summed over, every device has
partial sums of all scores. No table of cases is needed, and none is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from math import prod

from meshwright.graph.op import Phase

Dims = tuple[str, ...]
"""Names of dims, the outermost first. ``heads*head_dim`` names two that are side by side in one."""


class Unit(StrEnum):
    """Which part of a device does the arithmetic of a kernel."""

    MATRIX = "matrix"
    """Products: systolic arrays, tensor cores."""
    VECTOR = "vector"
    """Elementwise functions, norms, softmax, transforms."""
    NONE = "none"
    """Nothing is computed: lookups and moves."""


class MessageKind(StrEnum):
    """Kind of a message, which a kernel sends under any split."""

    SEND = "send"
    """From one device to another."""
    BROADCAST = "broadcast"
    """From one device to all others of a group."""


@dataclass(frozen=True)
class Operand:
    """A tensor as a kernel reads it: its source, and the dims of the reader, in order.

    Dims stand at the places of the source's dims: ``keys`` at the place of ``tokens`` reads all
    tokens as keys. A name with a factor (``heads*head_dim``) reads one dim of the source as two.
    """

    source: str
    """A kernel, or an input of the graph."""
    dims: Dims


@dataclass(frozen=True)
class Weight:
    """A tensor that a kernel holds: read in every pass, not written by any kernel."""

    name: str
    dims: Dims
    word_bytes: float | None = None
    """Bytes of an element; None: the word of the graph."""


@dataclass(frozen=True)
class KernelMessage:
    """Bytes that a kernel sends beside the collectives of its split."""

    kind: MessageKind
    num_bytes: float


@dataclass(frozen=True)
class Kernel:
    """One operation over named dims.

    Its points are all combinations of its dims; each costs ``flops_per_point`` (2 for a multiply
    and an add). Dims that the output lacks are summed over.
    """

    name: str
    unit: Unit
    dims: Dims
    """Dims of the tensor that the kernel writes."""
    inputs: tuple[Operand, ...] = ()
    weights: tuple[Weight, ...] = ()
    whole: frozenset[str] = frozenset()
    """Dims that no split may cut: a norm needs its row, a transform its length."""
    flops_per_point: float = 1.0
    word_bytes: float | None = None
    """Bytes of an element of the output; None: the word of the graph."""
    phase: Phase = Phase.FORWARD
    messages: tuple[KernelMessage, ...] = ()
    is_sum: bool = False
    """The kernel only adds its inputs: each summand has the gradient of the sum."""
    in_place: bool = False
    """The output overwrites a tensor that is no longer read: it takes no memory of its own."""

    @cached_property
    def points(self) -> Dims:
        """All dims that the kernel runs over: those it writes first, then those it sums over.

        Weights of a lookup are read in single rows: dims that only they have are no work.
        """
        read = [operand.dims for operand in self.inputs]
        held = [] if self.unit is Unit.NONE else [weight.dims for weight in self.weights]
        names = (name for dims in (self.dims, *read, *held) for name in single_dims(dims))
        return tuple(dict.fromkeys(names))

    @cached_property
    def contracted(self) -> Dims:
        """Dims that the kernel sums over."""
        return tuple(dim for dim in self.points if dim not in single_dims(self.dims))

    @cached_property
    def row(self) -> Dims:
        """Dims of one row of the table that a lookup reads, or of its gradient."""
        numbers = self.inputs[1 if self.phase is Phase.WEIGHT_GRADIENT else 0 :]
        read = {name for operand in numbers for name in single_dims(operand.dims)}
        return tuple(dim for dim in single_dims(self.dims) if dim not in read)

    def flops(self, sizes: Mapping[str, int]) -> float:
        """Return the work of one pass [FLOP]."""
        if self.unit is Unit.NONE:
            return 0.0
        return self.flops_per_point * prod(float(sizes[dim]) for dim in self.points)


@lru_cache(maxsize=4096)
def single_dims(dims: Dims) -> Dims:
    """Return the dims, with each combined dim replaced by its factors."""
    return tuple(name for dim in dims for name in factors(dim))


def factors(dim: str) -> Dims:
    """Return the names of the factors of one dim, the outer one first."""
    return tuple(dim.split("*"))


def num_elements(dims: Dims, sizes: Mapping[str, int]) -> float:
    """Return the elements of a tensor."""
    return prod(float(sizes[dim]) for dim in single_dims(dims))
