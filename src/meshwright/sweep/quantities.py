"""Numbers in answers of a sweep: the words of each, its unit, and whether less of it is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """Words and unit of a number."""

    words: str
    unit: str = ""
    """Unit in text; a space in it makes it a phrase, not a symbol."""
    is_less_better: bool = False

    @property
    def title(self) -> str:
        """The words with the unit, for an axis."""
        return f"{self.words} [{self.unit}]" if self.unit else self.words

    @property
    def best(self) -> str:
        """The better end of the values: ``least`` or ``most``."""
        return "least" if self.is_less_better else "most"


LESS = True
BY_PEERS = ("price_units", "passes_per_s_per_price", "peer_passes_per_s")
"""Results by rules of other authors, which another distribution registers in the entry points
``meshwright.peer_models``."""
QUANTITIES: Mapping[str, Quantity] = {
    "step_time_s": Quantity("time of a step", "s", LESS),
    "fastest_s": Quantity("time of the fastest step", "s", LESS),
    "tokens_per_s": Quantity("throughput", "tokens/s"),
    "tokens_per_s_per_die": Quantity("throughput of a die", "tokens/s"),
    "passes_per_s": Quantity("throughput", "passes/s"),
    "peer_passes_per_s": Quantity("throughput by the rules of DFModel", "passes/s"),
    "mfu": Quantity("utilisation", "of the peak"),
    "utilisation": Quantity("utilisation", "of the peak"),
    "memory_bytes": Quantity("memory of the fullest device", "B", LESS),
    "power_w": Quantity("power", "W", LESS),
    "chips_power_w": Quantity("power of the chips", "W", LESS),
    "memory_power_w": Quantity("power of the memory", "W", LESS),
    "links_power_w": Quantity("power of the links", "W", LESS),
    "tokens_per_j": Quantity("tokens for each joule", "tokens/J"),
    "passes_per_j": Quantity("passes for each joule", "passes/J"),
    "cost_usd": Quantity("cost of a step", "US$", LESS),
    "run_s": Quantity("time of the whole run", "s", LESS),
    "run_usd": Quantity("cost of the whole run", "US$", LESS),
    "price_units": Quantity("price of network and memory alone", "GB/s of DRAM in price", LESS),
    "passes_per_s_per_price": Quantity(
        "throughput for the price of network and memory alone",
        "passes/s for the price of 1 GB/s of DRAM",
    ),
    "lower_bound_s": Quantity("lower bound of a step", "s", LESS),
    "dead_devices": Quantity("dead devices", "", LESS),
}
FIELDS: Mapping[str, Quantity] = {
    "on": Quantity("system"),
    "seq": Quantity("sequence", "tokens"),
    "global_batch": Quantity("global batch", "sequences"),
    "logic_area": Quantity("logic area", "mm2"),
}
"""Varied fields with words that differ from their names."""


def field_of(name: str) -> Quantity:
    """Return the words and the unit of a varied field."""
    return FIELDS.get(name) or Quantity(name.replace("_", " "))
