"""A family of published models: which configurations it reads, and how they become a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.base.registry import Registry
from meshwright.catalog.huggingface.fields import Fields, Key
from meshwright.spec.model import ModelSpec


@dataclass(frozen=True)
class Family:
    """One family; a file in ``families`` registers one or a few of them."""

    model_types: tuple[str, ...]
    """Values of ``model_type`` that it reads."""
    architectures: tuple[str, ...]
    """Values of ``architectures`` that go with them."""
    keys: Mapping[str, Key]
    """Every field that changes the structure."""
    read: Callable[[Fields], ModelSpec]
    harmless: frozenset[str] = frozenset()
    """Further fields that occur in this family and change no dim, count or operator."""
    nested_types: tuple[str, ...] = ()
    """Values of ``model_type`` whose text model stands in ``text_config``."""
    outer_harmless: frozenset[str] = frozenset()
    """Fields next to ``text_config`` that do not concern the text model."""


families: Registry[Family] = Registry("model family")
