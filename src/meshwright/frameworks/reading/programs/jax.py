"""The program that the target ``jax`` writes: its numbers stand in two tables.

Source: ``frameworks/targets/jax.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from meshwright.frameworks.reading.given import Given, names
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import stated_model


@readers.register("jax")
class Jax:
    """A training job of JAX, as this program writes it."""

    title = "JAX"
    kind: Literal["training", "serving"] = "training"
    ignored = names(
        """
        config steps learning_rate tokens shards PLAN.num_hosts
        AXES.* DATA SHARDS EXPERT_AXES SEQUENCE SLACK ROPE_BASE MESH HIDDEN LAYERS HEADS KV_HEADS
        HEAD VOCAB EXPERTS TOP_K FFN KIND WINDOW SIZES.* DIMS* GATHERED* SHARDED* WEIGHTS* STATE*
        POLICIES* DTYPE
        """
    )
    """Values that the program derives from its two tables, and options that change no price."""

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program.endswith("jax_train.py")

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has both tables."""
        plan = tree.get("PLAN")
        return isinstance(plan, Mapping) and "mesh" in plan and "MODEL" in tree

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
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
