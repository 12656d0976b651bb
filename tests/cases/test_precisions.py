"""FP32 and TF32: on every chip that states a rate, and by the switch of each framework."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_chip
from meshwright.frameworks.registry import export

JOB = {"seq": 1024, "global_batch": 64}

RATES = {
    # data sheet of the A100: 156 with tensor cores in TF32, 19.5 in FP32
    "A100": (156e12, 19.5e12),
    # AWS Neuron documentation, architecture of Trainium2
    "Trainium2": (667e12, 181e12),
    # JAX, jax.lax.Precision: three products in bf16 for 'high', six for 'highest'
    "TPU-v5p": (459e12 / 3, 459e12 / 6),
    # PyTorch, set_float32_matmul_precision: without tensor cores for it, TF32 is FP32
    "V100": (15.7e12, 15.7e12),
    # CDNA 2 white paper: matrix cores in FP32, no TF32
    "MI250X": (95.7e12, 95.7e12),
}


@pytest.mark.parametrize("name", RATES)
def test_products_have_the_rate_of_the_data_sheet(name):
    chip = load_chip(name)
    found = chip.product_flops_per_s("tf32"), chip.product_flops_per_s("fp32")
    assert found == pytest.approx(RATES[name], rel=1e-3)


@pytest.mark.parametrize("chip", ["Gaudi2", "Gaudi3", "Trainium1", "WSE-2", "Dojo-tile", "T4"])
def test_a_job_runs_in_both(chip):
    wide, narrow = (
        mw.estimate("gpt2", on=f"1x{chip}", precision=name, **JOB).best.estimate
        for name in ("fp32", "tf32")
    )
    assert wide.step_time_s >= narrow.step_time_s > 0.0


@pytest.mark.parametrize("chip", ["SN40L", "Groq-LPU"])
def test_a_chip_that_states_no_rate_says_what_it_has(chip):
    with pytest.raises(SpecError, match="has no rate for fp32") as error:
        mw.estimate("gpt2", on=f"8x{chip}", precision="fp32", **JOB)
    (fault,) = error.value.faults
    assert "--precision" in fault.fix


SWITCHES = {
    # transformers 5, TrainingArguments.tf32
    "accelerate": ("--tf32 true", "accelerate"),
    "deepspeed": ("--tf32 true", "deepspeed"),
    # axolotl 0.19, utils/schemas/config.py
    "axolotl": ("tf32: true", "accelerate"),
    # PyTorch, notes/cuda.rst
    "torchtitan": ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1", "torchtitan"),
    "torch": ('set_float32_matmul_precision("high")', "fsdp"),
    # JAX, default_matmul_precision; MaxText, configs/base.yml
    "maxtext": ("matmul_precision=high ", "maxtext"),
}


@pytest.mark.parametrize("target", SWITCHES)
def test_tf32_is_a_switch_that_is_written_and_read(target, tmp_path):
    words, framework = SWITCHES[target]
    asked = {"on": "8xH100", "seq": 4096, "global_batch": 64, "framework": framework}
    for name in ("tf32", "fp32"):
        plan = mw.estimate("llama3.2-1b", precision=name, **asked)
        assert plan.workload.optimizer.name.endswith("adam-fp32")  # weights are the master copy
        paths = [str(path) for path in export(plan, target, tmp_path / name)]
        text = "".join(Path(path).read_text("utf-8") for path in paths)
        assert (words in text) == (name == "tf32")
        model = [] if target in OWN_MODEL else ["llama3.2-1b"]
        again = mw.estimate(*model, from_=paths, on="8xH100")
        assert again.workload.precision.matmul == name


OWN_MODEL = ("axolotl", "torchtitan", "maxtext")
"""Targets whose files name the model."""


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        # Transformer Engine 2, common/gemm/cublaslt_gemm.cu: pure FP32 products are in TF32
        ("", "tf32"),
        ("--transformer-impl local", "fp32"),
        ("--bf16", "bf16"),
    ],
)
def test_megatron_without_a_type_computes_in_tf32(more, precision, tmp_path):
    text = (Path(__file__).parent / "train" / "megatron_ranks.sh").read_text("utf-8")
    (tmp_path / "job.sh").write_text(text.replace("--bf16", more), "utf-8")
    stated = ["MORE=", "RANKS=8", "TP=2"]
    plan = mw.estimate(from_=str(tmp_path / "job.sh"), on="8xH100", set=stated)
    assert plan.workload.precision.matmul == precision
