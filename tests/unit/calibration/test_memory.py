"""Memory of rows: counted as their sources count it, fits, and constants out of made rows."""

import numpy as np
import pytest
from measured_rows import rows_of, source_rows

from meshwright.calibration.errors import memory_error_record
from meshwright.calibration.fit.memory import (
    GIB,
    PRIOR,
    MemoryRows,
    constants_of_memory,
    fit_memory,
    memory_rows,
)
from meshwright.calibration.jobs import job_of
from meshwright.calibration.prediction import RowMemory, predict
from meshwright.calibration.rows import Counting
from meshwright.calibration.validation import Validation
from meshwright.catalog.answer_file import plain_data
from meshwright.cost.parts import MemoryPart, MemoryUse
from meshwright.view.terminal import text_of

LLAMA = {"layers": 32, "hidden": 4096, "ffn": 14336, "ffn_gated": True, "heads": 32,
         "kv_heads": 8, "head_dim": 128, "vocab": 128256, "seq": 8192}  # fmt: skip
ROW = {
    "id": "a", "group": "torchtitan", "model": LLAMA,
    "hardware": {"chip_id": "H100 SXM 80GB", "chips": 8}, "precision": "bf16",
    "parallelism": {"tp": 1, "fsdp": True}, "micro_batch": 1, "global_batch": 8,
    "measured": {"tokens_per_s": 1e5, "memory_bytes_per_chip": 5e10},
}  # fmt: skip


def row_of(**changes):
    return rows_of([ROW | changes])[0]


def source_row_of(**changes):
    return source_rows([ROW | changes])[0]


def predicted(**changes):
    (entry,) = predict([row_of(**changes)], "uncalibrated")
    return entry


PARTS = MemoryUse({part: 2.0**n for n, part in enumerate(MemoryPart)})


@pytest.mark.parametrize(
    ("counting", "left_out"),
    [
        (Counting.DEVICE, ["margin_bytes"]),
        (Counting.ALLOCATOR, ["margin_bytes", "buffers_bytes"]),
        (
            Counting.RESIDENT,
            ["margin_bytes", "buffers_bytes", "fragmentation_bytes", "temporary_bytes",
             "logits_bytes", "workspace_bytes",
             "gathered_bytes", "activations_bytes"],
        ),
        (
            Counting.TENSORS,
            ["margin_bytes", "buffers_bytes", "fragmentation_bytes", "temporary_bytes",
             "logits_bytes", "workspace_bytes",
             "gathered_bytes"],
        ),
    ],
)  # fmt: skip
def test_a_source_counts_some_parts(counting, left_out):
    memory = RowMemory(PARTS, counting, 1.0, 64.0, fits=True)
    assert memory.predicted_bytes == PARTS.total_bytes - sum(PARTS[n] for n in left_out)
    assert memory.log_error == pytest.approx(np.log(memory.predicted_bytes / 64.0))


def test_frameworks_say_what_their_users_count():
    assert predicted().memory.counting is Counting.ALLOCATOR
    plan = {"tp": 8, "pp": 1, "dp": 1}
    assert predicted(group="bigscience-a100", parallelism=plan).memory.counting is Counting.DEVICE
    figures = {"param_opt_bytes": 4e10, "activation_bytes": 1e10}
    analytic = predicted(task="memory", measured=figures).memory
    assert analytic.counting is Counting.TENSORS
    assert (analytic.measured_bytes, analytic.fits) == (5e10, None)


@pytest.mark.parametrize(("recompute", "fits"), [("none", False), (None, True), ("full", True)])
def test_a_row_that_does_not_say_what_it_recomputes_did_what_it_took(recompute, fits):
    """Eight sequences keep more than a chip has, unless layers are recomputed."""
    plan = {"tp": 4, "pp": 1, "dp": 2}
    changes = {"group": "nemo-24.07", "parallelism": plan, "micro_batch": 16, "global_batch": 32}
    assert predicted(**changes, recompute=recompute).fits is fits


def test_the_margin_of_plans_is_no_part_of_what_a_row_uses():
    memory = predicted().memory
    assert memory.use[MemoryPart.MARGIN] > 0
    assert memory.predicted_bytes < memory.use.total_bytes - memory.use[MemoryPart.MARGIN]


@pytest.mark.parametrize(
    ("plan", "batch", "expected"),
    [({"tp": 1, "pp": 2, "dp": 4}, 64, 8), ({"tp": 1, "pp": 2, "vpp": 2, "dp": 4}, 64, 4)],
)
def test_torchtitan_makes_as_many_micro_batches_as_stages(plan, batch, expected):
    asked = job_of(row_of(parallelism=plan, micro_batch=None, global_batch=batch), "uncalibrated")
    assert asked.strategy.micro_batch_size == expected


@pytest.mark.parametrize(
    ("date", "compiled", "tp", "copies"),
    [
        ("2024-12", True, 1, 2.0),
        ("2024-12", True, 2, 3.0),
        ("2025-06", True, 1, 1.0),
        (None, True, 1, 1.0),
        ("2025-06", False, 1, 2.0),
    ],
)
def test_torchtitan_compiles_its_loss_since_2025(date, compiled, tp, copies):
    row = row_of(
        date=date, software={"compile": compiled},
        parallelism={"tp": tp, "fsdp": True},
    )  # fmt: skip
    software = job_of(row, "uncalibrated").problem.workload.software
    assert software.logit_copies[tp > 1] == copies


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        ("fp16", "deepspeed-adam"),
        ("bf16 (fp32 grad accumulation)", "deepspeed-adam-fp32-gradients"),
    ],
)
def test_deepspeed_sums_in_fp32_where_it_says_so(precision, name):
    row = row_of(group="bigscience-a100", precision=precision, parallelism={"tp": 8})
    asked = job_of(row, "uncalibrated")
    assert asked.row.framework == "megatron-deepspeed"
    assert asked.problem.workload.optimizer.name == name


TRUE = np.array([1.12, 1.5 * GIB, 0.8 * GIB])


def made(seed=0):
    """Rows of two sources whose memory follows known constants; one contradicts the others."""
    rng = np.random.default_rng(seed)
    order = np.arange(60)
    is_device = order % 2
    tensors = rng.uniform(20, 60, 60) * GIB
    multiples = np.column_stack([tensors, is_device, is_device * (1 + order % 3)])
    measured = multiples @ TRUE * np.exp(rng.normal(0, 0.01, 60))
    measured[0] *= 1.6
    return MemoryRows(tuple("ab"[n % 2] for n in range(60)), multiples, measured)


def test_constants_come_back_out_of_made_rows():
    found = fit_memory(made())
    assert found.values[0] == pytest.approx(TRUE[0], abs=0.01)
    assert found.values[2] == pytest.approx(TRUE[2], abs=0.2 * GIB)
    assert np.median(np.abs(found.errors)) < 0.01
    assert np.median(found.errors) >= 0.0
    for one in constants_of_memory(found):
        assert one.low <= one.value <= one.high, one.name


def test_a_source_left_out_is_predicted_by_the_others():
    rows = made()
    found = fit_memory(rows)
    is_b = np.array(rows.groups) == "b"
    alone = fit_memory(rows.taken(~is_b))
    assert np.allclose(found.left_out_errors[is_b], rows.taken(is_b).log_errors(alone.values))
    assert np.isnan(alone.left_out_errors).all()
    # rows that count no runtime leave its constants at what is expected of them
    assert alone.values[1:] == pytest.approx(PRIOR[1:])


def test_no_row_no_fit():
    assert fit_memory(memory_rows([])) is None
    assert memory_error_record(np.array([])).median is None


def test_rows_are_multiples_of_the_constants():
    entry = predicted(group="bigscience-a100", parallelism={"tp": 4, "pp": 1, "dp": 2})
    use, rows = entry.memory.use, memory_rows([entry])
    assert rows.multiples.tolist() == [
        [use.allocator_bytes / entry.job.problem.calibration.allocator_factor, 1.0, 2.0]
    ]
    assert rows.measured_bytes.tolist() == [5e10]


def test_memory_is_told_by_source_with_its_worst_rows_and_its_parts():
    entries = predict([row_of(), row_of(id="b", task="oom")], "uncalibrated")
    page = Validation(tuple(entries), "uncalibrated").page()
    lines = text_of(page, detail=True).splitlines()
    assert any("torchtitan" in line for line in lines)
    assert any("Wrongly predicted to fit" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)
    data = plain_data(Validation(tuple(entries), "uncalibrated").memory)
    assert data["overall"]["rows"] == data["groups"]["torchtitan"]["rows"] == 2
    parts = data["rows"][0]["parts_bytes"]
    assert set(parts) == set(MemoryPart)
    whole = PARTS.plus(parts)
    assert data["rows"][0]["predicted_bytes"] == pytest.approx(whole.allocator_bytes)


MEGATRON = {"group": "megatron-lm", "features": {"transformer-impl": "transformer_engine"},
            "parallelism": {"tp": 1, "pp": 4, "dp": 2}, "global_batch": 8}  # fmt: skip


def test_megatron_logs_the_last_stage():
    """One micro-batch in flight there, four in the first; the logits are there."""
    logged = {"memory_bytes_per_chip": 5e10, "memory_metric": "mem-max-allocated-bytes"}
    memory = predicted(**MEGATRON, measured=logged).memory
    assert memory.counting is Counting.ALLOCATED
    first, last = memory.use[MemoryPart.ACTIVATIONS], memory.counted_use[MemoryPart.ACTIVATIONS]
    assert last == pytest.approx(first / 4, rel=0.02)  # the first stage has the embedding
    between = {"memory_bytes_per_chip": 5e10, "memory_metric": "mem-allocated-bytes"}
    assert predicted(**MEGATRON, measured=between).memory.counting is Counting.RESIDENT
    alone = predicted(**MEGATRON | {"parallelism": {"dp": 8}}, measured=logged).memory
    assert alone.stated_use is None


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("selective: layernorm, moe", ("selective", ("layernorm", "moe"), ())),
        ("custom offload: decoder_layer_input,query_proj",
         ("selective", (), ("decoder_layer_input", "query_proj"))),
        ("qkv_proj_offloaded", ("selective", (), ("query_proj", "key_proj", "value_proj"))),
        ("custom", ("full", (), ())), ("full", ("full", (), ())), (None, (None, (), ())),
    ],
)  # fmt: skip
def test_words_of_recomputation(words, fields):
    row = source_row_of(recompute=words)
    assert (row.recompute, row.recompute_modules, row.offloaded_tensors) == fields


UNEVEN = {"decoder-first-pipeline-num-layers": 4, "decoder-last-pipeline-num-layers": 8}
"""Of 32 layers 10 are left for each of two stages: 6 and 2 more than the ends have."""


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"parallelism": {"fsdp": True, "zero_stage": 1}}, "zero_stage", 3),
        ({"parallelism": {"fsdp": True, "raw": {"ici_fsdp_parallelism": "256",
                                                "dcn_fsdp_parallelism": "2"}}}, "dp_shard", 512),
        ({"parallelism": {"dp": 8}, "features": {"num-distributed-optimizer-instances": 2}},
         "dp_shard", 4),
        ({"features": {"ASYM_PP_EMBED": "True"}}, "embedding_layers", 1),
        ({"features": {"ASYM_PP_LOSS": "True"}}, "head_layers", 1),
        ({"parallelism": {"pp": 4}, "features": UNEVEN}, "embedding_layers", 6),
        ({"parallelism": {"pp": 4}, "features": UNEVEN}, "head_layers", 2),
    ],
)  # fmt: skip
def test_words_of_a_plan(changes, field, value):
    assert getattr(source_row_of(**changes).parallelism, field) == value


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"group": "other", "parallelism": {}, "precision": "fp16 O2"}, "optimizer",
         "adam-amp-o2"),
        ({"precision": "FP8 (TransformerEngine)", "task": "finetune-lora"}, "optimizer",
         "adapters-fp8"),
        ({"group": "other", "parallelism": {}, "precision": "FP8 (TransformerEngine)"},
         "keeps_cast_inputs", True),
        ({"features": {"FP8_ACT": "1"}}, "narrow_activation_inputs", True),
        ({"features": {"FP8_PARAM_GATHER": "True"}}, "narrow_parameters", True),
        (MEGATRON, "dropout", True),
        ({"features": MEGATRON["features"] | {"attention-dropout": 0, "hidden-dropout": 0}},
         "dropout", False),
        ({"features": {"deterministic-mode": True}}, "deterministic", True),
        ({"features": {"cross-entropy-loss-fusion": True}}, "compiled_loss", True),
    ],
)  # fmt: skip
def test_words_of_what_software_keeps(changes, field, value):
    assert getattr(source_row_of(**changes).software, field) == value


@pytest.mark.parametrize(
    ("changes", "fused"),
    [
        ({"date": "2024-01", "chip": "A100 SXM 80GB"}, False),
        ({"date": "2024-01", "chip": "H100 SXM 80GB"}, None),
        ({"date": "2025-09", "chip": "A100 SXM 80GB"}, None),
        ({"chip": "A100 SXM 80GB"}, None),
        ({"date": "2024-01", "chip": "A100 SXM 80GB", "flash_attention": True}, True),
        ({"date": "2024-01", "chip": "A100 SXM 80GB", "features": {}}, None),
        ({"chip": "A100 SXM 80GB", "features": {"transformer-impl": "local"}}, False),
    ],
)
def test_the_same_bits_each_time_took_materialised_scores_once(changes, fused):
    features = {"deterministic-mode": True, "transformer-impl": "transformer_engine"}
    hardware = {"chip_id": changes.pop("chip"), "chips": 8}
    row = source_row_of(**{"features": features, "hardware": hardware} | changes)
    assert row.flash_attention is fused


def test_a_loss_made_in_place_holds_one_more_copy_where_it_is_compiled():
    features = MEGATRON["features"] | {"cross-entropy-loss-fusion": True}
    plain, compiled = (
        job_of(row_of(**MEGATRON | changes), "uncalibrated").problem.workload.software
        for changes in ({}, {"features": features})
    )
    assert compiled.logit_copies[0] == plain.logit_copies[0] + 1.0 == 1.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [("fp32 (TF32 peak 495)", "fp32"), ("tf32", "fp32"), ("bf16 (fp32 grad accumulation)", "bf16")],
)
def test_precision_may_be_followed_by_a_remark(text, expected):
    assert source_row_of(precision=text).precision.activation == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/llama2_7b-deepspeed/README.md", "deepspeed"), ("a/n64_nemo/x.txt", "megatron-bridge"),
     ("a/aquila2_7b-flagscale/README.md", "megatron"),
     ("a/llama3_8B-megatron/README.md", "megatron"), ("a/n1_pytorch/x.txt", None)],
)  # fmt: skip
def test_a_folder_names_the_framework(path, name):
    row = source_row_of(group="other", parallelism={"tp": 1}, source={"repo": "a/b", "path": path})
    assert row.framework == name


def test_weights_in_8_bits_have_a_transposed_copy_on_hopper():
    """8.03e9 parameters on one device, in the place of those in 16 bits."""
    changes = {"group": "nemo", "parallelism": {"tp": 1}, "features": {"FP8_PARAMS": "True"},
               "precision": "FP8 (TransformerEngine)"}  # fmt: skip
    chips = ("H100 SXM 80GB", "B200 SXM")
    held = [
        predicted(**changes, hardware={"chip_id": chip, "chips": 8}).memory.use for chip in chips
    ]
    assert held[0][MemoryPart.WEIGHTS] == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert held[1][MemoryPart.WEIGHTS] == pytest.approx(8.03e9, rel=1e-3)


def test_experts_of_megatron_are_split_over_tp_unless_it_says_otherwise():
    """Its expert_tensor_parallel_size is tp where it is left out."""
    experts = LLAMA | {"n_experts": 8, "topk": 2, "moe_ffn": 14336, "vocab": 32000}
    for etp, name, expected in ((None, "megatron-lm", 4), (1, "megatron-lm", 1), (None, "nemo", 1)):
        plan = {"tp": 4, "dp": 2, "ep": 1, "etp": etp}
        row = row_of(**MEGATRON | {"group": name, "parallelism": plan}, model=experts)
        assert job_of(row, "uncalibrated").strategy.etp == expected
