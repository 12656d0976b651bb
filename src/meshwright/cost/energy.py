"""Joules and money of a step. What is not known stays unknown (NaN); it is never zero."""

from __future__ import annotations

import math
from typing import Any

from meshwright.spec.chip import ChipSpec
from meshwright.spec.system import SystemSpec

SECONDS_PER_HOUR = 3600.0
UNKNOWN = math.nan


def device_energy_j(
    chip: ChipSpec,
    step_s: Any,
    busy_s: Any,
    flops: Any,
    memory_bytes: Any,
    link_bytes: Any,
    link_j_per_byte: float | None,
) -> Any:
    """Return the energy of one device in one step [J].

    Where the energy of single operations is stated: FLOPs, memory bytes and link bytes times
    their energies, plus idle power over the whole step. Otherwise idle power over the step, and
    the rest of the peak power while the device computes.

    Parameters
    ----------
    step_s, busy_s
        The whole step, and its part in which the device computes [s].
    flops, memory_bytes, link_bytes
        What one device does in a step, on average.
    """
    idle_w, peak_w = chip.idle_power_w, chip.peak_power_w
    if idle_w is None:
        return step_s * UNKNOWN
    if chip.energy_j_per_flop is not None and chip.main_memory.energy_j_per_byte is not None:
        dynamic = flops * chip.energy_j_per_flop + memory_bytes * chip.main_memory.energy_j_per_byte
        if link_j_per_byte is not None:
            dynamic = dynamic + link_bytes * link_j_per_byte
        return dynamic + idle_w * step_s
    if peak_w is None:
        return step_s * UNKNOWN
    return idle_w * step_s + (peak_w - idle_w) * busy_s


def system_energy_j(system: SystemSpec, device_j: Any, num_devices: Any) -> Any:
    """Return the energy of all devices used, with the overhead of hosts, fans and switches [J]."""
    return device_j * num_devices * (1.0 + system.overhead_power_fraction)


def step_cost_usd(chip: ChipSpec, step_s: Any, num_devices: Any) -> Any:
    """Return the rent of the devices used for one step [USD]; NaN where no rent is known."""
    rent = UNKNOWN if chip.rent_usd_per_hour is None else chip.rent_usd_per_hour
    return step_s * num_devices * (rent / SECONDS_PER_HOUR)


def goodput_fraction(
    num_devices: float, mtbf_device_hours: float, checkpoint_s: float, restart_s: float
) -> float:
    """Return the share of wall time that makes progress [1].

    1 - t_ckpt / tau - (tau / 2 + t_restart) n / MTBF at the best interval
    tau = sqrt(2 t_ckpt MTBF / n). Source: Young 1974; Daly 2006, first order.
    """
    mtbf_s = mtbf_device_hours * SECONDS_PER_HOUR / num_devices
    if checkpoint_s <= 0:
        return max(0.0, 1.0 - restart_s / mtbf_s)
    interval_s = math.sqrt(2.0 * checkpoint_s * mtbf_s)
    return max(0.0, 1.0 - checkpoint_s / interval_s - (interval_s / 2.0 + restart_s) / mtbf_s)
