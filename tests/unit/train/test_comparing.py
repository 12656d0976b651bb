"""Recipes side by side: what each may do, who places it, and why one has no plan."""

import pytest
from small_problems import level, model, system

from meshwright.base.errors import UnknownNameError
from meshwright.sharding.strategy import PlanOptions, StrategyOf
from meshwright.train.compare import recipes
from meshwright.train.question import training
from meshwright.wafer.training import compare

GRID = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=4e9)


def workload(on=GRID, **fields):
    return training(on, **({"sequence_length": 512, "global_batch_size": 16} | fields))


@pytest.fixture(scope="module")
def compared():
    return compare(model(num_layers=2), GRID, workload())


def test_one_rival_keeps_to_what_it_fixes_and_is_no_faster():
    """Two mappers place FSDP, whose recipe and bounds hold, behind ours."""
    found = compare(
        model(num_layers=2), GRID, workload(), against=["fsdp"],
        allowed={"tp": [1], "pp": [1], "cp": [1], "tatp": [1], "micro_batch_size": [1]},
    )  # fmt: skip
    ours, *rivals = found.entries
    assert (ours.recipe, ours.speedup_of_ours) == ("meshwright", 1.0)
    assert {entry.recipe for entry in rivals} == {"fsdp"}
    assert {"smap", "gmap"} <= {entry.mapper for entry in rivals}
    for entry in found.entries:
        step_s = entry.best.estimate.step_time_s
        assert entry.speedup_of_ours == pytest.approx(step_s / ours.best.estimate.step_time_s)
        assert entry.speedup_of_ours >= 1.0
        assert step_s >= entry.lower_bound_s * (1 - 1e-12)
    assert {entry.best.plan_options.zero_stage for entry in rivals} == {3}


@pytest.mark.slow
def test_ours_is_first_and_no_slower_than_any_other(compared):
    assert compared.ours.recipe == "meshwright"
    times = [entry.best.estimate.step_time_s for entry in compared.entries]
    assert times[0] == min(times)
    assert all(entry.speedup_of_ours >= 1.0 for entry in compared.entries)


@pytest.mark.slow
def test_blind_mappers_appear_beside_each_other(compared):
    placed = [(entry.recipe, entry.mapper) for entry in compared.entries]
    assert ("megatron-3", "smap") in placed
    assert ("megatron-3", "gmap") in placed
    assert ("fsdp-prefetch", "tmap") in placed


@pytest.mark.slow
def test_no_entry_is_faster_than_its_bound(compared):
    for entry in compared.entries:
        assert entry.best.estimate.step_time_s >= entry.lower_bound_s * (1 - 1e-12)
        assert entry.best.estimate.fidelity == "contended"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in recipes if name != "meshwright"])
def test_a_recipe_keeps_to_what_it_fixes(compared, name):
    known = {*StrategyOf.__dataclass_fields__, *PlanOptions.__dataclass_fields__}
    assert set(recipes[name].fixed) <= known
    for entry in compared.entries:
        if entry.recipe == name:
            for field, values in recipes[name].fixed.items():
                where = entry.best.plan_options if hasattr(entry.best.plan_options, field) else (
                    entry.best.strategy)  # fmt: skip
                assert getattr(where, field) in values


@pytest.mark.slow
def test_row_major_ranks_are_those_of_smap(compared):
    for entry in compared.entries:
        if entry.mapper == "smap":
            devices = entry.best.placement.devices
            assert list(devices) == sorted(devices)


@pytest.mark.slow
def test_what_the_user_fixes_holds_for_all():
    found = compare(
        model(num_layers=4), GRID, workload(), against=["megatron-3"], allowed={"tp": [2]}
    )
    assert {entry.best.strategy.tp for entry in found.entries} == {2}


@pytest.mark.slow
def test_recipes_that_stream_need_neighbours():
    cluster = system(level(8, "switch"), capacity_bytes=4e9)
    found = compare(model(num_layers=4), cluster, workload(cluster))
    streaming = {"folded-ring", "cycle-ring", "product-stream"}
    assert not streaming & {entry.recipe for entry in found.entries}
    assert {entry.mapper for entry in found.entries} == {None}


def test_a_recipe_without_a_plan_says_why():
    tight = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=2e6)
    found = compare(model(num_layers=4), tight, workload(tight), against=["fsdp"])
    assert all(entry.best is None and "fits" in entry.why_none for entry in found.entries)


def test_an_unknown_recipe_is_told():
    with pytest.raises(UnknownNameError, match="did you mean fsdp"):
        compare(model(), GRID, workload(), against=["fdsp"])


@pytest.mark.slow
def test_an_interrupt_leaves_what_was_compared(monkeypatch):
    from meshwright.train import compare as comparing

    plain, calls = comparing._entry, []

    def interrupted(*words):
        calls.append(words)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(*words)

    monkeypatch.setattr(comparing, "_entry", interrupted)
    found = compare(model(num_layers=4), GRID, workload(), against=["fsdp"])
    assert [entry.recipe for entry in found.entries] == ["meshwright"]


@pytest.mark.slow
def test_the_answer_does_not_depend_on_how_many_candidates_are_found_at_once(monkeypatch, compared):
    monkeypatch.setattr("meshwright.wafer.training.NUM_BOUNDED", 1)
    few = compare(model(num_layers=2), GRID, workload())
    for entry, whole in zip(few.entries, compared.entries, strict=True):
        assert entry.recipe == whole.recipe
        assert entry.best.estimate.step_time_s == whole.best.estimate.step_time_s
        assert entry.lower_bound_s == pytest.approx(whole.lower_bound_s, rel=1e-12)


@pytest.mark.slow
def test_another_recipe_may_come_first():
    asked = {"tp": [1], "pp": [1]}
    found = compare(
        model(num_layers=4), GRID, workload(), ours="temp", against=("fsdp",), allowed=asked
    )
    assert [entry.recipe for entry in found.entries] == ["temp", "temp", "fsdp", "fsdp"]
    assert found.ours.mapper == "tmap"


def test_a_recipe_of_replicas_leaves_dies_idle_where_sequences_are_fewer():
    """FSDP on 48 dies with 32 sequences: on four of the six rows, not nowhere."""
    work = training("wafer-6x8", sequence_length=2048, global_batch_size=32)
    found = compare("gpt3-6.7b", "wafer-6x8", work, ours="fsdp", against=())
    best = found.ours.best
    assert best is not None
    assert best.estimate.num_devices_used == best.strategy.num_devices == 32
    assert found.ours.why_none == ""
    whole = compare("gpt3-6.7b", "wafer-4x8", work, ours="fsdp", against=()).ours.best
    assert whole.estimate.step_time_s == best.estimate.step_time_s
