"""JSON Schema of answers: what ``--json`` prints, for programs that check or generate code.

Derived from the declared records, so that it cannot drift from them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from meshwright.report.answer_file import FORMAT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Answers(GenerateJsonSchema):
    """Records with the properties that are written beside their fields (``DERIVED``)."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        kind = schema["cls"]
        for name, source in getattr(kind, "DERIVED", {}).items():
            holds = get_type_hints(getattr(kind, source).fget)["return"]
            found["properties"][name] = TypeAdapter(holds).json_schema(mode=self.mode)
            found.setdefault("required", []).append(name)
        return found

    def generate(
        self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "serialization"
    ) -> JsonSchemaValue:
        found = super().generate(schema, mode=mode)
        return {"$schema": DIALECT, **found}


def schema_of(kind: type, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a record as it is printed, of this version of the layout."""
    assert dataclasses.is_dataclass(kind)
    found = TypeAdapter(kind).json_schema(
        by_alias=False, schema_generator=_Answers, mode="serialization"
    )
    return {"$id": f"urn:meshwright:{name}:{FORMAT}", **found}
