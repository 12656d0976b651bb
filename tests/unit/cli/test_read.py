"""``read``, and the commands that take programs directly."""

import json

import pytest

import meshwright as mw
from meshwright.cli.main import main

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = """
import torch
from torch import nn


def layers(batch=2):
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Linear(256, 64))
    return body, torch.zeros(batch, 32, 64)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return f"{path}:layers"


def answer(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_program_is_read_and_written_as_a_file(capsys, tmp_path, program) -> None:
    path = tmp_path / "layers.yaml"
    assert (
        main(["read", program, "--dim", "batch=8", "--precision", "bf16", "--out", str(path)]) == 0
    )
    screen = capsys.readouterr().out
    assert "16.8 MFLOP" in screen  # 2 x 8 x 32 x 2 x 64 x 256
    assert "33,088 parameters, words of 2 bytes" in screen
    assert "input[batch 8, tokens 32, features 64]" in screen.replace("input.", "")
    direct = answer(capsys, "read", program, "--dim", "batch=8", "--precision", "bf16")
    assert answer(capsys, "show", "graph", path) == direct
    assert direct == answer(
        capsys, "show", "graph", program, "--dim", "batch=8", "--precision", "bf16"
    )


@pytest.mark.slow
def test_programs_are_planned_and_fused_directly(capsys, program) -> None:
    shared = ("--precision", "bf16", "--training", "--dim", "batch=8")
    planned = answer(capsys, "map", program, "--on", "8xH100", *shared)
    graph = mw.read(program, dim={"batch": 8}, precision="bf16", training=True)
    assert planned["graph"] == graph.name
    assert planned["best"]["kernels"][0]["name"] == graph.kernels[0].name
    fused = answer(capsys, "fuse", program, "--on", "H100", *shared)
    held = {kernel["name"] for part in fused["partitions"] for kernel in part["kernels"]}
    assert held == graph.number.keys()


def test_half_the_word_halves_the_bytes_and_not_the_work(capsys, program) -> None:
    wide, narrow = (answer(capsys, "read", program, *w) for w in ((), ("--precision", "fp8")))
    assert wide["flops"] == narrow["flops"]
    for first, second in zip(wide["kernels"], narrow["kernels"], strict=True):
        assert first["written_bytes"] == 4 * second["written_bytes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["read", "llama3-8b"], "llama3-8b: there is no such file"),
        (["read", "nets.py:layers", "--dim", "batch"], "--dim: found 'batch' (such as batch=8)"),
        (["read", "nets.py:layers", "--dim", "batch=none"], "--dim batch: found 'none'"),
        (["read", "nets.py:layers", "--precision", "bf61"], "--precision: found 'bf61'"),
    ],
)
def test_bad_options_are_named(capsys, words, message) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_python_file_without_a_function_is_refused_as_that(capsys, program) -> None:
    path = program.rpartition(":")[0]
    assert main(["fuse", path, "--on", "SN10"]) == 2
    message = f"{path}: names no function that makes a program (such as {path}:function)"
    assert message in capsys.readouterr().err
