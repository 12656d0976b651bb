"""What streams beside each operator of a layer: its bytes, its rounds, and what stays local."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.stream_transfers import attention_bytes, linear_bytes
from small_problems import chip, dense, experts, gqa, level, model, problem, system

from meshwright.cost.communication import Collectives
from meshwright.cost.layer import op_cost, price_layers, priced_pieces, streamed_blocks
from meshwright.cost.operator import matmul_cost
from meshwright.sharding.strategy import (
    PlanOptions,
    Recompute,
    Streamed,
    StreamForm,
    make_strategy,
    stack,
)
from meshwright.spec.model import FeedForwardSpec, LayerSpec
from meshwright.spec.workload import SoftwareStack
from meshwright.streams.round_model import StreamedTensor

N, TOKENS, HIDDEN, KEYS, FFN = 8, 512, 64, 32, 256
PLAIN = LayerSpec(attention=gqa(4, 2), feed_forward=FeedForwardSpec(ffn_size=FFN, gated=False))
LINE = system(level(8, "mesh"))
BLOCK = system(level(2, "mesh"), level(4, "mesh"))


def way_of(streamed, form=StreamForm.LINE_HOLD, on=LINE, spec=PLAIN, length=TOKENS):
    """Return a layer with tatp over all eight devices."""
    plan_options = PlanOptions(sequence_parallel=False, streamed=streamed, stream_form=form)
    what = problem(model(spec), on, sequence_length=length)
    network = what.network(plan_options.axis_order, stack([make_strategy(tatp=N)]))
    return priced_pieces(what, plan_options, Collectives(network, 0.0), 0, uses_tatp=True)[0]


def costs_of(way, **rates):
    """Return the price of each operator by name."""
    rates = replace(way.problem.rates, **rates)
    return {
        op.name: op_cost(op, way.local, rates, way.streams, causal=True) for op in way.piece.ops
    }


def sent(cost):
    return float(np.asarray(cost.forward_link_bytes + cost.backward_link_bytes).item())


def test_a_member_sends_the_bytes_of_the_policy():
    """Hold sends each part N - 1 times in all: (N - 1) / N of the tensor for each member."""
    weights = costs_of(way_of(Streamed.WEIGHTS))
    inputs = costs_of(way_of(Streamed.INPUTS))
    gradient = 4.0
    shapes = {
        "attention.qkv": (HIDDEN, HIDDEN + 2 * KEYS, "inputs"),
        "attention.output": (HIDDEN, HIDDEN, "sums"),
        "feed_forward.up": (HIDDEN, FFN, "inputs"),
        "feed_forward.down": (FFN, HIDDEN, "sums"),
    }
    for name, (inner, outer, travels) in shapes.items():
        expected = linear_bytes(TOKENS, inner, outer, N, 2.0, gradient).weights
        assert sent(weights[name]) == pytest.approx(expected)
        expected = getattr(linear_bytes(TOKENS, inner, outer, N, 2.0, 2.0), travels)
        assert sent(inputs[name]) == pytest.approx(expected)
    expected = attention_bytes(TOKENS, HIDDEN, KEYS, N, 2.0, 2.0).weights
    assert sent(weights["attention.core"]) == pytest.approx(expected)
    assert sent(inputs["attention.core"]) == 0.0


@pytest.mark.parametrize("streamed", [Streamed.WEIGHTS, Streamed.INPUTS])
def test_without_computation_a_stream_takes_its_bytes_over_the_link(streamed):
    """On a cycle each link carries half of them; weights on chip, so that rounds are as fast."""
    fast = chip(matmul_flops_per_s={"bf16": 1e30})
    on = system(level(2, "mesh", latency_s=0.0), level(4, "mesh", latency_s=0.0), chip=fast)
    way = way_of(streamed, StreamForm.AUTO, on)
    instant = {"memory_bytes_per_s": 1e30, "elementwise_bytes_per_s": 1e30,
               "attention_forward_flops_per_s": 1e30, "attention_backward_flops_per_s": 1e30,
               "room_bytes": 1e12}  # fmt: skip
    bandwidth = float(way.links.bandwidth_bytes_per_s[0])
    for cost in costs_of(way, **instant).values():
        streams_s = float(np.asarray(cost.stream_forward_s + cost.stream_backward_s).item())
        assert streams_s == pytest.approx(sent(cost) / (2 * bandwidth), rel=1e-9, abs=1e-15)


def test_inputs_leave_attention_local_and_copy_shared_key_heads():
    """4 query and 2 key heads on 4 devices: each has one query head, and a whole key head."""
    plan_options = PlanOptions(sequence_parallel=False, streamed=Streamed.INPUTS)
    what = problem(model(PLAIN), system(level(4, "mesh")), sequence_length=TOKENS)
    network = what.network(plan_options.axis_order, stack([make_strategy(tatp=4)]))
    way = priced_pieces(what, plan_options, Collectives(network, 0.0), 0, uses_tatp=True)[0]
    assert "attention.core" not in way.streams.by_op
    assert way.local.size("query").item() == 16
    assert way.local.size("key").item() == 16  # half of both heads, where 2 devices share each
    qkv = costs_of(way)["attention.qkv"]
    assert qkv.forward_flops.item() == 2.0 * TOKENS * HIDDEN * (16 + 16 + 16)


def test_what_no_stream_carries_is_one_local_product():
    """The router is kept whole on every member; its tokens stay where they are."""
    for streamed in (Streamed.WEIGHTS, Streamed.INPUTS):
        way = way_of(streamed, spec=experts(8, 2, 64))
        router = next(op for op in way.piece.ops if op.name == "experts.router")
        assert router.name not in way.streams.by_op
        cost = op_cost(router, way.local, way.problem.rates, way.streams, causal=True)
        assert cost == matmul_cost(router, way.local, way.problem.rates)


def test_layouts_say_what_travels():
    inputs, weights = way_of(Streamed.INPUTS).streams, way_of(Streamed.WEIGHTS).streams
    assert {name: travel.tensor for name, travel in inputs.by_op.items()} == {
        "attention.qkv": StreamedTensor.INPUTS,
        "attention.output": StreamedTensor.SUMS,
        "feed_forward.up": StreamedTensor.INPUTS,
        "feed_forward.down": StreamedTensor.SUMS,
    }
    assert {travel.tensor for travel in weights.by_op.values()} == {StreamedTensor.WEIGHTS}
    assert "attention.core" in weights.by_op


def layer_of(way, recompute):
    plan_options = replace(way.plan_options, recompute=recompute)
    prices = price_layers(way.problem, plan_options, way.network, (recompute,), uses_tatp=True)
    return prices[recompute][0]


def test_recomputation_sends_the_forward_stream_again():
    """Weights 2 + ratio times, with full recomputation 3 + ratio; ratio 4 / 2."""
    way = way_of(Streamed.WEIGHTS)
    none, full = (
        layer_of(way, recompute).link_traffic_bytes.item()
        for recompute in (Recompute.NONE, Recompute.FULL)
    )
    keys_values = sent(costs_of(way)["attention.core"])
    # Keys and values: forward 2 of 6 bytes a word, backward 4.
    assert (full - keys_values * 4 / 3) / (none - keys_values) == pytest.approx((3 + 2) / (2 + 2))


def test_repeated_waves_count_as_link_bytes():
    """Eight members, four in each half: 8 * 7 transfers, and 3 * 3 more on each side."""
    hold = layer_of(way_of(Streamed.WEIGHTS), Recompute.NONE)
    stream = layer_of(way_of(Streamed.WEIGHTS, StreamForm.LINE_STREAM), Recompute.NONE)
    ratio = stream.link_traffic_bytes.item() / hold.link_traffic_bytes.item()
    assert ratio == pytest.approx((56 + 18) / 56)


def test_inputs_are_gathered_at_once_where_weights_do_not_stay_on_chip():
    """Memory that a product of one round needs: the same weights again in every round."""
    way = way_of(Streamed.INPUTS, on=BLOCK, form=StreamForm.AUTO)
    slow = costs_of(way, memory_bytes_per_s=1e9, room_bytes=0.0)["feed_forward.up"]
    roomy = costs_of(way, memory_bytes_per_s=1e9, room_bytes=1e9)["feed_forward.up"]
    assert slow.forward_waits.item() == 1.0
    assert slow.forward_traffic_bytes.item() == 2.0 * (
        TOKENS * HIDDEN + HIDDEN * FFN / N + TOKENS * FFN / N
    )
    assert roomy.forward_waits.item() == 0.0
    assert roomy.forward_traffic_bytes.item() == 2.0 * (
        TOKENS / N * HIDDEN + HIDDEN * FFN / N + TOKENS * FFN / N
    )


@pytest.mark.parametrize("streamed", [Streamed.WEIGHTS, Streamed.INPUTS])
@pytest.mark.parametrize("memory", [1e8, 1e10, 1e12])
def test_more_sram_is_never_slower(streamed, memory):
    """Every product of a layer, each pass, from no room to more than all of its tensors need."""
    way = way_of(streamed, StreamForm.AUTO)

    def seconds(room):
        costs = costs_of(way, room_bytes=room, memory_bytes_per_s=memory).values()
        ahead = [cost.forward_s + cost.stream_forward_s for cost in costs]
        back = [
            cost.input_gradient_s + cost.weight_gradient_s + cost.stream_backward_s
            for cost in costs
        ]
        return np.array([np.sum(part) for part in (*ahead, *back)])

    rooms = [0.0, *np.geomspace(64.0, 2.0**20, 50)]
    times = np.array([seconds(room) for room in rooms])
    assert np.all(times[1:] <= times[:-1] * (1 + 1e-12))
    assert times[-1].sum() < 0.9 * times[0].sum() or memory > 1e10


def auto_problem(num_heads):
    """Slow links: keys and values of long sequences are dear, weights of a narrow network cheap."""
    spec = model(dense(gqa(num_heads, num_heads), ffn=64))
    on = system(level(4, "mesh", bandwidth=1e10), level(4, "mesh", bandwidth=1e10))
    graphs = SoftwareStack(cuda_graphs=True)  # launches would hide what streams cost
    return problem(spec, on, sequence_length=1024, software=graphs)


def tensors_of(what, network, **choices):
    plan_options = PlanOptions(sequence_parallel=False, **choices)
    return [
        way.plan_options.streamed for way, *_ in streamed_blocks(what, plan_options, network)[0]
    ]


def test_heads_that_do_not_divide_keep_their_weights_streaming():
    for heads, expected in ((8, Streamed.INPUTS), (6, Streamed.WEIGHTS)):
        what = auto_problem(heads)
        network = what.network(PlanOptions().axis_order, stack([make_strategy(tatp=4)]))
        assert tensors_of(what, network)[0] is expected


def test_the_choice_is_the_cheaper_one_block_by_block():
    """Neither tensor alone is as fast, and links shared with others change the price only."""
    what = auto_problem(8)
    network = what.network(PlanOptions().axis_order, stack([make_strategy(tatp=4)]))
    shared = replace(network, slowdown={"tatp": np.array([50.0])})

    def total_s(streamed, groups):
        plan_options = PlanOptions(sequence_parallel=False, streamed=streamed)
        prices = price_layers(what, plan_options, groups, (Recompute.NONE,), uses_tatp=True)
        return prices[Recompute.NONE][0].total_s.item()

    fixed = [total_s(Streamed.WEIGHTS, network), total_s(Streamed.INPUTS, network)]
    assert total_s(Streamed.AUTO, network) < min(fixed)
    assert total_s(Streamed.AUTO, shared) > total_s(Streamed.AUTO, network)
    assert tensors_of(what, shared) == tensors_of(what, network)
    assert set(tensors_of(what, network)) == {Streamed.WEIGHTS, Streamed.INPUTS}


def test_a_cycle_on_a_line_is_a_ring_whose_wrap_crosses_all_of_it():
    """Eight in a line have no cycle: seven hops a round; a block of 2 x 4 has one: one hop."""
    line, ring = (way_of(Streamed.WEIGHTS, form) for form in (StreamForm.CYCLE, StreamForm.RING))
    assert line.streams.links.num_hops.item() == 7
    assert costs_of(line) == costs_of(ring)
    block = way_of(Streamed.WEIGHTS, StreamForm.CYCLE, BLOCK)
    assert block.streams.links.num_hops.item() == 1
    assert block.streams.links.num_parts.item() == 2
