"""Predicted and measured times of the parts of a step.

Layers wait for each collective, so the recorder attributes its time to its axis; FSDP waits on CPUs
as layers do. The rest of the passes is computation: that of the slowest process, because a
collective lasts as long as for its last member. Collectives that overlap the computation (FSDP's on
GPUs or with replicas, sends between pipeline stages) are compared together with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from meshwright.cost.parts import TimePart
from meshwright.run.answer import PartTime
from meshwright.run.scale import Job
from meshwright.train.answer import Estimate

PASSES, SUMS, UPDATE = ("forward_s", "backward_s", "pipeline_s"), "gradient_sums_s", "optimizer_s"
"""Parts that a process measures with a clock."""
SLOWEST = "slowest"
"""In place of an axis: the wait for the slowest process, in collectives over any axis."""
AXES = {part.value: part.axis for part in TimePart}
Measured = Mapping[tuple[str, str], float]
"""Seconds of a step by part, and by part and axis those of them in collectives."""


def medians(steps: list[Measured]) -> dict[tuple[str, str], float]:
    """Return the median of each part over some steps; an absent part took no time [s]."""
    keys = dict.fromkeys(key for step in steps for key in step)
    return {key: median(step.get(key, 0.0) for step in steps) for key in keys}


def interval_of(price: Estimate) -> tuple[float, float]:
    """Return the 80 % interval of a step; without one, the predicted time twice [s]."""
    return price.interval_s or (price.step_time_s, price.step_time_s)


def part_times(price: Estimate, job: Job, measured: Measured) -> tuple[PartTime, ...]:
    """Return the predicted time of each part with its interval, and its measured time.

    The interval of a part is that of the step, scaled: a part of 0.1 s in a step of 1.0 s (0.8 s to
    1.3 s) has 0.08 s to 0.13 s.
    """
    low, high = (end / price.step_time_s for end in interval_of(price))
    waits: dict[str, float] = {}
    for (part, axis), wait_s in measured.items():
        if axis not in ("", SLOWEST) and part in PASSES and wait_s > 0.0:
            row = "dp" if "dp" in axis else axis.split("*")[0]
            waits[row] = waits.get(row, 0.0) + wait_s
    strategy, zero = job.strategy, job.plan_options.zero_stage
    has_fsdp = zero > 0 and strategy.dp_shard * strategy.cp > 1
    is_mixed = has_fsdp and ("dp" not in waits or strategy.dp_replicate > 1)
    inside = {"pp", "dp"} if is_mixed else {"pp"}
    passes_s = sum(measured.get((part, ""), 0.0) for part in PASSES)
    late_s = measured.get((SUMS, SLOWEST), 0.0)
    passes_s, sums_s = passes_s + late_s, measured.get((SUMS, ""), 0.0) - late_s
    priced: dict[str, float] = {}
    for name, part_s in price.time_parts_s.items():
        own = AXES[name]
        row = own if own and own not in inside else "computation"
        row = "optimizer" if name == TimePart.OPTIMIZER else row
        priced[row] = priced.get(row, 0.0) + part_s
    if is_mixed:
        waits.pop("dp", None)
        passes_s, sums_s = passes_s + sums_s, 0.0
    found = {"computation": passes_s - sum(waits.values()), **waits}
    found |= {"dp": found.get("dp", 0.0) + sums_s, "optimizer": measured.get((UPDATE, ""), 0.0)}
    passes = "computation" + " + pipeline" * (strategy.pp > 1) + " + FSDP" * is_mixed
    names = {"computation": passes, "optimizer": "optimizer"}
    return tuple(
        PartTime(names.get(row, f"collectives of {row}"), part_s, part_s * low, part_s * high,
                 found.get(row, 0.0))
        for row in dict.fromkeys((*priced, *found))
        if (part_s := priced.get(row, 0.0)) > 0.0 or found.get(row, 0.0) > 0.0
    )  # fmt: skip
