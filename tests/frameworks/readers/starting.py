"""Starts of a framework without devices: its own groups in a world that is not, and its model.

``starting.py NAME`` reads cases as the readers beside it do, and goes on where they end, as far as
each framework goes. Rank 0 of PyTorch's fake backend builds process groups or a mesh; of the model
there is what needs no kernels of a device: torchtitan's on ``meta``, the layers that Megatron deals
over its stages. DeepSpeed and MaxText only check their configuration.
What it answers is what the framework has built, or read.
"""

import contextlib
import importlib
import sys

from answering import answer_all


@contextlib.contextmanager
def world(size):
    """Be rank 0 of a world of so many ranks that do not run."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def numbers(model):
    """Return how many parameters a model has."""
    return sum(weight.numel() for weight in model.parameters())


def torchtitan(case):
    """Build the meshes of the trainer, and its model on ``meta``, not sharded."""
    import os

    import read_torchtitan as reader
    import torch
    from torchtitan.distributed import parallel_dims

    reader.read(case)
    beside = case["environment"].get("PYTHONPATH", "").split(os.pathsep)[0]
    sys.modules.pop("torchtitan_model", None)
    sys.path.insert(0, beside)
    try:
        config = reader.ConfigManager().parse_args(case["words"])
    finally:
        sys.path.remove(beside)
    parallel_dims.device_type = "cpu"
    with world(case["num_devices"]):
        dims = reader.ParallelDims.from_config(config.parallelism, case["num_devices"])
        dims.build_mesh()
        config.model_spec.model.update_from_config(config=config)
        with torch.device("meta"):
            model = config.model_spec.model.build()
        meshes = dims.get_all_one_dimensional_meshes()
        sizes = {name: mesh.size() for name, mesh in meshes.items() if mesh.size() > 1}
        return {"groups": sizes, "num_params": numbers(model)}


def megatron(case):
    """Initialize the groups of megatron-core, and let it deal its layers over all stages."""
    import read_megatron as reader
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    args = reader.parse(case["words"])
    with world(case["num_devices"]):
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
        try:
            config = reader.core_transformer_config_from_args(args)
            groups = {
                "tp": parallel_state.get_tensor_model_parallel_world_size(),
                "pp": parallel_state.get_pipeline_model_parallel_world_size(),
                "cp": parallel_state.get_context_parallel_world_size(),
                "dp": parallel_state.get_data_parallel_world_size(),
                "ep": parallel_state.get_expert_model_parallel_world_size(),
                "expert_dp": parallel_state.get_expert_data_parallel_world_size(),
            }
            chunks = config.virtual_pipeline_model_parallel_size
            dealt = []
            for stage in range(groups["pp"]):
                parallel_state.set_pipeline_model_parallel_rank(stage)
                dealt += [
                    get_num_layers_to_build(config, chunk, stage)
                    for chunk in (range(chunks) if chunks else [None])
                ]
            assert sum(dealt) == config.num_layers, dealt
            return {"groups": {name: size for name, size in groups.items() if size > 1}}
        finally:
            parallel_state.destroy_model_parallel()


def bridge(case):
    """Apply the overrides to the vanilla recipe, and initialize groups with what they say."""
    import read_megatron_bridge as reader
    from megatron.core import parallel_state

    found = reader.read(case)
    overrides = dict(word.split("=", 1) for word in case["words"][2:])
    with world(case["num_devices"]):
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=found["tp"],
            pipeline_model_parallel_size=found["pp"],
            context_parallel_size=found["cp"],
            expert_model_parallel_size=found["ep"],
            expert_tensor_parallel_size=found["etp"],
            num_distributed_optimizer_instances=int(
                overrides.get("ddp.num_distributed_optimizer_instances", 1)
            ),
            create_gloo_process_groups=False,
        )
        try:
            dp = parallel_state.get_data_parallel_world_size()
            assert found["global_batch_size"] % (found["micro_batch_size"] * dp) == 0
            sizes = {name: found[name] for name in ("tp", "pp", "cp", "ep") if found[name] > 1}
            return {"groups": sizes | {"dp": dp}}
        finally:
            parallel_state.destroy_model_parallel()


def accelerate(case):
    """Set up the plugins of a process, and build the mesh of Accelerate where there is one."""
    import read_accelerate as reader

    found = reader.read(case)
    if "tp" not in found:
        return {"groups": {"dp": found["num_devices"]}}
    axes = reader.ParallelismConfig()
    assert axes.total_size == found["num_devices"], axes
    with world(found["num_devices"]):
        mesh = axes.build_device_mesh("cpu")
        return {"groups": dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))}


def deepspeed(case):
    """Check the configuration and its batch against the ranks; no group is built."""
    import read_deepspeed as reader

    found = reader.read(case)
    assert case["num_devices"] % found["cp"] == 0
    sizes = {"dp": case["num_devices"] // found["cp"], "cp": found["cp"]}
    return {"groups": {name: size for name, size in sizes.items() if size > 1}}


def maxtext(case):
    """Check that the axes of MaxText's configuration fill all devices; no mesh is built."""
    import math

    import read_maxtext as reader

    found = reader.read(case)
    assert math.prod(found["axes"].values()) == case["num_devices"]
    return {"groups": {name: size for name, size in found["axes"].items() if size > 1}}


def fsdp(case):
    """Build the mesh and the groups of the script."""
    import read_fsdp as reader

    return {"groups": {name: size for name, size in reader.read(case).items() if size > 1}}


if __name__ == "__main__":
    name = sys.argv[1].replace("-", "_")
    importlib.import_module(f"read_{name}")  # what it makes the framework believe comes first
    answer_all({"megatron_bridge": bridge}.get(name, globals().get(name)))
