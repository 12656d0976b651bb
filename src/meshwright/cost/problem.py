"""The problem to be priced: model, system, workload and calibration, with all that follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, prod
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Mask,
    Num,
    larger,
    smaller,
    take_rows,
)
from meshwright.cost.communication import (
    AxisNetwork,
    AxisPlacement,
    level_efficiencies,
    place_axes,
    uses_blocks,
)
from meshwright.cost.operator import DeviceRates, device_rates, operator_s
from meshwright.graph.op import LayerGraph, Op, OpGraph
from meshwright.graph.transformer import build_graph
from meshwright.network.blocks import clear_grids, connected_parts, sound_grids
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.axes import streams_inputs
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.local_sizes import (
    CheckpointPolicy,
    LayerAxes,
    SavedTensor,
    layer_axes,
    saved_elements,
)
from meshwright.sharding.space import device_counts, legal_counts
from meshwright.sharding.strategy import DEGREES, PlanOptions, StrategyColumns, Streamed
from meshwright.spec.calibration import Calibration, CalibrationOf, SramConstants
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import ExpertSpec, ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import BYTES_OF, Training, Workload
from meshwright.topology.levels import network_of

LEAST_PACE = 0.8
"""Share of a grid that works where ranks of the others are hosted [1]: below it a smaller whole
grid is as good."""
MOST_DEVICES = 1024
"""Most devices of a grid on which others host ranks, or messages are rerouted: more would take too
long."""


class Mapper(StrEnum):
    """Mapper of the ranks of a strategy to devices of a grid.

    Source: TEMP (Wang et al. 2025, arXiv 2512.14256), section VIII-A, for the first two.
    """

    SMAP = "smap"
    """Ranks in the order of the axes on devices in the order of their numbers."""
    GMAP = "gmap"
    """Nested blocks of the least closed form, which does not see that axes share links."""
    TMAP = "tmap"
    """Nested blocks of the least contended price; messages leave hot links."""


class DerivedShardings(NamedTuple):
    """Consequences of the shardings of one piece of a model."""

    calls: tuple[CollectiveCall, ...]
    saved: tuple[SavedTensor, ...]
    """Kept for the backward pass."""
    axes: LayerAxes
    """Axes that split its rows and dims."""


Value = TypeVar("Value")


class Shared:
    """Parts of prices that problems have in common: each is made once for equal inputs."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[object, Any]]] = {}
        self._networks: dict[int, AxisNetwork] = {}

    def network(
        self, part: Hashable, inputs: object, make: Callable[[], AxisNetwork]
    ) -> AxisNetwork:
        """Return a network that stays, so that parts of prices can be known by it."""
        network = self.once(part, inputs, make)
        self._networks[id(network)] = network
        return network

    def holds(self, network: AxisNetwork) -> bool:
        """Return whether a network stays: no later one has its identity."""
        return id(network) in self._networks

    def once(self, part: Hashable, inputs: object, make: Callable[[], Value]) -> Value:
        """Return a part as it was made before from equal inputs, else made now."""
        known = self._known.setdefault(part, [])
        for before, value in known:
            if before == inputs:
                return cast(Value, value)
        value = make()
        known.append((inputs, value))
        return value


class StreamChoices:
    """The blocks of a layer that stream their inputs, by rows of equal private price."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[bytes, tuple[bool, ...]]] = {}

    def of(
        self, layer: Hashable, columns: Sequence[NDArray[Any]], make: Callable[[], Sequence[Mask]]
    ) -> list[BoolArray]:
        """Return for each block whether its inputs stream, for each row: known, or made now.

        Parameters
        ----------
        columns
            Numbers that the choices of a row depend on.
        """
        known = self._known.setdefault(layer, {})
        rows = [row.tobytes() for row in np.stack(np.broadcast_arrays(*columns), axis=1)]
        if not known.keys() >= {*rows}:
            made = [np.broadcast_to(mask, len(rows)) for mask in make()]
            if len(known) + len(rows) > MOST_KNOWN_ROWS:
                known.clear()
            known.update(
                zip(rows, zip(*(mask.tolist() for mask in made), strict=True), strict=True)
            )
        return list(np.array([known[row] for row in rows]).T)


MOST_KNOWN_ROWS = 200_000
"""Rows of a layer whose choices are kept."""


Work = TypeVar("Work", bound=Workload, covariant=True)


HEAD_COUNTS = ("query_heads", "kv_heads", "inner_heads", "state_groups")
"""Sizes that count heads: heads of one kind share heads of another."""


@lru_cache(maxsize=1024)
def _derived(
    ops: tuple[Op, ...], sizes: tuple[tuple[str, int], ...], plan_options: PlanOptions,
    keeping: CheckpointPolicy,
) -> DerivedShardings:  # fmt: skip
    """Return the collectives and kept tensors of a piece of a model; problems share them.

    Only the sizes of heads matter: whether heads share keys decides which gradients are summed.
    """
    piece = LayerGraph(ops, 1, dict(sizes))
    saved = saved_elements(piece, plan_options, keeping)
    calls = derive_calls(
        piece, plan_options, selective=keeping.selective, stops_early=keeping.stops_early
    )
    if keeping.keeps_gathered_inputs:
        calls = tuple(c for c in calls if c.of_weight or not c.is_regather or c.axis != "tp")
    if keeping.wide_key_gradients:
        calls = tuple(_in_fp32(call) if is_key_gradient(call) else call for call in calls)
    return DerivedShardings(calls, saved, layer_axes(piece, plan_options))


def is_key_gradient(call: CollectiveCall) -> bool:
    """Return whether a call sums gradients of keys and values on their way round a ring of cp."""
    return call.axis == "cp" and call.streamed and call.kind is CollectiveKind.REDUCE_SCATTER


def _in_fp32(call: CollectiveCall) -> CollectiveCall:
    return replace(call, tensor=replace(call.tensor, word_bytes=4.0))


@dataclass(frozen=True)
class ProblemOf(ABC, Generic[Work]):
    """Work to be priced. The calibration may hold columns of perturbed constants."""

    model: ModelSpec
    system: SystemSpec
    workload: Work
    calibration: CalibrationOf[Num]
    mapper: Mapper = Mapper.TMAP
    pace: Num | None = None
    """Share of its full rate at which the last rank computes, one number or one for each row that
    is priced; that of the slowest device if not given, as where all work is split equally."""
    most_work: Num = 1.0
    """Largest share of the work of one rank over an equal split: its memory traffic and its
    activations grow too."""
    states: Num = 1.0
    """Weights, gradients and states of the fullest device over those of one rank [1]."""

    @property
    def nominal_calibration(self) -> Calibration:
        """The calibration where none of its constants is a column of perturbed ones."""
        return cast(Calibration, self.calibration)

    @cached_property
    def graph(self) -> OpGraph:
        """The operators of the model, under the software of the workload."""
        software = self.workload.software
        return build_graph(
            self.model, dropout=software.dropout, flash_attention=software.flash_attention,
            keeps_gates=software.eager, norms_in_steps=software.eager and software.norms_in_steps,
            loss=software.loss, fp32_logit_copies=software.logit_copies,
            deferred_logit_gradients=software.deferred_logit_gradients,
        )  # fmt: skip

    @property
    def logit_tiles(self) -> int:
        """Parts of the tokens with logits that are made one after the other.

        In a fused product a part has about equal numbers of logits and of token inputs.
        Source: Liger Kernel 0.6, ``ops/fused_linear_cross_entropy.py``, ``inc_factor``.
        """
        software, model = self.workload.software, self.model
        fused = ceil(model.vocab_size / model.hidden_size)
        return max(software.logit_tiles, fused if software.loss in ("linear", "cut") else 1)

    @cached_property
    def pieces(self) -> tuple[LayerGraph, ...]:
        """The kinds of layers, then the embedding, then the head."""
        return (*self.graph.layers, self.graph.embedding, self.graph.head)

    @cached_property
    def layer_weights(self) -> tuple[float, ...]:
        """Parameters of one layer of each kind [1]."""
        return tuple(
            float(sum(prod(layer.sizes[d] for d in w.dims) for w in layer.weights))
            for layer in self.graph.layers
        )

    @cached_property
    def rates(self) -> DeviceRates:
        """Rates of one device: the slowest one."""
        slowest = min(self.system.slowest_speed_factor, 1.0)
        return self.rates_at(slowest if self.pace is None else self.pace, self.most_work)

    def rates_at(self, speed_factor: Num, work_share: Num = 1.0) -> DeviceRates:
        """Return the rates of a device that has a share of its cores.

        ``speed_factor`` scales arithmetic. Memory rates are divided by ``work_share``, the work of
        the device over an equal split, because bytes are counted for that split.
        """
        work = self.workload
        rates = device_rates(
            self.system.chip, work.precision, work.software, self.calibration,
            speed_factor=speed_factor,
            freezes_weights=isinstance(work, Training) and work.optimizer.freezes_weights,
        )  # fmt: skip
        if isinstance(work, Training):
            rates = replace(
                rates, weight_format=work.precision.weight_format,
                host_s=operator_s(self.system.chip, work.software, self.calibration),
            )  # fmt: skip
        return replace(
            rates,
            memory_bytes_per_s=rates.memory_bytes_per_s / work_share,
            elementwise_bytes_per_s=rates.elementwise_bytes_per_s / work_share,
        )

    def at_pace(self, pace: Num, most_work: Num = 1.0, states: Num = 1.0) -> Self:
        """Return the problem for ranks where the slowest computes at a share of the full rate.

        Parameters
        ----------
        pace, most_work, states
            One number each, or a column with one for each row that is priced.
        """
        found = replace(self, pace=pace, most_work=most_work, states=states)
        vars(found)["stream_choices"] = self.stream_choices
        # All that is derived stays, but for the rates.
        kept = vars(self).keys() - vars(found).keys() - {"rates"}
        vars(found).update({name: vars(self)[name] for name in kept})
        return found

    def of_rows(self, rows: IntArray) -> Self:
        """Return the problem for some of the rows that are priced."""
        if self.pace is None or not self.pace_keys:
            return self
        columns = (self.pace, self.most_work, self.states)
        return self.at_pace(*(take_rows(column, rows) for column in columns))

    @cached_property
    def stream_choices(self) -> StreamChoices | None:
        """The tensors that stream in layers priced so far, also at other paces.

        None where constants are columns of perturbed ones.
        """
        drawn = any(isinstance(value, np.ndarray) for value in vars(self.calibration).values())
        return None if drawn else StreamChoices()

    @property
    def pace_keys(self) -> tuple[NDArray[Any], ...]:
        """Columns with equal numbers where rows have equal paces; none where all rows have."""
        columns = (self.pace, self.most_work)
        return tuple(column for column in columns if isinstance(column, np.ndarray))

    @cached_property
    def efficiencies(self) -> tuple[Num, ...]:
        """Share of link bandwidth reached on each level."""
        return level_efficiencies(self.system, self.calibration)

    @cached_property
    def _shardings(self) -> dict[PlanOptions, tuple[DerivedShardings, ...]]:
        return {}

    @cached_property
    def keeping(self) -> CheckpointPolicy:
        """Policy of the workload's software on tensors kept for the backward pass."""
        work = self.workload
        matmul, activation = BYTES_OF[work.precision.matmul], BYTES_OF[work.precision.activation]
        is_cast = work.software.keeps_cast_inputs and matmul < activation
        return CheckpointPolicy(
            work.software.selective_recompute,
            keeps_added_outputs=work.software.eager,
            separate_projections=work.software.separate_projections,
            cast_word_bytes=matmul if is_cast else None,
            narrow_activation_inputs=work.software.narrow_activation_inputs,
            keeps_gathered_inputs=work.software.keeps_gathered_inputs,
            weighs_rows_in_fp32=work.software.weighs_rows_in_fp32,
            wide_key_gradients=work.software.wide_key_gradients,
            stops_early=work.software.stops_recompute_early,
            freezes_weights=isinstance(work, Training) and work.optimizer.freezes_weights,
            **self._adapted,
        )

    @property
    def _adapted(self) -> dict[str, tuple[str, ...]]:
        """Regions of products with adapters, where those are stated."""
        work = self.workload
        if not isinstance(work, Training) or work.adapters is None:
            return {}
        return {"adapted_regions": work.adapters.regions}

    def derived_shardings(self, plan_options: PlanOptions) -> tuple[DerivedShardings, ...]:
        """Return the collectives and kept tensors of each piece, under a set of plan options.

        Derived once for each combination of the choices on which they depend.
        """
        streamed = Streamed.INPUTS if streams_inputs(plan_options) else Streamed.WEIGHTS
        # No piece of a model is sharded by ZeRO: stage 0 stands for all.
        plain = replace(plan_options.of("sharding"), streamed=streamed, zero_stage=0)
        if plain not in self._shardings:
            found = []
            for piece in self.pieces:
                heads = [(n, piece.sizes[n]) for n in HEAD_COUNTS if n in piece.sizes]
                found.append(_derived(piece.ops, tuple(heads), plain, self.keeping))
            self._shardings[plain] = tuple(found)
        return self._shardings[plain]

    def network(self, axis_order: tuple[str, ...], strategy: StrategyColumns) -> AxisNetwork:
        """Return the groups of columns of strategies under one order of the axes."""
        return self.network_with(self.axis_placement(axis_order, strategy), strategy)

    def axis_placement(
        self, axis_order: tuple[str, ...], strategy: StrategyColumns
    ) -> AxisPlacement:
        """Return the levels, or blocks, that each axis crosses under one order of the axes."""
        return place_axes(self.system.levels, axis_order, strategy, self.num_experts)

    def network_with(self, placement: AxisPlacement, strategy: StrategyColumns) -> AxisNetwork:
        """Return the groups of columns of strategies under an axis placement."""
        kinds = {
            "kv_heads": [spec.num_kv_heads for spec in self.model.attentions],
            "state_groups": [spec.num_groups for spec in self.model.recurrences],
        }
        return AxisNetwork(
            levels=self.system.levels,
            efficiency=self.efficiencies,
            strategy=strategy,
            placement=placement,
            sizes={name: min(counts) for name, counts in kinds.items() if counts},
            experts=self.deduplicated_experts,
        )

    @property
    def deduplicated_experts(self) -> ExpertSpec | None:
        """Experts of the model, where copies of a token for one host are sent as one."""
        if not self.workload.software.deduplicated_dispatch:
            return None
        kinds = (kind.experts for kind in self.model.layer_kinds if kind.experts)
        return max(kinds, key=lambda experts: experts.top_k, default=None)

    @property
    def has_grid(self) -> bool:
        """Whether neighbours share links, so that tensor streams have somewhere to run."""
        return any(level.kind in ("torus", "mesh") for level in self.system.levels)

    @property
    def grid_sides(self) -> tuple[int, ...]:
        """Sides of the grid of devices, innermost first, and the number of such grids.

        Empty where the system is no grid.
        """
        levels = self.system.levels
        is_grid = len(levels) > 1 and all(level.kind in ("mesh", "torus") for level in levels)
        return tuple(level.size for level in levels) if is_grid else ()

    @cached_property
    def whole_grids(self) -> tuple[tuple[int, ...], ...]:
        """The largest grids of working devices that a grid with faults still holds.

        Innermost side first; empty where the system is no grid, or has no faults.
        """
        system = self.system
        if not self.grid_sides or not (system.dead_devices or system.dead_links):
            return ()
        return tuple(clear_grids(network_of(system), self.grid_sides))

    @cached_property
    def device_numbers(self) -> tuple[int, ...]:
        """The numbers of devices worth using, the largest first.

        On a grid with faults: the devices of whole grids of working devices, of covers of at least
        7/8 of those that work, and of grids with a few dead devices, if others can host their ranks
        (:func:`~meshwright.network.placement.block_ranks`).
        """
        if not self.whole_grids:
            return device_counts(self.system.num_alive, self.system.domain_size)
        numbers = {prod(sides) for sides in self.whole_grids}
        numbers |= {n for n in self.cover_numbers if n * 8 >= len(self.islands[0]) * 7}
        if self.may_have_holes:
            numbers |= sound_grids(network_of(self.system), self.grid_sides, LEAST_PACE)
        return tuple(sorted(numbers, reverse=True))

    @cached_property
    def fewer_device_numbers(self) -> tuple[int, ...]:
        """All numbers of devices that a plan may use, also where others are left idle.

        On a grid the sizes of its blocks, elsewhere whole hosts
        (:func:`~meshwright.sharding.space.legal_counts`).
        """
        system = self.system
        if not self.grid_sides:
            return legal_counts(system.num_alive, system.domain_size)
        most = max(system.num_alive, *self.device_numbers)
        grids = (self.grid_sides,) if self.may_have_holes else self.whole_grids
        numbers = {
            prod(shape)
            for sides in grids or (self.grid_sides,)
            for shape in product(*(range(1, side + 1) for side in sides))
        }
        numbers |= {*self.cover_numbers}
        return tuple(sorted((n for n in numbers if n <= most), reverse=True))

    @property
    def may_have_holes(self) -> bool:
        """Whether ranks of dead devices may be hosted by others."""
        return False

    @property
    def cover_numbers(self) -> Sequence[int]:
        """The numbers of devices for which axes are laid along covers: more than in blocks."""
        return ()

    @property
    def is_unequal(self) -> bool:
        """Whether ranks may differ in speed, or be hosted."""
        return bool(self.system.speed_factors) or (self.may_have_holes and bool(self.whole_grids))

    @cached_property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Working devices of a grid that reach each other, the largest part first."""
        if not self.whole_grids:
            return ()
        parts = connected_parts(network_of(self.system))
        return tuple(tuple(part.tolist()) for part in parts)

    def least_devices(self, num_ranks: Num) -> Num:
        """Return the fewest devices that hold ranks [1].

        Others host the ranks of those that do not work: as many fewer as the largest part of the
        grid lacks.
        """
        if not (self.may_have_holes and self.whole_grids):
            return num_ranks
        return larger(num_ranks - (self.system.num_devices - len(self.islands[0])), 1.0)

    @cached_property
    def _summed_speeds(self) -> FloatArray:
        """Speeds, at most 1, of the fastest devices of the largest connected part, added up."""
        network = network_of(self.system)
        part = list(self.islands[0]) if self.islands else network.alive
        return np.sort(np.minimum(network.speed_factor[part], 1.0))[::-1].cumsum()

    def fastest_devices(self, num_ranks: Num) -> tuple[Num, Num]:
        """Return the devices that work for some ranks at most, and the sum of their speeds [1]."""
        if not self.is_unequal:
            return num_ranks, num_ranks
        number = smaller(num_ranks, len(self._summed_speeds))
        return number, self._summed_speeds[np.asarray(number, dtype=np.int64) - 1]

    @property
    def num_experts(self) -> int:
        """Routed experts of the model; 0 for a dense one."""
        kinds = self.model.layer_kinds
        return max((kind.experts.num_experts for kind in kinds if kind.experts), default=0)

    @property
    @abstractmethod
    def pass_length(self) -> int:
        """Tokens of one sequence that pass through the layers at once."""

    def bound_sizes(self, piece: LayerGraph, micro_batch_size: Num) -> Mapping[str, Num]:
        """Return the sizes of a piece with its token dims bound to a micro-batch."""
        length = float(self.pass_length)
        return piece.bind(length * micro_batch_size, length)


@dataclass(frozen=True)
class Problem(ProblemOf[Training]):
    """A training step to be priced."""

    constants_under: Callable[[str], Calibration] | None = None
    """Constants under another framework, by its name; None: those of the problem."""
    shared: Shared | None = field(default=None, compare=False, repr=False)
    """Parts of prices that it shares with problems that differ in their software alone."""

    def sharing(self) -> Self:
        """Return the problem with parts of prices that those made from it share."""
        return replace(self, shared=Shared())

    def once(
        self, part: Hashable, inputs: object, make: Callable[[], Value], network: AxisNetwork
    ) -> Value:
        """Return a part of a price on a network: made now, or shared with equal inputs.

        Shared are parts on networks that problems share (:meth:`shared_network`).
        """
        if self.shared is None or not self.shared.holds(network):
            return make()
        return self.shared.once((part, id(network)), inputs, make)

    def shared_network(self, axis_order: tuple[str, ...], strategy: StrategyColumns) -> AxisNetwork:
        """Return the groups of columns of strategies, the same for problems that share parts."""

        def make() -> AxisNetwork:
            return self.network(axis_order, strategy)

        if self.shared is None:
            return make()
        degrees = tuple(getattr(strategy, name).tobytes() for name in DEGREES)
        inputs = (self.efficiencies, self.deduplicated_experts)
        return self.shared.network(("network", axis_order, degrees), inputs, make)

    def adds_up_wide(self, plan_options: PlanOptions) -> bool:
        """Return whether the residual stream has the type of the weights, not of the products.

        It has under autocast, with which whole weights of PyTorch are trained.

        Source: PyTorch 2.13 ``aten/src/ATen/autocast_mode.h``: products alone are cast.
        """
        work = self.workload
        return (
            plan_options.zero_stage < 2
            and work.software.autocasts_whole_weights
            and work.optimizer.trains_wide_weights
        )

    @cached_property
    def inputs_of_layers(self) -> tuple[object, ...]:
        """All inputs of the price of a layer that its software decides.

        Left out are the operators, and the gradients of weights that stream over tatp.
        """
        work = self.workload
        own = ("software", "stated", "optimizer")
        others = [getattr(work, name) for name in Training.model_fields if name not in own]
        return (
            self.rates, self.keeping, self.logit_tiles, work.software.loss == "cut", others,
            work.optimizer.freezes_weights, self.calibration.collective_launch_s,
        )  # fmt: skip

    @property
    def pass_length(self) -> int:
        """Tokens of one sequence."""
        return self.workload.sequence_length

    @property
    def may_have_holes(self) -> bool:
        """Whether ranks of dead devices may be hosted by others: where ranks are placed."""
        is_small = self.system.num_devices <= MOST_DEVICES and not self.num_experts
        return is_small and bool(self.grid_sides) and self.mapper is not Mapper.SMAP

    @property
    def cover_numbers(self) -> Sequence[int]:
        """The numbers of devices for which axes are laid along covers: more than in blocks.

        On meshes with equal links along both sides: paths go along both.
        """
        levels = self.system.levels
        rates = {
            (of.bandwidth_bytes_per_s, of.links_per_device, of.hop_latency_s, of.message_half_bytes)
            for of in levels
        }
        is_alike = len(levels) == 2 and len(rates) == 1 and uses_blocks(levels)
        if not (is_alike and self.whole_grids and self.mapper is Mapper.TMAP):
            return ()
        return range(max(map(prod, self.whole_grids)) + 1, len(self.islands[0]) + 1)


UNCALIBRATED_NOTE = "uncalibrated: constants come from data sheets and public sources"
"""Note of every answer where no constant was fitted to measurements of its chips."""


def certainty_note(sums: SramConstants, *, is_calibrated: bool) -> str | None:
    """Return the note on the constants of an answer; None: all are fitted to measured times."""
    if not is_calibrated:
        return UNCALIBRATED_NOTE
    if sums.factor is None:
        return None
    return (
        "the time per token of one user is fitted to published figures (each within a factor "
        f"{sums.factor:.2f} of a fit without it); the speed of batches comes from data sheets"
    )


RECURRENT_NOTE = "no measured row has a recurrent layer: scans at the rates of attention (assumed)"
"""Note of answers for models with recurrent layers; intervals do not cover it."""
