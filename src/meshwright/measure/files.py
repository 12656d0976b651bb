"""The files of ``measure``: a calibration with its rows, and a system that no catalog has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from meshwright.catalog.calibration import Constant
from meshwright.spec.declaration import file_key
from meshwright.spec.measured import Measured, Timing
from meshwright.spec.system import SystemSpec

HEAD = "# Written by {command}; not by hand.\n"
SOURCE = "rows"


def calibration_text(
    name: str, family: str, base: str, constants: Iterable[Constant], measured: Measured,
    command: str,
) -> str:  # fmt: skip
    """Return a calibration file in YAML: constants with the rows that they follow from."""
    about = measured.machine
    title = f"{len(measured.rows)} rows of {about.num_devices} x {about.device}"
    content = {
        "name": name, "is_calibrated": True, "based_on": base,
        "sources": {SOURCE: {"title": f"{title}; written by {command}"}},
        "defaults": {},
        "families": {family: {file_key(c.name): c.entry for c in constants}},
        "measured": {
            "machine": _quantities(about.model_dump(), {"memory_bytes": "B"}),
            "taken": f"{measured.taken_s:.4g} s",
            **({} if measured.unexplained is None else {
                "unexplained": float(f"{measured.unexplained:.4g}")
            }),
            "left_out": list(measured.left_out),
        },
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    rows = "".join(f"  - {_row(row)}\n" for row in measured.rows)
    return HEAD.format(command=command) + text + "  rows:\n" + rows


def _row(row: Timing) -> str:
    """Return one row on one line."""
    times = ", ".join(
        f"{name}: {seconds:.4g} s"
        for name, seconds in (("median", row.median_s), ("p25", row.p25_s), ("p75", row.p75_s))
    )
    among = f", group: {row.group}, stride: {row.stride}" if row.group > 1 else ""
    return (
        f"{{kernel: {row.kernel}, dtype: {row.dtype}, shape: {list(row.shape)}{among}, {times}, "
        f"num_samples: {row.num_samples}}}"
    )


def _quantities(values: dict[str, Any], units: dict[str, str]) -> dict[str, Any]:
    """Return fields as a file has them: with their units in the values, nothing that is unknown."""
    found = {}
    for name, value in values.items():
        unit = units.get(name)
        found[file_key(name)] = f"{value:.6g} {unit}" if unit else value
    return found


def system_text(system: SystemSpec, command: str) -> str:
    """Return a measured system with its chip as a file in YAML."""
    chip, memory = system.chip, system.chip.main_memory
    content = {
        "name": system.name, "num_devices": system.num_devices,
        "sources": {SOURCE: {"title": f"measured; written by {command}"}}, "source": SOURCE,
        "devices_per_host": system.devices_per_host,
        "chip": {
            "name": chip.name, "vendor": chip.vendor, "family": chip.family,
            "matmul_rate": _rates(chip.matmul_flops_per_s),
            **({"vector_rate": _rates(chip.vector_flops_per_s)} if chip.vector_flops_per_s else {}),
            "memories": [_quantities(
                {"name": memory.name, "capacity_bytes": memory.capacity_bytes,
                 "bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s},
                {"capacity_bytes": "B", "bandwidth_bytes_per_s": "B/s"},
            )],
            **({"num_cores": chip.num_cores} if chip.num_cores else {}),
            "tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns,
        },
        "levels": [_quantities(
            {"name": level.name, "kind": level.kind, "size": level.size,
             "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s, "latency_s": level.latency_s},
            {"bandwidth_bytes_per_s": "B/s", "latency_s": "s"},
        ) for level in system.levels],
        "notes": list(system.notes),
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    return HEAD.format(command=command) + text


def _rates(rates: Any) -> dict[str, str]:
    return {name: f"{value:.4g} FLOP/s" for name, value in rates.items()}
