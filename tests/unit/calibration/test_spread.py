"""Intervals: wider for what errs more, judged by rows that neither constants nor widths know."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.calibration.errors import interval_score
from meshwright.calibration.fit.quantiles import quantile_spread
from meshwright.calibration.fit.serving import FigureRows
from meshwright.calibration.fit.spread import held_out, spread_of
from meshwright.calibration.fit.training import Fit, FitRows, left_out_of
from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import Row, published
from meshwright.catalog.calibration import fit_record, load_calibration
from meshwright.search.intervals import (
    EXPERTS,
    HOST,
    NARROW,
    TRAITS,
    UNNAMED,
    UNSEEN,
    UNSEEN_SERVER,
    Certainty,
    distance_of,
    interval,
    traits_of,
)
from meshwright.spec.calibration import Spread, Tail
from meshwright.spec.workload import Precision
from meshwright.train.question import make_problem, training

FACTORS = {EXPERTS: 2.0, NARROW: 1.5, UNSEEN: 3.0}
SPREAD = Spread(
    slower=Tail(distance=0.1, factors=FACTORS), faster=Tail(distance=0.05, factors=FACTORS)
)


def problem_of(model="llama3-8b", system="8xH100", matmul="bf16"):
    work = training(
        system, sequence_length=4096, global_batch_size=8, precision=Precision(matmul=matmul)
    )
    return make_problem(model, system, work, "calibrated")


def test_a_trait_widens_by_its_factor_for_each_degree():
    assert distance_of(SPREAD.slower, {}) == 0.1
    wider = distance_of(SPREAD.slower, {EXPERTS: 1.0, NARROW: 2.0})
    assert wider == pytest.approx(0.1 * 2.0 * 1.5**2)


@pytest.mark.parametrize(
    ("matmul", "halvings"), [("fp32", 0.0), ("bf16", 0.0), ("fp8", 1.0), ("fp4", 2.0)]
)
def test_traits_are_read_from_a_question(matmul, halvings):
    found = traits_of(problem_of("mixtral-8x7b", "8xB200", matmul), is_seen=True)
    assert found == {EXPERTS: 1.0, NARROW: halvings, UNSEEN: 0.0, UNNAMED: 1.0, HOST: 0.0}


def test_an_interval_holds_its_estimate_and_reaches_as_far_as_its_tails():
    problem = problem_of()
    known = replace(problem, calibration=replace(problem.calibration, spread=SPREAD))
    low, high = interval(known, 5.0)
    assert np.log(high / 5.0) == pytest.approx(0.1)
    assert np.log(5.0 / low) == pytest.approx(0.05)
    assert interval(replace(known, calibration=load_calibration("hopper")), 5.0) is None


def test_a_family_never_seen_gets_a_wider_one():
    hopper, other = (
        load_calibration("hopper", "calibrated"),
        load_calibration("gaudi", "calibrated"),
    )
    assert hopper.spread == other.spread
    problem = problem_of()
    low, high = interval(replace(problem, calibration=hopper), 1.0)
    lower, higher = interval(replace(problem, calibration=other), 1.0)
    assert lower <= low < 1.0 < high <= higher
    assert higher / lower > high / low


def test_a_score_is_width_and_what_lies_outside():
    """Widths 0.15 and 0.3; the second row lies 0.2 outside, times 2 / 0.2."""
    errors, slower, faster = np.array([[0.05, -0.3], [0.1, 0.2], [0.05, 0.1]])
    assert interval_score(errors, slower, faster) == pytest.approx([0.15, 0.3 + 10 * 0.2])


def drawn(rows, errors):
    """Return a fit of jobs that are not priced."""
    without = dict.fromkeys(left_out_of(rows.stacks), errors)
    nothing = np.zeros(0)
    shares = {out: np.zeros(len(errors)) for out in without}
    return Fit(rows, (), nothing, nothing, (), without, shares)


@pytest.fixture(scope="module")
def fitted():
    """A fit whose left-out errors are drawn: rows in 8 bits err three times as much."""
    generator = np.random.default_rng(1)
    named = Row(id="row", group="one", framework="megatron")
    jobs = [
        SimpleNamespace(problem=problem_of(matmul=matmul), row=named) for matmul in ("bf16", "fp8")
    ]
    rows = FitRows(tuple(
        Prediction(Row(id=f"{group}/{number}", group=group), jobs[generator.integers(2)])
        for group in ("one", "two", "three", "four") for number in range(400)
    ))  # fmt: skip
    sizes = np.array([0.05 if job is jobs[0] else 0.15 for job in rows.jobs])
    return drawn(rows, sizes * generator.normal(size=len(sizes)))


def test_factors_come_back_out_of_drawn_errors(fitted):
    spread = spread_of(fitted)
    for tail in (spread.slower, spread.faster):
        assert tail.factors[NARROW] == pytest.approx(3.0, rel=0.25)
        reach = tail.distance * tail.factors[UNNAMED]  # no row is named: both stand for all rows
        assert reach == pytest.approx(1.2816 * 0.05, rel=0.25)
        assert tail.factors[EXPERTS] == pytest.approx(2.0)  # no row tells: as expected before


def test_an_error_to_one_side_moves_one_end(fitted):
    """Rows that are slower than predicted do not push out the fast end."""
    slow = drawn(fitted.rows, np.abs(fitted.errors))
    both, one = spread_of(fitted), spread_of(slow)
    assert one.slower.distance > both.slower.distance
    assert one.faster.distance == pytest.approx(0.0, abs=1e-6)


def test_rows_held_out_are_covered(fitted):
    tested = held_out(fitted)
    assert tested.inside.mean() == pytest.approx(0.8, abs=0.06)
    kinds = {"framework named", "framework not named", "dense", *TRAITS}
    assert set(tested.kinds) == kinds - {UNNAMED}


def test_an_end_is_a_quantile_of_its_kind():
    """Of 0.001 to 1 nine in ten lie below 0.9; of a kind twice as far below 1.8."""
    errors, ones = np.linspace(0.001, 1.0, 1000), np.ones(1000)
    plain = quantile_spread(errors, np.zeros((1000, 0)), ones, ())
    assert plain.slower.distance == pytest.approx(0.9, abs=0.01)
    assert plain.faster.distance == pytest.approx(0.0, abs=0.002)
    both = np.concatenate([errors, 2.0 * errors])
    degrees = np.repeat([0.0, 1.0], 1000)[:, None]
    spread = quantile_spread(both, degrees, np.ones(2000), (EXPERTS,))
    assert spread.slower.distance == pytest.approx(0.9, abs=0.02)
    assert spread.slower.factors[EXPERTS] == pytest.approx(2.0, abs=0.05)


@pytest.mark.slow
def test_intervals_of_a_source_do_not_know_its_errors(fitted):
    """Errors of one source ten times as large widen the intervals of the others alone."""
    mine = np.array(fitted.rows.stacks) == "two"
    worse = {
        out: np.where(mine, 10.0 * errors, errors) for out, errors in fitted.errors_without.items()
    }
    before, after = held_out(fitted), held_out(replace(fitted, errors_without=worse))
    assert np.array_equal(before.slower[mine], after.slower[mine])
    assert (after.slower[~mine] > before.slower[~mine]).all()


def test_too_few_sources_have_no_intervals_to_judge(fitted):
    kept = [e for e in fitted.rows.predictions if e.row.group in ("one", "two")]
    found = drawn(FitRows(tuple(kept)), np.full(len(kept), 0.1))
    assert held_out(found) is None
    assert spread_of(found).slower.distance > 0


def test_predictions_of_rows_have_the_interval_of_their_kind():
    rows = [row for row in published("training") if row.group == "megatron-sc21"][:1]
    rows += [row for row in published("training") if row.group == "nemo-24.07"][:1]
    plain, narrow = (
        np.log(entry.predicted_tokens_per_s / entry.interval[0])
        for entry in predict(rows, "calibrated")
    )
    tail = fit_record("calibrated").spread.slower
    assert plain == pytest.approx(tail.distance, rel=0.05)
    assert narrow == pytest.approx(tail.distance * tail.factors[NARROW], rel=0.05)


def test_rows_of_serving_are_left_out_by_what_is_new():
    """Errors twice as large without the chip family give twice the width for new chips alone."""
    generator, size = np.random.default_rng(2), 20 * 30
    sizes = {"model": 0.1, "family": 0.2, "server": 0.1, "source": 0.1}
    labels = np.repeat([f"label {n}" for n in range(20)], 30)
    new = {"model": (0.0, 0.0), "family": (1.0, 0.0), "server": (0.0, 1.0), "source": (0.0, 0.0)}
    rows = FigureRows(
        {name: one * generator.normal(size=size) for name, one in sizes.items()},
        {name: np.tile([0.0, *one], (size, 1)) for name, one in new.items()},
        dict.fromkeys(sizes, labels),
    )
    spread, tested = rows.spread()
    for tail in (spread.slower, spread.faster):
        assert tail.distance == pytest.approx(0.1 * 1.2816, rel=0.15)
        assert tail.factors[UNSEEN] == pytest.approx(2.0, rel=0.15)
        assert tail.factors[UNSEEN_SERVER] < 1.3
    shares = [tested.inside[kind].mean() for kind in tested.kinds.values() if kind.any()]
    assert 0.72 < min(shares) <= max(shares) < 0.92


def test_a_figure_of_serving_has_a_width_of_its_own():
    even = {"wide": 0.4, "tight": 0.1}
    spreads = {
        name: Spread(slower=Tail(distance=one, factors={UNSEEN_SERVER: 2.0}),
                     faster=Tail(distance=one, factors={}))
        for name, one in even.items()
    }  # fmt: skip
    known, problem = Certainty(spreads, frozenset({"hopper"}), frozenset({"vllm"})), problem_of()
    assert known.ends(problem, "wide", "vllm") == (0.4, 0.4)
    assert known.ends(problem, "tight", "vllm") == (0.1, 0.1)
    assert known.ends(problem, "tight", "generic") == (0.2, 0.1)
    assert known.ends(problem, "unknown", "vllm") is None
