"""Cost of faults on average and at worst: curves over the fault rate, from seeded maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.blocks import connected_parts
from meshwright.network.faults import FaultMap, FaultRates, balanced_rows, random_faults
from meshwright.network.regions import hamiltonian_path, make_region
from meshwright.topology.network import Network
from meshwright_papers.studies.temp.recovery import Action, Rate, Recovery, recover


@dataclass(frozen=True)
class Spread:
    """A quantity over many fault maps."""

    mean: float
    percentile_5: float


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the 5th percentile; of nothing, no number."""
    if not len(values):
        return Spread(float("nan"), float("nan"))
    return Spread(float(np.mean(values)), float(np.percentile(values, 5)))


@dataclass(frozen=True)
class LinkFaults:
    """A point of the link-fault curves."""

    rate: float
    connected: float
    """Share of the maps in which all devices reach each other."""
    fixed_groups: float
    """Share of the groups with a path through their own devices."""
    fixed: float
    """Share of the maps in which all groups have such a path."""
    regrouped: float
    """Share of the maps in which the same number of groups of any devices have paths."""
    undecided: float
    """Share of the maps in which the search for those hit its limit: ``regrouped`` may be more."""
    throughput: Spread
    """Throughput over all maps."""
    throughput_if_connected: Spread


def link_fault_curve(
    network: Network,
    groups: IntArray,
    rates: Iterable[float],
    seeds: Sequence[int],
    throughput: Rate,
) -> list[LinkFaults]:
    """Return the effect of dead links on stream groups, one point for each rate.

    Parameters
    ----------
    groups
        Devices of each group, (num_groups, group_size).
    seeds
        One fault map each; the same draws at all rates.
    throughput
        Of a recovered plan; also chooses between members two hops apart and smaller groups.
    """
    return [_link_point(network, groups, rate, seeds, throughput) for rate in rates]


def _link_point(
    network: Network,
    groups: IntArray,
    rate: float,
    seeds: Sequence[int],
    throughput: Rate,
) -> LinkFaults:
    """Return one point of the link-fault curves."""
    rows = []
    for seed in seeds:
        broken = random_faults(network, FaultRates(link=rate), seed).applied(network)
        recovery = recover(broken, groups, rate=throughput)
        is_regrouped = recovery.action in (Action.KEPT, Action.REORDERED, Action.REGROUPED)
        is_connected = len(connected_parts(broken)) == 1
        kept = _groups_with_path(broken, groups)
        is_open = Action.REGROUPED in recovery.undecided
        rate_now = throughput(broken, recovery)
        rows.append((is_connected, kept, kept == 1.0, is_regrouped, is_open, rate_now))
    connected, kept_share, fixed, regrouped, undecided, reached = np.array(rows, dtype=float).T
    return LinkFaults(
        rate,
        float(connected.mean()),
        float(kept_share.mean()),
        float(fixed.mean()),
        float(regrouped.mean()),
        float(undecided.mean()),
        spread(reached.tolist()),
        spread(reached[connected > 0].tolist()),
    )


def _groups_with_path(network: Network, groups: IntArray) -> float:
    """Return the share of the groups with a Hamiltonian path through their own devices."""
    region = make_region(network)
    parts = (region.of(group) for group in groups.tolist())
    size = groups.shape[1]
    found = [len(p.devices) == size and hamiltonian_path(p).groups is not None for p in parts]
    return float(np.mean(found))


def stream_throughput(num_groups: int, group_size: int, link_share: float) -> Rate:
    """Return the rate of a stream relative to the whole network, links against compute alone.

    A pass of N rounds takes (N - 1) max(t_c, d t_m) + t_c, where d is the longest hop (store and
    forward); with fewer members N' a device computes t_c (N / N')^2 a round and each message is
    t_m N / N' long. Compute follows the slowest device.

    Parameters
    ----------
    link_share
        t_m / t_c before the faults [1].

    Assumes: the streams of other groups and of other axes do not share links.
    """

    def pass_time(size: int, hop: int, speed: float) -> float:
        compute = (group_size / size) ** 2 / speed
        link = link_share * group_size / size * hop
        return (size - 1) * max(compute, link) + compute

    def rate(network: Network, recovery: Recovery) -> float:
        if recovery.action is Action.IMPOSSIBLE:
            return 0.0
        speed = float(network.speed_factor[recovery.groups].min())
        whole = pass_time(group_size, 1, 1.0)
        share = len(recovery.groups) / num_groups
        return share * whole / pass_time(recovery.group_size, recovery.longest_hop, speed)

    return rate


@dataclass(frozen=True)
class CoreFaults:
    """A point of the core-fault curve: rates relative to whole devices."""

    rate: float
    equal: Spread
    """Equal rows: the slowest device of all sets the pace."""
    balanced_in_groups: Spread
    """Rows by speed inside each group, equal work for all groups: the slowest group sets it."""
    balanced: Spread
    """Rows by speed over all devices."""


def core_fault_curve(
    network: Network,
    groups: IntArray,
    rates: Iterable[float],
    seeds: Sequence[int],
    *,
    num_cores: int,
    rows_per_device: int,
    compute_share: float = 1.0,
) -> list[CoreFaults]:
    """Return the effect of dead cores on a step, one point for each rate.

    Parameters
    ----------
    groups
        Devices of each group, (num_groups, group_size).
    rows_per_device
        Rows of a device in an equal split.
    compute_share
        Share of the step that computes before the faults; the rest takes as long as it did [1].
    """
    points = []
    for rate in rates:
        faults = FaultRates(core=rate, num_cores=num_cores)
        reached = np.array(
            [
                _core_rates(random_faults(network, faults, seed), groups, rows_per_device)
                for seed in seeds
            ]
        )
        reached = reached / (compute_share + (1 - compute_share) * reached)
        points.append(CoreFaults(rate, *(spread(column.tolist()) for column in reached.T)))
    return points


def _core_rates(faults: FaultMap, groups: IntArray, rows_per_device: int) -> list[float]:
    """Return the rates of equal rows, of rows balanced in each group, and over all devices."""
    speed = faults.core_fraction[groups]
    in_groups = min(_balanced_rate(group, rows_per_device) for group in speed)
    return [float(speed.min()), in_groups, _balanced_rate(speed.reshape(-1), rows_per_device)]


def _balanced_rate(speed_factor: FloatArray, rows_per_device: int) -> float:
    """Return the rate of balanced rows relative to whole devices; 0 where none works."""
    if not speed_factor.any():
        return 0.0
    rows = balanced_rows(rows_per_device * len(speed_factor), speed_factor)
    return relative_rate(rows, speed_factor)


def relative_rate(rows: IntArray, speed_factor: FloatArray) -> float:
    """Return the rate of a group relative to one of equal rows and full speed [1].

    The slowest device sets the pace: (sum S_i / N) / max(S_i / g_i). It is the mean of g_i where
    S_i is proportional to g_i, and the least g_i where the rows are equal.
    """
    busy = rows > 0
    if not busy.any():
        return 0.0
    return float(rows.mean() / (rows[busy] / speed_factor[busy]).max())
