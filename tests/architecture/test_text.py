"""What tracked files must not say: unfinished work, or a path of somebody's machine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN = (".py", ".md", ".yaml", ".toml", ".json", ".txt", ".sh")
FOLDERS = ("src", "papers", "tests", "docs", "benchmarks", ".ci")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in WRITTEN and path != Path(__file__)
) + [ROOT / name for name in ("README.md", "pyproject.toml", "mw", ".ci/run")]
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError|stubs?)\b", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(work|home|root|tmp|opt|Users|mnt|srv)/\w")


def found(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the lines in which the pattern occurs, with their numbers."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"{number}: {line.strip()}" for number, line in lines if pattern.search(line)]


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine"])
def test_nothing_is_unfinished_and_no_machine_is_named(pattern):
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
    assert len(texts) > 500
    assert not {name: lines for name, text in texts.items() if (lines := found(pattern, text))}


@pytest.mark.parametrize("line", ["# TODO: later", "raise NotImplementedError", "a stub for now"])
def test_unfinished_marks_are_noticed(line):
    assert found(UNFINISHED, line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/home/someone/models", True),
        ('open("/tmp/x")', True),
        ("src/home/page", False),
        ("https://host.example/home/page", False),
    ],
)
def test_machine_paths_are_noticed(line, expected):
    assert bool(found(MACHINE_PATH, line)) is expected
