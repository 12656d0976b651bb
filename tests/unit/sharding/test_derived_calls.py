"""Collectives of whole layers come out of the rule: published counts and volumes."""

from collections import Counter

import pytest

from meshwright.graph.op import Phase
from meshwright.graph.transformer import build_graph
from meshwright.sharding.axes import weight_sharding
from meshwright.sharding.derivation import derive_calls, stage_boundary_calls
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    Streamed,
    make_strategy,
)
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
)

HIDDEN, HEADS, SEQUENCE, RANKS = 64, 8, 32, 4
VOLUME = SEQUENCE * HIDDEN
"""Elements of one s x b x h activation, b = 1: V of the published table."""


def gpt_layer(**changes):
    size = HIDDEN // HEADS
    attention = AttentionSpec(
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_size=size,
        value_head_size=size,
        qkv_bias=True,
        output_bias=True,
    )
    network = FeedForwardSpec(ffn_size=4 * HIDDEN, gated=False, bias=True)
    return LayerSpec(**{"attention": attention, "feed_forward": network} | changes)


def model_of(layer, **changes):
    fields = {
        "name": "test",
        "architecture": "test",
        "hidden_size": HIDDEN,
        "vocab_size": 100,
        "layer_kinds": (layer,),
        "layer_pattern": (0, 0),
        "norm": "layer",
    }
    return ModelSpec(**fields | changes)


GQA = AttentionSpec(num_heads=8, num_kv_heads=2, head_size=8, value_head_size=8)
MLA = AttentionSpec(
    kind="mla",
    num_heads=8,
    num_kv_heads=8,
    head_size=8,
    value_head_size=8,
    query_rank=24,
    kv_rank=16,
    rope_head_size=4,
)
EXPERTS = ExpertSpec(num_experts=8, top_k=2, ffn_size=32)


def calls_of(layer, *axes, part="layer", **plan_options):
    graph = build_graph(model_of(layer))
    held = {"layer": graph.layers[0], "embedding": graph.embedding, "head": graph.head}[part]
    return derive_calls(held, PlanOptions(**{"zero_stage": 0} | plan_options), axes)


def counts(calls, *phases, regather=None, weights=False):
    """Count activation (or weight) calls by kind."""
    return Counter(
        str(call.kind)
        for call in calls
        if call.phase in phases
        and call.of_weight is weights
        and regather in (None, call.is_regather)
        and not call.replayed
    )


FORWARD = (Phase.FORWARD,)
BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)

RING_FACTOR = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Bytes that a ring sends per rank over (t - 1)/t of the full tensor."""


def ring_volume(calls, *phases):
    """Return what a ring sends per rank in units of (t - 1)/t V."""
    layer = build_graph(model_of(gpt_layer())).layers[0]
    sizes, strategy = layer.bind(SEQUENCE, SEQUENCE), make_strategy(tp=RANKS)
    return sum(
        RING_FACTOR[call.kind] * local_elements(call.tensor, call.split, sizes, strategy) / VOLUME
        for call in calls
        if call.phase in phases and not call.of_weight
    )


def test_tensor_parallel_block_has_two_all_reduces_each_way():
    calls = calls_of(gpt_layer(), "tp", sequence_parallel=False)
    assert counts(calls, *FORWARD) == {"all_reduce": 2}
    assert counts(calls, *BACKWARD) == {"all_reduce": 2}
    assert [call.tensor.name for call in calls if call.phase is Phase.FORWARD] == [
        "attention.output",
        "feed_forward.down",
    ]
    assert [call.tensor.name for call in calls if call.phase is Phase.INPUT_GRADIENT] == [
        "feed_forward.norm.output.gradient",
        "attention.norm.output.gradient",
    ]


def test_sequence_parallel_block_gathers_and_scatters_twice_each_way():
    calls = calls_of(gpt_layer(), "tp")
    assert counts(calls, *FORWARD) == {"all_gather": 2, "reduce_scatter": 2}
    assert counts(calls, *BACKWARD, regather=False) == {"all_gather": 2, "reduce_scatter": 2}
    assert counts(calls, *BACKWARD, regather=True) == {"all_gather": 2}
    again = [call for call in calls if call.is_regather]
    assert {call.phase for call in again} == {Phase.WEIGHT_GRADIENT}


def test_ring_volume_is_equal_and_grows_by_half_with_the_regather():
    """TP 2 all-reduces = 4 (t-1)/t V; TP+SP 4 gathers or scatters; 6 with two more gathers."""
    plain = calls_of(gpt_layer(), "tp", sequence_parallel=False)
    split = calls_of(gpt_layer(), "tp")
    assert ring_volume(plain, *FORWARD) == ring_volume(split, *FORWARD) == 4.0
    assert ring_volume(plain, *BACKWARD) == 4.0
    assert ring_volume(split, *BACKWARD) == 6.0
    assert ring_volume([c for c in split if not c.is_regather], *BACKWARD) == 4.0


def test_sequence_parallelism_sums_gradients_of_norms_and_of_biases_behind_the_scatter():
    calls = calls_of(gpt_layer(), "tp")
    summed = [call.tensor for call in calls if call.of_weight]
    assert {tensor.name.removesuffix(".gradient") for tensor in summed} == {
        "attention.norm.weight",
        "attention.norm.bias",
        "attention.output.bias",
        "feed_forward.norm.weight",
        "feed_forward.norm.bias",
        "feed_forward.down.bias",
    }
    assert all(tensor.dims == ("hidden",) for tensor in summed)
    assert all(call.per_step for call in calls if call.of_weight)
    plain = calls_of(gpt_layer(), "tp", sequence_parallel=False)
    assert not [call for call in plain if call.of_weight]


def test_full_recomputation_adds_one_forward_set():
    calls = calls_of(gpt_layer(), "tp", recompute=Recompute.FULL)
    again = [call for call in calls if call.replayed]
    assert Counter(call.kind for call in again) == {"all_gather": 2, "reduce_scatter": 2}
    assert {call.phase for call in again} == {Phase.INPUT_GRADIENT}


@pytest.mark.parametrize(("sequence_parallel", "kinds"), [(False, 1), (True, 2)])
def test_parallel_residual_block_reduces_once_each_way(sequence_parallel, kinds):
    """Attention and network share the gather of their input and are added before the reduction."""
    layer = gpt_layer(parallel_residual=True, num_norms=1)
    calls = calls_of(layer, "tp", sequence_parallel=sequence_parallel)
    expected = {"all_gather": 1, "reduce_scatter": 1} if sequence_parallel else {"all_reduce": 1}
    assert counts(calls, *FORWARD) == expected
    assert counts(calls, *BACKWARD, regather=False) == expected
    assert len(expected) == kinds


@pytest.mark.parametrize("norms", [{"num_norms": 4}, {"norms_before": False}])
def test_norms_on_the_branches_need_no_further_collective(norms):
    calls = calls_of(gpt_layer(**norms), "tp")
    assert counts(calls, *FORWARD) == {"all_gather": 2, "reduce_scatter": 2}


def test_replicated_key_heads_sum_their_gradients():
    """2 key heads on 4 ranks: 2 ranks hold each, and sum the gradients of its weights."""
    calls = calls_of(gpt_layer(attention=GQA), "tp")
    sums = [call for call in calls if call.axis == "tp/kv_heads"]
    assert [call.tensor.name for call in sums] == [
        "attention.key.weight.gradient",
        "attention.value.weight.gradient",
    ]
    strategy, sizes = make_strategy(tp=4), {"kv_heads": 2}
    assert degree_of("tp/kv_heads", strategy, sizes) == 2
    assert degree_of("tp/kv_heads", make_strategy(tp=2), sizes) == 1
    assert not [call for call in calls_of(gpt_layer(), "tp") if call.axis == "tp/kv_heads"]


def test_ring_attention_sends_keys_and_values_and_brings_their_gradients_home():
    """Forward K, V; backward K, V again and dK, dV: each s x kv width, of 2 heads of 8."""
    calls = calls_of(gpt_layer(attention=GQA), "cp")
    forward = [c for c in calls if c.phase is Phase.FORWARD and not c.of_weight]
    assert counts(calls, *FORWARD) == {"all_gather": 2}
    assert counts(calls, *BACKWARD) == {"all_gather": 2, "reduce_scatter": 2}
    assert all(call.streamed for call in calls if not call.of_weight)
    layer = build_graph(model_of(gpt_layer(attention=GQA))).layers[0]
    sizes = layer.bind(SEQUENCE, SEQUENCE)
    sent = [local_elements(call.tensor, call.split, sizes, make_strategy(cp=4)) for call in forward]
    assert sent == [SEQUENCE * 16, SEQUENCE * 16]


def test_ulysses_turns_four_tensors_each_way():
    calls = calls_of(gpt_layer(), "cp", context_kind=ContextKind.ULYSSES)
    assert counts(calls, *FORWARD) == {"all_to_all": 4}
    assert counts(calls, *BACKWARD) == {"all_to_all": 4}
    layer = build_graph(model_of(gpt_layer())).layers[0]
    sizes = layer.bind(SEQUENCE, SEQUENCE)
    sent = {
        local_elements(call.tensor, call.split, sizes, make_strategy(cp=4))
        for call in calls
        if not call.of_weight
    }
    assert sent == {VOLUME / 4}


def test_experts_exchange_rows_twice_each_way():
    layer = gpt_layer(feed_forward=None, experts=EXPERTS)
    calls = [c for c in calls_of(layer, "ep") if c.axis == "ep"]
    assert counts(calls, *FORWARD) == {"all_to_all": 2}
    assert counts(calls, *BACKWARD) == {"all_to_all": 2}
    held = build_graph(model_of(layer)).layers[0]
    sizes, strategy = held.bind(SEQUENCE, SEQUENCE), make_strategy(dp_shard=2, tp=2, ep=4)
    assert {local_elements(call.tensor, call.split, sizes, strategy) for call in calls} == {
        2 * VOLUME / 2
    }


def test_tensor_parallel_experts_gather_and_scatter_rows():
    """Rows of the etp group come together: twice the rows of one rank where etp is 2."""
    layer = gpt_layer(feed_forward=None, experts=EXPERTS)
    calls = [c for c in calls_of(layer, "etp") if c.axis == "etp"]
    assert counts(calls, *FORWARD) == {"all_gather": 1, "reduce_scatter": 1}
    assert counts(calls, *BACKWARD, regather=False) == {"all_gather": 1, "reduce_scatter": 1}
    held = build_graph(model_of(layer)).layers[0]
    sizes = held.bind(SEQUENCE, SEQUENCE)
    strategy = make_strategy(tp=4, ep=2, etp=2)
    activations = [call for call in calls if not call.of_weight]
    rows = 2 * VOLUME / 4
    assert {local_elements(call.tensor, call.split, sizes, strategy) for call in activations} == {
        2 * rows
    }


def test_experts_without_sequence_parallelism_gather_tokens_once_each_way():
    """Each rank of tp sends a part of the tokens, and the results are gathered (TED)."""
    layer = gpt_layer(feed_forward=None, experts=EXPERTS)
    calls = [c for c in calls_of(layer, "tp", sequence_parallel=False) if c.axis == "tp"]
    assert counts(calls, *FORWARD) == {"all_reduce": 1, "all_gather": 1}
    assert counts(calls, *BACKWARD) == {"all_reduce": 1, "all_gather": 1}


def test_gradients_of_experts_are_summed_over_their_copies_only():
    layer = gpt_layer(feed_forward=None, experts=EXPERTS)
    sums = {
        call.tensor.name: call.axis
        for call in calls_of(layer, "dp", "cp", "tp")
        if call.of_weight and call.axis in ("dp*cp", "edp")
    }
    assert sums["experts.up.weight.gradient"] == "edp"
    assert sums["attention.query.weight.gradient"] == "dp*cp"
    assert degree_of("edp", make_strategy(dp_shard=4, cp=2, tp=2, ep=8, etp=1)) == 2


def test_latent_attention_gathers_the_compressed_factors():
    """Down projections stay on the tokens of a rank; ranks 24 and 16 and rotary 4 are gathered."""
    calls = calls_of(gpt_layer(attention=MLA), "tp")
    gathered = [c.tensor for c in calls if c.phase is Phase.FORWARD and c.kind == "all_gather"]
    assert [tensor.dims[-1] for tensor in gathered] == [
        "query_rank",
        "kv_rank",
        "rotary",
        "hidden",
    ]


def test_embedding_is_reduced_once():
    plain = calls_of(gpt_layer(), "tp", part="embedding", sequence_parallel=False)
    assert counts(plain, *FORWARD) == {"all_reduce": 1}
    assert counts(plain, *BACKWARD) == {}
    split = calls_of(gpt_layer(), "tp", part="embedding")
    assert counts(split, *FORWARD) == {"reduce_scatter": 1}
    assert counts(split, *BACKWARD) == {"all_gather": 1}


def test_cross_entropy_reduces_three_numbers_for_each_token():
    calls = calls_of(gpt_layer(), "tp", part="head", sequence_parallel=False)
    assert counts(calls, *FORWARD) == {"all_reduce": 3}
    assert {c.tensor.dims for c in calls if c.phase is Phase.FORWARD} == {("tokens",)}
    assert counts(calls, *BACKWARD) == {"all_reduce": 1}


def test_norm_over_all_heads_reduces_its_statistics():
    attention = GQA.model_copy(update={"qk_norm": "full"})
    names = [c.tensor.name for c in calls_of(gpt_layer(attention=attention), "tp")]
    assert "attention.query.statistics" in names
    assert "attention.key.statistics" in names


def test_streamed_weights_travel_and_nothing_is_left_to_reduce():
    """Weights twice, their gradients once; keys and values as in a ring; no activation sums."""
    calls = calls_of(gpt_layer(), "tatp", streamed=Streamed.WEIGHTS)
    weights = [call for call in calls if call.of_weight and call.streamed]
    kinds = Counter((call.kind, call.phase) for call in weights)
    matrices = 6
    assert kinds == {
        ("all_gather", Phase.FORWARD): matrices,
        ("all_gather", Phase.INPUT_GRADIENT): matrices,
        ("reduce_scatter", Phase.WEIGHT_GRADIENT): matrices,
    }
    assert counts(calls, *FORWARD) == {"all_gather": 2}
    assert all(call.streamed for call in calls if not call.per_step)


def test_streamed_inputs_are_sequence_parallelism_in_pieces():
    streamed = calls_of(gpt_layer(), "tatp", streamed=Streamed.INPUTS)
    gathered = calls_of(gpt_layer(), "tp")
    assert [(c.kind, c.tensor.name) for c in streamed] == [
        (c.kind, c.tensor.name) for c in gathered
    ]
    assert all(call.streamed for call in streamed if not call.of_weight)
    assert not any(call.streamed for call in gathered)


@pytest.mark.parametrize(
    ("stage", "kinds"),
    [
        (0, {("all_reduce", "dp*cp", True): 1}),
        (1, {("all_gather", "dp_shard*cp", True): 1, ("reduce_scatter", "dp_shard*cp", True): 1}),
        (3, {("all_gather", "dp_shard*cp", False): 2, ("reduce_scatter", "dp_shard*cp", False): 1}),
    ],
)
def test_zero_stages(stage, kinds):
    calls = calls_of(gpt_layer(), "dp_shard", zero_stage=stage)
    of_one = [c for c in calls if c.tensor.name.startswith("attention.query.weight")]
    assert Counter((str(c.kind), c.axis, c.per_step) for c in of_one) == kinds


def test_hybrid_sharding_reduces_shards_over_the_replicas():
    calls = calls_of(gpt_layer(), "dp_shard", "dp_replicate", zero_stage=2)
    sums = [c for c in calls if c.axis == "dp_replicate"]
    query = next(c for c in sums if c.tensor.name == "attention.query.weight.gradient")
    layer = build_graph(model_of(gpt_layer())).layers[0]
    strategy = make_strategy(dp_shard=4, dp_replicate=2, tp=2, tatp=2)
    elements = local_elements(query.tensor, query.split, layer.bind(SEQUENCE, SEQUENCE), strategy)
    assert elements == HIDDEN * HIDDEN / (2 * 2 * 4)


def test_stage_boundary_carries_the_stream_as_it_rests():
    graph = build_graph(model_of(gpt_layer()))
    forward, backward = stage_boundary_calls(graph, PlanOptions())
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.INPUT_GRADIENT)
    sizes, strategy = graph.layers[0].bind(SEQUENCE, SEQUENCE), make_strategy(tp=4, cp=2)
    assert local_elements(forward.tensor, forward.split, sizes, strategy) == VOLUME / 8
    whole, _ = stage_boundary_calls(graph, PlanOptions(sequence_parallel=False))
    assert local_elements(whole.tensor, whole.split, sizes, strategy) == VOLUME / 2


def test_uneven_shards_are_those_of_the_largest_rank():
    """10 heads of 8 on 4 ranks: the largest rank holds 3 heads, 24 columns."""
    graph = build_graph(model_of(gpt_layer())).layers[0]
    query = graph.ops[1].output
    sizes = {**graph.bind(8, 8), "query_heads": 10, "query": 80}
    split = {"tokens": ("dp",), "query": ("tp",)}
    assert local_elements(query, split, sizes, make_strategy(tp=4)) == 8 * 24


def test_a_streamed_weight_is_cut_anywhere_and_not_between_heads():
    """2 key heads of 8 columns on 16 ranks: 1/16 of 64 x 16 each, less than one head."""
    layer = build_graph(model_of(gpt_layer(attention=GQA))).layers[0]
    key = layer.ops[1].weights[1]
    assert key.name == "attention.key.weight"
    sizes, strategy = layer.bind(SEQUENCE, SEQUENCE), make_strategy(tatp=16)
    held = {}
    for streamed in (Streamed.WEIGHTS, Streamed.INPUTS):
        split = weight_sharding(key, PlanOptions(streamed=streamed)).split
        held[streamed] = local_elements(key, split, sizes, strategy)
    assert held == {Streamed.WEIGHTS: 64 * 16 / 16, Streamed.INPUTS: 64 * 8}
