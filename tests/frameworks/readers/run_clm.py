"""In the place of the Trainer's program: the groups of Accelerate or DeepSpeed, over gloo."""

import json
import os
import sys

import torch
import torch.distributed as dist
from accelerate import ParallelismConfig

axes = ParallelismConfig()
dist.init_process_group("gloo")
if axes.sp_size > 1:
    import deepspeed
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    deepspeed.init_distributed("gloo")
    parallel_state_sp.initialize_sequence_parallel(axes.sp_size)
    groups = {
        "cp": parallel_state_sp.get_sequence_parallel_group(),
        "shards": parallel_state_sp.get_sequence_data_parallel_group(),
    }
else:
    mesh = axes.build_device_mesh("cpu")
    groups = {name: mesh[name].get_group() for name in mesh.mesh_dim_names}
answered = {}
for name, group in groups.items():
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    answered[name] = int(ones.item())
if os.environ["RANK"] == "0":
    sys.stdout.write(json.dumps(answered) + "\n")
dist.barrier()
dist.destroy_process_group()
