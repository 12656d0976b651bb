"""From a configuration to a model: find the family, read it, or say exactly why not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.registry import import_siblings
from meshwright.catalog.huggingface import families as family_files
from meshwright.catalog.huggingface.family import Family, families
from meshwright.catalog.huggingface.fields import FIXED, Fields, is_harmless, shown
from meshwright.spec.model import ModelSpec

_TEXT_ONLY = "text only: the vision tower and its projector are not counted"


def read_config(
    config: Mapping[str, Any], *, name: str = "", origin: str = "", source: str = ""
) -> ModelSpec:
    """Return the model that a Hugging Face configuration describes.

    Parameters
    ----------
    config
        The content of ``config.json``.
    name
        Name of the model in reports; the family where it is empty.
    origin
        Where the configuration was read, for messages.
    source
        The public document of its values.

    Raises
    ------
    SpecError
        With every fault: unknown architecture, missing, unknown, wrong or contradictory fields.
    """
    if not isinstance(config, Mapping):
        raise SpecError(
            Fault("", f"found {shown(config)}; expected a configuration"), origin=origin
        )
    family = _find_family(config, origin)
    fields, notes = _open_fields(config, family, origin)
    fields.finish()
    try:
        model = family.read(fields)
    except ValidationError as error:
        faults = [Fault(".".join(map(str, e["loc"])), str(e["msg"])) for e in error.errors()]
        raise SpecError(faults, origin=origin) from error
    model_type = config.get("model_type")
    return model.model_copy(
        update={
            "name": name or model.name,
            "architecture": _first_architecture(config) or str(model_type),
            "conventions": (*notes, *model.conventions),
            "source": source,
        }
    )


def _open_fields(
    config: Mapping[str, Any], family: Family, origin: str
) -> tuple[Fields, tuple[str, ...]]:
    """Return the checked fields of the text model, and what is left out of it."""
    label = config.get("model_type") or _first_architecture(config)
    by_architecture = not config.get("model_type") and family.nested_types
    if label not in family.nested_types and not (by_architecture and "text_config" in config):
        fields = Fields(
            config, family.keys, family=str(label), origin=origin, harmless=family.harmless
        )
        _check_architecture(config, family, fields)
        return fields, ()
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        found = "missing" if inner is None else f"found {shown(inner)}"
        raise SpecError(
            Fault("text_config", f"{found}; {label} needs a nested section"), origin=origin
        )
    outer = Fields(config, {}, family=str(label), harmless=family.outer_harmless | {"text_config"})
    tied = config.get("tie_word_embeddings")
    merged = dict(inner) if tied is None else {"tie_word_embeddings": tied} | dict(inner)
    fields = Fields(
        merged, family.keys, family=str(label), origin=origin, prefix="text_config.",
        harmless=family.harmless,
    )  # fmt: skip
    if tied is not None and merged["tie_word_embeddings"] != tied:
        fields.fault("tie_word_embeddings", f"contradicts the outer one, which is {shown(tied)}")
    fields.faults[:0] = outer.faults
    _check_nested_type(inner, family, fields)
    _check_architecture(config, family, fields)
    return fields, (_TEXT_ONLY,)


def _check_nested_type(inner: Mapping[str, Any], family: Family, fields: Fields) -> None:
    stated = inner.get("model_type")
    if stated is not None and stated not in family.model_types:
        allowed = " or ".join(family.model_types)
        fields.fault("model_type", f"found {shown(stated)}; expected {allowed}")


def _check_architecture(config: Mapping[str, Any], family: Family, fields: Fields) -> None:
    """Record a fault where the architecture is not the language model of the family."""
    stated = config.get("architectures")
    if stated is None:
        return
    known = " or ".join(family.architectures)
    if not (isinstance(stated, list) and len(stated) == 1 and isinstance(stated[0], str)):
        fields.fault("architectures", f"found {shown(stated)}; expected a list of one: {known}")
    elif stated[0] not in family.architectures:
        fields.fault(
            "architectures",
            f"{stated[0]} is no known language model of {fields.family}; known: {known}",
        )


def _first_architecture(config: Mapping[str, Any]) -> str:
    stated = config.get("architectures")
    if isinstance(stated, list) and stated and isinstance(stated[0], str):
        return stated[0]
    return ""


@cache
def _index() -> dict[str, Family]:
    """Return the family of each model type and architecture; imports the family files once."""
    import_siblings(family_files, "model_families")
    index: dict[str, Family] = {}
    for entry in families:
        family = families[entry]
        for label in (*family.model_types, *family.nested_types, *family.architectures):
            if index.setdefault(label, family) is not family:
                raise ValueError(f"two families read {label!r}")
    return index


def known_model_types() -> tuple[str, ...]:
    """Return the values of ``model_type`` that can be read."""
    index = _index()
    return tuple(
        sorted(
            label
            for label, family in index.items()
            if label in family.model_types or label in family.nested_types
        )
    )


def _find_family(config: Mapping[str, Any], origin: str) -> Family:
    """Return the family by ``model_type``, or where that is absent by ``architectures``."""
    index = _index()
    stated, architecture = config.get("model_type"), _first_architecture(config)
    if stated is not None and not isinstance(stated, str):
        fault = Fault("model_type", f"found {shown(stated)}; expected a text")
        raise SpecError(fault, origin=origin)
    label = stated or architecture
    if not label:
        known = ", ".join(known_model_types())
        faults = [
            Fault("model_type", f"missing; known: {known}"),
            Fault("architectures", "missing as well, or not a list of texts"),
        ]
        raise SpecError(faults, origin=origin)
    if label in index:
        return index[label]
    raise SpecError(_unknown_faults(config, str(label), architecture), origin=origin)


def _unknown_faults(config: Mapping[str, Any], label: str, architecture: str) -> list[Fault]:
    """Return why an architecture is not read: its name, and how the nearest family differs."""
    field = "model_type" if config.get("model_type") else "architectures"
    named = f"{label} ({architecture})" if architecture not in ("", label) else label
    faults = [
        Fault(field, f"unknown architecture {named}", nearest(label, known_model_types())),
    ]
    near, missing, unknown = _nearest_family(config, label)
    reason = f"of {near}, the nearest known"
    faults += [Fault(key, f"missing field {reason}") for key in missing]
    faults += [Fault(key, f"unknown field: none {reason}") for key in unknown]
    return faults


def _nearest_family(config: Mapping[str, Any], label: str) -> tuple[str, list[str], list[str]]:
    """Return the family nearest by name, else by fields, and how its fields differ from these."""
    inner = config.get("text_config")
    section = inner if isinstance(inner, Mapping) else config
    stated = {key for key in section if isinstance(key, str)}
    by_name = difflib.get_close_matches(label.lower(), list(families), 1, 0.6)
    differences = {
        entry: _differences(families[entry], stated) for entry in by_name or list(families)
    }
    near = min(differences, key=lambda entry: (sum(map(len, differences[entry])), entry))
    return (near, *differences[near])


def _differences(family: Family, stated: set[str]) -> tuple[list[str], list[str]]:
    """Return the fields that a family needs and misses, and those that it does not know."""
    names = {name: {name, *key.also} for name, key in family.keys.items()}
    known = set().union(*names.values()) | family.harmless | set(FIXED)
    missing = [
        name for name, key in family.keys.items() if key.is_required and not names[name] & stated
    ]
    return missing, sorted(key for key in stated - known if not is_harmless(key))
