"""Measured times of kernels: read, fitted, held back, drawn from a family."""

import csv
import gzip
import io
import zlib
from dataclasses import replace
from importlib.metadata import EntryPoints

import numpy as np
import pytest
from report_pages import charts_of, check_page, values_of

import meshwright as mw
from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.systems import load_chip
from meshwright.cli.main import main
from meshwright.view.markdown import markdown_of
from meshwright.view.terminal import text_of
from meshwright_papers.kernels.curves import DecodeCurve, GemmCurve, range_of
from meshwright_papers.kernels.fit import curves_text, fit_curve, fit_kernels
from meshwright_papers.kernels.fitted import KernelCurves, load_curves, mean_curve
from meshwright_papers.kernels.tables import (
    FOLDER,
    KINDS,
    published_timings,
    read_timings,
)
from meshwright_papers.kernels.timings import KERNELS, groups_of, place_of, predicted_s
from meshwright_papers.kernels.validation import kernel_validation

HEAD = "chip,dtype,m,n,k,latency_us\n"


def table(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def published():
    return {found.kernel.name: found for found in published_timings()}


@pytest.fixture(scope="module")
def validation():
    return kernel_validation(published_timings(), load_curves())


@pytest.fixture(scope="module")
def decode_rows(published):
    found = published["decode"]
    return next(rows for chip, name, rows in groups_of(found) if (chip, name) == ("H100", "fp8"))


def test_every_kernel_has_published_rows_and_a_curve_for_each(published):
    assert set(published) == set(KERNELS)
    fitted = load_curves().fitted
    for name, found in published.items():
        for chip, variant, _ in groups_of(found):
            assert chip in fitted[name, variant]


def test_the_numbers_of_curves_lie_within_their_bounds():
    for curves in load_curves().fitted.values():
        for curve in curves.values():
            for name, value in curve.numbers.items():
                if bounds := range_of(type(curve), name):
                    assert bounds[0] * 0.999 <= value <= bounds[1] * 1.001


def test_products_hold_on_shapes_that_no_fit_saw(validation):
    """The aim is 10 % in the median and 25 % for nine of ten; a card by Intel misses it."""
    found = {entry.chip: entry for entry in validation.by_chip if entry.kernel == "gemm"}
    near = [chip for chip, e in found.items() if e.held_back[0] < 0.1 and e.held_back[1] < 0.3]
    assert {"A100", "A40", "B200", "GB200", "H100", "H200"} <= set(near)


def test_a_chip_left_out_is_foreseen_from_its_family(validation):
    found = {entry.chip: entry for entry in validation.by_chip if entry.kernel == "gemm"}
    assert all(found[chip].left_out[0] < 0.2 for chip in ("A100", "B200", "GB200", "H100", "H200"))


def test_a_quarter_of_the_shapes_is_held_back_on_all_chips(published):
    found = published["gemm"]
    shapes = [
        "|".join(str(int(value)) for value in row)
        for row in zip(*(found.numbers[name] for name in ("m", "n", "k")), strict=True)
    ]
    assert found.held_back.tolist() == [zlib.crc32(f"17|{one}".encode()) % 4 == 0 for one in shapes]
    assert 0.2 < np.mean(found.held_back) < 0.3


def test_rows_name_their_sources():
    for path in FOLDER.glob("*.csv.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            sources = {row["source"].partition(":")[0] for row in csv.DictReader(file)}
        assert sources <= {"aic", "vidur"}


def test_a_fit_sees_nothing_that_is_held_back(decode_rows):
    slow = replace(
        decode_rows,
        measured_s=np.where(decode_rows.held_back, 7.0, 1.0) * decode_rows.measured_s,
        kernel=decode_rows.kernel,
    )
    assert fit_kernels([slow]) == fit_kernels([decode_rows])


def test_a_fit_finds_the_curve_that_made_the_times(decode_rows):
    place, curves = place_of("H100"), KernelCurves({})
    true = DecodeCurve(memory_share=0.7, launch_s=2e-5, wave_s=4e-6)
    made = replace(decode_rows, measured_s=predicted_s(decode_rows, "fp8", place, true, curves))
    found = fit_curve(made, "fp8", place, curves)
    errors = np.log(predicted_s(made, "fp8", place, found, curves) / made.measured_s)
    assert np.abs(errors).max() < 0.03
    assert found.launch_s == pytest.approx(2e-5, rel=0.1)


def test_curves_survive_their_file(tmp_path):
    path = tmp_path / "mine.yaml"
    curves = KernelCurves({("gemm", "bfloat16"): {"H100": GemmCurve(launch_s=3e-6)}})
    path.write_text(curves_text(curves, "mine", "a test"), encoding="utf-8")
    assert load_curves(str(path)) == curves


def test_a_chip_without_rows_draws_from_its_family_then_its_vendor():
    slow, fast = GemmCurve(launch_s=4e-6), GemmCurve(launch_s=1e-6)
    curves = KernelCurves({("gemm", "bfloat16"): {"H100": slow, "H200": fast, "A100": fast}})
    assert curves.curve("gemm", "bfloat16", load_chip("H100")) == slow
    assert curves.curve("gemm", "bfloat16", load_chip("H800")).launch_s == pytest.approx(2e-6)
    assert curves.curve("gemm", "bfloat16", load_chip("A40")).launch_s == pytest.approx(1e-6)
    by_all = mean_curve([slow, fast, fast])
    assert curves.curve("gemm", "bfloat16", load_chip("B200")) == by_all
    assert curves.curve("gemm", "bfloat16", load_chip("MI300X")) == by_all
    assert curves.without("H100").curve("gemm", "bfloat16", load_chip("H100")) == mean_curve([fast])
    with pytest.raises(UnknownNameError, match="bfloat16"):
        curves.curve("gemm", "bfloat", load_chip("H100"))


def test_all_faults_of_a_table_are_told_at_once(tmp_path):
    path = table(tmp_path, f"{HEAD}H100,bfloat16,8,x,8,1\nH1000,fp7,8,8,8,0\n")
    with pytest.raises(SpecError) as told:
        read_timings(path)
    text = str(told.value)
    for part in ("line 2: n", "'x'", "'H1000'", "'fp7'", "line 3: latency_us"):
        assert part in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "the table has none"),
        (f"{HEAD}H100,bfloat16,8\n", "line 2: has 3 cells"),
        ("chip,dtype,m,n,latency_us\nH100,fp8,1,1,1\n", "as gemm it lacks k"),
    ],
)
def test_a_table_of_another_form_is_refused(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        read_timings(table(tmp_path, text))


@pytest.mark.slow
def test_own_times_are_compared_and_fitted(tmp_path, capsys):
    rows = io.StringIO(HEAD)
    rows.seek(0, io.SEEK_END)
    sizes = [2**n for n in range(3, 15)]
    for m in sizes:
        rows.write(f"H100 SXM,bfloat16,{m},4096,4096,{3 + m / 40}\n")
    path, out = table(tmp_path, rows.getvalue()), tmp_path / "mine.yaml"
    assert main(["validate", "--kernels", "--measurements", str(path)]) == 0
    assert "gemm" in capsys.readouterr().out
    assert main(["calibrate", str(path), "--kernels", "--out", str(out)]) == 0
    words = ["validate", "--kernels", "--measurements", str(path), "--calibration", str(out)]
    assert main([*words, "--json"]) == 0
    assert '"kernel": "gemm"' in capsys.readouterr().out


def test_the_page_has_every_kernel_and_the_columns_of_every_table(validation):
    text = markdown_of(validation.page(), "kernels")["kernels.md"]
    for kind in KINDS:
        assert f"| {kind} |" in text
    for name in KERNELS:
        assert f"| {name} |" in text
    data = plain_data(validation)
    assert len(data["variants"]) == len(validation.by_variant) > len(data["kernels"])
    assert len(text_of(validation.page(), detail=True).splitlines()) > len(data["variants"])


@pytest.mark.slow
def test_curves_of_kernels_have_a_page(tmp_path):
    path = tmp_path / "kernels.html"
    curves = mw.validate(kernels=True, report=str(path))
    page = curves.page()
    check_page(page)
    bars = values_of(charts_of(page)["Median error of each kernel and chip (rows)"])
    assert len(bars) == len(curves.by_chip)
    assert "<!DOCTYPE html>" in path.read_text("utf-8")


def test_without_the_papers_the_option_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("meshwright.base.registry._installed_entries", lambda: EntryPoints(()))
    for verb in ("validate", "calibrate"):
        assert main([verb, "--kernels"]) == 2
        assert "pip install meshwright-papers" in capsys.readouterr().err
    assert main(["show", "schema", "kernel-validation"]) == 2
