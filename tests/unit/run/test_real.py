"""Plans run for real beside the dense model: losses, gradients, and every send."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from math import inf, nan

import pytest
import torch
from executed_plans import assert_right, find_a_busy_port
from hand_made_plans import build

import meshwright.streams  # noqa: F401, the forms register themselves
from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.catalog.models import load_model
from meshwright.run.check import gradient_errors, relative
from meshwright.run.processes import free_port, spawn
from meshwright.run.real import execute
from meshwright.run.scale import job_of, streamed
from meshwright.run.sharded import WeightPart
from meshwright.run.view import executed_page
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.show.walks.named import WalkQuestion, walk_of
from meshwright.spec.choices import ContextKind, Recompute, ScheduleKind, Streamed, StreamForm
from meshwright.streams.forms import enumerate_rounds, reverse, streams
from meshwright.train.plan_file import save
from meshwright.view.terminal import text_of

INPUTS, WEIGHTS, BOTH = Streamed.INPUTS, Streamed.WEIGHTS, Streamed.BOTH
DAILY = {
    # each axis alone
    "tp": ({"tp": 2}, {"sequence_parallel": False}, "qwen3-8b"),  # norms on split heads
    "tp with sp": ({"tp": 2}, {}),
    "cp": ({"cp": 2}, {}),
    "pp": ({"pp": 2}, {}),
    "dp": ({"dp_shard": 2}, {"zero_stage": 3}),
    "ep": ({"dp_shard": 2, "ep": 2}, {"zero_stage": 1}),
    "tatp 4": ({"tatp": 4}, {"streamed": INPUTS}),
    "tatp 8": ({"tatp": 8}, {"streamed": WEIGHTS, "stream_form": StreamForm.LINE_HOLD}),
    # mixtures
    "tp, dp": ({"tp": 2, "dp_shard": 2}, {"zero_stage": 1}),
    "pp, tp, dp": ({"pp": 2, "tp": 2, "dp_shard": 2}, {"zero_stage": 1}),
    "cp, dp, recomputed": (
        {"cp": 2, "dp_shard": 2}, {"zero_stage": 3, "recompute": Recompute.FULL}),
    "tatp, tp": ({"tatp": 2, "tp": 2}, {"streamed": BOTH}),
    "tatp, ulysses": (
        {"tatp": 2, "cp": 2}, {"streamed": WEIGHTS, "context_kind": ContextKind.ULYSSES}),
    "tatp, dp": ({"tatp": 2, "dp_shard": 2}, {"streamed": WEIGHTS, "zero_stage": 1}),
    "ep, tp, dp": ({"dp_shard": 2, "tp": 2, "ep": 2}, {"zero_stage": 1}),
}  # fmt: skip
"""A plan for each axis alone, and mixtures of two and three; with ep, of Mixtral."""
NIGHTLY = {
    "zero 0": ({"dp_shard": 2}, {}),
    "zero 1": ({"dp_shard": 2}, {"zero_stage": 1}),
    "zero 3, weights kept": (
        {"dp_shard": 2}, {"zero_stage": 3, "reshard_after_forward": False}),
    "hybrid zero": ({"dp_shard": 2, "dp_replicate": 2}, {"zero_stage": 1}),
    "ulysses": ({"cp": 2}, {"context_kind": ContextKind.ULYSSES}),
    "gpipe": ({"pp": 2}, {"schedule": ScheduleKind.GPIPE}),
    "zero bubble": ({"pp": 2}, {"schedule": ScheduleKind.ZERO_BUBBLE}),
    "interleaved": ({"pp": 2, "num_virtual_stages": 2}, {"schedule": ScheduleKind.INTERLEAVED}),
    "more stages of a device than its pipeline keeps, with zero": (
        {"pp": 2, "num_virtual_stages": 4, "dp_shard": 2},
        {"schedule": ScheduleKind.INTERLEAVED, "zero_stage": 1}),
    "full recomputation": ({"tp": 2, "cp": 2}, {"recompute": Recompute.FULL}),
    "shared key heads": ({"tp": 16}, {}),
    "weights on a line of 2": ({"tatp": 2}, {"streamed": WEIGHTS}),
    "weights on a line of 4": ({"tatp": 4}, {"streamed": WEIGHTS}),
    "inputs on a ring of 3": ({"tatp": 3}, {"streamed": INPUTS, "stream_form": StreamForm.RING}),
    "weights on a folded ring of 5": (
        {"tatp": 5}, {"streamed": WEIGHTS, "stream_form": StreamForm.FOLDED_RING}),
    "weights on a block of 4": (
        {"tatp": 4}, {"streamed": WEIGHTS, "stream_form": StreamForm.CYCLE}),
    "inputs on a block of 4, with tp": (
        {"tatp": 4, "tp": 2}, {"streamed": INPUTS, "stream_form": StreamForm.CYCLE}),
    "tatp 4 with dp": ({"tatp": 4, "dp_shard": 2}, {"streamed": WEIGHTS, "zero_stage": 1}),
    "tatp with cp": ({"tatp": 2, "cp": 2}, {"streamed": WEIGHTS}),
    "tp, cp, dp": ({"tp": 2, "cp": 2, "dp_shard": 2}, {"zero_stage": 3}),
    "ep without zero": ({"dp_replicate": 4, "ep": 2}, {"zero_stage": 0}),
    "ep, copies sharded": ({"dp_shard": 4, "ep": 2}, {"zero_stage": 3}),
}  # fmt: skip


def run(degrees, options, model=None, **more):
    has_experts = "ep" in degrees
    model = model or ("mixtral-8x7b" if has_experts else "llama3-8b")
    # The rows of experts differ from one micro-batch to the next: one alone.
    ranks = degrees.get("dp_shard", 1) * degrees.get("dp_replicate", 1)
    plan = build(degrees, options, model=model, batch=ranks if has_experts else 16)
    return execute(plan, checks=True, **({"dtype": "fp64", "steps": 5} | more))


@pytest.mark.parametrize("name", DAILY)
def test_a_plan_trains_as_the_dense_model(name):
    found = run(*DAILY[name])
    assert found.tolerance == 1e-9
    assert len(found.losses) == 5
    assert_right(found)
    assert found.kept_bytes == pytest.approx(found.derived_kept_bytes, rel=0.02)
    assert found.peak_bytes > found.kept_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", NIGHTLY)
def test_more_plans_train_as_the_dense_model(name):
    found = run(*NIGHTLY[name])
    assert_right(found)
    if name != "zero bubble":  # runs layers twice
        assert found.kept_bytes == pytest.approx(found.derived_kept_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "axis"),
    [
        ("gpt2-medium", "tp"),
        ("qwen3-8b", "tp"),
        ("gemma2-9b", "tp"),
        ("olmo2-7b", "dp_shard"),
        ("falcon-7b", "dp_shard"),
        ("bloom-1.1b", "tp"),
        ("glm4-32b-0414", "tp"),
        ("qwen1.5-moe-a2.7b", "tp"),
    ],
)
def test_models_of_other_families(model, axis):
    """Tied embeddings, learned positions, biases, all norms, branches side by side, experts."""
    assert_right(run({axis: 2, "cp": 2}, {}, model))


def test_a_real_step_makes_the_collectives_of_the_walk():
    """Two layers, two micro-batches, two ranks; embedding and head add one or two each."""
    model = load_model("llama3-8b")
    walk = walk_of(WalkQuestion("tp-sp", (2,), model, 2048, 0.0, None, None))
    drawn = Counter((one.phase, one.kind) for one in walk.exchanges if one.is_walked)
    made = Counter()
    for entry in run({"tp": 2}, {}, steps=1).sent:
        phase = "forward" if entry.phase == "forward" else "backward"
        made[phase, entry.kind.replace("_", "-")] += entry.calls
    edges = {("forward", "all-gather"): 1, ("forward", "reduce-scatter"): 1,
             ("backward", "all-gather"): 2, ("backward", "reduce-scatter"): 1}  # fmt: skip
    for key, more in edges.items():
        assert made[key] == 2 * 2 * (2 * drawn[key] + more)


def test_a_run_shows_who_sends_to_whom():
    """The rounds drawn are all those of the form, in both directions, and bytes of equal parts."""
    found = run({"tatp": 3}, {"streamed": INPUTS, "stream_form": StreamForm.RING}, steps=1)
    drawn = {direction: [(one.round, one.source, one.destination, one.item)
                         for one in found.rounds if one.direction == direction]
             for direction in ("forward", "backward")}  # fmt: skip
    rounds = enumerate_rounds(streams["ring"], 3)
    assert drawn["forward"] == sorted(map(tuple, rounds.sends))
    assert drawn["backward"] == sorted(map(tuple, reverse(rounds).sends))
    assert len({one.num_bytes for one in found.rounds}) == 1
    page = text_of(executed_page(found), detail=True, width=160)
    assert "Sends of the first forward pass of a stream" in page
    assert "Collectives of the first process, in the order of the first step" in page
    assert {one.phase for one in found.walk} >= {"forward", "weight_gradient"}


@pytest.mark.slow
def test_single_precision():
    found = run({"tp": 2, "dp_shard": 2}, {"zero_stage": 3}, dtype="fp32")
    assert found.tolerance == 1e-4
    assert_right(found)


def test_a_killed_process_ends_the_run_with_its_name():
    plan = build({"dp_shard": 2}, {}, batch=16)
    killed = []

    def kill():
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            if len(found := [child.pid for child in multiprocessing.active_children()]) == 2:
                time.sleep(1.0)
                killed.append(time.monotonic())
                os.kill(max(found), signal.SIGKILL)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(MeshwrightError, match=r"process 1 of 2 \(dp_shard 1\) was killed by sig"):
        execute(plan, steps=10_000)
    killer.join()
    assert time.monotonic() - killed[0] < 10.0


def test_a_busy_port_is_named():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(SpecError, match=f"port {one.getsockname()[1]} is in use"):
            execute(build({"tp": 2}, {}, batch=16), port=one.getsockname()[1])


def test_wrong_processes_of_torchrun_are_named(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(SpecError) as told:
        execute(build({"tp": 2}, {}, batch=16))
    assert [fault.path for fault in told.value.faults] == ["WORLD_SIZE", "MASTER_PORT"]
    assert "found 3, the plan as run has 2" in str(told.value)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "here")
    with pytest.raises(SpecError, match="MASTER_PORT: found here, expected a whole number"):
        execute(build({"tp": 2}, {}, batch=16))


@pytest.mark.parametrize("late_s", [0.0, 0.1])
def test_a_port_that_another_run_takes_meanwhile_is_named(late_s):
    with pytest.raises(SpecError, match="port 1234 is in use, by another run"):
        spawn(find_a_busy_port, late_s, ["process 0", "process 1"], 1234, print)


@pytest.mark.slow
def test_torchrun_starts_the_same_run(tmp_path):
    save(build({"dp_shard": 2}, {}, batch=16), tmp_path / "plan.json")
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
    ]
    run = ["-m", "meshwright", "run", str(tmp_path / "plan.json"), "--check", "--json"]
    done = subprocess.run(
        [*start, str(free_port()), *run], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_right"]
    assert found["num_processes"] == 2


def test_no_number_is_no_small_difference():
    """0.5 of 2 is a quarter; of NaN nothing is known, so it is infinitely wrong."""
    assert relative(0.5, 2.0) == 0.25
    assert relative(nan, 2.0) == relative(inf, 2.0) == relative(1.0, nan) == inf
    gradients = {"w": torch.tensor([1.0, nan])}
    held = {"w": WeightPart()}
    assert list(gradient_errors(gradients, held, {"w": torch.ones(2)})) == [(inf, "w")]


def test_a_cluster_is_not_started_on_one_machine():
    with pytest.raises(SpecError, match="128 processes on one machine, at most 64"):
        execute(build({"dp_shard": 128}, {}, batch=128), scale="full")


def test_what_cannot_be_run_is_refused_at_once():
    plan = build({"tp": 2, "pp": 2}, {"sequence_parallel": False}, model="gpt2-medium", batch=16)
    with pytest.raises(SpecError, match="tied embedding"):
        job_of(plan)


def test_heads_that_ulysses_would_cut_are_refused():
    options = {"context_kind": ContextKind.ULYSSES}
    plan = build({"cp": 16}, options, batch=16)  # 32 heads, 8 of keys: each is on two ranks
    job_of(plan)
    plan = build({"cp": 3}, options, batch=16)
    with pytest.raises(SpecError, match=r"over 3 ranks; found 32, 8 of keys(.|\n)*divides 8"):
        job_of(plan)


def test_parts_of_a_model_and_of_a_plan_are_refused_together():
    plan = build(
        {"tp": 2, "dp_shard": 2}, {"sequence_parallel": False}, model="deepseek-v3", batch=16
    )
    with pytest.raises(SpecError, match=r"latent attention \(MLA\)(.|\n)*sequence_parallel"):
        job_of(plan)


def test_the_smaller_tensor_travels():
    """Llama 3 8B, by hand: 4096 x (10240 + 43008) = 218,103,808 elements, 4 T 4096 of tokens."""
    model = load_model("llama3-8b")
    found = {
        length: streamed(model, make_strategy(tatp=4), PlanOptions(), length)
        for length in (13_311, 13_313)
    }
    assert 4096 * (10_240 + 43_008) / (4 * 4096) == 13_312
    assert found == {13_311: INPUTS, 13_313: WEIGHTS}


def test_degrees_are_halved_until_they_fit():
    plan = build({"tp": 8, "pp": 4, "dp_shard": 4}, {"zero_stage": 1}, batch=128)
    job = job_of(plan)
    assert job.num_processes == 8
    assert (job.strategy.tp, job.strategy.pp, job.strategy.dp_shard) == (2, 2, 2)
    assert "tp 8 -> 2" in job.notes[0]
    with pytest.raises(SpecError, match="each axis in use needs two"):
        job_of(plan, most_processes=4)


def test_the_kind_of_context_parallelism_matters_where_there_is_some():
    gathered = {"context_kind": ContextKind.GATHER}
    assert job_of(build({"dp_shard": 2}, gathered, batch=8)).num_processes == 2
    with pytest.raises(SpecError, match="keys and values gathered whole are run dry"):
        job_of(build({"cp": 2}, gathered, batch=8))
