"""The network: NumPy says what scikit-learn says; tuning never harms its own rows."""

import numpy as np
import pytest

from meshwright_papers.surrogate.dataset import FIRST_LEARNED, shipped_rows
from meshwright_papers.surrogate.features import FEATURES
from meshwright_papers.surrogate.network import (
    fit,
    read_network,
    regression,
    shipped_network,
    standard,
    targets,
    train_network,
    tuned,
    write_network,
)

FEW = 60


@pytest.fixture(scope="module")
def rows():
    return shipped_rows()


@pytest.mark.slow
def test_numpy_says_what_scikit_learn_says(rows, monkeypatch):
    monkeypatch.setattr("meshwright_papers.surrogate.network.EPOCHS", 20)
    few = rows.take(slice(FEW))
    network = train_network(few, seed=3)
    (centre, spread), (middle, scale) = standard(targets(few)), standard(few.features)
    model = fit((few.features - middle) / scale, (targets(few) - centre) / spread, 3, 20)
    theirs = model.predict((few.features - middle) / scale) * spread + centre
    assert network.log_ratio(few.features) == pytest.approx(theirs, abs=1e-10)
    left = targets(few) - network.log_ratio(few.features)
    assert (left**2).mean() < 0.5 * (targets(few) ** 2).mean()


def test_a_regression_leaves_nothing_that_features_explain(rows):
    few = rows.take(slice(400))
    left = targets(few) - regression(few).log_ratio(few.features)
    centred = few.features - few.features.mean(axis=0)
    assert centred.T @ left == pytest.approx(np.zeros((centred.shape[1], left.shape[1])), abs=1e-6)
    assert left.mean(axis=0) == pytest.approx(np.zeros(left.shape[1]), abs=1e-9)


def test_what_lies_beyond_the_range_counts_as_its_edge(rows):
    network = shipped_network()
    far = np.full((1, len(network.centre)), 1e9)
    assert network.log_ratio(far) == pytest.approx(network.log_ratio(network.highest[None, :]))


def test_a_file_gives_the_same_network(rows, tmp_path):
    network = regression(rows.take(slice(FEW)))
    write_network(network, tmp_path / "n.npz")
    found = read_network(tmp_path / "n.npz")
    features = rows.features[:7]
    assert np.array_equal(found.log_ratio(features), network.log_ratio(features))


def test_other_features_are_refused(rows, tmp_path, monkeypatch):
    write_network(regression(rows.take(slice(FEW))), tmp_path / "n.npz")
    monkeypatch.setattr("meshwright_papers.surrogate.network.FEATURES", ("something else",))
    with pytest.raises(ValueError, match="other features"):
        read_network(tmp_path / "n.npz")


@pytest.mark.parametrize("shrinkage", [1e-3, 1.0, 1e3])
def test_tuning_does_not_worsen_its_own_rows(rows, shrinkage):
    network = shipped_network()
    for group in np.unique(rows.group[~rows.is_training])[:10]:
        own = rows.take(np.flatnonzero(rows.group == group)[:6])
        fitted = tuned(network, own.features, targets(own), shrinkage)

        def left(net, own=own):
            return ((targets(own) - net.log_ratio(own.features)) ** 2).sum()

        assert left(fitted) <= left(network) * (1 + 1e-12)


def test_tuning_without_bounds_fits_its_rows(rows):
    network = shipped_network()
    own = rows.take(np.flatnonzero(rows.group == rows.group[0])[:4])
    fitted = tuned(network, own.features, targets(own), 1e-9)
    assert fitted.log_ratio(own.features) == pytest.approx(targets(own), abs=1e-3)
    assert targets(own).shape[1] == own.simulated.shape[1] - FIRST_LEARNED


def test_one_stage_keeps_the_closed_form_of_the_step(rows):
    network, features = shipped_network(), rows.features[:300]
    plain, kept = network.log_ratio(features), network.kept_log_ratio(features)
    staged = features[:, FEATURES.index("log2 pp")] > 0
    assert 0 < staged.sum() < len(staged)
    assert np.array_equal(kept[staged], plain[staged])
    assert not kept[~staged, 1].any()
    assert np.array_equal(kept[~staged][:, [0, 2]], plain[~staged][:, [0, 2]])
