"""Plans as words of the commands that their scripts start."""

import pytest
from hand_made_plans import build


@pytest.fixture(scope="session")
def make_plan():
    """Return the factory of plans made by hand."""
    return build
