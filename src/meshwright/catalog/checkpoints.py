"""Names of published checkpoints: organisation, family, size, tuning, format of the weights.

``RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16`` has the dims of ``llama3.1-8b`` and weights
in 4 bits. The words of a name are compared with those of the catalog, in which the words that say
nothing about dims are left out step by step; a name with an unknown word is not accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_TUNED: Final = frozenset((
    "instruct", "chat", "it", "hf", "base", "pt", "thinking", "nonthinking", "meta", "terminus",
    "preview", "unsloth", "orig", "original", "deduped", "linearized",
))  # fmt: skip
"""Words on the training or the publisher of a checkpoint, which say nothing about its dims."""
_SPECIAL: Final = frozenset(("coder", "code", "math"))
"""Words of models for a subject, which some families also give another size."""
_DATE: Final = re.compile(r"(?:0[1-9]|1[0-2])[0-3]\d|2[0-9](?:0[1-9]|1[0-2])")
"""Month and day, or year and month, of a release."""

_W8A8: Final = {"num_bits": 8, "type": "int", "strategy": "channel"}
_W8: Final = {"quant_method": "compressed-tensors", "config_groups": {
    "0": {"targets": ["Linear"], "weights": _W8A8}}}  # fmt: skip
_GPTQ: Final = {"quant_method": "gptq", "group_size": 128}
_FORMATS: Final[Mapping[str, Mapping[str, object] | str | None]] = {
    "bf16": None, "fp16": None, "f16": None, "dequantized": None,
    "fp8": {"quant_method": "fp8"},
    "int4": "int4", "w4a16": "int4", "awq": "awq", "gptq": "gptq", "autoround": "gptq",
    "int8": _W8, "w8a16": _W8,
    "w8a8": {"quant_method": "compressed-tensors", "config_groups": {
        "0": {"targets": ["Linear"], "weights": _W8A8, "input_activations": _W8A8}}},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "nvfp4a16": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "bnb": "nf4", "nf4": "nf4",
}  # fmt: skip
"""Words for a format, and the ``quantization_config`` of most checkpoints in it; the name of a
format of ``--weights`` stands for its settings. None: as wide as they were trained.

Source: cards of RedHatAI, nvidia, Qwen and unsloth on Hugging Face (2026-11).
"""
_MIXED: Final = ("nvfp4", "fp4", "nvfp4a16")
"""Formats in which checkpoints leave the attention of models with experts wide.

Source: NVIDIA TensorRT Model Optimizer, recipes of DeepSeek-R1-FP4 and Qwen3-235B-A22B-FP4.
"""
_SETTINGS: Final = re.compile(
    r"dynamic|block|quantized|mixed|kv|static|g?\d{1,3}g?|[48]-?bit|[48]b"
)
"""Words beside that of a format: granularity of scales, bits, weights of a group, a narrow
cache."""
_ONLY_BITS: Final = {"4bit": "nf4", "8bit": "bnb-int8"}


@dataclass(frozen=True)
class Format:
    """Format of the weights of a checkpoint, from its name."""

    word: str
    """Word of the format, such as fp8; empty: the name states none."""
    settings: Mapping[str, object] | str | None = None
    """Content of ``quantization_config``, or the name of a usual one; None: wide."""
    leaves_attention_of_experts: bool = False
    narrow_cache: bool = False
    """Whether the cache has 8 bits as well."""


def words_of(name: str) -> list[str]:
    """Return the words of a name without its organisation, in lower case."""
    last = name.strip().rstrip("/").rsplit("/", 1)[-1].lower()
    return [word for word in re.split(r"[-_ ]+|(?<=quantized)\.", last) if word]


def split_format(words: Sequence[str]) -> tuple[list[str], Format]:
    """Return the words of a name without those of its format, and the format.

    The words of a format stand last, such as ``gptq int4`` or ``awq``; the first one counts, and
    bits that follow it are its own.
    """
    rest = list(words)
    tail: list[str] = []
    while rest and (rest[-1] in _FORMATS or _SETTINGS.fullmatch(rest[-1])):
        tail.insert(0, rest.pop())
    while tail and tail[0] not in _FORMATS and tail[0] not in ("quantized", "mixed"):
        if tail[0] in _ONLY_BITS and len(tail) == 1:
            break
        rest.append(tail.pop(0))  # a size, or a word of the family
    stated = [word for word in tail if word in _FORMATS]
    if not stated:
        if tail and tail[0] in _ONLY_BITS:
            return rest, Format(tail[0], _ONLY_BITS[tail[0]])
        return list(words), Format("")
    word = stated[0]
    settings = _FORMATS[word]
    bits = next((int(part[3]) for part in stated[1:] if part in ("int4", "int8")), 4)
    if word in ("gptq", "autoround"):
        bits = next((int(part[0]) for part in tail if part in ("8bit", "4bit")), bits)
        settings = {**_GPTQ, "bits": bits}
    if word == "bnb" and "8bit" in tail:
        settings = "bnb-int8"
    return rest, Format(word, settings, word in _MIXED, "kv" in tail)


def _joined(words: Sequence[str]) -> str:
    """Return words as a key: a number belongs to the family before it, as in ``gemma 3``."""
    key = ""
    for word in words:
        follows = key and word[0].isdigit() and key[-1].isalpha()
        key += word if follows or not key else f"-{word}"
    return key


def keys_of(words: Sequence[str]) -> Iterator[str]:
    """Yield keys of a name, each with fewer words that say nothing about dims."""
    yield _joined(words)
    words = [word for word in words if word not in _TUNED]
    yield _joined(words)
    words = [word for word in words if not _DATE.fullmatch(word)]
    yield _joined(words)
    yield _joined([word for word in words if word not in _SPECIAL])


def index_of(names: Mapping[str, str]) -> dict[str, str]:
    """Return the catalog name of each key of some names; keys of two models are left out.

    The more words a key has, the more it counts: full names of one model come before shortened
    names of others.
    """
    found: dict[str, str] = {}
    levels = [list(keys_of(words_of(name))) for name in names]
    for level in range(len(levels[0]) if levels else 0):
        mine: dict[str, set[str]] = {}
        for keys, name in zip(levels, names.values(), strict=True):
            mine.setdefault(keys[level], set()).add(name)
        for key, models in mine.items():
            if key not in found and len(models) == 1:
                found[key] = next(iter(models))
    return found


def resolved(name: str, index: Mapping[str, str]) -> tuple[str, Format] | None:
    """Return the model of the catalog with the dims of a checkpoint, and its format.

    None: the name has words that neither the catalog nor the formats know.
    """
    words, stored = split_format(words_of(name))
    for key in keys_of(words):
        if key in index:
            return index[key], stored
    return None
