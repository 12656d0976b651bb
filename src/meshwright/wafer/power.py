"""Power and temperature of each die, and the step time at which regions keep their caps.

Powers are means over a step. Ranks of all stages of a pipeline count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.network.faults import SharedWork
from meshwright.network.placement import Ranks
from meshwright.spec.system import Cooling, SystemSpec
from meshwright.topology.network import Network, line_ends


@dataclass(frozen=True)
class DieEnergy:
    """Energy of a step on each die on top of its idle power, and that idle power."""

    work_j: FloatArray
    idle_w: FloatArray
    """0 of a die without work."""

    def power_w(self, step_s: float) -> FloatArray:
        """Return the mean power of each die over a step [W]."""
        return self.work_j / step_s + self.idle_w


def die_energy(
    system: SystemSpec, parts_j: Mapping[str, float], ranks: Ranks, work: SharedWork,
    network: Network, link_j: FloatArray,
) -> DieEnergy:  # fmt: skip
    """Return the energy of each die: its share of the work of all, and of the links at it.

    Of links between two dies each has half; a link to an IO die counts for its die, one between IO
    dies for none.

    Parameters
    ----------
    parts_j
        Energy of a step of all devices in use, by part [J].
    link_j
        Energy of each link, up to one factor for all.
    """
    number = network.num_devices
    share = np.bincount(ranks.device.ravel(), work.share.ravel(), number)
    own = sum(j for part, j in parts_j.items() if part in ("compute_j", "memory_j", "busy_j"))
    work_j = own * share / share.sum()
    on_die = np.stack([network.source, network.target]) < number
    each = link_j / np.maximum(on_die.sum(axis=0), 1)
    if link_j.sum() > 0:
        each = each * parts_j.get("links_j", 0.0) / link_j.sum()
    for ends, is_die in zip((network.source, network.target), on_die, strict=True):
        work_j = work_j + np.bincount(ends[is_die], each[is_die], number)
    idle_w = np.where(share > 0, system.chip.idle_power_w or 0.0, 0.0)
    return DieEnergy(work_j, idle_w)


def temperature_celsius(system: SystemSpec, cooling: Cooling, power_w: FloatArray) -> FloatArray:
    """Return the temperature of each die [C].

    Heat leaves a die to the coolant through R, and to each neighbour in its row and column through
    L: (T_i - T_0) / R + sum over neighbours j of (T_i - T_j) / L = P_i. Equal powers give
    T_0 + R P, whatever L is. Two dies with R = L = 0.1 K/W and 100 W on the first one are 20/3 and
    10/3 K warmer than the coolant.
    """
    if cooling.between_dies_k_per_w is None:
        return cooling.coolant_celsius + cooling.to_coolant_k_per_w * power_w
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import spsolve

    number, stride, ends = len(power_w), 1, []
    for level in system.levels[:2]:
        ends.append(np.stack(line_ends(number, level.size, stride, closes=False)))
        stride *= level.size
    first, second = np.concatenate(ends, axis=1)
    both = np.concatenate([first, second]), np.concatenate([second, first])
    between = np.full(len(both[0]), 1.0 / cooling.between_dies_k_per_w)
    sideways = coo_array((between, both), shape=(number, number))
    out = sideways.sum(axis=1) + 1.0 / cooling.to_coolant_k_per_w
    warmer: FloatArray = spsolve((diags_array(out) - sideways).tocsc(), power_w)
    return cooling.coolant_celsius + warmer


def least_regional_s(system: SystemSpec, energy: DieEnergy) -> float:
    """Return the step time at which all regions and dies meet their caps [s]; 0 without caps.

    E / (W - I) of a region with the energy E of its work, the idle power I and the cap W. As
    temperatures are linear in the powers, a die with the rise r_E for a power of E and r_I for idle
    power needs r_E / (T_max - T_0 - r_I).
    """
    least_s = 0.0
    for region in system.power_regions:
        chosen = list(region.devices)
        room_w = region.max_power_w - float(energy.idle_w[chosen].sum())
        least_s = max(least_s, float(energy.work_j[chosen].sum()) / room_w)
    cooling = system.cooling
    if cooling is not None and cooling.max_celsius is not None:
        of_work, of_idle = (
            temperature_celsius(system, cooling, power) - cooling.coolant_celsius
            for power in (energy.work_j, energy.idle_w)
        )
        room = cooling.max_celsius - cooling.coolant_celsius - of_idle
        least_s = max(least_s, float((of_work / room).max()))
    return least_s
