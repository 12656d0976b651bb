"""Parts of a step as priced beside those measured, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hand_made_plans import build

from meshwright.run.mesh import Mesh
from meshwright.run.parts import SLOWEST, medians, part_times
from meshwright.run.scale import job_of
from meshwright.run.step import Process


def of(degrees, options, parts_s, measured, interval_s=(0.8, 1.5)):
    """Return the rows of a plan of a second, by their names."""
    plan = build(degrees, options, system="8xH100", batch=8, length=128)
    price = replace(plan.best.estimate, step_time_s=1.0, interval_s=interval_s,
                    time_parts_s=parts_s)  # fmt: skip
    return {one.part: one for one in part_times(price, job_of(plan, "full"), measured)}


def test_waits_of_layers_are_taken_out_of_the_computation():
    priced = {"compute_s": 0.6, "tp_comm_s": 0.2, "dp_comm_s": 0.1, "optimizer_s": 0.1}
    measured = {
        ("forward_s", ""): 0.30, ("forward_s", "tp"): 0.05,
        ("backward_s", ""): 0.50, ("backward_s", "tp"): 0.10,
        ("gradient_sums_s", ""): 0.20, ("gradient_sums_s", "dp*cp"): 0.19,
        ("optimizer_s", ""): 0.09,
    }  # fmt: skip
    rows = of({"tp": 2, "dp_shard": 2}, {"zero_stage": 0}, priced, measured)
    assert list(rows) == ["computation", "collectives of tp", "collectives of dp", "optimizer"]
    assert rows["computation"].measured_s == pytest.approx(0.30 + 0.50 - 0.15)
    assert rows["collectives of tp"].measured_s == pytest.approx(0.15)
    assert rows["collectives of dp"].measured_s == 0.20
    assert rows["optimizer"].measured_s == 0.09
    # The step lies between 0.8 and 1.5 times its prediction, and so does each part.
    assert (rows["collectives of tp"].low_s, rows["collectives of tp"].high_s) == pytest.approx(
        (0.16, 0.30)
    )
    assert not rows["collectives of tp"].is_within
    assert rows["computation"].is_within
    assert not rows["collectives of dp"].is_within


def test_what_fsdp_and_pipelines_send_is_compared_with_the_computation():
    priced = {"compute_s": 0.6, "pp_comm_s": 0.1, "bubble_s": 0.1, "dp_comm_s": 0.1,
              "optimizer_s": 0.1}  # fmt: skip
    measured = {("pipeline_s", ""): 0.8, ("gradient_sums_s", ""): 0.02, ("optimizer_s", ""): 0.1}
    rows = of({"pp": 2, "dp_shard": 2}, {"zero_stage": 1}, priced, measured)
    assert list(rows) == ["computation + pipeline + FSDP", "optimizer"]
    first = rows["computation + pipeline + FSDP"]
    assert (first.predicted_s, first.measured_s) == pytest.approx((0.9, 0.82))


def test_collectives_of_fsdp_are_a_part_where_they_end_before_they_return():
    priced = {"compute_s": 0.8, "dp_comm_s": 0.1, "optimizer_s": 0.1}
    measured = {
        ("forward_s", ""): 0.3, ("backward_s", ""): 0.6, ("optimizer_s", ""): 0.1,
        ("forward_s", "dp_shard*cp"): 0.05, ("backward_s", "dp_shard*cp"): 0.07,
        ("gradient_sums_s", ""): 0.01,
    }  # fmt: skip
    rows = of({"dp_shard": 4}, {"zero_stage": 3}, priced, measured)
    assert list(rows) == ["computation", "collectives of dp", "optimizer"]
    assert rows["computation"].measured_s == pytest.approx(0.9 - 0.12)
    assert rows["collectives of dp"].measured_s == pytest.approx(0.13)
    mixed = of({"dp_shard": 2, "dp_replicate": 2}, {"zero_stage": 3}, priced, measured)
    assert mixed["computation + FSDP"].measured_s == pytest.approx(0.91)


def test_waits_for_the_slowest_process_are_computation():
    priced = {"compute_s": 0.8, "dp_comm_s": 0.1, "optimizer_s": 0.1}
    measured = {
        ("backward_s", ""): 0.7, ("backward_s", "dp*cp"): 0.05, ("backward_s", SLOWEST): 0.2,
        ("gradient_sums_s", ""): 0.20, ("gradient_sums_s", "dp*cp"): 0.06,
        ("gradient_sums_s", SLOWEST): 0.13, ("optimizer_s", ""): 0.1,
    }  # fmt: skip
    rows = of({"dp_shard": 4}, {"zero_stage": 0}, priced, measured)
    # Backward without its collective, and the wait of the sums: 0.7 - 0.05 + 0.13.
    assert rows["computation"].measured_s == pytest.approx(0.78)
    assert rows["collectives of dp"].measured_s == pytest.approx(0.05 + 0.20 - 0.13)


def test_the_last_process_at_a_collective_waits_for_none(monkeypatch):
    """This process waits for the other one at the first collective, the other at the second."""
    own, other = {("backward_s", "tp"): [0.5, 0.2]}, {("backward_s", "tp"): [0.1, 0.3]}

    def gather(of_all, mine):
        of_all[:] = [mine, other]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    mesh = Mesh(job_of(build({"tp": 2}, system="8xH100"), "tiny"), 0, torch.device("cpu"))
    mesh.axes["tp"] = SimpleNamespace(ranks=(0, 1))
    process = SimpleNamespace(time_parts_s={"backward_s": 2.0}, waits_s=own, mesh=mesh)
    assert Process.take_times(process) == pytest.approx(
        {("backward_s", ""): 2.0, ("backward_s", "tp"): 0.3, ("backward_s", SLOWEST): 0.4}
    )
    assert (process.time_parts_s, process.waits_s) == ({}, {})


def test_a_step_is_its_median():
    steps = [{("forward_s", ""): second} for second in (0.1, 0.2, 5.0)]
    assert medians([*steps, {}, {("forward_s", ""): 0.2}]) == {("forward_s", ""): 0.2}
