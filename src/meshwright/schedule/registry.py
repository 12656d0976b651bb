"""What every pipeline schedule offers: closed forms on numbers or columns, and the order itself.

A stage owns ``num_virtual_stages`` chunks of layers; chunk c of stage s holds the c * p + s-th run
of layers of the model. The times given to a schedule are those of one micro-batch through ALL the
layers of one stage, so one chunk takes 1 / v of them. No network and no memory sizes live here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from meshwright.base.arrays import N
from meshwright.base.registry import Registry


class TaskKind(StrEnum):
    """What a stage does with one chunk of one micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"
    """Input gradient and weight gradient in one task."""
    BACKWARD_INPUT = "BI"
    BACKWARD_WEIGHT = "BW"


class Task(NamedTuple):
    """One entry of the order of a stage."""

    kind: TaskKind
    micro_batch: int
    chunk: int


class PipelineSchedule(Protocol):
    """Closed forms and enumeration of one pipeline schedule."""

    rule: str
    """When the schedule is legal, in words for a refusal."""

    @staticmethod
    def is_legal(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> Any:
        """Return whether (or for which rows) the schedule exists."""

    @staticmethod
    def bubble_s(
        forward_s: N,
        backward_input_s: N,
        backward_weight_s: N,
        send_s: N,
        num_stages: N,
        num_virtual_stages: N,
        num_micro_batches: N,
    ) -> N:
        """Return the idle time of one step on a stage, filling and draining sends included [s]."""

    @staticmethod
    def sends_per_micro_batch(num_virtual_stages: N) -> N:
        """Return how many sends, forward and backward, a middle stage makes per micro-batch."""

    @staticmethod
    def num_exposed_sends(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """Return the sends a step waits for, beyond the bubble, although they are asynchronous.

        Where the stage waits for each send instead, all of them are exposed:
        ``num_micro_batches * sends_per_micro_batch(num_virtual_stages)``.
        """

    @staticmethod
    def peak_in_flight(stage: N, num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """Return the most micro-batches whose activations a stage holds at once.

        In units of all the layers of the stage, so it need not be whole where a stage has chunks.
        """

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """Return what a stage does, in its order."""


class OneChunk:
    """What schedules of one chunk per stage share: fill, work, drain."""

    rule = "one virtual stage"

    @staticmethod
    def is_legal(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> Any:
        """Return whether (or for which rows) the schedule exists."""
        return num_virtual_stages == 1

    @staticmethod
    def bubble_s(
        forward_s: N,
        backward_input_s: N,
        backward_weight_s: N,
        send_s: N,
        num_stages: N,
        num_virtual_stages: N,
        num_micro_batches: N,
    ) -> N:
        """Idle time of one step [s]: (p - 1) (t_f + t_b + 2 t_send)."""
        return (num_stages - 1) * (forward_s + backward_input_s + backward_weight_s + 2 * send_s)

    @staticmethod
    def sends_per_micro_batch(num_virtual_stages: N) -> N:
        """One activation forward and one gradient backward for each chunk."""
        return 2 * num_virtual_stages


schedules: Registry[type[PipelineSchedule]] = Registry("pipeline schedule")
"""Keyed by the values of the strategy's schedule kind."""
