"""Counts are written as people write them, and k means what the count is of."""

import math

import pytest

from meshwright.base.errors import UsageError
from meshwright.base.units import format_number, format_seconds, parse_count, time_told


@pytest.mark.parametrize(
    ("text", "decimal", "binary"),
    [
        ("8192", 8192, 8192), ("128k", 128_000, 131_072), ("128K", 128_000, 131_072),
        ("1M", 10**6, 2**20), ("1 m", 10**6, 2**20), ("1.5k", 1500, 1536), ("2Ki", 2048, 2048),
        ("1Mi", 2**20, 2**20), ("1_048_576", 2**20, 2**20), ("0.3k", 300, None),
        ("1.5", None, None), ("1G", None, None), ("1e6", None, None), ("", None, None),
        ("k", None, None), ("-1k", None, None), ("\u0663k", None, None), ("9" * 17, None, None),
    ],
)  # fmt: skip
def test_counts_are_whole_and_k_is_what_is_meant(text, decimal, binary):
    assert (parse_count(text), parse_count(text, kilo=1024)) == (decimal, binary)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.314, "2.31 s"), (0.9996, "1 s"), (0.9994, "999 ms"), (0.0009996, "1 ms"), (0.0, "0 s"),
     (-2.9e-3, "-2.9 ms"), (-7.8e-17, "0 s"), (3e-12, "0.003 ns")],
)  # fmt: skip
def test_a_duration_has_the_unit_that_it_is_rounded_to(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1e31, 1e-31])
def test_no_answer_has_a_time_that_no_machine_takes(seconds):
    assert time_told("a step", 2.5, {"a_s": 1.0, "b_s": 1.5}) == 2.5
    assert format_seconds(math.nan) == "nan ns"  # what is no number is never shown as 0 s
    with pytest.raises(
        UsageError, match=r"a step would take .* s, as no machine does: b_s is nan\."
    ):
        time_told("a step", seconds, {"a_s": 1.0, "b_s": math.nan})
    with pytest.raises(UsageError, match=r"no machine does: a_s is 0, b_s is 0\."):
        time_told("a step", seconds, {"a_s": 0.0, "b_s": 0.0})


@pytest.mark.parametrize(
    ("value", "text"), [(0.3124, "0.312"), (999.4, "999"), (999.6, "1,000"), (2394.0, "2,394")]
)
def test_a_large_number_is_whole(value, text):
    assert format_number(value) == text


def test_letters_that_steer_a_terminal_are_written_as_escapes():
    from meshwright.base.units import printable

    assert printable("a\x1b[2J\u202eb\x85\n\tc") == "a\\x1b[2J\\u202eb\\x85\n\tc"
    long = "a" * 100 + "b" * 9_860 + "c" * 40
    assert printable(f"{long} is long") == "a" * 100 + "..." + "c" * 40 + " is long"
    assert printable("x" + " " * 500 + "y") == "x  y"
    assert printable(long, is_whole=True) == long
    assert printable("d" * 160) == "d" * 160
