"""Shapes of TPU slices and wafers: the standard one of each size, and which sides wrap.

Rules: v4 and v5p join whole cubes of 4x4x4 with optical switches, so all sides wrap from one cube
up and none below; v5e and v6e wrap a side only where it is the full 16.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.catalog.systems import (
    GridRule,
    factorings,
    load_system,
    parse_shape,
    standard_shape,
)


def kinds(text):
    """Return kind and size of the sides of the grid, innermost first."""
    levels = [level for level in load_system(text).levels if not level.data_parallel_only]
    return [(level.kind, level.size) for level in levels]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xTPU-v4", [("mesh", 2), ("mesh", 2), ("mesh", 2)]),
        ("32xTPU-v4", [("mesh", 4), ("mesh", 4), ("mesh", 2)]),
        ("64xTPU-v4", [("torus", 4)] * 3),
        ("128xTPU-v5p", [("torus", 8), ("torus", 4), ("torus", 4)]),
        ("384xTPU-v4", [("torus", 12), ("torus", 8), ("torus", 4)]),
        ("tpu-v4-4x4x12", [("torus", 12), ("torus", 4), ("torus", 4)]),
        ("4xTPU-v4", [("mesh", 2), ("mesh", 2)]),
        ("1xTPU-v5e", []),
        ("64xTPU-v5e", [("mesh", 8), ("mesh", 8)]),
        ("128xTPU-v5e", [("torus", 16), ("mesh", 8)]),
        ("256xTPU-v6e", [("torus", 16), ("torus", 16)]),
        ("512xTPU-v5e", [("torus", 16), ("torus", 16)]),
        ("6144xTPU-v5p", [("torus", 24), ("torus", 16), ("torus", 16)]),
    ],
)
def test_standard_shapes_and_wraps(text, expected):
    assert kinds(text) == expected


def test_more_than_a_slice_is_several_slices():
    system = load_system("1024xTPU-v5e")
    network = system.levels[-1]
    assert (network.name, network.size, network.data_parallel_only) == ("dcn", 4, True)
    assert "shape: 4 slices of tpu-v5e-16x16" in system.notes
    # 25 Gbit/s for each chip
    assert network.bandwidth_bytes_per_s == 3.125e9


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("12xTPU-v5e", "8 (2x4) or 16 (4x4)"),
        ("96xTPU-v4", "64 (4x4x4) or 128 (4x4x8)"),
        ("300xTPU-v6e", "next sizes: 256 (16x16)"),
        ("tpu-v5e-4x16", "standard shapes: 1x1, 2x2"),
        ("tpu-v4-4x6x8", "multiples of 4, at most 16x16x16"),
        ("tpu-v4-4x4x20", "at most 16x16x16"),
        ("tpu-v4-8x8", "cannot have the shape 8x8"),
    ],
)
def test_illegal_slices(text, part):
    with pytest.raises(SpecError) as raised:
        load_system(text)
    assert part in str(raised.value)


def test_parse_shape():
    assert parse_shape("4x4x8") == (4, 4, 8)
    for text in ("4", "4x", "0x4", "4x04", "ax4", "4x-4"):
        assert parse_shape(text) is None


@given(st.integers(1, 120), st.integers(1, 3))
def test_factorings_are_all_products(number, parts):
    found = list(factorings(number, parts))
    assert all(math.prod(shape) == number and len(shape) == parts for shape in found)
    assert len(set(found)) == len(found)
    assert parts != 2 or len(found) == sum(number % d == 0 for d in range(1, number + 1))


@given(st.integers(1, 100))
def test_a_standard_shape_has_the_size_and_the_shortest_sides(number):
    rule = GridRule(dims=2, shapes=("4x8",), other_side_multiple=1)
    shape = standard_shape(rule, (10, 10), number)
    fitting = [s for s in factorings(number, 2) if max(s) <= 10]
    if number == 32:
        assert shape == (4, 8)
    elif fitting:
        assert math.prod(shape) == number
        assert sum(shape) == min(map(sum, fitting))
    else:
        assert shape is None
