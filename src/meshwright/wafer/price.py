"""The price of a placed plan: the same formulas, on links slowed by others that share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Num, joined, number_at, take_rows
from meshwright.collectives.group import Reach
from meshwright.cost.communication import AxisNetwork, AxisPlacement, strides_of_experts
from meshwright.cost.energy import step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.money import step_cost_usd
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_each
from meshwright.network.faults import SharedWork, shared_work
from meshwright.network.placement import Nesting, Ranks, stated_ranks
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import (
    AXES,
    EXPERT_AXES,
    PlanOptions,
    Strategy,
    StrategyColumns,
    stack,
    take,
)
from meshwright.spec.system import SystemSpec
from meshwright.topology.levels import network_of
from meshwright.topology.network import Network
from meshwright.wafer.contention import Contention, contention
from meshwright.wafer.loads import RowGroups, axis_loads
from meshwright.wafer.messages import (
    DATA_AXES,
    EXPERT_DATA_AXES,
    HeldParams,
    stage_windows,
    step_messages,
)
from meshwright.wafer.passes import PipelineShape, StagePass
from meshwright.wafer.power import DieEnergy, die_energy, least_regional_s
from meshwright.wafer.teams import ONE_TEAM, teams_of

YIELDING = (*DATA_AXES, *EXPERT_DATA_AXES, "pp")
"""Axes that overlap with the computation of a whole stage, and leave the links to its streams."""


@dataclass(frozen=True)
class PricedRow:
    """One row of prices in columns."""

    columns: Priced
    row: int
    time_s: float
    """Step time [s]."""
    memory_bytes: float
    """Memory of the fullest device [bytes]."""
    host_bytes: float
    """Memory of its host [bytes]."""

    @classmethod
    def every(cls, columns: Priced) -> list[PricedRow]:
        """Return the rows of columns."""
        step, number = columns.step, len(columns.strategy.tp)
        numbers = (step.time.total_s, step.memory_bytes, step.host_bytes)
        each = zip(*(np.broadcast_to(one, number).tolist() for one in numbers), strict=True)
        return [cls(columns, row, *of_row) for row, of_row in enumerate(each)]

    @cached_property
    def price(self) -> Priced:
        """The price: columns of one row."""
        return take_rows(self.columns, [self.row])


@dataclass(frozen=True)
class PlacedPrice:
    """A strategy on its devices: its price alone on its links, and with all others."""

    problem: Problem
    plan_options: PlanOptions
    strategy: Strategy
    nesting: Nesting
    """The way in which its axes are laid."""
    ranks: Ranks
    together: PricedRow
    contention: Contention
    work: SharedWork
    private: PricedRow | None = None
    """The price on private links, where it is known."""

    @cached_property
    def closed_form(self) -> Priced:
        """The price on private links."""
        if self.private is not None:
            return self.private.price
        option_sets, groups = [(self.plan_options, 1)], self.groups(self.problem)
        ((_, priced),) = shared_out(self.problem, option_sets, groups, [self.work])
        return priced

    @property
    def contended(self) -> Priced:
        """The price on links that others share."""
        return self.together.price

    @property
    def time_s(self) -> float:
        """Step time with contention [s]."""
        return self.together.time_s

    def groups(self, problem: Problem) -> AxisNetwork:
        """Return the groups of its axes: columns of one row."""
        return choice_network(problem, [(self.strategy, [self.nesting])])


def params_of(price: Priced) -> HeldParams[float]:
    """Return the parameters on one device of the fullest stage of a priced row."""
    heaviest = price.pipeline.heaviest
    return HeldParams(number_at(heaviest.dense_params), number_at(heaviest.expert_params))


def physical_network(problem: Problem) -> Network:
    """Return the links of the system, at the share of their bandwidth that is reached.

    Searches of one question share it, and with it the loads that are known of its links.
    """
    shares = tuple(number_at(efficiency) for efficiency in problem.efficiencies)
    key = id(problem.system), shares
    found = _NETWORKS.get(key)
    if found is None:
        network = network_of(problem.system)
        reached = network.bandwidth_bytes_per_s * np.array(shares)[network.level]
        found = problem.system, replace(network, bandwidth_bytes_per_s=reached)
        _NETWORKS.clear()
        _NETWORKS[key] = found
    return found[1]


_NETWORKS: dict[tuple[int, tuple[float, ...]], tuple[SystemSpec, Network]] = {}
"""The last one; its system stays, so that no other one has its identity."""


def choice_network(
    problem: Problem, laid: Sequence[tuple[Strategy, Sequence[Nesting]]]
) -> AxisNetwork:
    """Return the groups of strategies, one row for each way to lay each of them."""
    counts = [len(choices) for _, choices in laid]
    strategies = stack([strategy for strategy, _ in laid])
    columns = take(strategies, np.repeat(np.arange(len(laid)), counts))
    # Candidates of the same degrees have the same ways.
    tables = {id(choices): choices for _, choices in laid}
    known = {number: axes_laid(choices) for number, choices in tables.items()}
    return laid_network(problem, joined([known[id(choices)] for _, choices in laid]), columns)


def nesting_of(
    axes: Sequence[str], shapes: Mapping[str, Sequence[int]], plan_options: PlanOptions,
    num_levels: int, devices: tuple[int, ...] = (), lies_in: str = "blocks",
) -> Nesting:  # fmt: skip
    """Return the way to lay the axes that an answer states, unused axes behind them.

    Parameters
    ----------
    shapes
        Block of each axis of more than one device, outermost level first.
    """
    unused = tuple(axis for axis in plan_options.axis_order if axis not in axes)
    laid = tuple(tuple(shapes[axis][::-1]) for axis in axes)
    return Nesting(
        (*axes, *unused), (*laid, *((1,) * num_levels for _ in unused)), devices, lies_in
    )


def laid_network(problem: Problem, placed: AxisPlacement, columns: StrategyColumns) -> AxisNetwork:
    """Return the groups of strategies, each laid in one way."""
    strides = {**placed.strides, **strides_of_experts(columns)}
    return problem.network_with(replace(placed, strides=strides), columns)


def axes_laid(choices: Sequence[Nesting]) -> AxisPlacement:
    """Return the placement of axes, one row for each way to lay them."""
    sizes = np.array([choice.shapes for choice in choices], dtype=float)
    apart = np.ones_like(sizes)
    apart[:, 1:] = np.cumprod(sizes, axis=1)[:, :-1]
    strides = np.ones(sizes.shape[:2])
    strides[:, 1:] = np.cumprod(sizes.prod(axis=2), axis=1)[:, :-1]
    place = np.array([[choice.axes.index(axis) for axis in AXES] for choice in choices])
    sizes, apart = (np.take_along_axis(part, place[:, :, None], axis=1) for part in (sizes, apart))
    strides = np.take_along_axis(strides, place, axis=1)
    return AxisPlacement(
        {axis: strides[:, number] for number, axis in enumerate(AXES)},
        {
            axis: Reach(tuple(sizes[:, number].T), tuple(apart[:, number].T))
            for number, axis in enumerate(AXES)
        },
    )


def stacked(params: Sequence[HeldParams[float]]) -> HeldParams[FloatArray]:
    """Return columns with one row for each."""
    return HeldParams(np.array([p.dense for p in params]), np.array([p.expert for p in params]))


def contention_of(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy, ranks: Ranks,
    params: HeldParams[float], physical: Network, *, is_routed: bool = False,
) -> Contention:  # fmt: skip
    """Return the contention on the links when a strategy runs on its devices.

    Parameters
    ----------
    physical
        Network from :func:`physical_network`.
    is_routed
        Whether messages that share links are routed anew where that may help.
    """
    network = choice_network(problem, [(strategy, [Nesting(ranks.axes, ranks.shapes)])])
    (found,) = _contentions(
        problem, [plan_options], network, [ranks], stacked([params]), physical, is_routed=is_routed
    )
    return found


def _contentions(
    problem: Problem, option_sets: Sequence[PlanOptions], network: AxisNetwork,
    places: Sequence[Ranks], params: HeldParams[FloatArray], physical: Network,
    works: Sequence[SharedWork] = (), *, is_routed: bool = False,
) -> list[Contention]:  # fmt: skip
    """Return the contention on the links for each row of a network, alone on its devices."""
    found, groups = [], RowGroups(network)
    every = stage_windows(problem, option_sets, network, params)
    for row, (plan_options, ranks, window) in enumerate(
        zip(option_sets, places, every, strict=True)
    ):
        ahead, back = window.forward, window.backward
        loads = axis_loads(
            [*back.messages, *back.data, *window.between], plan_options, groups, ranks, row,
            forward=[*ahead.messages, *ahead.data], yielding=YIELDING,
        )  # fmt: skip
        strategy = take(network.strategy, np.array([row]))
        first, last = (StagePass(w.compute_s, w.data_share, w.first_s) for w in (ahead, back))
        found.append(
            contention(
                list(loads), physical, is_routed=is_routed, passes=(first, last),
                shape=PipelineShape.of(window.num_micro_batches, strategy),
                teams=teams_of(ranks, works[row], physical) if works else ONE_TEAM,
            )
        )  # fmt: skip
    return found


def ranks_of(
    problem: Problem, strategy: Strategy, choice: Nesting, physical: Network
) -> Ranks | None:
    """Return the ranks of a choice; None where its blocks, or those of experts, do not fit."""
    ranks = stated_ranks(physical, problem.grid_sides, choice)
    if ranks is None or not problem.num_experts:
        return ranks
    apart = strides_of_experts(strategy)
    members = {axis: (round(apart[axis]), round(degree_of(axis, strategy))) for axis in EXPERT_AXES}
    ranks = replace(ranks, experts=members)
    return ranks if all(ranks.fills_blocks(axis) for axis in EXPERT_AXES) else None


Way = tuple[PlanOptions, Strategy, Nesting]
"""A candidate, and a way to lay it."""


def price_placed(
    problem: Problem, ways: Sequence[Way], physical: Network, *, is_routed: bool = False,
    held: Sequence[HeldParams[float]] | None = None, known: Sequence[SharedWork] = (),
) -> list[PlacedPrice | None]:  # fmt: skip
    """Return the price of candidates, each laid in one way.

    None where blocks do not fit the working part of the grid. All are priced at once.
    Below a cap on power each is slowed down by the energy of the links that it crosses.

    Parameters
    ----------
    is_routed
        Whether messages that share links are routed anew where that may help; else they take the
        default routes, which is never better.
    held
        Parameters on one device of the fullest stage of each way, where they are known.
    known
        Split of the work of each way, where it is known.

    Raises
    ------
    InfeasibleError
        Where messages have no way around dead links.
    """
    found: list[PlacedPrice | None] = [None] * len(ways)
    rows, places, works = [], [], []
    for row, (_, strategy, choice) in enumerate(ways):
        ranks = ranks_of(problem, strategy, choice, physical)
        work = known[row] if known else None
        if ranks is not None and work is None:
            work = work_of(problem, strategy, ranks, physical)
        if ranks is not None and work is not None:
            rows.append(row)
            places.append(ranks)
            works.append(work)
    if not places:
        return found
    option_sets = [ways[row][0] for row in rows]
    network = choice_network(problem, [(ways[row][1], [ways[row][2]]) for row in rows])
    alone: Sequence[PricedRow | None] = [None] * len(rows)
    if held is None:
        private = _rows_of(shared_out(problem, [(o, 1) for o in option_sets], network, works))
        alone, of_each = private, [params_of(one.price) for one in private]
    else:
        of_each = [held[row] for row in rows]
    paced = problem.at_pace(*_paces(works)[:, :3].T)
    shared = _contentions(
        paced, option_sets, network, places, stacked(of_each), physical, works,
        is_routed=is_routed,
    )  # fmt: skip
    axes = dict.fromkeys(axis for entry in shared for axis in entry.slowdown)
    slowdown, own = (
        {axis: np.array([one.get(axis, 1.0) for one in each]) for axis in axes}
        for each in ([e.slowdown for e in shared], [e.own_slowdown for e in shared])
    )
    slowed = replace(network, slowdown=slowdown, own_slowdown=own)
    together = _rows_of(shared_out(problem, [(o, 1) for o in option_sets], slowed, works))
    for row, ranks, contended, links, work, private_row in zip(
        rows, places, together, shared, works, alone, strict=True
    ):
        plan_options, strategy, choice = ways[row]
        price = PlacedPrice(
            problem, plan_options, strategy, choice, ranks, contended, links, work, private_row
        )
        if problem.system.is_power_capped:
            carried = step_links(problem, price, physical)
            (throttled_row,) = PricedRow.every(with_energy(problem, price, carried))
            price = replace(price, together=throttled_row)
        found[row] = price
    return found


def work_of(
    problem: Problem, strategy: Strategy, ranks: Ranks, physical: Network
) -> SharedWork | None:
    """Return the split of the work of a step over its ranks; None where no rank can work.

    Equally where no device is slower than others or dead, and where ranks are not hosted by others,
    as those of models with experts.
    """
    if not (problem.may_have_holes and problem.is_unequal):
        speed = np.minimum(physical.speed_factor[ranks.device], 1.0)
        equal = SharedWork(np.zeros(0, dtype=np.int64), np.ones(speed.shape), speed, 1)
        return equal if ranks.is_host.all() else None
    rows = problem.workload.sequence_length / float(strategy.cp)
    batch, micro_batch = problem.workload.global_batch_size, int(strategy.micro_batch_size)
    return shared_work(ranks, physical.speed_factor, batch, rows, micro_batch)


def shared_out(
    problem: Problem, option_sets: Sequence[tuple[PlanOptions, int]], network: AxisNetwork,
    works: Sequence[SharedWork],
) -> list[tuple[IntArray, Priced]]:  # fmt: skip
    """Return the price of each row of a network, at the pace of its last rank, by plan options.

    Activations grow with the most work of a rank; weights, states and their update with those of
    the ranks that a device hosts.

    Parameters
    ----------
    option_sets
        Plan options, each with its number of rows.
    works
        Split of the work over the ranks of each row.

    Returns
    -------
    list of (numbers of the rows, their price)
    """
    table = _paces(works)
    paced = problem.at_pace(*table[:, :3].T)
    return [
        (rows, _unequal(priced, *table[rows, 2:].T))
        for rows, priced in price_each(paced, option_sets, network)
    ]


def _paces(works: Sequence[SharedWork]) -> FloatArray:
    """Return the pace of the last rank, its work, its states and the mean work of each way."""
    return np.array([(w.pace, w.most_work, w.states, w.mean_busy) for w in works])


def _rows_of(prices: Sequence[tuple[IntArray, Priced]]) -> list[PricedRow]:
    """Return the rows of prices by plan options, in order."""
    found: dict[int, PricedRow] = {}
    for rows, priced in prices:
        found |= dict(zip(rows.tolist(), PricedRow.every(priced), strict=True))
    return [found[row] for row in sorted(found)]


def _unequal(priced: Priced, states: FloatArray, mean_busy: FloatArray) -> Priced:
    """Return prices with the update of the fullest device, where ranks share work unequally.

    On average a rank computes and updates less than the last one.
    """
    mean = priced.pipeline.mean
    if mean is not None:
        less = replace(mean, busy_s=mean.busy_s * mean_busy, update_share=1.0 / states)
        priced = replace(priced, pipeline=replace(priced.pipeline, mean=less))
    update_s = priced.step.time[TimePart.OPTIMIZER]
    time = priced.step.time.plus({TimePart.OPTIMIZER: states * update_s})
    return replace(priced, step=replace(priced.step, time=time))


@dataclass(frozen=True)
class StepLinks:
    """The links of a placed plan over a whole step."""

    busy_s: FloatArray
    """Busy time of each link [s]."""
    energy_j: float | None
    """Energy of all bytes on all links that they cross, for each device in use [J]; None: not
    known."""
    by_axis_s: Mapping[str, FloatArray] = field(default_factory=dict)
    """Busy time of each link by axis, or group of axes [s]."""

    @property
    def busiest_s(self) -> float:
        """Busy time of the busiest link [s]."""
        return float(self.busy_s.max(initial=0.0))


def step_links(problem: Problem, price: PlacedPrice, physical: Network) -> StepLinks:
    """Return the busy times of the links in a step, and their energy.

    Both passes of all layers and edges for every micro-batch, the sends of the pipeline, and the
    data-parallel messages as often as the stage of ZeRO requires; sums once a step over tp or tatp
    are left out. Messages take the default routes; where a window of the plan is routed anew, the
    detour of an axis in the whole step is that of the window.
    """
    network, plan_options = price.groups(problem), price.plan_options
    pipeline, params = price.closed_form.pipeline, params_of(price.closed_form)
    num_passes = number_at(pipeline.num_micro_batches)
    messages = step_messages(problem, plan_options, network, params, num_passes)
    loads = list(axis_loads(messages, plan_options, RowGroups(network), price.ranks))
    if not loads:
        return StepLinks(np.zeros(physical.num_links), 0.0)
    carried = contention(loads, physical)
    per_link = link_j_per_byte(problem.system, physical)
    if per_link is None:
        return StepLinks(carried.hottest, None, carried.busy_s)
    mean = pipeline.mean
    share = {}
    if mean is not None:
        share = dict.fromkeys(DATA_AXES, number_at(mean.dense_params) / params.dense)
    if mean is not None and params.expert:
        share |= dict.fromkeys(EXPERT_DATA_AXES, number_at(mean.expert_params) / params.expert)
    energy_j = sum(
        float((busy_s * physical.bandwidth_bytes_per_s * per_link).sum())
        * price.contention.detour.get(axis, 1.0)
        * share.get(axis, 1.0)
        for axis, busy_s in carried.busy_s.items()
    )
    return StepLinks(carried.hottest, energy_j / float(price.strategy.num_devices), carried.busy_s)


def link_j_per_byte(system: SystemSpec, network: Network) -> FloatArray | None:
    """Return the energy of a byte on each link [J/B]; None where one is not known."""
    energies = [level.energy_j_per_byte for level in system.levels]
    known = [energy for energy in energies if energy is not None]
    return np.array(known)[network.level] if len(known) == len(energies) else None


def energy_of_dies(
    problem: Problem, price: PlacedPrice, links: StepLinks, parts_j: Mapping[str, Num]
) -> DieEnergy:
    """Return the energy of each die in a step.

    Parameters
    ----------
    parts_j
        Energy of a step of all devices in use, by part [J].
    """
    physical = physical_network(problem)
    per_link = link_j_per_byte(problem.system, physical)
    link_j = links.busy_s * physical.bandwidth_bytes_per_s * (0.0 if per_link is None else per_link)
    known_j = {part: number_at(energy_j) for part, energy_j in parts_j.items()}
    return die_energy(problem.system, known_j, price.ranks, price.work, physical, link_j)


def with_energy(problem: Problem, price: PlacedPrice, links: StepLinks) -> Priced:
    """Return a contended price with the energy and the rent of the devices in use.

    The energy is that of their work, and of the links that messages cross where that is known.
    """
    priced, link_j, num_devices = price.contended, links.energy_j, float(price.ranks.num_devices)
    plan, step = (price.plan_options, priced.strategy, priced.pipeline), priced.step
    time = throttled(problem, *plan, step.time, link_j, num_devices)
    parts_j = step_energy_parts_j(problem, *plan, time, link_j, num_devices)
    if problem.system.has_regional_caps:
        energy = energy_of_dies(problem, price, links, parts_j)
        waits_s = least_regional_s(problem.system, energy) - number_at(time.total_s)
        time = time.plus({TimePart.THROTTLE: time[TimePart.THROTTLE] + max(0.0, waits_s)})
        parts_j = step_energy_parts_j(problem, *plan, time, link_j, num_devices)
    step = replace(
        step,
        time=time,
        num_devices=np.array([num_devices]),
        energy_j=total_energy_j(parts_j, time.total_s),
        energy_parts_j=parts_j,
        cost_usd=step_cost_usd(problem.system.chip, time.total_s, num_devices),
    )
    return replace(priced, step=step)
