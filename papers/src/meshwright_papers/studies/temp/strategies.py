"""Figs. 17 and 18: which mix of strategies is best, by model and sequence length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.train.answer import Candidate
from meshwright.train.compare import compare
from meshwright.train.question import training
from meshwright_papers.studies.claims import Claim, Table, Verdict, shown
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.cases import ASSUMPTIONS, SOURCE, Case, model_of, wafer

CLOSE = 0.03
"""Share by which a published mix may be slower than ours and still agree."""
Mix = tuple[int, int, int, int]


@dataclass(frozen=True)
class Published:
    """A mix that the paper calls best: (dp, cp, tp, tatp)."""

    figure: str
    case: Case
    mix: Mix


PUBLISHED = tuple(
    Published(figure, Case(f"{model} {length // 1024}K", name, length, batch), mix)
    for figure, model, name, length, batch, mix in (
        ("Fig. 17", "Llama2 7B", "llama2-7b", 2048, 128, (2, 1, 1, 16)),
        ("Fig. 17", "Llama2 7B", "llama2-7b", 16384, 32, (1, 4, 1, 8)),
        ("Fig. 18", "GPT-3 6.7B", "gpt3-6.7b", 2048, 128, (4, 1, 1, 8)),
        ("Fig. 18", "GPT-3 6.7B", "gpt3-6.7b", 16384, 32, (2, 2, 1, 8)),
        ("Fig. 18", "GPT-3 76B", "gpt3-76b", 2048, 128, (2, 2, 1, 8)),
        ("Fig. 18", "GPT-3 76B", "gpt3-76b", 16384, 32, (1, 4, 1, 8)),
        ("Fig. 18", "GPT-3 175B", "gpt3-175b", 2048, 128, (1, 1, 2, 16)),
        ("Fig. 18", "GPT-3 175B", "gpt3-175b", 16384, 32, (1, 2, 2, 8)),
    )
)
WHY = (
    "micro-batches are searched: with enough of them smaller stream groups hide their links, and "
    "tp inside a block of four moves less than a longer stream; the paper's mixes come from one "
    "micro-batch size that it does not state: see temp-settings-mixes"
)


@cache
def best_of(case: Case, mix: Mix | None = None) -> Candidate | None:
    """Return the best plan without a pipeline, of one mix or of all; None where none fits."""
    allowed: dict[str, list[object]] = {"pp": [1]}
    if mix is not None:
        allowed |= {n: [v] for n, v in zip(("dp", "cp", "tp", "tatp"), mix, strict=True)}
    system = wafer()
    work = training(
        system, sequence_length=case.sequence_length, global_batch_size=case.global_batch_size
    )
    try:
        found = compare(
            model_of(case), system, work, against=(), allowed=allowed, calibration=UNCALIBRATED
        )
    except InfeasibleError:
        return None
    return found.ours.best


def mix_of(candidate: Candidate | None) -> Mix | None:
    """Return (dp, cp, tp, tatp) of a plan."""
    if candidate is None:
        return None
    strategy = candidate.strategy
    return int(strategy.dp), int(strategy.cp), int(strategy.tp), int(strategy.tatp)


@studies.register("temp-strategies")
class Strategies:
    """The best mix of dp, cp, tp and tatp, and what the published one costs."""

    title = "TEMP Figs. 17 and 18: the best mix of dp, cp, tp and tensor streams"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search each case twice: freely, and with the published mix."""
        rows, claims = [], []
        for entry in PUBLISHED:
            ours, theirs = best_of(entry.case), best_of(entry.case, entry.mix)
            slower = None
            if ours is not None and theirs is not None:
                slower = theirs.estimate.step_time_s / ours.estimate.step_time_s - 1.0
            rows.append((entry.case.name, str(entry.mix), str(mix_of(ours)),
                         ours and ours.estimate.step_time_s,
                         theirs and theirs.estimate.step_time_s, slower))  # fmt: skip
            claims.append(_claim(entry, ours, slower))
        names = ("case", "published_mix", "best_mix", "best_s", "published_mix_s", "slower_by")
        lines = [f"{'(dp, cp, tp, tatp)':<18} {'published':<16} {'ours':<16} {'ours s':>9} "
                 f"{'published s':>12} {'slower':>8}"]  # fmt: skip
        lines += [
            f"{row[0]:<18} {row[1]:<16} {row[2]:<16} {shown(row[3]) or '-':>9} "
            f"{shown(row[4]) or '-':>12} {shown(row[5]) or '-':>8}"
            for row in rows
        ]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig17_18", names, tuple(rows), ("case",), "slower_by"),),
            claims=tuple(claims),
            assumptions=ASSUMPTIONS + "; batch 32 for sequences of 16K",
        )


def _claim(entry: Published, ours: Candidate | None, slower: float | None) -> Claim:
    """Return whether the published mix is best, or as good as the best one."""
    agrees = slower is not None and slower <= CLOSE
    cost = "nothing of it fits" if slower is None else f"the published one is {slower:.1%} slower"
    return Claim(
        entry.figure, f"best mix for {entry.case.name}", str(entry.mix), "seed",
        f"{mix_of(ours)}; {cost}", Verdict.AGREES if agrees else Verdict.DIFFERS,
        "" if agrees else WHY,
    )  # fmt: skip
