"""Refusals of plans that no target or no framework can express, and shared checks of targets."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.catalog.frameworks import load_framework
from meshwright.sharding import launching
from meshwright.sharding.axes import axis_rules
from meshwright.sharding.fixes import fix_of, found_faults
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import Offload, stack
from meshwright.spec.framework import Framework
from meshwright.train.answer import Plan
from meshwright.train.writing import AskedStrategy, batch_faults, launched_faults, written_faults


def framework_refusals(plan: Plan, name: str, *, is_written: bool = True) -> list[Fault]:
    """Return the faults of a plan that a framework of the catalog cannot run.

    Those of any target, options that the framework cannot start (``sharding/launching.py``), and
    options that its files cannot express (``train/writing.py``).

    Parameters
    ----------
    is_written
        Whether the framework's own files are written; otherwise those of a program on top of it.
    """
    written = asked(plan)
    limits = written_faults(name, written) if is_written else launched_faults(written)
    return [*_devices(plan), *limits, *_launching(plan, load_framework(name))]


def asked(plan: Plan) -> AskedStrategy:
    """Return the strategy of a plan with its question."""
    best = plan.best
    return AskedStrategy(plan.model, plan.system, plan.workload, best.strategy, best.plan_options)


def _launching(plan: Plan, framework: Framework) -> Iterator[Fault]:
    """Yield the launch rules of a framework that a plan breaks."""
    launches, chip, work = framework.launches, plan.system.chip, plan.workload
    if chip.vendor not in launches.vendors:
        message = f"{framework.title} does not run on {chip.name} of {chip.vendor}"
        yield Fault("system.chip", message, f"chips of {' or '.join(launches.vendors)}")
    if work.precision.matmul not in launches.precisions:
        message = f"{framework.title} does not train in {work.precision.matmul}"
        yield Fault("workload.precision.matmul", message, ", ".join(launches.precisions))
    software = work.software.model_copy(update={"framework": framework.title, "launches": launches})
    asked = work.model_copy(update={"software": software})
    columns = stack([plan.best.strategy])
    case = Case(plan.model, asked, plan.best.plan_options, columns, 1.0, 1.0)
    found, change = found_faults((*axis_rules(), *launching.rules()), case, plan.system.num_alive)
    for refusal in found:
        path = refusal.rule.path
        yield Fault(path, f"{refusal.text(case, 0)} [{refusal.name}]", fix_of(refusal, change))


def plan_refusals(plan: Plan) -> list[Fault]:
    """Return the faults of a plan that no target can express: its shape, batch, legality."""
    checks = (_vocabulary, _not_written, _rules)
    return [fault for check in checks for fault in check(plan)] + list(batch_faults(asked(plan)))


def _vocabulary(plan: Plan) -> Iterator[Fault]:
    if plan.best.plan_options.vocabulary_parallel:
        message = "embedding and logits split over pipeline stages are in no released framework"
        yield Fault("plan_options.vocabulary_parallel", message, "vocabulary_parallel=false")


def _not_written(plan: Plan) -> Iterator[Fault]:
    if plan.best.plan_options.overlap_expert_parallel:
        message = "micro-batches that hide communication of experts of each other are not written"
        yield Fault(
            "plan_options.overlap_expert_parallel", message, "overlap_expert_parallel=false"
        )
    if depths := plan.model.prediction_depths:
        message = f"{depths} layers for multi-token prediction are not written"
        yield Fault("model.prediction_depths", message, "plan the model without them")


def _devices(plan: Plan) -> Iterator[Fault]:
    used = int(plan.best.strategy.num_devices)
    if used != plan.best.estimate.num_devices_used or used > plan.system.num_alive:
        yield Fault(
            "strategy",
            f"the degrees multiply to {used} devices, the estimate uses "
            f"{plan.best.estimate.num_devices_used} of {plan.system.num_alive}",
            "estimate the strategy again",
        )


def _rules(plan: Plan) -> Iterator[Fault]:
    """Yield the refusals of the axes themselves; narrow tiles are slow, not inexpressible."""
    case = Case(
        plan.model, plan.workload, plan.best.plan_options, stack([plan.best.strategy]), 1.0, 1.0
    )
    found, change = found_faults(axis_rules(), case, plan.system.num_alive)
    for refusal in found:
        yield Fault("strategy", f"{refusal.text(case, 0)} [{refusal.name}]", change)


def offload_refusals(plan: Plan) -> Iterator[Fault]:
    """Yield the refusal of tensors offloaded to the host."""
    offload = plan.best.plan_options.offload
    if offload is not Offload.NONE:
        message = f"{offload} on the host is not written"
        yield Fault("plan_options.offload", message, "offload=none")


def choice_refusal(path: str, found: object, reason: str, fix: str) -> Fault:
    """Return the refusal of one choice: the value found, the reason, the fix."""
    return Fault(path, f"{found}: {reason}", fix)
