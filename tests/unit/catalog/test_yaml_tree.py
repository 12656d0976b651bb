"""The YAML reader: data only, with lines; whatever is not plain data is refused by name."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.files import path_text, read_tree


def test_lines_and_values():
    tree = read_tree("name: x\nlevels:\n  - {size: 8, closed: true}\n  - size: 4\n", "f")
    assert tree.value == {"name": "x", "levels": [{"size": 8, "closed": True}, {"size": 4}]}
    assert tree.lines["levels", 0, "size"] == 3
    assert tree.lines["levels", 1, "size"] == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        ("-3", -3),
        ("1_000", 1000),
        ("0.5", 0.5),
        ("1e9", 1e9),
        ("'8'", "8"),
        ("on", "on"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("010", 10.0),
        ("2024-12-01", "2024-12-01"),
        ("true", True),
        (".inf", ".inf"),
    ],
)
def test_scalars_are_what_they_look_like(text, expected):
    value = read_tree(f"x: {text}", "f").value["x"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "path", "part"),
    [
        ("a: 1\nb: 2\na: 3\n", "a", "given twice"),
        ("a: !!python/object/apply:os.system [ls]", "a", "tag"),
        ("a: !x 3", "a", "tag"),
        ("a: &anchor {b: 1}\nc: *anchor", "c", "alias"),
        ("a:\nb: 1", "a", "no value"),
        ("a: [1, ~]", "a[1]", "no value"),
        ("a: 99999999999999999999", "a", "beyond 2^53"),
        ("a: " + "9" * 6000, "a", "beyond 2^53"),
        ("? {b: 1}\n: 2", "", "cannot be a field name"),
        ("a: {<<: {b: 1}}", "a", "cannot be a field name"),
        ("", "", "empty"),
        ("- 1", "", "mapping"),
        ("a: 1\n---\nb: 2", "", "more than one document"),
        ("a: [1", "", "not YAML"),
        ("a: b: c", "", "not YAML"),
        ("a: \x00", "", "not YAML"),
        ("a: " + "[" * 4000, "", "nest"),  # in the words of libyaml, where it has a limit
    ],
)
def test_refusals_name_the_place(text, path, part):
    with pytest.raises(SpecError) as raised:
        read_tree(text, "some.yaml")
    fault = raised.value.faults[0]
    assert fault.path == path
    assert part in fault.message
    assert "line" in fault.message or path == ""


def test_all_faults_are_reported_at_once():
    with pytest.raises(SpecError) as raised:
        read_tree("a:\nb: !x 1\nc: 1\nc: 2\n", "f")
    assert [fault.path for fault in raised.value.faults] == ["a", "b", "c"]


def test_path_text():
    assert path_text(("memories", 0, "bandwidth")) == "memories[0].bandwidth"
