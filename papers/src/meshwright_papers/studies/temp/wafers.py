"""Fig. 19: several wafers, with a pipeline across their seams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.spec.model import ModelSpec
from meshwright.train.compare import Comparison, Entry, compare
from meshwright.train.question import training
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    claim_lines,
    judged,
    judged_range,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import ASSUMPTIONS, CASES, SOURCE, model_of
from meshwright_papers.studies.temp.throughput import PUBLISHED_CUT, collective_s

PUBLISHED_GAIN = (1.2, 1.6)
PUBLISHED_BUBBLES = (4.0, 14.0)
"""Bubble time that TEMP saves, least and most of five figures for six baselines [%]."""
PUBLISHED_COLLECTIVES = dict(zip(PUBLISHED_CUT, (22.0, 14.0, 7.0, 4.0, 5.0, 3.0), strict=True))
"""Collective time of a stage that TEMP saves [%]."""
BASELINE_RECIPES = ("megatron-1", "megatron-3", "fsdp")
LENGTH, BATCH = 2048, 128


@dataclass(frozen=True)
class Wafers:
    """A model and the number of wafers on which the paper trains it."""

    name: str
    model: str
    number: int

    @property
    def label(self) -> str:
        """The model and its wafers."""
        return f"{self.name} on {self.number}"


SETUPS = (
    Wafers("GPT-3 175B", "gpt3-175b", 2),
    Wafers("Grok-1 314B", "grok-1", 4),
    Wafers("Llama3 405B", "llama3.1-405b", 4),
    Wafers("GPT-3 504B", "gpt3-504b", 6),
)


def bubble_s(entry: Entry) -> float | None:
    """Return the seconds of a step in which stages wait for each other [s]."""
    return None if entry.best is None else entry.best.estimate.time_parts_s["bubble_s"]


def bubble_share(entry: Entry) -> float | None:
    """Return the share of a step in which stages wait for each other."""
    waiting_s = bubble_s(entry)
    if entry.best is None or waiting_s is None:
        return None
    return waiting_s / entry.best.estimate.step_time_s


def asked_model(setup: Wafers) -> ModelSpec | str:
    """Return the model of a setup."""
    return model_of(CASES[setup.name]) if setup.name in CASES else setup.model


@cache
def compared_on(setup: Wafers) -> Comparison:
    """Return ours and the baselines on a set of wafers."""
    system = f"{setup.number}xwafer-4x8"
    work = training(system, sequence_length=LENGTH, global_batch_size=BATCH)
    return compare(
        asked_model(setup), system, work, against=BASELINE_RECIPES, calibration=UNCALIBRATED
    )


def system_name(entry: Entry) -> str:
    """Return a recipe with who placed it, where it was placed."""
    return f"{entry.recipe} {entry.mapper}" if entry.mapper else entry.recipe


@studies.register("temp-wafers")
class SeveralWafers:
    """Plans with streams against the baselines, and how much they wait in the pipeline."""

    title = "TEMP Fig. 19: several wafers and their bubbles"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search every recipe on each set of wafers."""
        rows, gains = [], []
        for setup in SETUPS:
            found = compared_on(setup)
            for entry in found.entries:
                gain = entry.speedup_of(found.ours)
                step = None if entry.best is None else entry.best.estimate.step_time_s
                text = entry.best.text if entry.best else ""
                rows.append((setup.label, system_name(entry), step, gain, bubble_share(entry),
                             collective_s(entry), text))  # fmt: skip
                gains += [gain] if gain is not None and entry is not found.ours else []
        low, high = min(gains, default=0.0), max(gains, default=0.0)
        claims = (
            Claim("Fig. 19", "throughput over the baselines on several wafers",
                  "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", f"{low:.2f} to {high:.2f}x",
                  judged_range(low, high, PUBLISHED_GAIN),
                  "schedules without bubbles are open to the baselines too; what is left is the "
                  "gain inside a wafer"),
            _bubble_claim(),
            *_collective_claims(),
        )  # fmt: skip
        names = ("case", "system", "step_s", "over_ours", "bubble_share", "collectives_s", "plan")
        lines = [f"{'case':<20} {'system':<18} {'step':>8} {'over ours':>10} {'bubble':>8}"]
        lines += [
            f"{row[0]:<20} {row[1]:<18} {shown(row[2]) or '-':>8} {shown(row[3]) or '-':>10} "
            f"{shown(row[4]) or '-':>8}"
            for row in rows
        ]
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": records(names, rows)},
            tables=(Table("fig19", names, tuple(rows), ("case", "system"), "over_ours"),),
            claims=claims,
            assumptions=ASSUMPTIONS + "; seam of 9 TB/s, both directions together; Grok-1 as it is "
            "published, a mixture of 8 experts and 314B parameters (the 341B of the text is taken "
            "for a slip), in closed form, since experts are not placed on grids; GPT-3 504B has no "
            "published shape: hidden 18432 and 124 layers are ours",
        )


def _bubble_claim() -> Claim:
    """Return what the paper says of waiting in the pipeline, beside ours."""
    cuts = []
    for found in map(compared_on, SETUPS):
        ours = bubble_s(found.ours)
        others = [bubble_s(entry) for entry in found.entries[1:]]
        cuts += [100.0 * (1.0 - ours / theirs) for theirs in others if theirs and ours is not None]
    low, high = min(cuts, default=0.0), max(cuts, default=0.0)
    return Claim(
        "Fig. 19", "bubble time saved against baselines that have any",
        "{:.0f} to {:.0f} %".format(*PUBLISHED_BUBBLES), "seed", f"{low:.0f} to {high:.0f} %",
        judged_range(low, high, PUBLISHED_BUBBLES),
        "schedules and numbers of stages are searched for every system: the bubbles of each are "
        "what its fastest plan leaves",
    )  # fmt: skip


def _collective_claims() -> list[Claim]:
    """Return what the paper says of collectives of a stage, beside ours."""
    claims = []
    for name, published in PUBLISHED_COLLECTIVES.items():
        cuts = []
        for found in map(compared_on, SETUPS):
            ours = collective_s(found.ours)
            mine = [e for e in found.entries[1:] if system_name(e) in (name, name.split()[0])]
            cuts += [
                100.0 * (1.0 - ours / theirs)
                for theirs in map(collective_s, mine)
                if theirs and ours is not None
            ]
        cut = sum(cuts) / len(cuts) if cuts else None
        claims.append(
            Claim("Fig. 19", f"collective time of a stage saved against {name}",
                  f"{published:.0f} %", "seed", f"{shown(cut)} %", judged(cut, published),
                  "what shows after overlap, in plans that are each the fastest as a whole and "
                  "differ in stages and micro-batches")
        )  # fmt: skip
    return claims
