"""The Trainer's own options, and those of its program for language models."""

from dataclasses import dataclass

from transformers import HfArgumentParser, TrainingArguments


@dataclass
class ProgramOptions:
    """The one option of ``run_clm.py`` that a plan sets."""

    block_size: int


def read_options(words):
    """Parse the words behind ``run_clm.py``; what no parser knows is an error."""
    args, program = HfArgumentParser(
        (TrainingArguments, ProgramOptions)
    ).parse_args_into_dataclasses(words)
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    return args, {
        "micro_batch_size": args.per_device_train_batch_size,
        "num_micro_batches": args.gradient_accumulation_steps,
        "sequence_length": program.block_size,
        "precision": precision,
        "recompute": "full" if args.gradient_checkpointing else "none",
    }
