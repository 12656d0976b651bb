"""The published JSON Schemas: what each describes, its fields, and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from generators.markdown import page, prose, table

FOLDER = Path(__file__).parents[1] / "schemas"
INTRODUCTION = """`meshwright show schema NAME` prints the JSON Schema (draft 2020-12) of an answer
as `--json` prints it; these are the same files. What the fields mean stands in
[a plan as JSON](../plan_json.md)."""


def pages() -> dict[str, str]:
    """Return one page with all schemas."""
    parts = [INTRODUCTION]
    for path in sorted(FOLDER.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {path.stem}", described(schema, path)]
    return {"schemas/index.md": page("JSON Schemas", *parts)}


def described(schema: dict[str, Any], path: Path) -> str:
    """Return a schema: its file and its fields."""
    about = first_paragraph(schema)
    rows = [
        (f"`{name}`", type_of(field), first_paragraph(field))
        for name, field in schema.get("properties", {}).items()
    ]
    link = f"{{download}}`{path.name} <../../schemas/{path.name}>`, `{schema['$id']}`."
    fields = table(("field", "type", "meaning"), rows) if rows else ""
    return "\n\n".join(filter(None, (about, link, fields)))


def first_paragraph(described: dict[str, Any]) -> str:
    """Return what a schema or a field says of itself."""
    return prose(described.get("description", "").partition("\n\n")[0])


def type_of(field: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(type_of, field["anyOf"])))
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if field.get("type") == "array" and isinstance(field.get("items"), dict):
        return f"array of {type_of(field['items'])}"
    return str(field.get("type", "any"))
