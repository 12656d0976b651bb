"""A step of a loop: formulas by hand, two parities with plan and serve, laws, and refusals."""

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.audit.laws import violations
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cli.main import as_loop
from meshwright.cost.forward import forward_s
from meshwright.loop.lengths import AnswerLengths
from meshwright.loop.loop import facts_of, rollout_problem
from meshwright.loop.question import Work
from meshwright.loop.rollout import engines
from meshwright.loop.step import Trainer, reshard_bytes, reshard_s, stale_step_s
from meshwright.serve.requests import EqualRequests
from meshwright.serve.traffic.iteration import Worker
from meshwright.serve.traffic.queueing import replay
from meshwright.sharding.strategy import PlanOptions, ScheduleKind, make_strategy
from meshwright.spec.arrivals import ALONE, Arrivals
from meshwright.train.price import candidate
from meshwright.train.question import make_problem, training

MODEL, ON = "llama3.2-1b", "2xH100"
ASKED = {"on": ON, "prompts": 64, "prompt": 512}
FIXED = {"tp": 1, "pp": 1, "cp": 1, "mbs": 4, "zero": 3, "recompute": "none", "offload": "none"}
"""One plan of training, so that its search is short."""


def work(**more):
    known = {
        "algorithm": "ppo", "prompts": 128, "samples": 1, "prompt": 512,
        "lengths": AnswerLengths(512.0, 512.0), "mini_batch": 128, "epochs": 1,
        "has_reward_model": False,
    }  # fmt: skip
    return Work(**known | more)


def problem(sequences=64, length=1024, on=ON, model=MODEL):
    system = load_system(on)
    update = training(system, global_batch_size=sequences, sequence_length=length)
    return make_problem(load_model(model), system, update, "calibrated")


# ------------------------------------------------------------------------------------- by hand


def test_bytes_and_time_of_resharding():
    # 15 GB to 8 devices: each lacks 7 / 8 of them.
    assert reshard_bytes(15e9, 8) == pytest.approx(13.125e9)
    # Over the 450 GB/s of NVLink 13.125 GB take 29 ms at least.
    seconds = reshard_s(problem(on="8xH100"), 15e9, 8)
    assert 13.125e9 / 450e9 <= seconds <= 2.0 * 13.125e9 / 450e9


def test_steps_with_and_without_staleness():
    assert stale_step_s(60.0, 40.0, 1.0, 0) == 101.0
    assert stale_step_s(60.0, 40.0, 1.0, 1) == 61.0
    assert stale_step_s(30.0, 40.0, 1.0, 2) == 41.0


def test_samples_are_packed():
    # 512 samples of 2,048 tokens, none above 8,192, are 1,048,576 tokens: 128 rows of 8,192.
    packed = work(
        prompts=64, samples=8, mini_batch=64, prompt=1024,
        lengths=AnswerLengths(1024.0, 7168.0, 1.0),
    ).rows  # fmt: skip
    assert packed[:2] == (128, 8192)
    assert 2048 < packed.document_length < 8192
    assert work().rows == (128, 1024, None)


def test_forward_passes_fill_a_pipeline():
    # m f + 3 f of the others: the slope over m is f of the slowest stage.
    options = PlanOptions(zero_stage=0, schedule=ScheduleKind.ONE_F_ONE_B)
    piped = make_strategy(pp=4, micro_batch_size=1)
    few, many = (forward_s(problem(m, on="4xH100"), options, piped) for m in (8, 16))
    slope_s = (many - few) / 8.0
    rest_s = few - 8.0 * slope_s
    assert 0.5 * 3.0 * slope_s < rest_s <= 3.0 * slope_s * (1.0 + 1e-9)
    alone = make_strategy(micro_batch_size=1)
    one, two = (forward_s(problem(m, on="1xH100"), options, alone) for m in (8, 16))
    assert two == pytest.approx(2.0 * one)
    # 2 FLOPs a parameter and token at 989 TFLOP/s take 19 ms at least.
    assert one > 8 * 1024 * 2 * 1.2e9 / 989e12


def test_state_in_host_memory_passes_over_its_link():
    # 2 GB of weights, 6 GB of state and a reference of 2 bytes a parameter, beside a critic.
    asked = problem(on=ON)
    found = candidate(asked, make_strategy(dp_shard=2, micro_batch_size=4), PlanOptions())
    trainer = Trainer(work(), asked, found)
    weights, states = trainer.held_bytes("weights"), trainer.held_bytes("states")
    each = asked.workload.optimizer.weight_bytes_per_param
    # Both trained models: state twice; weights for resharding, a pass and the updates of each, 5
    # uses; the reference once. All of it there and back.
    moved = 2.0 * (2.0 * states + 5.0 * weights + weights * 2.0 / each)
    assert trainer.moved_bytes("all") == pytest.approx(moved)
    assert trainer.moved_bytes("optimizer") == pytest.approx(4.0 * states)
    link = asked.system.host.bandwidth_bytes_per_s
    assert trainer.parking_s("all") == pytest.approx(moved / link)
    assert trainer.parking_s("none") == 0.0
    held = {park: trainer.residents("rollout", park) for park in ("none", "optimizer", "all")}
    assert held["none"]["states_bytes"] == pytest.approx(2.0 * states)
    assert held["optimizer"]["other_models_bytes"] == pytest.approx(weights * (1.0 + 2.0 / each))
    assert sum(held["all"].values()) == 0.0


# ------------------------------------------------------------------------------------ parities


def test_without_answers_a_step_is_passes_and_the_step_of_plan():
    found = mw.loop(MODEL, **ASKED, **FIXED, samples=2, answer=0, park="none").best
    update = mw.plan(MODEL, on=ON, seq=512, global_batch=128, **FIXED).best
    assert found.training.text == update.text
    parts = found.time_parts_s
    assert parts["update_s"] == pytest.approx(update.estimate.step_time_s)
    passes_s = parts["old_log_probs_s"] + parts["reference_s"]
    assert found.step_time_s == pytest.approx(passes_s + update.estimate.step_time_s)
    assert found.rollout_s == 0.0


@pytest.fixture(scope="module")
def engine():
    asked = work()
    found = engines(asked, rollout_problem(problem(), asked, "vllm", "calibrated"), None)
    return next(one for one in found if one.serving.strategy.tp == 1)


def test_rollout_of_equal_answers_is_a_batch_of_serve(engine):
    served = engine.serving.served(
        EqualRequests(prompt_tokens=512.0, answer_tokens=512.0, batch=np.array([64.0]))
    )
    assert engine.rollout(0.9).total_s == pytest.approx(float(served.latency_s[0]), rel=0.01)


def test_rollout_is_that_of_requests_played_one_by_one(engine):
    lengths = AnswerLengths(256.0, 1024.0, 1.0)
    asked = replace(engine.work, lengths=lengths)
    rolled = replace(engine, work=asked, known={}).rollout(0.9)
    serving = engine.serving
    alone = replace(serving.strategy, dp_replicate=1.0)
    worker = Worker(serving.problem, serving.plan_options, alone, 1536)
    edges = np.arange(len(lengths.share_longer)) * lengths.step
    ends = []
    for seed in range(4):
        points = np.random.default_rng(seed).random(64)
        answers = np.interp(points, lengths.share_longer[::-1], edges[::-1], right=0.0)
        answers = np.maximum(np.rint(answers), 1.0).astype(np.int64)
        none = np.zeros(64, dtype=np.int64)
        played = replay(worker, Arrivals(1e-6 * np.arange(64), none + 512, answers, none + ALONE,
                                         none, none))  # fmt: skip
        ends.append(float(played.e2e_s.max()))
    assert rolled.total_s == pytest.approx(np.mean(ends), rel=0.15)


# ------------------------------------------------------------------------- laws, choices, refusals


@pytest.fixture(scope="module")
def plan():
    return mw.loop(MODEL, **ASKED, **FIXED, samples=4, answer=256, longest_answer="1k")


def test_laws_notice_parts_that_are_not_the_whole(plan):
    (_, good, *_) = facts_of(plan, plan_problem(plan))
    assert not violations([good])
    parts = dict(good.time_parts_s) | {"update_s": 2.0 * good.time_parts_s["update_s"]}
    whole, memory = good.phases["rollout"]
    for broken in (
        replace(good, time_parts_s=parts),
        replace(good, phases={"rollout": (whole + 2**30, memory)}),
        replace(good, phases={"rollout": (2e11, {"weights": 2e11})}),
        replace(good, rollout_s=1e-3),
        replace(good, lower_bound_s=2.0 * good.step_time_s),
    ):
        assert len(violations([broken])) >= 1


def plan_problem(plan):
    return make_problem(plan.model, plan.system, plan.workload, plan.calibration)


def test_options_of_verl_state_the_step(plan):
    found = plan.verl
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp"
    assert found["actor_rollout_ref.rollout.n"] == "4"
    assert found["data.train_batch_size"] == "64"
    assert found["data.max_response_length"] == "1024"
    share = float(found["actor_rollout_ref.rollout.gpu_memory_utilization"])
    assert share == pytest.approx(plan.best.memory_share, abs=0.005)


@pytest.mark.slow
def test_a_share_that_is_too_large_names_the_phase_and_what_would_fit():
    with pytest.raises(InfeasibleError, match=r"fullest phase, rollout; gpu_memory_utilization"
                       r".* With another --memory-share it fits"):  # fmt: skip
        mw.loop(MODEL, **ASKED, **FIXED, answer=64, memory_share=1.0, park="none")


@pytest.mark.slow
def test_roles_apart_overlap_and_parts_sum_over_devices():
    found = mw.loop("qwen2.5-7b", on="8xH100", prompts=128, prompt="1k", answer="1k",
                    longest_answer="4k", apart=True).best  # fmt: skip
    assert found.train_devices + found.rollout_devices == 8
    assert sum(found.time_parts_s.values()) == pytest.approx(found.step_time_s)
    assert found.step_time_s >= found.rollout_s


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "--answer: is needed"),
        ({"answer": 100, "staleness": 1}, "needs --apart"),
        ({"answer": 100, "samples": 1}, "--algorithm ppo"),
        ({"answer": 100, "longest_answer": 50}, "at least 100"),
        ({"answer": 100, "length_spread": 1}, "needs --longest-answer"),
        ({"answer": 100, "mini_batch": 30}, r"do not divide 64 \(32\)"),
        ({"answer": 100, "algorithm": "gpo"}, "did you mean"),
    ],
)
def test_wrong_questions_name_the_nearest_legal_one(more, says):
    with pytest.raises(SpecError, match=says):
        mw.loop(MODEL, **ASKED, **more)


def test_plan_with_a_loop_is_the_command_of_loops():
    assert as_loop(["plan", "m", "--loop", "ppo"]) == ["loop", "m", "--algorithm", "ppo"]
    assert as_loop(["plan", "m", "--loop=ppo"]) == ["loop", "m", "--algorithm=ppo"]
    assert as_loop(["plan", "m"]) == ["plan", "m"]
