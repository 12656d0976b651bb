"""Accelerate: its YAML with FSDP2, and a script that starts the Trainer of Hugging Face with it.

Source: Accelerate 1.15, ``commands/config/config_args.py``, ``commands/launch.py``,
``ParallelismConfig``, ``FullyShardedDataParallelPlugin``.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.hugging_face import (
    notes,
    program_of,
    trainer_options,
)
from meshwright.frameworks.launch import degrees, header, plan_launch, shell_script
from meshwright.frameworks.table import Value, load_table, nested
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan

FILE_NAME = "accelerate.sh"
CONFIG_NAME = "accelerate.yaml"


@framework("accelerate", writes="accelerate")
class AccelerateFiles(LaunchFiles):
    """The configuration, and a shell script for ``accelerate launch``."""

    catalog = "accelerate"

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script and the configuration."""
        recomputes = plan.best.plan_options.recompute is Recompute.FULL
        options = trainer_options(plan, recomputes=recomputes and not _is_sharded(plan))
        comments = header(plan, self.table.written, notes(plan, FILE_NAME))
        program = [*_launch_words(plan), program_of(plan)]
        script = shell_script(comments, ['cd "$(dirname "$0")"'], program, options)
        return {FILE_NAME: script, CONFIG_NAME: yaml.safe_dump(_config(plan), sort_keys=False)}


def _is_sharded(plan: Plan) -> bool:
    return plan.best.plan_options.zero_stage >= 2


def _launch_words(plan: Plan) -> Iterator[str]:
    """Yield the start of the command; the address of the first host is left to the user."""
    yield from ("accelerate", "launch", f"--config_file={CONFIG_NAME}")
    if plan_launch(plan).num_hosts > 1:
        yield '--main_process_ip="${HEAD_ADDRESS:?the first host}"'
        yield "--main_process_port=29500"


def _config(plan: Plan) -> dict[str, object]:
    """Return the configuration: processes, precision, sharding, and the axes."""
    launch, sizes, options = plan_launch(plan), degrees(plan), plan.best.plan_options
    num_processes, precision = launch.num_hosts * launch.devices_per_host, plan.workload.precision
    words: dict[str, Value] = {
        "environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if num_processes > 1 else "NO",
        "num_hosts": launch.num_hosts, "num_devices": num_processes, "uses_cpu": False,
        "mixed": "no" if precision.matmul in ("fp32", "tf32") else precision.matmul,
        "fp8_backend": "AO" if precision.matmul == "fp8" else None,
    }  # fmt: skip
    if launch.num_hosts > 1:
        words |= {"rendezvous": "c10d", "same_network": False}
    if _is_sharded(plan):
        words |= {
            "distributed_type": "FSDP", "fsdp_version": 2, "wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard": options.zero_stage == 3 and options.reshard_after_forward,
            "offloads_params": options.offload is Offload.STATE,
            "fsdp_recomputes": options.recompute is Recompute.FULL,
            "efficient_loading": True, "state_dict_type": "SHARDED_STATE_DICT",
        }  # fmt: skip
    if _is_sharded(plan) or sizes["tp"] > 1:
        words |= {axis: sizes[axis] for axis in ("dp_replicate", "dp_shard", "tp", "cp")}
        words["cp_strategy"] = "alltoall" if sizes["cp"] > 1 else None
    return nested(load_table("transformers").write(words))
