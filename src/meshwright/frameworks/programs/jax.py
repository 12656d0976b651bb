"""The program that the target ``jax`` writes: its numbers stand in two tables.

Source: ``frameworks/targets/jax.py``.

JAX: a program that builds the mesh, splits a transformer over it, and trains.

Source: JAX 0.10, ``jax.sharding.Mesh``, ``jax.sharding.NamedSharding``, ``jax.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from meshwright.catalog.config_json import config_of
from meshwright.frameworks.framework import Framework, framework
from meshwright.frameworks.jax_program import PROGRAM
from meshwright.frameworks.launch import degrees, header, plan_launch, shell_script
from meshwright.frameworks.reading.given import Given
from meshwright.frameworks.reading.job import Setting
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import stated_model
from meshwright.train.answer import Plan


@framework("jax", reads="jax", writes="jax")
class Jax(Framework):
    """A training program of JAX, and a shell script that starts it on one host."""

    catalog = "jax"

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program.endswith("jax_train.py")

    def holds(self, tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has both tables."""
        plan = tree.get("PLAN")
        return isinstance(plan, Mapping) and "mesh" in plan and "MODEL" in tree

    def read(self, given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        size = {
            axis: given.whole(f"PLAN.mesh.{axis}") or 1
            for axis in ("dp_replicate", "dp_shard", "ep", "tp")
        }
        shards, ep = size["dp_shard"] * size["ep"], given.whole("PLAN.ep") or 1
        options: dict[str, Any] = {
            "model": stated_model(given),
            "tp": size["tp"],
            "dp": size["dp_replicate"] * shards,
            "dp_shard": shards,
            "zero_stage": given.text("PLAN.zero_stage"),
            "sequence_parallel": "on" if given.flag("PLAN.sequence_parallel") else "off",
            "recompute": given.word("PLAN.recompute", among=("none", "selective", "full")),
            "precision": given.word("PLAN.precision", among=("bf16", "fp32", "tf32")),
            "micro_batch_size": given.whole("PLAN.micro_batch_size"),
            "global_batch": given.whole("PLAN.global_batch_size"),
            "seq": given.whole("PLAN.sequence_length"),
        } | ({"ep": ep, "etp": 1} if ep > 1 else {})  # fmt: skip
        return "jax", options

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script and the program."""
        notes = (
            "start on each host; without --tokens FILE.npy it trains on drawn ones, as in",
            f"  {FILE_NAME} --steps 100 --learning-rate 3e-4",
        )
        comments = header(plan, self.written, notes)
        program = ["python3", f'"$(dirname "$0")"/{PROGRAM_NAME}']
        script = shell_script(comments, _variables(plan), program, [])
        return {FILE_NAME: script, PROGRAM_NAME: _program(plan)}


FILE_NAME = "jax.sh"
PROGRAM_NAME = "jax_train.py"


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
    sizes, structure, work = degrees(plan), plan.best.structure, plan.workload
    return {
        "mesh": mesh_axes(plan),
        "ep": sizes["ep"],
        "zero_stage": structure.zero_stage,
        "sequence_parallel": structure.sequence_parallel,
        "recompute": str(structure.recompute),
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
