"""``show chip``, ``show system``, ``show optimizer``: names, one entry, JSON, wrong names."""

import json

import pytest

from meshwright.cli.main import main


def output(capsys, *words):
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "name"),
    [(["chip"], "H100"), (["system"], "wafer-6x8"), (["optimizer"], "megatron-adam")],
)
def test_without_a_name_the_names(capsys, words, name):
    assert name in output(capsys, *words).splitlines()
    assert name in json.loads(output(capsys, *words, "--json"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["chip", "h100"], "memories[hbm].bandwidth 3.35 TB/s accelerators"),
        (["system", "64xH100"], "levels[infiniband].bandwidth"),
        (["optimizer", "temp-12"], "state_bytes_per_param 8 B/parameter temp"),
    ],
)
def test_one_entry(capsys, words, line):
    text = output(capsys, *words)
    assert any(" ".join(shown.split()).startswith(line) for shown in text.splitlines())
    assert max(map(len, text.splitlines())) <= 100
    assert json.loads(output(capsys, *words, "--json"))["values"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["chip", "H1000"], "did you mean H100"),
        (["system", "64 H100"], "did you mean 64xH100"),
        (["optimizer", "megatron"], "megatron-adam"),
        (["system", "nothing.yaml"], "no such file"),
    ],
)
def test_wrong_names_are_bad_input(capsys, words, part):
    assert main(["show", *words]) == 2
    assert part in capsys.readouterr().err
