"""From priced columns to the estimate of one candidate: derived figures, worst stage, parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import Num
from meshwright.cost.device import stated_rate
from meshwright.cost.memory import MEMORY_PARTS, fullest
from meshwright.cost.pipeline import TIME_PARTS
from meshwright.cost.problem import Problem
from meshwright.cost.stage import POSITIONS
from meshwright.cost.step import Priced
from meshwright.graph.flops import ScoreCount, StepFlops, step_flops


@dataclass(frozen=True)
class Figures:
    """What is known of one priced row, as plain numbers."""

    time_parts_s: dict[str, float]
    step_time_s: float
    memory_parts_bytes: dict[str, float]
    memory_bytes: float
    fullest_stage: str
    host_bytes: float
    num_micro_batches: int
    num_devices: int
    tokens_per_s: float
    mfu_causal: float
    mfu_full: float
    hfu: float
    energy_j: float | None
    energy_parts_j: dict[str, float]
    cost_usd: float | None

    @property
    def power_w(self) -> float | None:
        """Mean power of a step, of all devices in use with the overhead [W]."""
        return None if self.energy_j is None else self.energy_j / self.step_time_s

    @property
    def tokens_per_j(self) -> float | None:
        """Throughput for each watt."""
        return self.tokens_per_s / self.power_w if self.power_w else None


def figures(problem: Problem, priced: Priced, index: int = 0) -> Figures:
    """Return the figures of one row."""
    step = priced.step
    use, stage = fullest(step.memory)
    total_s = _at(step.time.total_s, index)
    num_devices = int(_at(step.num_devices, index))
    work = problem.workload
    definitions = utilizations(problem, priced.structure.recompute, total_s, num_devices)
    return Figures(
        time_parts_s={name: _at(getattr(step.time, name), index) for name in TIME_PARTS},
        step_time_s=total_s,
        memory_parts_bytes={name: _at(getattr(use, name), index) for name in MEMORY_PARTS},
        memory_bytes=_at(use.total_bytes, index),
        fullest_stage=POSITIONS[int(_at(stage, index))],
        host_bytes=_at(step.host_bytes, index),
        num_micro_batches=int(_at(priced.pipeline.pipeline.num_micro_batches, index)),
        num_devices=num_devices,
        tokens_per_s=work.tokens_per_step / total_s,
        mfu_causal=definitions[0],
        mfu_full=definitions[1],
        hfu=definitions[2],
        energy_j=_known(_at(step.energy_j, index)),
        energy_parts_j={name: _at(part, index) for name, part in step.energy_parts_j.items()},
        cost_usd=_known(_at(step.cost_usd, index)),
    )


def utilizations(
    problem: Problem, recompute: str, step_s: float, num_devices: int
) -> tuple[float, float, float]:
    """Return MFU with causal scores, MFU with full scores, and HFU, over the dense peak.

    The peak is that of the type of the linear layers.
    """
    work = problem.workload
    peak = stated_rate(problem.system.chip, work.precision.matmul) * num_devices * step_s

    def flops(count: ScoreCount) -> StepFlops:
        return step_flops(
            problem.graph,
            num_tokens=float(work.tokens_per_step),
            sequence_length=float(work.sequence_length),
            count=count,
            recompute=str(recompute),
        )

    causal, full = flops(ScoreCount.CAUSAL), flops(ScoreCount.FULL)
    return float(causal.model / peak), float(full.model / peak), float(causal.hardware / peak)


def _at(column: Num, index: int) -> float:
    """Return one entry of a column; a number stands for all its rows."""
    values = np.asarray(column, dtype=float).reshape(-1)
    return float(values[index if len(values) > 1 else 0])


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
