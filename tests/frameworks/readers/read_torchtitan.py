"""torchtitan's own configuration, its check of the degrees, and how it deals layers to stages."""

from answering import answer_all
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims


def read(case):
    """Parse the words as its trainer does."""
    config = ConfigManager().parse_args(case["words"])
    parallelism, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallelism, case["num_devices"])
    return {
        "tp": dims.tp,
        "pp": dims.pp,
        "cp": dims.cp,
        "ep": dims.ep,
        "dp": dims.dp_replicate * dims.dp_shard,
        "global_batch_size": training.global_batch_size,
        "sequence_length": training.seq_len,
        "steps": training.steps,
    }


if __name__ == "__main__":
    answer_all(read)
