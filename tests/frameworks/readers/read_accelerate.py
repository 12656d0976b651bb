"""Accelerate's own launcher, the plugins that it sets up, and the Trainer's options."""

import os

from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from answering import answer_all
from trainer import read_options


def read(case):
    """Parse the words behind ``accelerate launch``, and read what reaches each process."""
    os.chdir(case["folder"])
    os.environ.pop("WORLD_SIZE")
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(case["words"][1:]))
    told = read_options(args.training_script_args)[1]
    if args.num_processes > 1:
        os.environ.update(prepare_multi_gpu_env(args))
    found = told | {
        "num_devices": args.num_processes,
        "num_hosts": args.num_machines,
        "is_sharded": bool(args.use_fsdp),
    }
    if args.use_parallelism_config:
        axes = ParallelismConfig()
        found |= {
            "tp": axes.tp_size,
            "cp": axes.cp_size,
            "dp_shard": axes.dp_shard_size,
            "dp_replicate": axes.dp_replicate_size,
        }
    precision = args.mixed_precision.replace("no", "fp32")
    assert told["precision"] == ("fp32" if precision == "fp8" else precision)
    found["precision"] = precision
    if args.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        found |= {
            "reshards": plugin.reshard_after_forward,
            "offload": "state" if args.fsdp_offload_params else "none",
            "recompute": "full" if plugin.activation_checkpointing else "none",
        }
    return found


if __name__ == "__main__":
    answer_all(read)
