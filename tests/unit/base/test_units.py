"""Counts are written as people write them, and k means what the count is of."""

import pytest

from meshwright.base.units import parse_count


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
