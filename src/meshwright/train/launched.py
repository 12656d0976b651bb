"""Frameworks that start a plan: each by its rules, and by its own price of the plan.

A question without a framework is priced without the habits of any. The same plan under a framework
has its kernels, buffers and optimizer, and may be slower, or larger than the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.cost.problem import Problem
from meshwright.sharding import launching
from meshwright.sharding.axes import refusals
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, FrameworkPrice
from meshwright.train.question import frameworks_on, under
from meshwright.train.writing import AskedStrategy, written_faults

Chosen = Sequence[tuple[Strategy, PlanOptions]]
Prices = Callable[[Problem, Chosen], Sequence[Candidate]]
"""Prices of strategies: in closed form, or placed on their devices."""


def rule_against(asked: Problem, strategy: Strategy, plan_options: PlanOptions) -> str:
    """Return the first rule of the framework of a problem against a strategy; empty: none.

    The rules are those of the framework itself, then the limits of the files written for it.
    """
    work = asked.workload
    case = Case(asked.model, work, plan_options, stack([strategy]))
    for refusal in refusals(launching.rules(), case):
        return f"{refusal.text(case, 0)} [{refusal.name}]"
    name = framework_of(work)
    written = AskedStrategy(asked.model, asked.system, work, strategy, plan_options)
    return next((fault.message for fault in written_faults(name, written)), "")


def framework_of(work: Training) -> str:
    """Return the name of the framework of some work, without its version."""
    return work.software.framework.partition("==")[0]


@dataclass(frozen=True)
class Frameworks:
    """The frameworks that run on the chips of a problem, each with the problem as it is there."""

    problem: Problem
    prices: Prices

    @cached_property
    def asked(self) -> Mapping[str, Problem | str]:
        """The problem under each framework, or the reason why it cannot be asked there."""
        problem, found = self.problem, dict[str, Problem | str]()
        for name in frameworks_on(problem.system.chip, problem.workload.precision.matmul):
            try:
                is_own = name == framework_of(problem.workload)
                found[name] = problem if is_own else under(problem, name)
            except SpecError as error:
                found[name] = error.faults[0].message
        return found

    @property
    def problems(self) -> list[Problem]:
        """The problem under each framework in which it can be asked."""
        return [asked for asked in self.asked.values() if isinstance(asked, Problem)]

    def of(self, chosen: Chosen) -> list[tuple[FrameworkPrice, ...]]:
        """Return the price of strategies under each framework that starts them, or its reason."""
        columns = [self._under(name, chosen) for name in self.asked]
        return list(zip(*columns, strict=True)) if columns else [() for _ in chosen]

    def starts(self, strategy: Strategy, plan_options: PlanOptions) -> bool:
        """Tell whether some framework starts a strategy, and has memory for it."""
        return any(self._under(name, [(strategy, plan_options)])[0].launches for name in self.asked)

    def _under(self, name: str, chosen: Chosen) -> list[FrameworkPrice]:
        """Return the prices under one framework; those of equal plan options are one column."""
        asked = self.asked[name]
        if isinstance(asked, str):
            return [FrameworkPrice(name, why_not=asked)] * len(chosen)
        found = [FrameworkPrice(name, why_not=rule_against(asked, *entry)) for entry in chosen]
        legal = [place for place, entry in enumerate(found) if entry.launches]
        try:
            priced = self.prices(asked, [chosen[place] for place in legal])
        except InfeasibleError as error:
            return [replace(entry, why_not=entry.why_not or str(error)) for entry in found]
        for place, candidate in zip(legal, priced, strict=True):
            price = candidate.estimate
            found[place] = FrameworkPrice(
                name, price.step_time_s, price.memory_bytes, price.shortage_in_words()
            )
        return found

    def added(self, entries: Iterable[Candidate]) -> list[Candidate]:
        """Return candidates that say which frameworks start each of them."""
        listed = list(entries)
        found = self.of([(entry.strategy, entry.plan_options) for entry in listed])
        return [replace(entry, frameworks=known)
                for entry, known in zip(listed, found, strict=True)]  # fmt: skip
