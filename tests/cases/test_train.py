"""Launch files of training that once were called legal and die at start, or run and were refused.

Each right value is what the framework itself says of the file; where, is beside it.
"""

from pathlib import Path

import pytest
from hand_made_plans import build

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.frameworks.registry import export
from meshwright.sharding.strategy import Recompute

FOLDER = Path(__file__).parent / "train"
MODEL = {"model": "llama3-8b", "seq": 4096}

STARTS = {
    # megatron-core 0.19.2, transformer_block.py: num_layers % pipeline_model_parallel_size == 0
    "layers that divide": ("megatron_layers.sh", {"on": "16xH100", "set": ["LAYERS=48"]}),
    "a shorter last stage": (
        "megatron_layers.sh",
        {"on": "16xH100", "set": ["LAYERS=46 --decoder-last-pipeline-num-layers 10"]},
    ),
    # arguments.py: world_size % (tp x pp x cp) == 0
    "whole replicas": ("megatron_ranks.sh", {"on": "6xH100", "set": ["RANKS=6", "TP=2", "MORE="]}),
    # optimizer/distrib_optimizer.py shards over whatever the data-parallel group holds: one rank
    "a distributed optimizer on one rank": (
        "megatron_ranks.sh", {"on": "8xH100", "set": ["RANKS=8", "TP=8", "MORE="]},
    ),
    # transformer_block.py, _checkpointed_forward: the first 0 layers are computed again
    "no layer to recompute": (
        "megatron_ranks.sh",
        {"on": "8xH100", "set": ["RANKS=8", "TP=2", "MORE=--recompute-granularity full "
                                 "--recompute-method block --recompute-num-layers 0"]},
    ),
    # arguments.py, --optimizer
    "Muon": (
        "megatron_ranks.sh",
        {"on": "8xH100", "set": ["RANKS=8", "TP=2", "MORE=--optimizer muon"]},
    ),
    # multi_token_prediction.py
    "layers of prediction": (
        "megatron_ranks.sh",
        {"on": "8xH100", "set": ["RANKS=8", "TP=2", "MORE=--mtp-num-layers 1"]},
    ),
    # tensor_parallel/layers.py, ensure_divisibility: 1408 and 2816 columns over 8 ranks
    "experts narrower than a tile": (
        "megatron_experts.sh", {"on": "8xH100", "set": ["TP=8", "MORE="]},
    ),
    "experts padded to their capacity": (
        "megatron_experts.sh",
        {"on": "8xH100", "set": ["TP=1", "MORE=--expert-model-parallel-size 8 "
                                 "--moe-expert-capacity-factor 1.5 "
                                 "--moe-pad-expert-input-to-capacity"]},
    ),
    "experts by all-gather": (
        "megatron_experts.sh",
        {"on": "8xH100", "set": ["TP=1", "MORE=--expert-model-parallel-size 8 "
                                 "--moe-token-dispatcher-type allgather"]},
    ),
    "a batch that multiplies": ("deepspeed_batch.json", {"on": "2xH100", **MODEL}),
    "one GPU with its state on the host": ("deepspeed_one_gpu.sh", {"on": "1xH100"}),
    "a mesh of all processes": (
        "accelerate_mesh.yaml", {"on": "4xH100", "global_batch": 8, **MODEL},
    ),
    "a mesh of all devices": ("maxtext_mesh.sh", {"on": "tpu-v5e-2x4"}),
    "shards over all ranks": ("torchtitan_shards.toml", {"on": "4xH100"}),
}  # fmt: skip
DIES = {
    "layers that do not divide": (
        "megatron_layers.sh", {"on": "16xH100", "set": ["LAYERS=46"]},
        "46 layers do not divide over 4 stages (--decoder-last-pipeline-num-layers 10)",
    ),
    "ranks that are left over": (
        "megatron_ranks.sh", {"on": "6xH100", "set": ["RANKS=6", "TP=4", "MORE="]},
        "tp 4 x cp 1 x pp 1 do not divide the 6 devices",
    ),
    # transformer_config.py: sequence parallelism and distributed activations exclude each other
    "activations split twice": (
        "megatron_ranks.sh",
        {"on": "8xH100", "set": ["RANKS=8", "TP=2", "MORE=--distribute-saved-activations"]},
        "sequence parallelism splits them already",
    ),
    # parallel_dims.py, _validate: dp_replicate * dp_shard * cp * tp * pp == world_size
    "shards over half of the ranks": (
        "torchtitan_shards.toml", {"on": "8xH100"}, "dp 4 are 4 ranks",
    ),
    # runtime/config.py, _batch_assertion
    "a batch that does not multiply": (
        "deepspeed_batch.json", {"on": "4xH100", **MODEL},
        "64 is not micro-batch 4 x accumulation 8 x ranks 4 = 128",
    ),
    # parallelism_config.py, _validate_accelerator: total_size == num_processes
    "a mesh of half of the processes": (
        "accelerate_mesh.yaml", {"on": "8xH100", "global_batch": 8, **MODEL}, "dp 2 are 4 ranks",
    ),
    # maxtext_utils.py, fill_unspecified_mesh_axes
    "a mesh of half of the devices": (
        "maxtext_mesh.sh", {"on": "tpu-v5e-4x4"}, "dp 4 are 8 ranks",
    ),
}  # fmt: skip


def checked(name, options):
    """Return what is illegal in a file, and what estimate makes of it."""
    return mw.check(from_=str(FOLDER / name), **options).faults


@pytest.mark.parametrize("case", STARTS)
def test_a_file_that_starts_is_legal(case):
    assert checked(*STARTS[case]) == ()


@pytest.mark.parametrize("case", DIES)
def test_a_file_that_dies_is_refused(case):
    name, options, why = DIES[case]
    with pytest.raises(SpecError) as refused:
        checked(name, options)
    assert why in str(refused.value)


def test_layers_of_prediction_are_priced():
    """One more layer of 32, on a stage of its own kind."""
    settings = {"on": "8xH100"}
    steps = [
        mw.estimate(from_=str(FOLDER / "megatron_ranks.sh"),
                    set=["RANKS=8", "TP=2", f"MORE={more}"], **settings).best.estimate.step_time_s
        for more in ("", "--mtp-num-layers 1")
    ]  # fmt: skip
    # 6 x 2.02e8 FLOP a token of a layer, with its attention 3 % of 32, and 6 x 1.31e8 of its logits
    assert 1.04 < steps[1] / steps[0] < 1.05


def test_padded_experts_take_as_much_longer():
    """Experts of a rank compute 1.5 times the mean; attention and logits do not."""
    more = "MORE=--expert-model-parallel-size 8 "
    pads = "--moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity"
    steps = [
        mw.estimate(from_=str(FOLDER / "megatron_experts.sh"), on="8xH100",
                    set=["TP=1", more + pad]).best.estimate.step_time_s
        for pad in ("", pads)
    ]  # fmt: skip
    assert 1.01 < steps[1] / steps[0] < 1.5


@pytest.mark.parametrize("modules", [(), ("core_attn", "layernorm")])
def test_selective_recomputation_of_bridge_is_read_back(tmp_path, modules):
    """Its overrides are lists of Hydra: ``model.recompute_modules=[core_attn,layernorm]``."""
    chosen = {"recompute": Recompute.SELECTIVE, "recompute_modules": modules, "zero_stage": 1}
    plan = build({"tp": 2, "dp_shard": 4}, chosen, system="8xH100")
    script = export(plan, "megatron-bridge", tmp_path)[0]
    assert mw.estimate(str(script), on="8xH100").best.text == plan.best.text


def test_no_policy_of_maxtext_recomputes_whole_layers(tmp_path):
    """Each layer is checkpointed; without a policy nothing is kept (nnx_decoders.py, 0.2.5)."""
    text = (FOLDER / "maxtext_mesh.sh").read_text("utf-8")
    steps = []
    for policy in ("none", "full", "minimal_with_context"):
        script = tmp_path / f"{policy}.sh"
        script.write_text(text.replace("remat_policy=full", f"remat_policy={policy}"), "utf-8")
        steps.append(str(mw.estimate(str(script), on="tpu-v5e-2x4").best.plan_options.recompute))
    assert steps == ["full", "full", "none"]


def test_products_in_fp32_run_on_the_vector_units():
    """67 TFLOP/s of an H100 in FP32 (white paper) against 989 in BF16."""
    asked = {"on": "8xH100", "seq": 4096, "global_batch": 64, "pp": 1, "cp": 1, "tp": 1}
    steps = [
        mw.plan("llama3.2-1b", precision=name, **asked).best.estimate.time_parts_s["compute_s"]
        for name in ("fp32", "bf16")
    ]
    assert 10.0 < steps[0] / steps[1] < 20.0
