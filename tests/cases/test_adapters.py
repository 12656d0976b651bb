"""Adapters of low rank: what they add to a price, and files of four programs that train them."""

import pytest
import yaml

import meshwright as mw
from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.catalog.models import load_model
from meshwright.frameworks.reading.files import read_job
from meshwright.frameworks.registry import export
from meshwright.graph.parameters import adapter_parameters, num_adapter_params
from meshwright.spec.workload import Adapters

ASKED = {"seq": 4096, "global_batch": 64, "optimizer": "adapters"}
PLAN = {**ASKED, "simulated": 0}


def test_parameters_of_one_adapter_by_hand():
    assert adapter_parameters(16, 4096, 1024) == 16 * 5120 == 81_920


def test_parameters_of_llama3_8b_by_hand():
    # a layer: q and o 2 x 8192, k and v 2 x 5120, three products of 4096 + 14336
    each = 2 * 8192 + 2 * 5120 + 3 * 18_432
    every = Adapters(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"))
    assert num_adapter_params(load_model("llama3-8b"), every) == 32 * 16 * each == 41_943_040
    some = Adapters(rank=8, targets=("q", "v"))
    assert num_adapter_params(load_model("llama3-8b"), some) == 32 * 8 * (8192 + 5120)


def test_rank_reaches_the_memory_and_the_time():
    def best(**more):
        return mw.estimate("llama3-8b", on="8xH100", dp=8, zero=0, framework="accelerate",
                           **ASKED | more).best.estimate  # fmt: skip

    without, narrow, wide = best(), best(lora_rank=8), best(lora_rank=64)
    # FP32 weights, gradients with their buckets under DistributedDataParallel, and two moments: 20
    # bytes of each of 8 x 2,621,440 parameters a rank
    parts = (without.memory_parts_bytes, wide.memory_parts_bytes)
    held = [sum(one[name] for name in ("weights_bytes", "gradients_bytes", "states_bytes"))
            for one in parts]  # fmt: skip
    assert held[1] - held[0] == pytest.approx(20 * 64 * 2_621_440, rel=1e-6)
    # products of networks keep what their adapters read
    few = best(lora_rank=8, lora_targets="attention").memory_most_bytes["activations_bytes"]
    assert few == without.memory_most_bytes["activations_bytes"]
    assert narrow.memory_most_bytes["activations_bytes"] > few
    assert without.step_time_s < narrow.step_time_s < wide.step_time_s


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"optimizer": "adam-bf16", "lora_rank": 16}, "--optimizer adapters"),
        ({"optimizer": None, "lora_rank": 16}, "--optimizer adapters"),
        ({"lora_targets": "q+v"}, "--with lora_rank"),
        ({"lora_rank": 0}, "from 1 to 65536"),
        ({"lora_rank": 16, "lora_targets": "q+w"}, "--with lora_targets"),
        ({"lora_rank": 16, "framework": "torchtitan"}, "accelerate"),
        ({"framework": "megatron"}, "trains no adapters"),
    ],
)
def test_what_trains_no_adapters_is_refused_with_what_does(options, word):
    with pytest.raises(SpecError, match=word):
        mw.plan("llama3-8b", on="8xH100", **PLAN | options)


def test_frameworks_without_adapters_are_not_named():
    plan = mw.plan("llama3-8b", on="8xH100", lora_rank=16, **PLAN)
    assert plan.best.launches_with
    assert not {"megatron", "torchtitan", "fsdp", "megatron-deepspeed"} & set(
        plan.best.launches_with
    )


@pytest.mark.parametrize(
    ("target", "framework", "more"),
    [
        ("accelerate", "accelerate", {}),
        ("accelerate", "accelerate", {"lora_targets": "q+v", "zero": 3}),
        ("accelerate", "accelerate", {"weights": "nf4"}),
        ("deepspeed", "deepspeed", {"lora_targets": "attention"}),
        ("axolotl", "accelerate", {"lora_targets": "mlp"}),
        ("axolotl", "accelerate", {"zero": 3, "recompute": "full"}),
        ("axolotl", "accelerate", {"weights": "nf4-double", "lora_targets": "q+v"}),
        ("megatron-bridge", "megatron-bridge", {"lora_targets": "q+v"}),
        ("torchtune", "accelerate", {"zero": 3, "lora_targets": "q+v+mlp"}),
    ],
)
def test_adapters_come_back_from_files(tmp_path, target, framework, more):
    plan = mw.plan("llama3-8b", on="16xH100", framework=framework, lora_rank=16, **PLAN | more)
    files = [str(path) for path in export(plan, target, tmp_path)]
    beside = {"seq": 4096} if target in ("accelerate", "deepspeed") else {}
    again = mw.estimate("llama3-8b", from_=files, on="16xH100", **beside)
    assert again.workload.adapters == plan.workload.adapters
    assert again.best.text == plan.best.text
    assert again.best.estimate.step_time_s == plan.best.estimate.step_time_s
    assert again.best.estimate.memory_bytes == plan.best.estimate.memory_bytes


def test_axolotl_writes_what_its_schema_has(tmp_path):
    plan = mw.plan("llama3-8b", on="16xH100", framework="accelerate", lora_rank=32, zero=3,
                   lora_targets="q+v", **PLAN)  # fmt: skip
    (path,) = export(plan, "axolotl", tmp_path)
    found = yaml.safe_load(path.read_text())
    assert found["adapter"], found["lora_r"] == ("lora", 32)
    assert found["lora_target_modules"] == ["q_proj", "v_proj"]
    assert found["fsdp_version"] == 2


def test_without_a_rank_the_usual_one_is_written_and_said(tmp_path):
    plan = mw.plan("llama3-8b", on="8xH100", framework="accelerate", **PLAN)
    script = export(plan, "accelerate", tmp_path)[0].read_text()
    assert "--lora_r 16" in script
    assert "the plan states no rank, and its price leaves adapters out: 16 here" in script


@pytest.mark.parametrize(
    ("target", "more", "word"),
    [
        ("torchtune", {"zero": 0}, "FSDP2"),
        ("torchtune", {"zero": 3, "lora_targets": "gate"}, "on all of their products"),
        ("megatron", {"zero": 3}, "trains no adapters"),
        ("torchtitan", {"zero": 3}, "trains no adapters"),
        ("torch", {"zero": 3}, "trains no adapters"),
    ],
)
def test_what_a_target_cannot_say_of_adapters_is_refused(tmp_path, target, more, word):
    plan = mw.plan("llama3-8b", on="8xH100", framework="accelerate", lora_rank=16, **PLAN | more)
    with pytest.raises(UnsupportedError, match=word):
        export(plan, target, tmp_path)


@pytest.mark.parametrize(
    ("tree", "rank", "targets"),
    [
        ({"adapter": "lora", "lora_r": 32, "lora_target_linear": True}, 32, "q+k+v+o+gate+up+down"),
        ({"adapter": "lora", "lora_r": 8, "lora_target_modules": ["q_proj", "gate_proj"]}, 8,
         "q+gate"),
        ({"adapter": "lora", "lora_r": 8, "lora_target_modules":
          r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj"}, 8,
         "q+k+v+o+gate+up+down"),
        ({"adapter": "lora", "lora_r": 8, "lora_target_modules": "all-linear"}, 8,
         "q+k+v+o+gate+up+down"),
    ],
)  # fmt: skip
def test_adapters_of_axolotl_are_read(tmp_path, tree, rank, targets):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(
        {"base_model": "Qwen/Qwen2.5-7B", "sequence_len": 4096, "micro_batch_size": 1,
         "gradient_accumulation_steps": 4, "bf16": True, **tree}))  # fmt: skip
    found = read_job([tmp_path / "a.yaml"], num_devices=lambda: 8).options
    assert (found["lora_rank"], found["lora_targets"]) == (rank, targets)


def test_adapters_of_other_modules_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(
        {"base_model": "Qwen/Qwen2.5-7B", "sequence_len": 4096, "micro_batch_size": 1,
         "gradient_accumulation_steps": 4, "bf16": True, "adapter": "lora", "lora_r": 8,
         "lora_target_modules": ["embed_tokens"]}))  # fmt: skip
    with pytest.raises(SpecError, match="embed_tokens"):
        read_job([tmp_path / "a.yaml"], num_devices=lambda: 8)


@pytest.mark.parametrize(
    ("component", "more", "word"),
    [
        ("torchtune.models.llama3_1.lora_llama3_1_8b", {"tasks": ["mmlu"]}, "trains nothing"),
        ("torchtune.models.llama3_1.lora_llama3_1_8b", {"tensor_parallel_dim": 2}, "parallelism"),
    ],
)
def test_what_torchtune_does_and_no_price_shows_is_one_fault(tmp_path, component, more, word):
    tree = {"model": {"_component_": component, "lora_rank": 8, "lora_attn_modules": ["q_proj"]},
            "batch_size": 1, "gradient_accumulation_steps": 4, "dtype": "bf16", **more}  # fmt: skip
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(SpecError, match=word) as caught:
        read_job([tmp_path / "t.yaml"], num_devices=lambda: 8)
    assert len(caught.value.faults) == 1


def test_torchtune_reads_nf4_and_what_the_optimizer_keeps(tmp_path):
    """torchtune 0.6.1: ``models/*/qlora_*`` are NF4 of torchao with 8-bit scales;
    ``create_optim_in_bwd_wrapper`` frees each gradient once its weight is updated.

    8-bit AdamW of bitsandbytes: two bytes, and an FP32 scale for 256 numbers of each moment.
    """
    base = {"tokenizer": {"max_seq_len": 2048}, "batch_size": 2, "dtype": "bf16"}

    def options(component, **more):
        tree = {"model": {"_component_": f"torchtune.models.llama3_1.{component}"}, **base, **more}
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(tree))
        return read_job([tmp_path / "t.yaml"], num_devices=lambda: 1).options

    assert options("qlora_llama3_1_8b")["weights"] == "nf4-double"
    assert options("llama3_1_8b")["optimizer"] == "adam-bf16"
    narrow = options(
        "llama3_1_8b", optimizer={"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
        optimizer_in_bwd=True,
    )["optimizer"]  # fmt: skip
    assert narrow.state_bytes_per_param == pytest.approx(2 * (1 + 4 / 256))
    assert narrow.gradient_bytes_per_param == pytest.approx(2 / 32)  # one layer of 32


def test_a_configuration_of_torchtune_is_read(tmp_path):
    tree = {"model": {"_component_": "torchtune.models.qwen2_5.lora_qwen2_5_7b_base",
                      "lora_rank": 8, "lora_attn_modules": ["q_proj", "output_proj"],
                      "apply_lora_to_mlp": True},
            "tokenizer": {"max_seq_len": 2048}, "batch_size": 2, "dtype": "bf16",
            "gradient_accumulation_steps": 4, "enable_activation_checkpointing": True}  # fmt: skip
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(tree))
    found = read_job([tmp_path / "t.yaml"], num_devices=lambda: 8).options
    assert (found["model"], found["global_batch"], found["seq"]) == ("qwen2.5-7b", 64, 2048)
    assert (found["lora_rank"], found["lora_targets"]) == (8, "q+o+mlp")
    assert (found["zero_stage"], found["recompute"]) == ("3", "full")


def test_a_shipped_configuration_says_what_it_leaves_open(tmp_path):
    (tmp_path / "t.sh").write_text(
        "tune run --nproc_per_node 8 lora_finetune_distributed --config llama3_1/8B_lora\n"
    )
    with pytest.raises(SpecError, match="tune cp"):
        read_job([tmp_path / "t.sh"], num_devices=lambda: 8)
