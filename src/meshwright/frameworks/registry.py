"""Table of export targets; a plan is rendered for one, and its files are written whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.files import write_all
from meshwright.frameworks.framework import Files
from meshwright.frameworks.framework import exporters as exporters
from meshwright.frameworks.launchers import with_launcher
from meshwright.train.answer import Plan
from meshwright.train.launched import framework_of
from meshwright.train.price import plan_under
from meshwright.train.question import under


def refusals(plan: Plan, target: str) -> list[Fault]:
    """Return everything of a plan that a target cannot express, under the target's framework."""
    exporter, operators = exporters[target], plan.operators
    if operators is not None and len(operators.options) > 1 and not exporter.takes_operators:
        message = f"{len(operators.options)} strategies for the operators; it takes one for all"
        fix = "plan without --with per_operator, or export shardings"
        return [Fault("operators", message, fix)]
    try:
        return list(exporter.refusals(_asked(plan, exporter.catalog)))
    except SpecError as error:
        return list(exporter.refusals(plan)) or list(error.faults)


def _asked(plan: Plan, framework: str) -> Plan:
    """Return a plan with the software of a framework, and its old price; empty: none has it."""
    if not framework or framework_of(plan.workload) == framework:
        return plan
    return replace(plan, workload=under(plan.problem, framework).workload)


def priced_for(plan: Plan, target: str) -> Plan:
    """Return a plan that a target does not refuse with the price of the target's framework."""
    framework = exporters[target].catalog
    return plan_under(plan, framework) if framework else plan


def memory_warning(plan: Plan, target: str) -> str:
    """Return the memory that a plan lacks under the framework of a target; empty: it fits."""
    found = priced_for(plan, target)
    shortage, framework = found.best.estimate.shortage_in_words(), exporters[target].catalog
    if not shortage:
        return ""
    under_it = f" under {found.workload.software.framework or framework}" if framework else ""
    asked = f"; plan with --framework {framework}" if framework else ""
    return f"the plan does not fit{under_it}, {shortage}{asked}"


def rendered(plan: Plan, target: str, launcher: str | None = None) -> Files:
    """Return the files of a target by name; a launcher adds one that starts them on all hosts.

    Raises
    ------
    UnknownNameError
        When there is no such target; lists the near ones.
    UnsupportedError
        When the target cannot express the plan; names everything that it cannot.
    """
    exporter, title = exporters[target], exporters[target].table.written
    faults = refusals(plan, target)
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"{title} cannot express this plan\n{lines}", faults)
    plan = priced_for(plan, target)
    if launcher is None:
        return exporter.render(plan)
    if not exporter.is_text:
        raise UnsupportedError(f"--launcher {launcher} starts scripts; {title} are none")
    texts = {name: str(text) for name, text in exporter.render(plan).items()}
    return with_launcher(plan, texts, launcher)


def export(
    plan: Plan,
    target: str,
    folder: str | Path,
    *,
    launcher: str | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write the files of a target into a folder, and return their paths.

    A file that is there with the same content stays; another one is replaced with ``force``.

    Parameters
    ----------
    progress
        Function called with the number of files written, and the number of those to write.

    Raises
    ------
    UnsupportedError
        When the target cannot express the plan; nothing is written.
    SpecError
        When a file is in the way.
    """
    files = rendered(plan, target, launcher)
    return write_all(Path(folder), files, force=force, progress=progress)
