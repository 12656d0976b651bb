"""References of a run: the dense model, the derivation of the shardings, and the streams."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import inf, isfinite
from typing import Any

import torch.distributed as dist
from torch import Tensor

from meshwright.graph.op import TOKEN_DIMS, UNITS_OF_DIM, LayerGraph
from meshwright.graph.op import Tensor as SpecTensor
from meshwright.graph.transformer import TABLE, build_graph
from meshwright.run.answer import Call, RecordedSend
from meshwright.run.mesh import Mesh
from meshwright.run.recorder import RecordedPass, Recorder
from meshwright.run.scale import Job, axes_in_use
from meshwright.run.sharded import WeightPart
from meshwright.schedule.pipeline_schedules import TaskKind, schedules
from meshwright.sharding.algebra import FLAT, Split
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.derivation import derive_calls, stage_boundary_calls
from meshwright.sharding.local_sizes import SavedTensor, degree_of, saved_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy
from meshwright.streams.forms import enumerate_rounds, reverse

TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 5e-2}
"""Largest relative difference from the dense model, by type."""


Found = defaultdict[Call, float]


def derived(job: Job, word_bytes: float) -> dict[Call, float]:
    """Return the bytes that all processes send in a step, as the shardings of the plan say.

    Each call counts its full tensor at every process, as the recorder does.
    """
    graph = build_graph(job.model)
    found: Found = defaultdict(float)
    for layer in graph.layers:
        _add(found, layer, job, layer.count)
    edges = replace(job, plan_options=replace(job.plan_options, recompute=Recompute.NONE))
    _add(found, graph.embedding, edges, 1)
    _add(found, graph.head, edges, 1, tied=graph.tied)
    s = job.strategy
    if s.pp > 1:
        layer = graph.layers[0]
        sizes = _sizes(layer, job)
        hops = s.pp * s.num_virtual_stages - 1
        for call in stage_boundary_calls(graph, job.plan_options):
            elements = mean_elements(call.tensor, call.split, sizes, s)
            found[Call(call.kind, "pp", call.phase)] += (
                elements * hops * job.num_micro_batches * s.num_devices / s.pp
            )
    return {key: number * word_bytes for key, number in found.items() if number}


def derived_kept_bytes(job: Job, word_bytes: float) -> float:
    """Return the activations that a process keeps at most, in the mean of all processes [bytes].

    The passes of each stage are replayed in the order of its schedule: a forward pass keeps what
    the operators of its chunk save, and the backward pass lets it go. Logits do not count, and
    neither does what a stage receives, which lies in the buffers of its pipeline.
    """
    graph, options, s = build_graph(job.model), job.plan_options, job.strategy
    num_stages, num_virtual = int(s.pp), int(s.num_virtual_stages)
    number = num_stages * num_virtual
    lengths = chunk_lengths(job.model.num_layers, number, options)
    of_layers = [sum(_kept(layer, job, options)) for layer in graph.layers]
    pattern = iter(job.model.layer_pattern)
    chunks = [sum(of_layers[kind] for kind in islice(pattern, int(n))) for n in lengths]
    first = graph.layers[0]
    stated = [kept for kept in saved_elements(first, options) if kept.tensor == first.input]
    received = sum(_elements(kept, first, job) for kept in stated)
    chunks = [chunks[0], *(chunk - received for chunk in chunks[1:])]
    chunks[-1] += sum(_kept(graph.head, job, replace(options, recompute=Recompute.NONE)))
    peaks = 0.0
    for stage in range(num_stages):
        kept = most = 0.0
        order = schedules[options.schedule].order
        for one in order(stage, num_stages, num_virtual, job.num_micro_batches):
            made = chunks[stage + one.chunk * num_stages]
            kept += made * ((one.kind is TaskKind.FORWARD) - (one.kind is TaskKind.BACKWARD))
            most = max(most, kept)
        peaks += most
    return word_bytes * peaks / num_stages


def _kept(layer: LayerGraph, job: Job, options: PlanOptions) -> Iterator[float]:
    """Yield the elements of each tensor that the operators of a layer save; logits left out."""
    for kept in saved_elements(layer, options):
        if "vocab" not in kept.tensor.dims:
            yield _elements(kept, layer, job)
        if kept.tensor.name == "experts.rows":  # as they come back, for the gradient of the router
            yield _elements(kept, layer, job)


def _elements(kept: SavedTensor, layer: LayerGraph, job: Job) -> float:
    return mean_elements(kept.tensor, kept.split, _sizes(layer, job), job.strategy)


def _sizes(layer: LayerGraph, job: Job) -> dict[str, float]:
    tokens = float(job.strategy.micro_batch_size * job.sequence_length)
    return {**layer.sizes, "tokens": tokens,
            "routed_tokens": tokens * layer.sizes.get("top_k", 1)}  # fmt: skip


def mean_elements(
    tensor: SpecTensor, split: Split, sizes: Mapping[str, float], s: Strategy
) -> float:
    """Return the elements of a tensor on a mean rank: exact in the sum, shards even or not."""
    grouped = () if "experts" in tensor.dims else split.get("experts", ())
    elements = 1.0
    for dim in tensor.dims:
        axes = (*split.get(dim, ()), *(grouped if dim == "routed_tokens" else ()))
        units = sizes[UNITS_OF_DIM[dim]] if dim in UNITS_OF_DIM else sizes[dim]
        copies = s.dp if dim in TOKEN_DIMS and axes else 1.0
        degree = degree_of("*".join(axes), s) if axes else 1.0
        elements *= copies * sizes[dim] / units * max(units / degree, 1.0)
    return elements / degree_of("*".join(split[FLAT]), s) if FLAT in split else elements


def _add(found: Found, layer: LayerGraph, job: Job, count: int, *, tied: bool = False) -> None:
    """Add the calls of a layer on all devices of its stage; a tied weight is that of others."""
    s, sizes = job.strategy, _sizes(layer, job)
    per_rank = count * s.num_devices / s.pp
    for call in derive_calls(layer, job.plan_options, axes_in_use(s)):
        is_tied = tied and call.of_weight and call.tensor.name.startswith(TABLE)
        if is_tied or degree_of(call.axis, s, sizes) == 1:
            continue
        elements = mean_elements(call.tensor, call.split, sizes, s)
        is_data = any(part in call.axis for part in ("dp", "cp"))
        if call.per_step and not is_data and job.plan_options.zero_stage:
            # FSDP has cut the gradient when sums over other axes are made.
            elements /= degree_of("dp_shard*cp", s)
        times = 1 if call.per_step else job.num_micro_batches
        key = Call(call.kind, call.axis.split("/")[0], call.phase)
        found[key] += elements * times * per_rank


def recorded(
    recorder: Recorder, padding: Mapping[str, float]
) -> tuple[dict[Call, float], dict[Call, int]]:
    """Return the bytes and the calls that all processes together have sent.

    Parameters
    ----------
    padding
        Bytes that a call over an axis carries more than the tensors of its plan: FSDP fills up the
        rows of a weight until shards divide them [bytes].
    """
    of_all: list[Any] = [None] * dist.get_world_size()
    own = {call: (number, recorder.calls[call] * padding.get(call.axis, 0.0))
           for call, number in recorder.num_bytes.items()}  # fmt: skip
    dist.all_gather_object(of_all, (own, dict(recorder.calls)))
    num_bytes: Found = defaultdict(float)
    calls: Counter[Call] = Counter()
    for own_bytes, own_calls in of_all:
        for call, (number, filled) in own_bytes.items():
            key = Call(call.kind, call.axis.split("/")[0], call.phase)
            num_bytes[key] += number - filled
            calls[key] += own_calls[call]
    return dict(num_bytes), dict(calls)


def wrong_passes(recorder: Recorder, mesh: Mesh) -> int:
    """Return the passes of streams whose sends are not those of the form, on this process.

    Rounds, destinations and items are compared, the buffers that were in use with those of the
    closed form, and the bytes with those that passed the process group.
    """
    wrong = sum(_differs(made, mesh) for made in recorder.passes)
    noted = sum(num_bytes for made in recorder.passes for _, num_bytes in made.sends)
    return wrong + (noted != recorder.streamed_bytes)


def first_passes(recorder: Recorder, mesh: Mesh) -> tuple[tuple[int, ...], list[RecordedSend]]:
    """Return the sends of the first stream pass in each direction, and the ranks of its group."""
    found: dict[bool, RecordedPass] = {}
    for made in recorder.passes:
        if made.axis == recorder.passes[0].axis:
            found.setdefault(made.is_reversed, made)
    sends = [RecordedSend("backward" if is_reversed else "forward", *send, num_bytes)
             for is_reversed, made in found.items() for send, num_bytes in made.sends]  # fmt: skip
    return (mesh[recorder.passes[0].axis].ranks if found else ()), sends


def _differs(made: RecordedPass, mesh: Mesh) -> bool:
    axis = mesh[made.axis]
    rounds = enumerate_rounds(mesh.form_of(made.axis), axis.size)
    if made.is_reversed:
        rounds = reverse(rounds)
    room = mesh.form_of(made.axis).buffers(float(axis.size)).with_incoming * rounds.num_parts
    if made.most_held > room:
        return True
    expected = sorted(send for send in rounds.sends if send.source == axis.index)
    return expected != sorted(send for send, _ in made.sends)


def gradient_errors(
    gradients: Mapping[str, Tensor], held: Mapping[str, WeightPart], dense: Mapping[str, Tensor]
) -> Iterator[tuple[float, str]]:
    """Yield the largest difference of each gradient of this process, over its largest entry."""
    for name, gradient in gradients.items():
        whole = dense[name]
        largest = float(whole.abs().max())
        expected = held[name].of(whole)
        if gradient.shape != expected.shape:
            yield inf, name
        elif expected.numel():
            yield relative(float((gradient - expected).abs().max()), largest), name


def relative(difference: float, scale: float) -> float:
    """Return a difference over a scale that is not 0; infinite for what is no number."""
    found = difference / scale if scale else difference
    return found if isfinite(found) else inf
