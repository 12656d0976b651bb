"""Chakra: the step of a plan as execution traces, one for each rank, as ASTRA-sim reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.base.errors import Fault
from meshwright.catalog.calibration import load_calibration
from meshwright.exporters.chakra.files import TraceFiles
from meshwright.exporters.chakra.step_program import StepProgram
from meshwright.exporters.refusals import choice_refusal, offload_refusals, plan_refusals
from meshwright.exporters.registry import exporters
from meshwright.plans import Plan
from meshwright.pricing.problem import Problem
from meshwright.strategy.axes.tatp import streams_inputs


@exporters.register("chakra")
class ChakraTraces:
    """Traces in the schema of mlcommons/chakra, and the groups of ranks that they name."""

    title = "Chakra execution traces, schema 0.0.4"
    is_text = False

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return what the traces do not hold."""
        return [*plan_refusals(plan), *offload_refusals(plan, ()), *_stream_refusals(plan)]

    @staticmethod
    def render(plan: Plan) -> Mapping[str, bytes]:
        """Return the files; ranks are those of the axis order, wherever they are placed."""
        constants = load_calibration(plan.system.chip.family, plan.calibration)
        problem = Problem(plan.model, plan.system, plan.workload, constants)
        return TraceFiles(StepProgram(problem, plan.best.structure, plan.best.strategy))


def _stream_refusals(plan: Plan) -> Iterator[Fault]:
    structure = plan.best.structure
    if plan.best.strategy.tatp > 1 and streams_inputs(structure):
        reason = "traces hold streams of weights"
        yield choice_refusal("structure.streamed", structure.streamed, reason, "streamed=weights")
