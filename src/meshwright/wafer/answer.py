"""Answers on a grid of devices: a simulated step, a placement, and two placements compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.network.simulation.tasks import TaskGraph, Timeline, link_use, link_utilisation
from meshwright.topology.network import Network
from meshwright.train.answer import HotLink, Plan

NUM_TENTHS = 10
"""Parts of a step with a load of the links each."""
NUM_BUSIEST = 6
"""Links that are named."""


@dataclass(frozen=True)
class SimulatedStep:
    """A simulated step, and the sums of its parts."""

    step_time_s: float
    """Time of the simulated step [s]."""
    time_parts_s: Mapping[str, float]
    """Seconds along the critical path; parts that are not simulated are as priced: sums of single
    numbers and of tied or shared parameters after the last pass, update, offload, slowdown by
    overlap, jitter."""
    graph: TaskGraph
    timeline: Timeline
    num_micro_batches: int
    """Micro-batches that were played; the others repeat the last ones."""


@dataclass(frozen=True)
class LinkUse(Brief):
    """Share of the bandwidth of all links that is used."""

    mean: float
    largest: float
    over_time: tuple[float, ...]
    """Share of all links in use, in each tenth of the played step."""


@dataclass(frozen=True)
class BusyLink(Brief):
    """One of the links with the largest loads."""

    source: int
    target: int
    utilisation: float


@dataclass(frozen=True)
class SimulatedPlan(Shown):
    """A step simulated on a grid of devices."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "plan": "plan.best.text",
        "fidelity": "fidelity",
        "step_time_s": "step.step_time_s",
        "time_parts_s": "step.time_parts_s",
        "contended_s": "plan.best.estimate.step_time_s",
        "closed_form_s": "closed_form_s",
        "num_tasks": "num_tasks",
        "num_micro_batches": "plan.best.estimate.num_micro_batches",
        "num_micro_batches_played": "step.num_micro_batches",
        "link_utilisation": "link_utilisation",
        "busiest_links": "busiest_links",
        "operators_s": "operators_s",
        "operators_time_parts_s": "operators_time_parts_s",
    }
    plan: Plan
    network: Network
    step: SimulatedStep
    fidelity: str = "simulated"
    operators: SimulatedStep | None = None
    """The step with a strategy for each operator, where the plan has one."""

    @property
    def operators_s(self) -> float | None:
        """Time of the simulated step with a strategy for each operator [s]."""
        return None if self.operators is None else self.operators.step_time_s

    @property
    def operators_time_parts_s(self) -> Mapping[str, float]:
        """Parts of that step [s]."""
        return {} if self.operators is None else self.operators.time_parts_s

    @property
    def closed_form_s(self) -> float | None:
        """Step time as priced, with private links [s]."""
        placement = self.plan.best.placement
        return None if placement is None else placement.closed_form_s

    @property
    def num_tasks(self) -> int:
        """Number of tasks that were played."""
        return len(self.step.graph)

    @cached_property
    def link_utilisation(self) -> LinkUse:
        """Load of the links over the played step."""
        used = link_utilisation(self.step.timeline, self.network)
        loads = link_use(self.step.timeline, self.network, NUM_TENTHS).load_fraction
        return LinkUse(float(used.mean()), float(used.max(initial=0.0)), tuple(loads.tolist()))

    @cached_property
    def busiest_links(self) -> tuple[BusyLink, ...]:
        """Links with the largest loads; idle ones are left out."""
        used = link_utilisation(self.step.timeline, self.network)
        busiest = np.argsort(-used, kind="stable")[:NUM_BUSIEST]
        return tuple(
            BusyLink(int(self.network.source[k]), int(self.network.target[k]), float(used[k]))
            for k in busiest
            if used[k] > 0
        )

    def rows(self) -> Rows:
        """Return the tasks that were played, with their device and times."""
        return self.step.timeline.rows()


@dataclass(frozen=True, kw_only=True)
class PlacedPlan(Shown):
    """A placement as a placement file holds it."""

    plan: str
    system: str
    grid: tuple[int, ...]
    axes: Mapping[str, tuple[int, ...]]
    """Sides of the block that the members of each axis fill, in units of inner blocks."""
    devices: tuple[int, ...]
    """Device of each rank."""

    def rows(self) -> Rows:
        """Return the device of each rank."""
        return [{"rank": rank, "device": device} for rank, device in enumerate(self.devices)]


@dataclass(frozen=True, kw_only=True)
class PlayedPlacement(PlacedPlan):
    """A placement, and the step that it gives."""

    contended_s: float
    simulated_s: float
    closed_form_s: float
    """Step time without shared links [s]."""
    slowdown: Mapping[str, float]
    """Slowdown by axis: time on shared links over that on private links."""
    hottest_links: tuple[HotLink, ...]


@dataclass(frozen=True)
class Placements(Shown):
    """A plan in two placements."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"as planned": "planned", "as stated": "stated"}
    model: str
    planned: PlayedPlacement
    stated: PlayedPlacement

    def rows(self) -> Rows:
        """Return the step times of both placements."""
        return [scalars(placed) for placed in (self.planned, self.stated)]
