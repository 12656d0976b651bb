"""MaxText's own configuration, made to believe in the devices of a plan."""

import math
import os

from absent import take_as_there

take_as_there(
    "flax", "etils", "orbax", "optax", "tensorflow", "google.cloud", "google.api_core",
    "pathwaysutils", "tensorboardX", "qwix", "aqt", "grain", "sentencepiece", "tiktoken",
    "ml_goodput_measurement", "cloud_tpu_diagnostics", "drjax", "tokamax", "vllm",
)  # fmt: skip
os.environ["JAX_PLATFORMS"] = "cpu"
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import maxtext  # noqa: E402
from answering import answer_all  # noqa: E402
from maxtext.configs import pyconfig  # noqa: E402
from maxtext.configs.types import MaxTextConfig  # noqa: E402

BASE = str(Path(maxtext.__path__[0]) / "configs" / "base.yml")
AXES = ("expert", "tensor", "context", "fsdp", "pipeline", "data")


def read(case):
    """Read the keys as the trainer does, then check them against the types of all keys."""
    words = case["words"]
    jax.devices = lambda *_: [None] * case["num_devices"]
    assert {word.split("=")[0] for word in words} <= set(MaxTextConfig.model_fields)
    config = pyconfig.initialize([
        "maxtext.trainers.pre_train.train", BASE, *words, "skip_jax_distributed_system=true",
        "enable_checkpointing=false", "run_name=here", f"base_output_directory={case['folder']}",
        f"num_slices={case['num_slices']}",
    ])  # fmt: skip
    inside = {axis: getattr(config, f"ici_{axis}_parallelism") for axis in AXES}
    outside = {axis: getattr(config, f"dcn_{axis}_parallelism") for axis in AXES}
    assert math.prod(outside.values()) == case["num_slices"]
    found = {
        "axes": {axis: inside[axis] * outside[axis] for axis in AXES},
        "sequence_length": config.max_target_length,
        "global_batch_size": config.global_batch_size_to_train_on,
        "hidden_size": config.base_emb_dim,
        "num_layers": config.base_num_decoder_layers,
        "num_heads": config.base_num_query_heads,
        "num_kv_heads": config.base_num_kv_heads,
        "num_experts": config.num_experts,
        "top_k": config.num_experts_per_tok,
        "vocab_size": config.vocab_size,
        "remat_policy": config.remat_policy,
    }
    if found["axes"]["pipeline"] > 1:
        found |= {
            "num_micro_batches": config.num_pipeline_microbatches,
            "num_virtual_stages": config.num_pipeline_repeats,
        }
    return found


if __name__ == "__main__":
    answer_all(read)
