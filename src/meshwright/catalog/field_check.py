"""Checks the fields of a tree against a declaration before pydantic sees it.

Finds unknown fields with the nearest right one, fields written by their Python name, ``unknown``
where a value must be stated, and truth values or text where a plain number stands.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator

from meshwright.base.errors import Fault, nearest
from meshwright.catalog.yaml_tree import Location, fault_at
from meshwright.spec.declaration import Declaration, file_key

UNKNOWN = "unknown"
_WRITTEN_BY_LOADER = ("provenance",)
_PLAIN = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class FieldType:
    """The type of a field, its None and its validators taken apart."""

    core: Any
    is_optional: bool
    has_reader: bool
    """A validator of its own reads the value: a quantity with its unit, or a count."""


def field_type(annotation: Any, metadata: tuple[Any, ...] = ()) -> FieldType:
    """Return the parts of an annotation."""
    is_optional, reads = False, any(isinstance(entry, BeforeValidator) for entry in metadata)
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        arguments = get_args(annotation)
        if get_origin(annotation) is Annotated:
            reads = reads or any(isinstance(entry, BeforeValidator) for entry in arguments[1:])
        else:
            is_optional = is_optional or type(None) in arguments
            arguments = tuple(entry for entry in arguments if entry is not type(None))
        annotation = arguments[0]
    return FieldType(annotation, is_optional, reads)


def is_declaration(annotation: Any) -> bool:
    """Tell whether an annotation is a declaration with fields of its own."""
    return isinstance(annotation, type) and issubclass(annotation, Declaration)


def file_keys(model: type[Declaration]) -> dict[str, Any]:
    """Return the fields of a declaration by their key in a file."""
    return {
        info.alias or file_key(name): info
        for name, info in model.model_fields.items()
        if name not in _WRITTEN_BY_LOADER
    }


@dataclass
class FieldCheck:
    """Walks a tree along the types of a declaration and collects the faults."""

    lines: Mapping[Location, int]
    faults: list[Fault] = field(default_factory=list)
    faulty: list[Location] = field(default_factory=list)

    def refuse(self, at: Location, message: str, fix: str = "") -> None:
        """Note a fault; pydantic need not tell it again."""
        self.faults.append(fault_at(self.lines, at, message, fix))
        self.faulty.append(at)

    def declaration(self, model: type[Declaration], value: Any, at: Location) -> Any:
        """Return a mapping whose keys are all fields of the declaration."""
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict):
            self.refuse(at, f"expected a mapping of fields, found {_shown(value)}")
            return value
        keys = file_keys(model)
        known = {}
        for key, entry in value.items():
            if key in keys:
                kind = field_type(keys[key].annotation, tuple(keys[key].metadata))
                known[key] = self.value(kind, entry, (*at, key))
            else:
                self.refuse((*at, key), "unknown field", nearest(file_key(str(key)), keys))
        return known

    def value(self, kind: FieldType, value: Any, at: Location) -> Any:
        """Return one value, checked as far as its type says."""
        if at in self.faulty:
            return value
        if is_declaration(kind.core):
            return self.declaration(kind.core, value, at)
        origin = get_origin(kind.core)
        if origin is tuple and isinstance(value, list):
            entry = field_type(get_args(kind.core)[0])
            return [self.value(entry, part, (*at, i)) for i, part in enumerate(value)]
        if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
            entry = field_type(get_args(kind.core)[1])
            return {key: self.value(entry, part, (*at, key)) for key, part in value.items()}
        if isinstance(value, dict | list):
            self.refuse(at, f"expected {_expected(kind)}, found {_shown(value)}")
            return value
        return self.leaf(kind, value, at)

    def leaf(self, kind: FieldType, value: Any, at: Location) -> Any:
        """Return a single value; ``unknown`` becomes None where the field may be unknown."""
        if value == UNKNOWN and kind.core is not str:
            if not kind.is_optional:
                self.refuse(at, "must be stated; it cannot be `unknown`", _expected(kind))
            return None
        if not kind.has_reader and not _is_plain(kind.core, value):
            self.refuse(at, f"expected {_expected(kind)}, found {_shown(value)}")
        return value


def _is_plain(core: Any, value: Any) -> bool:
    """Tell whether a value has the plain type of its field, without any conversion."""
    if get_origin(core) not in (None, Literal):
        return False
    if core is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if core is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, core) if core in (bool, str) else True


def _expected(kind: FieldType) -> str:
    """Return what a field wants, in words."""
    if get_origin(kind.core) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind.core)))
    if kind.has_reader:
        return "a number with its unit" if kind.core is float else "a whole number"
    if get_origin(kind.core) is tuple:
        return "a list"
    return _PLAIN.get(kind.core, "a mapping")


def _shown(value: Any) -> str:
    """Return a found value, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
