"""Caps on power and idle power, from the question to the answer."""

import json

import pytest

from meshwright.base.errors import InfeasibleError, SpecError, UnsupportedError
from meshwright.catalog.systems import load_system
from meshwright.cli.main import main
from meshwright.serve.serve import serve
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.workload import Decode
from meshwright.train import plan_file as files
from meshwright.train.question import training, with_powers
from meshwright.wafer.training import estimate, plan

QUESTION = ["gpt2-medium", "--on", "wafer-2x4", "--seq", "1024", "--global-batch", "64"]
ALL_W, IDLE_W, OVERHEAD = 8 * 90.0 * 1.1, 90.0, 0.1


def asked(**powers):
    """Return a small question on a wafer below caps."""
    system = with_powers(load_system("wafer-2x4"), **powers)
    return "gpt2-medium", system, training(system, sequence_length=1024, global_batch_size=64)


@pytest.fixture(scope="module")
def free():
    return plan(*asked()).best.estimate


@pytest.mark.slow
def test_parts_sum_to_the_energy(free):
    assert sum(free.energy_parts_j.values()) == pytest.approx(free.energy_j, rel=1e-12)
    assert free.power_w == pytest.approx(free.energy_j / free.step_time_s, rel=1e-12)
    tokens = 64 * 1024
    assert free.tokens_per_j == pytest.approx(tokens / free.energy_j, rel=1e-12)


@pytest.mark.slow
def test_a_plan_below_a_cap_draws_no_more_and_has_a_proof(free):
    """Six dies near their peak beat eight that are slowed down; all eight take 120.4 ms.

    Messages of the six share links, which the bound leaves out: 0.3 %.
    """
    cap_w = ALL_W + 0.5 * (free.power_w - ALL_W)
    found = plan(*asked(max_power_w=cap_w))
    best = found.best.estimate
    assert best.power_w <= cap_w * (1 + 1e-12)
    assert best.step_time_s > free.step_time_s
    assert best.num_devices_used == 6
    assert best.step_time_s < 0.1204
    assert found.coverage.gap < 0.005
    assert found.coverage.lower_bound_s <= best.step_time_s
    assert found.best.placement.lower_bound_s <= best.step_time_s * (1 + 1e-12)


@pytest.mark.slow
def test_a_cap_above_what_a_plan_draws_changes_nothing(free):
    held = plan(*asked(max_power_w=2.0 * free.power_w)).best.estimate
    assert held.step_time_s == free.step_time_s
    assert held.time_parts_s["throttle_s"] == 0.0


@pytest.mark.slow
def test_where_idle_power_is_above_the_cap_nothing_fits_and_the_least_is_told():
    question = asked(max_power_w=50.0)
    with pytest.raises(InfeasibleError, match=r"power cap of 50 W: \d+ devices of 90 W draw"):
        plan(*question)
    strategy, plan_options = make_strategy(dp_shard=8), PlanOptions(sequence_parallel=False)
    with pytest.raises(InfeasibleError, match=r"8 devices of 90 W draw 792 W"):
        estimate(*question, strategy, plan_options)
    with pytest.raises(InfeasibleError, match="cap of a device of 60 W"):
        plan(*asked(max_device_power_w=60.0))


@pytest.mark.slow
def test_idle_power_off_saves_just_that(free):
    off = plan(*asked(idle_power_w=0.0)).best.estimate
    assert off.step_time_s == free.step_time_s
    idle_j = 8 * IDLE_W * free.step_time_s * (1 + OVERHEAD)
    assert free.energy_j - off.energy_j == pytest.approx(idle_j, rel=1e-9)


def test_one_strategy_below_a_cap_takes_as_long_as_its_heat():
    """What exceeds idle power is spread over more time: half the power above it, twice the time.

    At most, because a way to lie that sends fewer bytes draws less.
    """
    split = make_strategy(dp_shard=2, tatp=4), PlanOptions(sequence_parallel=False)
    whole = estimate(*asked(), *split).best.estimate
    cap_w = ALL_W + 0.5 * (whole.power_w - ALL_W)
    held = estimate(*asked(max_power_w=cap_w), *split).best.estimate
    assert held.power_w == pytest.approx(cap_w, rel=1e-12)
    heat_j = sum(held.energy_parts_j[part] for part in ("compute_j", "memory_j", "links_j"))
    above_idle_s = heat_j * (1 + OVERHEAD) / (cap_w - ALL_W)
    assert held.step_time_s == pytest.approx(above_idle_s, rel=1e-9)
    assert 1.9 * whole.step_time_s < held.step_time_s <= 2.0 * whole.step_time_s * (1 + 1e-9)
    assert held.time_parts_s["throttle_s"] > 0.9 * whole.step_time_s
    assert sum(held.energy_parts_j.values()) == pytest.approx(held.energy_j, rel=1e-12)
    off = estimate(*asked(idle_power_w=0.0), *split).best.estimate
    idle_j = 8 * IDLE_W * whole.step_time_s * (1 + OVERHEAD)
    assert whole.energy_j - off.energy_j == pytest.approx(idle_j, rel=1e-9)
    above = estimate(*asked(max_power_w=2.0 * whole.power_w), *split).best.estimate
    assert above.step_time_s == whole.step_time_s
    with pytest.raises(InfeasibleError, match=r"8 devices of 90 W draw 792 W"):
        estimate(*asked(max_power_w=50.0), *split)


def test_a_cap_on_one_strategy_stays_in_its_file():
    question = asked(max_device_power_w=400.0)
    split = make_strategy(dp_shard=2, tatp=4), PlanOptions(sequence_parallel=False)
    found = estimate(*question, *split)
    again = files.from_json(files.to_json(found))
    assert again.system.max_device_power_w == 400.0
    assert again.best.estimate == found.best.estimate


def test_powers_that_are_not_known_cannot_be_capped():
    system = load_system("wafer-2x4")
    chip = system.chip.model_copy(update={"idle_power_w": None})
    unknown = with_powers(system.model_copy(update={"chip": chip}), max_power_w=1e4)
    work = training(unknown, sequence_length=1024, global_batch_size=64)
    with pytest.raises(SpecError, match="max_power: the power of TEMP-die is not known"):
        plan("gpt2-medium", unknown, work)


def test_what_knows_no_cap_refuses_one():
    model, system, work = asked(max_power_w=1e4)
    with pytest.raises(UnsupportedError, match="power cap is for training"):
        serve(model, system, Decode(batch_size=8, context_length=512))
    with pytest.raises(UnsupportedError, match="without a cap on power"):
        plan(model, system, work, per_operator=True)


@pytest.mark.slow
def test_options_of_the_command_line(capsys):
    assert main(["plan", *QUESTION, "--with", "max_power=50W"]) == 3
    assert "50 W" in capsys.readouterr().err
    assert main(["plan", *QUESTION, "--with", "max_power=5 kg"]) == 2
    assert "--with max_power" in capsys.readouterr().err
    status = main(["estimate", *QUESTION, "--tatp", "4", "--with", "idle_power=off", "--json"])
    data = json.loads(capsys.readouterr().out)["best"]["estimate"]
    assert status == 0
    assert data["energy_parts_j"]["idle_j"] == 0.0
    main(["estimate", *QUESTION, "--tatp", "4", "--detail"])
    assert "tokens/J: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_cap_stays_in_the_plan():
    question = asked(max_device_power_w=400.0)
    found = plan(*question)
    again = files.from_json(files.to_json(found))
    assert again.system.max_device_power_w == 400.0
    assert again.best.estimate == found.best.estimate


@pytest.mark.slow
def test_plans_of_before_are_read(free):
    found = plan(*asked())
    data = json.loads(files.to_json(found))
    for entry in (data["best"], *data["runners_up"]):
        price = entry["estimate"]
        del price["time_parts_s"]["throttle_s"]
        for name in ("energy_parts_j", "power_w", "tokens_per_j"):
            del price[name]
    again = files.from_json(json.dumps(data)).best.estimate
    assert again.time_parts_s["throttle_s"] == 0.0
    assert again.energy_j == free.energy_j


def test_a_stated_rent_is_paid_for_all_devices_and_all_days(capsys):
    """8 devices at 2.50 USD/h cost 480 USD a day; restarts are paid for as well."""
    asked = ["estimate", "llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "64",
             "--dp", "8", "--zero", "3", "--tokens", "2T", "--rent", "2.5 USD/h"]  # fmt: skip
    assert main([*asked, "--json"]) == 0
    price = json.loads(capsys.readouterr().out)["best"]["estimate"]
    assert price["cost_usd"] == pytest.approx(price["step_time_s"] * 8 * 2.5 / 3600)
    days = 2e12 / (64 * 4096) * price["step_time_s"] / price["goodput_fraction"] / 86_400
    main(asked)
    screen = " ".join(capsys.readouterr().out.split())
    assert f"{days:,.1f} days for 2T tokens, {days * 480:,.0f} USD (goodput" in screen
    assert "2.5 USD/h a device, 20 USD/h for 8 (as stated)" in screen
    main([*(part for part in asked if part not in ("--rent", "2.5 USD/h")), "--detail"])
    assert "10.8 USD/h a device, 86.4 USD/h for 8 (How to Scale Your Model" in " ".join(
        capsys.readouterr().out.split()
    )
    for wrong in ("0", "-1 USD/h", "2.5 EUR"):
        assert main([*asked[:-1], wrong]) == 2
        assert "--rent" in capsys.readouterr().err
