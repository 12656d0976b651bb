"""The model catalog, and models from a user's ``config.json``: one loader for both.

A catalog entry holds the published fields of a configuration as they are, its source and its
other names; it is read by the same code as a user's file: find the family that fits, read the
fields, or say exactly why not.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.base.registry import import_siblings
from meshwright.catalog.checkpoints import Format, index_of, resolved
from meshwright.catalog.files import read_json, shown
from meshwright.catalog.huggingface import families as family_files
from meshwright.catalog.huggingface.family import (
    FIXED,
    Config,
    ModelFamily,
    families,
    is_harmless,
)
from meshwright.catalog.huggingface.quantization import (
    cache_type_of,
    stored_as,
    weight_format_of,
    without_attention_of_experts,
)
from meshwright.spec.declaration import Declaration, Source, faults_of
from meshwright.spec.model import ModelSpec

_FOLDER: Final = Path(__file__).parent / "data" / "models"
_FILE_NAME: Final = "config.json"
_MOST_FILE_BYTES: Final = 16 * 2**20
"""Most bytes of a configuration: none has a thousandth of it, so a larger file is an error."""


class ModelEntry(Declaration):
    """A catalog file: published fields, their source, and other names of the model."""

    name: str
    aliases: tuple[str, ...] = ()
    source: Source
    config: Mapping[str, object]
    checkpoints: Mapping[str, Mapping[str, object]] = Field(default_factory=dict)
    """``quantization_config`` of the publisher's checkpoints in other formats, by the word for the
    format in their names."""

    @property
    def publisher(self) -> str:
        """Organisation that publishes the checkpoints."""
        return (self.source.repo or "").partition("/")[0].lower()


@cache
def model_names() -> tuple[str, ...]:
    """Return the catalog names, sorted; aliases are left out."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def model_entry(name: str) -> ModelEntry:
    """Return a catalog file by its exact name."""
    if name not in model_names():
        raise UnknownNameError("model", name, model_names())
    path = _FOLDER / f"{name}.json"
    return _read_entry(read_json(path, most_bytes=_MOST_FILE_BYTES), str(path))


def _read_entry(content: object, origin: str) -> ModelEntry:
    try:
        return ModelEntry.model_validate(content)
    except ValidationError as error:
        raise _refused(error, origin) from error


def _refused(error: ValidationError, origin: str) -> SpecError:
    return SpecError(faults_of(error), origin=origin)


@cache
def _names_and_aliases() -> dict[str, str]:
    """Return the catalog name of each name and alias, in lower case; a clash is an error."""
    found: dict[str, str] = {}
    for name in model_names():
        for alias in {name, *model_entry(name).aliases}:
            if found.setdefault(alias.lower(), name) != name:
                raise ValueError(f"two models are called {alias!r}: {found[alias.lower()]}, {name}")
    return found


@cache
def _checkpoint_index() -> dict[str, str]:
    """Return the catalog name of each key of a checkpoint."""
    return index_of({
        alias: name for name in model_names() for alias in (name, *model_entry(name).aliases)
    })  # fmt: skip


def _checkpoint(text: str) -> ModelSpec | None:
    """Return a model by the name of one of its checkpoints, with the weights that the name states.

    None: the name has unknown words.
    """
    found = resolved(text, _checkpoint_index())
    if found is None:
        return None
    name, stored = found
    entry, model = model_entry(name), _catalog_model(name)
    if not stored.word:
        return model
    settings = _settings_of(entry, text, stored, model)
    if settings is None:
        model = model.model_copy(update={"weight_format": None})
    else:
        model = stored_as(model, settings, text)
    kept = [one for one in model.conventions if not one.startswith(_STORED)]
    if model.weight_format is not None:
        kept.append(f"{_STORED} {model.weight_format.name}")
    cache_type = "fp8" if stored.narrow_cache else model.cache_type
    return model.model_copy(update={"conventions": tuple(kept), "cache_type": cache_type})


_STORED: Final = "weights are stored as"


def _settings_of(
    entry: ModelEntry, text: str, stored: Format, model: ModelSpec
) -> Mapping[str, object] | str | None:
    """Return the weight settings of a checkpoint: its publisher's, or those of most others."""
    organisation, slash, _ = text.lower().rpartition("/")
    if stored.word in entry.checkpoints and (not slash or organisation == entry.publisher):
        return entry.checkpoints[stored.word]
    if stored.leaves_attention_of_experts and isinstance(stored.settings, Mapping):
        return without_attention_of_experts(stored.settings, model)
    return stored.settings


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
    if isinstance(name_or_path, str):
        # an exact name needs no index of aliases
        exact = text.lower() if text.lower() in model_names() else None
        if name := exact or _names_and_aliases().get(text.lower()):
            return _catalog_model(name)
    path = Path(text)
    try:
        is_there = bool(text) and path.exists()
    except (OSError, ValueError):
        is_there = False
    if is_there:
        return _load_path(path)
    if isinstance(name_or_path, str) and (found := _checkpoint(text)) is not None:
        return found
    if isinstance(name_or_path, Path) or text.endswith(".json") or text.startswith((".", "/", "~")):
        hint = "expected a config.json, its folder, or a catalog name"
        raise SpecError(Fault("", "no such file or folder", hint), origin=text)
    raise UnknownNameError("model", text, known_names())


def _load_path(path: Path) -> ModelSpec:
    file = path / _FILE_NAME if path.is_dir() else path
    if not file.exists():
        raise SpecError(Fault("", f"the folder has no {_FILE_NAME}"), origin=str(path))
    config = read_json(file, most_bytes=_MOST_FILE_BYTES)
    if isinstance(config, Mapping) and {"config", "source"} <= set(config):
        return _entry_model(_read_entry(config, str(file)), str(file))
    name = file.resolve().parent.name if file.name == _FILE_NAME else file.stem
    return read_config(config, name=name, origin=str(file), source=str(file))


_OF_OTHER_MEDIA: Final = """
    aria blip-2 cohere2_vision cosmos3_edge cosmos3_omni deepseek_vl deepseek_vl_hybrid emu3
    exaone4_5 fuyu glm46v glm4v glm4v_moe glm_ocr glmga got_ocr2 granite_docling
    hyperclovax_vision_v2 idefics2 idefics3 instructblip instructblipvideo internvl janus kimi_k25
    lfm2_vl lighton_ocr llava llava_next llava_next_video llava_onevision minicpm_ocr minicpmv4_6
    minicpmv4_7 moss_transcribe_diarize muse_glimmer nemotron_h_omni paddleocr_vl pp_chart2table
    qianfan_ocr qwen2_5_omni_thinker shieldgemma2 smolvlm unlimited_ocr video_llama_3 video_llava
    vipllava
    """
OF_OTHER_MEDIA: Final = frozenset(_OF_OTHER_MEDIA.split())
"""Values of ``model_type`` of models of several media whose language model is that of
``text_config`` alone: what stands beside it concerns towers and projectors.

Source: parameters of each, built by transformers 5.23 (``benchmarks/model_families.py``)."""

_TEXT_ONLY = "text only: the vision tower and its projector are not counted"


def read_config(
    config: Mapping[str, object], *, name: str = "", origin: str = "", source: str = ""
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
        fault = Fault("", f"found {shown(config)}; expected a configuration")
        raise SpecError(fault, origin=origin)
    family = _find_family(config, origin)
    fields, notes = _open_fields(config, family, origin)
    fields.finish()
    try:
        model = family.read(fields)
    except ValidationError as error:
        raise _refused(error, origin) from error
    weights = weight_format_of(config, model, origin)
    stored = () if weights is None else (f"{_STORED} {weights.name}",)
    return model.model_copy(
        update={
            "weight_format": weights,
            "cache_type": cache_type_of(config),
            "name": name or model.name,
            "architecture": _first_architecture(config) or str(config.get("model_type")),
            "conventions": (*notes, *model.conventions, *stored),
            "source": source,
        }
    )


def _open_fields(
    config: Mapping[str, object], family: ModelFamily, origin: str
) -> tuple[Config, tuple[str, ...]]:
    """Return the checked fields of the text model, and the parts of the model that are left out."""
    stated_type = config.get("model_type")
    label = str(stated_type or _first_architecture(config))
    has_section = "text_config" in config
    by_architecture = not stated_type and family.nested_types and has_section
    is_nested = label in family.nested_types and (has_section or not family.is_flat)
    is_nested = is_nested or label in OF_OTHER_MEDIA
    if not is_nested and not by_architecture:
        harmless = (
            f"{family.harmless} {family.outer_harmless}" if family.is_flat else family.harmless
        )
        fields = Config(config, family.keys, family=label, origin=origin, harmless=harmless)
        _check_architecture(config, family, fields)
        return fields, (_TEXT_ONLY,) if family.is_flat else ()
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        found = "missing" if inner is None else f"found {shown(inner)}"
        fault = Fault("text_config", f"{found}; {label} needs a nested section")
        raise SpecError(fault, origin=origin)
    beside = " ".join(config) if label in OF_OTHER_MEDIA else family.outer_harmless
    outer = Config(config, {}, family=label, harmless=f"text_config {beside}")
    tied = config.get("tie_word_embeddings")
    merged = dict(inner) if tied is None else {"tie_word_embeddings": tied} | dict(inner)
    fields = Config(
        merged, family.keys, family=label, origin=origin, prefix="text_config.",
        harmless=family.harmless,
    )  # fmt: skip
    if tied is not None and merged["tie_word_embeddings"] != tied:
        fields.fault("tie_word_embeddings", f"contradicts the outer one, which is {shown(tied)}")
    fields.faults[:0] = outer.faults
    inner_type = inner.get("model_type")
    if inner_type is not None and inner_type not in family.model_types:
        allowed = " or ".join(family.model_types)
        fields.fault("model_type", f"found {shown(inner_type)}; expected {allowed}")
    if label not in OF_OTHER_MEDIA:
        _check_architecture(config, family, fields)
    return fields, (_TEXT_ONLY,)


def _check_architecture(config: Mapping[str, object], family: ModelFamily, fields: Config) -> None:
    """Record a fault where the architecture is not the language model of the family."""
    stated, known = config.get("architectures"), " or ".join(family.architectures)
    if stated is None:
        return
    if not (isinstance(stated, list) and len(stated) == 1 and isinstance(stated[0], str)):
        fields.fault("architectures", f"found {shown(stated)}; expected a list of one: {known}")
    elif stated[0] not in family.architectures:
        message = f"{stated[0]} is not a known language model of {fields.family}; known: {known}"
        fields.fault("architectures", message)


def _first_architecture(config: Mapping[str, object]) -> str:
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    return first if isinstance(first, str) else ""


@cache
def _index() -> dict[str, ModelFamily]:
    """Return the family of each model type and architecture; imports the family files once."""
    import_siblings(family_files, "model_families")
    index: dict[str, ModelFamily] = {}
    for entry in families:
        family = families[entry]
        for label in (*family.model_types, *family.nested_types, *family.architectures):
            if index.setdefault(label, family) is not family:
                raise ValueError(f"two families read {label!r}")
    return index


def family_of(label: str) -> ModelFamily | None:
    """Return the family that reads a model type or an architecture; None: none does."""
    return _index().get(label)


def known_model_types() -> tuple[str, ...]:
    """Return the values of ``model_type`` that can be read."""
    pairs = _index().items()
    return tuple(sorted(label for label, entry in pairs if label not in entry.architectures))


_RECURRENT: Final = (
    "falcon_mamba", "jamba", "mamba", "recurrent_gemma", "rwkv", "zamba", "zamba2",
)  # fmt: skip
"""Values of ``model_type`` with recurrent layers of kinds that are not priced."""


def _find_family(config: Mapping[str, object], origin: str) -> ModelFamily:
    """Return the family by ``model_type``, or where that is absent by ``architectures``."""
    stated, architecture = config.get("model_type"), _first_architecture(config)
    if stated is not None and not isinstance(stated, str):
        fault = Fault("model_type", f"found {shown(stated)}; expected a text")
        raise SpecError(fault, origin=origin)
    label = stated or architecture
    if label in (index := _index()):
        return index[label]
    inner = config.get("text_config")
    if label in OF_OTHER_MEDIA and isinstance(inner, Mapping):
        found = index.get(str(inner.get("model_type")))
        if found is not None and inner["model_type"] in found.model_types:
            return found
    if not label:
        faults = [
            Fault("model_type", f"missing; known: {', '.join(known_model_types())}"),
            Fault("architectures", "missing as well, or not a list of texts"),
        ]
        raise SpecError(faults, origin=origin)
    if label in _RECURRENT:
        message = f"{label} has recurrent layers of a kind that is not priced"
        fix = "not priced; a computation of your own can be: see docs/how_to/graphs.md"
        raise SpecError(Fault("model_type", message, fix), origin=origin)
    named = f"{label} ({architecture})" if architecture not in ("", label) else label
    near, missing, unknown = _nearest_family(config, label)
    field, fix = "model_type" if stated else "architectures", nearest(label, known_model_types())
    faults = [Fault(field, f"unknown architecture {named}", fix)]
    faults += [Fault(key, f"missing field of {near}, the nearest known") for key in missing]
    faults += [Fault(key, f"unknown field: none of {near}, the nearest known") for key in unknown]
    raise SpecError(faults, origin=origin)


def _nearest_family(config: Mapping[str, object], label: str) -> tuple[str, list[str], list[str]]:
    """Return the family nearest by name, else by fields.

    With it come the fields that it needs and misses here, and those that it does not know.
    """
    inner = config.get("text_config")
    section = inner if isinstance(inner, Mapping) else config
    stated = {key for key in section if isinstance(key, str)}
    differences: dict[str, tuple[list[str], list[str]]] = {}
    for entry in difflib.get_close_matches(label.lower(), list(families), 1, 0.6) or families:
        family = families[entry]
        keys = [(key.names or (role,), key.is_required) for role, key in family.keys.items()]
        missing = [names[0] for names, needed in keys if needed and stated.isdisjoint(names)]
        known = {*family.harmless.split(), *FIXED}.union(*(names for names, _ in keys))
        unknown = sorted(key for key in stated - known if not is_harmless(key))
        differences[entry] = missing, unknown
    near = min(differences, key=lambda entry: (sum(map(len, differences[entry])), entry))
    return (near, *differences[near])
