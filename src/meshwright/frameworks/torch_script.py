"""The text of the PyTorch script: fixed functions below constants that come from the plan."""

from __future__ import annotations

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
        {shape},
        mesh_dim_names={names},
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
        "reshard_after_forward": {reshard},
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
