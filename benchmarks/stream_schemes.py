"""Times of one linear layer on N dies under streams and their rivals, over a grid of machines.

Times have one row for each point of the grid and one column for each N. Everything that overlaps is
taken from ``meshwright.streams``; the rivals are gathers and reduce-scatters beside computation.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.streams.forms import streams
from meshwright.streams.round_model import (
    backward_s,
    forward_s,
    num_chunks_to_fit,
    product_backward_s,
    product_forward_s,
    relay_bytes,
    round_link_s,
    stream_buffer_bytes,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.stream_transfers import forward_prefetched_s

FLOPS_PER_S = 0.7 * 1.8e15
"""Of a die of TEMP (arXiv 2512.14256, table I) at 70 % of its peak."""
SRAM_BYTES, LATENCY_S, WORD = 80e6, 200e-9, 2.0
ON_CHIP = SRAM_BYTES / 2
"""What an operand at rest may fill on chip; the other half belongs to the stream [bytes]."""
MEMBERS = np.arange(1.0, 65.0)[None, :]


@dataclass(frozen=True)
class Grid:
    """Machines: one row each."""

    bandwidth: Any
    message_half: Any
    hbm: Any
    may_chunk: Any
    stores: Any
    accumulator: Any
    has_cycles: bool = True
    """Whether groups of an even number of dies lie on a cycle of neighbours."""


def make_grid() -> Grid:
    """Return 200 machines: half of a factorial of 5 x 5 x 2 x 2 x 2 x 2.

    Accumulators take four bytes where an odd number of the other three two-valued factors is at
    its second value, else two: main effects stay apart from each other and from pairs.
    """
    pairs = itertools.product((0.5e12, 1e12, 2e12, 3e12, 4e12), (0.0, 1e6, 4e6, 8e6, 16e6))
    flags = list(itertools.product((0, 1), repeat=3))
    rows = [
        (band, half, (1.0e12, 2.4e12)[a], b, c, (2.0, 4.0)[(a + b + c) % 2])
        for band, half in pairs
        for a, b, c in flags
    ]
    return Grid(*(np.array(column, dtype=float)[:, None] for column in zip(*rows, strict=True)))


class Layer(NamedTuple):
    """Y (S x F) = X (S x H) W; a row layer takes inputs whose columns are split."""

    name: str
    in_size: float
    out_size: float
    is_row: bool


class Times(NamedTuple):
    """Seconds of a layer: the forward pass alone, and a training step."""

    forward: Any
    training: Any


class _Round(NamedTuple):
    """What one round of a stream moves at a member [bytes]."""

    item: Any
    """Sub-tensor that travels."""
    rest: Any
    """Operand that stays."""
    tile: Any
    """Piece of the operand or result that belongs to this round alone."""


def stream_times(form: str, layer: Layer, tokens: Any, streamed: str, grid: Grid) -> Times:
    """Return the times of a layer under one form, with weights or inputs as the streamed tensor."""
    n = MEMBERS
    elements = tokens * layer.in_size * layer.out_size
    compute_s = 2 * elements / (n * n * FLOPS_PER_S)
    weights = WORD * layer.in_size * layer.out_size / n
    inputs = WORD * tokens * layer.in_size / n
    outputs = WORD * tokens * layer.out_size / n
    if streamed == "inputs" and layer.is_row:
        move = _Round(outputs, weights, inputs / n)
        sums = move._replace(item=outputs * grid.accumulator / WORD)
        ahead, back = _pass(form, sums, 0.0, grid), _pass(form, move, 0.0, grid)
        forward = forward_s(n, compute_s, ahead.link, ahead.hbm)
        backward = forward_s(n, 2 * compute_s, back.link, 2 * back.hbm)
        return Times(forward.total_s, forward.total_s + backward.total_s)
    is_early = streamed == "weights"
    move = _Round(*((weights, inputs) if is_early else (inputs, weights)), outputs / n)
    ahead, back = _pass(form, move, 0.0, grid), _pass(form, move, 1.0, grid)
    passed = (forward_prefetched_s if is_early else forward_s)(n, compute_s, ahead.link, ahead.hbm)
    shared = streams[form].num_shared_rounds(n)
    returned = backward_s(n, 2 * compute_s, back.link, back.sum_link, back.hbm, shared)
    return Times(passed.total_s, passed.total_s + returned.total_s)


def blocked_bytes(a: Any, b: Any) -> Any:
    """Return the bytes of two operands: panels of one on chip, the other again for each."""
    return np.minimum(a + np.ceil(a / ON_CHIP) * b, b + np.ceil(b / ON_CHIP) * a)


class _Pass(NamedTuple):
    """Seconds of a round: item and accumulator on a link, and main memory."""

    link: Any
    sum_link: Any
    hbm: Any


def _pass(form: str, move: _Round, has_sums: float, grid: Grid) -> _Pass:
    """Return what a round takes; sub-tensors that do not fit come in chunks, or through HBM.

    The operand at rest takes at most half of the on-chip memory, and stays there if it fits.
    """
    entry, n = streams[form], MEMBERS
    ratio = has_sums * grid.accumulator / WORD
    buffers = stream_buffer_bytes(move.item, entry.buffers(n).with_incoming, ratio)
    stays = move.rest <= ON_CHIP
    resident = np.minimum(move.rest + move.tile, ON_CHIP)
    chunks = num_chunks_to_fit(buffers, SRAM_BYTES, resident)
    relayed = (chunks > 1) & (grid.may_chunk == 0) & (n > 1)
    chunks = np.where(relayed, 1.0, chunks)
    again = np.where(stays, move.rest / n, move.rest * np.ceil(move.item / ON_CHIP))
    operands = np.where(n > 1, move.item / n + again, blocked_bytes(move.item, move.rest))
    moved = (operands + move.tile) * (1 + has_sums)
    relay = relay_bytes(move.item * (1 + ratio), n, entry.num_parts(n))
    hbm_s = (moved + np.where(relayed, relay, 0.0)) / grid.hbm

    def link_s(num_bytes: Any) -> Any:
        both = [
            round_link_s(
                num_bytes, grid.bandwidth, LATENCY_S, grid.message_half, num_hops=entry.num_hops(n),
                num_parts=entry.num_parts(n), num_chunks=chunks, store_and_forward=stores,
            )
            for stores in (True, False)
        ]  # fmt: skip
        return np.where(grid.stores == 1, *both)

    return _Pass(link_s(move.item), link_s(move.item * ratio), hbm_s)


def better(*times: Times) -> Times:
    """Return the fastest of several ways, point by point: for inference, and for training."""
    return Times(*(np.minimum.reduce(each) for each in zip(*times, strict=True)))


def has_cycle(n: Any) -> Any:
    """Return whether some block of N dies has a Hamiltonian cycle: even, or alone."""
    return (n % 2 == 0) | (n == 1)


def only_cycles(times: Times) -> Times:
    """Return times that are infinite where no cycle of N dies exists."""
    return Times(*(np.where(has_cycle(MEMBERS), each, np.inf) for each in times))


def line(layer: Layer, tokens: Any, grid: Grid, streamed: tuple[str, ...]) -> Times:
    """TATP on a line: the better of stream and hold."""
    forms = itertools.product(("stream", "hold"), streamed)
    return better(*(stream_times(form, layer, tokens, what, grid) for form, what in forms))


def one_form(form: str, layer: Layer, tokens: Any, grid: Grid, streamed: tuple[str, ...]) -> Times:
    """Return a stream of one form, the better tensor streamed."""
    times = better(*(stream_times(form, layer, tokens, what, grid) for what in streamed))
    return only_cycles(times) if form == "cycle" else times


SIDES = np.array([p for p in itertools.product(range(2, 33), repeat=2) if p[0] * p[1] <= 64]).T
"""Rows and columns of every block of at most 64 dies with both sides at least two."""


def product(layer: Layer, tokens: Any, grid: Grid) -> Times:
    """Return the best block of each N: rows hold, columns stream."""
    sizes = SIDES[0] * SIDES[1]
    tokens = np.broadcast_to(tokens, MEMBERS.shape)[:, sizes - 1]
    found = _block_times(layer, tokens, grid)
    best = Times(*(np.full((len(grid.hbm), MEMBERS.size), np.inf) for _ in range(2)))
    for whole, part in zip(best, found, strict=True):
        for n in np.unique(sizes):
            whole[:, n - 1] = part[:, sizes == n].min(axis=1)
    return best


def _block_times(layer: Layer, tokens: Any, grid: Grid) -> Times:
    """Return the times of every block."""
    r, c = SIDES[:, None, :].astype(float)
    n = r * c
    compute_s = 2 * tokens * layer.in_size * layer.out_size / (n * n * FLOPS_PER_S)
    weight = WORD * layer.in_size * layer.out_size / n
    row_size, other = layer.in_size, layer.out_size
    if layer.is_row:
        row_size, other = other, row_size
    item, tile = WORD * tokens * row_size / n, WORD * tokens * other / (n * n)
    panel = item * c
    ratio = grid.accumulator / WORD

    def seconds(has_sums: float) -> tuple[Any, Any]:
        buffers = stream_buffer_bytes(
            weight, streams["stream"].buffers(r).with_incoming, has_sums * ratio
        )
        resident = np.minimum(panel * (1 + has_sums) + tile, ON_CHIP)
        chunks = num_chunks_to_fit(buffers, SRAM_BYTES, resident)
        relayed = (chunks > 1) & (grid.may_chunk == 0)
        chunks = np.where(relayed, 1.0, chunks)
        passes = np.ceil(weight / ON_CHIP)
        again = np.where(panel <= ON_CHIP, item / n, item * (passes + 2 / r))
        moved = (weight / n + again + tile) * (1 + has_sums)
        relay = relay_bytes(weight * (1 + has_sums * ratio), r) / c
        return (moved + np.where(relayed, relay, 0.0)) / grid.hbm, chunks

    def link_s(num_bytes: Any, chunks: Any) -> Any:
        return round_link_s(
            num_bytes, grid.bandwidth, LATENCY_S, grid.message_half, num_chunks=chunks
        )

    sums = item * ratio
    hbm_s, chunks = seconds(0.0)
    ahead_item = sums if layer.is_row else item
    forward = product_forward_s(
        r, c, compute_s, link_s(ahead_item, 1.0), link_s(weight, chunks), hbm_s
    )
    hbm_s, chunks = seconds(1.0)
    backward = product_backward_s(
        r, c, 2 * compute_s, link_s(item, 1.0), link_s(weight, chunks),
        0.0 * hbm_s if layer.is_row else link_s(sums, 1.0),
        link_s(weight * ratio, chunks), hbm_s,
    )  # fmt: skip
    return Times(forward.total_s, forward.total_s + backward.total_s)


def gather_s(num_bytes: Any, grid: Grid) -> Any:
    """Return an all-gather or reduce-scatter of a tensor: both ways round a cycle, or on a line."""
    parts = np.where(grid.has_cycles & has_cycle(MEMBERS) & (MEMBERS > 2), 2.0, 1.0)
    step_s = round_link_s(
        num_bytes / MEMBERS, grid.bandwidth, LATENCY_S, grid.message_half, num_parts=parts
    )
    return (MEMBERS - 1) * step_s


def fsdp(layer: Layer, tokens: Any, grid: Grid) -> Times:
    """Weights gathered whole one layer ahead, beside the computation of an equal layer.

    Gathered weights are written to the main memory, and gradients to be scattered read from it.
    """
    n = MEMBERS
    weights = WORD * layer.in_size * layer.out_size
    compute_s = 2 * tokens * layer.in_size * layer.out_size / (n * FLOPS_PER_S)
    inputs, outputs = (WORD * tokens * size / n for size in (layer.in_size, layer.out_size))
    sums = weights * grid.accumulator / WORD
    moved = blocked_bytes(weights, inputs) + outputs
    is_split = n > 1
    forward = np.maximum(compute_s, (moved + is_split * weights) / grid.hbm)
    backward = np.maximum(2 * compute_s, (2 * moved + is_split * (weights + sums)) / grid.hbm)
    ahead = np.maximum(forward, gather_s(weights, grid))
    return Times(
        ahead, ahead + np.maximum(backward, gather_s(weights, grid) + gather_s(sums, grid))
    )


def megatron(layer: Layer, tokens: Any, grid: Grid) -> Times:
    """TP with sequence parallelism, its gathers and reduce-scatters exposed."""
    n = MEMBERS
    weights = WORD * layer.in_size * layer.out_size / n
    compute_s = 2 * tokens * layer.in_size * layer.out_size / (n * FLOPS_PER_S)
    split, whole = layer.out_size, layer.in_size
    if layer.is_row:
        split, whole = whole, split
    moved = blocked_bytes(weights, WORD * tokens * whole) + WORD * tokens * split / n
    forward = np.maximum(compute_s, moved / grid.hbm)
    backward = np.maximum(2 * compute_s, 2 * moved / grid.hbm)
    gathered = gather_s(WORD * tokens * whole, grid)
    summed = gather_s(grid.accumulator * tokens * whole, grid)
    if layer.is_row:
        return Times(forward + summed, forward + summed + backward + gathered)
    return Times(forward + gathered, forward + gathered + backward + gathered + summed)


def decomposed(layer: Layer, tokens: Any, grid: Grid) -> Times:
    """TP with sequence parallelism, overlapped: input streaming, on a cycle where there is one."""
    on_line = line(layer, tokens, grid, ("inputs",))
    if not grid.has_cycles:
        return on_line
    return better(on_line, one_form("cycle", layer, tokens, grid, ("inputs",)))


BOTH = ("weights", "inputs")
SCHEMES = {
    "naive ring": lambda *case: one_form("ring", *case, BOTH),
    "folded ring": lambda *case: one_form("folded_ring", *case, BOTH),
    "TATP on a line": lambda *case: line(*case, BOTH),
    "TATP on a cycle": lambda *case: one_form("cycle", *case, BOTH),
    "2-D product stream": product,
    "FSDP with prefetch": fsdp,
    "TP+SP": megatron,
    "TP+SP, overlapped": decomposed,
}
