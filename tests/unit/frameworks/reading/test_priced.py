"""Files in place of options: the same price as the options that say the same."""

import json

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.frameworks.registry import export

SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --num-layers {layers} --hidden-size {hidden} --num-attention-heads 32 \\
  --ffn-hidden-size 11008 --swiglu --normalization RMSNorm \\
  --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\
  --bf16 --vocab-size 32000 --attention-dropout 0 --hidden-dropout 0 \\
  --tensor-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce \\
  --overlap-param-gather {more}
"""


def script(folder, *, layers=32, hidden=4096, more=""):
    path = folder / "train.sh"
    path.write_text(SCRIPT.format(layers=layers, hidden=hidden, more=more))
    return str(path)


def price(found):
    return found.best.text, found.best.estimate.step_time_s, found.best.estimate.memory_bytes


SAME = {"on": "16xH100", "seq": 4096, "global_batch": 64, "framework": "megatron", "tp": 2,
        "mbs": 1, "sp": "off", "zero": 1, "recompute": "none", "dp_overlap": "on"}  # fmt: skip


def test_a_script_has_the_price_of_the_options_that_say_the_same(tmp_path):
    by_file = mw.estimate(script(tmp_path), on="16xH100")
    assert by_file.model.name == "llama2-7b"
    assert price(by_file) == price(mw.estimate("llama2-7b", **SAME))


@pytest.mark.slow
def test_every_verb_takes_the_file(tmp_path):
    path = script(tmp_path)
    assert mw.check(path, on="16xH100").is_legal
    assert mw.fit(path, on="16xH100").best.estimate.fits
    assert mw.explain(path, on="16xH100").shares
    assert mw.compare(path, on="16xH100", against="megatron-3").ours.best
    best = mw.plan(from_=path, on="16xH100")
    assert (
        best.best.estimate.step_time_s <= mw.estimate(path, on="16xH100").best.estimate.step_time_s
    )
    assert best.workload.software.framework.startswith("megatron")


def test_an_option_counts_instead_of_the_file(tmp_path):
    path = script(tmp_path)
    assert mw.estimate(path, on="16xH100", tp=4).best.strategy.tp == 4
    assert mw.estimate("llama2-13b", from_=path, on="16xH100").model.name == "llama2-13b"
    assert mw.estimate(path, on="32xH100").best.strategy.dp == 16


@pytest.mark.parametrize(
    ("change", "is_less"),
    [
        ({"layers": 16}, True), ({"hidden": 2048}, True),
        ({"more": "--recompute-granularity full --recompute-method block --recompute-num-layers 2"},
         False),
    ],
)  # fmt: skip
def test_what_was_passed_over_in_silence_changes_the_price(tmp_path, change, is_less):
    whole = mw.estimate(script(tmp_path), on="16xH100").best.estimate.step_time_s
    other = mw.estimate(script(tmp_path, **change), on="16xH100").best.estimate.step_time_s
    assert (other < whole) == is_less
    assert other != whole


@pytest.mark.parametrize(
    ("more", "chosen"),
    [
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
         {"recompute": "full", "recompute_run": 4}),
        ("--recompute-granularity selective --recompute-modules mlp core_attn",
         {"recompute": "selective", "recompute_modules": "core_attn+mlp"}),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 10"
         " --decoder-last-pipeline-num-layers 10", {"pp": 4, "stage_layers": "10+6*2+10"}),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
         " --decoder-first-pipeline-num-layers 18", {"pp": 2, "vpp": 2, "stage_layers": "9+7+9+7"}),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*9|t*4|t*11|t*8L'",
         {"pp": 4, "stage_layers": "9+4+11+8"}),
    ],
)  # fmt: skip
def test_choices_of_a_script_are_those_of_options(tmp_path, more, chosen):
    """Each rank cuts its layers into as many chunks; the first 18 of 32 on 2 x 2 are 9 and 9."""
    by_file = mw.estimate(script(tmp_path, more=more), on="16xH100").best
    by_hand = mw.estimate("llama2-7b", **(SAME | {"recompute": "none"} | chosen)).best
    assert by_file.text == by_hand.text
    assert by_file.estimate.step_time_s == pytest.approx(by_hand.estimate.step_time_s, rel=1e-12)


def test_experts_are_recomputed_beside_the_attention_core(tmp_path):
    path = script(tmp_path, more="--num-experts 8 --moe-router-topk 2 --moe-layer-recompute"
                  " --sequence-parallel")  # fmt: skip
    assert mw.read(path).options["recompute_modules"] == "core_attn+moe"
    both = script(tmp_path, more="--moe-layer-recompute --recompute-granularity full")
    with pytest.raises(SpecError, match="--moe-layer-recompute: whole layers are recomputed"):
        mw.read(both)


def test_rounds_are_as_long_as_the_pipeline(tmp_path):
    rounds = ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2"
              " --microbatch-group-size-per-virtual-pipeline-stage {}")  # fmt: skip
    assert mw.read(script(tmp_path, more=rounds.format(4))).options["num_virtual_stages"] == 2
    with pytest.raises(SpecError, match="rounds of another length than pp 4 are not read"):
        mw.read(script(tmp_path, more=rounds.format(8)))


def test_documents_that_attend_to_themselves_are_asked_for(tmp_path):
    """A script does not hold their length; the attention of shorter ones takes less time."""
    path = script(tmp_path, more="--reset-attention-mask --reset-position-ids")
    assert any("--with document_length" in note for note in mw.read(path).notes)
    whole, packed = (
        mw.estimate(path, on="16xH100", document_length=d).best.estimate for d in (None, 512)
    )
    assert packed.time_parts_s["compute_s"] < whole.time_parts_s["compute_s"]


def test_sequence_parallelism_is_off_without_tensor_parallelism(tmp_path):
    """As Megatron does it; public scripts state it whatever tp is."""
    path = script(tmp_path, more="--sequence-parallel")
    assert mw.read(path).options["sequence_parallel"] == "on"
    alone = mw.estimate(path, on="16xH100", tp=2).best.plan_options
    assert alone.sequence_parallel
    other = script(tmp_path, more="--sequence-parallel --tensor-model-parallel-size 1")
    assert not mw.estimate(other, on="16xH100").best.plan_options.sequence_parallel


def test_the_order_of_the_axes_is_that_of_the_file(tmp_path):
    pipeline = "--pipeline-model-parallel-size 2"
    inside = script(tmp_path, more=f"{pipeline} --use-tp-pp-dp-mapping")
    order = mw.estimate(inside, on="16xH100").best.plan_options.axis_order
    assert order == ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate")
    usual = mw.estimate(script(tmp_path, more=pipeline), on="16xH100").best.plan_options.axis_order
    assert usual[-1] == "pp"
    with pytest.raises(SpecError, match=r"--with axis_order: is not searched .* \(tp-cp-dp-pp\)"):
        mw.plan("llama3-8b", on="16xH100", seq=4096, global_batch=64, framework="torchtitan",
                axis_order="tp-pp-cp-dp")  # fmt: skip


def test_another_optimizer_keeps_other_bytes(tmp_path):
    adam = mw.estimate(script(tmp_path), on="16xH100").workload.optimizer
    sgd = mw.estimate(script(tmp_path, more="--optimizer sgd"), on="16xH100").workload.optimizer
    assert (adam.state_bytes_per_param, sgd.state_bytes_per_param) == (12.0, 8.0)
    short = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"
    found = mw.estimate(script(tmp_path, more=short), on="16xH100").workload.optimizer
    assert found.state_bytes_per_param == 4.0 + 2.0 + 1.0


def test_an_unknown_option_is_refused_by_its_name(tmp_path):
    with pytest.raises(SpecError, match=r"--use-teleportation: is not read, and may change"):
        mw.read(script(tmp_path, more="--use-teleportation 3"))


def test_a_variable_that_nobody_sets_is_asked_for(tmp_path):
    path = script(tmp_path, more="--context-parallel-size $CP")
    with pytest.raises(
        SpecError, match=r"--context-parallel-size: depends on \$CP.*--set CP=VALUE"
    ):
        mw.read(path)
    assert mw.read(path, set={"CP": 2}).options["cp"] == 2


def test_what_is_open_is_said_and_asked_for(tmp_path, capsys):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True},
                                "train_micro_batch_size_per_gpu": 1}))  # fmt: skip
    assert main(["read", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["option"] for one in found["missing"]] == [
        "--on",
        "MODEL",
        "--seq",
        "--global-batch",
    ]
    with pytest.raises(SpecError, match="MODEL: is needed"):
        mw.estimate(from_=str(path), on="8xH100")
    priced = mw.estimate("llama3-8b", from_=str(path), on="8xH100", seq=4096)
    assert priced.workload.global_batch_size == 8
    assert priced.best.plan_options.zero_stage == 2


def test_serving_commands_are_priced_as_they_serve(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text(
        "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 8192 --max-num-seqs 64"
    )
    found = mw.estimate(str(path), on="2xH100")
    assert found.best.strategy.tp == 2
    assert found.workload.context_length == 8192


def test_servers_are_priced_and_planned_only(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-model-len 8k --max-num-seqs 64")
    for verb in (mw.fit, mw.check, mw.compare):
        with pytest.raises(SpecError, match="starts a server"):
            verb(str(path), on="2xH100")
    assert mw.serve(from_=str(path), on="2xH100").workload.batch_size == 64
    with pytest.raises(SpecError, match=r"--on: is needed.*--on 2xCHIP"):
        mw.estimate(str(path))


def test_variables_are_of_use_with_files_only():
    with pytest.raises(SpecError, match="--set: applies only with launch files"):
        mw.check("llama3-8b", on="8xH100", seq=4096, global_batch=8, set={"TP": 2})


def test_text_of_a_file_does_not_reach_the_screen_as_markup(tmp_path, capsys):
    path = script(tmp_path, more="--wandb-project '[red]x[/red]'")
    assert main(["read", path, "--detail"]) == 0
    assert "[red]x[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = [", "is not TOML"), ("a.yaml", "a: [", "is not YAML"),
        ("a.json", "[1]", "expected names with values"), ("a.yaml", "a: 1\nb: 2", "it has a, b"),
        ("a.yaml", "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
            f"k{i}: &{chr(98 + i)} [{', '.join(8 * [f'*{chr(97 + i)}'])}]\n" for i in range(9)
        ), "builds too many values"),
        ("a.json", '{"fp16": {}, "fp16": {}}', "given twice"),
        ("a.yaml", "a: 1\na: 2", "given twice"),
        ("a.py", "x = 1", "builds no configuration"),
        ("a.py", "c = d = Trainer.Config()", "several.*--set CONFIG=NAME, one of c, d"),
        ("a.sh", "echo hello", "starts no program that is read"),
        ("a.sh", "python train.py\nls", "it starts train.py"),
    ],
)  # fmt: skip
def test_files_that_start_nothing_say_so(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        mw.read(str(path))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ds.json", '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
         '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}'),
        ("fsdp.yaml", "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
         "fsdp_config: {fsdp_version: 2, fsdp_offload_params: true, "
         "fsdp_reshard_after_forward: true}\n"),
        ("titan.toml", '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n'
         'enable_cpu_offload = true\n[activation_checkpoint]\nmode = "full"\n'),
    ],
)  # fmt: skip
def test_jobs_with_their_state_on_the_host_are_priced(tmp_path, name, text):
    """Weights, gradients and optimizer state leave the device; activations stay with it."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    # One micro-batch: accelerate keeps whole gradients of several on the device.
    asked = {"seq": 2048, "global_batch": 8, "recompute": "full", "mbs": 1}
    found = mw.estimate("llama3-8b", from_=str(path), on="8xH100", **asked)
    parts = found.best.estimate.memory_parts_bytes
    assert found.best.plan_options.offload == "state"
    assert parts["weights_bytes"] == parts["states_bytes"] == 0.0
    assert parts["gradients_bytes"] < 0.1 * 4 * 8e9
    assert parts["activations_bytes"] > 32 * 2048 * 4096 * 2 * 0.9


@pytest.mark.parametrize("target", ["accelerate", "axolotl"])
def test_exports_sum_gradients_after_each_micro_batch(tmp_path, target):
    """Without the flag each rank keeps 2 x 8.03e9 bytes of whole gradients, 16.1 GB."""
    plan = mw.estimate("llama3-8b", on="8xH100", framework="accelerate", dp=8, zero=3, mbs=1,
                       seq=2048, global_batch=24, recompute="full")  # fmt: skip
    export(plan, target, tmp_path)
    (path,) = tmp_path.glob(f"{target}.sh" if target == "accelerate" else "axolotl.yaml")
    asked = {"on": "8xH100", "seq": 2048}
    assert price(mw.estimate("llama3-8b", from_=str(path), **asked)) == price(plan)
    path.write_text(path.read_text().replace("sync_each_batch", "sync_with_dataloader"))
    last = mw.estimate("llama3-8b", from_=str(path), **asked)
    assert last.workload.software.sums_in_last_pass
    assert last.best.estimate.memory_parts_bytes["gradients_bytes"] > 2 * 8.03e9
    assert not plan.workload.software.sums_in_last_pass


MAXTEXT = """\
python -m maxtext.trainers.pre_train.train configs/base.yml model_name=llama3.1-8b
 per_device_batch_size=2 max_target_length=8192 ici_fsdp_parallelism=-1
"""


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        ("remat_policy=save_dot_except_mlp",
         {"kept_tensors": "query_proj+key_proj+value_proj+out_proj"}),
        ("remat_policy=qkv_proj_offloaded",
         {"offloaded_tensors": "query_proj+key_proj+value_proj"}),
        ("remat_policy=custom decoder_layer_input=offload query_proj=device mlpwi_0=offload"
         " mlpwi_1=offload mlpwi=offload out_proj=remat",
         {"kept_tensors": "query_proj", "offloaded_tensors": "decoder_layer_input+mlpwi"}),
        ("remat_policy=custom decoder_layer_input=device query_proj=remat",
         {"recompute": "full"}),
        ("remat_policy=full query_proj=device", {"recompute": "full"}),
        ("remat_policy=full weight_dtype=bfloat16",
         {"recompute": "full", "optimizer": "adam-bf16"}),
    ],
)  # fmt: skip
def test_policies_of_maxtext(tmp_path, keys, chosen):
    """Tensors of a custom policy by name; its default makes all again but the input of a layer."""
    path = tmp_path / "run.sh"
    path.write_text(f"{MAXTEXT.strip()} {keys}\n".replace("\n ", " "))
    by_file = mw.estimate(str(path), on="8xTPU-v6e").best
    by_hand = mw.estimate("llama3.1-8b", on="8xTPU-v6e", seq=8192, global_batch=16, dp=8, zero=3,
                          mbs=2, framework="maxtext", **chosen).best  # fmt: skip
    assert by_file.text == by_hand.text
    assert by_file.estimate.memory_bytes == by_hand.estimate.memory_bytes


def test_logits_in_tiles(tmp_path):
    """Logits and their gradient in bf16, 4 bytes a word of 2 sequences: a sixteenth of them."""
    path = tmp_path / "run.sh"
    held = []
    for keys in ("", " num_vocab_tiling=16"):
        path.write_text(f"{MAXTEXT.strip()} remat_policy=full{keys}\n".replace("\n ", " "))
        found = mw.estimate(str(path), on="8xTPU-v6e").best.estimate
        held.append(found.memory_parts_bytes["logits_bytes"])
    logits = 4 * 2 * 8192 * 128256
    assert held[0] == pytest.approx(logits, rel=0.05)
    assert held[1] < held[0] / 2
