"""The degrees of the parallel axes and the categorical choices: one candidate or a column of them.

The plan string follows the field: ``tp4 pp4 vpp5 cp2 dp2 ep1 tatp8``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import groupby
from typing import Any, Generic, Literal

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, N
from meshwright.base.records import Brief
from meshwright.spec.choices import ContextKind as ContextKind
from meshwright.spec.choices import Offload as Offload
from meshwright.spec.choices import Recompute as Recompute
from meshwright.spec.choices import ScheduleKind as ScheduleKind
from meshwright.spec.choices import Streamed as Streamed
from meshwright.spec.choices import StreamForm as StreamForm

AXES = ("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp")
"""Axes with degrees that multiply to the devices used; ep and etp re-use the devices of others."""
REUSED_AXES = ("tp", "cp", "dp_shard", "dp_replicate")
"""Axes with devices that the experts divide anew, into those of ``EXPERT_AXES``."""
EXPERT_AXES = ("etp", "ep", "edp", "edp_shard", "edp_replicate")
"""Innermost first; ``edp`` is ``edp_shard`` and ``edp_replicate`` together."""


OF_LAYER, OF_STEP = {"of": "layer"}, {"of": "step"}
"""Marks of choices that no sharding depends on: of a layer's price, or of a step's alone."""


@dataclass(frozen=True)
class PlanOptions(Brief):
    """The categorical choices of a plan.

    ``axis_order`` lists the axes innermost first: the first one sits on the fastest level.
    """

    sequence_parallel: bool = True
    context_kind: ContextKind = ContextKind.RING
    zero_stage: int = field(default=1, metadata=OF_STEP)
    """0 replicated, 1 optimizer state, 2 and gradients, 3 and weights sharded over dp_shard."""
    reshard_after_forward: bool = field(default=True, metadata=OF_STEP)
    """ZeRO-3: weights are gathered again for the backward pass."""
    recompute: Recompute = Recompute.NONE
    recompute_modules: tuple[str, ...] = ()
    """Modules that selective recomputation covers; none: the default of the software."""
    kept_tensors: tuple[str, ...] = ()
    """Tensors that selective recomputation keeps on the device, where it makes all else again."""
    offloaded_tensors: tuple[str, ...] = ()
    """Tensors that selective recomputation keeps in host memory."""
    recompute_layers: int = field(default=0, metadata=OF_LAYER)
    """Layers that full recomputation covers of each chunk of a stage, from its first; 0: all."""
    recompute_run: int = field(default=1, metadata=OF_LAYER)
    """Layers of a run for which full recomputation keeps one input; it runs all of them again
    before the first backward pass."""
    schedule: ScheduleKind = field(default=ScheduleKind.ONE_F_ONE_B, metadata=OF_STEP)
    overlap_data_parallel: bool = field(default=True, metadata=OF_STEP)
    """Gradient and parameter collectives overlap with computation."""
    overlap_tensor_parallel: bool = field(default=False, metadata=OF_LAYER)
    """Async TP: collectives of tp are cut into pieces that overlap with the matrix product."""
    overlap_expert_parallel: bool = field(default=False, metadata=OF_STEP)
    """Dispatch and combine of tokens overlap with the opposite pass of another micro-batch."""
    offload: Offload = field(default=Offload.NONE, metadata=OF_STEP)
    streamed: Streamed = Streamed.AUTO
    stream_form: StreamForm = field(default=StreamForm.AUTO, metadata=OF_LAYER)
    axis_order: tuple[str, ...] = field(default=AXES, metadata=OF_LAYER)
    vocabulary_parallel: bool = False
    """Embedding and logits are split over all pipeline stages, and not held by the two ends."""
    embedding_layers: int = field(default=0, metadata=OF_STEP)
    """Layers that the embedding counts as when layers are dealt over a pipeline."""
    head_layers: int = field(default=0, metadata=OF_STEP)
    stage_layers: tuple[int, ...] = field(default=(), metadata=OF_STEP)
    """Layers of each stage, or of each chunk of interleaved ones, in the order of the model; none:
    they are dealt."""

    def of(self, part: Literal["sharding", "layer"]) -> PlanOptions:
        """Return the choices of the shardings, or of the price, of a layer; defaults of others."""
        return replace(self, **_defaults_beside(part))

    @property
    def stored_tensors(self) -> tuple[str, ...]:
        """Tensors that selective recomputation keeps, on device or host; none: not named."""
        is_named = self.recompute is Recompute.SELECTIVE
        return (*self.kept_tensors, *self.offloaded_tensors) if is_named else ()

    @property
    def uses_host(self) -> bool:
        """Whether anything lives in host memory."""
        names_some = self.recompute is Recompute.SELECTIVE and bool(self.offloaded_tensors)
        return self.offload is not Offload.NONE or names_some

    @property
    def keeps_gathered(self) -> bool:
        """Whether weights of the whole stage stay gathered until the backward pass."""
        return self.zero_stage >= 3 and not self.reshard_after_forward

    @property
    def counts_edges(self) -> bool:
        """Whether the embedding or the head counts as layers."""
        return self.embedding_layers + self.head_layers > 0

    @property
    def recomputes_some(self) -> bool:
        """Whether full recomputation covers some layers and leaves others."""
        return self.recompute is Recompute.FULL and self.recompute_layers > 0

    @property
    def recomputes_runs(self) -> bool:
        """Whether layers keep one input together."""
        return self.recompute is Recompute.FULL and self.recompute_run > 1

    @property
    def kinds_of_recomputation(self) -> int:
        """Kinds of layers: 2 where layers differ in recomputation or kept input, else 1."""
        return 1 + (self.recomputes_some or self.recomputes_runs)

    @property
    def wraps(self) -> bool:
        """Whether the last stage sends to the first one, overlapped with computation."""
        return self.schedule is ScheduleKind.INTERLEAVED


@cache
def _defaults_beside(part: Literal["sharding", "layer"]) -> dict[str, Any]:
    """Return the defaults of the choices that do not concern a part of a plan."""
    kept = ("sharding", "layer") if part == "layer" else ("sharding",)
    beside = [one for one in fields(PlanOptions) if one.metadata.get("of", "sharding") not in kept]
    return {one.name: one.default for one in beside}


@dataclass(frozen=True)
class StrategyOf(Generic[N]):
    """Degree of each parallel axis: of one candidate, or one column for each field.

    Invariant: tp * tatp * cp * dp_shard * dp_replicate * pp = devices used. ep divides
    dp * cp * tp / etp (experts borrow the devices of the other axes), etp is the tensor degree
    inside an expert.
    """

    dp_replicate: N
    dp_shard: N
    tp: N
    cp: N
    ep: N
    etp: N
    pp: N
    tatp: N
    num_virtual_stages: N
    micro_batch_size: N

    @property
    def dp(self) -> N:
        """Replicas of the data: each sees its own part of the batch."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> N:
        """Devices used."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp * self.tatp


Strategy = StrategyOf[float]
StrategyColumns = StrategyOf[FloatArray]
DEGREES = tuple(field.name for field in fields(StrategyOf))


def make_strategy(**degrees: float) -> Strategy:
    """Return one strategy; degrees that are not named are 1."""
    return StrategyOf(**{name: float(degrees.get(name, 1)) for name in DEGREES})


def stack(strategies: list[Strategy]) -> StrategyColumns:
    """Return columns with one row for each strategy."""
    return StrategyOf(
        **{name: np.array([getattr(s, name) for s in strategies], dtype=float) for name in DEGREES}
    )


def row(columns: StrategyColumns, index: int) -> Strategy:
    """Return one row of the columns as a strategy."""
    return StrategyOf(**{name: float(getattr(columns, name)[index]) for name in DEGREES})


def take(columns: StrategyColumns, rows: IntArray | BoolArray) -> StrategyColumns:
    """Return the named rows of the columns."""
    return StrategyOf(**{name: getattr(columns, name)[rows] for name in DEGREES})


def axes_mask(columns: StrategyColumns) -> IntArray:
    """Return the axes of more than one device of each row: a bit for each of ``AXES``."""
    mask = np.zeros(np.shape(columns.tp), dtype=np.int64)
    for bit, name in enumerate(AXES):
        mask |= (getattr(columns, name) > 1).astype(np.int64) << bit
    return mask


def lengths_text(lengths: Iterable[int]) -> str:
    """Return lengths as a sum of runs: ``7+8*14+7``."""
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    return "+".join(f"{length}*{count}" if count > 1 else f"{length}" for length, count in runs)


def plan_string(strategy: Strategy, plan_options: PlanOptions) -> str:
    """Return the plan as the field writes it: ``tp8 pp4 dp2 mbs1, sp, zero1, recompute=none``."""
    replicated = " hybrid" if strategy.dp_replicate > 1 else ""
    if plan_options.zero_stage == 3 and not plan_options.reshard_after_forward:
        replicated += " no-reshard"
    is_streamed = strategy.tatp > 1
    choices = (
        ("sp", plan_options.sequence_parallel and strategy.tp > 1),
        (f"zero{plan_options.zero_stage}{replicated}",
         plan_options.zero_stage > 0 and strategy.dp_shard * strategy.cp > 1),
        (f"cp={plan_options.context_kind}", strategy.cp > 1),
        (str(plan_options.schedule), strategy.pp > 1),
        ("vocabulary_parallel", strategy.pp > 1 and plan_options.vocabulary_parallel),
        (f"embedding_layers={plan_options.embedding_layers}", plan_options.embedding_layers > 0),
        (f"head_layers={plan_options.head_layers}", plan_options.head_layers > 0),
        (
            f"stage_layers={lengths_text(plan_options.stage_layers)}",
            bool(plan_options.stage_layers),
        ),
        ("ep_overlap", plan_options.overlap_expert_parallel),
        (f"recompute={plan_options.recompute}", True),
        (f"recompute_modules={'+'.join(plan_options.recompute_modules)}",
         bool(plan_options.recompute_modules)),
        (f"kept_tensors={'+'.join(plan_options.kept_tensors)}", bool(plan_options.kept_tensors)),
        (f"offloaded_tensors={'+'.join(plan_options.offloaded_tensors)}",
         bool(plan_options.offloaded_tensors)),
        (f"recompute_layers={plan_options.recompute_layers}", plan_options.recomputes_some),
        (f"recompute_run={plan_options.recompute_run}", plan_options.recomputes_runs),
        (f"offload={plan_options.offload}", plan_options.offload is not Offload.NONE),
        (
            f"streamed={plan_options.streamed}",
            is_streamed and plan_options.streamed is not Streamed.AUTO,
        ),
        (f"form={plan_options.stream_form}",
         is_streamed and plan_options.stream_form is not StreamForm.AUTO),
    )  # fmt: skip
    return ", ".join([_degrees_string(strategy), *(word for word, is_used in choices if is_used)])


def _degrees_string(strategy: Strategy) -> str:
    """Return the degrees in the order of the field; those that are rarely used only if used."""
    has_experts = strategy.ep > 1 or strategy.etp > 1
    degrees = (
        ("tp", strategy.tp, True),
        ("pp", strategy.pp, True),
        ("vpp", strategy.num_virtual_stages, strategy.num_virtual_stages > 1),
        ("cp", strategy.cp, True),
        ("dp", strategy.dp, True),
        ("ep", strategy.ep, has_experts),
        ("etp", strategy.etp, strategy.etp > 1),
        ("tatp", strategy.tatp, strategy.tatp > 1),
        ("mbs", strategy.micro_batch_size, True),
    )
    return " ".join(f"{name}{degree:.0f}" for name, degree, is_used in degrees if is_used)
