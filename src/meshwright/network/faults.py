"""Fault maps: dead parts, drawn with a seed, and their effect on a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import InfeasibleError
from meshwright.network.placement import Ranks
from meshwright.topology.network import Network


@dataclass(frozen=True)
class FaultRates:
    """Probabilities that something is dead, each on its own."""

    link: float = 0.0
    """Chance that a wire is dead, both directions at once [1]."""
    device: float = 0.0
    row: float = 0.0
    """Chance that a row of a grid is dead, with all its devices [1]."""
    core: float = 0.0
    """Chance that a core of a device is dead [1]."""
    num_cores: int = 64
    """Cores of a device: the fewer, the more devices differ."""


@dataclass(frozen=True)
class FaultMap:
    """Dead parts of a network."""

    seed: int
    dead_devices: IntArray
    dead_links: tuple[tuple[int, int], ...]
    """Wires, as pairs of nodes, the smaller first."""
    core_fraction: FloatArray
    """Share of its cores that each device has left [1]."""

    def applied(self, network: Network) -> Network:
        """Return the network with these faults."""
        slowed = replace(network, speed_factor=network.speed_factor * self.core_fraction)
        gone = np.flatnonzero(slowed.speed_factor <= 0)
        return slowed.without(np.union1d(self.dead_devices, gone).tolist(), self.dead_links)


def wires(network: Network) -> tuple[tuple[int, int], ...]:
    """Return the pairs of nodes that have links between them, the smaller first, ascending."""
    low = np.minimum(network.source, network.target)
    high = np.maximum(network.source, network.target)
    near, far = np.divmod(np.unique(low * network.num_nodes + high), network.num_nodes)
    return tuple(zip(near.tolist(), far.tolist(), strict=True))


def random_faults(network: Network, rates: FaultRates, seed: int) -> FaultMap:
    """Return a fault map; a higher rate with the same seed keeps all dead parts.

    The draws for links, devices and rows do not depend on the rates.
    """
    chance = np.random.default_rng(seed)
    pairs = wires(network)
    link_dies = chance.random(len(pairs)) < rates.link
    dies = chance.random(network.num_devices) < rates.device
    if len(network.grid_shape) == 2:
        row_dies = chance.random(network.grid_shape[0]) < rates.row
        dies |= np.repeat(row_dies, network.grid_shape[1])
    lost = chance.binomial(rates.num_cores, rates.core, network.num_devices)
    return FaultMap(
        seed,
        np.flatnonzero(dies),
        tuple(pair for pair, is_dead in zip(pairs, link_dies.tolist(), strict=True) if is_dead),
        1.0 - lost / rates.num_cores,
    )


def balanced_rows(num_rows: int, speed_factor: FloatArray) -> IntArray:
    """Return the rows of each device for which the slowest device is fastest.

    A round takes 2 S_i H (F/N) / (g_i P eta) on device i, equal for all when S_i is proportional
    to g_i. Rows are whole: each device gets its share rounded down, and the rows that are left go
    one by one to the device that would finish first with one more.

    Parameters
    ----------
    num_rows
        Rows of the group.
    speed_factor
        Share g_i of the full rate at which each device computes [1].

    Raises
    ------
    InfeasibleError
        Where no device works.

    Source: derived; least possible time, proven by trying all splits of small cases.
    """
    works = speed_factor > 0
    if num_rows and not works.any():
        raise InfeasibleError(f"no device works: {num_rows} rows have no place")
    rows_by_speed = num_rows / speed_factor[works].sum() if num_rows else 0.0
    rows = np.floor(speed_factor * rows_by_speed).astype(np.int64)
    for _ in range(num_rows - int(rows.sum())):
        finish = np.full(len(rows), np.inf)
        finish[works] = (rows[works] + 1) / speed_factor[works]
        rows[np.argmin(finish)] += 1
    return rows


@lru_cache(maxsize=65536)
def _balanced(num_rows: int, speed_factor: tuple[float, ...]) -> tuple[int, ...]:
    """Return the rows of each device; many ways to lay a strategy have equal groups."""
    return tuple(balanced_rows(num_rows, np.array(speed_factor)).tolist())


@dataclass(frozen=True)
class SharedWork:
    """The work of a step over ranks of unequal speed: whole sequences, and whole rows of them."""

    sequences: IntArray
    """Sequences of each data-parallel replica in a step, in the order of its ranks."""
    share: FloatArray
    """Work of each rank over that of an equal split, in the shape of the ranks [1]; 0: another rank
    hosts it."""
    speed: FloatArray
    """Share of its full rate that the device of each rank computes at [1]."""
    num_hosted: int
    """Ranks on one device, at most: only one of them works."""
    states: float = 1.0
    """Weights and states of a device over those of one rank: the remaining members of a stream
    divide the weights again between them; ranks that another group hosts add up whole [1]."""

    @property
    def is_equal(self) -> bool:
        """Whether the split of the work over ranks is equal."""
        return bool((self.share == 1.0).all())

    @cached_property
    def most_work(self) -> float:
        """The largest share: memory traffic and activations grow by it [1]."""
        return max(1.0, float(self.share.max()))

    @cached_property
    def pace(self) -> float:
        """Rate of the slowest rank for its own work, over that of an equal split; at most 1."""
        busy = self.share > 0
        return min(1.0, float((self.speed[busy] / self.share[busy]).min()))

    @cached_property
    def mean_busy(self) -> float:
        """Time that a rank computes on average, over that of the last one [1].

        Worked: speeds 1 and 0.5 with equal shares take 1 and 2, on average 0.75 of 2.
        """
        busy = self.share > 0
        return self.pace * float((self.share[busy] / self.speed[busy]).sum()) / self.share.size


def shared_work(
    ranks: Ranks, speed_factor: FloatArray, num_sequences: int, sequence_rows: float,
    micro_batch_size: int,
) -> SharedWork | None:  # fmt: skip
    """Return the split of the sequences of a step by which no rank waits for a slower one.

    The streams of ``tatp`` let each member work on any number of rows, so a group takes rows by the
    speed of its members; ranks of ``tp`` work on the same rows, those of ``cp`` on equal parts of
    them, and stages of a pipeline on the same sequences. A data-parallel replica is as fast as its
    slowest group, and takes sequences by that. Both are whole (:func:`balanced_rows`). None where
    no replica works.

    Parameters
    ----------
    sequence_rows
        Tokens of one sequence on a rank of ``cp`` [tokens].
    micro_batch_size
        Sequences of a micro-batch where all replicas are equal. The number of micro-batches stays;
        they grow or shrink with the share of their replica.
    """
    speed = np.where(ranks.is_host, np.minimum(speed_factor[ranks.device], 1.0), 0.0)
    order = [ranks.axes.index(a) for a in ("dp_replicate", "dp_shard", "pp", "cp", "tatp", "tp")]
    in_order = speed.transpose(order)
    replicas = in_order.reshape(-1, *in_order.shape[2:])
    streams = replicas.min(axis=-1)
    total = streams.sum(axis=-1).reshape(len(replicas), -1).min(axis=1)
    if not total.any():
        return None
    sequences = np.array(_balanced(num_sequences, tuple(total.tolist())))
    number = ceil(ceil(num_sequences / len(replicas)) / micro_batch_size)
    # Stages of a pipeline wait for the largest micro-batch, else only their sum counts.
    sizes = -(-sequences // number) if replicas.shape[1] > 1 else sequences / number
    members = streams.shape[-1]
    equal_rows = -(-micro_batch_size * sequence_rows // members)
    groups = streams.reshape(-1, members)
    rows = np.round(np.repeat(sizes, len(groups) // len(sizes)) * sequence_rows)
    every = zip(rows.astype(np.int64).tolist(), map(tuple, groups.tolist()), strict=True)
    shares = np.array([_balanced(*kind) for kind in every]) / equal_rows
    share = np.repeat(shares.reshape(*streams.shape, 1), in_order.shape[-1], -1)
    share = np.where(ranks.is_host, share.reshape(in_order.shape).transpose(np.argsort(order)), 0.0)
    counts = np.unique(ranks.device, return_counts=True)[1]
    left = ranks.is_host.sum(axis=ranks.axes.index("tatp"))
    states = members / left.min() if left.all() else float(counts.max())
    return SharedWork(sequences, share, speed, int(counts.max()), float(states))
