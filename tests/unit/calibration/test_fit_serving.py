"""Constants of serving come back out of rows made with them; a file of them is read again."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.arrays import weighted_quantile
from meshwright.calibration.fit.record import serving_alone_text, serving_text
from meshwright.calibration.fit.serving import (
    OF_CHIPS,
    OF_SERVERS,
    fit_serving,
    serving_rows,
)
from meshwright.calibration.rows import published
from meshwright.calibration.serving import Column
from meshwright.catalog.calibration import load_calibration, load_serving, serving_record
from meshwright.catalog.workloads import load_server
from meshwright.spec.calibration import NEUTRAL

TRUE = {"weight_read_share": 0.8, "shared_cache_extra": 1.0, "host_step_s": 3e-3}


class MadeColumn(Column):
    """Questions whose measurements follow known constants exactly."""

    def measured(self):
        return self.tokens_per_s(self.served(replace(NEUTRAL, **TRUE)))


@pytest.fixture(scope="module")
def rows():
    kept = [r for r in published("serving") if r.framework == "vllm-v0"]
    chosen = [r for r in kept if r.system.chip != "MI300X"][::4]
    made = serving_rows(chosen, "uncalibrated")
    return replace(made, columns=tuple(MadeColumn(c.setting, c.jobs) for c in made.columns))


@pytest.fixture(scope="module")
def fitted(rows):
    return fit_serving(rows)


@pytest.mark.slow
def test_made_rows_are_met(fitted):
    assert np.median(np.abs(fitted.errors)) < 0.02
    found = {k.free.name: np.exp(v) for k, v in zip(fitted.rows.keys, fitted.values, strict=True)}
    for name in ("weight_read_share", "host_step_s"):
        assert found[name] == pytest.approx(TRUE[name], rel=0.12)


@pytest.mark.slow
def test_slopes_are_differences(rows):
    values = np.log([key.free.prior for key in rows.keys])
    errors, slopes = rows.errors_and_slopes(values)
    assert np.array_equal(errors, rows.errors(values, np.ones(len(errors), bool)))
    number = [key.place for key in rows.keys].index(("vllm-v0", "host_step_s"))
    assert (slopes[:, number] < 0).all()


@pytest.mark.slow
def test_what_is_left_out_is_a_server_a_source_or_a_family(fitted):
    assert set(fitted.left_out) == {"source", "server", "family", "model"}
    assert np.isnan(fitted.left_out["server"]).all()  # there is no other server to fit
    assert not np.isnan(fitted.left_out["family"]).any()


@pytest.mark.slow
def test_a_written_part_is_read(fitted, tmp_path):
    path = tmp_path / "mine.yaml"
    text = serving_alone_text(len(fitted.errors), "mine", "a test") + serving_text(fitted)
    path.write_text(text, encoding="utf-8")
    vllm = load_server("vllm-v0")
    for family in ("ampere", "hopper"):
        found = load_serving(family, vllm, str(path))
        values = dict(zip([k.place for k in fitted.rows.keys], fitted.values, strict=True))
        share = np.exp(values[f"{family} under vllm-v0", "weight_read_share"])
        assert found.weight_read_share == pytest.approx(share, rel=1e-3)
        assert found.host_step_s == pytest.approx(
            np.exp(values["vllm-v0", "host_step_s"]), rel=1e-3
        )
        assert found.core_pull == NEUTRAL.core_pull  # vLLM splits the cache of a head
    assert serving_record(str(path)).num_rows == len(fitted.errors)
    trained = load_calibration("hopper", str(path)), load_calibration("hopper", "calibrated")
    assert trained[0].matmul_sustained_efficiency == trained[1].matmul_sustained_efficiency


def test_uncalibrated_serving_is_neutral():
    for name in ("vllm", "tensorrt-llm"):
        assert load_serving("hopper", load_server(name), "uncalibrated") == NEUTRAL


def test_what_no_row_tells_is_as_expected():
    found = load_serving("volta", load_server("llama.cpp"), "calibrated")
    for free in (*OF_CHIPS, *OF_SERVERS):
        assert getattr(found, free.name) == pytest.approx(free.prior)
    seen = load_serving("hopper", load_server("llama.cpp"), "calibrated")
    assert seen.weight_read_share != found.weight_read_share
    assert seen.expert_rate_share == found.expert_rate_share


def test_a_weighted_quantile_by_hand():
    """Of 1, 2 and 3 with weights 1, 2 and 1, a quarter lies at 1 and three quarters up to 2."""
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    found = [weighted_quantile(values, weights, share) for share in (0.2, 0.3, 0.7, 0.8)]
    assert found == [1.0, 2.0, 2.0, 3.0]
