"""What ``plan`` states of random grids with faults holds against estimated strategies."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def compared():
    return runpy.run_path(str(FOLDER / "faulty_grids.py"), run_name="campaign")["compared"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 16, 20])
def test_no_strategy_is_below_the_bound_or_beats_what_is_proven(compared, seed):
    checked = compared(seed, 3)
    assert checked.counts["strategies"] > 0
    assert checked.faults == []


@pytest.mark.slow
def test_a_bound_that_is_too_high_is_noticed(compared, monkeypatch):
    """One that is twice the answer contradicts the answer, and strategies below it."""
    from dataclasses import replace

    import meshwright as mw

    plan = mw.plan

    def overstated(*arguments, **options):
        found = plan(*arguments, **options)
        cover = replace(found.coverage, lower_bound_s=2.0 * found.fastest_s)
        return replace(found, coverage=cover)

    monkeypatch.setattr(mw, "plan", overstated)
    assert "above the answer" in compared(20, 3).faults[0]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 300, 20))
def test_300_grids_hold_against_50_strategies_each(compared, start):
    assert {seed: compared(seed, 50).faults for seed in range(start, start + 20)} == {
        seed: [] for seed in range(start, start + 20)
    }
