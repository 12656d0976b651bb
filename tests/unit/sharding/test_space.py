"""What streams, as the search tries it: one tensor or both, unless it is fixed."""

import pytest

from meshwright.sharding.space import Choices, stream_choices
from meshwright.sharding.strategy import Streamed, StreamForm

AUTO, BOTH = Streamed.AUTO, Streamed.BOTH


@pytest.mark.parametrize(
    ("allowed", "has_grid", "tensors"),
    [
        ({}, True, (AUTO, BOTH)),
        ({}, False, (AUTO,)),
        ({"streamed": ("auto",)}, True, (AUTO,)),
        ({"streamed": ("both",)}, True, (BOTH,)),
        ({"streamed": ("auto", "weights", "inputs")}, True, (AUTO,)),
        ({"streamed": ("weights", "inputs")}, True, (Streamed.WEIGHTS, Streamed.INPUTS)),
    ],
)
def test_auto_stands_for_either_tensor_and_not_for_both(allowed, has_grid, tensors):
    found = stream_choices(Choices(allowed), has_grid=has_grid)
    assert tuple(tensor for tensor, _ in found) == tensors
    assert {form for _, form in found} == {StreamForm.AUTO}
