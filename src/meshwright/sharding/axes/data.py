"""Data parallelism: sequences are split; weights are replicated or sharded (ZeRO, FSDP).

Source: Rajbhandari et al. 2020 (ZeRO), section 5; Zhao et al. 2023 (FSDP), section 3.
"""

from __future__ import annotations

from meshwright.base.arrays import BoolArray
from meshwright.graph.op import Tensor
from meshwright.sharding.axis import Axis, axes, is_routed
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.rules import Case, Rule
from meshwright.sharding.strategy import PlanOptions


def _leaves_ranks_idle(case: Case) -> BoolArray:
    return case.s.dp * case.s.micro_batch_size > case.batch_size


def _has_no_group(case: Case) -> BoolArray:
    found: BoolArray = (case.s.dp_shard * case.s.cp == 1) & (case.structure.zero_stage > 0)
    return found


class DataAxis(Axis):
    """Sequences of the batch; the degree is replicas times shards."""

    degrees = ("dp_replicate", "dp_shard")
    replicates_weights = True
    rules = (
        Rule(
            "dp-batch",
            "each data-parallel rank has at least one micro-batch of sequences",
            _leaves_ranks_idle,
            "dp {dp} x micro-batch {micro_batch_size} exceeds the batch of {batch} sequences",
            ("micro_batch_size", "dp_shard", "dp_replicate"),
        ),
        Rule(
            "zero-without-shards",
            "ZeRO shards over dp_shard and cp; with one device there it equals stage 0",
            _has_no_group,
            "ZeRO stage {zero_stage} with dp_shard 1 and cp 1 shards nothing",
            (),
            "zero_stage=0",
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the tokens of every tensor outside of the routed experts."""
        return "tokens" if "tokens" in tensor.dims and not is_routed(tensor) else None

    def overlaps(self, call: CollectiveCall, structure: PlanOptions) -> bool:
        """Return whether gradients and parameters travel beside computation."""
        return structure.overlap_data_parallel


axes.register("dp")(DataAxis())
