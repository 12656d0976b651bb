"""Fig. 15: a wafer and a GPU cluster of equal peak."""

from __future__ import annotations

from functools import cache

from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.catalog.systems import load_system
from meshwright.spec.system import SystemSpec
from meshwright.train.answer import BestOfRecipe
from meshwright.train.question import training
from meshwright.wafer.training import compare
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged_gain,
    records,
    shown,
    studies,
)
from meshwright_papers.studies.temp.setup import (
    CASES,
    OURS,
    SOURCE,
    entries_of,
    model_of,
    wafer,
    with_memory_rate,
)

PEAK_FLOPS_PER_S = 312e12
"""Peak of one die, as of an A100; the die of Table I has 1.8e15 [FLOP/s]."""
CLUSTER = "32xA100"
SYSTEMS = ("GPU megatron-3", "wafer megatron-3", "wafer temp")
PUBLISHED_OVER_GPU = 1.16
PUBLISHED_SLOWER = 1.08


CHART = Drawing(
    "Is a wafer faster than GPUs of equal peak?",
    "Step on the wafer over that of Megatron-3 on 32 A100; TEMP Fig. 15",
    "dots", ("wafer_megatron-3_s", "wafer_temp_s"), "model", over="gpu_megatron-3_s",
    measure="step, over that on GPUs",
)  # fmt: skip


def slow_wafer(hbm_bytes_per_s: float | None = None) -> SystemSpec:
    """Return the wafer with dies of the peak of an A100, if asked with another main memory."""
    system = wafer()
    rates = {**system.chip.matmul_flops_per_s, "bf16": PEAK_FLOPS_PER_S}
    chip = system.chip.model_copy(update={"matmul_flops_per_s": rates})
    return system.model_copy(update={"chip": with_memory_rate(chip, hbm_bytes_per_s)})


def step_times(case: str) -> tuple[float | None, ...]:
    """Return the step times of a case on the cluster and on the wafer [s]."""
    return (gpu_step_s(case), *wafer_steps_s(case))


@cache
def gpu_step_s(case: str) -> float | None:
    """Return the step time of Megatron-3 on the cluster [s]."""
    return _compared(case, load_system(CLUSTER), ("megatron-3",))[0]


@cache
def wafer_steps_s(
    case: str, hbm_bytes_per_s: float | None = None
) -> tuple[float | None, float | None]:
    """Return the step times of Megatron-3 and of streams on the wafer [s]."""
    theirs, ours = _compared(case, slow_wafer(hbm_bytes_per_s), ("megatron-3", OURS))
    return theirs, ours


def _compared(case: str, system: SystemSpec, names: tuple[str, ...]) -> list[float | None]:
    """Return the step times of recipes on a system, with the same state on all of them [s]."""
    asked = CASES[case]
    optimizer = training(wafer(), sequence_length=1, global_batch_size=1).optimizer
    work = training(
        system,
        sequence_length=asked.sequence_length,
        global_batch_size=asked.global_batch_size,
        optimizer=optimizer,
    )
    found = compare(
        model_of(asked),
        system,
        work,
        ours=names[0],
        against=names,
        calibration=UNCALIBRATED,
        prefers_simple=False,
    )
    entries = entries_of(found)
    return [_fastest(entries, name) for name in names]


def _fastest(entries: dict[str, BestOfRecipe], name: str) -> float | None:
    """Return the step time of a recipe, by whichever mapper it is fastest [s]."""
    times = [
        entry.best.estimate.step_time_s
        for key, entry in entries.items()
        if key.split()[0] == name and entry.best is not None
    ]
    return min(times, default=None)


def mean_ratio(rows: list[tuple[float | None, ...]], over: int, under: int) -> float | None:
    """Return the mean over models of one step time over another."""
    known = [(row[over], row[under]) for row in rows]
    ratios = [a / b for a, b in known if a and b]
    return sum(ratios) / len(ratios) if ratios else None


@studies.register("temp-gpus")
class Gpus:
    """Dies of 312 TFLOP/s on a wafer against the same number of A100."""

    title = "TEMP Fig. 15: a wafer and a GPU cluster of equal peak"
    source = SOURCE

    @staticmethod
    def run() -> StudyResult:
        """Search Megatron-3 on both and streams on the wafer."""
        times = {case: step_times(case) for case in CASES}
        rows = list(times.values())
        over_gpu, slower = mean_ratio(rows, 0, 2), mean_ratio(rows, 1, 0)
        gpu, die = load_system(CLUSTER).chip.main_memory, wafer().chip.main_memory
        faster = (gpu.bandwidth_bytes_per_s or 0.0) / (die.bandwidth_bytes_per_s or 1.0)
        why = (
            f"a GPU reads its memory {faster:.1f} times as fast as a die of Table I, and the "
            "GPU plans keep tp inside a host; what the wafer wins by its links it loses by its "
            "memory: see temp-settings-gpus"
        )
        claims = (
            Claim("Fig. 15", "wafer with TEMP over GPUs with Megatron-3",
                  f"{PUBLISHED_OVER_GPU}x", "second-hand", f"{shown(over_gpu)}x",
                  judged_gain(over_gpu, PUBLISHED_OVER_GPU), why),
            Claim("Fig. 15", "wafer with Megatron-3 slower than GPUs with it, some models",
                  f"{PUBLISHED_SLOWER}x", "second-hand", f"{shown(slower)}x on average",
                  judged_gain(slower, PUBLISHED_SLOWER), why),
            Claim("Fig. 15", "wafer with TEMP over wafer with Megatron-3", "", "missing",
                  f"{shown(mean_ratio(rows, 1, 2))}x", Verdict.NOT_PUBLISHED, ""),
        )  # fmt: skip
        names = ("model", *(name.lower().replace(" ", "_") + "_s" for name in SYSTEMS))
        table_rows = tuple((case, *found) for case, found in times.items())
        lines = [f"{'step time [s]':<14}" + "".join(f"{name:>18}" for name in SYSTEMS)]
        for case, found in times.items():
            cells = (shown(value) or "-" for value in found)
            lines.append(f"{case:<14}" + "".join(f"{cell:>18}" for cell in cells))
        lines += ["", *claim_lines(claims)]
        return StudyResult(
            machine=wafer(),
            lines=tuple(lines),
            data={"rows": records(names, table_rows)},
            tables=(Table("fig15", names, table_rows, CHART),),
            claims=claims,
            assumptions="dies of 312 TFLOP/s with the links and memory of Table I; 32 A100 of the "
            "catalog; 12 bytes of state a parameter on both; uncalibrated",
        )
