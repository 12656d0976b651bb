"""Two limits of one kernel: the slower decides, the more sharply the better they overlap."""

from __future__ import annotations

from meshwright.base.arrays import Num, larger, smaller


def blended(a_s: Num, b_s: Num, power: Num) -> Num:
    """Return (a^p + b^p)^(1/p): the sum at p = 1, the slower one as p grows [s].

    Both are positive; p >= 1.
    """
    slow = larger(a_s, b_s)
    ratio: Num = (smaller(a_s, b_s) / slow) ** power
    total: Num = slow * (1.0 + ratio) ** (1.0 / power)
    return total
