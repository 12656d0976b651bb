"""Models by catalog name, Hugging Face id, file and folder; and what goes wrong with each."""

import json

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.models import load_model, model_entry, model_names


@pytest.mark.parametrize("name", ["qwen3-32b", "QWEN3-32B", "Qwen/Qwen3-32B", "qwen/qwen3-32b"])
def test_a_model_is_found_by_name_or_hub_id_in_any_case(name):
    assert load_model(name).name == "qwen3-32b"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama3-405b", "llama3.1-405b"),
        ("megatron-76b", "gpt3-76b"),
        ("gpt2", "gpt2-124m"),
        ("grok-1-314b", "grok-1"),
    ],
)
def test_an_alias_means_its_model(alias, name):
    assert load_model(alias) is load_model(name)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("llama3-70", "llama3-70b"), ("qwen3-32", "qwen3-32b"), ("gpt3-175", "gpt3-175b")],
)
def test_a_wrong_name_lists_the_near_ones(wrong, near):
    with pytest.raises(UnknownNameError, match=f"did you mean .*{near}"):
        load_model(wrong)


def written(folder, text):
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_and_its_folder_are_the_same_model(tmp_path):
    file = written(tmp_path / "mine", json.dumps(model_entry("qwen3-8b").config))
    by_file, by_folder = load_model(str(file)), load_model(str(file.parent))
    assert by_file == by_folder
    assert by_file.name == "mine"
    assert by_file.layer_kinds == load_model("qwen3-8b").layer_kinds


def test_a_fault_in_a_file_names_file_and_field(tmp_path):
    config = {**model_entry("qwen3-8b").config, "hidden_size": "wide"}
    file = written(tmp_path, json.dumps(config))
    with pytest.raises(SpecError, match=r"config\.json: hidden_size: found 'wide'"):
        load_model(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[]", "expected a configuration"),
        ('{"a": 1, "a": 2}', "a: is given twice"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not JSON"),
        ("[" * 100_000, "cannot be read"),
        ("1" * 5_000, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        load_model(written(tmp_path, text))


def test_a_folder_without_a_configuration_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(SpecError, match="no such file"):
        load_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", ["", "\0", "a" * 5_000])
def test_names_that_no_file_can_have_are_unknown(name):
    with pytest.raises(UnknownNameError):
        load_model(name)


def test_the_models_of_the_published_studies_are_there():
    table = {"gpt3-6.7b", "llama2-7b", "llama3-70b", "gpt3-76b", "gpt3-175b", "opt-175b"}
    assert table | {"grok-1", "gpt3-504b"} <= set(model_names())


def test_a_file_in_the_form_of_the_catalog_keeps_its_name_and_source(tmp_path):
    entry = {
        "name": "mine",
        "source": {"title": "our own notes"},
        "config": dict(model_entry("qwen3-8b").config),
    }
    model = load_model(written(tmp_path, json.dumps(entry)))
    assert (model.name, model.source) == ("mine", "our own notes")
    with pytest.raises(SpecError, match=r"source\.title"):
        load_model(written(tmp_path, json.dumps({**entry, "source": {}})))
