"""Single operators of a forward pass: few rows, caches, experts."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.catalog.models import load_model
from meshwright.cost.operator import DeviceRates
from meshwright.graph.op import OpKind
from meshwright.graph.transformer import build_graph
from meshwright.serve.operators import (
    PassShape,
    cache_read_s,
    cached_words,
    cached_words_per_token,
    experts_at_work,
    flops_per_score,
    forward_cost,
    hit_fraction,
    host_of_prompt_s,
    mean_keys_seen,
    product_compute_s,
)
from meshwright.serve.price import price_serving
from meshwright.serve.serve import serving_problem
from meshwright.sharding.local_sizes import LocalLayer, layer_axes
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.model import AttentionSpec, LayerSpec, WeightFormat
from meshwright.spec.workload import Decode, SoftwareStack

ENGINE = DeviceRates(
    matmul_flops_per_s=1e15, logits_flops_per_s=1e15, attention_forward_flops_per_s=1e15,
    attention_backward_flops_per_s=1e15, memory_bytes_per_s=1e12, elementwise_bytes_per_s=1e12,
    launch_s=0.0, host_s=0.0, room_bytes=0.0, tile_rows=128.0, tile_columns=128.0, num_cores=100.0,
    activation_bytes=2.0, matmul_word_bytes=2.0,
)  # fmt: skip


def local(layer, *, length=1.0, imbalance=1.0, **degrees):
    axes = layer_axes(layer, PlanOptions(sequence_parallel=False))
    return LocalLayer(layer.sizes, axes, make_strategy(**degrees), length, imbalance)


def test_few_rows_are_padded_to_eight_not_to_a_tile():
    # 1 x 1000 x 1000 on a device of 1e15 FLOP/s: 2 x 8 x 1e6 / 1e15.
    assert product_compute_s(1.0, 1.0, 1e3, 1e3, 1e15, ENGINE) == pytest.approx(1.6e-8)
    assert product_compute_s(1.0, 9.0, 1e3, 1e3, 1e15, ENGINE) == pytest.approx(3.2e-8)


@pytest.mark.parametrize(("sequences", "unpacks"), [(1, True), (8, True), (8, False)])
def test_weights_of_a_quantised_checkpoint_are_read_as_stored_or_widened_first(sequences, unpacks):
    layer = build_graph(load_model("llama3-8b")).layers[0]
    down = next(op for op in layer.ops if op.name == "feed_forward.down")
    stored = WeightFormat(name="nf4", bytes_per_weight=0.5625, unpacks=unpacks)
    shape = PassShape(1.0, 100.0, 2.0, 2.0, weight_format=stored)
    cost = forward_cost(down, local(layer, micro_batch_size=float(sequences)), ENGINE, shape)
    weights, activations = 4096 * 14_336, 2 * sequences * (4096 + 14_336)
    # One row is multiplied with what is stored; several with a copy that is written and read.
    copied = 0.5625 * weights + 2 * weights if unpacks and sequences > 1 else 0.0
    read = 2 * weights if copied else 0.5625 * weights
    assert cost.traffic_bytes == pytest.approx(copied + read + activations)
    assert cost.elementwise_s == pytest.approx(copied / 1e12)
    assert cost.matmul_memory_s == pytest.approx((read + activations) / 1e12)
    wide = replace(shape, weight_format=replace_wide(stored, feed_forward=1.0))
    assert wide.stored_bytes(down, ENGINE) == 2.0


def replace_wide(stored, **shares):
    return stored.model_copy(update={"wide_shares": shares})


def test_many_rows_pay_whole_waves():
    # 1,280 x 1,408 are 10 x 11 = 110 tiles: two waves on 100 cores.
    found = product_compute_s(1.0, 1280.0, 1e3, 1408.0, 1e15, ENGINE)
    assert found == pytest.approx(2 * 100 * 2 * 128 * 128 * 1e3 / 1e15)


def test_hit_experts_by_hand():
    # Of 8 experts with two choices: 8 (1 - (3/4)^t) = 2, 3.5, 5.46875 for t = 1, 2, 4.
    hits = 8 * hit_fraction(0.25, np.array([1.0, 2.0, 4.0, 2.0]))
    assert hits == pytest.approx([2.0, 3.5, 5.46875, 3.5])
    assert hit_fraction(1.0, np.array([1.0, 3.0])) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("tokens", "hit"), [(1, 2.0), (2, 3.5), (4, 5.46875)])
def test_a_small_batch_reads_only_the_experts_it_hits(tokens, hit):
    graph = build_graph(load_model("mixtral-8x7b"))
    layer = graph.layers[0]
    up = next(op for op in layer.ops if op.name == "experts.up")
    place = local(layer, micro_batch_size=float(tokens))
    cost = forward_cost(up, place, ENGINE, PassShape(1.0, 100.0, 2.0, 2.0))
    # Gate and up of one expert: 4,096 x 28,672 words; the rows are 2 for each token.
    weights = hit * 4096 * 28_672 * 2
    activations = 2 * tokens * (4096 + 28_672) * 2
    assert cost.traffic_bytes == pytest.approx(weights + activations)
    assert cost.flops == pytest.approx(2 * 2 * tokens * 4096 * 28_672)
    assert cost.matmul_memory_s == pytest.approx((weights + activations) / 1e12)


def test_the_busiest_rank_of_experts_has_one_at_work():
    # One token with two choices among 8 ranks: most have nothing to do, the busiest has an expert.
    layer = build_graph(load_model("mixtral-8x7b")).layers[0]
    hit, rows = experts_at_work(local(layer, ep=8.0, tp=8.0))
    assert (hit, rows) == (1.0, 1.0)


def test_keys_seen_by_hand():
    assert mean_keys_seen(1.0, 99.0, None) == 100.0
    assert mean_keys_seen(4.0, 0.0, None) == 2.5
    # Window 3, tokens 1 to 4 see 1, 2, 3, 3 keys.
    assert mean_keys_seen(4.0, 0.0, 3.0) == 9 / 4
    assert mean_keys_seen(1.0, 99.0, 16.0) == 16.0


def test_joined_tokens_and_the_keys_of_an_index_are_kept_beside_the_window():
    spec = AttentionSpec(
        num_heads=4, num_kv_heads=1, head_size=16, value_head_size=16, window=8, stride=2,
        chosen_keys=4, query_rank=12, index_heads=3, index_head_size=8, value_is_key=True,
        caches_once=True,
    )  # fmt: skip
    model = load_model("llama3-8b").model_copy(
        update={"layer_kinds": (LayerSpec(attention=spec, num_norms=1),), "layer_pattern": (0,)}
    )
    layer = build_graph(model).layers[0]
    # 64 tokens: 8 near ones and 32 joined ones of 16 words, and 32 keys of 8.
    assert cached_words(spec, local(layer), 64.0) == 16 * 40 + 8 * 32
    core = next(op for op in layer.ops if op.attention is not None)
    cost = forward_cost(core, local(layer), ENGINE, PassShape(1.0, 64.0, 2.0, 2.0))
    # A token sees 8 near and 4 chosen entries of 2 x 16 words by 4 heads, and scores 32.5 + 0.25.
    assert cost.flops == pytest.approx(4 * 12 * 2 * 32 + 32.75 * 2 * 3 * 8)


def test_latent_attention_reads_one_latent_for_all_heads():
    # DeepSeek V2 Lite: rank 512 and a rotary key of 64, whatever tp; absorbed products have
    # 2 (2 x 512 + 64) FLOP for each head and key, plain ones 2 (128 + 64 + 128).
    layer = build_graph(load_model("deepseek-v2-lite")).layers[0]
    spec = next(op.attention for op in layer.ops if op.attention is not None)
    for tp in (1.0, 4.0):
        assert cached_words_per_token(spec, local(layer, tp=tp)) == 576
    assert flops_per_score(spec, reads_cache=True) == 2176
    assert flops_per_score(spec, reads_cache=False) == 640


def test_decode_attention_reads_the_cache_once():
    layer = build_graph(load_model("llama3-8b")).layers[0]
    core = next(op for op in layer.ops if op.attention is not None)
    place = local(layer, micro_batch_size=4.0)
    cost = forward_cost(core, place, ENGINE, PassShape(1.0, 1000.0, 2.0, 1.0))
    # 4 sequences x 1,001 tokens x 2,048 words of 1 byte, read or written; queries, keys, values
    # and results of 4 tokens are 4,096 + 1,024 + 1,024 + 4,096 words of 2 bytes each.
    assert cost.traffic_bytes == 4 * 1001 * 2048 + 4 * 10_240 * 2
    assert cost.flops == 4 * 1001 * 32 * 4 * 128
    assert cost.attention_s == pytest.approx(cost.traffic_bytes / 1e12)


def test_heads_that_share_a_key_head_read_it_again_in_part():
    # Four query heads to a key head: 1 + 0.6 (1 - 1/4) = 1.45 times the bytes, at half of the rate.
    layer = build_graph(load_model("llama3-8b")).layers[0]
    place = local(layer, micro_batch_size=64.0)
    constants = replace(NEUTRAL, shared_cache_extra=0.6, cache_read_share=0.5)
    shape = PassShape(1.0, 1000.0, 2.0, 2.0, constants=constants)
    assert cache_read_s(1e9, place, ENGINE, shape) == pytest.approx(1.45e9 / 0.5e12)


def test_few_heads_do_not_fill_the_memory():
    # One sequence of 8 key heads: 8 of 100 cores, each at twice its share of 1e12 bytes/s.
    layer = build_graph(load_model("llama3-8b")).layers[0]
    place = local(layer, micro_batch_size=1.0)
    shape = PassShape(1.0, 1000.0, 2.0, 2.0, constants=replace(NEUTRAL, core_pull=2.0))
    assert cache_read_s(1e9, place, ENGINE, shape) == pytest.approx(1e9 / (8 * 2.0 * 1e10))


def test_scores_that_reach_memory_cost_more():
    graphs = [
        build_graph(load_model("llama3-8b"), flash_attention=flash) for flash in (True, False)
    ]
    seconds = []
    for graph in graphs:
        core = next(op for op in graph.layers[0].ops if op.attention is not None)
        place = local(graph.layers[0], length=4096.0)
        shape = PassShape(4096.0, 0.0, 2.0, 2.0)
        seconds.append(forward_cost(core, place, ENGINE, shape).attention_s)
    # 4 words for each of 32 x 4,096^2 scores of 2 bytes.
    assert seconds[1] - seconds[0] == pytest.approx(4 * 2 * 32 * 4096**2 / 1e12)


def test_a_slow_memory_turns_products_memory_bound():
    layer = build_graph(load_model("llama3-8b")).layers[0]
    up = next(op for op in layer.ops if op.name == "feed_forward.up")
    place = local(layer, length=2048.0)
    shape = PassShape(2048.0, 0.0, 2.0, 2.0)
    fast = forward_cost(up, place, ENGINE, shape)
    slow = forward_cost(up, place, replace(ENGINE, memory_bytes_per_s=1e9), shape)
    assert fast.matmul_memory_s == 0.0 < fast.matmul_compute_s
    assert slow.matmul_compute_s == 0.0 < slow.matmul_memory_s


def test_attention_over_latents_has_a_rate_of_its_own():
    """64 sequences of 128 heads: 2 x 1088 FLOPs for each head and key, at twice the rate."""
    layer = build_graph(load_model("deepseek-v3")).layers[0]
    core = next(op for op in layer.ops if op.attention)
    fast = replace(ENGINE, memory_bytes_per_s=1e18, elementwise_bytes_per_s=1e18)
    shape = PassShape(1.0, 4095.0, 1.0, 2.0, constants=replace(NEUTRAL, latent_rate_share=2.0))
    found = forward_cost(core, local(layer, micro_batch_size=64.0), fast, shape).attention_s
    assert found == pytest.approx(64 * 128 * 4096 * 2 * 1088 / 2e15, rel=1e-3)


def test_each_kernel_of_a_recorded_graph_starts_once():
    """An operator is a kernel, attention two; then the lookup, a norm and the logits."""
    work = Decode(batch_size=8, context_length=1024, software=SoftwareStack(cuda_graphs=True))
    asked = serving_problem("llama3-8b", "1xH100", work, "generic", "uncalibrated")
    strategy, options = stack([make_strategy(micro_batch_size=8.0)]), PlanOptions()
    late = asked.with_constants(replace(asked.constants, kernel_start_s=1e-5))
    known, found = (price_serving(one, options, strategy, np.ones(1)) for one in (asked, late))
    kernels = 32 * (len(asked.graph.layers[0].ops) + 1) + 3
    added = found.time.launch_s[0] - known.time.launch_s[0]
    assert added == pytest.approx(kernels * 1e-5)


def test_attention_that_arithmetic_limits_follows_its_own_rate():
    layer = build_graph(load_model("llama3-8b")).layers[0]
    core = next(op for op in layer.ops if op.attention)
    shape = PassShape(4096.0, 0.0, 2.0, 2.0)
    slow = replace(shape, constants=replace(NEUTRAL, attention_rate_share=0.5))
    mine = local(layer, length=4096.0)
    known, found = (forward_cost(core, mine, ENGINE, one).attention_s for one in (shape, slow))
    assert found == pytest.approx(known * 2.0)


def test_the_weights_of_experts_are_read_at_a_share_of_their_own():
    layer = build_graph(load_model("mixtral-8x7b")).layers[0]
    shape = PassShape(1.0, 100.0, 2.0, 2.0)
    slow = replace(shape, constants=replace(NEUTRAL, expert_read_share=0.5))
    mine = local(layer, micro_batch_size=1.0)
    for op in layer.ops:
        if op.kind is OpKind.MATMUL:
            known, found = (
                forward_cost(op, mine, ENGINE, s).matmul_memory_s for s in (shape, slow)
            )
            assert found == pytest.approx(known * (2.0 if op.is_grouped else 1.0))


def test_the_server_reads_all_of_a_prompt_before_its_first_token():
    """4 ms, and 2 us for each of 1,000 tokens."""
    constants = replace(NEUTRAL, host_prompt_s=4e-3, host_token_s=2e-6)
    assert host_of_prompt_s(constants, 1000.0) == pytest.approx(6e-3)
