"""Collectives and kept activations that follow from the shardings of a plan.

Real and dry runs are compared with them: a real run in the sums over all processes, a dry run on
one rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from meshwright.base.arrays import number_at
from meshwright.graph.op import TOKEN_DIMS, UNITS_OF_DIM, LayerGraph, OpGraph
from meshwright.graph.op import Tensor as SpecTensor
from meshwright.graph.transformer import TABLE, build_graph
from meshwright.run.answer import Call
from meshwright.run.scale import Job, axes_in_use
from meshwright.schedule.pipeline_schedules import TaskKind, schedules
from meshwright.sharding.algebra import FLAT, CollectiveCall, Split
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.derivation import derive_calls, stage_boundary_calls
from meshwright.sharding.local_sizes import SavedTensor, degree_of, saved_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy

Elements = Callable[[SpecTensor, Split, Mapping[str, float], Strategy], float]
"""Elements of a tensor on a rank."""


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


def pieces_of(graph: OpGraph) -> tuple[LayerGraph, ...]:
    """Return the kinds of layers, then the embedding, then the head."""
    return (*graph.layers, graph.embedding, graph.head)


def calls_of_step(
    job: Job, graph: OpGraph, counts: Sequence[int],
    calls: Sequence[Iterable[CollectiveCall]], elements: Elements = mean_elements,
    times: Callable[[CollectiveCall], float] | None = None,
) -> Iterator[tuple[CollectiveCall, float]]:  # fmt: skip
    """Yield each collective over an axis in use, with the elements that it carries in a step.

    Parameters
    ----------
    counts
        Layers of each kind on a rank, its embeddings, and its heads.
    calls
        Collectives of a micro-batch of each of these.
    times
        How often a step makes a collective of one of these; not stated: once, or in each
        micro-batch.
    """
    often = times or (lambda call: 1.0 if call.per_step else job.num_micro_batches)
    is_tied = graph.tied and counts[-2] > 0
    for piece, count, of_piece in zip(pieces_of(graph), counts, calls, strict=True):
        sizes, is_end = _sizes(piece, job), piece in (graph.embedding, graph.head)
        for call in of_piece if count else ():
            # Recomputation is that of layers, and a tied weight that of the embedding.
            is_other = is_end and call.replayed
            if is_tied and piece is graph.head and call.of_weight:
                is_other = is_other or call.tensor.name.startswith(TABLE)
            if not is_other and degree_of(call.axis, job.strategy, sizes) > 1:
                one = elements(call.tensor, call.split, sizes, job.strategy)
                yield call, count * often(call) * one


def calls_between_stages(
    job: Job, graph: OpGraph, onward: int, back: int
) -> Iterator[tuple[CollectiveCall, float]]:
    """Yield the sends of a rank to later and to earlier stages, with their elements in a step.

    Parameters
    ----------
    onward, back
        Boundaries over which activations, and their gradients, leave.
    """
    if job.strategy.pp > 1:
        first = graph.layers[0]
        calls = stage_boundary_calls(graph, job.plan_options)
        for call, boundaries in zip(calls, (onward, back), strict=True):
            elements = mean_elements(call.tensor, call.split, _sizes(first, job), job.strategy)
            yield call, elements * boundaries * job.num_micro_batches


def derived(job: Job, word_bytes: float) -> dict[Call, float]:
    """Return the bytes of each collective in a step, summed over all processes [bytes].

    Each process counts the full tensor of a call, as the recorder does.
    """
    graph, s, options = build_graph(job.model), job.strategy, job.plan_options
    counts = [piece.count for piece in pieces_of(graph)]
    calls = [derive_calls(piece, options, axes_in_use(s)) for piece in pieces_of(graph)]
    hops = int(s.pp * s.num_virtual_stages) - 1
    found: defaultdict[Call, float] = defaultdict(float)
    for call, elements in (
        *calls_of_step(job, graph, counts, calls),
        *calls_between_stages(job, graph, hops, hops),
    ):
        is_data = any(part in call.axis for part in ("dp", "cp"))
        if call.per_step and not is_data and options.zero_stage:
            # FSDP has sharded the gradient before it is summed over other axes.
            elements /= degree_of("dp_shard*cp", s)
        key = Call(call.kind, call.axis.split("/")[0], call.phase)
        found[key] += elements * word_bytes * s.num_devices / s.pp
    return dict(found)


def derived_kept_bytes(job: Job, word_bytes: float) -> float:
    """Return the most activations that a process keeps, as the mean over all processes [bytes].

    The passes of each stage are replayed in the order of its schedule: a forward pass adds the
    tensors that its operators save, a backward pass frees them. Logits do not count, nor does the
    input of a later stage, which is in a receive buffer of the pipeline.
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
    length = float(job.sequence_length)
    bound = layer.bind(length * job.strategy.micro_batch_size, length)
    return {dim: number_at(size) for dim, size in bound.items()}
