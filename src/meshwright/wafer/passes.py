"""Slowdown of each axis in both passes of a micro-batch, on links that its messages share.

The operators of a pass are cut into parts, each with the messages that travel meanwhile, and
data-parallel messages beside all of them (:mod:`~meshwright.wafer.fair_sharing`). Each team of
devices takes the parts one after the other, and a step as long as its slowest replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Num, number_at
from meshwright.sharding.strategy import StrategyOf
from meshwright.topology.network import Network
from meshwright.wafer.fair_sharing import (
    InFlight,
    beside_background_s,
    in_flight,
    slowdown_of_parts,
)
from meshwright.wafer.loads import AxisLoad, Sending, one_after_the_other_s
from meshwright.wafer.teams import Teams, UnitLoad

PROVEN = 1e-6
"""Share of a number within which it counts as proven equal."""


@dataclass(frozen=True)
class StagePass:
    """Computation of one pass of a micro-batch, and the number of passes with background."""

    compute_s: float = 0.0
    data_share: float = 0.0
    """Share of the micro-batches with data-parallel messages in this pass [1]."""
    first_s: float = 0.0
    """Computation before the first of these messages [s]."""


class PipelineShape(NamedTuple):
    """Passes of a step: all of them wait for the slowest stage, those of the bubble for each."""

    num_micro_batches: float = 1.0
    num_stages: float = 1.0
    bubble: float = 0.0
    """Passes of a micro-batch that fit into the bubble: (stages - 1) / virtual stages [1]."""

    @classmethod
    def of(cls, number: Num, strategy: StrategyOf[Num]) -> PipelineShape:
        """Return the shape of a pipeline: of a strategy, or of columns of one row."""
        stages = number_at(strategy.pp)
        bubble = (stages - 1.0) / number_at(strategy.num_virtual_stages)
        return cls(number_at(number), stages, bubble)

    def effective(self, slowest: float, mean: float) -> float:
        """Return the quantity that equal stages would have in as long a step.

        (m slowest + b mean) / (m + b): of 4 micro-batches through two stages of 3 and 1, with a
        bubble of one pass, (12 + 2) / 5 = 2.8.
        """
        passes = self.num_micro_batches + self.bubble
        return (self.num_micro_batches * slowest + self.bubble * mean) / passes


NO_PIPELINE = PipelineShape()


def slowdowns(
    loads: Sequence[AxisLoad], units: Mapping[str, Sequence[UnitLoad]],
    busy: Mapping[str, FloatArray], network: Network, passes: tuple[StagePass, StagePass],
    teams: Teams, shape: PipelineShape,
) -> tuple[dict[str, float], dict[str, float]]:  # fmt: skip
    """Return the slowdown of each axis, and that without the messages of others."""
    data = [load for load in loads if load.yields and load.overlaps and load.axis != "pp"]
    beside = [load for load in loads if not load.yields]
    own = {load.axis: _own_slowdown(load, units[load.axis]) for load in loads}
    own |= {load.axis: _data_slowdown(load, units[load.axis], passes, shape) for load in data}
    found = dict(own)
    played = _slowest(
        [
            _Played.of(is_forward, one, beside, data, units, network, teams)
            for is_forward, one in zip((True, False), passes, strict=True)
        ],
        teams,
        shape,
    )
    for load in beside:
        if load.messages:
            least = shape.effective(_least_slowdown(load, units[load.axis], network, teams), 1.0)
            found[load.axis] = max(least, _slowdown_of(load.axis, played, own[load.axis]))
    private_s = sum(one.data_private_s * one.data_share for one in played)
    if private_s:
        shared_s = sum(one.data_s * one.data_share for one in played)
        alone_s = sum(one.data_own_s * one.data_share for one in played)
        for load in data:
            slowdown = own[load.axis] * float(shared_s) / max(float(alone_s), 1e-300)
            found[load.axis] = max(1.0, slowdown)
    overlapping = sum(
        (busy[load.axis] for load in loads if load.overlaps), np.zeros(network.num_links)
    )
    for load in loads:
        if load.axis == "pp" and load.overlaps:
            seconds = float(overlapping[busy["pp"] > 0].max(initial=0.0))
            found["pp"] = max(1.0, seconds / sum(sent.longest_s for sent in load.messages))
    return found, own


def _own_slowdown(load: AxisLoad, units: Sequence[UnitLoad]) -> float:
    """Return the time of the messages of an axis alone over that on private links."""
    waits_s = sum(sent.wait_s for sent in load.messages)
    busy = [u.busy_s * s.num_bytes for u, s in zip(units, load.messages, strict=True)]
    shared_s = one_after_the_other_s(load.rounds, busy)
    return max(1.0, (shared_s + waits_s) / (load.private_s + waits_s))


def _data_slowdown(
    load: AxisLoad, units: Sequence[UnitLoad], passes: tuple[StagePass, StagePass],
    shape: PipelineShape,
) -> float:  # fmt: skip
    """Return the time of data-parallel messages of a step alone over that on private links.

    Those of a pass travel at the same time; the next pass waits for them.
    """
    number = shape.num_micro_batches
    busy, private_s = [], 0.0
    for is_forward, one in zip((True, False), passes, strict=True):
        times = one.data_share * number
        mine = [
            (unit.busy_s, sent)
            for unit, sent in zip(units, load.messages, strict=True)
            if sent.is_forward is is_forward
        ]
        busy.append(times * sum((each * sent.num_bytes for each, sent in mine), np.zeros(1)))
        private_s += times * sum(sent.longest_s for _, sent in mine)
    waits_s = sum(
        sent.wait_s * passes[not sent.is_forward].data_share * number for sent in load.messages
    )
    shared_s = sum(float(each.max()) for each in busy)
    return max(1.0, (shared_s + waits_s) / max(private_s + waits_s, 1e-300))


def _least_slowdown(
    load: AxisLoad, units: Sequence[UnitLoad], network: Network, teams: Teams
) -> float:
    """Return the slowdown of the streams of an axis, if nothing else used links."""
    sent = {u: s.private_s for s, u in zip(load.messages, units, strict=True) if s.is_stream}
    return least_slowdown([(u.of_slowest_s(teams, network), s) for u, s in sent.items()])


def least_slowdown(messages: Sequence[tuple[FloatArray, FloatArray]]) -> float:
    """Return a bound of the slowdown of messages, whichever of them travel together, at least 1.

    A link that is busy for at least s times as long as the longest pair of each message, private,
    is so for all sums of them. Messages that keep one link busy for 4 s and 6 s, and take 2 s and
    2 s on private links, are slowed down at least 2-fold.

    Parameters
    ----------
    messages
        Of each the busy time of each link, and the private time of each pair of members [s].
    """
    each = [busy / max(float(private.max(initial=0.0)), 1e-300) for busy, private in messages]
    return max(1.0, float(np.min(each, axis=0).max(initial=0.0))) if each else 1.0


class _Played(NamedTuple):
    """The parts of one pass of a micro-batch in time, by team."""

    parts: _Table
    part_s: FloatArray
    """Each part on shared links, (teams, parts) [s]."""
    rest_s: float
    """Computation that is in no part, of the slowest team [s]."""
    total_s: FloatArray
    """The whole pass of each team [s]."""
    flights: Sequence[InFlight]
    """Data-parallel messages beside the pass of each team."""
    one: StagePass
    data_private_s: float
    """Data-parallel messages on private links [s]."""
    data_own_s: float
    """Data-parallel messages on their links without others [s]."""

    @classmethod
    def of(
        cls, is_forward: bool, one: StagePass, beside: Sequence[AxisLoad],
        data: Sequence[AxisLoad], units: Mapping[str, Sequence[UnitLoad]], network: Network,
        teams: Teams,
    ) -> _Played:  # fmt: skip
        """Return the parts of a pass of all axes."""
        parts = _Parts(network, teams)
        for load in beside:
            for sent, unit in zip(load.messages, units[load.axis], strict=True):
                if sent.is_forward is is_forward:
                    parts.add(load.axis, sent, unit)
        table = parts.known_table()
        compute_s, _, _, waits_s = table.seconds
        rest_s = max(0.0, one.compute_s - float(compute_s.sum()))
        background, num_flows = np.zeros(network.num_links), np.zeros(network.num_links)
        kinds: dict[object, FloatArray] = {}
        private_s = waited_s = 0.0
        for load in data:
            for sent, unit in zip(load.messages, units[load.axis], strict=True):
                if sent.is_forward is is_forward:
                    background = background + unit.busy_s * sent.num_bytes
                    same = kinds.get(sent.rounds, num_flows)
                    kinds[sent.rounds] = np.maximum(same, unit.num_flows)
                    private_s += sent.longest_s + sent.wait_s
                    waited_s += sent.wait_s
        num_flows = sum(kinds.values(), num_flows)
        # Teams of other paces meet by chance: their share of the time on each link adds.
        first = np.flatnonzero(np.diff(teams.pace, prepend=-1.0))
        by_pace = table.busy_s[first]
        alone_s = np.maximum(compute_s, by_pace.sum(axis=0).max(axis=1, initial=0.0))
        duty = by_pace.sum(axis=1) / max(float(alone_s.sum()) + rest_s, 1e-300)
        found, flights = [], []
        for team, pace in enumerate(teams.pace):
            own_s, own_rest_s = compute_s * pace, rest_s * pace
            others = duty[teams.pace[first] != pace].sum(axis=0)
            uses = table.uses[team]
            busy = np.where(uses, table.busy_s[team] * (1.0 + np.minimum(others, 1.0)), 0.0)
            without_s = np.maximum(own_s, busy.max(axis=1, initial=0.0) + waits_s)
            beside_s = beside_background_s(busy, table.flows[team], background, num_flows)
            with_s = np.maximum(own_s, beside_s.max(axis=1, initial=0.0) + waits_s)
            flight = in_flight(
                np.append(with_s, own_rest_s), busy, background, waited_s, one.first_s * pace
            )
            share = flight.on_links * one.data_share
            found.append(without_s + share * (with_s - without_s))
            flights.append(flight)
        part_s = np.array(found)
        return cls(
            table, part_s, rest_s, part_s.sum(axis=1) + rest_s * teams.pace, flights, one,
            private_s, float(background.max(initial=0.0)) + waited_s,
        )  # fmt: skip

    def as_long_as(self, team: int, pace: float, total_s: float) -> _PlayedPass:
        """Return the parts of a team, with what they expose scaled to a time of the pass.

        Those of a replica of a faster pace expose what they take beyond the computation of the
        slowest one.
        """
        compute_s, private_s, starts_s, _ = self.parts.seconds
        exposed_s = self.part_s[team] - pace * compute_s
        beyond_s = max(0.0, total_s - float(compute_s.sum()) - self.rest_s)
        scale = beyond_s / max(float(exposed_s.sum()), 1e-300)
        flight = self.flights[team]
        return _PlayedPass(
            self.parts.axes, private_s, compute_s - starts_s,
            compute_s + scale * exposed_s - starts_s, self.one.data_share, self.data_private_s,
            self.data_own_s, self.one.compute_s * flight.share + flight.left_s,
        )  # fmt: skip


class _PlayedPass(NamedTuple):
    """The parts of one pass of a micro-batch, as equal stages in the time of a step take them."""

    axes: Sequence[tuple[str, ...]]
    """Axes that send in each part."""
    private_s: FloatArray
    """Messages of each part on private links [s]."""
    hidden_s: FloatArray
    """Computation of each part beyond starts of messages [s]."""
    part_s: FloatArray
    """Each part on shared links, starts of messages left out [s]."""
    data_share: float
    data_private_s: float
    """Data-parallel messages on private links [s]."""
    data_own_s: float
    """Data-parallel messages on their links without others [s]."""
    data_s: float
    """Time for which they are in flight [s]."""


def _slowest(played: Sequence[_Played], teams: Teams, shape: PipelineShape) -> list[_PlayedPass]:
    """Return the passes of the replica that is last, its stages made equal."""
    total_s = np.sum([one.total_s for one in played], axis=0)
    best_s, best = -1.0, (0, np.zeros(1, dtype=np.int64), np.ones(1))
    for replica in dict.fromkeys(teams.replica.tolist()):
        for pace in np.unique(teams.pace[teams.replica == replica]):
            stages, counts = teams.stages(replica, pace, shape.num_stages)
            seconds = total_s[stages]
            mean_s = float(counts @ seconds) / float(counts.sum())
            time_s = shape.effective(float(seconds.max()), mean_s)
            if time_s > best_s:
                best_s, best = time_s, (int(stages[seconds.argmax()]), stages, counts)
    team, stages, counts = best
    return [
        one.as_long_as(
            team,
            float(teams.pace[team]),
            shape.effective(
                float(one.total_s[team]), float(counts @ one.total_s[stages]) / float(counts.sum())
            ),
        )
        for one in played
    ]


def _slowdown_of(axis: str, played: Sequence[_PlayedPass], own: float) -> float:
    """Return the slowdown at which the parts with messages of an axis take as long as played."""
    rows = [[axis in axes for axes in one.axes] for one in played]
    private_s, compute_s, part_s = (
        np.concatenate([getattr(one, name)[mask] for one, mask in zip(played, rows, strict=True)])
        for name in ("private_s", "hidden_s", "part_s")
    )
    sends = private_s > 0
    if not sends.any():
        return 1.0
    total_s = float(part_s[sends].sum())
    slowdown = slowdown_of_parts(total_s, private_s[sends], compute_s[sends])
    if total_s <= float(compute_s[sends].sum()) * (1.0 + PROVEN):
        slowdown = min(slowdown, own)
    return max(1.0, slowdown)


class _Table(NamedTuple):
    """Parts of a pass as columns, with a row for each; links are columns, teams come first."""

    axes: Sequence[tuple[str, ...]]
    seconds: FloatArray
    """Computation, messages on private links, starts and waits of each part, (4, parts) [s]."""
    busy_s: FloatArray
    """Busy times of links by teams in step, (teams, parts, links) [s]."""
    flows: FloatArray
    """Messages on links by teams in step, (teams, parts, links) [1]."""
    uses: BoolArray
    """Links that each team uses itself."""


class _Parts:
    """Parts of the operators of a pass, each with the messages that travel meanwhile."""

    def __init__(self, network: Network, teams: Teams) -> None:
        self._network, self._teams = network, teams
        self._by_rounds: dict[object, list[tuple[str, Sending, UnitLoad]]] = {}

    def add(self, axis: str, sent: Sending, unit: UnitLoad) -> None:
        """Add a message; those of the same rounds share their parts."""
        key = sent.rounds or len(self._by_rounds)
        self._by_rounds.setdefault(key, []).append((axis, sent, unit))

    def known_table(self) -> _Table:
        """Return all parts; candidates with equal messages share them."""
        rows = [
            (number, axis, unit, sent.num_bytes, sent.since, sent.until, sent.beside_s)
            for number, messages in enumerate(self._by_rounds.values())
            for axis, sent, unit in messages
        ]
        key = (*rows, self._teams.key)
        known = _TABLES.setdefault(self._network, {})
        if key not in known:
            table = self.table()
            if len(known) * table.busy_s.size > MOST_NUMBERS:
                known.clear()
            known[key] = table
        return known[key]

    def table(self) -> _Table:
        """Return all parts: sums over messages of the share of each that travels in a part."""
        rows = [part for messages in self._by_rounds.values() for part in self._cut(messages)]
        sent = [row for messages in self._by_rounds.values() for row in messages]
        place = {id(message): n for n, (_, message, _) in enumerate(sent)}
        num_teams, num_links = len(self._teams.pace), self._network.num_links
        shares = np.zeros((len(rows), len(sent)))
        for number, (_, beside) in enumerate(rows):
            for message, share in beside:
                shares[number, place[id(message)]] = share
        if not rows:
            none = np.zeros((num_teams, 0, num_links))
            return _Table((), np.zeros((4, 0)), none, none, none > 0)
        each = [unit.by_team(self._teams, self._network) for _, _, unit in sent]
        num_bytes, start_bytes, start_s, wait_s = np.array(
            [[one.num_bytes, one.start_bytes, one.start_s, one.wait_s] for _, one, _ in sent]
        ).T
        flows = np.stack([unit_flows for _, unit_flows in each], axis=1)
        seconds = np.stack([unit_busy for unit_busy, _ in each], axis=1) * num_bytes[:, None]
        starts = flows * (start_bytes[:, None] / self._network.bandwidth_bytes_per_s)
        names = [axis for axis, _, _ in sent]
        longest_s, starts_s = np.zeros((2, len(rows)))
        for axis in dict.fromkeys(names):
            mine = [n for n, name in enumerate(names) if name == axis]
            private = np.stack([sent[n][1].private_s for n in mine]) * num_bytes[mine, None]
            longest_s = np.maximum(longest_s, (shares[:, mine] @ private).max(axis=1, initial=0.0))
            starting = (private > 0) * start_s[mine, None]
            starts_s = np.maximum(starts_s, (shares[:, mine] @ starting).max(axis=1, initial=0.0))
        waits_s = shares @ wait_s
        of_parts = [
            np.array([compute_s for compute_s, _ in rows]), longest_s + waits_s,
            starts_s, waits_s,
        ]  # fmt: skip
        travels = shares > 0
        axes = [tuple(dict.fromkeys(names[n] for n in np.flatnonzero(row))) for row in travels]
        busy_s, flows = shares @ (seconds + starts), travels @ flows
        uses = busy_s > 0
        if num_teams > 1:
            in_step = self._teams.same_pace
            busy_s, flows = (np.tensordot(in_step, one, 1) for one in (busy_s, flows))
        return _Table(axes, np.stack(of_parts), busy_s, flows, uses)

    def _cut(
        self, messages: Sequence[tuple[str, Sending, UnitLoad]]
    ) -> Iterator[tuple[float, list[tuple[Sending, float]]]]:
        """Yield the parts of one operator: it is cut where a message begins or ends.

        Each has its computation [s], and the share of each message that travels in it [1].
        """
        edges = {0.0, 1.0}
        for _, sent, _ in messages:
            edges |= {round(sent.since, 9), round(sent.until, 9)}
        compute_s = max(sent.beside_s for _, sent, _ in messages)
        for begin, end in pairwise(sorted(edges)):
            travels = [
                (sent, (min(end, sent.until) - max(begin, sent.since)) / (sent.until - sent.since))
                for _, sent, _ in messages
                if min(end, sent.until) - max(begin, sent.since) > LEAST_SHARE
            ]
            yield compute_s * max(0.0, min(end, 1.0) - begin), travels


_TABLES: WeakKeyDictionary[Network, dict[object, _Table]] = WeakKeyDictionary()
MOST_NUMBERS = 4_000_000
"""Numbers of tables of parts that are kept, about."""
LEAST_SHARE = 1e-8
"""Share of a computation below which two ends are the same [1]."""
