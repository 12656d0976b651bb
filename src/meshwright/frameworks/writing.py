"""Writing the files of a target: all of them, each whole, and nothing of the user's replaced."""

from __future__ import annotations

from pathlib import Path

from meshwright.base.errors import Fault, SpecError
from meshwright.frameworks.registry import Files, rendered
from meshwright.train.answer import Plan


def export(plan: Plan, target: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write the files of a target into a folder, and return their paths.

    Every file is written beside its place first and moved there when all are complete. A file
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
