"""JSON Schema of answers, the output of ``--json``, for programs that check or generate code.

Derived from the declared records, so that it cannot drift from them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from meshwright.catalog.answer_file import FORMAT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Answers(GenerateJsonSchema):
    """Records with the text under their fields, and properties written with them (``DERIVED``)."""

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _told(schema["cls"], super().typed_dict_schema(schema))

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _told(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        kind = schema["cls"]
        found = _told(kind, super().dataclass_schema(schema))
        own: dict[str, Any] = found["properties"]
        written = getattr(kind, "WRITTEN", dict(zip(own, own, strict=True)) | _derived(kind))
        found["properties"] = {
            name: own[source] if source in own else TypeAdapter(
                _entry(kind, source.split("."))
            ).json_schema(mode=self.mode)
            for name, source in written.items()
        }  # fmt: skip
        needed = found.pop("required", ())
        required = [
            name for name, source in written.items() if source not in own or source in needed
        ]
        return found | ({"required": required} if required else {})

    def generate(
        self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "serialization"
    ) -> JsonSchemaValue:
        found = super().generate(schema, mode=mode)
        return {"$schema": DIALECT, **found}


def _told(kind: type, schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a record with the text under each of its fields."""
    for base in kind.__mro__ if dataclasses.is_dataclass(kind) else (kind, *_bases(kind)):
        for name, text in _texts(base).items():
            if name in schema.get("properties", {}):
                schema["properties"][name].setdefault("description", text)
    return schema


def _bases(kind: type) -> tuple[type, ...]:
    """Return the records that a typed dictionary or a declaration extends."""
    return tuple(getattr(kind, "__orig_bases__", ())) + kind.__mro__[1:]


@cache
def _texts(kind: type) -> dict[str, str]:
    """Return the text that stands under each field of a class."""
    try:
        body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return {}
    if not isinstance(body, ast.ClassDef):  # of records in later Pythons the base is a function
        return {}
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }  # fmt: skip


def _printed(kind: type) -> type:
    """Return the record as printed: one that names its entries (``WRITTEN``) has no other field."""
    named = getattr(kind, "WRITTEN", None)
    if named is None:
        return kind
    entries = {name: _entry(kind, path.split(".")) for name, path in named.items()}
    printed: type = TypedDict(kind.__name__, entries)  # type: ignore[misc]
    printed.__doc__ = kind.__doc__
    return printed


def _entry(kind: type, path: Sequence[str]) -> Any:
    """Return the type of the value at a path of an answer, with the text under it."""
    kind, (first, *rest) = get_origin(kind) or kind, path
    made = getattr(kind, first, None)
    getter = getattr(made, "fget", None) or getattr(made, "func", None)
    holds = get_type_hints(getter)["return"] if getter else get_type_hints(kind)[first]
    if rest:
        return _entry(holds, rest)
    texts = [text for base in kind.__mro__ if (text := _texts(base).get(first))]
    text = texts[0] if texts else inspect.getdoc(getter) if getter else None
    return Annotated[holds, Field(description=" ".join(text.split()))] if text else holds


def _derived(kind: type) -> dict[str, str]:
    """Return the properties that are written with the fields of a record."""
    return dict(getattr(kind, "DERIVED", {}))


def schema_of(kind: type, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a record as it is printed, of this version of the layout."""
    found = TypeAdapter(_printed(kind)).json_schema(
        by_alias=False, schema_generator=_Answers, mode="serialization"
    )
    return {"$id": f"urn:meshwright:{name}:{FORMAT}", **found}
