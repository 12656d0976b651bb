"""Lines of text within 100 columns: parts of a whole as bars, wrapped sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping

from meshwright.base.units import format_bytes, format_seconds

WIDTH = 100
BAR = 40


def bar_lines(
    parts: Mapping[str, float], show: Callable[[float], str], *, whole: float | None = None
) -> Iterator[str]:
    """Yield a line for each part: name, amount, share of the whole, bar.

    Parts below a thousandth of the whole are joined in one line. A part beyond the whole has a
    bar of full length that ends in ``>``.
    """
    total = sum(parts.values()) if whole is None else whole
    small = 0.0
    for name, amount in sorted(parts.items(), key=lambda item: -item[1]):
        if amount < total / 1000:
            small += amount
            continue
        yield _line(name, show(amount), amount / total)
    if small > 0:
        yield _line("smaller parts", show(small), small / total)


def _line(name: str, amount: str, share: float) -> str:
    bar = "#" * min(max(round(share * BAR), 1 if share > 0 else 0), BAR)
    bar += ">" * (share > 1)
    return f"  {name:<20} {amount:>10} {share:>7.1%}  {bar}".rstrip()


def words(name: str) -> str:
    """Return the name of a part without its unit: ``tp_comm_s`` is ``tp comm``."""
    for suffix in ("_bytes", "_s", "_j"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def counted(number: float, thing: str, things: str = "") -> str:
    """Return a number of things in words: ``1 stage``, ``2 stages``, ``2 passes``."""
    return f"{number:,.0f} {thing if number == 1 else things or thing + 's'}"


def memory_lines(
    parts: Mapping[str, float], needed_bytes: float, capacity_bytes: float, where: str
) -> Iterator[str]:
    """Yield the memory of the fullest device, part by part."""
    used, room = format_bytes(needed_bytes), format_bytes(capacity_bytes)
    yield f"memory of the fullest device ({where}): {used} of {room}"
    named = {words(name): size for name, size in parts.items() if size}
    yield from bar_lines(named, format_bytes, whole=capacity_bytes)


def time_lines(what: str, parts: Mapping[str, float], total_s: float) -> Iterator[str]:
    """Yield a time, part by part."""
    yield f"{what}: {format_seconds(total_s)}"
    named = {words(name): seconds for name, seconds in parts.items() if seconds}
    yield from bar_lines(named, format_seconds)


def wrapped(head: str, text: str) -> Iterator[str]:
    """Yield a text behind a head, wrapped under it."""
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * min(len(head), 24),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share in per cent; a dash where it is not known."""
    if value is None:
        return "-"
    return f"{value:+.1%}" if sign else f"{value:.1%}"
