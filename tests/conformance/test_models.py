"""Every model of the catalog, and every family: one test each, without further edits."""

import pkgutil
from pathlib import Path

import pytest
from oracles.closed_parameters import closed_parameters
from oracles.graph_parameters import graph_parameters
from sampled import one_in

from meshwright.catalog.huggingface import families as family_files
from meshwright.catalog.huggingface.family import families
from meshwright.catalog.models import known_model_types, load_model, model_entry, model_names
from meshwright.graph.parameters import (
    PARTS,
    count_parameters,
    kv_cache_bytes_per_token,
    recurrent_state_bytes,
    windowed_kv_cache_bytes_per_token,
)
from meshwright.graph.transformer import build_graph
from meshwright.spec.model import ModelSpec


@pytest.fixture(params=one_in(4, model_names()))
def name(request):
    return request.param


def test_entry_has_a_source_and_its_own_name(name):
    entry = model_entry(name)
    assert entry.name == name == name.lower()
    assert len(entry.source.title) > 10
    assert name not in entry.aliases
    assert load_model(name).source == entry.source.title


def test_counts_are_whole_and_positive(name):
    counts = count_parameters(load_model(name))
    assert 0 < counts.num_active_params <= counts.num_params
    assert sum(counts.parts.values()) == counts.num_params
    assert all(part >= 0 for part in counts.parts.values())
    assert sum(counts.layer_counts) == load_model(name).num_layers


def test_experts_alone_make_a_difference_between_all_and_active(name):
    model, counts = load_model(name), count_parameters(load_model(name))
    has_experts = any(kind.experts for kind in model.layer_kinds)
    assert (counts.num_active_params < counts.num_params) == has_experts


def test_cache_is_positive_and_its_windowed_part_no_larger(name):
    model = load_model(name)
    whole = kv_cache_bytes_per_token(model, 2.0)
    assert 0 <= windowed_kv_cache_bytes_per_token(model, 2.0) <= whole
    assert (whole > 0) == bool(model.attentions)
    assert (recurrent_state_bytes(model, 2.0) > 0) == bool(model.recurrences)
    assert kv_cache_bytes_per_token(model, 1.0) == whole / 2


def test_operators_hold_the_parameters_of_the_closed_form(name):
    model = load_model(name)
    parts = count_parameters(model).parts
    assert {part: parts[part] for part in PARTS} == dict.fromkeys(PARTS, 0) | closed_parameters(
        model
    )
    assert graph_parameters(build_graph(model)) == sum(parts.values())


def test_declaration_survives_a_round_trip(name):
    model = load_model(name)
    assert ModelSpec.model_validate_json(model.model_dump_json()) == model


def test_aliases_lead_to_the_model(name):
    assert all(load_model(alias) is load_model(name) for alias in model_entry(name).aliases)


def test_the_head_is_stated(name):
    lines = load_model(name).conventions
    assert sum("head:" in line for line in lines) == 1


def _wrappers(name):
    """Return the models of several media that may hold a text model."""
    inner = name.removesuffix("_model").removesuffix("_text")
    return inner, f"{inner}_thinker"


SMALL = (Path(__file__).parents[1] / "parity" / "test_transformers_families.py").read_text("utf-8")
"""Families built small beside transformers."""
PAGE = (Path(__file__).parents[2] / "docs" / "results" / "model_families.md").read_text("utf-8")
"""Families with the parameters of transformers by the defaults of their class."""


def test_every_family_file_registers_and_every_type_occurs_in_the_catalog_or_is_built_small():
    types = {model_entry(name).config["model_type"] for name in model_names()}
    nested = {
        model_entry(name).config["text_config"]["model_type"]
        for name in model_names()
        if "text_config" in model_entry(name).config
    }
    others = set(known_model_types()) - types - nested
    equal = {line.split()[1] for line in PAGE.splitlines() if line.endswith("| equal |")}
    left = {name for name in others if f'"{name.removesuffix("_text")}' not in SMALL}
    assert {name for name in left if not equal & {name, *_wrappers(name)}} == set()
    modules = {families[entry].read.__module__.rsplit(".", 1)[1] for entry in families}
    assert modules == {module.name for module in pkgutil.iter_modules(family_files.__path__)}
