"""Pipeline parallelism: layers are split into stages; no tensor is, so only rules live here.

Source: Narayanan et al. 2021, section 2.2 (interleaving needs micro-batches divisible by pp).
"""

from __future__ import annotations

from meshwright.base.arrays import BoolArray
from meshwright.sharding.axis import Axis, axes
from meshwright.sharding.rules import Case, Rule
from meshwright.sharding.strategy import ScheduleKind


def _has_empty_stages(case: Case) -> BoolArray:
    return case.s.pp * case.s.num_virtual_stages > case.model.num_layers


def _cuts_chunks(case: Case) -> BoolArray:
    chunks = case.s.pp * case.s.num_virtual_stages
    found: BoolArray = (case.model.num_layers % chunks != 0) & (case.s.num_virtual_stages > 1)
    return found


def _breaks_rounds(case: Case) -> BoolArray:
    interleaves = (case.s.num_virtual_stages > 1) & (case.s.pp > 1)
    found: BoolArray = interleaves & (case.num_micro_batches % case.s.pp != 0)
    return found


def _mismatches_schedule(case: Case) -> BoolArray:
    interleaved = case.structure.schedule is ScheduleKind.INTERLEAVED
    found: BoolArray = (case.s.num_virtual_stages > 1) != (case.all_rows & interleaved)
    return found


def _has_no_pipeline(case: Case) -> BoolArray:
    plain = case.structure.schedule is ScheduleKind.ONE_F_ONE_B
    found: BoolArray = (case.s.pp == 1) & ((case.s.num_virtual_stages > 1) | (not plain))
    return found


class PipelineAxis(Axis):
    """Runs of layers."""

    degrees = ("pp", "num_virtual_stages")
    rules = (
        Rule(
            "pp-layers",
            "each chunk of each stage holds at least one layer",
            _has_empty_stages,
            "pp {pp} x {num_virtual_stages} chunks exceed {num_layers} layers",
            ("num_virtual_stages", "pp"),
        ),
        Rule(
            "pp-chunks",
            "interleaved chunks are of equal size (without interleaving stages may differ)",
            _cuts_chunks,
            "{num_layers} layers do not divide into pp {pp} x {num_virtual_stages} equal chunks",
            ("num_virtual_stages", "pp"),
        ),
        Rule(
            "pp-micro-batches",
            "interleaving runs micro-batches in rounds of pp",
            _breaks_rounds,
            "{num_micro_batches} micro-batches are not divisible by pp {pp} under interleaving",
            ("micro_batch_size", "pp", "num_virtual_stages"),
        ),
        Rule(
            "pp-schedule",
            "several chunks for each device and the interleaved schedule belong together",
            _mismatches_schedule,
            "{num_virtual_stages} virtual stages under schedule {schedule}",
            ("num_virtual_stages",),
            "schedule=interleaved",
        ),
        Rule(
            "schedule-without-pp",
            "with pp 1 all schedules are the same; 1f1b with one chunk stands for them",
            _has_no_pipeline,
            "schedule {schedule} with {num_virtual_stages} virtual stages and pp 1",
            ("pp",),
            "schedule=1f1b",
        ),
    )


axes.register("pp")(PipelineAxis())
