"""Models written as config.json, and as keys of MaxText, read as the same models."""

import pytest

from meshwright.catalog.config_json import config_of, dims_of, name_of
from meshwright.catalog.maxtext_models import (
    MODELS,
    config_of_keys,
    model_keys,
    model_refusals,
)
from meshwright.catalog.models import load_model, model_names, read_config

WRITTEN = [name for name in model_names() if config_of(load_model(name))]


def test_most_of_the_catalog_is_written():
    families = {load_model(name).architecture for name in WRITTEN}
    assert len(families) == 29
    assert config_of(load_model("falcon-40b")) is None


@pytest.mark.parametrize("name", WRITTEN)
def test_a_model_comes_back(name):
    model = load_model(name)
    config = config_of(model)
    assert config is not None
    assert dims_of(read_config(config)) == dims_of(model)
    keys = model_keys(model) if not list(model_refusals(model)) else {}
    if keys.get("model_name") == "default":
        values = {key: {"true": True, "false": False}.get(word, word) for key, word in keys.items()}
        assert dims_of(read_config(config_of_keys(values))) == dims_of(model)


def test_a_shipped_name_is_of_exactly_that_model():
    model = load_model("llama3.1-8b")
    assert name_of(model, MODELS) in ("llama3-8b", "llama3.1-8b")
    assert name_of(model.model_copy(update={"vocab_size": 128257}), MODELS) is None
