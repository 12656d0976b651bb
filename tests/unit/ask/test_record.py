"""A question as a record: values are read once, where they enter, and all faults are told."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.ask.questions import COMMANDS, Estimate, Map, Plan, Serve, Strategy, Sweep
from meshwright.ask.record import Question
from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.cli.main import main
from meshwright.spec.choices import Recompute


def test_text_and_numbers_become_the_same_values():
    text = {"seq": "8k", "tp": "1,2", "zero": "3", "sp": "off", "max_power": "15kW", "rent": "2.5",
            "recompute": "full", "stage_layers": "7+8*2", "within": "30d"}  # fmt: skip
    typed = {"seq": np.int64(8192), "tp": [1, 2.0], "zero": 3, "sp": False, "max_power": 15000,
             "rent": 2.5, "recompute": Recompute.FULL, "stage_layers": "7+8+8",
             "within": 30 * 86400.0}  # fmt: skip
    one, other = Plan.ask(text), Plan.ask(typed)
    assert [getattr(one, name) for name in text] == [getattr(other, name) for name in text]
    assert (one.seq, one.tp, one.zero, one.sp) == (8192, (1, 2), (3,), (False,))
    assert one.recompute == (Recompute.FULL,)
    assert one.stage_layers == ((7, 8, 8),)
    assert one.max_power == 15000.0
    assert one.top == 5
    assert "top" not in one.stated


def test_a_record_is_frozen_and_another_one_keeps_the_rest():
    asked = Estimate.ask({"seq": 1024, "tp": 2})
    with pytest.raises(AttributeError, match="frozen"):
        asked.seq = 2048
    other = asked.but(seq="2k", tp=None)
    assert (other.seq, other.tp, asked.seq, asked.tp) == (2048, None, 1024, (2,))
    assert other.stated.keys() == {"seq"}
    assert asked.to(Strategy).tp == (2,)


def test_all_faults_wait_for_the_verb():
    asked = Plan.ask({"seq": "x", "tp": 0, "gradient_dtype": "fp8", "pareto": "yes"})
    with pytest.raises(SpecError) as told:
        asked.reading().done()
    assert [fault.path for fault in told.value.faults] == [
        "--seq", "--tp", "--with gradient_dtype", "--pareto",
    ]  # fmt: skip
    with pytest.raises(SpecError, match="file: is needed"):
        Sweep.ask({})
    with pytest.raises(UnknownNameError, match="unknown option of plan 'tpp'; did you mean tp"):
        Plan.ask({"tpp": 2})


def test_a_file_to_write_is_checked_when_it_is_named(tmp_path):
    asked = Map.ask({"graph": "fft-64x64", "report": str(tmp_path / "x.html")})
    assert asked.report == tmp_path / "x.html"
    for name, message in (("x.txt", "does not end in .html"), ("no/x.html", "there is no folder")):
        with pytest.raises(SpecError, match=message):
            Map.ask({"graph": "g", "report": str(Path(tmp_path) / name)}).reading().done()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_kind_and_help(name):
    for option in COMMANDS[name].options.values():
        assert option.help
        assert option.kind.name
    assert COMMANDS[name].about()


def test_rare_options_are_stated_by_name(capsys):
    words = ["estimate", "gpt2-medium", "--on", "8xH100", "--seq", "1k", "--global-batch", "64"]
    assert main([*words, "--with", "dropout", "--with", "document-length=512", "--json"]) == 0
    workload = json.loads(capsys.readouterr().out)["workload"]
    assert workload["software"]["dropout"] is True
    assert workload["document_length"] == 512
    assert main(["plan", "--with", "help"]) == 0
    assert "dropout\n    dropout, with stored masks" in capsys.readouterr().out
    assert main([*words, "--with", "document_lenght=512"]) == 2
    assert "did you mean document_length" in capsys.readouterr().err
    assert main([*words, "--with", "document_length"]) == 2
    assert "--with document_length: needs a value" in capsys.readouterr().err


def test_a_notebook_shows_options_with_their_types():
    assert "global_batch: int = None" in str(mw.plan.__signature__)
    assert "max_latency : float [s], optional\n    limit of TPOT or TTFT" in mw.serve.__doc__
    assert issubclass(Serve, Question)


def test_a_count_out_of_range_is_told_with_the_range():
    with pytest.raises(SpecError, match=r"found '0', expected .* above 0"):
        Plan.ask({"global_batch": "0"}).reading().done()
