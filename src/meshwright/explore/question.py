"""Questions of the page: the shown options, their first values, and their way back.

Options are those of a question of training (``ask/questions.py``); all values are texts, as
typed. Declarations of a plan file go by their names beside those of the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meshwright.ask.declared import declared as declarations
from meshwright.ask.names import LISTS, list_of
from meshwright.ask.questions import Explore, Fixed, Strategy
from meshwright.ask.record import Option, Question
from meshwright.ask.stated import strategy_options
from meshwright.base.errors import Fault, SpecError
from meshwright.frameworks.registry import exporters
from meshwright.spec.workload import BatchRamp
from meshwright.train.answer import Plan
from meshwright.train.plan_file import load

OPTIONS: Mapping[str, Option] = {
    name: option for name, option in Strategy.options.items()
    if not option.is_hidden
}  # fmt: skip
FIRST = ("model", "on", "seq", "global_batch", "framework", "precision",
         "tp", "pp", "cp", "dp", "ep", "tatp", "mbs", "vpp", "recompute", "schedule", "zero",
         "offload")  # fmt: skip
"""Options that the page shows at once; all others are one click away."""
EXAMPLE = {"model": "llama3-70b", "on": "64xH100", "seq": "8k", "global_batch": "1024"}
"""The question of the page where none was given."""


@dataclass(frozen=True)
class Start:
    """Options and declarations at the start of the page."""

    options: Mapping[str, str]
    declared: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    """Declarations of a plan file, by option and name: the catalog may lack them."""
    notes: Sequence[str] = ()


def start_of(asked: Explore) -> Start:
    """Return the start of ``explore``: a plan, a question or an example."""
    asked.reading().done()
    given = {
        name: "on" if option.is_flag else str(asked.stated[name])
        for name, option in OPTIONS.items() if name in asked.stated
    }  # fmt: skip
    named = given.get("model", "")
    if not (named.endswith(".json") and Path(named).name != "config.json"):
        return Start(given or EXAMPLE)
    if idle := sorted(given.keys() - {"model"}):
        faults = [Fault(OPTIONS[name].flag, "the plan file states this") for name in idle]
        raise SpecError(faults)
    return start_of_plan(load(named))


def start_of_plan(plan: Plan) -> Start:
    """Return the options that state a plan, with its declarations."""
    work, declared = plan.workload, dict[tuple[str, str], Any]()

    def named(option: str, name: str, declaration: object) -> str:
        declared[option, name] = declaration
        return name

    texts = {name: _text_in(work, option.field or "") for name, option in OPTIONS.items()} | {
        "model": named("model", plan.model.name, plan.model),
        "on": named("on", plan.system.name, plan.system),
        "framework": work.software.framework,
        "precision": named("precision", work.precision.matmul, work.precision),
        "optimizer": named("optimizer", work.optimizer.name, work.optimizer),
        "calibration": plan.calibration.removeprefix(OPTIONS["calibration"].default),
    }
    if work.stated is not None and not {"optimizer", "gradient_dtype"} & set(work.stated):
        del texts["optimizer"]
    stated = {name: text for name, text in texts.items() if text} | options_of(plan, plan.best)
    start = Start(stated, declared)
    asked = declarations(question_of(Strategy, stated, start)).workload
    if asked.model_copy(update={"stated": work.stated}) == work:
        return start
    note = "options cannot say all of the software of this plan file: its habits are priced"
    return Start(stated, declared, (note,))


def _text_in(workload: Any, field: str) -> str:
    """Return the text of a field of a workload; empty where it is as usual."""
    found = workload
    for name in field.split("."):
        default = type(found).model_fields[name].default if hasattr(found, name) else None
        found = getattr(found, name, default)
        if found is None or found == default:
            return ""
    if isinstance(found, tuple):
        return "+".join(found)
    if isinstance(found, BatchRamp):
        return ",".join(str(number) for number in dict(found).values())
    return "on" if found is True else f"{found:.15g}" if isinstance(found, float) else str(found)


def options_of(plan: Plan, entry: Any) -> dict[str, str]:
    """Return the options that state the strategy of a candidate of a plan."""
    devices, software = plan.system.num_alive, plan.workload.software
    return strategy_options(entry.strategy, entry.plan_options, plan.model, devices, software)


Asked = TypeVar("Asked", bound=Question)


def question_of(question: type[Asked], options: Mapping[str, object], start: Start) -> Asked:
    """Return the question that the options of the page ask.

    Raises
    ------
    SpecError
        The page lacks an option, or a value is not text.
    """
    faults = [
        Fault(str(name), "is not an option of the explorer")
        for name in options if name not in OPTIONS
    ] + [
        Fault(OPTIONS[name].flag, f"found a {type(value).__name__}, expected text")
        for name, value in options.items() if name in OPTIONS and not isinstance(value, str)
    ]  # fmt: skip
    if faults:
        raise SpecError(faults)
    texts = {name: text for name, value in options.items() if (text := str(value).strip())}
    return question.ask({
        name: text == "on" if OPTIONS[name].is_flag else start.declared.get((name, text), text)
        for name, text in texts.items()
    })  # fmt: skip


def catalog(start: Start) -> dict[str, Any]:
    """Return the content of the page: options, the names that they take, and the first values."""
    names = names_taken(start)
    listed = [
        {
            "name": option.name,
            "label": option.name.replace("_", " "),
            "flag": option.flag,
            "help": option.help,
            "metavar": option.metavar,
            "kind": "flag" if option.is_flag else "value",
            "group": "Strategy" if option.name in Fixed.options else "Question",
            "choices": list(option.choices),
            "names": names.get(option.name, []),
            "is_first": option.name in FIRST,
        }
        for option in sorted(OPTIONS.values(), key=_place)
    ]
    targets = [
        {"name": name, "title": target.table.written} for name, target in exporters.items()
        if target.is_text
    ]  # fmt: skip
    return {"options": listed, "start": dict(start.options), "notes": list(start.notes),
            "targets": targets}  # fmt: skip


def _place(option: Option) -> int:
    """Return the place of an option: those of the first screen in their order, then the rest."""
    return FIRST.index(option.name) if option.name in FIRST else len(FIRST)


def names_taken(start: Start) -> dict[str, list[str]]:
    """Return the names that options propose, from the catalog and from a plan file."""
    lists = {name: list_of(option) for name, option in OPTIONS.items()}
    found = {name: list(LISTS[listed]()) for name, listed in lists.items() if listed}
    for option, name in start.declared:
        found[option] = [name, *(other for other in found[option] if other != name)]
    return found
