"""Step time and memory of one point, split alike in both models: the peer's side and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calculon_mapping import Question
from calculon_mechanisms import (
    ADDITIONS,
    ATTENTION,
    BUBBLE,
    CACHE,
    CHECKPOINTS,
    COLLECTIVES,
    EDGES,
    ELEMENTWISE,
    GRADIENT_SUM,
    GRADIENTS,
    IN_FLIGHT,
    KEPT,
    OFFLOAD,
    OVERLAP,
    RECOMPUTE,
    ROOFLINE,
    SENDS,
    STATE,
    TILES,
    TRANSIENT,
    UPDATE,
    Breakdown,
    number,
    numbers,
)
from calculon_points import Point

from meshwright.cost.layer import LayerCost, op_cost, price_layers
from meshwright.cost.memory import fullest, parameters_on_device
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced
from meshwright.graph.op import OpKind
from meshwright.serve.operators import forward_cost
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import ServingPrice
from meshwright.sharding.local_sizes import LocalLayer, layer_axes
from meshwright.sharding.strategy import Offload, stack
from meshwright.spec.workload import BYTES_OF
from meshwright_papers.calculon.block import NO_WORK, Layer, block_choices, block_layers
from meshwright_papers.calculon.block_cost import block_cost, optimizer_cost
from meshwright_papers.calculon.executions import executions_from_rows
from meshwright_papers.calculon.machine import Machine, application_named, machine_of, system_named
from meshwright_papers.calculon.step import Evaluation, evaluate, layout_of, structure_of

ATTENTION_LAYERS = ("attention_scores", "attention_softmax", "attention_mask", "attention_values")


@dataclass(frozen=True)
class TheirBlock:
    """One block of the peer for one micro-batch [s]."""

    products_s: float
    """Arithmetic of linear layers."""
    product_traffic_s: float
    attention_s: float
    elementwise_s: float
    additions_s: float


@dataclass(frozen=True)
class TheirPoint:
    """What the peer makes of a point: the whole, and what its parts are made of."""

    evaluation: Evaluation
    block: TheirBlock
    passes: float
    """Blocks of one stage times micro-batches."""
    memory: Mapping[str, float]


def their_point(point: Point) -> TheirPoint:
    """Return the peer's breakdown of a point, from the compatibility preset."""
    application, system = application_named(point.model), system_named(point.system)
    rows = executions_from_rows([point.execution], application, len(system.networks))
    machine = machine_of(system, point.execution["datatype"])
    structure = structure_of(rows)
    choices = block_choices(rows, rows.tp, machine.links(rows.tp_network), rows.fused_activation)
    layers = block_layers(application, structure, choices, machine.bytes_per_element)
    block = block_cost(application, machine, structure, choices)
    shards = rows.dp if rows.shard_optimizer[0] else 1.0
    update = optimizer_cost(machine, block.weights, shards)
    layout = layout_of(application, rows)
    result = evaluate(application, system, rows)
    sizes = numbers(result.memory)
    held = number(layout.num_blocks * layout.micro_batches_in_flight) * structure.is_training
    sizes |= {
        "held": held,
        "per_block": number(block.kept_bytes + block.checkpoint_bytes),
        "working": number(block.working_bytes - block.kept_bytes * structure.is_training)
        + sizes["activation_gradient_bytes"],
        "weight_pair": 2 * number(block.weight_bytes),
        "state_pair": 2 * number(update.state_bytes),
        "gradient_pair": number(update.whole_gradient_bytes + update.gradient_bytes),
    }
    return TheirPoint(
        result,
        _their_block(layers, machine, is_training=structure.is_training),
        number(layout.num_blocks * layout.num_micro_batches),
        sizes,
    )


def _their_block(layers: list[Layer], machine: Machine, *, is_training: bool) -> TheirBlock:
    """Return the busy time of a block by kind of layer, transfers left out."""
    sums = dict.fromkeys(TheirBlock.__dataclass_fields__, 0.0)
    for layer in layers:
        engine = machine.matrix if layer.is_matrix else machine.vector
        works = (layer.forward, layer.input_gradient, layer.weight_gradient)
        for work in works[: 3 if is_training else 1]:
            if work is NO_WORK:
                continue
            compute_s = number(engine.seconds(work.flops))
            memory_s = number(machine.memory.seconds(work.num_bytes))
            if layer.name in ATTENTION_LAYERS:
                sums["attention_s"] += compute_s + memory_s
            elif layer.is_matrix:
                sums["products_s"] += compute_s
                sums["product_traffic_s"] += memory_s
            elif layer.joint is not None:
                sums["additions_s"] += compute_s + memory_s
            else:
                sums["elementwise_s"] += compute_s + memory_s
    return TheirBlock(**sums)


def their_time(point: Point, theirs: TheirPoint) -> Breakdown:
    """Return the peer's step by mechanism; what a tiled product loses counts as its arithmetic."""
    time, block, n = numbers(theirs.evaluation.time), theirs.block, theirs.passes
    transfers_s = time["tensor_s"] + time["repeated_tensor_s"]
    busy_s = time["forward_s"] + time["backward_s"]
    others_s = block.attention_s + block.elementwise_s + block.product_traffic_s
    return Breakdown(
        {
            TILES: busy_s - n * others_s,
            ROOFLINE: n * block.product_traffic_s,
            ATTENTION: n * block.attention_s,
            ELEMENTWISE: n * block.elementwise_s,
            RECOMPUTE: time["recompute_s"],
            ADDITIONS: n * block.additions_s,
            _tensor_mechanism(point): transfers_s - n * block.additions_s,
            SENDS: time["pipeline_s"],
            BUBBLE: time["bubble_s"],
            GRADIENT_SUM: time["data_s"],
            UPDATE: time["optimizer_s"],
            OFFLOAD: time["forward_offload_s"] + time["backward_offload_s"],
        }
    )


def their_memory(point: Point, theirs: TheirPoint) -> Breakdown:
    """Return the peer's near memory by mechanism; what is offloaded leaves two blocks."""
    sizes = theirs.memory
    kept = sizes["held"] * sizes["per_block"]
    state = sizes["weight_bytes"] + sizes["optimizer_bytes"]
    gradients = sizes["weight_gradient_bytes"]
    if point.execution["weight_offload"]:
        state = sizes["weight_pair"] + sizes["state_pair"]
        gradients, kept = sizes["gradient_pair"], 2.0 * sizes["per_block"]
    return Breakdown(
        {
            STATE: state,
            GRADIENTS: gradients,
            _kept_mechanism(point): kept,
            TRANSIENT: sizes["working"],
        }
    )


def our_time(point: Point, question: Question, priced: Priced) -> Breakdown:
    """Return our step by mechanism; what the slowest stage has beside its layers are edges."""
    time = priced.step.time.row()
    pipeline = priced.pipeline
    layers = number(pipeline.num_layers * pipeline.num_micro_batches)
    by_kind = _our_layer(question)
    layer = _layer_price(question)
    blocks_s = layers * sum(by_kind.values())
    transfers_s = layers * number(layer.tp_s)
    return Breakdown(
        {
            EDGES: time["compute_s"] - blocks_s + time["tp_comm_s"] - transfers_s,
            TILES: layers * by_kind[TILES],
            ATTENTION: layers * by_kind[ATTENTION],
            ELEMENTWISE: layers * by_kind[ELEMENTWISE],
            RECOMPUTE: time["recompute_s"],
            _tensor_mechanism(point): transfers_s,
            SENDS: time["pp_comm_s"],
            BUBBLE: time["bubble_s"],
            GRADIENT_SUM: time["dp_comm_s"] + time["overlap_slowdown_s"],
            UPDATE: time["optimizer_s"],
            OFFLOAD: time["offload_s"],
        }
    )


def _tensor_mechanism(point: Point) -> str:
    return COLLECTIVES if point.execution["tensor_par_overlap"] == "none" else OVERLAP


def _kept_mechanism(point: Point) -> str:
    return CHECKPOINTS if point.execution["activation_recompute"] == "full" else KEPT


def _local(question: Question, graph: Any) -> LocalLayer:
    """Return one layer or edge on one device."""
    problem = question.problem
    return LocalLayer(
        sizes=graph.sizes,
        axes=layer_axes(graph, question.plan_options),
        degrees=stack([question.strategy]),
        sequence_length=float(problem.pass_length),
    )


def _mechanism_of(kind: OpKind) -> str:
    return {OpKind.MATMUL: TILES, OpKind.ATTENTION: ATTENTION}.get(kind, ELEMENTWISE)


def _our_layer(question: Question) -> dict[str, float]:
    """Return the computation of one of our layers for one micro-batch, by mechanism [s]."""
    problem = question.problem
    graph = problem.graph.layers[0]
    local, sums = _local(question, graph), {TILES: 0.0, ATTENTION: 0.0, ELEMENTWISE: 0.0}
    for op in graph.ops:
        if isinstance(problem, ServingProblem):
            seconds = forward_cost(op, local, problem.rates, problem.shape).busy_s
        else:
            cost = op_cost(op, local, problem.rates, None, causal=problem.workload.causal)
            seconds = cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s
        sums[_mechanism_of(op.kind)] += number(seconds)
    return sums


def _layer_price(question: Question) -> LayerCost:
    """Return the price of one of our layers for one micro-batch."""
    problem, plan_options = question.problem, question.plan_options
    assert isinstance(problem, Problem)
    network = problem.network(plan_options.axis_order, stack([question.strategy]))
    prices = price_layers(
        problem, plan_options, network, (plan_options.recompute,), uses_tatp=False
    )
    return prices[plan_options.recompute][0]


def our_memory(point: Point, question: Question, priced: Priced, theirs: TheirPoint) -> Breakdown:
    """Return our fullest device by mechanism; micro-batches beyond the peer's stand apart."""
    use, stage = fullest(priced.step.memory)
    parts = use.row()
    state = priced.pipeline.states[int(number(stage))]
    layer, layers = _layer_price(question), number(state.num_layers)
    of_layers = layers * number(layer.dense_params) / number(state.dense_params)
    kept = layers * number(layer.kept_bytes)
    in_flight, their_in_flight = number(state.in_flight), theirs.memory["held"] / layers
    working = min(number(layer.working_bytes), parts["working_bytes"])
    held = parts["weights_bytes"] + parts["optimizer_bytes"] + parts["gathered_weights_bytes"]
    if question.plan_options.offload is not Offload.NONE:
        kept, in_flight, their_in_flight = parts["activations_bytes"], 1.0, 1.0
    return Breakdown(
        {
            EDGES: (held + parts["gradients_bytes"]) * (1.0 - of_layers)
            + parts["activations_bytes"]
            - kept * in_flight
            + parts["working_bytes"]
            - working,
            STATE: held * of_layers,
            GRADIENTS: parts["gradients_bytes"] * of_layers,
            _kept_mechanism(point): kept * their_in_flight,
            IN_FLIGHT: kept * (in_flight - their_in_flight),
            TRANSIENT: working,
        }
    )


def our_serving_time(question: Question, price: ServingPrice) -> Breakdown:
    """Return our forward pass by mechanism."""
    time = numbers(price.time)
    blocks = {n: question.problem.model.num_layers * s for n, s in _our_layer(question).items()}
    sent = time["tp_comm_s"] + time["cp_comm_s"] + time["ep_comm_s"]
    whole = number(price.time.total_s)
    return Breakdown({**blocks, COLLECTIVES: sent, EDGES: whole - sent - sum(blocks.values())})


def our_serving_memory(question: Question, price: ServingPrice) -> Breakdown:
    """Return our memory in a forward pass by mechanism."""
    parts = numbers(fullest(price.memory)[0])
    problem = question.problem
    dense, _ = parameters_on_device(
        problem.graph.layers[0], question.plan_options, stack([question.strategy])
    )
    word = BYTES_OF[problem.workload.precision.weight]
    of_layers = word * number(dense) * problem.model.num_layers
    return Breakdown(
        {
            EDGES: parts["weights_bytes"] - of_layers,
            STATE: of_layers,
            CACHE: parts["kv_cache_bytes"],
            TRANSIENT: parts["working_bytes"],
        }
    )
