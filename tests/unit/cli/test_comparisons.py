"""compare: screens, JSON, and what is wrong."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.train.measured.factors import PLAN_ERROR

pytestmark = pytest.mark.usefixtures("kept_answers")

QUESTION = ["gpt2-medium", "--on", "4xH100", "--seq", "1024", "--global-batch", "64", "--cp", "1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compare", *QUESTION, "--against", "fdsp"], "did you mean fsdp"),
        (["compare", *QUESTION, "--tp", "3"], "tp"),
        (["compare", "gpt2-medium", "--on", "8xH100"], "seq"),
    ],
)
def test_what_is_wrong_is_named(capsys, words, expected):
    assert main(words) == 2
    assert expected in capsys.readouterr().err


def test_a_comparison_is_narrow_and_starts_with_ours(capsys):
    assert main(["compare", *QUESTION]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    first = next(line for line in lines if "meshwright" in line or "megatron-1" in line)
    assert first.split()[0] == "meshwright"
    assert len(lines) <= 24


def test_a_comparison_as_json(capsys):
    assert main(["compare", *QUESTION, "--against", "fsdp,megatron-1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    names = [entry["recipe"] for entry in data["entries"]]
    assert names == ["meshwright", "fsdp", "megatron-1"]
    # Within the error of plans against each other the one with more room leads.
    least = 1.0 / (1.0 + PLAN_ERROR)
    assert all(entry["speedup_of_ours"] >= least for entry in data["entries"])


def test_recipes_that_nothing_fits_say_so(capsys):
    tight = ["llama3-405b", "--on", "8xH100", "--seq", "1024", "--global-batch", "8"]
    assert main(["compare", *tight, "--against", "fsdp"]) == 3
    assert "none" in capsys.readouterr().out
