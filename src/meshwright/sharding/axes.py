"""The axes of the mesh: the dims each splits, the tensors it streams, the plans it refuses.

All axes together give the sharding of each activation and each weight between operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray, Mask, Num, ceil_div
from meshwright.base.registry import Registry
from meshwright.graph.op import Op, OpKind, Tensor
from meshwright.sharding import launching
from meshwright.sharding.algebra import (
    FLAT,
    Arbiter,
    ProductMoves,
    ShardedOperand,
    Sharding,
    Side,
    matmul,
)
from meshwright.sharding.dealing import is_dealt
from meshwright.sharding.rules import Case, Refusal, Rule, any_of
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    ScheduleKind,
    StrategyColumns,
    StrategyOf,
    Streamed,
    take,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import AttentionSpec, ExpertSpec, ModelSpec
from meshwright.spec.workload import Training, Workload

INNER_DIMS = frozenset(
    {
        "query", "key", "value", "key_content", "heads", "query_heads",
        "inner", "inner_heads", "state_key",
        "ffn", "ffn_in", "shared_ffn", "shared_ffn_in", "vocab",
    }
)  # fmt: skip
"""Dims between a column-split and a row-split product; heads stay whole on one rank."""

EXPERT_INNER_DIMS = frozenset({"expert_ffn", "expert_ffn_in"})


class Axis:
    """One axis; a subclass states the differences from an axis that does nothing.

    Shardings are stated for tensors between operators: the layouts that an operator needs, and
    the collectives to reach them, follow from the four-case rule.
    """

    degrees: ClassVar[tuple[str, ...]] = ()
    """Fields of the strategy that make up the degree."""
    replicates_weights: ClassVar[bool] = False
    """Whether weight gradients are summed over the axis once per step: a data axis."""
    splits_sequence: ClassVar[bool] = False
    """Whether the axis splits tokens within sequences, not between them."""
    rules: ClassVar[tuple[Rule, ...]] = ()

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the dim of an activation at rest that this axis splits."""
        return None

    def weight_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the dim of a weight that this axis splits."""
        return None

    def operand_to_gather(self, weight_dim: str, plan_options: PlanOptions) -> Side:
        """Return the answer to case 4: the activation (left) or the weight (right)."""
        return "left"

    def is_streamed(self, kind: CollectiveKind, plan_options: PlanOptions) -> bool:
        """Return whether gathers and scatters move piece by piece during the computation."""
        return False


axes: Registry[Axis] = Registry("axis")


def is_routed(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to the routed experts."""
    return "routed_tokens" in tensor.dims or "experts" in tensor.dims


def first_of(dims: frozenset[str], tensor: Tensor) -> str | None:
    """Return the first dim of a tensor that is among the given ones."""
    return next((dim for dim in tensor.dims if dim in dims), None)


def _balances(case: Case) -> bool:
    """Return whether a causal ring gives each rank an early and a late part of the sequence."""
    is_causal = not isinstance(case.workload, Training) or case.workload.causal
    return is_causal and case.plan_options.context_kind is not ContextKind.ULYSSES


class ContextAxis(Axis):
    """Context parallelism: the tokens of each sequence are split everywhere, attention included.

    Ring: keys and values travel round the group (Liu et al. 2023, arXiv 2310.01889). Gather: each
    rank gathers them whole before the core, and keeps them (Grattafiori et al. 2024, arXiv
    2407.21783, section 3.3.2). Ulysses: an all-to-all turns split tokens into split heads and back
    (Jacobs et al. 2023, arXiv 2309.14509).
    """

    degrees = ("cp",)
    replicates_weights = True
    splits_sequence = True
    rules = (
        Rule(
            "cp-sequence",
            "each rank of cp holds equal parts of the sequence, two of them where causal attention "
            "on split tokens balances early and late ones",
            lambda case: (
                (case.s.cp > 1)
                & case.has_long_rows
                & (case.sequence_length % (case.s.cp * (1 + _balances(case))) != 0)
            ),
            "sequence {sequence} does not divide into equal parts for cp {cp}",
            ("cp",),
        ),
        Rule(
            "cp-heads",
            "Ulysses attention splits whole heads over tp and cp together",
            lambda case: (
                (case.s.cp > 1)
                & (case.plan_options.context_kind is ContextKind.ULYSSES)
                & (
                    case.cuts((a.num_heads for a in case.attentions), case.head_degree * case.s.cp)
                    | case.cuts(
                        (a.num_kv_heads for a in case.attentions),
                        case.head_degree * case.s.cp,
                        may_share=True,
                    )
                )
            ),
            "{heads} heads ({kv_heads} key heads) do not divide by tp {tp} x cp {cp}",
            ("cp", "tp"),
            "context_kind=ring",
        ),
        Rule(
            "cp-states",
            "a scan runs over whole sequences: its heads and groups are split over tp and cp "
            "together",
            lambda case: (
                (case.s.cp > 1)
                & (
                    case.cuts(
                        (r.num_heads for r in case.model.recurrences), case.head_degree * case.s.cp
                    )
                    | case.cuts(
                        (r.num_groups for r in case.model.recurrences),
                        case.head_degree * case.s.cp,
                        may_share=True,
                    )
                )
            ),
            "{inner_heads} heads and {state_groups} groups of a recurrence do not divide by tp "
            "{tp} x cp {cp}",
            ("cp", "tp"),
        ),
        Rule(
            "ulysses-without-cp",
            "with cp 1, or without attention, all kinds of context parallelism are the same; ring "
            "stands for them",
            lambda case: (
                ((case.s.cp == 1) | (not case.attentions))
                & (case.plan_options.context_kind is not ContextKind.RING)
            ),
            "{context_kind} with cp {cp} changes nothing",
            (),
            "context_kind=ring",
        ),
        Rule(
            "cp-decode",
            "a decode step has one token for each sequence, which cannot be split",
            lambda case: (case.s.cp > 1) & (not case.has_long_rows),
            "cp {cp} splits sequences of one token",
            ("cp",),
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the tokens of every tensor outside of the routed experts."""
        return "tokens" if "tokens" in tensor.dims and not is_routed(tensor) else None

    def is_streamed(self, kind: CollectiveKind, plan_options: PlanOptions) -> bool:
        """Return whether keys and values travel step by step."""
        is_step = kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        return plan_options.context_kind is ContextKind.RING and is_step


class DataAxis(Axis):
    """Data parallelism: sequences are split; weights are replicated or sharded (ZeRO, FSDP).

    The degree is replicas times shards. Source: Rajbhandari et al. 2020 (ZeRO), section 5; Zhao
    et al. 2023 (FSDP), section 3.
    """

    degrees = ("dp_replicate", "dp_shard")
    replicates_weights = True
    rules = (
        Rule(
            "dp-batch",
            "each data-parallel rank has at least one micro-batch of sequences",
            lambda case: case.s.dp * case.s.micro_batch_size > case.batch_size,
            "dp {dp} x micro-batch {micro_batch_size} exceeds the batch of {batch} sequences",
            ("micro_batch_size", "dp_shard", "dp_replicate"),
        ),
        Rule(
            "dp-even",
            "every data-parallel rank trains on as many whole micro-batches: frameworks start "
            "nothing else",
            lambda case: (
                isinstance(case.workload, Training)
                & (case.batch_size % (case.s.dp * case.s.micro_batch_size) != 0)
                & (case.s.dp * case.s.micro_batch_size <= case.batch_size)
            ),
            "{batch} sequences are not divisible by dp {dp} x micro-batch {micro_batch_size}",
            ("micro_batch_size", "dp_shard", "dp_replicate"),
        ),
        Rule(
            "zero-without-shards",
            "with one shard of each replica all ZeRO stages are the same; stage 0 stands for them",
            lambda case: (
                (case.s.dp > 1)
                & (case.s.dp_shard * case.s.cp == 1)
                & (case.plan_options.zero_stage > 0)
            ),
            "ZeRO {zero_stage} over dp_shard {dp_shard} and cp {cp} shards nothing",
            ("dp_shard",),
            "zero_stage=0",
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the tokens of every tensor outside of the routed experts."""
        return "tokens" if "tokens" in tensor.dims and not is_routed(tensor) else None


def _experts(case: Case) -> tuple[ExpertSpec, ...]:
    kinds = (kind.experts for kind in case.model.layer_kinds)
    return tuple(dict.fromkeys(experts for experts in kinds if experts is not None))


class ExpertAxis(Axis):
    """Expert parallelism: whole experts are split; tokens travel to them and back.

    The devices of dp, cp and tp together are used again as edp (copies of the experts) x ep (parts
    of the experts) x etp (parts of each expert). Source: Fedus et al. 2021 (Switch), section 5;
    Singh et al. 2023 (DeepSpeed-TED), section 3.
    """

    degrees = ("ep",)
    rules = (
        Rule(
            "ep-dense",
            "ep and etp split routed experts, which this model does not have",
            lambda case: ((case.s.ep > 1) | (case.s.etp > 1)) & (not _experts(case)),
            "ep {ep}, etp {etp} in a model without experts",
            ("ep", "etp"),
            "ep=1 etp=1",
        ),
        Rule(
            "ep-experts",
            "each rank of ep holds the same number of experts",
            lambda case: case.cuts((e.num_experts for e in _experts(case)), case.s.ep),
            "{num_experts} experts are not divisible by ep {ep}",
            ("ep",),
        ),
        Rule(
            "ep-devices",
            "experts use the devices of dp, cp and tp again, so ep x etp divides their product "
            "(of the shards only, where ZeRO keeps replicas apart)",
            lambda case: (
                (case.s.dp_shard if case.plan_options.zero_stage else case.s.dp)
                * case.s.cp
                * case.s.tp
                % (case.s.ep * case.s.etp)
                != 0
            ),
            "ep {ep} x etp {etp} does not divide dp {dp} (dp_shard {dp_shard}) x cp {cp} x tp {tp}",
            ("ep", "etp"),
        ),
        Rule(
            "ep-overlap",
            "communication of experts hides behind the opposite pass of another micro-batch: with "
            "ep, and where forward and backward passes alternate",
            lambda case: (
                case.plan_options.overlap_expert_parallel
                & ((case.s.ep == 1) | (case.plan_options.schedule is ScheduleKind.GPIPE))
            ),
            "communication of experts overlapped with ep {ep} under schedule {schedule}",
            (),
            "overlap_expert_parallel=false",
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the experts by which routed rows are grouped."""
        return "experts" if is_routed(tensor) else None

    def weight_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the experts."""
        return "experts" if "experts" in tensor.dims else None


class ExpertTensorAxis(Axis):
    """Tensor parallelism inside an expert, always with split tokens outside of the products."""

    degrees = ("etp",)
    rules = (
        Rule(
            "etp-width",
            "each rank of etp holds as many columns of an expert",
            lambda case: case.cuts((e.ffn_size for e in _experts(case)), case.s.etp),
            "expert width {expert_ffn} is not divisible by etp {etp}",
            ("etp",),
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the inner dim of an expert; else the rows."""
        if not is_routed(tensor):
            return None
        return first_of(EXPERT_INNER_DIMS, tensor) or "routed_tokens"

    def weight_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the inner dim of an expert's weight or bias."""
        return first_of(EXPERT_INNER_DIMS, tensor)


class ExpertDataAxis(Axis):
    """Copies of the experts: the devices of dp, cp and tp over ep and etp."""

    replicates_weights = True

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the rows that visit experts."""
        return "routed_tokens" if is_routed(tensor) else None


class PipelineAxis(Axis):
    """Pipeline parallelism: layers are split into stages, and optionally the vocabulary.

    Source: Narayanan et al. 2021, section 2.2 (interleaving needs micro-batches divisible by pp);
    Yeung et al. 2024 (arXiv 2411.05288), section 4 (vocabulary parallelism).
    """

    degrees = ("pp", "num_virtual_stages")
    rules = (
        Rule(
            "pp-layers",
            "each stage holds a layer, and each of its chunks too: only the first chunk of an "
            "interleaved pipeline may be the embedding alone, the last one the head",
            lambda case: ~case.rows_dealt(is_dealt),
            "pp {pp} x {num_virtual_stages} chunks are too many for {num_layers} layers (embedding "
            "counted as {embedding_layers}, head as {head_layers})",
            ("num_virtual_stages", "pp"),
        ),
        Rule(
            "pp-stage-layers",
            "layers that are stated for each stage (each chunk of interleaved ones) are those of "
            "the model, and neither embedding nor head counts as more of them",
            lambda case: (
                bool(case.plan_options.stage_layers)
                & (
                    (case.s.pp * case.s.num_virtual_stages != len(case.plan_options.stage_layers))
                    | case.plan_options.counts_edges
                    | (sum(case.plan_options.stage_layers) != case.model.num_layers)
                )
            ),
            "stages of {stage_layers} layers with pp {pp} x {num_virtual_stages} and {num_layers} "
            "layers, embedding counted as {embedding_layers}, head as {head_layers}",
            (),
            "stage_layers=",
        ),
        Rule(
            "pp-micro-batches",
            "interleaving runs micro-batches in rounds of pp",
            lambda case: (
                (case.s.num_virtual_stages > 1)
                & (case.s.pp > 1)
                & (case.num_micro_batches % case.s.pp != 0)
            ),
            "{num_micro_batches} micro-batches are not divisible by pp {pp} under interleaving",
            ("micro_batch_size", "pp", "num_virtual_stages"),
        ),
        Rule(
            "pp-schedule",
            "several chunks for each device and the interleaved schedule belong together",
            lambda case: (
                (case.s.num_virtual_stages > 1)
                != (case.plan_options.schedule is ScheduleKind.INTERLEAVED)
            ),
            "{num_virtual_stages} virtual stages under schedule {schedule}",
            ("num_virtual_stages",),
            "schedule=interleaved",
        ),
        Rule(
            "schedule-without-pp",
            "with pp 1 all schedules are the same; 1f1b with one chunk stands for them",
            lambda case: (
                (case.s.pp == 1) & ((case.s.num_virtual_stages > 1) | (not case.is_plain_schedule))
            ),
            "schedule {schedule} with {num_virtual_stages} virtual stages and pp 1",
            ("pp",),
            "schedule=1f1b",
        ),
        Rule(
            "vocabulary-parallel-schedule",
            "vocabulary parallelism splits embedding and logits over the stages of plain 1F1B",
            lambda case: (
                ((case.s.pp == 1) | (not case.is_plain_schedule))
                & case.plan_options.vocabulary_parallel
            ),
            "vocabulary parallelism with pp {pp} under schedule {schedule}",
            ("pp",),
            "vocabulary_parallel=false",
        ),
        Rule(
            "edge-layers-without-pp",
            "with pp 1 no layers are dealt, so embedding and head have no weight",
            lambda case: (case.s.pp == 1) & case.plan_options.counts_edges,
            "embedding counted as {embedding_layers} layers, head as {head_layers}, with pp 1",
            ("pp",),
            "embedding_layers=0 head_layers=0",
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the vocabulary of the logits under vocabulary parallelism."""
        return "vocab" if plan_options.vocabulary_parallel and "vocab" in tensor.dims else None

    weight_dim = activation_dim


_KEPT_WHOLE = frozenset({"expert_scores", "shared_gate"})
"""Columns of weights that are too small for a stream."""


def streams_inputs(plan_options: PlanOptions) -> bool:
    """Return whether inputs travel. Left open (auto), layouts are those of weight streaming.

    With auto both forms are derived, and the cheaper one is taken for each number.
    """
    return plan_options.streamed is Streamed.INPUTS


def may_stream_inputs(
    attentions: Sequence[AttentionSpec], strategy: StrategyOf[Num], plan_options: PlanOptions
) -> Mask:
    """Return the rows in which tatp can split a block by its heads and inner columns.

    Whole query heads on each device; key and value heads split evenly, or each is held by equally
    many devices. Blocks without attention can always be split: rows that leave slivers of a network
    are refused for any streamed tensor.
    """
    degree = strategy.tp * strategy.tatp
    if plan_options.context_kind is ContextKind.ULYSSES:
        degree = degree * strategy.cp
    legal = strategy.tatp > 1
    for spec in attentions:
        shares = (spec.num_kv_heads % degree == 0) | (degree % spec.num_kv_heads == 0)
        legal = legal & (spec.num_heads % degree == 0) & shares
    return legal


def _leaves_few_columns(case: Case) -> BoolArray:
    degree = case.s.tp * case.s.tatp
    masks = [ceil_div(size, degree) < case.tile_columns for size in case.dense_ffn_sizes]
    masks.append(ceil_div(case.model.hidden_size, case.s.tatp) < case.tile_columns)
    return any_of(masks, case) & (case.s.tatp > 1)


class StreamAxis(Axis):
    """Tensor streams between neighbours: tokens and weights are both split, one travels over tatp.

    Weight streaming: tokens stay split everywhere and the columns of each weight travel; gradients
    of weights travel as accumulators. Input streaming: sharded like tensor with sequence
    parallelism, and the tokens travel. Embedding and logits split the vocabulary in both forms.
    """

    degrees = ("tatp",)
    splits_sequence = True
    rules = (
        Rule(
            "tatp-states",
            "a scan runs over whole sequences, which tatp splits",
            lambda case: (case.s.tatp > 1) & bool(case.model.recurrences),
            "recurrent layers do not stream: tatp {tatp}",
            ("tatp",),
        ),
        Rule(
            "tatp-rows",
            "the tokens of a rank fill at least one tile of the matrix unit in each round",
            lambda case: (
                (case.s.tatp > 1)
                & case.has_long_rows
                & (
                    case.s.micro_batch_size * case.sequence_length / (case.s.cp * case.s.tatp)
                    < case.tile_rows
                )
            ),
            "{micro_batch_size} x {sequence} tokens over cp {cp} x tatp {tatp} are fewer than "
            "{tile_rows} rows",
            ("tatp", "micro_batch_size"),
        ),
        Rule(
            "tatp-columns",
            "a streamed part of a weight is at least one tile of the matrix unit wide",
            _leaves_few_columns,
            "widths {hidden} and {ffn} over tp {tp} x tatp {tatp} leave less than "
            "{tile_columns} columns",
            ("tatp",),
        ),
        Rule(
            "tatp-both",
            "both tensors stream on blocks of tp x tatp devices, with sequence parallelism over tp",
            lambda case: (
                (case.plan_options.streamed is Streamed.BOTH)
                & ~((case.s.tp > 1) & (case.s.tatp > 1) & case.plan_options.sequence_parallel)
            ),
            "both tensors stream on a block of two sides, not on tp {tp} x tatp {tatp}, and only "
            "with sequence parallelism",
            (),
            "streamed=auto",
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return vocabulary or inner dim where inputs travel; else the tokens."""
        if "vocab" in tensor.dims:
            return "vocab"
        inner = first_of(INNER_DIMS | EXPERT_INNER_DIMS, tensor)
        if streams_inputs(plan_options) and inner is not None:
            return inner
        return next((dim for dim in ("tokens", "routed_tokens") if dim in tensor.dims), None)

    def weight_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the inner dim where inputs travel. A weight that travels is cut anywhere."""
        if "vocab" in tensor.dims:
            return "vocab"
        if streams_inputs(plan_options):
            return first_of(INNER_DIMS | EXPERT_INNER_DIMS, tensor)
        is_matrix = len([dim for dim in tensor.dims if dim != "experts"]) == 2
        streams = (
            is_matrix and tensor.dims[-1] not in _KEPT_WHOLE and "positions" not in tensor.dims
        )
        return FLAT if streams else None

    def operand_to_gather(self, weight_dim: str, plan_options: PlanOptions) -> Side:
        """Return the weight where it travels, but never the vocabulary."""
        return "left" if streams_inputs(plan_options) or weight_dim == "vocab" else "right"

    def is_streamed(self, kind: CollectiveKind, plan_options: PlanOptions) -> bool:
        """Return True for every gather and scatter."""
        return kind is not CollectiveKind.ALL_REDUCE


def _lacks_modules(case: Case) -> BoolArray:
    modules = case.plan_options.recompute_modules
    experts = _experts(case)
    has = {
        "core_attn": bool(case.attentions),
        "mla_up_proj": bool(case.attentions)
        and all(attention.kind == "mla" for attention in case.attentions),
        "mlp": any(kind.feed_forward is not None for kind in case.model.layer_kinds),
        "moe": bool(experts),
        "moe_act": bool(experts),
        "shared_experts": any(spec.shared_ffn_size for spec in experts),
    }
    return case.all_rows & (not all(has.get(module, True) for module in modules))


class TensorAxis(Axis):
    """Tensor parallelism: columns of the first and rows of the second product of each block.

    With sequence parallelism tokens too. Source: Shoeybi et al. 2019 (Megatron-LM), section 3;
    Korthikanti et al. 2022, section 4.2.
    """

    degrees = ("tp",)
    rules = (
        Rule(
            "tp-heads",
            "each rank of tp works on whole query heads, so tp divides the number of heads",
            lambda case: case.cuts((a.num_heads for a in case.attentions), case.head_degree),
            "{heads} heads are not divisible by tp {tp}",
            ("tp",),
        ),
        Rule(
            "tp-kv-heads",
            "key and value heads are split evenly, or each is held whole by as many ranks",
            lambda case: case.cuts(
                (a.num_kv_heads for a in case.attentions), case.head_degree, may_share=True
            ),
            "{kv_heads} key and value heads and tp {tp}: neither divides the other",
            ("tp",),
        ),
        Rule(
            "tp-states",
            "each rank of tp works on whole heads and groups of a recurrence; a single group is "
            "held by every rank",
            lambda case: (
                case.cuts((r.num_heads for r in case.model.recurrences), case.head_degree)
                | case.cuts(
                    (r.num_groups for r in case.model.recurrences if r.num_groups > 1),
                    case.head_degree,
                )
            ),
            "{inner_heads} heads and {state_groups} groups of a recurrence are not divisible by "
            "tp {tp}",
            ("tp",),
        ),
        Rule(
            "tp-width",
            "each rank of tp holds as many columns of the feed-forward network",
            lambda case: case.cuts(case.dense_ffn_sizes, case.head_degree),
            "inner width {ffn} is not divisible by tp {tp}",
            ("tp",),
        ),
        Rule(
            "recompute-modules",
            "recomputed modules exist: latent attention, a dense network, experts, shared experts",
            _lacks_modules,
            "the model has not all of the modules {recompute_modules}",
            (),
            "recompute_modules=core_attn+layernorm",
        ),
        Rule(
            "recompute-runs",
            "full recomputation covers some layers of each chunk, or keeps one input for several",
            lambda case: (
                case.all_rows
                & (case.plan_options.recomputes_some and case.plan_options.recomputes_runs)
            ),
            "recomputation of {recompute_layers} layers of each chunk, in runs of {recompute_run}",
            (),
            "recompute_run=1",
        ),
        Rule(
            "sp-without-tp",
            "sequence parallelism splits tokens over the tp group, which here is one device",
            lambda case: (case.s.tp == 1) & case.plan_options.sequence_parallel,
            "sequence parallelism with tp 1 splits nothing",
            (),
            "sequence_parallel=false",
        ),
        Rule(
            "sp-sequence",
            "sequence parallelism gives each rank of tp an equal part of the sequence",
            lambda case: (
                (case.s.tp > 1)
                & (case.plan_options.sequence_parallel and case.has_long_rows)
                & (case.sequence_length % (case.s.cp * case.s.tp) != 0)
            ),
            "sequence {sequence} is not divisible by cp {cp} x tp {tp}",
            ("tp", "cp"),
            "sequence_parallel=false",
        ),
    )

    def activation_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the inner dim; else the tokens under sequence parallelism."""
        if is_routed(tensor):
            return None
        inner = first_of(INNER_DIMS, tensor)
        if inner is None and plan_options.sequence_parallel and "tokens" in tensor.dims:
            return "tokens"
        return inner

    def weight_dim(self, tensor: Tensor, plan_options: PlanOptions) -> str | None:
        """Return the inner dim of a weight or bias."""
        return None if is_routed(tensor) else first_of(INNER_DIMS, tensor)


axes.fill(
    {
        "cp": ContextAxis(), "dp": DataAxis(), "ep": ExpertAxis(), "etp": ExpertTensorAxis(),
        "edp": ExpertDataAxis(), "pp": PipelineAxis(), "tatp": StreamAxis(), "tp": TensorAxis(),
    },
    "axes",
)  # fmt: skip


def axis_rules() -> tuple[Rule, ...]:
    """Return every rule of every axis."""
    return tuple(rule for name in axes for rule in axes[name].rules)


def all_rules() -> dict[str, Rule]:
    """Return every rule of every axis, and every rule on what a framework can start, by name."""
    return {rule.name: rule for rule in (*axis_rules(), *launching.rules())}


def refusals(rules: Iterable[Rule], case: Case) -> Iterator[Refusal]:
    """Yield the refusals of some rules; rules that refuse no row are left out."""
    for rule in rules:
        mask = rule.breaks(case)
        if mask.any():
            yield Refusal(rule.name, mask, rule.message, rule)


def all_refusals(
    model: ModelSpec,
    workload: Workload,
    columns: StrategyColumns,
    plan_options: PlanOptions,
    *,
    tile_rows: float = 128.0,
    tile_columns: float = 128.0,
) -> list[Refusal]:
    """Return every refusal: its rule, and a mask of the rows that it concerns.

    Rules on plans of one family (``launching.CHOICES``) are not applied here.

    Parameters
    ----------
    tile_rows, tile_columns
        Output tile of one matrix product on the chip; shards below it are refused.
    """
    case = Case(model, workload, plan_options, columns, tile_rows, tile_columns)
    return list(refusals((*axis_rules(), *launching.DEGREES), case))


def first_refusals(case: Case) -> Iterator[tuple[str, IntArray]]:
    """Yield each rule that refuses rows, as :func:`all_refusals` has them, and its rows.

    A row belongs to the first rule that refuses it: later rules judge the rows that are left.
    """
    left = np.arange(len(case.s.tp))
    for rule in (*axis_rules(), *launching.DEGREES):
        mask = rule.breaks(case)
        if mask.any():
            yield rule.name, left[mask]
            left, case = left[~mask], replace(case, s=take(case.s, ~mask))


_Chooser = Callable[[Axis, Tensor, PlanOptions], str | None]


@lru_cache(maxsize=8192)
def activation_sharding(tensor: Tensor, plan_options: PlanOptions) -> Sharding:
    """Return the sharding of an activation between operators, in which it is also saved."""
    return _collected(tensor, plan_options, lambda axis, t, s: axis.activation_dim(t, s))


@lru_cache(maxsize=8192)
def weight_sharding(weight: Tensor, plan_options: PlanOptions) -> Sharding:
    """Return the sharding of a weight, data-parallel sharding left out."""
    return _collected(weight, plan_options, lambda axis, t, s: axis.weight_dim(t, s))


def _collected(tensor: Tensor, plan_options: PlanOptions, choose: _Chooser) -> Sharding:
    split: dict[str, tuple[str, ...]] = {}
    for name in axes:
        dim = choose(axes[name], tensor, plan_options)
        if dim is not None:
            split[dim] = (*split.get(dim, ()), name)
    return Sharding(split)


def logical_dims(tensor: Tensor) -> tuple[str, ...]:
    """Return the dims of a tensor, with the experts by which routed rows are grouped."""
    grouped = "routed_tokens" in tensor.dims and "experts" not in tensor.dims
    return ("experts", *tensor.dims) if grouped else tensor.dims


def as_operand(tensor: Tensor, layout: Sharding) -> ShardedOperand:
    """Return an activation as one side of a product."""
    return ShardedOperand(logical_dims(tensor), layout)


def matrices(op: Op) -> list[tuple[Tensor, Tensor]]:
    """Return each weight matrix of a product with the output that it makes."""
    of_rank_two = [w for w in op.weights if len([d for d in w.dims if d != "experts"]) == 2]
    return list(zip(of_rank_two, op.outputs, strict=True))


def vectors(op: Op) -> list[tuple[Tensor, Tensor]]:
    """Return each weight that is not multiplied, with an output that carries its gradient."""
    if op.kind not in (OpKind.MATMUL, OpKind.EMBEDDING):
        if len(op.weights) == len(op.outputs):
            return list(zip(op.weights, op.outputs, strict=True))
        return [(weight, op.output) for weight in op.weights]
    multiplied = {weight.name for weight, _ in matrices(op)}
    left = [weight for weight in op.weights if weight.name not in multiplied]
    by_dim = {output.dims[-1]: output for output in op.outputs}
    return [(weight, by_dim[weight.dims[-1]]) for weight in left]


def arbiter(plan_options: PlanOptions) -> Arbiter:
    """Return the structural choice of the four-case rule for a product with a weight."""
    return lambda axis, left_dim, weight_dim: axes[axis].operand_to_gather(weight_dim, plan_options)


def source_layout(op: Op, plan_options: PlanOptions) -> Sharding:
    """Return the layout of the activation that a product reads, at rest.

    A lookup is a product with one-hot rows, which every rank makes for its part of the table.
    """
    source = op.inputs[0]
    if op.kind is not OpKind.EMBEDDING:
        return activation_sharding(source, plan_options)
    table = weight_sharding(op.weights[0], plan_options)
    rows = activation_sharding(source, plan_options)
    free = tuple(a for a in rows.split.get("tokens", ()) if a not in table.axes)
    return Sharding({"tokens": free, **table.split})


def source_operand(op: Op, plan_options: PlanOptions) -> ShardedOperand:
    """Return the activation that a product reads as its left side."""
    layout = source_layout(op, plan_options)
    if op.kind is OpKind.EMBEDDING:
        return ShardedOperand((*op.inputs[0].dims, *op.contracted), layout)
    return as_operand(op.inputs[0], layout)


def forward_products(
    op: Op, plan_options: PlanOptions
) -> list[tuple[Tensor, Tensor, ProductMoves]]:
    """Return, for each weight matrix of an operator: weight, output, and the product it needs."""
    left = source_operand(op, plan_options)
    return [
        (
            weight,
            output,
            matmul(
                left,
                ShardedOperand(weight.dims, weight_sharding(weight, plan_options)),
                logical_dims(output),
                arbiter=arbiter(plan_options),
            ),
        )
        for weight, output in matrices(op)
    ]
