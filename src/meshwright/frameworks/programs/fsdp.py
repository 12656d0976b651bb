"""PyTorch: a script that builds the device mesh, its groups, and wraps a model as planned.

The script is fixed functions below constants that come from the plan; they are read back.

Source: PyTorch 2.13, ``init_device_mesh``, ``fully_shard``, ``torch.distributed.pipelining``.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.launch import (
    GRADIENT_AXES,
    SHARD_AXES,
    degrees,
    header,
    layers_of_chunks,
    mesh_dims,
    torchrun_words,
    words_of,
)
from meshwright.frameworks.reading.given import Given, Options
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Devices
from meshwright.frameworks.reading.stages import stage_choices
from meshwright.sharding.space import order_name
from meshwright.sharding.strategy import Recompute
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
        parts = [*_functions(plan), _main(plan)]
        head = ["#!/usr/bin/env python3", *header(plan, self.written, notes), ""]
        body = "\n\n".join([IMPORTS + self._constants(plan), *parts])
        return {FILE_NAME: "\n".join(head) + "\n" + body}

    def _constants(self, plan: Plan) -> str:
        """Return the numbers of the plan as constants."""
        sizes, is_tf32 = degrees(plan), plan.workload.precision.matmul == "tf32"
        words = words_of(plan)
        words |= {
            "precision": "fp32" if is_tf32 else words["precision"],
            "allows_tf32": is_tf32 or None,
            "num_devices": int(plan.best.strategy.num_devices),
            "drops_weights": _drops_weights(plan),
            "has_experts": sizes["ep"] * sizes["etp"] > 1,
            "mesh": mesh_dims(plan),
            "chunks": layers_of_chunks(plan),
        }
        values = dict(self.table.write(words))
        lines = [f"DTYPE = {values.pop('DTYPE')}"]
        lines += [f"{name} = {_written(value)}" for name, value in values.items()]
        lines += ['torch.set_float32_matmul_precision("high")'] * is_tf32
        return "\n".join(lines) + "\n"


IMPORTS = """\
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""

MESH = """\
def build_mesh() -> DeviceMesh:
    \"\"\"Return the mesh of all ranks, outermost dim first.\"\"\"
    return init_device_mesh(
        DEVICE,
        tuple(MESH.values()),
        mesh_dim_names=tuple(MESH),
    )


def build_groups(mesh: DeviceMesh) -> dict[str, DeviceMesh]:
    \"\"\"Return the mesh of each axis, and of the axes that act together.

    data: each rank reads its own part of the batch. gradients: sums of weight gradients.
    shards: ranks that share the sharded state.
    \"\"\"
    groups = {{name: mesh[name] for name in mesh.mesh_dim_names}}
    groups["data"] = mesh[{data}]._flatten("data")
    groups["shards"] = mesh[{shards}]._flatten("shards")
    groups["gradients"] = mesh[{gradients}]._flatten("gradients")
    return groups
"""

EXPERTS = """\
def build_expert_groups() -> dict[str, DeviceMesh]:
    \"\"\"Return the same ranks as the experts see them: copies x parts x parts of each.\"\"\"
    mesh = init_device_mesh(DEVICE, {shape}, mesh_dim_names={names})
    return {{name: mesh[name] for name in ("expert_dp", "ep", "etp")}}
"""

DISTRIBUTED_DATA_PARALLEL = """\
def wrap_data_parallel(model: nn.Module, blocks: list[nn.Module], mesh, groups) -> nn.Module:
    \"\"\"Return the model with replicated weights and summed gradients.\"\"\"
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_mesh=groups["gradients"])
"""

ZERO_OPTIMIZER = """\
def build_optimizer(model: nn.Module, groups, **options) -> torch.optim.Optimizer:
    \"\"\"Return AdamW with its state sharded over the shards (ZeRO 1).\"\"\"
    from torch.distributed.optim import ZeroRedundancyOptimizer

    group = groups["shards"].get_group()
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, group, **options)
"""

PLAIN_OPTIMIZER = """\
def build_optimizer(model: nn.Module, groups, **options) -> torch.optim.Optimizer:
    \"\"\"Return AdamW; its state lies as the parameters do.\"\"\"
    return torch.optim.AdamW(model.parameters(), **options)
"""

FULLY_SHARD = """\
def wrap_data_parallel(model: nn.Module, blocks: list[nn.Module], mesh, groups) -> nn.Module:
    \"\"\"Return the model with parameters, gradients and state sharded (ZeRO {stage}).\"\"\"
    from torch.distributed.fsdp import MixedPrecisionPolicy, {offload}, fully_shard

    options = {{
        "mesh": {mesh},
        "reshard_after_forward": RESHARD_AFTER_FORWARD,
        "mp_policy": MixedPrecisionPolicy(param_dtype=DTYPE, reduce_dtype=torch.float32),
        "offload_policy": {offload}({pin}),
    }}
    for block in blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)
"""

FULL_RECOMPUTE = """\
def wrap_recompute(block: nn.Module) -> nn.Module:
    \"\"\"Return the block so that its forward pass runs again in the backward pass.\"\"\"
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return checkpoint_wrapper(block)
"""

SELECTIVE_RECOMPUTE = """\
def wrap_recompute(block: nn.Module) -> nn.Module:
    \"\"\"Return the block so that only its attention runs again in the backward pass.\"\"\"
    from functools import partial

    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, operator, *args, **kwargs):
        is_attention = "scaled_dot_product" in str(operator)
        return CheckpointPolicy.MUST_RECOMPUTE if is_attention else CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint_wrapper(block, context_fn=contexts)
"""

NO_RECOMPUTE = """\
def wrap_recompute(block: nn.Module) -> nn.Module:
    \"\"\"Return the block as it is: every activation is kept.\"\"\"
    return block
"""

SAVE_ON_CPU = """\
def saved_activations():
    \"\"\"Return the context of the forward pass: kept activations move to the host.\"\"\"
    return torch.autograd.graph.save_on_cpu(pin_memory=DEVICE == "cuda")
"""

PIPELINE = """\
def stage_layers(mesh: DeviceMesh) -> list[tuple[int, range]]:
    \"\"\"Return the number of each stage of this rank, and its layers.\"\"\"
    ends = list(itertools.accumulate(LAYERS_OF_STAGE))
    mine = range(mesh["pp"].get_local_rank(), len(ends), mesh["pp"].size())
    return [(stage, range(ends[stage] - LAYERS_OF_STAGE[stage], ends[stage])) for stage in mine]


def build_schedule(stages: list, loss_fn):
    \"\"\"Return the schedule for the PipelineStage objects of this rank, in order.\"\"\"
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    schedule = get_schedule_class(PIPELINE_SCHEDULE)
    parts = stages if issubclass(schedule, PipelineScheduleMulti) else stages[0]
    return schedule(parts, n_microbatches=NUM_MICRO_BATCHES, loss_fn=loss_fn)
"""

ADD_EXPERT_GROUPS = "    groups |= build_expert_groups()\n"

MAIN = """\
def check_groups() -> dict[str, int]:
    \"\"\"Build every group, send one number through each, and return their sizes.\"\"\"
    groups = build_groups(build_mesh())
    groups |= build_expert_groups()
    for name, group in groups.items():
        ones = torch.ones(1, device=DEVICE)
        dist.all_reduce(ones, group=group.get_group())
        if ones.item() != group.size():
            raise SystemExit(f"group {name}: {ones.item():.0f} of {group.size()} ranks answered")
    return {name: group.size() for name, group in groups.items()}


def main() -> None:
    \"\"\"Start all ranks and check the groups.\"\"\"
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if dist.get_world_size() != NUM_DEVICES:
        raise SystemExit(f"the plan uses {NUM_DEVICES} devices, not {dist.get_world_size()}")
    sizes = check_groups()
    if dist.get_rank() == 0:
        print(sizes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


FILE_NAME = "device_mesh.py"
RECOMPUTE = {
    Recompute.NONE: NO_RECOMPUTE,
    Recompute.SELECTIVE: SELECTIVE_RECOMPUTE,
    Recompute.FULL: FULL_RECOMPUTE,
}


def is_hybrid(plan: Plan) -> bool:
    """Return whether FSDP shards within replicas."""
    return plan.best.plan_options.zero_stage >= 2 and degrees(plan)["dp_replicate"] > 1


def _drops_weights(plan: Plan) -> bool:
    """Return whether weights are gathered again for the backward pass."""
    plan_options = plan.best.plan_options
    return plan_options.zero_stage == 3 and plan_options.reshard_after_forward


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


def _functions(plan: Plan) -> Iterable[str]:
    """Yield the functions that this plan needs."""
    sizes, plan_options = degrees(plan), plan.best.plan_options
    yield _mesh(plan)
    if sizes["ep"] * sizes["etp"] > 1:
        yield _expert_mesh(sizes)
    yield from _data_parallel(plan)
    yield RECOMPUTE[plan_options.recompute]
    if plan_options.offload.has_activations:
        yield SAVE_ON_CPU
    if sizes["pp"] > 1:
        yield PIPELINE


def _mesh(plan: Plan) -> str:
    dims = mesh_dims(plan)
    return MESH.format(
        data=_written(_in_order(dims, ("dp_replicate", "dp_shard"))),
        shards=_written(_in_order(dims, SHARD_AXES)),
        gradients=_written(_in_order(dims, GRADIENT_AXES)),
    )


def _in_order(dims: Iterable[str], axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return axes in the order of the mesh, as slices must be."""
    return tuple(axis for axis in dims if axis in axes)


def _expert_mesh(sizes: dict[str, int]) -> str:
    """Return the second view of the ranks: copies of the experts x ep x etp in each stage."""
    copies = sizes["dp"] * sizes["cp"] * sizes["tp"] // (sizes["ep"] * sizes["etp"])
    shape = (sizes["pp"], copies, sizes["ep"], sizes["etp"])
    return EXPERTS.format(shape=shape, names=_written(("pp", "expert_dp", "ep", "etp")))


def _data_parallel(plan: Plan) -> Iterable[str]:
    """Yield the wrapper and the optimizer of the ZeRO stage."""
    plan_options = plan.best.plan_options
    if plan_options.zero_stage < 2:
        yield DISTRIBUTED_DATA_PARALLEL
        yield ZERO_OPTIMIZER if plan_options.zero_stage else PLAIN_OPTIMIZER
        return
    on_host = plan_options.offload.has_weights
    yield FULLY_SHARD.format(
        stage=plan_options.zero_stage,
        mesh='mesh["dp_replicate", "shards"]' if is_hybrid(plan) else 'groups["shards"]',
        offload="CPUOffloadPolicy" if on_host else "OffloadPolicy",
        pin='pin_memory=DEVICE == "cuda"' if on_host else "",
    )
    yield PLAIN_OPTIMIZER


def _main(plan: Plan) -> str:
    sizes = degrees(plan)
    has_experts = sizes["ep"] * sizes["etp"] > 1
    return MAIN if has_experts else MAIN.replace(ADD_EXPERT_GROUPS, "")


def _written(value: object) -> str:
    """Return a value as Python writes it, with double quotes."""
    return repr(value).replace("'", '"')
