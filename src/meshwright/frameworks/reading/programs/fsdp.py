"""PyTorch scripts of this program: the constants at their top.

Source: ``frameworks/targets/torch.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from meshwright.frameworks.reading.given import Given
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Devices, Launch
from meshwright.frameworks.reading.stages import stage_choices
from meshwright.sharding.space import order_name

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
SCHEDULES = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved"}
AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@readers.register("fsdp")
class Fsdp:
    """A script that builds a device mesh."""

    title = "PyTorch scripts of meshwright"
    kind: Literal["training", "serving"] = "training"
    ignored: tuple[str, ...] = ("NUM_MICRO_BATCHES", "DEVICE", "config")

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return {"NUM_DEVICES", "ZERO_STAGE"} <= set(given)

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has the constants of such a script."""
        return {"NUM_DEVICES", "ZERO_STAGE", "MESH"} <= set(tree)

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        total = given.whole("NUM_DEVICES")
        setting.devices = Devices(setting.devices.num_hosts, total=total, chip=setting.devices.chip)
        sizes = {axis: given.whole(f"MESH.{axis}") or 1 for axis in AXES}
        order = [name.removeprefix("MESH.") for name in given if name.startswith("MESH.")]
        found: dict[str, Any] = {
            "tp": sizes["tp"], "cp": sizes["cp"], "pp": sizes["pp"],
            "dp": sizes["dp_shard"] * sizes["dp_replicate"], "dp_shard": sizes["dp_shard"],
            "axis_order": order_name(tuple(reversed(order))),
            "ep": given.whole("EXPERT_PARALLEL"), "etp": given.whole("EXPERT_TENSOR_PARALLEL"),
            "seq": given.whole("SEQUENCE_LENGTH"), "global_batch": given.whole("GLOBAL_BATCH_SIZE"),
            "micro_batch_size": given.whole("MICRO_BATCH_SIZE"),
            "zero_stage": given.word("ZERO_STAGE", among=("0", "1", "2", "3")),
            "recompute": given.word("RECOMPUTE", among=("none", "selective", "full")),
            "offload": given.word("OFFLOAD", among=("none", "activations", "state", "all")),
            "sequence_parallel": "on" if given.flag("SEQUENCE_PARALLEL") else "off",
        }  # fmt: skip
        if not given.flag("RESHARD_AFTER_FORWARD", default=True) and found["zero_stage"] == "3":
            found["reshard_after_forward"] = "off"
        dtype = given.word("DTYPE", among=DTYPES)
        found["precision"] = DTYPES[dtype] if dtype else None
        if dtype == "torch.float32" and given.flag("ALLOWS_TF32"):
            found["precision"] = "tf32"
        if "model" not in setting.stated:
            given.needs("MODEL", "the script names no model", "name it")
        if sizes["pp"] > 1:
            found |= _pipeline(given)
        return "fsdp", found


def _pipeline(given: Given) -> dict[str, Any]:
    schedule = given.word("PIPELINE_SCHEDULE", among=SCHEDULES)
    lengths = [int(length) for length in given.value("LAYERS_OF_STAGE") or ()]
    dealt = stage_choices(lengths, sum(lengths))
    return {
        "schedule": SCHEDULES[schedule] if schedule else None,
        "num_virtual_stages": given.whole("NUM_VIRTUAL_STAGES"), **(dealt or {}),
    }  # fmt: skip
