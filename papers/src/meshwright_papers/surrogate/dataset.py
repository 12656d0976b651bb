"""The data set: groups of rows, each drawn and simulated from a seed, and the file that holds them.

A group is a configuration: a wafer, a model and a step. Training and test rows never share one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.wafer.price import physical_network
from meshwright_papers.surrogate.candidates import Drawn, draw_candidates
from meshwright_papers.surrogate.configurations import Configuration, configuration, draw_problem
from meshwright_papers.surrogate.features import FEATURES
from meshwright_papers.surrogate.samples import QUANTITIES, Row, measure

DATA = Path(__file__).parent / "data"
ROWS_FILE = DATA / "rows.npz"
ROWS_OF_GROUP, LEAST_ROWS = 12, 6
NUM_GROUPS, EVERY = 140, 4
"""Every fourth group tests, the others train."""


@dataclass(frozen=True)
class Group:
    """One configuration with the plans that were drawn for it."""

    asked: Configuration
    drawn: Sequence[Drawn]
    rejected: Counter[str]


@dataclass(frozen=True)
class Rows:
    """Rows of the data set as columns."""

    group: IntArray
    index: IntArray
    """Number of the plan in its group."""
    features: FloatArray
    closed_form: FloatArray
    """Of each quantity of ``QUANTITIES``."""
    simulated: FloatArray
    contended_s: FloatArray
    provenance: dict[str, Any] = field(default_factory=dict)
    """How the rows were made: seed, command, versions, counts of what was left out."""

    def __len__(self) -> int:
        return len(self.group)

    def take(self, rows: Any) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.group[rows], self.index[rows], self.features[rows], self.closed_form[rows],
            self.simulated[rows], self.contended_s[rows], self.provenance,
        )  # fmt: skip

    @property
    def log_ratio(self) -> FloatArray:
        """Logarithm of each simulated quantity over its closed form."""
        ratio: FloatArray = np.log(self.simulated / self.closed_form)
        return ratio

    @property
    def is_training(self) -> BoolArray:
        """Whether a row may be trained on: by its group."""
        known: BoolArray = self.group % EVERY != EVERY - 1
        return known


def draw_group(seed: int, number: int) -> Group:
    """Return a configuration and its plans, drawn from a seed and the number of the group.

    A configuration for which too few plans fit is left out, and counted, and another one drawn.
    """
    rng = np.random.default_rng([seed, number])
    rejected: Counter[str] = Counter()
    while True:
        problem = draw_problem(rng)
        drawn = draw_candidates(problem, rng, ROWS_OF_GROUP, rejected)
        if len(drawn) >= LEAST_ROWS:
            return Group(configuration(problem), drawn, rejected)
        rejected["configurations with too few plans"] += 1


def measured(group: Group, indices: Sequence[int] | None = None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a group, or some of them, with their numbers; each is simulated."""
    physical = physical_network(group.asked.problem)
    for index in range(len(group.drawn)) if indices is None else indices:
        found = measure(group.asked, group.drawn[index], physical)
        if found is None:
            group.rejected["not played whole"] += 1
        else:
            yield index, found


def rows_of(seed: int, number: int, indices: Sequence[int] | None = None) -> Rows:
    """Return the rows of one group, or some of them."""
    group = draw_group(seed, number)
    found = list(measured(group, indices))
    return Rows(
        group=np.full(len(found), number, dtype=np.int64),
        index=np.array([index for index, _ in found], dtype=np.int64),
        features=np.array([row.features for _, row in found]).reshape(-1, len(FEATURES)),
        closed_form=np.array([row.closed_form for _, row in found]).reshape(-1, len(QUANTITIES)),
        simulated=np.array([row.simulated for _, row in found]).reshape(-1, len(QUANTITIES)),
        contended_s=np.array([row.contended_s for _, row in found]),
        provenance={"rejected": dict(group.rejected)},
    )


def joined_rows(parts: Sequence[Rows], provenance: dict[str, Any]) -> Rows:
    """Return rows put after one another; what was rejected is summed."""
    rejected = sum((Counter(part.provenance["rejected"]) for part in parts), Counter())
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("group", "index", "features", "closed_form", "simulated", "contended_s")
    }
    return Rows(**columns, provenance=provenance | {"rejected": dict(sorted(rejected.items()))})


def write_rows(rows: Rows, path: Path) -> None:
    """Write rows as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        group=rows.group, index=rows.index, features=rows.features,
        closed_form=rows.closed_form, simulated=rows.simulated, contended_s=rows.contended_s,
        feature_names=np.array(FEATURES), quantities=np.array(QUANTITIES),
        provenance=np.array(json.dumps(rows.provenance, sort_keys=True)),
    )  # fmt: skip


def read_rows(path: Path) -> Rows:
    """Return the rows of a file.

    Raises
    ------
    ValueError
        When they have other features or quantities than this version.
    """
    with np.load(path) as file:
        if tuple(file["feature_names"]) != FEATURES or tuple(file["quantities"]) != QUANTITIES:
            raise ValueError(f"{path.name}: other features; write it anew from its seed")
        return Rows(
            file["group"], file["index"], file["features"], file["closed_form"],
            file["simulated"], file["contended_s"], json.loads(str(file["provenance"])),
        )  # fmt: skip


@cache
def shipped_rows() -> Rows:
    """Return the rows that the shipped network was trained and tested on."""
    return read_rows(ROWS_FILE)
