"""What no target or no framework can express, and questions that several targets ask."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.catalog.frameworks import load_framework
from meshwright.frameworks.launch import MESH_AXES, degrees, host_size
from meshwright.sharding import launching
from meshwright.sharding.axes import axis_rules
from meshwright.sharding.fixes import fix_of, found_faults
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import Offload, stack
from meshwright.spec.framework import Framework
from meshwright.train.answer import Plan


def framework_refusals(plan: Plan, name: str) -> list[Fault]:
    """Return what keeps a plan from a framework of the catalog: what the search would not come to.

    Its devices, its batch, and the rules of ``sharding/launching.py``.
    """
    checks = (_segments, _devices, _hosts, _axis_order, _batch)
    found = [fault for check in checks for fault in check(plan)]
    return found + list(_launching(plan, load_framework(name)))


def _launching(plan: Plan, framework: Framework) -> Iterator[Fault]:
    """Yield the rules on what a framework starts that a plan breaks."""
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
    case = Case(plan.model, asked, plan.best.structure, columns, 1.0, 1.0)
    found, change = found_faults((*axis_rules(), *launching.rules()), case, plan.system.num_alive)
    for refusal in found:
        path = refusal.rule.path
        yield Fault(path, f"{refusal.text(case, 0)} [{refusal.name}]", fix_of(refusal, change))


def plan_refusals(plan: Plan) -> list[Fault]:
    """Return what keeps a plan from any target: its shape, its batch, its legality."""
    return [
        fault
        for check in (_segments, _vocabulary, _not_written, _axis_order, _batch, _rules)
        for fault in check(plan)
    ]


def _segments(plan: Plan) -> Iterator[Fault]:
    count = len(plan.best.segments)
    if count != 1:
        message = f"{count} segments of layers with strategies of their own; one can be written"
        yield Fault("best.segments", message, "plan with one segment")


def _vocabulary(plan: Plan) -> Iterator[Fault]:
    if plan.best.structure.vocabulary_parallel:
        message = "embedding and logits split over pipeline stages are in no released framework"
        yield Fault("structure.vocabulary_parallel", message, "vocabulary_parallel=false")


def _not_written(plan: Plan) -> Iterator[Fault]:
    if plan.best.structure.overlap_expert_parallel:
        message = "micro-batches that hide communication of experts of each other are not written"
        yield Fault("structure.overlap_expert_parallel", message, "overlap_expert_parallel=false")


def _devices(plan: Plan) -> Iterator[Fault]:
    used = int(plan.best.strategy.num_devices)
    if used != plan.best.estimate.num_devices_used or used > plan.system.num_alive:
        yield Fault(
            "strategy",
            f"the degrees multiply to {used} devices, the estimate uses "
            f"{plan.best.estimate.num_devices_used} of {plan.system.num_alive}",
            "estimate the strategy again",
        )


def _hosts(plan: Plan) -> Iterator[Fault]:
    used, size = int(plan.best.strategy.num_devices), host_size(plan)
    if used > size and used % size:
        message = f"{used} devices do not fill hosts of {size}; torchrun starts as many on each"
        yield Fault("strategy", message, f"{used // size * size} devices")
    if plan.system.dead_devices:
        message = f"{len(plan.system.dead_devices)} devices are dead; ranks are given out in a row"
        yield Fault("system.dead_devices", message, "leave their hosts out of the system")


def _axis_order(plan: Plan) -> Iterator[Fault]:
    order = plan.best.structure.axis_order
    wrong = [axis for axis in MESH_AXES if order.count(axis) != 1]
    if wrong:
        message = f"names {wrong[0]} {order.count(wrong[0])} times; each axis stands once"
        yield Fault("structure.axis_order", message, ",".join(MESH_AXES))


def _batch(plan: Plan) -> Iterator[Fault]:
    sizes, batch = degrees(plan), plan.workload.global_batch_size
    unit = sizes["dp"] * sizes["micro_batch_size"]
    if batch >= unit and batch % unit:
        yield Fault(
            "workload.global_batch_size",
            f"{batch} is not divisible by dp {sizes['dp']} x micro-batch "
            f"{sizes['micro_batch_size']}; ranks would run different numbers of micro-batches",
            _nearest_batch(batch, sizes["dp"], sizes["micro_batch_size"]),
        )


def _nearest_batch(batch: int, dp: int, micro_batch_size: int) -> str:
    """Return the nearest micro-batch that divides the batch of a rank; else the nearest batch."""
    if batch % dp == 0:
        sizes = range(micro_batch_size, 0, -1)
        return f"micro_batch_size={next(size for size in sizes if batch // dp % size == 0)}"
    unit = dp * micro_batch_size
    return f"global_batch_size={max(1, round(batch / unit)) * unit}"


def _rules(plan: Plan) -> Iterator[Fault]:
    """Yield what the axes themselves refuse; narrow tiles are slow, not inexpressible."""
    case = Case(
        plan.model, plan.workload, plan.best.structure, stack([plan.best.strategy]), 1.0, 1.0
    )
    found, change = found_faults(axis_rules(), case, plan.system.num_alive)
    for refusal in found:
        yield Fault("strategy", f"{refusal.text(case, 0)} [{refusal.name}]", change)


def optimizer_refusals(plan: Plan, name: str, needed_bytes: float) -> Iterator[Fault]:
    """Yield an optimizer that keeps fewer bytes per parameter than the one of the target."""
    preset = plan.workload.optimizer
    if preset.freezes_weights:
        return
    kept = (
        preset.weight_bytes_per_param
        + preset.gradient_bytes_per_param
        + preset.state_bytes_per_param
    )
    if kept < needed_bytes:
        message = f"{preset.name} keeps {kept:g} bytes per parameter, Adam here {needed_bytes:g}"
        yield Fault("workload.optimizer", message, f"plan with optimizer {name}")


def offload_refusals(plan: Plan) -> Iterator[Fault]:
    """Yield anything that lives on the host."""
    offload = plan.best.structure.offload
    if offload is not Offload.NONE:
        message = f"{offload} on the host is not written"
        yield Fault("structure.offload", message, "offload=none")


def choice_refusal(path: str, found: object, reason: str, fix: str) -> Fault:
    """Return the refusal of one choice: what was found, why not, what would do."""
    return Fault(path, f"{found}: {reason}", fix)
