"""Fig. 16: what streams bring, and what placement and routing bring on top."""

from __future__ import annotations

import math
from typing import Any

from meshwright.studies.claims import Claim, Table, judged_gain, shown
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
from meshwright.studies.temp.throughput import step_s

STEPS = (
    ("tensor streams", "fsdp smap", f"{OURS} smap", 1.21),
    ("placement and routing", f"{OURS} smap", OURS, 1.14),
)
"""What is added, from which system to which, and the published mean gain."""
WHY = {
    "tensor streams": "the gain is that of the best plan with streams over the best fully sharded "
    "one; part of it comes from micro-batches and tp that the paper's step may not change",
    "placement and routing": "plans placed in the order of device numbers are searched too: the "
    "search finds degrees whose rows are blocks, so little is left for placement to mend",
}


def gain(before: float | None, after: float | None) -> float | None:
    """Return how much faster the second is; None where either has no plan."""
    return before / after if before and after else None


@studies.register("temp-ablation")
class Ablation:
    """FSDP in device order, then streams, then placement and routing that see shared links."""

    title = "TEMP Fig. 16: what streams and what placement bring"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Divide the step times of the comparisons."""
        rows: list[tuple[Any, ...]] = []
        for case in CASES:
            entries = entries_of(compared(case, (*BASELINES, *HONEST)))
            times = [step_s(entries[name]) for name in ("fsdp smap", f"{OURS} smap", OURS)]
            gains = [gain(step_s(entries[a]), step_s(entries[b])) for _, a, b, _ in STEPS]
            rows.append((case, *times, *gains))
        names = ("model", "fsdp_smap_s", "streams_smap_s", "temp_s", "gain_streams", "gain_placed")
        claims = tuple(
            _claim(what, published, [row[4 + number] for row in rows])
            for number, (what, _, _, published) in enumerate(STEPS)
        )
        lines = [f"{'model':<14}" + "".join(f"{name:>16}" for name in names[1:])]
        for row in rows:
            cells = (shown(value) or "-" for value in row[1:])
            lines.append(f"{row[0]:<14}" + "".join(f"{cell:>16}" for cell in cells))
        lines += [
            "",
            *(f"{c.verdict:<10} {c.what}: {c.ours} (published {c.published})" for c in claims),
        ]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig16", names, tuple(rows), ("model",), "gain_streams"),),
            claims=claims,
            assumptions=ASSUMPTIONS,
        )


def _claim(what: str, published: float, gains: list[float | None]) -> Claim:
    """Return the mean gain of a step beside the published one."""
    known = [value for value in gains if value]
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else None
    return Claim(
        "Fig. 16", f"mean gain of {what}", f"{published}x", "seed", f"{shown(mean)}x",
        judged_gain(mean, published), WHY[what],
    )  # fmt: skip
