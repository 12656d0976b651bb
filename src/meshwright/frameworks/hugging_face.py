"""The Trainer of Hugging Face: the options of ``run_clm.py``, for DeepSpeed and for Accelerate.

Source: transformers 5.23, ``TrainingArguments`` and ``examples/pytorch/language-modeling``.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.frameworks.launch import Words, degrees, micro_batches
from meshwright.frameworks.refusals import choice_refusal
from meshwright.train.answer import Plan

PROGRAM = "run_clm.py"
PRECISIONS: dict[str, tuple[Words, ...]] = {
    "fp32": (),
    "bf16": (("--bf16", "true"),),
    "fp16": (("--fp16", "true"),),
    "fp8": (),
}
"""What the Trainer sets itself; fp8 is the choice of Accelerate."""


def notes(script: str) -> tuple[str, ...]:
    """Return what stands beside a script, and what to add behind its name."""
    return (
        f"put {PROGRAM} of transformers (examples/pytorch/language-modeling) beside this file,",
        "and add what a plan does not hold (weights, data), as in",
        f"  {script} --model_name_or_path NAME --dataset_name NAME --output_dir FOLDER",
    )


def trainer_refusals(plan: Plan) -> Iterator[Fault]:
    """Yield what the Trainer and its models of language cannot do."""
    if not plan.workload.causal:
        yield choice_refusal("workload.causal", False, f"{PROGRAM} masks causally", "true")


def trainer_options(plan: Plan, *, recomputes: bool) -> Iterator[Words]:
    """Yield the options of the batch, the precision and, where it is its task, recomputation."""
    work = plan.workload
    yield ("--do_train",)
    yield "--per_device_train_batch_size", f"{degrees(plan)['micro_batch_size']}"
    yield "--gradient_accumulation_steps", f"{micro_batches(plan)}"
    yield "--block_size", f"{work.sequence_length}"
    if work.total_tokens is not None:
        yield "--max_steps", f"{-(-work.total_tokens // work.tokens_per_step):.0f}"
    yield from PRECISIONS[work.precision.matmul]
    if recomputes:
        yield "--gradient_checkpointing", "true"
