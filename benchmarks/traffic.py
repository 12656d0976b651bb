"""300 requests of one overloaded RTX 4090, one by one, beside the simulation of ``serve --trace``.

No constant is fitted to them. Rows and source are in ``measurements/traffic.json``, beside the
stages of constant rates that ``meshwright validate`` holds answers against.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.serve import serving_problem
from meshwright.serve.traffic.iteration import Worker
from meshwright.serve.traffic.queueing import replay
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.arrivals import ALONE, Arrivals
from meshwright.spec.workload import Decode, SoftwareStack

FILE = Path(__file__).with_name("measurements") / "traffic.json"
AT = ("mean", "p50", "p90", "p99")


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
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the first 100 requests alone")
    found = json.loads(FILE.read_text(encoding="utf-8"))["replay"]
    if parser.parse_args().small:
        found["requests"] = found["requests"][:100]
    one_by_one(found)


if __name__ == "__main__":
    main()
