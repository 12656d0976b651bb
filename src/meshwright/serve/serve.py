"""The best way to serve: prefill or decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.base.errors import UnsupportedError
from meshwright.catalog.calibration import DEFAULT, load_calibration, load_serving
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_server
from meshwright.serve.answer import ServingPlan
from meshwright.serve.answers import serving_plan
from meshwright.serve.problem import ServingProblem
from meshwright.serve.search import Objective, search_serving
from meshwright.serve.space import ServingSpace
from meshwright.sharding.space import Choices
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Prefill
from meshwright.train.candidates import version
from meshwright.train.question import refuse_mixed_chips


def serve(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Prefill | Decode,
    *,
    objective: str = "throughput",
    allowed: Mapping[str, Sequence[object]] | None = None,
    server: str = "generic",
    top: int = 5,
    calibration: str = DEFAULT,
    command: str = "",
) -> ServingPlan:
    """Return the best way to serve, proven over the whole space.

    Parameters
    ----------
    objective
        ``throughput`` within the allowed latency, or ``latency`` with the whole batch in flight.
    allowed
        What is fixed: values of a degree or of a structural choice by name.
    server
        What runs the passes: its own time beside them is priced.

    Raises
    ------
    InfeasibleError
        Nothing fits the memory or the latency; says what is closest and what would help.
    """
    model_spec = load_model(model) if isinstance(model, str) else model
    system_spec = load_system(system) if isinstance(system, str) else system
    refuse_mixed_chips(system_spec)
    if system_spec.is_power_capped:
        raise UnsupportedError("a power cap is for training: serving is priced without one")
    family = system_spec.chip.family
    problem = ServingProblem(
        model_spec, system_spec, workload, load_calibration(family, calibration),
        constants=load_serving(family, load_server(server), calibration),
    )  # fmt: skip
    choices = Choices({name: tuple(values) for name, values in (allowed or {}).items()})
    result = search_serving(ServingSpace(problem, choices), Objective(objective), top=top)
    return serving_plan(
        problem, result, calibration=calibration, server=server, version=version(), command=command
    )
