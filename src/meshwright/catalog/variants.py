"""A system that is like another one, but for some fields: a file with ``like: wafer-6x8``.

Levels are changed by name, ``levels: {rows: {bandwidth: 1 TB/s}}``; all else is stated as in any
system file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshwright.base.errors import nearest
from meshwright.base.units import with_unit
from meshwright.catalog.files import FileFields, Location, PlainValues, Tree, load_plain
from meshwright.spec.declaration import Declaration, Provenance, dimension_of, file_key
from meshwright.spec.system import NetworkLevel, SystemSpec

FIXED = ("num_devices", "grid", "devices_per_host")
"""Fields that the name after ``like`` settles."""
OF_LEVEL = ("name", "kind", "size")
"""Fields of a level that it settles."""


def variant(base: SystemSpec, own: PlainValues, path: Path) -> SystemSpec:
    """Return a system with the fields of a file changed, or all faults of the file."""
    numbers = {level.name: number for number, level in enumerate(base.levels)}
    for field in FIXED:
        if field in own.value:
            own.refuse((field,), "follows from `like`", "leave it out", is_last=True)
    own.value = {k: entry for k, entry in own.value.items() if k not in ("like", *FIXED)}
    changes = own.value.pop("levels", {})
    if not isinstance(changes, dict):
        own.refuse(("levels",), "expected changes by level", f"such as {{{base.levels[0].name}: "
                   "{bandwidth: 1 TB/s}}", is_last=True)  # fmt: skip
        changes = {}
    levels: list[NetworkLevel | FileFields] = list(base.levels)
    for name, change in changes.items():
        at: Location = ("levels", name)
        if name not in numbers:
            own.refuse(at, f"{base.name} has no level {name!r}", nearest(str(name), numbers))
        elif not isinstance(change, dict):
            own.refuse(at, f"expected the fields that change, found {change!r}", is_last=True)
        else:
            for field in OF_LEVEL:
                if field in change:
                    own.refuse((*at, field), "follows from `like`", "leave it out", is_last=True)
            levels[numbers[name]] = as_in_file(base.levels[numbers[name]]) | change
    sources = own.value.get("sources")
    plain = PlainValues(
        Tree(own.tree.value, {_numbered(at, numbers): n for at, n in own.tree.lines.items()}),
        {
            **as_in_file(base),
            "name": path.stem,
            **own.value,
            "levels": levels,
            "sources": {**base.sources, **(sources if isinstance(sources, dict) else {})},
        },
        _origins(base, own, changes, numbers),
        own.faults,
        own.reported,
    )
    return load_plain(SystemSpec, plain, origin=str(path))


def as_in_file(declaration: Declaration) -> FileFields:
    """Return the fields that are known as a file holds them, with units in the values."""
    return {
        (info.alias or file_key(name)): with_unit(value, dimension)
        if (dimension := dimension_of(name))
        else value
        for name, info in type(declaration).model_fields.items()
        if name in declaration.model_fields_set - {"provenance"}
        and (value := getattr(declaration, name)) is not None
    }


def _numbered(at: Location, numbers: Mapping[str, int]) -> Location:
    """Return a place in the file with the number of a level in place of its name."""
    name = str(at[1]) if len(at) > 1 and at[0] == "levels" else ""
    return ("levels", numbers[name], *at[2:]) if name in numbers else at


def _origins(
    base: SystemSpec, own: PlainValues, changes: FileFields, numbers: Mapping[str, int]
) -> dict[str, Provenance]:
    """Return the origin of each value: that of the base, unless the file states the value."""
    stated = tuple(map(str, own.value)) + tuple(
        f"levels[{numbers[str(name)]}].{field}"
        for name, change in changes.items()
        if name in numbers and isinstance(change, dict)
        for field in change
    )
    kept = {path: one for path, one in base.provenance.items() if not path.startswith(stated)}
    for name, number in numbers.items():
        place = f"levels.{name}."
        kept |= {
            f"levels[{number}].{path.removeprefix(place)}": one
            for path, one in own.provenance.items()
            if path.startswith(place)
        }
    return kept | {p: one for p, one in own.provenance.items() if not p.startswith("levels.")}
