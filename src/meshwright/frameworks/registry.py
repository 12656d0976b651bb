"""Table of export targets; a plan is rendered for one, and its files are written whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.files import write_all
from meshwright.frameworks.framework import Files
from meshwright.frameworks.framework import exporters as exporters
from meshwright.frameworks.launchers import with_launcher
from meshwright.train.answer import Plan
from meshwright.train.price import plan_under


def refusals(plan: Plan, target: str) -> list[Fault]:
    """Return everything of a plan that a target cannot express, or that has no memory there."""
    try:
        return list(exporters[target].refusals(_under(plan, target)))
    except SpecError as error:
        return list(exporters[target].refusals(plan)) or list(error.faults)


def _under(plan: Plan, target: str) -> Plan:
    """Return a plan as the framework of a target runs it, with its own price."""
    framework = exporters[target].catalog
    return plan_under(plan, framework) if framework else plan


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
    plan = _under(plan, target)
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
