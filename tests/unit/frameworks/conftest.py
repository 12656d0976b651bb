"""Fixtures of plans made by hand."""

from dataclasses import replace

import pytest
from hand_made_plans import build

from meshwright.spec.workload import Precision


@pytest.fixture(scope="session")
def make_plan():
    """Return the factory of plans."""
    return build


@pytest.fixture(scope="session")
def fp8():
    """Return fp8 linear layers."""
    return Precision(matmul="fp8")


@pytest.fixture(scope="session")
def renamed():
    """Return a way to give a plan's model another name."""
    return lambda plan, name: replace(plan, model=plan.model.model_copy(update={"name": name}))
