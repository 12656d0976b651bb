"""The rates of one device: rates of chip, type and calibration; the slowest device's pace."""

from dataclasses import replace

import pytest

from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.systems import load_chip, load_system
from meshwright.cost.operator import attended_fraction, device_rates, reached_rate, stated_rate
from meshwright.sharding.strategy import Offload, PlanOptions, make_strategy
from meshwright.spec.workload import Precision, SoftwareStack
from meshwright.train.question import check, training
from meshwright.wafer.training import estimate

H100, HOPPER = load_chip("H100"), load_calibration("hopper")


def test_a_measured_rate_stands_over_the_data_sheet():
    assert stated_rate(H100, "bf16") == 989e12
    assert reached_rate(H100, "bf16", HOPPER) == 794.5e12


def test_a_type_without_a_rate_is_an_error_that_names_those_there():
    with pytest.raises(SpecError, match="A100 has no rate for fp8"):
        stated_rate(load_chip("A100"), "fp8")


@pytest.mark.parametrize(
    ("chip", "lacks", "has"),
    [("V100", "bf16", "fp16"), ("T4", "bf16", "fp16"), ("TPU-v4", "fp16", "bf16")],
)
def test_one_16_bit_type_does_not_stand_for_the_other(chip, lacks, has):
    asked = load_chip(chip)
    with pytest.raises(SpecError, match=f"{chip} has no rate for {lacks}.*--precision {has}"):
        stated_rate(asked, lacks)
    assert Precision.on(asked) == Precision(matmul=has, activation=has, kv_cache=has, weight=has)
    assert asked.word == has


def test_types_of_a_chip_follow_that_of_the_linear_layers():
    assert Precision.on(H100) == Precision()
    assert Precision.on(H100, "fp8") == Precision(matmul="fp8")
    assert Precision.on(H100, "fp16").activation == "fp16"
    assert reached_rate(H100, "fp16", HOPPER) == reached_rate(H100, "bf16", HOPPER)


def test_recorded_graphs_launch_for_nothing():
    recorded = device_rates(H100, Precision(), SoftwareStack(cuda_graphs=True), HOPPER)
    assert recorded.launch_s == 0.0
    assert device_rates(H100, Precision(), SoftwareStack(), HOPPER).launch_s > 0.0


def test_the_slowest_working_device_sets_the_pace():
    whole = load_system("8xH100")
    slow = whole.model_copy(update={"speed_factors": {2: 0.5, 5: 0.25}, "dead_devices": (5,)})
    assert slow.slowest_speed_factor == 0.5
    work = training("8xH100", global_batch_size=14, sequence_length=2048)
    one = make_strategy(dp_shard=7)
    times = [
        estimate("llama3-8b", system, work, one, PlanOptions(sequence_parallel=False, zero_stage=3))
        for system in (whole, slow)
    ]
    compute = [plan.best.estimate.time_parts_s["compute_s"] for plan in times]
    assert 1.5 * compute[0] < compute[1] <= 2.0 * compute[0]
    assert any("50%" in note for note in times[1].warnings)


def test_a_mix_of_chips_is_refused_by_name():
    mixed = load_system("8xH100").model_copy(update={"other_chips": {3: load_chip("A100")}})
    work = training("8xH100", global_batch_size=16, sequence_length=2048)
    with pytest.raises(UnsupportedError, match="mixes A100, H100"):
        check("llama3-8b", mixed, work, make_strategy(dp_shard=8), PlanOptions())


def test_offload_needs_a_host():
    work = training("wafer-4x8", global_batch_size=32, sequence_length=2048)
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=1, offload=Offload.OPTIMIZER)
    faults = check("gpt3-6.7b", "wafer-4x8", work, make_strategy(dp_shard=32), plan_options)
    assert [fault.path for fault in faults] == ["offload-without-host"]


def test_chunks_see_themselves_only():
    """Four tokens in chunks of two: 1 + 2 + 1 + 2 of 16 scores."""
    assert attended_fraction(4.0, 2.0, True, is_chunked=True) == 6 / 16
    assert attended_fraction(4.0, 2.0, True) == 7 / 16
    assert attended_fraction(4.0, 8.0, True, is_chunked=True) == 10 / 16


def test_a_share_fitted_to_other_chips_is_no_share_of_a_die_priced_by_its_arrays():
    """The arrays of the die and what feeds them are priced; a GPU's sustained share is not."""
    die, constants = load_chip("TEMP-die"), load_calibration("temp-die", DEFAULT)
    assert not constants.is_calibrated
    assert constants.matmul_sustained_efficiency < 1.0
    rates = device_rates(die, Precision(), SoftwareStack(), constants)
    assert rates.matmul_flops_per_s == stated_rate(die, "bf16")
    own = replace(constants, is_calibrated=True)
    fitted = device_rates(die, Precision(), SoftwareStack(), own)
    share = constants.matmul_sustained_efficiency
    assert fitted.matmul_flops_per_s == stated_rate(die, "bf16") * share
