"""Docstrings begin with the quantity: a noun of the nomenclature, or an imperative with one."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "meshwright"
ROOMS = sorted(entry.name for entry in SOURCE.iterdir() if entry.suffix in ("", ".py"))
FRAGMENT = re.compile(r"(Of|That|The same|What|Return (what|how|where|whether what))\b")


def docstrings(text):
    """Return the line and the text of each docstring: of modules, of definitions, of fields."""
    return [
        (entry.lineno, entry.value.value.strip())
        for node in ast.walk(ast.parse(text))
        if isinstance(getattr(node, "body", None), list)
        for entry in node.body
        if isinstance(entry, ast.Expr)
        and isinstance(entry.value, ast.Constant)
        and isinstance(entry.value.value, str)
    ]


def fragments(text):
    """Return the lines of a file on which a docstring begins that names no quantity."""
    return [f"{line}: {words[:60]}" for line, words in docstrings(text) if FRAGMENT.match(words)]


@pytest.mark.parametrize("room", [name for name in ROOMS if not name.startswith("__py")])
def test_docstrings_begin_with_a_quantity(room):
    place = SOURCE / room
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    texts = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in files}
    assert not {name: lines for name, text in texts.items() if (lines := fragments(text))}


@pytest.mark.parametrize(
    "text",
    ['"""What a file says."""', '"""Of one host."""', 'def f():\n    """Return how far it is."""',
     'class A:\n    x: int\n    """The same of pairs [s]."""'],
)  # fmt: skip
def test_fragments_are_noticed(text):
    assert fragments(text)


@pytest.mark.parametrize("text", ['"""Whatever."""', '"""Offers."""', '"""Return whether."""'])
def test_nouns_pass(text):
    assert not fragments(text)
