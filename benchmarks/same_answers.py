"""Whether this tree still answers 133 questions as another commit does, to the last digit.

    python benchmarks/same_answers.py --against fcc2b49           # all commands, both trees
    python benchmarks/same_answers.py --against fcc2b49 fuse      # those that hold these words

Runs each command with ``--json`` in a checkout of that commit and here, and prints every number,
word or field of the answers that differs. Wall-clock times of the search itself are left out.
Answers of the other commit are kept in ``build/answers/COMMIT``, so a second run is twice as fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "answers"
CLOCK = {"search_s", "elapsed_s", "seconds", "cpu_s", "wall_s"}
"""Fields that hold how long a search took: they differ from run to run."""

DATA = ROOT / "tests" / "data"
"""Files of this tree that some questions read, whichever tree answers them."""
QUESTIONS = ROOT / "benchmarks" / "questions"
ESTIMATE = "estimate llama2-7b --seq 2048 --global-batch 64"
TRAIN = "--seq 2048 --global-batch 512"
COMMANDS = f"""
plan llama3-70b --on 64xH100 --seq 8192 --global-batch 1024
plan llama3-8b --on 8xH100 --seq 8k --global-batch 128
plan llama2-7b --on 8xA100 {TRAIN}
plan mixtral-8x7b --on 64xH100 --seq 4096 --global-batch 512
plan deepseek-v3 --on 512xH100 --seq 4096 --global-batch 1024
plan gpt3-175b --on 512xA100 --seq 2048 --global-batch 1536
plan llama3.1-405b --on 1024xH100 --seq 8192 --global-batch 1024
plan gpt3-13b --on 16xA100 {TRAIN} --calibration uncalibrated
plan llama3-8b --on tpu-v5e-16x16 --seq 4096 --global-batch 1024
plan qwen2-7b --on 8xH100 {TRAIN} --pareto
plan llama3-8b --on 8xH100 {TRAIN} --recompute full --tp 2
plan llama3-8b --on 8xH100 {TRAIN} --offload none
plan llama3-8b --on 16xMI300X {TRAIN} --zero 3
plan llama3-70b --on 8xA100 --seq 2048 --global-batch 8
plan llama3-8b --on 8xH100 {TRAIN} --with max_power=4kW
  was plan llama3-8b --on 8xH100 {TRAIN} --max-power 4kW
plan gpt3-76b --on wafer-4x8 --seq 2048 --global-batch 128
plan gpt3-76b --on wafer-6x8 --seq 2048 --global-batch 128
plan llama2-7b --on wafer-4x8 {TRAIN} --tatp 4
plan llama2-7b --on wafer-4x8 {TRAIN} --with per_operator
  was plan llama2-7b --on wafer-4x8 {TRAIN} --per-operator
plan gpt3-175b --on 2xwafer-6x8 --seq 2048 --global-batch 128
map dlrm-a --on 8xA100
  was plan --graph dlrm-a --on 8xA100
map gpt3-175b-layer --on 8xSN10
  was plan --graph gpt3-175b-layer --on 8xSN10
map hpl-16384x512 --on 8xA100
  was plan --graph hpl-16384x512 --on 8xA100
serve llama3-70b --on 8xH100 --batch 64 --context 4096
  was plan llama3-70b --on 8xH100 --decode --batch 64 --context 4096
serve llama3-70b --on 8xH100 --batch 4 --prompt 2048
  was plan llama3-70b --on 8xH100 --prefill --batch 4 --prompt 2048
serve llama3-8b --on 2xH100 --batch 64 --context 8192 --max-latency 20ms
  was plan llama3-8b --on 2xH100 --decode --batch 64 --context 8192 --max-latency 20ms
serve mixtral-8x7b --on 8xA100 --batch 32 --context 2048
  was plan mixtral-8x7b --on 8xA100 --decode --batch 32 --context 2048
serve llama3-8b --on 1xH100 --batch 16 --context 2048 --framework vllm
  was plan llama3-8b --on 1xH100 --decode --batch 16 --context 2048 --server vllm
serve llama3-70b --on 8xH200 --batch 64 --context 4096 --kv-cache fp8 --weights fp8
  was plan llama3-70b --on 8xH200 --decode --batch 64 --context 4096 --kv-cache fp8 --weights fp8
serve llama3-70b --on 8xH100 --batch 1 --prompt 4096 --latency
  was plan llama3-70b --on 8xH100 --prefill --batch 1 --prompt 4096 --latency
plan llama3-8b --on 64xH100 {TRAIN} --framework torchtitan
plan mixtral-8x7b --on 64xH100 {TRAIN} --framework megatron --zero 1
plan llama3-70b --on 16xH100 --seq 8k --global-batch 64 --framework accelerate
plan llama3-8b --on 8xH100 {TRAIN} --framework megatron-bridge --optimizer adapters --with lora_rank=16
  was plan llama3-8b --on 8xH100 {TRAIN} --framework megatron-bridge --optimizer adapters --lora-rank 16
plan gpt2-medium --on 1xH100 --seq 1k --global-batch 8
plan llama3-8b --on 8xH100 {TRAIN} --fastest
plan llama3-8b --on H100 --seq 8k --global-batch 512 --tokens 1T --within 40d
plan llama3-8b --on 16xTrainium2 {TRAIN}
plan nemotron-h-8b --on 16xH100 {TRAIN}
serve llama3-70b --on 16xH100 --prompt 2048 --answer 256 --batch 64
  was plan llama3-70b --on 16xH100 --decode --prefill --prompt 2048 --answer 256 --batch 64
serve llama3-70b --on 16xH100 --disaggregated --batch 8 --prompt 1k --answer 64
  was plan llama3-70b --on 16xH100 --decode --prefill --disaggregated --batch 8 --prompt 1k --answer 64
serve llama3.1-405b --on 16xH100 --batch 32 --context 4096 --framework vllm
  was plan llama3.1-405b --on 16xH100 --decode --batch 32 --context 4096 --server vllm
serve deepseek-v3 --on 32xH100 --batch 64 --context 4096 --framework sglang
  was plan deepseek-v3 --on 32xH100 --decode --batch 64 --context 4096 --server sglang
map fft-1g --on 8xH100
  was plan --graph fft-1g --on 8xH100
map llama3.2-1b --on 8xH100 --seq 1024 --passes 16
  was plan --graph llama3.2-1b --on 8xH100 --seq 1024 --global-batch 16
estimate deepseek-v2-lite --on 16xH100 {TRAIN} --framework torchtitan --ep 8 --with dp_shard=16
  was estimate deepseek-v2-lite --on 16xH100 {TRAIN} --framework torchtitan --ep 8 --dp-shard 16
estimate llama3-8b --on 8xH100 {TRAIN} --framework deepspeed --zero 3 --offload state
estimate llama3-70b --on 64xH100 --seq 32k --global-batch 64 --cp 8 --tp 8 --recompute full
estimate llama3-70b --on tpu-v5e-16x16 --seq 4096 --global-batch 512 --tp 8 --zero 3
estimate llama3-8b --on wafer-4x4 {TRAIN} --tatp 8
estimate llama3-70b --on 64xH100 --seq 8192 --global-batch 1024 --tp 8 --pp 4
estimate llama3-70b --on 64xH100 --seq 8192 --global-batch 1024 --tp 4 --pp 4 --vpp 5 --cp 2
estimate gpt3-175b --on 512xA100 --seq 2048 --global-batch 1536 --tp 8 --pp 8 --recompute full
estimate mixtral-8x7b --on 64xH100 --seq 4096 --global-batch 512 --tp 2 --ep 8 --pp 4
estimate deepseek-v3 --on 512xH100 --seq 4096 --global-batch 1024 --pp 16 --ep 32
estimate llama3-8b --on 8xH100 {TRAIN} --dp 8 --zero 3
estimate llama3-8b --on 8xH100 {TRAIN} --tp 2 --cp 2 --with cp_kind=ulysses
  was estimate llama3-8b --on 8xH100 {TRAIN} --tp 2 --cp 2 --cp-kind ulysses
estimate llama3-8b --on 8xH100 {TRAIN} --pp 4 --schedule zero_bubble
estimate llama3-8b --on 8xH100 {TRAIN} --offload optimizer --dp 8
estimate llama3-8b --on 8xH100 {TRAIN} --precision fp8 --tp 2
estimate llama3-8b --on 8xH100 {TRAIN} --with async_tp --with cuda_graphs --tp 4
  was estimate llama3-8b --on 8xH100 {TRAIN} --async-tp --cuda-graphs --tp 4
estimate llama3-8b --on 8xH100 {TRAIN} --with dropout --recompute selective --tp 2
  was estimate llama3-8b --on 8xH100 {TRAIN} --dropout --recompute selective --tp 2
estimate gpt3-76b --on wafer-6x8 --seq 2048 --global-batch 128 --tp 4 --tatp 4 --pp 3
estimate gemma2-9b --on 8xB200 {TRAIN} --tp 2
estimate gpt-oss-20b --on 8xB200 {TRAIN} --ep 8
estimate llama4-scout --on 64xH100 {TRAIN} --ep 8 --pp 2
fit llama3-70b --on 64xH100 --seq 8192 --global-batch 1024 --tp 8 --pp 4
fit llama3-70b --on 8xA100 --seq 2048 --global-batch 64 --tp 8
fit llama3-8b --on 8xH100 {TRAIN} --zero 2
explain llama3-70b --on 64xH100 --seq 8192 --global-batch 1024 --tp 8 --pp 4
explain llama3-8b --on 8xH100 {TRAIN} --measured 8.1s --tp 2
compare llama3-8b --on 8xH100 {TRAIN}
compare llama2-7b --on wafer-4x8 {TRAIN}
check llama3-70b --on 64xH100 --seq 8192 --global-batch 1024 --tp 16 --pp 4
check gpt3-13b --on 40xA100 {TRAIN} --tp 3 --pp 7
check llama3-8b --on 8xH100 {TRAIN} --framework torchtitan --pp 2 --vpp 3
compare llama3-70b --on 64xH100 --seq 8192 --global-batch 1024
compare llama3-8b --on tpu-v5e-4x4 --seq 4096 --global-batch 64
estimate gpt3-6.7b --on wafer-4x4 --seq 2048 --global-batch 64 --tatp 4 --fidelity contended
partition llama3-8b --on 512xH100 --level l2 --seq 2048
partition llama3-70b --on 8xH100 --seq 4096 --batch 8
partition llama3-8b --on 256xGroq-LPU --seq 2048
partition llama2-7b --on 8xA100 --training --batch 4 --seq 2048
partition llama2-7b --on 8xA100 --objective time --prefill --seq 512
fuse gpt3-175b-layer --on SN10 --tp 8 --link 25GB/s
fuse gpt3-175b-layer --on SN10 --tp 4 --pp 2 --tile 64 --link 25GB/s
fuse dlrm-a --on A100
fuse llama3-8b --on H100 --tokens 2048
fuse gpt3-175b-layer --on SN30 --training --tp 8 --link 25GB/s
fuse dlrm-a --on H100
fuse gemma2-2b.layer1 --on TPU-v4 --tokens 512
fuse llama3.2-1b.layer0 --on SN40L --tokens 128
partition mixtral-8x7b --on 4xWSE-3 --seq 4096
show framework megatron
show system tpu-v5e-16x16
show schema plan
show walk tatp
show walk ring_all_gather
show walk tp-sp
show model llama3-70b
show model deepseek-v3
show chip H100
show chip TEMP-die
show system 64xH100
show system wafer-6x8
show optimizer megatron-adam
show collectives --on 64xH100 --size 64MiB --group 8
show collectives --on wafer-6x8 --size 64MiB --group 16
show topologies --devices 64
show graph gpt3-175b-layer --training
show graph dlrm-a
validate
validate --requests
study crossover
study textbook-3d
study tensor-parallel
study layers-in-sram
study temp-gpus
study temp-faults
study dfmodel
plan llama3-8b --on tpu-v5e-4x4 --seq 2048 --global-batch 64 --framework maxtext
estimate llama3-8b --on tpu-v5e-4x4 --seq 2048 --global-batch 64 --dp 16 --zero 3 --framework maxtext
read {DATA}/jobs/accelerate_fsdp2.yaml
read {DATA}/jobs/accelerate_launch.slurm
export
{ESTIMATE} --on 8xH100 --tp 2 --out plan.json && export plan.json megatron --print
{ESTIMATE} --on 8xH100 --dp 8 --zero 3 --out plan.json && export plan.json torchtitan --print
{ESTIMATE} --on wafer-4x4 --tatp 4 --out plan.json && place plan.json
{ESTIMATE} --on wafer-4x4 --tatp 4 --out plan.json && simulate plan.json
{ESTIMATE} --on 8xH100 --pp 4 --out plan.json && simulate plan.json
simulate flows {DATA}/simgrid_scenarios.json
route {QUESTIONS}/flows.json --on wafer-4x4
sweep {QUESTIONS}/sweep.yaml
"""  # noqa: E501


def questions(words: list[str]) -> dict[str, str]:
    """Return the commands that hold all the words, each with its spelling before ``serve``."""
    found, last = dict[str, str](), ""
    for line in filter(None, COMMANDS.splitlines()):
        if line.startswith("  was "):
            found[last] = line.removeprefix("  was ")
        else:
            last = found[line] = line
    return {now: was for now, was in found.items() if all(word in now for word in words)}


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give a temporary checkout of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def answer(tree: Path, command: str) -> Any:
    """Return what a command of a tree answers: its exit status and its JSON."""
    sources = [str(tree / "src"), str(tree / "papers" / "src")]
    with tempfile.TemporaryDirectory() as folder:
        for part in command.split(" && "):  # earlier parts write the files of the last one
            done = subprocess.run(
                [sys.executable, "-P", "-m", "meshwright", *shlex.split(part), "--json"],
                capture_output=True, text=True, check=False, cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
            )  # fmt: skip
    try:
        return {"status": done.returncode, "answer": json.loads(done.stdout)}
    except json.JSONDecodeError:
        return {"status": done.returncode, "answer": (done.stdout + done.stderr)[-2000:]}


def kept_answer(tree: Path, commit: str, command: str) -> Any:
    """Return the answer of the other commit, from its file where it is already known."""
    file = KEPT / commit / (command.replace(" ", "_").replace("/", "-") + ".json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(answer(tree, command)), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def in_present_words(old: Any) -> Any:
    """Return an answer with the fields that were renamed or moved since under their present names.

    ``structure`` became ``plan_options``; it and ``strategy`` left a list of segments. Fields that
    held the same in every answer went.
    """
    if isinstance(old, list):
        return [in_present_words(entry) for entry in old]
    if not isinstance(old, dict):
        return old
    found = {"plan_options" if key == "structure" else key: old[key] for key in old}
    match found.pop("segments", None):
        case [{"strategy": strategy, "structure": plan_options}]:
            found |= {"strategy": strategy, "plan_options": plan_options}
    for name, value in (("extra", {}), ("rules", "own")):
        if found.get(name) == value:
            del found[name]
    return {key: in_present_words(value) for key, value in found.items()}


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield each place at which two answers differ; a new field without a value says nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new:
                yield f"{path}.{key}: gone"
            elif key not in old:
                if new[key] not in (None, [], {}, ""):
                    yield f"{path}.{key}: new"
            elif key not in CLOCK:
                yield from differences(old[key], new[key], f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from differences(left, right, f"{path}[{index}]")
    elif old != new and not (old != old and new != new):
        yield f"{path}: {str(old)[:120]} -> {str(new)[:120]}"


def main() -> int:
    """Compare, and return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, metavar="REV", help="the other commit")
    parser.add_argument("--most", type=int, default=8, help="differences shown for each command")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("words", nargs="*", help="only commands that hold these words")
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", asked.against],
        capture_output=True, text=True, check=True,
    ).stdout.strip()[:12]  # fmt: skip
    commands = questions(asked.words)
    if not commands:
        parser.error(f"no command holds all of: {' '.join(asked.words)}")
    moved = 0
    with checkout(commit) as tree, ThreadPoolExecutor(asked.workers) as pool:
        is_earlier = not (tree / "src" / "meshwright" / "ask").exists()

        def compare(command: str) -> list[str]:
            asked = commands[command] if is_earlier else command
            old = in_present_words(kept_answer(tree, commit, asked))
            new = answer(ROOT, command)
            for one in (old, new):  # an answer holds its command, as it was spelled
                if asked != command and isinstance(one["answer"], dict):
                    one["answer"].pop("command", None)
            return list(differences(old, new))

        for command, found in zip(commands, pool.map(compare, commands), strict=True):
            moved += bool(found)
            print(f"{'moved' if found else 'same '} {command}", flush=True)
            for line in found[: asked.most]:
                print(f"        {line}")
            if len(found) > asked.most:
                print(f"        and {len(found) - asked.most} more")
    print(f"{len(commands) - moved} of {len(commands)} answers are the same as of {commit}")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
