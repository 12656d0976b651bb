"""What the explorer asks: options of the table, a start from a plan or a question."""

import pytest

import meshwright as mw
from meshwright.ask.declared import declared
from meshwright.ask.questions import COMMANDS, Estimate, Explore, Plan
from meshwright.base.errors import SpecError
from meshwright.explore.question import (
    EXAMPLE,
    FIRST,
    OPTIONS,
    Start,
    catalog,
    question_of,
    start_of,
    start_of_plan,
)
from meshwright.spec.model import ModelSpec

QUESTION = {"on": "8xH100", "seq": "8k", "global_batch": 64}


@pytest.fixture(scope="module")
def found():
    return mw.estimate("llama3-8b", **QUESTION, zero=3, framework="fsdp", tokens="1T")


def start(*arguments: str, **options: object) -> Start:
    return start_of(Explore.ask({**options, "model": (*arguments, None)[0]}))


def test_every_option_is_one_of_both_verbs():
    for verb in ("plan", "estimate", "explore"):
        assert set(OPTIONS) <= COMMANDS[verb].options.keys()
    assert set(FIRST) <= set(OPTIONS)


def test_the_page_shows_each_option_once_with_its_help():
    shown = catalog(Start({}))["options"]
    assert sorted(entry["name"] for entry in shown) == sorted(OPTIONS)
    assert [entry["name"] for entry in shown if entry["is_first"]] == list(FIRST)
    assert all(entry["help"] and entry["label"] for entry in shown)


def test_proposed_names_can_be_asked():
    shown = {entry["name"]: entry["names"] for entry in catalog(Start({}))["options"]}
    assert "llama3-70b" in shown["model"]
    for on in shown["on"][:: len(shown["on"]) // 12]:
        assert mw.load(on).num_devices > 0


def test_without_a_question_an_example_is_asked():
    assert start().options == EXAMPLE


def test_a_question_is_taken_over():
    asked = start("llama3-8b", on="8xH100", seq="8k", global_batch=64, tp=2, dropout=True)
    expected = {"model": "llama3-8b", "on": "8xH100", "seq": "8k", "global_batch": "64",
                "tp": "2", "dropout": "on"}  # fmt: skip
    assert asked.options == expected


def test_a_plan_file_asks_what_it_answered(found, tmp_path):
    from meshwright.train.plan_file import save

    save(found, tmp_path / "plan.json")
    begun = start(str(tmp_path / "plan.json"))
    again = declared(question_of(Estimate, begun.options, begun))
    assert (again.model, again.system) == (found.model, found.system)
    assert again.workload == found.workload
    assert begun.notes == ()


def test_a_plan_of_a_model_that_no_catalog_has_is_asked_by_its_name(found):
    model = ModelSpec.model_validate(found.model.model_dump() | {"name": "<img onerror>"})
    begun = start_of_plan(type(found)(**{**vars(found), "model": model}))
    assert begun.options["model"] == "<img onerror>"
    assert declared(question_of(Estimate, begun.options, begun)).model == model
    shown = {entry["name"]: entry["names"] for entry in catalog(begun)["options"]}
    assert shown["model"][0] == "<img onerror>"


def test_software_that_options_cannot_say_is_noted(found):
    software = found.workload.software.model_copy(
        update={"compiled": not found.workload.software.compiled}
    )
    workload = found.workload.model_copy(update={"software": software})
    begun = start_of_plan(type(found)(**{**vars(found), "workload": workload}))
    assert "software" in begun.notes[0]


def test_options_beside_a_plan_file_are_refused():
    with pytest.raises(SpecError, match="--tp: the plan file states this"):
        start("plan.json", tp=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"out": "plan.json"}, "out: is not an option"), ({"tp": 2}, "--tp: found a int")],
)
def test_what_the_page_cannot_ask_is_refused(options, complaint):
    with pytest.raises(SpecError, match=complaint):
        question_of(Plan, options, Start({}))


def test_the_command_line_of_a_question_asks_the_same():
    options = {"model": "a model", "global_batch": "64", "dropout": "on"}
    expected = "meshwright plan 'a model' --global-batch 64 --with dropout"
    assert Plan.written("plan", options) == expected
    assert question_of(Plan, options, Start({})).dropout
