"""``measure`` in one process on the CPU, and what it refuses."""

import sys

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.measure import run


def test_without_pytorch_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'meshwright\[run\]'"):
        mw.measure(out=tmp_path / "mine.yaml")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way_is_told_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "_run", lambda *_: pytest.fail("measured"))
    (tmp_path / "mine.system.yaml").write_text("mine")
    with pytest.raises(SpecError, match=r"mine\.system\.yaml: exists already"):
        mw.measure(out=tmp_path / "mine.yaml")


def test_stopped_too_early_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "_run", lambda *_: None)
    with pytest.raises(SpecError, match="stopped before products and copies"):
        mw.measure(out=tmp_path / "mine.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_cpu_is_measured_and_priced_with(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "QUICK_S", 2.0)
    path = tmp_path / "mine.yaml"
    found = mw.measure(out=path, quick=True)
    assert found.files == (str(path), str(tmp_path / "mine.system.yaml"))
    names = {entry.name for entry in found.constants}
    assert {"matmul_sustained_efficiency", "attention_forward_efficiency", "memory_efficiency",
            "elementwise_efficiency", "eager_traffic_factor", "launch_s"} <= names  # fmt: skip
    left = found.measured.unexplained  # None: one large product of each type, which are its rates
    assert left is None or 0 < left < 5
    priced = mw.estimate(
        "gpt2-124m", on=str(tmp_path / "mine.system.yaml"), calibration=str(path), seq=128,
        global_batch=1, precision="fp32", optimizer="adam-fp32", zero=0,
    ).best.estimate  # fmt: skip
    if left is None:
        assert priced.interval_s is None
    else:
        low, high = priced.interval_s
        assert low < priced.step_time_s < high
    assert priced.is_calibrated
