"""Dry run of a plan: one rank of each kind of stage, compared with the formulas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch

from meshwright.base.errors import UnsupportedError
from meshwright.base.units import format_bytes
from meshwright.frameworks.launch import degrees
from meshwright.run.answer import rows_of
from meshwright.run.dry.accelerate import AccelerateProgram
from meshwright.run.dry.answer import CategoryMemory, DryRun, RanStage
from meshwright.run.dry.expected import expected_bytes, expected_messages
from meshwright.run.dry.megatron import MegatronProgram
from meshwright.run.dry.program import RankProgram, chunks_of
from meshwright.run.dry.refusals import ON_PYTORCH, check_dry
from meshwright.run.dry.shortened import run_shortened
from meshwright.run.dry.torchtitan import TorchtitanProgram
from meshwright.run.moments import Category, Ran
from meshwright.train.answer import Plan

Progress = Callable[[int, int], None]


def dry_run(plan: Plan, progress: Callable[[str, str], Progress | None] | None = None) -> DryRun:
    """Run a whole step of a plan dry, for the first, the second and the last pipeline stage.

    Raises
    ------
    UnsupportedError
        No PyTorch program expresses parts of the plan; the message names all of them.
    """
    check_dry(plan)
    stages = stages_of(degrees(plan)["pp"])
    told = None if progress is None else progress("stages", plan.best.text)
    ran = []
    for done, stage in enumerate(stages):
        if told is not None:
            told(done, len(stages))
        ran.append(run_stage(plan, stage))
    return DryRun(
        plan=plan.best.text,
        model=plan.model.name,
        framework=plan.workload.software.framework,
        program=title_of(program_of(plan)),
        num_ranks=int(plan.best.strategy.num_devices),
        capacity_bytes=plan.system.chip.main_memory.capacity_bytes,
        stages=tuple(ran),
        notes=tuple(_notes(plan)),
    )


_NOTE = (
    "tensors only: workspaces of libraries, communicators and fragmentation of the allocator come "
    "on top"
)


def _notes(plan: Plan) -> Iterator[str]:
    """Yield what the numbers leave out, and known differences between both sides."""
    yield _NOTE
    if (found := program_of(plan)).note:
        yield found.note
    if as_run(plan) is not plan:
        yield ("the program ran without torch.compile, and its formulas beside it too: the plan is "
               f"priced compiled, at {format_bytes(_tensor_bytes(plan))} of tensors")  # fmt: skip


def as_run(plan: Plan) -> Plan:
    """Return a plan of the program that runs here, which ``torch.compile`` leaves as it is."""
    software = plan.workload.software
    eager: dict[str, object] = {"loss": "plain"} if software.loss == "compiled" else {}
    if software.compiled:
        eager |= {"compiled": False, "eager": True}
    if not eager:
        return plan
    software = software.model_copy(update=eager)
    return replace(plan, workload=plan.workload.model_copy(update={"software": software}))


def _tensor_bytes(plan: Plan) -> float:
    """Return the priced tensors of the fullest rank [bytes]."""
    stages = stages_of(degrees(plan)["pp"])
    held = (expected_bytes(plan, stage).values() for stage in stages)
    return max(sum(part.at_peak_bytes for part in parts) for parts in held)


PROGRAMS = (TorchtitanProgram, AccelerateProgram, MegatronProgram)
"""Programs that run a framework itself."""


def program_of(plan: Plan) -> type[RankProgram]:
    """Return the program of a plan: of its framework if it is installed, else of PyTorch."""
    named = plan.workload.software.framework.partition("==")[0]
    found = next((one for one in PROGRAMS if one.framework == named), RankProgram)
    if all(map(version_of, found.packages)):
        return found
    if found.framework in ON_PYTORCH:
        return RankProgram
    raise UnsupportedError(
        f"a dry run of {named} needs {' and '.join(found.packages)}; "
        f"pip install {found.installed_by}"
    )


def version_of(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def title_of(program: type[RankProgram]) -> str:
    """Return the name of a program, with its versions."""
    names = {name: f"{name} {version_of(name)}" for name in program.packages}
    return " on ".join([" with ".join(names.values()), f"PyTorch {torch.__version__}"][not names :])


def stages_of(num_stages: int) -> list[int]:
    """Return one stage of each kind: the first, the second, the last."""
    return sorted({0, min(1, num_stages - 1), num_stages - 1})


def run_stage(plan: Plan, stage: int) -> RanStage:
    """Run one rank of a stage, and compare it with the formulas."""
    start = time.monotonic()
    plan = as_run(plan)
    ran, chunks = run_shortened(plan, stage, run_rank), chunks_of(plan, stage)
    calls, num_bytes, flops = ran.counts
    return RanStage(
        stage=stage,
        rank=ran.rank,
        layers=tuple(at for chunk in chunks for at in chunk),
        peak_phase=str(ran.usage.peak_phase),
        held=_held(plan, stage, ran),
        host_bytes=float(ran.usage.most_bytes.get(Category.HOST, 0)),
        sent=rows_of(calls, num_bytes, expected_messages(plan, chunks, stage)),
        flops={str(phase): float(count) for phase, count in flops.items()},
        seconds=time.monotonic() - start,
    )


def run_rank(plan: Plan, stage: int) -> Ran:
    """Run one rank of a stage."""
    return program_of(plan)(plan, stage).run()


def _held(plan: Plan, stage: int, ran: Ran) -> tuple[CategoryMemory, ...]:
    """Return each category with its prediction."""
    predicted, usage = expected_bytes(plan, stage), ran.usage
    return tuple(
        CategoryMemory(
            str(category),
            float(usage.at_peak_bytes.get(category, 0)),
            float(usage.most_bytes.get(category, 0)),
            predicted[category].at_peak_bytes,
            predicted[category].most_bytes,
        )
        for category in Category
        if category is not Category.HOST
    )
