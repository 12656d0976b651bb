"""Linpack on a grid of devices: counts against dealing out every element, prices against limits."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.cli.main import main
from meshwright.dataflow.linpack import (
    Panels,
    ProcessGrid,
    held,
    least_s,
    panel_flops,
    plan_linpack,
    run_on,
    solution_flops,
)
from meshwright.dataflow.search import calibrated_system

SMALL = st.integers(1, 40)
SIDES = st.integers(1, 5)


def owned(first: int, size: int, block: int, count: int) -> list[int]:
    """Return how many indices from ``first`` on each owner of a row of blocks holds."""
    found = [0] * count
    for index in range(first, size):
        found[index // block % count] += 1
    return found


@given(SMALL, SMALL, SIDES, SIDES)
def test_the_fullest_device_holds_what_dealing_out_gives(size, block, rows, columns):
    block = min(block, size)
    panels = Panels(size, block, ProcessGrid(rows, columns))
    for step, left in enumerate(panels.side):
        behind = min(size - int(left) + block, size)
        assert panels.rows[step] == max(owned(behind, size, block, rows))
        assert panels.columns[step] == max(owned(behind, size, block, columns))
        assert panels.panel_rows[step] == owned(size - int(left), size, block, rows)[step % rows]
        assert held(np.array([left]), block, rows)[0] == max(
            owned(size - int(left), size, block, rows)
        )


@given(SMALL, SMALL)
def test_one_device_does_the_work_of_plain_elimination(size, block):
    """Each column divides what is below it and updates what is behind it: 2/3 n^3 - n^2/2 - n/6."""
    block = min(block, size)
    panels = Panels(size, block, ProcessGrid(1, 1))
    plain = sum(below + 2 * below**2 for below in range(size))
    work = panels.factored_flops + panels.width * (panels.width - 1) * panels.columns
    work = work + 2.0 * panels.rows * panels.width * panels.columns
    assert work.sum() == pytest.approx(plain, abs=1e-6)
    assert solution_flops(size) - size**2 == pytest.approx(plain, abs=1e-6)


@given(SMALL, SMALL)
def test_a_panel_is_columns_one_after_the_other(rows, width):
    width = min(rows, width)
    plain = sum((rows - j - 1) * (1 + 2 * (width - j - 1)) for j in range(width))
    assert panel_flops(np.float64(rows), np.float64(width)) == pytest.approx(plain, abs=1e-6)


def test_four_by_four_in_blocks_of_two_on_two_by_two_by_hand():
    """Behind the first panel each device has one block; 2 x 2 of the panel below its diagonal."""
    panels = Panels(4, 2, ProcessGrid(2, 2))
    assert list(panels.factored_flops) == [8.0, 3.0]  # two rows of b^2; 1 + 2 on the last block
    assert list(panels.factor_words) == [8.0, 4.0]  # the triangle's block and the one below it
    assert list(panels.swapped_words) == [4.0, 0.0]
    assert panels.held_words == 4.0 + 8.0 + 4.0


def test_two_devices_send_by_hand():
    """A100s of a host: 300 GB/s, 78.3 % of it reached, 1.9 us, 256 KiB to half rate, 8.4 us."""
    run = run_on(4096, 1024, ProcessGrid(1, 2), calibrated_system("2xA100", "uncalibrated"))
    words = 1024 * sum(behind + 1024 for behind in (3072, 2048, 1024, 0))
    rate = 300e9 * 0.783
    by_hand = 4 * (8.4e-6 + 1.9e-6 + 262_144 / rate) + 8.0 * words / rate
    assert run.parts_s["broadcast_s"] == pytest.approx(by_hand, rel=1e-12)
    assert run.parts_s["pivots_s"] == 0.0  # nobody else in the column


def test_one_device_sends_nothing():
    system = calibrated_system("1xA100")
    run = plan_linpack(32768, 1024, system).best
    assert run.grid == ProcessGrid(1, 1)
    swapped_bytes = 4 * 8.0 * 1024 * sum(1024 * step for step in range(32))
    assert run.parts_s["broadcast_s"] == run.parts_s["pivots_s"] == 0.0
    assert run.parts_s["swap_s"] >= swapped_bytes / 2.04e12


@pytest.mark.parametrize("name", ["1xA100", "8xA100", "64xA100", "12xH100", "16xMI300X"])
@pytest.mark.parametrize(("size", "block"), [(20_000, 512), (70_001, 1024), (40_000, 100)])
def test_no_grid_is_faster_than_the_bound(name, size, block):
    system = calibrated_system(name)
    found = plan_linpack(size, block, system)
    assert 0.0 < found.lower_bound_s == least_s(size, block, system)
    assert all(run.run_s >= found.lower_bound_s for run in found.runs)
    shapes = {(run.grid.rows, run.grid.columns) for run in found.runs}
    devices = system.spec.num_alive
    every = {(p, q) for p, q in product(range(1, devices + 1), repeat=2) if p * q == devices}
    assert shapes == every
    assert found.best.run_s == min(run_on(size, block, run.grid, system).run_s
                                   for run in found.runs)  # fmt: skip


def test_many_devices_want_both_sides_of_the_grid():
    """Rows alone choose pivots over all devices, columns alone broadcast whole panels."""
    found = plan_linpack(1_000_000, 1024, calibrated_system("128xA100"))
    assert min(found.best.grid.rows, found.best.grid.columns) >= 4
    assert found.best.held_bytes == pytest.approx(8e12 / 128, rel=0.05)


def test_what_does_not_fit_and_what_is_no_grid_is_refused():
    system = calibrated_system("8xA100")
    with pytest.raises(InfeasibleError, match="needs 123"):
        plan_linpack(360_000, 1024, system)
    with pytest.raises(SpecError, match="one of 1x8, 2x4, 4x2, 8x1"):
        plan_linpack(32_768, 1024, system, (3, 2))
    with pytest.raises(SpecError, match="block"):
        plan_linpack(100, 101, system)


def test_command_searches_grids(capsys):
    words = ("--on", "8xA100", "--process-grid")
    assert main(["map", "hpl-260000x2048", *words, "any"]) == 0
    told = capsys.readouterr().out
    assert "grid 2x4" in told
    assert "all 6 grids priced" in told
    assert main(["map", "hpl-260000x2048", *words, "4x2", "--json"]) == 0
    assert '"rows": 4' in capsys.readouterr().out
    assert main(["map", "dlrm-a", *words, "4x2"]) == 2
    assert "only Linpack is" in capsys.readouterr().err
