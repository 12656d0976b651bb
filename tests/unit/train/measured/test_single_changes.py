"""Single changes of a plan: one thing each, on as many devices."""

import pytest

from meshwright.sharding.strategy import PlanOptions, Recompute, ScheduleKind, make_strategy
from meshwright.train.measured.diagnose import single_changes
from meshwright.train.question import make_problem, training

WORK = training("64xH100", sequence_length=2048, global_batch_size=128)
DENSE = make_problem("llama3-8b", "64xH100", WORK, "uncalibrated")
CASES = [
    (DENSE, make_strategy(tp=4, pp=2, dp_shard=8), PlanOptions()),
    (DENSE, make_strategy(dp_shard=64), PlanOptions(zero_stage=3)),
    (DENSE,
     make_strategy(pp=4, num_virtual_stages=2, dp_shard=8, dp_replicate=2, micro_batch_size=2),
     PlanOptions(schedule=ScheduleKind.INTERLEAVED, overlap_data_parallel=False)),
    (make_problem("mixtral-8x7b", "64xH100", WORK, "uncalibrated"),
     make_strategy(dp_shard=64, ep=4), PlanOptions(recompute=Recompute.FULL)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[1])[:40])
def test_changes_differ_and_keep_the_devices(case):
    problem, strategy, plan_options = case
    found = list(single_changes(problem, strategy, plan_options))
    keys = [(e.strategy, e.plan_options, e.problem.workload) for e in found]
    assert len(set(map(repr, keys))) == len(keys)
    assert len({entry.what for entry in found}) == len(found)
    assert (strategy, plan_options, problem.workload) not in keys
    for entry in found:
        assert entry.strategy.num_devices == strategy.num_devices
        interleaved = entry.plan_options.schedule is ScheduleKind.INTERLEAVED
        assert interleaved == (entry.strategy.num_virtual_stages > 1)


def words(problem, strategy, plan_options):
    return {entry.what for entry in single_changes(problem, strategy, plan_options)}


def test_what_can_change_is_named():
    assert {"tp 4 to 2, dp 8 to 16", "vpp 1 to 2", "mbs 1 to 2", "recompute none to full",
            "zero 1 to 3", "without sequence parallelism", "async tensor parallelism",
            "CUDA graphs"} <= words(*CASES[0])  # fmt: skip
    assert "weights kept for the backward pass" in words(*CASES[1])
    assert {"dp 16 to 8, tp 1 to 2", "vpp 2 to 1", "mbs 2 to 1",
            "overlapped data-parallel communication"} <= words(*CASES[2])  # fmt: skip
    assert {"ep 4 to 8", "ep 4 to 2", "recompute full to none"} <= words(*CASES[3])
