"""Rows in the words of a source: found by entry point, judged, priced as the questions they are."""

import json

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.calibration.rows import judged, read_rows

ROW = {
    "id": "a", "group": "lab", "precision": "bf16", "global_batch": 64, "micro_batch": 1,
    "confidence": "high", "model": {"name": "Llama 3 8B", "seq": 4096, "vocab_note": "padded"},
    "hardware": {"chip_id": "H100 SXM 80GB", "chips": 8}, "parallelism": {"tp": 2},
    "framework": "megatron", "measured": {"iteration_time_s": 4.0},
}  # fmt: skip


def test_words_of_a_source_become_a_question():
    (row,), faults = judged([ROW], "x")
    assert not faults
    assert (row.model.name, row.system.like, row.strategy.tp) == ("Llama 3 8B", "8xH100", 2)
    assert (row.sequence_length, row.global_batch_size) == (4096, 64)
    assert row.without_effect == ("confidence", "model.vocab_note")


def test_a_file_of_a_source_is_validated(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW]), encoding="utf-8")
    found = mw.validate(measurements=path)
    # 64 sequences of 4,096 tokens in 4 s
    assert found.predictions[0].measured_tokens_per_s == pytest.approx(64 * 4096 / 4.0)
    assert found.without_effect == ["confidence (1)", "model.vocab_note (1)"]
    assert "without effect: confidence (1)" in found.page().warnings[0]


def test_faults_name_the_row_and_the_field(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([ROW | {"global_batch": "many"}]), encoding="utf-8")
    with pytest.raises(SpecError, match=r"\[0\]\.global_batch.*in row 'a'"):
        read_rows(path)
