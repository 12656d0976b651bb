"""The points of a sweep: each one a question in plain values, with a key that names it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from meshwright.catalog.files import load_file
from meshwright.spec.sweep import SweepSpec, Value

Point = Mapping[str, Value]


def load_sweep(path: Path) -> SweepSpec:
    """Return the sweep of a YAML file, or all of its faults."""
    return load_file(SweepSpec, path)


def points_of(sweep: SweepSpec) -> list[Point]:
    """Return all combinations; the last field of the file changes fastest."""
    names = list(sweep.sides)
    found: list[Point] = []
    for values in product(*sweep.sides.values()):
        point = {**sweep.fixed, **dict(zip(names, values, strict=True))}
        for name, cases in sweep.cases.items():
            point = {**point, **cases[str(point[name])]}
        found.append(point)
    return found


def key_of(ask: str, point: Point, version: str) -> str:
    """Return what names a point: equal questions of one version have one key."""
    text = json.dumps([ask, sorted(point.items()), version])
    return hashlib.sha256(text.encode()).hexdigest()
