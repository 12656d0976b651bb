"""Rows of requests become jobs; what is predicted is what their source counts."""

import json
from math import inf, log
from pathlib import Path

import numpy as np
import pytest
from measured_rows import rows_of

from meshwright.calibration.rows import Reason, published
from meshwright.calibration.serving import (
    predict_all,
    predict_served,
    server_name_of,
    serving_jobs,
)
from meshwright.calibration.validation import Validation, views_of
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_chip
from meshwright.catalog.workloads import load_server
from meshwright.search.intervals import E2E, TPOT, TTFT
from meshwright.view.terminal import text_of
from meshwright_papers.measurements.questions import serving_precision
from meshwright_papers.measurements.words import serving_precision_of

RECORD = json.loads(Path(__file__).with_name("recorded_serving.json").read_text("utf-8"))
ALLOWED = 0.01


def row(**changes):
    """A batch of 16 on a public model, changed."""
    plain = {
        "id": "a", "group": "mine", "model": {"name": "Llama 3 8B"},
        "hardware": {"chip": "H100", "chips": 2}, "parallelism": {"tp": 2}, "framework": "vLLM",
        "batch": 16, "input_len": 512, "output_len": 128, "measured": {"latency_s": 2.0},
    }  # fmt: skip
    return rows_of([plain | changes])[0]


def predicted(**changes):
    (found,) = predict_served([row(**changes)], "calibrated")
    return found


@pytest.mark.slow
def test_every_published_row_is_predicted_and_names_its_source():
    rows = published("serving")
    assert len(rows) == 3052
    assert all(entry.source.title and entry.is_serving for entry in rows)
    found = predict_served(rows[::10], "calibrated")
    assert all(entry.refused is None and entry.predicted_tokens_per_s > 0 for entry in found)


def test_a_time_is_turned_into_what_its_batch_means():
    whole = predicted()
    assert whole.measured_tokens_per_s == 16 * (512 + 128) / 2.0
    answers = predicted(measured={"output_tokens_per_s": 900.0})
    assert answers.measured_tokens_per_s == 900.0
    ratio = whole.predicted_tokens_per_s / answers.predicted_tokens_per_s
    assert ratio == pytest.approx((512 + 128) / 128)
    chips = predicted(measured={"output_tokens_per_s_per_chip": 450.0})
    assert chips.measured_tokens_per_s == 900.0


def test_the_phases_of_a_batch_make_its_latency():
    first = predicted(measured={"ttft_ms": 100.0})
    each = predicted(measured={"tpot_ms": 10.0})
    assert first.measured_tokens_per_s == pytest.approx(16 * 512 / 0.1)
    assert each.measured_tokens_per_s == pytest.approx(16 / 0.01)
    prompt_s = 16 * 512 / first.predicted_tokens_per_s
    step_s = 16 / each.predicted_tokens_per_s
    latency_s = 16 * (512 + 128) / predicted().predicted_tokens_per_s
    assert latency_s == pytest.approx(prompt_s + 128 * step_s)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"measured": {}}, Reason.MEASURED),
        ({"batch": None}, Reason.MEASURED),
        ({"output_len": None}, Reason.LENGTHS),
        ({"output_len": 0}, Reason.LENGTHS),
        ({"model": {"name": "Nobody 3B"}}, Reason.DIMS),
        ({"hardware": {"chip": "Abacus", "chips": 2}}, Reason.CHIP),
        ({"hardware": {"chip": "H100"}}, Reason.COUNT),
        ({"parallelism": {"tp": 4}}, Reason.DEGREES),
        ({"parallelism": {"tp": 1, "dp": 3}}, Reason.DEGREES),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_reason(changes, reason):
    assert predicted(**changes).refused is reason


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("vLLM 0.5", "vllm-v0"), ("vLLM", "vllm"), ("TensorRT-LLM", "tensorrt-llm"),
        ("TensorRT-LLM (PyTorch backend)", "tensorrt-llm-pytorch"),
        ("TensorRT-LLM 1.0", "tensorrt-llm-pytorch"), ("vLLM 0.6.3", "vllm-v0"),
        ("LMDeploy TurboMind", "lmdeploy"), ("optimum-habana", "optimum-habana"),
        ("Deepspeed-MII", "deepspeed-mii"),
        ("llama.cpp", "llama.cpp"), ("SGLang", "sglang"), ("our own", "generic"),
    ],
)  # fmt: skip
def test_servers_by_their_names(framework, name):
    assert server_name_of(row(framework=framework)) == name


@pytest.mark.parametrize(
    ("text", "chip", "expected"),
    [
        ("", "A100", ("bf16", "bf16", "bf16")),
        ("FP8", "H100", ("fp8", "fp8", "fp8")),
        ("FP8", "A100", ("bf16", "fp8", "fp8")),
        ("NVFP4", "B200", ("fp4", "fp4", "fp8")),
        ("W4A16 AWQ", "H100", ("bf16", "fp4", "fp8")),
        ("int8", "A100", ("int8", "int8", "fp8")),
    ],
)
def test_types_of_a_served_model(text, chip, expected):
    stated = serving_precision_of(text)
    found = serving_precision(stated, load_chip(chip), load_server("tensorrt-llm"))
    assert (found.matmul, found.weight, found.kv_cache) == expected
    assert found.activation == "bf16"
    paged = serving_precision(stated, load_chip(chip), load_server("sglang"))
    assert paged.kv_cache == "bf16"


def test_chips_beyond_a_replica_hold_replicas():
    (job,) = serving_jobs(row(hardware={"chip": "H100", "chips": 8}), "calibrated")
    assert (job.setting.replicas, job.batch) == (4, 4.0)
    (queue,) = serving_jobs(row(batch=None, measured={"output_tokens_per_s": 1.0}), "calibrated")
    assert queue.batch == inf


def test_without_a_degree_all_chips_split_each_layer():
    (job,) = serving_jobs(row(parallelism={}), "calibrated")
    assert job.setting.serving.strategy.tp == 2


def test_a_row_in_a_column_is_priced_as_alone():
    rows = [row(id=str(n), batch=n, input_len=64 * n) for n in (1, 5, 32)]
    together = predict_served(rows, "calibrated")
    alone = [predict_served([entry], "calibrated")[0] for entry in rows]
    values = [[entry.predicted_tokens_per_s for entry in found] for found in (together, alone)]
    assert values[0] == values[1]


CLIENTS = {
    "batch": 16, "framework": "vLLM 0.11",
    "definition": "closed loop at fixed concurrency",
    "measured": {"ttft_ms": 200.0, "tpot_ms": 12.0},
}  # fmt: skip


def test_clients_have_two_times():
    clients = row(**CLIENTS)
    assert clients.closed_loop
    (found,) = predict_served([clients], "calibrated")
    step, first, whole = (found.times[name] for name in (TPOT, TTFT, E2E))
    assert found.predicted_tokens_per_s == step.predicted_tokens_per_s
    assert step.measured_tokens_per_s == pytest.approx(1e3 / 12.0)
    assert first.measured_tokens_per_s == pytest.approx(512 / 0.2)
    assert whole.measured_tokens_per_s == pytest.approx(128 / (0.2 + 127 * 0.012))
    assert not predict_served([row()], "calibrated")[0].times
    assert first.interval[1] / first.interval[0] >= step.interval[1] / step.interval[0]


def test_drawn_lengths_are_shorter_and_their_requests_part():
    (job, _) = serving_jobs(row(**CLIENTS, shortest_share=0.8), "calibrated")
    assert (job.prompt_tokens, job.answer_tokens) == (pytest.approx(460.8), pytest.approx(115.2))
    assert not job.are_equal
    equal, drawn = (
        predict_served([row(**CLIENTS, **more)], "calibrated")[0].times[TTFT].predicted_tokens_per_s
        for more in ({}, {"shortest_share": 1.0})
    )
    assert drawn > equal  # as prompt tokens a second: nothing passes with the prompt


def test_weights_in_four_bits_have_scales_and_wide_attention_beside_experts():
    chip, server = load_chip("B200"), load_server("vllm")
    stated = serving_precision_of("nvfp4")
    dense, sparse, own = (
        serving_precision(stated, chip, server, load_model(name)).weight_format
        for name in ("llama3.1-70b", "deepseek-v3", "gpt-oss-120b")
    )
    assert dense.bytes_of("attention", 2.0) == 0.5625
    assert sparse.bytes_of("attention", 2.0) == 2.0
    assert own.name == "mxfp4"
    assert serving_precision(stated, load_chip("H100"), server, load_model("llama3-8b")) == (
        serving_precision(stated, load_chip("H100"), server)
    )
    assert serving_precision(stated, chip, server).kv_cache == "fp8"
    assert serving_precision(stated, load_chip("H100"), server).kv_cache == "bf16"


def test_both_kinds_of_rows_keep_their_order_and_the_headline_is_of_training():
    trained, served = published("training")[0], row(id="served")
    rows = [served, trained, row(id="again")]
    found = Validation(tuple(predict_all(rows, "calibrated")), "calibrated")
    data = plain_data(found)
    assert [entry["id"] for entry in data["rows"]] == ["served", trained.id, "again"]
    assert set(data["groups"]) == {"mine", trained.group}
    assert data["overall"]["rows"] == 1
    assert data["overall"]["median_of_medians"] == abs(found.predictions[1].log_error)
    assert data["inference"]["overall"]["rows"] == 2
    assert data["inference"]["by_server"]["vllm"]["rows_used"] == 2
    lines = text_of(found.page(), detail=True).splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[:1] == ["server"])
    assert any(line.split()[:1] == ["vllm"] for line in lines[first:])


def test_a_file_of_requests_alone_has_its_own_headline():
    found = Validation(tuple(predict_served([row()], "calibrated")), "calibrated")
    expected = abs(log(found.predictions[0].predicted_tokens_per_s / (16 * 640 / 2.0)))
    assert plain_data(found)["overall"]["median_of_medians"] == pytest.approx(expected)


@pytest.mark.slow
def test_serving_is_as_recorded():
    found = predict_served(published("serving"), "calibrated")
    medians = {
        name: errors.median_abs_log_error for name, errors in views_of(found)["server"].items()
    }
    worse = {
        name: (recorded, medians[name])
        for name, recorded in RECORD["servers"].items()
        if medians[name] > recorded + ALLOWED
    }
    assert not worse
    assert RECORD["why"]
    wrong = sum(entry.fits is False for entry in found)
    assert wrong <= RECORD["ran_but_predicted_not_to_fit"]
    assert np.isfinite([entry.predicted_tokens_per_s for entry in found]).all()
