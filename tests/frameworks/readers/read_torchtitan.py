"""torchtitan's own configuration, its check of the degrees, and the weights of its model."""

import os
import sys

import torch
from answering import answer_all
from torchtitan.components.quantization import float8
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims

float8.has_cuda_capability = lambda *_: True


def read(case):
    """Parse the words as its trainer does; a model of its own stands beside the script."""
    beside = case["environment"].get("PYTHONPATH", "").split(os.pathsep)[0]
    sys.modules.pop("torchtitan_model", None)
    sys.path.insert(0, beside)
    try:
        config = ConfigManager().parse_args(case["words"])
    finally:
        sys.path.remove(beside)
    parallelism, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallelism, case["num_devices"])
    with torch.device("meta"):
        model = config.model_spec.model.build()
    return {
        "tp": dims.tp,
        "pp": dims.pp,
        "cp": dims.cp,
        "ep": dims.ep,
        "dp": dims.dp_replicate * dims.dp_shard,
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.seq_len,
        "steps": training.steps,
        "num_params": sum(weight.numel() for weight in model.parameters()),
    }


if __name__ == "__main__":
    answer_all(read)
