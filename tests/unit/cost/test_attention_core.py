"""The attention core in training: which scores are computed, and what the backward pass adds."""

from dataclasses import replace

import pytest

from meshwright.catalog.models import load_model
from meshwright.cost.layer import op_cost
from meshwright.cost.operator import DeviceRates
from meshwright.graph.transformer import build_graph
from meshwright.sharding.local_sizes import LocalLayer, layer_axes
from meshwright.sharding.strategy import PlanOptions, make_strategy

ENGINE = DeviceRates(
    matmul_flops_per_s=1e15,
    logits_flops_per_s=1e15,
    attention_forward_flops_per_s=1e12,
    attention_backward_flops_per_s=1e12,
    memory_bytes_per_s=1e30,
    elementwise_bytes_per_s=1e12,
    launch_s=0.0,
    host_s=0.0,
    room_bytes=0.0,
    tile_rows=128.0,
    tile_columns=128.0,
    num_cores=1.0,
    activation_bytes=2.0,
    matmul_word_bytes=2.0,
)
"""The arithmetic of attention and the passes over its scores alone take time."""
LENGTH, HEADS, HEAD_SIZE = 1024, 12, 64
ALL_SCORES = HEADS * LENGTH**2
"""GPT-2 with 12 heads of 64."""


def core_cost(*, flash, causal=True, dropout=False, **rates):
    layer = build_graph(load_model("gpt2"), dropout=dropout, flash_attention=flash).layers[0]
    core = next(op for op in layer.ops if op.attention is not None)
    place = LocalLayer(
        layer.sizes, layer_axes(layer, PlanOptions()), make_strategy(), float(LENGTH)
    )
    return op_cost(core, place, replace(ENGINE, **rates), None, causal=causal)


def test_flash_attention_skips_masked_scores_and_repeats_one_product_backward():
    # Forward 2 x 2 x 64 FLOP for each score; s (s + 1) / 2 of s^2 scores under a causal mask.
    seen = HEADS * LENGTH * (LENGTH + 1) / 2
    cost = core_cost(flash=True)
    assert cost.forward_flops == pytest.approx(4 * HEAD_SIZE * seen)
    assert cost.backward_flops == pytest.approx(2.5 * cost.forward_flops)
    assert cost.input_gradient_s == pytest.approx(cost.backward_flops / 1e12)


def test_plain_products_compute_all_scores_and_repeat_nothing_backward():
    cost = core_cost(flash=False, elementwise_bytes_per_s=1e30)
    assert cost.forward_flops == 4 * HEAD_SIZE * ALL_SCORES
    assert cost.backward_flops == 2 * cost.forward_flops
    assert cost.input_gradient_s == pytest.approx(cost.backward_flops / 1e12)
    assert core_cost(flash=False, causal=False).forward_flops == cost.forward_flops


def test_plain_products_pass_over_the_scores():
    # 4 words of 2 bytes for each score forward, 7 backward; with dropout 6.5 and 9.5.
    cost = core_cost(flash=False, attention_forward_flops_per_s=1e30)
    assert cost.forward_s == pytest.approx(4 * 2 * ALL_SCORES / 1e12)
    more = core_cost(flash=False, dropout=True, attention_forward_flops_per_s=1e30)
    assert more.forward_s == pytest.approx(6.5 * 2 * ALL_SCORES / 1e12)
