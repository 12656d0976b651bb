"""One stage, priced as a partition and as a strategy of serving: the same numbers by two routes."""

import pytest

from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.serve.passes import ServingProblem, price_passes
from meshwright.serve.serve import serving_candidate, serving_problem
from meshwright.sharding.strategy import make_strategy, stack
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack
from meshwright.sram.partition import Cut, partition
from meshwright.sram.question import PLAN_OPTIONS

RECORDED = SoftwareStack(cuda_graphs=True)
WORK = {
    "decode": lambda batch: Decode(batch_size=batch, context_length=2048, software=RECORDED),
    "prefill": lambda batch: Prefill(batch_size=batch, prompt_length=512, software=RECORDED),
    "narrow": lambda batch: Decode(
        batch_size=batch, context_length=2048, software=RECORDED,
        precision=Precision(weight="fp8", kv_cache="fp8"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "system", "batch"),
    [("llama3-8b", "1xWSE-2", 1), ("llama2-13b", "1xWSE-3", 2), ("mixtral-8x7b", "4xWSE-3", 1)],
)
def test_both_questions_have_one_answer_on_a_chip_with_sram_alone(model, system, batch):
    """Kernels of the workload are launched one by one; a dataflow chip launches none."""
    context = {"batch_size": batch, "context_length": 2048}
    cut = partition(model, system, Decode(**context, software=RECORDED), Cut(num_groups=1))
    problem = serving_problem(model, system, Decode(**context), "generic", DEFAULT)
    strategy = make_strategy(pp=len(cut.stages), micro_batch_size=batch)
    known = serving_candidate(problem, strategy, PLAN_OPTIONS, 1).estimate
    even = dict.fromkeys(("pp_comm_s", "jitter_s"), 0.001)  # token ids on the way back
    for name, seconds in known.time_parts_s.items():
        near = pytest.approx(seconds, rel=even.get(name, 1e-9), abs=1e-18)
        assert cut.rates.time_parts_s.get(name, 0.0) == near
    assert known.time_parts_s["mesh_s"] > 0.0 == known.time_parts_s["launch_s"]


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize(
    ("model", "tp", "batch"),
    [("llama3-8b", 1, 4), ("llama3-70b", 8, 16), ("mixtral-8x7b", 4, 8), ("gemma3-4b", 2, 3)],
)
def test_one_stage_is_one_replica(kind, model, tp, batch):
    system, work = load_system(f"{tp}xH100"), WORK[kind](batch)
    cut = Cut(level="hbm", tensor_degree=tp, num_groups=1)
    plan = partition(model, system, work, cut)
    constants = load_calibration("hopper", DEFAULT)
    problem = ServingProblem(load_model(model), system, work, constants)
    etp = tp if problem.num_experts else 1
    strategy = make_strategy(tp=tp, etp=etp, micro_batch_size=batch)
    known = serving_candidate(problem, strategy, PLAN_OPTIONS, 1).estimate
    assert plan.rates.latency_s == pytest.approx(known.latency_s, rel=1e-12)
    assert plan.rates.tokens_per_s == pytest.approx(known.tokens_per_s, rel=1e-12)
    (stage,) = plan.stages
    weights = stage.load_parts_bytes["weights"]
    if not problem.graph.tied:  # a tied table is held once by one stage there, twice in a row
        assert weights == known.memory_parts_bytes["weights_bytes"]
    held = stage.reserved_parts_bytes
    assert held["kv_cache"] == known.memory_parts_bytes["kv_cache_bytes"]
    # A server reserves its largest pass besides; a partition holds what its own pass needs.
    own = price_passes(problem, PLAN_OPTIONS, stack([strategy])).held[0].working_bytes
    assert held["activations"] == own[0] <= known.memory_parts_bytes["working_bytes"]
    for name, seconds in known.time_parts_s.items():
        assert plan.rates.time_parts_s.get(name, 0.0) == pytest.approx(seconds, rel=1e-9, abs=1e-18)
