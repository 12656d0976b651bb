"""The look-up gives what the rows of the data set give, one placement or many at once."""

import numpy as np
import pytest
from placed_problems import grid_problem

from meshwright.base.errors import UnsupportedError
from meshwright.wafer.price import choice_network
from meshwright_papers.surrogate.dataset import QUANTITIES, draw_group, shipped_rows
from meshwright_papers.surrogate.estimator import predicted, score, shipped, tuned_scores
from meshwright_papers.surrogate.network import shipped_network
from meshwright_papers.surrogate.sampling import choices_of

STEP = QUANTITIES.index("step_s")


@pytest.fixture(scope="module")
def rows():
    return shipped_rows()


def test_a_look_up_is_the_prediction_of_its_row(rows):
    number = int(rows.group[0])
    own = rows.take(np.flatnonzero(rows.group == number)[:3])
    group = draw_group(rows.provenance["seed"], number)
    surrogate = shipped(group.asked.problem)
    expected = predicted(own, shipped_network(), where_kept=True)
    for line, index in enumerate(own.index.tolist()):
        drawn = group.drawn[index]
        network = choice_network(group.asked.problem, [(drawn.strategy, [drawn.choice])])
        found = surrogate.quantities(drawn.plan_options, network)
        assert found[0] == pytest.approx(expected[line], rel=1e-9)


def test_many_ways_at_once_are_each_way_alone():
    group = draw_group(7, 0)
    surrogate, drawn = shipped(group.asked.problem), group.drawn[0]
    ways = list(choices_of(group.asked.problem, drawn.plan_options, drawn.strategy))[:4]
    together = surrogate.step_s(drawn.plan_options, drawn.strategy, ways)
    alone = [surrogate.step_s(drawn.plan_options, drawn.strategy, [way])[0] for way in ways]
    assert together == pytest.approx(alone, rel=1e-9)


def test_the_network_beats_the_closed_form_on_groups_it_never_saw(rows):
    test = rows.take(~rows.is_training)
    before = score(predicted(test, None), test)
    after = score(predicted(test, shipped_network()), test)
    for name in QUANTITIES[1:]:
        assert after[name].mean_error < before[name].mean_error
    assert after["compute_s"] == before["compute_s"]


def test_scores_of_a_perfect_prediction(rows):
    few = rows.take(slice(50))
    for found in score(few.simulated, few).values():
        assert found.correlation == pytest.approx(1.0)
        assert found.mean_error == found.p95_error == found.worst_group_error == 0.0


def test_scores_of_a_prediction_that_is_a_tenth_too_high(rows):
    few = rows.take(slice(50))
    for found in score(1.1 * few.simulated, few).values():
        assert found.mean_error == pytest.approx(0.1)
        assert found.p95_error == pytest.approx(0.1)


def test_tuned_scores_are_of_other_rows_than_those_tuned_on(rows):
    test = rows.take(~rows.is_training)
    before, after, num = tuned_scores(test, shipped_network(), num_rows=6)
    assert set(before) == set(after) == set(QUANTITIES)
    groups, counts = np.unique(test.group, return_counts=True)
    assert num == sum(count - 6 for count in counts.tolist() if count >= 9)
    assert len(groups) > 10


@pytest.mark.parametrize(
    "asked",
    [grid_problem(2, 2, 2), grid_problem(2, 4, dead_links=((0, 1),)), grid_problem(8)],
    ids=["three sides", "a dead link", "a line"],
)
def test_machines_that_no_row_was_drawn_from_are_refused(asked):
    with pytest.raises(UnsupportedError, match="whole mesh or torus"):
        shipped(asked)
