"""The verbs in Python: the options of the command line by keyword, and what they refuse."""

import json

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError, UnknownNameError
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cli.main import main
from meshwright.graph.parameters import count_parameters
from meshwright.train import plan_file as files

QUESTION = {"on": "8xH100", "seq": "1k", "global_batch": 64}
WORDS = ["gpt2-medium", "--on", "8xH100", "--seq", "1k", "--global-batch", "64"]


@pytest.fixture(scope="module")
def found():
    return mw.plan("gpt2-medium", **QUESTION, tp=[1, 2], recompute="none")


def as_printed(capsys, *words):
    """Return the JSON of a command, without what two runs differ in."""
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_plan_is_that_of_the_command_line(found, capsys):
    data = as_printed(capsys, "plan", *WORDS, "--tp", "1,2", "--recompute", "none")
    ours = json.loads(files.to_json(found))
    for plan in (data, ours):
        plan.pop("command")
        plan["coverage"].pop("elapsed_s")
    assert data == ours
    assert found.command.startswith("mw.plan('gpt2-medium', on='8xH100'")


def test_an_estimate_is_that_of_the_command_line(capsys):
    data = as_printed(capsys, "estimate", *WORDS, "--tp", "2", "--sp", "off", "--zero", "1")
    ours = json.loads(files.to_json(mw.estimate("gpt2-medium", **QUESTION, tp=2, sp=False, zero=1)))
    assert data.pop("command") != ours.pop("command")
    assert data == ours


def test_declarations_stand_for_names():
    model, system = load_model("gpt2-medium"), load_system("8xH100")
    named = mw.fit("gpt2-medium", **QUESTION)
    declared = mw.fit(model, on=system, seq=1024, global_batch="64")
    assert declared.best == named.best
    with pytest.raises(SpecError, match="found a SystemSpec, expected a name or a file"):
        mw.fit(system, on=system, seq=1024, global_batch=64)


def test_files_are_written_and_read_by_string_paths(found, tmp_path):
    path = str(tmp_path / "plan.json")
    written = mw.plan("gpt2-medium", **QUESTION, zero=1, pp=1, cp=1, out=path)
    assert mw.load(path).best == written.best
    left = mw.plan(from_=path, without="1")
    assert (left.num_lost, left.plan.best.text[:20]) == (1, "tp1 pp1 cp1 dp4 mbs1")
    # every device has all weights; of 12 bytes of optimizer state a parameter it held an eighth
    parameters = count_parameters(written.model).num_params
    assert left.moved_bytes_per_device == pytest.approx(12 * parameters * (1 / 4 - 1 / 8), rel=1e-3)
    assert mw.export(path, "torch", out=str(tmp_path))
    assert mw.export(written, "megatron", print=True)
    assert mw.explain(written).shares == mw.explain(path).shares


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tpp": [2]}, "unknown option of plan 'tpp'; did you mean tp"),
        ({"globalbatch": 2}, "did you mean global_batch"),
        ({"recompute": "ful"}, "did you mean full"),
        ({"tp": "two"}, "--tp: found 'two', expected a whole number"),
        ({"on": "8xH10"}, "did you mean H100"),
        ({"pareto": "yes"}, "expected True or False"),
        ({"context": "1k"}, "unknown option of plan 'context'"),
        ({"model": "gpt2-xl"}, "is given twice"),
    ],
)
def test_wrong_names_and_values_are_refused_with_the_nearest(options, message):
    with pytest.raises((SpecError, UnknownNameError), match=message):
        mw.plan("gpt2-medium", **(QUESTION | options))


def test_what_is_needed_is_said():
    with pytest.raises(SpecError, match="on: is needed"):
        mw.estimate("gpt2-medium", tp=2)
    with pytest.raises(SpecError, match="at most 1"):
        mw.plan("gpt2-medium", "8xH100")


def test_nothing_fits_is_an_error_of_its_own():
    with pytest.raises(InfeasibleError, match="the leanest of those that devices would hold"):
        mw.plan("llama3-405b", on="8xH100", seq="8k", global_batch=8)


def test_serving_has_a_verb():
    found = mw.serve("llama3-8b", on="8xH100", batch=64, context="1k")
    assert found.is_decode
    stated = mw.estimate("llama3-8b", on="8xH100", batch=64, context="1k", tp=8)
    assert stated.best.strategy.tp == 8
    assert not stated.runners_up
    with pytest.raises(SpecError, match=r"--context: is needed .*or --prompt"):
        mw.serve("llama3-8b", on="8xH100", batch=64)
    with pytest.raises(UnknownNameError, match="unknown option of serve 'global_batch'"):
        mw.serve("llama3-8b", on="8xH100", batch=64, context="1k", global_batch=2)


def test_other_verbs_return_their_answers():
    assert mw.check("gpt2-medium", **QUESTION, tp=2).is_legal
    assert mw.check("gpt2-medium", **QUESTION, tp=3).faults[0].fix
    names = [e.recipe for e in mw.compare("gpt2-medium", **QUESTION, against="fsdp").entries]
    assert names == ["meshwright", "fsdp"]
    assert mw.partition("llama3-70b", on="4xWSE-3", seq="4k").fits
    assert mw.fuse("fft-64x64", on="SN10").partitions


def test_load_finds_models_and_systems():
    assert mw.load("gpt2-medium") == load_model("gpt2-medium")
    assert mw.load("64xH100") == load_system("64xH100")
    with pytest.raises(UnknownNameError):
        mw.load("gpt2-medum")


def test_answers_have_short_names(found):
    assert repr(found).startswith("<Plan gpt2-355m on 8xH100: ")
    assert len(repr(found)) < 300
    assert mw.__version__
    assert repr(mw.plan) == "<meshwright.plan>"
    assert "global_batch : int, optional\n    sequences in a step" in mw.plan.__doc__


RUN = {"on": "2xH100", "seq": 1024, "global_batch": 64}


@pytest.fixture(scope="module")
def plain():
    return mw.plan("gpt2-355m", **RUN, pp=1, tp="1,2")


@pytest.mark.parametrize("tp", [range(1, 3), {1, 2}, np.array([1, 2]), [np.int64(1), 2.0]])
def test_numbers_may_come_in_any_list(tp, plain):
    numbers = {"on": "2xH100", "seq": np.int64(1024), "global_batch": np.float64(64)}
    found = mw.plan("gpt2-355m", **numbers, pp=1, tp=tp)
    assert [found.best, *found.runners_up] == [plain.best, *plain.runners_up]


@pytest.mark.parametrize(
    ("name", "value"),
    [("tp", {"a": 1}), ("tp", (n for n in (1, 2))), ("seq", object()), ("out", b"plan.json"),
     ("out", object()), ("precision", object()), ("optimizer", object), ("top", print)],
)  # fmt: skip
def test_an_object_that_is_no_value_is_told(name, value):
    with pytest.raises(SpecError, match=rf"^{name}: found a .*, expected text, a number or a list"):
        mw.plan("gpt2-355m", **RUN | {name: value})


def test_a_step_over_time_is_that_of_a_plan_or_its_file(found, tmp_path):
    path = tmp_path / "plan.json"
    files.save(found, path)
    played = mw.timeline(found)
    assert mw.timeline(path).rows() == mw.timeline(str(path)).rows() == played.rows()
    with pytest.raises(SpecError, match="plan: found a int, expected a name or a file or a Plan"):
        mw.timeline(3)


@pytest.mark.parametrize("path", [None, 3, b"plan.json", object()])
def test_what_is_no_path_is_not_loaded(path):
    with pytest.raises(SpecError, match="expected a path or a name"):
        mw.load(path)


@pytest.mark.parametrize("name", sorted(files.LEAST))
def test_a_file_with_a_number_below_its_least_is_refused(found, tmp_path, name):
    path = tmp_path / "plan.json"
    data = json.loads(files.to_json(found))
    data["best"]["plan_options"][name] = files.LEAST[name] - 1
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(mw.MeshwrightError, match=f"{name}: found .*, expected"):
        mw.explain(str(path))
