"""Memory by category, and messages, of one rank of a stage by formula."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from meshwright.base.arrays import number_at
from meshwright.cost.memory import workspace_bytes
from meshwright.cost.parts import MemoryPart
from meshwright.cost.pipeline import num_communicators
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.frameworks.launch import SHARD_AXES, micro_batches
from meshwright.graph.op import LayerGraph, Phase
from meshwright.run.answer import Call
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.derivation import stage_boundary_calls, sync_calls
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import stack
from meshwright.spec.collective import CollectiveKind
from meshwright.train.answer import Plan

WORKING = "working"
"""Name of logits and temporary tensors together: the formulas state one number for both."""
CATEGORY_OF = {
    MemoryPart.WEIGHTS: "weights",
    MemoryPart.GRADIENTS: "gradients",
    MemoryPart.OPTIMIZER: "states",
    MemoryPart.GATHERED_WEIGHTS: "gathered",
    MemoryPart.ACTIVATIONS: "activations",
    MemoryPart.WORKING: WORKING,
}


def expected_bytes(plan: Plan, stage: int) -> dict[str, float]:
    """Return the predicted memory of a rank of a stage by category, tensors alone [bytes].

    The workspace of libraries, fragmentation, communicators and margin are left out: no tensor is
    there. Receive buffers are temporary.
    """
    problem, strategy = plan.problem, plan.best.strategy
    num_stages, constants = int(strategy.pp), problem.calibration
    priced = price_columns(problem, plan.best.plan_options, stack([strategy]))
    place = 0 if stage == 0 else 2 if stage == num_stages - 1 else 1
    use = priced.step.memory[place]
    found = {name: number_at(use[part]) for part, name in CATEGORY_OF.items()}
    found[WORKING] -= workspace_bytes(problem)
    of_libraries = constants.communicator_bytes * num_communicators(strategy)
    of_libraries += constants.communication_buffer_bytes
    found[WORKING] += number_at(use[MemoryPart.BUFFERS]) - number_at(of_libraries)
    return found


def expected_messages(plan: Plan, stage_layers: Iterable[range], stage: int) -> dict[Call, float]:
    """Return the derived bytes of a rank of a stage in a step, by operation, axis and phase.

    Bytes are those of the whole tensor: after a gather, before a reduction.
    """
    problem, number = plan.problem, micro_batches(plan)
    total: dict[Call, float] = defaultdict(float)
    pieces: Counter[int] = Counter()
    chunks = list(stage_layers)
    for layers in chunks:
        pieces.update(plan.model.layer_pattern[at] for at in layers)
        pieces[len(problem.graph.layers)] += layers.start == 0
        pieces[len(problem.graph.layers) + 1] += layers.stop == plan.model.num_layers
    for index, count in pieces.items():
        if count:
            for call, num_bytes in _calls(plan, problem, problem.pieces[index]):
                times = count * (1 if call.per_step else number)
                key, sent_bytes = _as_sent(plan, call, num_bytes)
                total[key] += times * sent_bytes
    total |= _boundaries(plan, problem, chunks, stage, number)
    return {key: num_bytes for key, num_bytes in total.items() if num_bytes}


def _calls(
    plan: Plan, problem: Problem, piece: LayerGraph
) -> Iterator[tuple[CollectiveCall, float]]:
    """Yield each collective of a piece that crosses an axis in use, with its bytes."""
    strategy, options = plan.best.strategy, plan.best.plan_options
    optimizer = problem.workload.optimizer
    is_end = piece is problem.graph.embedding or piece is problem.graph.head
    sizes = problem.bound_sizes(piece, strategy.micro_batch_size)
    derived = dict(zip(map(id, problem.pieces), problem.derived_shardings(options), strict=True))
    inner = [
        c
        for c in derived[id(piece)].calls
        if not (c.of_weight and c.axis.split("*")[0] in _DATA_AXES)
    ]
    outer = [c for c in sync_calls(piece, options) if c.axis.split("*")[0] in _DATA_AXES]
    for call in (*inner, *outer):
        if call.replayed and is_end:  # recomputation is that of layers
            continue
        if degree_of(call.axis, strategy, sizes) == 1:
            continue
        word = problem.rates.activation_bytes
        if call.of_weight and call.kind is CollectiveKind.ALL_GATHER:
            word = optimizer.gathered_weight_bytes_per_param
        elif call.of_weight and call in outer:
            word = optimizer.reduced_gradient_bytes_per_param
        word = word if call.tensor.word_bytes is None else call.tensor.word_bytes
        yield call, number_at(word * local_elements(call.tensor, call.split, sizes, strategy))


_DATA_AXES = ("dp", "dp_shard", "dp_replicate", "edp", "edp_shard", "edp_replicate")


def _parts(axis: str) -> tuple[str, ...]:
    return tuple(axis.split("/")[0].split("*"))


def _as_sent(plan: Plan, call: CollectiveCall, num_bytes: float) -> tuple[Call, float]:
    """Return a collective as PyTorch makes it: the ring of cp is an all-to-all for each round.

    A rank passes cp - 1 pieces of keys and values on, its own first; of sums of gradients it sends
    cp pieces, the last one home.
    """
    key = _key(plan, call)
    if call.axis != "cp" or not call.streamed:
        return key, num_bytes
    rounds = plan.best.strategy.cp - (call.kind is CollectiveKind.ALL_GATHER)
    exchange = key._replace(kind=CollectiveKind.ALL_TO_ALL)
    return exchange, num_bytes * rounds / plan.best.strategy.cp


def _key(plan: Plan, call: CollectiveCall) -> Call:
    phase = "forward" if call.phase is Phase.FORWARD else "backward"
    parts = _parts(call.axis)
    if parts[0] == "edp_shard" and plan.best.strategy.ep == 1:
        parts = SHARD_AXES
    if parts[0] == "edp_replicate":
        parts = ("dp_replicate",)
    if "dp" in parts:
        parts = ("dp_replicate", "dp_shard", *parts[1:])
    used = [part for part in parts if degree_of(part, plan.best.strategy) > 1]
    return Call(call.kind, "*".join(used), phase)


def _boundaries(
    plan: Plan, problem: Problem, chunks: list[range], stage: int, number: int
) -> Mapping[Call, float]:
    """Return the bytes that a rank sends to the stages beside its chunks."""
    strategy = plan.best.strategy
    if strategy.pp == 1:
        return {}
    call = stage_boundary_calls(problem.graph, replace(plan.best.plan_options, zero_stage=0))[0]
    sizes = problem.bound_sizes(problem.graph.layers[0], strategy.micro_batch_size)
    one = number_at(
        problem.rates.activation_bytes * local_elements(call.tensor, call.split, sizes, strategy)
    )
    onward = sum(layers.stop < plan.model.num_layers for layers in chunks)
    back = sum(layers.start > 0 for layers in chunks)
    sent = {"forward": onward, "backward": back}
    return {Call(CollectiveKind.SEND, "pp", phase): number * count * one
            for phase, count in sent.items()}  # fmt: skip
