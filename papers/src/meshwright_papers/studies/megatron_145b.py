"""GPT 145.6B on 1,536 A100: measured, predicted by DFModel, and priced here in four ways.

Published: table 1 of Narayanan et al. 2021 (arXiv 2104.04473): tp 8, pp 8, dp 24, 2,304 sequences
of 2,048 tokens, everything recomputed, 148 TFLOP/s a chip. DFModel: the log of its public
repository, stopped after 300.5 s on 140 threads with a gap of 21.0 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.train.answer import Candidate
from meshwright.train.plan import plan
from meshwright.train.question import training
from meshwright_papers.studies.dfmodel.published_runs import LENGTH, RUNS, TP, predicted
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    claim_lines,
    judged,
    records,
    shown,
    studies,
)

MODEL = "megatron-145b"
RUN = next(run for run in RUNS if run.name == "145.6B")
Space = Mapping[str, Sequence[object]]
DEGREES: Space = {"tp": (TP,), "pp": (RUN.pp,), "cp": (1,), "dp": (RUN.dp,)}
AS_RUN: Space = {
    **DEGREES, "micro_batch_size": (1,), "recompute": ("full",), "schedule": ("1f1b",),
    "sequence_parallel": (False,), "zero_stage": (0,),
}  # fmt: skip
"""Options of the published run; 1F1B and micro-batches of one sequence are its baseline."""
INTERLEAVED: Space = {**AS_RUN, "schedule": ("interleaved",)}
PEER = "DFModel, its log"
WAYS: Mapping[str, Space] = {
    "ours: as published, 1F1B": AS_RUN,
    "ours: as published, interleaved": INTERLEAVED,
    "ours: best of these degrees": DEGREES,
    "ours: best of all": {},
}


CHART = Drawing(
    "How fast does GPT 145.6B train on 1,536 A100?",
    f"A step of {RUN.batch:,} sequences: measured, as DFModel predicts, and by our plans",
    "bars", ("samples_per_s",), "figure", measure="training throughput",
    limit=(RUN.measured_samples_per_s, "measured"),
)  # fmt: skip


@cache
def best(way: str) -> Candidate:
    """Return the fastest plan of a space, proven."""
    system = f"{RUN.chips}xA100"
    asked = training(system, sequence_length=LENGTH, global_batch_size=RUN.batch)
    return plan(MODEL, system, asked, allowed=WAYS[way] or None, prefers_simple=False).best


@dataclass(frozen=True)
class Row:
    """One figure of the run."""

    name: str
    samples_per_s: float
    plan: str

    @property
    def cells(self) -> tuple[str, float, float, float, float, str]:
        """Seconds of a step, samples/s, and their ratios to the measurement and the peer."""
        rate = self.samples_per_s
        return (self.name, RUN.batch / rate, rate, rate / RUN.measured_samples_per_s,
                rate / RUN.peer_samples_per_s, self.plan)  # fmt: skip


COLUMNS = ("figure", "step_s", "samples_per_s", "over_measured", "over_dfmodel", "plan")


def rows() -> list[Row]:
    """Return all figures."""
    given = f"tp{TP} pp{RUN.pp} dp{RUN.dp} mbs1"
    found = [
        Row("measured", RUN.measured_samples_per_s, f"tp{TP} pp{RUN.pp} dp{RUN.dp}"),
        Row(PEER, RUN.peer_samples_per_s, given),
        Row("its rules, solved here", predicted(RUN).samples_per_s, given),
    ]
    for way in WAYS:
        plan_of = best(way)
        found.append(Row(way, RUN.batch / plan_of.estimate.step_time_s, plan_of.text))
    return found


def claims(found: list[Row]) -> tuple[Claim, ...]:
    """Return the verdicts on the measurement, and on the peer's log."""
    by_name = {row.name: row.samples_per_s for row in found}
    measured, peer = RUN.measured_samples_per_s, RUN.peer_samples_per_s
    plain, rules = by_name["ours: as published, 1F1B"], by_name["its rules, solved here"]
    return (
        Claim("table 1", "samples/s of the published recipe", f"{measured:.1f}", "derived",
              f"{plain:.1f}", judged(plain, measured),
              "micro-batch and schedule of the run are not published"),
        Claim("validation", "samples/s, DFModel's log", f"{peer:.1f}", "second-hand",
              f"{rules:.1f}", judged(rules, peer),
              "its input graph is not published; on ours Q, K and V pay for a gradient each"),
        Claim("validation", "DFModel's samples/s over those measured", "1.10 on average", "seed",
              f"{peer / measured:.2f}", judged(peer / measured, 1.10),
              "nothing is recomputed there and nothing has latency; the run recomputes all"),
    )  # fmt: skip


@studies.register("gpt-145.6b")
class Megatron145B:
    """The largest run with a measurement, a log of DFModel and our own plans."""

    title = "GPT 145.6B on 1,536 A100: measured, DFModel's log, our plans"
    source = "Narayanan et al. 2021, arXiv 2104.04473, table 1; DFModel, arXiv 2412.16432"

    @staticmethod
    def run() -> StudyResult:
        """Put all figures side by side."""
        found = rows()
        cells = tuple(row.cells for row in found)
        lines = [f"{'figure':<34}{'step':>9}{'samples/s':>11}{'/measured':>11}{'/DFModel':>10}"]
        lines += [
            f"{name:<34}{step_s:>8.2f}s{shown(rate):>11}{shown(measured):>11}{shown(peer):>10}"
            for name, step_s, rate, measured, peer, _ in cells
        ]
        for row in found[3:]:
            lines += ["", f"{row.name}:", f"  {row.plan}"]
        lines.append("")
        every = claims(found)
        return StudyResult(
            lines=(*lines, *claim_lines(every)),
            data={"rows": records(COLUMNS, cells)},
            tables=(Table("gpt-145.6b", COLUMNS, cells, CHART),),
            claims=every,
            assumptions=f"{RUN.chips} A100 80 GB in hosts of eight, {RUN.batch} sequences of "
            f"{LENGTH} tokens; ours in closed form with calibrated constants, the peer's without "
            "latency and at full rates; measured samples/s follow from 148 TFLOP/s a chip and the "
            "FLOPs of the publication, all recomputed",
        )  # fmt: skip
