"""Plans of serving as commands of servers, and what these do not say."""

import shlex
from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.errors import UnsupportedError
from meshwright.cli.main import main
from meshwright.frameworks.servers import SERVERS, served
from meshwright.serve.answer import SERVING_FILE

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
    return mw.serve("llama3-8b", on="8xH100", decode=True, context=4096, batch=64, tp=4, pp=1)


def words_of(plan, name):
    """Return the words of a command without its comments."""
    (script,) = served(plan, name).values()
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    return shlex.split(" ".join(lines).replace("\\ ", " "))


@pytest.mark.parametrize("name", SERVERS)
def test_a_replica_has_its_degrees_and_its_share_of_the_sequences(plan, name):
    words = words_of(plan, name)
    found = [words[words.index(option) + 1] for option in NAMES[name]]
    share = -(-plan.best.estimate.sequences_in_flight // plan.best.strategy.dp)
    assert plan.best.strategy.dp == 2
    assert found == ["4", "1", "4096", f"{share:.0f}"]
    assert (
        "# replicas: 2; start this once for each, on 4 devices" in served(plan, name)[f"{name}.sh"]
    )


@pytest.mark.parametrize("name", SERVERS)
def test_narrow_weights_and_cache_are_said(name):
    narrow = mw.serve(
        "llama3-8b", on="8xH100", decode=True, context=4096, batch=64, tp=4, pp=1,
        precision="fp8", kv_cache="fp8",
    )  # fmt: skip
    words = words_of(narrow, name)
    if name != "tensorrt-llm":  # whose checkpoints say so themselves
        assert words[words.index("--quantization") + 1] == "fp8"
        assert words[words.index("--kv-cache-dtype") + 1].startswith("fp8")


@pytest.mark.parametrize(
    ("degrees", "path", "fix"),
    [({"cp": 2.0}, "strategy.cp", "1"), ({"pp": 4.0}, "strategy", "at most 8"),
     ({"ep": 2.0}, "strategy.ep", "ep=4 or 1")],
)  # fmt: skip
def test_refused_by_name_with_a_fix(plan, degrees, path, fix):
    best = replace(plan.best, strategy=replace(plan.best.strategy, **degrees))
    with pytest.raises(UnsupportedError) as caught:
        served(replace(plan, best=best), "vllm")
    assert [(fault.path, fault.fix) for fault in caught.value.faults] == [(path, fix)]


def test_the_command_reads_a_plan_of_serving(plan, tmp_path, capsys):
    path = tmp_path / "serving.json"
    SERVING_FILE.save(plan, path)
    assert main(["export", str(path), "vllm", "--print"]) == 0
    assert "--tensor-parallel-size 4" in capsys.readouterr().out
    assert main(["export", str(path), "vllm", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "vllm.sh").read_text("utf-8") == served(plan, "vllm")["vllm.sh"]
    assert main(["export", str(path), "vllm", "--launcher", "slurm"]) == 2
