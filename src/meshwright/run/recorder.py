"""Records every collective of a process: kind, axis, phase, site, bytes, and round.

The recorder is a dispatch mode between PyTorch and its process groups, so it sees the collectives
that layers, FSDP and pipelines execute. Layers state the site and the phase.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meshwright.graph.op import Phase
from meshwright.run.answer import Call
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import Send

c10d, functional = torch.ops.c10d, torch.ops._c10d_functional
GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
COLLECTIVES: dict[Any, tuple[CollectiveKind, int | slice | None]] = {
    c10d._allgather_base_.default: (GATHER, 0),
    c10d.allgather_.default: (GATHER, 0),
    c10d._reduce_scatter_base_.default: (SCATTER, 1),
    c10d.reduce_scatter_.default: (SCATTER, 1),
    c10d.allreduce_.default: (REDUCE, 0),
    c10d.broadcast_.default: (CollectiveKind.BROADCAST, 0),
    c10d.alltoall_base_.default: (EXCHANGE, 1),
    c10d.alltoall_.default: (EXCHANGE, 1),
    c10d.send.default: (CollectiveKind.SEND, 0),
    functional.all_gather_into_tensor.default: (GATHER, None),
    functional.all_gather_into_tensor_out.default: (GATHER, None),
    functional.reduce_scatter_tensor.default: (SCATTER, 0),
    functional.all_reduce.default: (REDUCE, 0),
    functional.all_reduce_.default: (REDUCE, 0),
    functional.all_to_all_single.default: (EXCHANGE, 0),
    functional.broadcast.default: (CollectiveKind.BROADCAST, 0),
    torch.ops._dtensor.shard_dim_alltoall.default: (EXCHANGE, 0),
}
"""Kind of each operator, and its argument that holds the full tensors; None: its result."""


class Label(NamedTuple):
    """Purpose of the next collective, as stated by the layer or stage that calls it."""

    axis: str
    site: str
    phase: Phase
    is_counted: bool = True
    """Whether the derivation has the call. It has neither the single sends of a stream, which count
    as one pass, nor the row counts that experts exchange first."""


class RecordedPass(NamedTuple):
    """One pass of a tensor stream on one member."""

    axis: str
    is_reversed: bool
    sends: tuple[tuple[Send, int], ...]
    """Sends of the member, with the bytes of each."""
    most_held: int
    """Most items of others held at once, arriving ones included; 0 for a reversed pass."""


class Recorder(TorchDispatchMode):
    """Counts of the collectives of a process, and its passes of streams."""

    collectives = COLLECTIVES

    def __init__(self, axis_of: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.axis_of = dict(axis_of or {})
        """Axis of each process group that PyTorch itself uses, by group name."""
        self.calls: Counter[Call] = Counter()
        self.num_bytes: Counter[Call] = Counter()
        """Bytes of the full tensors: after a gather, before a reduction [bytes]."""
        self.passes: list[RecordedPass] = []
        self.streamed_bytes = 0
        """Bytes of the sends of streams that the process group carried [bytes]."""
        self.waits_s: defaultdict[str, list[float]] = defaultdict(list)
        """Time that layers wait for each collective and each round of a stream, by axis [s]."""
        self.sums_gradients = False
        """Whether collectives without a label sum gradients at present."""
        self._labels: list[Label] = []
        self._expected: dict[int, Label] = {}

    def expect(self, tensor: Tensor, label: Label) -> None:
        """Label the next send of a tensor."""
        self._expected[id(tensor)] = label

    @contextmanager
    def saying(
        self, axis: str, site: str, phase: Phase, *, is_counted: bool = True
    ) -> Iterator[None]:
        """Label the collectives inside the context."""
        self._labels.append(Label(axis, site, phase, is_counted))
        try:
            with self.waiting(axis):
                yield
        finally:
            self._labels.pop()

    @contextmanager
    def waiting(self, axis: str) -> Iterator[None]:
        """Note the time inside the context as communication over an axis."""
        start_s = time.perf_counter()
        yield
        self.waits_s[axis].append(time.perf_counter() - start_s)

    @contextmanager
    def recording(self, *, is_on: bool = True) -> Iterator[None]:
        """Count the collectives inside the context."""
        if not is_on:
            passes = len(self.passes)
            calls, num_bytes = self.calls.copy(), self.num_bytes.copy()
            yield
            del self.passes[passes:]
            self.calls, self.num_bytes = calls, num_bytes
            return
        with self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and record it if it is a collective."""
        result = func(*args, **(kwargs or {}))
        if func in self.collectives:
            kind, place = self.collectives[func]
            full = result if place is None else args[place]
            tensors = [one for one in tree_leaves(full) if isinstance(one, Tensor)]
            self.note(kind, self._axis(args), tensors, args)
        return result

    def note(self, kind: CollectiveKind, axis: str, tensors: list[Tensor], args: Any) -> None:
        """Count a collective of full tensors under its label, or else under the current pass."""
        label = self._labels[-1] if self._labels else self._expected.pop(id(tensors[0]), None)
        num_bytes = sum(one.nbytes for one in tensors)
        if label is None:
            # Pipelines shake hands before their first step; sends between stages have labels.
            if kind is not CollectiveKind.SEND:
                self.add(Call(kind, axis, self.phase_of(kind, axis)), num_bytes)
        elif label.is_counted:
            self.add(Call(kind, label.axis, label.phase, label.site), num_bytes)
        elif kind is CollectiveKind.SEND:
            self.streamed_bytes += num_bytes

    def add(self, call: Call, num_bytes: int) -> None:
        """Count a collective; forward calls inside a backward pass belong to recomputation."""
        if call.phase is Phase.FORWARD and in_backward():
            call = call._replace(phase=Phase.INPUT_GRADIENT)
        self.calls[call] += 1
        self.num_bytes[call] += num_bytes

    def phase_of(self, kind: CollectiveKind, axis: str) -> str:
        """Return the phase of a collective without a label."""
        if self.sums_gradients or (kind in (SCATTER, REDUCE) and ("dp" in axis or axis == "cp")):
            return Phase.WEIGHT_GRADIENT
        return Phase.INPUT_GRADIENT if in_backward() else Phase.FORWARD

    def _axis(self, args: Any) -> str:
        names = (name for name in map(_group_name, args) if name in self.axis_of)
        return self.axis_of.get(next(names, ""), "")


def _group_name(argument: Any) -> str:
    """Return the name of a process group, or an empty text for another argument."""
    if isinstance(argument, str):
        return argument
    if isinstance(argument, torch.ScriptObject):
        try:
            return str(torch.distributed.ProcessGroup.unbox(argument).group_name)
        except (RuntimeError, TypeError):
            return ""
    return ""


def in_backward() -> bool:
    """Return whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1
