"""Rows are read as they are stated; all faults of a file are told at once."""

import copy
import json
import math

import normalise_measurements
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.calibration.rows import (
    DATA,
    FROZEN,
    FROZEN_SERVING,
    SHARED,
    Measured,
    ModelFields,
    OptimizerFields,
    PrecisionFields,
    Row,
    StrategyFields,
    SystemFields,
    family_of,
    is_frozen,
    judged,
    published,
    read_rows,
)
from meshwright.calibration.serving import predict_all
from meshwright.calibration.validation import Validation
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.calibration import fit_record, serving_record
from meshwright.cli.main import main
from meshwright.view.terminal import text_of


def test_what_is_not_stated_is_none():
    (row,), _ = judged([{"id": "a", "strategy": {"tp": 2, "pp": None}, "batch": None}], "x")
    assert row.strategy.stated == {"tp": 2}
    assert (row.batch, row.system.num_chips, row.system.chip) == (None, None, "not stated")


def test_a_row_needs_nothing():
    (row,), _ = judged([{}], "x")
    assert (row.id, row.group) == ("[0]", "unnamed")


def test_what_has_one_name_is_stated_by_it():
    stated = {"model": "llama3-8b", "system": "8xH100", "optimizer": "adam-bf16"}
    (narrow, wide), faults = judged(
        [stated | {"id": word, "precision": word} for word in ("fp8", "fp16")], "x"
    )
    assert not faults
    assert (narrow.model.spec().num_layers, narrow.system.num_chips) == (32, 8)
    assert narrow.optimizer.preset().name == "adam-bf16"
    chip = narrow.system.spec().chip
    types = [row.precision.precision(chip) for row in (narrow, wide)]
    assert [(one.matmul, one.activation) for one in types] == [("fp8", "bf16"), ("fp16", "fp16")]


def test_parts_of_a_model_a_system_and_an_optimizer_change():
    stated = {
        "model": {"name": "padded", "like": "llama3-8b", "vocab_size": 128512},
        "system": {"like": "8xH100", "with_chip": "H100-96GB"},
        "optimizer": {"like": "adam-bf16", "weight_bytes_per_param": 1.0},
    }
    (row,), _ = judged([stated], "x")
    assert row.model.spec().vocab_size == 128512
    system = row.system.spec()
    assert (system.name, system.chip.name) == ("8xH100-96GB", "H100-96GB")
    assert row.optimizer.preset().weight_bytes_per_param == 1.0


def test_good_rows_are_kept_and_bad_ones_told_all_at_once():
    entries = [
        {"id": "good", "batch": 2}, {"id": "bad", "batch": -1, "strategy": {"tpp": 2}}, "text",
        {"id": "good"}, {"sequence_length": 1e300}, {"measured": {"latency_s": 1e-300}}, {},
        {"colour": 3}, {"software": {"compild": True}},
    ]  # fmt: skip
    rows, faults = judged(entries, "x")
    assert [row.id for row in rows] == ["good", "[6]"]
    assert [fault.path for fault in faults] == [
        "[1].strategy.tpp", "[1].batch", "[2]", "[3].id", "[4].sequence_length",
        "[5].measured.latency_s", "[7].colour", "[8].software.compild",
    ]  # fmt: skip
    assert (
        str(faults[0])
        == "[1].strategy.tpp: unknown field, in row 'bad' (did you mean tp or pp or etp?)"
    )
    assert "expected 1 or more, found -1, in row 'bad'" in str(faults[1])
    assert "did you mean compiled" in faults[-1].fix


WHOLE = {
    "id": "m", "group": "mine", "framework": "megatron",
    "model": "llama3-8b", "system": "8xH100", "sequence_length": 2048,
    "strategy": {"tp": 2, "pp": 2, "zero_stage": 1, "micro_batch_size": 1},
    "global_batch_size": 16, "precision": "bf16",
    "measured": {"tokens_per_s_per_chip": 8500.0, "memory_bytes": 3e10},
}  # fmt: skip
ODD = st.sampled_from(
    [0, 1, 3, -1, 65536, 2**31, 10**12, 10**30, 1.5, 1e-300, 1e300, math.inf, math.nan, "", "x",
     "fp8", "int4", "full", "TPU v4", "Llama 3 405B", "8", True, None, [], {}]
)  # fmt: skip
PARTS = {"model": ModelFields, "system": SystemFields, "strategy": StrategyFields,
         "optimizer": OptimizerFields, "precision": PrecisionFields,
         "measured": Measured}  # fmt: skip
PLACES = [(part, name) for part, kind in PARTS.items() for name in kind.model_fields]
PLACES += [(name, None) for name in Row.model_fields]
PLACES += [("software", "deferred_logit_gradients")]


@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=3))
@example([(("software", "deferred_logit_gradients"), 2**31)])
def test_any_row_is_judged_or_refused(changes):
    entry = copy.deepcopy(WHOLE)
    for (part, name), value in changes:
        if name is None:
            entry[part] = value
        else:
            stated = entry.setdefault(part, {})
            entry[part] = (stated if isinstance(stated, dict) else {}) | {name: value}
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
    told = "left out: [1].batch: expected 1 or more, found -1"
    assert (told in capsys.readouterr().out) == (status > 0)


def test_a_file_of_bad_rows_alone_is_bad_input(tmp_path, capsys):
    path = tmp_path / "rows.json"
    path.write_text('[{"batch": -1}, 3]', encoding="utf-8")
    assert main(["validate", "--measurements", str(path)]) == 2
    assert "2 faults" in capsys.readouterr().err


@pytest.mark.parametrize("content", [[], {}, 3, None, "rows"])
def test_only_an_array_with_rows_is_read(content):
    with pytest.raises(SpecError, match="expected an array"):
        judged(content, "x")


def test_a_file_that_is_no_json_is_told(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("[{", encoding="utf-8")
    with pytest.raises(SpecError, match="not JSON"):
        read_rows(path)
    with pytest.raises(SpecError, match="No such file"):
        read_rows(tmp_path / "none.json")


def test_numbers_of_infinite_size_are_faults(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"measured": {"tokens_per_s": float("inf")}}]), encoding="utf-8")
    with pytest.raises(SpecError, match="finite"):
        read_rows(path)


def test_the_tables_are_those_of_their_sources(tmp_path, monkeypatch):
    """The committed tables follow from the rows of the sources, as the script makes them."""
    monkeypatch.setattr("meshwright.calibration.rows.DATA", tmp_path)
    monkeypatch.setattr("sys.argv", ["normalise_measurements.py"])
    normalise_measurements.main()
    for table in ("training", "serving", "sram", "traffic"):
        made = (tmp_path / f"{table}.json").read_text(encoding="utf-8")
        assert made == (DATA / f"{table}.json").read_text(encoding="utf-8")
        assert set(json.loads(made)["parts"]) <= set(SHARED)


def test_every_published_row_names_its_source():
    rows = published("training")
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
    assert set(FROZEN) <= {row.group for row in published("training")}
    assert not set(FROZEN) & set(fit_record("calibrated").groups)


def test_the_frozen_requests_are_those_of_the_draw():
    """One of the four smaller sources that were added together, and a quarter of the families."""
    random = np.random.default_rng(17)
    added = ["argonne-llm-bench", "gaudi-inference", "lmdeploy", "tensorrt-llm-static"]
    sources = random.choice(sorted(added), size=1, replace=False).tolist()
    largest = [row for row in published("serving") if row.group == "aic-silicon"]
    parts = sorted({(row.model.name, row.system.chip, row.framework) for row in largest})
    families = {f"aic-silicon: {model} on {chip} under {server}" for model, chip, server in parts}
    drawn = random.choice(sorted(families), size=4, replace=False).tolist()
    assert set(FROZEN_SERVING) == {*sources, *drawn}
    assert {family_of(row) for row in largest} == families
    frozen = [row for row in published("serving") if is_frozen(row)]
    assert len(frozen) == 379
    assert not {"lmdeploy"} & set(serving_record("calibrated").groups)
