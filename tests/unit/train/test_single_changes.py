"""Single changes of a plan, worked out by hand: those that need less memory, those it lacks."""

import numpy as np

from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
    stack,
)
from meshwright.train.explain import leaner, missing_features
from meshwright.train.families import rows_of_schedule
from meshwright.train.question import make_problem, training

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=1)


def test_leaner_plans_change_one_thing():
    sharded = make_strategy(dp_shard=8, micro_batch_size=2)
    found = list(leaner(sharded, PLAIN))
    same = [options for strategy, options in found if strategy == sharded]
    assert [o.recompute for o in same if o.recompute is not PLAIN.recompute] == [
        Recompute.SELECTIVE, Recompute.FULL,
    ]  # fmt: skip
    assert [o.zero_stage for o in same if o.zero_stage != 1] == [2, 3]
    assert [o.offload for o in same if o.offload is not Offload.NONE] == [
        Offload.OPTIMIZER, Offload.STATE, Offload.ACTIVATIONS, Offload.ALL,
    ]  # fmt: skip
    assert (make_strategy(dp_shard=8), PLAIN) in found
    # 8 shards give 2, 4 or all 8 devices to one axis; no shard is left for ZeRO but over cp
    split = [(s, o) for s, o in found if s.dp_shard < 8]
    assert [(s.tp, s.pp, s.cp, s.dp_shard) for s, _ in split] == [
        (2, 1, 1, 4), (4, 1, 1, 2), (8, 1, 1, 1), (1, 2, 1, 4), (1, 4, 1, 2), (1, 8, 1, 1),
        (1, 1, 2, 4), (1, 1, 4, 2), (1, 1, 8, 1),
    ]  # fmt: skip
    assert [o.zero_stage for _, o in split] == [1, 1, 0, 1, 1, 0, 1, 1, 1]
    assert [o.sequence_parallel for _, o in split] == [True] * 3 + [False] * 6
    assert len(found) == 2 + 2 + 4 + 1 + 9


def test_a_plan_on_one_shard_has_no_further_stage_of_zero():
    alone = make_strategy(dp_replicate=8)
    stages = {options.zero_stage for _, options in leaner(alone, PLAIN)}
    assert stages == {1}


def test_missing_features_ask_for_any_larger_degree():
    problem = make_problem(
        "gpt2-medium", "8xH100", training("8xH100", sequence_length=1024, global_batch_size=16),
        "uncalibrated",
    )  # fmt: skip
    asked = {
        choice: values for _, choice, values in missing_features(
            problem, make_strategy(tp=2, dp_shard=4), PLAIN
        )
    }  # fmt: skip
    assert asked == {
        "pp": (2, 4, 8), "cp": (2, 4, 8), "recompute": (Recompute.FULL,), "zero_stage": (3,)
    }  # fmt: skip


def test_each_row_has_the_schedules_that_apply_to_it():
    rows = stack([make_strategy(), make_strategy(pp=4), make_strategy(pp=4, num_virtual_stages=2)])
    known = {kind: rows_of_schedule(rows, kind).tolist() for kind in ScheduleKind}
    assert known[ScheduleKind.ONE_F_ONE_B] == [True, True, False]
    assert known[ScheduleKind.INTERLEAVED] == [False, False, True]
    assert known[ScheduleKind.GPIPE] == known[ScheduleKind.ZERO_BUBBLE] == [False, True, False]
    assert np.all(np.any([*known.values()], axis=0))
