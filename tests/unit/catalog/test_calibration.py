"""Constants by family, each with an interval around it; nothing is tuned."""

import numpy as np
import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import chip_names, load_chip
from meshwright.spec.calibration import CONSTANTS, calibration_columns


def test_a_family_overrides_the_defaults():
    hopper, ampere = load_calibration("hopper"), load_calibration("ampere")
    # best measured bf16 rates over the data sheets: 794.5 / 989 and 271.2 / 312
    assert hopper.matmul_efficiency == pytest.approx(794.5 / 989, abs=1e-3)
    assert ampere.matmul_efficiency == pytest.approx(271.2 / 312, abs=1e-3)
    # NCCL holds an A100 to 235 of its 300 GB/s
    assert ampere.fast_network_efficiency == pytest.approx(235 / 300, abs=1e-3)
    assert hopper.overlap_slowdown == 0.189
    assert hopper.intervals["overlap_slowdown"] == (0.0, 0.4)
    # 54 days on 16384 devices with 419 unexpected stops
    assert hopper.mtbf_device_hours == pytest.approx(54 * 24 * 16384 / 419, rel=1e-4)
    assert not hopper.is_calibrated


@pytest.mark.parametrize("family", sorted({load_chip(name).family for name in chip_names()}))
def test_each_family_of_the_catalog_has_sound_constants(family):
    calibration = load_calibration(family)
    assert calibration.family == family
    for constant in CONSTANTS:
        low, high = calibration.intervals[constant]
        assert 0 <= low <= getattr(calibration, constant) <= high
        assert low < high


def test_an_unknown_family_is_generic_and_says_so():
    calibration = load_calibration("nothing-yet")
    assert calibration.family == "generic"
    assert "no constants for family 'nothing-yet'" in calibration.source


def test_unknown_calibration():
    with pytest.raises(UnknownNameError, match="did you mean uncalibrated"):
        load_calibration("hopper", "uncalibrate")


def test_columns_take_the_place_of_numbers():
    calibration = load_calibration("hopper")
    draws = calibration_columns(calibration, {"launch_s": np.array([1e-6, 2e-6])})
    assert draws.launch_s.tolist() == [1e-6, 2e-6]
    assert draws.jitter == calibration.jitter
    with pytest.raises(ValueError, match="not a constant"):
        calibration_columns(calibration, {"family": np.array([1.0])})


def test_a_constant_without_an_interval_is_refused(tmp_path):
    lines = [f"  {key}: {{value: 0.5, source: S}}" for key in ("matmul_efficiency",)]
    path = tmp_path / "mine.yaml"
    head = "name: mine\nis_calibrated: true\nsources: {S: {title: x}}\ndefaults:\n"
    path.write_text(head + "\n".join(lines))
    with pytest.raises(SpecError) as raised:
        load_calibration("hopper", str(path))
    faults = raised.value.faults
    missing = {fault.path for fault in faults if fault.message == "is missing"}
    assert "defaults.launch" in missing
    assert len(missing) == len(CONSTANTS) - 1
    assert {fault.path for fault in faults} - missing == {"defaults.matmul_efficiency"}
