"""Each field of a row is read by a price, or listed with the reason why none reads it."""

import pytest

from meshwright.calibration.reading import judged
from meshwright.calibration.rows import (
    DESCRIPTION,
    WITHOUT_EFFECT,
    Fields,
    HardwareFields,
    MeasuredFields,
    ModelFields,
    ParallelismFields,
    PrecisionFields,
    Row,
    SoftwareFields,
    passed_over,
    published_rows,
    published_serving_rows,
    published_sram_rows,
)
from meshwright.calibration.serving import predict_all

PARTS = {
    "": Row, "model.": ModelFields, "hardware.": HardwareFields, "parallelism.": ParallelismFields,
    "software.": SoftwareFields, "precision.": PrecisionFields, "measured.": MeasuredFields,
}  # fmt: skip
ABOUT_THE_FILE = ("reasons", "without_effect")
ROWS_OF_SOURCE = 6


def sampled():
    """Return some rows of each source and task."""
    found = {}
    for row in (*published_rows(), *published_serving_rows(), *published_sram_rows()):
        found.setdefault((row.group, row.task), []).append(row)
    return [row for rows in found.values() for row in rows[:: max(len(rows) // ROWS_OF_SOURCE, 1)]]


@pytest.mark.slow
def test_each_field_is_read_or_listed(monkeypatch):
    read, plain, rows = set(), Fields.__getattribute__, sampled()

    def record(self, name):
        read.add((type(self), name))
        return plain(self, name)

    monkeypatch.setattr(Fields, "__getattribute__", record)
    predict_all(rows, "calibrated")
    monkeypatch.undo()
    unread = {
        f"{path}{name}"
        for path, kind in PARTS.items()
        for name in kind.model_fields
        if (kind, name) not in read
    }
    assert unread <= {*DESCRIPTION, *WITHOUT_EFFECT, *ABOUT_THE_FILE}
    assert set(WITHOUT_EFFECT) <= unread


def test_fields_that_nobody_reads_are_named():
    row = {
        "model": {"name": "llama3-8b", "seq": 8192, "atention": "MLA"}, "global_batch": 64,
        "software": {"packed_sequences": True}, "measured": {"iteration_time_s": 1.0, "hfu": 0.4},
        "hardware": {"chip": "H100", "chips": 8}, "notes": "mine", "colour": "red", "nothing": None,
    }  # fmt: skip
    rows, faults = judged([row, row | {"id": "b"}], "a test")
    assert not faults
    assert passed_over(rows) == [
        "model.atention (2)", "software.packed_sequences (2)", "measured.hfu (2)", "colour (2)"
    ]  # fmt: skip
