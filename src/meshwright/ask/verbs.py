"""Types of the answers of verbs by their options: ``mw.plan(..., pareto=True)`` is a front.

Files that start a server, in place of a model, are typed as training: ask with ``isinstance``.
"""

# Options are keywords of any type: a call that fits several overloads takes the first.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, overload

if TYPE_CHECKING:
    from meshwright.base.records import Shown
    from meshwright.calibration.validation import Validation
    from meshwright.dataflow.answer import GraphAnswer
    from meshwright.dataflow.linpack import GridRuns
    from meshwright.frameworks.profiled import ProfiledStep
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.serve.traffic.answer import TrafficPlan
    from meshwright.train.answer import Deadline, Explanation, Front, Plan, Replan
    from meshwright.train.measured.diagnose import Diagnosis


class PlanVerb(Protocol):
    """``mw.plan``."""

    @overload
    def __call__(self, *model: object, pareto: Literal[True], **options: object) -> Front: ...
    @overload
    def __call__(self, *model: object, within: str | float, **options: object) -> Deadline: ...
    @overload
    def __call__(self, *, without: int | str, **options: object) -> Replan: ...
    @overload
    def __call__(self, *model: object, **options: object) -> Plan: ...


class EstimateVerb(Protocol):
    """``mw.estimate``."""

    @overload
    def __call__(self, *model: object, batch: int | str, **options: object) -> ServingPlan: ...
    @overload
    def __call__(self, *model: object, **options: object) -> Plan: ...


class ServeVerb(Protocol):
    """``mw.serve``."""

    @overload
    def __call__(
        self, *model: object, disaggregated: Literal[True], **options: object
    ) -> DisaggregatedPlan: ...
    @overload
    def __call__(self, *model: object, rate: float | str, **options: object) -> TrafficPlan: ...
    @overload
    def __call__(self, *model: object, trace: str, **options: object) -> TrafficPlan: ...
    @overload
    def __call__(self, *model: object, **options: object) -> ServingPlan: ...


class MapVerb(Protocol):
    """``mw.map``."""

    @overload
    def __call__(self, *graph: object, process_grid: str, **options: object) -> GridRuns: ...
    @overload
    def __call__(self, *graph: object, **options: object) -> GraphAnswer: ...


class ExplainVerb(Protocol):
    """``mw.explain``."""

    @overload
    def __call__(self, *plan: object, measured: str, **options: object) -> Diagnosis: ...
    @overload
    def __call__(self, *plan: object, trace: str, **options: object) -> ProfiledStep: ...
    @overload
    def __call__(self, *plan: object, **options: object) -> Explanation: ...


class ValidateVerb(Protocol):
    """``mw.validate``."""

    @overload
    def __call__(self, *, kernels: Literal[True], **options: object) -> Shown: ...
    @overload
    def __call__(self, **options: object) -> Validation: ...
