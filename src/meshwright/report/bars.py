"""Bars of text: parts of a whole, largest first, within 100 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
    for suffix in ("_bytes", "_s"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")
