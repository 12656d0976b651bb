"""Errors of curves of kernels against measured times: by kernel, chip and variant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import TypedDict

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnknownNameError
from meshwright.base.records import Brief, Rows, Scalar, Shown
from meshwright.calibration.fit.report import text_table
from meshwright.calibration.kernel_rows import FOLDER, KINDS
from meshwright.calibration.kernels import Timings, groups_of, place_of, predicted_s
from meshwright.catalog.kernels import KernelCurves
from meshwright.view.notebook import figure
from meshwright.view.words import percent

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page


@dataclass(frozen=True)
class KernelErrors(Brief):
    """Errors |ln(predicted / measured)| of some rows of one kernel: median and 90th percentile."""

    kernel: str
    chip: str
    variant: str
    rows: int
    fitted: tuple[float, float] | None
    held_back: tuple[float, float] | None
    """Errors of rows that no fit has seen; None: no such row."""
    left_out: tuple[float, float] | None
    """Errors of all rows on the curve of other chips; None: no other chip has one."""
    bias: float
    """Median of ln(predicted / measured): below 0 is predicted too fast."""

    def as_row(self) -> dict[str, Scalar]:
        """Return the errors; of each kind of rows median and 90th percentile."""
        found: dict[str, Scalar] = {
            "kernel": self.kernel, "chip": self.chip, "variant": self.variant, "rows": self.rows,
            "bias": self.bias,
        }  # fmt: skip
        for name in ("fitted", "held_back", "left_out"):
            pair = getattr(self, name) or (None, None)
            found |= {f"{name}_median": pair[0], f"{name}_p90": pair[1]}
        return found


@dataclass(frozen=True)
class KernelValidation(Shown):
    """Errors by variant, and pooled over the variants of each kernel and chip."""

    by_variant: tuple[KernelErrors, ...]
    by_chip: tuple[KernelErrors, ...]
    version: str = ""
    command: str = ""

    def page(self) -> Page:
        """Return the report as data."""
        from meshwright.calibration.page import kernels_page

        return kernels_page(self)

    def brief(self) -> str:
        """Return the numbers of rows and variants, and the kernels."""
        rows = sum(entry.rows for entry in self.by_chip)
        names = dict.fromkeys(entry.kernel for entry in self.by_chip)
        return f"{rows:,} rows, {len(self.by_variant)} variants of {', '.join(names)}"

    def rows(self) -> Rows:
        """Return the errors of each kernel, chip and variant."""
        return [entry.as_row() for entry in self.by_variant]

    def plot_errors(self) -> AltairChart:
        """Draw the median error of each kernel and chip, |ln(predicted / measured)| [%]."""
        from meshwright.calibration.page import kernels_chart

        return figure(kernels_chart(self))


def kernel_validation(tables: Sequence[Timings], curves: KernelCurves) -> KernelValidation:
    """Return the errors of curves on some tables.

    Raises
    ------
    UnknownNameError
        When no chip has a curve of a variant.
    """
    single, pooled = [], []
    for table in tables:
        of_chip: dict[str, list[tuple[FloatArray, FloatArray | None, Timings]]] = {}
        for chip, variant, rows in groups_of(table):
            errors = _errors(rows, variant, chip, curves)
            try:
                others = _errors(rows, variant, chip, curves.without(chip))
            except UnknownNameError:
                others = None
            of_chip.setdefault(chip, []).append((errors, others, rows))
            single.append(_record(table.kernel.name, chip, variant, [(errors, others, rows)]))
        pooled += [
            _record(table.kernel.name, chip, "", parts) for chip, parts in sorted(of_chip.items())
        ]
    return KernelValidation(tuple(single), tuple(pooled))


def _errors(rows: Timings, variant: str, chip: str, curves: KernelCurves) -> FloatArray:
    """Return ln(predicted / measured) of rows of one chip and variant."""
    place = place_of(chip)
    curve = curves.curve(rows.kernel.name, variant, place.chip)
    predicted = predicted_s(rows, variant, place, curve, curves)
    errors: FloatArray = np.log(predicted / rows.measured_s)
    return errors


def _record(
    kernel: str, chip: str, variant: str,
    parts: Sequence[tuple[FloatArray, FloatArray | None, Timings]],
) -> KernelErrors:  # fmt: skip
    errors = np.concatenate([found for found, _, _ in parts])
    held = np.concatenate([rows.held_back for _, _, rows in parts])
    others = [found for _, found, _ in parts if found is not None]
    return KernelErrors(
        kernel, chip, variant, len(errors), _spread(errors[~held]), _spread(errors[held]),
        _spread(np.concatenate(others)) if others else None, float(np.median(errors)),
    )  # fmt: skip


def _spread(errors: FloatArray) -> tuple[float, float] | None:
    if not len(errors):
        return None
    median, p90 = np.percentile(np.abs(errors), (50.0, 90.0))
    return float(median), float(p90)


class KernelValidationRecord(TypedDict):
    """Errors of the curves of single kernels."""

    kernels: Sequence[KernelErrors]
    variants: Sequence[KernelErrors]


def kernel_validation_record(found: KernelValidation) -> KernelValidationRecord:
    """Return the errors for a program."""
    return {"kernels": found.by_chip, "variants": found.by_variant}


HEAD = ("kernel", "chip", "variant", "rows", "fitted", "p90", "held back", "its p90",
        "chip left out", "its p90", "bias")  # fmt: skip


def _cells(entry: KernelErrors) -> tuple[object, ...]:
    spreads = [entry.fitted, entry.held_back, entry.left_out]
    shown = [percent(value) for spread in spreads for value in spread or (None, None)]
    return (entry.kernel, entry.chip, entry.variant, entry.rows, *shown,
            percent(entry.bias, sign=True))  # fmt: skip


def kernel_lines(found: KernelValidation, *, detail: bool) -> Iterator[str]:
    """Yield the errors for a reader."""
    yield "single kernels: |ln(predicted / measured)|"
    entries = found.by_variant if detail else found.by_chip
    yield from text_table(HEAD, [_cells(entry) for entry in entries], words=3)


def kernel_document(found: KernelValidation) -> str:
    """Return the page on kernels: the curves, the rows behind them, and the errors."""
    known = [(kernel, what, f"`cost/kernels/{file}`") for kernel, file, what in KNOWN]
    lines = [INTRODUCTION, *_markdown(("kernel", "what the curve knows", "in"), known, words=3)]
    lines += [READING, "## Errors by kernel and chip\n"]
    names = [name for name in HEAD if name != "variant"]
    cells = [[cell for n, cell in enumerate(_cells(e)) if n != 2] for e in found.by_chip]
    lines += _markdown(names, cells, words=2)
    lines += ["## Errors by variant\n", *_markdown(HEAD, map(_cells, found.by_variant), words=3)]
    lines += ["## Tables that can be read\n", TABLES]
    rows = [(kind, ", ".join(f"`{name}`" for name in ("chip", *KINDS[kind][0]))) for kind in KINDS]
    lines += _markdown(("table", "columns"), rows, words=2)
    lines += ["## Sources\n"]
    sources = json.loads((FOLDER / "sources.json").read_text("utf-8"))
    lines += [
        f"* {entry['title']}: {entry['repo']}, {entry['path']} at {entry['commit']}"
        f" ({entry['licence']})"
        for entry in sources
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown(head: Sequence[str], rows: Any, *, words: int) -> Iterator[str]:
    """Yield a table; its first columns are words."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' if n < words else '---:' for n in range(len(head)))}|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


INTRODUCTION = """# Curves of single kernels

Written by `meshwright validate --kernels --document docs/results/kernels.md`. Published times of
single kernels are held against curves: a few physical numbers for each chip and variant that turn a
shape into seconds (`spec/kernels.py` says what each of them is, `cost/kernels` how it enters). They
are shares of what the data sheet says, and times of the hardware and its libraries, so that a chip
without rows draws the mean of its family, else of its vendor.
"""
KNOWN = (
    ("gemm", "gemm.py", "output tiles in waves over the cores, the tile and the cut of the inner "
     "size that are fastest, traffic from memory or cache, launch, the cast of narrow operands, "
     "slower arithmetic in long kernels"),
    ("context, decode", "attention.py", "causal tiles with a tail, exponentials, writing the "
     "cache; pieces by sequence and head of keys, cut along the keys where cores are left"),
    ("latent_context, latent_decode, latent_products, latent_block", "latent.py", "the same with "
     "latent keys and values; absorbed products; the whole block with its projections, no faster "
     "than its launches"),
    ("experts", "experts.py", "experts that are hit by even or power-law loads, tiles of each, "
     "the busiest rank, traffic of routing"),
    ("collectives, dispatch", "library_collectives.py", "three protocols and the switch, the "
     "fastest counts; cores that copy against the network"),
    ("elementwise", "elementwise.py", "bytes from memory or cache, launch, time for each row"),
)  # fmt: skip
READING = """```console
$ ./mw validate --kernels
```

One price, here of a chip without rows, which draws from its family:

```python
from meshwright.catalog.kernels import load_curves
from meshwright.catalog.systems import load_chip
from meshwright.cost.kernels.gemm import gemm_s
from meshwright.spec.kernels import kernel_device

chip = load_chip("H800")
device = kernel_device(chip)
curve = load_curves().curve("gemm", "bfloat16", chip)
peak = device.peak_flops_per_s("bf16")
gemm_s(4096.0, 8192.0, 5120.0, word_bytes=2.0, peak_flops_per_s=peak, device=device, curve=curve)
```

Errors are |ln(predicted / measured)|. Of each chip and variant some shapes are stored, drawn by a
hash of the shape, never by time; a quarter of all shapes, by another hash and the same on all
chips, is **held back** from fits (`benchmarks/normalise_kernels.py`). **Chip left out**: all rows
of the chip on the mean of others' curves.
`meshwright calibrate --kernels --out FILE.yaml` fits anew; large errors count by their size, and
each number is drawn towards what is expected of it, so that one that no row tells stays there.

Single times tell nothing of hosts that launch late, of clocks under a power cap in long runs, or of
kernels that share a chip: those remain with the constants of [whole
steps](../explanation/calibration.md). Steps are not priced by these curves: it was
[tried](../explanation/calibration.md#what-the-rows-forced).
"""
TABLES = """`validate --kernels --measurements FILE.csv` takes one kind of kernel a file (CSV, also
gzipped) with these columns and any others; times in microseconds, sizes in bytes. `held_back` is 1
in rows that no fit may see, `gated` 0 where experts have no gate. Attention with as many queries as
keys is a prompt, else decode. `m` rows (tokens), `n` columns, `k` inner size; `window_tokens` 0 is
none; `inter` is the width of a whole expert; `distribution` is `balanced` or
`power_law_EXPONENT`; `message_bytes` is the whole buffer.
"""
