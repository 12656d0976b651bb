"""DeepSpeed: its JSON, and a script that starts the Trainer of Hugging Face with it.

Ulysses groups are those of Accelerate, which the Trainer makes from the environment.

Source: DeepSpeed 0.19, ``runtime/config.py``, ``runtime/zero/config.py``,
``runtime/tensor_parallel/config.py``; Accelerate 1.15, ``ParallelismConfig``; transformers 5.23,
``integrations/deepspeed.py``, which splits the layers of a model by ``autotp_size``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.hugging_face import (
    notes,
    program_of,
    trainer_options,
)
from meshwright.frameworks.launch import (
    degrees,
    header,
    micro_batches,
    shell_script,
    torchrun_words,
)
from meshwright.sharding.strategy import Recompute
from meshwright.train.answer import Plan

FILE_NAME = "deepspeed.sh"
CONFIG_NAME = "ds_config.json"
SUMMED_GRADIENT_BYTES = 4.0
"""Least bytes of the gradient of a parameter that is summed in FP32."""
ADAM_PARAMS = ("lr", "betas", "eps", "weight_decay")
"""Parameters of Adam that the Trainer fills in from its options."""
ON_HOST = {"device": "cpu", "pin_memory": True}


@framework("deepspeed", writes="deepspeed")
class DeepSpeedFiles(LaunchFiles):
    """The configuration, and a shell script for torchrun."""

    catalog = "deepspeed"

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script and the configuration."""
        recomputes = plan.best.plan_options.recompute is Recompute.FULL
        options = [
            ("--deepspeed", CONFIG_NAME),
            *trainer_options(plan, recomputes=recomputes),
        ]
        comments = header(plan, self.table.written, notes(plan, FILE_NAME))
        program = [*torchrun_words(plan), program_of(plan)]
        script = shell_script(comments, _variables(plan), program, options)
        return {FILE_NAME: script, CONFIG_NAME: json.dumps(_config(plan), indent=2) + "\n"}


def _variables(plan: Plan) -> Iterator[str]:
    """Yield the environment: the folder of the files, and the ranks that share sequences."""
    yield 'cd "$(dirname "$0")"'
    sizes = degrees(plan)
    if sizes["cp"] == 1:
        return
    yield "export ACCELERATE_USE_PARALLELISM_CONFIG=true PARALLELISM_CONFIG_SP_BACKEND=deepspeed"
    yield f"export PARALLELISM_CONFIG_SP_SIZE={sizes['cp']}"
    yield f"export PARALLELISM_CONFIG_SP_SEQ_LENGTH={plan.workload.sequence_length}"
    yield "export PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE=false"


def _config(plan: Plan) -> dict[str, object]:
    """Return the configuration: batch, precision, sharding and offload."""
    work, plan_options = plan.workload, plan.best.plan_options
    sizes = degrees(plan)
    config: dict[str, object] = {
        "train_micro_batch_size_per_gpu": sizes["micro_batch_size"],
        "gradient_accumulation_steps": micro_batches(plan),
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(ADAM_PARAMS, "auto")},
    }
    if sizes["tp"] > 1:
        config["tensor_parallel"] = {"autotp_size": sizes["tp"]}
    if sizes["tp"] * sizes["cp"] == 1:  # the Trainer counts every rank that shares a batch
        config["train_batch_size"] = work.global_batch_size
    if work.precision.matmul not in ("fp32", "tf32"):
        config[work.precision.matmul] = {"enabled": True}
        if work.optimizer.gradient_bytes_per_param >= SUMMED_GRADIENT_BYTES:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    zero: dict[str, object] = {"stage": plan_options.zero_stage}
    if plan_options.zero_stage:
        zero |= {"overlap_comm": plan_options.overlap_data_parallel, "contiguous_gradients": True}
    if plan_options.offload.has_optimizer:
        zero["offload_optimizer"] = ON_HOST
    if plan_options.offload.has_weights:
        zero["offload_param"] = ON_HOST
    return config | {"zero_optimization": zero}
