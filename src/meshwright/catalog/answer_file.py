"""Answers of every question as plain data and as JSON files, whole or not at all.

Field names are stable and carry their unit; ``docs/reference/plan_json.md`` lists them. Values that
are not known (energy without a power figure, money without a price) are null, never zero.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import dumps
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import text_of, unreadable, write_whole
from meshwright.base.units import MOST_QUANTITY
from meshwright.catalog.files import json_content, shown
from meshwright.spec.declaration import faults_of

FORMAT = 1
"""Version of the layout of answer files."""
Answer = TypeVar("Answer")


def plain_data(value: object, *, with_defaults: bool = False) -> Any:
    """Return declarations, dataclasses and columns as plain data, ready for JSON.

    A dataclass may name properties to be written with its fields: ``DERIVED`` holds the property
    by the name of its entry. An answer that holds more than is written has ``WRITTEN`` in place of
    its fields: the path of each entry by its name, such as ``{"fits": "best.estimate.fits"}``.

    Parameters
    ----------
    with_defaults
        Whether declarations are written with the fields that have their default.
    """

    def plain(value: object) -> object:
        if isinstance(value, float):
            return value if isfinite(value) else None
        if isinstance(value, str):
            return _written(value)
        if value is None or isinstance(value, int):
            return value
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", exclude_defaults=not with_defaults)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            own = {e.name: e.name for e in dataclasses.fields(value)}
            named = getattr(value, "WRITTEN", None) or {**own, **getattr(value, "DERIVED", {})}
            return {name: plain(attrgetter(source)(value)) for name, source in named.items()}
        if isinstance(value, Mapping):
            return {_written(str(key)): plain(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        return value

    return plain(value)


def _written(text: str) -> str:
    """Return a text whose halves of characters, which no JSON holds, are spelled out."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def json_text(value: object, *, with_defaults: bool = False) -> str:
    """Return an answer as JSON text in ASCII: of every file and of every ``--json``.

    Numbers read back equal bit for bit; those that are not finite are null.
    """
    data = plain_data(value, with_defaults=with_defaults)
    text = to_json(data, indent=2, inf_nan_mode="null").decode()
    return text if text.isascii() else re.sub(r"[^\0-\x7f]+", lambda m: dumps(m[0])[1:-1], text)


@dataclass(frozen=True)
class AnswerFile(Generic[Answer]):
    """Writer and reader of one kind of answer; the record itself declares its fields."""

    kind: type[Answer]
    faults: Callable[[Answer], Iterable[Fault]] = lambda answer: ()
    """Check that returns the faults of an answer, beyond wrong types."""
    upgrade: Callable[[dict[str, object]], None] = lambda data: None
    """Function that adds in place the fields that files of earlier versions lack."""
    with_defaults: bool = False
    """Whether declarations are written with the fields that have their default."""
    workloads: tuple[str, ...] = ()
    """Kinds of workload of such an answer; none: any."""

    @cached_property
    def _adapter(self) -> TypeAdapter[Answer]:
        """Validator of data against the record; built when it is first needed."""
        return TypeAdapter(self.kind)

    def to_data(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as plain data, ready for JSON."""
        data: dict[str, Any] = plain_data(answer, with_defaults=self.with_defaults)
        return data

    def to_json(self, answer: Answer) -> str:
        """Return an answer as JSON text."""
        return json_text(answer, with_defaults=self.with_defaults)

    def from_json(self, text: str, origin: str = "plan") -> Answer:
        """Return the answer of a JSON text.

        Raises
        ------
        SpecError
            With all faults: no JSON, fields that are missing or of the wrong type, or values that
            no answer can hold.
        """
        data = _parsed(text, origin)
        self._check_workload(data, origin)
        _rename(data)
        self.upgrade(data)
        try:
            answer = self._adapter.validate_python(data)
        except ValidationError as error:
            raise SpecError(faults_of(error), origin=origin) from error
        faults = list(_not_finite(answer, "")) or list(self.faults(answer))
        if faults:
            raise SpecError(faults, origin=origin)
        return answer

    def _check_workload(self, data: Mapping[str, object], origin: str) -> None:
        """Refuse an answer about other work in one line, not field by field."""
        work = data.get("workload")
        kind = work.get("kind", "training") if isinstance(work, Mapping) else None
        path, kind = ("traffic", "traffic") if "traffic" in data else ("workload.kind", kind)
        if self.workloads and isinstance(kind, str) and kind not in self.workloads:
            known = " or ".join(self.workloads)
            fault = Fault(path, f"this is a plan of {kind}", f"a plan of {known}")
            raise SpecError(fault, origin=origin)

    def save(self, answer: Answer, path: str | Path, *, force: bool = False) -> None:
        """Write an answer to a file, whole or not at all; one that is there only with ``force``."""
        write_whole(Path(path), self.to_json(answer) + "\n", force=force)

    def load(self, path: str | Path) -> Answer:
        """Return the answer of a file."""
        origin = str(path)
        try:
            text = text_of(Path(path))
        except (OSError, ValueError) as error:
            raise SpecError(unreadable(error), origin=origin) from error
        return self.from_json(text, origin=origin)


_OUT = "write one with plan --out FILE.json"


def _parsed(text: str, origin: str) -> dict[str, object]:
    """Return the object of a JSON text, if it has the layout of this version."""
    data = json_content(text, origin)
    if not isinstance(data, dict) or "format" not in data:
        found = "a list" if isinstance(data, list) else "no field `format`"
        fault = Fault("", f"is not an answer of this program: found {found}", _OUT)
        raise SpecError(fault, origin=origin)
    if data["format"] != FORMAT:
        found = shown(data["format"])
        fault = Fault("format", f"found {found}, this version reads {FORMAT}", "ask again")
        raise SpecError(fault, origin=origin)
    return data


def _not_finite(value: object, path: str) -> Iterator[Fault]:
    """Yield the numbers that no answer has: endless ones, and beyond all quantities."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, int | float) and not abs(value) <= MOST_QUANTITY:
        yield Fault(path, f"found {shown(value)}, expected at most {MOST_QUANTITY:g}")
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _not_finite(entry, f"{path}.{name}" if path else str(name))
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _not_finite(entry, f"{path}.{index}")


def _rename(data: object) -> None:
    """Bring fields of earlier versions under their present names, in place.

    ``fused_loss`` of the software meant logits that are never whole, which ``loss: linear`` says;
    ``structure`` of a candidate held its plan options.
    """
    _rename_plan_options(data)
    work = data.get("workload") if isinstance(data, dict) else None
    software = work.get("software") if isinstance(work, dict) else None
    if not (isinstance(software, dict) and isinstance(software.get("fused_loss"), bool)):
        return
    if software.pop("fused_loss"):
        software.setdefault("loss", "linear")


def _rename_plan_options(value: object) -> None:
    if isinstance(value, dict):
        if "structure" in value:
            value.setdefault("plan_options", value.pop("structure"))
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            _rename_plan_options(entry)
