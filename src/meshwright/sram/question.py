"""The problem of a cut: layers with their bytes and seconds, devices, and a level of memory.

Layers come from a model (serving through the price of a pass, training through that of a step) or
from a file of measured ones. Stages take the working devices in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import mul

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.footprint_files import FootprintFile
from meshwright.collectives.group import make_group
from meshwright.collectives.registry import affine_candidates
from meshwright.cost.communication import Collectives, level_efficiencies
from meshwright.cost.layer import LayerCost, price_layers
from meshwright.cost.problem import Problem
from meshwright.serve.operators import PASS_TIME_PARTS, PassCost
from meshwright.serve.passes import ServingProblem, piece_cost
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy, make_strategy, stack
from meshwright.spec.calibration import FREE_SUMS, NEUTRAL, CalibrationOf, SramConstants
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import ChipSpec, MemoryLevel, SystemSpec
from meshwright.spec.workload import Training, Workload
from meshwright.sram.contiguous import LayerLoads

CACHES = ("l2", "infinity-cache")
"""Levels that hardware fills, so that software can keep only a part of them resident."""
CACHE_FRACTION = 0.75
"""Share of a cache that may hold layers: three quarters, the most that the guide of CUDA sets
aside for persisting accesses. Assumed for all caches, range 0.5 to 0.75.

Source: CUDA C++ Programming Guide, L2 cache set-aside for persisting accesses, its example."""
EXTERNAL = ("hbm", "ddr")
"""Levels beyond the chip: allocated by a runtime that needs a margin and buffers."""


@dataclass(frozen=True)
class PartitionProblem:
    """A model under a workload, on devices that hold it in one level of their memory."""

    model: ModelSpec
    system: SystemSpec
    workload: Workload
    calibration: CalibrationOf[float]
    level: int = 0
    """Index into the memories of the chip, near to far."""
    tensor_degree: int = 1
    """Devices that split each layer between them: the size of the group that holds a stage."""
    expert_degree: int = 1
    """Devices of the group over which whole experts are spread; the others split each expert."""
    capacity_bytes: float | None = None
    """Room of a device, if the user states it [bytes]."""
    sram: SramConstants = FREE_SUMS

    @cached_property
    def priced_problem(self) -> Problem | ServingProblem:
        """The problem with this level as the last one: it is read at its bandwidth."""
        chip, work = self.system.chip, self.workload
        held = chip.model_copy(update={"memories": chip.memories[: self.level + 1]})
        system = self.system.model_copy(update={"chip": held})
        if isinstance(work, Training):
            return Problem(self.model, system, work, self.calibration)
        constants = replace(NEUTRAL, reduction_s=self.sram.reduction_s)
        return ServingProblem(self.model, system, work, self.calibration, constants=constants)

    @property
    def memory(self) -> MemoryLevel:
        """The level that holds the layers."""
        return self.system.chip.memories[self.level]

    @property
    def room_bytes(self) -> float:
        """Room of one device [bytes]."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        return room_bytes(self.memory, self.calibration)

    def strategy(self, group_size: int) -> Strategy:
        """Return the degrees inside one stage."""
        tp, ep = self.tensor_degree, self.expert_degree
        etp = tp // ep if self.priced_problem.num_experts else 1
        return make_strategy(tp=tp, ep=ep, etp=etp, micro_batch_size=group_size)

    def on_chip(self, chip: ChipSpec) -> PartitionProblem:
        """Return the problem on another type of chip, at its level of the same index."""
        level = min(self.level, len(chip.memories) - 1)
        system = self.system.model_copy(update={"chip": chip, "other_chips": {}})
        return replace(self, system=system, level=level)


def room_bytes(memory: MemoryLevel, calibration: CalibrationOf[float]) -> float:
    """Return the room in a level of memory [bytes].

    On-chip memory that software manages is allocated before the run: all of it counts. Of a cache
    ``CACHE_FRACTION`` counts. External memory loses a margin and the buffers of a runtime.
    """
    if memory.name in CACHES:
        return CACHE_FRACTION * memory.capacity_bytes
    if memory.name in EXTERNAL:
        kept = (1.0 - calibration.memory_margin_fraction) * memory.capacity_bytes
        return max(kept - calibration.communication_buffer_bytes, 0.0)
    return memory.capacity_bytes


def level_of(chip: ChipSpec, name: str) -> int:
    """Return the index of a level of memory by its name.

    Raises
    ------
    SpecError
        When the chip has no such level.
    """
    names = [memory.name for memory in chip.memories]
    if name not in names:
        raise SpecError(Fault("level", f"{chip.name} has no {name!r}", nearest(name, names)))
    return names.index(name)


@dataclass(frozen=True)
class LayerSequence:
    """Layers in their order, on one device each, or on each device of a group that splits them."""

    names: tuple[str, ...]
    resident_bytes: Mapping[str, FloatArray]
    """Bytes that stay on the device, by part: weights, their state, key-value cache [bytes]."""
    transient_bytes: Mapping[str, FloatArray]
    """Bytes in use while a layer runs, by part: activations, buffers [bytes]."""
    kept_bytes: FloatArray
    """Activations that each micro-batch keeps for its backward pass [bytes]."""
    time_parts_s: Mapping[str, FloatArray]
    """Time of one pass of one group of sequences, by part; empty where it is not known [s]."""
    output_bytes: FloatArray
    """Bytes sent to the next layer in one pass; after the last one, back to the first [bytes]."""

    @cached_property
    def loads(self) -> LayerLoads:
        """Loads of the layers, as columns for the search of cuts."""
        zero = np.zeros(len(self.names))
        return LayerLoads(
            sum(self.resident_bytes.values(), zero), sum(self.transient_bytes.values(), zero),
            self.kept_bytes,
        )  # fmt: skip

    @cached_property
    def layer_s(self) -> FloatArray:
        """Seconds of each layer: the sum of its parts [s]."""
        return sum(self.time_parts_s.values(), np.zeros(len(self.names)))

    def parts_bytes(self, first: int, stop: int, in_flight: int) -> dict[str, float]:
        """Return the memory of a device of a stage by part; the parts sum to its load [bytes].

        Transients are those of the layer with the largest sum.
        """
        run = slice(first, stop)
        parts = {name: float(column[run].sum()) for name, column in self.resident_bytes.items()}
        kept = in_flight * float(self.kept_bytes[run].sum())
        largest = first + int(self.loads.transient_bytes[run].argmax())
        return {
            **parts,
            "kept_activations": kept,
            **{name: float(column[largest]) for name, column in self.transient_bytes.items()},
        }


def measured_layers(file: FootprintFile) -> LayerSequence:
    """Return the layers of a file of measured ones; a ``size`` counts as weights."""
    measured = file.rows
    names = [
        layer.name if layer.repeat == 1 else f"{layer.name} {number}"
        for layer in file.layers
        for number in range(layer.repeat)
    ]

    def column(field: str) -> FloatArray:
        return np.array([getattr(layer, field) or 0.0 for layer in measured])

    is_timed = measured[0].time_s is not None
    return LayerSequence(
        names=tuple(names),
        resident_bytes={
            "weights": column("size_bytes") + column("weights_bytes"),
            "kv_cache": column("kv_cache_bytes"),
        },
        transient_bytes={
            "activations": column("activations_bytes"), "buffers": column("buffers_bytes"),
        },
        kept_bytes=np.zeros(len(measured)),
        time_parts_s={"measured_s": column("time_s")} if is_timed else {},
        output_bytes=column("output_bytes"),
    )  # fmt: skip


@dataclass(frozen=True)
class StageDevices:
    """Working devices in their order; each stage has the next ``group_size`` of them."""

    system: SystemSpec
    calibration: CalibrationOf[float]
    group_size: int = 1

    @cached_property
    def _alive(self) -> Sequence[int]:
        dead, every = set(self.system.dead_devices), range(self.system.num_devices)
        return [device for device in every if device not in dead] if dead else every

    @property
    def num_stages(self) -> int:
        """Stages for which there are devices."""
        return len(self._alive) // self.group_size

    def devices_of(self, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage; stages beyond the system have numbers beyond it."""
        first, alive = stage * self.group_size, self._alive
        beyond = self.system.num_devices - len(alive)
        places = range(first, first + self.group_size)
        return tuple(alive[at] if at < len(alive) else beyond + at for at in places)

    def chips_of(self, stage: int) -> tuple[ChipSpec, ...]:
        """Return the distinct types of chips of a stage."""
        own = [self.system.other_chips.get(d, self.system.chip) for d in self.devices_of(stage)]
        return tuple({chip.name: chip for chip in own}.values())

    def rooms_bytes(self, room_of: Callable[[ChipSpec], float]) -> tuple[float, ...]:
        """Return the room of each stage: the least over its chips; one value if all are alike."""
        kinds = max(self.num_stages, 1) if self.system.other_chips else 1
        return tuple(min(map(room_of, self.chips_of(stage))) for stage in range(kinds))

    def level_between(self, first: int, second: int) -> int | None:
        """Return the innermost level of the network that joins two stages; None without any."""
        ends = self.devices_of(first)[0], self.devices_of(second)[0]
        sizes = accumulate((level.size for level in self.system.levels), mul)
        inside = [i for i, size in enumerate(sizes) if ends[0] // size == ends[1] // size]
        outermost = len(self.system.levels) - 1
        return inside[0] if inside else (outermost if outermost >= 0 else None)

    def send_s(self, level: int | None, num_bytes: FloatArray) -> FloatArray:
        """Return the seconds of messages between two neighbours that a level joins [s].

        Messages of 0 bytes take no time. Every device of a group sends the whole message.
        """
        if level is None:
            return 0.0 * num_bytes
        fixed_s, slope = self._forms[level]
        seconds: FloatArray = (num_bytes > 0) * (fixed_s + slope * num_bytes)
        return seconds

    @cached_property
    def _forms(self) -> list[tuple[float, float]]:
        """Seconds of a message and of each of its bytes, by level."""
        factors = level_efficiencies(self.system, self.calibration)
        found = []
        for level, factor in zip(self.system.levels, factors, strict=True):
            group = make_group([level], 1.0, 2.0, [factor])
            _, fixed_s, slope = affine_candidates(CollectiveKind.SEND, group)[0]
            found.append((self.calibration.collective_launch_s + float(fixed_s), float(slope)))
        return found


TOKEN_ID_BYTES = 4.0
"""Bytes of one token id that the last stage sends to the first."""
PLAN_OPTIONS = PlanOptions(sequence_parallel=False, zero_stage=0)


def layers_of_model(
    problem: PartitionProblem, group_sizes: Sequence[int], batch: int
) -> list[LayerSequence]:
    """Return embedding, layers and head of a model for each size of its groups of sequences.

    Resident in serving: weights, and the cache of the whole batch; in training: weights and their
    state. Each layer sends the residual stream; the head sends token ids, or nothing.

    Parameters
    ----------
    batch
        Sequences in flight in one pipeline of stages: serving holds the cache of all of them.
    """
    priced = problem.priced_problem
    model = priced.model
    strategy = stack([problem.strategy(size) for size in group_sizes])
    network = priced.network(PLAN_OPTIONS.axis_order, strategy)
    costs: Sequence[PassCost | LayerCost]  # of each kind of layer, of the embedding, of the head
    if isinstance(priced, ServingProblem):
        collectives = Collectives(network, priced.collective_start_s)
        costs = [
            piece_cost(priced, PLAN_OPTIONS, strategy, piece, index, collectives)
            for index, piece in enumerate(priced.pieces)
        ]
    else:
        prices = price_layers(priced, PLAN_OPTIONS, network, (Recompute.NONE,), uses_tatp=False)
        costs = prices[Recompute.NONE]
    kinds = len(model.layer_kinds)
    order = [kinds, *model.layer_pattern, kinds + 1]

    def column(name: str, number: int) -> FloatArray:
        """Return one field of the price of each layer, for one size of the groups."""
        parts = [np.asarray(getattr(cost, name)).reshape(-1) for cost in costs]
        values = [float(part[number] if len(part) > 1 else part[0]) for part in parts]
        return np.array([values[kind] for kind in order])

    found = []
    for number, size in enumerate(group_sizes):
        sent_bytes = priced.rates.activation_bytes * (size * priced.pass_length * model.hidden_size)
        returned_bytes, kept_bytes = 0.0, np.zeros(len(order))
        if isinstance(priced, ServingProblem):
            resident = {
                "weights": column("weight_bytes", number),
                "kv_cache": batch * column("cache_bytes", number),
            }
            times_s = {name: column(name, number) for name in PASS_TIME_PARTS}
            returned_bytes = TOKEN_ID_BYTES * size * priced.is_decode
        else:
            optimizer = priced.workload.optimizer
            params = column("dense_params", number) + column("expert_params", number)
            resident = {
                "weights": optimizer.weight_bytes_per_param * params,
                "gradients": optimizer.gradient_bytes_per_param * params,
                "optimizer": optimizer.state_bytes_per_param * params,
            }
            kept_bytes = column("kept_bytes", number)
            times_s = {
                "forward_s": column("forward_s", number),
                "backward_s": column("input_gradient_s", number)
                + column("weight_gradient_s", number),
                "launch_s": column("launch_s", number),
                "tp_comm_s": column("tp_s", number),
                "ep_comm_s": column("ep_s", number),
            }
        found.append(
            LayerSequence(
                names=("embedding", *(f"layer {i}" for i in range(model.num_layers)), "head"),
                resident_bytes=resident,
                transient_bytes={"activations": column("working_bytes", number)},
                kept_bytes=kept_bytes,
                time_parts_s=times_s,
                output_bytes=np.array([*[sent_bytes] * (len(order) - 1), returned_bytes]),
            )
        )
    return found
