"""Questions of the page: the shown options, their first values, and their way back.

Options are those of ``plan`` and ``estimate`` (``options/table.py``); all values are texts, as
typed. Declarations of a plan file go by their names beside those of the catalog.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from meshwright.base.errors import Fault, SpecError
from meshwright.options.table import FIXED, Option, options_from_keywords, question

if TYPE_CHECKING:
    from meshwright.train.answer import Plan

ASKED = question(is_needed=False)
OPTIONS: Mapping[str, Option] = {option.name: option for option in (*ASKED, *FIXED)}
FIRST = ("model", "on", "seq", "global_batch", "framework", "precision",
         "tp", "pp", "cp", "dp", "ep", "tatp", "mbs", "vpp", "recompute", "schedule", "zero",
         "offload")  # fmt: skip
"""Options that the page shows at once; all others are one click away."""
EXAMPLE = {"model": "llama3-70b", "on": "64xH100", "seq": "8k", "global_batch": "1024"}
"""The question of the page where none was given."""
SIZES = (8, 64, 512, 4096)
"""Proposed numbers of devices for each chip, where they are valid."""


@dataclass(frozen=True)
class Start:
    """Options and declarations at the start of the page."""

    options: Mapping[str, str]
    declared: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    """Declarations of a plan file, by option and name: the catalog may lack them."""
    notes: Sequence[str] = ()


def start_of(args: Namespace) -> Start:
    """Return the start that the options of ``explore`` state: a plan, a question or an example."""
    given = {
        option.name: "on" if option.kind == "flag" else str(getattr(args, option.target))
        for option in OPTIONS.values()
        if getattr(args, option.target) not in (None, False)
    }
    if given.get("calibration") == OPTIONS["calibration"].default:
        del given["calibration"]
    named = given.get("model", "")
    if not (named.endswith(".json") and Path(named).name != "config.json"):
        return Start(given or EXAMPLE)
    if idle := sorted(given.keys() - {"model"}):
        faults = [Fault(OPTIONS[name].flag, "the plan file states this") for name in idle]
        raise SpecError(faults)
    from meshwright.train.plan_file import load

    return start_of_plan(load(named))


def start_of_plan(plan: Plan) -> Start:
    """Return the options that state a plan, with its declarations."""
    work, declared = plan.workload, dict[tuple[str, str], Any]()

    def named(option: str, name: str, declaration: object) -> str:
        declared[option, name] = declaration
        return name

    ramp = work.batch_ramp
    texts = {
        "model": named("model", plan.model.name, plan.model),
        "on": named("on", plan.system.name, plan.system),
        "seq": str(work.sequence_length),
        "global_batch": str(work.global_batch_size),
        "framework": work.software.framework,
        "precision": named("precision", work.precision.matmul, work.precision),
        "optimizer": named("optimizer", work.optimizer.name, work.optimizer),
        "lora_rank": str(work.adapters.rank) if work.adapters else "",
        "lora_targets": "+".join(work.adapters.targets) if work.adapters else "",
        "tokens": "" if work.total_tokens is None else f"{work.total_tokens:.0f}",
        "document_length": "" if work.document_length is None else str(work.document_length),
        "batch_ramp": "" if ramp is None else f"{ramp.start},{ramp.increment},{ramp.sequences}",
        "imbalance": "" if work.expert_load_imbalance == 1 else f"{work.expert_load_imbalance:g}",
        "cuda_graphs": "on" if work.software.cuda_graphs else "",
        "async_tp": "on" if work.software.async_tensor_parallel else "",
        "dropout": "on" if work.software.dropout else "",
        "calibration": "" if plan.calibration == OPTIONS["calibration"].default
        else plan.calibration,
    }  # fmt: skip
    stated = {name: text for name, text in texts.items() if text} | options_of(plan, plan.best)
    start = Start(stated, declared)
    from meshwright.options.question import question_of

    asked = question_of(arguments("estimate", stated, start))
    if asked.workload == work:
        return start
    note = "options cannot say all of the software of this plan file: its habits are priced"
    return Start(stated, declared, (note,))


def options_of(plan: Plan, entry: Any) -> dict[str, str]:
    """Return the options that state the strategy of a candidate of a plan."""
    from meshwright.options.stated import strategy_options

    devices, software = plan.system.num_alive, plan.workload.software
    return strategy_options(entry.strategy, entry.plan_options, plan.model, devices, software)


def arguments(verb: str, options: Mapping[str, object], start: Start) -> Namespace:
    """Return the options of the page in the form of the command line for a verb.

    Raises
    ------
    SpecError
        The page lacks an option, or a value is not text.
    """
    faults = [
        Fault(str(name), "is no option of the explorer")
        for name in options if name not in OPTIONS
    ] + [
        Fault(OPTIONS[name].flag, f"found a {type(value).__name__}, expected text")
        for name, value in options.items() if name in OPTIONS and not isinstance(value, str)
    ]  # fmt: skip
    if faults:
        raise SpecError(faults)
    given: dict[str, object] = {}
    for name, value in options.items():
        text = str(value).strip()
        if text:
            is_flag = OPTIONS[name].kind == "flag"
            given[name] = text == "on" if is_flag else start.declared.get((name, text), text)
    return options_from_keywords(verb, given)


def catalog(start: Start) -> dict[str, Any]:
    """Return the content of the page: options, the names that they take, and the first values."""
    names = names_taken(start)
    titles = {"": "Question", FIXED[0].group: "Strategy"}
    listed = [
        {
            "name": option.name,
            "label": option.name.replace("_", " "),
            "flag": option.name.upper() if option.is_positional else option.flag,
            "help": option.help,
            "metavar": option.metavar,
            "kind": option.kind,
            "group": titles[option.group],
            "choices": list(option.choices),
            "names": names.get(option.name, []),
            "is_first": option.name in FIRST,
        }
        for option in sorted(OPTIONS.values(), key=_place)
    ]
    from meshwright.frameworks.registry import exporters

    targets = [
        {"name": name, "title": target.written} for name, target in exporters.items()
        if target.is_text
    ]  # fmt: skip
    return {"options": listed, "start": dict(start.options), "notes": list(start.notes),
            "targets": targets}  # fmt: skip


def _place(option: Option) -> int:
    """Return the place of an option: those of the first screen in their order, then the rest."""
    return FIRST.index(option.name) if option.name in FIRST else len(FIRST)


def names_taken(start: Start) -> dict[str, list[str]]:
    """Return the names that options propose, from the catalog and from a plan file."""
    from meshwright.catalog.frameworks import framework_names
    from meshwright.catalog.huggingface.quantization import USUAL
    from meshwright.catalog.models import model_names
    from meshwright.catalog.networks import networks
    from meshwright.catalog.systems import chip_names, comes_in, system_names
    from meshwright.catalog.workloads import optimizer_names
    from meshwright.spec.system import DType

    systems = [f"{size}x{chip}" for chip in chip_names() for size in SIZES if comes_in(chip, size)]
    found: dict[str, Sequence[str]] = {
        "model": model_names(), "on": [*systems, *system_names()], "network": list(networks()),
        "framework": framework_names(), "optimizer": optimizer_names(),
        "precision": get_args(DType), "weights": list(USUAL),
    }  # fmt: skip
    for option, name in start.declared:
        found[option] = [name, *(other for other in found[option] if other != name)]
    return {option: list(names) for option, names in found.items()}


def command_of(verb: str, options: Mapping[str, str]) -> str:
    """Return the command line with the same answer."""
    words = ["meshwright", verb]
    for name, text in options.items():
        option = OPTIONS[name]
        flag = [] if option.is_positional else [option.flag]
        words += flag if option.kind == "flag" else [*flag, text]
    return shlex.join(words)
