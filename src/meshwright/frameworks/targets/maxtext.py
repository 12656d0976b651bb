"""MaxText: keys of its base configuration, as a command for each host.

Degrees are divided into those within a slice (``ici``) and those over slices (``dcn``), innermost
axes first. A slice is a pod of TPUs, or the devices of one scale-up domain of GPUs.

Source: MaxText 0.2.5, ``maxtext/configs/base.yml``, ``configs/types.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd

from meshwright.base.errors import Fault
from meshwright.catalog.maxtext_models import model_keys
from meshwright.frameworks.launch import (
    Words,
    degrees,
    header,
    layers_of_chunks,
    micro_batches,
    plan_launch,
    shell_script,
)
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.registry import exporters
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan

FILE_NAME = "maxtext.sh"
PROGRAM = "maxtext.trainers.pre_train.train"
WIDE = {"fp32": "highest", "tf32": "high"}
"""``matmul_precision`` of FP32 numbers; by default products are in bf16 on TPUs."""
AXES = ("expert", "tensor", "context", "fsdp", "pipeline", "data")
"""Axes, innermost first."""
REMAT = {
    Recompute.NONE: "minimal_with_context",
    Recompute.SELECTIVE: "minimal",
    Recompute.FULL: "full",
}


@exporters.register("maxtext")
class MaxTextKeys:
    """A shell script that starts the trainer on one host."""

    title = "MaxText 0.2.5"
    is_text = True

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the keys cannot express."""
        return framework_refusals(plan, "maxtext")

    @staticmethod
    def render(plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "start on each host; add what a plan does not hold (data, learning rate), as in",
            f"  {FILE_NAME} run_name=first base_output_directory=out dataset_type=synthetic",
        )
        options: list[Words] = [(f"{key}={value}",) for key, value in _keys(plan).items()]
        comments = header(plan, MaxTextKeys.title, notes)
        program = ["python3", "-m", PROGRAM]
        return {FILE_NAME: shell_script(comments, _variables(plan), program, options)}


def _variables(plan: Plan) -> Iterator[str]:
    """Yield the address of the first host; hosts of TPUs find each other."""
    if plan_launch(plan).num_hosts > 1 and plan.system.chip.vendor != "Google":
        yield 'export JAX_COORDINATOR_IP="${HEAD_ADDRESS:?the first host}"'
        yield f"export JAX_COORDINATOR_PORT=29500 NNODES={plan_launch(plan).num_hosts}"
        yield 'export NODE_RANK="${NODE_RANK:?the number of this host}"'


def axis_degrees(plan: Plan) -> dict[str, int]:
    """Return the degree of each axis of MaxText's mesh: experts take a part of the data axes."""
    sizes, is_sharded = degrees(plan), plan.best.plan_options.zero_stage > 0
    shards = sizes["dp_shard"] if is_sharded else 1
    copies = sizes["dp_replicate"] if is_sharded else sizes["dp"]
    shards, copies = (shards // sizes["ep"], copies) if is_sharded else (1, copies // sizes["ep"])
    return {
        "expert": sizes["ep"], "tensor": sizes["tp"], "context": sizes["cp"], "fsdp": shards,
        "pipeline": sizes["pp"], "data": copies,
    }  # fmt: skip


def _keys(plan: Plan) -> dict[str, object]:
    """Return every key that differs from the base configuration, or that affects the price."""
    sizes, plan_options, work = degrees(plan), plan.best.plan_options, plan.workload
    is_tpu = plan.system.chip.vendor == "Google"
    keys: dict[str, object] = {
        **model_keys(plan.model),
        "hardware": "tpu" if is_tpu else "gpu",
        "attention": "flash" if is_tpu else "cudnn_flash_te",
        "max_target_length": work.sequence_length,
        "packing": "false",
        **_batch(plan),
        **_mesh(plan),
    }
    if sizes["cp"] > 1:
        keys["context_parallel_strategy"] = "ring"
    keys |= _recomputation(plan)
    if plan_options.offload is Offload.OPTIMIZER:
        keys["optimizer_memory_host_offload"] = "true"
    if work.software.logit_tiles > 1:
        keys["num_vocab_tiling"] = work.software.logit_tiles
    if work.optimizer.name == "adam-bf16":
        keys["weight_dtype"] = "bfloat16"
    keys["dtype"] = "float32" if work.precision.matmul in WIDE else "bfloat16"
    if work.precision.matmul in WIDE:
        keys["matmul_precision"] = WIDE[work.precision.matmul]
    if work.precision.matmul in ("fp8", "int8"):
        is_amd = plan.system.chip.vendor == "AMD" and work.precision.matmul == "fp8"
        keys["quantization"] = "nanoo_fp8" if is_amd else work.precision.matmul
    if work.total_tokens is not None:
        keys["steps"] = f"{-(-work.total_tokens // work.tokens_per_step):.0f}"
    return keys


def _recomputation(plan: Plan) -> dict[str, object]:
    """Return the policy, with the place of each tensor where the plan names some."""
    plan_options = plan.best.plan_options
    if plan_options.stored_tensors:
        places: dict[str, object] = dict.fromkeys(plan_options.kept_tensors, "device")
        places |= dict.fromkeys(plan_options.offloaded_tensors, "offload")
        halves = {"mlpwi": ("mlpwi", "mlpwi_0", "mlpwi_1")}
        keys = {key: place for name, place in places.items() for key in halves.get(name, (name,))}
        return {"remat_policy": "custom", **keys}
    return {"remat_policy": REMAT[plan_options.recompute]}


def _batch(plan: Plan) -> dict[str, object]:
    """Return the batch of a device; gradients accumulate, or a pipeline cuts it."""
    sizes, used = degrees(plan), int(plan.best.strategy.num_devices)
    count = micro_batches(plan)
    if sizes["pp"] == 1:
        share = Fraction(sizes["micro_batch_size"] * sizes["dp"], used)
        return {"per_device_batch_size": float(share), "gradient_accumulation_steps": count}
    return {
        "per_device_batch_size": float(Fraction(plan.workload.global_batch_size, used)),
        "num_pipeline_microbatches": count,
        "num_layers_per_pipeline_stage": layers_of_chunks(plan)[0],
        "num_pipeline_repeats": sizes["num_virtual_stages"],
        "scan_layers": "false",
    }


def _mesh(plan: Plan) -> dict[str, object]:
    """Return the degrees within a slice, then those over slices."""
    used, inside, outside = int(plan.best.strategy.num_devices), {}, {}
    is_pod = plan.system.chip.vendor == "Google" or not plan.system.levels
    room = used if is_pod else min(used, plan.system.levels[0].size)
    sizes = axis_degrees(plan)
    for axis in AXES:
        inside[f"ici_{axis}_parallelism"] = within = gcd(sizes[axis], room)
        outside[f"dcn_{axis}_parallelism"] = sizes[axis] // within
        room //= within
    return {**inside, **outside}
