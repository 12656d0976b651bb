"""Recipes side by side: the fastest plan of each, and how ours compares with it."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import wrapped
from meshwright.train.answer import Estimate
from meshwright.train.comparison import Comparison, Entry

INDENT = " " * 13


def comparison_lines(found: Comparison) -> Iterator[str]:
    """Yield a line for each recipe, its plan below it; at most 100 columns wide."""
    work = found.workload
    yield (
        f"{found.model.name} on {found.system.name}: sequence {work.sequence_length:,}, "
        f"global batch {work.global_batch_size:,}, {work.precision.matmul}, {work.optimizer.name}"
    )
    ours = found.entries[0]
    yield ""
    yield (
        f"{'recipe':<14} {'placed by':<9} {'step':>9} {'within':>7} {'ours is':>12} "
        f"{'memory':>10} {'MFU':>6} {'tokens/J':>9} {'search':>8}"
    )
    for entry in found.entries:
        yield from _entry_lines(entry, ours)
    yield ""
    if any(entry.best is not None and entry.best.estimate.interval_s for entry in found.entries):
        yield "within: four of five measurements lie within this factor of the step, either way"
    for name, title in {entry.recipe: entry.title for entry in found.entries}.items():
        yield from wrapped(f"{name:<14} ", title)


def _entry_lines(entry: Entry, ours: Entry) -> Iterator[str]:
    """Yield the figures of a recipe and its plan, or why it has none."""
    head = f"{entry.recipe:<14} {entry.mapper or '-':<9} "
    if entry.best is None:
        yield from wrapped(f"{head}{'none':>9} ", entry.why_none.partition(". It takes")[0])
        return
    price = entry.best.estimate
    speedup = entry.speedup_of(ours)
    saved = price.tokens_per_j
    times = "" if speedup is None or entry is ours else f"{speedup:.2f}x faster"
    yield (
        f"{head}{format_seconds(price.step_time_s):>9} {_factor(price):>7} {times:>12} "
        f"{format_bytes(price.memory_bytes):>10} {price.mfu_causal:>6.1%} "
        f"{'unknown' if saved is None else f'{saved:.1f}':>9} {entry.search_s:>6.1f} s"
    )
    yield from wrapped(INDENT, entry.best.text)


def _factor(price: Estimate) -> str:
    """Return by which factor measurements may differ from a step time; nothing: not known."""
    return f"{price.interval_s[1] / price.step_time_s:.2f}x" if price.interval_s else ""
