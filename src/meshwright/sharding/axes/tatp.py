"""Tensor streams between neighbours: inputs and weights are both split, one travels over tatp.

Weight streaming: tokens stay split everywhere and the columns of each weight travel; gradients of
weights travel as accumulators. Input streaming: laid out like tensor with sequence parallelism,
and the tokens travel. Embedding and logits split the vocabulary in both forms.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.arrays import BoolArray, Mask, Num, ceil_div
from meshwright.graph.op import Tensor
from meshwright.sharding.algebra import Side
from meshwright.sharding.axis import EXPERT_INNER_DIMS, INNER_DIMS, Axis, axes, first_of
from meshwright.sharding.local_sizes import FLAT
from meshwright.sharding.rules import Case, Rule, any_of
from meshwright.sharding.strategy import ContextKind, PlanOptions, StrategyOf, Streamed
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import AttentionSpec

_KEPT_WHOLE = frozenset({"expert_scores", "shared_gate"})
"""Columns of weights that are too small to be worth a stream."""


def streams_inputs(structure: PlanOptions) -> bool:
    """Return whether inputs travel. Left open (auto), layouts are those of weight streaming.

    Whoever leaves it open derives both forms and takes the cheaper one for each number.
    """
    return structure.streamed is Streamed.INPUTS


def may_stream_inputs(
    attentions: Sequence[AttentionSpec], strategy: StrategyOf[Num], structure: PlanOptions
) -> Mask:
    """Return the rows in which tatp can split a block by its heads and inner columns.

    Whole query heads on each device; key and value heads split evenly, or each held by as many
    devices. Blocks without attention can always be split: rows that leave slivers of a network are
    refused whatever streams.
    """
    degree = strategy.tp * strategy.tatp
    if structure.context_kind is ContextKind.ULYSSES:
        degree = degree * strategy.cp
    legal = strategy.tatp > 1
    for spec in attentions:
        shares = (spec.num_kv_heads % degree == 0) | (degree % spec.num_kv_heads == 0)
        legal = legal & (spec.num_heads % degree == 0) & shares
    return legal


def _leaves_few_rows(case: Case) -> BoolArray:
    rows = case.s.micro_batch_size * case.sequence_length / (case.s.cp * case.s.tatp)
    return (rows < case.tile_rows) & (case.s.tatp > 1) & case.has_long_rows


def _leaves_few_columns(case: Case) -> BoolArray:
    degree = case.s.tp * case.s.tatp
    masks = [ceil_div(size, degree) < case.tile_columns for size in case.dense_ffn_sizes]
    masks.append(ceil_div(case.model.hidden_size, case.s.tatp) < case.tile_columns)
    return any_of(masks, case) & (case.s.tatp > 1)


def _has_no_block(case: Case) -> BoolArray:
    is_block = (case.s.tp > 1) & (case.s.tatp > 1) & case.structure.sequence_parallel
    return ~is_block & (case.structure.streamed is Streamed.BOTH)


class StreamAxis(Axis):
    """Tokens at rest and columns of weights, one of which travels round the group."""

    degrees = ("tatp",)
    splits_sequence = True
    rules = (
        Rule(
            "tatp-rows",
            "the tokens of a rank fill at least one tile of the matrix unit in each round",
            _leaves_few_rows,
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
            _has_no_block,
            "both tensors stream on a block of two sides, not on tp {tp} x tatp {tatp}, and only "
            "with sequence parallelism",
            (),
            "streamed=auto",
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return vocabulary or inner dim where inputs travel; else the tokens."""
        if "vocab" in tensor.dims:
            return "vocab"
        inner = first_of(INNER_DIMS | EXPERT_INNER_DIMS, tensor)
        if streams_inputs(structure) and inner is not None:
            return inner
        return next((dim for dim in ("tokens", "routed_tokens") if dim in tensor.dims), None)

    def weight_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the inner dim where inputs travel. A weight that travels is cut anywhere."""
        if "vocab" in tensor.dims:
            return "vocab"
        if streams_inputs(structure):
            return first_of(INNER_DIMS | EXPERT_INNER_DIMS, tensor)
        is_matrix = len([dim for dim in tensor.dims if dim != "experts"]) == 2
        streams = (
            is_matrix and tensor.dims[-1] not in _KEPT_WHOLE and "positions" not in tensor.dims
        )
        return FLAT if streams else None

    def operand_to_gather(self, weight_dim: str, structure: PlanOptions) -> Side:
        """Return the weight where it travels, but never the vocabulary."""
        return "left" if streams_inputs(structure) or weight_dim == "vocab" else "right"

    def is_streamed(self, kind: CollectiveKind, structure: PlanOptions) -> bool:
        """Return True for all that is gathered or scattered."""
        return kind is not CollectiveKind.ALL_REDUCE


axes.register("tatp")(StreamAxis())
