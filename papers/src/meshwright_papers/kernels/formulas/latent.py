"""A block of multi-head latent attention on one chip: projections, the core, and the rest."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.base.arrays import Num
from meshwright_papers.kernels.curves import KernelDevice, LatentBlockCurve
from meshwright_papers.kernels.formulas.attention import Heads
from meshwright_papers.kernels.formulas.blend import blended

HIDDEN, QUERY_RANK, LATENT, ROPE, PLAIN, VALUE = 7168.0, 1536.0, 512.0, 64.0, 128.0, 128.0
"""Sizes of DeepSeek-V3 (arXiv 2412.19437, section 4.2)."""
WORD_BYTES = 2.0

ProductTime = Callable[[Num, Num, Num, Num], Num]
"""Seconds of equal products, from their number, rows, columns and inner size."""


def expanded_heads(heads: Num) -> Heads:
    """Return the heads of prompts: keys and values are expanded from the latent ones."""
    return Heads(heads, heads, PLAIN + ROPE, VALUE, (LATENT + ROPE) / heads)


def latent_heads(heads: Num) -> Heads:
    """Return the heads of decode, where all of them share the latent keys and values."""
    shared = 1.0 + 0.0 * heads
    return Heads(heads, shared, LATENT + ROPE, LATENT, (LATENT + ROPE) * shared)


def projections_s(rows: Num, heads: Num, linear_s: ProductTime, *, is_decode: bool) -> Num:
    """Return the seconds of the products around the core [s].

    Down to the latent spaces, up to the queries, the output; for prompts up to keys and values. The
    two that decode has in place of the last one are :func:`absorbed_s`.
    """
    one = 1.0 + 0.0 * rows
    total = linear_s(one, rows, QUERY_RANK + LATENT + ROPE + 0.0 * rows, HIDDEN + 0.0 * rows)
    total = total + linear_s(one, rows, heads * (PLAIN + ROPE), QUERY_RANK + 0.0 * rows)
    total = total + linear_s(one, rows, HIDDEN + 0.0 * rows, heads * VALUE)
    if is_decode:
        return total
    return total + linear_s(one, rows, heads * (PLAIN + VALUE), LATENT + 0.0 * rows)


def absorbed_s(rows: Num, heads: Num, linear_s: ProductTime) -> Num:
    """Return the seconds of the two products of each head that decode absorbs [s]."""
    into = linear_s(heads, rows, LATENT + 0.0 * rows, PLAIN + 0.0 * rows)
    return into + linear_s(heads, rows, VALUE + 0.0 * rows, LATENT + 0.0 * rows)


def latent_block_s(
    rows: Num, heads: Num, *, products_s: Num, core_s: Num, is_decode: bool, device: KernelDevice,
    curve: LatentBlockCurve,
) -> Num:  # fmt: skip
    """Return the seconds of a block of latent attention: the longer of host and device [s].

    The device computes projections and core, and moves queries, keys, values and latents between
    them.
    """
    keys = 0.0 if is_decode else heads * (2.0 * PLAIN + ROPE + VALUE)
    channels = 2.0 * (QUERY_RANK + LATENT + ROPE) + 3.0 * heads * (PLAIN + ROPE) + keys
    moved = 2.0 * WORD_BYTES * rows * channels
    moved_s = moved / (curve.traffic_share * device.memory_bytes_per_s)
    busy_s = products_s + curve.core_scale * core_s + moved_s
    return blended(busy_s, curve.host_s + 0.0 * busy_s, curve.blend)
