"""JAX: a program that builds the mesh, splits a transformer over it, and trains.

Source: JAX 0.10, ``jax.sharding.Mesh``, ``jax.sharding.NamedSharding``, ``jax.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import Any

from meshwright.base.errors import Fault
from meshwright.catalog.config_json import config_of
from meshwright.frameworks.jax_program import PROGRAM
from meshwright.frameworks.launch import degrees, header, plan_launch, shell_script
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.registry import exporters
from meshwright.train.answer import Plan

FILE_NAME = "jax.sh"
PROGRAM_NAME = "jax_train.py"


@exporters.register("jax")
class JaxProgram:
    """The program, and a shell script that starts it on one host."""

    title = "JAX 0.10"
    is_text = True

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the program cannot run."""
        return framework_refusals(plan, "jax")

    @staticmethod
    def render(plan: Plan) -> dict[str, str]:
        """Return the script and the program."""
        notes = (
            "start on each host; without --tokens FILE.npy it trains on drawn ones, as in",
            f"  {FILE_NAME} --steps 100 --learning-rate 3e-4",
        )
        comments = header(plan, JaxProgram.title, notes)
        program = ["python3", f'"$(dirname "$0")"/{PROGRAM_NAME}']
        script = shell_script(comments, _variables(plan), program, [])
        return {FILE_NAME: script, PROGRAM_NAME: _program(plan)}


def _program(plan: Plan) -> str:
    """Return the program: the numbers of the plan, the model, and the common code."""
    head = ["#!/usr/bin/env python3", f"# what {FILE_NAME} starts: PLAN is the plan that it names,"]
    head.append("# MODEL the config.json of its model")
    numbers = {"PLAN": _settings(plan), "MODEL": config_of(plan.model) or {}}
    tables = [f"{name} = {_literal(values)}" for name, values in numbers.items()]
    return "\n".join([*head, "", *tables, "", PROGRAM])


def _literal(values: Mapping[str, Any]) -> str:
    lines = [f'    "{name}": {value!r},'.replace("'", '"') for name, value in values.items()]
    return "\n".join(["{", *lines, "}"])


def _settings(plan: Plan) -> dict[str, Any]:
    """Return the settings: axes outermost first, batch, sharding, recomputation, precision."""
    sizes, plan_options, work = degrees(plan), plan.best.plan_options, plan.workload
    return {
        "mesh": mesh_axes(plan),
        "ep": sizes["ep"],
        "zero_stage": plan_options.zero_stage,
        "sequence_parallel": plan_options.sequence_parallel,
        "recompute": str(plan_options.recompute),
        "precision": work.precision.matmul,
        "micro_batch_size": sizes["micro_batch_size"],
        "global_batch_size": work.global_batch_size,
        "sequence_length": work.sequence_length,
        "num_hosts": plan_launch(plan).num_hosts,
    }


def mesh_axes(plan: Plan) -> dict[str, int]:
    """Return the axes of the mesh: experts take tp and a part of the shards."""
    sizes = degrees(plan)
    of_experts = _expert_shards(sizes)
    return {
        "dp_replicate": sizes["dp_replicate"],
        "dp_shard": sizes["dp_shard"] // of_experts,
        "ep": of_experts,
        "tp": sizes["tp"],
    }


def _expert_shards(sizes: Mapping[str, int]) -> int:
    """Return the part of the data axes over which experts are spread, beside tp."""
    return sizes["ep"] // gcd(sizes["ep"], sizes["tp"])


def _variables(plan: Plan) -> Iterator[str]:
    """Yield the address of the first host; hosts of TPUs find each other."""
    if plan_launch(plan).num_hosts > 1 and plan.system.chip.vendor != "Google":
        yield 'export HEAD_ADDRESS="${HEAD_ADDRESS:?the first host}"'
        yield 'export NODE_RANK="${NODE_RANK:?the number of this host}"'
