"""Chakra: the step of a plan as execution traces, one for each rank, as ASTRA-sim reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.base.errors import Fault
from meshwright.catalog.calibration import load_calibration
from meshwright.cost.layer import streamed_blocks
from meshwright.cost.problem import Problem
from meshwright.frameworks.chakra.step_program import StepProgram, TraceFiles
from meshwright.frameworks.framework import LaunchFiles, framework
from meshwright.frameworks.refusals import choice_refusal, offload_refusals, plan_refusals
from meshwright.sharding.strategy import Streamed, stack
from meshwright.train.answer import Plan


@framework("chakra", writes="chakra")
class ChakraTraces(LaunchFiles):
    """Traces in the schema of mlcommons/chakra, and the groups of ranks that they name."""

    is_text = False

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that traces cannot express."""
        return [*plan_refusals(plan), *offload_refusals(plan), *_stream_refusals(plan)]

    def render(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the files; ranks are those of the axis order, wherever they are placed."""
        return TraceFiles(StepProgram(_problem(plan), plan.best.plan_options, plan.best.strategy))


def _problem(plan: Plan) -> Problem:
    """Return the problem that the plan solves, with its calibration."""
    constants = load_calibration(plan.system.chip.family, plan.calibration)
    if plan.factors is not None:
        constants = plan.factors.applied(constants)
    return Problem(plan.model, plan.system, plan.workload, constants)


def _stream_refusals(plan: Plan) -> Iterator[Fault]:
    plan_options, strategy = plan.best.plan_options, plan.best.strategy
    if strategy.tatp == 1:
        return
    problem = _problem(plan)
    network = problem.network(plan_options.axis_order, stack([strategy]))
    blocks = [
        block for piece in streamed_blocks(problem, plan_options, network) for block, *_ in piece
    ]
    if any(block.plan_options.streamed is not Streamed.WEIGHTS for block in blocks):
        reason = "traces hold streams of weights alone; this plan streams inputs of some layers"
        yield choice_refusal(
            "plan_options.streamed", plan_options.streamed, reason, "streamed=weights"
        )
