"""``map``: any computation on a system, as text and as data."""

import json

import pytest

from meshwright.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_answers")


def told(capsys, *words):
    status = main(["map", *words])
    return status, capsys.readouterr()


def test_a_transform_is_told_with_its_three_exchanges(capsys):
    status, out = told(capsys, "fft-4096x4096", "--on", "8xA100", "--detail")
    assert status == 0
    assert "tp8 pp1 dp1" in out.out
    assert out.out.count("all-to-all  32.0 MiB") == 3
    assert "proven: gap 0.0%" in out.out
    assert max(map(len, out.out.splitlines())) <= 100


def test_data_has_the_parts_of_the_step_and_the_layout_of_each_kernel(capsys):
    words = (
        "llama3-8b",
        "--on",
        "8xA100",
        "--passes",
        "8",
        "--json",
        "--seq",
        "1k",
    )
    status, out = told(capsys, *words)
    assert status == 0
    data = json.loads(out.out)
    best = data["best"]
    assert sum(best["parts_s"].values()) == pytest.approx(best["step_s"])
    assert best["tp"] * best["pp"] * best["dp"] == 8
    assert data["lower_bound_s"] <= best["step_s"]
    assert {kernel["writes"].split()[0] for kernel in best["kernels"]} <= {"by", "whole", "partial"}
    assert data["num_priced"] + sum(data["refused"].values()) == 10


def test_training_takes_an_optimizer_and_degrees_can_be_fixed(capsys):
    words = ("llama3-8b", "--on", "8xA100", "--passes", "64", "--training")
    status, out = told(capsys, *words, "--tp", "2,4", "--dp", "2", "--seq", "2k", "--detail")
    assert status == 0
    assert "gradient sums" in out.out
    assert "dp2" in out.out.splitlines()[1] + out.out.splitlines()[2]


def test_a_graph_that_is_cut_shows_its_stages(capsys):
    words = ("fft-4096x4096", "--on", "8xA100", "--pp", "2")
    status, out = told(capsys, *words)
    assert status == 0
    assert "kernels" in out.out
    assert "load" in out.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("dlrm-a",), "--on: is needed"),
        (("dlrm-a", "--on", "8xA100", "--tp", "x"), "--tp: found 'x'"),
        (("nothing", "--on", "8xA100"), "unknown graph 'nothing'"),
        (("nothing", "--on", "8xA10"), "2 faults"),
        (("dlrm-a", "--on", "8xA100", "--seq", "4k"), "dlrm-a states its own sizes"),
        (("hpl-4096", "--on", "8xA100"), "such as hpl-1024x128"),
        (("hpl-4096x1024", "--on", "8xSN10"), "SN10 has no rate for fp64"),
        (("dlrm-a", "--on", "8xA100", "--optimizer", "megatron-adam"), "--optimizer"),
    ],
)
def test_what_cannot_be_asked(capsys, words, complaint):
    status, out = told(capsys, *words)
    assert status == 2
    assert complaint in out.err


def test_degrees_that_make_up_other_devices_are_said_to_be_that(capsys):
    status, out = told(capsys, "fft-64x64", "--on", "8xA100", "--tp", "3")
    assert status == 3
    assert "no allowed tp x pp x dp makes up 8 devices" in out.err


def test_what_does_not_fit_says_so(capsys):
    status, out = told(capsys, "dlrm-a", "--on", "8xA100")
    assert status == 3
    assert "memory" in out.err
