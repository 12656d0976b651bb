"""Servers on Kubernetes: workers by kind, their addresses, and a benchmark under their requests."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

import meshwright as mw
from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.frameworks.deployment import served

DATA = Path(__file__).parents[2] / "data"
TRAFFIC = {
    "on": "8xH100", "prompt": "1k", "answer": 128, "rate": 60, "tp": 1, "dp": 3,
    "framework": "vllm",
}  # fmt: skip


def words_of(script):
    """Return the words of the command of a script, without its head."""
    *_, command = script.split("pipefail\n")
    return shlex.split(command.replace("\\\n", ""))


def options_of(script):
    words = words_of(script)
    return {a: b for a, b in zip(words, [*words[1:], ""], strict=True) if a.startswith("--")}


def manifests_of(files):
    (text,) = [text for name, text in files.items() if name.endswith(".k8s.yaml")]
    found = [*yaml.safe_load_all(text)]
    assert found[0]["data"] == {name: t for name, t in files.items() if t != text}
    return found[1:]


@pytest.fixture(scope="module")
def traffic():
    return mw.serve("llama3.1-8b", **TRAFFIC, shared_prefix=256, num_prefixes=7, max_ttft="2s")


@pytest.mark.parametrize(("target", "port"), [("vllm", 8000), ("sglang", 30000)])
def test_workers_of_one_host_are_a_deployment(traffic, target, port):
    workers, address, job = manifests_of(served(traffic, target, "kubernetes"))
    assert workers["kind"] == "Deployment"
    assert workers["spec"]["replicas"] == 3
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert container["ports"] == [{"containerPort": port}]
    assert container["command"][-1] == (
        f"exec bash /launch/{target}.sh --host 0.0.0.0 --port {port}"
    )
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert address["spec"]["selector"] == labels == workers["spec"]["selector"]["matchLabels"]
    measures = job["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "BASE_URL", "value": f"http://{address['metadata']['name']}:{port}"} in (
        measures["env"]
    )


def test_limits_of_the_server_are_those_that_were_priced():
    found = mw.serve(
        "llama3.1-8b", **TRAFFIC | {"rate": 30}, most_sequences=48, most_pass_tokens=4096
    )
    assert options_of(served(found, "vllm")["vllm.sh"]) == {
        "--tensor-parallel-size": "1", "--pipeline-parallel-size": "1", "--max-model-len": "1152",
        "--max-num-seqs": "48", "--max-num-batched-tokens": "4096",
    }  # fmt: skip


def test_the_benchmark_sends_the_requests_of_the_question(traffic):
    """60 requests/s in 300 s are 18,000; seven prefixes take a multiple of seven, 18,004."""
    script = served(traffic, "vllm")["benchmark.sh"]
    asked = options_of(script)
    assert words_of(script)[:3] == ["vllm", "bench", "serve"]
    assert asked["--dataset-name"] == "prefix_repetition"
    assert asked["--prefix-repetition-prefix-len"] == "256"
    assert asked["--prefix-repetition-suffix-len"] == "768"
    assert asked["--prefix-repetition-num-prefixes"] == "7"
    assert asked["--num-prompts"] == "18004"
    assert asked["--request-rate"] == "60"
    assert asked["--goodput"] == "ttft:2000"


def test_lengths_that_differ_have_the_same_deviation():
    """Uniform within r of the mean: a deviation of r / sqrt(3), so 0.3 asks for r = 0.52."""
    found = mw.serve("llama3.1-8b", **TRAFFIC, length_spread=0.3, arrivals="constant")
    script = served(found, "vllm")["benchmark.sh"]
    asked = options_of(script)
    assert asked["--random-range-ratio"] == "0.52"
    assert float(asked["--burstiness"]) == 1e6
    assert "another distribution" in script


def test_the_benchmark_has_options_of_vllm(traffic):
    known = json.loads((DATA / "export_options.json").read_text("utf-8"))["vllm_bench"]["options"]
    for answer in (traffic, mw.serve("llama3-8b", on="2xH100", batch=8, prompt="2k")):
        assert set(options_of(served(answer, "vllm")["benchmark.sh"])) <= set(known)


def test_a_closed_loop_keeps_its_requests_in_flight():
    found = mw.serve("llama3-8b", on="2xH100", batch=32, prompt="2k", answer=64, framework="sglang")
    asked = options_of(served(found, "sglang")["benchmark.sh"])
    assert (asked["--random-input-len"], asked["--random-output-len"]) == ("2048", "64")
    assert (asked["--max-concurrency"], asked["--num-prompts"]) == ("32", "320")


def test_workers_of_several_hosts_are_a_leader_worker_set():
    found = mw.serve("llama3.1-405b", on="16xH100", batch=16, context="4k", tp=8, pp=2,
                     framework="vllm")  # fmt: skip
    files = served(found, "vllm", "kubernetes")
    workers, _, _ = manifests_of(files)
    assert workers["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    group = workers["spec"]["leaderWorkerTemplate"]
    assert (workers["spec"]["replicas"], group["size"]) == (1, 2)
    (first,) = group["leaderTemplate"]["spec"]["containers"]
    (other,) = group["workerTemplate"]["spec"]["containers"]
    assert first["resources"] == other["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "HEADLESS" in other["command"][-1]
    assert "HEADLESS" not in first["command"][-1]
    told = {"LWS_LEADER_ADDRESS": "head", "LWS_WORKER_INDEX": "1", "MODEL": "weights"}
    ran = other["command"][-1].replace("exec bash /launch/vllm.sh", "set --")
    program = files["vllm.sh"].replace("vllm serve", "echo")
    done = subprocess.run(["bash", "-c", f"{ran}\n{program}"], env=told, check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert "--nnodes 2 --node-rank 1 --master-addr head --headless --host 0.0.0.0" in done.stdout


def test_workers_of_both_kinds_have_addresses_of_their_own():
    found = mw.serve("llama3-8b", on="8xH100", disaggregated=True, batch=64, prompt="2k",
                     answer=64, max_ttft="1s", framework="vllm")  # fmt: skip
    *workers, job = manifests_of(served(found, "vllm", "kubernetes"))
    named = [(one["kind"], one["metadata"]["name"]) for one in workers]
    assert named == [
        ("Deployment", "llama3-8b-prefill"), ("Service", "llama3-8b-prefill"),
        ("Deployment", "llama3-8b-decode"), ("Service", "llama3-8b-decode"),
    ]  # fmt: skip
    assert workers[0]["spec"]["replicas"] == found.best.prefill.number
    assert workers[2]["spec"]["replicas"] == found.best.decode.number
    (measures,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "BASE_URL", "value": "http://ROUTER"} in measures["env"]


def test_other_chips_have_resources_of_their_own_and_an_image_that_is_chosen():
    found = mw.serve("llama3-8b", on="2xMI300X", batch=32, context="2k", framework="vllm")
    files = served(found, "vllm", "kubernetes")
    (container,) = manifests_of(files)[0]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "IMAGE"
    assert list(container["resources"]["limits"]) == ["amd.com/gpu"]
    assert "set IMAGE to one that holds the server for chips of AMD" in files["vllm.k8s.yaml"]


def test_what_no_cluster_starts_is_refused(traffic):
    with pytest.raises(UnsupportedError, match="servers are started by kubernetes"):
        served(traffic, "vllm", "slurm")
    found = mw.serve("llama3.1-405b", on="16xH100", batch=16, context="4k", tp=8, pp=2,
                     framework="tensorrt-llm-pytorch")  # fmt: skip
    with pytest.raises(UnsupportedError, match="mpirun starts a worker of 2 hosts"):
        served(found, "tensorrt-llm", "kubernetes")


def test_an_answer_of_traffic_is_read_as_it_was_written(traffic, tmp_path):
    path = tmp_path / "traffic.json"
    found = mw.serve("llama3.1-8b", **TRAFFIC, out=str(path))
    assert mw.load(path) == found
    assert mw.export(str(path), "vllm", print=True) == served(found, "vllm")
    with pytest.raises(SpecError, match=r"a plan of traffic.*a plan of training"):
        mw.explain(str(path))
