"""The passes of a step as tasks: the one enumeration of a step.

Players, pictures and traces of a step read it; they add seconds, messages and links of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.base.errors import MeshwrightError
from meshwright.schedule.pipeline_schedules import PipelineSchedule, TaskKind

NONE = -1
"""Number of no task."""


class PassTask(NamedTuple):
    """One pass of a micro-batch through a chunk of a stage."""

    stage: int
    kind: TaskKind
    micro_batch: int
    chunk: int
    position: int
    """Place of its layers in the model: chunk x stages + stage."""
    needs: tuple[int, ...]
    """Numbers of the tasks that it waits for, besides the task before it on its stage."""
    sender: int
    """Number of the task in ``needs`` that sends its input from a neighbouring position."""
    receiver: int
    """Position that it sends its output to."""


def pass_tasks(
    schedule: type[PipelineSchedule], num_stages: int, num_virtual_stages: int,
    num_micro_batches: int,
) -> list[PassTask]:  # fmt: skip
    """Return the tasks of a step, each after the tasks that it needs; those of a stage in order.

    A forward pass needs that of the layers before, an input gradient that of the layers behind and
    its own forward pass, a weight gradient its input gradient.

    Raises
    ------
    MeshwrightError
        When the orders wait for each other (deadlock); the message names the missing pass.
    """
    shape = (num_stages, num_virtual_stages, num_micro_batches)
    orders = [schedule.order(stage, *shape) for stage in range(num_stages)]
    last = num_stages * num_virtual_stages - 1
    tasks: list[PassTask] = []
    outputs: dict[tuple[bool, int, int], int] = {}
    """Task by whether it is forward, micro-batch and position."""
    at = [0] * num_stages
    before = -1
    while before < len(tasks):
        before = len(tasks)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, micro_batch, chunk = order[at[stage]]
                position = chunk * num_stages + stage
                is_forward = kind is TaskKind.FORWARD
                ahead = position + (1 if is_forward else -1)
                behind = position - (1 if is_forward else -1)
                sends = kind is not TaskKind.BACKWARD_WEIGHT
                receives = sends and 0 <= behind <= last
                inputs = [] if is_forward else [(sends, micro_batch, position)]
                inputs += [(is_forward, micro_batch, behind)] * receives
                needs = tuple(outputs.get(key, NONE) for key in inputs)
                if NONE in needs:
                    break
                if sends:
                    outputs[is_forward, micro_batch, position] = len(tasks)
                sender = needs[-1] if receives else NONE
                receiver = ahead if sends and 0 <= ahead <= last else NONE
                tasks.append(
                    PassTask(stage, kind, micro_batch, chunk, position, needs, sender, receiver)
                )
                at[stage] += 1
    stuck = [stage for stage, order in enumerate(orders) if at[stage] < len(order)]
    if stuck:
        kind, micro_batch, chunk = orders[stuck[0]][at[stuck[0]]]
        raise MeshwrightError(
            f"the pipeline order deadlocks: stages {stuck} wait; stage {stuck[0]} cannot start "
            f"{kind} of micro-batch {micro_batch}, chunk {chunk}"
        )
    return tasks
