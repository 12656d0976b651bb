"""Memory of dry runs of models with experts in torchtitan, beside the formulas.

Strategies with and without pp, ep and tp, under each kind of recomputation. Models have their own
widths and few layers. Rows that are in the file are not run again; a report predicts all anew.

    python benchmarks/executed_experts.py
    python benchmarks/executed_experts.py --report
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import meshwright as mw
from meshwright.run.dry.expected import expected_bytes
from meshwright.train.answer import Plan

OUT = Path(__file__).parent / "measurements" / "executed_experts.csv"
CATEGORIES = ("weights", "gradients", "states", "gathered", "activations", "logits", "temporary")
COLUMNS = ("model", "layers", "plan", "options", "program", "stage",
           *(f"{name}_{kind}" for kind in ("at_peak_bytes", "most_bytes") for name in CATEGORIES),
           "kinds", "unequal")  # fmt: skip
SHARED: dict[str, Any] = {"seq": 4096, "zero": 3}
PIPED: dict[str, Any] = {"seq": 4096, "zero": 2, "pp": 2}
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("qwen3-30b-a3b", 4, {**SHARED, "dp": 16, "global_batch": 16, "recompute": "none"}),
    ("qwen3-30b-a3b", 4, {**SHARED, "dp": 16, "ep": 8, "global_batch": 32,
                          "recompute": "selective"}),
    ("qwen3-30b-a3b", 8, {**PIPED, "dp": 8, "ep": 4, "global_batch": 64, "recompute": "none"}),
    ("qwen3-30b-a3b", 4, {**SHARED, "dp": 4, "tp": 4, "ep": 8, "sp": "on", "global_batch": 8,
                          "recompute": "selective"}),
    ("qwen3-30b-a3b", 4, {**SHARED, "dp": 16, "ep": 8, "mbs": 2, "global_batch": 64,
                          "recompute": "full"}),
    ("deepseek-v2-lite", 5, {**SHARED, "dp": 16, "ep": 8, "global_batch": 32,
                             "recompute": "none"}),
    ("deepseek-v2-lite", 5, {**SHARED, "dp": 16, "global_batch": 16, "recompute": "selective"}),
    ("deepseek-v2-lite", 8, {**PIPED, "dp": 8, "ep": 4, "global_batch": 64,
                             "recompute": "selective"}),
    ("deepseek-v3", 8, {**PIPED, "dp": 8, "ep": 4, "global_batch": 256, "recompute": "full"}),
    ("deepseek-v3", 5, {**SHARED, "dp": 4, "tp": 4, "ep": 8, "sp": "on", "global_batch": 8,
                        "recompute": "selective"}),
)  # fmt: skip


@cache
def planned(model: str, layers: int, options: str) -> Plan:
    """Return a strategy of a model with few layers."""
    found = mw.fit(model, on="16xB200", framework="torchtitan", **json.loads(options))
    pattern = found.model.layer_pattern[:layers]
    return replace(found, model=found.model.model_copy(update={"layer_pattern": pattern}))


def run() -> None:
    """Run the cases that the file lacks, and append them."""
    from meshwright.run.dry.run import dry_run  # torch

    known = {(row["model"], row["options"]) for row in read()}
    for model, layers, asked in CASES:
        options = json.dumps(asked)
        if (model, options) in known:
            continue
        plan = planned(model, layers, options)
        found = dry_run(plan)
        rows = [
            {"model": model, "layers": layers, "plan": plan.best.text, "options": options,
             "program": found.program, "stage": stage.stage, "kinds": len(stage.sent),
             "unequal": sum(not one.is_equal for one in stage.sent),
             **{f"{part.category}_{kind}": int(getattr(part, kind))
                for part in stage.held for kind in ("at_peak_bytes", "most_bytes")}}
            for stage in found.stages
        ]  # fmt: skip
        is_new = not OUT.exists()
        with OUT.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)


def read() -> list[dict[str, str]]:
    """Return the rows of the file; none where there is no file."""
    if not OUT.exists():
        return []
    with OUT.open(newline="") as file:
        return list(csv.DictReader(file))


def errors_of(row: dict[str, str]) -> dict[str, float]:
    """Return the errors of a rank over its executed peak, and that of its activations alone [1]."""
    plan = planned(row["model"], int(row["layers"]), row["options"])
    predicted = expected_bytes(plan, int(row["stage"]))
    peak = sum(float(row[f"{name}_at_peak_bytes"]) for name in CATEGORIES)
    found = {"peak": sum(part.at_peak_bytes for part in predicted.values()) / peak - 1.0}
    for name, part in predicted.items():
        found[name] = (part.most_bytes - float(row[f"{name}_most_bytes"])) / peak
    kept = float(row["activations_most_bytes"])
    return found | {"activations alone": predicted["activations"].most_bytes / kept - 1.0}


def main() -> None:
    """Run what is left, or report all rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", action="store_true", help="run nothing, print the errors")
    if not parser.parse_args().report:
        run()
    for row in read():
        told = ", ".join(f"{name} {error:+.1%}" for name, error in errors_of(row).items())
        print(f"{row['model']} {row['plan']} stage {row['stage']}: {told}; "
              f"{row['unequal']} of {row['kinds']} kinds of collectives differ")  # fmt: skip


if __name__ == "__main__":
    main()
