"""Chips by name or file, and systems: ``64xH100``, ``wafer-6x8``, ``2xwafer-6x8``, or a YAML file.

A grid has a shape, written outermost side first, as published: ``6x8`` is six rows of eight
columns, and the last side is level 0 of the network. A rule of its chip says which shapes a wafer
or a TPU slice may have, and which sides wrap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import model_validator

from meshwright.base.errors import Fault, SpecError, UnknownNameError, UnsupportedError, nearest
from meshwright.catalog.files import (
    PlainValues,
    Tree,
    data_names,
    data_path,
    fault_at,
    find_name,
    load_file,
    looks_like_path,
)
from meshwright.spec.declaration import Count, Declaration, Provenance
from meshwright.spec.system import ChipSpec, NetworkLevel, SystemSpec


def chip_names() -> tuple[str, ...]:
    """Return the names of all chips of the catalog."""
    return tuple(data_names("chips"))


def load_chip(name_or_path: str) -> ChipSpec:
    """Return a chip of the catalog by name (letter case aside), or the one in a YAML file.

    Raises
    ------
    UnknownNameError
        When the catalog has no such chip.
    SpecError
        With all faults of the file.
    """
    path = data_path("chips", "chip", name_or_path)
    return load_file(ChipSpec, path) if looks_like_path(name_or_path) else _catalog_chip(path)


@cache
def _catalog_chip(path: Path) -> ChipSpec:
    """Return a chip of the catalog, read once."""
    return load_file(ChipSpec, path)


Shape = tuple[int, ...]
_SHAPE = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})+")


class GridRule(Declaration):
    """Which shapes there are, and which of their sides close into a ring."""

    dims: Count
    """Levels 0 to ``dims - 1`` are the sides of the grid."""
    shapes: tuple[str, ...]
    """Standard shape of each number of devices."""
    other_side_multiple: Count | None = None
    """Any other shape is legal whose sides are all multiples of this; none where it is absent."""
    wraps: Literal["never", "whole_cubes", "full_side"] = "never"
    """``whole_cubes``: all sides wrap once all are multiples of 4 (optical switches join cubes of
    4x4x4). ``full_side``: a side wraps where it is as long as the level allows."""

    @model_validator(mode="after")
    def _shapes_have_these_dims(self) -> Self:
        for text in self.shapes:
            shape = parse_shape(text)
            if shape is None or len(shape) != self.dims:
                raise ValueError(f"shapes: {text!r} is no shape of {self.dims} sides such as 4x8")
        if not self.shapes:
            raise ValueError("shapes: at least one shape is needed")
        return self


def shape_text(shape: Shape) -> str:
    """Return a shape as it is written: ``4x4x8``."""
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape | None:
    """Return the sides of a written shape, or None where the text is no shape."""
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


def longest_sides(rule: GridRule, levels: tuple[NetworkLevel, ...]) -> Shape:
    """Return the longest sides the levels allow, outermost first."""
    return tuple(level.size for level in reversed(levels[: rule.dims]))


def listed_shapes(rule: GridRule) -> tuple[Shape, ...]:
    """Return the standard shapes."""
    return tuple(shape for text in rule.shapes if (shape := parse_shape(text)) is not None)


def is_legal(rule: GridRule, longest: Shape, shape: Shape) -> bool:
    """Tell whether a system may have this shape."""
    if shape in listed_shapes(rule):
        return True
    multiple = rule.other_side_multiple
    fits = len(shape) == rule.dims and all(a <= b for a, b in zip(shape, longest, strict=True))
    return multiple is not None and fits and all(side % multiple == 0 for side in shape)


def standard_shape(rule: GridRule, longest: Shape, num_devices: int) -> Shape | None:
    """Return the shape meant by a number of devices, or None where no shape has that many.

    A listed shape comes first; otherwise the legal one with the shortest sides in sum, its short
    sides outermost.
    """
    for shape in listed_shapes(rule):
        if math.prod(shape) == num_devices:
            return shape
    legal = [
        shape
        for shape in factorings(num_devices, rule.dims)
        if list(shape) == sorted(shape) and is_legal(rule, longest, shape)
    ]
    return min(legal, key=sum, default=None)


def factorings(number: int, parts: int) -> Iterator[Shape]:
    """Yield the ways to write a number as a product of this many factors, in order."""
    if parts == 1:
        yield (number,)
        return
    for factor in range(1, number + 1):
        if number % factor == 0:
            for rest in factorings(number // factor, parts - 1):
                yield (factor, *rest)


def near_sizes(rule: GridRule, longest: Shape, num_devices: int) -> str:
    """Return the legal sizes next to a number of devices, in words."""
    lower = (n for n in range(num_devices - 1, 0, -1) if standard_shape(rule, longest, n))
    reach = min(4 * num_devices, math.prod(longest)) + 1
    upper = (n for n in range(num_devices + 1, reach) if standard_shape(rule, longest, n))
    near = [n for n in (next(lower, None), next(upper, None)) if n is not None]
    shapes = (standard_shape(rule, longest, n) for n in near)
    named = zip(near, shapes, strict=True)
    return " or ".join(f"{n} ({shape_text(shape)})" for n, shape in named if shape)


def grid_levels(
    rule: GridRule, levels: tuple[NetworkLevel, ...], shape: Shape
) -> tuple[NetworkLevel, ...]:
    """Return the levels of a grid of this shape, innermost first: tori where they wrap."""
    longest = longest_sides(rule, levels)
    whole_cubes = rule.wraps == "whole_cubes" and all(side % 4 == 0 for side in shape)
    sized = []
    for level, side, limit in zip(levels, reversed(shape), reversed(longest), strict=False):
        wraps = whole_cubes or (rule.wraps == "full_side" and side == limit)
        kind = "torus" if wraps else "mesh"
        sized.append(level.model_copy(update={"size": side, "kind": kind}))
    return tuple(level for level in sized if level.size > 1)


def check_shape(rule: GridRule, longest: Shape, shape: Shape, name: str) -> None:
    """Raise a :class:`SpecError` where a system cannot have this shape."""
    if is_legal(rule, longest, shape):
        return
    allowed = f"standard shapes: {', '.join(rule.shapes)}"
    if rule.other_side_multiple is not None:
        every = rule.other_side_multiple
        sides = "" if every == 1 else f"multiples of {every}, "
        allowed += f"; others: {rule.dims} sides, {sides}at most {shape_text(longest)}"
    raise SpecError(Fault("on", f"{name} cannot have the shape {shape_text(shape)}", allowed))


FORMS = "forms: 64xH100, wafer-6x8, 2xwafer-6x8, a system such as gb200-nvl72, or a path to a file"
_COUNT_OF_CHIP = re.compile(r"([0-9]{1,9})[xX]([A-Za-z].*)")
_NAME_AND_SHAPE = re.compile(r"(.+)-([0-9]+(?:x[0-9]+)+)")
_NEARLY_COUNT_OF_CHIP = re.compile(r"([0-9]{1,9})[\s*:_-]*[xX]?[\s*:_-]*([A-Za-z].*)")
_IN_LEVEL = re.compile(r"levels\[([0-9]+)\](.*)")
_AS_ASKED = Provenance(kind="derived", note="from the size asked for")


class SystemFile(SystemSpec):
    """A system as it stands in a file: its levels at their largest, and the shapes of a grid."""

    grid: GridRule | None = None

    @model_validator(mode="after")
    def _grid_has_levels(self) -> Self:
        grid = self.grid
        if grid is None:
            return self
        if len(self.levels) < grid.dims:
            raise ValueError(f"levels: {grid.dims} are needed, one for each side of the grid")
        longest = longest_sides(grid, self.levels)
        for shape in listed_shapes(grid):
            if any(side > limit for side, limit in zip(shape, longest, strict=True)):
                raise ValueError(f"grid: {shape_text(shape)} is larger than {shape_text(longest)}")
        return self


def system_names() -> tuple[str, ...]:
    """Return the names of all systems of the catalog; grids with each of their standard shapes."""
    names: list[str] = []
    for name, path in data_names("systems").items():
        grid = _catalog_file(path).grid
        names += [f"{name}-{shape}" for shape in grid.shapes] if grid else [name]
    return tuple(names)


def load_system(text: str) -> SystemSpec:
    """Return the system that a text of the user means.

    Parameters
    ----------
    text
        ``64xH100``: this many devices of the standard system of that chip. ``wafer-6x8``: a grid of
        that shape; ``2xwafer-6x8``: two of them. ``gb200-nvl72``: a system of the catalog at its
        natural size. Otherwise a path to a YAML file.

    Raises
    ------
    SpecError
        When the text has no such form, the system has no room or no such shape, or the file has
        faults.
    UnknownNameError
        When the catalog has no such chip or system.
    """
    text = text.strip()
    if looks_like_path(text):
        return _as_system(load_system_file(Path(text)))
    if counted := _COUNT_OF_CHIP.fullmatch(text):
        return _counted(int(counted[1]), counted[2])
    name = find_name(text, data_names("systems"))
    if name is not None:
        file = _catalog_file(data_names("systems")[name])
        return resized(file, file.num_devices)
    shaped = _NAME_AND_SHAPE.fullmatch(text)
    name = find_name(shaped[1], data_names("systems")) if shaped else None
    if shaped is None or name is None:
        raise _no_such_system(text)
    return _shaped(_catalog_file(data_names("systems")[name]), shaped[2])


def load_system_file(path: Path) -> SystemFile:
    """Return what a system file states; its chip may stand in it, in the catalog or in a file."""
    system = load_file(SystemFile, path, lambda plain, tree: _find_chip(plain, tree, path.parent))
    if system.chip.provenance or not any(key.startswith("chip.") for key in system.provenance):
        return system
    origin = {
        key.removeprefix("chip."): entry
        for key, entry in system.provenance.items()
        if key.startswith("chip.")
    }
    chip = system.chip.model_copy(update={"provenance": origin, "sources": system.sources})
    return system.model_copy(update={"chip": chip})


def resized(file: SystemFile, num_devices: int, *, name: str | None = None) -> SystemSpec:
    """Return the system with this many devices: levels as large as they need to be."""
    if num_devices < 1:
        raise SpecError(Fault("on", f"{num_devices} devices; at least 1 is needed"))
    if file.grid is not None:
        return _sliced(file, file.grid, num_devices, name)
    room = math.prod(level.size for level in file.levels)
    if num_devices > room:
        message = f"{num_devices} devices, but {file.name} has room for {room}"
        raise SpecError(Fault("on", message, f"largest: {room}x{file.chip.name}"))
    levels = _filled(file.levels, num_devices)
    return _as_system(file, name=name or file.name, levels=levels, num_devices=num_devices)


def _filled(levels: tuple[NetworkLevel, ...], num_devices: int) -> tuple[NetworkLevel, ...]:
    """Return the levels filled from the innermost; a part of a torus dimension is open."""
    sized, members = [], num_devices
    for level in levels:
        size = min(level.size, members)
        kind = "mesh" if level.kind == "torus" and size < level.size else level.kind
        sized.append(level.model_copy(update={"size": size, "kind": kind}))
        members = math.ceil(members / level.size)
    return tuple(level for level in sized if level.size > 1)


def _sliced(file: SystemFile, rule: GridRule, num_devices: int, name: str | None) -> SystemSpec:
    """Return a grid of this many devices; more than the largest shape makes several slices."""
    longest = longest_sides(rule, file.levels)
    shape = standard_shape(rule, longest, num_devices)
    if shape is not None:
        return _grid_system(file, rule, shape, 1, name)
    largest = max(listed_shapes(rule), key=math.prod)
    slices, left = divmod(num_devices, math.prod(largest))
    room = math.prod(level.size for level in file.levels[rule.dims :])
    if left == 0 and slices <= room and file.levels[rule.dims :]:
        return _grid_system(file, rule, largest, slices, name)
    message = f"{file.name} has no shape of {num_devices} devices"
    near = near_sizes(rule, longest, min(num_devices, math.prod(longest) + 1))
    raise SpecError(Fault("on", message, f"next sizes: {near}" if near else ""))


def _grid_system(
    file: SystemFile, rule: GridRule, shape: Shape, slices: int, name: str | None
) -> SystemSpec:
    """Return the system of a shape, or of several slices of it on the network between them."""
    outer = [
        level.model_copy(update={"links_per_device": 1 / math.prod(shape)})
        if level.through_io_dies
        else level
        for level in file.levels[rule.dims :]
    ]
    levels = grid_levels(rule, file.levels, shape) + _filled(tuple(outer), slices)
    shape_name = f"{file.name}-{shape_text(shape)}"
    meaning = f"{slices} slices of {shape_name}" if slices > 1 else shape_name
    return _as_system(
        file,
        name=name or shape_name,
        levels=levels,
        num_devices=slices * math.prod(shape),
        notes=(*file.notes, f"shape: {meaning}"),
    )


def _shaped(file: SystemFile, shape_part: str, slices: int = 1) -> SystemSpec:
    """Return a grid with its shape given in the name, or several of them."""
    shape = parse_shape(shape_part)
    if file.grid is None or shape is None:
        natural = f"the name alone means {file.num_devices} devices"
        raise SpecError(Fault("on", f"{file.name} has no shape {shape_part}", natural))
    check_shape(file.grid, longest_sides(file.grid, file.levels), shape, file.name)
    outer = file.levels[file.grid.dims :]
    room = math.prod(level.size for level in outer)
    if any(level.through_io_dies for level in outer) and 1 in shape:
        room = 1
    if not 1 <= slices <= room:
        several = f"from 1 to {room}" if room > 1 else "only one"
        raise SpecError(Fault("on", f"{slices} x {file.name}-{shape_text(shape)}", several))
    name = f"{slices}x{file.name}-{shape_text(shape)}" if slices > 1 else None
    return _grid_system(file, file.grid, shape, slices, name)


def _counted(num_devices: int, chip_text: str) -> SystemSpec:
    """Return this many devices of the standard system of a chip."""
    name = find_name(chip_text, chip_names())
    shaped = None if name else _NAME_AND_SHAPE.fullmatch(chip_text)
    grid_name = find_name(shaped[1], data_names("systems")) if shaped else None
    if shaped and grid_name:
        return _shaped(_catalog_file(data_names("systems")[grid_name]), shaped[2], num_devices)
    if name is None:
        system = find_name(chip_text, data_names("systems"))
        if system:
            chip = _catalog_file(data_names("systems")[system]).chip.name
            fix = f"{num_devices}x{chip} means {num_devices} of them"
            raise SpecError(Fault("on", f"{chip_text!r} is a system, not a chip", fix))
        raise UnknownNameError("chip", chip_text, chip_names())
    standard = load_chip(name).standard_system
    if standard is None:
        fix = "write a system file that names the chip, and give its path"
        raise SpecError(Fault("on", f"the chip {name} has no standard system", fix))
    file = _catalog_file(data_names("systems")[standard])
    return resized(file, num_devices, name=f"{num_devices}x{name}")


def _no_such_system(text: str) -> SpecError | UnknownNameError:
    """Return the error for a text that means no system, with the nearest one that does."""
    nearly = _NEARLY_COUNT_OF_CHIP.fullmatch(text)
    chip = find_name(nearly[2], chip_names()) if nearly else None
    if nearly and chip:
        return SpecError(Fault("on", f"cannot read {text!r}", f"did you mean {nearly[1]}x{chip}?"))
    chip = find_name(text, chip_names())
    if chip:
        return SpecError(Fault("on", f"{chip} is a chip; say how many", f"such as 8x{chip}"))
    if not text or text[0].isdigit():
        return SpecError(Fault("on", f"cannot read {text!r}", FORMS))
    near = nearest(text, system_names())
    return SpecError(Fault("on", f"unknown system {text!r}; {near}", FORMS))


def _find_chip(plain: PlainValues, tree: Tree, folder: Path) -> None:
    """Replace the name of the chip by the chip."""
    chip = plain.value.get("chip")
    if isinstance(chip, str):
        plain.value["chip"] = _named_chip(chip, ("chip",), plain, tree, folder)
    others = plain.value.get("other_chips")
    if not isinstance(others, dict):
        return
    for device, other in others.items():
        if isinstance(other, str):
            others[device] = _named_chip(other, ("other_chips", device), plain, tree, folder)


def _named_chip(
    chip: str, at: tuple[str | int, ...], plain: PlainValues, tree: Tree, folder: Path
) -> Any:
    """Return the chip of a name or path; a fault of it is a fault of this file."""
    try:
        return load_chip(str(folder / chip) if looks_like_path(chip) else chip)
    except (SpecError, UnknownNameError) as error:
        plain.faults.append(fault_at(tree.lines, at, str(error)))
        plain.reported.append(at)
        return chip


def _as_system(file: SystemFile, **changes: Any) -> SystemSpec:
    """Return the system without what only its file says."""
    values = {name: getattr(file, name) for name in SystemSpec.model_fields} | changes
    values["provenance"] = _kept_origins(file, values["levels"])
    if "num_devices" in changes:
        values["provenance"]["num_devices"] = _AS_ASKED
    return SystemSpec.model_validate(values)


def _kept_origins(file: SystemFile, levels: tuple[NetworkLevel, ...]) -> dict[str, Provenance]:
    """Return the origin of each value that the system still has, by its path there."""
    places = {level.name: index for index, level in enumerate(levels)}
    kept = {}
    for path, origin in file.provenance.items():
        level = _IN_LEVEL.fullmatch(path)
        if level is None:
            kept[path] = origin
        elif (name := file.levels[int(level[1])].name) in places:
            place = places[name]
            is_resized = (
                level[2] == ".size" and levels[place].size != file.levels[int(level[1])].size
            )
            kept[f"levels[{place}]{level[2]}"] = _AS_ASKED if is_resized else origin
    return kept


@cache
def _catalog_file(path: Path) -> SystemFile:
    """Return a system file of the catalog, read once."""
    return load_system_file(path)


def refuse_mixed_chips(system: SystemSpec) -> None:
    """Raise an error for a system of several types of chips, which no price covers."""
    if system.other_chips:
        names = sorted({system.chip.name, *(chip.name for chip in system.other_chips.values())})
        message = f"{system.name} mixes {', '.join(names)}; plans are for one type of chip"
        raise UnsupportedError(f"{message}: plan each part on its own")


_BEST_MFU = Path(__file__).parent / "data" / "evidence" / "best_mfu.yaml"
_SAME_RATE = {"fp16": "bf16"}


@cache
def _best_mfu() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_BEST_MFU.read_text(encoding="utf-8"))
    return table


def best_measured_mfu(chip: str, dtype: str) -> float | None:
    """Return the highest MFU reported for a chip and a type of its linear layers, or None."""
    rates = _best_mfu()["chips"].get(chip, {})
    value = rates.get(_SAME_RATE.get(dtype, dtype))
    return None if value is None else float(value)
