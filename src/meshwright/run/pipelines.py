"""Pipelines of PyTorch with labelled sends: activations forward, gradients backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from meshwright.graph.op import Phase
from meshwright.run.recorder import Label, Recorder
from meshwright.sharding.strategy import ScheduleKind

SCHEDULES = {
    ScheduleKind.GPIPE: "GPipe",
    ScheduleKind.ONE_F_ONE_B: "1F1B",
    ScheduleKind.INTERLEAVED: "Interleaved1F1B",
    ScheduleKind.ZERO_BUBBLE: "InterleavedZeroBubble",
}
"""Names in ``torch/distributed/pipelining/schedules.py``, ``get_schedule_class`` (PyTorch 2.13)."""


class LabelledStage(PipelineStage):
    """A stage of PyTorch that labels its sends for a recorder."""

    def __init__(self, *args: Any, recorder: Recorder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = recorder

    def get_fwd_send_ops(self, *args: Any) -> list[Any]:
        """Return the sends of activations."""
        return self._labelled(super().get_fwd_send_ops(*args), Phase.FORWARD)

    def get_bwd_send_ops(self, *args: Any) -> list[Any]:
        """Return the sends of gradients."""
        return self._labelled(super().get_bwd_send_ops(*args), Phase.INPUT_GRADIENT)

    def receive_buffers(self) -> list[Tensor]:
        """Return the receive buffers for activations and gradients of other stages."""
        infos = [*self.args_recv_info.values(), *self.grad_recv_info.values()]
        buffers = [getattr(info, "buffer", None) for every in infos for info in every]
        return [buffer for buffer in buffers if buffer is not None]

    def _labelled(self, operations: list[Any], phase: Phase) -> list[Any]:
        for operation in operations:
            self.recorder.expect(operation.tensor, Label("pp", "stage boundary", phase))
        return operations


def schedule_of(
    kind: ScheduleKind,
    stages: Sequence[PipelineStage],
    num_micro_batches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    **options: Any,
) -> Any:
    """Return the schedule of PyTorch over the stages of one rank."""
    made = schedules.get_schedule_class(SCHEDULES[kind])
    is_multiple = issubclass(made, schedules.PipelineScheduleMulti)
    return made(stages if is_multiple else stages[0], num_micro_batches, loss_fn=loss, **options)
