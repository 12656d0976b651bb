"""What keeps a way of serving from being started by a server: one table for search and exporters.

A rule reads :class:`~meshwright.spec.workload.Serves` of a server and judges rows of degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.base.errors import Fault
from meshwright.serve.passes import ServingProblem
from meshwright.sharding.strategy import Strategy, StrategyColumns, stack
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Prefill, Serves


@dataclass(frozen=True)
class ServingCase:
    """What a rule judges: rows of degrees under what a server starts."""

    s: StrategyColumns
    serves: Serves
    host: int
    """Devices that share a host: those of the innermost level."""
    has_experts: bool


Judge = Callable[[ServingCase], BoolArray]


@dataclass(frozen=True)
class ServingRule:
    """One reason for which a server does not start a row of degrees."""

    name: str
    path: str
    breaks: Judge
    message: str
    """With the degrees of a row, and ``host``, in place of names in braces."""
    fix: str


def _lacking(axis: str) -> ServingRule:
    return ServingRule(
        f"serve-{axis}", f"strategy.{axis}",
        lambda case: (getattr(case.s, axis) > 1) & (axis not in case.serves.axes),
        f"the server has no {axis}: {axis} {{{axis}:.0f}}", f"{axis}=1",
    )  # fmt: skip


def _splits_experts_otherwise(case: ServingCase) -> BoolArray:
    s = case.s
    whole, sliced = (s.ep == s.tp) & (s.etp == 1), (s.ep == 1) & (s.etp == s.tp)
    return np.asarray(~(whole | sliced) & case.has_experts)


RULES = (
    *map(_lacking, ("tp", "cp", "pp", "ep")),
    ServingRule(
        "serve-experts", "strategy.ep",
        _splits_experts_otherwise,
        "the devices of a stage of one replica split all experts among them, or each of them: ep "
        "{ep:.0f} with etp {etp:.0f} and tp {tp:.0f}",
        "ep={tp:.0f} with etp=1, or ep=1 with etp={tp:.0f}",
    ),
    ServingRule(
        "serve-hosts", "strategy",
        lambda case: (case.s.num_devices > case.s.dp * case.host) & (not case.serves.spans_hosts),
        "a replica is written for one host: tp {tp:.0f} x pp {pp:.0f} on hosts of {host}",
        "at most {host} devices of a replica",
    ),
)  # fmt: skip


def refused_rows(problem: ServingProblem, s: StrategyColumns) -> Iterator[tuple[str, BoolArray]]:
    """Yield each rule with the rows that break it; nothing where nothing is known of a server."""
    if problem.launches is not None:
        case = case_of(problem.launches, problem.model, problem.system, s)
        for rule in RULES:
            yield rule.name, rule.breaks(case)


def case_of(
    serves: Serves, model: ModelSpec, system: SystemSpec, s: StrategyColumns
) -> ServingCase:
    """Return what rules judge of some rows."""
    host = system.levels[0].size if system.levels else 1
    return ServingCase(s, serves, host, has_experts=model.has_experts)


def serving_faults(
    serves: Serves, model: ModelSpec, system: SystemSpec, strategy: Strategy
) -> list[Fault]:
    """Return why a server does not start one split of the devices."""
    case = case_of(serves, model, system, stack([strategy]))
    words = {**vars(strategy), "host": case.host}
    return [
        Fault(rule.path, f"{rule.message.format(**words)} [{rule.name}]", rule.fix.format(**words))
        for rule in RULES
        if bool(np.any(rule.breaks(case)))
    ]


def cache_faults(serves: Serves, workload: Prefill | Decode) -> list[Fault]:
    """Return why a server has no such cache."""
    cache = workload.precision.kv_cache
    if cache in serves.kv_cache:
        return []
    known = " or ".join(serves.kv_cache)
    return [Fault("precision.kv_cache", f"the server has no KV cache in {cache}", known)]
