"""Blocks of axes on a mesh: shapes that fit, the fastest one first, and their reach."""

from math import prod

import numpy as np
import pytest

from meshwright.cost.communication import uses_blocks
from meshwright.network.blocks import block_reaches, block_shapes, sequential_shapes
from meshwright.sharding.strategy import AXES, make_strategy, stack
from meshwright.spec.system import NetworkLevel

WAFER = (8, 6)
EQUAL = (2e12, 2e12)


def level(name, kind, size):
    return NetworkLevel(name=name, kind=kind, size=size, bandwidth_bytes_per_s=2e12, latency_s=2e-7)


def test_four_devices_fill_a_square():
    """A corner of 2x2 has two links, the end of a row one."""
    assert block_shapes((4,), WAFER, EQUAL) == ((2, 2),)


def test_three_stand_in_a_column_when_eight_columns_must_be_filled():
    """48 devices fill 8 columns, of which 3 is no divisor: the axis of 3 goes down the 6 rows."""
    assert block_shapes((4, 3, 4), WAFER, EQUAL) == ((2, 2), (1, 3), (4, 1))


def test_a_faster_side_is_preferred():
    assert block_shapes((2,), WAFER, (2e12, 1e12)) == ((2, 1),)
    assert block_shapes((2,), WAFER, (1e12, 2e12)) == ((1, 2),)


@pytest.mark.parametrize("degrees", [(7, 7), (5, 9), (47,), (49,), (11,)])
def test_what_fits_no_blocks(degrees):
    assert block_shapes(degrees, WAFER, EQUAL) is None


@pytest.mark.parametrize("degrees", [(4, 12), (6, 8), (2, 2, 3, 4), (5, 8), (3, 3, 2), (16, 3)])
def test_shapes_multiply_to_degrees_and_fit(degrees):
    shapes = block_shapes(degrees, WAFER, EQUAL)
    assert shapes is not None
    assert tuple(prod(shape) for shape in shapes) == degrees
    assert all(prod(sizes) <= side for sizes, side in zip(zip(*shapes, strict=True), WAFER,
                                                          strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ((32,), ((8, 4),)),  # four of six rows; two rows are idle
        ((2, 16), ((2, 1), (4, 4))),
        ((8, 4, 1), ((8, 1), (1, 4), (1, 1))),
        ((5,), ((5, 1),)),
        ((5, 2), None),  # the second would begin in the middle of a row
        ((16, 2), ((8, 2), (1, 2))),
        ((32, 2), None),
        ((12,), None),  # one row and a half
    ],
)
def test_only_the_last_axis_in_sequence_leaves_devices_idle(degrees, expected):
    assert sequential_shapes(degrees, WAFER) == expected


def test_reach_of_an_outer_axis_is_apart_by_the_inner_blocks():
    """tp4 is 2x2, tatp3 three such blocks down, dp4 four across: 1, 2 rows and 2 columns apart."""
    columns = stack([make_strategy(tp=4, tatp=3, dp_shard=4), make_strategy(tp=7)])
    levels = (level("columns", "mesh", 8), level("rows", "mesh", 6))
    reaches = block_reaches(levels, AXES, columns)
    assert [float(size[0]) for size in reaches["tatp"].sizes] == [1, 3]
    assert [float(apart[0]) for apart in reaches["tatp"].apart] == [2, 2]
    assert [float(size[0]) for size in reaches["dp_shard"].sizes] == [4, 1]
    assert [float(apart[0]) for apart in reaches["dp_shard"].apart] == [2, 6]
    assert np.array(reaches["tp"].sizes)[:, 1].tolist() == [7, 1]


def test_rows_without_blocks_have_no_members():
    columns = stack([make_strategy(tp=47)])
    levels = (level("columns", "mesh", 8), level("rows", "mesh", 6))
    assert [float(s[0]) for s in block_reaches(levels, AXES, columns)["tp"].sizes] == [0, 0]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("mesh", "mesh"), True), (("mesh",), False), (("torus", "torus"), False),
     (("mesh", "torus"), False), (("mesh", "mesh", "switch"), True), (("switch", "switch"), False)],
)  # fmt: skip
def test_which_networks_have_blocks(kinds, expected):
    levels = [level(str(number), kind, 4) for number, kind in enumerate(kinds)]
    assert uses_blocks(levels) is expected
