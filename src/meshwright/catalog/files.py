"""Reads YAML files into declarations, with all faults of a file at once and the source of a value.

The declarations themselves say which fields there are; this module knows none of them by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import ValidationError

from meshwright.base.errors import Fault, SpecError, UnknownNameError, nearest
from meshwright.catalog.field_check import FieldCheck, field_type, file_keys, is_declaration
from meshwright.catalog.sourced_values import PlainValues, plain_values
from meshwright.catalog.yaml_tree import Location, Tree, fault_at, path_text, read_tree
from meshwright.spec.declaration import Declaration, file_key

D = TypeVar("D", bound=Declaration)
Prepare = Callable[[PlainValues, Tree], None]

_DATA = Path(__file__).parent / "data"
_SUFFIXES = (".yaml", ".yml")
_NAMED_FIELD = re.compile(r"([a-z_]+): (.*)", re.DOTALL)


@cache
def data_names(folder: str) -> dict[str, Path]:
    """Return the files of one folder of the catalog by name."""
    return {path.stem: path for path in sorted((_DATA / folder).glob("*.yaml"))}


def looks_like_path(text: str) -> bool:
    """Tell whether a text names a file rather than an entry of the catalog."""
    return text.endswith(_SUFFIXES) or "/" in text or "\\" in text


def find_name(text: str, names: Iterable[str]) -> str | None:
    """Return the name that equals a text, letter case aside."""
    return next((name for name in names if name.lower() == text.lower()), None)


def data_path(folder: str, kind: str, text: str) -> Path:
    """Return the file of a catalog name, or the path itself where the text is one.

    Raises
    ------
    UnknownNameError
        When the catalog has no such name; lists the near ones.
    """
    if looks_like_path(text):
        return Path(text)
    name = find_name(text, data_names(folder))
    if name is None:
        raise UnknownNameError(kind, text, data_names(folder))
    return data_names(folder)[name]


def read_text(path: Path) -> str:
    """Return the text of a file, or say why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = nearest(path.name, (entry.name for entry in path.parent.glob("*.y*ml")))
        raise SpecError(Fault("", "there is no such file", near), origin=str(path)) from None
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from None


def unreadable(error: OSError | ValueError) -> Fault:
    """Return why a file cannot be read: a folder, no rights, bytes that are no text."""
    if isinstance(error, UnicodeDecodeError):
        return Fault("", "cannot be read: no UTF-8 text")
    reason = error.strerror if isinstance(error, OSError) else None
    return Fault("", f"cannot be read: {reason or error}")


def load_file(model: type[D], path: Path, prepare: Prepare | None = None) -> D:
    """Return the declaration that a YAML file holds.

    Parameters
    ----------
    model
        The declaration: :class:`ChipSpec`, :class:`SystemSpec`, ...
    prepare
        Called with the plain values before they are checked; may replace values, such as the
        name of a chip by the chip.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    return load_text(model, read_text(path), origin=str(path), prepare=prepare)


def load_text(model: type[D], text: str, *, origin: str = "", prepare: Prepare | None = None) -> D:
    """Return the declaration that a YAML text holds; see :func:`load_file`."""
    tree = read_tree(text, origin)
    plain = plain_values(tree)
    if prepare is not None:
        prepare(plain, tree)
    return load_plain(model, tree, plain, origin=origin)


def load_plain(model: type[D], tree: Tree, plain: PlainValues, *, origin: str = "") -> D:
    """Return the declaration of plain values, with the faults that were found in them before."""
    return _Loader(model, tree, plain, origin).load()


@dataclass
class _Loader(Generic[D]):
    """One file on its way to a declaration."""

    model: type[D]
    tree: Tree
    plain: PlainValues
    origin: str

    def load(self) -> D:
        """Return the declaration, or raise all faults."""
        check = FieldCheck(self.tree.lines, faulty=self.plain.told)
        value = check.declaration(self.model, self.plain.value, ())
        if "provenance" in self.model.model_fields:
            value["provenance"] = self.plain.provenance
        faults = self.plain.faults + check.faults
        try:
            result = self.model.model_validate(value, context={"from_file": True})
        except ValidationError as error:
            faults += self.converted(error, check.faulty)
        if faults:
            raise SpecError(faults, origin=self.origin)
        return result

    def converted(self, error: ValidationError, told: list[Location]) -> list[Fault]:
        """Return what pydantic found, but for what was told already."""
        faults = []
        for entry in error.errors(include_url=False):
            at: Location = tuple(step for step in entry["loc"] if step != "[key]")
            if not any(at[: len(place)] == place or place[: len(at)] == at for place in told):
                faults.append(self.fault(entry, at))
        return faults

    def fault(self, entry: Any, at: Location) -> Fault:
        """Return one pydantic error in the words of this package."""
        found = entry.get("input")
        message: str = entry["msg"].removeprefix("Value error, ")
        if entry["type"] == "missing":
            allowed = ", ".join(_required(self.model, at[:-1]))
            return fault_at(self.tree.lines, at, "is missing", f"required here: {allowed}")
        if entry["type"] == "literal_error":
            known = re.findall(r"'([^']*)'", entry["ctx"]["expected"])
            message = f"expected one of {', '.join(known)}, found {found!r}"
            return fault_at(self.tree.lines, at, message, nearest(str(found), known))
        named = _NAMED_FIELD.fullmatch(message)
        if entry["type"] == "value_error" and named and isinstance(found, dict):
            return fault_at(self.tree.lines, (*at, file_key(named[1])), named[2])
        if entry["type"] != "value_error":
            message = f"{message[0].lower()}{message[1:]}, found {found!r}"
        return fault_at(self.tree.lines, at, message)


def _required(model: Any, at: Location) -> list[str]:
    """Return the required keys of the mapping that stands at a location."""
    for step in at:
        if is_declaration(model):
            info = file_keys(model)[str(step)]
            model = field_type(info.annotation, tuple(info.metadata)).core
        elif get_origin(model) is not None:
            model = field_type(get_args(model)[0 if get_origin(model) is tuple else 1]).core
    if not is_declaration(model):
        return []
    return [key for key, info in file_keys(model).items() if info.is_required()]


__all__ = [
    "data_names", "data_path", "find_name", "load_file", "load_plain", "load_text",
    "looks_like_path", "path_text", "read_text",
]  # fmt: skip
