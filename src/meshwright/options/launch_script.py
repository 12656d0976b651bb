"""A launch script of Megatron-LM as options: the strategy and the batch of a job that ran."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from meshwright.base.errors import Fault, SpecError
from meshwright.options.question import option_of

MARK = "--tensor-model-parallel-size"
"""Every script of Megatron-LM that splits a model has it."""
NUMBERS = {
    MARK: "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-virtual-stages-per-pipeline-rank": "num_virtual_stages",
    "--micro-batch-size": "micro_batch_size",
    "--global-batch-size": "global_batch",
    "--seq-length": "seq",
}
SHARDING = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}
NOT_READ = {
    "--num-layers-per-virtual-pipeline-stage": "--num-virtual-stages-per-pipeline-rank",
    "--num-distributed-optimizer-instances": "--dp-shard next to the script",
    "--use-tp-pp-dp-mapping": "the default order of ranks",
    "--pipeline-model-parallel-layout": "layers dealt evenly",
}
"""Options that change the price but have no counterpart here, and what to state instead."""


def with_script(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options with those of the launch script, where one is named.

    Raises
    ------
    SpecError
        The script cannot be read, or states what an option states as well.
    """
    if args.script is None:
        return args
    stated = options_of_script(Path(args.script))
    faults = [
        Fault(option_of(name), "the script states this")
        for name in stated
        if getattr(args, name) not in (None, False)
    ]
    if faults:
        raise SpecError(faults)
    return argparse.Namespace(**{**vars(args), **stated})


def options_of_script(path: Path) -> dict[str, str | bool]:
    """Return what a script states, by the names that the options of this program have.

    What no price depends on is passed over. Source: megatron-core 0.19.2,
    ``megatron.training.arguments``.
    """
    words = _words(path)
    if MARK not in words:
        message = f"no script of Megatron-LM: it has no {MARK}"
        raise SpecError(Fault("", message, "state the strategy as options"), origin=str(path))
    faults = [
        Fault(name, "is not read", f"state {instead}")
        for name, instead in NOT_READ.items()
        if name in words
    ]
    if faults:
        raise SpecError(faults, origin=str(path))
    found: dict[str, str | bool] = {
        name: words[option] for option, name in NUMBERS.items() if option in words
    }
    return found | _choices(words) | _software(words)


def _words(path: Path) -> Mapping[str, str]:
    """Return the options of a shell script with their values; empty: a flag."""
    from meshwright.catalog.files import read_text

    text = read_text(path)
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise SpecError(Fault("", f"no shell script: {error}"), origin=str(path)) from error
    found: dict[str, str] = {}
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name] = value if equals or following.startswith("-") else following
    return found


def _choices(words: Mapping[str, str]) -> dict[str, str | bool]:
    """Return the categorical choices."""
    is_sharded = "--use-distributed-optimizer" in words
    strategy = words.get("--data-parallel-sharding-strategy", "")
    recompute = words.get("--recompute-granularity", "none")
    if "--recompute-activations" in words:
        recompute = "selective"
    found: dict[str, str | bool] = {
        "zero_stage": SHARDING.get(strategy, "1" if is_sharded else "0"),
        "recompute": recompute,
        "overlap_data_parallel": "on" if "--overlap-grad-reduce" in words else "off",
        "sequence_parallel": "on" if "--sequence-parallel" in words else "off",
    }
    if words.get("--cp-comm-type") == "a2a":
        found["context_kind"] = "ulysses"
    if "--optimizer-cpu-offload" in words:
        found["offload"] = "optimizer"
    return found


def _software(words: Mapping[str, str]) -> dict[str, str | bool]:
    """Return types of numbers, and what the software hides or adds."""
    kinds = (("--fp8-format", "fp8"), ("--bf16", "bf16"), ("--fp16", "fp16"))
    precision = next((name for option, name in kinds if option in words), "fp32")
    found: dict[str, str | bool] = {"precision": precision}
    if "--grad-reduce-in-bf16" in words:
        found["optimizer"] = "megatron-adam-bf16-gradients"
    for name, is_on in (
        ("cuda_graphs", "--cuda-graph-impl" in words or "--enable-cuda-graph" in words),
        ("async_tp", "--tp-comm-overlap" in words),
        ("dropout", words.get("--hidden-dropout", "0.1").strip("0.") != ""),
    ):
        if is_on:
            found[name] = True
    return found
