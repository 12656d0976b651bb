"""Area that logic and memory share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.catalog.design import Design, build, load_memory, shared_area
from meshwright.catalog.systems import load_chip

DIE, HBM = load_chip("TEMP-die"), load_memory("TEMP-HBM")


def test_the_area_of_the_paper_gives_the_die_of_the_paper():
    chip, memory = shared_area(DIE, HBM, 500.0)
    assert chip.matmul_flops_per_s == DIE.matmul_flops_per_s
    assert chip.memories == DIE.memories
    assert chip.peak_power_w == DIE.peak_power_w
    assert memory == HBM


def test_two_hbm_dies_leave_290_mm2_of_logic():
    chip, memory = shared_area(DIE, HBM, 290.0)
    assert chip.num_cores == 63  # 110 x 290 / 500 = 63.8
    assert chip.matmul_flops_per_s["bf16"] == pytest.approx(1800e12 * 63 / 110)
    assert chip.memories[0].capacity_bytes == pytest.approx(80e6 * 63 / 110)
    assert memory.capacity_bytes == pytest.approx(144e9)
    assert memory.bandwidth_bytes_per_s == pytest.approx(2e12)


@given(st.floats(8.0, 700.0), st.floats(8.0, 700.0))
def test_more_logic_is_never_less_compute_nor_more_memory(first, second):
    less, more = sorted((first, second))
    (small, large_memory), (large, small_memory) = (
        shared_area(DIE, HBM, area) for area in (less, more)
    )
    assert small.matmul_flops_per_s["bf16"] <= large.matmul_flops_per_s["bf16"]
    assert large_memory.capacity_bytes >= small_memory.capacity_bytes


@pytest.mark.parametrize("area", [1.0, 710.0, 2000.0])
def test_areas_without_a_core_or_without_memory_are_refused(area):
    with pytest.raises(SpecError, match="logic_area"):
        shared_area(DIE, HBM, area)


def test_parts_without_an_area_share_none():
    with pytest.raises(SpecError, match="H100 and TEMP-HBM"):
        shared_area(load_chip("H100"), HBM, 500.0)
    with pytest.raises(SpecError, match="memory"):
        build(Design("TEMP-die", "torus-2d", ("D2D",), 8, logic_area_mm2=400.0))


def test_a_design_has_the_memory_that_its_logic_leaves():
    design = Design("TEMP-die", "torus-2d", ("D2D",), 8, memory="TEMP-HBM", logic_area_mm2=395.0)
    assert build(design).chip.main_memory.capacity_bytes == pytest.approx(72e9 * 315 / 210)
