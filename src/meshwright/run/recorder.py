"""A recorder of every send of a process: operation, group, elements, phase, and round.

It stands between PyTorch and its process groups (a dispatch mode), so that it sees what layers,
FSDP and pipelines really send, not what they mean to. Layers say the site and the phase.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.graph.op import Phase
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import Send


class Call(NamedTuple):
    """A kind of collective: calls of one kind add up."""

    kind: CollectiveKind
    axis: str
    phase: Phase
    site: str


class StreamPass(NamedTuple):
    """One pass of a tensor stream, as a member made it."""

    axis: str
    is_reversed: bool
    sends: tuple[tuple[Send, int], ...]
    """Sends of the member, with the elements of each."""
    most_held: int
    """Items of others that the member held at once, arriving ones included; 0 on the way back."""


class Said(NamedTuple):
    """The label that a layer gives to the collective that it is about to make."""

    axis: str
    site: str
    phase: Phase
    is_counted: bool = True
    """Whether the call is one of the derivation; sends of a stream are counted as one pass, and
    row counts that experts exchange first as none."""


_FULL = {
    "_allgather_base_": (CollectiveKind.ALL_GATHER, 0),
    "_reduce_scatter_base_": (CollectiveKind.REDUCE_SCATTER, 1),
    "allreduce_": (CollectiveKind.ALL_REDUCE, 0),
    "alltoall_base_": (CollectiveKind.ALL_TO_ALL, 1),
    "send": (CollectiveKind.SEND, 0),
}
"""Operations of process groups: their kind, and the argument that holds the full tensor."""
UNKNOWN = "not by a layer"


class Recorder(TorchDispatchMode):
    """Counts of the collectives of a process, and its passes of streams."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Call] = Counter()
        self.elements: Counter[Call] = Counter()
        self.passes: list[StreamPass] = []
        self._axis_of: dict[str, str] = {}
        self._said: list[Said] = []
        self._expected: dict[int, Said] = {}
        self.waited_s = 0.0
        """Time in collectives of layers, and waiting for what a stream brings [s]."""
        self.streamed_elements = 0
        """Elements of the sends of streams, as they passed by."""

    def know(self, group: Any, axis: str) -> None:
        """Learn the axis of a group for which PyTorch calls without a layer."""
        self._axis_of[group.group_name] = axis

    def expect(self, tensor: Tensor, said: Said) -> None:
        """Learn what the coming send of a tensor is for."""
        self._expected[tensor.data_ptr()] = said

    @contextmanager
    def saying(
        self, axis: str, site: str, phase: Phase, *, is_counted: bool = True
    ) -> Iterator[None]:
        """Say what the collectives made inside are for."""
        self._said.append(Said(axis, site, phase, is_counted))
        try:
            with self.waiting():
                yield
        finally:
            self._said.pop()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the time of what is inside to that of communication."""
        start_s = time.perf_counter()
        yield
        self.waited_s += time.perf_counter() - start_s

    @contextmanager
    def recording(self, *, is_on: bool = True) -> Iterator[None]:
        """Count what is sent inside."""
        if not is_on:
            passes = len(self.passes)
            calls, elements = self.calls.copy(), self.elements.copy()
            yield
            del self.passes[passes:]
            self.calls, self.elements = calls, elements
            return
        with self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._note(func, args)
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any, args: Any) -> None:
        """Count one operation of a process group."""
        kind, place = _FULL.get(func._opname, (None, 0))
        if kind is None:
            return
        full = args[place]
        tensors = full if isinstance(full, list) else [full]
        elements = sum(tensor.numel() for tensor in tensors)
        said = self._said[-1] if self._said else self._expected.pop(tensors[0].data_ptr(), None)
        if said is None:
            said = self._guess(kind, args)
        if said.is_counted:
            self.add(kind, said.axis, said.site, said.phase, elements)
        elif kind is CollectiveKind.SEND and self._said:
            self.streamed_elements += elements

    def add(self, kind: CollectiveKind, axis: str, site: str, phase: Phase, elements: int) -> None:
        """Count a collective; forward calls inside a backward pass are those of recomputation."""
        if phase is Phase.FORWARD and in_backward():
            phase = Phase.INPUT_GRADIENT
        call = Call(kind, axis, phase, site)
        self.calls[call] += 1
        self.elements[call] += elements

    def _guess(self, kind: CollectiveKind, args: Any) -> Said:
        """Return the axis by the group, and the phase by the pass that is under way."""
        group = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
        axis = self._axis_of.get(dist.ProcessGroup.unbox(group).group_name, UNKNOWN)
        reduces = kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
        if reduces:
            return Said(axis, UNKNOWN, Phase.WEIGHT_GRADIENT)
        # Pipelines shake hands before their first step; what stages send is expected.
        return Said(axis, UNKNOWN, Phase.INPUT_GRADIENT if in_backward() else Phase.FORWARD,
                    is_counted=kind is not CollectiveKind.SEND)  # fmt: skip


def in_backward() -> bool:
    """Return whether a backward pass is under way in this thread."""
    return torch._C._current_graph_task_id() != -1
