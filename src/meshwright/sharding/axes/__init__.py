"""The axes of the mesh, one file each: which dims they split, and what is legal."""

from __future__ import annotations

import sys

from meshwright.base.registry import import_siblings
from meshwright.sharding.axis import axes as axes
from meshwright.sharding.rules import Case, Refusal, Rule
from meshwright.sharding.strategy import PlanOptions, StrategyColumns
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import Workload

import_siblings(sys.modules[__name__], "axes")


def all_rules() -> dict[str, Rule]:
    """Return every rule of every axis by its name."""
    return {rule.name: rule for name in axes for rule in axes[name].rules}


def refusals(axis: str, case: Case) -> list[Refusal]:
    """Return what the rules of one axis refuse; rules that refuse no row are left out."""
    found = []
    for rule in axes[axis].rules:
        mask = rule.breaks(case)
        if mask.any():
            found.append(Refusal(rule.name, mask, rule.message, rule))
    return found


def all_refusals(
    model: ModelSpec,
    workload: Workload,
    columns: StrategyColumns,
    structure: PlanOptions,
    *,
    tile_rows: float = 128.0,
    tile_columns: float = 128.0,
) -> list[Refusal]:
    """Return every refusal: its rule, and a mask of the rows that it concerns.

    Parameters
    ----------
    tile_rows, tile_columns
        Output tile of one matrix product on the chip; shards below it are refused.
    """
    case = Case(model, workload, structure, columns, tile_rows, tile_columns)
    return [refusal for axis in axes for refusal in refusals(axis, case)]
