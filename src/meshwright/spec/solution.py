"""Shardings of a program that another planner chose: a placement of every tensor on a mesh.

Source of the words: PyTorch 2.13, ``torch/distributed/tensor/placement_types.py`` (``S(0)``, ``R``,
``P(sum)``); meta-pytorch/autoparallel, ``autoparallel/export_json.py`` (read 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Placement = tuple[int | str, ...]
"""For each mesh dim, outermost first: the dim of the tensor that it splits, ``R`` or ``P``."""
WHOLE, SUM = "R", "P"
OperatorKind = Literal[
    "end", "view", "product", "attention", "attention_gradient", "lookup", "rest"
]
"""How an operator is priced; ``rest`` reads and writes each element once."""


@dataclass(frozen=True)
class PlacedInput:
    """One tensor that an operator reads: where it lies, and where the operator needs it."""

    name: str
    have: Placement
    want: Placement


@dataclass(frozen=True)
class PlacedOperator:
    """An operator with the placement of its result; shapes are those of whole tensors."""

    name: str
    op: str
    """Name without namespace and overload: ``mm``; ``placeholder`` and ``output`` are ends."""
    kind: OperatorKind
    is_backward: bool
    placement: Placement
    shape: tuple[int, ...]
    word_bytes: float
    inputs: tuple[PlacedInput, ...]


@dataclass(frozen=True)
class PlacedProgram:
    """A program whose every tensor has a placement, operators in an order in which they run."""

    mesh: Mapping[str, int]
    """Size of each mesh dim, outermost first."""
    operators: tuple[PlacedOperator, ...]
    parameters: frozenset[str]
    """Placeholders that are weights."""
