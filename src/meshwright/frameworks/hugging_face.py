"""The Trainer of Hugging Face: options of ``run_clm.py``, of TRL's ``sft.py`` for adapters.

Source: transformers 5.23, ``TrainingArguments`` and ``examples/pytorch/language-modeling``; TRL
0.24 (2025-10), ``trl/scripts/sft.py``, ``SFTConfig.max_length`` and ``ModelConfig.lora_r``,
``lora_target_modules``, ``load_in_4bit``; PEFT 0.17, ``LoraConfig``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from meshwright.frameworks.launch import micro_batches, words_of
from meshwright.frameworks.table import Value, Words, dashed, load_table
from meshwright.spec.workload import Adapters
from meshwright.train.answer import Plan

PROGRAM = "run_clm.py"
ADAPTER_PROGRAM = "sft.py"
MODULES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj",
           "up": "up_proj", "down": "down_proj"}  # fmt: skip
"""Products with adapters, as most models of transformers call them."""
LATENT_MODULES = {"q": "q_proj q_a_proj q_b_proj", "k": "kv_a_proj_with_mqa", "v": "kv_b_proj",
                  "o": "o_proj"}  # fmt: skip
"""Products with adapters in models with latent attention."""
USUAL = Adapters(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"))
"""Adapters of a plan that states none: the usual rank of TRL, on all products."""
EACH_BATCH = "sync_each_batch"
"""Field of ``GradientAccumulationPlugin`` of accelerate: gradients are summed over ranks after each
micro-batch. Otherwise whole ones are kept until the last one (``Trainer``, ``no_sync``)."""
ACCUMULATION = {"gradient_accumulation_kwargs": {EACH_BATCH: True}}
STORED = {
    "bitsandbytes nf4": ("has_4_bits",),
    "bitsandbytes nf4 with narrow scales": ("has_4_bits", "has_narrow_scales"),
    "bitsandbytes int8": ("has_8_bits",),
}
"""Frozen weights in narrow formats, in words of TRL."""


def adapters_of(plan: Plan) -> Adapters | None:
    """Return the adapters that a plan trains; None: it trains the weights."""
    work = plan.workload
    return (work.adapters or USUAL) if work.optimizer.freezes_weights else None


def modules_of(plan: Plan, adapters: Adapters) -> list[str]:
    """Return the modules that have adapters, by their names in transformers."""
    is_latent = any(attention.kind == "mla" for attention in plan.model.attentions)
    names = MODULES | LATENT_MODULES if is_latent else MODULES
    return [name for target in adapters.targets for name in names[target].split()]


def accumulates_shards(plan: Plan) -> bool:
    """Return whether FSDP2 of accelerate has to be told to sum gradients after each micro-batch."""
    software, several = plan.workload.software, micro_batches(plan) > 1
    is_sharded = software.shards_by_unit and plan.best.plan_options.zero_stage >= 2
    return is_sharded and several and not software.sums_in_last_pass


def program_of(plan: Plan) -> str:
    """Return the script that trains a plan."""
    return ADAPTER_PROGRAM if plan.workload.optimizer.freezes_weights else PROGRAM


def notes(plan: Plan, script: str) -> tuple[str, ...]:
    """Return the comments of a script: files to put beside it, arguments to add to the call."""
    if plan.workload.optimizer.freezes_weights:
        usual = f"the plan states no rank, and its price leaves adapters out: {USUAL.rank} here"
        return (
            *(() if plan.workload.adapters else (usual,)),
            f"put {ADAPTER_PROGRAM} of TRL (trl/scripts) beside this file,",
            "and add what a plan does not hold (weights, data), as in",
            f"  {script} --model_name_or_path NAME --dataset_name NAME --output_dir FOLDER",
        )
    return (
        f"put {PROGRAM} of transformers (examples/pytorch/language-modeling) beside this file,",
        "and add what a plan does not hold (weights, data), as in",
        f"  {script} --model_name_or_path NAME --dataset_name NAME --output_dir FOLDER",
    )


def trainer_options(plan: Plan, *, recomputes: bool) -> Iterator[Words]:
    """Yield the options of the batch, the precision and, where it is its task, recomputation.

    fp8 is set by Accelerate. SFTConfig of TRL recomputes unless it is told otherwise.
    """
    work, adapters, stated = plan.workload, adapters_of(plan), words_of(plan)
    words: dict[str, Value] = {
        name: stated[name] for name in ("micro_batch_size", "accumulation", "steps")
    }
    words |= {name: "true" for name in ("tf32", "bf16", "fp16") if work.precision.matmul == name}
    words["compiled"] = "true" if work.software.compiled else None
    words["recomputes"] = "true" if recomputes else None if adapters is None else "false"
    if accumulates_shards(plan):
        words["accelerator"] = json.dumps(ACCUMULATION)
    if adapters is None:
        words |= {"trains_weights": True, "tokens_of_block": work.sequence_length}
    else:
        words |= {
            "has_adapters": True, "lora_rank": adapters.rank,
            "modules": tuple(modules_of(plan, adapters)),
            "tokens_of_sequence": work.sequence_length,
        }  # fmt: skip
        if work.precision.weight_format is not None:
            words |= dict.fromkeys(STORED[work.precision.weight_format.name], True)
    yield from dashed(load_table("transformers").write(words))
