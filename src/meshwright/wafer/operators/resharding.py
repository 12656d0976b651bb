"""Moving a tensor from one layout to another: the part each device lacks, and the links it crosses.

A layout is the part of the tensor that each device holds: an interval of each of its dims. A part
that a device needs and lacks comes from its holders, in equal shares where there are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.cost.problem import Problem
from meshwright.graph.op import LayerGraph, Tensor
from meshwright.network.placement import Ranks
from meshwright.network.routing import Routes, default_routes
from meshwright.network.traffic import Demands
from meshwright.sharding.axes import activation_sharding
from meshwright.sharding.strategy import PlanOptions, Recompute
from meshwright.topology.network import Network
from meshwright.wafer.operators.options import Options

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def tiles(ranks: Ranks, split: Sequence[Sequence[str]]) -> FloatArray:
    """Return the part of a tensor on each rank: (ranks, dims, 2), bounds between 0 and 1.

    ``split`` holds the axes that split each dim, outermost first. Ranks count the innermost axis
    first, as ``ranks.device`` does when it is flattened.
    """
    place = np.indices(ranks.device.shape).reshape(ranks.device.ndim, -1, order="F")
    bounds = np.zeros((ranks.num_devices, len(split), 2))
    for dim, axes in enumerate(split):
        index, parts = np.zeros(ranks.num_devices, dtype=np.int64), 1
        for axis in axes:
            number = ranks.axes.index(axis)
            degree = ranks.device.shape[number]
            index, parts = index * degree + place[number], parts * degree
        bounds[:, dim, 0], bounds[:, dim, 1] = index / parts, (index + 1) / parts
    return bounds


WHOLE = np.array([0.0, 1.0], dtype=np.float32)
"""Bounds of a dim that is not split."""
DECIMALS = 12
"""Decimals to which bounds of equal layouts agree."""


@dataclass(frozen=True)
class PairRoutes:
    """The routes between all pairs of the devices in use, as a table of the links they cross."""

    devices: IntArray
    """Devices in the order of the tiles."""
    crossed: csr_array
    """(pairs, links): the seconds for each byte that a pair sends over a link [s/byte]."""
    latency_s: FloatArray
    """Latency of each pair: all links of its route [s]."""


def pair_routes(network: Network, devices: IntArray) -> PairRoutes:
    """Return the default routes between all pairs of some devices."""
    from scipy.sparse import csr_array

    number = len(devices)
    source, target = np.repeat(devices, number), np.tile(devices, number)
    demands = Demands(
        source=source,
        destination=target,
        num_bytes=np.ones(len(source)),
        payload=np.arange(len(source)),
        operation=np.zeros(len(source), dtype=np.int64),
    )
    routes = default_routes(network, demands)
    crossed = csr_array(
        (
            (1.0 / network.bandwidth_bytes_per_s[routes.links]).astype(np.float32),
            routes.links,
            routes.offsets,
        ),
        shape=(len(source), network.num_links),
    )
    return PairRoutes(devices, crossed, routes.latency_s(network))


def moved(held: FloatArray, layouts: FloatArray) -> FloatArray:
    """Return the shares each device sends to each other one on the way to each of some layouts.

    Shares of the tensor, (layouts, senders, receivers). A part that a device holds is not sent to
    it; the rest comes in equal parts from its holders. In single precision: bounds are ratios of
    small whole numbers.

    Parameters
    ----------
    held
        The layout from which it goes: (devices, dims, 2).
    layouts
        Layouts to which it goes: (layouts, devices, dims, 2), in the same order of the devices.
    """
    number, devices = layouts.shape[:2]
    single, given = layouts.astype(np.float32), held.astype(np.float32)
    common = np.ones((number, devices, devices), dtype=np.float32)
    for dim in range(layouts.shape[2]):
        mine, theirs = given[None, :, None, dim], single[:, None, :, dim]
        if (mine == WHOLE).all() and (theirs == WHOLE).all():
            continue
        length = np.minimum(mine[..., 1], theirs[..., 1])
        length -= np.maximum(mine[..., 0], theirs[..., 0])
        common *= np.maximum(length, 0.0, out=length)
    device = np.arange(devices)
    own = common[:, device, device]
    common[:, device, device] = 0.0
    needed = (single[..., 1] - single[..., 0]).prod(axis=-1)
    offered = common.sum(axis=-2)
    lacking = np.maximum(needed - own, 0.0)
    share = np.divide(lacking, offered, out=np.zeros_like(offered), where=offered > 0)
    shares: FloatArray = common * np.minimum(share, 1.0)[:, None, :]
    return shares


class LayoutMoves:
    """Link times of passing a tensor between layouts, worked out once for each pair."""

    def __init__(self, routes: PairRoutes) -> None:
        self.routes = routes
        self._number: dict[bytes, int] = {}
        self._layouts: list[FloatArray] = []
        self._holds_once: list[bool] = []
        self._busy = self._latency = np.zeros((0, 0))

    def number(self, layout: FloatArray) -> int:
        """Return the number of a layout, (devices, dims, 2): equal ones have one."""
        key = np.round(layout, DECIMALS).tobytes()
        if key not in self._number:
            self._number[key] = len(self._layouts)
            self._layouts.append(layout)
            held = (layout[..., 1] - layout[..., 0]).prod(axis=-1).sum()
            self._holds_once.append(bool(np.isclose(held, 1.0)))
        return self._number[key]

    def between(self, numbers: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Return seconds for each byte of the tensor, and the longest latency [s], for all pairs.

        Rows are layouts before, columns layouts after. Where each part of a tensor has one holder,
        either way may take the links of the other one backwards: dimension order, or its reverse.
        """
        known, size = len(self._busy), len(self._layouts)
        if known < size:
            grown = np.full((2, size, size), np.nan)
            grown[0, :known, :known], grown[1, :known, :known] = self._busy, self._latency
            self._busy, self._latency = grown
        for one in set(numbers):
            new = sorted(other for other in set(numbers) if np.isnan(self._busy[one, other]))
            if new:
                shares = moved(self._layouts[one], np.stack([self._layouts[n] for n in new]))
                self._busy[one, new], self._latency[one, new] = busiest_s(shares, self.routes)
        pairs = np.ix_(numbers, numbers)
        busy, latency = self._busy[pairs], self._latency[pairs]
        once = np.array(self._holds_once)[list(numbers)]
        both = once[:, None] & once[None, :]
        return (
            np.where(both, np.minimum(busy, busy.T), busy),
            np.where(both, np.maximum(latency, latency.T), latency),
        )

    def way(self, one: int, other: int) -> tuple[FloatArray, bool]:
        """Return the shares that each device sends to each other one between two layouts.

        Also whether they take the links of the way back backwards, which is faster.
        """
        self.between([one, other])
        is_back = self._busy[other, one] < self._busy[one, other]
        is_back &= self._holds_once[one] and self._holds_once[other]
        return moved(self._layouts[one], self._layouts[other][None])[0], bool(is_back)


def busiest_s(shares: FloatArray, routes: PairRoutes) -> tuple[FloatArray, FloatArray]:
    """Return seconds of the busiest link for each byte of the tensor, and the longest latency [s].

    Parameters
    ----------
    shares
        Shares of the tensor that are moved in each of some cases: (cases, senders, receivers).
    """
    flat = shares.reshape(len(shares), prod(shares.shape[1:]))
    busy: FloatArray = (flat @ routes.crossed).max(axis=1, initial=0.0)
    latency: FloatArray = ((flat > 0) * routes.latency_s).max(axis=1, initial=0.0)
    return busy, latency


AXES_OF = {"dp": ("dp_replicate", "dp_shard")}
"""Axes of a placement that an axis of a layout stands for; the others stand for themselves."""
Split = tuple[tuple[str, ...], ...]
"""The axes that split a tensor: between sequences, within them, and its inner dims."""


@dataclass(frozen=True)
class TensorMoves:
    """Passing one tensor between all pairs of options, for one micro-batch."""

    time_s: FloatArray
    """(options before, options after): activations there, and gradients back [s]."""
    held_bytes: FloatArray
    """Bytes of the tensor on the fullest device under each option after."""
    differs: FloatArray
    """1 where the two layouts differ."""


@dataclass(frozen=True)
class Resharding:
    """The moves between the options of a problem."""

    problem: Problem
    options: Options
    physical: Network
    _known: dict[tuple[Split, int], tuple[int, float]] = field(default_factory=dict, repr=False)
    """Number of a layout, and the share of the fullest device, by split of a tensor and option."""

    def _ranks(self, index: int) -> Ranks:
        """Return the ranks of an option on their devices."""
        return self.options.ranks(self.problem, index, self.physical)

    @cached_property
    def layouts(self) -> LayoutMoves:
        """Moves between layouts that are known: the same devices under each option."""
        devices = np.sort(self._ranks(0).device.reshape(-1))
        return LayoutMoves(pair_routes(self.physical, devices))

    def moves(
        self, tensor: Tensor, layer: LayerGraph, rows: Sequence[int] | None = None
    ) -> TensorMoves:
        """Return the cost of passing a tensor of a layer between options.

        Parameters
        ----------
        rows
            The options to compare, where not all are.
        """
        numbers = range(len(self.options)) if rows is None else rows
        laid = [self._layout(tensor, index) for index in numbers]
        kind = np.array([number for number, _ in laid])
        different = list(dict.fromkeys(kind.tolist()))
        busy, latency = self.layouts.between(different)
        place = {number: at for at, number in enumerate(different)}
        at = np.array([place[number] for number in kind.tolist()])
        num_bytes = self.num_bytes(tensor, layer)
        launch_s = float(np.asarray(self.problem.calibration.collective_launch_s))
        once_s = busy * num_bytes + np.where(busy > 0, latency + launch_s, 0.0)
        again = 2.0 if self.options.frame.plan_options.recompute is Recompute.FULL else 1.0
        both_s = again * once_s + once_s.T
        return TensorMoves(
            time_s=both_s[np.ix_(at, at)],
            held_bytes=np.array([volume for _, volume in laid]) * num_bytes,
            differs=(kind[:, None] != kind[None, :]).astype(float),
        )

    def num_bytes(self, tensor: Tensor, layer: LayerGraph) -> float:
        """Return the whole tensor in one micro-batch of all ranks, of each stage [bytes]."""
        length = float(self.problem.pass_length)
        sizes = layer.bind(length * self.options.frame.num_sequences, length)
        rates = self.problem.rates
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        whole = float(np.prod([float(sizes[dim]) for dim in tensor.dims])) * word
        return whole * self.options.frame.num_stages

    def way(
        self, tensor: Tensor, one: int, other: int, of_stage: IntArray
    ) -> tuple[Demands, Routes]:
        """Return the shares of a tensor that devices send each other between two options, in bytes.

        Of a tensor of one byte, over the same links as :meth:`moves` prices.

        Parameters
        ----------
        of_stage
            Devices of the stage that lays it out anew; the others send nothing.
        """
        shares, is_back = self.layouts.way(
            self._layout(tensor, one)[0], self._layout(tensor, other)[0]
        )
        devices = self.layouts.routes.devices
        sender, receiver = np.nonzero(shares * np.isin(devices, of_stage)[:, None])
        demands = Demands(
            source=devices[sender],
            destination=devices[receiver],
            num_bytes=shares[sender, receiver].astype(float),
            payload=np.arange(len(sender)),
            operation=np.zeros(len(sender), dtype=np.int64),
            operation_names=("reshard",),
        )
        if not is_back:
            return demands, default_routes(self.physical, demands)
        turned = replace(demands, source=demands.destination, destination=demands.source)
        found = default_routes(self.physical, turned)
        return demands, Routes(found.offsets, _opposite(self.physical)[found.links])

    def _layout(self, tensor: Tensor, index: int) -> tuple[int, float]:
        """Return the number of the layout of a tensor, and the share that the fullest holds."""
        key = (_split(tensor, self.options.option_sets[index]), index)
        if key not in self._known:
            ranks = self._ranks(index)
            order = np.argsort(ranks.device.reshape(-1, order="F"))
            layout = tiles(ranks, (("pp",), *key[0]))[order]
            volume = float((layout[..., 1] - layout[..., 0]).prod(axis=1).max())
            self._known[key] = self.layouts.number(layout), volume
        return self._known[key]


def _opposite(network: Network) -> IntArray:
    """Return the link that leads back along each link; its own number where there is none."""
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    number = {pair: link for link, pair in enumerate(ends)}
    back: IntArray = np.array(
        [number.get((target, source), link) for (source, target), link in number.items()]
    )
    return back


def _split(tensor: Tensor, plan_options: PlanOptions) -> Split:
    """Return the axes that split a tensor: between sequences, within them, and its inner dims."""
    between: list[str] = []
    within: list[str] = []
    inner: list[str] = []
    for dim, names in activation_sharding(tensor, plan_options).split.items():
        for name in names:
            physical = AXES_OF.get(name, (name,))
            if dim not in ("tokens", "routed_tokens"):
                inner.extend(physical)
            elif name in AXES_OF:
                between.extend(physical)
            else:
                within.extend(physical)
    return tuple(between), tuple(within), tuple(inner)
