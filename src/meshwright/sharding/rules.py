"""Rules of legality on columns, the refusals they give, and the nearest legal change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, ceil_div, groups_of
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.strategy import (
    PlanOptions,
    ScheduleKind,
    StrategyColumns,
    Streamed,
    lengths_text,
    row,
)
from meshwright.spec.model import AttentionSpec, ModelSpec
from meshwright.spec.workload import Decode, Training, Workload


@dataclass(frozen=True)
class Case:
    """Input of a rule: one model, one workload, one set of plan options, and columns of degrees."""

    model: ModelSpec
    workload: Workload
    plan_options: PlanOptions
    s: StrategyColumns
    tile_rows: float = 128.0
    tile_columns: float = 128.0
    """Output tile of one matrix product; a shard below it is refused."""

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence in one pass [tokens]."""
        if isinstance(self.workload, Training):
            return self.workload.sequence_length
        return 1 if isinstance(self.workload, Decode) else self.workload.prompt_length

    @property
    def batch_size(self) -> int:
        """Sequences of one step over all devices."""
        work = self.workload
        return work.global_batch_size if isinstance(work, Training) else work.batch_size

    @property
    def has_long_rows(self) -> bool:
        """Whether a pass has many tokens for each sequence: training and prefill."""
        return not isinstance(self.workload, Decode)

    @property
    def num_micro_batches(self) -> FloatArray:
        """Micro-batches of one step on the rank with the most."""
        return ceil_div(ceil_div(self.batch_size, self.s.dp), self.s.micro_batch_size)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The distinct attentions of the model."""
        return self.model.attentions

    @property
    def is_plain_schedule(self) -> bool:
        """Whether pipelines run 1F1B with whole backward passes."""
        return self.plan_options.schedule is ScheduleKind.ONE_F_ONE_B

    def cuts(
        self, sizes: Iterable[int], degree: FloatArray, *, may_share: bool = False
    ) -> BoolArray:
        """Return the rows in which a degree divides one of some sizes unevenly.

        Parameters
        ----------
        may_share
            Whether equally many ranks may hold the same part.
        """
        masks = ((size % degree != 0) & ((degree % size != 0) | (not may_share)) for size in sizes)
        return any_of(masks, self)

    @property
    def dense_ffn_sizes(self) -> tuple[int, ...]:
        """Inner widths of dense networks and of shared experts."""
        sizes = [
            kind.feed_forward.ffn_size
            if kind.feed_forward is not None
            else (kind.experts.shared_ffn_size if kind.experts is not None else 0)
            for kind in self.model.layer_kinds
        ]
        return tuple(sorted({size for size in sizes if size}))

    @property
    def head_degree(self) -> FloatArray:
        """Degree by which heads and inner widths are split outside of cp."""
        streams_inputs = self.plan_options.streamed is Streamed.INPUTS
        return self.s.tp * self.s.tatp if streams_inputs else self.s.tp

    def rows_dealt(self, judge: Callable[[IntArray, int], bool]) -> BoolArray:
        """Return the rows with layers of chunks, and a number of stages, that a judge accepts.

        More chunks than layers and two edges are never dealt: some chunk would be empty.
        """
        stages, chunks = (np.asarray(n) for n in (self.s.pp, self.s.num_virtual_stages))
        first, group = groups_of([stages, chunks])
        options = self.plan_options
        most = self.model.num_layers + options.embedding_layers + options.head_layers + 2
        accepted = [
            pp * v <= most and judge(chunk_lengths(self.model.num_layers, pp * v, options), pp)
            for pp, v in zip(stages[first].astype(int), chunks[first].astype(int), strict=True)
        ]
        return np.array(accepted, dtype=bool)[group]

    @property
    def no_rows(self) -> BoolArray:
        """A column of False."""
        return np.zeros(np.shape(self.s.tp), dtype=bool)

    @property
    def all_rows(self) -> BoolArray:
        """A column of True."""
        return np.ones(np.shape(self.s.tp), dtype=bool)


@dataclass(frozen=True)
class Rule:
    """One reason for which a strategy is refused.

    ``message`` is a template over the degrees and the facts of :func:`facts`. ``adjusts`` are the
    degrees, ``fix`` the choices whose change may help;
    :func:`~meshwright.sharding.fixes.nearest_legal` offers a change that is legal under all rules.
    """

    name: str
    explanation: str
    breaks: Callable[[Case], BoolArray]
    message: str
    adjusts: tuple[str, ...] = ()
    fix: str = ""
    path: str = "strategy"
    """Part of the plan that the rule is about."""


@dataclass(frozen=True)
class Refusal:
    """The rows that one rule refuses."""

    name: str
    mask: BoolArray
    message: str
    rule: Rule

    def text(self, case: Case, index: int) -> str:
        """Return the message for one row, with its numbers."""
        return self.message.format(**facts(case, index))


def facts(case: Case, index: int) -> dict[str, int | str]:
    """Return the numbers that messages may name, for one row."""
    degrees = {name: int(value) for name, value in vars(row(case.s, index)).items()}
    model = case.model
    experts = next((kind.experts for kind in model.layer_kinds if kind.experts is not None), None)
    options = case.plan_options
    return {
        **degrees,
        **{choice.name: _shown(getattr(options, choice.name)) for choice in fields(options)},
        "stage_layers": lengths_text(options.stage_layers),
        "stored_tensors": " ".join(
            dict.fromkeys((*options.kept_tensors, *options.offloaded_tensors))
        ),
        "dp": degrees["dp_replicate"] * degrees["dp_shard"],
        "heads": min((a.num_heads for a in case.attentions), default=0),
        "kv_heads": min((a.num_kv_heads for a in case.attentions), default=0),
        "inner_heads": min((r.num_heads for r in model.recurrences), default=0),
        "state_groups": min((r.num_groups for r in model.recurrences), default=0),
        "ffn": case.dense_ffn_sizes[0] if case.dense_ffn_sizes else 0,
        "expert_ffn": experts.ffn_size if experts else 0,
        "num_experts": experts.num_experts if experts else 0,
        "hidden": model.hidden_size,
        "num_layers": model.num_layers,
        "sequence": case.sequence_length,
        "batch": case.batch_size,
        "num_micro_batches": int(np.broadcast_to(case.num_micro_batches, case.s.tp.shape)[index]),
        "tile_rows": int(case.tile_rows),
        "tile_columns": int(case.tile_columns),
        "framework": case.workload.software.framework,
        "architecture": model.architecture,
    }


def _shown(choice: object) -> str:
    return " ".join(map(str, choice)) if isinstance(choice, tuple) else str(choice)


def any_of(masks: Iterable[BoolArray], case: Case) -> BoolArray:
    """Return the rows that any of the masks marks; none is made once all rows are marked."""
    marked = case.no_rows
    for mask in masks:
        marked = marked | mask
        if marked.all():
            break
    return marked
