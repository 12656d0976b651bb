"""The verb: layers of a model, or measured ones, cut into stages that fit a level of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from meshwright.audit.laws import lawful
from meshwright.base.errors import Fault, SpecError
from meshwright.base.registry import version
from meshwright.catalog.calibration import DEFAULT, load_calibration, load_sram
from meshwright.catalog.footprint_files import FootprintFile
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system, refuse_single_links
from meshwright.cost.problem import certainty_note
from meshwright.dataflow.search import calibrated_system
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.serve.passes import with_stored_weights
from meshwright.sharding.axes import axis_rules
from meshwright.sharding.fixes import found_faults
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import stack
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import ChipSpec, SystemSpec
from meshwright.spec.workload import Training, Workload
from meshwright.sram.answer import (
    PartitionPlan,
    PartitionProof,
    PartitionStage,
)
from meshwright.sram.audited import facts_of
from meshwright.sram.contiguous import StageCapacities, too_large
from meshwright.sram.kernels import kernel_row, row_notes
from meshwright.sram.price import batch_of
from meshwright.sram.proposals import (
    Progress,
    batch_options,
    level_options,
    measured_proposals,
    proposals,
)
from meshwright.sram.question import (
    CACHE_FRACTION,
    CACHES,
    PLAN_OPTIONS,
    LayerSequence,
    PartitionProblem,
    StageDevices,
    level_of,
    measured_layers,
    room_bytes,
)
from meshwright.sram.search import (
    CutObjective,
    CutProblem,
    Solution,
    bound,
    cut_problems_of,
    fewest_stops,
    group_choices,
    solve,
    solve_measured,
    weights_bound,
)
from meshwright.topology.wafer import host_link


def check_degrees(problem: PartitionProblem) -> None:
    """Refuse degrees that the rules of the axes forbid.

    Raises
    ------
    SpecError
        Every rule that is broken, with the nearest legal change.
    """
    tp, ep, chip = problem.tensor_degree, problem.expert_degree, problem.system.chip
    if tp % ep:
        raise SpecError(Fault("ep", f"{ep} does not divide tp {tp}", "a divisor of tp"))
    if ep > 1 and not problem.priced_problem.num_experts:
        raise SpecError(Fault("ep", f"{problem.model.name} has no experts", "ep 1"))
    columns = stack([problem.strategy(1)])
    tile = {"tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns}
    case = Case(problem.model, problem.workload, PLAN_OPTIONS, columns, **tile)
    found, change = found_faults(axis_rules(), case, tp, replicas=())
    if found:
        raise SpecError([Fault(one.name, one.text(case, 0), change) for one in found])


def notes_of(problem: PartitionProblem, solution: Solution | None) -> Iterator[str]:
    """Yield notes on assumptions, on parts left out, and on idle devices."""
    system, memory = problem.system, problem.memory
    constants = problem.calibration
    if note := certainty_note(problem.sram, is_calibrated=constants.is_calibrated):
        yield note
    if memory.name in CACHES and problem.capacity_bytes is None:
        yield (
            f"{memory.name} is a cache: {CACHE_FRACTION:.0%} counts as capacity for resident "
            "layers (assumed, range 50 to 75 %)"
        )
    if any(level.data_parallel_only for level in system.levels):
        yield (f"the network of {system.name} is built for data parallelism; sends between stages "
               "are priced on it all the same")  # fmt: skip
    if problem.model.tied_embeddings:
        yield "embedding and head share a table; each end of the row holds a copy of it"
    if solution is None:
        return
    if isinstance(problem.workload, Training) and solution.has_devices:
        yield "one row of stages; the update, and gradients of further replicas, are not priced"
    idle = system.num_alive - len(solution.stops) * problem.tensor_degree * solution.replicas
    if solution.has_devices and idle:
        yield f"{idle} of {system.num_alive} devices stay idle"


LOADED = ("weights", "optimizer")
"""Parts that come from outside; the others are only set aside."""


def stages_of(solution: Solution) -> tuple[PartitionStage, ...]:
    """Return the deployment of each stage that is not empty."""
    cut_problem, layers = solution.cut_problem, solution.cut_problem.layers
    runs = list(pairwise([0, *solution.stops]))
    filled = [stage for stage, (first, stop) in enumerate(runs) if stop > first]
    capacities = cut_problem.stage_capacities.capacities(len(runs)).tolist()
    kept = cut_problem.stage_capacities.in_flight(len(runs)).tolist()
    if cut_problem.is_training:  # its stages are filled from the last one
        capacities, kept = capacities[::-1], kept[::-1]
    host = host_link(cut_problem.devices.system) if cut_problem.devices else None
    found = []
    for place, stage in enumerate(filled):
        first, stop = runs[stage]
        parts = layers.parts_bytes(first, stop, kept[stage])
        loaded = {name: size for name, size in parts.items() if name in LOADED}
        is_last = place + 1 == len(filled)
        seconds = solution.stage_seconds[place]
        found.append(
            PartitionStage(
                devices=cut_problem.devices.devices_of(stage) if cut_problem.devices else (),
                first_layer=layers.names[first],
                last_layer=layers.names[stop - 1],
                num_layers=stop - first,
                load_parts_bytes=loaded,
                reserved_parts_bytes={n: s for n, s in parts.items() if n not in LOADED},
                room_bytes=capacities[stage],
                sent_bytes=0.0 if is_last and not place else float(layers.output_bytes[stop - 1]),
                work_s=seconds.work_s if layers.time_parts_s else None,
                send_s=seconds.entry_s + seconds.exit_s if cut_problem.devices else None,
                load_s=sum(loaded.values()) / host.bandwidth_bytes_per_s if host else None,
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Cut:
    """Limits and objective of a cut, apart from the layers and the devices."""

    objective: str = "balance"
    level: str | None = None
    """Level of memory that holds the layers; None: the nearest one."""
    capacity_bytes: float | None = None
    """Room of a device, in place of that of the level [bytes]."""
    tensor_degree: int = 1
    expert_degree: int = 1
    num_groups: int | None = None
    """Groups of sequences in flight; None: the best number."""


def partition(
    model: ModelSpec | str, system: SystemSpec | str, workload: Workload, cut: Cut = Cut(),
    *, calibration: str = DEFAULT, progress: Progress | None = None, command: str = "",
) -> PartitionPlan:  # fmt: skip
    """Return the layers of a model cut into stages that fit a level of memory.

    Where they do not fit, the answer has no stages, or more than there are devices for, and
    proposals instead. ``progress`` is called with the number of batches or proposals done, and of
    all.

    Raises
    ------
    SpecError
        Degrees that the rules of the axes forbid, or more groups than there are sequences.
    """
    system_spec = load_system(system) if isinstance(system, str) else system
    refuse_single_links(system_spec, "a partition")
    sram = load_sram(system_spec.chip, calibration)
    constants = load_calibration(system_spec.chip.family, calibration)
    if sram.is_calibrated and not isinstance(workload, Training):
        constants = replace(constants, is_calibrated=True)
    model_spec = load_model(model) if isinstance(model, str) else model
    if not isinstance(workload, Training):
        workload = with_stored_weights(workload, model_spec, system_spec.chip)
    problem = PartitionProblem(
        model=model_spec,
        system=system_spec,
        workload=workload,
        calibration=constants,
        level=level_of(system_spec.chip, cut.level) if cut.level else 0,
        tensor_degree=cut.tensor_degree,
        expert_degree=cut.expert_degree,
        capacity_bytes=cut.capacity_bytes,
        sram=sram,
    )
    check_degrees(problem)
    batch = batch_of(workload)
    if cut.num_groups is not None and cut.num_groups > batch:
        message = f"{cut.num_groups} groups of a batch of {batch}"
        raise SpecError(Fault("groups", message, f"at most {batch}"))
    objective = CutObjective(cut.objective)
    solution = solve(problem, objective, cut.num_groups)
    groups = solution.num_groups if solution else cut.num_groups or group_choices(problem)[-1]
    cut_problem = solution.cut_problem if solution else cut_problems_of(problem, [groups])[0]
    fits = solution is not None and solution.has_devices
    tuned = fits and cut.num_groups is None and not isinstance(workload, Training)
    offers = [] if fits else proposals(problem, objective, cut.num_groups, solution, progress)
    batches, largest = batch_options(problem, objective, progress) if tuned else ((), None)
    plan = _plan(problem.model.name, system_spec, cut, cut_problem, solution, problem.memory.name)
    plan = replace(
        plan,
        workload=workload,
        levels=level_options(problem, objective, cut.num_groups),
        batches=batches,
        largest_batch=largest,
        proposals=tuple(offers),
        warnings=tuple(notes_of(problem, solution)),
        command=command,
    )
    return lawful(plan, facts_of(problem, plan))


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
    if spec is not None:
        refuse_single_links(spec, "a partition")
    layers = measured_layers(file)
    if cut.objective == CutObjective.TIME and not layers.layer_s.any():
        raise SpecError(Fault("objective", "time needs the time of every layer", "in the file"))
    return _partition_row(file.name, layers, cut, spec, calibration, command)


def partition_graph(
    graph: DataflowGraph, cut: Cut, system: SystemSpec | None = None, *,
    calibration: str = DEFAULT, command: str = "",
) -> PartitionPlan:  # fmt: skip
    """Return the kernels of a graph cut into stages that fit a stated capacity, or a memory.

    Raises
    ------
    SpecError
        Neither a capacity nor a system is stated, or times are needed and there is no system.
    """
    if system is None:
        layers = kernel_row(graph)
        if cut.objective == CutObjective.TIME:
            raise SpecError(Fault("objective", "time needs devices", "--on SYSTEM"))
    else:
        machine = calibrated_system(system, calibration)
        level = level_of(system.chip, cut.level) if cut.level else 0
        layers = kernel_row(graph, machine, level, load_sram(system.chip, calibration))
    found = _partition_row(graph.name, layers, cut, system, calibration, command)
    return replace(found, warnings=tuple(row_notes(graph)))


def _partition_row(
    name: str, layers: LayerSequence, cut: Cut, spec: SystemSpec | None, calibration: str,
    command: str,
) -> PartitionPlan:  # fmt: skip
    """Return a row of layers that nothing divides cut into stages."""
    devices = None
    if spec is not None:
        if cut.tensor_degree > spec.num_alive:
            message = (
                f"a stage of {cut.tensor_degree} devices, but {spec.name} has {spec.num_alive}"
            )
            raise SpecError(Fault("tp", message, f"at most {spec.num_alive}"))
        devices = StageDevices(
            spec, load_calibration(spec.chip.family, calibration), cut.tensor_degree
        )
    stage_capacities = _measured_capacities(cut, devices)
    cut_problem = CutProblem(layers, stage_capacities, devices)
    solution = solve_measured(cut_problem, CutObjective(cut.objective))
    fits = solution is not None and solution.has_devices
    offers = [] if fits else measured_proposals(cut_problem)
    nearest_level = spec.chip.memories[0].name if spec else ""
    plan = _plan(name, spec, cut, cut_problem, solution, cut.level or nearest_level)
    return replace(plan, proposals=tuple(offers), command=command)


def _measured_capacities(cut: Cut, devices: StageDevices | None) -> StageCapacities:
    """Return the room of the stages of measured layers."""
    if cut.capacity_bytes is not None:
        return StageCapacities((cut.capacity_bytes,))
    if devices is None:
        raise SpecError(Fault("capacity", "is needed", "or a system whose memory is known"))

    def room_of(chip: ChipSpec) -> float:
        level = level_of(chip, cut.level) if cut.level else 0
        return room_bytes(chip.memories[level], devices.calibration)

    return StageCapacities(devices.rooms_bytes(room_of))


def _plan(
    source: str, system: SystemSpec | None, cut: Cut, cut_problem: CutProblem,
    solution: Solution | None, level: str,
) -> PartitionPlan:  # fmt: skip
    """Return the fields that every answer has; ``level`` is used unless room is stated."""
    names, used, fewest = cut_problem.layers.names, 0, fewest_stops(cut_problem)
    if solution is not None:
        used = len(solution.stops) * cut.tensor_degree * solution.replicas
    alone = too_large(cut_problem.layers.loads, cut_problem.stage_capacities)
    return PartitionPlan(
        source=source,
        system=system.name if system else "",
        workload=None,
        level=level if cut.capacity_bytes is None else "stated",
        room_bytes=max(cut_problem.stage_capacities.capacity_bytes),
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
        too_large=tuple(names[index] for index in alone.tolist()),
        proof=PartitionProof(
            None if fewest is None else len(set(fewest) - {0}),
            bound(cut_problem),
            weights_bound(cut_problem),
        ),
        rates=solution.rates if solution else None,
        version=version(),
    )
