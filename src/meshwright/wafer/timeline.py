"""The step of a plan over time on any system: on a grid with the links that its axes share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.base.errors import UnsupportedError
from meshwright.network.placement import Nesting
from meshwright.train.answer import Plan
from meshwright.train.timeline import StepTimeline, plan_timeline, step_timeline
from meshwright.wafer.price import choice_network, physical_network
from meshwright.wafer.search import price_as_placed


def timeline(plan: Plan) -> StepTimeline:
    """Return the tasks of each pipeline stage of the best candidate over time, and its memory.

    Raises
    ------
    UnsupportedError
        The placement that the plan states does not fit its system.
    """
    if plan.best.placement is None:
        return plan_timeline(plan)
    problem = plan.problem
    price = price_as_placed(problem, plan.best, physical_network(problem))
    if price is None:
        raise UnsupportedError("the placement of the plan does not fit the devices of its system")
    choice = Nesting(price.ranks.axes, price.ranks.shapes)
    slowdown = {axis: np.array([times]) for axis, times in price.contention.slowdown.items()}
    network = replace(choice_network(problem, [(plan.best.strategy, [choice])]), slowdown=slowdown)
    at_pace = problem.at_pace(price.work.pace, price.work.most_work)
    return step_timeline(plan, at_pace, price.contended, network, fidelity="contended")
