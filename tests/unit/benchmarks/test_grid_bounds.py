"""Random grids hold what is proven of them; the campaign itself notices what does not hold."""

import random
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "grid_bounds.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT), run_name="grid_bounds")


@pytest.mark.parametrize("seed", [3, *(pytest.param(s, marks=pytest.mark.slow) for s in range(12))])
def test_no_plan_is_below_the_bound_or_faster_than_the_answer(script, seed):
    chance = random.Random(seed)
    asked = script["random_grid"](chance)
    found, _ = script["violations"](asked, chance, 24)
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_wraps_make_nothing_slower(script, seed):
    asked = script["random_grid"](random.Random(seed))
    on = asked.system.model_copy(update={"dead_devices": ()})
    assert script["torus_is_slower"](replace(asked, system=on)) == []


@pytest.mark.slow
def test_an_answer_that_is_too_slow_is_noticed(script, monkeypatch):
    """A search that may not use data parallelism calls plans proven that others beat."""
    from meshwright.wafer.training import GRIDS

    plain = GRIDS.space

    def narrow(problem, choices):
        return replace(plain(problem, choices), choices=replace(choices, allowed={"dp": (1,)}))

    monkeypatch.setattr(GRIDS, "space", narrow, raising=False)
    found = []
    for seed in (2, 3):
        chance = random.Random(seed)
        found += script["violations"](script["random_grid"](chance), chance, 24)[0]
    assert any("faster than" in line for line in found)
