"""Job of a run: a plan at full size, or scaled down with the same shardings.

Scaled down, every axis of more than one device keeps at least two, every kind of layer remains, and
heads, columns and tokens remain divisible by the degrees that divide them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from meshwright.base.errors import Fault, SpecError
from meshwright.run.model import unbuilt_parts
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    Streamed,
    StreamForm,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Plan

Scale = Literal["tiny", "full"]
HEAD_SIZE, WIDTH, ROWS = 8, 32, 4
"""Sizes of a tiny model: head size, hidden size, and tokens per rank."""
SHRINKS = ("dp_replicate", "dp_shard", "pp", "cp", "tp", "tatp")
"""Axes in the order in which their degrees are halved."""


@dataclass(frozen=True)
class Job:
    """Model, strategy and batch of a run."""

    model: ModelSpec
    strategy: Strategy
    plan_options: PlanOptions
    sequence_length: int
    num_micro_batches: int
    """Micro-batches of each data-parallel rank in a step."""
    notes: tuple[str, ...] = ()
    """Differences from the plan, and its choices without effect."""

    @property
    def num_processes(self) -> int:
        """Processes: one for each device."""
        return int(self.strategy.num_devices)

    @property
    def global_batch_size(self) -> int:
        """Sequences of a step."""
        s = self.strategy
        return int(s.dp * s.micro_batch_size) * self.num_micro_batches


def job_of(plan: Plan, scale: Scale = "tiny", most_processes: int = 8) -> Job:
    """Return the job that a run of a plan executes.

    Raises
    ------
    SpecError
        The plan has parts that no layer of :mod:`meshwright.run.layers` computes.
    """
    found, options = plan.best.strategy, plan.best.plan_options
    if faults := list(refused(plan.workload, plan.model, found, options)):
        raise SpecError(faults)
    length = plan.workload.sequence_length
    notes = list(_without_effect(options))
    recompute = Recompute.FULL if options.recompute is Recompute.FULL else Recompute.NONE
    options = replace(
        options, recompute=recompute, recompute_modules=(), kept_tensors=(), offloaded_tensors=(),
        offload=Offload.NONE, streamed=streamed(plan.model, found, options, length),
        stream_form=_form(options, plan),
    )  # fmt: skip
    batches = int(plan.workload.global_batch_size / (found.dp * found.micro_batch_size))
    if scale == "full":
        return Job(plan.model, found, options, length, batches, tuple(notes))
    s = _fewer_devices(found, most_processes)
    changed = [f"{name} {getattr(found, name):.0f} -> {getattr(s, name):.0f}"
               for name in vars(s) if getattr(s, name) != getattr(found, name)]  # fmt: skip
    if changed:
        notes.insert(0, f"tiny: {', '.join(changed)}")
    # Two parts of a sequence for each rank of cp, each of which tatp and tp split.
    length = max(16, int(ROWS * 2 * s.cp * s.tatp * s.tp))
    batches = min(batches, 2) if s.pp == 1 else 2 * int(s.pp)
    model, options = _tiny_model(plan.model, found, s, options, length)
    return Job(model, s, options, length, batches, tuple(notes))


def refused(
    workload: Training, model: ModelSpec, s: Strategy, options: PlanOptions
) -> Iterator[Fault]:
    """Yield a fault for each part of a plan that no layer here computes."""
    cases = (
        (s.etp > 1, "etp", f"etp {s.etp:.0f} splits experts inside", "etp 1"),
        (model.has_experts and s.tatp > 1, "tatp", "experts do not stream", "tatp 1"),
        (model.has_experts and s.tp > 1 and not options.sequence_parallel, "sequence_parallel",
         "experts under tp take the tokens of sequence parallelism", "on"),
        (options.vocabulary_parallel, "vocabulary_parallel",
         "a vocabulary over pipeline stages is priced, not run", "off"),
        (model.tied_embeddings and s.pp > 1, "pp",
         "a tied embedding on two stages is priced, not run", "pp 1"),
        (options.schedule is ScheduleKind.ZERO_BUBBLE and max(s.tp, s.cp, s.tatp, s.ep) > 1,
         "schedule", "zero bubble of PyTorch would run what layers send backward twice", "1f1b"),
        (options.context_kind is ContextKind.GATHER and s.cp > 1, "context_kind",
         "keys and values gathered whole are run dry, not for real", "ring or ulysses"),
        (workload.adapters is not None, "adapters", "adapters are priced, not run", "none"),
        (workload.document_length is not None, "document_length",
         "packed documents are priced, not run", "none"),
        (not workload.causal, "causal", "attention here is causal", "on"),
        (options.recomputes_some or options.recomputes_runs, "recompute_layers",
         "full recomputation here covers every layer alone", "0"),
    )  # fmt: skip
    for part in dict.fromkeys(unbuilt_parts(model)):
        yield Fault("model", f"{model.name} has {part}, which run does not build", "another model")
    for is_met, field, message, fix in cases:
        if is_met:
            yield Fault(f"plan: {field}", message, fix)
    splits = s.tp * s.tatp > 1
    for kind in model.layer_kinds:
        if kind.parallel_residual and splits:
            message = "branches side by side share one sum over tp, which no layer here makes"
            yield Fault("plan: tp", message, "tp 1")
        attention = kind.attention
        if attention is not None and attention.qk_norm == "full" and splits:
            yield Fault("plan: tp", "norms over all heads at once are not split here", "tp 1")
        degree = head_degree(s, options)
        if attention is not None and s.cp > 1 and options.context_kind is ContextKind.ULYSSES:
            heads, keys = attention.num_heads, attention.num_kv_heads
            if heads % degree or (keys % degree and degree % keys):
                message = f"Ulysses splits heads over {degree} ranks; found {heads}, {keys} of keys"
                yield Fault("plan: cp", message, f"a degree that divides {gcd(heads, keys)}")


def _without_effect(options: PlanOptions) -> Iterator[str]:
    """Yield the choices of a plan without effect on a run."""
    yield "precision, optimizer and software of the plan have no effect: AdamW in one type"
    if options.offload is not Offload.NONE:
        yield f"offload={options.offload} has no effect: all tensors stay on their device"
    if options.recompute is Recompute.SELECTIVE:
        yield "recompute=selective has no effect: attention forms its scores again in any case"


def _fewer_devices(s: Strategy, most: int) -> Strategy:
    """Return the strategy with degrees halved until it fits; each axis in use keeps two devices."""
    while s.num_devices > most:
        long = [name for name in SHRINKS if getattr(s, name) > 2]
        if not long:
            message = f"found {most}, but each axis in use needs two processes"
            raise SpecError(Fault("--processes", message, f"{s.num_devices:.0f}"))
        name = max(long, key=lambda one: (getattr(s, one), -SHRINKS.index(one)))
        s = replace(s, **{name: max(getattr(s, name) // 2, 2.0)})
    copies = s.dp_shard * s.cp * s.tp
    return replace(s, ep=float(gcd(int(s.ep), int(copies))),
                   micro_batch_size=min(s.micro_batch_size, 2.0))  # fmt: skip


def head_degree(s: Strategy, options: PlanOptions) -> int:
    """Return the ranks that share the heads of a layer."""
    degree = s.tp
    if options.streamed is Streamed.INPUTS:
        degree *= s.tatp
    if options.context_kind is ContextKind.ULYSSES:
        degree *= s.cp
    return int(degree)


def _tiny_model(
    model: ModelSpec, found: Strategy, s: Strategy, options: PlanOptions, length: int
) -> tuple[ModelSpec, PlanOptions]:
    """Return the model with small sizes, and the plan options with as few stage layers."""
    chunks = int(s.pp * s.num_virtual_stages)
    num_kinds = len(set(model.layer_pattern))
    stated = options.stage_layers
    is_uneven = bool(model.num_layers % chunks) or len(set(stated)) > 1
    num_layers = max(chunks, num_kinds, 2) + (is_uneven and chunks > 1)
    pattern = [model.layer_pattern[i * model.num_layers // num_layers] for i in range(num_layers)]
    for kind in set(model.layer_pattern) - set(pattern):
        pattern[next(i for i, k in enumerate(pattern) if pattern.count(k) > 1)] = kind
    dealt = chunk_lengths(num_layers, chunks, PlanOptions())
    options = replace(options, embedding_layers=0, head_layers=0,
                      stage_layers=tuple(map(int, dealt)) if stated else ())  # fmt: skip
    shares, degree = head_degree(found, options), head_degree(s, options)
    kinds = tuple(_tiny_layer(kind, shares, degree, s, length) for kind in model.layer_kinds)
    words = int(s.tp * s.tatp)
    tiny = model.model_copy(update={
        "name": f"{model.name} (tiny)", "layer_kinds": kinds, "layer_pattern": tuple(pattern),
        "hidden_size": WIDTH, "learned_positions": length if model.learned_positions else 0,
        "vocab_size": 20 * words + (model.vocab_size % int(found.tp * found.tatp) > 0),
        "max_sequence_length": None,
    })  # fmt: skip
    return tiny, options


def _tiny_layer(kind: LayerSpec, shares: int, degree: int, s: Strategy, length: int) -> LayerSpec:
    """Return a layer with small sizes."""
    change: dict[str, object] = {}
    if (attention := kind.attention) is not None:
        change["attention"] = _tiny_attention(attention, shares, degree, length)
    if (network := kind.feed_forward) is not None:
        change["feed_forward"] = network.model_copy(update={"ffn_size": 24 * degree})
    if (experts := kind.experts) is not None:
        change["experts"] = experts.model_copy(update={
            "num_experts": 2 * max(int(s.ep), 2), "top_k": min(experts.top_k, 2), "ffn_size": 16,
            "shared_ffn_size": 16 * int(s.tp) if experts.shared_ffn_size else 0,
            "num_groups": 1, "top_groups": 1,
        })  # fmt: skip
    return kind.model_copy(update=change)


def _tiny_attention(spec: AttentionSpec, shares: int, degree: int, length: int) -> AttentionSpec:
    """Return attention with the fewest heads of this split; shared key heads stay shared."""
    is_shared = spec.num_kv_heads < shares and degree > 1
    kv_heads = max(1, degree // 2) if is_shared else max(degree, 2)
    heads = max(degree, 2) if spec.num_kv_heads == spec.num_heads else 2 * max(degree, 2)
    return spec.model_copy(update={
        "num_heads": heads, "num_kv_heads": kv_heads if heads % kv_heads == 0 else 1,
        "head_size": HEAD_SIZE, "value_head_size": HEAD_SIZE,
        "window": spec.window and min(spec.window, length // 2),
    })  # fmt: skip


def streamed(model: ModelSpec, s: Strategy, options: PlanOptions, length: int) -> Streamed:
    """Return the streamed tensor; with auto the smaller one (selective transfer of TATP).

    A forward pass of the first layer streams either its weights, P / tp elements, or T tokens of
    width h at the inputs and outputs of both blocks: inputs if 4 T h < P / tp and heads divide.

    A layer of Llama 3 8B has 4096 x (32 x 256 + 8 x 256 + 3 x 14336) = 218,103,808 elements: inputs
    are streamed below 13,312 tokens.
    """
    if options.streamed is not Streamed.AUTO or s.tatp == 1:
        return options.streamed
    kind = model.layer_kinds[model.layer_pattern[0]]
    columns = 0
    if (a := kind.attention) is not None:
        columns += (a.num_heads + a.num_kv_heads) * (a.head_size + a.value_head_size)
    if (f := kind.feed_forward) is not None:
        columns += f.ffn_size * (2 + f.gated)
    tokens = s.micro_batch_size * length / s.cp
    degree = head_degree(s, replace(options, streamed=Streamed.INPUTS))
    divides = all(a.num_heads % degree == 0 for a in model.attentions)
    is_smaller = divides and 4 * tokens < columns / s.tp
    return Streamed.INPUTS if is_smaller else Streamed.WEIGHTS


def _form(options: PlanOptions, plan: Plan) -> StreamForm:
    """Return the form of the streams; with auto a cycle if the block has one, else a line."""
    if options.stream_form is not StreamForm.AUTO:
        return options.stream_form
    placement = plan.best.placement
    sides = [] if placement is None else [n for n in placement.shapes.get("tatp", ()) if n > 1]
    has_cycle = len(sides) > 1 and any(side % 2 == 0 for side in sides)
    return StreamForm.CYCLE if has_cycle else StreamForm.LINE_STREAM


def axes_in_use(s: Strategy) -> tuple[str, ...]:
    """Return the axes of more than one device."""
    return tuple(axis for axis in (*AXES, "ep") if getattr(s, axis) > 1)
