"""Matrix products on cores with an array of multiply-adds each, fed by a network on the chip.

The rate of a large product is not stated here but follows: from whole blocks, from filling the
arrays, and from what each core can take in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div, larger, smaller

ACCUMULATOR_BYTES = 4.0
"""Sums are kept in FP32."""
MOST_ARRAYS = 4
"""Arrays along one side of a block of outputs."""


@dataclass(frozen=True)
class CoreArray:
    """Equal cores: the array of multiply-adds in each, and what feeds it."""

    num_cores: float
    rows: float
    columns: float
    noc_bytes_per_s: float
    """What one core takes in from its network."""
    sram_bytes: float
    """Of one core; half of it holds sums, the other half what passes."""

    @property
    def blocks(self) -> tuple[tuple[float, float], ...]:
        """Sides of the blocks of outputs that a core may work on, in outputs."""
        sides = [2**power for power in range(MOST_ARRAYS.bit_length())]
        found = [(a * self.rows, b * self.columns) for a in sides for b in sides]
        room = self.sram_bytes / 2.0
        fitting = [(p, q) for p, q in found[1:] if ACCUMULATOR_BYTES * p * q <= room]
        return (found[0], *fitting)


def blocked_product_s(
    count: Any, rows: Any, inner: Any, columns: Any, peak: Any, word_bytes: float, cores: CoreArray
) -> Any:
    """Return the seconds of ``count`` products (rows x inner) @ (inner x columns) [s].

    A core works on one block of p x q outputs: it takes in (p + q) inner words, and its array of
    R x C needs (p q / R C) inner + R + C cycles, the last two to fill and drain it. The slower of
    both, times waves = ceil(count ceil(rows/p) ceil(columns/q) / cores); the best block counts.
    The clock is the one at which all arrays reach the peak: peak / (2 cores R C).

    Parameters
    ----------
    count, rows, inner, columns
        Sizes of the products [1].
    peak
        Of all cores [FLOP/s].
    word_bytes
        Of one operand [bytes].
    cores
        The cores, their arrays and their network.

    Valid for: operands that are in the SRAM of the chip; no core shares what it takes in.
    """
    clock_hz = peak / (2.0 * cores.num_cores * cores.rows * cores.columns)
    best: Any = None
    for high, wide in cores.blocks:
        arrays = high * wide / (cores.rows * cores.columns)
        compute_s = (arrays * inner + cores.rows + cores.columns) / clock_hz
        taken = (smaller(rows, high) + smaller(columns, wide)) * inner * word_bytes
        blocks = count * ceil_div(rows, high) * ceil_div(columns, wide)
        waves = ceil_div(blocks, cores.num_cores)
        seconds = waves * larger(compute_s, taken / cores.noc_bytes_per_s)
        best = seconds if best is None else smaller(best, seconds)
    return best
