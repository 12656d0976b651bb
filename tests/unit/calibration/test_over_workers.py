"""Rows and fits over workers: what travels, and that the answers are those of one process."""

import pickle

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.cluster import LocalProcesses
from meshwright.base.errors import SpecError
from meshwright.calibration.fit.constants import keys_of
from meshwright.calibration.fit.report import fitted
from meshwright.calibration.fit.training import fit_rows
from meshwright.calibration.rows import published
from meshwright.calibration.serving import predict_all

ROWS = [
    *published("training")[::400], *published("serving")[:40:20], *published("sram")[:1],
]  # fmt: skip


@pytest.fixture(scope="module")
def predictions():
    return predict_all(ROWS, "calibrated")


def test_a_prediction_travels(predictions):
    for entry in predictions:
        again = pickle.loads(pickle.dumps(entry))
        assert again.as_row() == entry.as_row()
        assert again.job is None or again.job.problem.calibration.intervals


def test_rows_over_two_processes_have_the_same_answers(predictions):
    with LocalProcesses(2) as cluster:
        over = predict_all(ROWS, "calibrated", cluster)
    assert [entry.as_row() for entry in over] == [entry.as_row() for entry in predictions]
    assert [entry.row for entry in over] == ROWS


def test_slopes_of_rows_over_two_processes_are_the_same():
    chosen = published("training")[:60:20]
    rows = fit_rows(chosen)
    with LocalProcesses(2) as cluster:
        over = fit_rows(chosen, cluster=cluster)
        keys = keys_of(sorted(set(rows.families)), sorted(set(rows.frameworks)))
        logs = np.log([key.free.prior for key in keys])
        found = over.errors_and_slopes(keys, logs)
    for mine, theirs in zip(rows.errors_and_slopes(keys, logs), found, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.slow
def test_a_fit_over_two_processes_is_the_same():
    chosen = [*published("training")[:60:6], *published("serving")[:40:5]]
    with LocalProcesses(2) as cluster:
        over = fitted(chosen, "mine", "a test", cluster=cluster)
    assert over.text == fitted(chosen, "mine", "a test").text


def test_workers_of_single_kernels_are_refused():
    with pytest.raises(SpecError, match="applies to steps, without --kernels"):
        mw.validate(kernels=True, on_cluster="local:2")
