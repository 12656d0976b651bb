"""Figs. 13, 14 and 16 under each setting: speed, memory, collectives, power, ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.train.comparison import Entry
from meshwright_papers.studies.claims import (
    Claim,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_gain,
    judged_range,
)
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.ablation import STEPS
from meshwright_papers.studies.temp.cases import ASSUMPTIONS, OURS, SOURCE
from meshwright_papers.studies.temp.power import (
    PUBLISHED_GAIN,
    PUBLISHED_POWER,
    power_w,
    tokens_per_j,
)
from meshwright_papers.studies.temp.settings.grid import (
    MODELS,
    Found,
    claim_under,
    found_by_setting,
)
from meshwright_papers.studies.temp.throughput import (
    PUBLISHED_CUT,
    PUBLISHED_MEMORY,
    PUBLISHED_SPEEDUP,
    SHORT_OF_MEMORY,
    collective_s,
    memory_shares,
    step_s,
)

Figures = tuple[float, ...] | None


@dataclass(frozen=True)
class Indicator:
    """One published result, and how to read it off a setting."""

    figure: str
    what: str
    published: str
    status: str
    near: tuple[float, ...]
    """The published figure, or both ends of a range."""
    read: Callable[[Found], Figures]
    verdict: Callable[[tuple[float, ...]], Verdict]
    form: str = "{:.3g}x"

    def text(self, figures: tuple[float, ...]) -> str:
        """Return figures as text."""
        return " to ".join(self.form.format(value) for value in figures)


def ratio_mean(
    found: Found, over: str, under: str, value: Callable[[Entry], float | None]
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
    """Return how to read the collective time saved against a baseline [%]."""

    def read(found: Found) -> Figures:
        cuts = [
            100.0 * (1.0 - ours / theirs)
            for entries in found.values()
            if (theirs := collective_s(entries[name])) and (ours := collective_s(entries[OURS]))
        ]
        return (sum(cuts) / len(cuts),) if cuts else None

    return read


def power(name: str) -> Callable[[Found], Figures]:
    """Return how to read our power over that of a baseline [%]."""

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
    """Return how to read the mean gain of one system over another."""

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
            Table("settings", names, rows, ("setting", "claim"), "ours"),
            Table("settings_speedup", ("setting", "speedup"), drawn, ("setting",), "speedup"),
        )
        return StudyResult(
            lines=tuple(claim_lines(claims)),
            data={table.name: table.records for table in tables},
            tables=tables,
            claims=claims,
            assumptions=f"{ASSUMPTIONS}; models: {', '.join(MODELS)}; each setting holds for all "
            "systems alike unless it says otherwise; the settings were declared before they were "
            "priced, none was fitted; of so many some may agree by chance",
        )


def _claim(indicator: Indicator, figures: Mapping[str, Figures]) -> Claim:
    """Return under which settings a published result holds."""
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
    """Return under which settings the same models are short of memory."""
    models = next(iter(by_setting.values()))
    expected = tuple(name for name in models if name in SHORT_OF_MEMORY)
    agreeing = [name for name, found in by_setting.items() if short_of_memory(found) == expected]
    is_so = Verdict.AGREES if agreeing else Verdict.DIFFERS
    return Claim(
        "Fig. 13", f"of {', '.join(models)}, those for which some baseline is out of memory, under "
        "a setting", ", ".join(expected) or "none", "second-hand",
        f"the same under: {'; '.join(agreeing)}" if agreeing else "others under every setting",
        is_so, "" if agreeing else "baselines fit by sharding their state",
    )  # fmt: skip
