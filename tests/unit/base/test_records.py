"""Records are short at a prompt, and their rows are tables of pandas and polars."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import UnknownNameError, UnsupportedError
from meshwright.base.records import MOST_LETTERS, Brief, Listed, columns_of, scalars
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner(Brief):
    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text"}
    name: str = "inner"
    step_time_s: float = 0.0
    interval_s: tuple[float, float] | None = None
    tokens_per_s_interval: tuple[float, float] | None = None
    colour: Colour = Colour.RED
    parts_s: Mapping[str, float] = field(default_factory=dict)
    many: tuple[object, ...] = ()

    @property
    def text(self) -> str:
        return "tp2"


@dataclass(frozen=True)
class Told(Listed):
    held: list[dict]

    def brief(self) -> str:
        return "<b>two</b>\nlines"

    def rows(self) -> list[dict]:
        return self.held


def test_fields_at_their_default_are_left_out():
    assert repr(Inner()) == "<Inner >"
    found = Inner("x", 1.23456, (1.0, 2.0), parts_s={"a": 0.5}, many=(Inner(), Inner()))
    told = "name='x', step_time_s=1.235, interval_s=(1, 2), parts_s={a: 0.5}, many=(2 of Inner)"
    assert repr(found) == f"<Inner {told}>"


@given(st.lists(st.text(), max_size=50), st.dictionaries(st.text(), st.floats(), max_size=50))
def test_no_record_is_long(words, parts):
    found = repr(Inner("x" * 1000, 1.0, parts_s=parts, many=tuple(words)))
    assert max(map(len, found.splitlines())) <= MOST_LETTERS + len("<Inner >")


@pytest.mark.parametrize("declared", [load_model("llama3-70b"), load_system("64xH100")])
def test_declarations_are_short_and_lead_with_their_name(declared):
    assert declared.name in repr(declared)[:60]
    assert len(repr(declared)) < MOST_LETTERS + 20
    assert str(declared) == repr(declared)


def test_lines_of_a_record_stand_inside_of_its_brackets():
    assert repr(Told([])) == "<Told <b>two</b>\n  lines>"


def test_a_notebook_shows_text_as_text():
    assert Told([])._repr_html_() == "<pre>&lt;b&gt;two&lt;/b&gt;\nlines</pre>"


def test_scalars_have_the_names_of_json():
    assert scalars(Inner("x", 1.5, (1.0, 2.0), (3.0, 4.0), many=(1,))) == {
        "plan": "tp2", "name": "x", "step_time_s": 1.5, "interval_low_s": 1.0,
        "interval_high_s": 2.0, "tokens_per_s_interval_low": 3.0, "tokens_per_s_interval_high": 4.0,
        "colour": "red",
    }  # fmt: skip


def test_columns_hold_what_some_rows_lack():
    rows = [{"a": 1, "b": True}, {"a": 2.5, "c": "x"}]
    assert columns_of(rows) == {"a": [1.0, 2.5], "b": [True, None], "c": [None, "x"]}


def test_a_column_with_texts_is_text():
    """A sweep may vary ``seq: [4096, 8k]``."""
    rows = [{"seq": 4096}, {"seq": "8k"}, {}]
    assert columns_of(rows) == {"seq": ["4096", "8k", None]}
    assert Told(rows).to_dataframe("polars")["seq"].to_list() == ["4096", "8k", None]


def test_both_libraries_get_the_same_table():
    rows = [{"a": 1, "b": 1}, {"a": 2.5, "b": None, "c": "x"}, {"d": True}]
    pandas, polars = Told(rows).to_dataframe(), Told(rows).to_dataframe("polars")
    assert list(pandas.columns) == polars.columns == ["a", "b", "c", "d"]
    for name in polars.columns:
        ours = [None if value != value else value for value in pandas[name]]
        assert ours == polars[name].to_list()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_what_installs_it(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        UnsupportedError, match=f"{library} is not installed; pip install {library}"
    ):
        Told([]).to_dataframe(library)


def test_an_unknown_library_is_told_the_near_one():
    with pytest.raises(UnknownNameError, match="'panda'; did you mean pandas"):
        Told([]).to_dataframe("panda")
