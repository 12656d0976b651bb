"""The model catalog, and models from a user's ``config.json``: one loader for both.

A catalog entry holds the published fields of a configuration as they are, its source and its
other names; it is read by the same code as a user's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import unreadable
from meshwright.catalog.huggingface.read import read_config
from meshwright.spec.declaration import Declaration, Source
from meshwright.spec.model import ModelSpec

_FOLDER: Final = Path(__file__).parent / "data" / "models"
_FILE_NAME: Final = "config.json"
_MOST_FILE_BYTES: Final = 16 * 2**20
"""No configuration is a thousandth of it; a larger file is a slip, such as the weights."""


class ModelEntry(Declaration):
    """A catalog file: published fields, their source, and other names of the model."""

    name: str
    aliases: tuple[str, ...] = ()
    source: Source
    config: Mapping[str, Any]


def model_names() -> tuple[str, ...]:
    """Return the catalog names, sorted; aliases are left out."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def model_entry(name: str) -> ModelEntry:
    """Return a catalog file by its exact name."""
    if name not in model_names():
        raise UnknownNameError("model", name, model_names())
    path = _FOLDER / f"{name}.json"
    return _read_entry(_read_json(path), str(path))


def _read_entry(content: Any, origin: str) -> ModelEntry:
    try:
        return ModelEntry.model_validate(content)
    except ValidationError as error:
        faults = [Fault(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        raise SpecError(faults, origin=origin) from error


@cache
def _names_and_aliases() -> dict[str, str]:
    """Return the catalog name of each name and alias, in lower case; a clash is an error."""
    found: dict[str, str] = {}
    for name in model_names():
        for alias in {name, *model_entry(name).aliases}:
            if found.setdefault(alias.lower(), name) != name:
                raise ValueError(f"two models are called {alias!r}: {found[alias.lower()]}, {name}")
    return found


def known_names() -> list[str]:
    """Return all names and aliases as they are written."""
    return [word for name in model_names() for word in (name, *model_entry(name).aliases)]


@cache
def _catalog_model(name: str) -> ModelSpec:
    return _entry_model(model_entry(name), f"catalog model {name}")


def _entry_model(entry: ModelEntry, origin: str) -> ModelSpec:
    return read_config(entry.config, name=entry.name, origin=origin, source=entry.source.title)


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Return a model by catalog name, Hugging Face id, file or folder with a ``config.json``.

    Parameters
    ----------
    name_or_path
        ``llama3-70b``, ``Qwen/Qwen3-32B`` (any case), ``path/config.json`` or ``path/``. A
        catalog name comes before a path of the same spelling.

    Raises
    ------
    UnknownNameError
        When it is neither; the near names are listed.
    SpecError
        When the file cannot be read, with every fault.
    """
    text = str(name_or_path).strip()
    name = _catalog_name(text) if isinstance(name_or_path, str) else None
    if name is not None:
        return _catalog_model(name)
    path = Path(text)
    if text and _exists(path):
        return _load_path(path)
    if isinstance(name_or_path, Path) or text.endswith(".json") or text.startswith((".", "/", "~")):
        hint = "expected a config.json, its folder, or a catalog name"
        raise SpecError(Fault("", "no such file or folder", hint), origin=text)
    raise UnknownNameError("model", text, known_names())


def _catalog_name(text: str) -> str | None:
    """Return the catalog name that a name or alias stands for; an exact name needs no index."""
    lowered = text.lower()
    if lowered in model_names():
        return lowered
    return _names_and_aliases().get(lowered)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _load_path(path: Path) -> ModelSpec:
    file = path / _FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise SpecError(Fault("", f"the folder has no {_FILE_NAME}"), origin=str(path))
    config = _read_json(file)
    if isinstance(config, Mapping) and {"config", "source"} <= set(config):
        return _entry_model(_read_entry(config, str(file)), str(file))
    name = file.resolve().parent.name if file.name == _FILE_NAME else file.stem
    return read_config(config, name=name, origin=str(file), source=str(file))


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file; a key that stands twice is a fault."""
    try:
        size = path.stat().st_size
        if size > _MOST_FILE_BYTES:
            raise ValueError(f"{size} bytes are too many for a configuration")
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SpecError(Fault(place, f"no JSON: {error.msg}"), origin=str(path)) from error
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from error
    except RecursionError as error:
        raise SpecError(Fault("", f"cannot be read: {error}"), origin=str(path)) from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    section: dict[str, Any] = {}
    for key, value in pairs:
        if key in section:
            raise ValueError(f"{key}: stated twice")
        section[key] = value
    return section
