"""Programs with files that are known and not read: refused by name, with an alternative.

Source: verl 0.8 ``verl/trainer``; Primus ``examples/run_pretrain.sh`` and ``primus-cli``; GPT-NeoX
2.0 ``deepy.py``; llm-foundry 0.22 ``scripts/train``; NeMo 1.23
``examples/nlp/language_modeling``; ms-swift 4 ``swift/cli/main.py``; NeMo 2 ``nemo llm``;
ColossalAI ``colossalai run``; Levanter ``levanter.main``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.base.errors import Fault
from meshwright.frameworks.reading.given import Tree

_ASK = "meshwright plan MODEL --on SYSTEM --seq TOKENS --global-batch N"


@dataclass(frozen=True)
class Unread:
    """A program that is not read."""

    title: str
    command: str
    """Pattern of its words, joined by blanks."""
    keys: tuple[frozenset[str], ...] = ()
    """Sets of names, each at the top of some of its files."""
    instead: str = ""
    """Framework under which the same question can be asked."""

    @property
    def fault(self) -> Fault:
        """The refusal."""
        option = f" --framework {self.instead}" if self.instead else ""
        return Fault("", f"belongs to {self.title}, which is not read", f"{_ASK}{option}")


UNREAD = (
    Unread("ms-swift", r"(^|[ /])(swift|megatron) (sft|pt|rlhf)\b|swift[./]cli[./]\w+",
           instead="accelerate"),
    Unread("verl", r"\bverl[./]", (frozenset({"actor_rollout_ref"}),), "fsdp"),
    Unread("Primus", r"\bprimus(-cli)?\b|examples/run_(local_|slurm_)?pretrain\.sh",
           (frozenset({"work_group", "modules"}), frozenset({"exp_name", "modules"})), "megatron"),
    Unread("GPT-NeoX", r"\bdeepy\.py\b",
           (frozenset({"pipe_parallel_size", "model_parallel_size"}),
            frozenset({"pipe_parallel_size", "num_layers"})), "megatron-deepspeed"),
    Unread("llm-foundry", r"(^|[ /])composer\b|llmfoundry",
           (frozenset({"global_train_batch_size", "device_train_microbatch_size"}),
            frozenset({"global_train_batch_size", "fsdp_config"}),
            frozenset({"variables", "train_loader"})), "llm-foundry"),
    Unread("NeMo 1", r"megatron_(gpt|llama|gpt_finetuning|bert|t5)_?(pretraining|finetuning)?\.py",
           (), "megatron"),
    Unread("NeMo 2", r"(^|[ /])nemo llm\b", (), "megatron-bridge"),
    Unread("NeMo AutoModel", r"(^|[ /])automodel \w+|nemo_automodel", (), "automodel"),
    Unread("ColossalAI", r"(^|[ /])colossalai run\b"),
    Unread("Levanter", r"\blevanter[./]"),
    Unread("PPO in torchtune", r"\bppo_full_finetune",
           (frozenset({"policy_model", "reward_and_value_model"}),)),
)  # fmt: skip


def unread_command(words: Sequence[str]) -> Unread | None:
    """Return the known but unread program that a command starts; None: no such program."""
    text = " ".join(words[:3])
    return next((one for one in UNREAD if re.search(one.command, text)), None)


def unread_tree(tree: Tree) -> Unread | None:
    """Return the known but unread program that a tree is a file of; None: no such program."""
    names = {str(name).replace("-", "_") for name in tree}
    return next((one for one in UNREAD if any(keys <= names for keys in one.keys)), None)
