"""Commands with damaged files or odd options: one question for each seed."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import exported_programs
from fuzz import damage

from meshwright.ask.questions import COMMANDS

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "meshwright"
CATALOG = PACKAGE / "catalog" / "data"
KERNELS = TESTS.parent / "papers" / "src" / "meshwright_papers" / "kernels" / "data"
ON = ("--seq", "1k", "--global-batch", "16")
PLANS = {
    "plan.json": ("estimate", "gpt2-medium", "--on", "8xH100", *ON, "--pp", "2"),
    "wafer.json": ("estimate", "gpt2-medium", "--on", "wafer-2x4", *ON, "--tp", "2"),
    "serving.json": ("serve", "gpt2-medium", "--on", "2xH100", "--batch", "8",
                     "--context", "1k"),
}  # fmt: skip
"""Files of plans, and what makes them."""
VERBS = {
    "plan.json": ("explain {}", "simulate {}", "export {} megatron --out out --force", "check {}"),
    "wafer.json": ("check {}", "simulate {}", "place {}"),
    "serving.json": ("export {} vllm --out out --force",),
}
ROWS = """[{"id": "m", "group": "mine", "framework": "megatron",
 "model": "gpt2-medium", "system": "8xH100", "sequence_length": 1024,
 "strategy": {"tp": 2, "pp": 2, "zero_stage": 1, "micro_batch_size": 1,
 "recompute": "full"},
 "global_batch_size": 16, "precision": "bf16", "software": {"dropout": true},
 "measured": {"tokens_per_s_per_chip": 8500.0, "memory_bytes": 3e10}}]"""
TRACE = """{"traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100},
 {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 40, "args": {"stream": 7}},
 {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 30, "dur": 30}]}"""
FLOWS = """{"name": "two", "links": [{"id": "a", "bw_Bps": 1e10, "lat_s": 1e-6},
 {"id": "b", "bw_Bps": 1e9, "lat_s": 0}], "flows": [{"id": 0, "route": ["a", "b"], "bytes": 1e9},
 {"id": 1, "route": ["a"], "bytes": 1000, "start_s": 1}]}"""
DEMANDS = """{"name": "two", "links": [
 {"id": "0>1", "bw_Bps": 2.5e10, "lat_s": 5e-06, "src": 0, "dst": 1},
 {"id": "1>2", "bw_Bps": 2.5e10, "lat_s": 5e-06, "src": 1, "dst": 2}],
 "flows": [{"id": 0, "src": 0, "dst": 2, "bytes": 1e6},
  {"id": 1, "src": 0, "dst": 1, "bytes": 9}]}"""
ROUTED = """{"name": "two", "flows": [{"id": 0, "src": 0, "dst": 5, "bytes": 1e6},
 {"id": 1, "src": 3, "dst": [1, 2], "bytes": 4e6}]}"""
SWEEP = """name: few
ask: plan
fixed: {seq: 1k, model: gpt2-124m, global_batch: 16, tp: 1}
vary: {on: [2xH100, 2xA100], zero: [1, 3]}
heat_map: {rows: on, columns: zero, shows: tokens_per_s, better: highest}
"""
CASES = """name: cases
ask: graph
cases: {work: {FFT: {graph: fft-64x64, passes: 64}}}
vary: {on: [4xH100, 8xH100]}
"""
GRAPHS = ("dlrm-a", "fft-1g")
PLACEMENT = '{"devices": [0, 1, 2, 3, 7, 6, 5, 4]}'
WORKLOAD = (
    "kind: training\nsequence_length: 1024\nglobal_batch_size: 16\n"
    "optimizer: fsdp-mixed\nprecision: {matmul: fp8}\ntotal_tokens: 15e12\n"
)
LAYERS = """name: own
layers:
  - {name: a, weights: 10 MB, activations: 1 MB, time: 2 ms, output: 16 KiB}
  - {name: b, size: 12 MB, repeat: 3, time: 1 ms}
"""
TABLE = "name,repeat,weights_bytes,time_s,output_bytes\na,2,1e6,0.001,100\nb,1,2e6,0.002,100\n"


def onnx_file() -> bytes:
    """Return a network of two layers with an open batch, in ONNX."""
    from onnx import TensorProto, helper

    def known(name: str, *shape: int | str) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def held(name: str, kind: int, *values: int) -> object:
        return helper.make_tensor(name, kind, [len(values)], list(values))

    nodes = [
        helper.make_node("Conv", ["image", "filter"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Reshape", ["b", "shape"], ["c"], name="flat"),
        helper.make_node("Gemm", ["c", "matrix", "shift"], ["d"], name="head", transB=1),
        helper.make_node("Softmax", ["d"], ["e"], name="chance"),
    ]
    weights = [
        helper.make_tensor("filter", TensorProto.FLOAT, [4, 3, 3, 3], [0.5] * 108),
        held("shape", TensorProto.INT64, 2, -1),
        helper.make_tensor("matrix", TensorProto.FLOAT, [2, 64], [0.1] * 128),
        helper.make_tensor("shift", TensorProto.FLOAT, [2], [0.0, 1.0]),
    ]
    graph = helper.make_graph(
        nodes, "small", [known("image", 2, 3, 4, 4)], [known("e", 2, 2)], initializer=weights
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return bytes(made.SerializeToString())


def exported_file() -> bytes:
    """Return a program as ``torch.export`` writes it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/models/model.json", json.dumps(exported_programs.program(4)))
    return made.getvalue()


File = tuple[tuple[str, ...], str, bytes]
"""Words of a command in which ``{}`` is a file, its suffix and its right content."""


@cache
def launch_files() -> tuple[File, ...]:
    """Return the files that start a job of someone."""
    found: list[File] = []
    jobs = [*(TESTS / "data" / "jobs").iterdir(), *(TESTS / "cases").rglob("*.*")]
    for path in sorted(path for path in jobs if path.is_file()):
        if path.suffix in (".sh", ".slurm", ".yaml", ".yml", ".json", ".toml", ".dockerfile") or (
            path.suffix == ".py" and "jobs" in path.parts
        ):
            verbs = [*["read {}"] * 8, "fit --from {}", "check --from {} --on 8xH100"]
            found.extend((tuple(words.split()), path.suffix, path.read_bytes()) for words in verbs)
    return tuple(found)


@cache
def files(folder: Path) -> tuple[File, ...]:
    """Return the files of a form of ours, and those that hold a program or a trace."""
    found: list[File] = []

    def add(words: str, suffix: str, content: bytes | str) -> None:
        whole = content.encode() if isinstance(content, str) else content
        is_read = words.split()[0] in ("show", "read", "fit", "check", "export", "partition")
        found.extend([(tuple(words.split()), suffix, whole)] * (8 if is_read else 1))

    for name in ("gpt2-355m", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b"):
        content = (CATALOG / "models" / f"{name}.json").read_bytes()
        add("show model {}", ".json", content)
        add("estimate {} --on 8xH100 --seq 1k --global-batch 16", ".json", content)
    for name in ("H100", "SN10", "TEMP-die", "WSE-3"):
        add("show chip {}", ".yaml", (CATALOG / "chips" / f"{name}.yaml").read_bytes())
    for name in ("dgx-h100", "sn10-node", "wafer", "tpu-v5e", "gb200-nvl72"):
        content = (CATALOG / "systems" / f"{name}.yaml").read_bytes()
        add("show system {}", ".yaml", content)
        add("estimate gpt2-medium --on {} --seq 1k --global-batch 2304", ".yaml", content)
        add("fit gpt2-medium --on {} --seq 1k --global-batch 2304", ".yaml", content)
    add("estimate gpt2-medium --on 16xH100 --seq 1k --global-batch 16 --network {}", ".yaml",
        (CATALOG / "links" / "100GbE.yaml").read_bytes())  # fmt: skip
    add("estimate gpt2-medium --on 8xH100 --seq 1k --global-batch 16 --calibration {}", ".yaml",
        (CATALOG / "calibration" / "calibrated.yaml").read_bytes())  # fmt: skip
    for suffix, content in ((".onnx", onnx_file()), (".pt2", exported_file())):
        for words in (
            "read {}", "show graph {}", "show graph {} --training", "show graph {} --yaml",
            "fuse {} --on H100 --precision fp32", "map {} --on 4xH100 --precision fp32",
        ):  # fmt: skip
            add(words, suffix, content)
    passing = (TESTS / "cases" / "dataflow" / "passing.yaml").read_bytes()
    for content in (passing, *((CATALOG / "graphs" / f"{n}.yaml").read_bytes() for n in GRAPHS)):
        add("show graph {}", ".yaml", content)
        add("fuse {} --on SN10", ".yaml", content)
        add("map {} --on 4xSN10", ".yaml", content)
    for name in PLANS:
        content = (folder / name).read_bytes()
        for words in VERBS[name]:
            add(words, ".json", content)
    add("explain plan.json --trace {}", ".json", TRACE)
    add("explain plan.json --trace {}", ".gz", gzip.compress(TRACE.encode(), mtime=0))
    add("validate --measurements {}", ".json", ROWS)
    add("simulate flows {}", ".json", FLOWS)
    add("route {}", ".json", DEMANDS)
    add("route {} --on wafer-4x8", ".json", ROUTED)
    add("sweep {}", ".yaml", SWEEP)
    add("sweep {}", ".yaml", CASES)
    add("place wafer.json {}", ".json", PLACEMENT)
    add("fit gpt2-medium --on 8xH100 --workload {}", ".yaml", WORKLOAD)
    add("partition --layers {} --on 2xGroq-LPU", ".yaml", LAYERS)
    add("partition --layers {} --on 2xGroq-LPU", ".csv", TABLE)
    for path in sorted(KERNELS.glob("*.csv.gz")):
        table = b"".join(gzip.decompress(path.read_bytes()).splitlines(keepends=True)[:8])
        add("validate --kernels --measurements {}", ".csv", table)
        add("validate --kernels --measurements {}", ".gz", gzip.compress(table, mtime=0))
    return tuple(found)


BASES = tuple(
    tuple(line.split())
    for line in """
estimate gpt2-medium --on 8xH100 --seq 1k --global-batch 16
estimate gpt2-medium --on wafer-4x8 --seq 1k --global-batch 64 --tp 4
estimate mixtral-8x7b --on 64xH100 --seq 4k --global-batch 64 --ep 8
plan gpt2-medium --on 4xH100 --seq 1k --global-batch 16
plan gpt2-medium --on wafer-4x4 --seq 1k --global-batch 16
serve gpt2-medium --on 2xH100 --batch 8 --context 1k
map dlrm-a --on 8xSN10
fit gpt2-medium --on 8xH100 --seq 1k --global-batch 16
check gpt2-medium --on 8xH100 --seq 1k --global-batch 16 --pp 2
explain gpt2-medium --on 8xH100 --seq 1k --global-batch 16
explain plan.json --measured 1s
compare gpt2-medium --on 4xH100 --seq 1k --global-batch 16 --against fsdp
simulate wafer.json
partition gpt2-medium --on 4xGroq-LPU
fuse fft-1g --on SN10
export plan.json megatron --out out --force
show model gpt2-medium
show chip H100
show system 8xH100
show framework megatron
show optimizer
show schema plan
show collectives --on 8xH100 --size 64MiB --group 8
show walk tp --group 4
show topologies
show graph dlrm-a
""".strip().splitlines()
)
WRITTEN = ("out", "report", "picture", "trace", "document", "heat_map", "from_", "file")
"""Options whose value is a path: they keep theirs."""


def options(chance: Random) -> list[str]:
    """Return a command with one to three options that are added, or have another value."""
    words = list(chance.choice(BASES))
    name = next(n for n in (" ".join(words[:2]), words[0]) if n in COMMANDS)
    table = [one for one in COMMANDS[name].options.values() if not one.is_hidden]
    for _ in range(chance.randint(1, 3)):
        given = [place for place in range(1, len(words)) if not words[place].startswith("--")]
        if given and chance.random() < 0.3:
            words[chance.choice(given)] = _value(chance, ())
            continue
        option = chance.choice(table)
        if option.is_positional or option.name in WRITTEN:
            continue
        value = [] if option.is_flag else [_value(chance, option.choices)]
        words += ["--with", "=".join((option.word, *value))] if option.is_rare else [
            option.flag, *value
        ]  # fmt: skip
    return words


def _value(chance: Random, choices: tuple[str, ...]) -> str:
    if choices and chance.random() < 0.5:
        return chance.choice(choices)
    return chance.choice(damage.VALUES).replace("\x00", "0")


def question(seed: int, folder: Path) -> list[str]:
    """Return the words of a question; its damaged file is written into the working folder."""
    chance = Random(seed)
    kind = chance.random()
    if kind < 0.05:  # what is searched costs a hundred times what is read
        return options(chance)
    words, suffix, content = chance.choice(launch_files() if kind < 0.6 else files(folder))
    path = Path(f"damaged{suffix}")
    path.write_bytes(damage.content(content, suffix, chance))
    return [word.replace("{}", str(path)) for word in words]
