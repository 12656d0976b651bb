"""Fig. 19: several wafers, with a pipeline across their seams."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright import planner
from meshwright.plans.comparison import Entry
from meshwright.spec.model import ModelSpec
from meshwright.studies.claims import Claim, Table, claim_lines, judged_range, shown
from meshwright.studies.registry import StudyResult, studies
from meshwright.studies.temp.cases import ASSUMPTIONS, CASES, SOURCE, model_of

PUBLISHED_GAIN = (1.2, 1.6)
BASELINE_RECIPES = ("megatron-1", "megatron-3", "fsdp")
LENGTH, BATCH = 2048, 128


@dataclass(frozen=True)
class Wafers:
    """A model and the number of wafers on which the paper trains it."""

    name: str
    model: str
    number: int


SETUPS = (Wafers("GPT-3 175B", "gpt3-175b", 2), Wafers("Llama3 405B", "llama3.1-405b", 4))
"""Grok-1 is a mixture of experts whose dense shape is not given, and GPT-3 504B has no shape."""


def bubble_share(entry: Entry) -> float | None:
    """Return the share of a step in which stages wait for each other."""
    if entry.best is None:
        return None
    return entry.best.estimate.time_parts_s["bubble_s"] / entry.best.estimate.step_time_s


def asked_model(setup: Wafers) -> ModelSpec | str:
    """Return the model of a setup."""
    return model_of(CASES[setup.name]) if setup.name in CASES else setup.model


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
            system = f"{setup.number}xwafer-4x8"
            work = planner.training(system, sequence_length=LENGTH, global_batch_size=BATCH)
            found = planner.compare(asked_model(setup), system, work, against=BASELINE_RECIPES)
            for entry in found.entries:
                gain = entry.speedup_of(found.ours)
                step = None if entry.best is None else entry.best.estimate.step_time_s
                rows.append((f"{setup.name} on {setup.number}", f"{entry.recipe} {entry.mapper}",
                             step, gain, bubble_share(entry),
                             entry.best.text if entry.best else ""))  # fmt: skip
                gains += [gain] if gain is not None and entry is not found.ours else []
        low, high = min(gains, default=0.0), max(gains, default=0.0)
        claims = (
            Claim("Fig. 19", "throughput over the baselines on several wafers",
                  "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", f"{low:.2f} to {high:.2f}x",
                  judged_range(low, high, PUBLISHED_GAIN),
                  "schedules without bubbles are open to the baselines too; what is left is the "
                  "gain inside a wafer"),
        )  # fmt: skip
        names = ("case", "system", "step_s", "over_ours", "bubble_share", "plan")
        lines = [f"{'case':<20} {'system':<18} {'step':>8} {'over ours':>10} {'bubble':>8}"]
        lines += [
            f"{row[0]:<20} {row[1]:<18} {shown(row[2]) or '-':>8} {shown(row[3]) or '-':>10} "
            f"{shown(row[4]) or '-':>8}"
            for row in rows
        ]
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig19", names, tuple(rows), ("case", "system"), "over_ours"),),
            claims=claims,
            assumptions=ASSUMPTIONS + "; seam of 9 TB/s, both directions together",
        )
