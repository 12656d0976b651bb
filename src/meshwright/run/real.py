"""Real runs of a plan: each process trains its stages for some steps, and the first one reports.

The first process also trains the dense model of a check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from meshwright.base.errors import Fault, SpecError
from meshwright.run.answer import Executed, Recorded, rows_of
from meshwright.run.check import (
    TOLERANCE,
    first_passes,
    gradient_errors,
    recorded,
    relative,
    wrong_passes,
)
from meshwright.run.derived import derived, derived_kept_bytes
from meshwright.run.mesh import coordinates, make_mesh
from meshwright.run.model import Chunk, dense
from meshwright.run.moments import Category
from meshwright.run.parts import Measured, interval_of, medians, part_times
from meshwright.run.processes import check_port, free_port, is_of_torchrun, join_torchrun, spawn
from meshwright.run.scale import Job, Scale, axes_in_use, job_of
from meshwright.run.step import Process, optimizer_of
from meshwright.sharding.strategy import plan_string
from meshwright.train.answer import Estimate, Plan

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
MOST_PROCESSES = 64
"""Most processes on one machine; more need torchrun."""
PATIENCE_S = 600.0
"""Timeout of a collective [s]."""


@dataclass(frozen=True)
class Task:
    """Arguments of every process of a run."""

    job: Job
    num_steps: int
    seed: int
    dtype: str
    checks: bool
    scale: Scale
    price: Estimate | None = None
    """Price of the plan; None unless it runs at full size."""


def execute(
    plan: Plan, *, steps: int = 5, scale: Scale = "tiny", checks: bool = False, seed: int = 0,
    dtype: str = "fp32", port: int | None = None, most_processes: int = 8,
    progress: Callable[..., Callable[[int, int], None] | None] | None = None,
) -> Executed | None:  # fmt: skip
    """Return the report of a run; None in processes of torchrun that are not the first.

    Raises
    ------
    SpecError
        The plan has parts that no layer here computes, or the processes are not those it needs.
    MeshwrightError
        A process failed; the message names it.
    """
    job = job_of(plan, scale, most_processes)
    price = plan.best.estimate if scale == "full" else None
    task = Task(job, steps, seed, dtype, checks, scale, price)
    if is_of_torchrun():
        return join_torchrun(_run, task, job.num_processes)
    if job.num_processes > MOST_PROCESSES:
        message = f"{job.num_processes} processes on one machine, at most {MOST_PROCESSES}"
        raise SpecError(Fault("--scale", message, "tiny, or torchrun on every host"))
    if port is not None:
        check_port(port)
    told = None if progress is None else progress("steps")
    return spawn(_run, task, _names(job), port or free_port(),
                 lambda done: None if told is None else told(done, steps))  # fmt: skip


def _names(job: Job) -> list[str]:
    """Return the name of each process: its rank, and its coordinates along the axes in use."""
    axes = axes_in_use(job.strategy)
    places = [" ".join(f"{axis} {place[axis]}" for axis in axes) for place in coordinates(job)]
    return [f"process {rank} of {len(places)} ({place or 'alone'})"
            for rank, place in enumerate(places)]  # fmt: skip


def _run(task: Task, rank: int, where: str, tell: Callable[[int], None]) -> Executed | None:
    """Train as one process of a group; the first one returns the report."""
    torch.set_num_threads(1)
    device, size = torch.device("cpu"), task.job.num_processes
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", size)):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=size,
                            timeout=timedelta(seconds=PATIENCE_S))  # fmt: skip
    try:
        return _trained(task, rank, device, tell)
    finally:
        dist.destroy_process_group()


def _trained(
    task: Task, rank: int, device: torch.device, tell: Callable[[int], None]
) -> Executed | None:
    """Train for all steps, and return the report of the first process."""
    job, dtype = task.job, DTYPES[task.dtype]
    mesh = make_mesh(job, rank, device)
    is_made = task.checks or task.scale == "tiny"
    reference = dense(job.model, device=device if is_made else "meta", dtype=dtype, seed=task.seed)
    beside = Beside(reference, rank) if task.checks else None
    process = Process(mesh, reference, task.seed)
    losses, loss_error, worst = [], 0.0, (0.0, "")
    times: list[Measured] = []
    for step in range(task.num_steps):
        tokens = synthetic_tokens(job, task.seed + step)
        with mesh.recorder.recording(is_on=step == 0):
            losses.append(process.gradients(tokens))
        if beside is not None:
            loss, gradients = beside.gradients(tokens)
            loss_error = max(loss_error, relative(abs(losses[-1] - loss), abs(loss)))
            found = process.whole_gradients()
            worst = max(worst, *gradient_errors(found, process.held, gradients))
        with process.timed("optimizer_s"):
            process.optimizer.step()
        if beside is not None:
            beside.optimizer.step()
        times.append(process.take_times())
        tell(step + 1)
    errors = None if beside is None else (loss_error, *worst)
    return _report(task, process, losses, medians(times[1:] or times), errors)


def synthetic_tokens(job: Job, seed: int) -> Tensor:
    """Return the token ids of all sequences of a step, each sequence with one more token.

    With a probability of 0.9 a token is the successor of the one before in a fixed order of at most
    256 tokens, so that the model can learn; otherwise it is drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    count, length = min(job.model.vocab_size, 256), job.sequence_length + 1
    shape = (job.global_batch_size, length)
    drawn = torch.randint(count, shape, generator=generator)
    follows = torch.rand(shape, generator=generator) < 0.9
    for place in range(1, length):
        after = (drawn[:, place - 1] + 1) % count
        drawn[:, place] = torch.where(follows[:, place], after, drawn[:, place])
    return drawn


class Beside:
    """Dense model that the first process trains on all sequences of a step."""

    def __init__(self, model: Chunk, rank: int) -> None:
        self.model, self.is_first = model, rank == 0
        self.optimizer = optimizer_of(model.parameters())

    def gradients(self, tokens: Tensor) -> tuple[float, Mapping[str, Tensor]]:
        """Return loss and gradients of a step on every process."""
        weights = dict(self.model.named_parameters())
        first = next(iter(weights.values()))
        values = [first.new_zeros(1).detach()]
        if self.is_first:
            tokens = tokens.to(first.device)
            self.optimizer.zero_grad()
            logits = self.model(tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            values[0][0] = loss.detach()
        for weight in weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            values.append(weight.grad.flatten())
        flat = torch.cat(values)
        dist.broadcast(flat, 0)
        parts = flat[1:].split([weight.numel() for weight in weights.values()])
        pairs = zip(weights.items(), parts, strict=True)
        return float(flat[0]), {name: part.view_as(weight) for (name, weight), part in pairs}


def _report(
    task: Task, process: Process, losses: list[float], times: Measured,
    errors: tuple[float, float, str] | None,
) -> Executed | None:  # fmt: skip
    """Return the report on the first process, with the counts of all processes."""
    job, mesh, recorder = task.job, process.mesh, process.mesh.recorder
    price, size = task.price, DTYPES[task.dtype].itemsize
    sent_bytes, calls = recorded(recorder, process.padding())
    is_cuda = process.device.type == "cuda"
    usage = process.usage()
    own = {
        "worst": None if errors is None else errors[1:],
        "kept": usage.most_bytes[Category.ACTIVATIONS],
        "peak": usage.peak_bytes,
        "allocated": torch.cuda.max_memory_allocated(process.device) if is_cuda else 0,
        "passes": len(recorder.passes),
        "wrong": wrong_passes(recorder, mesh),
        "rounds": first_passes(recorder, mesh),
    }
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, own)
    if mesh.rank:
        return None
    every = {name: [one[name] for one in of_all] for name in own}
    worst = (None, "") if errors is None else max(every["worst"])
    return Executed(
        plan=plan_string(job.strategy, job.plan_options), model=job.model.name,
        scale=task.scale, dtype=task.dtype, device=process.device.type,
        num_processes=job.num_processes, sequence_length=job.sequence_length,
        global_batch_size=job.global_batch_size, losses=tuple(losses),
        time_parts_s={part: time_s for (part, axis), time_s in times.items() if not axis},
        communication_s=sum(time_s for (_, axis), time_s in times.items() if axis),
        sent=rows_of(calls, sent_bytes, derived(job, size)),
        num_stream_passes=sum(every["passes"]), wrong_passes=sum(every["wrong"]),
        kept_bytes=sum(every["kept"]) / len(of_all),
        derived_kept_bytes=derived_kept_bytes(job, size),
        peak_bytes=float(max(every["peak"])),
        allocated_bytes=float(max(every["allocated"])) if is_cuda else None,
        is_checked=task.checks, loss_error=None if errors is None else errors[0],
        gradient_error=worst[0], worst_weight=worst[1],
        tolerance=TOLERANCE[task.dtype] if task.checks else None,
        predicted_s=None if price is None else (price.step_time_s, *interval_of(price)),
        parts=part_times(price, job, times) if price else (),
        walk=tuple(Recorded(str(one.phase), one.site, str(one.kind), one.axis, count,
                            float(recorder.num_bytes[one]))
                   for one, count in recorder.calls.items()),
        rounds=tuple(sorted(send for ranks, sends in every["rounds"] if 0 in ranks
                            for send in sends)),
        notes=job.notes,
    )  # fmt: skip
