"""Upper limits of a system: the largest of its stated rates, for any user of them."""

from __future__ import annotations

from math import inf

from meshwright.audit.laws import Inequality, equal
from meshwright.spec.system import ChipSpec, DType, SystemSpec

HOURS = 3600.0


def _chips(system: SystemSpec) -> list[ChipSpec]:
    return [system.chip, *system.other_chips.values()]


def _fastest(system: SystemSpec) -> float:
    """Return the speed of the fastest device over that of its chip [1]."""
    return max(1.0, *system.speed_factors.values()) if system.speed_factors else 1.0


def peak_flops_per_s(system: SystemSpec, dtype: DType) -> float:
    """Return the largest rate of a device for products of a type [FLOP/s].

    The best measured rate where it is stated, otherwise the peak; the largest rate of the chip
    where it states none for the type.
    """
    rates = []
    for chip in _chips(system):
        stated = chip.product_flops_per_s(dtype) or max(chip.matmul_flops_per_s.values())
        rates.append(chip.best_matmul_flops_per_s.get(dtype, stated))
    return max(rates) * _fastest(system)


def memory_bytes_per_s(system: SystemSpec) -> float:
    """Return the memory bandwidth of a device [bytes/s]; infinite where not stated."""
    rates = [chip.main_memory.bandwidth_bytes_per_s or inf for chip in _chips(system)]
    return max(rates) * _fastest(system)


def link_bytes_per_s(system: SystemSpec, outside_of: int = 0) -> float:
    """Return the bandwidth out of a device over all its links at once [bytes/s].

    Parameters
    ----------
    outside_of
        Innermost levels that do not count.
    """
    return sum(
        level.bandwidth_bytes_per_s
        * level.links_per_device
        * (2.0 if level.kind in ("mesh", "torus") else 1.0)
        for level in system.levels[outside_of:]
    )


def least_sum_share(system: SystemSpec) -> float:
    """Return the share of the bytes of a sum that its members send: half where switches add [1]."""
    return 0.5 if any(level.in_network_reduction for level in system.levels) else 1.0


def host_bytes_per_s(system: SystemSpec) -> float:
    """Return the bandwidth between a device and its host in one direction [bytes/s]."""
    return inf if system.host is None else system.host.bandwidth_bytes_per_s


def rent_is_paid(system: SystemSpec, cost_usd: float | None, device_s: float) -> Inequality | None:
    """Return the cost beside the rent of devices for a time; None where either is not known."""
    rent = system.chip.rent_usd_per_hour
    if cost_usd is None or rent is None:
        return None
    return equal(cost_usd, rent * device_s / HOURS, "USD")
