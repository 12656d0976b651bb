"""Charts as SVG: all that was drawn is there, named, in both colours, and the same each time."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import UnsupportedError
from meshwright.cli.main import main
from meshwright.view import charts
from meshwright.view.svg import DARK, INK, PAPER, check_drawable, svg_of

SVG = "{http://www.w3.org/2000/svg}"


def drawn(spec, title="T", subtitle=""):
    return ElementTree.fromstring(svg_of(spec, title, subtitle))


def filled(root, colour, under=None):
    """Return the shapes of a colour, which they have or a group around them."""
    for child in root:
        fill = child.get("fill", under)
        if child.tag == f"{SVG}path" and fill == colour:
            yield from (f"M{part}" for part in child.get("d").split("M")[1:])
        yield from filled(child, colour, fill)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12))
def test_every_bar_is_drawn_and_its_words_are_text(amounts):
    labels = [f"row {number} & <co>" for number in range(len(amounts))]
    root = drawn(charts.bars(labels, amounts, [f"<{value}>" for value in amounts], "x [s]"))
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert len(list(filled(root, charts.MARK))) == len(amounts)
    assert {*labels, *(f"<{value}>" for value in amounts), "x [s]"} <= set(words)


def test_colours_of_stacks_survive():
    root = drawn(charts.stacked(["a", "b"], {"x": [1, 2], "y": [3, 4]}, "x [s]", row_title="r"))
    for colour in charts.COLOURS[:2]:
        assert len(list(filled(root, colour))) >= 2


def test_a_picture_is_named_for_those_who_cannot_see_it():
    root = drawn(charts.bars(["a"], [1], ["1"], "x"), "Is <it> so?", "of a & b")
    assert root.get("role") == "img"
    assert [part.text for part in root[:2]] == ["Is <it> so?", "of a & b"]
    assert not [part for part in root.iter() if "class" in part.attrib]


def test_a_picture_has_the_colours_of_a_dark_background():
    root = drawn(charts.bars(["a"], [1], ["1"], "x"))
    style = next(root.iter(f"{SVG}style")).text
    _, dark = style.split("@media (prefers-color-scheme:dark)")
    for colour in (INK, PAPER):
        assert f'[fill="{colour}"]{{fill:{DARK[colour]}}}' in dark
    assert root.find(f"{SVG}rect").get("fill") == PAPER


def test_long_titles_are_broken():
    root = drawn(charts.bars(["a"], [1], ["1"], "x"), " ".join(["word"] * 30))
    lines = [text for part in root.iter(f"{SVG}text") for text in part.itertext() if "word" in text]
    assert len(lines) > 1
    assert " ".join(lines) == " ".join(["word"] * 30)


def test_shapes_that_look_alike_are_one_path():
    """A thousand strokes take no thousand elements."""
    ratios = [1.0 + number / 1000 for number in range(1000)]
    text = svg_of(charts.strips(["a"] * 1000, ratios, ["k"] * 1000, ["a"], "r"), "T")
    strokes = max(
        path.get("d").count("M") for path in ElementTree.fromstring(text).iter(f"{SVG}path")
    )
    assert strokes == 1000
    assert len(text) < 40_000


def test_equal_input_gives_equal_bytes_in_another_process():
    code = (
        "from meshwright.view import charts; from meshwright.view.svg import svg_of;"
        "print(svg_of(charts.bars(['a', 'b'], [1, 2], ['1', '2'], 'x'), 'T'), end='')"
    )
    here = svg_of(charts.bars(["a", "b"], [1, 2], ["1", "2"], "x"), "T")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == here


def test_without_the_extra_nothing_begins(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'meshwright\[plot\]'"):
        check_drawable()
    monkeypatch.setattr("meshwright.calibration.serving.predict_all", None)
    assert main(["validate", "--document", str(tmp_path / "x.md")]) != 0
    assert "pip install 'meshwright[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["fuse", "gpt3-175b-layer", "--on", "SN10"],
     ["partition", "llama3-8b", "--on", "8xH100"],
     ["explain", "gpt2-medium", "--on", "wafer-2x4"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_without_the_extra_no_picture_begins(monkeypatch, capsys, tmp_path, words):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("meshwright.dataflow.fusion.fuse.fuse_graph", None)
    assert main([*words, "--picture", str(tmp_path / "x.svg")]) == 2
    assert "pip install 'meshwright[plot]'" in capsys.readouterr().err
