"""From a row of training to a job that can be priced: its problem, strategy and plan options."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import SpecError
from meshwright.calibration.rows import ADAPTERS, ANALYTIC, DID_NOT_FIT, Reason, RefusedError, Row
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.problem import Problem
from meshwright.sharding import launching
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.framework import UNNAMED, Habits
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import check_problem, make_problem, stated_strategy, training

TASKS = ("pretrain", "pretraining", "train", "training", "finetune-sft", ADAPTERS, ANALYTIC,
         DID_NOT_FIT)  # fmt: skip
"""Tasks that are training steps."""
_LAUNCHING = tuple(rule.name for rule in launching.rules())
"""Rules on what a framework can start; they are not applied, because measured plans did start."""
_OF_THE_SEARCH = ("dp-even", "pp-micro-batches", "sp-sequence")
"""Rules that keep unlikely plans out of the search; measured plans are priced anyway."""


@dataclass(frozen=True)
class Job:
    """A row as it is priced."""

    row: Row
    problem: Problem
    strategy: Strategy
    plan_options: PlanOptions

    @property
    def habits(self) -> Habits:
        """Defaults of the framework with which the row is priced."""
        name = self.problem.workload.software.framework
        return load_framework(name) if name else UNNAMED


def job_of(row: Row, calibration: str, *, is_named: bool = True) -> Job:
    """Return the job of a row: its question, and the defaults of every question.

    Parameters
    ----------
    is_named
        Whether the framework is part of the question, with the software that the row states.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be priced.
    """
    if row.task not in TASKS:
        raise RefusedError(Reason.TASK, row.task)
    row.check()
    framework = row.framework if is_named else None
    system, model, stated = row.system.spec(), row.model.spec(), row.strategy.stated
    if row.sequence_length is None:
        raise RefusedError(Reason.SEQUENCE, model.name)
    if row.global_batch_size is None:
        raise RefusedError(Reason.BATCH, model.name)
    pp, chunks = stated.get("pp", 1), stated.get("num_virtual_stages", 1)
    if pp * chunks > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} x {chunks} chunks of {model.num_layers} layers")
    word = load_framework(framework).word if framework else None
    optimizer = row.optimizer.preset() if row.optimizer and is_named else None
    if optimizer is None and row.task == ADAPTERS:
        optimizer = load_optimizer("adapters")
    try:
        workload = training(
            system,
            has_run=True,
            global_batch_size=row.global_batch_size,
            sequence_length=row.sequence_length,
            precision=row.precision.precision(system.chip, word),
            optimizer=optimizer,
            software=row.software if is_named else SoftwareStack(),
            framework=framework,
        )
        one = stated_strategy(stated, model, system.num_devices, workload.software)
        problem = make_problem(model, system, workload, calibration)
        _check(problem, *one)
    except SpecError as error:
        raise RefusedError(Reason.PLAN, str(error.faults[0])) from error
    return Job(row, problem, *one)


def _check(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> None:
    """Refuse a plan that breaks a rule, except for rules that only limit the search."""
    ignored = (*_OF_THE_SEARCH, *_LAUNCHING)
    for fault in check_problem(problem, strategy, plan_options):
        if fault.path not in ignored:
            raise RefusedError(Reason.PLAN, f"{fault.path}: {fault.message}")
