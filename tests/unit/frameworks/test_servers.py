"""Plans of serving as commands of servers, and what these do not say."""

import shlex
from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError, MeshwrightError, SpecError, UnsupportedError
from meshwright.cli.main import main
from meshwright.frameworks.deployment import served
from meshwright.frameworks.programs.servers import SERVERS
from meshwright.serve.answer import SERVING_FILE
from meshwright.serve.view import launches_text

NAMES = {
    "vllm": ("--tensor-parallel-size", "--pipeline-parallel-size", "--max-model-len",
             "--max-num-seqs"),
    "sglang": ("--tp-size", "--pp-size", "--context-length", "--max-running-requests"),
    "tensorrt-llm": ("--tp_size", "--pp_size", "--max_seq_len", "--max_batch_size"),
}  # fmt: skip
"""Degrees, longest sequence, and sequences at once."""


@pytest.fixture(scope="module")
def plan():
    """Return a plan of two replicas."""
    return mw.serve("llama3-8b", on="8xH100", context=4096, batch=64, tp=4, pp=1)


def words_of(plan, name):
    """Return the words of a command without its comments."""
    script = served(plan, name)[f"{name}.sh"]
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    return shlex.split(" ".join(lines).replace("\\ ", " "))


@pytest.mark.parametrize("name", SERVERS)
def test_a_replica_has_its_degrees_and_its_share_of_the_sequences(plan, name):
    words = words_of(plan, name)
    found = [words[words.index(option) + 1] for option in NAMES[name]]
    share = -(-plan.best.estimate.sequences_in_flight // plan.best.strategy.dp)
    assert plan.best.strategy.dp == 2
    assert found == ["4", "1", "4096", f"{share:.0f}"]
    assert "--dtype" not in words  # trtllm-serve, commands/serve.py of 1.1, has no such option
    assert (
        "# replicas: 2; start this once for each, on 4 devices" in served(plan, name)[f"{name}.sh"]
    )


@pytest.mark.parametrize("name", SERVERS)
def test_narrow_weights_and_cache_are_said(name):
    narrow = mw.serve(
        "llama3-8b", on="8xH100", context=4096, batch=64, tp=4, pp=1,
        precision="fp8", kv_cache="fp8",
    )  # fmt: skip
    words = words_of(narrow, name)
    if name != "tensorrt-llm":  # whose checkpoints say so themselves
        assert words[words.index("--quantization") + 1] == "fp8"
        assert words[words.index("--kv-cache-dtype") + 1].startswith("fp8")


@pytest.mark.parametrize(
    ("degrees", "path", "fix"),
    [({"cp": 2.0, "dp_replicate": 1.0}, "strategy.cp", "cp=1"),
     ({"pp": 3.0}, "strategy", "at most 8 devices of a server, or a multiple of them")],
)  # fmt: skip
def test_refused_by_name_with_a_fix(plan, degrees, path, fix):
    best = replace(plan.best, strategy=replace(plan.best.strategy, **degrees))
    with pytest.raises(UnsupportedError) as caught:
        served(replace(plan, best=best), "vllm")
    assert [(fault.path, fault.fix) for fault in caught.value.faults] == [(path, fix)]


def test_a_server_lies_on_whole_hosts(plan):
    """vLLM, docs/serving/parallelism_scaling.md: the same command on each host, with its rank."""
    best = replace(plan.best, strategy=replace(plan.best.strategy, pp=4.0))
    words = words_of(replace(plan, best=best), "vllm")
    assert words[words.index("--nnodes") + 1] == "2"
    assert {"--node-rank", "--master-addr"} <= set(words)
    words = words_of(replace(plan, best=best), "sglang")
    assert words[words.index("--nnodes") + 1] == "2"
    assert "--dist-init-addr" in words
    assert "mpirun -n 16 trtllm-llmapi-launch" in served(
        replace(plan, best=best), "tensorrt-llm")["tensorrt-llm.sh"]  # fmt: skip


def test_replicas_of_attention_share_the_experts_of_one_server():
    """vLLM, ``FusedMoEParallelConfig``: ep is tp x dp; SGLang, ``enable_dp_attention``."""
    over = mw.serve("mixtral-8x7b", on="8xH100", context=2048, batch=64, tp=4, ep=8)
    assert {"vllm", "sglang"} <= set(over.best.launches_with)
    words = words_of(over, "vllm")
    assert words[words.index("--data-parallel-size") + 1] == "2"
    assert words[words.index("--max-num-seqs") + 1] == "32"  # of each replica
    assert "--enable-expert-parallel" in words
    assert "replicas: 1; start this once for each, on 8 devices" in served(over, "vllm")["vllm.sh"]
    words = words_of(over, "sglang")
    names = ("--tp-size", "--dp-size", "--ep-size", "--max-running-requests")
    assert [words[words.index(name) + 1] for name in names] == ["8", "2", "8", "64"]
    assert "--enable-dp-attention" in words
    with pytest.raises(UnsupportedError, match="serve-joined"):
        served(over, "tensorrt-llm")


@pytest.mark.parametrize(("model", "system"), [("llama3.1-405b", "16xH100"),
                                               ("deepseek-v3", "16xH100"),
                                               ("deepseek-v3", "32xH100")])  # fmt: skip
def test_large_models_are_served_over_hosts(model, system):
    found = mw.serve(model, on=system, context=4096, batch=32, framework="vllm")
    assert found.best.estimate.fits
    assert served(found, "vllm")


@pytest.mark.parametrize("system", ["wafer-6x8", "4xWSE-3"])
def test_no_server_runs_on_machines_that_it_does_not_know(system):
    asked = {"on": system, "context": 2048, "batch": 8}
    assert mw.serve("llama3-8b", **asked).best.launches_with == ()
    with pytest.raises(SpecError, match="does not run on"):
        mw.serve("llama3-8b", **asked, framework="vllm")


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_what_is_planned_for_a_server_is_written_for_it(name, model):
    """On two hosts: the search comes to nothing that the exporter refuses."""
    asked = {"on": "16xH100", "context": 2048, "batch": 64}
    found = mw.serve(model, **asked, framework=name)
    for entry in (found.best, *found.runners_up):
        assert name in entry.launches_with
        served(replace(found, best=entry), name)


def test_without_a_server_nothing_is_refused_and_the_screen_names_those_that_start():
    asked = {"on": "16xH100", "context": 2048, "batch": 64}
    free = mw.serve("mixtral-8x7b", **asked, tp=4, ep=2)
    assert free.best.launches_with == ("sglang",)
    assert launches_text(free) == "with sglang; priced for generic (--framework)"
    # vLLM: whole experts on all devices of a layer, or a part of each on all of them.
    with pytest.raises(InfeasibleError, match="serve-experts"):
        mw.serve("mixtral-8x7b", **asked, tp=4, ep=2, framework="vllm")


@pytest.mark.parametrize(
    ("options", "text"),
    [({"framework": "vllm==0.1"}, "version '0.1'"), ({"framework": "megatron"}, "megatron trains"),
     ({"framework": "vllm", "kv_cache": "int8"}, "no KV cache in int8")],
)  # fmt: skip
def test_what_a_server_is_not_is_said(options, text):
    with pytest.raises(MeshwrightError, match=text):
        mw.serve("llama3-8b", on="8xH100", context=2048, batch=64, **options)


def test_a_server_does_not_train():
    with pytest.raises(SpecError, match="serves requests"):
        mw.plan("llama3-8b", on="8xH100", seq=2048, global_batch=64, framework="vllm")


@pytest.mark.parametrize("name", ["vllm", "megatron"])
def test_show_framework_prints_no_objects(name, capsys):
    assert main(["show", "framework", name]) == 0
    text = capsys.readouterr().out
    for word, is_there in {
        "axes": 1,
        "Sources": 1,
        "Source(": 0,
        "kind=": 0,
        "title=": 0,
    }.items():
        assert (word in text) == is_there


def test_the_command_reads_a_plan_of_serving(plan, tmp_path, capsys):
    path = tmp_path / "serving.json"
    SERVING_FILE.save(plan, path)
    assert main(["export", str(path), "vllm", "--print"]) == 0
    assert "--tensor-parallel-size 4" in capsys.readouterr().out
    assert main(["export", str(path), "vllm", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "vllm.sh").read_text("utf-8") == served(plan, "vllm")["vllm.sh"]
    assert main(["export", str(path), "vllm", "--launcher", "slurm"]) == 2


def test_an_unknown_target_is_told_the_near_server(capsys):
    assert main(["export", "plan.json", "vlm"]) == 2
    assert "unknown export target 'vlm'; did you mean vllm?" in capsys.readouterr().err
