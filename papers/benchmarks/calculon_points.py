"""The peer's 50 reference points, and what anyone else says of one: no pricing here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DATA = ROOT / "papers" / "tests" / "data" / "calculon_points.json"
TOLERATED = 0.05
"""Relative difference in step time or memory that needs no reason."""


@dataclass(frozen=True)
class Point:
    """One reference point: what the peer was given, and what it printed."""

    name: str
    model: str
    system: str
    execution: Mapping[str, Any]
    step_s: float | None
    """None: the peer refuses the plan."""
    memory_bytes: float | None
    refusal: str
    published_s: float | None


@dataclass(frozen=True)
class Estimate:
    """What a provider says of one point."""

    step_s: float | None
    memory_bytes: float | None
    refusal: str = ""
    reason: str = ""
    """Why it differs from the peer, where it does by more than 5 %."""


def reference_points() -> list[Point]:
    """Return the points of the data file."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return [
        Point(
            name=entry["id"],
            model=entry["model"],
            system=entry["system"],
            execution=dict(zip(data["execution_fields"], entry["execution"], strict=True)),
            step_s=entry.get("total_s"),
            memory_bytes=entry["memory"]["near_bytes"] if "memory" in entry else None,
            refusal=entry.get("refusal", ""),
            published_s=entry.get("published_s"),
        )
        for entry in data["points"]
    ]


def difference(ours: float | None, theirs: float | None) -> float | None:
    """Return ours relative to theirs, where both exist."""
    return None if ours is None or theirs is None else ours / theirs - 1


def is_far(ours: float | None, theirs: float | None) -> bool:
    """Tell whether two numbers differ by more than 5 %."""
    part = difference(ours, theirs)
    return part is not None and abs(part) > TOLERATED


def differs(point: Point, estimate: Estimate) -> bool:
    """Tell whether a point differs by more than 5 %, or in refusal."""
    far = is_far(estimate.step_s, point.step_s) or is_far(estimate.memory_bytes, point.memory_bytes)
    return far or bool(estimate.refusal) != bool(point.refusal)
