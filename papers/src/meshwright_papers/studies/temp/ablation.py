"""Fig. 16: what streams bring, and what placement and routing bring on top."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from meshwright_papers.studies.claims import Claim, Table, Verdict, claim_lines, judged_gain, shown
from meshwright_papers.studies.registry import StudyResult, studies
from meshwright_papers.studies.temp.cases import (
    ASSUMPTIONS,
    BASELINES,
    CASES,
    HONEST,
    OURS,
    SOURCE,
    compared,
    entries_of,
)
from meshwright_papers.studies.temp.throughput import step_s

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
        claims = (
            *(
                _claim(what, published, [row[4 + number] for row in rows])
                for number, (what, _, _, published) in enumerate(STEPS)
            ),
            *_trend_claims(rows),
        )
        lines = [f"{'model':<14}" + "".join(f"{name:>16}" for name in names[1:])]
        for row in rows:
            cells = (shown(value) or "-" for value in row[1:])
            lines.append(f"{row[0]:<14}" + "".join(f"{cell:>16}" for cell in cells))
        lines += [
            "",
            *claim_lines(claims),
        ]
        return StudyResult(
            lines=tuple(lines),
            data={"rows": [dict(zip(names, row, strict=True)) for row in rows]},
            tables=(Table("fig16", names, tuple(rows), ("model",), "gain_streams"),),
            claims=claims,
            assumptions=ASSUMPTIONS,
        )


def mean_gain(gains: list[float | None]) -> float | None:
    """Return the geometric mean of the gains that are known."""
    known = [value for value in gains if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _claim(what: str, published: float, gains: list[float | None]) -> Claim:
    """Return the mean gain of a step beside the published one."""
    mean = mean_gain(gains)
    return Claim(
        "Fig. 16", f"mean gain of {what}", f"{published}x", "seed", f"{shown(mean)}x",
        judged_gain(mean, published), WHY[what],
    )  # fmt: skip


def _trend_claims(rows: list[tuple[Any, ...]]) -> Iterator[Claim]:
    """Yield what the paper says of the gains beside each other, by model size, and of FSDP."""
    for number, (what, _, _, _) in enumerate(STEPS):
        gains = [row[4 + number] for row in rows if row[4 + number]]
        half = len(gains) // 2
        grows = bool(half) and sum(gains[half:]) / len(gains[half:]) > sum(gains[:half]) / half
        yield Claim(
            "Fig. 16", f"gain of {what} grows with the model", "grows", "seed",
            ", ".join(map(shown, gains)), Verdict.AGREES if grows else Verdict.DIFFERS,
            "the largest models leave less memory to choose from",
        )  # fmt: skip
    streams, placed = (mean_gain([row[4 + number] for row in rows]) for number in (0, 1))
    yield Claim(
        "Fig. 16", "tensor streams bring more than placement and routing", "yes", "seed",
        f"{shown(streams)}x against {shown(placed)}x",
        Verdict.AGREES if streams and placed and streams > placed else Verdict.DIFFERS,
        "nothing is left for streams to bring",
    )  # fmt: skip
    lacking = [row[0] for row in rows if row[1] is None]
    yield Claim(
        "Fig. 16", "models that FSDP in device order trains", "all", "seed",
        f"all but {', '.join(lacking)}" if lacking else "all",
        Verdict.DIFFERS if lacking else Verdict.AGREES,
        "12 bytes a parameter over 32 dies, whole layers as they are gathered, buffers and a "
        "margin exceed the 72 GB of a die",
    )  # fmt: skip
