"""The shortest path over ideals against an integer program of the same rules, solved by HiGHS."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fusion_problems import random_problem
from sampled import sampled

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.search import fuse

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fusion_program.py"


@pytest.fixture(scope="module")
def program_of():
    return runpy.run_path(str(SCRIPT), run_name="fusion_program")["FusionProgram"]


@pytest.mark.parametrize("seed", sampled(range(300), 8))
def test_best_partitions_are_those_of_the_integer_program(program_of, seed):
    problem = random_problem(seed, 3 + seed % 3, num_phases=1 + seed % 2)
    held = np.minimum(problem.held_bytes, 60.0)
    size = 1 + seed % 3
    problem = replace(problem, held_bytes=held, setup_bytes=held, micro_batches=(size,))
    expected = program_of(problem, size, problem.num_kernels).solve()
    if not np.isfinite(expected):
        with pytest.raises(InfeasibleError):
            fuse(problem)
        return
    found = fuse(problem)
    assert all(part.weight_parts == 1 for part in found.partitions)
    assert found.time_s == pytest.approx(expected, rel=1e-6)
