"""Each field of a row is read by a price, or identifies the row."""

import pytest

from meshwright.calibration.rows import (
    DESCRIPTION,
    TABLES,
    Fields,
    Measured,
    ModelFields,
    OptimizerFields,
    PrecisionFields,
    Row,
    SystemFields,
    TrafficFields,
    published,
)
from meshwright.calibration.serving import predict_all

PARTS = {
    "": Row, "model.": ModelFields, "system.": SystemFields, "optimizer.": OptimizerFields,
    "precision.": PrecisionFields, "measured.": Measured, "traffic.": TrafficFields,
}  # fmt: skip
ROWS_OF_SOURCE = 6


def sampled():
    """Return some rows of each source and task."""
    found = {}
    for table in TABLES:
        for row in published(table):
            found.setdefault((row.group, row.task), []).append(row)
    return [row for rows in found.values() for row in rows[:: max(len(rows) // ROWS_OF_SOURCE, 1)]]


@pytest.mark.slow
def test_each_field_is_read_or_describes(monkeypatch):
    read, plain, rows = set(), Fields.__getattribute__, sampled()

    def record(self, name):
        read.add((type(self), name))
        if name == "stated":
            read.update((type(self), field) for field in type(self).model_fields)
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
    # The name of a model is for readers.
    assert unread <= {*DESCRIPTION, "model.name"}
