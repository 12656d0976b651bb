"""How many devices end a run in time."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.systems import load_system, usual_sizes
from meshwright.cli.main import main
from meshwright.train.deadline import Tries, doubled, least_device_s, least_in_time
from meshwright.train.question import make_problem, training

pytestmark = pytest.mark.usefixtures("kept_answers")

SIZES = usual_sizes("H100")
DAY_S = 86_400.0


def takes(run_s, is_complete=True):
    """Return a plan whose run takes that long."""
    return SimpleNamespace(
        run_s=run_s, slowest_run_s=run_s, coverage=SimpleNamespace(is_complete=is_complete)
    )


def tries_of(run_s_on):
    """Return tries of runs that take what a function of the devices says; infeasible where None."""

    def plan_on(size):
        if run_s_on(size) is None:
            raise InfeasibleError(f"nothing fits {size}")
        return takes(run_s_on(size))

    return Tries(plan_on)


def test_sizes_are_powers_of_two_in_a_host_and_whole_hosts_beyond():
    assert SIZES[:14] == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112)
    assert usual_sizes("GB200")[:9] == (1, 2, 4, 8, 16, 32, 64, 72, 144)
    assert usual_sizes("RTX-4090")[:5] == (1, 2, 4, 8, 16)
    with pytest.raises(SpecError, match="no standard system"):
        usual_sizes("H100-96GB")


@pytest.mark.parametrize("chip", ["H100", "TPU-v5e", "TEMP-die", "GB200", "WSE-3"])
def test_every_usual_size_is_a_system(chip):
    sizes = usual_sizes(chip)
    assert list(sizes) == sorted(set(sizes))
    assert [load_system(f"{size}x{chip}").num_devices for size in sizes] == list(sizes)


@given(st.integers(1, 10_000), st.floats(0.0, 1.0), st.integers(1, 512))
def test_the_fewest_devices_of_all_sizes_are_found(work, share, least):
    """Runs of any work that more devices always shorten, none below what holds the model."""

    def run_s(size):
        return work / size**0.8 if size >= least else None

    found = least_in_time(SIZES, tries_of(run_s), 1.0, device_s=share * work)
    enough = [size for size in SIZES if size >= least and run_s(size) <= 1.0]
    assert found.run_s == run_s(enough[0])
    assert found.is_in_time
    assert {one.num_devices for one in found.tried} <= set(SIZES)
    assert all(one.run_s == run_s(one.num_devices) for one in found.tried)


def test_sizes_that_the_peak_rules_out_are_not_tried():
    tries = tries_of(lambda size: 200.0 / size)
    assert least_in_time(SIZES, tries, 1.0, device_s=100.0).run_s == pytest.approx(200 / 224)
    assert min(tries.plans) >= 100


def test_it_ends_where_more_devices_do_not_help():
    tries = tries_of(lambda size: 100.0 / min(size, 64))
    with pytest.raises(InfeasibleError, match=r"64 take .* the least of all"):
        least_in_time(SIZES, tries, 1.0)
    assert max(tries.plans) == 256


def test_a_second_host_may_be_slower_before_more_are_faster():
    slower = {16: 20.0, 24: 15.0}
    found = least_in_time(SIZES, tries_of(lambda size: slower.get(size, 100.0 / size)), 4.0)
    assert [one.num_devices for one in found.tried] == [1, 2, 4, 8, 16, 24, 32]
    assert found.plan.run_s == 100 / 32


def test_where_nothing_fits_the_reason_is_told():
    with pytest.raises(InfeasibleError, match="nothing fits 131072"):
        least_in_time(SIZES, tries_of(lambda size: None), 1.0)


def test_an_interrupt_ends_the_search():
    with pytest.raises(KeyboardInterrupt):
        least_in_time(SIZES, Tries(lambda size: takes(9.0, is_complete=False)), 1.0)


def test_doubling_reaches_the_last_size():
    sizes = (1, 3, 4, 9, 10)
    assert [sizes[place] for place in doubled(sizes)] == [1, 3, 9, 10]


def test_no_plan_is_faster_than_its_flops_at_the_peak():
    system = load_system("8xH100")
    work = training(system, sequence_length=1024, global_batch_size=64, total_tokens=1e9)
    least_s = least_device_s(make_problem("gpt2-medium", system, work, "uncalibrated"))
    asked = {"on": "8xH100", "seq": 1024, "global_batch": 64, "tokens": "1B"}
    found = mw.plan("gpt2-medium", **asked, pp=1, cp=1)
    price = found.best.estimate
    assert least_s < 8 * found.run_s
    assert least_s == pytest.approx(8 * found.run_s * price.goodput_fraction * price.mfu_causal)


ASKED = ["gpt2-medium", "--seq", "1024", "--global-batch", "64", "--tokens", "20B"]


def test_the_fewest_devices_of_a_chip_lead_the_answer(capsys):
    assert main(["plan", *ASKED, "--on", "h100", "--within", "1d", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    devices, slower = data["plan"]["system"]["num_devices"], data["tried"][0]
    assert data["is_in_time"]
    assert data["within_s"] == DAY_S
    assert slower["num_devices"] < devices
    assert slower["run_s"] > DAY_S >= data["run_s"]
    assert main(["plan", *ASKED, "--on", "h100", "--within", "1d"]) == 0
    out = capsys.readouterr().out
    verdict = next(line for line in out.splitlines() if line.startswith("IN TIME"))
    assert f"{devices} H100 take {data['run_s'] / 3600:.1f}".removesuffix(".0") in verdict
    assert len(out.splitlines()) <= 24


@pytest.mark.parametrize(
    ("within", "status", "label"),
    [("365d", 0, "IN TIME "), pytest.param("1h", 3, "LATE ", marks=pytest.mark.slow)],
)
def test_stated_devices_are_in_time_or_late(capsys, within, status, label):
    assert main(["plan", *ASKED, "--on", "8xH100", "--within", within]) == status
    assert label in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--on", "H100", "--within", "30"], "--within: '30' has no unit"),
        (["--on", "H100", "--within", "30 min"], "--within"),
        (["--on", "H100-96GB", "--within", "30d"], "no standard system"),
        (["--on", "TPU-v5e", "--network", "NDR", "--within", "30d"], "no network between hosts"),
        (["--on", "H100", "--within", "1d", "--precision", "int8"], "H100 has no rate for int8"),
        (["--on", "8xH100", "--within", "1d", "--pareto"], "--within: a front is no single plan"),
        pytest.param(["--on", "8xH100"], None, marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_read_is_told(capsys, words, part):
    assert main(["plan", *ASKED, *words]) == (0 if part is None else 2)
    assert (part or "") in capsys.readouterr().err


def test_tokens_are_needed(capsys):
    assert main(["plan", *ASKED[:-2], "--on", "H100", "--within", "30d"]) == 2
    assert "--tokens: is needed with --within" in capsys.readouterr().err


@pytest.mark.slow
def test_a_network_joins_hosts_where_there_are_several():
    asked = {"seq": 1024, "global_batch": 64, "tokens": "20B", "network": "400GbE"}
    one = mw.plan("gpt2-medium", on="4090", within="60d", **asked)
    several = mw.plan("gpt2-medium", on="4090", within="24h", **asked)
    assert one.plan.system.num_devices <= 8 < several.plan.system.num_devices
    assert one.plan.system.name == f"{one.plan.system.num_devices}xRTX-4090"
    assert several.plan.system.levels[-1].name == "400GbE"
