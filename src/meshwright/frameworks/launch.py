"""Parts of every target: degrees and mesh dims, hosts and processes, shell scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from meshwright.base.units import format_bytes, format_seconds
from meshwright.frameworks.table import Value, Words
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import DEGREES, Offload
from meshwright.train.answer import Plan
from meshwright.train.words import verified_in_words
from meshwright.train.writing import MESH_AXES, host_size

GRADIENT_AXES = ("dp_replicate", "dp_shard", "cp")
"""Axes over which the gradients of a weight are summed."""
SHARD_AXES = ("dp_shard", "cp")
"""Axes over which ZeRO shards."""


def degrees(plan: Plan) -> dict[str, int]:
    """Return the degrees of the plan by name, and dp, the product of its two axes."""
    strategy = plan.best.strategy
    return {name: int(getattr(strategy, name)) for name in DEGREES} | {"dp": int(strategy.dp)}


def mesh_dims(plan: Plan) -> dict[str, int]:
    """Return name and size of each mesh dim, outermost first; dims of size one are kept."""
    sizes = degrees(plan)
    order = [axis for axis in reversed(plan.best.plan_options.axis_order) if axis in MESH_AXES]
    return {axis: sizes[axis] for axis in order}


def ordered_as(plan: Plan, order: tuple[str, ...]) -> bool:
    """Return whether the axes in use lie on the devices as in an order, innermost first."""
    used = [axis for axis, size in reversed(mesh_dims(plan).items()) if size > 1]
    return used == [axis for axis in order if axis in used]


def layers_of_chunks(plan: Plan) -> list[int]:
    """Return the layers of each chunk of the pipeline, first to last, as they were priced."""
    sizes = degrees(plan)
    chunks = sizes["pp"] * sizes["num_virtual_stages"]
    lengths: list[int] = chunk_lengths(
        plan.model.num_layers, chunks, plan.best.plan_options
    ).tolist()
    return lengths


def micro_batches(plan: Plan) -> int:
    """Return the micro-batches of one data-parallel rank, for a batch that divides."""
    sizes = degrees(plan)
    return plan.workload.global_batch_size // (sizes["dp"] * sizes["micro_batch_size"])


@dataclass(frozen=True)
class Hosts:
    """Hosts of a job, and processes on each: one for each device."""

    num_hosts: int
    devices_per_host: int


def plan_launch(plan: Plan) -> Hosts:
    """Return hosts and processes for the devices used, equal for all hosts."""
    used, size = int(plan.best.strategy.num_devices), host_size(plan.system)
    return Hosts(1, used) if used <= size else Hosts(used // size, size)


def torchrun_words(plan: Plan) -> list[str]:
    """Return the start of a torchrun command."""
    return ["torchrun", *host_words(plan)]


def host_words(plan: Plan) -> list[str]:
    """Return hosts and processes; the address of the first host is left to the user."""
    launch = plan_launch(plan)
    words = [f"--nnodes={launch.num_hosts}", f"--nproc-per-node={launch.devices_per_host}"]
    if launch.num_hosts > 1:
        words += ["--rdzv-backend=c10d", '--rdzv-endpoint="${HEAD_ADDRESS:?the first host}:29500"']
    return words


def words_of(plan: Plan) -> dict[str, Value]:
    """Return the options that state a plan; None: what frameworks do unless they are told."""
    work, plan_options, software = plan.workload, plan.best.plan_options, plan.workload.software
    sizes = degrees(plan)
    steps = None
    if work.total_tokens is not None:
        steps = int(-(-work.total_tokens // work.tokens_per_step))
    return {
        **sizes,
        "seq": work.sequence_length,
        "global_batch": work.global_batch_size,
        "accumulation": micro_batches(plan),
        "steps": steps,
        "zero_stage": f"{plan_options.zero_stage}",
        "reshard_after_forward": None if plan_options.reshard_after_forward else "off",
        "overlap_data_parallel": "on" if plan_options.overlap_data_parallel else "off",
        "sequence_parallel": "on" if plan_options.sequence_parallel else "off",
        "async_tp": plan_options.overlap_tensor_parallel and sizes["tp"] > 1,
        "context_kind": f"{plan_options.context_kind}",
        "schedule": f"{plan_options.schedule}",
        "recompute": f"{plan_options.recompute}",
        "offload": None if plan_options.offload is Offload.NONE else f"{plan_options.offload}",
        "precision": work.precision.matmul,
        "compiled": software.compiled,
        "loss": software.loss,
        "logit_tiles": software.logit_tiles,
        "cuda_graphs": software.cuda_graphs,
    }


def text_parts(file: str) -> dict[str, Template]:
    """Return the parts of a program that is written; lines ``#: NAME`` begin them in their file."""
    text = files("meshwright.frameworks.programs").joinpath(file).read_text("utf-8")
    _, *parts = re.split(r"^#: (\w+)\n", text, flags=re.M)
    bodies = (f"{part.rstrip()}\n" for part in parts[1::2])
    return {name: Template(body) for name, body in zip(parts[::2], bodies, strict=True)}


def on_one_line(text: str) -> str:
    """Return text for a comment: characters that could end the line are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def header(plan: Plan, title: str, notes: Sequence[str] = ()) -> list[str]:
    """Return comment lines: the title of the file, its plan, and the predicted price."""
    estimate, work, launch = plan.best.estimate, plan.workload, plan_launch(plan)
    idle = plan.system.num_devices - int(plan.best.strategy.num_devices)
    hosts = "1 host" if launch.num_hosts == 1 else f"{launch.num_hosts} hosts"
    calibrated = "calibrated" if estimate.is_calibrated else "uncalibrated"
    packed = f"documents of {work.document_length} packed, " if work.document_length else ""
    lines = [
        f"{title}, written by meshwright {plan.version}".rstrip(),
        f"model: {plan.model.name}",
        f"system: {plan.system.name} ({plan.system.num_devices} x {plan.system.chip.name})",
        f"plan: {plan.best.text}",
        f"step: {format_seconds(estimate.step_time_s)} ({estimate.fidelity}, {calibrated}), "
        f"{format_bytes(estimate.memory_bytes)} on the fullest device",
        f"batch: {work.global_batch_size} sequences of {work.sequence_length} tokens, {packed}"
        f"{micro_batches(plan)} micro-batches on each data-parallel rank",
        f"devices: {launch.num_hosts * launch.devices_per_host}, on {hosts} of "
        f"{launch.devices_per_host} processes" + (f"; {idle} devices stay idle" if idle else ""),
        f"optimizer: priced as {work.optimizer.name}, {work.optimizer.weight_bytes_per_param:g} + "
        f"{work.optimizer.gradient_bytes_per_param:g} + "
        f"{work.optimizer.state_bytes_per_param:g} bytes per parameter",
        *notes,
    ]
    if shortage := estimate.shortage_in_words():
        lines.insert(5, f"warning: does not fit, {shortage}")
    if plan.verified:
        told = plan.verified[-1]
        lines.append(f"{verified_in_words(told)}{f', {told.date}' if told.date else ''}")
    if plan.command:
        lines.append(f"planned with: {plan.command}")
    return [f"# {on_one_line(line)}" for line in lines]


def shell_script(
    comments: Iterable[str],
    variables: Iterable[str],
    program: Sequence[str],
    options: Iterable[Words],
    last: Sequence[Words] = (),
) -> str:
    """Return a shell script that starts a program with one option on each line.

    Words of the options are quoted; ``program`` and ``variables`` are shell text already.
    Arguments of the script go to the program, before the ``last`` options.
    """
    quoted = [shlex.join(words) for words in options]
    lines = [" ".join(program), *quoted, '"$@"', *(shlex.join(words) for words in last)]
    command = " \\\n    ".join(lines)
    return "\n".join(
        ["#!/usr/bin/env bash", *comments, "set -euo pipefail", *variables, command, ""]
    )
