"""In the place of Megatron-LM's program: its parser, then its process groups over gloo."""

import json
import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from read_megatron import parse

args = parse(sys.argv[1:])
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=args.tensor_model_parallel_size,
    pipeline_model_parallel_size=args.pipeline_model_parallel_size,
    context_parallel_size=args.context_parallel_size,
    expert_model_parallel_size=args.expert_model_parallel_size,
    expert_tensor_parallel_size=args.expert_tensor_parallel_size,
    order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
)
groups = {
    "tp": parallel_state.get_tensor_model_parallel_group(),
    "pp": parallel_state.get_pipeline_model_parallel_group(),
    "cp": parallel_state.get_context_parallel_group(),
    "ep": parallel_state.get_expert_model_parallel_group(),
    "dp": parallel_state.get_data_parallel_group(),
}
answered = {}
for name, group in groups.items():
    ones = torch.ones(1)
    dist.all_reduce(ones, group=group)
    answered[name] = int(ones.item())
if os.environ["RANK"] == "0":
    sys.stdout.write(json.dumps(answered) + "\n")
dist.barrier()
dist.destroy_process_group()
