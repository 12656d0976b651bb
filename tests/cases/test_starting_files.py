"""Files with which jobs are started elsewhere: read whole, or refused by the program's name.

Names and values of options are those of axolotl 0.19.0 (``src/axolotl/utils/schemas``) and of
LLaMA-Factory 0.9.5 (``src/llamafactory/hparams``); the files are ours.
"""

import json
from pathlib import Path

import pytest
import yaml

from meshwright.base.errors import SpecError
from meshwright.catalog.models import load_model
from meshwright.frameworks.reading.files import read_job
from meshwright.graph.parameters import count_parameters

JOBS = Path(__file__).parents[1] / "data" / "jobs"
AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-7B", "sequence_len": 4096, "micro_batch_size": 1,
    "gradient_accumulation_steps": 4, "optimizer": "adamw_torch_fused", "bf16": True,
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "Qwen/Qwen2.5-7B", "stage": "sft", "do_train": True,
    "finetuning_type": "full", "cutoff_len": 2048, "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2, "bf16": True,
}  # fmt: skip


def job_of(folder, tree, name="job.yaml", devices=8):
    path = folder / name
    path.write_text(yaml.safe_dump(tree))
    return read_job([path], num_devices=lambda: devices)


def faults_of(folder, tree):
    with pytest.raises(SpecError) as caught:
        job_of(folder, tree)
    return caught.value.faults


AXOLOTL_READ = {
    # a key without a value leaves the program at its default
    "key without value": (
        {"adapter": "lora", "lora_model_dir": None},
        {"optimizer": "adapters", "micro_batch_size": 1}),
    # Pydantic: batch_size of a device and step, of which accumulation follows (normalize_config)
    "batch_size": (
        {"batch_size": 6, "micro_batch_size": 2, "gradient_accumulation_steps": None},
        {"global_batch": 48, "micro_batch_size": 2}),
    # _set_quantization_config: 4 bits of qlora are NF4 with scales quantized again
    "qlora": ({"adapter": "qlora", "load_in_4bit": True}, {"weights": "nf4-double"}),
    "one scale": (
        {"adapter": "qlora", "load_in_4bit": True,
         "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}, {"weights": "nf4"}),
    # resolve_dtype: weights rest in the type of training, so moments do; FSDP2 widens them
    "ddp": ({}, {"optimizer": "adam-bf16", "zero_stage": "0"}),
    "fsdp": ({"fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True}},
             {"optimizer": None, "zero_stage": "3"}),
    # CutCrossEntropyArgs: on wherever its plugin is named
    "plugin": ({"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]},
               {"software": {"loss": "cut"}}),
    "plugin off": (
        {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"],
         "cut_cross_entropy": False}, {"software": {}}),
    "context": ({"sequence_parallel_degree": 2,
                 "fsdp_config": {"fsdp_version": 2}}, {"cp": 2, "global_batch": 16}),
    "without effect": (
        {"eot_tokens": ["<|im_end|>"], "processor_type": "AutoProcessor",
         "loss_watchdog_patience": 3,
         "special_tokens": {"pad_token": "<pad>"}, "skip_prepare_dataset": True,
         "torchdistx_path": None, "evals_per_epoch": 4, "wandb_project": None},
        {"global_batch": 32}),
}  # fmt: skip


@pytest.mark.parametrize("name", AXOLOTL_READ)
def test_axolotl_is_read(tmp_path, name):
    added, stated = AXOLOTL_READ[name]
    job = job_of(tmp_path, AXOLOTL | added)
    assert {key: job.options.get(key) for key in stated} == stated


@pytest.mark.parametrize(
    ("added", "word"),
    [
        ({"rl": "dpo"}, "preferences"),
        ({"qat": {"weight_dtype": "int4", "group_size": 32}}, "rounded"),
        ({"unfrozen_parameters": ["lm_head"]}, "some weights"),
        ({"gradient_checkpointing": "offload"}, "host"),
        ({"expert_parallel_size": 4}, "expert parallelism"),
        ({"lora_modules_to_save": ["embed_tokens"], "adapter": "lora"}, "whole"),
        ({"optimizer": "muon"}, "is not read"),
    ],
)
def test_what_axolotl_does_and_no_price_shows_is_one_fault(tmp_path, added, word):
    faults = faults_of(tmp_path, AXOLOTL | added)
    assert len(faults) == 1
    assert word in str(faults[0])
    assert faults[0].fix


FACTORY_READ = {
    "share of the data for validation": ({"val_size": 0.1}, {"seq": 2048, "global_batch": 16}),
    # parser.py: checkpoints are on unless they are disabled
    "checkpoints": ({}, {"recompute": "full"}),
    "no checkpoints": ({"disable_gradient_checkpointing": True}, {"recompute": "none"}),
    # FinetuningArguments.finetuning_type: lora where nothing is stated
    "default": ({"finetuning_type": None}, {"optimizer": "adapters"}),
    "bits": ({"finetuning_type": "lora", "quantization_bit": 4}, {"weights": "nf4-double"}),
    "bits, once": ({"finetuning_type": "lora", "quantization_bit": 4,
                    "double_quantization": False}, {"weights": "nf4"}),
    "pure": ({"bf16": None, "pure_bf16": True}, {"precision": "bf16", "optimizer": "adam-bf16"}),
    "batch": ({"per_device_train_batch_size": None}, {"global_batch": 128}),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORY_READ)
def test_llama_factory_is_read(tmp_path, name):
    added, stated = FACTORY_READ[name]
    job = job_of(tmp_path, FACTORY | added)
    assert {key: job.options.get(key) for key in stated} == stated


@pytest.mark.parametrize(
    ("added", "word"),
    [
        ({"stage": "dpo"}, "preferences"),
        ({"finetuning_type": "freeze"}, "freeze"),
        ({"use_galore": True, "galore_rank": 128}, "state"),
        ({"quantization_bit": 4}, "under training"),
        ({"infer_backend": "vllm", "do_train": None}, "answers"),
        ({"finetuning_type": "lora", "quantization_bit": 3}, "3 bits"),
        # Megatron-Core by keys of its own, in a file of LLaMA-Factory
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4}, "Megatron-Core"),
    ],
)
def test_what_llama_factory_does_and_no_price_shows_is_one_fault(tmp_path, added, word):
    faults = faults_of(tmp_path, FACTORY | added)
    assert len(faults) == 1
    assert word in str(faults[0])


CHECKPOINTS = {
    # fine-tuned by others: the dims of the model that they start from
    "agentica-org/DeepCoder-14B-Preview": ("qwen2.5-14b", None),
    "EleutherAI/pythia-12b-deduped": ("pythia-12b", None),
    "mistralai/Magistral-Small-2507": ("mistral-small-24b", None),
    # experts as separate products, in NF4; and the 4 bits of the publisher undone
    "axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16":
        ("llama4-scout", "bitsandbytes nf4"),
    "axolotl-ai-co/gpt-oss-120b-dequantized": ("gpt-oss-120b", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_has_the_dims_of_its_base(tmp_path, name):
    model = job_of(tmp_path, AXOLOTL | {"base_model": name}).options["model"]
    stored = model.weight_format and model.weight_format.name
    assert (model.name, stored) == CHECKPOINTS[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [("Qwen/Qwen3-VL-4B-Instruct", "qwen3-4b"),
     ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-30b-a3b"),
     ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral-small-24b")],
)  # fmt: skip
def test_of_a_model_of_images_the_text_is_priced(tmp_path, name, text):
    model = job_of(tmp_path, FACTORY | {"model_name_or_path": name}).options["model"]
    assert count_parameters(model).num_params == count_parameters(load_model(text)).num_params
    assert "vision tower" in model.conventions[0]


RECIPE = {
    "model": {"_component_": "torchtune.models.phi3.phi3_mini"}, "batch_size": 2,
    "tokenizer": {"max_seq_len": 2048}, "dtype": "bf16", "enable_activation_checkpointing": True,
    "optimizer": {"_component_": "torch.optim.AdamW"},
}  # fmt: skip
"""torchtune 0.6.1, ``recipes``: our own files of its recipes."""


@pytest.mark.parametrize(
    ("component", "model"),
    [("phi3.phi3_mini", "phi3-mini"), ("phi4.lora_phi4_14b", "phi4-14b"),
     ("code_llama2.qlora_code_llama2_7b", "codellama-7b"),
     ("qwen2_5.lora_qwen2_5_14b_base", "qwen2.5-14b"),
     ("llama3_1.qlora_llama3_1_405b", "llama3.1-405b")],
)  # fmt: skip
def test_a_builder_of_torchtune_names_its_model(tmp_path, component, model):
    tree = RECIPE | {"model": {"_component_": f"torchtune.models.{component}"}}
    # fsdp.cpu_offload is a key that no recipe asks for: they ask for fsdp_cpu_offload
    job = job_of(tmp_path, tree | {"fsdp": {"cpu_offload": False}})
    assert (job.options["model"], job.options.get("offload")) == (model, None)


@pytest.mark.parametrize(
    ("added", "word"),
    [
        (
            {
                "teacher_model": {"_component_": "torchtune.models.phi4.phi4_14b"},
                "kd_ratio": 0.5,
                "teacher_checkpointer": {"checkpoint_dir": "x"},
                "kd_loss": {"_component_": "x"},
            },
            "teacher",
        ),
        ({"max_new_tokens": 300, "prompt": {"system": None, "user": "Hi"}}, "trains nothing"),
        ({"enable_activation_offloading": True}, "host"),
        ({"tensor_parallel_dim": 4, "tensor_parallel_plan": {"_component_": "x"}}, "tensor"),
        ({"policy_model": {}, "reward_and_value_model": {}, "model": None}, "PPO"),
    ],
)
def test_a_recipe_that_is_not_priced_is_one_fault(tmp_path, added, word):
    faults = faults_of(tmp_path, RECIPE | added)
    assert len(faults) == 1
    assert word in str(faults[0])


COMMANDS = {
    "torchrun --nproc_per_node 8 src/train.py job.yaml": FACTORY,
    "FORCE_TORCHRUN=1 llamafactory-cli train job.yaml": FACTORY,
    "accelerate launch --num_processes 8 src/train.py job.yaml": FACTORY,
    "axolotl train job.yaml": AXOLOTL,
    "accelerate launch --num_processes 8 -m axolotl.cli.train job.yaml": AXOLOTL,
    "torchrun --nproc_per_node 8 -m axolotl.cli.train job.yaml": AXOLOTL,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_the_file_of_its_program(tmp_path, command):
    (tmp_path / "run.sh").write_text(command + "\n")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(COMMANDS[command]))
    job = read_job([tmp_path / "run.sh"], num_devices=lambda: 8)
    assert job.options["model"].name == "qwen2.5-7b"
    assert job.options["global_batch"] == 8 * COMMANDS[command]["gradient_accumulation_steps"]


def test_a_path_is_sought_from_where_the_command_runs(tmp_path):
    # examples name deepspeed: examples/deepspeed/x.json as seen from the root of their repository
    (tmp_path / "examples" / "full").mkdir(parents=True)
    (tmp_path / "examples" / "deepspeed").mkdir()
    zero = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"},
            "train_micro_batch_size_per_gpu": "auto"}  # fmt: skip
    (tmp_path / "examples" / "deepspeed" / "z3.json").write_text(json.dumps(zero))
    tree = FACTORY | {"deepspeed": "examples/deepspeed/z3.json"}
    job = job_of(tmp_path / "examples" / "full", tree)
    assert (job.framework, job.options["zero_stage"]) == ("deepspeed", "3")


def test_a_path_is_sought_from_where_the_user_is(tmp_path, monkeypatch):
    (tmp_path / "here" / "conf").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}
    (tmp_path / "here" / "conf" / "z2.json").write_text(json.dumps(zero))
    monkeypatch.chdir(tmp_path / "here")
    job = job_of(tmp_path / "there", AXOLOTL | {"deepspeed": "conf/z2.json"})
    assert job.options["zero_stage"] == "2"


UNREAD = {
    "swift sft --model Qwen/Qwen2.5-7B --train_type lora": "ms-swift",
    "megatron sft --load Qwen2.5-7B-mcore": "ms-swift",
    "python3 -m verl.trainer.main_ppo data.train_batch_size=1024": "verl",
    "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer": "verl",
    "EXP=examples/llama2_7B.yaml bash examples/run_pretrain.sh": "Primus",
    "python deepy.py train.py configs/6-7B.yml": "GPT-NeoX",
    "composer train/train.py train/yamls/pretrain/mpt-7b.yaml": "llm-foundry",
    "torchrun --nproc_per_node 8 megatron_gpt_pretraining.py": "NeMo 1",
    "nemo llm pretrain --factory llama3_8b": "NeMo 2",
}


@pytest.mark.parametrize("command", UNREAD)
def test_a_program_that_is_not_read_is_named(tmp_path, command):
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{command}\n")
    with pytest.raises(
        SpecError, match=f"belongs to {UNREAD[command]}, which is not read"
    ) as caught:
        read_job([tmp_path / "run.sh"], num_devices=lambda: 8)
    assert "meshwright plan MODEL" in caught.value.faults[0].fix


UNREAD_TREES = {
    "verl": {"actor_rollout_ref": {"model": {"path": "x"}}, "data": {"train_batch_size": 64}},
    "GPT-NeoX": {"pipe-parallel-size": 1, "model-parallel-size": 2, "num-layers": 32},
    "llm-foundry": {"global_train_batch_size": 256, "device_train_microbatch_size": 4},
    "Primus": {"work_group": "amd", "exp_name": "e", "modules": {"pre_trainer": {}}},
}


@pytest.mark.parametrize("title", UNREAD_TREES)
def test_a_file_of_a_program_that_is_not_read_is_named(tmp_path, title):
    faults = faults_of(tmp_path, UNREAD_TREES[title])
    assert f"belongs to {title}, which is not read" in str(faults[0])


def test_rotary_embeddings_without_position_embeddings(tmp_path):
    # Megatron-LM: --no-position-embedding takes the learned ones away, and nothing else
    words = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
        "--micro-batch-size 1 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2 "
        "--swiglu --ffn-hidden-size 11008 --normalization RMSNorm --disable-bias-linear "
        "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 "
        "--use-rotary-position-embeddings --no-position-embedding --vocab-size 32000"
    )
    (tmp_path / "run.sh").write_text(words)
    assert read_job([tmp_path / "run.sh"]).options["model"].name == "llama2-7b"


TREES = ("axolotl_full.yaml", "llamafactory_sft.yaml", "ds_zero3_auto.json",
         "accelerate_fsdp2.yaml", "torchtitan_llama3_8b.toml", "maxtext_v5p.yml",
         "megatron_config.yaml", "megatron_bridge.yaml")  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_the_first_field_that_no_one_asks_for_is_a_fault(tmp_path, name):
    text, field = (JOBS / name).read_text(), "unheard_of_field"
    if name.endswith(".json"):
        text = json.dumps({field: 3, **json.loads(text)})
    elif name.endswith(".toml"):
        text = f"{field} = 3\n{text}"
    else:
        text += f"\n{field}: 3\n"
    (tmp_path / name).write_text(text)
    for other in JOBS.glob("*.json"):
        if other.name != name:
            (tmp_path / other.name).write_bytes(other.read_bytes())
    with pytest.raises(SpecError) as caught:
        read_job([tmp_path / name])
    assert [field in fault.path for fault in caught.value.faults] == [True]


def test_of_a_section_that_is_not_read_there_is_one_fault(tmp_path):
    faults = faults_of(tmp_path, AXOLOTL | {"unheard": {"one": 1, "two": 2, "three": 3}})
    assert [str(fault) for fault in faults] == [
        "job.yaml: unheard: with 3 fields is not read, and may change the price"
    ]
