"""The view of a measured machine: constants, rows with their rates, kernels left out."""

import pytest
from report_pages import check_page

from meshwright.catalog.calibration import Constant
from meshwright.measure.constants import rate_of
from meshwright.measure.run import MeasuredMachine
from meshwright.spec.measured import Machine, Measured, Timing
from meshwright.view.terminal import text_of

ABOUT = Machine(device="NVIDIA H100 80GB HBM3", kind="cuda", num_devices=8, devices_per_host=8,
                memory_bytes=8e10, host_cores=96, torch="2.9")  # fmt: skip
PRODUCT = Timing(kernel="matmul", shape=(1000, 1000, 1000), dtype="bf16", median_s=1e-5,
                 p25_s=9e-6, p75_s=1.1e-5, num_samples=9)  # fmt: skip
SHARE = Constant("matmul_efficiency", 0.5, 0.4, 0.6, "one row")


@pytest.fixture
def found():
    rows = Measured(machine=ABOUT, taken_s=2.0, left_out=("matmul fp8",), rows=(PRODUCT,))
    return MeasuredMachine(rows, "H100", "8xH100", (SHARE,), ("node.yaml",))


def test_the_rate_of_a_product_by_hand():
    """2 x 1000^3 operations in 10 us are 200 TFLOP/s."""
    assert rate_of(PRODUCT) == (pytest.approx(2e14), "FLOP/s")


def test_the_screen_leads_with_the_constants_and_the_detail_has_every_row(found):
    check_page(found.page())
    text = text_of(found.page())
    assert "the H100 of the catalog" in text
    assert "matmul_efficiency    0.5  0.4 to 0.6" in text
    assert "1 row in 2 s, PyTorch 2.9, one process" in text
    detail = " ".join(text_of(found.page(), detail=True).split())
    assert "1000x1000x1000 10 us 9 us 11 us 200 TFLOP/s" in detail
    assert "one row" in detail
    assert "matmul fp8" in detail
