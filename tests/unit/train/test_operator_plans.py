"""A strategy for each operator, from the facade: prices, proofs, screens, files, refusals."""

import pytest
from small_problems import experts, level, model, system

from meshwright.base.errors import UnsupportedError
from meshwright.train import plan_file as files
from meshwright.train.question import training
from meshwright.view.media import text_of
from meshwright.wafer.training import plan, played

GRID = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=4e9)
SPEC = model(num_layers=4)


def workload(on=GRID):
    return training(on, sequence_length=4096, global_batch_size=16)


FEW = {"pp": [1], "cp": [1], "micro_batch_size": [1], "recompute": ["none"], "zero_stage": [1]}


@pytest.fixture(
    scope="module", params=[FEW, pytest.param({}, marks=pytest.mark.slow)], ids=["few", "all"]
)
def found(request):
    return plan(SPEC, GRID, workload(), allowed=request.param, per_operator=True)


def test_bounds_and_prices_are_in_order(found):
    one = found.operators
    assert one.closed_form_bound_s <= one.closed_form_s
    assert one.lower_bound_s <= one.step_time_s
    assert one.fidelity == "contended"
    assert sum(one.time_parts_s.values()) == pytest.approx(one.step_time_s)
    assert one.memory_bytes <= GRID.chip.main_memory.capacity_bytes


def test_every_operator_of_every_layer_has_one_option(found):
    graph = found.operators
    taken = [
        (name, layer)
        for run in graph.runs
        if run.first_layer is not None
        for name in run.operators
        for layer in range(run.first_layer, run.last_layer + 1)
    ]
    assert len(taken) == len(set(taken))
    assert {layer for _, layer in taken} == set(range(4))
    assert {run.option for run in graph.runs} == set(range(len(graph.options)))


def test_options_use_all_devices(found):
    for option in found.operators.options:
        assert option.strategy.num_devices == 8
        assert set(option.shapes) == set(option.axes)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "interleaved"])
def test_stages_of_pipelines_choose_too(schedule, tmp_path):
    fixed = FEW | {"pp": [2], "schedule": [schedule], "micro_batch_size": [2]}
    found = plan(SPEC, GRID, workload(), allowed=fixed, per_operator=True)
    one = found.operators
    assert {option.strategy.pp for option in one.options} == {2}
    assert one.lower_bound_s <= one.step_time_s
    assert one.step_time_s <= found.best.estimate.step_time_s * (1 + 1e-9)
    assert one.simulated_s == pytest.approx(one.step_time_s, rel=0.03)
    files.save(found, tmp_path / "plan.json")
    assert played(files.load(tmp_path / "plan.json")).operators_s == pytest.approx(one.simulated_s)


def test_frameworks_take_one_strategy():
    work = training(GRID, sequence_length=4096, global_batch_size=16)
    named = work.model_copy(
        update={"software": work.software.model_copy(update={"framework": "some"})}
    )
    with pytest.raises(UnsupportedError, match="some starts one strategy for all operators"):
        plan(SPEC, GRID, named, per_operator=True)


def test_plan_files_keep_them(found, tmp_path):
    files.save(found, tmp_path / "plan.json")
    assert files.load(tmp_path / "plan.json") == found


def test_screens_are_narrow(found):
    lines = text_of(found.page(), detail=True).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("Proof: alone on its links") for line in lines)
    assert any(line.startswith("operators each group") for line in lines)


@pytest.mark.slow
def test_without_asking_there_are_none():
    assert plan(SPEC, GRID, workload()).operators is None


def test_experts_stay_together_and_have_one_option():
    spec = model(experts(4, 2, 64), num_layers=4)
    operators = plan(spec, GRID, workload(), allowed=FEW, per_operator=True).operators
    assert operators.lower_bound_s <= operators.step_time_s
    assert operators.simulated_s == pytest.approx(operators.step_time_s, rel=0.1)
    routed = [run for run in operators.runs if "experts.up" in run.operators]
    assert routed
    assert all({"experts.dispatch", "experts.combine"} <= set(run.operators) for run in routed)


@pytest.mark.parametrize(
    ("spec", "on"),
    [(SPEC, system(level(8, "switch"), capacity_bytes=4e9))],
    ids=["no grid"],
)
def test_refused_with_a_reason(spec, on):
    with pytest.raises(UnsupportedError, match="a strategy for each operator needs a grid"):
        plan(spec, on, workload(on), per_operator=True)


@pytest.mark.slow
def test_what_is_fixed_holds():
    found = plan(SPEC, GRID, workload(), allowed={"recompute": ["full"]}, per_operator=True)
    assert {str(option.plan_options.recompute) for option in found.operators.options} == {"full"}


@pytest.mark.slow
def test_an_interrupt_leaves_the_plan(monkeypatch):
    from meshwright.wafer import training as planning

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "operator_plan", interrupted)
    found = plan(SPEC, GRID, workload(), per_operator=True)
    assert found.operators is None
    assert any("interrupted" in warning for warning in found.warnings)
