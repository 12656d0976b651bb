"""The price of one given strategy."""

from __future__ import annotations

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.base.registry import version
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.energy import idles_above_cap
from meshwright.sharding.strategy import PlanOptions, Strategy, plan_string
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Plan
from meshwright.train.candidates import above_caps, candidate, warnings
from meshwright.train.legality import check_problem
from meshwright.train.measured.factors import Factors
from meshwright.train.placing import CLOSED_FORM, Placer
from meshwright.train.question import make_problem


def estimate(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    structure: PlanOptions,
    *,
    calibration: str = DEFAULT,
    factors: Factors | None = None,
    command: str = "",
    placer: Placer = CLOSED_FORM,
    is_placed: bool = True,
) -> Plan:
    """Return the price of one given strategy.

    Parameters
    ----------
    factors
        Of the resources, as measured jobs suggest (:func:`learn`): they adjust the constants.
    placer
        Who puts the strategy on its devices, where ranks are placed.
    is_placed
        Whether that is asked for; the memory is the same.

    Raises
    ------
    SpecError
        The strategy is illegal: names each rule it breaks and the nearest legal change.
    InfeasibleError
        Its devices draw more than a power cap before they do anything.
    """
    problem = make_problem(model, system, workload, calibration, factors)
    faults = check_problem(problem, strategy, structure)
    if faults:
        raise SpecError(faults, origin=plan_string(strategy, structure))
    if is_placed and idles_above_cap(problem.system, strategy.num_devices):
        raise InfeasibleError(above_caps(problem.system, strategy.num_devices))
    price = placer.price if is_placed else candidate
    only = price(problem, strategy, structure)
    if factors is not None:
        from meshwright.train.measured.trials import with_measured_interval

        only = with_measured_interval(problem, only, factors)
    return Plan(
        model=problem.model,
        system=problem.system,
        workload=workload,
        calibration=calibration,
        best=only,
        fastest_s=only.estimate.step_time_s,
        factors=factors,
        warnings=tuple(warnings(problem, only)),
        version=version(),
        command=command,
    )
