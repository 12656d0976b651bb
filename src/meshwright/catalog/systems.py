"""Chips by name or file, and systems: ``64xH100``, ``wafer-6x8``, ``v5p-128``, or a YAML file.

A grid has a shape, written outermost side first, as published: ``6x8`` is six rows of eight
columns, and the last side is level 0 of the network. A rule of its chip says which shapes a wafer
or a TPU slice may have, and which sides wrap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from meshwright.base.errors import Fault, SpecError, UnknownNameError, UnsupportedError, nearest
from meshwright.catalog.files import (
    FileFields,
    Location,
    PlainValues,
    bare,
    data_names,
    find_name,
    load_file,
    looks_like_path,
    plain_values,
    read_text,
    read_tree,
    spellings,
)
from meshwright.catalog.variants import variant
from meshwright.spec.declaration import Count, Declaration, Provenance
from meshwright.spec.system import ChipSpec, NetworkLevel, SystemSpec


def chip_names() -> tuple[str, ...]:
    """Return the names of all chips of the catalog."""
    return tuple(data_names("chips"))


def find_chip(text: str) -> str | None:
    """Return the chip that a text names: letter case, spaces and dashes aside, or as also called.

    ``RTX4090`` and ``4090`` are the RTX-4090.
    """
    return find_name(text, chip_names()) or _spellings().get(bare(text))


@cache
def _spellings() -> Mapping[str, str]:
    return spellings({name: load_chip(name).also_called for name in chip_names()})


def load_chip(name_or_path: str) -> ChipSpec:
    """Return a chip of the catalog (see :func:`find_chip`), or the one in a YAML file.

    Raises
    ------
    UnknownNameError
        When the catalog has no such chip.
    SpecError
        With all faults of the file.
    """
    if looks_like_path(name_or_path):
        return load_file(ChipSpec, Path(name_or_path))
    name = find_chip(name_or_path)
    if name is None:
        raise UnknownNameError("chip", name_or_path, chip_names())
    return _catalog_chip(data_names("chips")[name])


_catalog_chip = cache(partial(load_file, ChipSpec))


Shape = tuple[int, ...]
_SHAPE = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})+")


def shape_text(shape: Shape) -> str:
    """Return a shape as it is written: ``4x4x8``."""
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape | None:
    """Return the sides of a written shape, or None where the text is not a shape."""
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


class GridRule(Declaration):
    """Shapes that a grid may have, and the sides that close into a ring."""

    dims: Count
    """Levels 0 to ``dims - 1`` are the sides of the grid."""
    shapes: tuple[str, ...]
    """Standard shape of each number of devices."""
    other_side_multiple: Count | None = None
    """Number that all sides of any other legal shape are multiples of; None: no other shape."""
    longest_named_side: Count | None = None
    """Longest side of a shape that is named; None: as long as the levels are, which is always the
    limit of the shape that a number of devices means."""
    wraps: Literal["never", "whole_cubes", "full_side"] = "never"
    """``whole_cubes``: all sides wrap once all are multiples of 4 (optical switches join cubes of
    4x4x4). ``full_side``: a side wraps where it is as long as the level allows."""

    @model_validator(mode="after")
    def _shapes_have_these_dims(self) -> Self:
        for text in self.shapes:
            shape = parse_shape(text)
            if shape is None or len(shape) != self.dims:
                raise ValueError(
                    f"shapes: {text!r} is not a shape of {self.dims} sides such as 4x8"
                )
        if not self.shapes:
            raise ValueError("shapes: at least one shape is needed")
        return self

    @property
    def listed(self) -> tuple[Shape, ...]:
        """The standard shapes."""
        return tuple(shape for text in self.shapes if (shape := parse_shape(text)) is not None)

    def allows(self, shape: Shape, longest: Shape) -> bool:
        """Return whether a system may have this shape, where its sides are at most the longest."""
        if shape in self.listed:
            return True
        multiple = self.other_side_multiple
        fits = len(shape) == self.dims and all(a <= b for a, b in zip(shape, longest, strict=True))
        return multiple is not None and fits and all(side % multiple == 0 for side in shape)


def standard_shape(rule: GridRule, longest: Shape, num_devices: int) -> Shape | None:
    """Return the shape meant by a number of devices, or None where no shape has that many.

    A listed shape comes first; otherwise the legal one with the shortest sides in sum, its short
    sides outermost.
    """
    for shape in rule.listed:
        if math.prod(shape) == num_devices:
            return shape
    legal = [
        shape
        for shape in factorings(num_devices, rule.dims)
        if list(shape) == sorted(shape) and rule.allows(shape, longest)
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


class SystemFile(SystemSpec):
    """A system as it is in a file: its levels at their largest, and the shapes of a grid."""

    grid: GridRule | None = None

    @property
    def longest(self) -> Shape:
        """The longest sides of the grid that the levels allow, outermost first."""
        return (
            tuple(level.size for level in reversed(self.levels[: self.grid.dims]))
            if self.grid
            else ()
        )

    @property
    def longest_named(self) -> Shape:
        """The longest sides of a shape that is named."""
        named = self.grid.longest_named_side if self.grid else None
        return self.longest if named is None else tuple(max(named, s) for s in self.longest)

    @model_validator(mode="after")
    def _grid_has_levels(self) -> Self:
        grid = self.grid
        if grid is None:
            return self
        if len(self.levels) < grid.dims:
            raise ValueError(f"levels: {grid.dims} are needed, one for each side of the grid")
        for shape in grid.listed:
            if any(side > limit for side, limit in zip(shape, self.longest, strict=True)):
                limits = shape_text(self.longest)
                raise ValueError(f"grid: {shape_text(shape)} is larger than {limits}")
        return self


FORMS = (
    "forms: 64xH100, 2x4xL4 (two hosts of four), wafer-6x8, 2xwafer-6x8, v5p-128, a system such "
    "as gb200-nvl72, or a path to a file"
)
_SLICE = re.compile(
    r"(?:cloud-?)?(?:tpu-?)?(v3|v4|v5p|v5e|v5litepod|v6e|v7x|7x)-([1-9][0-9]{0,5})", re.IGNORECASE
)
"""A TPU slice by Google's name."""
_SLICE_CHIPS = {"v5litepod": "v5e", "7x": "v7x"}
_SLICE_CORES = {"v3": 2, "v4": 2, "v5p": 2}
"""Units that such a name counts in a chip: its TensorCores; names of later kinds count chips.

Source: Cloud TPU documentation, "v4", "v5p", "v5e" and "v6e", tables of accelerator types (2026):
v5p-8 is 2x2x1, four chips; v5litepod-256 and v6e-256 are 16x16, 256 chips."""
_COUNT_OF_CHIP = re.compile(r"([0-9]{1,9})[xX]([A-Za-z0-9].*)")
_NAME_AND_SHAPE = re.compile(r"(.+)-([0-9]+(?:x[0-9]+)+)")
_NEARLY_COUNT_OF_CHIP = re.compile(r"([0-9]{1,9})[\s*:_-]*+(?:[xX][\s*:_-]*+)?([A-Za-z].*)")
_IN_LEVEL = re.compile(r"levels\[([0-9]+)\](.*)")
_AS_ASKED = Provenance(kind="derived", note="from the size asked for")


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
        ``64xH100``: this many devices of the standard system of that chip; ``2x4xL4``: two hosts of
        four. ``wafer-6x8``: a grid of that shape; ``2xwafer-6x8``: two of them. ``gb200-nvl72``: a
        system of the catalog at its natural size. Otherwise a path to a YAML file.

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
        path = Path(text)
        own = plain_values(read_tree(read_text(path), text))
        if "like" in own.value:
            return _like(own, path)
        file = load_system_file(path)
        is_whole = file.num_devices == math.prod(level.size for level in file.levels)
        return _as_system(file) if is_whole else resized(file, file.num_devices, name=file.name)
    return _by_name(text)


def _like(own: PlainValues, path: Path) -> SystemSpec:
    """Return the system of a file that changes some fields of another one."""
    base = own.value["like"]
    if not isinstance(base, str) or looks_like_path(base):
        message = f"expected the name of a system, found {base!r}"
        raise SpecError(Fault("like", message, "such as wafer-6x8"), origin=str(path))
    try:
        system = _by_name(base.strip())
    except (SpecError, UnknownNameError) as error:
        raise SpecError(Fault("like", str(error)), origin=str(path)) from error
    _find_chips(own, path.parent)
    return variant(system, own, path)


def _by_name(text: str) -> SystemSpec:
    """Return the system of the catalog that a text means."""
    counted = _COUNT_OF_CHIP.fullmatch(text)
    if found := _SLICE.fullmatch(counted[2] if counted else text):
        return _slice(found[1].lower(), int(found[2]), int(counted[1]) if counted else 1)
    count, name = (int(counted[1]), counted[2]) if counted else (1, text)
    if counted and (chip := find_chip(name)):
        file = _catalog_file(data_names("systems")[standard_system(chip)])
        return resized(file, count, name=f"{count}x{chip}")
    nested = _COUNT_OF_CHIP.fullmatch(name)
    if counted and nested and (chip := find_chip(nested[2])):
        return _in_hosts(chip, count, int(nested[1]))
    named = _named_file(name)
    if named and not counted:
        return resized(named, named.num_devices)
    shaped = _NAME_AND_SHAPE.fullmatch(name)
    if shaped and (grid := _named_file(shaped[1])):
        return _shaped(grid, shaped[2], count)
    if named:
        fix = f"{count}x{named.chip.name} means {count} of them"
        raise SpecError(Fault("on", f"{name!r} is a system, not a chip", fix))
    missing = nested[2] if nested else name
    if counted and not missing[0].isdigit():
        raise UnknownNameError("chip", missing, chip_names())
    raise _no_such_system(text)


def _slice(kind: str, number: int, count: int) -> SystemSpec:
    """Return a TPU slice, or several of them, by the number in its name."""
    kind = _SLICE_CHIPS.get(kind, kind)
    cores = _SLICE_CORES.get(kind, 1)
    chips, file = number // cores, _catalog_file(data_names("systems")[f"tpu-{kind}"])
    assert file.grid is not None
    shape = None if number % cores else standard_shape(file.grid, file.longest, chips)
    if shape is None:
        sizes = sorted({math.prod(one) for one in file.grid.listed})
        near = min(sizes, key=lambda size: abs(size - number / cores))
        counts = f"{cores} TensorCores of each chip" if cores > 1 else "chips"
        message = f"there is no slice {kind}-{number}; the number counts {counts}"
        fix = f"{kind}-{near * cores} ({near} chips)"
        raise SpecError(Fault("on", message, fix))
    name = f"tpu-{kind}-{shape_text(shape)}"
    return load_system(name if count == 1 else f"{count}x{name}")


def _in_hosts(chip: str, num_hosts: int, num_devices: int) -> SystemSpec:
    """Return the standard system of a chip with fewer devices in each host.

    A host has one adapter at least, which its devices share.
    """
    file = _catalog_file(data_names("systems")[standard_system(chip)])
    host = file.devices_per_host or (file.levels[0].size if file.levels else 1)
    if len(file.levels) != 2 or file.grid or file.levels[0].size != host:
        message = f"{file.name} has no hosts of a number of devices to choose"
        raise SpecError(Fault("on", message, f"such as {num_hosts * num_devices}x{chip}"))
    if not 1 <= num_devices <= host:
        message = f"{num_devices} devices in a host, but a host of {chip} has {host}"
        raise SpecError(Fault("on", message, f"from 1 to {host}"))
    inner, outer = file.levels
    links = max(outer.links_per_device, 1.0 / num_devices)
    stated = {"levels[0].size": _AS_ASKED, "devices_per_host": _AS_ASKED}
    if links != outer.links_per_device:
        stated["levels[1].links_per_device"] = _AS_ASKED
    smaller = {
        "levels": (
            inner.model_copy(update={"size": num_devices}),
            outer.model_copy(update={"links_per_device": links}),
        ),
        "devices_per_host": num_devices,
        "provenance": {**file.provenance, **stated},
    }
    name = f"{num_hosts}x{num_devices}x{chip}"
    return resized(file.model_copy(update=smaller), num_hosts * num_devices, name=name)


def _no_such_system(text: str) -> SpecError:
    """Return the error for a text that means no system, with the nearest one that does."""
    nearly = _NEARLY_COUNT_OF_CHIP.fullmatch(text)
    chip = find_chip(nearly[2]) if nearly else None
    if nearly and chip:
        return SpecError(Fault("on", f"cannot read {text!r}", f"did you mean {nearly[1]}x{chip}?"))
    chip = find_chip(text)
    if chip:
        return SpecError(Fault("on", f"{chip} is a chip; say how many", f"such as 8x{chip}"))
    if not text or text[0].isdigit():
        return SpecError(Fault("on", f"cannot read {text!r}", FORMS))
    near = nearest(text, system_names())
    return SpecError(Fault("on", f"unknown system {text!r}; {near}", FORMS))


def _named_file(name: str) -> SystemFile | None:
    """Return the system file of the catalog that a name means, letter case aside."""
    found = find_name(name, data_names("systems"))
    return _catalog_file(data_names("systems")[found]) if found else None


@cache
def _catalog_file(path: Path) -> SystemFile:
    """Return a system file of the catalog, read once."""
    return load_system_file(path)


def load_system_file(path: Path) -> SystemFile:
    """Return the system of a file; its chip is written in it, in the catalog or in a file."""
    system = load_file(SystemFile, path, lambda plain: _find_chips(plain, path.parent))
    origin = {
        key.removeprefix("chip."): entry
        for key, entry in system.provenance.items()
        if key.startswith("chip.")
    }
    if system.chip.provenance or not origin:
        return system
    chip = system.chip.model_copy(update={"provenance": origin, "sources": system.sources})
    return system.model_copy(update={"chip": chip})


def _find_chips(plain: PlainValues, folder: Path) -> None:
    """Replace names of chips by the chips; a fault of a chip is a fault of this file."""
    others = plain.value.get("other_chips")
    places: list[tuple[FileFields, Location]] = [(plain.value, ("chip",))]
    if isinstance(others, dict):
        places += [(others, ("other_chips", device)) for device in others]
    for holder, at in places:
        chip = holder.get(at[-1])
        if isinstance(chip, str):
            try:
                path = str(folder / chip) if looks_like_path(chip) else chip
                holder[at[-1]] = load_chip(path)
            except (SpecError, UnknownNameError) as error:
                plain.refuse(at, str(error), is_last=True)


def resized(file: SystemFile, num_devices: int, *, name: str | None = None) -> SystemSpec:
    """Return the system with this many devices: levels as large as they need to be.

    More devices than the largest shape of a grid are several slices.
    """
    if num_devices < 1:
        raise SpecError(Fault("on", f"{num_devices} devices; at least 1 is needed"))
    rule, longest = file.grid, file.longest
    if rule is None:
        room = math.prod(level.size for level in file.levels)
        if num_devices > room:
            message = f"{num_devices} devices, but {file.name} has room for {room}"
            raise SpecError(Fault("on", message, f"largest: {room}x{file.chip.name}"))
        levels = _filled(file.levels, num_devices)
        filled = math.prod(level.size for level in levels)
        if filled != num_devices and all(level.kind in ("mesh", "torus") for level in levels):
            message = f"{num_devices} devices fill no grid of {file.name}"
            raise SpecError(Fault("num_devices", message, f"{filled}, or fewer that fill one"))
        return _as_system(file, name=name or file.name, levels=levels, num_devices=num_devices)
    shape = standard_shape(rule, longest, num_devices)
    if shape is not None:
        return _grid_system(file, rule, shape, 1, name)
    largest = max(rule.listed, key=math.prod)
    slices, left = divmod(num_devices, math.prod(largest))
    outer = file.levels[rule.dims :]
    if left == 0 and outer and slices <= math.prod(level.size for level in outer):
        return _grid_system(file, rule, largest, slices, name)
    asked, most = min(num_devices, math.prod(longest) + 1), math.prod(longest)
    sizes = (range(asked - 1, 0, -1), range(asked + 1, min(4 * asked, most) + 1))
    legal = (((n, standard_shape(rule, longest, n)) for n in side) for side in sizes)
    near = [next((f"{n} ({shape_text(s)})" for n, s in side if s), None) for side in legal]
    found = " or ".join(entry for entry in near if entry)
    message = f"{file.name} has no shape of {num_devices} devices"
    raise SpecError(Fault("on", message, f"next sizes: {found}" if found else ""))


def _filled(levels: tuple[NetworkLevel, ...], num_devices: int) -> tuple[NetworkLevel, ...]:
    """Return the levels filled from the innermost; a part of a torus dimension is open."""
    sized, members = [], num_devices
    for level in levels:
        size = min(level.size, members)
        kind = "mesh" if level.kind == "torus" and size < level.size else level.kind
        sized.append(level.model_copy(update={"size": size, "kind": kind}))
        members = math.ceil(members / level.size)
    return tuple(level for level in sized if level.size > 1)


def _shaped(file: SystemFile, shape_part: str, slices: int) -> SystemSpec:
    """Return a grid with its shape given in the name, or several of them."""
    rule, shape = file.grid, parse_shape(shape_part)
    if rule is None or shape is None:
        natural = f"the name alone means {file.num_devices} devices"
        raise SpecError(Fault("on", f"{file.name} has no shape {shape_part}", natural))
    if not rule.allows(shape, file.longest_named):
        allowed, every = f"standard shapes: {', '.join(rule.shapes)}", rule.other_side_multiple
        if every is not None:
            sides = "" if every == 1 else f"multiples of {every}, "
            limits = shape_text(file.longest_named)
            allowed += f"; others: {rule.dims} sides, {sides}at most {limits}"
        message = f"{file.name} cannot have the shape {shape_text(shape)}"
        raise SpecError(Fault("on", message, allowed))
    outer = file.levels[rule.dims :]
    room = math.prod(level.size for level in outer)
    if any(level.through_io_dies for level in outer) and 1 in shape:
        room = 1
    if not 1 <= slices <= room:
        several = f"from 1 to {room}" if room > 1 else "only one"
        raise SpecError(Fault("on", f"{slices} x {file.name}-{shape_text(shape)}", several))
    name = f"{slices}x{file.name}-{shape_text(shape)}" if slices > 1 else None
    return _grid_system(file, rule, shape, slices, name)


def _grid_system(
    file: SystemFile, rule: GridRule, shape: Shape, slices: int, name: str | None
) -> SystemSpec:
    """Return the system of a shape, or of several slices of it on the network between them.

    Sides that wrap are tori, the others meshes; sides of one device have no level.
    """
    whole_cubes = rule.wraps == "whole_cubes" and all(side % 4 == 0 for side in shape)
    grid = []
    for level, side in zip(file.levels, reversed(shape), strict=False):
        wraps = whole_cubes or (rule.wraps == "full_side" and side == level.size)
        update = {"size": side, "kind": "torus" if wraps else "mesh"}
        grid += [level.model_copy(update=update)] if side > 1 else []
    outer = [
        level.model_copy(update={"links_per_device": 1 / math.prod(shape)})
        if level.through_io_dies
        else level
        for level in file.levels[rule.dims :]
    ]
    shape_name = f"{file.name}-{shape_text(shape)}"
    meaning = f"{slices} slices of {shape_name}" if slices > 1 else shape_name
    return _as_system(
        file,
        name=name or shape_name,
        levels=(*grid, *_filled(tuple(outer), slices)),
        num_devices=slices * math.prod(shape),
        notes=(*file.notes, f"shape: {meaning}"),
    )


def _as_system(file: SystemFile, **changes: object) -> SystemSpec:
    """Return the system without fields that only its file has, with the origins of the rest."""
    values = {name: getattr(file, name) for name in SystemSpec.model_fields} | changes
    levels = {level.name: (place, level) for place, level in enumerate(values["levels"])}
    kept = {}
    for path, origin in file.provenance.items():
        found = _IN_LEVEL.fullmatch(path)
        if found is None:
            kept[path] = origin
            continue
        before = file.levels[int(found[1])]
        if before.name in levels:
            place, level = levels[before.name]
            is_resized = found[2] == ".size" and level.size != before.size
            kept[f"levels[{place}]{found[2]}"] = _AS_ASKED if is_resized else origin
    if "num_devices" in changes:
        kept["num_devices"] = _AS_ASKED
    return SystemSpec.model_validate(values | {"provenance": kept})


def usual_sizes(chip: str) -> tuple[int, ...]:
    """Return the numbers of devices in which a chip of the catalog usually comes, in order.

    Powers of two within a host, then 1 to 8 hosts, and 5 to 8 times a power of two of them; of a
    grid those numbers that have a shape.
    """
    file = _catalog_file(data_names("systems")[standard_system(chip)])
    host = 1 if file.grid or not file.levels else file.levels[0].size
    powers = [2**power for power in range(host.bit_length()) if 2**power < host]
    room = math.prod(level.size for level in file.levels)
    hosts = {times << power for times in range(1, 9) for power in range(room.bit_length())}
    numbers = powers + sorted(host * number for number in hosts if host * number <= room)
    return tuple(number for number in numbers if _has_size(file, number))


def whole_sizes(chip: str) -> tuple[int, ...]:
    """Return the usual numbers of devices of a chip, and all numbers of whole hosts, in order."""
    file = _catalog_file(data_names("systems")[standard_system(chip)])
    usual = usual_sizes(chip)
    if file.grid or not file.levels or not usual:
        return usual
    host = file.levels[0].size
    return tuple(sorted({*usual, *range(host, usual[-1] + 1, host)}))


def comes_in(chip: str, num_devices: int) -> bool:
    """Return whether the standard system of a chip has this size; a part alone has none."""
    standard = load_chip(chip).standard_system
    return standard is not None and _has_size(
        _catalog_file(data_names("systems")[standard]), num_devices
    )


def _has_size(file: SystemFile, num_devices: int) -> bool:
    try:
        resized(file, num_devices)
    except SpecError:
        return False
    return True


def standard_system(chip: str) -> str:
    """Return the name of the system that a number of a chip of the catalog means.

    Raises
    ------
    SpecError
        When the chip has none.
    """
    standard = load_chip(chip).standard_system
    if standard is None:
        fix = "write a system file that names the chip, and give its path"
        raise SpecError(Fault("on", f"the chip {chip} has no standard system", fix))
    return standard


def refuse_mixed_chips(system: SystemSpec) -> None:
    """Raise an error for a system of several types of chips, which no price covers."""
    if system.other_chips:
        names = sorted({system.chip.name, *(chip.name for chip in system.other_chips.values())})
        message = f"{system.name} mixes {', '.join(names)}; plans are for one type of chip"
        raise UnsupportedError(f"{message}: plan each part on its own")


def refuse_single_links(system: SystemSpec, question: str) -> None:
    """Raise an error for wires stated one by one where a question routes no messages over them."""
    stated = [field for field, links in system.single_links.items() if links]
    if stated:
        message = f"{question} is priced by levels, not by single links"
        fix = "leave them out, or change the bandwidth and the latency of the level"
        raise UnsupportedError(f"{' and '.join(stated)} of {system.name}: {message}: {fix}")


@cache
def _best_mfu() -> FileFields:
    """Return the best MFU reported, by chip and type."""
    path = data_names("evidence")["best_mfu"]
    chips: FileFields = read_tree(read_text(path), str(path)).value["chips"]
    return chips


def best_measured_mfu(chip: str, dtype: str) -> float | None:
    """Return the best MFU that anyone has reported for a chip and a type of its linear layers.

    No evidence supports a higher one. FP16 counts as bf16; None where nothing is reported.
    """
    value = _best_mfu().get(chip, {}).get("bf16" if dtype == "fp16" else dtype)
    return None if value is None else float(value)
