"""Programs of a plan: they run to their end, and add up to what the plan was priced with."""

import random
from functools import cache

import numpy as np
import pytest
from chakra_replay import Replay
from small_problems import SYSTEMS, dense, experts, gqa, level, model, problem, system

from meshwright.collectives.registry import least_sent_bytes
from meshwright.cost.layer import op_cost, price_layers
from meshwright.cost.step import price_one
from meshwright.frameworks.chakra.groups import PIPELINE_ENDS, RankMesh
from meshwright.frameworks.chakra.recorder import CumulativeRounding
from meshwright.frameworks.chakra.step_program import StepProgram
from meshwright.frameworks.chakra.steps import RankExchange, Stream
from meshwright.frameworks.chakra.wire import Collective, Compute, TraceMessage
from meshwright.schedule.pipeline_schedules import TaskKind
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    StreamForm,
    make_strategy,
    stack,
)
from meshwright.streams.forms import streams

GRID = system(level(4, "mesh"), level(4, "mesh"))
TIED = model(num_layers=5, tied_embeddings=True)
MIXED = model(dense(gqa(8, 2)), experts(8, 2, 64), num_layers=4)
CASES = {
    "alone": ({}, {}, {}),
    "tp": ({"tp": 4}, {}, {}),
    "tp-replicated-heads": ({"tp": 4}, {"recompute": Recompute.SELECTIVE}, {}),
    "tp-no-sp": ({"tp": 2, "dp_shard": 2}, {"sequence_parallel": False, "zero_stage": 0}, {}),
    "cp": ({"cp": 2, "tp": 2}, {}, {}),
    "ulysses": ({"cp": 2}, {"context_kind": ContextKind.ULYSSES}, {}),
    "zero2": ({"dp_shard": 4, "dp_replicate": 2}, {"zero_stage": 2}, {}),
    "zero3": ({"dp_shard": 4, "tp": 2}, {"zero_stage": 3, "recompute": Recompute.FULL}, {}),
    "1f1b": ({"pp": 4, "tp": 2}, {}, {"spec": TIED}),
    "gpipe": ({"pp": 2, "dp_shard": 2}, {"schedule": ScheduleKind.GPIPE}, {}),
    "interleaved": (
        {"pp": 2, "num_virtual_stages": 2, "dp_shard": 2},
        {"schedule": ScheduleKind.INTERLEAVED},
        {"spec": TIED},
    ),
    "zero-bubble": (
        {"pp": 4, "tp": 2, "tatp": 2},
        {"schedule": ScheduleKind.ZERO_BUBBLE, "recompute": Recompute.FULL},
        {"on": GRID},
    ),
    "experts": ({"dp_shard": 4, "tp": 2, "ep": 4}, {"zero_stage": 2}, {"spec": MIXED}),
    "expert-tensor": ({"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {}, {"spec": MIXED}),
    "tatp-cycle": ({"tatp": 4, "dp_shard": 4}, {}, {"on": GRID}),
    "tatp-line": (
        {"tatp": 4, "tp": 2, "dp_shard": 2},
        {"stream_form": StreamForm.LINE_STREAM, "recompute": Recompute.SELECTIVE},
        {"on": GRID},
    ),
    "tatp-pipeline": ({"tatp": 4, "pp": 2}, {"zero_stage": 0}, {"on": GRID, "spec": TIED}),
    "tatp-hold": ({"tatp": 8}, {"stream_form": StreamForm.LINE_HOLD}, {"on": GRID}),
    "tatp-ring": ({"tatp": 4}, {"stream_form": StreamForm.RING}, {"on": GRID}),
}


def made(name):
    """Return the problem, plan options, strategy and program of a case."""
    degrees, choices, asked = CASES[name]
    sequence_parallel = degrees.get("tp", 1) > 1
    known_choices = {"sequence_parallel": sequence_parallel, "streamed": Streamed.WEIGHTS}
    plan_options = PlanOptions(**(known_choices | choices))
    known = {"sequence_length": 256} | asked
    what = problem(
        known.pop("spec", None), known.pop("on", SYSTEMS[1](capacity_bytes=1e9)), **known
    )
    strategy = make_strategy(**degrees)
    return what, plan_options, strategy, StepProgram(what, plan_options, strategy)


@cache
def built(name):
    """Return the same with the programs of all ranks."""
    what, plan_options, strategy, program = made(name)
    programs = [program.nodes(rank) for rank in range(program.num_ranks)]
    return what, plan_options, strategy, program, programs


@pytest.fixture(params=CASES)
def case(request):
    return built(request.param)


@pytest.mark.slow
def test_programs_run_to_their_end(case):
    *_, program, programs = case
    assert Replay(programs, program.groups).run() == []


@pytest.mark.slow
def test_a_message_that_nobody_sends_is_noticed():
    *_, program = made("1f1b")
    programs = [program.nodes(rank) for rank in range(program.num_ranks)]
    programs[0] = [n for n in programs[0] if not (isinstance(n, TraceMessage) and n.is_send)]
    with pytest.raises(AssertionError, match="one end"):
        Replay(programs, program.groups).run()


def test_a_member_that_never_comes_is_noticed():
    *_, program = made("tp")
    programs = [program.nodes(rank) for rank in range(program.num_ranks)]
    programs[1] = programs[1][: len(programs[1]) // 2]
    assert Replay(programs, program.groups).run()


def test_nodes_are_numbered_and_wait_for_earlier_ones(case):
    *_, program, programs = case
    for rank, nodes in enumerate(programs):
        assert [node.number for node in nodes] == list(range(1, len(nodes) + 1))
        assert all(need < node.number for node in nodes for need in node.needs)
        for node in nodes:
            if isinstance(node, Collective):
                assert rank in program.groups[node.group]
                assert node.group_size == len(program.groups[node.group]) > 1
            if isinstance(node, TraceMessage):
                assert rank == (node.source if node.is_send else node.destination)


def test_tags_are_unique_between_two_ranks(case):
    *_, programs = case
    for nodes in programs:
        keys = [(n.source, n.destination, n.tag) for n in nodes if isinstance(n, TraceMessage)]
        assert len(set(keys)) == len(keys)


def layer_costs(what, plan_options, strategy):
    """Return the price of each piece on one device, as numbers."""
    network = what.network(plan_options.axis_order, stack([strategy]))
    prices = price_layers(
        what, plan_options, network, (plan_options.recompute,), uses_tatp=strategy.tatp > 1
    )[plan_options.recompute]
    return prices


def pieces_of(program, rank):
    """Return the pieces that a rank computes, once for each layer."""
    stage = program.mesh.coordinate(rank, "pp")
    runs = program.places[stage :: program.num_stages]
    return [index for run in runs for _, index in run]


def test_flops_and_memory_traffic_are_those_of_the_price(case):
    what, plan_options, strategy, program, programs = case
    costs = layer_costs(what, plan_options, strategy)
    for rank, nodes in enumerate(programs):
        work = [node for node in nodes if isinstance(node, Compute)]
        pieces = pieces_of(program, rank)
        flops = program.num_micro_batches * sum(costs[i].flops.item() for i in pieces)
        assert sum(node.num_ops for node in work) == pytest.approx(flops, rel=1e-12, abs=1)
        traffic = sum(costs[i].memory_traffic_bytes.item() for i in pieces)
        expected = program.num_micro_batches * traffic + update_bytes(
            what, plan_options, program, rank
        )
        assert sum(node.tensor_bytes for node in work) == pytest.approx(expected, rel=1e-12, abs=1)


def update_bytes(what, plan_options, program, rank):
    """Return the traffic of the update, from the parameters alone."""
    is_sharded = plan_options.zero_stage > 0
    total = 0.0
    for index in pieces_of(program, rank):
        held = program.state.held(index)
        s = program.strategy
        shards = s.dp_shard * s.cp if is_sharded else 1
        expert_shards = max(shards * s.tp / (s.ep * s.etp), 1) if is_sharded else 1
        total += held.dense / shards + held.expert / expert_shards
    return total * what.workload.optimizer.step_traffic_bytes_per_param


def test_the_slowest_stage_has_the_flops_of_the_plan(case):
    what, plan_options, strategy, _, programs = case
    priced = price_one(what, plan_options, strategy)
    most = max(sum(n.num_ops for n in nodes if isinstance(n, Compute)) for nodes in programs)
    slowest = float(np.asarray(priced.step.flops).item())
    assert slowest <= most * (1 + 1e-12) + 1
    alone = what.model.num_layers % int(strategy.pp * strategy.num_virtual_stages) == 0
    if alone and strategy.pp == 1:
        assert most == pytest.approx(slowest, rel=1e-12, abs=1)


def is_of_state(node):
    """Return whether a collective moves parameters or their gradients over data axes."""
    return "weights " in node.name or "table gradient" in node.name


@pytest.mark.parametrize("name", [n for n in CASES if "expert" not in n])
def test_bytes_over_layer_axes_are_those_of_the_price(name):
    what, plan_options, strategy, program, programs = built(name)
    costs = layer_costs(what, plan_options, strategy)
    for rank, nodes in enumerate(programs):
        pieces = pieces_of(program, rank)
        moved = sum(
            least_sent_bytes(node.kind, node.num_bytes, node.group_size)
            for node in nodes
            if isinstance(node, Collective) and not is_of_state(node) and " end" not in node.name
        )
        priced = sum(costs[i].link_traffic_bytes.item() for i in pieces)
        expected = priced + sum(gathered_instead(program, plan_options, i) for i in pieces)
        expected *= program.num_micro_batches
        assert moved == pytest.approx(expected, rel=1e-9, abs=len(nodes))


def gathered_instead(program, plan_options, index):
    """Return what keys and values add as collectives, less all that travels in rounds [bytes]."""
    way, what = program.pieces.streamed_piece(index), program.problem
    if way.streams is None:
        return 0.0
    recompute = plan_options.recompute if index < len(what.graph.layers) else Recompute.NONE
    added = 0.0
    for op in way.piece.ops:
        cost = op_cost(op, way.local, what.rates, way.streams, causal=what.workload.causal)
        times = {Recompute.NONE: 1, Recompute.FULL: 2}.get(recompute, 1 + (op.kind == "attention"))
        added -= float(np.sum(cost.backward_link_bytes + times * cost.forward_link_bytes))
        if op.kind == "attention":
            travel = way.streams.by_op[op.name]
            own = travel.backward_bytes + times * travel.forward_bytes
            added += float(np.sum((program.strategy.tatp - 1.0) * own))
    return added


def gradient_words(what):
    """Return the bytes of an accumulator over those of a weight that travels."""
    gradient = what.workload.optimizer.reduced_gradient_bytes_per_param
    return gradient / what.rates.matmul_word_bytes


def step_bytes(program, index):
    """Return the sub-weights of a piece that travel in one forward pass [bytes]."""
    steps = program.pieces.steps(index, TaskKind.FORWARD)
    return sum(step.item_bytes for step in steps if isinstance(step, Stream))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("tatp")])
def test_streams_make_the_transfers_of_their_form(name):
    what, plan_options, strategy, program, programs = built(name)
    members = int(strategy.tatp)
    form = {"tatp-cycle": "cycle", "tatp-pipeline": "cycle"}.get(
        name, str(plan_options.stream_form)
    )
    stream = streams[form]
    rounds_sends = len(stream.sends(members)) / stream.num_parts(members)
    group = program.mesh.along(0, "tatp")
    sent = sum(
        node.num_bytes
        for rank in group
        for node in programs[rank]
        if isinstance(node, TraceMessage) and node.is_send and node.destination in group
    )
    sub_bytes = sum(step_bytes(program, i) for i in pieces_of(program, 0))
    expected = program.num_micro_batches * rounds_sends * sub_bytes * (2 + gradient_words(what))
    assert sent == pytest.approx(expected, rel=1e-9)
    weights = sum(
        op_params(piece_op, program.problem.pieces[index].sizes, strategy)
        for index in pieces_of(program, 0)
        for piece_op in program.problem.pieces[index].ops
        if piece_op.kind == "matmul" and "vocab" not in piece_op.output.dims
    )
    assert sub_bytes * members == pytest.approx(weights * what.rates.matmul_word_bytes)


def op_params(op, sizes, strategy):
    """Return the parameters of the matrices of an operator on one rank of tp."""
    rank_two = [w for w in op.weights if len(w.dims) == 2]
    return sum(np.prod([sizes[d] for d in w.dims]) for w in rank_two) / strategy.tp


@pytest.mark.parametrize(
    ("stage", "counts", "software"),
    [
        (0, {"all_reduce": 1}, {}),
        (1, {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1}, {}),
        (2, {"all_gather": 1, "reduce_scatter": 4, "all_reduce": 1}, {}),
        (3, {"all_gather": 8, "reduce_scatter": 4, "all_reduce": 1}, {}),
        (3, {"all_gather": 8, "reduce_scatter": 1, "all_reduce": 1}, {"sums_in_last_pass": True}),
    ],
)
def test_parameters_travel_as_zero_says(stage, counts, software):
    """Two shards, two replicas, four micro-batches of one sequence on each."""
    what = problem(on=system(level(4)), global_batch_size=16, sequence_length=64, software=software)
    strategy = make_strategy(dp_shard=2, dp_replicate=2)
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=stage)
    program = StepProgram(what, plan_options, strategy)
    optimizer = what.workload.optimizer
    state = price_one(what, plan_options, strategy).pipeline.heaviest
    params = float(np.asarray(state.dense_params).item())
    word = {"all_gather": optimizer.gathered_weight_bytes_per_param}
    for kind, times in counts.items():
        of_kind = [
            node.num_bytes
            for node in program.nodes(0)
            if isinstance(node, Collective) and node.kind == kind
        ]
        shards = 2 if stage and kind == "all_reduce" else 1
        each = word.get(kind, optimizer.reduced_gradient_bytes_per_param) * params / shards
        assert sum(of_kind) == pytest.approx(times * each, rel=1e-9)


def test_pipeline_sends_in_both_directions():
    _, _, strategy, program = made("interleaved")
    boundaries = program.num_runs - 1
    sends = [
        node
        for rank in range(program.num_ranks)
        for node in program.nodes(rank)
        if isinstance(node, TraceMessage) and node.is_send
    ]
    data_ranks = int(strategy.num_devices // strategy.pp)
    assert len(sends) == 2 * boundaries * program.num_micro_batches * data_ranks
    assert {node.num_bytes for node in sends} == {round(program.send_bytes)}


def test_halves_of_a_zero_bubble_backward_pass_are_the_whole():
    *_, program = made("zero-bubble")

    def figures(*kinds):
        steps = [step for kind in kinds for step in program.pieces.steps(0, kind)]
        work = [step.work if isinstance(step, Stream) else step for step in steps]
        work = [step for step in work if not isinstance(step, RankExchange)]
        return (
            sum(step.flops for step in work), sum(step.traffic_bytes for step in work),
            sum(step.seconds for step in work),
            sum(step.num_bytes for step in steps if isinstance(step, RankExchange)),
            sum(step.item_bytes for step in steps if isinstance(step, Stream)),
            sum(step.accumulator_bytes for step in steps if isinstance(step, Stream)),
        )  # fmt: skip

    halves = figures(TaskKind.BACKWARD_INPUT, TaskKind.BACKWARD_WEIGHT)
    assert halves == pytest.approx(figures(TaskKind.BACKWARD))


def test_groups_by_hand():
    mesh = RankMesh(make_strategy(tp=2, dp_shard=2, pp=2), AXES)
    assert mesh.groups("tp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("pp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups("dp_shard*cp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.along(3, "pp") == [3, 7]
    assert mesh.coordinate(6, "dp_shard") == 1
    other = RankMesh(
        make_strategy(tp=2, dp_shard=2), ("dp_shard", "tp", "tatp", "cp", "pp", "dp_replicate")
    )
    assert other.groups("tp").tolist() == [[0, 2], [1, 3]]


def test_groups_of_experts_by_hand():
    mesh = RankMesh(make_strategy(tp=2, dp_shard=4, ep=2, etp=2, pp=2), AXES)
    assert mesh.groups("etp").tolist()[:2] == [[0, 1], [2, 3]]
    assert mesh.groups("ep").tolist()[:2] == [[0, 2], [1, 3]]
    assert mesh.groups("edp").tolist()[:2] == [[0, 4], [1, 5]]
    assert all(len({rank // 8 for rank in row}) == 1 for row in mesh.groups("edp").tolist())


def test_ends_and_shared_heads_by_hand():
    mesh = RankMesh(make_strategy(tp=4, pp=3), AXES)
    assert mesh.groups(PIPELINE_ENDS).tolist() == [[0, 8], [1, 9], [2, 10], [3, 11]]
    assert mesh.groups("tp/kv_heads", {"kv_heads": 2}).tolist()[:2] == [[0, 1], [2, 3]]


def test_whole_numbers_keep_the_sum():
    chance, whole = random.Random(3), CumulativeRounding()
    values = [chance.random() * 7 for _ in range(1000)]
    assert sum(map(whole, values)) == round(sum(values))
