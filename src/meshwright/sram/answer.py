"""A sequence of layers cut into stages, as data; to JSON.

Field names are stable and carry their unit; unknown values are null, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.catalog.answer_file import FORMAT
from meshwright.spec.workload import Decode, Prefill, Training
from meshwright.sram.price import Rates


@dataclass(frozen=True)
class PartitionStage(Brief):
    """Load, reserved memory and sends of the devices of one stage, all alike."""

    DERIVED: ClassVar[Mapping[str, str]] = {
        "held_bytes": "held_bytes",
        "filled_fraction": "filled_fraction",
    }
    devices: tuple[int, ...]
    """Devices of the first replica; empty where no system was named."""
    first_layer: str
    last_layer: str
    num_layers: int
    load_parts_bytes: Mapping[str, float]
    """Bytes loaded before the run, by part [bytes]."""
    reserved_parts_bytes: Mapping[str, float]
    """Bytes set aside: cache, activations, buffers, by part [bytes]."""
    room_bytes: float
    sent_bytes: float
    """Bytes sent to the next stage in each pass of a group; in decode the last stage sends to the
    first [bytes]."""
    work_s: float | None
    """Time of one group in the layers of the stage; None where it is not known [s]."""
    send_s: float | None
    load_s: float | None
    """Time to load the stage over the host link; None where no link is stated [s]."""

    @property
    def parts_bytes(self) -> dict[str, float]:
        """Memory of a device by part; empty parts are left out [bytes]."""
        parts = {**self.load_parts_bytes, **self.reserved_parts_bytes}
        return {name: size for name, size in parts.items() if size > 0}

    @property
    def held_bytes(self) -> float:
        """Memory of a device of the stage [bytes]."""
        return sum(self.parts_bytes.values())

    @property
    def occupied_s(self) -> float:
        """Time for which one group keeps the stage busy; 0 where no times are known [s]."""
        return (self.work_s or 0.0) + (self.send_s or 0.0)

    @property
    def filled_fraction(self) -> float:
        """Share of the room that is filled."""
        return self.held_bytes / self.room_bytes


@dataclass(frozen=True)
class PartitionProof(Brief):
    """Proof that no cut needs fewer stages."""

    num_stages: int | None
    """Stages of the greedy cut, which no contiguous cut undercuts; None where none fits."""
    lower_bound: int
    """Lower bound ceil(all bytes / room) for any cut, contiguous or not, of pieces of any size."""
    weights_lower_bound: int
    """Lower bound of the stages from the weights alone."""


@dataclass(frozen=True)
class PartitionLevel(Brief):
    """Best cut at one level of the memory of the chip."""

    name: str
    room_bytes: float
    num_stages: int | None
    """Stages of the cut; None where a layer fits no device."""
    num_devices: int | None
    latency_s: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class PartitionBatch(Brief):
    """Best cut with another batch."""

    batch_size: int
    num_groups: int
    num_stages: int
    replicas: int
    latency_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Proposal(Brief):
    """A change that makes the layers fit."""

    kind: str
    """``devices``, ``split``, ``experts``, ``batch``, ``stream``, ``quantise`` or ``prune``."""
    what: str
    num_stages: int
    num_devices: int
    """Devices of one pipeline of stages."""
    latency_s: float | None
    """Latency of a token, a prompt or a step; None where it is not priced [s]."""
    device_s_per_token: float | None
    """Devices used over tokens per second: the cost of a token [device s]."""
    changes_numbers: bool
    """Whether the change alters the numbers that the model computes."""

    @property
    def cost(self) -> tuple[bool, float]:
        """Sort key: changes that leave the model as it is first, then device seconds."""
        unknown = self.device_s_per_token is None
        return self.changes_numbers, inf if unknown else self.device_s_per_token or 0.0


@dataclass(frozen=True)
class PartitionPlan(Shown):
    """The cut, the load of each device, the rates and the proof; or proposals that make it fit."""

    DERIVED: ClassVar[Mapping[str, str]] = {"fits": "fits", "passes_per_s": "passes_per_s"}
    source: str
    """Name of the model, or file of measured layers."""
    system: str
    """Name of the system; empty where only a capacity was stated."""
    workload: Training | Prefill | Decode | None
    level: str
    """Level of memory that holds the layers; ``stated`` where its capacity was stated."""
    room_bytes: float
    """Room of one device; the largest where they differ [bytes]."""
    objective: str
    tensor_degree: int
    expert_degree: int
    num_layers: int
    """Number of layers, with embedding and head."""
    num_devices_given: int | None
    num_devices_used: int
    replicas: int
    num_groups: int
    group_size: int
    stages: tuple[PartitionStage, ...]
    """Stages of the cut; empty where a layer fits no device."""
    too_large: tuple[str, ...]
    """Layers that fit no device by themselves."""
    proof: PartitionProof
    rates: Rates | None
    levels: tuple[PartitionLevel, ...] = ()
    batches: tuple[PartitionBatch, ...] = ()
    largest_batch: int | None = None
    proposals: tuple[Proposal, ...] = ()
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""

    def rows(self) -> Rows:
        """Return the stages; none where a layer fits no device."""
        return [scalars(stage) for stage in self.stages]

    @property
    def fits(self) -> bool:
        """Whether each layer has its place on the devices there are."""
        given = self.num_devices_given
        return bool(self.stages) and (given is None or self.num_devices_used <= given)

    @property
    def passes_per_s(self) -> float | None:
        """Passes through all layers on all replicas, while the slowest stages are busy [1/s]."""
        if not any(stage.work_s for stage in self.stages):
            return None
        return self.replicas / max(stage.occupied_s for stage in self.stages)
