"""Communication of a layer: the groups of each axis, seconds of collectives, their exposed part.

Which levels of the network an axis crosses follows from the order of the axes, or from the block of
a grid that it fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from operator import add, mul
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import (
    BoolArray,
    FloatArray,
    N,
    Num,
    larger,
    positive_part,
    smaller,
    where,
)
from meshwright.collectives.group import SPAN_COLUMNS, Group, Reach, make_block_group, make_group
from meshwright.collectives.registry import (
    Affine,
    affine_forms,
    best_affine_candidates,
    least_sent_bytes,
)
from meshwright.cost.parts import TimePart
from meshwright.graph.op import Phase
from meshwright.network.blocks import block_reaches, blocks_of_experts, factorings
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.local_sizes import degree_of, local_elements
from meshwright.sharding.strategy import EXPERT_AXES, PlanOptions, StrategyColumns, StrategyOf
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import ExpertSpec
from meshwright.spec.system import NetworkLevel, SystemSpec


@dataclass(frozen=True)
class CollectiveTime:
    """A collective as the fastest of some affine functions of its bytes."""

    forms: tuple[Affine, ...]
    """(fixed seconds, seconds for each byte) of one message, for each algorithm."""
    alone: tuple[Affine, ...] = ()
    """The forms on links that nothing else uses, where others share them; else empty."""

    def alone_s(self, num_bytes: Num, num_messages: Num) -> Num:
        """Return the seconds of :meth:`time_s` on links of its own, where others share them."""
        return CollectiveTime(self.alone).time_s(num_bytes, num_messages)

    def time_s(self, num_bytes: Num, num_messages: Num) -> Num:
        """Return the seconds of ``num_bytes`` sent as ``num_messages`` equal collectives."""
        times = [
            num_messages * fixed_s + num_bytes * s_per_byte for fixed_s, s_per_byte in self.forms
        ]
        return reduce(smaller, times)

    @property
    def thinned(self) -> CollectiveTime:
        """The forms that no single other form equals or beats in every row."""
        kept: list[int] = []
        may_beat = self._may_beat
        for number, form in enumerate(self.forms):
            rivals = [*kept, *range(number + 1, len(self.forms))]
            beaten = any(
                bool(np.all((r[0] <= form[0]) & ((r[1] <= form[1]) | np.isinf(form[0]))))
                for r in (self.forms[rival] for rival in rivals if may_beat[rival, number])
            )
            if not beaten:
                kept.append(number)
        return CollectiveTime(tuple(self.forms[number] for number in kept), self.alone)

    @property
    def _may_beat(self) -> BoolArray:
        """Whether each rival is at least as fast as each form on a few rows: (rivals, forms)."""
        columns = np.broadcast_arrays(*(np.asarray(c, float) for form in self.forms for c in form))
        rows = np.linspace(0, columns[0].size - 1, 8).astype(np.int64)[: columns[0].size]
        few = np.array([column.reshape(-1)[rows] for column in columns])
        fixed, slope = few[0::2], few[1::2]
        is_as_fast = (slope[:, None] <= slope) | np.isinf(fixed)
        found: BoolArray = ((fixed[:, None] <= fixed) & is_as_fast).all(axis=2)
        return found


@dataclass(frozen=True)
class Exposure:
    """Seconds of a transfer that runs during computation: exposed, and hidden by it [s]."""

    exposed_s: Num
    hidden_s: Num

    def __add__(self, other: Exposure) -> Exposure:
        return Exposure(self.exposed_s + other.exposed_s, self.hidden_s + other.hidden_s)

    def times(self, number: Num) -> Exposure:
        """Return several equal transfers, each during its own window."""
        return Exposure(number * self.exposed_s, number * self.hidden_s)


def overlapped(
    transfer_s: Num, window_s: Num, num_buckets: Num, alone_s: Num | None = None
) -> Exposure:
    """Return the exposed part of a transfer that runs during a window of computation.

    exposed = max(transfer - window, transfer / buckets): the last bucket is complete only when
    the computation that it could hide behind has ended. Where others share its links meanwhile and
    come first, ``transfer`` is the time of all bytes on the links, and the rest after the window
    has them to itself: exposed is at least alone / buckets, and no more than ``alone``, as
    if it had waited. Hidden is the time that it is under way within the window.

    Parameters
    ----------
    transfer_s, window_s
        Seconds of the transfer and of the computation that runs at the same time [s].
    num_buckets
        Pieces of the transfer, at least 1.
    alone_s
        Seconds of the transfer on links that nothing else uses; None where nothing shares them.

    Source: prices follow the overlap rule of bucketed gradient reduction (Li et al. 2020,
    PyTorch Distributed, section 3.2.3).
    """
    exposed = larger(transfer_s - window_s, transfer_s / num_buckets)
    hidden = transfer_s - exposed
    if alone_s is not None:
        exposed = smaller(larger(transfer_s - window_s, alone_s / num_buckets), alone_s)
    return Exposure(exposed, hidden)


def plain(transfer_s: Num, window_s: Num = 0.0) -> Exposure:
    """Return the exposure of a transfer that no computation hides."""
    return Exposure(transfer_s, transfer_s * 0.0)


def slowdown_s(hidden_s: Num, window_s: Num, sigma: Num) -> Num:
    """Return the seconds that computation loses while a transfer runs concurrently.

    sigma * min(hidden, window). Source: arXiv 2507.03114, mean slowdown 18.9 %.
    """
    return sigma * smaller(hidden_s, positive_part(window_s))


CallTime = Callable[[CollectiveKind, str, Num], Num]
"""Seconds of a collective of a kind over an axis, for a number of bytes."""


class Windows(NamedTuple):
    """Time of a layer that its collectives overlap with, for one micro-batch [s]."""

    core_forward_s: Num
    """The attention core."""
    core_backward_s: Num
    matmul_forward_s: Num
    launch_forward_s: Num = 0.0
    """Wait of the device for kernel launches."""
    launch_backward_s: Num = 0.0


@dataclass(frozen=True, kw_only=True)
class ExposedComm:
    """Exposed communication by axis, all phases [s]."""

    tp_s: Num = 0.0
    cp_s: Num = 0.0
    ep_s: Num = 0.0
    stream_s: Num = 0.0
    """Tensor streams over tatp: rounds that wait for a link or for memory."""
    pp_s: Num = 0.0
    """Vocabulary parallelism: communication of all stages for embedding and logits."""


EXPOSED_PART = {
    "tp_s": TimePart.TP_COMM, "cp_s": TimePart.CP_COMM, "ep_s": TimePart.EP_COMM,
    "stream_s": TimePart.TATP_STREAM, "pp_s": TimePart.PP_COMM,
}  # fmt: skip
"""The part of a step that each field of :class:`ExposedComm` is."""


def exposed_s(cost: ExposedComm) -> Num:
    """Return the exposed communication over all axes [s]."""
    shown: Num = reduce(add, [getattr(cost, name) for name in EXPOSED_PART])
    return shown


@dataclass(frozen=True, kw_only=True)
class CommCost(ExposedComm):
    """Communication of a layer: exposed by axis, hidden, and the bytes that it sends."""

    forward_s: Num = 0.0
    """Exposed in the forward pass."""
    ep_forward_s: Num = 0.0
    """Communication over ep, exposed in the forward pass."""
    per_step_s: Num = 0.0
    link_bytes: Num = 0.0
    """Least bytes that each rank sends."""
    hidden_s: Num = 0.0
    """Overlapped with computation, of all axes."""


_PART_OF_AXIS = {
    "tp": "tp_s", "etp": "tp_s", "cp": "cp_s", "ep": "ep_s", "tatp": "stream_s", "pp": "pp_s",
}  # fmt: skip


def comm_cost(
    calls: Sequence[CollectiveCall], windows: Windows, sizes: Mapping[str, Num],
    strategy: StrategyOf[Num], plan_options: PlanOptions, call_time: CallTime, word_bytes: float,
    together: Sequence[CollectiveCall] = (),
) -> CommCost:  # fmt: skip
    """Return the communication of a layer, exposed; calls that are sent in rounds left out.

    A ring of keys and values overlaps with the attention core and leaves at least one of its steps
    exposed. Decomposed collectives of tp overlap with the matrix products of the layer and
    leave one of their pieces exposed. Both also run while the device waits for launches.
    Collectives that overlap with the same computation share it: a window is spent once. Sums over
    data axes are not priced here.

    Parameters
    ----------
    windows
        Windows of the whole layer.
    together
        All calls of the layer, where ``calls`` are those of a block: they share the windows.
    """
    parts: dict[str, Num] = {entry.name: 0.0 for entry in fields(CommCost)}
    overlaps = plan_options.overlap_tensor_parallel
    beside = [
        call for call in together or calls
        if is_overlapped(call, overlaps_tensor_parallel=overlaps)
    ]  # fmt: skip
    num_sharing = Counter(_window(call) for call in beside)
    # Transfers of a phase share its launches; a group of one device sends nothing.
    num_sent: dict[bool, Num] = {True: 0.0, False: 0.0}
    for call in beside:
        is_first = call.phase is Phase.FORWARD
        num_sent[is_first] = num_sent[is_first] + (degree_of(_axis(call), strategy) > 1)
    wait_of = {
        True: windows.launch_forward_s / larger(num_sent[True], 1.0),
        False: windows.launch_backward_s / larger(num_sent[False], 1.0),
    }
    for call in calls:
        axis = _axis(call)
        if axis not in _PART_OF_AXIS or (call.streamed and call.of_weight):
            continue
        word = word_bytes if call.tensor.word_bytes is None else call.tensor.word_bytes
        num_bytes = word * local_elements(call.tensor, call.split, sizes, strategy)
        time_s = call_time(call.kind, call.axis, num_bytes)
        if call.per_step:
            parts["per_step_s"] = parts["per_step_s"] + time_s
            continue
        exposure, is_forward = plain(time_s), call.phase is Phase.FORWARD or call.replayed
        if is_overlapped(call, overlaps_tensor_parallel=overlaps):
            degree, sharing = degree_of(axis, strategy), num_sharing[_window(call)]
            wait_s = wait_of[call.phase is Phase.FORWARD]
            if call.streamed:  # its first step needs what the core has not received yet
                core_s = windows.core_forward_s if is_forward else windows.core_backward_s
                steps = larger(degree - 1.0, 1.0)
                window_s = core_s / sharing * (steps / degree)
                exposure = overlapped(time_s, window_s + wait_s, steps)
            else:  # a plain layer has four such calls in its forward pass: at most a quarter each
                share = min(0.25, (1.0 if is_forward else 2.0) / sharing)
                window_s = share * windows.matmul_forward_s
                exposure = overlapped(time_s, window_s + wait_s, larger(degree, 1.0))
        exposed_s = exposure.exposed_s
        parts["hidden_s"] = parts["hidden_s"] + exposure.hidden_s
        parts[_PART_OF_AXIS[axis]] = parts[_PART_OF_AXIS[axis]] + exposed_s
        if call.phase is Phase.FORWARD:
            parts["forward_s"] = parts["forward_s"] + exposed_s
            if axis == "ep":
                parts["ep_forward_s"] = parts["ep_forward_s"] + exposed_s
        members = degree_of(call.axis, strategy, sizes)
        parts["link_bytes"] = parts["link_bytes"] + least_sent_bytes(call.kind, num_bytes, members)
    return CommCost(**parts)


def is_overlapped(call: CollectiveCall, *, overlaps_tensor_parallel: bool) -> bool:
    """Return whether a call overlaps with computation of its layer; over tatp only rounds do."""
    if call.per_step or call.of_weight or call.axis == "tatp":
        return False
    cut = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    decomposed = call.axis == "tp" and overlaps_tensor_parallel and cut
    return call.streamed or call.is_regather or decomposed


def _axis(call: CollectiveCall) -> str:
    """Return the first axis of the group of a call."""
    return call.axis.split("/")[0].split("*")[0]


def _window(call: CollectiveCall) -> tuple[str, Phase, bool]:
    """Return the key of the computation that a call overlaps with; equal keys share it."""
    return call.axis if call.streamed else "", call.phase, call.replayed


class Collectives:
    """Times of collectives over the axes of columns of strategies; forms are found once.

    With ``all_forms`` every algorithm keeps its place, so that tables of equal shape arise.
    """

    def __init__(self, network: AxisNetwork, launch_s: Num, *, all_forms: bool = False) -> None:
        self.network = network
        self.launch_s = launch_s
        self.candidates = affine_forms if all_forms else best_affine_candidates
        self._times: dict[tuple[CollectiveKind, str], CollectiveTime] = {}

    def time_over(self, kind: CollectiveKind, axis: str) -> CollectiveTime:
        """Return the affine forms of a collective over an axis, the start of it included."""
        key = (kind, axis)
        if key not in self._times:
            ways = self.network.ways(axis)
            if not ways[0].spans:
                return CollectiveTime(
                    ((0.0 * self.network.strategy.tp, 0.0 * self.network.strategy.tp),)
                )
            size = reduce(np.multiply, [span.size for span in ways[0].spans])
            start_s = self.launch_s * (size > 1)
            forms = [form for group in ways for form in self.candidates(kind, group)]
            found = CollectiveTime(tuple((fixed_s + start_s, slope) for _, fixed_s, slope in forms))
            self._times[key] = found if len(ways) == 1 else found.thinned
        return self._times[key]

    def beside_others(self, kind: CollectiveKind, axis: str) -> CollectiveTime:
        """Return the affine forms also of links that nothing else uses, where others share them."""
        found = self.time_over(kind, axis)
        if not (self.network.slowdown and self.network.ways(axis)[0].spans):
            return found
        return replace(found, alone=self._alone.time_over(kind, axis).forms)

    @cached_property
    def _alone(self) -> Collectives:
        own = replace(self.network, slowdown=self.network.own_slowdown, own_slowdown={})
        return Collectives(own, self.launch_s)

    def time_s(self, kind: CollectiveKind, axis: str, num_bytes: Num) -> Num:
        """Return the seconds of one collective."""
        return self.time_over(kind, axis).time_s(num_bytes, 1.0)


Columns = Group[FloatArray]
"""A group for each row of columns of strategies."""

DATA_PARALLEL_ONLY = "network-data-parallel-only"
"""Rule: a network between slices or pods carries dp only."""


def level_efficiencies(system: SystemSpec, calibration: CalibrationOf[Num]) -> tuple[Num, ...]:
    """Return the share of link bandwidth that is reached on each level [1].

    Grids and the innermost switch are fast networks; switches between hosts are slow ones.
    """
    fast, slow = calibration.fast_network_efficiency, calibration.slow_network_efficiency
    return tuple(
        fast if index == 0 or level.kind in ("torus", "mesh") else slow
        for index, level in enumerate(system.levels)
    )


@dataclass(frozen=True)
class AxisPlacement:
    """Place of the members of each axis, by axis, for columns of strategies.

    Neither strides nor blocks: the placement is open. Each axis then has the links of a block to
    itself, whatever the others need, so no way to nest blocks is faster for any axis.
    """

    strides: Mapping[str, FloatArray]
    """Devices between neighbours, as devices are numbered along the levels [devices]."""
    reaches: Mapping[str, Reach[FloatArray]]
    """The block that an axis fills, where axes fill blocks; empty on other networks."""

    @property
    def is_open(self) -> bool:
        """Whether axes are still to be placed."""
        return not self.strides

    def keys(self, axes: Sequence[str]) -> list[FloatArray]:
        """Return the columns that distinguish the placements of some axes."""
        parts = [self.strides[axis] for axis in axes] if self.strides else []
        for axis in axes:
            if axis in self.reaches:
                parts += [_code(self.reaches[axis].sizes), _code(self.reaches[axis].apart)]
        return parts


def _code(columns: Sequence[FloatArray]) -> FloatArray:
    """Return one number for each row of columns of whole numbers below 65,536: at most three."""
    return reduce(lambda code, column: code * 65_536.0 + column, columns)


OPEN = AxisPlacement({}, {})
"""Axes that are still to be placed."""


def place_axes(
    levels: Sequence[NetworkLevel], axis_order: tuple[str, ...], strategy: StrategyColumns,
    num_experts: int,
) -> AxisPlacement:  # fmt: skip
    """Return the placement of axes: blocks on a mesh, consecutive ranks along the levels elsewhere.

    Experts use the devices of other axes; blocks do not support that.
    """
    strides = strides_of(axis_order, strategy)
    is_blocked = uses_blocks(levels) and not num_experts
    return AxisPlacement(strides, block_reaches(levels, axis_order, strategy) if is_blocked else {})


def strides_of(axis_order: tuple[str, ...], strategy: StrategyColumns) -> dict[str, FloatArray]:
    """Return the devices between neighbours on each axis, for one order of the axes [devices]."""
    strides: dict[str, FloatArray] = {}
    stride = strategy.tp * 0.0 + 1.0
    for axis in axis_order:
        strides[axis] = stride
        stride = stride * getattr(strategy, axis)
    return {**strides, **strides_of_experts(strategy)}


def strides_of_experts(strategy: StrategyOf[N]) -> dict[str, N]:
    """Return the strides of the axes of the experts, among the ranks of axes that they re-use."""
    shards = strategy.etp * strategy.ep
    return {
        "etp": strategy.etp * 0.0 + 1.0,
        "ep": strategy.etp,
        "edp": shards,
        "edp_shard": shards,
        "edp_replicate": shards * degree_of("edp_shard", strategy),
    }


@dataclass(frozen=True)
class AxisNetwork:
    """The groups of each axis for columns of strategies; rows may differ in their axis order."""

    levels: Sequence[NetworkLevel]
    efficiency: tuple[Num, ...]
    strategy: StrategyColumns
    placement: AxisPlacement
    sizes: Mapping[str, Num]
    """Sizes of dims that groups such as ``tp/kv_heads`` share."""
    experts: ExpertSpec | None = None
    """Experts that tokens visit, where tokens go to a host once; None where each copy is sent."""
    slowdown: Mapping[str, Num] = field(default_factory=dict)
    """Slowdown of each axis: time on its links, which a placement shares, over that on private
    links; 1 where it is not named."""
    own_slowdown: Mapping[str, Num] = field(default_factory=dict)
    """Slowdown of each axis while no other sends: in detours, over slow links."""
    _known: dict[str, Columns] = field(default_factory=dict, init=False, compare=False, repr=False)

    def ways(self, axis: str) -> list[Columns]:
        """Return the groups that an axis may have: its own one, or one for each open shape.

        Rows with fewer shapes than others repeat their last one.
        """
        if not self.placement.is_open:
            return [self.group(axis)]
        degree = degree_of(axis, self.strategy, self.sizes) + 0.0 * self.strategy.tp
        found, row_of = np.unique(degree, return_inverse=True)
        sides = tuple(level.size for level in self.levels)
        alone = [(1,) * len(sides)]  # of an axis that fits no block: it costs nothing
        shapes = [factorings(int(d), sides) or alone for d in found.tolist()]
        groups = []
        for number in range(max(map(len, shapes), default=1)):
            table = np.array([of_one[min(number, len(of_one) - 1)] for of_one in shapes])
            sizes = tuple(table[row_of.reshape(-1)].T.astype(float))
            reach = Reach(sizes, tuple(np.ones_like(size) for size in sizes))
            groups.append(make_block_group(self.levels, reach, self.efficiency))
        return groups

    def group(self, axis: str) -> Columns:
        """Return the group of an axis, or of several written as their product (``a*b``)."""
        if axis not in self._known:
            self._known[axis] = self._make_group(axis)
        return self._known[axis]

    @property
    def at_full_rate(self) -> AxisNetwork:
        """The network with the bandwidth of its links, and every copy of a token on its own."""
        return replace(self, efficiency=(1.0,) * len(self.levels), experts=None)

    def links(self, axis: str) -> Columns | None:
        """Return the links between the ranks of an axis; None: a grid, or no links."""
        group = self.group(axis)
        is_plain = bool(group.spans) and not any(span.is_grid for span in group.spans)
        return group if is_plain else None

    def _make_group(self, axis: str) -> Columns:
        names, _, shared = axis.partition("/")
        if shared:
            degree = degree_of(axis, self.strategy, self.sizes)
            group = self._group(names.split("*")[0], degree)
        else:
            parts = [self._group(part, degree_of(part, self.strategy)) for part in axis.split("*")]
            group = reduce(_joined, parts)
        if axis == "ep" and self.experts is not None:
            group = deduplicated(group, self.experts)
        named = axis if axis in self.slowdown else names
        if named not in self.slowdown:
            return group
        times = self.slowdown[named]
        return Group(
            tuple(
                replace(
                    span,
                    bandwidth_bytes_per_s=span.bandwidth_bytes_per_s / times,
                    message_half_bytes=span.message_half_bytes / times,
                )
                for span in group.spans
            )
        )

    def has_blocks(self, axis: str) -> BoolArray:
        """Return the rows in which an axis of the experts fills blocks."""
        fits: BoolArray = self._reaches(axis, degree_of(axis, self.strategy))[0].sizes[0] > 0
        return fits

    def _reaches(self, axis: str, degree: FloatArray) -> list[Reach[FloatArray]]:
        """Return the block of an axis, or those that an axis of the experts has on others."""
        placement = self.placement
        if axis in EXPERT_AXES:
            return blocks_of_experts(
                placement.reaches, placement.strides, placement.strides[axis], degree
            )
        return [_part_of(placement.reaches[axis], degree)]

    def _group(self, axis: str, degree: FloatArray) -> Columns:
        whole, placement = degree + 0.0 * self.strategy.tp, self.placement
        if axis not in placement.reaches and not (axis in EXPERT_AXES and placement.reaches):
            return make_group(self.levels, placement.strides[axis], whole, self.efficiency)
        reaches = self._reaches(axis, whole)
        each = [make_block_group(self.levels, reach, self.efficiency) for reach in reaches]
        blocks, fits = reduce(_joined, each), reaches[0].sizes[0] > 0
        if fits.all():
            return blocks
        strided = make_group(self.levels, placement.strides[axis], whole, self.efficiency)
        return _chosen(fits, blocks, strided)


def _part_of(reach: Reach[FloatArray], degree: FloatArray) -> Reach[FloatArray]:
    """Return the innermost ``degree`` members of a group; empty where they form no block."""
    left = np.asarray(degree).astype(np.int64)
    sizes = []
    for size in reach.sizes:
        taken = np.gcd(left, np.asarray(size).astype(np.int64))
        left = left // np.maximum(taken, 1)
        sizes.append(taken)
    return Reach(tuple(np.where(left == 1, size, 0) * 1.0 for size in sizes), reach.apart)


def _chosen(first: BoolArray, one: Columns, other: Columns) -> Columns:
    """Return a group with the spans of one where ``first`` holds, and of another elsewhere."""
    return Group(
        tuple(
            replace(b, **{n: where(first, getattr(a, n), getattr(b, n)) for n in SPAN_COLUMNS})
            for a, b in zip(one.spans, other.spans, strict=True)
        )
    )


def copies_per_host(num_hosts: Num, experts: ExpertSpec) -> Num:
    """Return the experts of a token on each host that it goes to, on average [1].

    k / (n (1 - (1 - 1/n)^k)): k experts fall on n hosts evenly and independently. One host: k.
    Where the router takes the experts of a token from some groups, n is the hosts of that many.
    Source: expected occupied cells (Feller 1968, section IV.2).
    """
    hosts = smaller(num_hosts, experts.top_groups * larger(num_hosts / experts.num_groups, 1.0))
    missed = 1.0 + 0.0 * hosts
    for _ in range(experts.top_k):
        missed = missed * (1.0 - 1.0 / hosts)
    return experts.top_k / (hosts * (1.0 - missed))


def deduplicated(group: Columns, experts: ExpertSpec) -> Columns:
    """Return a group with links between hosts that carry each token once.

    The bytes of an all-to-all count every copy, so those links count as that much faster.
    """
    outer = group.spans[1:]
    if not outer:
        return group
    num_hosts = reduce(mul, [span.size for span in outer])
    copies = copies_per_host(num_hosts, experts)
    faster = [
        replace(span, bandwidth_bytes_per_s=span.bandwidth_bytes_per_s * copies)
        if not span.is_grid
        else span
        for span in outer
    ]
    return Group((group.spans[0], *faster))


def crosses_data_parallel_network(network: AxisNetwork) -> BoolArray:
    """Return the rows in which an axis other than dp crosses a network that carries dp only."""
    crosses: BoolArray = network.strategy.tp < 0
    for axis in ("tp", "tatp", "cp", "pp", "ep"):
        for level, span in zip(network.levels, network.group(axis).spans, strict=True):
            if level.data_parallel_only:
                crosses = crosses | (span.size > 1)
    return crosses


def _joined(first: Columns, second: Columns) -> Columns:
    """Return the group over two axes: members multiply at each level, the slower links count.

    An axis with one member at a level uses none of its links.
    """
    spans = []
    for a, b in zip(first.spans, second.spans, strict=True):
        both = smaller(a.bandwidth_bytes_per_s, b.bandwidth_bytes_per_s)
        own, other = a.size > 1, b.size > 1
        spans.append(
            replace(
                a,
                size=a.size * b.size,
                bandwidth_bytes_per_s=where(
                    own, where(other, both, a.bandwidth_bytes_per_s), b.bandwidth_bytes_per_s
                ),
                latency_s=a.latency_s + (b.latency_s - a.latency_s) * (b.size > a.size),
                closes=where(own, where(other, a.closes * b.closes, a.closes), b.closes),
            )
        )
    return Group(tuple(spans))


def uses_blocks(levels: Sequence[NetworkLevel]) -> bool:
    """Tell whether axes fill blocks: on grids without wraps, of two sides or more.

    Where sides wrap, an axis that owns a whole side closes a ring, which blocks would break.
    """
    meshes = [level for level in levels if level.kind == "mesh" and level.size > 1]
    return len(meshes) > 1 and all(level.kind != "torus" for level in levels)
