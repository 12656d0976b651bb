"""Names of checkpoints and options: what they stand for."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.frameworks.reading.files import read_job
from meshwright.frameworks.reading.models import known_model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama3.1-405b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "llama3.3-70b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("/models/Qwen2.5-32B-Instruct/", "qwen2.5-32b"),
        ("someone/Unknown-9B-Instruct", None),
    ],
)
def test_a_tuned_checkpoint_has_the_dims_of_its_base(name, expected):
    assert getattr(known_model(name), "name", None) == expected


def read(tmp_path, text):
    path = tmp_path / "start.sh"
    path.write_text(text)
    return read_job([path])


def test_a_checkpoint_in_a_narrow_type_says_so_in_its_name(tmp_path):
    text = "trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --tp_size 2 --max_batch_size 8"
    stored = read(tmp_path, text).options["model"].weight_format
    assert (stored.bytes_per_weight, stored.matmul) == (1.0, "fp8")


@pytest.mark.parametrize("command", [
    "vllm serve Qwen/Qwen2.5-32B --data-parallel-size 4 --max-num-seqs 16 --max-model-len 4096",
    "python -m sglang.launch_server --model-path Qwen/Qwen2.5-32B --dp 4 --context-length 4096"
    " --max-running-requests 16",
])  # fmt: skip
def test_each_rank_that_holds_data_has_the_batch_that_is_stated(tmp_path, command):
    options = read(tmp_path, command).options
    assert (options["dp"], options["batch"]) == (4, 64)


def test_a_fault_does_not_hide_behind_names_of_a_model(tmp_path):
    with pytest.raises(SpecError) as caught:
        read(tmp_path, "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size $H"
             " --swiglu --normalization RMSNorm --tensor-model-parallel-size 2")  # fmt: skip
    assert [fault.path for fault in caught.value.faults] == ["--hidden-size"]


def test_options_that_are_not_alike_are_not_suggested(tmp_path):
    with pytest.raises(SpecError) as caught:
        read(tmp_path, "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --teed 3")
    assert [fault.fix for fault in caught.value.faults] == [""]
