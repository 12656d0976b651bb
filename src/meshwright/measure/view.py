"""The view of a measured machine: its constants, the rates behind them, the kernels left out."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.units import format_seconds, format_si
from meshwright.catalog.calibration import Constant
from meshwright.measure.constants import rate_of
from meshwright.measure.run import MeasuredMachine
from meshwright.view.parts import Page, Section, Table, Tile
from meshwright.view.registry import view
from meshwright.view.words import counted


@view(MeasuredMachine)
def measured_page(found: MeasuredMachine) -> Page:
    """Return the page of a measured machine."""
    title = f"{found.measured.machine.num_devices} x {found.measured.machine.device}"
    left_out = Table(("kernel",), [(entry,) for entry in found.measured.left_out])
    sections = (
        Section("constants", "Which constants follow?", [_constants(found)]),
        Section("rows", "What was measured?", [_timings(found)]),
        Section("left_out", "What was left out?", [left_out] if found.measured.left_out else []),
    )
    return Page(
        title=f"{title}, measured",
        subtitle=title,
        tiles=list(_tiles(found)),
        sections=sections,
    )


def _tiles(found: MeasuredMachine) -> Iterator[Tile]:
    measured, machine = found.measured, found.measured.machine
    known = f"the {found.chip} of the catalog"
    yield Tile("Which machine is it?", known if found.chip else
               "not in the catalog: described as measured", label="machine")  # fmt: skip
    yield Tile(
        "What was measured?",
        f"{counted(len(measured.rows), 'row')} in {format_seconds(measured.taken_s)}, PyTorch "
        f"{machine.torch}, {machine.library or 'one process'}", "", "rows", label="measured",
    )  # fmt: skip
    if measured.left_out:
        yield Tile("What was left out?", f"{counted(len(measured.left_out), 'kind')} of rows", "",
                   "left_out", label="left out")  # fmt: skip
    rows = [(c.name, _shown(c, c.value), _range(c)) for c in found.constants]
    yield Tile("Which constants follow?", counted(len(rows), "constant"), "", "constants",
               label="constants", part=Table(("", "value>", "range>"), rows))  # fmt: skip
    yield Tile("Where are they?", ", ".join(found.files), label="files")


def _shown(constant: Constant, value: float) -> str:
    return format_seconds(value) if constant.name.endswith("_s") else f"{value:.3g}"


def _range(constant: Constant) -> str:
    return f"{_shown(constant, constant.low)} to {_shown(constant, constant.high)}"


def _constants(found: MeasuredMachine) -> Table:
    rows = [(c.name, _shown(c, c.value), _range(c), c.why) for c in found.constants]
    return Table(("constant", "value>", "range>", "from"), rows)


def _timings(found: MeasuredMachine) -> Table:
    rows = []
    for row in found.measured.rows:
        shape = "x".join(map(str, row.shape)) + (f" of {row.group}" if row.group > 1 else "")
        rate, unit = rate_of(row) or (None, "")
        rows.append((row.kernel, row.dtype, shape, row.median_s, row.p25_s, row.p75_s,
                     None if rate is None else format_si(rate, unit)))  # fmt: skip
    head = ("kernel", "type", "shape", "median [s]", "p25 [s]", "p75 [s]", "rate>")
    return Table(head, rows)
