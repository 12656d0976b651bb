"""Money of a step, the rent of its devices; and the share of time that makes progress."""

from __future__ import annotations

import math

from meshwright.base.arrays import Num
from meshwright.spec.system import ChipSpec

SECONDS_PER_HOUR = 3600.0


def step_cost_usd(chip: ChipSpec, step_s: Num, num_devices: Num) -> Num:
    """Return the rent of the devices used for one step [USD]; NaN where it is not known."""
    rent = math.nan if chip.rent_usd_per_hour is None else chip.rent_usd_per_hour
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
