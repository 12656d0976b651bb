"""The second provider: each reference point priced by our own model, with reasons."""

from __future__ import annotations

from collections.abc import Sequence

from calculon_breakdowns import (
    our_memory,
    our_serving_memory,
    our_serving_time,
    our_time,
    their_memory,
    their_point,
    their_time,
)
from calculon_mapping import Question, question_of
from calculon_mechanisms import Breakdown, reason_of, terms_between
from calculon_points import Estimate, Point, is_far

from meshwright.base.errors import Fault
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_one
from meshwright.serve.price import price_serving
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import stack
from meshwright.train.question import check_problem


def own_model_rows(points: Sequence[Point]) -> list[Estimate]:
    """Return the points under our own model, given the peer's assumptions."""
    return [own_model_row(point) for point in points]


def own_model_row(point: Point) -> Estimate:
    """Return one point: refused by a rule of ours, too large, or priced with its reasons."""
    question = question_of(point.model, point.system, point.execution)
    faults = faults_of(question)
    if faults:
        text = "; ".join(str(fault) for fault in faults)
        return Estimate(None, None, f"rule {faults[0].path}", f"our rules: {text}")
    (our_step, our_bytes), (their_step, their_bytes) = breakdowns(point, question)
    capacity = question.problem.system.chip.main_memory.capacity_bytes
    reasons = []
    memory_reason = _reason("memory", our_bytes, their_bytes)
    if our_bytes.total > capacity:
        needs = f"memory: {our_bytes.total / 2**30:,.1f} of {capacity / 2**30:,.0f} GiB"
        return Estimate(None, our_bytes.total, needs, memory_reason)
    if is_far(our_step.total, point.step_s):
        reasons.append(_reason("time", our_step, their_step))
    if is_far(our_bytes.total, point.memory_bytes) or point.refusal:
        reasons.append(memory_reason)
    return Estimate(our_step.total, our_bytes.total, "", "; ".join(reasons))


def _reason(what: str, ours: Breakdown, theirs: Breakdown) -> str:
    return reason_of(what, terms_between(ours, theirs), theirs.total)


def faults_of(question: Question) -> list[Fault]:
    """Return the rules of ours that a point breaks."""
    problem, strategy, plan_options = question.problem, question.strategy, question.plan_options
    if isinstance(problem, Problem):
        return check_problem(problem, strategy, plan_options)
    columns = stack([strategy])
    case = Case(problem.model, problem.workload, plan_options, columns)
    found = all_refusals(problem.model, problem.workload, columns, plan_options)
    return [Fault(refusal.name, refusal.text(case, 0)) for refusal in found]


def breakdowns(
    point: Point, question: Question
) -> tuple[tuple[Breakdown, Breakdown], tuple[Breakdown, Breakdown]]:
    """Return (time, memory) of ours, then of theirs; each breakdown sums to its whole."""
    theirs = their_point(point)
    their_parts = their_time(point, theirs), their_memory(point, theirs)
    problem, strategy, plan_options = question.problem, question.strategy, question.plan_options
    if isinstance(problem, Problem):
        priced = price_one(problem, plan_options, strategy)
        ours = our_time(point, question, priced), our_memory(point, question, priced, theirs)
        return ours, their_parts
    price = price_serving(problem, plan_options, stack([strategy]), 1.0)
    return (our_serving_time(question, price), our_serving_memory(question, price)), their_parts
