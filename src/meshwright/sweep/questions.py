"""Questions that a sweep may ask at each point: their fields, and their answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, get_args

from meshwright.base.errors import (
    Fault,
    InfeasibleError,
    MeshwrightError,
    SpecError,
    UnlawfulError,
    nearest,
)
from meshwright.base.units import parse_count, parse_quantity
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.dataflow.energy import power_parts_w, total_w
from meshwright.dataflow.load import load_graph
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.spec.sweep import SweepSpec
from meshwright.spec.system import DType, SystemSpec
from meshwright.sweep.quantities import PEER
from meshwright.sweep.run import Point, Result, key_of, points_of
from meshwright.sweep.systems import (
    DESIGN,
    DRAWN,
    NEEDED,
    PARTS,
    YIELDS,
    is_design,
    price_units,
    system_of,
)
from meshwright.train.question import training, with_rent
from meshwright.wafer.training import plan

YES_OR_NO: Mapping[object, bool] = {"yes": True, "no": False, True: True, False: False}


@dataclass(frozen=True)
class Question:
    """A question at each point."""

    needed: tuple[str, ...]
    """Fields beside those of the system."""
    optional: tuple[str, ...]
    answer: Callable[[Point], Result]
    values: tuple[str, ...]
    """Names of the numbers in an answer, each in ``QUANTITIES``."""


_KNOWN: dict[str, Result] = {}
"""Answers for wafers with drawn faults: many of them are equal."""


def answer_plan(point: Point) -> Result:
    """Return the best training plan of a point, or the reason why there is none."""
    system = system_of(point)
    asked = {name: value for name, value in point.items() if name not in DRAWN}
    faults = system.dead_devices, system.dead_links, tuple(system.speed_factors.items())
    key = key_of("plan", asked, str(faults))
    if key not in _KNOWN:
        _KNOWN[key] = _answer_plan(point, system)
    known, num_dead = dict(_KNOWN[key]), system.num_devices - system.num_alive
    if "tokens_per_s" in known:
        num_made = system.num_devices + int(point.get("spares", 0))
        known["tokens_per_s_per_die"] = known["tokens_per_s"] / num_made
    return {**known, "dead_devices": num_dead}


def _answer_plan(point: Point, system: SystemSpec) -> Result:
    """Return the best training plan on a system, or the reason why there is none."""
    length, batch = _tokens(point["seq"]), int(point["global_batch"])
    stated = {name: read(point[name]) for name, read in OPTIONS.items() if name in point}
    degrees = {field: [stated.pop(name)] for name, field in FIXED.items() if name in stated}
    rent, tokens = stated.pop("rent", None), stated.pop("tokens", None)
    system = system if rent is None else with_rent(system, rent)
    try:
        work = training(system, sequence_length=length, global_batch_size=batch,
                        total_tokens=tokens, **stated)  # fmt: skip
        found = plan(str(point["model"]), system, work, allowed=degrees, top=1)
    except InfeasibleError as error:
        return {"status": "nothing fits", "reason": str(error).splitlines()[0]}
    except (SpecError, UnlawfulError) as error:
        return {"status": "refused", "reason": str(error).splitlines()[0]}
    price = found.best.estimate
    return {
        "status": "found",
        "plan": found.best.text,
        "fidelity": price.fidelity,
        "step_time_s": price.step_time_s,
        "fastest_s": found.fastest_s,
        "tokens_per_s": price.tokens_per_s,
        "mfu": price.mfu_causal,
        "memory_bytes": price.memory_bytes,
        "power_w": price.power_w,
        "tokens_per_j": price.tokens_per_j,
        "cost_usd": price.cost_usd,
        "run_s": found.run_s,
        "run_usd": _run_usd(price.cost_usd, price.step_time_s, found.run_s),
        "lower_bound_s": found.coverage.lower_bound_s if found.coverage else None,
    }


def _run_usd(step_usd: float | None, step_s: float, run_s: float | None) -> float | None:
    """Return the rent of a whole run [USD]: devices are paid while they restart, too."""
    return None if step_usd is None or run_s is None else step_usd / step_s * run_s


def _precision(value: object) -> str:
    if str(value) not in get_args(DType):
        raise SpecError(
            Fault("precision", f"found {value!r}", nearest(str(value), get_args(DType)))
        )
    return str(value)


def _number_of(name: str, least: int, value: object) -> int:
    number = None if isinstance(value, bool) else parse_count(str(value))
    if number is None or number < least:
        expected = f"expected a whole number of at least {least}"
        raise SpecError(Fault(name, f"found {value!r}, {expected}", "such as 8"))
    return number


def _quantity_of(name: str, dimension: str, unit: str, value: object) -> float:
    """Return a quantity above 0; a bare number has the usual unit."""
    is_bare = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        found = parse_quantity(f"{value} {unit}" if is_bare else str(value), dimension)
    except ValueError as error:
        raise SpecError(Fault(name, str(error))) from error
    if not 0.0 < found < math.inf:
        raise SpecError(Fault(name, f"found {value!r}, expected more than 0"))
    return found


FIXED = {"tp": "tp", "pp": "pp", "cp": "cp", "dp": "dp", "ep": "ep", "vpp": "num_virtual_stages",
         "mbs": "micro_batch_size", "zero": "zero_stage"}  # fmt: skip
"""Degrees and choices that a point fixes, with their names in the search."""
OPTIONS: Mapping[str, Callable[[object], Any]] = {
    "framework": lambda value: load_framework(str(value)),
    "precision": _precision,
    "optimizer": lambda value: load_optimizer(str(value)),
    "tokens": partial(_quantity_of, "tokens", "tokens", "tokens"),
    "rent": partial(_quantity_of, "rent", "usd_per_hour", "USD/h"),
    **{name: partial(_number_of, name, int(name != "zero")) for name in FIXED},
}
"""Options of a training plan that points may state, with their readers."""


def answer_graph(point: Point) -> Result:
    """Return the best plan of a graph at a point, or the reason why there is none."""
    system, graph = system_of(point), _load_graph(point)
    # Constants of a measured chip would favour or harm it against chips without measurements.
    machine, passes = calibrated_system(system, UNCALIBRATED), int(point.get("passes", 1))
    try:
        found = plan_dataflow(graph, machine, num_passes=passes, only_best=True)
    except InfeasibleError as error:
        return {"status": "nothing fits", "reason": str(error).splitlines()[0]}
    except (SpecError, UnlawfulError) as error:
        return {"status": "refused", "reason": str(error).splitlines()[0]}
    best = found.best
    utilisation = graph.flops * best.passes_per_s / machine.peak_flops_per_s(graph)
    parts_w = power_parts_w(graph, machine, best, found.moved)
    power_w = total_w(parts_w)
    return {
        "status": "found",
        "plan": f"tp{best.tp} pp{best.pp} dp{best.dp}",
        "fidelity": "closed_form",
        "step_time_s": best.step_s,
        "passes_per_s": best.passes_per_s,
        "utilisation": utilisation,
        "memory_bytes": best.held_bytes,
        "power_w": power_w,
        **{f"{name.removesuffix('_w')}_power_w": value for name, value in parts_w.items()},
        "passes_per_j": None if power_w is None else best.passes_per_s / power_w,
        "price_units": price_units(system),
        "passes_per_s_per_price": best.passes_per_s / price_units(system),
        "lower_bound_s": found.lower_bound_s,
        PEER: _peer_passes_per_s(graph, system, passes),
    }


@cache
def _peer_models() -> Mapping[str, Callable[[DataflowGraph, SystemSpec, int], float | None]]:
    """Return the models of other authors by name, from the entry point group.

    The group is ``meshwright.peer_models``. A model returns the passes per second of a graph on a
    system for a number of passes; None where its rules are not defined.
    """
    return {entry.name: entry.load() for entry in entry_points(group="meshwright.peer_models")}


def _peer_passes_per_s(graph: DataflowGraph, system: SystemSpec, num_passes: int) -> float | None:
    """Return the passes per second by the rules of DFModel; None where they are not installed."""
    model = _peer_models().get("dfmodel")
    return None if model is None else model(graph, system, num_passes)


QUESTIONS: Mapping[str, Question] = {
    "plan": Question(
        ("model", "seq", "global_batch"), (*DRAWN, *OPTIONS), answer_plan,
        ("step_time_s", "fastest_s", "tokens_per_s", "mfu", "memory_bytes", "power_w",
         "tokens_per_j", "cost_usd", "run_s", "run_usd", "lower_bound_s",
         "dead_devices", "tokens_per_s_per_die"),
    ),
    "graph": Question(
        ("graph",), ("seq", "training", "passes"), answer_graph,
        ("step_time_s", "passes_per_s", "utilisation", "memory_bytes", "power_w", "chips_power_w",
         "memory_power_w", "links_power_w", "passes_per_j", "price_units",
         "passes_per_s_per_price", "lower_bound_s", PEER),
    ),
}  # fmt: skip


def checked(sweep: SweepSpec) -> list[Point]:
    """Return the points of a sweep, all valid.

    Raises
    ------
    SpecError
        With all fields that are missing or of no use, and all names that the catalog lacks.
    """
    faults = _field_faults(sweep) or _number_faults(sweep) or _value_faults(sweep)
    faults += _result_faults(sweep)
    if faults:
        raise SpecError(faults, origin=sweep.name)
    return points_of(sweep)


def _field_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the faults of missing fields, and of fields that no question takes."""
    question = QUESTIONS[sweep.ask]
    given = {*sweep.fixed, *sweep.vary, *sweep.fields_of_cases}
    system = DESIGN if is_design(dict.fromkeys(given, "")) else ("on",)
    needed = (*question.needed, *(NEEDED if system is DESIGN else system))
    allowed = (*question.needed, *question.optional, *system)
    faults = [
        Fault(name, "is missing", f"put it into fixed or vary; needed: {', '.join(needed)}")
        for name in needed
        if name not in given
    ]
    faults += _faults_of_cases(sweep, needed)
    return faults + [
        Fault(name, f"is no field of a sweep that asks {sweep.ask!r}", nearest(name, allowed))
        for name in given
        if name not in allowed
    ]


def _result_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the faults of results that no point has."""
    asked = [("heat_map.shows", sweep.heat_map.shows)] if sweep.heat_map else []
    if sweep.report is not None:
        asked += [("report.heat_maps.shows", shown.shows) for shown in sweep.report.heat_maps]
        asked += [("report.shows", name) for name in sweep.report.shows]
        asked += [
            ("report.choose", name) for objective in sweep.report.choose for name in objective.names
        ]
        asked += [("report.beside", name) for name in sweep.report.beside or ()]
    values = QUESTIONS[sweep.ask].values
    faults = [
        Fault(place, f"{name!r} is no result", f"one of: {', '.join(values)}")
        for place, name in dict.fromkeys(asked)
        if name not in values
    ]
    return faults + [
        Fault(place, f"{name!r} follows a peer's rules", "pip install meshwright-papers")
        for place, name in dict.fromkeys(asked)
        if name == PEER and name in values and not _peer_models()
    ]


NUMBERS = ("seq", "global_batch", "devices", "passes")
"""Fields with a whole number above 0."""


def _number_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the faults of values in place of a number, each once."""
    points = points_of(sweep)
    stated = {(name, point[name]): point[name] for name in NUMBERS for point in points
              if name in point}  # fmt: skip
    return [
        Fault(name, f"found {value!r}, expected a whole number above 0", "such as 64")
        for (name, _), value in stated.items()
        if isinstance(value, bool) or not _is_count(value if name != "seq" else _tokens(value), 1)
    ] + [
        Fault(name, f"found {value!r}, expected {told}", such)
        for name, (is_right, told, such) in _OF_DRAWS.items()
        for value in dict.fromkeys(point[name] for point in points if name in point)
        if isinstance(value, bool) or not is_right(value)
    ]


def _is_count(value: object, least: int = 0) -> bool:
    return str(value).isdecimal() and int(str(value)) >= least


def _tokens(value: object) -> int:
    """Return the tokens of a sequence, 0 for an invalid number; 128k is 131072."""
    return parse_count(str(value), kilo=1024) or 0


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0.0 <= value <= 1.0


_OF_DRAWS: Mapping[str, tuple[Callable[[object], bool], str, str]] = {
    **dict.fromkeys(YIELDS, (_is_share, "a share from 0 to 1", "such as 0.99")),
    **dict.fromkeys(("wafer", "spares"), (_is_count, "a whole number", "such as 1")),
}
"""Fields of wafers with drawn faults: the test of a value, and its description."""


def _faults_of_cases(sweep: SweepSpec, needed: tuple[str, ...]) -> list[Fault]:
    """Return the needed fields that some cases state and others lack."""
    return [
        Fault(f"cases.{name}.{case}", f"lacks {field}", "other cases state it")
        for name, cases in sweep.cases.items()
        for field in needed
        if any(field in fields for fields in cases.values())
        for case, fields in cases.items()
        if field not in fields
    ]


READ_BY: Mapping[str, tuple[str, ...]] = {
    "model": ("model",), "graph": ("graph", "seq", "training"),
    **{part: (part,) for part in PARTS}, "system": ("on", *DESIGN),
}  # fmt: skip
"""Names that are looked up, and the fields that they read."""


def _value_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the names missing from the catalog, each once; only known parts form a design."""
    loads = {"model": _load_model, "graph": _load_graph, **PARTS, "system": system_of}
    faults: dict[str, Fault] = {}
    seen: set[tuple[object, ...]] = set()
    for field, load in loads.items():
        if field == "system" and not PARTS.keys().isdisjoint(one.path for one in faults.values()):
            continue
        for point in points_of(sweep):
            taken = (field, *(point.get(name) for name in READ_BY[field]))
            if taken in seen or (field != "system" and field not in point):
                continue
            seen.add(taken)
            try:
                load(point)
            except MeshwrightError as error:
                faults.setdefault(str(error), Fault(field, str(error)))
    stated = {
        (name, point[name]) for point in points_of(sweep) for name in OPTIONS if name in point
    }
    for name, value in sorted(stated, key=str):
        try:
            OPTIONS[name](value)
        except SpecError as error:
            faults |= {str(fault): fault for fault in error.faults}
        except MeshwrightError as error:
            faults.setdefault(str(error), Fault(name, str(error)))
    return list(faults.values())


def _load_model(point: Point) -> object:
    return load_model(str(point["model"]))


def _load_graph(point: Point) -> DataflowGraph:
    """Return the graph of a point."""
    trains = YES_OR_NO.get(point.get("training", "no"))
    if trains is None:
        raise SpecError(Fault("training", f"found {point['training']!r}", "yes or no"))
    tokens = _tokens(point["seq"]) if "seq" in point else None
    return load_graph(str(point["graph"]), tokens=tokens, training=trains)
