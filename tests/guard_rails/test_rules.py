"""The nine rules that keep a search honest, one test or a few for each."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from small_problems import chip, dense, gqa, level, model, problem, system

from meshwright.catalog.systems import load_chip
from meshwright.cost.operator import matmul_compute_s
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_one
from meshwright.search.exhaustive import Found
from meshwright.search.leading import in_order_of_preference
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.train.price import estimate_of
from meshwright.train.question import check_problem, make_problem, training
from meshwright.train.robustness import NUM_DRAWS, perturbed, robustness
from meshwright.train.search import search
from meshwright.train.space import SearchSpace
from meshwright.wafer.training import plan

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)


def parts(task, plan_options, **degrees):
    time = price_one(task, plan_options, make_strategy(**degrees)).step.time
    return {name: float((time[name] + 0.0 * time.total_s)[0]) for name in TimePart}


def test_1_numerics_are_the_users_and_never_searched():
    """No degree and no structural choice can change what is computed, only where."""
    searched = {entry.name for entry in fields(PlanOptions)} | set(vars(make_strategy()))
    numerics = {"global_batch_size", "sequence_length", "precision", "optimizer", "causal",
                "expert_load_imbalance", "capacity_factor"}  # fmt: skip
    assert not searched & numerics
    work = training("8xH100", sequence_length=2048, global_batch_size=64)
    answer = plan("llama3-8b", "8xH100", work, allowed={"pp": [1], "cp": [1]})
    assert answer.workload == work


def test_2_shards_below_a_tile_pay_for_the_whole_tile():
    """Inner width 64, tiles of 16: on tp 8 shards of 8 columns take as long as 16 on tp 4.

    They are no law: a framework starts them.
    """
    task = problem(model(dense(gqa(8, 8), 64)), system(level(8)))
    assert check_problem(task, make_strategy(tp=8), PLAIN) == []
    shape = {"inner": 64.0, "rate": 1e12, "rates": task.rates}
    narrow, whole = (matmul_compute_s(1.0, 512.0, columns=n, **shape) for n in (8.0, 16.0))
    assert narrow == whole > 0.0


def test_2_products_pay_whole_waves():
    """Twice the micro-batch fills the same waves: 32 rows of one layer cost as much as 64."""
    wide = chip(num_cores=1024)
    task = problem(model(), system(level(1), chip=wide), sequence_length=16, global_batch_size=4)
    one = parts(task, PLAIN, micro_batch_size=1)["compute_s"] / 4
    four = parts(task, PLAIN, micro_batch_size=4)["compute_s"]
    assert four < 2 * one


@pytest.mark.parametrize(
    ("plan_options", "degrees", "part"),
    [
        (PLAIN, {"tp": 2}, "tp_comm_s"),
        (replace(PLAIN, sequence_parallel=True), {"tp": 2}, "tp_comm_s"),
        (PLAIN, {"cp": 2}, "cp_comm_s"),
        (PLAIN, {"pp": 2}, "pp_comm_s"),
        (PLAIN, {"dp_replicate": 2}, "dp_comm_s"),
        (replace(PLAIN, zero_stage=3), {"dp_shard": 2}, "dp_comm_s"),
    ],
)
def test_3_no_transfer_is_free(plan_options, degrees, part):
    """At unlimited bandwidth every axis still pays latency and start for each of its messages."""
    fast = system(level(8, bandwidth=1e30))
    task = problem(model(), fast)
    start_s = task.calibration.collective_launch_s + 1e-6
    num_micro_batches = 8 / degrees.get("dp_replicate", 1) / degrees.get("dp_shard", 1)
    least = start_s if part == "dp_comm_s" else num_micro_batches * start_s
    assert parts(task, plan_options, **degrees)[part] >= least
    assert parts(task, plan_options)[part] == 0


def test_3_virtual_stages_pay_activations():
    """p = 4, v = 2: (1 + 3 / 8) of what 1F1B holds on its first stage, up to one chunk."""
    task = problem(model(num_layers=8), system(level(4)), global_batch_size=16)
    interleaved = replace(PLAIN, schedule="interleaved")
    plain = price_one(task, PLAIN, make_strategy(pp=4)).step.memory[0][MemoryPart.ACTIVATIONS][0]
    chunked = price_one(task, interleaved, make_strategy(pp=4, num_virtual_stages=2))
    ratio = chunked.step.memory[0][MemoryPart.ACTIVATIONS][0] / plain
    assert ratio == pytest.approx((2 * 3 + 4 + 1) / 2 / 4)
    assert ratio >= 1 + 3 / 8 - 0.25


def test_4_memory_keeps_a_margin_and_buffers():
    work = training("8xH100", sequence_length=2048, global_batch_size=64)
    task = make_problem("llama3-8b", "8xH100", work, "uncalibrated")
    use = price_one(task, PLAIN, make_strategy(dp_replicate=8)).step.memory[0]
    capacity = task.system.chip.main_memory.capacity_bytes
    assert task.calibration.memory_margin_fraction >= 0.06
    assert use[MemoryPart.MARGIN][0] == task.calibration.memory_margin_fraction * capacity
    assert use[MemoryPart.BUFFERS][0] == task.calibration.communication_buffer_bytes > 0


def found(time_s, gib, **degrees):
    return Found(make_strategy(**degrees), PLAIN, time_s, gib * 2.0**30)


def test_4_within_one_percent_headroom_decides_then_fewer_axes():
    fastest = found(1.0, 70, tp=8)
    lean = found(1.009, 40, tp=4, dp_shard=2)
    lean_with_fewer_axes = found(1.0095, 40, dp_shard=8)
    slow = found(1.011, 10, dp_shard=8)
    given = [fastest, lean, lean_with_fewer_axes, slow]
    assert in_order_of_preference(given) == [lean_with_fewer_axes, lean, fastest, slow]


def test_5_idle_devices_draw_power():
    device = load_chip("H100")
    assert device.idle_power_w is not None
    assert device.idle_power_w > 0


def test_6_fewer_devices_are_legal_and_reported():
    task = problem(model(), system(level(11)), global_batch_size=10)
    assert not check_problem(task, make_strategy(dp_replicate=5), PLAIN)
    best = search(SearchSpace(task, Choices({}))).found[0]
    assert best.strategy.num_devices == 10
    work = training("62xH100", sequence_length=2048, global_batch_size=64)
    answer = plan("llama3-8b", "62xH100", work, allowed={"tp": [1], "cp": [1]})
    used = answer.best.estimate.num_devices_used
    assert used <= 62
    assert any("devices stay idle" in note for note in answer.warnings) == (used < 62)


def test_6_stages_and_shards_may_be_uneven():
    """Seven layers on two stages, a vocabulary of 511 over tp 2: the largest shard is priced."""
    task = problem(model(num_layers=7, vocab_size=511), system(level(4)))
    assert not check_problem(task, make_strategy(tp=2, pp=2), PLAIN)
    even = problem(model(num_layers=7, vocab_size=512), system(level(4)))
    assert parts(task, PLAIN, tp=2, pp=2) == parts(even, PLAIN, tp=2, pp=2)


def test_7_a_winner_beyond_the_evidence_is_flagged(monkeypatch):
    work = training("8xH100", sequence_length=8192, global_batch_size=64)
    fixed = {"pp": [1], "cp": [1], "tp": [1, 2], "recompute": ["selective"]}
    believed = plan("llama3-8b", "8xH100", work, allowed=fixed)
    lower = believed.best.estimate.mfu_full * 0.99
    monkeypatch.setattr("meshwright.train.price.best_measured_mfu", lambda *_: lower)
    flagged = plan("llama3-8b", "8xH100", work, allowed=fixed)
    assert any("outside the evidence" in note for note in flagged.warnings)
    monkeypatch.setattr("meshwright.train.price.best_measured_mfu", lambda *_: 1.0)
    inside = plan("llama3-8b", "8xH100", work, allowed=fixed)
    assert not any("outside the evidence" in note for note in inside.warnings)


def test_8_the_best_plans_are_priced_again_under_perturbed_constants():
    task = problem()
    best = search(SearchSpace(task, Choices({}))).found[:4]
    verdict = robustness(task, best)
    assert verdict.times_s.shape == (len(best), NUM_DRAWS) == (4, 256)
    assert verdict.wins.sum() == pytest.approx(1.0)
    assert (verdict.largest_regret >= 0).all()
    low, high = verdict.interval_s(0)
    assert low < best[0].time_s < high
    np.testing.assert_array_equal(verdict.times_s, robustness(task, best).times_s)


def test_8_draws_lie_in_their_intervals_as_often_below_a_value_as_above():
    task = problem()
    shaken = perturbed(task, num_draws=4096)
    for name, (low, high) in task.calibration.intervals.items():
        value, draws = getattr(task.calibration, name), getattr(shaken.calibration, name)
        if low < value < high:
            assert low <= draws.min() <= draws.max() <= high
            assert (draws < value).mean() == pytest.approx(0.5, abs=0.03)


def test_8_constants_known_exactly_leave_nothing_to_doubt():
    task = problem()
    exact = {name: (getattr(task.calibration, name),) * 2 for name in task.calibration.intervals}
    sure = replace(task, calibration=replace(task.calibration, intervals=exact))
    best = search(SearchSpace(sure, Choices({}))).found[:2]
    verdict = robustness(sure, best)
    assert verdict.wins[0] == 1.0
    np.testing.assert_allclose(verdict.times_s[0], best[0].time_s, rtol=1e-12)


def test_9_unknown_is_not_zero():
    silent = estimate_of(problem(), price_one(problem(), PLAIN, make_strategy()))
    assert silent.energy_j is None
    assert silent.cost_usd is None
    known = system(level(4), chip=chip(idle_power_w=100.0, peak_power_w=700.0,
                                       rent_usd_per_hour=2.0))  # fmt: skip
    told = estimate_of(problem(on=known), price_one(problem(on=known), PLAIN, make_strategy()))
    assert told.energy_j > 100.0 * told.step_time_s
    assert told.cost_usd == pytest.approx(told.step_time_s * 2 / 3600)
    assert math.isfinite(told.energy_j)
