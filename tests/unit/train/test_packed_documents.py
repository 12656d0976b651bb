"""Documents that are packed into sequences: attention by documents, all else by tokens."""

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.cost.step import price_one
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.train.question import make_problem, training

STRATEGY = make_strategy(dp_shard=8)
NONE = PlanOptions(sequence_parallel=False)
ASKED = {"on": "8xH100", "seq": 8192, "global_batch": 64, "tp": 1, "pp": 1, "mbs": 1}


def price_of(flash=True, **more):
    asked = {"global_batch_size": 64, "sequence_length": 8192, **more}
    work = training("8xH100", **asked)
    software = work.software.model_copy(update={"flash_attention": flash})
    work = work.model_copy(update={"software": software})
    return price_one(make_problem("llama3-8b", "8xH100", work, "uncalibrated"), NONE, STRATEGY)


def test_scores_of_documents_are_fewer_and_products_are_as_many():
    """32 layers, 32 heads of 128, 8 x 8192 tokens on a device: 2 products forward, 5 backward.

    A causal token sees (8192 + 1) / 2 keys, in documents of 1024 tokens (1024 + 1) / 2.
    """
    whole, packed = (number_at(price_of(**d).step.flops) for d in ({}, {"document_length": 1024}))
    keys = (8193 - 1025) / 2
    assert whole - packed == pytest.approx(8 * 8192 * 32 * 32 * 128 * 2 * 7 * keys, rel=1e-9)


def test_a_document_as_long_as_the_sequence_is_the_sequence():
    one, other = price_of(), price_of(document_length=8192)
    assert number_at(one.step.time.total_s) == number_at(other.step.time.total_s)


def test_packed_documents_hold_as_much_and_scores_that_are_written_take_as_long():
    whole, packed = price_of(), price_of(document_length=1024)
    for one, other in zip(whole.step.memory, packed.step.memory, strict=True):
        assert number_at(one.total_bytes) == number_at(other.total_bytes)
    assert number_at(packed.step.time.total_s) < number_at(whole.step.time.total_s)
    plain = [price_of(flash=False, **d) for d in ({}, {"document_length": 1024})]
    assert number_at(plain[0].step.time.total_s) == number_at(plain[1].step.time.total_s)


def test_model_flops_count_documents_too():
    """6 N T + 6 L h keys T: the tokens of a step in seconds give the same share of the peak."""
    plans = [mw.estimate("llama3-8b", **ASKED, document_length=d) for d in (None, 1024)]
    flops = [p.best.estimate.mfu_causal * p.best.estimate.step_time_s for p in plans]
    scores = [6 * 32 * 4096 * keys for keys in (8192, 1024)]
    tokens, peak = 64 * 8192, 8 * 989.4e12
    assert (flops[0] - flops[1]) * peak / tokens == pytest.approx(scores[0] - scores[1], rel=1e-3)


def test_documents_longer_than_a_sequence_are_refused():
    with pytest.raises(mw.MeshwrightError, match="--with document_length: 9000 is longer"):
        mw.estimate("llama3-8b", **ASKED, document_length=9000)
