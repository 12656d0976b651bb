"""What a device does in order, against the price of the same layer: the same sums by two routes."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
from small_problems import dense, experts, gqa, level, mla, model, problem, system

from meshwright.collectives.registry import least_sent_bytes
from meshwright.cost.layer import price_layers, streamed_blocks
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    Streamed,
    StreamForm,
    make_strategy,
    stack,
)
from meshwright.spec.workload import SoftwareStack
from meshwright.streams.forms import enumerate_rounds, streams
from meshwright.wafer.messages import piece_passes

GRID = system(level(4, "mesh"), level(4, "mesh", message_half_bytes=1e4))
MODELS = {
    "dense": model(dense(gqa(8, 4))),
    "experts": model(dense(), experts(8, 2, 64)),
    "latent": model(dense(mla(8))),
    "parallel": model(dense(gqa(8, 8)).model_copy(update={"parallel_residual": True})),
}
CASES = {
    "tatp": ({"tatp": 4}, {}),
    "tatp-line": ({"tatp": 4, "dp_shard": 2}, {"stream_form": StreamForm.LINE_STREAM}),
    "tatp-ring": ({"tatp": 4}, {"stream_form": StreamForm.RING}),
    "tatp-tp": ({"tatp": 2, "tp": 2}, {"sequence_parallel": True}),
    "tatp-cp": ({"tatp": 2, "cp": 2}, {}),
    "ulysses": ({"cp": 2, "tp": 2}, {"context_kind": ContextKind.ULYSSES}),
    "tp": ({"tp": 4}, {"sequence_parallel": True}),
}


COMBINATIONS = [
    *itertools.product(CASES, ["dense"], [Streamed.AUTO], Recompute),
    *itertools.product(["tatp"], ["dense"], [Streamed.WEIGHTS, Streamed.INPUTS], Recompute),
    *itertools.product(["tatp-tp"], MODELS, [Streamed.BOTH], Recompute),
    *itertools.product(
        ["tatp-tp", "tatp-cp"],
        ["experts", "latent", "parallel"],
        [Streamed.AUTO, Streamed.INPUTS],
        Recompute,
    ),
]
PROBLEMS = {name: problem(spec, GRID, sequence_length=256) for name, spec in MODELS.items()}


def case_of(name, spec, streamed, recompute):
    """Return the problem, its plan options and strategy, and the groups of the strategy."""
    degrees, choices = CASES[name]
    known = {"sequence_parallel": False, "streamed": streamed, "recompute": recompute}
    plan_options = PlanOptions(**(known | choices))
    what, strategy = PROBLEMS[spec], make_strategy(**degrees)
    return what, plan_options, strategy, what.network(plan_options.axis_order, stack([strategy]))


@cache
def both_ways(name, spec, streamed, recompute):
    """Return each piece as it is priced, and as it runs."""
    what, plan_options, strategy, network = case_of(name, spec, streamed, recompute)
    prices = price_layers(
        what, plan_options, network, (plan_options.recompute,), uses_tatp=strategy.tatp > 1
    )[plan_options.recompute]
    passes = piece_passes(what, plan_options, network)
    return list(zip(prices, passes, strict=True))


def seconds(works, *, launches=False):
    return sum(work.compute_s for work in works if (work.name == "launch") is launches)


@pytest.mark.parametrize(("name", "spec", "streamed", "recompute"), COMBINATIONS)
def test_computation_adds_up_to_the_price(name, spec, streamed, recompute):
    for cost, passes in both_ways(name, spec, streamed, recompute):
        assert seconds(passes.forward) == pytest.approx(cost.forward_s.item(), rel=1e-12)
        backward_s = cost.input_gradient_s + cost.weight_gradient_s + cost.recompute_s
        assert seconds(passes.backward) == pytest.approx(backward_s.item(), rel=1e-12)
        launches_s = sum(seconds(w, launches=True) for w in (passes.forward, passes.backward))
        assert launches_s == pytest.approx(cost.launch_s.item(), rel=1e-9)


def sends_of(plan_options, network, members):
    """Return how many sub-tensors a member sends in a pass, as the rounds enumerate it."""
    has_cycle = sum(float(span.size[0]) > 1 for span in network.group("tatp").spans) > 1
    open_form = "cycle" if has_cycle else "stream"
    form = (
        open_form if plan_options.stream_form is StreamForm.AUTO else str(plan_options.stream_form)
    )
    rounds = enumerate_rounds(streams[form], members)
    return len(rounds.sends) / rounds.num_parts / members


@pytest.mark.parametrize(
    ("name", "spec", "streamed", "recompute"),
    [combination for combination in COMBINATIONS if combination[1] != "latent"],
)
def test_bytes_add_up_to_those_of_the_price(name, spec, streamed, recompute):
    """What no collective does without, and parts that travel in rounds as often as they are sent.

    The tokens of the logits are gathered whole, as by any collective.
    """
    what, plan_options, strategy, network = case_of(name, spec, streamed, recompute)
    members = int(strategy.tatp)
    in_rounds = sends_of(plan_options, network, members) / members

    def sent(message, is_layer):
        if is_layer and message.axis == "tatp":
            return message.num_bytes * in_rounds
        size = degree_of(message.axis, strategy)
        return least_sent_bytes(message.kind, message.num_bytes, size)

    for index, (cost, passes) in enumerate(both_ways(name, spec, streamed, recompute)):
        is_layer = index < len(what.graph.layers)
        moved = sum(
            sent(message, is_layer)
            for work in (*passes.forward, *passes.backward)
            for message in work.messages
        )
        assert moved == pytest.approx(cost.link_traffic_bytes.item(), rel=1e-12)


def test_each_block_streams_its_own_tensor():
    """Slow links: keys and values of long sequences are dear, weights of a narrow network cheap."""
    on = system(level(4, "mesh", bandwidth=1e10), level(4, "mesh", bandwidth=1e10))
    strategy = make_strategy(tatp=4)
    plan_options = PlanOptions(sequence_parallel=False)
    graphs = SoftwareStack(cuda_graphs=True)  # launches would hide what streams cost
    spec = model(dense(gqa(8, 8), ffn=64))
    what = problem(spec, on, sequence_length=1024, software=graphs)
    network = what.network(plan_options.axis_order, stack([strategy]))
    layer = streamed_blocks(what, plan_options, network)[0]
    tensors = [way.plan_options.streamed for way, *_ in layer]
    assert set(tensors) == {Streamed.WEIGHTS, Streamed.INPUTS}
    fixed = {
        tensor: piece_passes(what, replace(plan_options, streamed=tensor), network)[0]
        for tensor in tensors
    }
    chosen = piece_passes(what, plan_options, network)[0].forward
    names = [way.plan_options.streamed for way, block, _ in layer for _ in block.ops]
    for number, tensor in enumerate(names):
        assert chosen[number] == fixed[tensor].forward[number]
