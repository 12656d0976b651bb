"""Fig. 14: power and energy efficiency of TEMP and six baselines."""

from __future__ import annotations

from meshwright.plans.comparison import Entry
from meshwright.studies.claims import Claim, Table, claim_lines, judged_gain, judged_range, shown
from meshwright.studies.registry import StudyResult, studies
from meshwright.studies.temp.cases import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    HONEST,
    OURS,
    SOURCE,
    compared,
    entries_of,
)

PUBLISHED_POWER = {
    "megatron-1 smap": 88.6, "megatron-1 gmap": 94.5, "megatron-3 smap": 94.6,
    "megatron-3 gmap": 98.6, "fsdp smap": 94.4, "fsdp gmap": 97.6,
}  # fmt: skip
"""Total power of TEMP over that of the baseline [%]."""
PUBLISHED_GAIN = (1.2, 1.85)
WHY = (
    "operations cost the same energy in every plan, so a faster plan draws more power; less power "
    "and a speedup together would need about half of the energy for the same operations, of which "
    "computing alone is more than half"
)


def power_w(entry: Entry) -> float | None:
    """Return the mean power of a step [W]."""
    if entry.best is None or entry.best.estimate.energy_j is None:
        return None
    return entry.best.estimate.energy_j / entry.best.estimate.step_time_s


def tokens_per_j(entry: Entry) -> float | None:
    """Return the tokens for each joule."""
    watts = power_w(entry)
    return None if watts is None or entry.best is None else entry.best.estimate.tokens_per_s / watts


@studies.register("temp-power")
class Power:
    """Energy by counted operations, bytes and hops, and idle power."""

    title = "TEMP Fig. 14: power and tokens for each joule"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Divide energies by times of the comparisons."""
        found = {case: entries_of(compared(case, (*BASELINES, *HONEST))) for case in CASES}
        names = ("model", "system", "power_w", "tokens_per_j", "power_of_temp", "gain_of_temp")
        rows = []
        for case, entries in found.items():
            for name, entry in entries.items():
                watts, tokens = power_w(entry), tokens_per_j(entry)
                ours_w, ours = power_w(entries[OURS]), tokens_per_j(entries[OURS])
                share = ours_w / watts if watts and ours_w else None
                rows.append((case, name, watts, tokens, share, ours / tokens if tokens and ours
                             else None))  # fmt: skip
        claims = []
        for name, published in PUBLISHED_POWER.items():
            shares = [row[4] for row in rows if row[1] == name and row[4]]
            mean = 100.0 * sum(shares) / len(shares) if shares else None
            verdict = judged_gain(mean, published, 100.0)
            claims.append(
                Claim("Fig. 14", f"total power over {name}", f"{published} %", "seed",
                      f"{shown(mean)} %", verdict, WHY)
            )  # fmt: skip
        gains = [row[5] for row in rows if row[1] in PUBLISHED_POWER and row[5]]
        low, high = min(gains), max(gains)
        claims.append(
            Claim("Fig. 14", "tokens for each joule over the baselines",
                  "{} to {}x".format(*PUBLISHED_GAIN), "second-hand", f"{low:.2f} to {high:.2f}x",
                  judged_range(low, high, PUBLISHED_GAIN),
                  "a baseline that recomputes nothing and waits little is nearly as efficient")
        )  # fmt: skip
        lines = [f"{'model':<12} {'system':<17} {'kW':>7} {'tokens/J':>9} {'gain':>6}"]
        lines += [
            f"{row[0]:<12} {row[1]:<17} {row[2] / 1e3:>7.2f} {row[3]:>9.2f} {row[5]:>6.2f}"
            for row in rows
            if row[2] and row[3] and row[5]
        ]
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig14", names, tuple(rows), ("model", "system"), "tokens_per_j"),),
            claims=tuple(claims),
            assumptions=ASSUMPTIONS + "; Table I energies, idle power of a die on",
        )
