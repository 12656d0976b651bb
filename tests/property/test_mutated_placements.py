"""Broken placements in plan files: read whole, or refused with the field; never a traceback."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.train import plan_file as files
from meshwright.train.question import training
from meshwright.train.view.plan import where_parts
from meshwright.wafer.picture import draw
from meshwright.wafer.simulation import simulate
from meshwright.wafer.training import estimate

VALUES = st.one_of(
    st.none(), st.integers(-2, 40), st.floats(-2, 40), st.text(max_size=3),
    st.sampled_from([[], {}, [1], [1, 1], [2, 2], [4, 1], [1, 2, 2], "tp", "tatp", 10**12]),
)  # fmt: skip


@pytest.fixture(scope="module")
def original():
    work = training("wafer-2x2", sequence_length=128, global_batch_size=8)
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=1)
    plan = estimate("gpt2-medium", "wafer-2x2", work, make_strategy(tp=2, dp_shard=2), plan_options)
    return json.loads(files.to_json(plan))


def with_placement(original, **fields):
    """Return the plan with some fields of its placement replaced."""
    changed = copy.deepcopy(original)
    changed["best"]["placement"] |= fields
    return json.dumps(changed)


def test_a_plan_with_a_placement_survives_its_file(original):
    text = json.dumps(original)
    plan = files.from_json(text)
    assert files.from_json(files.to_json(plan)) == plan
    assert json.loads(files.to_json(plan)) == original
    assert plan.best.placement.grid_shape == (2, 2)
    assert sorted(plan.best.placement.devices) == [0, 1, 2, 3]
    assert plan.best.estimate.fidelity == "contended"


@pytest.mark.parametrize(("fields", "path"), [
    ({"grid_shape": [4, 1]}, "grid_shape"),
    ({"grid_shape": [2, 2, 1]}, "grid_shape"),
    ({"axes": ["tp", "cp"]}, "axes"),
    ({"axes": ["tp"]}, "axes"),
    ({"axes": ["tp", "tp"]}, "axes"),
    ({"axes": ["tp", "width"]}, "axes"),
    ({"shapes": {"tp": [1, 2]}}, "shapes"),
    ({"shapes": {"tp": [1, 2], "width": [2, 1]}}, "shapes"),
    ({"shapes": {"tp": [1, 2], "dp_shard": [2]}}, r"shapes\.dp_shard"),
    ({"shapes": {"tp": [1, 2], "dp_shard": [1, 1]}}, r"shapes\.dp_shard"),
    ({"shapes": {"tp": [1, 2], "dp_shard": [-1, -2]}}, r"shapes\.dp_shard"),
    ({"shapes": {"tp": [1, 2], "dp_shard": [1, 2]}}, "shapes"),
    ({"devices": [0, 1, 2]}, "devices"),
    ({"devices": [0, 1, 2, 2]}, "devices"),
    ({"devices": [0, 1, 2, 4]}, r"devices\.3"),
    ({"devices": [0, 1, 2, -1]}, r"devices\.3"),
])  # fmt: skip
def test_a_bad_placement_is_refused_with_its_field(original, fields, path):
    with pytest.raises(SpecError, match=rf"best\.placement\.{path}") as caught:
        files.from_json(with_placement(original, **fields), origin="plan.json")
    assert str(caught.value).startswith("plan.json: ")


def test_a_plan_on_no_grid_has_no_placement(original):
    work = training("4xH100", sequence_length=128, global_batch_size=8)
    flat = json.loads(files.to_json(
        estimate("gpt2-medium", "4xH100", work, make_strategy(dp_shard=4),
                 PlanOptions(sequence_parallel=False))
    ))  # fmt: skip
    assert flat["best"]["placement"] is None
    flat["best"]["placement"] = original["best"]["placement"]
    with pytest.raises(SpecError, match=r"best\.placement: is on a grid"):
        files.from_json(json.dumps(flat))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(data=st.data())
def test_a_mutated_placement_that_is_read_is_drawn_and_told(original, data):
    fields = sorted(original["best"]["placement"])
    names = data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique=True))
    text = with_placement(original, **{name: data.draw(VALUES) for name in names})
    try:
        plan = files.from_json(text)
    except SpecError as error:
        refusal = error
    else:
        assert draw(plan).group.max() >= 0
        assert list(where_parts(plan.best))
        return
    assert refusal.faults


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(shape=st.sampled_from([[1, 2], [2, 1]]), order=st.permutations(["tp", "dp_shard"]))
def test_any_placement_that_fits_is_simulated(original, shape, order):
    shapes = {"tp": shape, "dp_shard": shape[::-1]}
    plan = files.from_json(with_placement(original, shapes=shapes, axes=list(order)))
    try:
        step = simulate(plan).step
    except MeshwrightError as error:
        pytest.fail(str(error))
    assert step.step_time_s > 0
