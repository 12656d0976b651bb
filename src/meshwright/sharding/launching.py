"""Rules on the plans that a framework can start: one table for the search and for exporters.

A rule reads :class:`~meshwright.spec.workload.Launches` of the framework that a workload names.
``DEGREES`` judge rows of degrees. ``CHOICES`` judge the options in which plans of one family
differ; the search takes such values from :func:`launched` and tries no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.sharding.rules import Case, Rule, any_of
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    Offload,
    PlanOptions,
    StrategyColumns,
    axes_mask,
)
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import AxisName, Launches, Training, Workload

Value = TypeVar("Value")


def launches_of(workload: Workload) -> Launches | None:
    """Return the launches that the framework of a workload supports; None: no framework named."""
    return workload.software.launches if isinstance(workload, Training) else None


def launched(values: Iterable[Value], known: Iterable[object] | None) -> tuple[Value, ...]:
    """Return the values that a framework knows; all of them without a framework."""
    kept = None if known is None else tuple(known)
    return tuple(value for value in values if kept is None or value in kept)


def has_zero(launches: Launches | None, stage: int, s: StrategyColumns) -> BoolArray:
    """Return the rows on which a framework has a ZeRO stage."""
    found = np.ones(len(s.tp), dtype=bool)
    if launches is None:
        return found
    inside, beside = launches.zero_stages_in_pipelines, launches.zero_stages_with_context
    split, outside = launches.zero_stages_with_tensor, launches.zero_stages_without_pipelines
    found &= stage in launches.zero_stages
    found &= (s.pp > 1) | (outside is None or stage in outside)
    found &= (s.pp == 1) | (inside is None or stage in inside)
    found &= (s.cp == 1) | (beside is None or stage in beside)
    found &= (s.tp == 1) | (s.dp * s.cp == 1) | (split is None or stage in split)
    return found


def has_expert_ranks(launches: Launches | None, stage: int, s: StrategyColumns) -> BoolArray:
    """Return the rows with experts that fit the axes of a framework.

    Without ZeRO all of dp are replicas, one shard each. Source of the axes: for torchtitan 0.3.0
    ``efsdp = dp_shard * cp * tp // ep`` of ``distributed/parallel_dims.py``; for MaxText 0.2.5 the
    mesh of ``configs/base.yml``, in which ``expert`` is an axis beside ``fsdp`` and ``data``.
    """
    found = np.ones(len(s.tp), dtype=bool)
    if launches is None:
        return found
    ranks = {"tp": s.tp, "cp": s.cp, "dp_shard": s.dp_shard if stage else np.ones(len(s.tp)),
             "dp_replicate": np.ones(len(s.tp)) if stage else s.dp}  # fmt: skip
    room = np.prod([ranks[axis] for axis in launches.expert_axes], axis=0)
    found &= room % (s.ep * s.etp) == 0
    return found


def has_expert_shards(launches: Launches | None, model: ModelSpec, s: StrategyColumns) -> BoolArray:
    """Return the rows with weights of experts that a framework shards evenly.

    More ranks than experts share rows of each weight: of 2,048 x 7,168 over 64, not over 120.

    Source: torchtitan 0.3.0 ``distributed/fsdp.py``, ``apply_fsdp_to_decoder`` (``Shard(1)``);
    PyTorch 2.13 ``_fully_shard/_fsdp_param.py`` ("FSDP does not support uneven sharding").
    """
    found = np.ones(len(s.tp), dtype=bool)
    if launches is None or not launches.even_expert_shards:
        return found
    # Without ep tensors of experts are split over tp.
    shards = np.where(s.ep > 1, s.dp_shard * s.cp * s.tp / s.ep, s.dp_shard * s.cp)
    split = np.where(s.ep > 1, 1.0, s.tp)
    for spec in (kind.experts for kind in model.layer_kinds if kind.experts is not None):
        is_even = (spec.ffn_size / split % shards == 0) & (model.hidden_size % shards == 0)
        found &= is_even | (shards * s.ep <= spec.num_experts)
    return found


def has_shards(launches: Launches | None, s: StrategyColumns) -> BoolArray:
    """Return the rows with a division of replicas into shards that a framework supports."""
    if launches is None or not launches.replicas_need_shards:
        return np.ones(len(s.tp), dtype=bool)
    found: BoolArray = (s.tp * s.cp == 1) | (s.dp_replicate == 1) | (s.dp_shard > 1)
    return found


def may_offload(launches: Launches | None, kind: Offload, stage: int) -> bool:
    """Return whether a framework offloads tensors of this kind to the host under a ZeRO stage."""
    if launches is None or kind is Offload.NONE:
        return True
    under = {str(what): stages for what, stages in launches.offload.items()}
    return stage in under.get(str(kind), ())


def is_order(order: Iterable[str], known: Iterable[Iterable[str]], used: Iterable[str]) -> bool:
    """Return whether the axes in use that a framework knows stand in one of its orders."""
    lie = [axis for axis in order if axis in set(used)]
    return any(
        [axis for axis in lie if axis in one] == [axis for axis in one if axis in lie]
        for one in map(tuple, known)
    )


def known_values(workload: Workload) -> dict[str, tuple[object, ...]]:
    """Return the values of each choice that a framework can start, by name; empty without one.

    A degree is listed only if it can be nothing but 1.
    """
    launches = launches_of(workload)
    if launches is None:
        return {}
    choices: dict[str, tuple[object, ...]] = {
        "schedule": launches.schedules or ("1f1b",),
        "context_kind": launches.context_kinds or ("ring",),
        "zero_stage": launches.zero_stages,
        "recompute": launches.recompute,
        "offload": ("none", *launches.offload),
        "sequence_parallel": launches.sequence_parallel,
        "overlap_data_parallel": launches.overlaps_data_parallel,
        "overlap_expert_parallel": launches.overlaps_expert_parallel,
    }
    lacking = {name: (1,) for axis, name in _DEGREES.items() if axis not in launches.axes}
    return choices | lacking


def recomputes_beside_experts(launches: Launches | None, plan_options: PlanOptions) -> bool:
    """Return whether a framework recomputes whole layers while it overlaps their experts."""
    overlaps = plan_options.overlap_expert_parallel
    return launches is None or not overlaps or launches.recomputes_beside_experts


_DEGREES: dict[AxisName, str] = {
    "tp": "tp", "cp": "cp", "pp": "pp", "vpp": "num_virtual_stages", "ep": "ep", "etp": "etp",
    "tatp": "tatp",
}  # fmt: skip

Judge = Callable[[Case, Launches], BoolArray]


def _rule(
    name: str, path: str, explanation: str, breaks: Judge, message: str,
    adjusts: tuple[str, ...] = (), fix: str = "",
) -> Rule:  # fmt: skip
    """Return a rule that refuses no row where no framework is named."""

    def is_broken(case: Case) -> BoolArray:
        launches = launches_of(case.workload)
        return case.no_rows if launches is None else breaks(case, launches) | case.no_rows

    text = f"{{framework}} {message}"
    return Rule(f"launch-{name}", explanation, is_broken, text, adjusts, fix, path)


def _lacks(axis: AxisName, degree: str) -> Judge:
    return lambda case, known: (getattr(case.s, degree) > 1) & (axis not in known.axes)


def _axis(axis: AxisName, degree: str, what: str) -> Rule:
    return _rule(
        axis, f"strategy.{degree}", f"{what} exists in the framework", _lacks(axis, degree),
        f"has no {what}: {axis} {{{degree}}}", (degree,),
    )  # fmt: skip


def are_equal(lengths: IntArray, num_stages: int) -> bool:
    """Return whether all chunks of a pipeline hold equally many layers."""
    return bool((lengths == lengths[0]).all())


def _lacks_order(case: Case, known: Launches) -> BoolArray:
    code = axes_mask(case.s)
    found = case.no_rows
    for mask in set(code.tolist()):
        axes = [axis for bit, axis in enumerate(AXES) if mask >> bit & 1]
        if not is_order(case.plan_options.axis_order, known.axis_orders, axes):
            found = found | (code == mask)
    return found


def _accumulates(case: Case, known: Launches) -> BoolArray:
    work = case.workload
    if not isinstance(work, Training) or work.precision.matmul not in known.precisions_in_one_pass:
        return case.no_rows
    in_one_pass = case.s.dp * case.s.micro_batch_size
    found: BoolArray = (case.s.pp == 1) & (in_one_pass < work.global_batch_size)
    return found


def _lacks_model(case: Case, known: Launches) -> BoolArray:
    return case.no_rows if known.has_model(case.model.architecture) else case.all_rows


DEGREES: tuple[Rule, ...] = (
    _rule(
        "model", "model.architecture",
        "the framework has the architecture of the model",
        _lacks_model, "has no model of the architecture {architecture}", (),
        "another framework",
    ),
    _rule(
        "accumulation", "strategy.micro_batch_size",
        "gradients accumulate over micro-batches in this precision",
        _accumulates, "does not accumulate gradients over micro-batches in this precision",
        ("micro_batch_size",), "the whole batch of a rank in one micro-batch, or another precision",
    ),
    _rule(
        "batch-ramp", "workload.batch_ramp",
        "the batch grows over the first steps where the framework can let it",
        lambda case, known: case.all_rows & (
            isinstance(case.workload, Training) and case.workload.batch_ramp is not None
            and not known.batch_ramp
        ),
        "has batches of one size", (), "without batch_ramp",
    ),
    _rule(
        "adapters", "workload.optimizer",
        "adapters are trained on frozen weights where the framework can do it",
        lambda case, known: case.all_rows & (
            isinstance(case.workload, Training) and case.workload.optimizer.freezes_weights
            and not known.adapters
        ),
        "trains no adapters on frozen weights", (), "accelerate, deepspeed or megatron-bridge",
    ),
    _axis("tp", "tp", "tensor parallelism"),
    _axis("cp", "cp", "context parallelism"),
    _axis("pp", "pp", "pipeline parallelism"),
    _axis("vpp", "num_virtual_stages", "interleaved stages"),
    _axis("ep", "ep", "expert parallelism"),
    _axis("etp", "etp", "tensor parallelism inside of experts"),
    _axis("tatp", "tatp", "tensor streams"),
    _rule(
        "schedule", "plan_options.schedule",
        "the framework has the pipeline schedule",
        lambda case, known: (case.s.pp > 1) & (case.plan_options.schedule not in known.schedules),
        "has no pipeline schedule {schedule}", (), "schedule=1f1b",
    ),
    _rule(
        "stages", "strategy.pp",
        "stages hold the same number of layers, where the framework cannot deal others",
        lambda case, known: ~case.rows_dealt(are_equal) & (not known.uneven_stages),
        "needs as many layers in each stage: {num_layers} layers over pp {pp}", ("pp",),
    ),
    _rule(
        "chunks", "strategy.num_virtual_stages",
        "chunks of interleaved stages hold the same number of layers, where the framework cannot "
        "deal others",
        lambda case, known: (
            ~case.rows_dealt(are_equal) & (case.s.num_virtual_stages > 1)
            & (not known.uneven_chunks)
        ),
        "needs as many layers in each chunk: {num_layers} layers over pp {pp} x "
        "{num_virtual_stages}", ("num_virtual_stages", "pp"),
    ),
    _rule(
        "stage-layers", "plan_options.stage_layers",
        "the framework takes the layers of each stage",
        lambda case, known: (
            case.all_rows & (bool(case.plan_options.stage_layers) and not known.stage_layers)
        ),
        "does not take the layers of each stage: {stage_layers}", (),
        "stage_layers=",
    ),
    _rule(
        "sequence-parallel", "plan_options.sequence_parallel",
        "the framework can split tokens (or leave them whole) beside tp",
        lambda case, known: (
            (case.s.tp > 1) & (case.plan_options.sequence_parallel not in known.sequence_parallel)
        ),
        "fixes sequence parallelism where tp is used", (), "sequence_parallel=true or false",
    ),
    _rule(
        "expert-tokens", "plan_options.sequence_parallel",
        "experts beside tp need sequence parallelism, where the framework says so",
        lambda case, known: (
            (case.s.tp > 1) & case.model.has_experts & known.experts_need_sequence_parallel
            & (not case.plan_options.sequence_parallel)
        ),
        "needs sequence parallelism for experts with tp {tp}", (), "sequence_parallel=true",
    ),
    _rule(
        "context", "plan_options.context_kind",
        "the framework has this form of context parallelism",
        lambda case, known: (
            (case.s.cp > 1) & (case.plan_options.context_kind not in known.context_kinds)
        ),
        "has no {context_kind} attention over cp {cp}", (),
        "context_kind=ring or gather or ulysses",
    ),
    _rule(
        "whole-sequences", "strategy.cp",
        "the framework splits sequences of this architecture",
        lambda case, known: (
            (case.s.cp > 1) & (case.model.architecture in known.whole_sequences)
        ),
        "does not split sequences of {architecture}: cp {cp}", ("cp",),
    ),
    _rule(
        "kv-heads", "strategy.tp",
        "tp divides the key/value heads, where the framework shares none between ranks",
        lambda case, known: known.whole_kv_heads
        & any_of((each.num_kv_heads % case.s.tp != 0 for each in case.model.attentions), case),
        "shares no key/value head between ranks: tp {tp}", ("tp",),
    ),
    _rule(
        "tied-stages", "strategy.pp",
        "embedding and head may share a table over stages",
        lambda case, known: (
            (case.s.pp > 1) & case.model.tied_embeddings & (not known.ties_in_pipelines)
        ),
        "shares no table between stages: pp {pp}", ("pp",),
    ),
    _rule(
        "logit-tiles", "workload.software.logit_tiles",
        "parts of the loss hold the same number of tokens of a sequence on a rank, where the "
        "framework cuts it into chunks",
        lambda case, known: (
            (case.sequence_length % (case.s.cp * case.workload.software.logit_tiles) != 0)
            & known.equal_logit_tiles
        ),
        "cuts the {sequence} tokens over cp {cp} into equal parts for the loss", ("cp",),
        "switches=none",
    ),
    _rule(
        "context-sinks", "plan_options.context_kind",
        "the framework sends keys and values of attention with sinks in this way",
        lambda case, known: (
            (case.s.cp > 1) & known.sinks_need_ulysses
            & any(attention.sinks for attention in case.model.attentions)
            & (case.plan_options.context_kind is not ContextKind.ULYSSES)
        ),
        "has attention sinks under all-to-all only", (), "context_kind=ulysses",
    ),
    _rule(
        "vocabulary", "plan_options.vocabulary_parallel",
        "no framework splits embedding and logits over pipeline stages",
        lambda case, known: case.all_rows & case.plan_options.vocabulary_parallel,
        "does not split embedding and logits over pipeline stages", (),
        "vocabulary_parallel=false",
    ),
    _rule(
        "async-tp", "plan_options.overlap_tensor_parallel",
        "the framework can overlap collectives of tp (or leave them whole)",
        lambda case, known: (
            (case.s.tp > 1)
            & (
                (case.plan_options.overlap_tensor_parallel not in known.overlaps_tensor_parallel)
                | (
                    case.plan_options.overlap_tensor_parallel
                    & (not case.plan_options.sequence_parallel)
                )
            )
        ),
        "overlaps collectives of tp with products under sequence parallelism, or not at all",
        (),
        "sequence_parallel=true or overlap_tensor_parallel=false",
    ),
    _rule(
        "compiled-overlap", "workload.software.compiled",
        "the model is compiled where collectives of tp overlap, if only the compiler does that",
        lambda case, known: (
            (case.s.tp > 1) & case.plan_options.overlap_tensor_parallel & known.compiles_overlap
            & (not case.workload.software.compiled)
        ),
        "overlaps collectives of tp with products in compiled models only", (),
        "overlap_tensor_parallel=false",
    ),
    _rule(
        "recompute-modules", "plan_options.recompute_modules",
        "the framework can recompute these modules of a layer",
        lambda case, known: (
            case.all_rows
            & (not {*case.plan_options.recompute_modules} <= {*known.recompute_modules})
        ),
        "does not recompute these modules by themselves: {recompute_modules}", (),
        "recompute=full",
    ),
    _rule(
        "stored-tensors", "plan_options.kept_tensors",
        "the framework can keep these tensors of a layer, and recompute all others",
        lambda case, known: (
            case.all_rows
            & (
                not {*case.plan_options.kept_tensors, *case.plan_options.offloaded_tensors}
                <= {*known.stored_tensors}
            )
        ),
        "does not keep single tensors by these names: {stored_tensors}", (),
        "recompute=full",
    ),
    _rule(
        "recompute-experts", "plan_options.recompute_modules",
        "experts with overlapping communication are not recomputed as a whole, where the "
        "framework says so",
        lambda case, known: (
            case.all_rows & case.plan_options.overlap_expert_parallel
            & ("moe" in case.plan_options.recompute_modules) & (not known.recomputes_beside_experts)
        ),
        "does not recompute experts while it overlaps their communication", (),
        "recompute_modules=moe_act",
    ),
    _rule(
        "expert-overlap", "plan_options.overlap_expert_parallel",
        "the framework overlaps communication of experts as the plan says, in pipelines where "
        "they are interleaved",
        lambda case, known: (
            case.all_rows & (
                case.plan_options.overlap_expert_parallel not in known.overlaps_expert_parallel
            )
            | ((case.s.pp > 1) & (case.s.num_virtual_stages == 1)
               & case.plan_options.overlap_expert_parallel)
        ),
        "does not overlap communication of experts with pp {pp}, {num_virtual_stages} virtual "
        "stages", ("num_virtual_stages",), "overlap_expert_parallel=false",
    ),
)  # fmt: skip
"""Rules on degrees, and on choices that a whole family shares."""

CHOICES: tuple[Rule, ...] = (
    _rule(
        "dp-replicate", "strategy.dp_replicate",
        "sharded replicas beside each other exist in the framework",
        lambda case, known: (
            _lacks("dp_replicate", "dp_replicate")(case, known) & (case.plan_options.zero_stage > 0)
        ),
        "has no hybrid sharding: dp_replicate {dp_replicate}", (), "dp_shard over all of dp",
    ),
    _rule(
        "zero", "plan_options.zero_stage",
        "the framework has the ZeRO stage, with pipelines or without",
        lambda case, known: ~has_zero(known, case.plan_options.zero_stage, case.s),
        "has no ZeRO stage {zero_stage} with pp {pp}, cp {cp}, tp {tp}", (),
        "zero_stage=3 or 2 or 1 or 0",
    ),
    _rule(
        "shards", "strategy.dp_shard",
        "the framework divides replicas into shards in this way",
        lambda case, known: (
            (case.plan_options.zero_stage > 0) & ~has_shards(known, case.s)
        ),
        "has no {dp_shard} shards of dp for {dp_replicate} replicas, tp {tp}, cp {cp}", (),
        "dp_shard over all of dp",
    ),
    _rule(
        "experts", "strategy.ep",
        "experts find their ranks among the axes that the framework takes for them",
        lambda case, known: ~has_expert_ranks(known, case.plan_options.zero_stage, case.s),
        "has no ranks for ep {ep} x etp {etp} with dp_shard {dp_shard} of dp {dp}, cp {cp}, "
        "tp {tp} under ZeRO {zero_stage}", ("ep", "etp"),
    ),
    _rule(
        "expert-shards", "strategy.dp_shard",
        "the framework shards weights of experts evenly, where more ranks than experts share them",
        lambda case, known: (
            (case.plan_options.zero_stage > 0) & ~has_expert_shards(known, case.model, case.s)
        ),
        "has no even shards of experts with dp_shard {dp_shard}, cp {cp}, tp {tp}, ep {ep}",
        ("dp_shard", "ep"),
    ),
    _rule(
        "reshard", "plan_options.reshard_after_forward",
        "the framework gathers weights of ZeRO 3 as the plan says",
        lambda case, known: case.all_rows & (case.plan_options.zero_stage == 3)
        & (case.plan_options.reshard_after_forward not in known.drops_gathered_weights),
        "fixes whether ZeRO 3 gathers weights again", (), "reshard_after_forward=true or false",
    ),
    _rule(
        "overlap", "plan_options.overlap_data_parallel",
        "the framework overlaps data-parallel communication as the plan says",
        lambda case, known: (
            (case.s.dp * case.s.cp > 1)
            & (case.plan_options.overlap_data_parallel not in known.overlaps_data_parallel)
        ),
        "fixes whether data-parallel communication overlaps", (),
        "overlap_data_parallel=true or false",
    ),
    _rule(
        "recompute", "plan_options.recompute",
        "the framework has this form of recomputation",
        lambda case, known: case.all_rows & (case.plan_options.recompute not in known.recompute),
        "has no recomputation of this form: {recompute}", (), "recompute=full or none",
    ),
    _rule(
        "recompute-layers", "plan_options.recompute_layers",
        "the framework can recompute some layers of a stage and leave others",
        lambda case, known: case.all_rows
        & (case.plan_options.recomputes_some and not known.recompute_layers),
        "recomputes all layers or none, not {recompute_layers} of each chunk", (),
        "recompute_layers=0",
    ),
    _rule(
        "recompute-run", "plan_options.recompute_run",
        "the framework can keep one input for several layers that it recomputes",
        lambda case, known: case.all_rows
        & (case.plan_options.recomputes_runs and not known.recompute_runs),
        "keeps the input of each layer that it recomputes, not of each {recompute_run}", (),
        "recompute_run=1",
    ),
    _rule(
        "expert-recompute", "plan_options.recompute",
        "the framework can recompute whole layers where it overlaps communication of experts",
        lambda case, known: case.all_rows
        & (case.plan_options.recompute == "full")
        & (not recomputes_beside_experts(known, case.plan_options)),
        "does not recompute whole layers beside overlapped communication of experts", (),
        "recompute=selective or none",
    ),
    _rule(
        "offload", "plan_options.offload",
        "the framework moves this to host memory, under this ZeRO stage",
        lambda case, known: case.all_rows
        & (not may_offload(known, case.plan_options.offload, case.plan_options.zero_stage)),
        "cannot move this to the host: {offload}, ZeRO {zero_stage}", (), "offload=none",
    ),
    _rule(
        "order", "plan_options.axis_order",
        "ranks lie on the devices in an order of the framework",
        _lacks_order, "lays ranks in another order of the axes, innermost first", (),
        f"axis_order={','.join(axis for axis in AXES if axis != 'tatp')}",
    ),
)  # fmt: skip
"""Rules on the options in which plans of one family differ."""


def rules() -> tuple[Rule, ...]:
    """Return all rules on what a framework can start."""
    return (*DEGREES, *CHOICES)
