"""Accelerate: its YAML with FSDP2, and a script that starts the Trainer of Hugging Face with it.

Source: Accelerate 1.15, ``commands/config/config_args.py``, ``commands/launch.py``,
``ParallelismConfig``, ``FullyShardedDataParallelPlugin``.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from meshwright.frameworks.framework import Framework, framework
from meshwright.frameworks.hugging_face import (
    notes,
    program_of,
    trainer_options,
)
from meshwright.frameworks.launch import degrees, header, plan_launch, shell_script
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan

FILE_NAME = "accelerate.sh"
CONFIG_NAME = "accelerate.yaml"
PRECISIONS = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}

Settings = dict[str, object]


@framework("accelerate", writes="accelerate")
class AccelerateFiles(Framework):
    """The configuration, and a shell script for ``accelerate launch``."""

    catalog = "accelerate"

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the script and the configuration."""
        recomputes = plan.best.plan_options.recompute is Recompute.FULL
        options = trainer_options(plan, recomputes=recomputes and not _is_sharded(plan))
        comments = header(plan, self.written, notes(plan, FILE_NAME))
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


def _config(plan: Plan) -> Settings:
    """Return the configuration: processes, precision, sharding, and the axes."""
    launch = plan_launch(plan)
    num_processes = launch.num_hosts * launch.devices_per_host
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if num_processes > 1 else "NO",
        "num_machines": launch.num_hosts,
        "num_processes": num_processes,
        "mixed_precision": PRECISIONS[plan.workload.precision.matmul],
        "use_cpu": False,
    }
    if launch.num_hosts > 1:
        config |= {"rdzv_backend": "c10d", "same_network": False}
    if plan.workload.precision.matmul == "fp8":
        config["fp8_config"] = {"fp8_backend": "AO"}
    if _is_sharded(plan):
        config |= {"distributed_type": "FSDP", "fsdp_config": _sharding(plan)}
    if _is_sharded(plan) or degrees(plan)["tp"] > 1:
        config["parallelism_config"] = _axes(plan)
    return config


def _sharding(plan: Plan) -> Settings:
    plan_options = plan.best.plan_options
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": plan_options.zero_stage == 3
        and plan_options.reshard_after_forward,
        "fsdp_offload_params": plan_options.offload is Offload.STATE,
        "fsdp_activation_checkpointing": plan_options.recompute is Recompute.FULL,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _axes(plan: Plan) -> Settings:
    sizes = degrees(plan)
    axes = {axis: sizes[axis] for axis in ("dp_replicate", "dp_shard", "tp", "cp")}
    named: dict[str, object] = {f"parallelism_config_{k}_size": v for k, v in axes.items()}
    if sizes["cp"] > 1:
        named["parallelism_config_cp_comm_strategy"] = "alltoall"
    return named
