"""Tensor parallelism: inner dims of each block are split; with sequence parallelism tokens too.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.2.
"""

from __future__ import annotations

from meshwright.base.arrays import BoolArray, ceil_div
from meshwright.graph.op import Tensor
from meshwright.sharding.axis import INNER_DIMS, Axis, axes, first_of, is_routed
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.rules import Case, Rule, any_of
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.collective import CollectiveKind


def _cuts_heads(case: Case) -> BoolArray:
    return any_of((a.num_heads % case.head_degree != 0 for a in case.attentions), case)


def _cuts_kv_heads(case: Case) -> BoolArray:
    degree = case.head_degree
    masks = (
        (a.num_kv_heads % degree != 0) & (degree % a.num_kv_heads != 0) for a in case.attentions
    )
    return any_of(masks, case)


def _leaves_slivers(case: Case) -> BoolArray:
    degree = case.head_degree
    masks = (ceil_div(size, degree) < case.tile_columns for size in case.dense_ffn_sizes)
    return any_of(masks, case) & (degree > 1)


def _has_no_group(case: Case) -> BoolArray:
    found: BoolArray = (case.s.tp == 1) & case.structure.sequence_parallel
    return found


def _cuts_sequence(case: Case) -> BoolArray:
    if not (case.structure.sequence_parallel and case.has_long_rows):
        return case.no_rows
    found: BoolArray = (case.sequence_length % (case.s.cp * case.s.tp) != 0) & (case.s.tp > 1)
    return found


class TensorAxis(Axis):
    """Columns of the first and rows of the second product of each block, whole heads."""

    degrees = ("tp",)
    rules = (
        Rule(
            "tp-heads",
            "each rank of tp works on whole query heads, so tp divides the number of heads",
            _cuts_heads,
            "{heads} heads are not divisible by tp {tp}",
            ("tp",),
        ),
        Rule(
            "tp-kv-heads",
            "key and value heads are split evenly, or each is held whole by as many ranks",
            _cuts_kv_heads,
            "{kv_heads} key and value heads and tp {tp}: neither divides the other",
            ("tp",),
        ),
        Rule(
            "tp-tile",
            "a shard of the feed-forward network is at least one tile of the matrix unit wide",
            _leaves_slivers,
            "inner width {ffn} over tp {tp} is narrower than a tile of {tile_columns} columns",
            ("tp",),
        ),
        Rule(
            "sp-without-tp",
            "sequence parallelism splits tokens over the tp group, which here is one device",
            _has_no_group,
            "sequence parallelism with tp 1 splits nothing",
            (),
            "sequence_parallel=false",
        ),
        Rule(
            "sp-sequence",
            "sequence parallelism gives each rank of tp an equal part of the sequence",
            _cuts_sequence,
            "sequence {sequence} is not divisible by cp {cp} x tp {tp}",
            ("tp", "cp"),
            "sequence_parallel=false",
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the inner dim; else the tokens under sequence parallelism."""
        if is_routed(tensor):
            return None
        inner = first_of(INNER_DIMS, tensor)
        if inner is None and structure.sequence_parallel and "tokens" in tensor.dims:
            return "tokens"
        return inner

    def weight_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the inner dim of a weight or bias."""
        return None if is_routed(tensor) else first_of(INNER_DIMS, tensor)

    def overlaps(self, call: CollectiveCall, structure: PlanOptions) -> bool:
        """Return whether the product that needs the call is cut into pieces that hide it.

        Re-gathered inputs of a weight gradient always run beside the input gradient.
        """
        cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        return call.is_regather or (structure.overlap_tensor_parallel and cut)


axes.register("tp")(TensorAxis())
