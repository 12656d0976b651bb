"""A whole fit: its calibration file, its errors, and its constants with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from meshwright.base.cluster import HERE, Cluster
from meshwright.base.records import Rows, Scalar, Shown
from meshwright.calibration.fit.constants import FittedConstant
from meshwright.calibration.fit.memory import (
    PRIOR,
    constants_of_memory,
    fit_memory,
    memory_rows,
)
from meshwright.calibration.fit.own import fit_own
from meshwright.calibration.fit.record import (
    calibration_text,
    constants_of,
    constants_of_serving,
    constants_of_sram,
    fit_record,
    kernels_text,
    own_record,
    own_text,
    serving_alone_text,
    serving_fit_record,
    serving_text,
    sram_record,
    sram_text,
)
from meshwright.calibration.fit.serving import fit_serving, serving_rows
from meshwright.calibration.fit.sram import fit_sram
from meshwright.calibration.fit.training import FitRows, fit, fit_rows, usable
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import Row
from meshwright.catalog.calibration import (
    UNCALIBRATED,
    FitRecord,
    ServingRecord,
    SramRecord,
    load_calibration,
)
from meshwright.train.measured.factors import Verdict

FittedRecord = TypedDict(  # type: ignore[misc]
    "FittedRecord",
    {name: field.annotation for name, field in FitRecord.model_fields.items()}
    | {
        "unused": Annotated[
            Mapping[str, str],
            Field(description="Reasons why rows were not used, by the name of the row."),
        ],
        "verdicts": Annotated[
            Mapping[str, Verdict],
            Field(description="Whether measured jobs adjust the constants, by family of chips."),
        ],
        "serving": ServingRecord,
        "sram": SramRecord,
    },
    total=False,
)
"""The record of a fit of training, of serving and of SRAM machines, each where it has rows."""
FittedRecord.__doc__ = (
    "Errors of a fit on its own rows and on each source left out, by fitted part."
)
FittedRecord.__orig_bases__ = (FitRecord,)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Fitted(Shown):
    """A calibration file, its errors for a program, and its constants."""

    text: str
    data: dict[str, Any]
    constants: tuple[FittedConstant, ...] = ()

    def rows(self) -> Rows:
        """Return the sources of the rows with their errors."""
        fits = [self.data, *(self.data[name] for name in ("serving", "sram") if name in self.data)]
        return [
            {"source": name, **_flat(group)}
            for fit in fits
            for name, group in fit.get("groups", {}).items()
        ]


def _flat(record: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return a record with the parts of its records beside the rest: ``left_out_median``."""
    found: dict[str, Scalar] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{name}_{part}": amount for part, amount in value.items()}
        else:
            found[name] = value
    return found


def fitted(
    rows: Sequence[Row], name: str, command: str, calibration: str = UNCALIBRATED,
    cluster: Cluster = HERE,
) -> Fitted:  # fmt: skip
    """Return the constants of training fitted to some rows, and on top those of serving and SRAM.

    Parameters
    ----------
    name
        Name of the calibration.
    command
        Command that writes the file, for its first line.
    calibration
        Calibration with the expected constants: few rows adjust it, and it is kept where they say
        nothing.
    cluster
        Workers that price the rows.
    """
    served = [row for row in rows if row.is_serving and not (row.is_one_user or row.has_rate)]
    steps = predict([r for r in rows if not r.is_serving], calibration, is_placed=False)
    trained = usable(steps, cluster)
    unused = {
        entry.row.id: f"{entry.refused}: {entry.detail}" if entry.refused else NOT_MEASURED
        for entry in steps
        if entry.log_error is None and not (entry.memory and entry.memory.measured_bytes)
    }
    text, data, constants = (
        serving_alone_text(len(served), name, command),
        {},
        list[FittedConstant](),
    )
    if trained.predictions:
        memory = fit_memory(memory_rows(steps), expected_memory(trained, calibration))
        if calibration == UNCALIBRATED:
            steps_of_rows = [entry.row for entry in trained.predictions]
            unnamed = fit_rows(steps_of_rows, is_named=False, cluster=cluster)
            found = fit(trained, unnamed)
            record = fit_record(found, memory)
            data = record.model_dump()
            text = calibration_text(found, name, command, memory, record)
            constants += constants_of(found)
        else:
            own = fit_own(trained.predictions, calibration)
            verdicts = {family: one.verdict for family, one in own.factors.items()}
            data = own_record(own, memory).model_dump() | {"verdicts": verdicts}
            text = own_text(own, name, command, calibration, memory)
            constants += own.constants
        if memory is not None:
            constants += constants_of_memory(memory)
    with TemporaryDirectory() as folder:
        base = Path(folder) / "base.yaml"
        base.write_text(text, encoding="utf-8")
        known = kernels_text(str(base)) if calibration == UNCALIBRATED else ""
        fitted_on = Path(folder) / "kernels.yaml"
        fitted_on.write_text(text + known, encoding="utf-8")
        requests = serving_rows(served, str(fitted_on), calibration, cluster)
        serving = fit_serving(requests) if requests.columns else None
        served_text = serving_text(serving) if serving is not None else ""
        unused |= requests.refused
        sram = fit_sram([row for row in rows if row.is_one_user], str(base))
    if serving is not None:
        text += served_text
        data |= {"serving": serving_fit_record(serving).model_dump(exclude_unset=True)}
        constants += constants_of_serving(serving)
    if sram is not None:
        text += sram_text(sram)
        data |= {"sram": sram_record(sram).model_dump()}
        constants += constants_of_sram(sram)
    if data:
        data |= {"unused": unused}
    return Fitted(text, data, tuple(constants))


NOT_MEASURED = "states no throughput, time or memory"


def expected_memory(rows: FitRows, calibration: str) -> tuple[float, ...]:
    """Return the constants of memory that are expected before any row: of the first family."""
    if calibration == UNCALIBRATED:
        return PRIOR
    known = load_calibration(rows.families[0], calibration)
    return known.allocator_factor, known.communication_buffer_bytes, known.communicator_bytes
