"""The shortest path over ideals against every chain of partitions, priced set by set."""

import numpy as np
import pytest
from fusion_problems import best_by_hand, random_problem, tiered_problem, tiled_problem
from sampled import sampled

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.price import bound_s
from meshwright.dataflow.fusion.problem import OWN
from meshwright.dataflow.fusion.search import evaluate, fuse
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL

CASES = [(seed, 3 + seed % 4, rules) for seed in range(200) for rules in ("dfmodel", "own")]


@pytest.mark.parametrize("case", sampled(CASES, 60), ids=str)
def test_best_partitions_are_those_of_brute_force(case):
    seed, num_kernels, rules = case
    problem = random_problem(
        seed, num_kernels, DFMODEL if rules == "dfmodel" else OWN, num_phases=1 + seed % 2
    )
    expected = best_by_hand(problem)
    if not np.isfinite(expected):
        with pytest.raises(InfeasibleError):
            fuse(problem)
        return
    found = fuse(problem)
    assert found.time_s == pytest.approx(expected, rel=1e-9)
    assert found.gap == 0.0
    assert sum(found.parts_s.values()) == pytest.approx(found.time_s, rel=1e-9)


TIERED = [(seed, 3 + seed % 3) for seed in range(500)]


@pytest.mark.parametrize("case", sampled(TIERED, 60), ids=str)
def test_memories_and_objectives_agree_with_brute_force(case):
    problem = tiered_problem(*case)
    expected = best_by_hand(problem)
    if not np.isfinite(expected):
        with pytest.raises(InfeasibleError):
            fuse(problem)
        return
    found = fuse(problem)
    assert found.time_s == pytest.approx(expected, rel=1e-9)
    assert bound_s(problem) <= found.time_s * (1 + 1e-9)
    assert sum(found.parts_s.values()) == pytest.approx(found.time_s, rel=1e-9)


THREE_TIERS = [(seed, 3 + seed % 3, 2 + (seed % 3 < 2)) for seed in range(1000) if seed % 4 > 1]


@pytest.mark.parametrize("for_latency", [False, True], ids=["stream", "latency"])
@pytest.mark.parametrize("case", sampled(THREE_TIERS, 20), ids=str)
def test_partitions_and_tiles_of_each_objective_are_those_of_brute_force(case, for_latency):
    problem = tiled_problem(*case)
    problem = problem.under(for_latency, problem.send_s)
    assert len(problem.grid.outside) == 2
    expected = best_by_hand(problem)
    if not np.isfinite(expected):
        with pytest.raises(InfeasibleError):
            fuse(problem)
        return
    found = fuse(problem)
    assert found.time_s == pytest.approx(expected, rel=1e-9)
    assert bound_s(problem) <= found.time_s * (1 + 1e-9)
    assert sum(found.parts_s.values()) == pytest.approx(found.time_s, rel=1e-9)
    sets = problem.sets_of([[one.name for one in part.kernels] for part in found.partitions])
    given = evaluate(problem, sets, [(part.tiled, part.tile) for part in found.partitions])
    assert given.time_s == pytest.approx(found.time_s, rel=1e-12)


def test_objectives_differ_in_partitions_or_tiles_in_some_of_the_cases():
    def cut(case, for_latency):
        problem = tiled_problem(*case)
        found = fuse(problem.under(for_latency, problem.send_s))
        return [(tuple(k.name for k in part.kernels), part.tile) for part in found.partitions]

    fitting = [(2, 5, 2), (3, 3, 3), (7, 4, 3), (10, 4, 3), (15, 3, 3), (18, 3, 3)]
    assert [cut(case, True) != cut(case, False) for case in fitting] == [
        False, False, True, True, True, False,
    ]  # fmt: skip


def test_partitions_of_one_answer_have_different_tiles():
    found = [fuse(tiled_problem(seed, 4, 3)) for seed in (2, 3, 5)]
    assert [[part.tile for part in fusion.partitions] for fusion in found] == [
        [5, 4], [5, 4, 5], [5, 4],
    ]  # fmt: skip


def test_limits_bind_in_some_of_the_cases():
    problems = [random_problem(seed, 3 + seed % 4) for seed in range(40)]
    best = [best_by_hand(problem) for problem in problems]
    fused = [fuse(p) for p, s in zip(problems, best, strict=True) if np.isfinite(s)]
    assert 0 < sum(not np.isfinite(seconds) for seconds in best) < 20
    assert {part.limit for fusion in fused for part in fusion.partitions} == {
        "compute", "dram", "network",
    }  # fmt: skip
    assert len({len(fusion.partitions) for fusion in fused}) > 2
    launched = [fuse(random_problem(seed, 4, OWN)) for seed in (1, 2, 3, 6)]
    limits = {part.limit for fusion in launched for part in fusion.partitions}
    assert {"launch"} < limits
    assert max(part.weight_parts for fusion in fused for part in fusion.partitions) > 1
