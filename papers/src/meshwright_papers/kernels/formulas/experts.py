"""Routed experts of one device as one fused layer: routing, two grouped products, the sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from meshwright.base.arrays import FloatArray, Num, ceil_div, larger, smaller, where
from meshwright_papers.kernels.curves import ExpertsCurve, KernelDevice
from meshwright_papers.kernels.formulas.blend import blended
from meshwright_papers.kernels.formulas.gemm import CACHE_SHARE

TILE_ROWS = (16.0, 32.0, 64.0, 128.0)
TILE_COLUMNS = 128.0
WORD_BYTES = 2.0
ALIGNED = 16.0
"""Divisor of the width of a shard at which kernels reach their rate."""
LONGEST = 0.8
"""Largest draw of a power law of loads, over the tokens."""
QUANTILES = (np.arange(64) + 0.5) / 64


@dataclass(frozen=True)
class ExpertWords:
    """Bytes of the words of a layer of experts."""

    weight: float
    activation: float
    """Bytes of one activation as an operand of the matrix units."""


@dataclass(frozen=True)
class ExpertShape:
    """A layer of experts: numbers, or columns."""

    tokens: Num
    hidden: Num
    width: Num
    """Width of a whole expert, before it is split."""
    chosen: Num
    """Experts of each token."""
    experts: Num
    tensor_parts: Num
    expert_parts: Num
    """Devices that the experts are spread over."""
    gated: Num
    """1 where an expert has a gate."""
    exponent: Num
    """Exponent of the power law of the loads of experts; 0: all are equal."""


def loads_of(shape: ExpertShape) -> FloatArray:
    """Return the tokens of an expert at 64 quantiles, (..., 64), of mean tokens x chosen / experts.

    A power law x^-a on [1, 0.8 tokens] has the quantile function
    (1 + (M^(1 - a) - 1) u)^(1 / (1 - a)); no expert gets more than all tokens.
    """
    tokens, exponent = np.asarray(shape.tokens, float), np.asarray(shape.exponent, float)
    mean = np.asarray(shape.tokens * shape.chosen / shape.experts, float)[..., None]
    power = 1.0 - np.where(exponent > 0, exponent, 1.01)[..., None]
    longest = np.maximum(LONGEST * tokens, 1.0 + 1e-4)[..., None]
    draws = (1.0 + (longest**power - 1.0) * QUANTILES) ** (1.0 / power)
    drawn = mean * draws / draws.mean(axis=-1, keepdims=True)
    loads: FloatArray = np.where(exponent[..., None] > 0, drawn, mean + 0.0 * draws)
    for _ in range(2):  # the excess goes to the others
        loads = np.minimum(loads, tokens[..., None])
        loads = np.minimum(loads * mean / loads.mean(axis=-1, keepdims=True), tokens[..., None])
    return loads


def load_factor(loads: FloatArray, experts: Num, ranks: Num, imbalance: float) -> Num:
    """Return the load of the busiest of some ranks over the mean [1].

    Sums of e loads scatter by 1 / sqrt(e) of their scatter; the largest of n normal draws lies
    sqrt(2 ln n) of it above the mean. No rank exceeds that of the busiest expert alone.
    """
    mean = loads.mean(axis=-1)
    scatter = loads.std(axis=-1) / mean
    factor: Num = 1.0 + imbalance * scatter * np.sqrt(2.0 * np.log(ranks) / experts)
    largest: Num = np.maximum(loads[..., -1] / mean, 1.0)
    return smaller(factor, largest)


def experts_s(
    shape: ExpertShape, *, words: ExpertWords, peak_flops_per_s: float, device: KernelDevice,
    curve: ExpertsCurve,
) -> Num:  # fmt: skip
    """Return the seconds of the busiest device, communication aside [s].

    Weights of experts that got a token are read once; rows of each expert are padded to tiles of
    the fastest height from 16 to 128, and tiles run in waves over the cores. Tokens are
    gathered, widened, narrowed and added at a share of the memory's rate.
    """
    held = shape.experts / shape.expert_parts
    loads = loads_of(shape)
    busiest = load_factor(loads, held, shape.expert_parts, curve.imbalance)
    loads = loads * np.asarray(busiest)[..., None]
    chosen = shape.tokens * shape.chosen
    least = smaller(1.0, chosen)
    hit = larger(held * np.minimum(loads, 1.0).mean(axis=-1), least)
    rows = smaller(
        chosen / shape.expert_parts * busiest, shape.tokens * smaller(shape.chosen, held)
    )
    rows = larger(rows, least)
    width, up = shape.width / shape.tensor_parts, 1.0 + shape.gated
    rate = curve.rate_share * peak_flops_per_s / device.num_cores
    times = []
    for tall in TILE_ROWS:
        padded = np.maximum(np.ceil(loads / tall), 0.0) * np.minimum(loads, 1.0)
        tiles = larger(held * padded.mean(axis=-1), hit)
        step_s = larger(
            2.0 * tall * TILE_COLUMNS / rate,
            (tall * words.activation + TILE_COLUMNS * words.weight) / curve.core_bytes_per_s,
        )
        first = ceil_div(tiles * ceil_div(up * width, TILE_COLUMNS), device.num_cores)
        second = ceil_div(tiles * ceil_div(shape.hidden, TILE_COLUMNS), device.num_cores)
        tiled_s = first * (step_s * shape.hidden + curve.tile_s)
        times.append(tiled_s + second * (step_s * width + curve.tile_s))
    weights = hit * (up + 1.0) * shape.hidden * width * words.weight
    memory = curve.memory_share * device.memory_bytes_per_s
    fits = weights < CACHE_SHARE * device.cache_bytes
    read_s = weights / where(fits, curve.cache_factor * memory, memory)
    passed = rows + curve.foreign_share * (chosen - rows)
    moved = WORD_BYTES * passed * (2.0 * shape.hidden + (2.0 * up + 1.0) * width)
    moved = moved + 2.0 * WORD_BYTES * shape.tokens * shape.hidden
    moved_s = moved / (curve.traffic_share * device.memory_bytes_per_s)
    product_s = blended(reduce(smaller, times), read_s, curve.blend)
    product_s = product_s / where(width % ALIGNED > 0, curve.ragged_share, 1.0)
    fixed_s = curve.launch_s + curve.choice_s * chosen + curve.expert_s * held
    return product_s + moved_s + fixed_s
