"""Published deployments as `serve` prices them: wide expert parallelism, xPyD, queues of MLPerf.

    python benchmarks/served_deployments.py [--rows] [--group wide-ep]

Each row states its plan, so the plan is priced, not searched: pass, memory and constants are those
of the command. Errors are ln(predicted / measured) of rates and ln(measured / predicted) of times:
above 0 is too fast. No constant has seen a row; half of each group, by a hash of its name, stays
apart from those that were looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.errors import MeshwrightError
from meshwright.catalog.models import load_model
from meshwright.serve.operators import host_of_prompt_s
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import ServingPrice, price_serving
from meshwright.serve.requests import BENCHMARK_ROUNDS, EqualRequests, Serving
from meshwright.serve.serve import serving_problem
from meshwright.sharding.strategy import PlanOptions, Strategy, make_strategy, stack
from meshwright.spec.model import WeightFormat
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack, Speculation

ROWS = Path(__file__).parent / "measurements" / "deployments.json"
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
SERVERS = {"sglang": "sglang", "trtllm": "tensorrt-llm-pytorch", "tensorrt": "tensorrt-llm",
           "in-house": "sglang"}  # fmt: skip
"""Servers by a word of the source, else vLLM; that of DeepSeek is not public."""
UNSTATED_PROMPTS = (100, 300)
"""Mean prompts between which a row lies that states none."""
PASS_TOKENS = 16_384
"""Tokens of a pass of prompts on one chip, where they are not stated."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure of a row, its error and the numbers behind it."""

    row: str
    group: str
    name: str
    error: float
    text: str

    @property
    def is_apart(self) -> bool:
        """Whether the row is kept apart."""
        return int(hashlib.sha256(self.row.encode()).hexdigest(), 16) % 2 == 1


def precision_of(row: Row) -> Precision:
    """Return the formats that a row states."""
    text = row["precision"]
    narrow = "fp4" if "nvfp4" in text else "fp8" if "fp8" in text else "bf16"
    cache = "fp8" if "fp4" in text or "fp8 attention" in text else "bf16"
    return Precision(matmul=narrow, weight=narrow, activation="bf16", kv_cache=cache)


def problem_of(row: Row, num_chips: int, work: Decode | Prefill) -> ServingProblem:
    """Return the problem that the command prices, with the checkpoint that the row states."""
    model = load_model(row["model"])
    if "nvfp4" in row["precision"]:
        wide = {"attention": 1.0} if model.has_experts else {}
        stored = WeightFormat(
            name="nvfp4", bytes_per_weight=0.5625, wide_shares=wide, matmul="fp4"
        )  # fmt: skip
        model = model.model_copy(update={"weight_format": stored})
    server = next((s for word, s in SERVERS.items() if word in row["framework"].lower()), "vllm")
    return serving_problem(model, f"{num_chips}x{row['chip']}", work, server, "calibrated")


def work_of(row: Row, batch: int, *, decodes: bool) -> Decode | Prefill:
    """Return one phase of a row; lengths that are drawn count with their mean."""
    shared: dict[str, Any] = {
        "batch_size": batch, "precision": precision_of(row),
        "software": SoftwareStack(cuda_graphs=True),
        "two_batch_overlap": bool(row.get("two_batch_overlap")),
    }  # fmt: skip
    share = (1.0 + row.get("shortest_share", 1.0)) / 2.0
    prompt = int(share * row["prompt_tokens"])
    if not decodes:
        return Prefill(prompt_length=prompt, **shared)
    if "mtp" in row:
        drafted = row["mtp"]["draft_tokens"] - 1
        accepted = np.mean([float(part) for part in row["mtp"]["accept_length"].split("-")])
        chance = acceptance(float(accepted), drafted)
        shared["speculation"] = Speculation(drafted_tokens=drafted, acceptance=chance)
    return Decode(context_length=int(prompt + share * row.get("answer_tokens", 0) / 2.0), **shared)


def acceptance(tokens: float, drafted: int) -> float:
    """Return the chance of a drafted token with which a step yields some tokens."""
    chances = np.linspace(0.0, 1.0, 10_001)
    return float(np.interp(tokens, sum(chances**k for k in range(drafted + 1)), chances))


def strategy_of(row: Row, plan: Row, sequences: float) -> Strategy:
    """Return the degrees of one worker: tp, replicas of attention, and the experts of both."""
    tp, joined, pp = plan.get("tp", 1), plan.get("dp_attention", 1), plan.get("pp", 1)
    if not load_model(row["model"]).has_experts:
        return make_strategy(tp=tp, pp=pp, micro_batch_size=sequences)
    ep = plan.get("ep", 1)
    return make_strategy(tp=tp, pp=pp, dp_replicate=joined, ep=ep, etp=tp * joined // ep,
                         micro_batch_size=sequences)  # fmt: skip


def price_of(
    row: Row, plan: Row, sequences: float, *, decodes: bool
) -> tuple[ServingProblem, ServingPrice]:
    """Return the price of one phase on one worker."""
    joined = plan.get("dp_attention", 1)
    work = work_of(row, max(int(sequences * joined), 1), decodes=decodes)
    problem = problem_of(row, plan.get("tp", 1) * plan.get("pp", 1) * joined, work)
    strategy = stack([strategy_of(row, plan, sequences)])
    return problem, price_serving(problem, PLAIN, strategy, np.ones(1))


def parts(price: ServingPrice) -> str:
    """Return the parts of a time in milliseconds."""
    known = {name: 1e3 * float(np.ravel(value)[0]) for name, value in vars(price.time).items()}
    return " ".join(f"{n.removesuffix('_s')} {v:.2f}" for n, v in known.items() if v > 0.01)


def one_phase(row: Row) -> list[Figure]:
    """Return the tokens/s of a chip, of prefill or decode alone."""
    plan, decodes = row["plan"], row["phase"] == "decode"
    batch = row["batch"] if decodes else row.get("pass_tokens", PASS_TOKENS) / row["prompt_tokens"]
    _, price = price_of(row, plan, float(batch), decodes=decodes)
    predicted = float(price.tokens_per_s[0]) / plan.get("tp", 1) / plan.get("dp_attention", 1)
    measured = row["tokens_per_s_per_chip"]
    text = f"{predicted:,.0f} of {measured:,.0f}; {parts(price)}"
    error = float(np.log(predicted / measured))
    return [Figure(row["id"], f"wide-ep {row['chip']}", row["phase"], error, text)]


def deployment(row: Row) -> list[Figure]:
    """Return TPOT, TTFT and the time of a request, of clients of workers of both kinds.

    A closed loop: answers hold the clients that do not wait for their prompt, and prompts wait
    where all clients send more than the prefill workers take.
    """
    senders, receivers = row["prefill"], row["decode"]
    answer = (1.0 + row.get("shortest_share", 1.0)) / 2.0 * row["answer_tokens"]
    clients, later = float(row["clients"]), answer - 1.0
    problem, prompt = price_of(row, senders, 1.0, decodes=False)
    pass_s = float(prompt.latency_s[0])
    prompts = senders.get("dp_attention", 1) * senders.get("workers", 1)
    period_s = float(prompt.bottleneck_s[0]) / prompts
    ranks = receivers.get("dp_attention", 1) * receivers.get("workers", 1)
    step_s, first_s = 0.01, pass_s
    for _ in range(30):
        growing = clients * later * step_s / (later * step_s + first_s)
        _, price = price_of(row, receivers, max(growing / ranks, 1.0), decodes=True)
        step_s = float(price.latency_s[0])
        busy = min(period_s * clients / (first_s + later * step_s), 0.98)
        queued_s = pass_s + busy * period_s / (2.0 * (1.0 - busy))
        steady_s = max(queued_s, clients * period_s - later * step_s)
        wave_s = pass_s + (clients - 1.0) * period_s / 2.0
        own_s = float(host_of_prompt_s(problem.constants, float(problem.pass_length)))
        found_s = own_s + steady_s + (wave_s - steady_s) / BENCHMARK_ROUNDS
        if abs(found_s - first_s) < 1e-3 * first_s:
            break
        first_s = (first_s + found_s) / 2.0
    joined = "dp" if receivers.get("dp_attention", 1) > 1 else "tp"
    group = f"aic-disagg {row['chip']} {row['precision']} {problem.server.name} {joined}"
    measured = row["tpot_ms"], row["ttft_ms"], row["ttft_ms"] + later * row["tpot_ms"]
    predicted = 1e3 * step_s, 1e3 * first_s, 1e3 * (first_s + later * step_s)
    texts = parts(price), parts(prompt), f"{growing / ranks:.1f} of {clients / ranks:.1f} grow"
    return [
        Figure(row["id"], group, name, float(np.log(of / mine)), f"{mine:.2f} of {of:.2f} ms; {t}")
        for name, mine, of, t in zip(
            ("TPOT", "TTFT", "request"), predicted, measured, texts, strict=True
        )
    ]  # fmt: skip


def queue(row: Row) -> list[Figure]:
    """Return the answer tokens/s of a chip with all requests queued, on the best split."""
    answer, rates = float(row["answer_tokens"]), []
    measured = row["tokens_per_s_per_chip"]
    for prompt in [row["prompt_tokens"]] if "prompt_tokens" in row else UNSTATED_PROMPTS:
        best = 0.0
        for tp in (1, 2, 4, 8):
            problem = problem_of(
                row, tp, work_of({**row, "prompt_tokens": prompt}, 1, decodes=True)
            )
            strategy = strategy_of(row, {"tp": tp, "ep": tp}, 1.0)
            asked = EqualRequests(np.array([float(prompt)]), np.array([answer]), np.array([np.inf]))
            found = Serving(problem, problem.server, PLAIN, strategy).served(asked)
            if np.ravel(found.room)[0] >= 1.0:
                best = max(best, float(np.ravel(found.requests_per_s)[0]) * answer / tp)
        rates.append(best)
    text = f"{' to '.join(f'{rate:,.0f}' for rate in rates)} of {measured:,.0f}"
    error = float(np.mean(np.log(np.array(rates) / measured)))
    return [Figure(row["id"], f"mlperf {row['chip']} {row['model']}", "offline", error, text)]


WAYS = {"wide-ep": one_phase, "aic-disagg": deployment, "mlperf-inference": queue}


def errors_text(figures: list[Figure]) -> str:
    """Return number, median error and bias of some figures in per cent."""
    if not figures:
        return "  -              "
    errors = 100.0 * np.array([figure.error for figure in figures])
    return f"{len(errors):3} {np.median(abs(errors)):6.1f} {np.median(errors):+7.1f}"


def main() -> None:
    """Print errors by group and figure: of all rows, of those looked at, of those kept apart."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", action="store_true", help="print each row")
    asked.add_argument("--group", choices=sorted(WAYS), help="one group")
    options = asked.parse_args()
    groups: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    for row in json.loads(ROWS.read_text("utf-8"))["rows"]:
        if options.group not in (None, row["group"]):
            continue
        try:
            figures = WAYS[row["group"]](row)
        except MeshwrightError as error:
            print(f"{row['id']} refused: {str(error).splitlines()[0]}")
            continue
        for figure in figures:
            groups[figure.group, figure.name].append(figure)
            groups[figure.group.split()[0], figure.name].append(figure)
            if options.rows:
                print(f"{figure.row} {figure.name} {100 * figure.error:+.0f} %: {figure.text}")
    print(f"{'group':52} {'figure':8} {'all: rows, error, bias':20} {'looked at':20} kept apart")
    for (group, name), figures in sorted(groups.items()):
        seen = [figure for figure in figures if not figure.is_apart]
        apart = [figure for figure in figures if figure.is_apart]
        texts = "    ".join(errors_text(some) for some in (figures, seen, apart))
        print(f"{group:52} {name:8} {texts}")


if __name__ == "__main__":
    main()
