"""The benchmark of fusion runs, and what it prints is the published optimum."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "fusion.py"


def test_the_published_layer_is_found(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SCRIPT.parent), *sys.path])
    script = runpy.run_path(str(SCRIPT), run_name="fusion")
    first = next(script["single_cases"]())
    assert first.startswith("18 kernels, tp 4, dfmodel:    7.323 ms, gap 0.0%")
