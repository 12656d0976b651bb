"""Fig. 13: the time of collectives, and why it differs: links, overlap, and equal degrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.sharding.strategy import Strategy
from meshwright.train.answer import Candidate
from meshwright.train.comparison import Entry
from meshwright.train.estimate import estimate
from meshwright.train.question import training
from meshwright_papers.studies.claims import Claim, Table, claim_lines, judged, shown
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.cases import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    HONEST,
    OURS,
    SOURCE,
    compared,
    entries_of,
    model_of,
    wafer,
)
from meshwright_papers.studies.temp.throughput import PUBLISHED_CUT

KINDS = {"megatron-1": False, "megatron-3": True}
"""Recipes that run the degrees of a plan with streams as tp, and their sequence parallelism."""


@dataclass(frozen=True)
class Communication:
    """What a plan sends in a step."""

    shown_s: float
    """What lengthens the step [s]."""
    links_s: float
    """How long the busiest link carries something, hidden or not [s]."""


def communication(plan: Candidate | None) -> Communication | None:
    """Return what a placed plan sends; None where it is not known."""
    if plan is None or plan.placement is None:
        return None
    shown_s = sum(s for name, s in plan.estimate.time_parts_s.items() if name.endswith("comm_s"))
    streams_s = plan.estimate.time_parts_s["tatp_stream_s"]
    return Communication(shown_s + streams_s, plan.placement.busy_s["d2d"])


def as_tensor_parallel(strategy: Strategy) -> Strategy:
    """Return the same replicas and groups, with tp where there were streams."""
    return replace(strategy, tp=strategy.tp * strategy.tatp, tatp=1.0)


@cache
def at_equal_degrees(name: str, recipe: str) -> Communication | None:
    """Return what the degrees of our best plan send as a recipe; None where it may not.

    The same replicas, groups, micro-batch, sharding and recomputation; the placement is ours.
    """
    case, system = CASES[name], wafer()
    ours = entries_of(compared(name, (*BASELINES, *HONEST)))[OURS].best
    if ours is None or ours.strategy.tatp == 1:
        return None
    work = training(
        system, sequence_length=case.sequence_length, global_batch_size=case.global_batch_size
    )
    structure = replace(ours.structure, sequence_parallel=KINDS[recipe])
    strategy = as_tensor_parallel(ours.strategy)
    try:
        plan = estimate(model_of(case), system, work, strategy, structure, calibration=UNCALIBRATED)
    except (InfeasibleError, SpecError):
        return None
    return communication(plan.best)


@studies.register("temp-collectives")
class Collectives:
    """Collective seconds that show, those that links take, and those at equal degrees."""

    title = "TEMP Fig. 13: the time of collectives, and why it differs"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Read the comparisons of Fig. 13, with and without the time of the main memory."""
        equal = {
            recipe: [_pair(name, recipe) for name in CASES if at_equal_degrees(name, recipe)]
            for recipe in KINDS
        }
        claims, rows = [], []
        for with_hbm in (True, False):
            found = {
                name: entries_of(compared(name, (*BASELINES, *HONEST), with_hbm=with_hbm))
                for name in CASES
            }
            for name in PUBLISHED_CUT:
                cuts = savings(found, name)
                same = saved(equal.get(name.split()[0], [])) if with_hbm else None
                rows.append((name, "1 TB/s" if with_hbm else "never slow", PUBLISHED_CUT[name],
                             *cuts, same))  # fmt: skip
                claims.append(_claim(name, cuts, same, with_hbm=with_hbm))
        names = ("system", "hbm", "published_saved_pct", "shown_saved_pct", "links_busy_times",
                 "shown_saved_at_equal_degrees_pct")  # fmt: skip
        return StudyResult(
            lines=tuple(claim_lines(claims)),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig13_collectives", names, tuple(rows), ("system", "hbm"),
                          "links_busy_times"),),
            claims=tuple(claims),
            assumptions=f"{ASSUMPTIONS}; shown: seconds by which communication lengthens a step; "
            "links: seconds for which the busiest link carries something, hidden or not, ours over "
            "theirs; equal degrees: our replicas, groups, micro-batch, sharding and recomputation, "
            "tp in place of streams; means over models",
        )  # fmt: skip


def _pair(name: str, recipe: str) -> tuple[Communication, Communication]:
    """Return what our best plan sends, and what its degrees send as a recipe."""
    ours = communication(entries_of(compared(name, (*BASELINES, *HONEST)))[OURS].best)
    theirs = at_equal_degrees(name, recipe)
    assert ours is not None
    assert theirs is not None
    return ours, theirs


def savings(
    found: Mapping[str, Mapping[str, Entry]], name: str
) -> tuple[float | None, float | None]:
    """Return what we save of what shows [%], and how much longer links are busy [times]."""
    pairs = [
        (ours, theirs)
        for entries in found.values()
        if (ours := communication(entries[OURS].best))
        and (theirs := communication(entries[name].best))
    ]
    logs = [math.log(a.links_s / b.links_s) for a, b in pairs if a.links_s and b.links_s]
    return saved(pairs), math.exp(sum(logs) / len(logs)) if logs else None


def saved(pairs: list[tuple[Communication, Communication]]) -> float | None:
    """Return the mean share that the first of each pair saves of what shows [%]."""
    cuts = [1.0 - ours.shown_s / theirs.shown_s for ours, theirs in pairs if theirs.shown_s]
    return 100.0 * sum(cuts) / len(cuts) if cuts else None


def _claim(
    name: str, cuts: tuple[float | None, float | None], same: float | None, *, with_hbm: bool
) -> Claim:
    """Return what the paper says of one baseline, beside ours."""
    published, (cut, links) = PUBLISHED_CUT[name], cuts
    why = "each plan is the fastest as a whole"
    if links is not None:
        why += f"; in ours the busiest link is busy {links:.2g} times as long, mostly hidden"
    if same is not None:
        why += f"; at equal degrees, streams in place of tp save {same:.0f} % of what shows"
    memory = "" if with_hbm else ", HBM never slow"
    return Claim(
        "Fig. 13", f"collective time saved against {name}{memory}", f"{published:.0f} %", "seed",
        f"{shown(cut)} %", judged(cut, published), why,
    )  # fmt: skip
