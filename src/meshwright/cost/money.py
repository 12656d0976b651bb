"""Money of a step: the rent of its devices."""

from __future__ import annotations

import math

from meshwright.base.arrays import Num
from meshwright.spec.system import ChipSpec

SECONDS_PER_HOUR = 3600.0


def step_cost_usd(chip: ChipSpec, step_s: Num, num_devices: Num) -> Num:
    """Return the rent of the devices used for one step [USD]; NaN where it is not known."""
    rent = math.nan if chip.rent_usd_per_hour is None else chip.rent_usd_per_hour
    return step_s * num_devices * (rent / SECONDS_PER_HOUR)
