"""The file of shardings: meshes by hand, and parts of tensors as the price counts them."""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hand_made_plans import build
from small_problems import experts, level, model, system

from meshwright.base.arrays import number_at
from meshwright.base.errors import UnsupportedError
from meshwright.frameworks.registry import refusals, rendered
from meshwright.sharding.axes import activation_sharding, weight_sharding
from meshwright.sharding.local_sizes import local_elements
from meshwright.sharding.strategy import Recompute, Streamed, stack
from meshwright.train.answer import OperatorOption, OperatorPlan
from meshwright.train.question import training
from meshwright.wafer.operators.prices import groups_of_pieces
from meshwright.wafer.training import plan


def shardings_of(found):
    return json.loads(rendered(found, "shardings")["shardings.json"])


def operators_of(data):
    """Return each operator with the part of the model, its layers, and its mesh."""
    return [
        (part, data["meshes"][group["mesh"]], operator)
        for part in data["layers"]
        for group in part["groups"]
        for operator in group["operators"]
    ]


def share(mesh, tensor):
    """Return the share of a tensor that one device holds."""
    size = dict(zip(mesh["axes"], np.array(mesh["devices"]).shape, strict=True))
    split = [axis for dim in tensor["dims"] for axis in dim["axes"]]
    return 1.0 / prod(size[axis] for axis in [*split, *tensor["elements"]])


def test_four_devices_by_hand():
    """tp 2 inside dp 2: rows of the mesh are replicas; a column-parallel weight is cut by its
    outputs, and sequence parallelism cuts the positions between operators."""
    data = shardings_of(build({"tp": 2, "dp_shard": 2}, model="llama3-8b", system="8xH100"))
    assert data["zero_stage"] == 0
    assert data["meshes"][0]["axes"] == ["dp_shard", "tp"]
    assert data["meshes"][0]["devices"] == [[0, 1], [2, 3]]
    embedding, layers, head = data["layers"]
    assert (embedding["part"], layers["layers"], head["part"]) == ("embedding", [0, 31], "head")
    by_name = {one["name"]: one for _, _, one in operators_of(data)}
    norm = by_name["feed_forward.norm"]
    assert next(iter(norm["inputs"].values()))["dims"] == [
        {"dim": "sequences", "size": 2, "axes": ["dp_shard"]},
        {"dim": "positions", "size": 8192, "axes": ["tp"]},
        {"dim": "hidden", "size": 4096, "axes": []},
    ]
    rows = next(iter(by_name["feed_forward.down"]["weights"].values()))["dims"]
    assert [dim["axes"] for dim in rows] == [["tp"], []]
    assert [dim["size"] for dim in rows] == [14336, 4096]


@pytest.mark.parametrize(
    ("degrees", "plan_options"),
    [
        ({"tp": 4, "cp": 2, "dp_shard": 2, "pp": 2}, {"zero_stage": 1}),
        ({"dp_shard": 4, "dp_replicate": 4}, {"recompute": Recompute.FULL}),
        ({"tatp": 8, "dp_shard": 2}, {"streamed": Streamed.WEIGHTS}),
        ({"tatp": 8, "dp_shard": 2}, {"streamed": Streamed.INPUTS}),
        ({"tatp": 4, "tp": 2, "dp_shard": 2}, {"streamed": Streamed.BOTH}),
    ],
)
def test_parts_are_as_large_as_the_price_counts_them(degrees, plan_options):
    found = build(degrees, plan_options, model="llama3-8b", system="64xH100")
    data, problem = shardings_of(found), found.problem
    assert np.array(data["meshes"][0]["devices"]).size == found.best.strategy.num_devices
    strategy, own = found.best.strategy, found.best.plan_options
    named = {
        (index, op.name): op
        for index, groups in enumerate(groups_of_pieces(problem))
        for group in groups
        for op in group.ops
    }
    index_of = {"layer": 0, "embedding": 1, "head": 2}
    tokens = float(problem.pass_length * strategy.micro_batch_size)
    num_compared = 0
    for part, mesh, operator in operators_of(data):
        index = index_of[part["part"]]
        op, sizes = named[index, operator["name"]], problem.pieces[index]
        bound = sizes.bind(tokens, float(problem.pass_length))
        for name, tensors, rule in (("inputs", op.inputs, activation_sharding),
                                    ("weights", op.weights, weight_sharding)):  # fmt: skip
            for tensor in tensors:
                written = operator[name][tensor.name]
                whole = prod(dim["size"] for dim in written["dims"])
                split = rule(tensor, own).split
                held = number_at(local_elements(tensor, split, bound, stack([strategy])))
                assert whole * share(mesh, written) == pytest.approx(held), (operator["name"], name)
                num_compared += 1
    assert num_compared > 20


def test_each_group_of_operators_names_its_mesh():
    on = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=4e9)
    work = training(on, sequence_length=4096, global_batch_size=16)
    few = {"pp": [1], "cp": [1], "micro_batch_size": [1], "recompute": ["none"], "zero_stage": [1]}
    found = plan(model(num_layers=4), on, work, allowed=few, per_operator=True)
    data = shardings_of(found)
    assert len(data["meshes"]) == len(found.operators.options)
    for mesh in data["meshes"]:
        assert sorted(np.array(mesh["devices"]).ravel().tolist()) == list(range(8))
    used = [group["mesh"] for part in data["layers"] for group in part["groups"]]
    assert set(used) == set(found.operators.assignment)


def test_other_files_hold_one_strategy_for_all_operators():
    plan = build({"tp": 4, "dp_shard": 2}, system="8xH100")
    best = plan.best
    option = OperatorOption(best.text, best.strategy, best.plan_options, (), {})
    operators = OperatorPlan((option, option), (), "contended", 1.0, {}, 0.0, 1.0, 1.0, 1.0, 2, 0.0)
    (fault,) = refusals(replace(plan, operators=operators), "megatron")
    assert str(fault).startswith("operators: 2 strategies for the operators; it takes one for all")


def test_experts_are_refused_with_a_fix():
    spec = model(experts(4, 2, 64), num_layers=4)
    found = build({"dp_shard": 4, "ep": 4}, model=spec, system="8xH100", length=256)
    with pytest.raises(UnsupportedError, match="ep=1"):
        rendered(found, "shardings")
