"""The table of export targets; a plan is rendered for one, and its files are written whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.registry import Registry
from meshwright.train.answer import Plan

Files = Mapping[str, str] | Mapping[str, bytes]
"""Content by name; large files are made when they are asked for."""


class Exporter(Protocol):
    """One framework or simulator: what it cannot express, and the files that express the rest."""

    title: str
    """What reads the files, and the version whose names are written."""
    is_text: bool
    """Whether the files can be shown."""

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return everything that this target cannot express, with the nearest fix."""

    @staticmethod
    def render(plan: Plan) -> Files:
        """Return the files by name, for a plan that is not refused."""


exporters: Registry[type[Exporter]] = Registry("export target")


def refusals(plan: Plan, target: str) -> list[Fault]:
    """Return everything of a plan that a target cannot express."""
    return list(exporters[target].refusals(plan))


def rendered(plan: Plan, target: str) -> Files:
    """Return the files of a target by name.

    Raises
    ------
    UnknownNameError
        When there is no such target; lists the near ones.
    UnsupportedError
        When the target cannot express the plan; names everything that it cannot.
    """
    exporter = exporters[target]
    faults = refusals(plan, target)
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"{exporter.title} cannot express this plan\n{lines}", faults)
    return exporter.render(plan)


def export(plan: Plan, target: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write the files of a target into a folder, and return their paths.

    Every file is written under another name first and moved there when all are complete. A file
    that is there with the same content stays; one with other content is replaced with ``force``.

    Raises
    ------
    UnsupportedError
        When the target cannot express the plan; nothing is written.
    SpecError
        When a file with other content is in the way.
    """
    files, folder = rendered(plan, target), Path(folder)
    if not force:
        _refuse_other_content(files, folder)
    folder.mkdir(parents=True, exist_ok=True)
    moves = [(folder / f".{name}.partial", folder / name) for name in files]
    try:
        for (partial, _), name in zip(moves, files, strict=True):
            content = _encoded(files[name])
            partial.write_bytes(content)
            if content.startswith(b"#!"):
                partial.chmod(0o755)
        for partial, path in moves:
            partial.replace(path)
    finally:
        for partial, _ in moves:
            partial.unlink(missing_ok=True)
    return [path for _, path in moves]


def _refuse_other_content(files: Files, folder: Path) -> None:
    """Raise an error that names each file that is there with other content."""
    faults = [
        Fault(str(folder / name), "is there with other content", "--force, or another --out")
        for name in files
        if _holds_other(folder / name, files, name)
    ]
    if faults:
        raise SpecError(faults)


def _holds_other(path: Path, files: Files, name: str) -> bool:
    """Return whether something else than the content of a file is at a path."""
    if path.is_file():
        return path.read_bytes() != _encoded(files[name])
    return path.exists() or path.is_symlink()


def _encoded(content: str | bytes) -> bytes:
    """Return the bytes of a text or of what is none."""
    return content.encode("utf-8") if isinstance(content, str) else content
