"""Figures 4 and 9 of TEMP: what their studies compute themselves, on rates that tell by hand."""

import numpy as np
import pytest

from meshwright_papers.studies.temp.setup import CASES, NEVER_SLOW, TB, Machine, wafer
from meshwright_papers.studies.temp.sweet_spot import Curve, layer_curve
from meshwright_papers.studies.temp.tensor_parallelism import (
    REPLICATED,
    STRATEGY,
    estimated,
    memory_of,
)


def test_a_machine_changes_only_what_it_names():
    assert Machine().system() == wafer()
    system = Machine(link_bytes_per_s=0.5 * TB, message_half_bytes=0.0).system()
    assert {level.bandwidth_bytes_per_s for level in system.levels} == {0.5 * TB}
    assert {level.message_half_bytes for level in system.levels} == {0.0}
    assert system.chip == wafer().chip
    assert Machine(hbm_bytes_per_s=NEVER_SLOW).system().chip == wafer(with_hbm=False).chip


def test_a_machine_says_what_it_is():
    assert Machine().text == "as elsewhere"
    known = Machine(link_bytes_per_s=TB, hbm_bytes_per_s=NEVER_SLOW, message_half_bytes=4e6)
    assert known.text == "HBM never slow, D2D 1 TB/s, messages 4 MB"


def test_copies_of_activations_are_what_tp_leaves_whole():
    """Between blocks tp 8 leaves every activation whole: without them a die holds the rest."""
    case = CASES["GPT-3 6.7B"]
    held = memory_of(case)
    parts = estimated(case, wafer(), STRATEGY, REPLICATED).best.estimate.memory_parts_bytes
    assert held.sharded < held.split < held.replicated
    others = ("activations_bytes", "logits_bytes", "temporary_bytes")
    assert held.replicated - held.split < sum(parts[name] for name in others)
    states = parts["weights_bytes"] + parts["gradients_bytes"]
    assert held.split - held.sharded == pytest.approx(states * 3 / 4, rel=0.01)


def curve(rates, savings):
    return Curve("by hand", True, np.array([1.0, 2.0, 4.0]), np.array(rates), np.array(savings))


def test_best_degrees_of_a_curve():
    known = curve([1.0, 3.0, 3.0], [10.0, 9.6, 9.0])
    assert (known.fastest, known.most_frugal, known.best_of_both, known.knee) == (2, 1, 2, 2)


def test_a_layer_computes_alone_on_one_die_and_waits_for_links_on_many():
    """Without memory one die takes 2 S H^2 / peak; N dies no less than N - 1 rounds of links."""
    known = layer_curve(2048.0, with_hbm=False)
    peak = wafer().chip.matmul_flops_per_s["bf16"]
    assert known.tokens_per_s[0] == pytest.approx(peak / (2 * 12288.0**2), rel=0.05)
    assert known.tokens_per_s[0] < peak / (2 * 12288.0**2)
    sub_tensor = 2 * 2048 * 12288 / 32
    round_s = (sub_tensor + 4e6) / (0.95 * 2e12) + 200e-9
    assert 2048 / known.tokens_per_s[31] > 31 * round_s
    assert (layer_curve(2048.0, with_hbm=True).tokens_per_s <= known.tokens_per_s).all()
    # The fastest way to part the room may move more where the memory is never slow: at 8 dies.
    assert (layer_curve(2048.0, with_hbm=True).tokens_per_j <= 1.03 * known.tokens_per_j).all()
