"""The example that trains a model of 10 M parameters: its files are a plan that runs."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.frameworks.registry import rendered
from meshwright.run.real import execute
from meshwright.run.scale import job_of

FOLDER = Path(__file__).parents[3] / "examples" / "train_10m"


@pytest.fixture(scope="module")
def plan():
    return mw.plan(
        str(FOLDER / "config.json"), on="4xA100", workload=str(FOLDER / "workload.yaml"), tp=2, pp=1
    )


def test_its_files_are_a_plan_of_four_processes(plan):
    job = job_of(plan, "full")
    assert job.num_processes == 4
    assert (job.sequence_length, job.global_batch_size) == (256, 16)
    assert job.model == plan.model


@pytest.mark.slow
def test_it_learns_in_full_size(plan):
    found = execute(plan, scale="full", steps=4)
    assert found.is_right
    assert found.predicted_s is not None
    assert found.losses[-1] < found.losses[0] - 0.2


def test_the_job_of_torchtitan_is_what_export_writes():
    """The price in the header moves with calibrations; all else is the same to the letter."""
    plan = mw.plan(
        str(FOLDER / "config.json"), on="4xA100", workload=str(FOLDER / "workload.yaml"),
        dp=4, zero=3, mbs=4, recompute="none",
    )  # fmt: skip
    price = ("# step:", "# planned with:", "# torchtitan 0.3.0, written by")
    for name, text in rendered(plan, "torchtitan").items():
        stored = (FOLDER / "torchtitan" / name).read_text("utf-8")
        found, kept = (
            [line for line in one.splitlines() if not line.startswith(price)]
            for one in (text, stored)
        )
        assert found == kept
