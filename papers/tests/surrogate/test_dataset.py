"""The data set: it comes from its seed again, and test groups are no training groups."""

import hashlib

import numpy as np
import pytest

from meshwright_papers.surrogate.dataset import (
    QUANTITIES,
    draw_group,
    read_rows,
    rows_of,
    shipped_rows,
    write_rows,
)
from meshwright_papers.surrogate.features import FEATURES
from meshwright_papers.surrogate.network import shipped_network
from meshwright_papers.surrogate.sampling import (
    MOST_MICRO_BATCHES,
    draw_problem,
    without_computation,
)

COLUMNS = ("features", "closed_form", "simulated", "contended_s")


@pytest.fixture(scope="module")
def rows():
    return shipped_rows()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.slow
def test_rows_come_from_their_seed_again(rows, which):
    number = int(np.unique(rows.group)[-1 if which else 0])
    shipped = rows.take(np.flatnonzero(rows.group == number)[:3])
    again = rows_of(rows.provenance["seed"], number, shipped.index.tolist())
    assert np.array_equal(again.index, shipped.index)
    for name in COLUMNS:
        assert getattr(again, name) == pytest.approx(getattr(shipped, name), rel=1e-9, abs=1e-12)


def test_no_group_is_split(rows):
    training = set(rows.group[rows.is_training].tolist())
    test = set(rows.group[~rows.is_training].tolist())
    assert training
    assert test
    assert not training & test
    assert set(shipped_network().provenance["training_groups"]) == training


def test_no_two_groups_are_the_same_configuration(rows):
    machine = [FEATURES.index(name) for name in ("log10 link bytes/s", "log10 SRAM bytes")]
    per_group = [rows.features[rows.group == g][:, machine] for g in np.unique(rows.group)]
    assert all(np.ptp(own, axis=0).max() == 0.0 for own in per_group)
    assert len({tuple(own[0].tolist()) for own in per_group}) == len(per_group)


def test_computation_is_the_same_in_closed_form_and_simulated(rows):
    ratio = rows.simulated[:, QUANTITIES.index("compute_s")] / rows.closed_form[:, 0]
    assert np.median(np.abs(ratio - 1)) < 1e-9
    assert np.mean(np.abs(ratio - 1) < 1e-9) > 0.95


def test_draws_are_legal_and_counted():
    group = draw_group(5, 0)
    problem = group.asked.problem
    assert sum(group.rejected.values()) > 0
    assert len(set(group.drawn)) == len(group.drawn)
    for drawn in group.drawn:
        s = drawn.strategy
        assert s.num_devices == problem.system.num_devices
        batches = problem.workload.global_batch_size / (s.dp * s.micro_batch_size)
        assert batches <= MOST_MICRO_BATCHES
        assert np.prod(drawn.choice.shapes) == problem.system.num_devices


def test_equal_seeds_give_equal_problems():
    one, two, other = (draw_problem(np.random.default_rng([9, n])) for n in (0, 0, 1))
    assert (one.system, one.model) == (two.system, two.model)
    assert one.system != other.system


def test_instant_chips_leave_messages_alone():
    problem = draw_problem(np.random.default_rng([9, 0]))
    bare = without_computation(problem)
    assert bare.system.levels == problem.system.levels
    assert bare.rates.matmul_flops_per_s > 1e6 * problem.rates.matmul_flops_per_s
    assert bare.rates.room_bytes == problem.rates.room_bytes


def test_a_file_gives_the_same_rows(rows, tmp_path):
    few = rows.take(slice(5))
    write_rows(few, tmp_path / "rows.npz")
    found = read_rows(tmp_path / "rows.npz")
    assert all(np.array_equal(getattr(found, n), getattr(few, n)) for n in COLUMNS)
    assert found.provenance == few.provenance


def test_feature_names_are_those_that_the_weights_know():
    """Features have a fixed order and meaning: a change needs new rows, new weights, a new hash."""
    assert len(set(FEATURES)) == len(FEATURES)
    digest = hashlib.sha256("\n".join(FEATURES).encode()).hexdigest()
    assert digest[:16] == "ccb293fefbb396cc"
    assert QUANTITIES == ("compute_s", "messages_s", "step_s", "power_w")
