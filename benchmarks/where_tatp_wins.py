"""Writes docs/results/where_tatp_wins.md: where tensor streams win, over 200 machines.

Run: python benchmarks/where_tatp_wins.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stream_schemes import (
    LATENCY_S,
    MEMBERS,
    SCHEMES,
    Grid,
    Layer,
    make_grid,
)

from meshwright.streams.round_model import round_link_s

PAGE = Path(__file__).parents[1] / "docs" / "results" / "where_tatp_wins.md"
HIDDEN = (4096.0, 12288.0)
LAYERS = [
    layer
    for h in HIDDEN
    for layer in (
        Layer(f"h {h:.0f}, h x h", h, h, False),
        Layer(f"h {h:.0f}, h x 4h", h, 4 * h, False),
        Layer(f"h {h:.0f}, 4h x h", 4 * h, h, True),
    )
]
BATCHES = (2048.0, 8192.0)
TOKENS_PER_DIE = (512.0, 2048.0)
WAFER = 64
LINE, CYCLE = "TATP on a line", "TATP on a cycle"
SWEET = (MEMBERS[0] >= 8) & (MEMBERS[0] <= 16)
FACTORS = (
    ("link, TB/s", "bandwidth", 1e12),
    ("m_half, MB", "message_half", 1e6),
    ("HBM, TB/s", "hbm", 1e12),
    ("chunks allowed", "may_chunk", 1.0),
    ("relays store first", "stores", 1.0),
    ("accumulator bytes", "accumulator", 1.0),
)

Rows = Iterable[Sequence[str]]


def percent(values: Any) -> str:
    """Return a share of true values."""
    return f"{100 * np.mean(values):.0f} %"


def table(head: Sequence[str], rows: Rows) -> str:
    """Return a table, numbers to the right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def best_members(times: Any) -> Any:
    """Return the fastest N of each machine; of equals the smallest."""
    return MEMBERS[0][times.argmin(axis=1)]


def is_sweet(times: Any) -> Any:
    """Return for which machines the fastest N lies in 8 .. 16."""
    return SWEET[times.argmin(axis=1)]


def strong_row(layer: Layer, tokens: float, grid: Grid) -> list[str]:
    """Return a row of the table at fixed batch: share in 8 .. 16 and median of the best N."""
    cells = [layer.name, f"{tokens:.0f}"]
    for scheme in (LINE, CYCLE):
        cells += [
            f"{percent(is_sweet(times))} ({np.median(best_members(times)):.0f})"
            for times in SCHEMES[scheme](layer, tokens, grid)
        ]
    return cells


def cases() -> Iterator[tuple[Layer, float]]:
    """Yield each layer at each batch."""
    return ((layer, tokens) for layer in LAYERS for tokens in BATCHES)


def shares(grid: Grid) -> list[Any]:
    """Return over all cases whether 8 .. 16 is best: line and cycle, forward and training."""
    found = [shares_of(*case, grid) for case in cases()]
    return [np.stack(column) for column in zip(*found, strict=True)]


def wafer_times(scheme: str, layer: Layer, tokens_per_die: float, grid: Grid) -> Any:
    """Return the seconds of a training step on a full wafer for N = 1, 2, 4 .. 64.

    Replicas sum their gradients in a ring of both directions beside the backward pass.
    """
    members = np.array([1, 2, 4, 8, 16, 32, 64])
    whole = SCHEMES[scheme](layer, tokens_per_die * MEMBERS, grid)
    forward, training = (each[:, members - 1] for each in whole)
    replicas = WAFER / members
    shard = layer.in_size * layer.out_size / members * grid.accumulator / replicas
    step_s = round_link_s(shard, grid.bandwidth, LATENCY_S, grid.message_half, num_parts=2)
    sum_s = 2 * (replicas - 1) * step_s
    return training + np.maximum(0.0, sum_s - (training - forward))


def weak_row(layer: Layer, tokens: float, grid: Grid) -> list[str]:
    """Return a row of the table at fixed tokens per die."""
    cells = [layer.name, f"{tokens:.0f}"]
    for scheme in (LINE, CYCLE):
        times = wafer_times(scheme, layer, tokens, grid)
        best = times.argmin(axis=1)
        loss = times[:, 3:5].min(axis=1) / times.min(axis=1)
        cells += [
            percent((best == 3) | (best == 4)),
            percent(best == 0),
            percent(loss <= 1.01),
            f"{np.median(loss):.2f}",
        ]
    return cells


def rival_times(grid: Grid) -> dict[str, Any]:
    """Return the seconds of a training step by scheme: (case, machine, N)."""
    return {
        name: np.stack([scheme(*case, grid).training for case in cases()])
        for name, scheme in SCHEMES.items()
    }


def rival_rows(times: dict[str, Any], names: Sequence[str]) -> Rows:
    """Yield for each scheme how often it is fastest to within 1 %, and how far it lies behind."""
    for name in names:
        cells = [name]
        for n in (8, 16, 32):
            fastest = np.minimum.reduce([times[other][..., n - 1] for other in names])
            ratio = times[name][..., n - 1] / fastest
            cells += [percent(ratio <= 1.01), f"{np.median(ratio):.2f}"]
        yield cells


def factor_rows(found: Sequence[Any], grid: Grid) -> Rows:
    """Yield the share of 8 .. 16 for each value of each factor."""
    for title, field, unit in FACTORS:
        column = getattr(grid, field)[:, 0]
        for value in np.unique(column):
            chosen = column == value
            yield [f"{title} {value / unit:g}", *(percent(each[:, chosen]) for each in found)]


def ring_rows(times: dict[str, Any], grid: Grid) -> Rows:
    """Yield rings over the line in both switching modes, N = 8 and 16."""
    for stores, title in ((1.0, "store and forward"), (0.0, "cut-through")):
        chosen = grid.stores[:, 0] == stores
        cells = [title]
        for name in ("naive ring", "folded ring", CYCLE):
            for n in (8, 16):
                ratio = times[name][:, chosen, n - 1] / times[LINE][:, chosen, n - 1]
                cells.append(f"{np.median(ratio):.2f}")
        yield cells


def least_members(num_params: float, replicated_bytes: float, sharded_bytes: float) -> int:
    """Return the least N of 1, 2, 4 .. whose state fits 72 GB on a wafer of 64 dies."""
    return next(
        n
        for n in (1, 2, 4, 8, 16, 32, 64)
        if num_params * (replicated_bytes / n + sharded_bytes / WAFER) <= 72e9
    )


def memory_rows() -> Rows:
    """Yield the N that state alone asks for."""
    for name, h, layers in (("h 4096, 32 layers", 4096, 32), ("h 12288, 96 layers", 12288, 96)):
        params = 12.0 * h * h * layers
        yield [
            name,
            f"{params / 1e9:.0f} G",
            str(least_members(params, 16.0, 0.0)) if params * 16 / WAFER <= 72e9 else "none",
            str(least_members(params, 4.0, 12.0)),
        ]


def page() -> str:
    """Return the document."""
    grid = make_grid()
    found, dry = shares(grid), shares(replace(grid, hbm=grid.hbm * np.inf))
    times = rival_times(grid)
    weak = [weak_row(layer, tokens, grid) for layer in LAYERS for tokens in TOKENS_PER_DIE]
    on_line = [name for name in SCHEMES if name != CYCLE]
    line_times = rival_times(replace(grid, has_cycles=False))
    square = shares_of(LAYERS[3], 2048.0, grid)
    winners = [weak_winners(scheme, grid) for scheme in (LINE, CYCLE)]
    dry_rivals = list(rival_rows(rival_times(replace(grid, hbm=grid.hbm * np.inf)), list(SCHEMES)))
    rivals, rings = list(rival_rows(times, list(SCHEMES))), list(ring_rows(times, grid))
    return PAGE_TEXT.format(
        strong=table(
            ["layer", "tokens", "line, forward", "line, training", "cycle, forward",
             "cycle, training"],
            [strong_row(*case, grid) for case in cases()],
        ),
        overall=table(
            ["", "line, forward", "line, training", "cycle, forward", "cycle, training"],
            [["with HBM", *map(percent, found)], ["without HBM", *map(percent, dry)]],
        ),
        factors=table(
            ["", "line, forward", "line, training", "cycle, forward", "cycle, training"],
            factor_rows(found, grid),
        ),
        weak=table(
            ["layer", "tokens per die", "line: 8 or 16 best", "N = 1 best", "8 or 16 within 1 %",
             "loss", "cycle: 8 or 16 best", "N = 1 best", "8 or 16 within 1 %", "loss"],
            weak,
        ),
        rivals=table(RIVAL_HEAD, rivals),
        rivals_line=table(RIVAL_HEAD, rival_rows(line_times, on_line)),
        rings=table(
            ["relays", "naive, 8", "naive, 16", "folded, 8", "folded, 16", "cycle, 8",
             "cycle, 16"],
            rings,
        ),
        memory=table(
            ["model", "parameters", "16 B each, split by N", "ZeRO-1 over replicas"],
            memory_rows(),
        ),
        line_share=percent(found[0]), cycle_share=percent(found[2]),
        line_training=percent(found[1]), cycle_training=percent(found[3]),
        square_line=percent(square[0]), square_cycle=percent(square[2]),
        cycle_ahead=percent(ahead_of(times, CYCLE, LINE)),
        line_ahead=percent(ahead_of(times, LINE, CYCLE)),
        weak_line=percent(np.isin(winners[0], (3, 4))),
        weak_cycle=percent(np.isin(winners[1], (3, 4))),
        alone_line=percent(winners[0] == 0), alone_cycle=percent(winners[1] == 0),
        product_share=rivals[4][3], product_dry=dry_rivals[4][3],
        exposed_share=rivals[6][3], exposed_dry=dry_rivals[6][3],
        naive_store=rings[0][1], folded_store=rings[0][3],
        naive_cut=rings[1][1], folded_cut=rings[1][3],
    )  # fmt: skip


def shares_of(layer: Layer, tokens: float, grid: Grid) -> list[Any]:
    """Return where 8 .. 16 is best for one case: line and cycle, forward and training."""
    return [is_sweet(t) for scheme in (LINE, CYCLE) for t in SCHEMES[scheme](layer, tokens, grid)]


def ahead_of(times: dict[str, Any], name: str, other: str) -> Any:
    """Return where one scheme is more than 1 % faster than another at N = 8, 16 and 32."""
    return np.stack(
        [times[name][..., n - 1] * 1.01 < times[other][..., n - 1] for n in (8, 16, 32)]
    )


def weak_winners(scheme: str, grid: Grid) -> Any:
    """Return the index of the fastest N at fixed tokens per die, for each layer and machine."""
    return np.stack(
        [
            wafer_times(scheme, layer, tokens, grid).argmin(axis=1)
            for layer in LAYERS
            for tokens in TOKENS_PER_DIE
        ]
    )


RIVAL_HEAD = [
    "scheme", "N = 8: fastest", "behind", "N = 16: fastest", "behind", "N = 32: fastest", "behind",
]  # fmt: skip

PAGE_TEXT = """# Where TATP wins, and where not

Written by `python benchmarks/where_tatp_wins.py`; do not edit. The times are closed forms of
`meshwright.streams` (their rounds are proven by replay, see [streams](../explanation/streams.md))
and of plain gathers beside computation. Nothing here was measured on hardware.

## What is compared

One linear layer of a GPT block on N dies of 1800 TFLOP/s at 70 %, 80 MB of on-chip memory and 200
ns a hop (TEMP, arXiv 2512.14256, table I). 200 machines: links of 0.5, 1, 2, 3, 4 TB/s in one
direction; messages at half speed at 0, 1, 4, 8, 16 MB; main memory of 1 and 2.4 TB/s; sub-tensors
that exceed the on-chip memory come in chunks, or pass through the main memory; relays cut
through, or store first; accumulators of 2 and 4 bytes. The last is four where an odd number of
these three holds: 2.4 TB/s, chunks allowed, relays store first (half of the full factorial of
400).

* TATP on a line: the better of stream and hold, and of weights and inputs as the streamed tensor.
  On a cycle: halves both ways; an even number of dies has one, an odd number has none.
* Naive ring, folded ring: the same, on a ring laid into a line.
* 2-D product stream: the best block of r x c dies, both sides at least two, lines only.
* FSDP with prefetch: weights gathered whole beside the layer before, both ways round a cycle
  where there is one, through the main memory.
* TP+SP: gathers and reduce-scatters of Megatron's sequence parallelism, exposed. Overlapped, they
  are input streaming.

A row layer (4h x h) under input streaming streams its output accumulators, and backward its
gradient once. An operand at rest stays on chip where it fills at most half of it, and else is
read again for each round. Streamed weights start in the last round of the layer before. Gradients
rest in two bytes. Tiles are as efficient at any size, and nothing else uses the links.

## Fixed batch: is N in 8 .. 16 the fastest?

Share of the 200 machines on which the fastest of N = 1 .. 64 lies in 8 .. 16; in brackets the
median of the fastest N.

{strong}

All twelve cases together, with and without the time of the main memory:

{overall}

By factor:

{factors}

So 8 to 16 is right for some layers at some batches; it is not a property of the scheme. For the
square forward layer of h = 12288 at 2048 tokens it holds on {square_line} of the machines on a
line and on {square_cycle} on a cycle. Over all cases these are {line_share} and {cycle_share}
forward, {line_training} and {cycle_training} in training. Small layers want fewer dies, wide ones
and large batches more.

## Fixed tokens per die: N cancels

A wafer of 64 dies holds 64 / N replicas; each die keeps its tokens whatever N is. Replicas sum
their gradients both ways round a ring beside the backward pass (no contention charged). *Loss*:
the better of N = 8 and 16 over the fastest of 1, 2, 4 .. 64, median.

{weak}

Here 8 or 16 is the fastest on {weak_line} of the cases on a line and on {weak_cycle} on a cycle
(of equals the smallest N counts), and N = 1, with no stream at all, on {alone_line} and
{alone_cycle}. Weight streaming hides from a number of tokens per die on, whatever N is; input
streaming hides up to an N that grows with h; the sum over replicas falls with N. So small layers
with few tokens per die are fastest with inputs streamed among about as many dies as still hide,
and wide layers with many tokens need no stream for speed. Memory then decides: state alone asks for
at least this N on 64 dies of 72 GB:

{memory}

## At the same N: who is fastest?

A training step at fixed batch, all cases: share within 1 % of the fastest, and the median time
over the fastest.

{rivals}

Where the region has no cycle, for nobody:

{rivals_line}

The 2-D product stream is within 1 % of the fastest on {product_share} of the cases at N = 16: it
moves (sqrt N - 1) (X + W) / N in place of (N - 1) min(X, W) / N, and does not need a cycle. Without
the time of the main memory it is so on {product_dry}. FSDP moves the weights at a batch whose
activations are smaller; it is made for more tokens per die. TP+SP, although exposed, is among the
fastest on {exposed_share} at N = 16, without the time of the main memory on {exposed_dry}: it reads
weights that exceed the on-chip memory once, where input streaming reads them in every round.

A cycle beats the line by more than 1 % on {cycle_ahead} of the cases; the line beats the cycle on
{line_ahead}, where half messages pay their overhead twice. TEMP's own groups of 8 and 16 dies
(2x4, 4x4) have cycles.

Time over that of TATP on a line, median:

{rings}

Where relays cut through, a naive ring of 8 takes {naive_cut} of the time on a line and a folded
one {folded_cut}; where they store first, {naive_store} and {folded_store}. So the gain over rings
is one of the switching mode, and over a folded ring of 8 it is small in both.
"""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
