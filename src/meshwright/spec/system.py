"""Chips, parts to build one of, and many of them on a network of levels, innermost first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from meshwright.spec.declaration import (
    Bytes,
    BytesPerSecond,
    Celsius,
    Count,
    CountOrZero,
    Declaration,
    FlopsPerSecond,
    Hertz,
    JoulesPerByte,
    JoulesPerFlop,
    KelvinPerWatt,
    MessageBytes,
    Metres,
    Provenance,
    Seconds,
    Source,
    SquareMillimetres,
    Usd,
    UsdPerHour,
    Watts,
)

RATE_WITHIN = 0.01
"""Share by which the rate of the arrays at their clock may differ from the stated one."""
DType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]


class MemoryLevel(Declaration):
    """One level of the memory of a chip."""

    name: str
    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond | None = None
    latency_s: Seconds | None = None
    energy_j_per_byte: JoulesPerByte | None = None


class CoreMesh(Declaration):
    """The cores of a chip on a mesh of rows and columns, each with its share of the memory."""

    rows: Count
    columns: Count
    hop_s: Seconds
    """From a core to its neighbour, with the addition of a word there."""
    link_bytes_per_s: BytesPerSecond
    """One direction between two neighbours."""
    word_bytes: Bytes
    """Bytes that cross a link together."""


class ChipSpec(Declaration):
    """One accelerator (GPU, TPU chip, die of a wafer).

    Rates are dense. Memories are ordered near to far; the last one holds the model (HBM, or the
    SRAM itself on chips without external memory). A missing price or power is None: unknown, and
    never zero.
    """

    name: str
    also_called: tuple[str, ...] = ()
    """Other names that ``64xNAME`` takes, letter case, spaces and dashes aside."""
    vendor: str
    family: str
    """Chips of one family share calibration constants: hopper, ampere, tpu, temp-die, ..."""
    matmul_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(alias="matmul_rate")
    best_matmul_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(
        default_factory=dict, alias="best_matmul_rate"
    )
    """Best matrix rate measured under the power cap; None: not known."""
    vector_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(
        default_factory=dict, alias="vector_rate"
    )
    memories: tuple[MemoryLevel, ...]
    num_cores: Count | None = None
    """Units that each work on one output tile of a matrix product (SMs of a GPU)."""
    tile_rows: Count = 128
    tile_columns: Count = 128
    array_rows: Count | None = None
    array_columns: Count | None = None
    """Multiply-adds of one core, where they are known to be fewer than its output tile."""
    noc_bytes_per_s: BytesPerSecond | None = Field(default=None, alias="noc_rate")
    """One direction of a link between two neighbours of the mesh of cores. With it, the share of
    the peak that a product reaches follows from its shape; without it, calibration states it."""
    is_dataflow: bool = False
    """Operators start when their operands arrive: no kernel is launched."""
    core_mesh: CoreMesh | None = None
    """Mesh over which a pass of decode spreads each product: weights stay, sums move."""
    clock_hz: Hertz | None = Field(default=None, alias="clock")
    """Clock of the arrays and the network; arrays reach the stated rates at this clock."""
    peak_power_w: Watts | None = None
    idle_power_w: Watts | None = None
    energy_j_per_flop: JoulesPerFlop | None = None
    area_mm2: SquareMillimetres | None = None
    price_usd: Usd | None = None
    rent_usd_per_hour: UsdPerHour | None = None
    standard_system: str | None = None
    """The system meant by ``64xNAME``: a name of the catalog."""
    notes: tuple[str, ...] = ()
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)
    """Origin of each value, by its path in the file."""

    @model_validator(mode="after")
    def _has_memory_and_rate(self) -> Self:
        if not self.memories:
            raise ValueError("memories: a chip needs at least one memory level")
        if not self.matmul_flops_per_s:
            raise ValueError("matmul_rate: a chip needs the rate of at least one type")
        peak, idle = self.peak_power_w, self.idle_power_w
        if peak is not None and idle is not None and idle > peak:
            raise ValueError(f"idle_power_w: {idle:g} W are more than the peak of {peak:g} W")
        return self

    @model_validator(mode="after")
    def _arrays_give_the_rate(self) -> Self:
        """Refuse arrays that reach another 16-bit rate at the clock than the one that is stated."""
        stated = self.matmul_flops_per_s.get("bf16", self.matmul_flops_per_s.get("fp16"))
        if self.clock_hz and self.num_cores and self.array_rows and stated:
            columns = self.array_columns or self.tile_columns
            reached = 2.0 * self.num_cores * self.array_rows * columns * self.clock_hz
            if abs(reached / stated - 1.0) > RATE_WITHIN:
                arrays = f"{self.num_cores} cores of {self.array_rows} x {columns}"
                at = f"at {self.clock_hz / 1e9:g} GHz are {reached / 1e12:.6g} TFLOP/s"
                says = f"matmul_rate says {stated / 1e12:.6g}"
                near = f"{stated / (2.0 * self.clock_hz):.6g} multiply-adds give it"
                raise ValueError(f"num_cores: {arrays} {at}, {says}: {near}")
        return self

    @property
    def word(self) -> DType:
        """The 16-bit type of products, where none is stated: bf16 unless the chip has fp16 only."""
        rates = self.matmul_flops_per_s
        return "fp16" if "fp16" in rates and "bf16" not in rates else "bf16"

    def product_flops_per_s(self, dtype: DType) -> float | None:
        """Return the dense peak of matrix products in a type [FLOP/s]; None: the chip states none.

        Products in FP32 run on vector units where no matrix unit takes them: 67 TFLOP/s of an
        H100. TF32 is leave to round, so that products run in FP32 where a chip has none.

        Source: PyTorch 2.13, ``torch.set_float32_matmul_precision``.
        """
        if dtype == "tf32" and dtype not in self.matmul_flops_per_s:
            dtype = "fp32"
        units = (self.matmul_flops_per_s, self.vector_flops_per_s if dtype == "fp32" else {})
        return next((rates[dtype] for rates in units if dtype in rates), None)

    @property
    def main_memory(self) -> MemoryLevel:
        """The level that holds the model: HBM, or the SRAM where there is nothing else."""
        return self.memories[-1]


class PackageMemory(Declaration):
    """All memory of one kind on one package."""

    name: str
    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond
    energy_j_per_byte: JoulesPerByte | None = None
    area_mm2: SquareMillimetres | None = None
    """Area of the memory in the package, where it shares that of the chip."""
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


class LinkPart(Declaration):
    """All links of one kind of one chip, or the one to a neighbour in a grid."""

    name: str
    also_called: tuple[str, ...] = ()
    """Other names, letter case, spaces and dashes aside."""
    joins_hosts: bool = False
    """An adapter of a network between hosts, which ``--network`` may name."""
    bandwidth_bytes_per_s: BytesPerSecond
    """One direction."""
    latency_s: Seconds
    message_half_bytes: MessageBytes = Field(default=0.0, alias="message_half")
    energy_j_per_byte: JoulesPerByte | None = None
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)

    def level(self, **rest: Any) -> NetworkLevel:
        """Return a level of a network with these links."""
        names = ("bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "energy_j_per_byte")
        return NetworkLevel(**({name: getattr(self, name) for name in names} | rest))


MOST_GRID_DEVICES = 2**20
"""The links of a grid are listed one by one."""
ERROR_CORRECTED_LATENCY_S = 210e-9
"""Latency of a link with forward error correction (TEMP, citing Sella 2018) [s]."""
ABOUT_ONE = 1.0 + 1e-9
"""Factor on a length within which it counts as equal."""
LinkShare = Annotated[float, Field(gt=0, le=1)]
LevelKind = Literal["switch", "fully_connected", "torus", "mesh", "fat_tree", "dragonfly"]


def least_radix(num_devices: int) -> int:
    """Return the fewest ports k of the switches of a fat tree of k^3 / 4 devices or more."""
    return next(k for k in range(2, 2 * num_devices + 3, 2) if k**3 // 4 >= num_devices)


class NetworkLevel(Declaration):
    """One level of the network: its members, its links and their speed.

    A ``switch`` or ``fully_connected`` level joins ``size`` members, and a device sends into it
    with ``links_per_device`` links at a time. A ``torus`` or ``mesh`` level is one dimension of a
    grid: neighbours in it share a link per direction; a torus closes the ring. A ``fat_tree`` and a
    ``dragonfly`` are whole networks of switches: the outermost level, below it hosts at most.
    """

    name: str
    kind: LevelKind = "switch"
    size: Count
    """Members of one domain: devices at level 0, domains of the level below above it."""
    bandwidth_bytes_per_s: BytesPerSecond
    """One direction of one link."""
    links_per_device: float = Field(default=1.0, gt=0)
    """Links of one device into this level; 0.5 when two devices share a NIC."""
    latency_s: Seconds
    message_half_bytes: MessageBytes = Field(default=0.0, alias="message_half")
    """Message size at which half of the bandwidth is reached."""
    rail_optimized: bool = False
    """Devices of equal position in their hosts share a leaf switch: strided groups pay no spine."""
    oversubscription: float = Field(default=1.0, ge=1)
    """Bandwidth into the leaves over bandwidth into the spine."""
    radix: Count | None = None
    """Ports of a switch of a fat tree, even; None: just enough for its devices."""
    devices_per_router: Count | None = None
    routers_per_group: Count | None = None
    global_links_per_router: Count | None = None
    """Global links of each router of a dragonfly (h). With p devices a router and a routers a
    group, the network has p a (a h + 1) devices."""
    in_network_reduction: bool = False
    """Switches add: an all-reduce sends its bytes about once."""
    data_parallel_only: bool = False
    """A data-centre network between slices or pods: only dp crosses it."""
    through_io_dies: bool = False
    """Wafers side by side: the IO dies of facing edges are joined, and share one wide link for each
    pair of neighbours. ``links_per_device`` is one over the devices of a wafer."""
    pitch_m: Metres | None = None
    """Distance from the middle of a device to that of its neighbour in this level."""
    max_link_length_m: Metres | None = None
    """A longer link needs error correction, which takes 210 ns."""
    num_lanes: Count | None = None
    """Lanes that together carry the bandwidth of a link of a grid; None: not stated."""
    num_spare_lanes: Count | None = None
    """Further lanes of each link, which take the place of failed ones; None: there are none."""
    energy_j_per_byte: JoulesPerByte | None = None

    @model_validator(mode="after")
    def _lanes_are_of_a_grid(self) -> Self:
        if self.num_lanes and self.kind not in ("mesh", "torus"):
            raise ValueError("num_lanes: are of the links of a mesh or torus")
        if self.num_spare_lanes and not self.num_lanes:
            raise ValueError("num_lanes: is needed beside num_spare_lanes")
        return self

    @property
    def hop_latency_s(self) -> float:
        """Latency between neighbours: that of error correction where the pitch needs it [s]."""
        is_short = (self.pitch_m or 0.0) <= (self.max_link_length_m or math.inf) * ABOUT_ONE
        return self.latency_s if is_short else max(self.latency_s, ERROR_CORRECTED_LATENCY_S)

    @property
    def dragonfly_shape(self) -> tuple[int, int, int]:
        """Devices of a router p, routers of a group a, and global links of a router h; 0: none."""
        of_router = self.devices_per_router, self.routers_per_group, self.global_links_per_router
        p, a, h = (number or 0 for number in of_router)
        return p, a, h

    @property
    def blocking(self) -> float:
        """Bandwidth of a device into the level over the guaranteed one under any traffic [1].

        The oversubscription of leaves. In a dragonfly messages go by way of any router (Valiant),
        so that each of R = a (a h + 1) routers sends two times w = p B / R to every other one: a
        local link carries 2 w (1 + 2 a h), a global one 2 w a^2.

        Source: Kim, Dally, Scott, Abts 2008, Technology-driven, highly-scalable dragonfly topology.
        """
        if self.kind != "dragonfly":
            return self.oversubscription
        p, a, h = self.dragonfly_shape
        busiest = max((1 + 2 * a * h) * (a > 1), a * a)
        return max(1.0, 2 * p * busiest / (a * (a * h + 1)))


Side = Literal["left", "right", "top", "bottom"]


class IoDies(Declaration):
    """IO dies along the rim of a grid, one beside each of its outermost dies.

    Everything that leaves the grid passes through them: messages to other wafers through those of
    the facing sides, and tensors on their way to the memory of the host through the others.
    """

    bandwidth_bytes_per_s: BytesPerSecond
    """One direction of one IO die, out of the grid."""
    sides: tuple[Side, ...] = ("left", "right", "top", "bottom")
    """Sides of the grid that have IO dies."""


class Cooling(Declaration):
    """Ways of the heat of a die: to the coolant, and to its neighbours."""

    coolant_celsius: Celsius
    to_coolant_k_per_w: KelvinPerWatt
    """From a die to the coolant, package included."""
    between_dies_k_per_w: KelvinPerWatt | None = None
    """Between neighbours in a row or a column; None: no heat flows sideways."""
    max_celsius: Celsius | None = None
    """No die is warmer in the mean over a step: plans are slowed down to it. None: no limit."""


class PowerRegion(Declaration):
    """Dies that share a supply: their power in the mean over a step has a cap, without overhead."""

    devices: tuple[CountOrZero, ...]
    max_power_w: Watts


class HostLink(Declaration):
    """The way from a device to the memory of its host, for offload."""

    capacity_bytes: Bytes
    """Host memory for one device."""
    bandwidth_bytes_per_s: BytesPerSecond
    """One direction, for one device with all its neighbours busy."""
    memory_bandwidth_bytes_per_s: BytesPerSecond | None = None
    """Reads and writes of host memory, the share of one device of its peak.

    None: not known, and taken as the bandwidth of the link.
    """

    @property
    def kernel_bytes_per_s(self) -> float:
        """Rate at which a kernel on the host moves its operands."""
        return self.memory_bandwidth_bytes_per_s or self.bandwidth_bytes_per_s


class SystemSpec(Declaration):
    """A cluster, a pod slice or a wafer: its devices and the levels of its network."""

    name: str
    chip: ChipSpec
    num_devices: Count
    levels: tuple[NetworkLevel, ...]
    devices_per_host: Count | None = None
    """Devices of a host; None: those of the innermost level."""
    host: HostLink | None = None
    io: IoDies | None = None
    """IO dies of a wafer; None: they carry whatever the host and the links between wafers ask."""
    dead_devices: tuple[CountOrZero, ...] = ()
    dead_links: tuple[tuple[CountOrZero, CountOrZero], ...] = ()
    slow_links: tuple[tuple[CountOrZero, CountOrZero, LinkShare], ...] = ()
    """Wires of a grid that carry less than their level states: two neighbours, and the share of the
    bandwidth that is left in each direction."""
    failed_lanes: tuple[tuple[CountOrZero, CountOrZero, Count], ...] = ()
    """Wires of a grid that have lost lanes: two neighbours, and the number of failed lanes in each
    direction. Spare lanes of the level replace them first."""
    corrected_links: tuple[tuple[CountOrZero, CountOrZero], ...] = ()
    """Wires of a grid with forward error correction: 210 ns of latency, at any length."""
    speed_factors: Mapping[int, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Share of the full rate by device, where it is not 1."""
    other_chips: Mapping[int, ChipSpec] = Field(default_factory=dict)
    """Devices of another type, by device."""
    overhead_power_fraction: float = Field(default=0.0, ge=0)
    """Power of fans, hosts and switches over the power of the devices."""
    max_power_w: Watts | None = None
    """The mean power of a step is at most this, overhead included: plans are slowed down to it."""
    max_device_power_w: Watts | None = None
    """Highest power of each device in the mean over a step, without overhead."""
    power_regions: tuple[PowerRegion, ...] = ()
    cooling: Cooling | None = None
    """None: temperatures are not known."""
    notes: tuple[str, ...] = ()
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        room = prod(level.size for level in self.levels)
        if self.num_devices > room:
            raise ValueError(
                f"num_devices: {self.num_devices} devices, but the levels have room for {room}"
            )
        is_grid = any(level.kind in ("mesh", "torus") for level in self.levels)
        if is_grid and room > MOST_GRID_DEVICES:
            raise ValueError(f"levels: a grid of {room} devices, at most {MOST_GRID_DEVICES}")
        through = [index for index, level in enumerate(self.levels) if level.through_io_dies]
        if through and (through != [2] or {level.kind for level in self.levels} != {"mesh"}):
            raise ValueError("levels: through_io_dies is for the last of three levels of kind mesh")
        self._check_single_links()
        self._check_io()
        self._check_heat()
        for index, level in enumerate(self.levels):
            self._check_switches(index, level, room)
        names = [level.name for level in self.levels]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"levels: two levels are called {twice[0]!r}")
        named: dict[str, Iterable[int]] = {
            "dead_devices": self.dead_devices,
            "dead_links": [device for link in self.dead_links for device in link],
            "slow_links": [device for *link, _ in self.slow_links for device in link],
            "failed_lanes": [device for *link, _ in self.failed_lanes for device in link],
            "corrected_links": [device for link in self.corrected_links for device in link],
            "speed_factors": self.speed_factors,
            "other_chips": self.other_chips,
            "power_regions": [d for region in self.power_regions for d in region.devices],
        }
        for field, devices in named.items():
            beyond = [device for device in devices if not 0 <= device < self.num_devices]
            if beyond:
                raise ValueError(f"{field}: no device {beyond[0]} of {self.num_devices}")
        return self

    @property
    def single_links(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Fields that state wires of a grid one by one, with the ends of each wire."""
        return {
            "slow_links": tuple((a, b) for a, b, _ in self.slow_links),
            "failed_lanes": tuple((a, b) for a, b, _ in self.failed_lanes),
            "corrected_links": self.corrected_links,
        }

    def _check_single_links(self) -> None:
        """Refuse single wires where no price routes messages, and wires that are listed twice."""
        is_grid = len(self.levels) > 1 and {one.kind for one in self.levels} <= {"mesh", "torus"}
        rates = {frozenset(link) for link in self.dead_links}
        corrected = set(rates)
        for field, links in self.single_links.items():
            if links and not is_grid:
                raise ValueError(
                    f"{field}: are for two levels or more, all of kind mesh or torus; elsewhere "
                    "change the bandwidth and the latency of the level"
                )
            seen = corrected if field == "corrected_links" else rates
            for index, (a, b) in enumerate(links):
                if frozenset((a, b)) in seen:
                    raise ValueError(
                        f"{field}[{index}]: the link of devices {a} and {b} is dead, or listed "
                        "before: state it once"
                    )
                seen.add(frozenset((a, b)))

    @property
    def has_seam(self) -> bool:
        """Whether wafers are joined through their IO dies."""
        return bool(self.levels) and self.levels[-1].through_io_dies

    def _check_io(self) -> None:
        """Refuse IO dies without a grid, without traffic, or too slow for the seam."""
        if self.io is None:
            return
        if [level.kind for level in self.levels[:2]] != ["mesh", "mesh"]:
            raise ValueError("io: IO dies are at the rim of a grid: two levels of kind mesh")
        if len(self.levels) > 2 and not self.has_seam:
            raise ValueError("io: the third level must be a seam (through_io_dies)")
        if not (self.host or self.has_seam):
            raise ValueError("io: nothing passes through IO dies: state host, or several wafers")
        if not self.io.sides or len(set(self.io.sides)) < len(self.io.sides):
            raise ValueError("io.sides: name at least one side, and each of them once")
        if not self.has_seam:
            return
        seam, rows = self.levels[-1], self.levels[1].size
        if not {"left", "right"} <= set(self.io.sides):
            raise ValueError("io.sides: wafers in a row are joined at left and right: list both")
        most = rows * self.io.bandwidth_bytes_per_s
        if seam.bandwidth_bytes_per_s > most * ABOUT_ONE:
            raise ValueError(
                f"io.bandwidth: {rows} IO dies of {self.io.bandwidth_bytes_per_s / 1e12:g} TB/s do "
                f"not carry the seam of {seam.bandwidth_bytes_per_s / 1e12:g} TB/s: at least "
                f"{seam.bandwidth_bytes_per_s / rows / 1e12:.4g} TB/s"
            )

    def _check_heat(self) -> None:
        """Refuse regions and temperatures off a grid, and caps below the idle power."""
        stated = [n for n in ("power_regions", "cooling") if getattr(self, n)]
        if stated and (len(self.levels) < 2 or {one.kind for one in self.levels} != {"mesh"}):
            raise ValueError(f"{stated[0]}: for dies of a grid, two levels or more of kind mesh")
        idle_w = self.chip.idle_power_w or 0.0
        for index, region in enumerate(self.power_regions):
            if not region.devices or len(set(region.devices)) < len(region.devices):
                raise ValueError(f"power_regions[{index}].devices: name each die of it once")
            if region.max_power_w <= idle_w * len(region.devices):
                raise ValueError(
                    f"power_regions[{index}].max_power: {region.max_power_w:g} W, but its "
                    f"{len(region.devices)} dies draw {idle_w * len(region.devices):g} W idle"
                )
        cooling = self.cooling
        if cooling is None or cooling.max_celsius is None:
            return
        idle_celsius = cooling.coolant_celsius + cooling.to_coolant_k_per_w * idle_w
        if cooling.max_celsius <= idle_celsius:
            raise ValueError(
                f"cooling.max: {cooling.max_celsius:g} C, but an idle die of {idle_w:g} W "
                f"reaches {idle_celsius:g} C"
            )

    def _check_switches(self, index: int, level: NetworkLevel, room: int) -> None:
        """Refuse a fat tree or a dragonfly that cannot be built, and fields of one elsewhere."""
        p, a, h = level.dragonfly_shape
        if level.kind != "fat_tree" and level.radix:
            raise ValueError(f"levels[{index}].radix: is for a fat_tree")
        if level.kind != "dragonfly" and (p or a or h):
            raise ValueError(f"levels[{index}].devices_per_router: is for a dragonfly")
        if level.kind not in ("fat_tree", "dragonfly"):
            return
        inner = {other.kind for other in self.levels[:-1]}
        if level is not self.levels[-1] or not inner <= {"switch", "fully_connected"}:
            raise ValueError(f"levels[{index}].kind: a {level.kind} is outermost, over hosts only")
        if level.oversubscription > 1 or level.rail_optimized:
            raise ValueError(f"levels[{index}]: oversubscription and rails are of a switch")
        if level.radix and (level.radix % 2 or level.radix**3 // 4 < room):
            raise ValueError(f"levels[{index}].radix: {room} devices need an even radix of at "
                             f"least {least_radix(room)}")  # fmt: skip
        hosts = room // level.size
        if level.kind == "dragonfly" and (p * a * (a * h + 1) != room or p % hosts):
            raise ValueError(
                f"levels[{index}]: devices_per_router {p}, routers_per_group {a} and "
                f"global_links_per_router {h} are {p * a * (a * h + 1)} devices, the levels have "
                f"{room}; all devices of a host ({hosts}) share a router"
            )

    @property
    def domain_size(self) -> int:
        """Devices of an innermost domain; 1 of a lone device, which has no network."""
        return self.levels[0].size if self.levels else 1

    @property
    def link_energy_j_per_byte(self) -> float | None:
        """Least energy of a byte on a link; None where any is not known, or there is no link."""
        energies = [level.energy_j_per_byte for level in self.levels]
        known = [energy for energy in energies if energy is not None]
        return min(known) if known and len(known) == len(energies) else None

    @property
    def is_power_capped(self) -> bool:
        """Whether plans are slowed down to a power."""
        caps = (self.max_power_w, self.max_device_power_w)
        return any(cap is not None for cap in caps) or self.has_regional_caps

    @property
    def has_regional_caps(self) -> bool:
        """Whether dies of a grid have caps of their own, on power or temperature."""
        is_limited = self.cooling is not None and self.cooling.max_celsius is not None
        return bool(self.power_regions) or is_limited

    @property
    def slowest_speed_factor(self) -> float:
        """Share of the full rate of the slowest working device: it sets the pace of all."""
        dead = set(self.dead_devices)
        return min((f for d, f in self.speed_factors.items() if d not in dead), default=1.0)

    @property
    def num_alive(self) -> int:
        """Devices that work."""
        return self.num_devices - len(set(self.dead_devices))
