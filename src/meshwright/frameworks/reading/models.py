"""Models that files describe, found in the catalog."""

from __future__ import annotations

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.catalog.config_json import dims_of
from meshwright.catalog.models import load_model, model_entry, model_names, read_config
from meshwright.frameworks.reading.given import Given
from meshwright.spec.model import ModelSpec

_SIZES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Rows of tokenizers that stand for one vocabulary.

Source: GPT-2, Radford et al. 2019, section 2.3; Llama 2, arXiv 2307.09288, section 2.2.
"""


def catalog_twin(model: ModelSpec) -> ModelSpec | None:
    """Return the model of the catalog with the same dims; the last of the shortest names."""
    wanted = dims_of(model)
    found = []
    for name in model_names():
        config = model_entry(name).config
        numbers = set(_numbers(config))
        if model.hidden_size in numbers and model.num_layers in numbers:
            other = load_model(name)
            if dims_of(other) == wanted:
                found.append(other)
    return min(sorted(found, key=lambda one: one.name, reverse=True),
               key=lambda one: len(one.name), default=None)  # fmt: skip


def _numbers(config: object) -> list[int]:
    if isinstance(config, dict) or hasattr(config, "values"):
        return [number for value in config.values() for number in _numbers(value)]
    return [config] if isinstance(config, int) else []


def stated_model(given: Given) -> ModelSpec | None:
    """Return the model of a ``config.json`` in the table ``MODEL``, or its twin of the catalog.

    None where the table is wrong; the faults are kept.
    """
    config = {
        name.removeprefix("MODEL."): given.value(name) for name in given if name[:6] == "MODEL."
    }
    try:
        model = read_config(config, origin="MODEL")
    except SpecError as error:
        given.faults += error.faults
        return None
    return catalog_twin(model) or model


def known_model(name: str) -> ModelSpec | None:
    """Return a model of the catalog by the name of a checkpoint, or by the last part of a path."""
    for text in (name, name.rstrip("/").rsplit("/", 1)[-1]):
        try:
            return load_model(text)
        except (MeshwrightError, OSError, ValueError):
            continue
    return None


def tokenizer_size(kind: str, source: str) -> int | None:
    """Return the rows of a tokenizer's vocabulary, by its kind or by the model it belongs to."""
    if kind in _SIZES:
        return _SIZES[kind]
    model = known_model(source) if source else None
    return model.vocab_size if model else None
