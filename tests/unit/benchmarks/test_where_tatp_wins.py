"""The page of tensor streams and their rivals is what its script writes, and its model is sane."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("where_tatp_wins")


@pytest.mark.slow
def test_the_page_is_what_the_script_writes(script):
    assert script.PAGE.read_text(encoding="utf-8") == script.page()


def test_the_grid_is_balanced(script):
    grid = script.make_grid()
    assert len(grid.hbm) == 200
    for _, field, _ in script.FACTORS:
        counts = np.unique(getattr(grid, field), return_counts=True)[1]
        assert len(set(counts)) == 1


def test_one_die_streams_nothing_under_any_scheme(script):
    layer, grid = script.LAYERS[0], script.make_grid()
    names = [name for name in script.SCHEMES if name != "2-D product stream"]
    times = [script.SCHEMES[name](layer, 2048.0, grid).training[:, 0] for name in names]
    for other in times[1:]:
        np.testing.assert_allclose(other, times[0])


@pytest.mark.parametrize("scheme", ["TATP on a line", "FSDP with prefetch", "2-D product stream"])
def test_no_scheme_beats_its_arithmetic(script, scheme):
    layer, grid = script.LAYERS[4], script.make_grid()
    times = script.SCHEMES[scheme](layer, 2048.0, grid).training
    least_s = 6 * 2048.0 * layer.in_size * layer.out_size / (script.MEMBERS * 1.26e15)
    assert (times >= least_s * (1 - 1e-12)).all()
