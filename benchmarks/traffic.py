"""Requests at stated rates: the answers of ``serve --rate`` beside measured percentiles of vLLM.

Twenty stages of constant rates on H100, and 300 requests of one overloaded RTX 4090 one by one; no
constant is fitted to them. Rows and sources are in ``measurements/traffic.json``.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright import serve
from meshwright.base.errors import InfeasibleError
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.serve import serving_problem
from meshwright.serve.traffic.iteration import Worker
from meshwright.serve.traffic.queueing import replay
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.arrivals import ALONE, Arrivals
from meshwright.spec.workload import Decode, SoftwareStack

FILE = Path(__file__).with_name("measurements") / "traffic.json"
SERVER = {"most_sequences": 128, "most_pass_tokens": 2048, "memory_share": 0.9}
"""Options with which the stages were served."""
PROMPTS = 100
"""Different prompts of a stage, each sent again and again."""
AT = ("mean", "p50", "p90", "p99")


def predicted(row: dict[str, Any]) -> Any:
    """Return the answer of the command for a stage: one worker on all of its chips."""
    degrees = {"tp": row["chips"], "dp": 1}
    if row["model"] == "mixtral-8x7b":
        degrees |= {"ep": 1, "etp": row["chips"]}
    return serve(
        row["model"], on=f"{row['chips']}xH100", framework="vllm", cuda_graphs=True,
        rate=row["rate_per_s"], prompt=row["prompt_tokens"], answer=row["answer_tokens"],
        arrivals="constant", shared_prefix=row["prompt_tokens"], num_prefixes=PROMPTS,
        **degrees, **SERVER,
    )  # fmt: skip


def stages(rows: list[dict[str, Any]]) -> None:
    """Print the error of each stage, and their medians."""
    errors: dict[str, list[float]] = defaultdict(list)
    print(
        "row            model          chips rate  end to end: mean p50 p90 p99   TTFT: mean  TPOT"
    )
    for row in rows:
        head = f"{row['id']:<14} {row['model']:<14} {row['chips']:>5} {row['rate_per_s']:>4}"
        try:
            best = predicted(row).best
        except InfeasibleError as error:
            print(f"{head}  refused: {error}")
            errors["refused"].append(1.0)
            continue
        found = {}
        for name in ("e2e", "ttft"):
            times = getattr(best, name)
            values = (times.mean_s, times.p50_s, times.p90_s, times.p99_s)
            for at, value, measured_ms in zip(AT, values, row[f"{name}_ms"], strict=True):
                found[f"{name} {at}"] = 1e3 * value / measured_ms - 1.0
        found["TPOT"] = 1e3 * best.tpot.mean_s / row["tpot_ms"] - 1.0
        for name, error in found.items():
            errors[name].append(error)
        shown = " ".join(f"{found[f'e2e {at}']:+5.0%}" for at in AT)
        print(
            f"{head}              {shown}        {found['ttft mean']:+5.0%} {found['TPOT']:+5.0%}"
        )
    for name, values in errors.items():
        if name == "refused":
            print(f"refused {len(values)} of {len(rows)}")
        else:
            median, signed = np.median(np.abs(values)), np.median(values)
            print(f"{name:<10} median |error| {median:5.1%}, median {signed:+6.1%}")


def one_by_one(found: dict[str, Any]) -> None:
    """Print the errors of the replayed requests, and those of the room of the cache."""
    rows = np.array(found["requests"])
    counts = [rows[:, place].astype(np.int64) for place in (1, 2)]
    zeros = np.zeros(len(rows), dtype=np.int64)
    arrivals = Arrivals(rows[:, 0], *counts, zeros + ALONE, zeros, zeros)
    work = Decode(
        batch_size=1, prompt_length=1024, context_length=2048,
        software=SoftwareStack(cuda_graphs=True),
    )  # fmt: skip
    problem = serving_problem("llama3.1-8b", "1xRTX-4090", work, "vllm", "calibrated", 0.9)
    server = problem.server.model_copy(update={"most_pass_tokens": 2048})
    problem = replace(problem, server=server)
    options = PlanOptions(sequence_parallel=False, zero_stage=0)
    worker = Worker(problem, options, make_strategy(), arrivals.longest)
    played = replay(worker, arrivals)
    room = worker.cache_tokens / found["cache_tokens"] - 1.0
    print(f"\n300 requests of one RTX 4090: room of the cache {room:+.1%}, "
          f"{played.evictions} evictions")  # fmt: skip
    host_s = host_of_prompt_s(problem.constants, rows[:, 1])
    for name, times_s, place in (("TTFT", played.ttft_s, 3), ("end to end", played.e2e_s, 4)):
        ours, theirs = 1e3 * (times_s + host_s), rows[:, place]
        whole = [(ours.mean(), theirs.mean())]
        whole += [(np.percentile(ours, at), np.percentile(theirs, at)) for at in (50, 90, 99)]
        shown = " ".join(f"{at} {mine / measured - 1.0:+.0%}" for at, (mine, measured) in
                         zip(AT, whole, strict=True))  # fmt: skip
        print(f"{name:<10} {shown}; median of single requests "
              f"{np.median(np.abs(ours / theirs - 1.0)):.0%}")  # fmt: skip


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="two stages alone")
    small = parser.parse_args().small
    found = json.loads(FILE.read_text(encoding="utf-8"))
    stages(found["stages"][:2] if small else found["stages"])
    if not small:
        one_by_one(found["replay"])


if __name__ == "__main__":
    main()
