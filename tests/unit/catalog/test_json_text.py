"""The one writer of answers as JSON: what reads back is what was written."""

import json
import math
import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.catalog.answer_file import json_text


@dataclass(frozen=True)
class Answer:
    """An answer with a property beside its fields."""

    DERIVED: ClassVar = {"twice": "doubled"}
    value: float
    names: tuple[str, ...]

    @property
    def doubled(self) -> float:
        """Return twice the value."""
        return 2 * self.value


def test_numbers_read_back_bit_for_bit():
    drawn = random.Random(3)
    values = [math.ldexp(drawn.uniform(-1, 1), drawn.randint(-1070, 1023)) for _ in range(2000)]
    values += [0.0, -0.0, 5e-324, 1e16, 1e-6, 2**53 + 1, 10**30, True, None, np.float64(0.1)]
    found = json.loads(json_text({"values": values}))["values"]
    assert list(map(repr, found)) == [repr(getattr(v, "item", lambda v=v: v)()) for v in values]


def test_numbers_that_are_not_finite_are_null():
    text = json_text([math.nan, math.inf, np.float64("-inf"), 1.0])
    assert json.loads(text) == [None, None, None, 1.0]


def test_texts_are_ascii_and_halves_of_characters_are_spelled_out():
    text = json_text({"\u00e9": '\u2028 \U0001f600 \x00 \x7f " \\', "half": "\ud83d", "\ud800": 1})
    assert text.isascii()
    assert json.loads(text) == {
        "\u00e9": "\u2028 \U0001f600 \x00 \x7f \" \\", "half": "\\ud83d", "\\ud800": 1,
    }  # fmt: skip


def test_an_answer_is_indented_with_what_is_derived():
    text = json_text(Answer(1.5, ("a",)))
    assert text == '{\n  "value": 1.5,\n  "names": [\n    "a"\n  ],\n  "twice": 3.0\n}'
