"""Commands with damaged files or odd options: one question for each seed."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from random import Random

from fuzz import damage

from meshwright.options.table import COMMANDS

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "meshwright"
CATALOG = PACKAGE / "catalog" / "data"
ON = ("--seq", "1k", "--global-batch", "16")
PLANS = {
    "plan.json": ("estimate", "gpt2-medium", "--on", "8xH100", *ON, "--pp", "2"),
    "wafer.json": ("estimate", "gpt2-medium", "--on", "wafer-4x8", *ON, "--tp", "4"),
    "serving.json": ("plan", "gpt2-medium", "--on", "2xH100", "--decode", "--batch", "8",
                     "--context", "1k"),
}  # fmt: skip
"""Files of plans, and what makes them."""
ROWS = """[{"id": "m", "group": "mine", "framework": "megatron-lm",
 "model": {"name": "own", "seq": 2048, "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096,
 "vocab": 32000}, "hardware": {"chip": "H100", "chips": 8, "inter_node": "400 Gb/s"},
 "parallelism": {"tp": 2, "pp": 2, "zero_stage": 1}, "global_batch": 16, "micro_batch": 1,
 "precision": "bf16", "recompute": "full", "features": {"sp": true},
 "measured": {"tokens_per_s_per_chip": 8500.0, "memory_bytes_per_chip": 3e10}}]"""
TRACE = """{"traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100},
 {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 40, "args": {"stream": 7}},
 {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 30, "dur": 30}]}"""
FLOWS = """{"links": [{"name": "a", "bandwidth": "10 GB/s"}, {"name": "b", "bandwidth": 1e9}],
 "flows": [{"route": ["a", "b"], "bytes": 1e9}, {"route": ["a"], "bytes": "1 GB"}]}"""
ROUTED = """{"flows": [{"sender": 0, "receivers": [5], "bytes": 1e6},
 {"sender": 3, "receivers": [1, 2], "bytes": "4 MB"}]}"""
SWEEP = """name: few
ask: estimate
fixed: {seq: 1k, model: gpt2-medium, global_batch: 16}
vary: {on: [8xH100, 8xA100], pp: [1, 2]}
"""
LAYERS = """layers:
  - {name: a, weights: 10 MB, activations: 1 MB, flops: 2 GFLOP}
  - {name: b, weights: 12 MB, activations: 1 MB, flops: 3 GFLOP}
"""


@cache
def files(folder: Path) -> tuple[tuple[tuple[str, ...], str, bytes], ...]:
    """Return words of a command in which ``{}`` is a file, its suffix and its right content."""
    found: list[tuple[tuple[str, ...], str, bytes]] = []

    def add(words: str, suffix: str, content: bytes | str) -> None:
        whole = content.encode() if isinstance(content, str) else content
        found.append((tuple(words.split()), suffix, whole))

    jobs = [*(TESTS / "data" / "jobs").iterdir(), *(TESTS / "cases").rglob("*.*")]
    for path in sorted(path for path in jobs if path.is_file()):
        if path.suffix in (".sh", ".slurm", ".yaml", ".yml", ".json", ".toml", ".dockerfile") or (
            path.suffix == ".py" and "jobs" in path.parts
        ):
            add("read {}", path.suffix, path.read_bytes())
    for name in ("gpt2-355m", "llama3-8b", "mixtral-8x7b", "deepseek-v3", "nemotron-h-8b"):
        content = (CATALOG / "models" / f"{name}.json").read_bytes()
        add("show model {}", ".json", content)
        add("estimate {} --on 8xH100 --seq 1k --global-batch 16", ".json", content)
    for name in ("H100", "SN10", "TEMP-die", "WSE-3"):
        add("show chip {}", ".yaml", (CATALOG / "chips" / f"{name}.yaml").read_bytes())
    for name in ("dgx-h100", "sn10-node", "wafer", "tpu-v5e", "gb200-nvl72"):
        content = (CATALOG / "systems" / f"{name}.yaml").read_bytes()
        add("show system {}", ".yaml", content)
        add("estimate gpt2-medium --on {} --seq 1k --global-batch 64", ".yaml", content)
        add("fit gpt2-medium --on {} --seq 1k --global-batch 64", ".yaml", content)
    add("estimate gpt2-medium --on 8xH100 --seq 1k --global-batch 16 --network {}", ".yaml",
        (CATALOG / "links" / "100GbE.yaml").read_bytes())  # fmt: skip
    add("estimate gpt2-medium --on 8xH100 --seq 1k --global-batch 16 --calibration {}", ".yaml",
        (CATALOG / "calibration" / "calibrated.yaml").read_bytes())  # fmt: skip
    for name in ("dlrm-a", "fft-1g"):
        content = (CATALOG / "graphs" / f"{name}.yaml").read_bytes()
        add("show graph {}", ".yaml", content)
        add("fuse {} --on SN10", ".yaml", content)
        add("plan --graph {} --on 8xSN10", ".yaml", content)
    for name in PLANS:
        content = (folder / name).read_bytes()
        verbs = ["explain {}", "simulate {}", "export {} megatron --out out --force", "check {}"]
        for words in verbs if name != "serving.json" else ["export {} vllm --out out --force"]:
            add(words, ".json", content)
    add("explain plan.json --trace {}", ".json", TRACE)
    add("explain plan.json --trace {}", ".gz", gzip.compress(TRACE.encode(), mtime=0))
    add("validate --measurements {}", ".json", ROWS)
    add("simulate flows {}", ".json", FLOWS)
    add("simulate flows {}", ".json", (TESTS / "data" / "simgrid_phased.json").read_bytes())
    add("route {} --on wafer-4x8", ".json", ROUTED)
    add("sweep {}", ".yaml", SWEEP)
    add("partition --layers {} --on 4xGroq-LPU", ".yaml", LAYERS)
    for path in sorted((PACKAGE / "calibration" / "data" / "kernels").glob("*.csv.gz")):
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
plan gpt2-medium --on 2xH100 --decode --batch 8 --context 1k
plan --graph dlrm-a --on 8xSN10
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
    table = COMMANDS[name].options
    for _ in range(chance.randint(1, 3)):
        given = [place for place in range(1, len(words)) if not words[place].startswith("--")]
        if given and chance.random() < 0.3:
            words[chance.choice(given)] = _value(chance, ())
            continue
        option = chance.choice(table)
        if option.is_positional or option.name in WRITTEN:
            continue
        words.append(option.flag)
        if option.kind != "flag":
            words.append(_value(chance, option.choices))
    return words


def _value(chance: Random, choices: tuple[str, ...]) -> str:
    if choices and chance.random() < 0.5:
        return chance.choice(choices)
    return chance.choice(damage.VALUES).replace("\x00", "0")


def question(seed: int, folder: Path) -> list[str]:
    """Return the words of a question; its damaged file is written into the working folder."""
    chance = Random(seed)
    if chance.random() < 0.35:
        return options(chance)
    words, suffix, content = chance.choice(files(folder))
    path = Path(f"damaged{suffix}")
    path.write_bytes(damage.content(content, suffix, chance))
    return [word.replace("{}", str(path)) for word in words]
