"""Rows are read as they are stated; all faults of a file are told at once."""

import json

import pytest

from meshwright.base.errors import SpecError
from meshwright.calibration.reading import read_rows, rows_of
from meshwright.calibration.rows import DATA, published_rows, published_serving_rows


def test_what_is_not_stated_is_none():
    (row,) = rows_of([{"id": "a", "group": "g", "model": {"layers": 2, "heads": None}}], "x")
    assert (row.model.layers, row.model.heads, row.hardware.chips) == (2, None, None)


def test_a_row_needs_nothing():
    (row,) = rows_of([{}], "x")
    assert (row.id, row.group) == ("[0]", "unnamed")


def test_unknown_fields_are_passed_over():
    (row,) = rows_of([{"id": "a", "colour": 3, "model": {"dims_source": "b"}}], "x")
    assert row.id == "a"


def test_all_faults_are_told_at_once():
    entries = [
        {"id": "a", "model": {"layers": 2.5}, "hardware": "64 of them"},
        {"id": "a", "micro_batch": -1, "parallelism": {"fsdp": 8}},
        "text",
    ]
    with pytest.raises(SpecError) as caught:
        rows_of(entries, "x")
    paths = [fault.path for fault in caught.value.faults]
    assert paths == [
        "[0].model.layers", "[0].hardware", "[1].parallelism.fsdp", "[1].micro_batch", "[2]", "id"
    ]  # fmt: skip


@pytest.mark.parametrize("content", [{}, 3, None, "rows"])
def test_only_an_array_is_read(content):
    with pytest.raises(SpecError, match="expected an array"):
        rows_of(content, "x")


def test_a_file_that_is_no_json_is_told(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("[{", encoding="utf-8")
    with pytest.raises(SpecError, match="no JSON"):
        read_rows(path)
    with pytest.raises(SpecError, match="No such file"):
        read_rows(tmp_path / "none.json")


def test_numbers_of_infinite_size_are_faults(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"measured": {"tokens_per_s": float("inf")}}]), encoding="utf-8")
    with pytest.raises(SpecError, match="above 0"):
        read_rows(path)


@pytest.mark.parametrize("name", ["training.json", "serving.json"])
def test_a_table_holds_no_more_than_fields_of_rows(name):
    table = json.loads((DATA / name).read_text(encoding="utf-8"))
    parts = table["parts"]
    rows = published_rows() if name == "training.json" else published_serving_rows()
    for row, entry in zip(rows, table["rows"], strict=True):
        whole = {key: parts[key][v] if key in parts else v for key, v in entry.items()}
        assert row.model_dump(mode="json", exclude_defaults=True) == whole


def test_every_published_row_names_its_source():
    rows = published_rows()
    assert len(rows) == 627
    assert all(row.source.title for row in rows)
