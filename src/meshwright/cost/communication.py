"""Collectives of a layer: their seconds, and what of them shows beside computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce

import numpy as np

from meshwright.base.arrays import Num, larger, positive_part, smaller
from meshwright.collectives.bounds import least_sent_bytes
from meshwright.collectives.registry import affine_forms, best_affine_candidates
from meshwright.cost.network import AxisNetwork
from meshwright.cost.operator import OpCost
from meshwright.cost.streamed_layer import AXIS
from meshwright.graph.op import Phase
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, StrategyOf
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Transfer:
    """A collective as the fastest of some affine functions of its bytes."""

    forms: tuple[tuple[Num, Num], ...]
    """(fixed seconds, seconds for each byte) of one message, for each algorithm."""

    def time_s(self, num_bytes: Num, num_messages: Num) -> Num:
        """Return the seconds of ``num_bytes`` sent as ``num_messages`` equal collectives."""
        times = [
            num_messages * fixed_s + num_bytes * s_per_byte for fixed_s, s_per_byte in self.forms
        ]
        return reduce(smaller, times)


@dataclass(frozen=True)
class Exposure:
    """What a transfer beside computation costs: what shows of it, and what is hidden."""

    exposed_s: Num
    hidden_s: Num


def overlapped(transfer_s: Num, window_s: Num, num_buckets: Num) -> Exposure:
    """Return how much of a transfer shows when it runs beside a window of computation.

    exposed = max(transfer - window, transfer / buckets): the last bucket is complete only when
    the computation that it could hide behind has ended.

    Parameters
    ----------
    transfer_s, window_s
        Seconds of the transfer and of the computation beside it [s].
    num_buckets
        Pieces of the transfer, at least 1.

    Source: prices follow the overlap rule of bucketed gradient reduction (Li et al. 2020,
    PyTorch Distributed, section 3.2.3).
    """
    exposed = larger(transfer_s - window_s, transfer_s / num_buckets)
    return Exposure(exposed, transfer_s - exposed)


def plain(transfer_s: Num, window_s: Num = 0.0) -> Exposure:
    """Return the exposure of a transfer that nothing hides, whatever computes meanwhile."""
    return Exposure(transfer_s, transfer_s * 0.0)


def slowdown_s(hidden_s: Num, window_s: Num, sigma: Num) -> Num:
    """Return the seconds that computation loses while a transfer runs beside it.

    sigma * min(hidden, window). Source: arXiv 2507.03114, mean slowdown 18.9 %.
    """
    return sigma * smaller(hidden_s, positive_part(window_s))


CallTime = Callable[[CollectiveKind, str, Num], Num]
"""Seconds of a collective of a kind over an axis, for a number of bytes."""


@dataclass(frozen=True)
class OpSums:
    """Sums over the operators of a layer, and those of its attention core alone."""

    everything: OpCost
    attention: OpCost
    matmul_forward_s: Num
    selected: OpCost = field(default_factory=OpCost)
    """What selective recomputation repeats."""

    def recomputed(self, recompute: Recompute) -> OpCost:
        """Return the forward computation that the backward pass repeats."""
        return {
            Recompute.NONE: OpCost(),
            Recompute.SELECTIVE: self.selected,
            Recompute.FULL: self.everything,
        }[recompute]


@dataclass(frozen=True)
class CommCost:
    """Communication of a layer that shows, by axis, and what it costs beside [s]."""

    tp_s: Num = 0.0
    cp_s: Num = 0.0
    ep_s: Num = 0.0
    stream_s: Num = 0.0
    forward_s: Num = 0.0
    """What of it belongs to the forward pass."""
    per_step_s: Num = 0.0
    link_bytes: Num = 0.0
    """That each rank sends at the least [bytes]."""
    hidden_s: Num = 0.0
    """What runs beside computation, of all axes."""


_PART_OF_AXIS = {"tp": "tp_s", "etp": "tp_s", "cp": "cp_s", "ep": "ep_s", "tatp": "stream_s"}


def comm_cost(
    calls: Sequence[CollectiveCall], sums: OpSums, sizes: Mapping[str, Num],
    strategy: StrategyOf[Num], structure: PlanOptions, call_time: CallTime, word_bytes: float,
    together: Sequence[CollectiveCall] = (),
) -> CommCost:  # fmt: skip
    """Return the communication of a layer, exposed; calls that travel in rounds left out.

    A ring of keys and values runs beside the attention core and leaves at least one of its steps
    exposed. Decomposed collectives of tp run beside the matrix products of the layer and leave one
    of their pieces exposed. What runs beside the same computation shares it: a window is spent
    once. Sums over data axes are not priced here.

    Parameters
    ----------
    sums
        Of the whole layer, which has the windows.
    together
        All calls of the layer, where ``calls`` are those of a block: they share the windows.
    """
    parts: dict[str, Num] = {entry.name: 0.0 for entry in fields(CommCost)}
    overlaps = structure.overlap_tensor_parallel
    beside = Counter(
        _window(call)
        for call in together or calls
        if is_overlapped(call, overlaps_tensor_parallel=overlaps)
    )
    for call in calls:
        axis = call.axis.split("/")[0].split("*")[0]
        if axis not in _PART_OF_AXIS or (call.streamed and call.of_weight):
            continue
        word = word_bytes if call.tensor.word_bytes is None else call.tensor.word_bytes
        num_bytes = word * local_elements(call.tensor, call.split, sizes, strategy)
        time_s = call_time(call.kind, call.axis, num_bytes)
        if call.per_step:
            parts["per_step_s"] = parts["per_step_s"] + time_s
            continue
        exposure = plain(time_s)
        if is_overlapped(call, overlaps_tensor_parallel=overlaps):
            exposure = _exposure(call, axis, time_s, sums, strategy, beside[_window(call)])
        exposed_s = exposure.exposed_s
        parts["hidden_s"] = parts["hidden_s"] + exposure.hidden_s
        parts[_PART_OF_AXIS[axis]] = parts[_PART_OF_AXIS[axis]] + exposed_s
        if call.phase is Phase.FORWARD:
            parts["forward_s"] = parts["forward_s"] + exposed_s
        members = degree_of(call.axis, strategy, sizes)
        parts["link_bytes"] = parts["link_bytes"] + least_sent_bytes(call.kind, num_bytes, members)
    return CommCost(**parts)


def is_overlapped(call: CollectiveCall, *, overlaps_tensor_parallel: bool) -> bool:
    """Return whether a call runs beside computation of its layer; over tatp only rounds do."""
    if call.per_step or call.of_weight or call.axis == AXIS:
        return False
    cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    decomposed = call.axis == "tp" and overlaps_tensor_parallel and cut
    return call.streamed or call.is_regather or decomposed


def _window(call: CollectiveCall) -> tuple[str, Phase, bool]:
    """Return what names the computation beside a call: calls of one window share it."""
    return call.axis if call.streamed else "", call.phase, call.replayed


def _exposure(
    call: CollectiveCall, axis: str, time_s: Num, sums: OpSums, strategy: StrategyOf[Num],
    num_sharing: int,
) -> Exposure:  # fmt: skip
    """Return what of a call the computation beside it hides, and what not.

    Streams run beside the attention core, other calls beside the matrix products: at most a
    quarter of those of the forward pass for each, which has four such calls in a plain layer.
    """
    degree = degree_of(axis, strategy)
    is_forward = call.phase is Phase.FORWARD or call.replayed
    if call.streamed:
        core = sums.attention
        window_s = (core.forward_s if is_forward else core.input_gradient_s) / num_sharing
        steps = larger(degree - 1.0, 1.0)
        return overlapped(time_s, window_s * (steps / degree), steps)
    share = min(0.25, (1.0 if is_forward else 2.0) / num_sharing)
    return overlapped(time_s, share * sums.matmul_forward_s, larger(degree, 1.0))


class Collectives:
    """Times of collectives over the axes of columns of strategies; forms are found once.

    With ``all_forms`` every algorithm keeps its place, so that tables of equal shape arise.
    """

    def __init__(self, network: AxisNetwork, launch_s: Num, *, all_forms: bool = False) -> None:
        self.network = network
        self.launch_s = launch_s
        self.candidates = affine_forms if all_forms else best_affine_candidates
        self._transfers: dict[tuple[CollectiveKind, str], Transfer] = {}

    def transfer(self, kind: CollectiveKind, axis: str) -> Transfer:
        """Return the affine forms of a collective over an axis, the start of it included."""
        key = (kind, axis)
        if key not in self._transfers:
            group = self.network.group(axis)
            if not group.spans:
                return Transfer(((0.0 * self.network.strategy.tp, 0.0 * self.network.strategy.tp),))
            size = reduce(np.multiply, [span.size for span in group.spans])
            start_s = self.launch_s * (size > 1)
            forms = self.candidates(kind, group)
            self._transfers[key] = Transfer(
                tuple((fixed_s + start_s, slope) for _, fixed_s, slope in forms)
            )
        return self._transfers[key]

    def time_s(self, kind: CollectiveKind, axis: str, num_bytes: Num) -> Num:
        """Return the seconds of one collective."""
        return self.transfer(kind, axis).time_s(num_bytes, 1.0)
