"""Fig. 19: several wafers, with a pipeline across their seams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.spec.model import ModelSpec
from meshwright.train.answer import BestOfRecipe, Comparison
from meshwright.train.question import training
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_range,
    read_twice,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    CASES,
    READINGS,
    SEARCHED,
    SOURCE,
    Setting,
    model_of,
    wafer,
)
from meshwright_papers.studies.temp.throughput import PUBLISHED_CUT, collective_s

PUBLISHED_GAIN = (1.2, 1.6)
PUBLISHED_BUBBLES = dict(zip(PUBLISHED_CUT, (14.0, 11.0, 6.0, 4.0, 7.0), strict=False))
"""Bubble time that TEMP saves: five figures for six baselines, taken in the paper's order [%]."""
PUBLISHED_COLLECTIVES = dict(zip(PUBLISHED_CUT, (22.0, 14.0, 7.0, 4.0, 5.0, 3.0), strict=True))
"""Collective time of a stage that TEMP saves [%]."""
BASELINE_RECIPES = ("megatron-1", "megatron-3", "fsdp")
LENGTH, BATCH = 2048, 128
PIPELINES = (1, 2, 4, 8)
"""Stages of a described pipeline for each wafer; or none."""


CHART = Drawing(
    "How much slower than ours are other systems on several wafers?",
    "Step over that of meshwright; TEMP Fig. 19, read in two ways",
    "dots", ("over_ours",), "system", colour="reading", panels="case", across=2,
)  # fmt: skip


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


def bubble_s(entry: BestOfRecipe) -> float | None:
    """Return the seconds of a step in which stages wait for each other [s]."""
    return None if entry.best is None else entry.best.estimate.time_parts_s["bubble_s"]


def bubble_share(entry: BestOfRecipe) -> float | None:
    """Return the share of a step in which stages wait for each other."""
    waiting_s = bubble_s(entry)
    if entry.best is None or waiting_s is None:
        return None
    return waiting_s / entry.best.estimate.step_time_s


def asked_model(setup: Wafers) -> ModelSpec | str:
    """Return the model of a setup."""
    return model_of(CASES[setup.name]) if setup.name in CASES else setup.model


@cache
def compared_on(setup: Wafers, reading: Setting = SEARCHED) -> Comparison:
    """Return ours and the baselines on a set of wafers.

    The paper has pipelines between wafers and, of baselines, of multiples of their number; FSDP as
    it is named has none.
    """
    system = f"{setup.number}xwafer-4x8"
    work = training(system, sequence_length=LENGTH, global_batch_size=BATCH)
    allowed = reading.allowed()
    if "pp" in allowed:
        allowed["pp"] = [1, *(setup.number * times for times in PIPELINES)]
    return compare(
        asked_model(setup), system, work, against=BASELINE_RECIPES, allowed=allowed,
        calibration=UNCALIBRATED, prefers_simple=False,
    )  # fmt: skip


def system_name(entry: BestOfRecipe) -> str:
    """Return a recipe with who placed it, where it was placed."""
    return f"{entry.recipe} {entry.mapper}" if entry.mapper else entry.recipe


@studies.register("temp-wafers")
class SeveralWafers:
    """Plans with streams against the baselines, and their bubble times."""

    title = "TEMP Fig. 19: several wafers and their bubbles"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search every recipe on each set of wafers."""
        rows = [row for reading in READINGS for setup in SETUPS for row in _rows(setup, reading)]
        claims = read_twice(*map(_claims, READINGS))
        names = ("case", "reading", "system", "step_s", "over_ours", "bubble_share",
                 "collectives_s", "dies", "plan")  # fmt: skip
        lines = [f"{'case':<20} {'reading':<13} {'system':<18} {'step':>8} {'over ours':>10} "
                 f"{'bubble':>8}"]  # fmt: skip
        lines += [
            f"{row[0]:<20} {row[1]:<13} {row[2]:<18} {shown(row[3]) or '-':>8} "
            f"{shown(row[4]) or '-':>10} {shown(row[5]) or '-':>8}"
            for row in rows
        ]
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            machine=wafer(),
            lines=tuple(lines),
            data={"rows": records(names, rows)},
            tables=(Table("fig19", names, tuple(rows), CHART),),
            claims=claims,
            assumptions=ASSUMPTIONS + "; seam of 9 TB/s, both directions together; Grok-1 as it is "
            "published, a mixture of 8 experts and 314B parameters (the 341B of the text is taken "
            "for a slip), in closed form, since experts are not placed on grids; GPT-3 504B has no "
            "published shape: hidden 18432 and 124 layers are ours",
        )


def _rows(setup: Wafers, reading: Setting) -> Iterator[tuple[object, ...]]:
    """Yield the plan of each system on a set of wafers."""
    found = compared_on(setup, reading)
    for entry in found.entries:
        price = entry.best and entry.best.estimate
        yield (
            setup.label, reading.name, system_name(entry), price and price.step_time_s,
            entry.speedup_of_ours, bubble_share(entry), collective_s(entry),
            price and price.num_devices_used, entry.best.text if entry.best else "none fits",
        )  # fmt: skip


def _of_system(
    name: str, reading: Setting, read: Callable[[BestOfRecipe], float | None]
) -> tuple[list[tuple[float, float]], int]:
    """Return a quantity of ours and of a system on each set of wafers; and in how many it has 0."""
    pairs, num_without = [], 0
    for setup in SETUPS:
        found = compared_on(setup, reading)
        for entry in found.entries[1:]:
            ours, theirs = read(found.ours), read(entry)
            if system_name(entry) in (name, name.split()[0]) and ours is not None:
                pairs += [(ours, theirs)] if theirs else []
                num_without += theirs == 0.0
    return pairs, num_without


def _claims(reading: Setting) -> tuple[Claim, ...]:
    """Return the claims of the paper on several wafers, beside our figures."""
    gains = [
        gain
        for setup in SETUPS
        for entry in compared_on(setup, reading).entries[1:]
        if (gain := entry.speedup_of_ours) is not None
    ]
    low, high = min(gains, default=0.0), max(gains, default=0.0)
    return (
        Claim("Fig. 19", "throughput over the baselines on several wafers",
              "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", f"{low:.2f} to {high:.2f}x",
              judged_range(low, high, PUBLISHED_GAIN),
              "the least gain is over Megatron-3, which has sequence parallelism as well; the most "
              "over systems that have to recompute or to split into many stages to fit"),
        *(_saved_claim("bubble time", name, cut, bubble_s, reading)
          for name, cut in PUBLISHED_BUBBLES.items()),
        *(_saved_claim("collective time of a stage", name, cut, collective_s, reading)
          for name, cut in PUBLISHED_COLLECTIVES.items()),
    )  # fmt: skip


def _saved_claim(
    what: str,
    name: str,
    published: float,
    read: Callable[[BestOfRecipe], float | None],
    reading: Setting,
) -> Claim:
    """Return the mean share of a time that is saved against one baseline, beside the paper's."""
    pairs, num_without = _of_system(name, reading, read)
    cuts = [100.0 * (1.0 - ours / theirs) for ours, theirs in pairs]
    cut = sum(cuts) / len(cuts) if cuts else None
    none = f"; it has none in {num_without} of {len(SETUPS)}" if num_without else ""
    more = sum(ours > theirs for ours, theirs in pairs)
    why = (
        f"mean of {len(pairs)}, in {more} of which ours shows more of it: each plan is the fastest "
        f"as a whole, with stages, micro-batches and a schedule of its own{none}"
    )
    return Claim("Fig. 19", f"{what} saved against {name}", f"{published:.0f} %", "seed",
                 "nothing to compare" if cut is None else f"{shown(cut)} %",
                 Verdict.NOT_REBUILT if cut is None else judged(cut, published), why)  # fmt: skip
