"""The page of curves of kernels against measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.view.parts import Code, Page, Plot, Section, Table, Text, Tile
from meshwright.view.registry import view
from meshwright.view.words import percent
from meshwright_papers.kernels.tables import KINDS
from meshwright_papers.kernels.validation import FittedCurves, KernelErrors, KernelValidation

MOST_SOURCES = 10
"""Kernels and chips on the first screen."""

ABOUT_KERNELS = (
    "Published times of single kernels are held against curves: a few physical numbers for each "
    "chip and variant that turn a shape into seconds (`curves.py` defines each of them, "
    "`formulas` uses them). They are shares of the data sheet's rates, and times of the "
    "hardware and its libraries, so that a chip without rows draws the mean of its family, else of "
    "its vendor.",
    "Of each chip and variant some shapes are stored, drawn by a hash of the shape, never by time; "
    "a quarter of all shapes, by another hash and the same on all chips, is held back from fits "
    "(`papers/benchmarks/normalise_kernels.py`). Chip left out: all rows of the chip on the mean "
    "of others' curves.",
    "Single times do not show hosts that launch late, clocks under a power cap in long runs, or "
    "kernels that share a chip: those remain with the constants of whole steps. Steps are not "
    "priced by these curves.",
)
KERNEL_EXAMPLE = """from meshwright.catalog.systems import load_chip
from meshwright_papers.kernels.curves import kernel_device
from meshwright_papers.kernels.fitted import load_curves
from meshwright_papers.kernels.formulas.gemm import gemm_s

chip = load_chip("H800")
device = kernel_device(chip)
curve = load_curves().curve("gemm", "bfloat16", chip)
peak = device.peak_flops_per_s("bf16")
gemm_s(4096.0, 8192.0, 5120.0, word_bytes=2.0, peak_flops_per_s=peak, device=device, curve=curve)"""
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
TABLES = (
    "`validate --kernels --measurements FILE.csv` takes one kind of kernel a file (CSV, also "
    "gzipped) with these columns and any others; times in microseconds, sizes in bytes. "
    "`held_back` is 1 in rows that no fit may see, `gated` 0 where experts have no gate. "
    "Attention with as many queries as keys is a prompt, else decode. `m` rows (tokens), `n` "
    "columns, `k` inner size; `window_tokens` 0 is none; `inter` is the width of a whole "
    "expert; `distribution` is `balanced` or `power_law_EXPONENT`; `message_bytes` is the "
    "whole buffer."
)


@view(KernelValidation)
def kernels_page(found: KernelValidation) -> Page:
    """Return the page of curves of kernels against measured times."""
    ordered = sorted(found.by_chip, key=lambda entry: -_median(entry))
    names = [f"{entry.kernel} on {entry.chip} ({entry.rows:,})" for entry in ordered]
    medians = [_median(entry) for entry in ordered]
    best, most = ordered[-1], ordered[0]
    kernels = ", ".join(dict.fromkeys(entry.kernel for entry in found.by_chip))
    pooled = kernels_table(found.by_chip, "By kernel and chip")
    return Page(
        title="Curves of kernels against measured times",
        subtitle=f"single kernels ({kernels}): errors are |ln(predicted / measured)| of the time",
        tiles=[
            Tile("How many rows?", f"{sum(entry.rows for entry in found.by_chip):,}",
                 f"{len(found.by_variant)} variants", "kernels", label="rows"),
            Tile("How large are errors?", f"medians from {percent(medians[-1])} to "
                 f"{percent(medians[0])}", section="kernels", label="errors",
                 part=Table(pooled.head, pooled.rows[:MOST_SOURCES])),
            Tile("Which is predicted best?", f"{best.kernel} on {best.chip}",
                 f"median {percent(_median(best))}", "kernels", label="best"),
            Tile("Which is furthest off?", f"{most.kernel} on {most.chip}",
                 f"median {percent(_median(most))}", "kernels", label="worst"),
        ],
        sections=[Section("kernels", "How large are errors, by kernel?", [
            Plot("Median error of each kernel and chip (rows)",
                 f"From {percent(medians[-1])} ({names[-1]}) to {percent(medians[0])} ({names[0]})",
                 "bars", Table(("kernel", "median |ln(predicted / measured)| [%]"),
                               list(zip(names, medians, strict=True)))),
            pooled, kernels_table(found.by_variant, "By variant"),
        ]), Section("about", "What is a curve, and how is it judged?", [
            *map(Text, ABOUT_KERNELS),
            Table(("kernel", "knowledge of the curve", "in"),
                  [(kernel, what, f"kernels/formulas/{file}") for kernel, file, what in KNOWN]),
            Code(KERNEL_EXAMPLE, "price of one kernel"),
            Text(TABLES),
            Table(("table", "columns"),
                  [(kind, ", ".join(("chip", *KINDS[kind][0]))) for kind in KINDS]),
        ])],
        command=found.command,
        version=found.version,
    )  # fmt: skip


@view(FittedCurves)
def fitted_page(found: FittedCurves) -> Page:
    """Return the page of fitted curves."""
    return replace(kernels_page(found.errors), title="Fitted curves of kernels")


def _median(entry: KernelErrors) -> float:
    return (entry.fitted or entry.held_back or entry.left_out or (0.0, 0.0))[0]


def kernels_table(entries: Sequence[KernelErrors], caption: str = "") -> Table:
    """Return a row for each kernel, chip and variant."""
    rows = [
        (entry.kernel, entry.chip, entry.variant, entry.rows,
         *(value for pair in (entry.fitted, entry.held_back, entry.left_out)
           for value in pair or (None, None)), entry.bias)
        for entry in entries
    ]  # fmt: skip
    head = ("kernel", "chip", "variant", "rows [#]", "fitted [%]", "p90 [%]", "held back [%]",
            "its p90 [%]", "chip left out [%]", "its p90 [%]", "bias [+%]")  # fmt: skip
    return Table(head, rows, caption)
