"""The attention core on one chip: prompts against themselves, new tokens against a cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, smaller, where
from meshwright_papers.kernels.curves import ContextCurve, DecodeCurve, KernelDevice
from meshwright_papers.kernels.formulas.blend import blended
from meshwright_papers.kernels.formulas.gemm import CACHE_SHARE

EVEN_DIMS = (64.0, 128.0, 256.0)
"""Sizes of heads that kernels are written for."""
WIDEST = 256.0
KEYS_OF_A_PART = 256.0
"""Least keys of one part of a sequence that is cut over cores."""
LEAST_GROUP = 16.0
"""Rows of the smallest instruction of matrix units."""
WORD_BYTES = 2.0


@dataclass(frozen=True)
class Heads:
    """Heads of an attention core: numbers, or columns."""

    queries: Num
    keys: Num
    """Heads of keys and values."""
    score_dim: Num
    """Channels of a query and a key."""
    value_dim: Num
    cached: Num
    """Numbers of one head of keys and values that the cache holds for a token."""


def plain_heads(queries: Num, keys: Num, dim: Num) -> Heads:
    """Return the heads of multi-head and grouped-query attention."""
    return Heads(queries, keys, dim, dim, 2.0 * dim)


def scores_of(tokens: Num, window: Num) -> Num:
    """Return the scores of one head of a causal prompt; a window of 0 means no window [1].

    Token i sees min(i, w): w (w + 1) / 2 + (s - w) w with w at most s.
    """
    seen = where(window > 0, smaller(window, tokens), tokens)
    return seen * (seen + 1.0) / 2.0 + (tokens - seen) * seen


def share_of_dim(dim: Num, uneven: float, wide: float) -> Num:
    """Return the share of the rate that heads of a size reach [1]."""
    even = np.isin(dim, EVEN_DIMS)
    return where(even, 1.0, where(dim > WIDEST, wide, uneven))


def context_s(
    batch: Num, tokens: Num, heads: Heads, *, window: Num, cache_word_bytes: Num,
    peak_flops_per_s: float, device: KernelDevice, curve: ContextCurve,
) -> Num:  # fmt: skip
    """Return the seconds of causal attention of prompts, and of writing their cache [s].

    Tiles of queries run over the cores; each score costs 2 (score dim + value dim) FLOP and its
    exponential. Work is even but for the longest tile, which is partly exposed. Prompts of one
    token are decoded: heads that share keys are in one tile.

    Source: tiles as in FlashAttention-2 (Dao 2023, arXiv 2307.08691).
    """
    tile, share = curve.query_tile, share_of_dim(
        heads.value_dim, curve.uneven_share, curve.wide_share
    )  # fmt: skip
    num_tiles = batch * heads.queries * ceil_div(tokens, tile)
    all_scores, seen = scores_of(tokens, 0.0 * tokens), scores_of(tokens, window)
    scores = all_scores - (all_scores - seen) * curve.window_share + tokens * tile / 2.0
    scores = batch * heads.queries * scores
    near = where(window > 0, smaller(window + tile, tokens), tokens)
    longest = tile * (tokens - (tokens - near) * curve.window_share)
    packed = batch * heads.keys * ceil_div(heads.queries / heads.keys, tile)
    num_tiles = where(tokens == 1, packed, num_tiles)
    scores = where(tokens == 1, packed * tile * tile / 2.0, scores)
    flops = 2.0 * (heads.score_dim + heads.value_dim) + curve.softmax_flops
    rate = share * curve.rate_share * peak_flops_per_s / device.num_cores
    compute_s = (scores / device.num_cores + curve.tail * longest) * flops / rate
    compute_s = compute_s + curve.wave_s * ceil_div(num_tiles, device.num_cores)
    memory = curve.memory_share * device.memory_bytes_per_s
    channels = heads.score_dim + heads.value_dim
    moved = WORD_BYTES * batch * tokens * channels * (heads.queries + heads.keys)
    cached = batch * tokens * heads.keys * heads.cached * (WORD_BYTES + cache_word_bytes)
    written_s = cached / memory + curve.token_s * batch * tokens
    return blended(compute_s, moved / memory, curve.blend) + written_s + curve.launch_s


def decode_s(
    batch: Num, tokens: Num, heads: Heads, *, window: Num, cache_word_bytes: Num,
    peak_flops_per_s: float, device: KernelDevice, curve: DecodeCurve,
) -> Num:  # fmt: skip
    """Return the seconds of attention of one new token of each sequence to its cache [s].

    Each sequence and head of keys is one piece of work; where these are fewer than the cores,
    sequences are cut into parts of at least 256 keys, and the results of the parts are added
    afterwards. The cache crosses the memory once, or comes from the shared cache where it fits.

    Parameters
    ----------
    tokens
        Keys of each sequence, the new token's included.

    Source: cuts along the keys as in Flash-Decoding (Dao et al. 2023).
    """
    share = share_of_dim(heads.value_dim, curve.uneven_share, curve.wide_share)
    near = where(window > 0, smaller(window, tokens), tokens)
    keys = tokens - (tokens - near) * curve.window_share
    group = heads.queries / heads.keys
    is_apart = (window > 0) & (curve.windows_group == 0.0)
    pieces = batch * heads.keys * where(is_apart, group, ceil_div(group, curve.group_tile))
    head_bytes = heads.cached * cache_word_bytes
    moved = batch * heads.keys * keys * head_bytes
    moved = moved + WORD_BYTES * batch * heads.queries * (heads.score_dim + heads.value_dim)
    memory = share * curve.memory_share * device.memory_bytes_per_s
    fits = moved < CACHE_SHARE * device.cache_bytes
    memory_s = moved / where(fits, curve.cache_factor * memory, memory)
    parts = larger(np.floor(device.num_cores / pieces), 1.0)
    parts = smaller(parts, ceil_div(keys, KEYS_OF_A_PART))
    split = where(group > 1, curve.group_split, curve.plain_split)
    parts = 1.0 + (parts - 1.0) * split
    waves = ceil_div(pieces * parts, device.num_cores)
    part_s = keys / parts * head_bytes / (share * curve.core_bytes_per_s)
    core_s = waves * (part_s + curve.wave_s)
    rows = LEAST_GROUP * ceil_div(group, LEAST_GROUP)
    flops = 2.0 * (heads.score_dim + heads.value_dim) * batch * heads.keys * rows * keys
    compute_s = flops / (share * curve.rate_share * peak_flops_per_s)
    busy_s = blended(blended(memory_s, core_s, curve.blend), compute_s, curve.blend)
    added_s = where(parts > 1, curve.combine_s, 0.0) + where(group > 1, curve.group_s, 0.0)
    return busy_s + added_s + curve.sequence_s * batch + curve.launch_s
