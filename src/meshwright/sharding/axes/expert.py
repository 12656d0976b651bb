"""Expert parallelism: routed experts lie on the devices of the other axes, regrouped.

The devices of dp, cp and tp together are used again as edp (copies of the experts) x ep (parts of
the experts) x etp (parts of each expert). Source: Fedus et al. 2021 (Switch), section 5; Singh et
al. 2023 (DeepSpeed-TED), section 3.
"""

from __future__ import annotations

from meshwright.base.arrays import BoolArray, ceil_div
from meshwright.graph.op import Tensor
from meshwright.sharding.axis import EXPERT_INNER_DIMS, Axis, axes, first_of, is_routed
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.rules import Case, Rule, any_of
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.model import ExpertSpec


def _experts(case: Case) -> tuple[ExpertSpec, ...]:
    kinds = (kind.experts for kind in case.model.layer_kinds)
    return tuple(dict.fromkeys(experts for experts in kinds if experts is not None))


def _has_no_experts(case: Case) -> BoolArray:
    return ((case.s.ep > 1) | (case.s.etp > 1)) & (not _experts(case))


def _cuts_experts(case: Case) -> BoolArray:
    return any_of((e.num_experts % case.s.ep != 0 for e in _experts(case)), case)


def _does_not_regroup(case: Case) -> BoolArray:
    copies = case.s.dp_shard if case.structure.zero_stage else case.s.dp
    found: BoolArray = copies * case.s.cp * case.s.tp % (case.s.ep * case.s.etp) != 0
    return found


def _leaves_slivers(case: Case) -> BoolArray:
    masks = (ceil_div(e.ffn_size, case.s.etp) < case.tile_columns for e in _experts(case))
    return any_of(masks, case) & (case.s.etp > 1)


def _starves_experts(case: Case) -> BoolArray:
    s = case.s
    copies = s.dp * s.cp * s.tp / (s.ep * s.etp)
    tokens = s.micro_batch_size * case.sequence_length * s.dp / copies
    masks = (tokens * e.top_k / e.num_experts < case.tile_rows for e in _experts(case))
    return any_of(masks, case) & (copies > 1) & case.has_long_rows


class ExpertAxis(Axis):
    """Whole experts; tokens travel to them and back."""

    degrees = ("ep",)
    rules = (
        Rule(
            "ep-dense",
            "ep and etp split routed experts, which this model does not have",
            _has_no_experts,
            "ep {ep}, etp {etp} in a model without experts",
            ("ep", "etp"),
            "ep=1 etp=1",
        ),
        Rule(
            "ep-experts",
            "each rank of ep holds the same number of experts",
            _cuts_experts,
            "{num_experts} experts are not divisible by ep {ep}",
            ("ep",),
        ),
        Rule(
            "ep-devices",
            "experts use the devices of dp, cp and tp again, so ep x etp divides their product "
            "(of the shards only, where ZeRO keeps replicas apart)",
            _does_not_regroup,
            "ep {ep} x etp {etp} does not divide dp {dp} (dp_shard {dp_shard}) x cp {cp} x tp {tp}",
            ("ep", "etp"),
        ),
        Rule(
            "ep-rows",
            "an expert sees at least one tile of tokens, unless nothing can be regrouped any more",
            _starves_experts,
            "fewer than {tile_rows} tokens reach an expert with ep {ep}, etp {etp}",
            ("ep", "micro_batch_size"),
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the experts by which routed rows are grouped."""
        return "experts" if is_routed(tensor) else None

    def weight_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the experts."""
        return "experts" if "experts" in tensor.dims else None


class ExpertTensorAxis(Axis):
    """Tensor parallelism inside an expert, always with split tokens outside of the products."""

    degrees = ("etp",)
    rules = (
        Rule(
            "etp-tile",
            "a shard of an expert is at least one tile of the matrix unit wide",
            _leaves_slivers,
            "expert width {expert_ffn} over etp {etp} is narrower than {tile_columns} columns",
            ("etp",),
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the inner dim of an expert; else the rows."""
        if not is_routed(tensor):
            return None
        return first_of(EXPERT_INNER_DIMS, tensor) or "routed_tokens"

    def weight_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the inner dim of an expert's weight or bias."""
        return first_of(EXPERT_INNER_DIMS, tensor)


class ExpertDataAxis(Axis):
    """Copies of the experts: what ep and etp leave of the devices of dp, cp and tp."""

    replicates_weights = True

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the rows that visit experts."""
        return "routed_tokens" if is_routed(tensor) else None

    def overlaps(self, call: CollectiveCall, structure: PlanOptions) -> bool:
        """Return whether gradients and parameters travel beside computation."""
        return structure.overlap_data_parallel


axes.register("ep")(ExpertAxis())
axes.register("etp")(ExpertTensorAxis())
axes.register("edp")(ExpertDataAxis())
