"""Figs. 17 and 18 under each setting: which published mix would be best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.train.answer import Candidate
from meshwright.train.compare import compare
from meshwright.train.question import training
from meshwright_papers.studies.claims import Claim, Table, Verdict, claim_lines
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.cases import ASSUMPTIONS, SOURCE, Case, model_of
from meshwright_papers.studies.temp.settings.grid import (
    FAST_MEMORY,
    ONE_SEQUENCE,
    Setting,
    claim_under,
)
from meshwright_papers.studies.temp.strategies import CLOSE, PUBLISHED, Mix, Published, mix_of

WHOLE_BATCH = "the whole batch at once"
"""Each replica passes all of its sequences in one micro-batch."""
SETTINGS = (
    Setting("one sequence in a micro-batch", fixed=ONE_SEQUENCE),
    Setting(WHOLE_BATCH),
    Setting(f"{WHOLE_BATCH}, HBM never slow", FAST_MEMORY.machine),
)
REPLICAS = (1, 2, 4, 8, 16, 32)
ASKED = (("llama2-7b", 2048), ("gpt3-76b", 2048), ("gpt3-76b", 16384), ("gpt3-175b", 2048))
"""Model and sequence length of the mixes that are not best elsewhere, where anything fits."""


@cache
def best_under(case: Case, setting: Setting, mix: Mix | None = None) -> Candidate | None:
    """Return the best plan without a pipeline, of one mix or of all; None where none fits."""
    degrees = zip(("dp", "cp", "tp", "tatp"), mix, strict=True) if mix else ()
    fixed: dict[str, Sequence[object]] = {name: [value] for name, value in degrees}
    if not setting.name.startswith(WHOLE_BATCH):
        return _best(case, setting, fixed)
    found = []
    for dp in [mix[0]] if mix else REPLICAS:
        at_once = {"dp": [dp], "micro_batch_size": [case.global_batch_size // dp]}
        found.append(_best(case, setting, {**fixed, **at_once}))
    known = [plan for plan in found if plan is not None]
    return min(known, key=lambda plan: plan.estimate.step_time_s, default=None)


def _best(case: Case, setting: Setting, fixed: Mapping[str, Sequence[object]]) -> Candidate | None:
    system = setting.machine.system()
    work = training(
        system, sequence_length=case.sequence_length, global_batch_size=case.global_batch_size
    )
    allowed = setting.allowed(pp=[1], **fixed)
    try:
        found = compare(
            model_of(case), system, work, against=(), allowed=allowed, calibration=UNCALIBRATED
        )
    except InfeasibleError:
        return None
    return found.ours.best


def slower_by(entry: Published, setting: Setting) -> float | None:
    """Return by which share the published mix is slower than the best one."""
    ours, theirs = best_under(entry.case, setting), best_under(entry.case, setting, entry.mix)
    if ours is None or theirs is None:
        return None
    return theirs.estimate.step_time_s / ours.estimate.step_time_s - 1.0


@studies.register("temp-settings-mixes")
class MixSettings:
    """The published mixes that are not best elsewhere, with other micro-batches."""

    title = "TEMP Figs. 17 and 18: under which setting each published mix would be best"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search each case twice under each setting."""
        asked = [e for e in PUBLISHED if (e.case.model, e.case.sequence_length) in ASKED]
        rows = tuple(
            (entry.case.name, setting.name, str(entry.mix),
             str(mix_of(best_under(entry.case, setting))), slower_by(entry, setting))
            for entry in asked
            for setting in SETTINGS
        )  # fmt: skip
        claims = tuple(_claim(entry) for entry in asked)
        names = ("case", "setting", "published_mix", "best_mix", "slower_by")
        return StudyResult(
            lines=tuple(claim_lines(claims)),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("settings_mixes", names, rows, ("case", "setting"), "slower_by"),),
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; batch 32 for sequences of 16K",
        )


def _claim(entry: Published) -> Claim:
    """Return under which settings a published mix is as good as the best one."""
    slower = {setting.name: slower_by(entry, setting) for setting in SETTINGS}
    claim = Claim(entry.figure, f"best mix for {entry.case.name}, under a setting", str(entry.mix),
                  "seed", "", Verdict.DIFFERS, "")  # fmt: skip
    return claim_under(
        claim,
        {name: None if share is None else (share,) for name, share in slower.items()},
        lambda figures: figures[0] <= CLOSE,
        (0.0,),
        lambda figures: f"{figures[0]:.1%} slower than the best",
    )
