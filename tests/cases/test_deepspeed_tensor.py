"""Tensor parallelism of DeepSpeed: jobs that it runs are read, and plans with it are written.

Fields are those of DeepSpeed 0.19, ``runtime/tensor_parallel/config.py``; the files are ours.
"""

import json

import pytest

from meshwright.base.errors import SpecError
from meshwright.frameworks.reading.files import read_job

JOB = {
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
}  # fmt: skip


def read(folder, **fields):
    path = folder / "ds.json"
    path.write_text(json.dumps(JOB | fields))
    return read_job([path], num_devices=lambda: 8).options


def test_ranks_that_split_layers_share_a_batch(tmp_path):
    split = {"autotp_size": 4, "preset_model": "llama", "tp_overlap_comm": False}
    found = read(tmp_path, tensor_parallel=split, data_parallel_size=2, train_batch_size=8)
    # 8 devices / tp 4 = 2 copies, each 4 micro-batches of 1
    assert {name: found[name] for name in ("tp", "dp", "global_batch", "micro_batch_size")} == {
        "tp": 4, "dp": 2, "global_batch": 8, "micro_batch_size": 1,
    }  # fmt: skip


def test_leaf_modules_change_no_price(tmp_path):
    leaves = {"classes": ["transformers.models.mixtral.MixtralSparseMoeBlock"]}
    assert (
        read(tmp_path, zero_optimization={"stage": 3, "leaf_module": leaves})["zero_stage"] == "3"
    )


@pytest.mark.parametrize(
    ("zero", "fault"),
    [
        ({"zero_hpz_partition_size": 8}, "second copy of the weights"),
        ({"mics_shard_size": 8, "mics_hierarchical_params_gather": True}, "replicas of shards"),
    ],
)
def test_shards_that_are_not_priced_are_one_fault(tmp_path, zero, fault):
    with pytest.raises(SpecError, match=fault) as caught:
        read(tmp_path, zero_optimization={"stage": 3} | zero)
    assert len(caught.value.faults) == 1
