"""Chunks of a pipeline in a plan file: those that the search offers, and no more."""

import pytest
from hand_made_plans import build

from meshwright.base.errors import SpecError
from meshwright.train.plan_file import PLAN_FILE


def read(pp, chunks):
    """Write and read a plan of a model of 32 layers."""
    options = {"schedule": "interleaved"} if chunks > 1 else {}
    plan = build({"pp": pp, "num_virtual_stages": chunks}, options, model="llama3-8b")
    return PLAN_FILE.from_json(PLAN_FILE.to_json(plan)).best.strategy


def test_the_embedding_and_the_head_may_be_chunks_of_their_own():
    """34 chunks of 32 layers: the first holds the embedding alone, the last the head."""
    assert read(17, 2).pp == 17


@pytest.mark.parametrize(("pp", "chunks"), [(12, 3), (33, 1), (10**6, 10**6)])
def test_more_chunks_are_refused(pp, chunks):
    with pytest.raises(SpecError, match="too many for 32 layers"):
        read(pp, chunks)
