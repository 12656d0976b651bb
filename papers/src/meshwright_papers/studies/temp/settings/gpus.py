"""Fig. 15 with other main memories: what of it is the memory of a die."""

from __future__ import annotations

from meshwright_papers.studies.claims import Claim, Table, Verdict, claim_lines, judged_gain, shown
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.cases import CASES, SOURCE
from meshwright_papers.studies.temp.gpus import (
    PUBLISHED_OVER_GPU,
    PUBLISHED_SLOWER,
    gpu_step_s,
    mean_ratio,
    wafer_steps_s,
)
from meshwright_papers.studies.temp.machines import NEVER_SLOW, TB, Machine
from meshwright_papers.studies.temp.settings.grid import MODELS, claim_under

RATES = (TB, 1.6 * TB, 2.4 * TB, NEVER_SLOW)
"""Of the main memory of a die: Table I, and two or three stacks of its text [bytes/s]."""


@studies.register("temp-settings-gpus")
class GpuSettings:
    """Dies of the peak of an A100 with slower and faster memories."""

    title = "TEMP Fig. 15: under which memory of a die each claim would hold"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search Megatron-3 and streams on a wafer with each memory, on two models."""
        cases = [name for name in MODELS if name in CASES]
        over, slower, rows = {}, {}, []
        for rate in RATES:
            name = Machine(hbm_bytes_per_s=rate).text
            found: list[tuple[float | None, ...]] = [
                (gpu_step_s(case), *wafer_steps_s(case, rate)) for case in cases
            ]
            over[name], slower[name] = mean_ratio(found, 0, 2), mean_ratio(found, 1, 0)
            rows += [(case, name, *times) for case, times in zip(cases, found, strict=True)]
        claims = (
            _claim("wafer with TEMP over GPUs with Megatron-3", PUBLISHED_OVER_GPU, over),
            _claim("wafer with Megatron-3 slower than GPUs with it", PUBLISHED_SLOWER, slower),
        )
        names = ("model", "hbm", "gpu_megatron-3_s", "wafer_megatron-3_s", "wafer_temp_s")
        return StudyResult(
            lines=tuple(claim_lines(claims)),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("settings_gpus", names, tuple(rows), ("model", "hbm"), names[-1]),),
            claims=claims,
            assumptions="dies of 312 TFLOP/s with the links of Table I; 32 A100 of the catalog; 12 "
            f"bytes of state a parameter on both; models: {', '.join(MODELS)}",
        )


def _claim(what: str, published: float, means: dict[str, float | None]) -> Claim:
    """Return with which memories a published ratio holds."""
    claim = Claim("Fig. 15", f"{what}, under a setting", f"{published}x", "second-hand", "",
                  Verdict.DIFFERS, "")  # fmt: skip
    return claim_under(
        claim,
        {name: None if mean is None else (mean,) for name, mean in means.items()},
        lambda figures: judged_gain(figures[0], published) is Verdict.AGREES,
        (published,),
        lambda figures: f"{shown(figures[0])}x",
    )
