"""A sample of the campaign of demand sets keeps its promise, and the speed script runs."""

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def gaps():
    return runpy.run_path(str(SCRIPTS / "tcme_gaps.py"), run_name="tcme_gaps")


@pytest.mark.slow
def test_a_sample_of_25_sets_is_close_to_the_bound(gaps):
    outcomes = [gaps["outcome"](gaps["make_case"](index), lp_limit=0) for index in range(25)]
    ours = [outcome.tcme for outcome in outcomes]
    assert np.median(ours) <= 0.05
    assert np.percentile(ours, 90) <= 0.15
    assert all(outcome.tcme <= outcome.xy * (1 + 1e-9) for outcome in outcomes)
    assert np.median([outcome.xy for outcome in outcomes]) > 0.2


def test_equal_numbers_give_equal_sets(gaps):
    for index in range(7):
        one, two = (gaps["make_case"](index).demands for _ in range(2))
        assert one.source.tolist() == two.source.tolist()
        assert one.num_bytes.tolist() == two.num_bytes.tolist()


def test_the_speed_script_reports_its_small_case():
    script = runpy.run_path(str(SCRIPTS / "tcme_speed.py"), run_name="tcme_speed")
    cells = script["row"]("4x4").split()
    assert cells[0] == "4x4"
    assert float(cells[3]) <= float(cells[2])
