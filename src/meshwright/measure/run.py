"""One run of ``meshwright measure``: the cases to measure, and the answer with its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meshwright.base.errors import SpecError
from meshwright.base.files import in_the_way, write_all
from meshwright.base.records import Rows, Shown, scalars
from meshwright.catalog.calibration import DEFAULT, Constant, load_calibration
from meshwright.catalog.graphs.torch_export import torch_or_refusal
from meshwright.catalog.systems import load_system
from meshwright.measure.cases import TYPES, kernel_cases, network_cases
from meshwright.measure.constants import chip_of, fitted, made_system
from meshwright.measure.device import CPU, Device, Ranks
from meshwright.measure.files import calibration_text, system_text
from meshwright.measure.session import Progress, Session
from meshwright.spec.calibration import Calibration
from meshwright.spec.measured import Machine, Measured
from meshwright.spec.system import ChipSpec, DType, SystemSpec

BUDGET_S, QUICK_S = 150.0, 30.0
"""Seconds of a run, without the start of PyTorch and without a case that is under way at the
end."""
KERNELS_SHARE = 0.65
"""Share of the budget for kernels of one device; the rest is for the network."""
CPU_TYPES: tuple[DType, ...] = ("fp32", "bf16")
UNKNOWN_TYPES: tuple[DType, ...] = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class MeasuredMachine(Shown):
    """Measurements of a machine, the constants that follow, and the files."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "machine": "measured.machine", "chip": "chip", "constants": "constants",
        **{name: f"measured.{name}" for name in ("unexplained", "taken_s", "left_out", "rows")},
        "files": "files",
    }  # fmt: skip
    measured: Measured
    chip: str | None
    """Chip of the catalog; None: not known."""
    system: str
    """System to price with: its name in the catalog, else its file."""
    constants: tuple[Constant, ...]
    files: tuple[str, ...]

    def rows(self) -> Rows:
        """Return the constants with their ranges."""
        return [scalars(constant) for constant in self.constants]


def measure(
    path: Path, *, quick: bool = False, force: bool = False, command: str = "meshwright measure",
    progress: Callable[[str, str], Progress | None] | None = None,
) -> MeasuredMachine | None:  # fmt: skip
    """Measure the machine of this process and of those that torchrun started beside it.

    Parameters
    ----------
    path
        The calibration file; a system that the catalog does not know goes beside it.
    progress
        Makes a counter of things, given a note.

    Returns
    -------
    MeasuredMachine or None
        None in all processes but the first, which writes for all.

    Raises
    ------
    SpecError
        A file is in the way, or the run was stopped before anything could be fitted.
    UnsupportedError
        There is no PyTorch, or no device that it can time.
    """
    system_path = path.with_name(f"{path.stem}.system.yaml")
    torch = torch_or_refusal()
    device = Device(torch)
    ranks = Ranks(torch, device)
    try:
        machine = device.machine(ranks)
        chip = chip_of(machine)
        faults = [in_the_way(file, force=force) for file in (path, system_path)[: 2 - bool(chip)]]
        if found := [fault for fault in faults if fault is not None]:
            raise SpecError(found)
        budget_s = QUICK_S if quick else BUDGET_S
        counted = None
        if ranks.is_first and progress is not None:
            note = f"; at most {budget_s:.0f} s, Ctrl-C: the rows so far"
            counted = progress("kernels", note)
        session = Session(device, ranks, machine.memory_bytes, counted)
        _run(session, chip, budget_s)
    finally:
        ranks.close()
    if not ranks.is_first:
        return None
    measured = Measured(
        machine=machine, taken_s=session.taken_s, left_out=tuple(session.left_out),
        rows=tuple(session.timings),
    )  # fmt: skip
    return written(measured, chip, path, force=force, command=command)


def _run(session: Session, chip: ChipSpec | None, budget_s: float) -> None:
    """Measure the kernels of a device and the collectives of the network."""
    device, ranks = session.device, session.ranks
    word: DType = "fp32" if device.kind == CPU else "bf16" if chip is None else chip.word
    types = UNKNOWN_TYPES if device.kind != CPU else CPU_TYPES
    if chip is not None:
        types = tuple(name for name in TYPES if name in chip.matmul_flops_per_s)
    of_kernels = budget_s if ranks.number == 1 else KERNELS_SHARE * budget_s
    session.measure(list(kernel_cases(device, types, word)), of_kernels)
    if not session.is_stopped:
        session.measure(list(network_cases(device, ranks, word)), budget_s)


def written(
    measured: Measured, chip: ChipSpec | None, path: Path, *, force: bool, command: str
) -> MeasuredMachine:
    """Return the answer of some rows, after writing its files, all or none."""
    system = made_system(measured) if chip is None else system_of(chip, measured.machine)
    family = system.chip.family
    base: Calibration = load_calibration(family, DEFAULT)
    constants, unexplained = fitted(measured, system, base)
    measured = measured.model_copy(update={"unexplained": unexplained})
    text = calibration_text(path.stem, family, DEFAULT, constants, measured, command)
    files = {path.name: text}
    if chip is None:
        files[f"{path.stem}.system.yaml"] = system_text(system, command)
    paths = write_all(path.parent, files, force=force)
    return MeasuredMachine(
        measured,
        chip=None if chip is None else chip.name,
        system=str(paths[-1]) if chip is None else system.name,
        constants=tuple(constants),
        files=tuple(map(str, paths)),
    )


def system_of(chip: ChipSpec, machine: Machine) -> SystemSpec:
    """Return the standard system of a chip with the devices that were measured."""
    try:
        hosts = machine.num_devices // machine.devices_per_host
        return load_system(f"{hosts}x{machine.devices_per_host}x{chip.name}")
    except SpecError:  # a system without hosts of a size to choose
        return load_system(f"{machine.num_devices}x{chip.name}")
