"""Memory of dry runs beside the formulas, by category: strategies x models x programs.

A draw has 300 strategies, 30 of each family of a program and its axes. A pass runs each strategy
with one model, each family with each model; twelve passes are all pairs. Models have their own
widths and few layers: categories that grow with layers are sums of equal ones. Rows that are in the
file are not run again, so a draw runs in slices; a report predicts all rows anew.

    python benchmarks/executed_memory.py --draw 1 --limit-s 600
    python benchmarks/executed_memory.py --report
    python benchmarks/executed_memory.py --worst gathered
    python benchmarks/executed_memory.py --write
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import meshwright as mw
from meshwright.run.dry.expected import expected_bytes
from meshwright.train.answer import Plan

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "executed.md"
BEGIN, END = "<!-- errors of memory: begin -->\n", "<!-- errors of memory: end -->\n"
OUT = Path(__file__).parent / "measurements" / "executed_memory.csv"
CATEGORIES = ("weights", "gradients", "states", "gathered", "activations", "logits", "temporary")
COLUMNS = ("draw", "model", "layers", "framework", "axes", "plan", "options", "program", "stage",
           *(f"{name}_at_peak_bytes" for name in CATEGORIES),
           *(f"{name}_most_bytes" for name in CATEGORIES))  # fmt: skip
MODELS = ("llama3-8b", "llama3-70b", "llama3.2-1b", "qwen3-8b", "qwen3-32b", "mistral-7b",
          "llama2-13b", "llama3.1-405b", "qwen2.5-14b", "qwen3-0.6b", "llama2-7b",
          "mistral-large")  # fmt: skip
NUM_DEVICES, NUM_STRATEGIES = 16, 300
BLIND = (4,)
"""Draws that were run after the formulas were last changed, with all categories. Peaks alone count
of the others: their recorder knew fewer categories of gradients, outputs of stages and logits."""
FAMILIES = tuple(
    (framework, axes)
    for framework, of_framework in (
        ("fsdp", ("dp", "tp", "pp", "tp*pp", "cp")),
        ("torchtitan", ("dp", "tp", "pp", "tp*pp")),
        ("accelerate", ("dp",)),
        ("megatron", ("dp", "tp", "pp", "tp*pp")),
    )
    for axes in of_framework
)
OFFLOADS = {
    "fsdp": ("none", "none", "state", "activations", "all"),
    "torchtitan": ("none", "none", "state"),
}
Options = dict[str, Any]


class Strategy(NamedTuple):
    """A drawn question: a program, its axes and its options."""

    framework: str
    axes: str
    options: Options


def strategies(draw: int) -> Iterator[Strategy]:
    """Yield the strategies of a draw, one family after the other."""
    chance = random.Random(draw)
    for number in range(NUM_STRATEGIES):
        framework, axes = FAMILIES[number % len(FAMILIES)]
        yield Strategy(framework, axes, drawn(chance, framework, axes))


def drawn(chance: random.Random, framework: str, axes: str) -> Options:
    """Return options for the axes of a program."""
    pick = chance.choice
    options: Options = {
        "seq": pick((1024, 2048, 4096, 8192)), "mbs": pick((1, 2)),
        "recompute": pick(("none", "full", "selective")), "zero": 3,
    }  # fmt: skip
    if framework in ("accelerate", "megatron"):
        options["recompute"] = pick(("none", "full"))
    if framework == "megatron":
        options["zero"] = pick((0, 1, 1))
    if "tp" in axes:
        options |= {"tp": pick((2, 4, 8)), "sp": pick(("on", "off"))}
    if "cp" in axes:
        options["cp"] = pick((2, 4))
    micro_batches = pick((1, 3))
    if "pp" in axes:
        schedules = (("1f1b", 1), ("gpipe", 1), ("interleaved", 2))
        schedule, vpp = pick(schedules[:: 2 if framework == "megatron" else 1])
        options |= {"pp": pick((2, 4)) if options.get("tp") != 8 else 2, "schedule": schedule,
                    "vpp": vpp}  # fmt: skip
        if framework != "megatron":
            options["zero"] = pick((2, 3))
        micro_batches = options["pp"] * pick((1, 2, 4))
    ways = options.get("tp", 1) * options.get("cp", 1) * options.get("pp", 1)
    options["dp"] = NUM_DEVICES // ways
    if axes == "dp":
        options["dp_shard"] = pick((16, 4))
        options["offload"] = pick(OFFLOADS.get(framework, ("none",)))
    if "pp" not in axes and framework != "megatron":
        options["reshard"] = pick(("on", "on", "off"))
    options["global_batch"] = options["dp"] * options["mbs"] * micro_batches
    return options


def pairs(draw: int) -> Iterator[tuple[str, Strategy]]:
    """Yield models and strategies, pass by pass."""
    asked = list(strategies(draw))
    for shift in range(len(MODELS)):
        for number, strategy in enumerate(asked):
            yield MODELS[(number // len(FAMILIES) + shift) % len(MODELS)], strategy


@cache
def planned(model: str, framework: str, options: str) -> Plan:
    """Return a strategy of a model with few layers."""
    asked = json.loads(options)
    found = mw.fit(model, on=f"{NUM_DEVICES}xB200", framework=framework, **asked)
    layers = found.model.layer_pattern[: 8 if "pp" in asked else 4]
    return replace(found, model=found.model.model_copy(update={"layer_pattern": layers}))


def rows_of(draw: int, model: str, strategy: Strategy) -> Iterator[dict[str, Any]]:
    """Yield the ranks of a dry run."""
    from meshwright.run.dry.run import dry_run  # torch

    options = json.dumps(strategy.options)
    plan = planned(model, strategy.framework, options)
    found = dry_run(plan)
    for stage in found.stages:
        held = {
            f"{part.category}_{name}": int(getattr(part, name))
            for part in stage.held for name in ("at_peak_bytes", "most_bytes")
        }  # fmt: skip
        yield {
            "draw": draw, "model": model, "layers": plan.model.num_layers, "axes": strategy.axes,
            "framework": strategy.framework, "plan": plan.best.text, "options": options,
            "program": found.program, "stage": stage.stage, **held,
        }  # fmt: skip


def run(out: Path, draw: int, limit_s: float) -> None:
    """Run pairs that the file lacks, and append them."""
    known = {(row["model"], row["framework"], row["options"]) for row in read(out)}
    start = time.process_time()
    for model, strategy in pairs(draw):
        if time.process_time() - start > limit_s:
            return
        if (model, strategy.framework, json.dumps(strategy.options)) in known:
            continue
        try:
            append(out, list(rows_of(draw, model, strategy)))
        except Exception as error:  # a program that fails does not end the others
            fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"{model} {strategy.framework} {strategy.options}: {fault[:400]}", flush=True)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a file, with a head where it is new."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def errors_of(row: dict[str, str]) -> dict[str, float]:
    """Return the errors of a rank over its executed peak [1].

    Of each category at the peak (``at_peak``) and at its own most, and of the peak of all.
    """
    plan = planned(row["model"], row["framework"], row["options"])
    predicted = expected_bytes(plan, int(row["stage"]))
    peak = sum(float(row[f"{name}_at_peak_bytes"]) for name in CATEGORIES)
    found = {"peak": sum(part.at_peak_bytes for part in predicted.values()) / peak - 1.0}
    for name, part in predicted.items():
        found[name] = (part.most_bytes - float(row[f"{name}_most_bytes"])) / peak
        at_peak = part.at_peak_bytes - float(row[f"{name}_at_peak_bytes"])
        found[f"{name} at peak"] = at_peak / peak
    return found


def cell(errors: list[float]) -> str:
    """Return the median, the 95th percentile and the largest of some errors, in percent."""
    sizes = sorted(map(abs, errors))
    high = sizes[math.ceil(0.95 * len(sizes)) - 1]
    return " / ".join(f"{100.0 * size:.1f}" for size in (statistics.median(sizes), high, sizes[-1]))


def table(
    rows: list[dict[str, str]], errors: list[dict[str, float]], suffix: str = "",
    categories: tuple[str, ...] = CATEGORIES,
) -> str:  # fmt: skip
    """Return the errors by program and axes, and by category, as a table of Markdown."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for row, found in zip(rows, errors, strict=True):
        for axes in (row["axes"].replace("*", ", "), "all"):
            groups[row["framework"], axes].append(found)
    lines = ["| program, axes | ranks | " + " | ".join(("peak", *categories)) + " |",
             "|---" * (3 + len(categories)) + "|"]  # fmt: skip
    for (framework, axes), group in sorted(groups.items()):
        names = ("peak", *(f"{name}{suffix}" for name in categories))
        cells = [cell([found[name] for found in group]) for name in names]
        lines.append(f"| {framework}, {axes} | {len(group)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def report(rows: list[dict[str, str]]) -> str:
    """Return the tables of errors: rows that formulas were found with, and those drawn after."""
    of_draw: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for row in rows:
        of_draw[int(row["draw"]) in BLIND].append(row)
    parts = []
    if known := of_draw[False]:
        parts += [f"Rows that formulas were found with ({len(known)} ranks):\n",
                  table(known, [errors_of(row) for row in known], categories=())]  # fmt: skip
    if blind := of_draw[True]:
        errors = [errors_of(row) for row in blind]
        parts += [f"Rows drawn after the formulas ({len(blind)} ranks), most of each category:\n",
                  table(blind, errors), "At the peak of all together:\n",
                  table(blind, errors, " at peak")]  # fmt: skip
    return "\n".join(parts)


def write(rows: list[dict[str, str]]) -> None:
    """Put the tables into the page of dry runs."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{report(rows)}\n{END}{after}", "utf-8")


def worst(rows: list[dict[str, str]], name: str, number: int = 10) -> list[str]:
    """Return the ranks with the largest errors of a category."""
    found = sorted(((errors_of(row)[name], row) for row in rows), key=lambda pair: -abs(pair[0]))
    return [f"{error:+.1%} {row['model']} {row['framework']} {row['plan']} stage {row['stage']} "
            f"{row['options']}" for error, row in found[:number]]  # fmt: skip


def main() -> None:
    """Run a slice of a draw, or report all rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--draw", type=int, default=1, help="seed of the strategies")
    parser.add_argument("--limit-s", type=float, default=600.0, help="CPU seconds at most")
    parser.add_argument("--report", action="store_true", help="run nothing, print the errors")
    parser.add_argument("--write", action="store_true", help="report into the page of dry runs")
    parser.add_argument("--small", action="store_true", help="run one strategy, and keep nothing")
    parser.add_argument(
        "--worst", metavar="CATEGORY", help="print the largest errors of a category"
    )
    args = parser.parse_args()
    if args.worst:
        print("\n".join(worst(read(args.out), args.worst)))
    elif args.write:
        write(read(args.out))
    elif args.small:
        run(Path("/dev/null"), args.draw, 1.0)
    elif args.report:
        print(report(read(args.out)))
    else:
        run(args.out, args.draw, args.limit_s)


if __name__ == "__main__":
    main()
