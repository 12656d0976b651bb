"""Random questions of all rooms, each answer under the laws of ``meshwright.audit``.

    python benchmarks/audit_campaign.py                  2,000 questions
    python benchmarks/audit_campaign.py --number 200 --seed 7 --rooms train,serve

Each seed is drawn until a question has an answer, which breaks laws or does not. Of one question in
ten the system is made weaker, one rate at a time: halving a bandwidth, a FLOP rate or a capacity
never makes an answer better.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import meshwright as mw
from meshwright.base.errors import InfeasibleError, MeshwrightError, UnlawfulError
from meshwright.catalog.systems import load_system
from meshwright.spec.system import SystemSpec

DENSE = ("llama3.2-1b", "llama3-8b", "gemma2-2b", "gemma3-4b", "gpt2-1.5b", "qwen3-8b", "opt-13b",
         "olmo2-7b", "phi4-mini", "llama3-70b", "glm4-9b", "falcon-7b")  # fmt: skip
EXPERTS = ("qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b")
OTHERS = ("nemotron-h-8b", "mamba2-2.7b", "qwen3-next-80b-a3b")
GPUS = ("H100", "A100", "H200", "B200", "V100", "MI300X", "L40S", "Gaudi3", "H20", "RTX-4090")
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "fsdp", "accelerate", "megatron-bridge",
              "automodel", "llm-foundry", "maxtext")  # fmt: skip
GRIDS = ("tpu-v5e-4x4", "tpu-v4-2x2x4", "wafer-2x4", "wafer-4x4", "wafer-4x8")
GRAPHS = ("dlrm-a", "dlrm-f", "fft-1g", "gpt2-124m", "llama3.2-1b", "pythia-70m.layer0",
          "gemma2-2b", "olmo2-1b", "hpl-8192x512")  # fmt: skip
Question = Callable[[Any], Any]


def model_of(draw: Random) -> str:
    """Return a model: dense ones mostly."""
    return draw.choice(draw.choice((DENSE, DENSE, DENSE, EXPERTS, OTHERS)))


def cluster_of(draw: Random) -> str:
    """Return one to eight hosts, or a part of one."""
    return f"{draw.choice((1, 2, 4, 8, 8, 16, 16, 32, 64))}x{draw.choice(GPUS)}"


def option_set_of(draw: Random) -> dict[str, Any]:
    """Return some structural choices of training, most of them open."""
    choices: dict[str, tuple[Any, ...]] = {
        "recompute": ("none", "selective", "full"), "zero": (0, 1, 2, 3), "reshard": ("on", "off"),
        "offload": ("none", "optimizer", "gradients", "state", "activations", "weights", "all"),
        "sp": ("on", "off"), "dp_overlap": ("on", "off"),
        "schedule": ("gpipe", "1f1b", "interleaved", "zero_bubble"),
    }  # fmt: skip
    names = draw.sample(sorted(choices), draw.choice((0, 1, 1, 2)))
    return {name: draw.choice(choices[name]) for name in names}


def training_of(draw: Random) -> dict[str, Any]:
    """Return a step of training."""
    asked: dict[str, Any] = {
        "seq": draw.choice((1024, 2048, 4096, 8192, 16384)),
        "global_batch": draw.choice((8, 16, 48, 64, 256, 1024)),
    }
    if draw.random() < 0.3:
        asked["precision"] = draw.choice(("bf16", "fp16", "fp8"))
    if draw.random() < 0.25:
        asked["optimizer"] = draw.choice(
            (
                "adapters",
                "adam-fp32",
                "adam-bf16",
                "deepspeed-adam",
                "fsdp-adam-8bit",
                "sgd",
                "adafactor",
                "megatron-adam-bf16-gradients",
            )
        )
    return asked


def train(draw: Random) -> Question:
    """Return a search for a plan on a cluster."""
    asked = training_of(draw) | option_set_of(draw)
    if draw.random() < 0.4:
        asked["framework"] = draw.choice(FRAMEWORKS)
    model, on = model_of(draw), cluster_of(draw)
    return lambda weaken: mw.plan(model, on=weaken(on), top=2, **asked)


def estimate(draw: Random) -> Question:
    """Return the price of a stated strategy on a cluster."""
    model, hosts = model_of(draw), draw.choice((1, 1, 2, 4, 16))
    asked = training_of(draw) | option_set_of(draw)
    left, on = 8 * hosts, f"{8 * hosts}x{draw.choice(GPUS)}"
    for axis in ("tp", "pp", "cp"):
        degree = draw.choice([d for d in (1, 1, 2, 4, 8) if left % d == 0])
        asked[axis], left = degree, left // degree
    asked |= {"dp": left, "mbs": draw.choice((1, 1, 2, 4))}
    if model in EXPERTS and draw.random() < 0.6:
        asked["ep"] = draw.choice((2, 4, 8))
    return lambda weaken: mw.estimate(model, on=weaken(on), **asked)


def grid(draw: Random) -> Question:
    """Return a plan or an estimate on a grid of devices."""
    asked, on = training_of(draw), draw.choice(GRIDS)
    asked["precision"] = "bf16"
    asked.pop("optimizer", None)
    model = draw.choice(DENSE[:8])
    system = load_system(on)
    sizes = [d for d in (1, 2, 4, 8, 16) if system.num_devices % d == 0]
    if draw.random() < 0.1:
        asked |= {"tp": draw.choice(sizes[:3]), "pp": 1, "cp": 1, "mbs": 1}
        return lambda weaken: mw.plan(model, on=weaken(on), top=1, simulated=0, **asked)
    left = system.num_devices
    for axis in ("tp", "tatp", "pp"):
        degree = draw.choice([d for d in sizes if left % d == 0])
        asked[axis], left = degree, left // degree
    asked |= {"dp": left, "mbs": draw.choice((1, 2, 4))} | option_set_of(draw)
    return lambda weaken: mw.estimate(model, on=weaken(on), **asked)


def serving(draw: Random) -> Question:
    """Return a search for a way to serve."""
    model, on = model_of(draw), cluster_of(draw)
    asked: dict[str, Any] = {"batch": draw.choice((1, 8, 32, 64, 256, 1024))}
    kind = draw.choice(("decode", "decode", "prefill", "requests", "disaggregated"))
    prompt, answer = draw.choice((512, 2048, 8192)), draw.choice((64, 256, 1024))
    if kind == "prefill":
        asked |= {"prompt": prompt, "batch": min(asked["batch"], 32)}
    elif kind == "decode":
        asked |= {"context": draw.choice((512, 4096, 32768))}
    else:
        asked |= {"prompt": prompt, "answer": answer}
    if kind == "disaggregated":
        asked |= {"disaggregated": True, "max_ttft": draw.choice(("1s", "5s", "20s"))}
    if draw.random() < 0.3:
        asked["precision"] = draw.choice(("bf16", "fp8", "fp16"))
    if draw.random() < 0.3:
        asked["kv_cache"] = "fp8"
    if draw.random() < 0.2:
        asked["weights"] = draw.choice(("int4", "awq", "fp8", "nf4"))
    if draw.random() < 0.3:
        asked["framework"] = draw.choice(("vllm", "sglang", "tensorrt-llm"))
    return lambda weaken: mw.serve(model, on=weaken(on), top=2, **asked)


def graph(draw: Random) -> Question:
    """Return a search for a plan of a graph."""
    name = draw.choice(GRAPHS)
    on = f"{draw.choice((1, 2, 4, 8, 16))}x{draw.choice((*GPUS, 'SN10'))}"
    asked: dict[str, Any] = {"passes": draw.choice((1, 4, 16, 64))}
    if not name.startswith(("dlrm", "fft", "hpl")):
        asked["seq"] = draw.choice((128, 1024, 4096))
        asked["training"] = draw.random() < 0.3
    return lambda weaken: mw.map(name, on=weaken(on), **asked)


def fuse(draw: Random) -> Question:
    """Return a fusion on a chip."""
    name = draw.choice((*GRAPHS[:6], "gpt3-175b-layer"))
    asked: dict[str, Any] = {}
    if name in GRAPHS[3:6]:
        asked["tokens"] = draw.choice((128, 512, 2048))
    chip = draw.choice(("SN10", "SN30", "SN40L", "H100", "A100", "TPU-v4"))
    if draw.random() < 0.4:
        asked |= {"tp": draw.choice((2, 4)), "link": "25GB/s"}
    return lambda weaken: mw.fuse(name, on=chip, **asked)


def partition(draw: Random) -> Question:
    """Return layers cut into stages."""
    model = draw.choice((*DENSE[:9], *EXPERTS[:2]))
    on = draw.choice(("4xWSE-3", "576xGroq-LPU", "8xH100", "64xH100", "tpu-v5e-4x4", "wafer-4x4"))
    asked: dict[str, Any] = {"batch": draw.choice((1, 4, 16)), "tp": draw.choice((1, 1, 2, 4))}
    if (kind := draw.choice(("decode", "prefill", "training"))) != "decode":
        asked[kind] = True
    asked |= {"seq": draw.choice((512, 4096)), "level": "HBM" if "H100" in on else None}
    return lambda weaken: mw.partition(model, on=weaken(on), **asked)


ROOMS = {"train": (train, 12), "estimate": (estimate, 42), "grid": (grid, 6),
         "serve": (serving, 22), "graph": (graph, 5), "fuse": (fuse, 3),
         "partition": (partition, 10)}  # fmt: skip
"""With the share of questions that are of each [%]."""


LONGEST_S = 30.0
"""Of one seed, CPU time."""
TRIES = 12
"""Questions of one seed, until one is neither refused nor without anything that fits."""


def halved(on: str, what: str) -> SystemSpec:
    """Return a system with half of one of its rates or capacities."""
    system = load_system(on)
    chip = system.chip

    def less(rates: Any) -> dict[str, float]:
        return {name: rate / 2.0 for name, rate in rates.items()}

    if what == "links":
        levels = tuple(
            level.model_copy(update={"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s / 2.0})
            for level in system.levels
        )
        return system.model_copy(update={"levels": levels})
    if what == "host":
        host = system.host
        if host is None:
            return system
        slow = {"bandwidth_bytes_per_s": host.bandwidth_bytes_per_s / 2.0}
        return system.model_copy(update={"host": host.model_copy(update=slow)})
    if what == "FLOP rate":
        names = ("matmul_flops_per_s", "best_matmul_flops_per_s", "vector_flops_per_s")
        changed: dict[str, Any] = {name: less(getattr(chip, name)) for name in names}
        if chip.clock_hz is not None:
            changed["clock_hz"] = chip.clock_hz / 2.0
    else:
        field = "capacity_bytes" if what == "capacity" else "bandwidth_bytes_per_s"
        memories = list(chip.memories)
        last = memories[-1]
        if (value := getattr(last, field)) is not None:
            memories[-1] = last.model_copy(update={field: value / 2.0})
        changed = {"memories": tuple(memories)}
    return system.model_copy(update={"chip": chip.model_copy(update=changed)})


def time_of(answer: Any) -> float | None:
    """Return what an answer is better by: seconds; of serving the inverse of its tokens/s."""
    best = getattr(answer, "best", None)
    if hasattr(answer, "fastest_s"):
        return float(answer.fastest_s)
    if hasattr(best, "requests_per_s"):
        return 1.0 / float(best.requests_per_s)
    if best is not None and hasattr(best, "estimate"):
        price = best.estimate
        return 1.0 / float(price.tokens_per_s)
    if hasattr(best, "step_s"):
        return float(best.step_s)
    rates = getattr(answer, "rates", None)
    return None if rates is None else 1.0 / float(rates.tokens_per_s)


WEAKER = ("links", "host", "FLOP rate", "memory rate", "capacity")


def helped(question: Question, answer: Any) -> Iterator[str]:
    """Yield which weaker systems give a better answer."""
    before_s = time_of(answer)
    if before_s is None:
        return
    for what in WEAKER:
        try:
            after_s = time_of(question(lambda on, what=what: halved(on, what)))
        except MeshwrightError:
            continue
        if after_s is not None and after_s < before_s * (1.0 - 1e-9):
            yield f"half of the {what} helps by {before_s / after_s - 1.0:.2%}"


def ask(seed: int, rooms: dict[str, tuple[Callable[[Random], Question], int]]) -> tuple[str, str]:
    """Return the room of a question and what became of it: laws that it breaks, one a line."""
    draw = Random(seed)
    room = draw.choices(list(rooms), [weight for _, weight in rooms.values()])[0]
    found = ""
    for _ in range(TRIES):
        question = rooms[room][0](draw)
        try:
            answer = question(lambda on: on)
        except UnlawfulError as error:
            return room, "\n".join(error.broken)
        except MeshwrightError as error:
            kind = "nothing fits" if isinstance(error, InfeasibleError) else "refused"
            found = f"{kind}: {str(error)[:160]}"
            continue
        if room != "fuse" and seed % 10 == 0:
            return room, "\n".join(helped(question, answer))
        return room, ""
    return room, found


def law_of(line: str) -> str:
    """Return the law that a line names, without the answer that breaks it."""
    return line.partition("; it says")[0].rpartition(": ")[2].partition(" by ")[0]


def too_long(*_: object) -> None:
    """Raise where one seed takes more CPU seconds than any should."""
    raise TimeoutError(f"more than {LONGEST_S} CPU s")


def main() -> None:
    """Ask, and print what breaks a law by room."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="CPU seconds at most")
    parser.add_argument("--show", type=int, default=3, help="examples of each law")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, too_long)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rooms = {name: ROOMS[name] for name in args.rooms.split(",")}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, list[str]] = defaultdict(list)
    spent: Counter[str] = Counter()
    start, asked = time.process_time(), 0
    for seed in range(args.seed, args.seed + args.number):
        began = time.process_time()
        if began - start > args.seconds:
            break
        asked += 1
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            room, found = ask(seed, rooms)
        except KeyboardInterrupt:
            break
        except Exception as error:
            room, found = "crash", f"{type(error).__name__}: {error}"
        if seed % 100 == 99:
            print(f"{asked} asked", file=sys.stderr)
        spent[room] += time.process_time() - began
        counts[room]["asked"] += 1
        if found.startswith(("refused", "nothing fits")):
            counts[room][found.partition(":")[0]] += 1
            examples[found.partition(":")[0]].append(f"seed {seed}: {found}")
        elif found:
            counts[room]["unlawful"] += 1
            for line in found.splitlines():
                name = law_of(line)
                if not examples[name] or examples[name][-1].split(":")[0] != f"seed {seed}":
                    counts[room][f"law: {name}"] += 1
                examples[name].append(f"seed {seed}: {line}")
    print(f"{asked} questions, {time.process_time() - start:.0f} CPU s")
    for room, found in counts.items():
        print(f"{room:10} {dict(found)}, {spent[room]:.0f} s")
    for name, lines in sorted(examples.items()):
        print(f"\n{name} ({len(lines)})")
        for line in lines[: args.show]:
            print(f"  {line}")


if __name__ == "__main__":
    main()
