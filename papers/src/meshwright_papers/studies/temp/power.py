"""Fig. 14: power and energy efficiency of TEMP and six baselines, part by part.

Read twice: with idle power and overhead, and by operations alone, as the paper counts. The plans
and their times are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.train.answer import BestOfRecipe, Estimate
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged_gain,
    judged_range,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    HONEST,
    OURS,
    SOURCE,
    compared,
    entries_of,
    wafer,
)
from meshwright_papers.studies.temp.throughput import PUBLISHED_SPEEDUP

PUBLISHED_POWER = {
    "megatron-1 smap": 88.6, "megatron-1 gmap": 94.5, "megatron-3 smap": 94.6,
    "megatron-3 gmap": 98.6, "fsdp smap": 94.4, "fsdp gmap": 97.6,
}  # fmt: skip
"""Total power of TEMP over that of the baseline [%]."""
PUBLISHED_POINTS = {
    "megatron-1 smap": 11.0, "megatron-1 gmap": 5.0, "megatron-3 smap": 6.0,
    "megatron-3 gmap": 3.0, "fsdp smap": 5.0, "fsdp gmap": 2.0,
}  # fmt: skip
"""Reduction of the power of communication, in points of the baseline's total [%]."""
PUBLISHED_GAIN = (1.2, 1.85)
PUBLISHED_COMPUTE = 50.0
"""Least share of computing in the power [%]."""
OPERATIONS = ("compute_j", "memory_j", "links_j")
ALL = (*OPERATIONS, "idle_j", "overhead_j")
READINGS = {"idle power on": ALL, "operations only": OPERATIONS}
PARTS = {"compute": "compute_j", "HBM": "memory_j", "D2D": "links_j", "idle": "idle_j",
         "overhead": "overhead_j"}  # fmt: skip
COLUMNS = ("model", "system", "power_w", "compute_w", "hbm_w", "d2d_w", "idle_w", "overhead_w",
           "tokens_per_j", "operations_w", "operations_tokens_per_j")  # fmt: skip
SAVED_COLUMNS = ("system", "reading", "power_percent", "time_percent", "energy_percent",
                 *(f"{label.lower()}_points" for label in PARTS))  # fmt: skip
Table14 = Mapping[str, Mapping[str, BestOfRecipe]]
"""Entries by case and system."""


POWER_CHART = Drawing(
    "What does the power of each plan go into?",
    "Mean power of a wafer of 32 dies over a step; TEMP Fig. 14",
    "stack", ("compute_w", "hbm_w", "d2d_w", "idle_w", "overhead_w"), "system", panels="model",
    measure="power",
)  # fmt: skip
SAVED_CHART = Drawing(
    "What of time, power and energy does TEMP need beside other systems?",
    "TEMP over each system, in percent, mean over models; with idle power, and for operations only",
    "dots", ("time_percent", "power_percent", "energy_percent"), "system", panels="reading",
    across=2, measure="TEMP over the other", limit=(100.0, "equal"),
)  # fmt: skip


def power_w(entry: BestOfRecipe, parts: Sequence[str] = ALL) -> float | None:
    """Return the mean power of a step, or of some of its parts [W]."""
    if entry.best is None or entry.best.estimate.energy_j is None:
        return None
    return _energy_j(entry.best.estimate, parts) / entry.best.estimate.step_time_s


def tokens_per_j(entry: BestOfRecipe, parts: Sequence[str] = ALL) -> float | None:
    """Return the tokens for each joule."""
    watts = power_w(entry, parts)
    return None if watts is None or entry.best is None else entry.best.estimate.tokens_per_s / watts


def _energy_j(price: Estimate, parts: Sequence[str]) -> float:
    return sum(price.energy_parts_j.get(name, 0.0) for name in parts)


@dataclass(frozen=True)
class Ratios:
    """TEMP over one baseline, means over the models that both can train [%]."""

    power: float
    energy: float
    """Energy for each token."""
    time: float
    energy_points: Mapping[str, float]
    """Change of each part over the baseline's whole energy."""
    link_power_points: float
    link_shares: tuple[float, float]
    """Shares of links in the power of TEMP, and in that of the baseline."""
    gains: tuple[float, ...]
    """Tokens for each joule over those of the baseline, model by model [1]."""


def ratios(found: Table14, name: str, parts: Sequence[str]) -> Ratios | None:
    """Return TEMP over a baseline; None where no model has plans of both."""
    pairs = [
        (ours.best.estimate, theirs.best.estimate)
        for entries in found.values()
        if (ours := entries[OURS]).best and (theirs := entries[name]).best
    ]
    if not pairs:
        return None

    def mean(values: Iterator[float]) -> float:
        return 100.0 * sum(values) / len(pairs)

    def power(price: Estimate, of: Sequence[str] = parts) -> float:
        return _energy_j(price, of) / price.step_time_s

    def energy(price: Estimate, of: Sequence[str] = parts) -> float:
        return _energy_j(price, of)

    return Ratios(
        power=mean(power(a) / power(b) for a, b in pairs),
        energy=mean(energy(a) / energy(b) for a, b in pairs),
        time=mean(a.step_time_s / b.step_time_s for a, b in pairs),
        energy_points={
            label: mean((energy(a, (part,)) - energy(b, (part,))) / energy(b) for a, b in pairs)
            for label, part in PARTS.items()
            if part in parts
        },
        link_power_points=mean(
            (power(a, ("links_j",)) - power(b, ("links_j",))) / power(b) for a, b in pairs
        ),
        link_shares=(
            mean(energy(a, ("links_j",)) / energy(a) for a, _ in pairs),
            mean(energy(b, ("links_j",)) / energy(b) for _, b in pairs),
        ),
        gains=tuple(energy(b) / energy(a) for a, b in pairs),
    )


def _why(found: Ratios, published: float) -> str:
    """Return the energy saved by part, and the condition of the published power, in words."""
    saved = ", ".join(f"{name} {points:+.1f}" for name, points in found.energy_points.items())
    needed = published / PUBLISHED_SPEEDUP
    return (
        f"power is energy over time: a token takes {found.energy:.1f} % of the energy (points by "
        f"part: {saved}) in {found.time:.1f} % of the time; {published} % of the power at "
        f"{PUBLISHED_SPEEDUP}x the speed would be {needed:.0f} % of the energy for the same FLOPs"
    )


def _why_links(found: Ratios, points: float) -> str:
    """Return the shares of power that links draw in both plans, in words."""
    ours, theirs = found.link_shares
    return (
        f"power can fall by {points:g} points only where links draw as much: they draw "
        f"{theirs:.1f} % of the baseline's power and {ours:.1f} % of TEMP's, whose streams move "
        "their sub-tensors for every micro-batch, in a shorter step"
    )


def _power_claims(found: Table14, reading: str) -> Iterator[Claim]:
    """Yield total power, power of links and tokens per joule over the baselines."""
    known = {name: ratios(found, name, READINGS[reading]) for name in PUBLISHED_POWER}
    for name, published in PUBLISHED_POWER.items():
        over = known[name]
        yield Claim(
            "Fig. 14", f"total power over {name}, {reading}", f"{published} %", "seed",
            f"{shown(over.power if over else None)} %",
            judged_gain(over.power if over else None, published, 100.0),
            _why(over, published) if over else "the baseline fits no model here",
        )  # fmt: skip
    for name, points in PUBLISHED_POINTS.items():
        over, ours = known[name], None
        if over:
            ours = -over.link_power_points
        yield Claim(
            "Fig. 14", f"power of communication below {name}, {reading}", f"{points:g} points",
            "seed", f"{shown(ours)} points", judged_gain(ours, points, 0.0),
            _why_links(over, points) if over else "the baseline fits no model here",
        )  # fmt: skip
    gains = [gain for over in known.values() if over for gain in over.gains]
    low, high = min(gains, default=0.0), max(gains, default=0.0)
    yield Claim(
        "Fig. 14", f"tokens for each joule over the baselines, {reading}",
        "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", f"{low:.2f} to {high:.2f}x",
        judged_range(low, high, PUBLISHED_GAIN),
        "the FLOPs of a token are the same, so only recomputation, traffic and waiting are saved: "
        "the highest gains are over plans that recompute everything",
    )  # fmt: skip


def _compute_claim(found: Table14, reading: str) -> Claim:
    """Return the share of computing in the power of TEMP, over the models."""
    parts = READINGS[reading]
    shares = [
        100.0 * _energy_j(entry.best.estimate, ("compute_j",))
        / _energy_j(entry.best.estimate, parts)
        for entries in found.values()
        if (entry := entries[OURS]).best
    ]  # fmt: skip
    low, high = min(shares, default=0.0), max(shares, default=0.0)
    return Claim(
        "Fig. 14", f"share of computing in the power, {reading}", f"over {PUBLISHED_COMPUTE:.0f} %",
        "seed", f"{low:.1f} % to {high:.1f} %",
        Verdict.AGREES if low > PUBLISHED_COMPUTE else Verdict.DIFFERS,
        "counted operations at 2 TFLOP/s per watt",
    )  # fmt: skip


def _rows(found: Table14) -> Iterator[tuple[object, ...]]:
    """Yield the power of each plan, part by part."""
    for case, entries in found.items():
        for name, entry in entries.items():
            parts = [power_w(entry, (part,)) for part in PARTS.values()]
            yield (
                case, name, power_w(entry), *parts, tokens_per_j(entry),
                power_w(entry, OPERATIONS), tokens_per_j(entry, OPERATIONS),
            )  # fmt: skip


def _saved_rows(found: Table14) -> Iterator[tuple[object, ...]]:
    """Yield the savings of TEMP over each baseline and honest alternative, by part."""
    for reading, parts in READINGS.items():
        for name in next(iter(found.values())):
            over = ratios(found, name, parts)
            if over is not None and name != OURS:
                points = [over.energy_points.get(label) for label in PARTS]
                yield (name, reading, over.power, over.time, over.energy, *points)


def _lines(rows: Sequence[tuple[object, ...]], claims: Sequence[Claim]) -> Iterator[str]:
    yield (
        f"{'model':<12} {'system':<17} {'kW':>6} {'compute':>8} {'HBM':>6} {'D2D':>6} {'idle':>6} "
        f"{'other':>6} {'tokens/J':>9}"
    )
    for row in rows:
        model, name, total, *rest = row
        if isinstance(total, float):
            watts = [value / total if isinstance(value, float) else 0.0 for value in rest[:5]]
            shares = " ".join(f"{share:>6.1%}" for share in watts[1:])
            head = f"{model:<12} {name:<17} {total / 1e3:>6.2f} {watts[0]:>8.1%}"
            yield f"{head} {shares} {rest[5]:>9.2f}"
    yield ""
    yield from claim_lines(claims)


@studies.register("temp-power")
class Power:
    """Energy by counted operations, bytes and hops, with and without idle power."""

    title = "TEMP Fig. 14: power and tokens for each joule"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Divide energies by times of the comparisons, part by part."""
        found = {case: entries_of(compared(case, (*BASELINES, *HONEST))) for case in CASES}
        rows, saved = tuple(_rows(found)), tuple(_saved_rows(found))
        claims = [claim for reading in READINGS for claim in _power_claims(found, reading)]
        claims += [_compute_claim(found, reading) for reading in READINGS]
        return StudyResult(
            machine=wafer(),
            lines=tuple(_lines(rows, claims)),
            data={
                "rows": records(COLUMNS, rows),
                "saved": records(SAVED_COLUMNS, saved),
            },
            tables=(
                Table("fig14", COLUMNS, rows, POWER_CHART),
                Table("fig14-saved", SAVED_COLUMNS, saved, SAVED_CHART),
            ),
            claims=tuple(claims),
            assumptions=ASSUMPTIONS
            + "; Table I energies, every link pays; idle power of a die and overhead on, and off",
        )
