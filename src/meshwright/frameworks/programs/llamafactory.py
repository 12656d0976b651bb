"""LLaMA-Factory: one YAML file around the Trainer of Hugging Face, FSDP or DeepSpeed.

Source: hiyouga/LLaMA-Factory 0.9.5 (2026-05), ``src/llamafactory/hparams/*_args.py`` and
``parser.py``; ``src/train.py`` and ``llamafactory-cli train`` read the same file.
"""

from __future__ import annotations

from meshwright.frameworks.framework import framework
from meshwright.frameworks.programs.transformers import (
    Transformers,
    gather,
    read_gathered,
)
from meshwright.frameworks.reading.given import Given, Options
from meshwright.frameworks.reading.job import JobContext

STAGES = {"pt": True, "sft": False}
"""Stages that are read, and whether each packs its sequences by default (``parser.py``)."""


@framework("llamafactory", reads="llamafactory")
class LlamaFactory(Transformers):
    """A job of LLaMA-Factory."""

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program."""
        gather(given, setting)
        self.table.judge(given)
        stage = given.text("stage") or "sft"
        if stage not in STAGES:
            given.refuse(
                "stage", f"{stage}: training on preferences or rewards is not read", "pt or sft"
            )
        given.state("packing", STAGES.get(stage, False))
        given.state("finetuning_type", "lora")
        given.state("per_device_train_batch_size", 8)
        given.restate("gradient_checkpointing", not given.flag("disable_gradient_checkpointing"))
        given.state("lora_rank", 8)
        given.state("lora_target", "all")
        tuned = given.peek("finetuning_type")
        if tuned not in ("lora", "full"):
            given.refuse("finetuning_type", f"{tuned} is not read", "lora or full")
            given.restate("finetuning_type", "full")
        _quantized(given)
        if given.flag("fp8"):
            given.restate("mixed_precision", "fp8")
        if given.peek("flash_attn") == "disabled":
            given.restate("flash_attn", "eager")
        pure = given.flag("pure_bf16")
        if pure:
            given.restate("bf16", True)
        workers = given.whole("ray_num_workers")
        setting.num_devices = setting.num_devices or workers
        framework, options = read_gathered(given, setting)
        if pure and options["optimizer"] is None and framework == "accelerate":
            options["optimizer"] = "adam-bf16"
        return framework, options


def _quantized(given: Given) -> None:
    """State the weights that bitsandbytes narrows, as the Trainer knows them."""
    bits = given.whole("quantization_bit")
    method = given.text("quantization_method") or "bnb"
    if bits is None:
        return
    if method not in ("bnb", "bitsandbytes") or bits not in (4, 8):
        given.refuse("quantization_bit", f"{method} with {bits} bits is not read", "bnb, 4 or 8")
        return
    given.state("load_in_4bit" if bits == 4 else "load_in_8bit", True)
    given.state("bnb_4bit_quant_type", given.text("quantization_type") or "nf4")
    given.state("bnb_4bit_use_double_quant", given.flag("double_quantization", default=True))
