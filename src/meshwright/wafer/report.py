"""A simulated step: its time next to the priced ones, where it goes, and how busy links are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import TypedDict

from meshwright.base.arrays import FloatArray
from meshwright.base.units import format_seconds
from meshwright.network.simulation.timeline import link_use, link_utilisation
from meshwright.topology.network import Network
from meshwright.train.answer import Placement, Plan
from meshwright.train.report import question_line
from meshwright.view import charts
from meshwright.view.parts import Chart
from meshwright.view.screen import time_lines, wrapped
from meshwright.wafer.simulation import SimulatedStep

NUM_SHOWN = 6
NUM_BINS, NUM_PARTS = 10, 100
"""Parts of a step, on a screen and in a chart."""


def simulation_lines(plan: Plan, step: SimulatedStep, network: Network) -> Iterator[str]:
    """Yield a simulated step, at most 100 columns wide."""
    placement, price = plan.best.placement, plan.best.estimate
    yield question_line(plan)
    yield from wrapped("plan  ", plan.best.text)
    if placement is not None:
        yield from wrapped("step  ", _times(placement, price.step_time_s, step.step_time_s))
    yield (
        f"      {len(step.graph):,} tasks of {step.num_micro_batches} of "
        f"{price.num_micro_batches} micro-batches were played"
    )
    yield ""
    yield from time_lines("time of a step, simulated", step.time_parts_s, step.step_time_s)
    yield ""
    used = link_utilisation(step.timeline, network)
    yield f"links: {used.mean():.1%} busy on average, {used.max(initial=0.0):.1%} the busiest"
    over_time = " ".join(f"{share:.0%}" for share in utilisation_over_time(step, network))
    yield from wrapped("over the step, in tenths: ", over_time)
    for link in _busiest(used):
        yield f"  {used[link]:>6.1%}  {network.source[link]} -> {network.target[link]}"


def _times(placement: Placement, contended_s: float, simulated_s: float) -> str:
    """Return the step time under the three fidelities."""
    return (
        f"{format_seconds(simulated_s)} simulated ({simulated_s / contended_s - 1:+.1%}), "
        f"{format_seconds(contended_s)} contended, "
        f"{format_seconds(placement.closed_form_s)} closed form"
    )


class LinkUse(TypedDict):
    """Share of the bandwidth of all links that is used."""

    mean: float
    largest: float
    over_time: Sequence[float]
    """Share of all links in use, in each tenth of the played step."""


class BusyLink(TypedDict):
    """One of the links with the largest loads."""

    source: int
    target: int
    utilisation: float


class SimulationRecord(TypedDict):
    """A step simulated on a grid of devices."""

    plan: str
    fidelity: str
    step_time_s: float
    time_parts_s: Mapping[str, float]
    contended_s: float
    closed_form_s: float | None
    num_tasks: int
    num_micro_batches: int
    num_micro_batches_played: int
    link_utilisation: LinkUse
    busiest_links: Sequence[BusyLink]


def simulation_record(plan: Plan, step: SimulatedStep, network: Network) -> SimulationRecord:
    """Return a simulated step as plain data."""
    used = link_utilisation(step.timeline, network)
    placement = plan.best.placement
    return {
        "plan": plan.best.text,
        "fidelity": "simulated",
        "step_time_s": step.step_time_s,
        "time_parts_s": dict(step.time_parts_s),
        "contended_s": plan.best.estimate.step_time_s,
        "closed_form_s": None if placement is None else placement.closed_form_s,
        "num_tasks": len(step.graph),
        "num_micro_batches": plan.best.estimate.num_micro_batches,
        "num_micro_batches_played": step.num_micro_batches,
        "link_utilisation": {
            "mean": float(used.mean()),
            "largest": float(used.max(initial=0.0)),
            "over_time": utilisation_over_time(step, network),
        },
        "busiest_links": [
            {
                "source": int(network.source[link]),
                "target": int(network.target[link]),
                "utilisation": float(used[link]),
            }
            for link in _busiest(used)
        ],
    }


def _busiest(used: FloatArray) -> list[int]:
    """Return the links that carry most."""
    return [int(link) for link in np.argsort(-used, kind="stable")[:NUM_SHOWN] if used[link] > 0]


def utilisation_over_time(step: SimulatedStep, network: Network) -> list[float]:
    """Return the share of all bandwidth that the links carry in each tenth of the played step."""
    return [float(load) for load in link_use(step.timeline, network, NUM_BINS).load_fraction]


def links_chart(step: SimulatedStep, network: Network) -> Chart:
    """Return the chart of the load of the links over the played step."""
    used = link_use(step.timeline, network, NUM_PARTS)
    load = 100.0 * used.load_fraction
    return Chart(
        "Links over the step",
        f"Mean of {network.num_links:,} links: they carry {load.mean():.1f} % of what they could, "
        f"{load.max():.1f} % at the most",
        charts.lines(
            ["all links"] * NUM_PARTS, used.edges_s[:-1].tolist(), load.tolist(),
            "time of a step [s]", "of their bandwidth [%]", series_title="", is_stepped=True,
        ),
    )  # fmt: skip
