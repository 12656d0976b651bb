"""Rows are read as they are stated; all faults of a file are told at once."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.calibration.reading import StatedHardware, StatedRow, judged, read_rows, rows_of
from meshwright.calibration.rows import (
    DATA,
    FROZEN,
    FROZEN_SERVING,
    MeasuredFields,
    ModelFields,
    ParallelismFields,
    SoftwareFields,
    family_of,
    is_frozen,
    published_rows,
    published_serving_rows,
)
from meshwright.calibration.serving import predict_all
from meshwright.calibration.validation import Validation
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.calibration import fit_record, serving_record
from meshwright.cli.main import main
from meshwright.view.terminal import text_of


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
        "[0].model.layers", "[0].hardware", "[1].parallelism.fsdp", "[1].micro_batch", "[1].id",
        "[2]",
    ]  # fmt: skip


def test_good_rows_are_kept_and_bad_ones_told():
    entries = [
        {"id": "good", "micro_batch": 2}, {"id": "bad", "micro_batch": -1}, "text",
        {"id": "good"}, {"model": {"layers": 1e300}}, {"measured": {"mfu": 1e-300}}, {},
    ]  # fmt: skip
    rows, faults = judged(entries, "x")
    assert [row.id for row in rows] == ["good", "[6]"]
    assert [str(fault) for fault in faults] == [
        "[1].micro_batch: expected 1 or more, found -1, in row 'bad'",
        "[2]: expected fields, found 'text'",
        "[3].id: found 'good', which row [0] has (one name each)",
        f"[4].model.layers: expected at most 1e+12, found {int(1e300)}",
        "[5].measured.mfu: expected a number above 0, found 1e-300",
    ]


WHOLE = {
    "id": "m", "group": "mine", "framework": "megatron-lm",
    "model": {"name": "own", "seq": 2048, "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096,
              "vocab": 32000},
    "hardware": {"chip": "H100", "chips": 8, "inter_node": "400 Gb/s"},
    "parallelism": {"tp": 2, "pp": 2, "zero_stage": 1},
    "global_batch": 16, "micro_batch": 1, "precision": "bf16",
    "measured": {"tokens_per_s_per_chip": 8500.0, "memory_bytes_per_chip": 3e10},
}  # fmt: skip
ODD = st.sampled_from(
    [0, 1, 3, -1, 65536, 2**31, 10**12, 10**30, 1.5, 1e-300, 1e300, math.inf, math.nan, "", "x",
     "fp8", "int4", "full", "TPU v4", "Llama 3 405B", "8", True, None, [], {}]
)  # fmt: skip
PARTS = {"model": ModelFields, "hardware": StatedHardware, "parallelism": ParallelismFields,
         "software": SoftwareFields, "measured": MeasuredFields}  # fmt: skip
PLACES = [(part, name) for part, kind in PARTS.items() for name in kind.model_fields]
PLACES += [(name, None) for name in StatedRow.model_fields]


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
@example([(("software", "deferred_logit_gradients"), 2**31)])
def test_any_row_is_judged_or_refused(changes):
    entry = copy.deepcopy(WHOLE)
    for (part, name), value in changes:
        if name is None:
            entry[part] = value
        elif isinstance(entry.setdefault(part, {}), dict):
            entry[part][name] = value
    rows, faults = judged([entry], "x")
    assert len(rows) + bool(faults) == 1
    found = Validation(tuple(predict_all(rows, "calibrated")), "calibrated", tuple(faults))
    assert text_of(found.page(), detail=True)
    json.dumps(plain_data(found), allow_nan=False)


@pytest.mark.parametrize(("entries", "status"), [([WHOLE], 0), ([WHOLE, {"id": 1, "batch": -1}], 2),
                                                 ([{}, {"batch": -1}], 3)])  # fmt: skip
def test_validate_judges_the_good_rows(entries, status, tmp_path, capsys):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    assert main(["validate", "--measurements", str(path), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["rows"]] == ["m" if status < 3 else "[0]"]
    assert [bad["path"] for bad in found["bad_rows"]] == (["[1].batch"] if status else [])
    assert main(["validate", "--measurements", str(path)]) == status
    assert ("left out: [1].batch: expected 1" in capsys.readouterr().out) == (status > 0)


def test_a_file_of_bad_rows_alone_is_bad_input(tmp_path, capsys):
    path = tmp_path / "rows.json"
    path.write_text('[{"batch": -1}, 3]', encoding="utf-8")
    assert main(["validate", "--measurements", str(path)]) == 2
    assert "2 faults" in capsys.readouterr().err


@pytest.mark.parametrize("content", [[], {}, 3, None, "rows"])
def test_only_an_array_with_rows_is_read(content):
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
    assert len(rows) == 2068
    assert all(row.source.title for row in rows)


def test_the_frozen_sources_are_those_of_the_draw():
    """Two of the ten sources with whole rows that were added together, before a look at them."""
    added = [
        "flagperf", "internevo", "maxtext-gpu", "megatron-bridge", "megatron-golden",
        "megatron-moe-zoo", "mlperf-training", "nemo-longseq", "tpu-recipes", "vtrain-single",
    ]  # fmt: skip
    drawn = np.random.default_rng(17).choice(sorted(added), size=2, replace=False)
    assert set(FROZEN) == set(drawn.tolist())
    assert set(FROZEN) <= {row.group for row in published_rows()}
    assert not set(FROZEN) & set(fit_record("calibrated").groups)


def test_the_frozen_requests_are_those_of_the_draw():
    """One of the four smaller sources that were added together, and a quarter of the families."""
    random = np.random.default_rng(17)
    added = ["argonne-llm-bench", "gaudi-inference", "lmdeploy", "tensorrt-llm-static"]
    sources = random.choice(sorted(added), size=1, replace=False).tolist()
    largest = [row for row in published_serving_rows() if row.group == "aic-silicon"]
    parts = sorted({(row.model.name, row.hardware.chip, row.framework) for row in largest})
    families = {f"aic-silicon: {model} on {chip} under {server}" for model, chip, server in parts}
    drawn = random.choice(sorted(families), size=4, replace=False).tolist()
    assert set(FROZEN_SERVING) == {*sources, *drawn}
    assert {family_of(row) for row in largest} == families
    frozen = [row for row in published_serving_rows() if is_frozen(row)]
    assert len(frozen) == 379
    assert not {"lmdeploy"} & set(serving_record("calibrated").groups)
