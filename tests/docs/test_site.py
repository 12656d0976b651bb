"""What the site is made of: links fitted to it, pages of commands, and the check of its links."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from meshwright.ask.questions import COMMANDS, FAMILIES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module", autouse=True)
def beside_the_docs():
    """Let the modules beside the docs be imported, as Sphinx does."""
    sys.path.insert(0, str(DOCS))
    yield
    sys.path.remove(str(DOCS))


@pytest.fixture
def links():
    return importlib.import_module("generators.links")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_each_option_once(name):
    commands = importlib.import_module("generators.commands")
    command = COMMANDS[name]
    page = commands.command_page(name, command)
    described = re.findall(r"^`{4}\{option\} (--with \w+|\S+)", page, re.MULTILINE)
    shown = [option for option in command.options.values() if not option.is_hidden]
    expected = [(o.metavar or o.name) if o.is_positional else o.flag for o in shown]
    expected += ["--json"] + ["--detail"] * command.has_detail
    assert sorted(described) == sorted(expected)
    assert all(f"Default: `{o.default}`" in page for o in shown if isinstance(o.default, str))


def test_families_list_their_commands():
    commands = importlib.import_module("generators.commands")
    for family in FAMILIES:
        rows = re.findall(
            r"^\| \[`([^`]+)`\]\(([^)]+)\)", commands.family_page(family), re.MULTILINE
        )
        assert [name for name, _ in rows] == [
            name for name in COMMANDS if name.startswith(f"{family} ")
        ]
        assert {f"commands/{link}" for _, link in rows} <= set(commands.pages())


@pytest.mark.parametrize(
    ("link", "name", "placed"),
    [
        ("../reference/commands.md", "how_to/export", "../reference/commands.md"),
        ("../../CHANGELOG.md", "how_to/export", "../reference/project/changes.md"),
        ("../../README.md", "tutorials/for_research", "../index.md"),
        ("../schemas", "reference/plan_json", "schemas/index.md"),
        ("docs/how_to/export.md", "reference/project/contributing", "../../how_to/export.md"),
        ("CHANGELOG.md", "reference/project/contributing", "changes.md"),
        ("../docs/results/studies.md", "reference/project/papers", "../../results/studies.md"),
    ],
)  # fmt: skip
def test_links_lead_to_where_the_site_has_it(links, link, name, placed):
    assert links.placed(link, name) == placed


def test_the_lists_of_index_pages_hold_every_page(links):
    pages = [path.relative_to(DOCS) for path in (*DOCS.glob("*.md"), *DOCS.glob("*/*.md"))]
    held = set()
    for path in pages:
        name = path.with_suffix("").as_posix()
        text = links.LINK.sub(
            lambda match, name=name: links.placed(match[1], name),
            (DOCS / path).read_text(encoding="utf-8"),
        )
        held |= set(re.findall(r"^/(\S+)$", links.tree(name, text), re.MULTILINE))
    assert {path.with_suffix("").as_posix() for path in pages} - held == {"index"}


PAGE = """<html><head><link rel="stylesheet" href="page.css"></head><body>
<h2 id="here">Here</h2><img src="data:image/png;base64,AA=="><a href="#here">up</a>
<a href="https://example.org/a">out</a><a href="other%20page.html#there">other</a>{more}</body>"""


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("", None),
        ('<a href="gone.html">', "index.html: leads to no file: gone.html"),
        ('<a href="#gone">', "index.html: leads to no such place on the page: #gone"),
        (
            '<a href="other%20page.html#gone">',
            "index.html: leads to no such place on the page: other%20page.html#gone",
        ),
        ('<a href="http://example.org">', "index.html: is no https address: http://example.org"),
        ('<a href="https://e.org/a b">', "index.html: is no https address: https://e.org/a b"),
        ('<img src="https://e.org/a">', "index.html: is loaded from elsewhere: https://e.org/a"),
        ('<script src="//e.org/a">', "index.html: is loaded from elsewhere: //e.org/a"),
    ],
)  # fmt: skip
def test_links_of_the_built_site_are_checked(tmp_path, more, fault):
    check = importlib.import_module("check_site")
    (tmp_path / "page.css").write_text("", encoding="utf-8")
    (tmp_path / "other page.html").write_text("<p id='there'>", encoding="utf-8")
    (tmp_path / "index.html").write_text(PAGE.format(more=more), encoding="utf-8")
    assert list(check.faults(tmp_path)) == ([] if fault is None else [fault])
