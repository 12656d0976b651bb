"""From the hardware of a row to a system: the standard one of its chip, with what is stated."""

from __future__ import annotations

import re
from functools import cache
from math import prod

from meshwright.base.errors import MeshwrightError
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import HardwareFields
from meshwright.catalog.chips import chip_names, load_chip
from meshwright.catalog.systems import load_system
from meshwright.spec.system import NetworkLevel, SystemSpec

_PATTERNS = (
    (r"a100.*40", "A100-40GB"), (r"a100.*pcie", "A100-PCIe"), (r"a100", "A100"),
    (r"a800", "A800"), (r"a10g\b", "A10G"), (r"l40s", "L40S"), (r"(rtx[ -]?)?4090", "RTX-4090"),
    (r"h100.*(96|95|500 ?w)", "H100-96GB"), (r"h100.*pcie|h100 nvl", "H100-PCIe"),
    (r"h100", "H100"), (r"h800", "H800"), (r"h20\b", "H20"), (r"h200", "H200"), (r"gh200", "GH200"),
    (r"gb300", "GB300"), (r"gb200", "GB200"), (r"b300", "B300"), (r"b200", "B200"),
    (r"v100", "V100"), (r"mi250x?.*(gcd|die)", "MI250X-GCD"), (r"mi250x", "MI250X"),
    (r"mi250", "MI250"), (r"mi300x", "MI300X"), (r"mi325x", "MI325X"), (r"mi355x", "MI355X"),
    (r"tpu ?-?v3", "TPU-v3"), (r"tpu ?-?v4", "TPU-v4"),
    (r"tpu ?-?v5 ?e|v5 ?lite", "TPU-v5e"), (r"tpu ?-?v5p", "TPU-v5p"),
    (r"tpu ?-?v6e|trillium", "TPU-v6e"), (r"tpu ?-?(v7|7)|ironwood", "TPU-v7x"),
    (r"trainium ?2|trn2", "Trainium2"), (r"trainium|trn1", "Trainium1"),
    (r"gaudi ?2", "Gaudi2"), (r"gaudi ?3", "Gaudi3"), (r"sn10", "SN10"), (r"sn40l", "SN40L"),
    (r"wse-?2|cs-?2", "WSE-2"), (r"wse-?3|cs-?3", "WSE-3"), (r"temp", "TEMP-die"),
    (r"groq", "Groq-LPU"), (r"dojo.*tile", "Dojo-tile"), (r"dojo", "Dojo-D1"),
)  # fmt: skip
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gb/s|gbps|gb?it/s|gbit)", re.IGNORECASE)
_COUNT = re.compile(r"(\d+)\s*(?:x|links?|nics?|rails?)\b", re.IGNORECASE)
_GENERATIONS = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "omni-path": 100.0}
"""Gb/s of one port, one direction."""
_LINKS = re.compile(r"(\d+)\s*(?:inter-?gpu connects?|nvlinks?)\b", re.IGNORECASE)
_DOMAIN = re.compile(r"nvl\s*(\d+)", re.IGNORECASE)
_HOSTS_PER_DOMAIN_CHIPS = ("GB200", "GB300")
"""Chips whose fast domain spans several hosts."""
_IN_HOSTS_OF = {"H100-96GB": "H100", "RTX-4090": "L40S"}
"""Chips without a standard system."""
_DIES_PER_HOST = 8
"""MI250X devices of a host where software counts each die."""


def chip_name_of(hardware: HardwareFields) -> str:
    """Return the chip of the catalog that a row means.

    Raises
    ------
    RefusedError
        When it is none of them.
    """
    for text in (hardware.chip_id, hardware.chip):
        if not text:
            continue
        exact = next((name for name in chip_names() if name.lower() == text.lower()), None)
        if exact:
            return _die_of(exact, hardware)
        for pattern, name in _PATTERNS:
            if re.search(rf"(?<![a-z]){pattern}", text.lower()):
                return _die_of(name, hardware)
    raise RefusedError(Reason.CHIP, hardware.chip_id or hardware.chip or "not stated")


def _die_of(name: str, hardware: HardwareFields) -> str:
    """Return a die in place of a package where hosts are said to have eight of them."""
    is_die = name == "MI250X" and hardware.chips_per_node == _DIES_PER_HOST
    return "MI250X-GCD" if is_die else name


@cache
def system_of(hardware: HardwareFields) -> SystemSpec:
    """Return the system of a row.

    The fabric is the standard one of the chip, but for what is stated: chips of one host, and the
    rate between hosts. TPU slices are joined by the data-centre network.

    Raises
    ------
    RefusedError
        When the chip is unknown, or so many of them form no system.
    """
    chip = chip_name_of(hardware)
    if hardware.chips is None:
        raise RefusedError(Reason.COUNT, chip)
    try:
        system = _sliced(chip, hardware) or _counted(chip, hardware.chips)
    except MeshwrightError as error:
        raise RefusedError(Reason.SYSTEM, str(error).splitlines()[0]) from error
    if not chip.startswith("TPU"):
        system = _with_stated_network(system, hardware, chip)
    return system


def _counted(chip: str, num_devices: int) -> SystemSpec:
    """Return so many chips of the standard system, or in the hosts of the chip nearest to them."""
    if chip not in _IN_HOSTS_OF:
        return load_system(f"{num_devices}x{chip}")
    system = load_system(f"{num_devices}x{_IN_HOSTS_OF[chip]}")
    return system.model_copy(update={"chip": load_chip(chip), "name": f"{num_devices}x{chip}"})


def _sliced(chip: str, hardware: HardwareFields) -> SystemSpec | None:
    """Return several slices side by side, where more than one is stated."""
    count, chips = hardware.slices or 1, hardware.chips or 0
    if not chip.startswith("TPU") or count == 1 or chips % count:
        return None
    alone = load_system(f"{chips // count}x{chip}")
    shape = next(note for note in alone.notes if note.startswith("shape: "))
    return load_system(f"{count}x{shape.removeprefix('shape: ')}")


def _with_stated_network(system: SystemSpec, hardware: HardwareFields, chip: str) -> SystemSpec:
    """Return the system with hosts of the stated size, and the stated rate between them."""
    if not system.levels or any(level.kind in ("torus", "mesh") for level in system.levels):
        return system
    in_host = _domain_size(hardware, chip, system.levels[0].size)
    levels = [system.levels[0]]
    outer = system.levels[1:]
    if outer and prod(level.size for level in system.levels[:-1]) == in_host:
        levels, outer = list(system.levels[:-1]), system.levels[-1:]
    elif in_host < min(levels[0].size, system.num_devices):
        above = _counted(chip, 16 * levels[0].size).levels[1]
        hosts = -(-system.num_devices // in_host)
        levels = [levels[0].model_copy(update={"size": in_host})]
        outer = (above.model_copy(update={"size": hosts}), *outer[1:])
    elif in_host > levels[0].size and outer:
        levels = [levels[0].model_copy(update={"size": min(in_host, system.num_devices)})]
        hosts = -(-system.num_devices // in_host)
        outer = tuple(o.model_copy(update={"size": hosts}) for o in outer[:1] if hosts > 1)
    levels[0] = _with_links(levels[0], hardware.intra_node or "")
    levels += [_with_rate(level, hardware, in_host) for level in outer]
    return system.model_copy(update={"levels": tuple(levels)})


def _domain_size(hardware: HardwareFields, chip: str, standard: int) -> int:
    """Return the chips of one fast domain.

    A job of several racks takes equally many chips of each: 64 of 72 where it has 256.
    """
    named = _DOMAIN.search(hardware.intra_node or "")
    standard = int(named[1]) if named else standard
    chips = hardware.chips or standard
    if chip in _HOSTS_PER_DOMAIN_CHIPS and chips > standard and chips % standard:
        return next(size for size in range(standard, 0, -1) if chips % size == 0)
    if named:
        return standard
    if hardware.chips_per_node is None or chip in _HOSTS_PER_DOMAIN_CHIPS:
        return standard
    return hardware.chips_per_node


def _with_links(level: NetworkLevel, text: str) -> NetworkLevel:
    """Return the level inside a host with as many links for each chip as are stated."""
    stated = _LINKS.search(text)
    if stated is None or not 0 < int(stated[1]) < level.links_per_device:
        return level
    return level.model_copy(update={"links_per_device": float(stated[1])})


def _with_rate(level: NetworkLevel, hardware: HardwareFields, chips_per_host: int) -> NetworkLevel:
    """Return the level between hosts with the stated rate, in one direction, for each chip."""
    rate_gbit = stated_rate_gbit(hardware.inter_node or "", chips_per_host)
    if rate_gbit is None:
        return level
    is_rail = level.rail_optimized and "omni" not in (hardware.inter_node or "").lower()
    changes = {
        "bandwidth_bytes_per_s": rate_gbit * 1e9 / 8.0,
        "links_per_device": 1.0,
        "rail_optimized": is_rail,
    }
    return level.model_copy(update=changes)


def stated_rate_gbit(text: str, chips_per_host: int) -> float | None:
    """Return the rate for each chip that a text states, in one direction [Gb/s]; None: no rate.

    ``400 Gb/s RDMA per GPU`` is 400; ``1600 Gbps node-node`` and ``8x HDR InfiniBand 200 Gb/s per
    node`` are shared by the chips of a host; a rate without either is of one chip. Names of
    InfiniBand generations and Omni-Path stand for their port.
    """
    lowered = text.lower()
    stated = _RATE.search(lowered)
    named = next((rate for name, rate in _GENERATIONS.items() if name in lowered), None)
    if stated is None and named is None:
        return None
    rate = named if stated is None else float(stated[1]) * (1.0 if _is_bits(text, stated) else 8.0)
    assert rate is not None
    count = _COUNT.search(lowered)
    of_host = bool(re.search(r"per node|node-node|per host|per server|per vm", lowered))
    if count and of_host:
        return rate * int(count[1]) / chips_per_host
    is_total = of_host and not re.search(r"per (gpu|chip|device)", lowered)
    return rate / chips_per_host if is_total else rate


def _is_bits(text: str, stated: re.Match[str]) -> bool:
    """Return whether a rate is written in bits: ``Gb/s`` and ``Gbps``, not ``GB/s``."""
    return text[stated.start(2) : stated.end(2)][:2] != "GB"
