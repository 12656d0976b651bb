"""Systems put together from parts."""

import math

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.design import (
    NETWORKS,
    Design,
    build,
    load_link,
    load_memory,
    standard_sides,
)
from meshwright.catalog.files import data_names
from meshwright.catalog.systems import load_chip


@pytest.mark.parametrize("name", data_names("memories"))
def test_every_memory_is_read_and_is_called_as_its_file(name):
    assert load_memory(name).name == name


@pytest.mark.parametrize("name", data_names("links"))
def test_every_link_is_read_and_is_called_as_its_file(name):
    assert load_link(name).name == name


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("number", [8, 48, 1024])
def test_networks_hold_all_devices(network, number):
    system = build(Design("SN10", network, ("NVLink4",), number, memory="HBM3"))
    assert math.prod(level.size for level in system.levels) == number
    assert system.chip.main_memory.name == "hbm3"
    assert system.chip.memories[0] == load_chip("SN10").memories[0]


def test_each_dimension_has_its_link_and_shapes_are_written_outermost_first():
    system = build(Design("A100", "dgx-2", ("NVLink3", "InfiniBand-NDR"), 64, shape="16x4"))
    assert [level.size for level in system.levels] == [4, 16]
    assert [level.bandwidth_bytes_per_s for level in system.levels] == [300e9, 50e9]
    assert system.chip == load_chip("A100")


def test_sides_are_as_equal_as_divisors_allow():
    assert standard_sides(1024, 2, True) == (32, 32)
    assert math.prod(standard_sides(512, 3, True)) == 512
    assert standard_sides(512, 3, True) == (8, 8, 8)
    assert standard_sides(24, 2, False) == (8, 3)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"network": "torus-4d"}, UnknownNameError, "torus"),
        ({"links": ("NVLink9",)}, UnknownNameError, "NVLink"),
        ({"memory": "HBM9"}, UnknownNameError, "HBM"),
        ({"chip": "H101"}, UnknownNameError, "H100"),
        ({"shape": "3x5"}, SpecError, "15 devices, not 16"),
        ({"shape": "4x2x2"}, SpecError, "2 dimensions"),
        ({"shape": "4by4"}, SpecError, "2 dimensions"),
        ({"links": ("D2D",) * 3}, SpecError, "1 or 2"),
    ],
)
def test_what_does_not_fit_is_refused(fields, error, message):
    asked = {"chip": "H100", "network": "torus-2d", "links": ("D2D",), "num_devices": 16} | fields
    with pytest.raises(error, match=message):
        build(Design(**asked))
