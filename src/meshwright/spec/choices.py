"""The categorical choices of a plan: the values of each, one enumeration a choice.

Standard library only, so that a command line can name them at once.
"""

from __future__ import annotations

from enum import StrEnum


class ContextKind(StrEnum):
    """Algorithm of attention on a sequence that is split over cp."""

    RING = "ring"
    GATHER = "gather"
    ULYSSES = "ulysses"


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass instead of kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class ScheduleKind(StrEnum):
    """Order of forward and backward passes in a pipeline."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"


class Offload(StrEnum):
    """Tensors that live in host memory and travel over the host link."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    """Gradients and optimizer state: gradients leave as they are made (ZeRO-Offload)."""
    STATE = "state"
    """Weights, gradients and optimizer state; the device fetches the part in use."""
    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    ALL = "all"
    """Weights, optimizer state and activations; gradients stay on the device."""

    @property
    def has_optimizer(self) -> bool:
        """Whether optimizer state is on the host."""
        return self in (Offload.OPTIMIZER, Offload.GRADIENTS, Offload.STATE, Offload.ALL)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients are on the host."""
        return self in (Offload.GRADIENTS, Offload.STATE)

    @property
    def has_weights(self) -> bool:
        """Whether weights are on the host."""
        return self in (Offload.WEIGHTS, Offload.STATE, Offload.ALL)

    @property
    def has_activations(self) -> bool:
        """Whether activations are on the host."""
        return self in (Offload.ACTIVATIONS, Offload.ALL)


class Streamed(StrEnum):
    """Tensor that moves in a tensor stream: the cheaper one of each block, or a fixed one.

    Both: the product stream of a block of tp x tatp devices. Weights stream over tatp; the
    gathers and scatters of sequence parallelism over tp travel in the same rounds.
    """

    AUTO = "auto"
    WEIGHTS = "weights"
    INPUTS = "inputs"
    BOTH = "both"


class StreamForm(StrEnum):
    """Form of the tensor stream on its group: a cycle where it has one, or a fixed form."""

    AUTO = "auto"
    LINE_HOLD = "hold"
    LINE_STREAM = "stream"
    CYCLE = "cycle"
    RING = "ring"
    FOLDED_RING = "folded_ring"
