"""One matrix product on one chip, forward: tiles in waves over the cores, memory, the cast."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import NamedTuple

from meshwright.base.arrays import Num, ceil_div, larger, smaller, where
from meshwright_papers.kernels.curves import GemmCurve, KernelDevice, NarrowGemmCurve
from meshwright_papers.kernels.formulas.blend import blended

Tile = tuple[float, float]

TILES: tuple[Tile, ...] = (
    (64.0, 64.0), (64.0, 128.0), (64.0, 256.0), (128.0, 64.0), (128.0, 128.0), (128.0, 256.0),
    (256.0, 64.0), (256.0, 128.0), (256.0, 256.0),
)  # fmt: skip
"""Rows and columns of an output tile, as vendors' libraries choose between them."""
SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Parts of the inner size."""
STEP = 64.0
"""Inner size that a core receives at a time."""
SUM_BYTES = 4.0
OUTPUT_BYTES = 2.0
CACHE_SHARE = 0.8
"""Share of the shared cache that holds operands for repeated reads."""
SAG_AFTER_S = 1e-3
ALIGNED = 8.0


def gemm_s(
    rows: Num, columns: Num, inner: Num, *, word_bytes: float, peak_flops_per_s: float,
    device: KernelDevice, curve: GemmCurve, weight_copies: Num = 0.0, products: Num = 1.0,
) -> Num:  # fmt: skip
    """Return the seconds of Y = X W with X (rows x inner) and W (inner x columns) [s].

    For each tile (r, c) and each cut of the inner size into s parts: ceil(rows/r) ceil(columns/c) s
    tiles run in waves over the cores. A tile takes the longer of its arithmetic at the peak's share
    and of taking in (r + c) inner/s words; the whole product no less than its traffic. The fastest
    tile counts.

    Parameters
    ----------
    weight_copies
        Copies of W that are used in turn, where a benchmark does so: if all of them fit the cache,
        W is read from there; 0: W is not in the cache.
    products
        Equal products that one kernel computes.

    Source: tiles and waves as in NVIDIA's guide to matrix multiplication. Valid for linear layers,
    1 to 65,536 rows, columns and inner size of at least 32.
    """
    tiles = [tile for tile in TILES if tile[0] >= curve.least_rows]
    splits = [split for split in SPLITS if split <= curve.most_parts]
    memory = curve.memory_share * device.memory_bytes_per_s
    cache = curve.cache_factor * memory
    weights = word_bytes * products * columns * inner
    is_cached = (weight_copies > 0) & (weight_copies * weights < CACHE_SHARE * device.cache_bytes)
    traffic_s = (
        weights / where(is_cached, cache, memory)
        + word_bytes * products * rows * inner / cache
        + OUTPUT_BYTES * products * rows * columns / memory
    )
    is_ragged = (rows % ALIGNED > 0) & (rows > 16.0 * ALIGNED)
    share: Num = curve.rate_share * where(is_ragged, curve.ragged_share, 1.0)
    rate = share * peak_flops_per_s / device.num_cores
    work = _Work(products, rows, columns, inner, word_bytes, rate, traffic_s, cache)
    times = [_tiled_s(work, tile, split, device, curve) for tile, split in product(tiles, splits)]
    total = reduce(smaller, times) + curve.launch_s
    if isinstance(curve, NarrowGemmCurve):
        cast_bytes = products * rows * inner * (2.0 + word_bytes)
        cast_s = cast_bytes / (curve.cast_share * device.memory_bytes_per_s)
        total = total + curve.cast_row_s * products * rows + cast_s
    return total


class _Work(NamedTuple):
    """Products of equal shape, for any tiles."""

    products: Num
    rows: Num
    columns: Num
    inner: Num
    word_bytes: float
    rate: Num
    """Rate of one core [FLOP/s]."""
    traffic_s: Num
    cache_bytes_per_s: float


def _tiled_s(work: _Work, tile: Tile, split: float, device: KernelDevice, curve: GemmCurve) -> Num:
    """Return the seconds with one tile and one cut of the inner size, the launch aside."""
    tall, wide = tile
    tiles = work.products * ceil_div(work.rows, tall) * ceil_div(work.columns, wide) * split
    waves = ceil_div(tiles, device.num_cores)
    steps = STEP * ceil_div(work.inner / split, STEP)
    taken_in_s = (tall + wide) * work.word_bytes / curve.core_bytes_per_s
    step_s = larger(2.0 * tall * wide / work.rate, taken_in_s)
    compute_s = waves * (step_s * steps + curve.tile_s)
    compute_s = compute_s * (1.0 + curve.sag * compute_s / (compute_s + SAG_AFTER_S))
    traffic_s = work.traffic_s
    if split > 1.0:
        sums = 2.0 * SUM_BYTES * split * work.products * work.rows * work.columns
        traffic_s = traffic_s + curve.split_s + sums / work.cache_bytes_per_s
    return blended(compute_s, traffic_s, curve.blend)
