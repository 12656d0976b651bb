"""axolotl: one YAML file around the Trainer of Hugging Face, FSDP2 of accelerate or DeepSpeed.

Plans are written that Accelerate starts: DDP, FSDP2 with tp and cp, adapters.

Source: axolotl-ai-cloud/axolotl 0.19.0 (2026-10), ``src/axolotl/utils/schemas``,
``utils/config/__init__.py`` (``resolve_dtype``, ``normalize_config``), ``loaders/model.py``
(``_set_quantization_config``) and ``integrations/*/args.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import yaml

from meshwright.base.errors import Fault
from meshwright.frameworks.framework import framework
from meshwright.frameworks.hugging_face import (
    ACCUMULATION,
    accumulates_shards,
    adapters_of,
    modules_of,
)
from meshwright.frameworks.launch import degrees, header, micro_batches, on_one_line, plan_launch
from meshwright.frameworks.programs.transformers import (
    AT,
    Transformers,
    gather,
    read_gathered,
)
from meshwright.frameworks.reading.given import Given, Options
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.refusals import asked, framework_refusals
from meshwright.sharding.strategy import Offload, Recompute
from meshwright.train.answer import Plan
from meshwright.train.writing import optimizer_faults, trainer_faults

FILE_NAME = "axolotl.yaml"
WIDE = ("fp32", "tf32")
ADAM_BYTES = {True: 16.0, False: 8.0}
"""Bytes of state per parameter: under FSDP2 (FP32), and under DDP (all in 16 bits)."""
STORED: Mapping[str, dict[str, object]] = {
    "bitsandbytes nf4": {
        "load_in_4bit": True,
        "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False},
    },
    "bitsandbytes nf4 with narrow scales": {"load_in_4bit": True},
    "bitsandbytes int8": {"load_in_8bit": True},
}
"""Frozen weights in narrow formats; those of four bits belong to ``adapter: qlora``."""
PRECISIONS = {
    "fp32": {"bf16": False},
    "tf32": {"bf16": False, "tf32": True},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": True},
}


@framework("axolotl", reads="axolotl", writes="axolotl")
class Axolotl(Transformers):
    """A job of axolotl, and its YAML file."""

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        gather(given, setting)
        given.renamed({"sequence_parallel_degree": f"{AT}cp_size"})
        self.table.judge(given)
        if str(given.peek("gradient_checkpointing")).startswith("offload"):
            given.refuse("gradient_checkpointing", "checkpoints on the host are not read", "true")
            given.restate("gradient_checkpointing", True)
        if given.flag("fp8"):
            given.restate("mixed_precision", "fp8")
        plugins = " ".join(map(str, given.value("plugins") or ()))
        is_cut = given.flag("cut_cross_entropy", default="CutCrossEntropy" in plugins)
        _accumulate(given)
        if given.peek("adapter") == "qlora" and given.peek("load_in_4bit") in (True, "true"):
            double = given.value("bnb_config_kwargs.bnb_4bit_use_double_quant") is not False
            given.state("bnb_4bit_use_double_quant", double)
        if given.flag("eager_attention"):
            given.state("attn_implementation", "eager")
        for wide, name in (("bf16", "bfloat16"), ("fp16", "float16")):
            if given.flag(name) or (wide == "bf16" and str(given.peek(wide)).lower() == "auto"):
                given.restate(wide, True)  # auto: on where the device has it
        if str(given.peek("tf32")).lower() == "auto":
            given.restate("tf32", True)
        framework, options = read_gathered(given, setting)
        if is_cut:
            options["software"]["loss"] = "cut"
        is_whole = framework == "accelerate" and options["zero_stage"] == "0"
        if is_whole and options["optimizer"] is None and options["precision"] in ("bf16", "fp16"):
            # weights, and so gradients and moments, rest in the type of training (resolve_dtype)
            options["optimizer"] = "adam-bf16"
        return framework, options

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the configuration cannot express."""
        is_wide = plan.best.plan_options.zero_stage == 3 or plan.workload.precision.matmul in WIDE
        preset = "fsdp-mixed" if is_wide else "adam-bf16"
        needed = ADAM_BYTES[is_wide]
        return [
            *framework_refusals(plan, "accelerate", is_written=False),
            *optimizer_faults(asked(plan), preset=preset, needed_bytes=needed),
            *_own_refusals(plan),
            *trainer_faults(asked(plan)),
        ]

    def render(self, plan: Plan) -> dict[str, str]:
        """Return the file."""
        launch = plan_launch(plan)
        hosts = f" on each of {launch.num_hosts} hosts" if launch.num_hosts > 1 else ""
        notes = (
            "add what a plan does not hold (weights, data), then start it" + hosts + " with",
            f"  axolotl train {FILE_NAME} --nproc_per_node {launch.devices_per_host}",
        )
        comments = "\n".join(header(plan, self.table.written, notes))
        text = yaml.safe_dump(dict(_settings(plan)), sort_keys=False)
        return {FILE_NAME: f"{comments}\n{text}"}


def _accumulate(given: Given) -> None:
    """State the accumulation that follows from the batch of a device (``normalize_config``)."""
    whole, each = given.whole("batch_size"), given.peek("micro_batch_size")
    if given.peek("gradient_accumulation_steps") is None and whole and isinstance(each, int):
        given.without("gradient_accumulation_steps")
        given.state("gradient_accumulation_steps", max(1, whole // max(1, each)))


def _own_refusals(plan: Plan) -> Iterator[Fault]:
    plan_options = plan.best.plan_options
    if plan_options.zero_stage < 3 and plan_options.offload is not Offload.NONE:
        yield Fault("plan_options.offload", "applies only to FSDP2", "zero_stage=3")


def _settings(plan: Plan) -> Iterator[tuple[str, object]]:
    """Yield the fields of the configuration."""
    work, plan_options, sizes = plan.workload, plan.best.plan_options, degrees(plan)
    yield "base_model", on_one_line(plan.model.name)
    yield "sequence_len", work.sequence_length
    yield "micro_batch_size", sizes["micro_batch_size"]
    yield "gradient_accumulation_steps", micro_batches(plan)
    yield "optimizer", "adamw_torch_fused"
    yield from PRECISIONS[work.precision.matmul].items()
    if work.software.compiled:
        yield "torch_compile", True
    if work.total_tokens is not None:
        yield "max_steps", int(-(-work.total_tokens // work.tokens_per_step))
    if (adapters := adapters_of(plan)) is not None:
        frozen = work.precision.weight_format
        stored = STORED[frozen.name] if frozen else {}
        yield "adapter", "qlora" if "load_in_4bit" in stored else "lora"
        yield from stored.items()
        yield "lora_r", adapters.rank
        yield "lora_alpha", 2 * adapters.rank
        yield "lora_target_modules", modules_of(plan, adapters)
    is_sharded = plan_options.zero_stage == 3
    recomputes = plan_options.recompute is Recompute.FULL
    yield "gradient_checkpointing", recomputes and not is_sharded
    for name, axis in (("tensor_parallel_size", "tp"), ("context_parallel_size", "cp")):
        if sizes[axis] > 1:
            yield name, sizes[axis]
    if is_sharded:
        yield "dp_shard_size", sizes["dp_shard"]
        yield "dp_replicate_size", sizes["dp_replicate"]
        yield "fsdp_version", 2
        if accumulates_shards(plan):
            yield "accelerator_config", ACCUMULATION
        yield (
            "fsdp_config",
            {
                "reshard_after_forward": plan_options.reshard_after_forward,
                "offload_params": plan_options.offload is Offload.STATE,
                "activation_checkpointing": recomputes,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "state_dict_type": "SHARDED_STATE_DICT",
            },
        )
