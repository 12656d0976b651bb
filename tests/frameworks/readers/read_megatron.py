"""Megatron-LM's own parser and checks, made to believe in a device that it knows."""

import sys
import types
import typing

import typing_extensions

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
import torch

sizes = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="H100")
torch.cuda.get_device_capability = lambda *device: (9, 0)
torch.cuda.get_device_properties = lambda *device: sizes
from answering import answer_all  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402


def parse(words):
    """Parse the words as Megatron-LM's program does, and check them."""
    sys.argv = ["pretrain_gpt.py", *words]
    args = parse_args()
    validate_args(args)
    return args


def read(case):
    """Parse the words, and build the configuration of the model."""
    args = parse(case["words"])
    config = core_transformer_config_from_args(args)
    return {
        "tp": args.tensor_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "cp": args.context_parallel_size,
        "ep": args.expert_model_parallel_size,
        "etp": args.expert_tensor_parallel_size if args.num_experts else 1,
        "dp": args.data_parallel_size,
        "num_virtual_stages": config.virtual_pipeline_model_parallel_size or 1,
        "micro_batch_size": args.micro_batch_size,
        "global_batch_size": args.global_batch_size,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "recompute": config.recompute_granularity or "none",
        "zero": args.use_distributed_optimizer or args.use_megatron_fsdp,
    }


if __name__ == "__main__":
    answer_all(read)
