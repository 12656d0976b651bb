"""Questions of users: specifications loaded, defaults filled in, choices and legality checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.frameworks import framework_names, load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system, refuse_mixed_chips
from meshwright.catalog.workloads import default_optimizer, load_optimizer
from meshwright.cost.communication import DATA_PARALLEL_ONLY, crosses_data_parallel_network
from meshwright.cost.energy import dynamic_parts_j, link_energy_j, system_parts_j
from meshwright.cost.operator import stated_rate
from meshwright.cost.problem import Problem
from meshwright.graph.parameters import count_parameters, num_adapter_params
from meshwright.sharding import launching
from meshwright.sharding.axes import axis_rules
from meshwright.sharding.fixes import fix_of, found_faults
from meshwright.sharding.rules import Case
from meshwright.sharding.space import divisors, virtual_stage_counts
from meshwright.sharding.strategy import (
    DEGREES,
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    make_strategy,
    stack,
)
from meshwright.spec.calibration import Calibration
from meshwright.spec.declaration import Provenance
from meshwright.spec.framework import UNNAMED, Framework
from meshwright.spec.model import REGIONS, ModelSpec
from meshwright.spec.system import ChipSpec, SystemSpec
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack, Training
from meshwright.topology.levels import network_of
from meshwright.train.measured.factors import Factors


def training(system: SystemSpec | str, *, has_run: bool = False, **fields: Any) -> Training:
    """Return a training workload.

    ``optimizer`` is a preset, its name, or the default of the framework, else of the system;
    ``framework`` one of the catalog or its name, and ``software`` adds to its software;
    ``precision`` all types, or that of the linear layers, by default that of the framework, else
    the 16 bits of the chip; ``gradient_dtype`` replaces the type of gradients. Compiled software
    fuses elementwise operators.

    Parameters
    ----------
    has_run
        The job ran already, so the framework supports the chips and the precision.

    Raises
    ------
    SpecError
        The framework does not run on such chips, or not in this precision.
    """
    spec = load_system(system) if isinstance(system, str) else system
    framework, optimizer = fields.pop("framework", None), fields.pop("optimizer", None)
    types, gradients = fields.pop("precision", None), fields.pop("gradient_dtype", None)
    given = {"optimizer": optimizer, "gradient_dtype": gradients}
    names = [name for name, value in given.items() if value is not None]
    switches = fields.get("software", SoftwareStack()).model_fields_set
    fields["stated"] = (*names, *sorted(f"software.{name}" for name in switches))
    if isinstance(framework, str):
        framework = load_framework(framework)
    if not isinstance(types, Precision):
        types = Precision.on(spec.chip, types or (framework.word if framework else None))
    if framework is not None:
        stack = framework.stack(family=spec.chip.family, precision=types.activation)
        stated = fields.get("software", SoftwareStack())
        changes = {name: getattr(stated, name) for name in stated.model_fields_set}
        if changes.get("async_tensor_parallel") and framework.launches.compiles_overlap:
            changes.setdefault("compiled", True)
        if changes.get("compiled"):
            changes.setdefault("eager", False)
        fields["software"] = stack.model_copy(update=changes)
        if not has_run:
            _check_framework(framework, spec, types, fields["software"])
    usual = (framework or UNNAMED).optimizer_of(types.activation)
    optimizer = optimizer or usual or default_optimizer(spec)
    if isinstance(optimizer, str):
        optimizer = load_optimizer(optimizer)
    if framework and optimizer.freezes_weights and not framework.launches.adapters and not has_run:
        others = [name for name in frameworks_on(spec.chip)
                  if load_framework(name).launches.adapters]  # fmt: skip
        message = f"{framework.title} trains no adapters on frozen weights"
        raise SpecError(Fault("framework", message, ", ".join(others) or "another optimizer"))
    if gradients is not None and optimizer.freezes_weights:
        message = f"{optimizer.name} trains adapters only; their gradients have their own type"
        raise SpecError(Fault("gradient_dtype", message, "leave it out"))
    optimizer = optimizer if gradients is None else optimizer.with_gradients(gradients)
    return Training(optimizer=optimizer, precision=types, **fields)


def under(problem: Problem, framework: str) -> Problem:
    """Return a problem as it is with another framework: what the question states stays.

    Raises
    ------
    SpecError
        The framework does not run on the chips, not in the precision, or not with what is stated.
    """
    work, system = problem.workload, problem.system
    software, usual = work.software, SoftwareStack()
    stated = work.stated
    if stated is None:
        differing = [name for name in SoftwareStack.model_fields
                     if getattr(software, name) != getattr(usual, name)]  # fmt: skip
        stated = ("optimizer", *(f"software.{name}" for name in differing))
    kept = {name: getattr(software, name) for name in SoftwareStack.model_fields
            if f"software.{name}" in stated and name not in ("framework", "launches")}  # fmt: skip
    gradients = "fp32" if work.optimizer.gradient_bytes_per_param > BYTES_OF["bf16"] else "bf16"
    others = {name: getattr(work, name) for name in Training.model_fields
              if name not in ("kind", "optimizer", "software", "stated")}  # fmt: skip
    asked = training(
        system, framework=framework, software=SoftwareStack(**kept),
        optimizer=work.optimizer if "optimizer" in stated else None,
        gradient_dtype=gradients if "gradient_dtype" in stated else None, **others,
    )  # fmt: skip
    constants = problem.calibration
    if problem.constants_under is not None:
        constants = problem.constants_under(asked.software.framework)
    asked = _with_adapters(_with_stored_weights(asked, problem.model), problem.model)
    return replace(problem, workload=asked, calibration=constants)


def switched_on(workload: Training) -> Training:
    """Return the work with every free switch of its framework on that is not fixed.

    A free switch makes no plan slower or larger. Stated fields of the software are fixed,
    and so are the defaults of the framework. Without a framework nothing changes.
    """
    software = workload.software
    if software.launches is None:
        return workload
    switches = software.launches.switches.model_dump(exclude_none=True)
    changes = {name: value for name, value in switches.items()
               if name not in software.model_fields_set}  # fmt: skip
    if changes.get("compiled"):
        changes["eager"] = False
    return workload.model_copy(update={"software": software.model_copy(update=changes)})


def stated_strategy(
    one: Mapping[str, Any], model: ModelSpec, num_devices: int, software: SoftwareStack
) -> tuple[Strategy, PlanOptions]:
    """Return the strategy that one value of each degree and choice states.

    dp takes the remaining devices. Other choices are the defaults of the framework; without
    one: sequence parallelism with tp, ZeRO-1 with data parallelism, 1F1B (interleaved with virtual
    stages), nothing recomputed.

    Parameters
    ----------
    one
        By the names of :class:`StrategyOf` and :class:`PlanOptions`, and ``dp``.

    Raises
    ------
    SpecError
        Values that contradict each other.
    """
    habits = load_framework(software.framework) if software.framework else UNNAMED
    tp, pp = one.get("tp", 1), one.get("pp", 1)
    dp = one.get("dp", max(num_devices // (tp * pp * one.get("cp", 1) * one.get("tatp", 1)), 1))
    shard = one.get("dp_shard", dp)
    if dp % shard:
        raise SpecError(Fault("dp_shard", f"{shard} does not divide dp {dp}", "a divisor of dp"))
    usual = {"etp": tp} if habits.splits_experts_over_tp and model.has_experts else {}
    degrees = {name: one[name] for name in DEGREES if name in one}
    strategy = make_strategy(**{**usual, **degrees, "dp_shard": shard, "dp_replicate": dp / shard})
    interleaved = strategy.num_virtual_stages > 1
    shards_something = shard * strategy.cp > 1
    options = {name: one[name] for name in OPTION_NAMES if name in one}
    stage = options.setdefault("zero_stage", habits.zero_stage if shards_something else 0)
    splits_sequence = options.setdefault("sequence_parallel", habits.sequence_parallel and tp > 1)
    for name, kind in _REFINED.items():
        refines = options.get(name, getattr(PlanOptions, name)) != getattr(PlanOptions, name)
        if refines and options.setdefault("recompute", kind) is not kind:
            message = f"says nothing about {options['recompute']} recomputation"
            raise SpecError(Fault(name, message, f"--recompute {kind}"))
    launches = software.launches
    kinds = launches.context_kinds if launches is not None and strategy.cp > 1 else ()
    defaults: dict[str, Any] = {
        "context_kind": ContextKind(next(iter(kinds), ContextKind.RING)),
        "reshard_after_forward": habits.drops_gathered_weights
        and (pp == 1 or habits.drops_in_pipelines),
        "recompute": Recompute(habits.recompute),
        "overlap_data_parallel": habits.overlaps_data_parallel or stage == 3,
        "schedule": ScheduleKind.INTERLEAVED if interleaved else ScheduleKind.ONE_F_ONE_B,
        "overlap_tensor_parallel": software.async_tensor_parallel and splits_sequence and tp > 1,
    }
    return strategy, PlanOptions(**{**defaults, **options})


OPTION_NAMES = tuple(field.name for field in fields(PlanOptions))
_REFINED = {
    "recompute_layers": Recompute.FULL, "recompute_run": Recompute.FULL,
    "recompute_modules": Recompute.SELECTIVE, "kept_tensors": Recompute.SELECTIVE,
    "offloaded_tensors": Recompute.SELECTIVE,
}  # fmt: skip
"""Options that refine one kind of recomputation."""


def frameworks_on(chip: ChipSpec, dtype: str | None = None) -> list[str]:
    """Return the frameworks of the catalog that run on a chip, and train in a precision."""
    known = {name: load_framework(name).launches for name in framework_names()}
    return [name for name, launches in known.items()
            if chip.vendor in launches.vendors
            and (dtype is None or dtype in launches.precisions)]  # fmt: skip


def _check_framework(
    framework: Framework, system: SystemSpec, precision: Precision, software: SoftwareStack
) -> None:
    """Refuse a framework without support for the chips, the precision or the switches."""
    launches, chip = framework.launches, system.chip
    faults = []
    if chip.vendor not in launches.vendors:
        found = f"{framework.title} does not run on {chip.name} of {chip.vendor}"
        others = frameworks_on(chip)
        faults.append(Fault("framework", found, f"on it run {', '.join(others) or 'none'}"))
    if precision.matmul not in launches.precisions:
        found = f"{framework.title} does not train in {precision.matmul}"
        faults.append(Fault("precision", found, f"one of {', '.join(launches.precisions)}"))
    if software.async_tensor_parallel and launches.compiles_overlap and not software.compiled:
        found = f"{framework.title} overlaps collectives of tp in compiled models only"
        faults.append(Fault("switches", found, "compile+async_tp"))
    if faults:
        raise SpecError(faults)


def make_problem(
    model: ModelSpec | str, system: SystemSpec | str, workload: Training, calibration: str,
    factors: Factors | None = None,
) -> Problem:  # fmt: skip
    """Return the question with its specifications loaded, its constants under measured factors."""
    model_spec = load_model(model) if isinstance(model, str) else model
    system_spec = load_system(system) if isinstance(system, str) else system
    refuse_mixed_chips(system_spec)
    _check_caps(system_spec)
    workload = _with_adapters(_with_stored_weights(workload, model_spec), model_spec)
    model_spec.check_length(workload.sequence_length, "sequence_length")
    known = partial(_constants, system_spec.chip.family, calibration, factors)
    constants = known(workload.software.framework)
    return Problem(model_spec, system_spec, workload, constants, constants_under=known)


def _constants(
    family: str, calibration: str, factors: Factors | None, framework: str
) -> Calibration:
    """Return the constants under a framework, and under measured factors."""
    constants = load_calibration(family, calibration, framework)
    return constants if factors is None else factors.applied(constants)


def _with_stored_weights(workload: Training, model: ModelSpec) -> Training:
    """Return the workload with frozen weights as the checkpoint of the model stores them.

    The optimizer holds the mean over all parameters: embedding, logits and norms stay wide.
    Weights that are trained, or frozen in a format in which no adapters are trained, are as wide as
    the optimizer keeps them, whatever they come from.
    """
    stored, optimizer = model.weight_format, workload.optimizer
    if stored is None or not stored.trains_adapters or not optimizer.freezes_weights:
        return workload
    wide = BYTES_OF[workload.precision.activation]
    counts = count_parameters(model)
    narrow = {region: number for region, number in counts.parts.items() if region in REGIONS}
    saved = sum(
        number * (wide - stored.bytes_of(region, wide)) for region, number in narrow.items()
    )
    mean = wide - saved / counts.num_params
    held = {"weight_bytes_per_param": mean, "gathered_weight_bytes_per_param": mean}
    precision = workload.precision.model_copy(update={"weight_format": stored})
    return workload.model_copy(
        update={"optimizer": optimizer.model_copy(update=held), "precision": precision}
    )


ADAPTER_BYTES = {"weight": 4.0, "gradient": 4.0, "state": 8.0, "reduced_gradient": 4.0}
"""Bytes of each parameter of an adapter: FP32 weights, gradients and moments of Adam.

Source: huggingface/peft 0.17 (2025-08), ``autocast_adapter_dtype`` of ``get_peft_model``.
"""
ADAPTER_TRAFFIC = 28.0
"""Bytes of traffic per parameter of an adapter: read gradient 4, weight 4, moments 8; write weight
4, moments 8."""


def _with_adapters(workload: Training, model: ModelSpec) -> Training:
    """Return the workload with adapters in the bytes of the optimizer, for each frozen parameter.

    The products of adapters and their launches are left out.
    """
    adapters, optimizer = workload.adapters, workload.optimizer
    if adapters is None:
        return workload
    share = num_adapter_params(model, adapters) / count_parameters(model).num_params
    held = {f"{name}_bytes_per_param": share * size for name, size in ADAPTER_BYTES.items()}
    held["weight_bytes_per_param"] += optimizer.gathered_weight_bytes_per_param
    held |= {"adapter_share": share, "step_traffic_bytes_per_param": share * ADAPTER_TRAFFIC}
    changed = optimizer.model_copy(update=held)
    return workload.model_copy(update={"optimizer": changed})


def with_powers(
    system: SystemSpec, *, max_power_w: float | None = None,
    max_device_power_w: float | None = None, idle_power_w: float | None = None,
) -> SystemSpec:  # fmt: skip
    """Return a system with caps on its mean power, or with another idle power of its devices [W].

    Idle power is on by default; 0 counts only the energy of operations, as some papers do.
    """
    caps = {"max_power_w": max_power_w, "max_device_power_w": max_device_power_w}
    changed: dict[str, Any] = {name: cap for name, cap in caps.items() if cap is not None}
    if idle_power_w is not None:
        changed["chip"] = system.chip.model_copy(update={"idle_power_w": idle_power_w})
    return system.model_copy(update=changed)


def with_rent(system: SystemSpec, usd_per_hour: float) -> SystemSpec:
    """Return a system with the stated rent of its devices [USD/h each]."""
    origin = {**system.chip.provenance, "rent": Provenance(note="as stated")}
    changed = {"rent_usd_per_hour": usd_per_hour, "provenance": origin}
    return system.model_copy(update={"chip": system.chip.model_copy(update=changed)})


def _check_caps(system: SystemSpec) -> None:
    """Refuse a cap on an unknown power.

    Raises
    ------
    SpecError
        The power of the chip is not known.
    """
    if not system.is_power_capped:
        return
    caps = {
        "max_power": system.max_power_w, "max_device_power": system.max_device_power_w,
        "power_regions": system.power_regions or None, "cooling.max": system.cooling,
    }  # fmt: skip
    name = next(name for name, cap in caps.items() if cap is not None)
    dynamic_j = dynamic_parts_j(system.chip, 1.0, 1.0, 1.0, link_energy_j(system, 1.0))
    if not system_parts_j(system, dynamic_j, 1.0, 1.0):
        message = f"the power of {system.chip.name} is not known, so no plan can be held below it"
        raise SpecError(Fault(name, message, "a chip with idle_power and peak_power"))


def check_fixed(problem: Problem, allowed: Mapping[str, Sequence[object]]) -> None:
    """Refuse fixed degrees that the search never tries.

    Raises
    ------
    SpecError
        Each such value, with the values that are tried.
    """
    tried = tried_degrees(problem) if allowed else {}
    numbers = problem.device_numbers
    devices = " or ".join(str(number) for number in sorted(numbers))
    faults = [
        Fault(name, f"no strategy of {devices} devices has {name} {value}", _listed(tried[name]))
        for name, values in allowed.items()
        for value in values
        if name in tried and value not in tried[name]
    ]
    launches, architecture = problem.workload.software.launches, problem.model.architecture
    precision = problem.workload.precision
    if launches is not None and not launches.has_model(architecture):
        others = [name for name in frameworks_on(problem.system.chip, precision.matmul)
                  if load_framework(name).launches.has_model(architecture)]  # fmt: skip
        message = f"{problem.workload.software.framework} has no model of the architecture"
        faults.append(
            Fault("framework", f"{message} {architecture}", f"{', '.join(others) or 'none'}")
        )
    known = launching.known_values(problem.workload)
    faults += [
        Fault(name, f"{problem.workload.software.framework} does not start {value}", _named(kept))
        for name, kept in known.items()
        for value in allowed.get(name, ())
        if value not in kept
    ]
    batch = problem.workload.global_batch_size
    for value in allowed.get("micro_batch_size", ()):
        if isinstance(value, int) and value > batch:
            message = f"{value} sequences, but the global batch has {batch}"
            faults.append(Fault("micro_batch_size", message, f"at most {batch}"))
    if faults:
        raise SpecError(faults)


def tried_degrees(problem: Problem) -> dict[str, set[int]]:
    """Return the values of each degree that the search tries; micro-batches are free."""
    num_layers = problem.model.num_layers
    parts = {part for number in problem.device_numbers for part in divisors(number)}
    stages = {part for part in parts if part <= num_layers}
    experts = set(divisors(problem.num_experts)) if problem.num_experts else {1}
    return {
        "tp": parts,
        "cp": parts,
        "dp": parts,
        "dp_shard": parts,
        "pp": stages,
        "tatp": parts if problem.has_grid else {1},
        "ep": experts,
        "etp": parts if problem.num_experts else {1},
        "num_virtual_stages": {v for pp in stages for v in virtual_stage_counts(num_layers, pp)},
    }


def _named(values: Iterable[object]) -> str:
    """Return the values that a framework starts, in words."""
    words = {True: "on", False: "off"}
    named = [words[v] if isinstance(v, bool) else str(v) for v in values]
    return f"it starts {', '.join(named)}"


def _listed(values: Iterable[int]) -> str:
    shown = sorted(values)
    text = ", ".join(str(value) for value in shown[:16])
    return f"tried: {text}" + (", ..." if len(shown) > 16 else "")


def check(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    strategy: Strategy,
    plan_options: PlanOptions,
) -> list[Fault]:
    """Return every rule that a strategy breaks, each with the nearest legal change."""
    problem = make_problem(model, system, workload, "uncalibrated")
    return check_problem(problem, strategy, plan_options)


def check_problem(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> list[Fault]:
    """Return every rule that a strategy breaks under a problem."""
    chip = problem.system.chip
    columns = stack([strategy])
    tile = {"tile_rows": chip.tile_rows, "tile_columns": chip.tile_columns}
    case = Case(problem.model, problem.workload, plan_options, columns, **tile)
    # On a grid with faults ranks may be hosted by others.
    given = max(problem.system.num_alive, *problem.device_numbers)
    found, change = found_faults((*axis_rules(), *launching.rules()), case, given)
    faults = [
        Fault(refusal.name, refusal.text(case, 0), fix_of(refusal, change)) for refusal in found
    ]
    types = problem.workload.precision
    for dtype in dict.fromkeys((types.matmul, types.activation)):
        try:
            stated_rate(chip, dtype)
        except SpecError as error:
            faults += error.faults
    if problem.system.dead_links or any(problem.system.single_links.values()):
        try:
            network_of(problem.system)
        except SpecError as error:
            faults += error.faults
    network = problem.network(plan_options.axis_order, columns)
    if bool(crosses_data_parallel_network(network)[0]):
        message = "an axis other than dp crosses a network that carries dp only"
        faults.append(Fault(DATA_PARALLEL_ONLY, message, "smaller tp, cp, pp or ep"))
    if plan_options.uses_host and problem.system.host is None:
        message = f"{problem.system.name} has no host memory to offload to"
        faults.append(Fault("offload-without-host", message, "offload=none"))
    if strategy.num_devices > given:
        used = f"{strategy.num_devices:.0f}"
        message = f"the degrees multiply to {used}, but {problem.system.name} has {given} devices"
        faults.insert(0, Fault("devices", message, change or f"a product of at most {given}"))
    return faults
