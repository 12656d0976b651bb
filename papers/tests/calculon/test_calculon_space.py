"""The peer's exhaustive searches: same counts, same best plans; factored rows equal direct ones."""

import json
from dataclasses import fields
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from meshwright_papers.calculon.executions import Executions, executions_from_rows
from meshwright_papers.calculon.machine import application_named, system_named
from meshwright_papers.calculon.search import Counts, Space, portions, search
from meshwright_papers.calculon.step import REFUSALS, evaluate

DATA = json.loads(
    (Path(__file__).parents[1] / "data" / "calculon_spaces.json").read_text(encoding="utf-8")
)
RUNS = DATA["runs"]
BATCH = 1536


def published_space(num_processors):
    return Space(
        application_named("gpt3-175B"),
        system_named("a100_80g").without_host_memory(),
        num_processors,
        BATCH,
        tensor_overlap=False,
    )


def whole_space():
    return Space(application_named("gpt3-175B"), system_named("a100_80g"), 512, BATCH)


@cache
def searched(num_processors):
    return search(published_space(num_processors))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run["gpus"]))
def test_counts_are_those_of_the_peer(run):
    assert searched(run["gpus"]).counts == Counts(
        configurations=run["configs"],
        network_refused=run["network_rejected"],
        offload_refused=run["other_rejected"],
        memory_refused=run["memory_rejected"],
        feasible=run["feasible"],
    )


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run["gpus"]))
def test_best_twenty_are_those_of_the_peer(run):
    best = searched(run["gpus"]).best
    assert len(best) == len(run["top20"]) == 20
    for plan, expected in zip(best, run["top20"], strict=True):
        found = [plan.execution[name] for name in DATA["execution_fields"]]
        assert found == expected["execution"]
        assert plan.samples_per_s == pytest.approx(expected["samples_per_s"], rel=1e-12)
        assert plan.total_s == pytest.approx(expected["total_s"], rel=1e-12)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run["gpus"]))
def test_best_plans_have_their_full_breakdown(run):
    space = published_space(run["gpus"])
    best = searched(run["gpus"]).best
    rows = executions_from_rows([plan.execution for plan in best], space.application, 2)
    result = evaluate(space.application, space.system, rows)
    assert result.fits.all()
    assert result.total_s.tolist() == [plan.total_s for plan in best]
    assert result.memory.near_bytes.tolist() == [plan.near_bytes for plan in best]
    expected = [plan["utilization"] for plan in run["top20"]]
    assert result.utilization == pytest.approx(expected, rel=1e-12)


def test_the_space_with_offload_and_overlap_is_covered():
    """13,165,632: counted by running the peer's own loops (its search took 12 hours' worth)."""
    counts = search(whole_space(), num_best=1).counts
    assert counts.configurations == 13_165_632
    refused = counts.network_refused + counts.offload_refused + counts.memory_refused
    assert counts.feasible + refused == counts.configurations


def test_ten_thousand_random_rows_evaluated_alone_are_the_same_bit_for_bit():
    space, rng, samples = whole_space(), np.random.default_rng(7), []
    for portion in portions(space):
        for block in portion.blocks():
            size = block.total_s.size
            places = rng.choice(size, rng.binomial(size, 0.006), replace=False)
            priced = [c.ravel()[places] for c in (block.total_s, block.near_bytes, block.fits)]
            samples.append((block.executions(places), *priced))
    plans, total_s, near_bytes, fits = zip(*samples, strict=True)
    rows = Executions(
        **{f.name: np.concatenate([getattr(e, f.name) for e in plans]) for f in fields(Executions)}
    )
    direct = evaluate(space.application, space.system, rows)
    assert len(rows) >= 10_000
    assert direct.total_s.tolist() == np.concatenate(total_s).tolist()
    assert direct.memory.near_bytes.tolist() == np.concatenate(near_bytes).tolist()
    assert direct.fits.tolist() == np.concatenate(fits).tolist()
    assert set(rows.overlap) == {0, 1, 2}
    assert min(rows.offload_weights.sum(), direct.fits.sum()) > 1_000
    assert (~direct.fits).sum() > 100


def enumerated(space):
    """Return every plan of a space by plain loops, as the peer would be handed them."""
    app, total = space.application, space.num_processors
    nets = range(len(space.system.networks))
    divisors = {n: [d for d in range(1, n + 1) if n % d == 0] for n in range(1, 2000)}
    for tp, pp in product(divisors[total], repeat=2):
        if total % (tp * pp) or app.num_heads % tp or app.hidden_size % tp or app.num_blocks % pp:
            continue
        dp = total // (tp * pp)
        batch = space.max_batch_size // dp * dp
        if not batch:
            continue
        many, stages, sums = tp > 1, pp > 1, dp > 1
        for interleaving, recompute, sharded, comm, again, summed, overlap in product(
            divisors[app.num_blocks // pp] if stages else [1],
            ["full", "attn_only", "none"],
            [True, False] if sums else [False],
            ["ar", "p2p_rs_ag", "rs_ag"],
            [True, False],
            [True, False] if sums else [False],
            ["none", "ring", "pipe"] if many else ["none"],
        ):
            if again and (comm != "rs_ag" or recompute == "full"):
                continue
            for weights, acts, states, micro, tn, pn, dn in product(
                [True, False],
                [True, False] if recompute != "full" else [False],
                [True, False],
                [m for m in divisors[batch // dp] if m * app.sequence_size % tp == 0],
                nets if many else [0],
                nets if stages else [0],
                nets if sums else [0],
            ):
                yield (
                    total, tp, pp, dp, tn, pn, dn, batch, micro, "float16", True, "multihead",
                    recompute, interleaving, sharded, comm, overlap, again, summed,
                    weights, acts, states, True,
                )  # fmt: skip


POINT_FIELDS = json.loads(
    (Path(__file__).parents[1] / "data" / "calculon_points.json").read_text(encoding="utf-8")
)["execution_fields"]


def test_a_small_space_is_what_plain_loops_give():
    """Every plan of a small space, one by one: counts by refusal, and the best plan."""
    application = application_named("megatron-22B").model_copy(
        update={
            "num_blocks": 4,
            "num_heads": 6,
            "hidden_size": 6144,
            "feedforward_size": 24576,
        }
    )
    system = system_named("a100_80g")
    tight = system.memory.model_copy(update={"capacity_bytes": 8e9})
    space = Space(application, system.model_copy(update={"memory": tight}), 6, 6)
    rows = [dict(zip(POINT_FIELDS, row, strict=True)) for row in enumerated(space)]
    result = evaluate(application, space.system, executions_from_rows(rows, application, 2))
    found = search(space, num_best=5)
    by_reason = np.bincount(result.refusal, minlength=len(REFUSALS)).tolist()
    counts = found.counts
    assert counts.configurations == len(rows)
    assert by_reason == [
        counts.feasible, counts.network_refused, 0, counts.offload_refused, counts.memory_refused
    ]  # fmt: skip
    assert min(counts.feasible, counts.offload_refused, counts.memory_refused) > 0
    rates = np.sort(result.samples_per_s[result.fits])[::-1]
    assert [plan.samples_per_s for plan in found.best] == rates[:5].tolist()
