"""The constants of prices from measured rows, and a chip without a data sheet.

Each constant makes a formula of :mod:`meshwright.cost` or :mod:`meshwright.collectives`
agree with the rows of its kernel; its range holds their quartiles over shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import weighted_quantile
from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.calibration import Constant
from meshwright.catalog.files import bare
from meshwright.catalog.systems import chip_names, load_chip
from meshwright.collectives.group import make_group
from meshwright.collectives.registry import affine_candidates, least_sent_bytes
from meshwright.cost.operator import (
    attended_fraction,
    device_rates,
    matmul_compute_s,
    reached_rate,
    stated_rate,
)
from meshwright.measure.cases import UPDATE_BYTES, WORDS
from meshwright.spec.calibration import Calibration
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.measured import Machine, Measured, Timing
from meshwright.spec.system import ChipSpec, NetworkLevel, SystemSpec
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

COLLECTIVES = tuple(str(kind) for kind in CollectiveKind)
FUSED = ("norm_forward", "norm_backward", "activation_forward", "activation_backward",
         "sum_forward")  # fmt: skip
EAGER = ("eager_norm_forward", "eager_rotary_forward", "eager_gated_forward")
LARGE = 0.1
"""Rows of at least this share of the work of the largest one count as large."""
SMALL_BYTES = 4096.0
"""Collectives up to here take the time of their start."""
MEMORY_WITHIN = 0.15
"""Largest relative difference of the memory of a device from that of its chip in the catalog."""
BACKWARD_FLOPS = 2.5
"""FLOPs of flash attention backward over forward, as ``cost/operator.py`` counts them."""
MOST_SLOWDOWN = 0.99
"""Largest value of the constant: communication and computation then take turns."""


def chip_of(machine: Machine) -> ChipSpec | None:
    """Return the chip of the catalog that a driver names; None where the catalog lacks it.

    Every word of the name of a chip is one of the device, of several chips the one with the most
    words; its memory is that of the device.
    """
    words = {bare(word) for word in machine.device.replace("-", " ").split()}
    found: list[tuple[int, str]] = []
    for name in chip_names():
        for spelling in (name, *load_chip(name).also_called):
            parts = {bare(part) for part in spelling.replace("-", " ").split()}
            if parts <= words:
                found.append((len(parts), name))
    for _, name in sorted(found, reverse=True):
        chip = load_chip(name)
        stated = chip.main_memory.capacity_bytes
        if stated and abs(machine.memory_bytes / stated - 1.0) <= MEMORY_WITHIN:
            return chip
    return None


def fitted(
    measured: Measured, system: SystemSpec, base: Calibration
) -> tuple[list[Constant], float | None]:
    """Return the constants that rows settle, and the error that they leave unexplained.

    Parameters
    ----------
    system
        The machine as a system: its chip and its levels.
    base
        Constants that no row settles.

    Returns
    -------
    tuple
        Constants, and the 80th percentile of |ln(formula / measured)| over products and attention,
        each under the constant of the others, rows weighed by their time; None without rows.
    """
    implied = Implied(measured, system, base).all()
    found = [_constant(entry) for entry in implied if entry.values]
    apart, weights = list[float](), list[float]()
    for entry in implied:
        if entry.of_arithmetic:
            apart += _apart(entry.values)
            weights += [row.median_s for row in entry.rows]
    if not apart:
        return found, None
    return found, weighted_quantile(np.array(apart), np.array(weights), 0.8)


def _apart(values: Sequence[float]) -> list[float]:
    """Return the distance of each value from the median of the others, |ln(ratio)|."""
    every = np.asarray(values)
    return [
        abs(math.log(value / float(np.median(np.delete(every, index)))))
        for index, value in enumerate(values)
    ]


class Entry(NamedTuple):
    """The values of one constant that single rows imply, with the rows."""

    name: str
    values: list[float]
    rows: list[Timing]
    why: str

    @property
    def of_arithmetic(self) -> bool:
        """Whether rows are products or attention, in which steps spend most of their time.

        Values that are all equal are those that the rates of a described chip were taken from.
        """
        return len(set(self.values)) > 1 and self.name.startswith(("matmul", "narrow", "attention"))


def _constant(entry: Entry) -> Constant:
    """Return the median of some values with their quartiles, inside the range of a constant."""
    name = entry.name
    low, value, high = (float(v) for v in np.quantile(entry.values, (0.25, 0.5, 0.75)))
    most = math.inf
    if name.endswith("_efficiency"):
        most = 1.0
    elif name == "overlap_slowdown":
        most = MOST_SLOWDOWN
    least = 1.0 if name.endswith("_factor") else 0.0
    low, value, high = (min(max(v, least), most) for v in (low, value, high))
    return Constant(name, value, low, high, entry.why)


def _large(rows: Iterable[Timing], work: Callable[[Timing], float]) -> list[Timing]:
    """Return the rows with work near that of the largest one."""
    held = list(rows)
    most = max(map(work, held), default=0.0)
    return [row for row in held if work(row) >= LARGE * most]


def elements(row: Timing) -> float:
    """Return the product of the sizes of a row [1]."""
    return float(math.prod(row.shape))


def moved_bytes(row: Timing) -> float:
    """Return the least bytes that a streaming kernel moves."""
    if row.kernel == "update":
        return UPDATE_BYTES * elements(row)
    return WORDS[row.kernel] * BYTES_OF[row.dtype] * elements(row)


def matmul_flops(row: Timing) -> float:
    """Return the operations of a product [FLOP]."""
    return 2.0 * elements(row)


def attention_flops(row: Timing) -> float:
    """Return the operations of causal attention, as prices count them [FLOP]."""
    batch, heads, length, size = row.shape
    share = float(attended_fraction(float(length), None, causal=True))
    forward = 4.0 * batch * heads * length * length * size * share
    return forward * (BACKWARD_FLOPS if row.kernel == "attention_backward" else 1.0)


def rate_of(row: Timing) -> tuple[float, str] | None:
    """Return the rate of a kernel and its unit: operations or bytes a second; None: without one."""
    if row.kernel == "matmul":
        return matmul_flops(row) / row.median_s, "FLOP/s"
    if row.kernel.startswith("attention"):
        return attention_flops(row) / row.median_s, "FLOP/s"
    if row.kernel in WORDS or row.kernel == "update":
        return moved_bytes(row) / row.median_s, "B/s"
    if row.kernel in COLLECTIVES:
        kind, sent = CollectiveKind(row.kernel), float(row.shape[0])
        moved = float(least_sent_bytes(kind, sent, float(row.group)))
        return moved / row.median_s, "B/s"
    return None


class Implied:
    """The values of each constant that single rows imply."""

    def __init__(self, measured: Measured, system: SystemSpec, base: Calibration) -> None:
        self.measured, self.system, self.chip = measured, system, system.chip
        self.base = replace(
            base, matmul_efficiency=1.0, matmul_sustained_efficiency=1.0,
            narrow_matmul_efficiency=1.0,
        )  # fmt: skip

    def all(self) -> list[Entry]:
        """Return every constant that rows may settle."""
        return [
            *self._products(), *self._attention(), *self._memory(), *self._host(),
            *self._network(),
        ]  # fmt: skip

    def _products(self) -> list[Entry]:
        rows = [row for row in self.measured.of("matmul")
                if row.dtype in self.chip.matmul_flops_per_s]  # fmt: skip
        wide = _large([row for row in rows if BYTES_OF[row.dtype] >= 2.0], matmul_flops)
        narrow = _large([row for row in rows if BYTES_OF[row.dtype] < 2.0], matmul_flops)
        if not wide:
            return []
        shares = [self._of_reached(row) for row in wide]
        what = f"{len(wide)} large products of 16 bits or more"
        best, found = 1.0, list[Entry]()
        if not self.chip.best_matmul_flops_per_s:
            best = max(shares)
            why = f"the best of {what} over the stated rate"
            found.append(Entry("matmul_efficiency", [best], [], why))
        sustained = [share / best for share in shares]
        found.append(Entry("matmul_sustained_efficiency", sustained, wide, what))
        if narrow:
            middle = float(np.median(shares))
            of_narrow = [self._of_reached(row) / middle for row in narrow]
            why = f"{len(narrow)} large products of 8 bits over those of 16 or more"
            found.append(Entry("narrow_matmul_efficiency", of_narrow, narrow, why))
        return found

    def _of_reached(self, row: Timing) -> float:
        """Return the share of the rate of large products that a row keeps [1]."""
        rows, inner, columns = (float(size) for size in row.shape)
        rates = device_rates(
            self.chip, Precision.on(self.chip, row.dtype), SoftwareStack(), self.base
        )
        rate = reached_rate(self.chip, row.dtype, self.base)
        busy_s = matmul_compute_s(1.0, rows, inner, columns, rate, rates)
        return float(busy_s) / row.median_s

    def _attention(self) -> Iterator[Entry]:
        for kernel in ("attention_forward", "attention_backward"):
            rows = _large(self.measured.of(kernel), attention_flops)
            shares = [
                attention_flops(row) / stated_rate(self.chip, row.dtype) / row.median_s
                for row in rows
            ]
            yield Entry(f"{kernel}_efficiency", shares, rows, f"{len(rows)} rows of {kernel}")

    def _memory(self) -> Iterator[Entry]:
        bandwidth = self.chip.main_memory.bandwidth_bytes_per_s
        assert bandwidth is not None
        streams = [row for kernel in ("copy", "triad", "update")
                   for row in _large(self.measured.of(kernel), moved_bytes)]  # fmt: skip
        shares = [moved_bytes(row) / row.median_s / bandwidth for row in streams]
        why = f"{len(streams)} large copies, triads and updates"
        yield Entry("memory_efficiency", shares, streams, why)
        fused = self.measured.of(*FUSED)
        shares = [moved_bytes(row) / row.median_s / bandwidth for row in fused]
        why = f"{len(fused)} norms, activations and sums"
        yield Entry("elementwise_efficiency", shares, fused, why)
        if shares:
            single, reached = self.measured.of(*EAGER), float(np.median(shares)) * bandwidth
            passes = [row.median_s * reached / moved_bytes(row) for row in single]
            why = f"{len(single)} norms, rotations and gates written out, over fused kernels"
            yield Entry("eager_traffic_factor", passes, single, why)

    def _host(self) -> Iterator[Entry]:
        launches = self.measured.of("launch")
        values = [value for row in launches for value in (row.p25_s, row.median_s, row.p75_s)]
        yield Entry("launch_s", values, launches, "eager additions of 64 numbers")
        alone = {row.shape: row for row in self.measured.of("matmuls_alone")}
        slowdowns, rows = list[float](), self.measured.of("matmuls_overlapped")
        for row in rows:
            sums = [r for r in self.measured.of("all_reduce")
                    if r.shape == row.shape[-1:] and r.group == row.group]  # fmt: skip
            if row.shape in alone and sums:
                window_s, sum_s = alone[row.shape].median_s, sums[0].median_s
                lost_s = row.median_s - max(window_s, sum_s)
                slowdowns.append(max(lost_s / min(window_s, sum_s), 0.0))
        why = f"{len(slowdowns)} times products during an all-reduce; at most {MOST_SLOWDOWN}"
        yield Entry("overlap_slowdown", slowdowns, rows, why)

    def _network(self) -> Iterator[Entry]:
        inside = self.measured.machine.devices_per_host
        rows = [row for row in self.measured.of(*COLLECTIVES) if row.kernel != "send"]
        small = [row for row in rows if row.shape[0] <= SMALL_BYTES]
        starts = [max(row.median_s - self._collective_s(row)[0], 0.0) for row in small]
        why = f"{len(small)} collectives of up to 4 KiB without the latency of their messages"
        yield Entry("collective_launch_s", starts, small, why)
        start_s = float(np.median(starts)) if starts else 0.0
        for name, is_inside in (
            ("fast_network_efficiency", True), ("slow_network_efficiency", False),
        ):  # fmt: skip
            here = [row for row in rows if (row.stride * row.group <= inside) == is_inside]
            large = _large(here, lambda row: float(row.shape[0]))
            shares = []
            for row in large:
                fixed_s, moving_s = self._collective_s(row)
                shares.append(moving_s / max(row.median_s - fixed_s - start_s, moving_s))
            yield Entry(name, shares, large, f"{len(large)} large collectives")

    def _collective_s(self, row: Timing) -> tuple[float, float]:
        """Return the seconds of messages and of bytes of a collective at the full bandwidth."""
        levels = self.system.levels
        group = make_group(levels, float(row.stride), float(row.group))
        forms = affine_candidates(CollectiveKind(row.kernel), group)
        num_bytes = float(row.shape[0])
        _, fixed_s, per_byte_s = min(forms, key=lambda f: float(f[1] + num_bytes * f[2]))
        return float(fixed_s), float(per_byte_s) * num_bytes


# ------------------------------------------------------------------ a machine without a data sheet


def made_system(measured: Measured) -> SystemSpec:
    """Return the system of a machine that the catalog lacks, as measured."""
    machine = measured.machine
    levels, inside = [], machine.devices_per_host
    if inside > 1:
        levels.append(_level("host", inside, measured, is_inside=True))
    if machine.num_devices > inside:
        levels.append(_level("network", machine.num_devices // inside, measured, is_inside=False))
    return SystemSpec(
        name=f"{machine.num_devices}x{machine.device}", chip=made_chip(measured),
        num_devices=machine.num_devices, levels=tuple(levels), devices_per_host=inside,
        notes=(_sharing(machine),),
    )  # fmt: skip


def _sharing(machine: Machine) -> str:
    """Return the meaning of a device on a machine, as a text."""
    if machine.kind != "cpu":
        return "rates are those of all devices at work"
    wanted = machine.num_units * machine.devices_per_host
    share = min(1.0, machine.host_cores / wanted)
    return (
        f"a device is a process of {machine.num_units} threads; {machine.devices_per_host} of "
        f"them share {machine.host_cores} cores, so that a thread has {share:.2g} of one; all ran "
        "at once"
    )


def made_chip(measured: Measured) -> ChipSpec:
    """Return a chip with the best rates measured.

    Raises
    ------
    SpecError
        No product or no copy was measured.
    """
    machine = measured.machine
    best: dict[str, float] = {}
    for row in measured.of("matmul"):
        best[row.dtype] = max(best.get(row.dtype, 0.0), matmul_flops(row) / row.median_s)
    copies = _large(measured.of("copy", "triad"), moved_bytes)
    if not best or not copies:
        raise SpecError(Fault("measure", "was stopped before products and copies were measured"))
    is_cpu = machine.kind == "cpu"
    side = 16 if is_cpu else 128
    name = "cpu" if is_cpu else bare(machine.device)
    return ChipSpec.model_validate({
        "name": name, "vendor": "CPU" if is_cpu else name, "family": name,
        "matmul_rate": best,
        "vector_rate": {"fp32": best["fp32"]} if is_cpu and "fp32" in best else {},
        "memories": [{
            "name": "memory", "capacity": machine.memory_bytes,
            "bandwidth": max(moved_bytes(row) / row.median_s for row in copies),
        }],
        "num_cores": machine.num_units or None, "tile_rows": side, "tile_columns": side,
    })  # fmt: skip


def _level(name: str, size: int, measured: Measured, *, is_inside: bool) -> NetworkLevel:
    """Return a level of the network: the best rate on its links, the latency of a message."""
    inside = measured.machine.devices_per_host
    rows = [row for row in measured.of(*COLLECTIVES)
            if (row.stride * row.group <= inside) == is_inside]  # fmt: skip
    sends = [row for row in rows if row.kernel == "send" and row.shape[0] <= SMALL_BYTES]
    if not rows or not sends:
        raise SpecError(Fault("measure", "was stopped before the network was measured"))

    def rate(row: Timing) -> float:
        sent = least_sent_bytes(CollectiveKind(row.kernel), float(row.shape[0]), float(row.group))
        return float(sent) / row.median_s

    return NetworkLevel.model_validate({
        "name": name, "kind": "switch", "size": size, "bandwidth": max(map(rate, rows)),
        "latency": min(row.median_s for row in sends),
    })  # fmt: skip
