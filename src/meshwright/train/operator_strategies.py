"""A plan in which each group of operators has a strategy of its own, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.sharding.strategy import PlanOptions, Strategy


@dataclass(frozen=True)
class OperatorOption:
    """One way to split a micro-batch of the whole model over the devices."""

    text: str
    """The plan string."""
    strategy: Strategy
    structure: PlanOptions
    axes: tuple[str, ...]
    """Axes of more than one device, innermost first."""
    shapes: Mapping[str, tuple[int, ...]]
    """By axis: the block that its members fill, outermost level first: rows, columns."""


@dataclass(frozen=True)
class OperatorRun:
    """Layers in a row whose group of operators has the same option."""

    operators: tuple[str, ...]
    first_layer: int | None
    """None for the embedding and the head."""
    last_layer: int | None
    option: int
    """Number of the option, from 0."""


@dataclass(frozen=True)
class OperatorPlan:
    """The best options of all operators, with their price and the two proofs."""

    options: tuple[OperatorOption, ...]
    runs: tuple[OperatorRun, ...]
    fidelity: str
    step_time_s: float
    time_parts_s: Mapping[str, float]
    """Parts of a step, with ``reshard_s``: passing tensors from one layout to another."""
    memory_bytes: float
    """Of the fullest device."""
    closed_form_s: float
    """Step time of the same options on links of their own."""
    closed_form_bound_s: float
    """No choice among the options takes less on links of its own."""
    lower_bound_s: float
    """No choice takes less under the same micro-batch and recomputation, in any way to lay the
    options that was priced (6,000 at most), with or without contention."""
    num_options: int
    """Among which each operator chose."""
    search_s: float

    @property
    def closed_form_gap(self) -> float:
        """How far the options may lie above the best ones, alone on their links: a fraction."""
        return self.closed_form_s / self.closed_form_bound_s - 1.0

    @property
    def gap(self) -> float:
        """How far the plan may lie above the best possible, as a fraction."""
        return self.step_time_s / self.lower_bound_s - 1.0
