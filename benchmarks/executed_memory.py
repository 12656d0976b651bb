"""Memory of dry runs beside the formulas, by category: strategies x models, each kind of stage.

Models have their own widths and few layers: categories that grow with layers are sums of equal
ones. Rows that are in the file are not run again; a report predicts all of them anew.

    python benchmarks/executed_memory.py [--out benchmarks/measurements/executed_memory.csv]
    python benchmarks/executed_memory.py --small
    python benchmarks/executed_memory.py --report
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import meshwright as mw
from meshwright.base.errors import MeshwrightError
from meshwright.run.dry.expected import WORKING, expected_bytes
from meshwright.run.dry.run import dry_run
from meshwright.train.answer import Plan

OUT = Path(__file__).parent / "measurements" / "executed_memory.csv"
COLUMNS = ("model", "layers", "framework", "axes", "plan", "options", "torch", "stage", "category",
           "at_peak_bytes", "most_bytes")  # fmt: skip
MODELS = ("llama3-8b", "llama3-70b", "llama3.2-1b", "qwen3-8b", "qwen3-32b", "mistral-7b",
          "llama2-13b", "llama3.1-405b", "qwen2.5-14b", "qwen3-0.6b", "llama2-7b",
          "mistral-large")  # fmt: skip
NUM_LAYERS, NUM_DEVICES = 4, 16
SMALL = {"models": ("llama3.2-1b",), "strategies": 3}
Options = dict[str, Any]


def strategies() -> Iterator[tuple[str, Options]]:
    """Yield the axes and the options of each strategy, the plainest of each kind first."""
    batch = {"mbs": 1, "seq": 2048}
    sharded = {"dp": NUM_DEVICES, "zero": 3}
    kinds: list[list[tuple[str, Options]]] = [
        [("dp", batch | sharded | {"global_batch": NUM_DEVICES * m, "recompute": recompute,
                                   "dp_shard": shard, "reshard": reshard, "offload": offload})
         for m, recompute, shard, reshard, offload in product(
             (1, 3), ("none", "full", "selective"), (16, 4), ("on", "off"), ("none", "state"))
         if not (m > 1 and reshard == "off")],
        [("dp", batch | sharded | {"global_batch": NUM_DEVICES, "offload": offload})
         for offload in ("activations", "all")],
        [("tp", batch | {"tp": tp, "dp": NUM_DEVICES // tp, "zero": 3, "sp": sp, "mbs": mbs,
                         "global_batch": NUM_DEVICES // tp * mbs, "recompute": recompute})
         for tp, sp, recompute, mbs in product((2, 8, 4), ("on", "off"), ("none", "full"), (1, 2))],
        [("pp", batch | {"pp": pp, "vpp": vpp, "dp": NUM_DEVICES // pp, "zero": zero,
                         "schedule": schedule, "recompute": recompute,
                         "global_batch": NUM_DEVICES // pp * m}
          | ({"reshard": "off"} if zero == 3 and pp == 4 else {}))
         for pp, (schedule, vpp), zero, recompute, m in product(
             (2, 4), (("1f1b", 1), ("gpipe", 1), ("interleaved", 2)), (2, 3), ("none", "full"),
             (8, 16))
         if pp * vpp <= NUM_LAYERS],
        [("tp*pp", batch | {"tp": tp, "pp": 2, "dp": NUM_DEVICES // tp // 2, "zero": 2,
                            "global_batch": 4 * NUM_DEVICES // tp, "recompute": recompute})
         for tp, recompute in product((2, 4), ("none", "full"))],
        [("tp*pp", batch | {"tp": tp, "pp": pp, "dp": NUM_DEVICES // tp // pp, "zero": zero,
                            "schedule": schedule, "sp": sp, "recompute": recompute,
                            "global_batch": NUM_DEVICES // tp // pp * m})
         for tp, pp, sp, zero, schedule, recompute, m in product(
             (2, 4), (2, 4), ("on", "off"), (3, 2), ("1f1b", "gpipe"), ("none", "full"), (8, 3))],
        [("dp", batch | sharded | {"seq": seq, "mbs": mbs, "recompute": recompute,
                                   "global_batch": NUM_DEVICES * mbs * m})
         for seq, mbs, recompute, m in product(
             (1024, 4096, 8192), (1, 2), ("none", "selective", "full"), (1, 2))],
    ]  # fmt: skip
    for group in zip(*(_padded(kind, max(map(len, kinds))) for kind in kinds), strict=True):
        yield from (entry for entry in group if entry is not None)


def _padded(entries: list[Any], length: int) -> list[Any]:
    return entries + [None] * (length - len(entries))


def planned(model: str, framework: str, options: Options, num_layers: int = NUM_LAYERS) -> Plan:
    """Return a strategy of a model with few layers."""
    found = mw.fit(model, on=f"{NUM_DEVICES}xB200", framework=framework, **options)
    few = found.model.model_copy(update={"layer_pattern": found.model.layer_pattern[:num_layers]})
    return replace(found, model=few)


def rows_of(model: str, framework: str, axes: str, options: Options) -> Iterator[dict[str, Any]]:
    """Yield the categories of each stage of a dry run."""
    plan = planned(model, framework, options)
    found = dry_run(plan)
    for stage in found.stages:
        for part in stage.held:
            yield {
                "model": model, "layers": plan.model.num_layers, "framework": framework,
                "axes": axes, "plan": plan.best.text, "options": json.dumps(options),
                "torch": found.program.split()[-1], "stage": stage.stage,
                "category": part.category, "at_peak_bytes": int(part.at_peak_bytes),
                "most_bytes": int(part.most_bytes),
            }  # fmt: skip


def run(out: Path, models: tuple[str, ...], most: int | None, seconds: float) -> None:
    """Run what the file lacks, each strategy on every sixth model, and append it."""
    known = {(row["model"], row["framework"], row["options"]) for row in read(out)}
    start, asked = time.process_time(), list(strategies())[:most]
    for number, (axes, options) in enumerate(asked):
        for model in models[number % 6 :: 6] if len(models) > 6 else models:
            key = (model, "fsdp", json.dumps(options))
            if key in known or time.process_time() - start > seconds:
                continue
            try:
                append(out, list(rows_of(model, "fsdp", axes, options)))
            except MeshwrightError as error:
                print(f"{model} {options}: {str(error).splitlines()[0]}")


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


def report(rows: list[dict[str, str]]) -> None:
    """Print the median and the largest error of each category, by axes.

    An error is the difference of prediction and execution over the executed peak of all categories;
    logits and temporary tensors are one category, at the moment of the peak.
    """
    runs: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        key = ("axes", "model", "framework", "options", "stage", "layers")
        runs[tuple(row[name] for name in key)][row["category"]] = row
    errors: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for (axes, model, framework, options, stage, layers), parts in runs.items():
        plan = planned(model, framework, json.loads(options), int(layers))
        predicted = expected_bytes(plan, int(stage))
        peak = sum(float(part["at_peak_bytes"]) for part in parts.values())
        which = f"{model} {plan.best.text} stage {stage}"
        for name, num_bytes in predicted.items():
            if name == WORKING:
                found = sum(float(parts[n]["at_peak_bytes"]) for n in ("logits", "temporary"))
            else:
                found = float(parts[name]["most_bytes"])
            errors[axes, name].append(((num_bytes - found) / peak, which))
        errors[axes, "peak"].append((sum(predicted.values()) / peak - 1.0, which))
    print(f"{len(runs)} ranks")
    for (axes, name), entries in sorted(errors.items()):
        worst, which = max(entries, key=lambda entry: abs(entry[0]))
        sizes = [error for error, _ in entries]
        print(f"{axes:6s} {name:12s} median {statistics.median(map(abs, sizes)):6.1%}"
              f"  mean {statistics.mean(sizes):+6.1%}  worst {worst:+7.1%}: {which}")  # fmt: skip


def main() -> None:
    """Run the campaign, or report its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="CPU seconds at most")
    args = parser.parse_args()
    if args.small:
        run(Path("/dev/null"), SMALL["models"], SMALL["strategies"], args.seconds)
        return
    if not args.report:
        run(args.out, MODELS, None, args.seconds)
    report(read(args.out))


if __name__ == "__main__":
    main()
