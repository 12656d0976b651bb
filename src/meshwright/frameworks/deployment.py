"""Files that start the workers of an answer of serving, and that measure them under its requests.

Source of the benchmark: vLLM 0.33, ``benchmarks/serve.py`` and ``benchmarks/datasets/datasets.py``;
it asks every server with the interface of OpenAI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, sqrt

from meshwright.base.errors import UnsupportedError
from meshwright.frameworks.kubernetes import (
    FOLDER,
    LOADING_S,
    RESOURCES,
    Manifest,
    answers_at,
    config_map,
    container,
    deployment,
    leader_worker_set,
    manifest_text,
    name_of,
    pod,
    run_once,
    service,
)
from meshwright.frameworks.launch import on_one_line, shell_script
from meshwright.frameworks.programs.servers import MODEL, SERVERS, script
from meshwright.frameworks.table import Words
from meshwright.frameworks.workers import (
    Requests,
    Workers,
    requests_of,
    workers_of,
)
from meshwright.serve.answer_files import ServingAnswer

BENCHMARK = "benchmark.sh"
SECONDS = 300.0
"""Time in which a benchmark sends its requests [s]."""
ROUNDS = 10
"""Requests of a benchmark for each one in flight."""
REGULAR = "1e6"
"""Burstiness of arrivals at equal intervals: the shape of a gamma distribution."""
WIDEST = 0.99
"""Half width of the lengths that are drawn, over their mean, at most."""


def served(answer: ServingAnswer, target: str, launcher: str | None = None) -> dict[str, str]:
    """Return the script of each kind of worker, the benchmark, and the manifests of a cluster.

    Raises
    ------
    UnsupportedError
        When the server cannot express the answer; names everything that it cannot.
    """
    if launcher not in (None, "kubernetes"):
        raise UnsupportedError(f"--launcher {launcher}: servers are started by kubernetes")
    kinds = workers_of(answer)
    files = {_script_name(one, target): script(one, target) for one in kinds}
    files[BENCHMARK] = _benchmark(answer, target)
    if launcher is not None:
        files[f"{target}.k8s.yaml"] = _manifests(kinds, files, target)
    return files


def _script_name(workers: Workers, target: str) -> str:
    return f"{target}-{workers.role}.sh" if workers.role else f"{target}.sh"


def _benchmark(answer: ServingAnswer, target: str) -> str:
    """Return the script that sends the requests of an answer to its workers."""
    asked = requests_of(answer)
    comments = [
        f"vLLM 0.33 bench serve, written by meshwright {answer.version}".rstrip(),
        f"predicted: {' '.join(answer.best.brief().split())}",
        *_differences(asked),
        "BASE_URL: the server, or the router before several of them",
    ]
    url = f'--base-url "${{BASE_URL:-http://127.0.0.1:{SERVERS[target].port}}}"'
    program = " \\\n    ".join(["vllm bench serve", "--backend openai", url, f"--model {MODEL}"])
    head = [f"# {on_one_line(line)}" for line in comments]
    return shell_script(head, (), [program], _sent(asked))


def _sent(asked: Requests) -> Iterator[Words]:
    """Yield the options of the benchmark that state requests and limits."""
    traffic = asked.traffic
    prompt, answer = asked.prompt_length, asked.answer_length
    number, prefixes = ROUNDS * asked.in_flight, 0
    if traffic is not None:
        number = ceil(traffic.rate_per_s * SECONDS)
        prefixes = traffic.num_prefixes if traffic.shared_prefix else 0
    if traffic is not None and prefixes and traffic.shared_prefix < prompt:
        begin = "--prefix-repetition"
        yield "--dataset-name", "prefix_repetition"
        yield f"{begin}-prefix-len", f"{traffic.shared_prefix}"
        yield f"{begin}-suffix-len", f"{prompt - traffic.shared_prefix}"
        yield f"{begin}-num-prefixes", f"{prefixes}"
        yield f"{begin}-output-len", f"{answer}"
        number = prefixes * ceil(number / prefixes)
    else:
        yield "--dataset-name", "random"
        yield "--random-input-len", f"{prompt}"
        yield "--random-output-len", f"{answer}"
        if traffic is not None and traffic.length_spread:
            # A uniform distribution of half width r has a standard deviation of r / sqrt(3).
            width = min(sqrt(3.0) * traffic.length_spread, WIDEST)
            yield "--random-range-ratio", f"{width:.3g}"
    yield ("--ignore-eos",)
    yield "--ready-check-timeout-sec", f"{LOADING_S}"
    yield "--num-prompts", f"{number}"
    if traffic is None:
        yield "--max-concurrency", f"{asked.in_flight}"
    else:
        yield "--request-rate", f"{traffic.rate_per_s:g}"
        if traffic.arrivals == "constant":
            yield "--burstiness", REGULAR
    yield "--percentile-metrics", "ttft,tpot,e2el"
    yield "--metric-percentiles", "50,90,95,99"
    if asked.limits_s:
        limits = [f"{name}:{1e3 * limit_s:g}" for name, limit_s in asked.limits_s.items()]
        yield "--goodput", *limits


def _differences(asked: Requests) -> Iterator[str]:
    """Yield the ways in which the requests of the benchmark differ from those of the answer."""
    traffic = asked.traffic
    if traffic is None:
        return
    if traffic.trace:
        yield f"requests have the mean lengths and the mean rate of {traffic.trace}"
    if traffic.turns > 1:
        yield f"requests begin with no earlier ones: conversations had {traffic.turns} turns"
    if traffic.length_spread:
        yield "lengths have another distribution: uniform" + (
            ", and one length with shared prefixes" if traffic.shared_prefix else ""
        )


def _manifests(kinds: Sequence[Workers], files: dict[str, str], target: str) -> str:
    """Return the workers of each kind, an address of each kind, and the benchmark as a job."""
    name, server = name_of(kinds[0].model.name), SERVERS[target]
    title, config = server.table.written, f"{name}-serve"
    manifests: list[Manifest] = [config_map(config, files)]
    for one in kinds:
        own = f"{name}-{one.role}" if one.role else name
        manifests += [_workers(one, own, config, target), service(own, server.port)]
    url = "http://ROUTER" if kinds[0].role else f"http://{name}:{server.port}"
    stated = {"env": [{"name": "MODEL", "value": "MODEL"}, {"name": "BASE_URL", "value": url}]}
    measures = container(
        "benchmark", _image("vllm"), f"exec bash {FOLDER}/{BENCHMARK}", more=stated
    )
    manifests.append(run_once(f"{name}-benchmark", pod(config, measures, restartPolicy="Never")))
    comments = [
        f"{title}, written by meshwright {kinds[0].version}".rstrip(),
        f"workers: {'; '.join(f'{one.role} {one.number} x ({one.text})'.strip() for one in kinds)}",
        "set MODEL to the weights: a folder of an image or a volume, or a name of Hugging Face",
        f"then: kubectl apply -f {target}.k8s.yaml; the benchmark waits for the servers",
    ]
    vendor = kinds[0].system.chip.vendor
    if vendor != "NVIDIA":
        comments.append(f"set IMAGE to one that holds the server for chips of {vendor}")
    if kinds[0].role:
        comments.append("set ROUTER to the router of both kinds of workers, of your choice")
    if any(one.num_hosts > 1 for one in kinds):
        comments.append("LeaderWorkerSet: install its controller (kubernetes-sigs/lws) first")
    return manifest_text([f"# {on_one_line(line)}" for line in comments], manifests)


def _image(target: str, vendor: str = "NVIDIA") -> str:
    """Return the image of a server, of the version that was written; known for CUDA alone."""
    server = SERVERS[target]
    return f"{server.image}:{server.tag}" if vendor == "NVIDIA" else "IMAGE"


def _workers(one: Workers, name: str, config: str, target: str) -> Manifest:
    """Return a Deployment of workers of one host, or a LeaderWorkerSet."""
    server, hosts = SERVERS[target], one.num_hosts
    if hosts > 1 and server.launcher(one.num_devices):
        raise UnsupportedError(
            f"{server.table.written}: mpirun starts a worker of {hosts} hosts, which no pod has"
        )
    start = f"exec bash {FOLDER}/{_script_name(one, target)} --host 0.0.0.0 --port {server.port}"
    vendor = one.system.chip.vendor
    devices = {RESOURCES[vendor]: one.num_devices // hosts}
    weights = {"env": [{"name": "MODEL", "value": "MODEL"}]}

    def each(before: str, more: dict[str, object]) -> dict[str, object]:
        ran = container(target, _image(target, vendor), before + start, devices=devices, more=more)
        return pod(config, ran)

    first = {**weights, **answers_at(server.port)}
    if hosts == 1:
        return deployment(name, one.number, each("", first))
    told = 'export HEAD_ADDRESS="$LWS_LEADER_ADDRESS" NODE_RANK="$LWS_WORKER_INDEX"; '
    others = each(f"{told}export HEADLESS=1; ", dict(weights))
    return leader_worker_set(name, one.number, hosts, each(told, first), others)
