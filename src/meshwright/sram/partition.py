"""The verb: layers of a model, or measured ones, cut into stages that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.spec.footprint import FootprintFile
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training, Workload
from meshwright.sram.answer import PartitionPlan
from meshwright.sram.answers import batches_of, levels_of, proof_of, stages_of
from meshwright.sram.checks import check_degrees, check_group, check_groups
from meshwright.sram.contiguous.rooms import Rooms
from meshwright.sram.cuts import Objective, layers_too_large
from meshwright.sram.ground import Ground
from meshwright.sram.line import Line
from meshwright.sram.notes import notes_of
from meshwright.sram.options import batch_options, level_options
from meshwright.sram.proposals import Progress, proposals, row_proposals
from meshwright.sram.rates import batch_of
from meshwright.sram.row import measured_row
from meshwright.sram.setting import Setting, level_of, room_bytes
from meshwright.sram.solve import Solution, grounds_of, group_choices, solve, solve_row
from meshwright.train.candidates import version


@dataclass(frozen=True)
class Cut:
    """How the layers may be cut, apart from what they are and where they go."""

    objective: str = "balance"
    level: str | None = None
    """Memory that holds the layers; the nearest one where it is not named."""
    capacity_bytes: float | None = None
    """Room of a device, instead of that of the level [bytes]."""
    tensor_degree: int = 1
    expert_degree: int = 1
    num_groups: int | None = None
    """Groups of sequences in flight; the best number where it is open."""


def partition(
    model: ModelSpec | str, system: SystemSpec | str, workload: Workload, cut: Cut = Cut(),
    *, calibration: str = DEFAULT, progress: Progress | None = None, command: str = "",
) -> PartitionPlan:  # fmt: skip
    """Return the layers of a model cut into stages that fit a level of memory.

    Where they do not fit, the answer has no stages, or more than there are devices for, and
    proposals instead. ``progress`` hears how many batches or proposals are done, and of how many.
    """
    system_spec = load_system(system) if isinstance(system, str) else system
    setting = Setting(
        model=load_model(model) if isinstance(model, str) else model,
        system=system_spec,
        workload=workload,
        calibration=load_calibration(system_spec.chip.family, calibration),
        level=level_of(system_spec.chip, cut.level) if cut.level else 0,
        tensor_degree=cut.tensor_degree,
        expert_degree=cut.expert_degree,
        capacity_bytes=cut.capacity_bytes,
    )
    check_degrees(setting)
    check_groups(cut.num_groups, batch_of(workload))
    objective = Objective(cut.objective)
    solution = solve(setting, objective, cut.num_groups)
    groups = solution.num_groups if solution else cut.num_groups or group_choices(setting)[-1]
    ground = solution.ground if solution else grounds_of(setting, [groups])[0]
    fits = solution is not None and solution.has_devices
    tuned = fits and cut.num_groups is None and not isinstance(workload, Training)
    offers = [] if fits else proposals(setting, objective, cut.num_groups, solution, progress)
    batches, largest = batch_options(setting, objective, progress) if tuned else ([], None)
    return _plan(
        setting.model.name, system_spec, cut, ground, solution,
        workload=workload,
        level=setting.memory.name if cut.capacity_bytes is None else "stated",
        levels=levels_of(level_options(setting, objective, cut.num_groups), cut.tensor_degree),
        batches=batches_of(batches),
        largest_batch=largest,
        proposals=tuple(offers),
        warnings=tuple(notes_of(setting, solution)),
        command=command,
    )  # fmt: skip


def partition_measured(
    file: FootprintFile, cut: Cut, system: SystemSpec | str | None = None, *,
    calibration: str = DEFAULT, command: str = "",
) -> PartitionPlan:  # fmt: skip
    """Return measured layers cut into stages that fit a stated capacity, or a level of memory.

    Raises
    ------
    SpecError
        Neither a capacity nor a system is stated, or times are needed and not there.
    """
    spec = load_system(system) if isinstance(system, str) else system
    row, objective = measured_row(file), Objective(cut.objective)
    if objective is Objective.TIME and not row.has_times:
        raise SpecError(Fault("objective", "time needs the time of every layer", "in the file"))
    line = None
    if spec is not None:
        check_group(cut.tensor_degree, spec)
        line = Line(spec, load_calibration(spec.chip.family, calibration), cut.tensor_degree)
    rooms = _measured_rooms(cut, line)
    solution = solve_row(row, rooms, objective, line)
    ground = solution.ground if solution else Ground(row, rooms, line)
    fits = solution is not None and solution.has_devices
    offers = [] if fits else row_proposals(row, rooms, ground.most_stages)
    name = spec.chip.memories[0].name if spec else ""
    return _plan(
        file.name, spec, cut, ground, solution,
        level="stated" if cut.capacity_bytes is not None else cut.level or name,
        proposals=tuple(offers), command=command,
    )  # fmt: skip


def _measured_rooms(cut: Cut, line: Line | None) -> Rooms:
    """Return the room of the stages of measured layers."""
    if cut.capacity_bytes is not None:
        return Rooms((cut.capacity_bytes,))
    if line is None:
        raise SpecError(Fault("capacity", "is needed", "or a system whose memory is known"))
    found = []
    for stage in range(max(line.num_stages, 1) if line.system.other_chips else 1):
        chips = line.chips_of(stage)
        levels = [level_of(chip, cut.level) if cut.level else 0 for chip in chips]
        sizes = [room_bytes(chip.memories[level], line.calibration)
                 for chip, level in zip(chips, levels, strict=True)]  # fmt: skip
        found.append(min(sizes))
    return Rooms(tuple(found))


def _plan(
    source: str, system: SystemSpec | None, cut: Cut, ground: Ground, solution: Solution | None,
    **more: Any,
) -> PartitionPlan:  # fmt: skip
    """Return an answer; ``more`` are fields that only some questions have."""
    names, used = ground.row.names, 0
    if solution is not None:
        used = len(solution.stops) * cut.tensor_degree * solution.replicas
    fields: dict[str, Any] = {"workload": None, **more}
    return PartitionPlan(
        source=source,
        system=system.name if system else "",
        room_bytes=max(ground.rooms.capacity_bytes),
        objective=cut.objective,
        tensor_degree=cut.tensor_degree,
        expert_degree=cut.expert_degree,
        num_layers=len(names),
        num_devices_given=system.num_alive if system else None,
        num_devices_used=used,
        replicas=solution.replicas if solution else 0,
        num_groups=solution.num_groups if solution else 0,
        group_size=solution.group_size if solution else 0,
        stages=stages_of(solution) if solution else (),
        too_large=tuple(names[index] for index in layers_too_large(ground).tolist()),
        proof=proof_of(ground),
        rates=solution.rates if solution else None,
        version=version(),
        **fields,
    )
