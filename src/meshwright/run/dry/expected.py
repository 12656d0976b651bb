"""Predicted memory by category, and derived collectives, of one rank of a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from meshwright.base.arrays import number_at
from meshwright.cost.memory import shard_degrees
from meshwright.cost.parts import TENSORS
from meshwright.cost.pipeline import SyncCounts, head_sync_counts, sync_counts
from meshwright.cost.step import price_columns
from meshwright.frameworks.launch import SHARD_AXES, micro_batches
from meshwright.graph.op import LayerGraph, Phase
from meshwright.run.answer import Call
from meshwright.run.derived import calls_between_stages, calls_of_step
from meshwright.run.scale import Job
from meshwright.schedule.pipeline_schedules import gathers_of, schedules
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.derivation import sync_calls
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import stack
from meshwright.spec.collective import CollectiveKind
from meshwright.train.answer import Plan


class Predicted(NamedTuple):
    """Memory of a category by formula."""

    at_peak_bytes: float
    most_bytes: float


def expected_bytes(plan: Plan, stage: int) -> dict[str, Predicted]:
    """Return the predicted memory of a rank of a stage by category, tensors alone [bytes].

    Where all together are most, and the most of each.
    """
    problem, strategy = plan.problem, plan.best.strategy
    num_stages = int(strategy.pp)
    priced = price_columns(problem, plan.best.plan_options, stack([strategy]))
    place = 0 if stage == 0 else 2 if stage == num_stages - 1 else 1
    use = priced.step.memory[place]
    return {
        part.removesuffix("_bytes"): Predicted(number_at(use[part]), number_at(use.most[part]))
        for part in TENSORS
    }


def expected_messages(plan: Plan, stage_layers: Iterable[range], stage: int) -> dict[Call, float]:
    """Return the derived bytes of a rank of a stage in a step, by operation, axis and phase.

    Bytes are those of the whole tensor: after a gather, before a reduction.
    """
    problem, best, chunks = plan.problem, plan.best, list(stage_layers)
    job = Job(plan.model, best.strategy, best.plan_options, plan.workload.sequence_length,
              micro_batches(plan))  # fmt: skip
    padding = number_at(shard_degrees(problem, best.strategy).padded(best.plan_options))
    priced = problem.derived_shardings(best.plan_options)
    calls = [
        [call for call in found.calls if not _is_of_data(call)] + list(_data_calls(plan, piece))
        for piece, found in zip(problem.pieces, priced, strict=True)
    ]
    total: defaultdict[Call, float] = defaultdict(float)
    for layers, synced in zip(chunks, sync_of_chunks(plan, stage), strict=True):
        kinds = [plan.model.layer_pattern[at] for at in layers]
        counts = [kinds.count(kind) for kind in range(len(problem.graph.layers))]
        counts += [int(layers.start == 0), int(layers.stop == plan.model.num_layers)]
        times = partial(_times, plan, synced)
        for call, elements in (
            *calls_of_step(job, problem.graph, counts, calls, _most_elements, times),
            *calls_between_stages(job, problem.graph, counts[-1] == 0, counts[-2] == 0),
        ):
            key, shares = _as_sent(plan, call)
            if _is_of_data(call) and "experts" in call.tensor.dims:
                shares *= padding
            total[key] += elements * shares * _word_bytes(plan, call, synced)
    return {key: num_bytes for key, num_bytes in total.items() if num_bytes}


def sync_of_chunks(plan: Plan, stage: int) -> list[SyncCounts]:
    """Return the transfers of the weights of each chunk of a stage in a step."""
    strategy, options = plan.best.strategy, plan.best.plan_options
    shape = int(strategy.pp), int(strategy.num_virtual_stages), micro_batches(plan)
    order = schedules[options.schedule].order(stage, *shape)
    return [
        sync_counts(options, plan.workload.software, strategy.pp, gathers, shape[-1])
        for gathers in gathers_of(order, shape[1])
    ]


def _data_calls(plan: Plan, piece: LayerGraph) -> Iterator[CollectiveCall]:
    """Yield the collectives of the weights of a piece over data-parallel axes."""
    options, software = plan.best.plan_options, plan.workload.software
    calls = [call for call in sync_calls(piece, options) if _is_of_data(call)]
    if options.zero_stage == 1 and software.sums_whole_gradients:
        whole = sync_calls(piece, replace(options, zero_stage=0))
        calls = [call for call in calls if call.kind is CollectiveKind.ALL_GATHER]
        calls += [call for call in whole if _is_of_data(call)]
    if software.has_head_in_loss and not any(call.is_regather for call in calls):
        gathers = [call for call in calls if call.kind is CollectiveKind.ALL_GATHER]
        calls += [
            replace(call, is_regather=True, phase=Phase.INPUT_GRADIENT)
            for call in gathers if call.site.startswith("head.")
        ]  # fmt: skip
    for call in calls:
        is_update = call.kind is CollectiveKind.ALL_GATHER and options.zero_stage == 1
        sends = is_update and software.broadcasts_updates
        yield replace(call, kind=CollectiveKind.BROADCAST) if sends else call


def _times(plan: Plan, synced: SyncCounts, call: CollectiveCall) -> float:
    """Return the number of times that a step makes a collective."""
    number = micro_batches(plan)
    if not _is_of_data(call):
        return number_at(synced.inner_sums) if call.per_step else number
    is_product = call.site.startswith("head.") and not call.site.startswith("head.norm")
    if call.site.startswith("head.") and (call.kind is CollectiveKind.ALL_GATHER or is_product):
        synced = head_sync_counts(
            synced, plan.best.plan_options, plan.workload.software, plan.best.strategy.pp, number
        )
    if call.kind is not CollectiveKind.ALL_GATHER:
        return number_at({
            CollectiveKind.REDUCE_SCATTER: synced.scatters,
            CollectiveKind.ALL_REDUCE: synced.replica_sums,
            CollectiveKind.BROADCAST: 1.0,
        }[call.kind])  # fmt: skip
    if call.is_regather:
        return number_at(synced.backward_gathers)
    return number_at(synced.forward_gathers)


def _most_elements(*of: Any) -> float:
    return number_at(local_elements(*of))


def _is_of_data(call: CollectiveCall) -> bool:
    """Return whether a collective completes or gathers a weight over data-parallel axes."""
    return call.of_weight and call.axis.split("*")[0] in _DATA_AXES


def _word_bytes(plan: Plan, call: CollectiveCall, synced: SyncCounts) -> float:
    """Return the bytes of a number that a collective carries [bytes]."""
    optimizer = plan.workload.optimizer
    if call.tensor.word_bytes is not None:
        return call.tensor.word_bytes
    if call.of_weight and call.kind is CollectiveKind.ALL_GATHER:
        return optimizer.gathered_weight_bytes_per_param
    if call.kind is CollectiveKind.BROADCAST:
        return optimizer.updated_bytes_per_param
    is_wide = plan.problem.adds_up_wide(plan.best.plan_options)
    if is_wide and call.site.startswith("embedding."):
        return optimizer.weight_bytes_per_param
    if is_wide and call.of_weight:
        return optimizer.gradient_bytes_per_param
    if _is_of_data(call) or (call.of_weight and number_at(synced.at_end)):
        return optimizer.reduced_gradient_bytes_per_param
    return plan.problem.rates.activation_bytes


_DATA_AXES = ("dp", "dp_shard", "dp_replicate", "edp", "edp_shard", "edp_replicate")


def _as_sent(plan: Plan, call: CollectiveCall) -> tuple[Call, float]:
    """Return the key of a collective in PyTorch, and how often it carries its tensor.

    The ring of cp is an all-to-all for each round: a rank passes cp - 1 pieces of keys and values
    on, its own first; of sums of gradients it sends cp pieces, the last one home.
    """
    strategy = plan.best.strategy
    parts = tuple(call.axis.split("/")[0].split("*"))
    if parts[0] == "edp_shard" and strategy.ep == 1:
        parts = SHARD_AXES
    if parts[0] == "edp_replicate":
        parts = ("dp_replicate",)
    if "dp" in parts:
        parts = ("dp_replicate", "dp_shard", *parts[1:])
    used = "*".join(part for part in parts if degree_of(part, strategy) > 1)
    phase = "forward" if call.phase is Phase.FORWARD else "backward"
    if call.kind is CollectiveKind.BROADCAST:  # after the update
        phase = "optimizer"
    if call.axis != "cp" or not call.streamed:
        return Call(call.kind, used, phase), 1.0
    rounds = strategy.cp - (call.kind is CollectiveKind.ALL_GATHER)
    return Call(CollectiveKind.ALL_TO_ALL, used, phase), rounds / strategy.cp
