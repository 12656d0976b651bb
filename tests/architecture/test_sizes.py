"""Ceilings on files, functions, folders and the public face: exceeding one is a design question."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "meshwright"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES = 400
FUNCTION_LINES = 50
FOLDER_MODULES = 12
PUBLIC_NAMES = 20
FREE_FOLDERS = {PACKAGE, PACKAGE / "cli", PACKAGE / "studies"}
"""They grow by one file for each facade, command and study."""
REGISTERS = re.compile(r"\.register\(|^@collective\(", re.MULTILINE)
"""How a file says that it is an entry of a registry."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(source: str) -> list[str]:
    """Return the functions of a source that exceed the ceiling, docstring included."""
    return [
        f"{node.name} at line {node.lineno}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_file_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_functions_are_short(path):
    assert not long_functions(path.read_text(encoding="utf-8"))


def test_a_long_function_is_noticed():
    body = "    x = 0\n"
    assert not long_functions("def f():\n" + body * (FUNCTION_LINES - 1))
    assert long_functions("def f():\n" + body * FUNCTION_LINES) == ["f at line 1"]


def counted_modules(folder: Path) -> list[str]:
    """Return the modules of a folder, entries of a registry left out: one file each by design."""
    return [
        path.name
        for path in folder.glob("*.py")
        if path.name != "__init__.py" and not REGISTERS.search(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES}), ids=relative)
def test_folder_is_small(folder):
    assert folder in FREE_FOLDERS or len(counted_modules(folder)) <= FOLDER_MODULES


def test_the_public_face_is_small():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    names = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert sum(len(listed) for listed in names) <= PUBLIC_NAMES
