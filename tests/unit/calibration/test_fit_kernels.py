"""Constants of single kernels come back out of timings made with them."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.calibration.fit.all_reduces import (
    all_reduce_timings,
    constants_of_all_reduce,
    fit_kernels,
    fit_library,
)
from meshwright.calibration.fit.dispatch import OF_DISPATCH, fit_dispatch, timings
from meshwright.calibration.fit.latents import (
    constants_of_latents,
    fit_latents,
    latent_timings,
)
from meshwright.catalog.calibration import load_calibration, load_serving
from meshwright.catalog.workloads import load_server

TRUE = np.log([2e-5, 8e-6, 6e-5, 2e-5, 0.7, 0.8])


def test_made_timings_are_met():
    found = timings()
    made = {**found.columns, "time_s": found.columns["time_s"] * np.exp(found.errors(TRUE))}
    values = fit_dispatch(replace(found, columns=made)).values
    assert np.exp(values - TRUE) == pytest.approx(1.0, rel=0.02)


def test_timings_kept_apart_are_foreseen():
    found = timings()
    errors = np.abs(found.errors(fit_dispatch(found).values))
    assert np.median(errors[found.is_apart]) < 0.25
    several = found.is_apart & (found.columns["hosts"] > 1)
    assert np.median(errors[several]) < 0.12


def test_the_catalog_has_the_fit():
    known = load_serving("hopper", load_server("sglang"), "calibrated")
    for one, free in zip(fit_dispatch(timings()).constants(), OF_DISPATCH, strict=True):
        assert one.name == free.name
        assert getattr(known, one.name) == pytest.approx(one.value, rel=1e-3)
        assert one.low < one.value < one.high


def test_chips_known_under_a_replaced_server_alone_are_unknown_under_others():
    """Rows of MI300X are of vLLM before 0.8; of its successor none is."""
    names = ("vllm-v0", "vllm", "sglang")
    old, new, other = (load_serving("cdna", load_server(name), "calibrated") for name in names)
    unseen = load_serving("volta", load_server("vllm"), "calibrated")
    for name in ("weight_read_share", "collective_start_share", "prompt_rate_share"):
        assert getattr(new, name) == getattr(other, name) == getattr(unseen, name)
        assert getattr(old, name) != getattr(new, name)


def test_the_rate_over_latents_is_that_of_the_timings():
    known = {one.place: one for one in constants_of_latents("calibrated")}
    assert set(known) == {"blackwell", "hopper"}
    for family, one in known.items():
        found = load_serving(family, load_server("sglang"), "calibrated")
        assert found.latent_rate_share == pytest.approx(one.value, rel=1e-3)
    # FlashMLA reaches 0.5 to 0.6 of 989 TFLOP/s with all heads on one device.
    hopper = load_calibration("hopper", "calibrated").attention_forward_efficiency
    assert 0.5 < hopper * known["hopper"].value < 0.6


def test_a_made_rate_over_latents_comes_back():
    timings = latent_timings("calibrated")["hopper"]
    true = np.log([2e-5, 1.3, 0.9])
    made = replace(timings, time_s=timings.time_s * np.exp(timings.errors(true)))
    found = fit_latents(made)
    assert np.exp(found.values - true) == pytest.approx(1.0, rel=0.02)
    assert found.apart < 0.01


def test_made_timings_of_an_all_reduce_are_met():
    timings = all_reduce_timings("calibrated", of_library=False)["hopper"]
    true = np.log([4e-6, 1.2e-5, 0.7])
    made = replace(timings, time_s=timings.time_s * np.exp(timings.kernel_errors(true)))
    assert np.exp(fit_kernels(made).values - true) == pytest.approx(1.0, rel=0.02)
    timings = all_reduce_timings("calibrated", of_library=True)["blackwell"]
    true = np.log([0.6])
    made = replace(timings, time_s=timings.time_s * np.exp(timings.library_errors(true)))
    assert np.exp(fit_library(made).values - true) == pytest.approx(1.0, rel=0.02)


def test_the_catalog_has_the_all_reduce_of_each_family():
    found = list(constants_of_all_reduce("calibrated"))
    assert {one.place for one in found} == {"ampere", "blackwell", "hopper"}
    for one in found:
        known = load_serving(one.place, load_server("vllm"), "calibrated")
        assert getattr(known, one.name) == pytest.approx(one.value, rel=1e-3)
    # Servers of vLLM, SGLang and TensorRT-LLM bring kernels; the others call a library.
    other = load_serving("hopper", load_server("deepspeed-mii"), "calibrated")
    assert np.isinf(other.one_shot_start_s)
    assert np.isinf(load_serving("cdna", load_server("vllm"), "calibrated").one_shot_start_s)
