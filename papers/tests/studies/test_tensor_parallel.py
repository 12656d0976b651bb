"""The study's tables are those of the published analysis."""

import pytest

from meshwright_papers.studies.tensor_parallel import TensorParallel

V = 2 * 2048 * 12288
"""Bytes of one activation of s x h words of two bytes."""


@pytest.fixture(scope="module")
def data():
    return TensorParallel.run().data


def test_calls_and_ring_volume(data):
    rows = {(row["scheme"], row["direction"]): row for row in data["collectives"]}
    both_ways = 4 * 7 / 8 * V
    for direction in ("forward", "backward"):
        assert rows["TP", direction]["calls"] == {"all_reduce": 2}
        assert rows["TP", direction]["ring_bytes"] == both_ways
        assert rows["TP + SP", direction]["calls"] == {"all_gather": 2, "reduce_scatter": 2}
        assert rows["TP + SP", direction]["ring_bytes"] == both_ways
    again = rows["TP + SP", "backward, gathered again"]
    assert again["calls"] == {"all_gather": 2}
    assert again["ring_bytes"] == both_ways / 2


def test_sums_stand_behind_both_row_parallel_products(data):
    forward = data["collectives"][0]
    assert forward["sites"] == ["residual.attention: input", "residual.network: input"]


def test_activation_bytes_follow_the_published_formulas(data):
    s, h, a, t = 2048, 12288, 96, 8
    sbh, scores = s * h, 5 * a * s / h
    assert data["activation_bytes"] == {
        "one device": sbh * (34 + scores),
        "TP": sbh * (10 + 24 / t + scores / t),
        "TP + SP": sbh * (34 + scores) / t,
        "TP, selective recomputation": sbh * (10 + 24 / t),
        "TP + SP, selective recomputation": 34 * sbh / t,
        "TP, full recomputation": 2 * sbh,
    }
