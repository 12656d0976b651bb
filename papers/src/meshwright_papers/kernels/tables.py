"""Tables of measured kernel times: CSV files, one kind of kernel each, as columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, joined
from meshwright.base.errors import Fault, SpecError
from meshwright.base.units import out_of_range
from meshwright.catalog.files import read_text, shown
from meshwright.catalog.systems import find_chip
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.kernels.timings import (
    EXPERT_TYPES,
    KERNELS,
    TYPES,
    Kernel,
    Timings,
    Words,
)

FOLDER = Path(__file__).parent / "data"
LATENCY = "latency_us"
UNIT_S = 1e-6
OR_ZERO = ("window_tokens", "exponent", "dispatch_sms", "gated", "held_back")
"""Columns of numbers that may be 0; sizes and times are not."""
HELD_BACK = "held_back"
"""1 in rows of published tables that no fit has seen."""
MOST_FAULTS = 20
MOST_BYTES, MOST_CELLS = 64 * 2**20, 4_000_000
"""Largest size of one table; the largest published one has 100,000 cells."""

Columns = dict[str, Any]
"""Words, or numbers, of all rows of a file by name."""


def read_timings(path: Path) -> list[Timings]:
    """Return the rows of a table (CSV, also gzipped) by kernel.

    The header states the kind of table: docs/results/kernels.md lists the columns of each kind.

    Raises
    ------
    SpecError
        With all faults: missing columns, unknown chips and types, cells that are no numbers.
    """
    text = read_text(path, most_bytes=MOST_BYTES)
    if text.count(",") + text.count("\n") > MOST_CELLS:
        raise SpecError(Fault("rows", f"have more than {MOST_CELLS:,} cells"), origin=str(path))
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise SpecError(Fault("rows", f"are no CSV: {error}"), origin=str(path)) from error
    if len(rows) < 2:
        fault = Fault("rows", "the table has none", "a header, then a row for each time")
        raise SpecError(fault, origin=str(path))
    header, body = rows[0], rows[1:]
    faults = [
        Fault(f"line {number}", f"has {len(row)} cells", f"{len(header)}, as the header")
        for number, row in enumerate(body, 2)
        if len(row) != len(header)
    ]
    _raise(faults, path)
    cells = {name: [row[n] for row in body] for n, name in enumerate(header)}
    found = [timings for prepared in _prepared(cells, path) for timings in _timings(prepared, path)]
    return _by_kernel(found)


def _by_kernel(found: Sequence[Timings]) -> list[Timings]:
    """Return the rows of each kernel together, in the order of kernels."""
    parts = {name: [t for t in found if t.kernel.name == name and len(t)] for name in KERNELS}
    return [joined(tables) for tables in parts.values() if tables]


@cache
def published_timings() -> tuple[Timings, ...]:
    """Return the rows that the curves are fitted to and judged by, kernel by kernel."""
    files = sorted(FOLDER.glob("*.csv.gz"))
    return tuple(_by_kernel([timings for file in files for timings in read_timings(file)]))


def _raise(faults: list[Fault], path: Path) -> None:
    if faults:
        more = len(faults) - MOST_FAULTS
        shown = faults[:MOST_FAULTS]
        if more > 0:
            shown.append(Fault("rows", f"{more} further ones have faults"))
        raise SpecError(shown, origin=str(path))


def _prepared(cells: Columns, path: Path) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield tables with the columns of some kernels, and these kernels.

    Raises
    ------
    SpecError
        When no kind of table has these columns; names the columns that the nearest one lacks.
    """
    missing: dict[str, list[str]] = {}
    for kind, (needed, prepare) in KINDS.items():
        missing[kind] = [name for name in ("chip", *needed) if name not in cells]
        if not missing[kind]:
            yield from prepare(cells)
            return
    kind = min(missing, key=lambda kind: len(missing[kind]) / len(KINDS[kind][0]))
    lacks = ", ".join(missing[kind])
    message = f"are those of no kind of kernel; as {kind} it lacks {lacks}"
    fix = "docs/results/kernels.md lists them"
    raise SpecError(Fault("columns", message, fix), origin=str(path))


def _number(cells: Columns, name: str, faults: list[Fault], empty: float | None) -> FloatArray:
    """Return a column of numbers; ``empty`` stands for empty cells, where they are allowed."""
    values = np.empty(len(cells[name]))
    for row, cell in enumerate(cells[name]):
        try:
            values[row] = empty if cell == "" and empty is not None else float(cell)
        except ValueError:
            values[row] = np.nan
        is_size = name not in OR_ZERO
        if not values[row] >= 0 or (is_size and values[row] == 0) or out_of_range(values[row]):
            faults.append(Fault(f"line {row + 2}: {name}", f"found {shown(cell)}", "a number"))
    return values


def _timings(prepared: tuple[tuple[str, ...], Columns], path: Path) -> Iterator[Timings]:
    names, cells = prepared
    kernels = [KERNELS[name] for name in names]
    faults: list[Fault] = []
    numbers = {name: _number(cells, name, faults, None) for name in kernels[0].numbers}
    measured = _number(cells, LATENCY, faults, None) * UNIT_S
    held = np.zeros(len(measured), dtype=bool)
    if HELD_BACK in cells:
        held = _number(cells, HELD_BACK, faults, 0.0) > 0
    chips = {text: find_chip(text) for text in dict.fromkeys(cells["chip"])}
    faults += [
        Fault("chip", f"{text!r} is not in the catalog", "show chips lists them")
        for text, chip in chips.items()
        if chip is None
    ]
    words = {name: np.array(cells[name], dtype=np.str_) for name in kernels[0].words}
    faults += _unknown_types(words, kernels[0])
    _raise(faults, path)
    places = np.array([chips[text] for text in cells["chip"]], dtype=np.str_)
    for kernel in kernels:
        table = Timings(kernel, places, words, numbers, measured, held)
        yield table if kernel.takes is None else table.rows(kernel.takes(numbers))


def _unknown_types(words: Mapping[str, Words], kernel: Kernel) -> list[Fault]:
    """Return a fault for each type that has no words."""
    types: Iterable[str] = EXPERT_TYPES if kernel.name == "experts" else TYPES
    return [
        Fault(name, f"found {shown(text)}", ", ".join(known or ["a word without /"]))
        for name in words
        for known in [types if name.endswith("dtype") else OTHER_WORDS.get((kernel.name, name))]
        for text in dict.fromkeys(words[name].tolist())
        if (known is not None and text not in known) or "/" in text
    ]


OTHER_WORDS: Mapping[tuple[str, str], Iterable[str]] = {
    ("collectives", "op"): (*CollectiveKind, "send_recv"),
}
"""Words that a column of a kernel may hold, besides types; each word of other columns is a
variant."""


Prepare = Callable[[Columns], Iterator[tuple[tuple[str, ...], Columns]]]


def _chosen(cells: Columns, rows: BoolArray) -> Columns:
    kept = np.flatnonzero(rows).tolist()
    return {name: [column[row] for row in kept] for name, column in cells.items()}


def _as(*names: str) -> Prepare:
    """Return a function that leaves a table as it is."""

    def prepare(cells: Columns) -> Iterator[tuple[tuple[str, ...], Columns]]:
        yield names, cells

    return prepare


def _latent(cells: Columns) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield cores (scope ``kernel``) and whole blocks (scope ``module``)."""
    is_core = np.array(cells["scope"]) == "kernel"
    prompts = [q == kv for q, kv in zip(cells["seq_len_q"], cells["seq_len_kv"], strict=True)]
    phases = {"phase": ["context" if prompt else "decode" for prompt in prompts]}
    if is_core.any():
        yield ("latent_context", "latent_decode"), _chosen(cells, is_core)
    if not is_core.all():
        yield ("latent_block",), _chosen(cells | phases, ~is_core)


def _experts(cells: Columns) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield experts with the exponent of their loads: ``balanced`` or ``power_law_1.2``."""
    loads = {"exponent": [text.removeprefix("power_law_") for text in cells["distribution"]]}
    loads["exponent"] = ["0" if text == "balanced" else text for text in loads["exponent"]]
    yield ("experts",), {"gated": ["1"] * len(cells["chip"])} | cells | loads


def _collectives(cells: Columns) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield collectives inside one node: between nodes they depend on the network."""
    inside = np.array(cells["devices_per_node"]) == np.array(cells["num_gpus"])
    if inside.any():
        yield ("collectives",), _chosen(cells, inside)


def _dispatch(cells: Columns) -> Iterator[tuple[tuple[str, ...], Columns]]:
    """Yield the way to the experts and the way back."""
    spans = ["node" if nodes in ("1", "1.0") else "nodes" for nodes in cells["nodes"]]
    cores = [cell or "0" for cell in cells["dispatch_sms"]]
    for direction in ("dispatch", "combine"):
        times = {LATENCY: cells[f"{direction}_us"], "direction": [direction] * len(spans)}
        yield ("dispatch",), cells | times | {"span": spans, "dispatch_sms": cores}


KINDS: Mapping[str, tuple[tuple[str, ...], Prepare]] = {
    "gemm": (("dtype", "m", "n", "k", LATENCY), _as("gemm")),
    "attention": (
        ("kv_dtype", "batch", "seq_len_q", "seq_len_kv", "heads", "kv_heads", "head_dim",
         "window_tokens", LATENCY),
        _as("context", "decode"),
    ),
    "latent attention": (
        ("scope", "kv_dtype", "projection_dtype", "batch", "seq_len_q", "seq_len_kv",
         "local_heads", LATENCY),
        _latent,
    ),
    "latent products": (("op", "dtype", "tokens", "local_heads", LATENCY), _as("latent_products")),
    "experts": (
        ("dtype", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution",
         LATENCY),
        _experts,
    ),
    "collectives": (
        ("library", "mode", "op", "num_gpus", "devices_per_node", "message_bytes", LATENCY),
        _collectives,
    ),
    "dispatch": (
        ("mode", "nodes", "hidden", "tokens", "topk", "dispatch_sms", "dispatch_us", "combine_us"),
        _dispatch,
    ),
    "elementwise": (("kernel", "tokens", "width", LATENCY), _as("elementwise")),
}  # fmt: skip
"""Columns of each kind of table besides the chip, and the kernels that its rows are of."""
