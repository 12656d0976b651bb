"""The view of a fit: its errors by source, fitted and left out, and its constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp
from typing import Any

from meshwright.calibration.fit.report import Fitted
from meshwright.train.measured.factors import Verdict
from meshwright.view.parts import Cell, Page, Section, Table, Tile
from meshwright.view.registry import view
from meshwright.view.words import counted, percent

MOST_ROWS = 12
"""Constants on the first screen."""


@view(Fitted)
def fitted_page(found: Fitted) -> Page:
    """Return the page of fitted constants."""
    tables = list(_errors(found.data))
    constants = Table(
        ("part", "of", "constant", "value [1]", "low [1]", "high [1]"),
        [(one.part, one.place or "all", one.name, one.value, one.low, one.high)
         for one in found.constants],
    )  # fmt: skip
    unused: Mapping[str, str] = found.data.get("unused", {})
    sections = (
        Section("errors", "How large are errors, by source?", tables),
        Section("constants", "Which constants were found?",
                [constants] if found.constants else []),
        Section("unused", "Which rows were not used?",
                [Table(("row", "reason"), list(unused.items()))] if unused else []),
    )  # fmt: skip
    return Page(
        title="Fitted constants",
        subtitle="constants fitted to measured rows; errors are |ln(predicted / measured)|",
        tiles=list(_tiles(found, tables, constants)),
        sections=[section for section in sections if section.parts],
    )


def _tiles(found: Fitted, tables: list[Table], constants: Table) -> Iterator[Tile]:
    data = found.data
    verdicts: Mapping[str, Verdict] = data.get("verdicts", {})
    for family, verdict in verdicts.items():
        done = "adjusted" if verdict.is_applied else "kept"
        yield Tile("Are the constants adjusted?", f"{family} {done}: {verdict.reason}",
                   "\n".join(verdict.warnings), "constants", label="verdict")  # fmt: skip
    lines = [
        f"{name}: median of medians {percent(errors['median_of_medians'])}, p90 of all rows "
        f"{percent(errors['p90'])}"
        for name, errors in (
            ("expected", data.get("expected")), ("fitted", data.get("fitted")),
            ("left out", data.get("left_out")), ("left out alone", data.get("left_out_alone")),
            ("unnamed", data.get("unnamed")),
        )
        if errors and errors["median"] is not None
    ]  # fmt: skip
    parts = [f"{data['num_rows']} rows"] if "num_rows" in data else []
    parts += [f"{data['serving']['num_rows']} rows of serving"] if "serving" in data else []
    parts += [counted(len(data["sram"]["fitted"]), "row") + " of SRAM machines"] \
        if "sram" in data else []  # fmt: skip
    yield Tile("How large are errors?", ", ".join(parts), "\n".join(lines), "errors",
               label="fitted")  # fmt: skip
    if tables:
        yield Tile("And by source?", tables[0].caption, section="errors", label="sources",
                   part=Table(tables[0].head, tables[0].rows[:MOST_ROWS]), spare=2)  # fmt: skip
    if found.constants:
        yield Tile("Which constants were found?", counted(len(found.constants), "constant"),
                   section="constants", label="constants",
                   part=Table(constants.head, constants.rows[:MOST_ROWS]), spare=3)  # fmt: skip
    if unused := data.get("unused"):
        row, reason = next(iter(unused.items()))
        yield Tile("Which rows were not used?", f"not used: {row}, {reason}",
                   f"{counted(len(unused), 'row')} in all" if len(unused) > 1 else "",
                   "unused", label="unused")  # fmt: skip


def _errors(data: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the errors of each part of a fit, by source."""
    head = ("source", "rows [#]", "median [%]", "p90 [%]", "left out [%]", "its p90 [%]")
    if data.get("groups"):
        rows = [(name, *_cells(one), one["covered"], "alone" if one["alone"] else "")
                for name, one in data["groups"].items()]  # fmt: skip
        yield Table((*head, "inside [%]", ""), rows,
                    "Training; alone: no other source has its chips")  # fmt: skip
    if data.get("intervals"):
        yield Table(
            ("rows", "number [#]", "inside [%]", "score [1]"),
            [(name.replace("_", " "), one["rows"], one["covered"], one["score"])
             for name, one in data["intervals"].items()], "80 % intervals",
        )  # fmt: skip
    if memory := data.get("memory"):
        rows = [(name, *_cells(one)) for name, one in {"all": memory, **memory["groups"]}.items()]
        yield Table(head, rows, "Memory")
    if serving := data.get("serving"):
        for name in ("groups", "servers", "families"):
            rows = [(part, *_cells(one)) for part, one in serving.get(name, {}).items()]
            yield Table(head, rows, f"Serving by {NAMES[name]}")
    if sram := data.get("sram"):
        yield Table(
            ("row", "predicted / published [x]", "left out [x]"),
            [(name, exp(error), exp(sram["left_out"][name]))
             for name, error in sram["fitted"].items()], "Machines that serve from SRAM",
        )  # fmt: skip


NAMES = {"groups": "source", "servers": "server", "families": "family of chips"}
"""Views of rows of serving, by their field."""


def _cells(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Return the rows of a source and its errors, fitted and left out."""
    fitted, out = one["fitted"], one["left_out"]
    return one["rows"], fitted["median"], fitted["p90"], out["median"], out["p90"]
