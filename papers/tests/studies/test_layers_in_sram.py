"""The arithmetic behind the table of four layers in caches, by hand."""

import pytest

from meshwright_papers.studies.layers_in_sram import (
    BATCH,
    DENSE,
    MOE,
    PRINTED,
    gain,
    longest_pass,
    rates_at,
    ridge,
)
from meshwright_papers.studies.study import Verdict, studies


@pytest.fixture(scope="module")
def claims():
    found = studies["layers-in-sram"].run().claims
    return {claim.what: claim for claim in found}


@pytest.mark.parametrize(("kind", "hidden"), [(DENSE, 4079), (MOE[0], 1644)])
def test_the_largest_layer_of_50_mb(kind, hidden):
    assert kind.largest_hidden(BATCH, 50e6) == hidden
    assert kind.held_bytes(hidden, BATCH) <= 50e6 < kind.held_bytes(hidden + 1, BATCH)


def test_a_large_pass_is_limited_by_arithmetic_and_a_small_one_by_weights():
    rates, hidden = rates_at(0), 4096
    flops = 2 * BATCH * hidden**2
    assert DENSE.layer_s(hidden, BATCH, rates) >= flops / rates.matmul_flops_per_s
    read_s = 2 * (hidden**2 + 2 * 8 * hidden) / rates.memory_bytes_per_s
    assert DENSE.layer_s(hidden, 8, rates) == pytest.approx(read_s)
    assert gain(DENSE, hidden, BATCH) == pytest.approx(1)
    assert gain(DENSE, hidden, 8) == pytest.approx(5.5 / 3.35)


def test_arithmetic_takes_over_earlier_from_the_nearer_memory():
    # 794.5 TFLOP/s reached, 85 % of 3.35 and of 5.5 TB/s
    assert ridge(1) == pytest.approx(794.5 / (0.85 * 3.35))
    assert ridge(0) == pytest.approx(794.5 / (0.85 * 5.5))


def test_no_pass_gains_more_than_the_ratio_of_bandwidths():
    assert longest_pass(DENSE, 1.2) < BATCH
    assert longest_pass(MOE[0], 1.2) > BATCH
    assert longest_pass(DENSE, 5.5 / 3.35 + 0.01) == 0


def test_the_table_agrees_with_itself_and_not_with_its_hardware(claims):
    verdicts = [claim.verdict for claim in claims.values()]
    assert verdicts.count(Verdict.AGREES) == 3
    assert verdicts.count(Verdict.NOT_PUBLISHED) == 1
    users = claims["time that a user waits for a token"].ours
    assert all(f"{1024e3 / row.tokens_per_s:.1f}" in users for row in PRINTED)
    assert claims["devices that a contiguous cut of 4 layers fills"].ours.startswith("4; 12 idle")


def test_no_reading_reproduces_the_table(claims):
    """The fastest row that fits: MoE, whose slowest reading is a thousand times the table."""
    claim = claims["readings of kind, hidden size and tokens a pass that give both rows"]
    assert claim.verdict is Verdict.DIFFERS
    assert claim.ours.startswith("0 of 24")
    fitting = [kind.tokens_per_s(1024, 64, rates_at(1)) for kind in MOE]
    assert min(fitting) / PRINTED[2].tokens_per_s > 1000
