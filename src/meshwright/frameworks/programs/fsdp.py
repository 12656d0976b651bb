"""PyTorch: a script that builds the device mesh, its groups, and wraps a model as planned.

The script is fixed functions below constants that come from the plan; they are read back.

Source: PyTorch 2.13, ``init_device_mesh``, ``fully_shard``, ``torch.distributed.pipelining``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.launch import (
    GRADIENT_AXES,
    SHARD_AXES,
    degrees,
    header,
    layers_of_chunks,
    mesh_dims,
    text_parts,
    torchrun_words,
    words_of,
)
from meshwright.frameworks.reading.given import Given, Options
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Devices
from meshwright.frameworks.reading.stages import stage_choices
from meshwright.sharding.space import order_name
from meshwright.train.answer import Plan
from meshwright.train.writing import MESH_AXES


@framework("fsdp", reads="fsdp", writes="torch")
class Fsdp(LaunchFiles):
    """A script for ``torchrun``: mesh, groups, wrappers, recomputation, pipeline."""

    catalog = "fsdp"

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        found: Options = self.table.read(given)
        total = found.pop("num_devices")
        setting.devices = Devices(setting.devices.num_hosts, total=total, chip=setting.devices.chip)
        sizes = {axis: given.whole(f"MESH.{axis}") or 1 for axis in MESH_AXES}
        order = [name.removeprefix("MESH.") for name in given if name.startswith("MESH.")]
        found |= {
            "tp": sizes["tp"], "cp": sizes["cp"], "pp": sizes["pp"],
            "dp": sizes["dp_shard"] * sizes["dp_replicate"], "dp_shard": sizes["dp_shard"],
            "axis_order": order_name(tuple(reversed(order))),
        }  # fmt: skip
        if not found.pop("drops_weights") and found["zero_stage"] == "3":
            found["reshard_after_forward"] = "off"
        if found.pop("allows_tf32") and found["precision"] == "fp32":
            found["precision"] = "tf32"
        if "model" not in setting.stated:
            given.needs("MODEL", "the script names no model", "name it")
        if sizes["pp"] > 1:
            lengths = [int(length) for length in given.value("LAYERS_OF_STAGE") or ()]
            found |= stage_choices(lengths, sum(lengths)) or {}
        return "fsdp", found

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script."""
        start = " ".join([*torchrun_words(plan), FILE_NAME])
        notes = [f"start on each host: {start}", *_notes(plan)]
        words = _in_parts(plan)
        parts = [PARTS[name].substitute(words) for name in _parts(plan)]
        head = ["#!/usr/bin/env python3", *header(plan, self.table.written, notes), ""]
        body = "\n\n".join([PARTS["imports"].substitute() + self._constants(plan), *parts])
        return {FILE_NAME: "\n".join(head) + "\n" + body}

    def _constants(self, plan: Plan) -> str:
        """Return the numbers of the plan as constants."""
        sizes, options = degrees(plan), plan.best.plan_options
        is_tf32 = plan.workload.precision.matmul == "tf32"
        words = words_of(plan)
        words |= {
            "precision": "fp32" if is_tf32 else words["precision"],
            "allows_tf32": is_tf32 or None,
            "num_devices": int(plan.best.strategy.num_devices),
            "drops_weights": options.zero_stage == 3 and options.reshard_after_forward,
            "has_experts": sizes["ep"] * sizes["etp"] > 1,
            "mesh": mesh_dims(plan),
            "chunks": layers_of_chunks(plan),
        }
        values = dict(self.table.write(words))
        lines = [f"DTYPE = {values.pop('DTYPE')}"]
        lines += [f"{name} = {_written(value)}" for name, value in values.items()]
        lines += ['torch.set_float32_matmul_precision("high")'] * is_tf32
        return "\n".join(lines) + "\n"


FILE_NAME = "device_mesh.py"
PARTS = text_parts("device_mesh.txt")


def _notes(plan: Plan) -> Iterable[str]:
    """Yield notes on how PyTorch runs the plan."""
    if plan.best.plan_options.zero_stage == 2:
        yield "ZeRO 2 is FSDP that keeps the gathered weights from the forward to the backward pass"
    if plan.best.plan_options.zero_stage < 2:
        yield "precision: run the forward pass under torch.autocast(DEVICE, dtype=DTYPE)"
    if plan.workload.precision.matmul == "fp16":
        yield "precision: scale the loss with torch.amp.GradScaler(DEVICE)"
    if degrees(plan)["tp"] > 1:
        split = "with" if plan.best.plan_options.sequence_parallel else "without"
        yield f"tp: parallelize_module(block, groups['tp'], ...), {split} SequenceParallel norms"
        if plan.best.plan_options.zero_stage < 2:
            # PyTorch 2.13, torch/distributed/tensor/parallel/ddp.py, _reconstruct_dtensor
            yield "tp: list model.parameters() before the first pass; DDP then hides them"


def _parts(plan: Plan) -> Iterator[str]:
    """Yield the names of the parts that this plan needs, behind the constants."""
    options, sizes = plan.best.plan_options, degrees(plan)
    yield "mesh"
    if sizes["ep"] * sizes["etp"] > 1:
        yield "experts"
    if options.zero_stage < 2:
        yield "narrow_norms"
    yield "replicated" if options.zero_stage < 2 else "fully_sharded"
    # Gradients that wait for a later sum would stay on the device.
    if _is_hybrid(plan) and sizes["pp"] == 1 and not options.offload.has_weights:
        yield "replicas"
    yield "sharded_optimizer" if options.zero_stage == 1 else "plain_optimizer"
    yield f"recompute_{options.recompute}"
    if options.offload.has_activations:
        yield "activations_on_host"
    if sizes["cp"] > 1:
        yield "context"
    if sizes["pp"] > 1:
        yield "pipeline"
        if options.zero_stage < 2:
            yield "narrow_sends"
    yield "main"


def _is_hybrid(plan: Plan) -> bool:
    """Return whether shards have replicas."""
    return plan.best.plan_options.zero_stage >= 2 and degrees(plan)["dp_replicate"] > 1


def _in_parts(plan: Plan) -> dict[str, object]:
    """Return the words that the plan puts into the parts.

    Slices of the mesh have its order. Experts see the ranks again: copies of the experts x ep x etp
    in each stage.
    """
    options, sizes, dims = plan.best.plan_options, degrees(plan), mesh_dims(plan)
    expert_ranks, on_host = sizes["ep"] * sizes["etp"], options.offload.has_weights
    copies = sizes["dp"] * sizes["cp"] * sizes["tp"] // expert_ranks
    slices = {
        "data": ("dp_replicate", "dp_shard"),
        "shards": SHARD_AXES,
        "gradients": GRADIENT_AXES,
    }
    return {
        **{name: _written(tuple(axis for axis in dims if axis in axes))
           for name, axes in slices.items()},
        "shape": (sizes["pp"], copies, sizes["ep"], sizes["etp"]),
        "names": _written(("pp", "expert_dp", "ep", "etp")),
        "stage": options.zero_stage,
        "mesh": 'DeviceMesh._concatenate([groups["dp_replicate"], groups["shards"]])'
                if _is_hybrid(plan) else 'groups["shards"]',
        "offload": "CPUOffloadPolicy" if on_host else "OffloadPolicy",
        "pin": 'pin_memory=DEVICE == "cuda"' if on_host else "",
        "add_expert_groups": "    groups |= build_expert_groups()\n" * (expert_ranks > 1),
    }  # fmt: skip


def _written(value: object) -> str:
    """Return a value as Python writes it, with double quotes."""
    return repr(value).replace("'", '"')
