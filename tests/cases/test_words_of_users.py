"""Words that users have for systems, networks, measurements and money."""

import pytest

import meshwright
from meshwright.ask.kinds import rent_of
from meshwright.ask.measured import measured_step_s
from meshwright.base.errors import SpecError
from meshwright.catalog.networks import with_network
from meshwright.catalog.systems import chip_names, load_chip, load_system
from meshwright.view.words import rent_rate


@pytest.mark.parametrize(
    ("name", "chips", "kind"),
    [
        # Cloud TPU documentation: v3, v4 and v5p count two TensorCores of each chip, others chips
        ("v5p-128", 64, "TPU-v5p"),
        ("v5p-8", 4, "TPU-v5p"),
        ("v4-32", 16, "TPU-v4"),
        ("v5e-256", 256, "TPU-v5e"),
        ("v5litepod-16", 16, "TPU-v5e"),
        ("v6e-256", 256, "TPU-v6e"),
        ("tpu-v5p-128", 64, "TPU-v5p"),
        ("2xv5p-128", 128, "TPU-v5p"),
    ],
)
def test_a_tpu_slice_has_the_chips_of_its_name(name, chips, kind):
    system = load_system(name)
    assert (system.num_devices, system.chip.name) == (chips, kind)


@pytest.mark.parametrize(("name", "fix"), [("v5p-7", "v5p-8"), ("v6e-12", "v6e-8")])
def test_the_fix_of_a_slice_that_there_is_not_is_a_slice(name, fix):
    with pytest.raises(SpecError, match=f"{fix} ") as caught:
        load_system(name)
    assert load_system(caught.value.faults[0].fix.split()[0])


def test_several_adapters_are_as_wide_as_their_sum():
    one = with_network(load_system("16xH100"), "200GbE").levels[-1]
    eight = with_network(load_system("16xH100"), "8x200GbE").levels[-1]
    # 8 x 200 Gb/s over 8 devices are 25 GB/s for each; one adapter gives an eighth
    assert eight.bandwidth_bytes_per_s * eight.links_per_device == pytest.approx(25e9)
    assert one.bandwidth_bytes_per_s * one.links_per_device == pytest.approx(25e9 / 8)


@pytest.mark.parametrize("name", ["0x200GbE", "65x200GbE"])
def test_adapters_of_a_host_have_a_limit(name):
    with pytest.raises(SpecError, match="from 1 to 64"):
        with_network(load_system("16xH100"), name)


@pytest.mark.parametrize("text", ["2.5", "$2.5", "2.5 USD/h", "2.5 USD/hour"])
def test_rent_is_in_usd_an_hour(text):
    assert rent_of("--rent", text) == 2.5


@pytest.mark.parametrize("text", ["abc", "0", "-1", "2.5 USD", "nan"])
def test_what_is_no_rent_is_refused(text):
    with pytest.raises(SpecError, match="--rent"):
        rent_of("--rent", text)


@pytest.fixture(scope="module")
def plan():
    return meshwright.estimate(
        "llama3-8b", on="8xH100", seq="4k", global_batch=16, dp=8, zero=3, framework="fsdp",
        recompute="full",
    )  # fmt: skip


def test_measured_words_mean_one_step(plan):
    price, peak = plan.best.estimate, plan.system.chip.matmul_flops_per_s["bf16"]
    step_s = price.step_time_s * price.mfu_causal / 0.4
    assert measured_step_s("40%", plan) == pytest.approx(step_s)
    assert measured_step_s("40% MFU", plan) == pytest.approx(step_s)
    assert measured_step_s("0.4 mfu_causal", plan) == pytest.approx(step_s)
    # 40 % of 989 TFLOP/s is 395.6 TFLOP/s a device
    assert peak == 989e12
    for unit in ("TFLOP/s", " TFLOP/s/device", " TFLOP/s/GPU"):
        assert measured_step_s(f"395.6{unit}", plan) == pytest.approx(step_s)
    tokens = plan.workload.tokens_per_step
    assert measured_step_s(f"{tokens} tokens/s", plan) == pytest.approx(1.0)
    assert measured_step_s("12.3s", plan) == 12.3


@pytest.mark.parametrize("text", ["41", "4%5", "140%", "0%", "fast", "2000 TFLOP/s"])
def test_what_measures_nothing_is_refused(plan, text):
    with pytest.raises(SpecError, match="--measured"):
        measured_step_s(text, plan)


NOT_RENTED = {"Arc-Pro-B60", "Dojo-D1", "Dojo-tile", "Groq-LPU", "MI250", "MI250X", "MI250X-GCD",
              "SN10", "SN30", "SN40L", "TEMP-die", "WSE-2", "WSE-3"}  # fmt: skip
"""Chips that no cloud lists by the device and hour, or at all."""


def test_every_chip_that_clouds_list_has_a_price_within_its_range():
    for name in set(chip_names()) - NOT_RENTED:
        chip = load_chip(name)
        origin, rent = chip.provenance["rent"], chip.rent_usd_per_hour
        assert rent is not None, name
        if origin.kind == "assumed" or origin.low is not None:
            assert origin.low <= rent <= origin.high, name
    assert all(load_chip(name).rent_usd_per_hour is None for name in NOT_RENTED)


def test_the_screen_names_source_and_range_of_a_price():
    text = rent_rate(load_chip("H100"), 1)
    assert text.startswith("10.8 USD/h a device (How to Scale Your Model")
    assert text.endswith("; listed from 2.69 to 12.29)")
    assert "(assumed: one in a g6 host" in rent_rate(load_chip("L4"), 1)
