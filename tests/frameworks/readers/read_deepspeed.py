"""DeepSpeed's own configuration, beside the Trainer's options and Accelerate's groups."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import deepspeed.runtime.config
from accelerate import ParallelismConfig
from answering import answer_all
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.tensor_parallel.config import get_tensor_parallel_config
from trainer import read_options


def read(case):
    """Parse the words, then the file that they name, as the first of all ranks."""
    os.chdir(case["folder"])
    os.environ.pop("WORLD_SIZE")
    args, told = read_options(case["words"])
    shared = os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true"
    cp = ParallelismConfig().sp_size if shared else 1
    deepspeed.runtime.config.dist = SimpleNamespace(
        get_rank=lambda: 0, get_world_size=lambda: case["num_devices"]
    )
    told_config = json.loads(Path(args.deepspeed).read_text(encoding="utf-8"))
    tp = get_tensor_parallel_config(told_config).autotp_size or 1
    copies = case["num_devices"] // (tp * cp)
    groups = SimpleNamespace(get_data_parallel_world_size=lambda: copies)
    config = DeepSpeedConfig(args.deepspeed, groups)
    zero = config.zero_config
    precision = "bf16" if config.bfloat16_config.enabled else "fp16"
    if not (config.bfloat16_config.enabled or config.float16_config.enabled):
        precision = "fp32"
    assert precision == told["precision"]
    assert config.train_micro_batch_size_per_gpu == told["micro_batch_size"]
    assert config.gradient_accumulation_steps == told["num_micro_batches"]
    return told | {
        "tp": tp,
        "cp": cp,
        "global_batch_size": config.train_batch_size,
        "zero_stage": int(config.zero_optimization_stage),
        "overlaps": bool(config.zero_enabled and zero.overlap_comm),
        "offload": on_host(zero),
    }


def on_host(zero):
    """Return what lives on the host: with the optimizer also gradients, from ZeRO 2 on."""
    optimizer, weights = (
        part is not None and part.device == "cpu"
        for part in (zero.offload_optimizer, zero.offload_param)
    )
    if optimizer and weights:
        return "state"
    if weights:
        return "weights"
    return ("optimizer" if zero.stage == 1 else "gradients") if optimizer else "none"


if __name__ == "__main__":
    answer_all(read)
