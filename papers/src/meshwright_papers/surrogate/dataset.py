"""One row of the data set: a placed plan in closed form, with contention, and simulated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, Num, column, number_at
from meshwright.cost.energy import (
    dynamic_parts_j,
    least_link_j,
    link_energy_j,
    system_parts_j,
    total_energy_j,
)
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.network.simulation.tasks import Timeline
from meshwright.topology.network import Network
from meshwright.wafer.answer import SimulatedStep
from meshwright.wafer.price import PlacedPrice, choice_network, physical_network, price_placed
from meshwright.wafer.simulation import COMPUTE, simulate_step
from meshwright_papers.surrogate.features import FEATURES, computation_s, features, messages_s
from meshwright_papers.surrogate.sampling import (
    Configuration,
    Drawn,
    configuration,
    draw_candidates,
    draw_problem,
)

QUANTITIES = ("compute_s", "messages_s", "step_s", "power_w")
"""Quantities compared: computation of the busiest device, its messages without overlap, the step
with both overlapped, and the mean power of a device."""
FIRST_LEARNED = 1
"""Computation is the same in closed form and simulated: nothing to learn."""


@dataclass(frozen=True)
class Row:
    """One plan: its features and closed form, and the results of the simulation."""

    features: FloatArray
    closed_form: FloatArray
    """Closed form of each quantity."""
    simulated: FloatArray
    contended_s: float
    """The step with contention, for comparison [s]."""


def measure(asked: Configuration, drawn: Drawn, physical: Network) -> Row | None:
    """Return the row of a drawn plan; None where its step is too long to be played whole."""
    problem, plan_options, strategy = asked.problem, drawn.plan_options, drawn.strategy
    network = choice_network(problem, [(strategy, [drawn.choice])])
    alone = price_columns(problem, plan_options, network.strategy, network)
    bare = price_columns(asked.bare, plan_options, network.strategy, network)
    (price,) = price_placed(problem, [(plan_options, strategy, drawn.choice)], physical)
    if price is None:
        return None
    step = simulate_step(problem, price, physical)
    if step.num_micro_batches < number_at(alone.pipeline.num_micro_batches):
        return None
    return Row(
        features(problem, network, alone, bare)[0],
        closed_form(problem, alone, bare)[0],
        _simulated(problem, price, step),
        number_at(price.contended.step.time.total_s),
    )


def closed_form(problem: Problem, alone: Priced, bare: Priced) -> FloatArray:
    """Return each quantity in closed form, one row for each placement.

    Parameters
    ----------
    bare
        The same placements on chips that compute in no time.
    """
    step_s = column(alone.step.time.total_s)
    columns = (
        computation_s(alone),
        messages_s(bare),
        step_s,
        _power_w(problem, alone, step_s),
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)


def _simulated(problem: Problem, price: PlacedPrice, step: SimulatedStep) -> FloatArray:
    """Return each quantity as simulated.

    Messages count while they are under way, each axis for itself, on the device that has most.
    Bytes count on every link that they take.
    """
    timeline, graph = step.timeline, step.graph
    busy_s = busy_seconds(timeline, problem.system.num_devices)
    computes = timeline.tracks.index(COMPUTE)
    messages_s = busy_s.sum(axis=1) - busy_s[:, computes]
    carried_bytes = float((graph.num_bytes * graph.routes.num_hops).sum())
    link_j = link_energy_j(problem.system, carried_bytes / price.ranks.num_devices)
    power = _power_w(problem, price.closed_form, np.array([step.step_time_s]), link_j)
    return np.array(
        [busy_s[:, computes].max(), messages_s.max(), step.step_time_s, float(power[0])]
    )


def busy_seconds(timeline: Timeline, num_devices: int) -> FloatArray:
    """Return the seconds in which each track of each device has a task under way [s].

    Tasks that overlap count once. Shape (devices, tracks).
    """
    num_tracks = len(timeline.tracks)
    row = timeline.device * num_tracks + timeline.track
    order = np.lexsort((timeline.start_s, row))
    row, start_s, end_s = row[order], timeline.start_s[order], timeline.end_s[order]
    busy_s = np.zeros(num_devices * num_tracks)
    for first, last in zip(*_runs(row), strict=True):
        done_s = np.maximum.accumulate(end_s[first:last])
        free_s = np.concatenate(([0.0], done_s[:-1]))
        busy_s[row[first]] = np.clip(
            end_s[first:last] - np.maximum(start_s[first:last], free_s), 0.0, None
        ).sum()
    return busy_s.reshape(num_devices, num_tracks)


def _runs(row: IntArray) -> tuple[IntArray, IntArray]:
    """Return the start and the end of each run of equal values."""
    changes = np.flatnonzero(np.diff(row)) + 1
    ends = np.append(changes, len(row)) if len(row) else changes
    return np.concatenate(([0], changes))[: len(ends)], ends


def _power_w(
    problem: Problem, alone: Priced, step_s: FloatArray, link_j: Num | None = None
) -> FloatArray:
    """Return the mean power of one device in a step of this length [W].

    Parameters
    ----------
    link_j
        Of all links, for each device [J]; if not given, of the least bytes over one link each.
    """
    time, work, engine = alone.step.time, alone.pipeline.mean, problem.rates
    assert work is not None
    if link_j is None:
        link_j = least_link_j(problem, alone.plan_options, alone.strategy, alone.pipeline)
    update_bytes = time[TimePart.OPTIMIZER] * engine.memory_bytes_per_s
    dynamic_j = dynamic_parts_j(
        problem.system.chip, work.busy_s + time[TimePart.OPTIMIZER], work.flops,
        work.memory_traffic_bytes + update_bytes, link_j,
    )  # fmt: skip
    energy_j = total_energy_j(system_parts_j(problem.system, dynamic_j, step_s, 1.0), step_s)
    watts: FloatArray = np.asarray(energy_j / step_s, dtype=np.float64)
    return watts


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
    """Closed form of each quantity of ``QUANTITIES``."""
    simulated: FloatArray
    contended_s: FloatArray
    provenance: dict[str, Any] = field(default_factory=dict)
    """Origin of the rows: seed, command, versions, counts of rows left out."""

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
    """Return rows put after one another; counts of rejected ones are summed."""
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
