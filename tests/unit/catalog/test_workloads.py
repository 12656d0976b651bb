"""Optimizer presets and workload files."""

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.workloads import load_optimizer, load_workload, optimizer_names
from meshwright.spec.workload import Decode, Prefill, Training


@pytest.mark.parametrize(
    ("name", "resident", "travelling"),
    [
        # weights + gradients + state, and gathered weight + reduced gradient [bytes/parameter]
        ("megatron-adam", 2 + 4 + 12, 2 + 4),
        ("megatron-adam-bf16-gradients", 2 + 2 + 12, 2 + 2),
        ("adam-bf16-moments", 2 + 4 + 8, 2 + 4),
        ("fsdp-mixed", 4 + 4 + 8, 2 + 4),
        ("fsdp-mixed-bf16-reduce", 4 + 4 + 8, 2 + 2),
        ("megatron-adam-fp16", 2 + 4 + 12, 2 + 2),
        ("deepspeed-adam", 16, 4),
        ("deepspeed-adam-fp32-gradients", 2 + 6 + 12, 2 + 4),
        ("temp-12", 12, 4),
    ],
)
def test_bytes_of_the_frameworks(name, resident, travelling):
    preset = load_optimizer(name)
    kept = preset.weight_bytes_per_param + preset.gradient_bytes_per_param
    assert kept + preset.state_bytes_per_param == resident
    sent = preset.gathered_weight_bytes_per_param + preset.reduced_gradient_bytes_per_param
    assert sent == travelling


@pytest.mark.parametrize("name", optimizer_names())
def test_each_preset_is_named_and_cited(name):
    preset = load_optimizer(name)
    assert preset.name == name
    assert preset.source
    # an optimizer step reads and writes at least what it keeps, state both ways
    assert preset.step_traffic_bytes_per_param >= 2 * preset.state_bytes_per_param


def test_unknown_optimizer():
    with pytest.raises(UnknownNameError, match="did you mean megatron-adam"):
        load_optimizer("megatron-adm")


TRAINING = """\
kind: training
global_batch_size: 1024
sequence_length: 8192
optimizer: fsdp-mixed
precision: {matmul: fp8}
software: {framework: torchtitan, compiled: true}
total_tokens: 15e12
"""


def test_workload_files(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(TRAINING)
    training = load_workload(path)
    assert isinstance(training, Training)
    assert training.optimizer == load_optimizer("fsdp-mixed")
    assert training.tokens_per_step == 1024 * 8192
    path.write_text(
        "kind: prefill\nbatch_size: 4\nprompt_length: 2048\nmax_time_to_first_token: 500 ms\n"
    )
    prefill = load_workload(path)
    assert isinstance(prefill, Prefill)
    assert prefill.max_time_to_first_token_s == 0.5
    path.write_text("kind: decode\nbatch_size: 4\ncontext_length: 2048\n")
    assert isinstance(load_workload(path), Decode)


@pytest.mark.parametrize(
    ("old", "new", "path", "part"),
    [
        ("training", "trainnig", "kind", "expected one of training, prefill, decode"),
        ("fsdp-mixed", "fsdp-mix", "optimizer", "did you mean fsdp-mixed"),
        ("1024", "0", "global_batch_size", "larger than 0"),
        ("true", "1", "software.compiled", "true or false"),
        ("fp8", "fp9", "precision.matmul", "did you mean fp8"),
        ("sequence_length", "seq", "sequence_length", "missing"),
    ],
)
def test_faults_of_workloads(tmp_path, old, new, path, part):
    file = tmp_path / "w.yaml"
    file.write_text(TRAINING.replace(old, new, 1))
    with pytest.raises(SpecError) as raised:
        load_workload(file)
    faults = {fault.path: str(fault) for fault in raised.value.faults}
    assert part in faults[path]
