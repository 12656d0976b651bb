"""The written text: golden files, names of the targets, degrees, and quoting."""

import ast
import json
import re
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

import pytest
from hand_made_plans import asked_for

from meshwright.frameworks import programs
from meshwright.frameworks.launch import layers_of_chunks
from meshwright.frameworks.programs.torchtitan import edge_weights
from meshwright.frameworks.programs.torchtitan_autoparallel import parameter_share
from meshwright.frameworks.reading.stages import pipeline_layout
from meshwright.frameworks.registry import exporters, rendered
from meshwright.sharding.strategy import ContextKind, Offload, Recompute, ScheduleKind
from meshwright.spec.workload import Precision, SoftwareStack

DATA = Path(__file__).parents[2] / "data"
FRAMEWORKS = tuple(name for name in exporters if exporters[name].is_text)
NAMES = json.loads((DATA / "export_options.json").read_text("utf-8"))
PIPELINE_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate", "tatp")

CASES = {
    "torch": (
        {"tp": 4, "pp": 2, "cp": 2, "dp_shard": 2, "dp_replicate": 2},
        {"zero_stage": 3, "recompute": Recompute.SELECTIVE},
        {},
    ),
    "megatron": (
        {"tp": 8, "pp": 4, "num_virtual_stages": 4, "dp_shard": 2},
        {"zero_stage": 1, "schedule": ScheduleKind.INTERLEAVED, "recompute": Recompute.FULL},
        {"model": "gpt3-175b", "length": 2048},
    ),
    "torchtitan": (
        {"tp": 8, "pp": 3, "dp_shard": 2},
        {"zero_stage": 2},
        {"model": "llama3-70b", "system": "64xH100"},
    ),
    "torchtitan-autoparallel": (
        {"tp": 2, "dp_shard": 32},
        {"zero_stage": 3, "recompute": Recompute.FULL},
        {"system": "64xH100", "batch": 32},
    ),
    "deepspeed": (
        {"cp": 8, "dp_shard": 8},
        {
            "zero_stage": 3, "context_kind": ContextKind.ULYSSES, "recompute": Recompute.FULL,
            "offload": Offload.GRADIENTS,
        },
        {"optimizer": "deepspeed-adam"},
    ),
    "accelerate": (
        {"tp": 2, "cp": 2, "dp_shard": 8, "dp_replicate": 2},
        {"zero_stage": 3, "sequence_parallel": False, "recompute": Recompute.FULL},
        {},
    ),
    "megatron-bridge": (
        {"tp": 2, "pp": 4, "dp_shard": 8, "ep": 8},
        {"zero_stage": 1, "recompute": Recompute.SELECTIVE, "head_layers": 1},
        {"model": "mixtral-8x7b", "optimizer": "megatron-adam-bf16-gradients", "length": 4096},
    ),
    "maxtext": (
        {"tp": 2, "dp_shard": 16, "dp_replicate": 2, "ep": 8},
        {"zero_stage": 3, "recompute": Recompute.FULL, "overlap_tensor_parallel": True},
        {"model": "mixtral-8x7b", "length": 4096},
    ),
}  # fmt: skip
"""The golden plans: 64 devices, but 48 for torchtitan, in stages of 27, 27 and 26 layers."""


@pytest.fixture
def text(make_plan):
    """Return a way to render the files of a target, one behind the other."""

    def render(target, degrees, plan_options=None, **rest):
        plan = asked_for(make_plan(degrees, plan_options, **rest), target)
        return "".join(rendered(plan, target).values())

    return render


def command_words(script):
    """Return the words of the command of a shell script, its comments left out."""
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    return shlex.split(" ".join(lines).replace("\\ ", " "))


def options_of(script):
    """Return the options of a command with the word behind each."""
    return dict(pairwise([*command_words(script), ""]))


def mesh_of(script):
    """Return the dims of the mesh that a Python script builds, then those of experts."""
    tree = ast.parse(script)
    (mesh,) = [
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "MESH"
    ]  # fmt: skip
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "init_device_mesh"
        and isinstance(node.args[1], ast.Tuple)
    ]  # fmt: skip
    return [mesh] + [
        dict(zip(ast.literal_eval(c.keywords[0].value), ast.literal_eval(c.args[1]), strict=True))
        for c in calls
    ]


@pytest.mark.parametrize("target", CASES)
def test_golden_text(make_plan, target):
    degrees, plan_options, rest = CASES[target]
    plan = asked_for(make_plan(degrees, plan_options, **rest), target)
    for name, content in rendered(plan, target).items():
        assert content == (DATA / "export" / f"{name}.txt").read_text("utf-8")


def test_every_framework_is_found_by_itself_and_has_a_golden_plan():
    folder = Path(programs.__file__).parent
    for path in folder.glob("*.py"):
        assert path.stem == "__init__" or (folder / f"{path.stem}.yaml").is_file(), path
    assert set(CASES) == set(FRAMEWORKS) - {"axolotl", "torchtune", "shardings"}


@pytest.mark.parametrize("target", CASES)
def test_header_names_plan_price_and_devices(text, target):
    degrees, plan_options, rest = CASES[target]
    script = text(target, degrees, plan_options, **rest)
    assert f"# plan: tp{degrees.get('tp', 1)} pp{degrees.get('pp', 1)} " in script
    assert "# step: 2.5 s (closed_form, uncalibrated), 64.0 GiB on the fullest device" in script
    used = prod(degrees.values()) // degrees.get("num_virtual_stages", 1) // degrees.get("ep", 1)
    idle = "; 16 devices stay idle" if used == 48 else ""
    assert f"# devices: {used}, on {used // 8} hosts of 8 processes{idle}" in script
    started = f"torchrun --nnodes={used // 8} --nproc-per-node=8 "
    listed = f"num_machines: {used // 8}\nnum_processes: {used}\n"
    assert (
        started in script
        or listed in script
        or f" NNODES={used // 8}\n" in script
        or (f'"num_hosts": {used // 8},' in script)
    )


COMPILED = SoftwareStack(compiled=True, loss="compiled")
MANY = [
    ({"tp": 4, "pp": 2, "cp": 2, "dp_shard": 4}, {"zero_stage": 1}, {}),
    ({"tp": 2, "cp": 4, "dp_shard": 8}, {"zero_stage": 1, "context_kind": ContextKind.ULYSSES}, {}),
    ({"tp": 4, "dp_shard": 8, "dp_replicate": 2}, {"zero_stage": 2}, {}),
    ({"dp_shard": 64}, {"zero_stage": 1, "offload": Offload.OPTIMIZER}, {}),
    ({"dp_shard": 64}, {"zero_stage": 2, "offload": Offload.ALL}, {}),
    ({"tp": 2, "dp_shard": 32}, {"zero_stage": 1, "axis_order": PIPELINE_INSIDE}, {}),
    ({"tp": 8, "pp": 8}, {"overlap_tensor_parallel": True}, {"software": COMPILED}),
    ({"tp": 8, "dp_replicate": 8}, {"overlap_tensor_parallel": True}, {"software": COMPILED}),
    ({"pp": 5, "dp_shard": 8}, {"zero_stage": 3, "reshard_after_forward": False}, {}),
    ({"pp": 5, "dp_shard": 8}, {"zero_stage": 1}, {}),
    ({"pp": 3, "dp_shard": 16}, {"zero_stage": 1}, {"batch": 96}),
    ({"pp": 4, "dp_shard": 8}, {"zero_stage": 1, "schedule": ScheduleKind.ZERO_BUBBLE}, {}),
    ({"tp": 2, "pp": 4, "dp_shard": 8, "ep": 8}, {"zero_stage": 1}, {"model": "mixtral-8x7b"}),
    ({"tp": 8, "dp_shard": 8, "ep": 64}, {"zero_stage": 1}, {"model": "deepseek-v3"}),
    ({"dp_shard": 64, "ep": 8}, {"zero_stage": 3}, {"model": "qwen3-30b-a3b"}),
    ({"tp": 4, "dp_shard": 16}, {"zero_stage": 1}, {"model": "qwen1.5-moe-a2.7b"}),
    ({"tp": 4, "dp_shard": 16}, {"zero_stage": 1}, {"model": "mistral-7b"}),
    ({"tp": 4, "dp_shard": 16}, {"zero_stage": 1}, {"model": "gpt2-1.5b", "length": 1024}),
    (
        {"tp": 4, "dp_shard": 16},
        {"zero_stage": 1, "recompute": Recompute.SELECTIVE},
        {"optimizer": "megatron-adam-bf16-gradients", "total_tokens": 1e12},
    ),
]
"""Together they use every option that an exporter can write."""


@pytest.fixture(scope="module")
def written(make_plan):
    """Return every script that the plans above give, by target."""
    from meshwright.base.errors import UnsupportedError

    found = {target: [] for target in FRAMEWORKS}
    for degrees, plan_options, rest in [*CASES.values(), *MANY]:
        for target in FRAMEWORKS:
            try:
                found[target] += rendered(make_plan(degrees, plan_options, **rest), target).values()
            except UnsupportedError:
                continue
    return found


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_option_names_are_those_of_the_target(written, target):
    known = {*NAMES[target]["options"], *NAMES["torchrun"]["options"]}
    assert len(written[target]) >= 5
    for script in written[target]:
        words = [word for word in command_words(script) if word.startswith("--")]
        assert {word.partition("=")[0] for word in words} <= known


def test_every_row_of_megatron_is_an_option_or_a_field_of_its_configuration():
    table = exporters["megatron"].table
    names = {f"--{row.name.replace('_', '-')}" for row in (*table.rows, *table.model_rows)}
    assert len(names) > 90
    assert names - set(NAMES["megatron"]["options"]) == {
        "--mtp-num-layers", "--transformer-impl", "--share-embeddings-and-output-weights",
        "--add-bias-linear", "--squared-relu",
    }  # fmt: skip


def test_torch_names_are_those_of_pytorch(written):
    known = {*NAMES["torch"]["names"]}
    imports = re.findall(r"from torch[\w.]* import ([\w, ]+)", "\n".join(written["torch"]))
    names = {name for line in imports for name in line.split(", ")} - {"nn", "DeviceMesh"}
    assert names <= known


def test_torchtitan_names_of_schedules_commands_and_configurations(written):
    for script in written["torchtitan"]:
        options = options_of(script)
        words = command_words(script)
        assert words[-1] in NAMES["torchtitan"]["commands"]
        assert words[-2] == "$@"
        assert options["--config"] in NAMES["torchtitan"]["configs"]
        schedule = options.get("--parallelism.pipeline_parallel_schedule", "1F1B")
        assert schedule in NAMES["torchtitan"]["schedules"]
        pipelined = options["--parallelism.pipeline_parallel_degree"] != "1"
        assert not pipelined or "--training.disable_cuda_graphs" in options


def test_torch_scripts_compile_and_shell_scripts_parse(written):
    for script in written["torch"]:
        compile(script, "device_mesh.py", "exec")
    for script in (*written["megatron"], *written["torchtitan"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_degree_appears_in_the_mesh(text):
    degrees = {"tp": 4, "pp": 2, "cp": 2, "dp_shard": 2, "dp_replicate": 2}
    (mesh,) = mesh_of(text("torch", degrees, {"zero_stage": 3}))
    assert mesh == degrees
    assert list(mesh) == ["pp", "dp_replicate", "dp_shard", "cp", "tp"]


def test_mesh_follows_the_order_of_the_axes(text):
    degrees = {"tp": 4, "pp": 4, "dp_shard": 4}
    (mesh,) = mesh_of(text("torch", degrees, {"zero_stage": 1, "axis_order": PIPELINE_INSIDE}))
    assert list(mesh) == ["dp_replicate", "dp_shard", "pp", "cp", "tp"]


def test_experts_see_the_same_ranks_again(text):
    """Of dp 8 x tp 2 = 16 ranks in each stage, 8 hold parts: two copies of each expert."""
    degrees = {"tp": 2, "pp": 4, "dp_shard": 8, "ep": 8}
    dense, experts = mesh_of(text("torch", degrees, {"zero_stage": 1}, model="mixtral-8x7b"))
    assert experts == {"pp": 4, "expert_dp": 2, "ep": 8, "etp": 1}
    assert prod(experts.values()) == prod(dense.values()) == 64


def test_megatron_degrees_batch_and_mapping(text):
    degrees = {"tp": 2, "pp": 4, "dp_shard": 4, "dp_replicate": 2, "micro_batch_size": 2}
    plan_options = {"zero_stage": 1, "axis_order": PIPELINE_INSIDE}
    options = options_of(text("megatron", degrees, plan_options))
    assert options["--tensor-model-parallel-size"] == "2"
    assert options["--pipeline-model-parallel-size"] == "4"
    assert options["--num-distributed-optimizer-instances"] == "2"
    assert (options["--micro-batch-size"], options["--global-batch-size"]) == ("2", "128")
    assert {"--use-tp-pp-dp-mapping", "--sequence-parallel", "--bf16"} <= set(options)


@pytest.mark.parametrize(
    ("num_stages", "expected"),
    [
        (2, {}),
        (3, {"--decoder-last-pipeline-num-layers": "10"}),
        (5, {"--pipeline-model-parallel-layout": "Et*6|t*7|t*7|t*6|t*6L"}),
    ],
)
def test_megatron_uneven_layers(text, num_stages, expected):
    """32 layers: 16 16; 11 11 10; 7 x 5 = 35, so the last, first and second last lack one."""
    names = ("--decoder-first", "--decoder-last", "--pipeline-model-parallel-layout")
    options = options_of(text("megatron", {"pp": num_stages, "dp_shard": 8}, {"zero_stage": 1}))
    assert {k: v for k, v in options.items() if k.startswith(names)} == expected


def test_megatron_first_and_last_stage(text):
    """94 layers on 4 stages of at most 24: two lack one, the last and the first."""
    degrees = {"tp": 4, "pp": 4, "dp_shard": 4}
    script = text("megatron", degrees, {"zero_stage": 1}, model="qwen3-235b-a22b", length=4096)
    options = options_of(script)
    assert options["--decoder-first-pipeline-num-layers"] == "23"
    assert options["--decoder-last-pipeline-num-layers"] == "23"


@pytest.mark.parametrize(
    ("chunks", "head", "expected"),
    [
        (8, 0, {"--num-virtual-stages-per-pipeline-rank": "8",
                "--account-for-embedding-in-pipeline-split": "",
                "--account-for-loss-in-pipeline-split": ""}),
        (4, 3, {"--pipeline-model-parallel-layout":
                "|".join(["Et*4", "t*5", *["t*4"] * 29, "t*1L"])}),
    ],
)  # fmt: skip
def test_megatron_uneven_chunks(text, chunks, head, expected):
    """126 layers on 8 x 8 chunks of at most two: the ends lack one, for embedding and loss.

    With a head for three, 129 are dealt over 8 x 4 chunks: one of five, the others of four.
    """
    plan_options = {
        "schedule": ScheduleKind.INTERLEAVED, "zero_stage": 0, "head_layers": head,
    }  # fmt: skip
    degrees = {"tp": 8, "pp": 8, "num_virtual_stages": chunks}
    script = text("megatron", degrees, plan_options, model="llama3-405b", length=4096)
    words = ("pipeline-split", "virtual", "layout", "decoder")
    options = {k: v for k, v in options_of(script).items() if any(word in k for word in words)}
    assert {k: "" if v.startswith("--") else v for k, v in options.items()} == expected


@pytest.mark.parametrize(
    ("system", "ep", "dispatcher"),
    [
        ("64xH100", 8, ("alltoall", None)),
        ("64xH100", 16, ("flex", "deepep")),
        ("128xGB200", 128, ("flex", "hybridep")),
    ],
)
def test_megatron_sends_a_token_to_a_host_once_as_priced(text, system, ep, dispatcher):
    """Experts on 8 GPUs of a host, on two hosts, on two racks."""
    degrees = {"dp_shard": max(ep, 64), "ep": ep}
    rest = {"model": "deepseek-v3", "length": 4096, "system": system, "batch": 256}
    options = options_of(text("megatron", degrees, {"zero_stage": 1}, **rest))
    names = ("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend")
    assert tuple(options.get(name) for name in names) == dispatcher
    assert options["--moe-router-num-groups"] == "8"
    assert options["--moe-router-group-topk"] == "4"


@pytest.mark.parametrize(
    ("chosen", "method", "number"),
    [
        ({}, "uniform", "1"),
        ({"recompute_layers": 3}, "block", "3"),
        ({"recompute_run": 4}, "uniform", "4"),
    ],
)
def test_megatron_recomputes_all_layers_or_some_of_each_chunk(text, chosen, method, number):
    plan_options = {"recompute": Recompute.FULL, "zero_stage": 1, **chosen}
    options = options_of(text("megatron", {"pp": 4, "dp_shard": 8}, plan_options))
    assert options["--recompute-granularity"] == "full"
    assert options["--recompute-method"] == method
    assert options["--recompute-num-layers"] == number


@pytest.mark.parametrize(
    ("stages", "chunks", "lengths", "expected"),
    [
        (4, 1, (9, 7, 7, 9), {"--decoder-first-pipeline-num-layers": "9",
                              "--decoder-last-pipeline-num-layers": "9"}),
        (4, 1, (10, 4, 8, 10), {"--pipeline-model-parallel-layout": "Et*10|t*4|t*8|t*10L"}),
        (2, 2, (9, 7, 7, 9), {"--pipeline-model-parallel-layout": "Et*9|t*7|t*7|t*9L"}),
    ],
)  # fmt: skip
def test_megatron_takes_the_layers_of_each_stage(text, stages, chunks, lengths, expected):
    kind = ScheduleKind.INTERLEAVED if chunks > 1 else ScheduleKind.ONE_F_ONE_B
    plan_options = {"stage_layers": lengths, "zero_stage": 1, "schedule": kind}
    degrees = {"pp": stages, "num_virtual_stages": chunks, "dp_shard": 4}
    options = options_of(text("megatron", degrees, plan_options))
    found = {k: v for k, v in options.items() if "layout" in k or "decoder" in k or "virtual" in k}
    assert found == expected


def test_megatron_counts_the_tokens_before_a_token_in_its_window(text):
    """A window of 4,096 tokens holds a token and 4,095 before it."""
    mistral = {"model": "mistral-7b"}
    script = text("megatron", {"tp": 8, "dp_shard": 8}, length=32768, **mistral)
    assert options_of(script)["--window-size"] == "4095,0"
    assert "--window-size" not in text("megatron", {"tp": 8, "dp_shard": 8}, length=4096, **mistral)


def test_pipeline_layout_counts_every_layer():
    assert pipeline_layout([1, 2, 3]) == "Et*1|t*2|t*3L"


def dealt_by_torchtitan(num_layers, num_stages, first, last):
    """Deal layers plus weights evenly, the rest to the first stages; the edges lose theirs."""
    whole, rest = divmod(num_layers + first + last, num_stages)
    lengths = [whole + (stage < rest) for stage in range(num_stages)]
    lengths[0] -= first
    lengths[-1] -= last
    return lengths


@pytest.mark.parametrize("counted", [{}, {"head_layers": 2}, {"embedding_layers": 1}])
@pytest.mark.parametrize("num_stages", [2, 3, 5, 6, 7, 10])
def test_torchtitan_deals_layers_as_priced(make_plan, num_stages, counted):
    plan = make_plan({"pp": num_stages, "dp_shard": 1}, counted)
    lengths = layers_of_chunks(plan)
    first, last = edge_weights(lengths, plan.best.plan_options)
    assert dealt_by_torchtitan(32, num_stages, first, last) == lengths


def test_torchtitan_batch_with_and_without_pipeline(text):
    """128 sequences on dp 8: 16 for each rank, cut by the pipeline or accumulated."""
    degrees = {"tp": 2, "dp_shard": 8, "micro_batch_size": 4}
    flat = options_of(text("torchtitan", degrees, {"zero_stage": 3}))
    assert flat["--training.local_batch_size"] == "4"
    deep = options_of(text("torchtitan", degrees | {"pp": 4}, {"zero_stage": 3}))
    assert deep["--training.local_batch_size"] == "16"
    assert deep["--parallelism.pipeline_parallel_microbatch_size"] == "4"


def test_torchtitan_without_zero_replicates(text):
    options = options_of(text("torchtitan", {"tp": 8, "dp_shard": 8}))
    assert options["--parallelism.data_parallel_replicate_degree"] == "8"
    assert options["--parallelism.data_parallel_shard_degree"] == "1"


@pytest.mark.parametrize(
    "name",
    ["a'b", 'say "hi"', "$(touch pwned)", "`id`", "x\nimport os", "a\r\x0b\x85\u2028b", "ünï"],
)
@pytest.mark.parametrize("target", CASES)
def test_odd_names_stay_in_their_comment(make_plan, renamed, target, name):
    degrees, plan_options, rest = CASES[target]
    plan = make_plan(degrees, plan_options, **rest)
    plain = "".join(rendered(plan, target).values())
    odd = "".join(rendered(renamed(plan, name), target).values())
    assert len(odd.splitlines()) == len(plain.splitlines())
    different = [
        line
        for line, other in zip(odd.splitlines(), plain.splitlines(), strict=True)
        if line != other
    ]
    assert len(different) == 1
    assert different[0].startswith("# model: ")


def test_small_jobs_need_one_host(text):
    script = text("megatron", {"tp": 4}, batch=8)
    assert "torchrun --nnodes=1 --nproc-per-node=4 pretrain_gpt.py" in script


def test_rack_scale_domains_have_hosts_of_four(text):
    script = text("megatron", {"tp": 8, "dp_shard": 8}, {"zero_stage": 1}, system="gb200-nvl72")
    assert "torchrun --nnodes=16 --nproc-per-node=4 " in script


def test_fp16_scales_the_loss(text):
    script = text("torch", {"dp_shard": 8}, {"zero_stage": 1}, precision=Precision(matmul="fp16"))
    assert "DTYPE = torch.float16" in script
    assert "scale the loss with torch.amp.GradScaler" in script


def test_autoparallel_gets_the_mesh_and_the_memory_of_the_plan(make_plan):
    """Weights of the hand-made plan take 64 GiB: more than all, so nothing is bound."""
    plan = make_plan({"tp": 2, "dp_shard": 32}, {"zero_stage": 3, "recompute": Recompute.FULL},
                     system="64xH100", batch=32)  # fmt: skip
    assert parameter_share(plan) == 1.0
    held = plan.best.estimate.memory_parts_bytes | {"weights_bytes": 0.3e9}
    estimate = replace(plan.best.estimate, memory_parts_bytes=held)
    plan = replace(plan, best=replace(plan.best, estimate=estimate))
    # 8,030,261,248 parameters in 2 bytes: 0.3 GB are 0.0186793... of them, more than 1/64.
    assert plan.workload.optimizer.weight_bytes_per_param == 2
    assert parameter_share(plan) == 0.018680
    files = rendered(asked_for(plan, "torchtitan-autoparallel"), "torchtitan-autoparallel")
    ast.parse(files["torchtitan_autoparallel.py"])
    assert "PARAMETER_SHARE = 0.01868\n" in files["torchtitan_autoparallel.py"]
    options = options_of(files["torchtitan_autoparallel.sh"])
    assert options["--parallelism.data_parallel_shard_degree"] == "32"
    assert options["--compile.mode"] == "aot_fx_trace"
    assert options["--compile.memory_policy"] == "full"


def test_autoparallel_names_each_axis_that_it_does_not_search(make_plan):
    plan = make_plan(
        {"pp": 2, "cp": 2, "dp_shard": 2, "dp_replicate": 2},
        {"zero_stage": 3}, batch=128, length=4096,
    )  # fmt: skip
    found = {fault.path: fault for fault in exporters["torchtitan-autoparallel"].refusals(plan)}
    for axis, fix in (("pp", "--pp 1"), ("cp", "--cp 1"), ("dp_replicate", "--dp-shard 4")):
        assert "AutoParallel searches fsdp and tp" in found[f"strategy.{axis}"].message
        assert found[f"strategy.{axis}"].fix == fix
    assert "always recomputes" in found["plan_options.recompute"].message
    assert found["strategy.micro_batch_size"].fix == "--mbs 32"
    assert "strategy.tp" not in found
