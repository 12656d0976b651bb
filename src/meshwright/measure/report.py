"""A measured machine on the screen: its constants, the rates behind them, the kernels left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from typing_extensions import TypedDict

from meshwright.base.units import format_seconds, format_si
from meshwright.collectives.registry import least_sent_bytes
from meshwright.measure.cases import WORDS
from meshwright.measure.constants import (
    COLLECTIVES,
    Constant,
    attention_flops,
    matmul_flops,
    moved_bytes,
)
from meshwright.measure.run import MeasuredMachine
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.measured import Machine, Timing
from meshwright.view.screen import Screen, Table
from meshwright.view.words import counted


def measured_screen(found: MeasuredMachine) -> Screen:
    """Return the constants of a machine, and how to price with them."""
    machine, measured = found.measured.machine, found.measured
    screen = Screen(f"{machine.num_devices} x {machine.device}")
    known = f"the {found.system.chip.name} of the catalog"
    screen.add("machine", known if found.is_known else "not in the catalog: described as measured")
    taken = format_seconds(measured.taken_s)
    screen.add("measured", f"{counted(len(measured.rows), 'row')} in {taken}, PyTorch "
               f"{machine.torch}, {machine.library or 'one process'}")  # fmt: skip
    if measured.left_out:
        screen.add("left out", f"{counted(len(measured.left_out), 'kind')} of rows; see --detail")
    screen.gap()
    rows = [(c.name, _shown(c, c.value), f"{_shown(c, c.low)} to {_shown(c, c.high)}")
            for c in found.constants]  # fmt: skip
    screen.add("constants", Table(("", "value>", "range>"), rows))
    screen.gap()
    screen.add("files", ", ".join(map(str, found.files)))
    on = found.system.name if found.is_known else str(found.files[-1])
    after = f"meshwright plan MODEL --on {on} --calibration {found.files[0]}"
    screen.add("next", after)
    return screen


def _shown(constant: Constant, value: float) -> str:
    return format_seconds(value) if constant.name.endswith("_s") else f"{value:.3g}"


def measured_lines(found: MeasuredMachine) -> Iterator[str]:
    """Yield each row with its rate, the rows of each constant, and the kernels left out."""
    yield f"{'kernel':<24}{'type':<6}{'shape':<28}{'median':>12}{'p25':>12}{'p75':>12}{'rate':>16}"
    for row in found.measured.rows:
        times = "".join(f"{format_seconds(s):>12}" for s in (row.median_s, row.p25_s, row.p75_s))
        shape = "x".join(map(str, row.shape)) + (f" of {row.group}" if row.group > 1 else "")
        yield f"{row.kernel:<24}{row.dtype:<6}{shape:<28}{times}{rate_text(row):>16}"
    yield ""
    for constant in found.constants:
        yield f"{constant.name}: {constant.why}"
    if found.measured.left_out:
        yield ""
        yield "left out:"
        yield from (f"  {entry}" for entry in found.measured.left_out)


def rate_text(row: Timing) -> str:
    """Return the rate of a row as text: operations or bytes a second; empty without one."""
    if row.kernel == "matmul":
        return format_si(matmul_flops(row) / row.median_s, "FLOP/s")
    if row.kernel.startswith("attention"):
        return format_si(attention_flops(row) / row.median_s, "FLOP/s")
    if row.kernel in WORDS or row.kernel == "update":
        return format_si(moved_bytes(row) / row.median_s, "B/s")
    if row.kernel in COLLECTIVES:
        kind, sent = CollectiveKind(row.kernel), float(row.shape[0])
        moved = float(least_sent_bytes(kind, sent, float(row.group)))
        return format_si(moved / row.median_s, "B/s")
    return ""


class MeasuredRecord(TypedDict):
    """Measurements of a machine, and the constants that follow."""

    machine: Machine
    chip: str | None
    """Chip of the catalog; None: not known."""
    constants: Sequence[Constant]
    unexplained: float | None
    taken_s: float
    left_out: Sequence[str]
    rows: Sequence[Timing]
    files: Sequence[str]


def measured_record(found: MeasuredMachine) -> MeasuredRecord:
    """Return the answer as data."""
    return {
        "machine": found.measured.machine,
        "chip": found.system.chip.name if found.is_known else None,
        "constants": found.constants,
        "unexplained": found.measured.unexplained,
        "taken_s": found.measured.taken_s,
        "left_out": found.measured.left_out,
        "rows": found.measured.rows,
        "files": [str(path) for path in found.files],
    }
