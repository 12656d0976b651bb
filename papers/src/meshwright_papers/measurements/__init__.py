"""Measurements in the words of their sources, read as questions of this product.

``meshwright validate --measurements FILE`` finds :func:`row_of_source` by the entry point group
``meshwright.row_readers``, for rows that state chips, plans and precision in words of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from meshwright.base.errors import Fault
from meshwright.calibration.rows import DESCRIPTION, Row
from meshwright.spec.declaration import message_of
from meshwright_papers.measurements.fields import Fields
from meshwright_papers.measurements.questions import asked
from meshwright_papers.measurements.words import StatedRow, row_of

WORDS = ("hardware", "parallelism")
"""Fields that only rows in the words of a source have."""


def row_of_source(entry: Mapping[str, Any], index: int) -> Row | list[Fault] | None:
    """Return the question of a row in the words of its source, or its faults.

    Returns
    -------
    None where the row is in other words.
    """
    if not any(name in entry for name in WORDS):
        return None
    stated = {name: value for name, value in entry.items() if value is not None}
    name = f", in row {stated['id']!r}" if isinstance(stated.get("id"), str) else ""
    try:
        read = row_of(StatedRow.model_validate({"id": f"[{index}]", "group": "unnamed", **stated}))
    except ValidationError as error:
        return [
            Fault(".".join([f"[{index}]", *map(str, wrong["loc"])]), message_of(wrong) + name)
            for wrong in error.errors(include_url=False)
        ]
    unread = tuple(_unread(stated, StatedRow))
    return asked(read).model_copy(update={"without_effect": unread})


def _unread(entry: Mapping[str, Any], kind: type[Fields], path: str = "") -> Iterator[str]:
    """Yield the fields that an entry states and no price reads, parts of it with their path."""
    for name, value in entry.items():
        place, field = f"{path}{name}", kind.model_fields.get(name)
        part = None if field is None else field.default
        if value is None or place in DESCRIPTION:
            continue
        if isinstance(part, Fields) and isinstance(value, Mapping):
            yield from _unread(value, type(part), f"{place}.")
        elif field is None:
            yield place
