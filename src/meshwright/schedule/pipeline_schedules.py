"""The interface of every pipeline schedule: closed forms on numbers or columns, and its order.

A stage owns ``num_virtual_stages`` chunks of layers; chunk c of stage s holds the c * p + s-th run
of layers of the model. The times given to a schedule are those of one micro-batch through ALL the
layers of one stage, so one chunk takes 1 / v of them. No network and no memory sizes live here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from meshwright.base.arrays import Mask, Num, ceil_div, positive_part, smaller, where
from meshwright.base.registry import Registry


class TaskKind(StrEnum):
    """Kind of pass of one chunk of one micro-batch on a stage."""

    FORWARD = "F"
    BACKWARD = "B"
    """Input gradient and weight gradient in one task."""
    BACKWARD_INPUT = "BI"
    BACKWARD_WEIGHT = "BW"


class OrderedPass(NamedTuple):
    """One entry of the order of a stage."""

    kind: TaskKind
    micro_batch: int
    chunk: int


class Gathers(NamedTuple):
    """Gathers of sharded weights in a step, by the pass that waits for them [1]."""

    forward: Num
    backward: Num


PREFETCHED_CHUNKS = 3
"""Chunks of a device with gathered weights at once.

Source: PyTorch 2.13 ``distributed/pipelining/schedules.py``, ``_add_unshard_reshard``.
"""


class PipelineSchedule(ABC):
    """Closed forms and order of a schedule; here of one chunk per stage: fill, work, drain.

    Closed forms take numbers or columns, shape (rows,).
    """

    @staticmethod
    def is_legal(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Mask:
        """Return whether (or for which rows) the schedule exists."""
        return num_virtual_stages == 1

    @staticmethod
    def bubble_s(
        forward_s: Num, backward_input_s: Num, backward_weight_s: Num, send_s: Num,
        num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num,
    ) -> Num:  # fmt: skip
        """Return the idle time of one step on a stage [s]: (p - 1) (t_f + t_b + 2 t_send).

        Sends that fill and drain the pipeline included.
        """
        return (num_stages - 1) * (forward_s + backward_input_s + backward_weight_s + 2 * send_s)

    @staticmethod
    def sends_per_micro_batch(num_virtual_stages: Num) -> Num:
        """Return the number of sends of a middle stage per micro-batch.

        One activation forward and one gradient backward for each chunk.
        """
        return 2 * num_virtual_stages

    @staticmethod
    @abstractmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """Return the sends a step waits for, beyond the bubble, although they are asynchronous.

        Where the stage waits for each send instead, all of them are exposed:
        ``num_micro_batches * sends_per_micro_batch(num_virtual_stages)``.
        """

    @staticmethod
    @abstractmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """Return the most micro-batches with activations on a stage at once.

        In units of all the layers of the stage, so it need not be whole where a stage has chunks.
        """

    @classmethod
    def num_gathers(
        cls, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Gathers:
        """Return the gathers of all weights of a stage where forward passes let them go.

        Backward passes keep them, so that a pass gathers if it is the first or follows a forward
        pass of its chunk: m + 1 gathers in a step, those of the warm-up of the first stage forward.
        Four stages and eight micro-batches of 1F1B: 4 forward, 5 backward.
        """
        forward = cls.peak_in_flight(0, num_stages, num_virtual_stages, num_micro_batches)
        return Gathers(forward, num_micro_batches + 1 - forward)

    @staticmethod
    @abstractmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[OrderedPass]:
        """Return the tasks of a stage, in order."""


class GPipe(PipelineSchedule):
    """All micro-batches forward, then all backward; every activation is kept.

    Source: Huang et al. 2019, GPipe (arXiv 1811.06965), section 2.3.
    """

    @staticmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """Return no exposed sends: each pass waits for nothing but the filling pipeline."""
        return 0 * (num_stages * num_micro_batches)

    @staticmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """Return all micro-batches, on every stage."""
        return num_micro_batches + 0 * stage

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[OrderedPass]:
        """Return F0 F1 ... then B0 B1 ..., the same on every stage."""
        forward = [OrderedPass(TaskKind.FORWARD, i, 0) for i in range(num_micro_batches)]
        return forward + [OrderedPass(TaskKind.BACKWARD, i, 0) for i in range(num_micro_batches)]


class OneForwardOneBackward(PipelineSchedule):
    """PipeDream-flush: the bubble of GPipe with the activations of at most p micro-batches.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1.
    """

    @staticmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """Return 2 floor((m - 1) (p - 1) / p): stages in step wait for each other's answers.

        The round trip of p micro-batches over the pipeline holds 2 (p - 1) sends and no slack.

        Source: derived; equals the replayed timeline for equal stages.
        """
        between = num_micro_batches - 1
        return 2 * (between - ceil_div(between, num_stages))

    @staticmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """Return min(m, p - stage): stage s is p - s passes away from the first gradient."""
        return smaller(num_micro_batches, num_stages - stage)

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[OrderedPass]:
        """Return p - stage - 1 forward passes of warm-up, then F B in turn, then all other B."""
        warm_up = min(num_stages - stage - 1, num_micro_batches)
        tasks = [OrderedPass(TaskKind.FORWARD, i, 0) for i in range(warm_up)]
        for i in range(warm_up, num_micro_batches):
            tasks.append(OrderedPass(TaskKind.FORWARD, i, 0))
            tasks.append(OrderedPass(TaskKind.BACKWARD, i - warm_up, 0))
        left = range(num_micro_batches - warm_up, num_micro_batches)
        return tasks + [OrderedPass(TaskKind.BACKWARD, i, 0) for i in left]


class Interleaved(PipelineSchedule):
    """1F1B over v chunks per stage: the bubble falls by v, sends and activations rise.

    Micro-batches go through a chunk in runs of p, then through the next chunk.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2; warm-up of
    2 (p - s - 1) + (v - 1) p chunk passes as in Megatron-LM's pipeline schedules; in-flight
    p (1 + (p - 1) / (p v)) on stage 0: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.3.
    """

    @staticmethod
    def is_legal(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Mask:
        """Return whether there are two or more stages and chunks, and micro-batches divide by p."""
        many = (num_virtual_stages > 1) & (num_stages > 1)
        return many & (num_micro_batches % num_stages == 0)

    @staticmethod
    def bubble_s(
        forward_s: Num, backward_input_s: Num, backward_weight_s: Num, send_s: Num,
        num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num,
    ) -> Num:  # fmt: skip
        """Return the idle time of one step [s]: (p - 1) ((t_f + t_b) / v + 2 t_send).

        A send carries the activations of one micro-batch for any number of chunks, so the
        sends that fill and drain the pipeline do not shrink with v.
        """
        stage_s = forward_s + backward_input_s + backward_weight_s
        return (num_stages - 1) * (stage_s / num_virtual_stages + 2 * send_s)

    @staticmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """Return 2 (v - 1) p: only warm-up and cool-down wait, once for each further chunk.

        Source: derived; equals the replayed timeline for equal stages.
        Valid for: sends up to (t_f + t_b) / (3 v); longer ones are exposed in the steady state too.
        """
        return 2 * (num_virtual_stages - 1) * num_stages

    @staticmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """Return min(m, (2 (p - s - 1) + (v - 1) p + 1) / v): warm-up and one more, in chunks."""
        warm_up = 2 * (num_stages - stage - 1) + (num_virtual_stages - 1) * num_stages
        return smaller(num_micro_batches, (warm_up + 1) / num_virtual_stages)

    @classmethod
    def num_gathers(
        cls, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Gathers:
        """Return m + 1 gathers, of which one of each run of p backward passes is a backward one.

        Of more than three chunks some are let go before the next run of p passes:
        v - 2 - (v mod 2) in each run but the first, and 1 + (v mod 2) more, on the stage with the
        most. Four stages, eight chunks, 32 micro-batches: 33 + (6 x 7 + 1) / 8 = 38.375 gathers.

        Source: derived; equals the most of :func:`gathers_of` for two runs or more.
        """
        v, runs = num_virtual_stages, num_micro_batches / num_stages
        again = (v - 2 - v % 2) * (runs - 1) + 1 + v % 2
        again = where((v > PREFETCHED_CHUNKS) & (runs > 1), again / v, 0.0 * runs)
        return Gathers(num_micro_batches + 1 - runs + again, runs)

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[OrderedPass]:
        """Return the warm-up, then F B in turn, then the remaining B, in passes of one chunk."""
        num_passes = num_virtual_stages * num_micro_batches
        passes = []
        for index in range(num_passes):  # a run of p micro-batches through each chunk in turn
            run, within = divmod(index, num_stages * num_virtual_stages)
            chunk, offset = divmod(within, num_stages)
            passes.append((run * num_stages + offset, chunk))
        forward = [OrderedPass(TaskKind.FORWARD, i, chunk) for i, chunk in passes]
        last = num_virtual_stages - 1
        backward = [OrderedPass(TaskKind.BACKWARD, i, last - chunk) for i, chunk in passes]
        warm_up = 2 * (num_stages - stage - 1) + last * num_stages
        warm_up = min(warm_up, num_passes)
        steady = num_passes - warm_up
        pairs = zip(forward[warm_up:], backward[:steady], strict=True)
        return forward[:warm_up] + [task for pair in pairs for task in pair] + backward[steady:]


class ZeroBubble(PipelineSchedule):
    """1F1B with a split backward pass; stage s delays its weight gradients by s micro-batches.

    Every stage then holds at most min(m, p) micro-batches, as stage 0 of 1F1B does.

    Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 2.2.
    """

    @staticmethod
    def bubble_s(
        forward_s: Num, backward_input_s: Num, backward_weight_s: Num, send_s: Num,
        num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num,
    ) -> Num:  # fmt: skip
        """Return the idle time [s]: (p - 1) (t_f + t_bi + 2 t_send) - (min(m, p) - 1) t_fill.

        t_fill = min(t_f + t_send, t_bi + t_send, t_bw) is the time that one weight gradient fills;
        for m >= p and a short t_bw this is the published (p - 1) (t_f + t_bi - t_bw).
        """
        filled_s = smaller(smaller(forward_s, backward_input_s) + send_s, backward_weight_s)
        fill_and_drain_s = (num_stages - 1) * (forward_s + backward_input_s + 2 * send_s)
        return fill_and_drain_s - (smaller(num_micro_batches, num_stages) - 1) * filled_s

    @staticmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """Return 2 min(p - 1, max(m - 2, 0)): weight gradients hide sends of the steady state.

        Source: derived; equals the replayed timeline for equal stages.
        Valid for: sends short against t_bw, and t_bw <= min(t_f, t_bi).
        """
        return 2 * smaller(num_stages - 1, positive_part(num_micro_batches - 2))

    @staticmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """Return min(m, p) on every stage, until the weight gradient has used the activations."""
        return smaller(num_micro_batches, num_stages) + 0 * stage

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[OrderedPass]:
        """Return 1F1B of F and BI; the stage-th BI after that of a micro-batch precedes its BW."""
        warm_up = min(num_stages - stage - 1, num_micro_batches)
        tasks = [OrderedPass(TaskKind.FORWARD, i, 0) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if i + warm_up < num_micro_batches:
                tasks.append(OrderedPass(TaskKind.FORWARD, i + warm_up, 0))
            tasks.append(OrderedPass(TaskKind.BACKWARD_INPUT, i, 0))
            if i >= stage:
                tasks.append(OrderedPass(TaskKind.BACKWARD_WEIGHT, i - stage, 0))
        delayed = range(max(num_micro_batches - stage, 0), num_micro_batches)
        return tasks + [OrderedPass(TaskKind.BACKWARD_WEIGHT, i, 0) for i in delayed]


def gathers_of(order: Sequence[OrderedPass], num_virtual_stages: int) -> list[Gathers]:
    """Return the gathers of each chunk of a stage where forward passes let weights go.

    Of several chunks the next ``PREFETCHED_CHUNKS`` are gathered ahead, and all others let go.

    Source: PyTorch 2.13 ``distributed/pipelining/schedules.py``, ``_add_unshard_reshard``;
    ``stage.py``, ``backward_maybe_with_nosync`` (``set_reshard_after_backward``).
    """
    gathered: set[int] = set()
    ahead: set[int] = set()
    counts = [[0, 0] for _ in range(num_virtual_stages)]

    def gather(chunk: int, *, is_forward: bool) -> None:
        if chunk not in gathered:
            gathered.add(chunk)
            counts[chunk][not is_forward] += 1

    for at, task in enumerate(order):
        if num_virtual_stages > 1:
            coming = _next_chunks(order, at, min(num_virtual_stages, PREFETCHED_CHUNKS))
            gathered -= ahead - set(coming)
            for chunk in coming:
                if chunk not in ahead:
                    gather(chunk, is_forward=True)
            ahead = set(coming)
        is_forward = task.kind is TaskKind.FORWARD
        gather(task.chunk, is_forward=is_forward)
        if is_forward:
            gathered.remove(task.chunk)
    return [Gathers(*count) for count in counts]


def _next_chunks(order: Sequence[OrderedPass], at: int, number: int) -> list[int]:
    """Return the next chunks at work from a place in the order on, each once."""
    found: dict[int, None] = {}
    while at < len(order) and len(found) < number:
        found.setdefault(order[at].chunk)
        at += 1
    return list(found)


schedules: Registry[type[PipelineSchedule]] = Registry("pipeline schedule")
"""Keyed by the values of the strategy's schedule kind."""
schedules.fill(
    {
        "gpipe": GPipe, "interleaved": Interleaved, "1f1b": OneForwardOneBackward,
        "zero_bubble": ZeroBubble,
    },
    "schedules",
)  # fmt: skip
