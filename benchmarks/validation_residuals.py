"""Where the errors of the published rows lie: by what they have in common, and by part of a step.

    python benchmarks/validation_residuals.py [CALIBRATION] [SOURCE]

Prints median, 90th percentile and bias of ln(predicted / measured) for rows alike: chip, precision,
experts, length of sequences, size of micro-batches, and the largest part of the step after
computation. With a SOURCE its rows follow, worst first.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import published

COMPUTATION = ("compute_s", "recompute_s")
SMALL = 0.03
"""Share of the step below which no part is named."""


def largest_part(entry: Prediction) -> str:
    """Return the part of the step that is the largest after computation."""
    parts = {name: time for name, time in entry.parts_s.items() if name not in COMPUTATION}
    name = max(parts, key=parts.get)
    return name if parts[name] > SMALL * sum(entry.parts_s.values()) else "computation alone"


def _tokens(entry: Prediction) -> str:
    """Return the size of a micro-batch on one rank."""
    work, s = entry.job.problem.workload, entry.job.strategy
    tokens = s.micro_batch_size * work.sequence_length / s.cp
    return next(f"up to {limit}" for limit in (2048, 8192, 32768, 10**9) if tokens <= limit)


KINDS: dict[str, Callable[[Prediction], str]] = {
    "source": lambda e: e.row.group,
    "chip": lambda e: e.job.problem.system.chip.name,
    "precision": lambda e: e.job.problem.workload.precision.matmul,
    "experts": lambda e: "experts" if e.job.problem.num_experts else "dense",
    "sequence": lambda e: f"{e.job.problem.workload.sequence_length:>6}",
    "tokens of a micro-batch": _tokens,
    "tp": lambda e: f"tp {e.job.strategy.tp:.0f}",
    "pp": lambda e: f"pp {e.job.strategy.pp:>3.0f}",
    "largest part": largest_part,
}


def print_kind(name: str, of: Callable[[Prediction], str], rows: Iterable[Prediction]) -> None:
    """Print the errors of rows alike."""
    found: dict[str, list[float]] = defaultdict(list)
    for entry in rows:
        found[of(entry)].append(entry.log_error)
    print(f"\n{name:<28}{'rows':>6}{'median':>9}{'p90':>8}{'bias':>8}")
    for key in sorted(found):
        errors = np.array(found[key])
        size = np.abs(errors)
        print(
            f"  {key:<26}{len(errors):>6}{np.median(size):>9.1%}{np.quantile(size, 0.9):>8.1%}"
            f"{np.median(errors):>+8.1%}"
        )


def main(calibration: str = "calibrated", source: str = "") -> None:
    """Print all tables, and the rows of one source."""
    rows = [e for e in predict(published("training"), calibration) if e.log_error is not None]
    for name, of in KINDS.items():
        print_kind(name, of, rows)
    for entry in sorted(rows, key=lambda e: -abs(e.log_error)):
        if entry.row.group == source:
            s, total = entry.job.strategy, sum(entry.parts_s.values())
            shares = " ".join(
                f"{name.removesuffix('_s')}={time / total:.0%}"
                for name, time in entry.parts_s.items()
                if time > SMALL * total
            )
            degrees = f"tp{s.tp:.0f} pp{s.pp:.0f} dp{s.dp:.0f} mbs{s.micro_batch_size:.0f}"
            print(f"{entry.log_error:+.1%}  {entry.row.id:<24} {degrees:<26} {shares}")


if __name__ == "__main__":
    main(*sys.argv[1:])
