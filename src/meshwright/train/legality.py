"""Whether a strategy is legal, and the nearest one that is."""

from __future__ import annotations

from meshwright.base.errors import Fault
from meshwright.cost.communication import DATA_PARALLEL_ONLY, crosses_data_parallel_network
from meshwright.cost.problem import Problem
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.rules import Case, Refusal
from meshwright.sharding.strategy import Offload, PlanOptions, Strategy, stack
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.question import make_problem


def check(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    structure: PlanOptions,
) -> list[Fault]:
    """Return every rule that a strategy breaks, each with the nearest legal change."""
    problem = make_problem(model, system, workload, "uncalibrated")
    return check_problem(problem, strategy, structure)


def check_problem(problem: Problem, strategy: Strategy, structure: PlanOptions) -> list[Fault]:
    """Return every rule that a strategy breaks under a problem."""
    chip = problem.system.chip
    columns = stack([strategy])
    tile = {"tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns}
    found: list[Refusal] = all_refusals(problem.model, problem.workload, columns, structure, **tile)
    case = Case(problem.model, problem.workload, structure, columns, **tile)
    faults = [
        Fault(refusal.name, refusal.text(case, 0), refusal.rule.nearest_legal_fix(case))
        for refusal in found
    ]
    network = problem.network(structure.axis_order, columns)
    if bool(crosses_data_parallel_network(network)[0]):
        message = "an axis other than dp crosses a network that carries dp only"
        faults.append(Fault(DATA_PARALLEL_ONLY, message, "smaller tp, cp, pp or ep"))
    if structure.offload is not Offload.NONE and problem.system.host is None:
        message = f"{problem.system.name} has no host memory to offload to"
        faults.append(Fault("offload-without-host", message, "offload=none"))
    given = problem.system.num_alive
    if strategy.num_devices > given:
        used = f"{strategy.num_devices:.0f}"
        message = f"the degrees multiply to {used}, but {problem.system.name} has {given} devices"
        faults.insert(0, Fault("devices", message, f"a product of at most {given}"))
    return faults
