"""Under which of the settings that the paper leaves open each of its claims would hold.

All settings were declared before anything was priced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.train.answer import BestOfRecipe, Candidate
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_gain,
    judged_range,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.gpus import (
    PUBLISHED_OVER_GPU,
    PUBLISHED_SLOWER,
    gpu_step_s,
    mean_ratio,
    wafer_steps_s,
)
from meshwright_papers.studies.temp.power import (
    PUBLISHED_GAIN,
    PUBLISHED_POWER,
    power_w,
    tokens_per_j,
)
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    DESCRIBED,
    NEVER_SLOW,
    NO_PIPELINE,
    OURS,
    PLAIN,
    SEARCHED,
    SOURCE,
    TB,
    Case,
    Fixed,
    Machine,
    Setting,
    entries_of,
    model_of,
    wafer,
    work_of,
)
from meshwright_papers.studies.temp.strategies import CLOSE, PUBLISHED, Mix, Published, mix_of
from meshwright_papers.studies.temp.throughput import (
    PUBLISHED_CUT,
    PUBLISHED_MEMORY,
    PUBLISHED_SPEEDUP,
    SHORT_OF_MEMORY,
    STEPS,
    collective_s,
    memory_shares,
    step_s,
)

ONE_SEQUENCE: Fixed = (("micro_batch_size", (1,)),)
NO_OVERLAP: Fixed = (("overlap_data_parallel", (False,)),)


SIMPLEST = Setting(
    "nothing recomputed, no ZeRO-1, one sequence, no overlap",
    fixed=(*PLAIN, *ONE_SEQUENCE, *NO_OVERLAP),
)
HALF = Machine(link_bytes_per_s=0.5 * TB)
"""4 TB/s of a die over its four edges, both ways together."""
FAST_MEMORY = Setting("HBM never slow", Machine(hbm_bytes_per_s=NEVER_SLOW))
SETTINGS = (
    SEARCHED,
    Setting("nothing recomputed, no ZeRO-1", fixed=PLAIN),
    Setting("no pipeline inside a wafer", fixed=NO_PIPELINE),
    DESCRIBED,
    Setting("one sequence in a micro-batch", fixed=ONE_SEQUENCE),
    SIMPLEST,
    Setting("HBM 2.4 TB/s", Machine(hbm_bytes_per_s=2.4 * TB)),
    FAST_MEMORY,
    Setting("D2D 1 TB/s one way", Machine(link_bytes_per_s=TB)),
    Setting("D2D 0.5 TB/s one way a link", HALF),
    Setting("as described, D2D 0.5 TB/s one way a link", HALF, DESCRIBED.fixed),
    Setting("messages of 16 MB", Machine(message_half_bytes=16e6)),
    Setting(
        "the simplest with HBM never slow, D2D 0.5 TB/s",
        Machine(hbm_bytes_per_s=NEVER_SLOW, link_bytes_per_s=0.5 * TB),
        SIMPLEST.fixed,
    ),
)
BASELINES_ALONE = f"baselines alone: {SIMPLEST.name}"
"""Our plans as elsewhere, over baselines of the simplest setting."""
MODELS = ("GPT-3 6.7B", "Llama3 70B")
Found = Mapping[str, Mapping[str, BestOfRecipe]]
"""Entries by model, then by system."""


SPEEDUP_CHART = Drawing(
    "Under which setting is TEMP as much faster as published?",
    "Mean speedup over the six baselines of TEMP Fig. 13, on two models",
    "dots", ("speedup",), "setting", limit=(PUBLISHED_SPEEDUP, "published"),
)  # fmt: skip
MIX_CHART = Drawing(
    "Under which setting would the published mix be best?",
    "How much slower it is than the best one; TEMP Figs. 17 and 18",
    "bars", ("slower_by",), "case", colour="setting", misfit="no plan fits",
)  # fmt: skip
GPU_CHART = Drawing(
    "Is a wafer faster than GPUs of equal peak, and with which memory?",
    "Step on the wafer over that of Megatron-3 on 32 A100; TEMP Fig. 15",
    "dots", ("wafer_megatron-3_s", "wafer_temp_s"), "hbm", panels="model", across=2,
    over="gpu_megatron-3_s", measure="step, over that on GPUs",
)  # fmt: skip


@cache
def entries_under(case: Case, setting: Setting) -> Mapping[str, BestOfRecipe]:
    """Return the best plan of each system under a setting."""
    system = setting.machine.system()
    work = work_of(case, system)
    return entries_of(
        compare(
            model_of(case),
            system,
            work,
            ours=OURS,
            against=BASELINES,
            allowed=setting.allowed(),
            calibration=UNCALIBRATED,
            prefers_simple=False,
        )
    )


def found_by_setting() -> dict[str, Found]:
    """Return the results of each setting by name; ours over simpler baselines come last."""
    cases = [CASES[name] for name in MODELS if name in CASES]
    found = {
        setting.name: {case.name: entries_under(case, setting) for case in cases}
        for setting in SETTINGS
    }
    usual, simplest = found[SEARCHED.name], found[SIMPLEST.name]
    mixed = {
        case.name: {
            name: (usual if name.startswith(OURS) else simplest)[case.name][name]
            for name in usual[case.name]
        }
        for case in cases
    }
    return {**found, BASELINES_ALONE: mixed}


def claim_under(
    claim: Claim, by_setting: Mapping[str, tuple[float, ...] | None],
    holds: Callable[[tuple[float, ...]], bool], published: Sequence[float],
    text: Callable[[tuple[float, ...]], str],
) -> Claim:  # fmt: skip
    """Return a claim with the settings under which it holds, else with the nearest figure.

    Parameters
    ----------
    by_setting
        Our figures; None where a setting gives none.
    published
        The figures to be near to.
    """
    known = {name: figures for name, figures in by_setting.items() if figures is not None}
    agreeing = [name for name, figures in known.items() if holds(figures)]
    if agreeing:
        ours = "; ".join(f"{text(known[name])} under: {name}" for name in agreeing)
        return _with(claim, ours, Verdict.UNDER_A_SETTING, "")
    if not known:
        return _with(claim, "no setting gives a figure", Verdict.DIFFERS, "no setting fits")

    def away(name: str) -> float:
        return max(abs(a - b) for a, b in zip(known[name], published, strict=True))

    nearest = min(known, key=away)
    ours = f"nearest {text(known[nearest])} under: {nearest}"
    return _with(claim, ours, Verdict.DIFFERS, f"under none of {len(by_setting)} settings")


def _with(claim: Claim, ours: str, verdict: Verdict, why: str) -> Claim:
    return Claim(claim.figure, claim.what, claim.published, claim.status, ours, verdict, why)


Figures = tuple[float, ...] | None


@dataclass(frozen=True)
class Indicator:
    """One published result, and its reader for the results of a setting."""

    figure: str
    what: str
    published: str
    status: str
    near: tuple[float, ...]
    """Published figure, or both ends of a range."""
    read: Callable[[Found], Figures]
    verdict: Callable[[tuple[float, ...]], Verdict]
    form: str = "{:.3g}x"

    def text(self, figures: tuple[float, ...]) -> str:
        """Return figures as text."""
        return " to ".join(self.form.format(value) for value in figures)


def ratio_mean(
    found: Found, over: str, under: str, value: Callable[[BestOfRecipe], float | None]
) -> float | None:
    """Return the geometric mean over models of a figure of one system over that of another."""
    pairs = [(value(entries[over]), value(entries[under])) for entries in found.values()]
    logs = [math.log(a / b) for a, b in pairs if a and b]
    return math.exp(sum(logs) / len(logs)) if logs else None


def speedup(found: Found) -> Figures:
    """Return the mean over the baselines of the mean speedup over each."""
    means = [ratio_mean(found, name, OURS, step_s) for name in PUBLISHED_CUT]
    known = [mean for mean in means if mean]
    return (sum(known) / len(known),) if known else None


def memory(found: Found) -> Figures:
    """Return the least and the largest mean over models of our memory over a baseline's."""
    means = list(memory_shares(found).values())
    return (min(means), max(means)) if means else None


def saving(name: str) -> Callable[[Found], Figures]:
    """Return the reader of the collective time saved against a baseline [%]."""

    def read(found: Found) -> Figures:
        cuts = [
            100.0 * (1.0 - ours / theirs)
            for entries in found.values()
            if (theirs := collective_s(entries[name])) and (ours := collective_s(entries[OURS]))
        ]
        return (sum(cuts) / len(cuts),) if cuts else None

    return read


def power(name: str) -> Callable[[Found], Figures]:
    """Return the reader of our power over that of a baseline [%]."""

    def read(found: Found) -> Figures:
        mean = ratio_mean(found, OURS, name, power_w)
        return (100.0 * mean,) if mean else None

    return read


def efficiency(found: Found) -> Figures:
    """Return the least and the largest tokens for each joule over those of a baseline."""
    gains = [
        ours / theirs
        for entries in found.values()
        for name in PUBLISHED_CUT
        if (ours := tokens_per_j(entries[OURS])) and (theirs := tokens_per_j(entries[name]))
    ]
    return (min(gains), max(gains)) if gains else None


def gain(before: str, after: str) -> Callable[[Found], Figures]:
    """Return the reader of the mean gain of one system over another."""

    def read(found: Found) -> Figures:
        mean = ratio_mean(found, before, after, step_s)
        return (mean,) if mean else None

    return read


def in_range(low: float, high: float) -> Callable[[tuple[float, ...]], Verdict]:
    """Return the judge of a published range."""
    return lambda figures: judged_range(figures[0], figures[-1], (low, high))


def as_gain(published: float, neutral: float = 1.0) -> Callable[[tuple[float, ...]], Verdict]:
    """Return the judge of a published gain."""
    return lambda figures: judged_gain(figures[0], published, neutral)


def as_figure(published: float) -> Callable[[tuple[float, ...]], Verdict]:
    """Return the judge of a published figure."""
    return lambda figures: judged(figures[0], published)


INDICATORS = (
    Indicator("Fig. 13", "mean speedup over the six baselines", f"{PUBLISHED_SPEEDUP}x", "seed",
              (PUBLISHED_SPEEDUP,), speedup, as_gain(PUBLISHED_SPEEDUP)),
    Indicator("Fig. 13", "peak memory over that of the baselines",
              "{:.0%} to {:.0%}".format(*PUBLISHED_MEMORY), "seed", PUBLISHED_MEMORY, memory,
              in_range(*PUBLISHED_MEMORY), "{:.0%}"),
    *(Indicator("Fig. 13", f"collective time saved against {name}", f"{cut:.0f} %", "seed", (cut,),
                saving(name), as_figure(cut), "{:.3g} %") for name, cut in PUBLISHED_CUT.items()),
    *(Indicator("Fig. 14", f"total power over {name}", f"{share} %", "seed", (share,), power(name),
                as_gain(share, 100.0), "{:.3g} %") for name, share in PUBLISHED_POWER.items()),
    Indicator("Fig. 14", "tokens for each joule over the baselines",
              "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", PUBLISHED_GAIN, efficiency,
              in_range(*PUBLISHED_GAIN)),
    *(Indicator("Fig. 16", f"mean gain of {what}", f"{mean}x", "seed", (mean,),
                gain(before, after), as_gain(mean)) for what, before, after, mean in STEPS),
)  # fmt: skip


def short_of_memory(found: Found) -> tuple[str, ...]:
    """Return the models for which some baseline has no plan."""
    return tuple(
        case
        for case, entries in found.items()
        if any(entries[name].best is None for name in PUBLISHED_CUT)
    )


@studies.register("temp-settings")
class WaferSettings:
    """The comparisons of one wafer, again under each declared setting."""

    title = "TEMP Figs. 13, 14 and 16: under which setting each claim would hold"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search every system under every setting, on two models."""
        by_setting = found_by_setting()
        figures = {
            indicator.what: {name: indicator.read(found) for name, found in by_setting.items()}
            for indicator in INDICATORS
        }
        claims = (*(_claim(i, figures[i.what]) for i in INDICATORS), _memory_claim(by_setting))
        names = ("setting", "claim", "published", "ours", "verdict")
        rows = tuple(
            (setting, i.what, i.published, i.text(ours), str(i.verdict(ours)))
            for setting in by_setting
            for i in INDICATORS
            if (ours := figures[i.what][setting]) is not None
        )
        drawn = tuple(
            (setting, ours[0])
            for setting, ours in figures[INDICATORS[0].what].items()
            if ours is not None
        )
        tables = (
            Table("settings", names, rows),
            Table("settings_speedup", ("setting", "speedup"), drawn, SPEEDUP_CHART),
        )
        return StudyResult(
            machine=wafer(),
            lines=tuple(claim_lines(claims)),
            data={table.name: table.records for table in tables},
            tables=tables,
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; models: {', '.join(MODELS)}; each setting holds for all "
            "systems alike unless it says otherwise; the settings were declared before they were "
            "priced, none was fitted; of so many some may agree by chance",
        )


def _claim(indicator: Indicator, figures: Mapping[str, Figures]) -> Claim:
    """Return the claim with the settings under which a published result holds."""
    claim = Claim(indicator.figure, f"{indicator.what}, under a setting", indicator.published,
                  indicator.status, "", Verdict.DIFFERS, "")  # fmt: skip
    return claim_under(
        claim,
        figures,
        lambda ours: indicator.verdict(ours) is Verdict.AGREES,
        indicator.near,
        indicator.text,
    )


def _memory_claim(by_setting: Mapping[str, Found]) -> Claim:
    """Return the claim with the settings under which the same models are short of memory."""
    models = next(iter(by_setting.values()))
    expected = tuple(name for name in models if name in SHORT_OF_MEMORY)
    agreeing = [name for name, found in by_setting.items() if short_of_memory(found) == expected]
    is_so = Verdict.UNDER_A_SETTING if agreeing else Verdict.DIFFERS
    return Claim(
        "Fig. 13", f"of {', '.join(models)}, those for which some baseline is out of memory, under "
        "a setting", ", ".join(expected) or "none", "second-hand",
        f"the same under: {'; '.join(agreeing)}" if agreeing else "others under every setting",
        is_so, "" if agreeing else "baselines fit by sharding their state",
    )  # fmt: skip


WHOLE_BATCH = "the whole batch at once"
"""Each replica passes all of its sequences in one micro-batch."""
MIX_SETTINGS = (
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
    work = work_of(case, system)
    allowed = setting.allowed(pp=[1], **fixed)
    try:
        found = compare(
            model_of(case),
            system,
            work,
            against=(),
            allowed=allowed,
            calibration=UNCALIBRATED,
            prefers_simple=False,
        )
    except InfeasibleError:
        return None
    return found.ours.best


def slower_by(entry: Published, setting: Setting) -> float | None:
    """Return the share by which the published mix is slower than the best one."""
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
            for setting in MIX_SETTINGS
        )  # fmt: skip
        claims = tuple(_mix_claim(entry) for entry in asked)
        names = ("case", "setting", "published_mix", "best_mix", "slower_by")
        return StudyResult(
            machine=wafer(),
            lines=tuple(claim_lines(claims)),
            data={"rows": records(names, rows)},
            tables=(Table("settings_mixes", names, rows, MIX_CHART),),
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; batch 32 for sequences of 16K",
        )


def _mix_claim(entry: Published) -> Claim:
    """Return the claim with the settings under which a published mix equals the best one."""
    slower = {setting.name: slower_by(entry, setting) for setting in MIX_SETTINGS}
    claim = Claim(entry.figure, f"best mix for {entry.case.name}, under a setting", str(entry.mix),
                  "seed", "", Verdict.DIFFERS, "")  # fmt: skip
    return claim_under(
        claim,
        {name: None if share is None else (share,) for name, share in slower.items()},
        lambda figures: figures[0] <= CLOSE,
        (0.0,),
        lambda figures: f"{figures[0]:.1%} slower than the best",
    )


RATES = (TB, 1.6 * TB, 2.4 * TB, NEVER_SLOW)
"""Bandwidth of the main memory of a die: Table I, and two or three stacks of its text [bytes/s]."""


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
            _gpu_claim("wafer with TEMP over GPUs with Megatron-3", PUBLISHED_OVER_GPU, over),
            _gpu_claim("wafer with Megatron-3 slower than GPUs with it", PUBLISHED_SLOWER, slower),
        )
        names = ("model", "hbm", "gpu_megatron-3_s", "wafer_megatron-3_s", "wafer_temp_s")
        return StudyResult(
            machine=wafer(),
            lines=tuple(claim_lines(claims)),
            data={"rows": records(names, rows)},
            tables=(Table("settings_gpus", names, tuple(rows), GPU_CHART),),
            claims=claims,
            assumptions="dies of 312 TFLOP/s with the links of Table I; 32 A100 of the catalog; 12 "
            f"bytes of state a parameter on both; models: {', '.join(MODELS)}",
        )


def _gpu_claim(what: str, published: float, means: dict[str, float | None]) -> Claim:
    """Return the claim with the memories under which a published ratio holds."""
    claim = Claim("Fig. 15", f"{what}, under a setting", f"{published}x", "second-hand", "",
                  Verdict.DIFFERS, "")  # fmt: skip
    return claim_under(
        claim,
        {name: None if mean is None else (mean,) for name, mean in means.items()},
        lambda figures: judged_gain(figures[0], published) is Verdict.AGREES,
        (published,),
        lambda figures: f"{shown(figures[0])}x",
    )
