"""What streams, as the search tries it: one tensor or both, unless it is fixed."""

import pytest

from meshwright.sharding.space import Choices, legal_counts, stream_choices
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


def test_any_number_of_devices_on_few_hosts_and_whole_hosts_beyond():
    """40 devices on hosts of 8: 1 to 31, then 32 and 40. Of 32 hosts of 8 pairs are left idle."""
    assert legal_counts(24, 8) == tuple(range(24, 0, -1))
    assert legal_counts(40, 8) == (40, *range(32, 0, -1))
    assert legal_counts(256, 8) == (*range(256, 31, -16), *range(31, 0, -1))
    assert legal_counts(250, 8)[:3] == (250, 240, 224)
