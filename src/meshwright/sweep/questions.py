"""Questions that a sweep may ask at each point: their fields, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from meshwright.ask import questions as ask
from meshwright.ask.declared import allowed_of, declared, program_of
from meshwright.ask.reading import in_file
from meshwright.ask.record import Question as Asked
from meshwright.base.errors import (
    Fault,
    InfeasibleError,
    MeshwrightError,
    SpecError,
    UnlawfulError,
    nearest,
)
from meshwright.base.registry import load_entry_points
from meshwright.catalog.calibration import DEFAULT, UNCALIBRATED
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.dataflow.energy import power_parts_w, total_w
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.spec.sweep import SweepSpec
from meshwright.spec.system import SystemSpec
from meshwright.sweep.quantities import BY_PEERS
from meshwright.sweep.run import Point, key_of, points_of
from meshwright.sweep.stores import Result
from meshwright.sweep.systems import (
    DESIGN,
    DRAWN,
    NEEDED,
    PARTS,
    YIELDS,
    is_design,
    system_of,
    whole_system_of,
)
from meshwright.train.question import make_problem, switched_on
from meshwright.train.search import arithmetic_s
from meshwright.wafer.training import plan

YES_OR_NO: Mapping[object, bool] = {"yes": True, "no": False, True: True, False: False}


@dataclass(frozen=True)
class Question:
    """A question at each point."""

    asked: type[Asked]
    """The question of the command, with the kinds of all fields that are no parts of a design."""
    needed: tuple[str, ...]
    """Fields beside those of the system."""
    optional: tuple[str, ...]
    answer: Callable[[Point], Result]
    values: tuple[str, ...]
    """Names of the numbers in an answer, each in ``QUANTITIES``."""
    bound: Callable[[Point], Result]
    """Returns the best that some results of a point can be, without a search."""
    bounded: tuple[str, ...]


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
    try:
        known = declared(_asked(ask.Strategy, {**point, "on": system}))
        found = plan(known.model, known.system, known.workload, allowed=known.allowed, top=1)
    except (InfeasibleError, SpecError, UnlawfulError) as error:
        return _without_plan(error)
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


def _without_plan(error: MeshwrightError) -> Result:
    """Return the reason why a point has no plan."""
    status = "nothing fits" if isinstance(error, InfeasibleError) else "refused"
    return {"status": status, "reason": str(error).splitlines()[0]}


def _run_usd(step_usd: float | None, step_s: float, run_s: float | None) -> float | None:
    """Return the rent of a whole run [USD]: devices are paid while they restart, too."""
    return None if step_usd is None or run_s is None else step_usd / step_s * run_s


Kind = TypeVar("Kind", bound=Asked)


def _asked(question: type[Kind], point: Mapping[str, Any]) -> Kind:
    """Return the question of a point: its fields are options, parts of a design are none."""
    fields = {name: value for name, value in point.items() if name in question.options}
    if is_design(point):
        fields.pop("network", None)
    return question.ask({name: _stated(question, name, value) for name, value in fields.items()})


def _stated(question: type[Asked], name: str, value: Any) -> Any:
    """Return a value as its option takes it: a file states flags with yes and no."""
    if not question.options[name].is_flag:
        return value
    if value not in YES_OR_NO:
        raise SpecError(Fault(name, f"found {value!r}", "yes or no"))
    return YES_OR_NO[value]


def answer_graph(point: Point) -> Result:
    """Return the best plan of a graph at a point, or the reason why there is none."""
    asked, system = _asked(ask.Map, point), system_of(point)
    graph = _load_graph(point)
    # Constants of a measured chip would favour or harm it against chips without measurements.
    machine = calibrated_system(system, UNCALIBRATED)
    allowed = {name: tuple(values) for name, values in allowed_of(asked).items()}
    try:
        found = plan_dataflow(
            graph, machine, num_passes=asked.passes, optimizer=asked.optimizer,
            hides_network=asked.overlap, allowed=allowed, only_best=True,
        )  # fmt: skip
    except (InfeasibleError, SpecError, UnlawfulError) as error:
        return _without_plan(error)
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
        "lower_bound_s": found.lower_bound_s,
        **_by_peers(graph, system, asked.passes, best.passes_per_s),
    }


def _by_peers(
    graph: DataflowGraph, system: SystemSpec, num_passes: int, passes_per_s: float
) -> Result:
    """Return the results by rules of other authors, as far as they are installed."""
    rules = load_entry_points("peer_models")
    found = {name: rule(graph, system, num_passes) for name, rule in rules.items()}
    if price := found.get("price_units"):
        found["passes_per_s_per_price"] = passes_per_s / price
    return found


NOT_BOUNDING = ("network", "links", "memory", *DRAWN)
"""Fields that no bound reads: it counts the arithmetic alone, on all devices."""
_BOUNDS: dict[tuple[object, ...], Result] = {}


def _bound_once(bound: Callable[[Point], Result], point: Point) -> Result:
    """Return a bound, once for all points that differ in nothing that it reads; empty: none."""
    read = (one for one in sorted(point.items()) if one[0] not in NOT_BOUNDING)
    key = (bound, *read)
    if key not in _BOUNDS:
        try:
            _BOUNDS[key] = bound(point)
        except (InfeasibleError, SpecError):
            _BOUNDS[key] = {}
    return _BOUNDS[key]


def bound_plan(point: Point) -> Result:
    """Return the step of the arithmetic alone, on all devices at their sustained rate."""
    known = declared(_asked(ask.Strategy, {**point, "on": whole_system_of(point)}))
    problem = make_problem(known.model, known.system, switched_on(known.workload), DEFAULT)
    least_s = float(arithmetic_s(problem, problem.system.num_alive))
    tokens_per_s = problem.workload.tokens_per_step / least_s
    return {"step_time_s": least_s, "fastest_s": least_s, "tokens_per_s": tokens_per_s}


def bound_graph(point: Point) -> Result:
    """Return the passes of the arithmetic alone, on all devices at their peak."""
    asked, graph = _asked(ask.Map, point), _load_graph(point)
    machine = calibrated_system(whole_system_of(point), UNCALIBRATED)
    passes_per_s = machine.peak_flops_per_s(graph) / graph.flops
    return {"passes_per_s": passes_per_s, "step_time_s": asked.passes / passes_per_s}


_TAKEN = tuple(
    name for name, option in ask.Strategy.options.items()
    if not option.is_hidden and name not in ("on", "network", "workload", "calibration")
)  # fmt: skip
"""Options of training that points may state."""
QUESTIONS: Mapping[str, Question] = {
    "plan": Question(
        ask.Strategy, ("model", "seq", "global_batch"), (*DRAWN, *_TAKEN), answer_plan,
        ("step_time_s", "fastest_s", "tokens_per_s", "mfu", "memory_bytes", "power_w",
         "tokens_per_j", "cost_usd", "run_s", "run_usd", "lower_bound_s",
         "dead_devices", "tokens_per_s_per_die"),
        partial(_bound_once, bound_plan), ("step_time_s", "fastest_s", "tokens_per_s"),
    ),
    "graph": Question(
        ask.Map, ("graph",), ("seq", "training", "passes", "precision", "optimizer", "overlap",
                              "tp", "pp", "dp"), answer_graph,
        ("step_time_s", "passes_per_s", "utilisation", "memory_bytes", "power_w", "chips_power_w",
         "memory_power_w", "links_power_w", "passes_per_j", "lower_bound_s", *BY_PEERS),
        partial(_bound_once, bound_graph), ("step_time_s", "passes_per_s"),
    ),
}  # fmt: skip


def results_of(question: str) -> list[str]:
    """Return the names of the results of a question, without those of rules not installed."""
    is_alone = not load_entry_points("peer_models")
    return [one for one in QUESTIONS[question].values if not (is_alone and one in BY_PEERS)]


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
        Fault(name, f"is not a field of a sweep that asks {sweep.ask!r}", nearest(name, allowed))
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
        Fault(place, f"{name!r} is not a result", f"one of: {', '.join(values)}")
        for place, name in dict.fromkeys(asked)
        if name not in values
    ]
    return faults + [
        Fault(place, f"{name!r} follows a peer's rules", "pip install meshwright-papers")
        for place, name in dict.fromkeys(asked)
        if name in BY_PEERS and name in values and not load_entry_points("peer_models")
    ]


def _number_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the faults of values in place of a number, each once."""
    points, question = points_of(sweep), QUESTIONS[sweep.ask].asked
    faults: dict[Fault, None] = {}
    for name, value in sorted({(n, v) for point in points for n, v in point.items()}, key=str):
        if name in _OF_DESIGNS:
            is_right, told, such = _OF_DESIGNS[name]
            if isinstance(value, bool) or not is_right(value):
                faults[Fault(name, f"found {value!r}, expected {told}", such)] = None
        elif name in question.options and name not in PARTS:
            try:
                question.options[name].read(_stated(question, name, value))
            except SpecError as error:
                faults |= dict.fromkeys(map(in_file, error.faults))
    return list(faults)


def _is_count(value: object, least: int = 0) -> bool:
    return str(value).isdecimal() and int(str(value)) >= least


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0.0 <= value <= 1.0


_OF_DESIGNS: Mapping[str, tuple[Callable[[object], bool], str, str]] = {
    **dict.fromkeys(YIELDS, (_is_share, "a share from 0 to 1", "such as 0.99")),
    **dict.fromkeys(("wafer", "spares"), (_is_count, "a whole number", "such as 1")),
    "devices": (lambda value: _is_count(value, 1), "a whole number above 0", "such as 64"),
}
"""Fields of designs, and of wafers with drawn faults: the test of a value, its description."""


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


def _value_faults(sweep: SweepSpec) -> list[Fault]:
    """Return the names missing from the catalog, each once; only known parts form a design."""
    faults: dict[str, Fault] = {}
    seen: set[tuple[object, ...]] = set()
    for field, (reads, load) in LOOKED_UP.items():
        if field == "system" and not PARTS.keys().isdisjoint(one.path for one in faults.values()):
            continue
        for point in points_of(sweep):
            taken = (field, *(point.get(name) for name in reads))
            if taken in seen or (field != "system" and field not in point):
                continue
            seen.add(taken)
            try:
                load(point)
            except MeshwrightError as error:
                faults.setdefault(str(error), Fault(field, str(error)))
    return list(faults.values())


def _load_graph(point: Point) -> DataflowGraph:
    """Return the graph of a point."""
    asked = _asked(ask.Map, point)
    return load_graph(str(asked.graph), tokens=asked.seq, **program_of(asked))


LOOKED_UP: Mapping[str, tuple[tuple[str, ...], Callable[[Point], object]]] = {
    "model": (("model",), lambda point: load_model(str(point["model"]))),
    "graph": (("graph", "seq", "training"), _load_graph),
    "framework": (("framework",), lambda point: load_framework(str(point["framework"]))),
    "optimizer": (("optimizer",), lambda point: load_optimizer(str(point["optimizer"]))),
    **{part: ((part,), load) for part, load in PARTS.items()},
    "system": (("on", *DESIGN), system_of),
}
"""Names that are looked up: the fields that they read, and the look-up."""
