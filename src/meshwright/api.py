"""The verbs: one function for each command, with the same options as keyword arguments.

``mw.plan("llama3-70b", on="64xH100", seq="8k", global_batch=1024, tp=2)`` makes the question of a
command line from keywords and returns the answer as plain data. A model, system or workload may
be a name, a path or a declaration. Unknown options and values are refused with the nearest ones.
The rooms are imported when a verb is called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from meshwright.ask import questions as ask
from meshwright.ask.reading import Reading
from meshwright.ask.record import Question
from meshwright.base.errors import (
    Fault,
    InfeasibleError,
    SpecError,
    UnknownNameError,
    UsageError,
)

if TYPE_CHECKING:
    import inspect

    from meshwright.ask.declared import Declared
    from meshwright.base.records import Shown
    from meshwright.calibration.fit.report import Fitted
    from meshwright.calibration.rows import Row
    from meshwright.calibration.validation import Validation
    from meshwright.dataflow.answer import GraphAnswer
    from meshwright.dataflow.fusion.answer import FusionAnswer
    from meshwright.dataflow.fusion.question import FusionQuestion
    from meshwright.dataflow.linpack import GridRuns
    from meshwright.frameworks.profiled import ProfiledStep
    from meshwright.frameworks.reading.job import ReadJob
    from meshwright.graph.kernels.graph import DataflowGraph
    from meshwright.loop.answer import LoopPlan
    from meshwright.measure.run import MeasuredMachine
    from meshwright.network.flows import RoutedFlows
    from meshwright.network.simulation.tasks import Timeline
    from meshwright.run.answer import Executed
    from meshwright.run.dry.answer import DryRun
    from meshwright.search.exhaustive import Progress
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.serve.traffic.answer import TrafficPlan
    from meshwright.spec.flows import FlowScenario
    from meshwright.spec.model import ModelSpec
    from meshwright.spec.system import SystemSpec
    from meshwright.spec.workload import Workload
    from meshwright.sram.answer import PartitionPlan
    from meshwright.sram.partition import Cut
    from meshwright.sweep.answer import SweepAnswer
    from meshwright.sweep.run import Swept
    from meshwright.train.answer import (
        Candidate,
        Check,
        Comparison,
        Deadline,
        Explanation,
        Fit,
        Front,
        Plan,
        Replan,
    )
    from meshwright.train.leading import Placer
    from meshwright.train.measured.diagnose import Diagnosis
    from meshwright.train.timeline import StepTimeline
    from meshwright.wafer.answer import PlacedPlan, Placements, SimulatedPlan

T = TypeVar("T")
Q = TypeVar("Q", bound=Question)


@dataclass(frozen=True)
class Call:
    """Call of a verb: the command that an answer records, and the progress of a long search."""

    command: str = ""
    search: Progress | None = None
    counter: Callable[..., Callable[[int, int], None]] | None = None
    """Makes a progress counter of things."""

    def count(self, things: str, note: str = "") -> Callable[[int, int], None] | None:
        """Return a progress counter, where progress is shown."""
        return None if self.counter is None else self.counter(things, note)


class Verb(Generic[Q, T]):
    """A command as a function: options by keyword, its arguments by position as well."""

    def __init__(self, question: type[Q], answer: Callable[[Q, Call], T]) -> None:
        self.question, self.answer = question, answer
        self.name = self.__name__ = self.__qualname__ = answer.__name__

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        answer = self.answer
        returned = str(answer.__annotations__["return"])
        return self.question.docstring(answer.__doc__ or "", returned)

    @property
    def __signature__(self) -> inspect.Signature:
        return self.question.signature()

    def __call__(self, *arguments: object, **options: object) -> T:
        """Make the question of keywords, and return the answer."""
        names = [name for name, one in self.question.options.items() if one.is_positional]
        if len(arguments) > len(names):
            message = f"{len(arguments)} arguments by position, at most {len(names)}"
            raise SpecError(Fault(self.name, message, "give options by name"))
        given = dict(zip(names, arguments, strict=False))
        if twice := given.keys() & options.keys():
            raise SpecError([Fault(name, "is given twice") for name in sorted(twice)])
        shown = [repr(value) if isinstance(value, str | int | float) else type(value).__name__
                 for value in arguments]  # fmt: skip
        shown += [f"{name}={value!r}" if isinstance(value, str | int | float) else name
                  for name, value in options.items()]  # fmt: skip
        asked = self.question.ask(given | options, verb=self.name)
        return self.answer(asked, Call(f"mw.{self.name}({', '.join(shown)})"))

    def __repr__(self) -> str:
        return f"<meshwright.{self.name}>"


def verb(question: type[Q]) -> Callable[[Callable[[Q, Call], T]], Verb[Q, T]]:
    """Return a decorator: a function that answers a question becomes a verb of its name."""
    return partial(Verb, question)


def reported(answer: Callable[[Q, Call], T]) -> Callable[[Q, Call], T]:
    """Return the answers of a verb, each written as a report on request."""

    @wraps(answer)
    def written(asked: Q, call: Call) -> T:
        found, question = answer(asked, call), cast(Any, asked)
        if question.report is not None:
            from meshwright.view.html import write_page

            page = cast(Any, found).page(**beside(found))
            write_page(page, question.report, force=question.force)
        return found

    return written


def _drawing(asked: Any) -> Reading:
    """Return the reading of a question, with a fault where its picture cannot be drawn."""
    reading: Reading = asked.reading()
    if asked.picture is not None:
        from meshwright.view.svg import check_drawable

        reading.value(check_drawable)
    return reading


def beside(found: Any) -> dict[str, Any]:
    """Return the parts that other rooms add to the report of an answer."""
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.train.answer import Deadline, Explanation, Plan, Replan

    if isinstance(found, ServingPlan | DisaggregatedPlan):
        return _server_launch(found)
    if isinstance(found, Replan | Deadline | Explanation):
        found = found.plan
    return _launch(found) | grid_of(found) | line_of(found) if isinstance(found, Plan) else {}


def grid_of(found: Plan, axis: str | None = None) -> dict[str, Any]:
    """Return the picture of the grid of a plan, coloured by the groups of an axis."""
    if found.best.placement is None:
        return {}
    from meshwright.base.errors import UnsupportedError
    from meshwright.wafer.chart import map_chart
    from meshwright.wafer.picture import draw

    with suppress(UnsupportedError):
        return {"grid": map_chart(draw(found, axis))}
    return {}


def line_of(found: Plan) -> dict[str, Any]:
    """Return the step of a plan over time."""
    from meshwright.base.errors import UnsupportedError
    from meshwright.wafer.training import timeline as of_plan

    with suppress(UnsupportedError):
        return {"line": of_plan(found)}
    return {}


def _server_launch(found: ServingPlan | DisaggregatedPlan) -> dict[str, Any]:
    """Return the command of the stated server of a plan, or of the first that starts it."""
    from meshwright.base.errors import UnsupportedError
    from meshwright.frameworks.deployment import served
    from meshwright.frameworks.programs.servers import SERVERS

    for name in dict.fromkeys((found.server, *SERVERS)):
        if name in SERVERS:
            try:
                files = served(found, name)
            except UnsupportedError:
                continue
            return {"launch_files": files, "launch_command": f"meshwright export PLAN.json {name}"}
    return {}


def _launch(found: Plan) -> dict[str, Any]:
    """Return the files that start a plan, and the command that writes them; empty: no export."""
    from meshwright.frameworks.registry import exporters, refusals, rendered
    from meshwright.train.writing import target_for

    target = target_for(found.workload.software.framework or "", found.best.launches_with)
    if target is None or refusals(found, target) or not exporters[target].is_text:
        return {}
    files = {name: str(text) for name, text in rendered(found, target).items()}
    return {"launch_files": files, "launch_command": f"meshwright export PLAN.json {target}"}


def _write(asked: Any, option: str, text: str) -> None:
    """Write a text to the file that an option names, where it is stated."""
    if (path := getattr(asked, option)) is not None:
        from meshwright.base.files import write_whole

        write_whole(path, text, force=asked.force)


def _write_documents(asked: Any, option: str, make: Callable[[str], dict[str, str]]) -> None:
    """Write the files that ``make`` returns for the stem of a path, beside that path."""
    if (path := getattr(asked, option)) is not None:
        from meshwright.base.files import write_all

        write_all(path.parent, make(path.stem), force=asked.force)


def _plan_of(given: object, option: str = "PLAN.json") -> Plan:
    """Return a plan of training, or that of a file."""
    from meshwright.ask.declared import needed
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan

    return needed(option, given, load_plan, Plan)


# ------------------------------------------------------------------------------------ training


@verb(ask.Plan)
@reported
def plan(asked: ask.Plan, call: Call) -> Plan | Front | Replan | Deadline:
    """Return the best plan of the whole space."""
    from meshwright.ask.declared import declared
    from meshwright.ask.job_files import with_job

    if _is_replan(asked):
        return _replan(asked, call)
    given = asked
    asked, job = with_job(asked, keeps_strategy=False)
    reading = asked.reading()
    asked.refuse_idle(reading, ("without",), "applies only with --from PLAN.json")
    if asked.pareto:
        names = ["out", "top", "per_operator", "within", "fastest", "verify", "on_cluster"]
        asked.refuse_idle(reading, names, "a front is no single plan, and is always whole")
    if asked.verify:
        from meshwright.catalog.graphs.torch_export import torch_or_refusal

        asked.refuse_idle(reading, ("within",), "--verify runs one plan")
        torch_or_refusal()
    if asked.within is not None:
        asked.refuse_idle(reading, ("on_cluster",), "applies to the plan of one system")
        found = _deadline(reading, asked, call)
        _saved(found.plan, asked)
        return found
    known = declared(asked, reading=reading)
    if asked.pareto:
        from meshwright.train.plan import front

        return front(
            known.model, known.system, known.workload, command=call.command,
            **_shared(asked, call, known),
        )  # fmt: skip
    best = _best_plan(asked, call, known)
    if asked.verify:
        from meshwright.run.dry.verify import verified

        best = verified(best, call.count)
    return _saved(best if job is None else replace(best, yours=_as_it_runs(given)), asked)


def _shared(asked: Any, call: Call, known: Declared) -> dict[str, Any]:
    """Return the arguments that all searches of training share."""
    return {
        "allowed": known.allowed, "calibration": asked.calibration, "progress": call.search,
        "factors": _factors(asked, known),
    }  # fmt: skip


def _factors(asked: Any, known: Declared) -> Any:
    if asked.measured is None:
        return None
    from meshwright.ask.measured import factors_of

    return factors_of(asked, known.system.chip.family)


def _best_plan(asked: ask.Plan, call: Call, known: Declared) -> Plan:
    """Return the best plan for a question."""
    from meshwright.base.cluster import open_cluster
    from meshwright.train.plan import plan as best

    with open_cluster(asked.on_cluster) as cluster:
        found = best(
            known.model, known.system, known.workload, top=asked.top, cluster=cluster,
            per_operator=asked.per_operator, num_simulated=asked.simulated,
            placer=_placer(known.system, is_needed=asked.per_operator), command=call.command,
            prefers_simple=asked.within is None and not asked.fastest,
            **_shared(asked, call, known),
        )  # fmt: skip
        return replace(found, warnings=(*found.warnings, *cluster.warnings))


def _deadline(reading: Reading, asked: ask.Plan, call: Call) -> Deadline:
    """Return the plan for a run with a time limit; for a chip, on the fewest devices."""
    from meshwright.ask.declared import declared, on_devices
    from meshwright.catalog.systems import find_chip, whole_sizes
    from meshwright.train.answer import Deadline, SizeTried
    from meshwright.train.deadline import Tries, least_device_s, least_in_time
    from meshwright.train.question import make_problem

    if not asked.stated.keys() & {"tokens", "workload"}:
        reading.fault("--tokens", "is needed with --within", "such as 2T")
    chip = find_chip(asked.on) if isinstance(asked.on, str) else None
    sizes = reading.value(whole_sizes, chip) if chip else ()
    if chip and not sizes:
        reading.done()
    sized = asked.but(on=f"{sizes[-1]}x{chip}") if chip else asked
    known, within_s = declared(sized, reading=reading), asked.within
    assert within_s is not None
    if known.workload.total_tokens is None:
        raise SpecError(Fault("total_tokens", "is needed with --within", f"in {asked.workload}"))
    if chip is None:
        found = _best_plan(asked, call, known)
        return Deadline(found, within_s, (SizeTried(known.system.num_devices, found.run_s),))
    tries = Tries(
        lambda size: _best_plan(asked, call, declared(on_devices(asked, size, chip))),
        call.count("sizes"),
    )
    problem = make_problem(known.model, known.system, known.workload, asked.calibration)
    return least_in_time(sizes, tries, within_s, device_s=least_device_s(problem))


def _is_replan(asked: ask.Plan) -> bool:
    """Tell whether ``--from`` names an earlier plan, and not files that start a job."""
    from meshwright.ask.job_files import is_job_file

    return len(asked.from_ or ()) == 1 and not is_job_file((asked.from_ or ("",))[0])


def _replan(asked: ask.Plan, call: Call) -> Replan:
    """Return the plan for the devices that are left."""
    from meshwright.train.plan import replan

    reading = asked.reading()
    kept = ("from_", "without", "out", "report", "force")
    idle = [name for name in asked.options if name not in kept]
    asked.refuse_idle(reading, idle, "with --from, the earlier plan states this")
    if "without" not in asked.stated:
        reading.fault("--without", "is needed")
    before = reading.value(_plan_of, (asked.from_ or (None,))[0], "--from")
    reading.done()
    changed = replan(
        before, without=asked.without or 0, placer=_placer(before.system), progress=call.search
    )
    _saved(changed.plan, asked)
    return changed


def _is_grid(system: SystemSpec) -> bool:
    return any(level.kind in ("mesh", "torus") for level in system.levels)


def _placer(system: SystemSpec, *, is_needed: bool = False) -> Placer:
    """Return the placer of candidates: :mod:`meshwright.wafer` on grids, else in closed form."""
    if is_needed or _is_grid(system):
        from meshwright.wafer.training import GRIDS

        return GRIDS
    from meshwright.train.leading import CLOSED_FORM

    return CLOSED_FORM


def _saved(found: Plan, asked: Any) -> Plan:
    """Write a plan to its file, where one is named, and return it."""
    if asked.out is not None:
        from meshwright.train import plan_file as files

        files.save(found, asked.out, force=asked.force)
    return found


@verb(ask.Estimate)
@reported
def estimate(asked: ask.Estimate, call: Call) -> Plan | ServingPlan | DisaggregatedPlan:
    """Return the price of one given strategy, or of the serving of a job."""
    from meshwright.ask.declared import is_serving
    from meshwright.ask.job_files import with_job

    known, job = with_job(asked, kinds=("training", "serving"))
    reading = known.reading()
    if job.kind == "serving" if job is not None else is_serving(known):
        idle = [name for name in known.options if name not in ask.Serve.options]
        known.refuse_idle(reading, idle, "applies only to training")
        split = {"tp": known.tp or 1, "pp": known.pp or 1} if job is None else {}
        return _serving(reading, known.to(ask.Serve).but(top=1, **split), call)
    known.refuse_idle(reading, ask.Requests.options, "applies only to serving, without --seq")
    return _saved(_priced(known, call, reading=reading), asked)


@verb(ask.Fit)
def fit(asked: ask.Fit, call: Call) -> Fit:
    """Return the memory of one given strategy, as a plan without placement on its network."""
    from meshwright.ask.job_files import with_job
    from meshwright.train.answer import Fit

    found = _priced(with_job(asked)[0], call, is_placed=False)
    if found.best.estimate.fits:
        return Fit(**vars(found))
    from meshwright.train.explain import what_would_fit

    return Fit(**vars(found) | {"would_fit": tuple(what_would_fit(found))})


def _priced(
    asked: ask.Training, call: Call, *, is_placed: bool = True, reading: Reading | None = None
) -> Plan:
    """Return the strategy that a question states, priced."""
    from meshwright.ask.declared import strategy_of
    from meshwright.train.price import candidate
    from meshwright.train.price import estimate as price

    known, strategy, plan_options = strategy_of(asked, reading=reading)
    on_grid = is_placed and _is_grid(known.system)
    return price(
        known.model, known.system, known.workload, strategy, plan_options,
        calibration=asked.calibration, checks_power=is_placed,
        factors=_factors(asked, known) if isinstance(asked, ask.Measured) else None,
        price=_placer(known.system).price if on_grid else candidate,
        command=call.command if is_placed else "",
    )  # fmt: skip


def _as_it_runs(asked: ask.Plan) -> Candidate | None:
    """Return a job as its files start it; None: it cannot run there."""
    from meshwright.ask.job_files import with_job

    with suppress(SpecError):
        known = with_job(asked)[0]
        return _priced(known.but(measured=None), Call(), is_placed=False).best
    return None


@verb(ask.Check)
def check(asked: ask.Check, call: Call) -> Check:
    """Return each rule that a strategy breaks, with the nearest legal change."""
    from meshwright.ask.declared import strategy_of
    from meshwright.ask.job_files import with_job
    from meshwright.sharding.strategy import plan_string
    from meshwright.train import question as legality
    from meshwright.train.answer import BrokenRule, Check

    known, strategy, plan_options = strategy_of(with_job(asked)[0])
    faults = legality.check(known.model, known.system, known.workload, strategy, plan_options)
    broken = tuple(BrokenRule(fault.path, fault.message, fault.fix) for fault in faults)
    return Check(plan_string(strategy, plan_options), broken)


@verb(ask.Compare)
@reported
def compare(asked: ask.Compare, call: Call) -> Comparison:
    """Return the best plan of each recipe, ours first."""
    from meshwright.ask.declared import declared
    from meshwright.ask.job_files import with_job
    from meshwright.train.compare import compare as side_by_side
    from meshwright.train.compare import recipes

    asked, _ = with_job(asked)
    reading = asked.reading()
    against = asked.against and tuple(name.strip() for name in asked.against)
    for name in against or ():
        reading.value(recipes.__getitem__, name)
    known = declared(asked, reading=reading)
    return side_by_side(
        known.model, known.system, known.workload, against=against,
        prefers_simple=not asked.fastest, placer=_placer(known.system), command=call.command,
        **_shared(asked, call, known),
    )  # fmt: skip


@verb(ask.Explain)
@reported
def explain(asked: ask.Explain, call: Call) -> Explanation | Diagnosis | ProfiledStep:
    """Return the reasons for a plan; with ``measured`` or ``trace``, the lost time of a step."""
    from meshwright.ask.job_files import files_of
    from meshwright.ask.measured import check_measured_bytes, measured_step_s

    reading = _drawing(asked)
    if asked.on is None and not files_of(asked):
        stated = [name for name in ask.Fit.options if name not in ("model", "on", "calibration")]
        asked.refuse_idle(reading, stated, "applies only with --on: the plan file states this")
    if asked.picture is None:
        asked.refuse_idle(reading, ("colors",), "applies only with --picture")
    if asked.trace is not None:
        reading_alone = ("measured", "picture", "report")
        asked.refuse_idle(reading, reading_alone, "has no effect with --trace")
    if asked.measured is None:
        asked.refuse_idle(reading, ("measured_memory",), "applies only with --measured")
    else:
        asked.refuse_idle(reading, ("picture", "report"), "with --measured nothing is drawn")
    found = reading.value(_explained_plan, asked)
    if asked.trace is not None:
        from meshwright.frameworks.profile import read_profile
        from meshwright.frameworks.profiled import profiled_step

        profile = reading.value(read_profile, Path(asked.trace))
        reading.done()
        return profiled_step(profile, found)
    reading.done()
    if asked.measured is not None:
        from meshwright.train.measured.diagnose import diagnose

        step_s = reading.value(measured_step_s, asked.measured, found)
        if asked.measured_memory is not None:
            reading.value(check_measured_bytes, asked.measured_memory, found)
        reading.done()
        return diagnose(found, step_s, measured_memory_bytes=asked.measured_memory)
    if asked.picture is not None and found.best.placement is None:
        if asked.colors is not None:
            raise UsageError("--colors: applies only on grids of devices")
        _draw_stages(found, asked)
    elif asked.picture is not None:
        from meshwright.wafer.chart import map_svg
        from meshwright.wafer.picture import draw

        _write(asked, "picture", map_svg(draw(found, asked.colors)))
    from meshwright.train.explain import explain as why

    # Each feature that a placed plan lacks would be a search of its own, as long as the first one.
    searches = asked.on is not None or found.best.placement is None
    return why(found, _placer(found.system), searches=searches)


def _explained_plan(asked: ask.Explain) -> Plan:
    """Return the plan of a file, or the price of the strategy that a question states."""
    from meshwright.ask.job_files import with_job

    stated, job = with_job(asked)
    if stated.on is None and job is None:
        if isinstance(asked.model, str) and not Path(asked.model).exists():
            fix = "a file of plan --out; a model needs --on"
            raise SpecError(Fault("PLAN.json", f"there is no file {asked.model!r}", fix))
        return _plan_of(asked.model)
    return _priced(stated, Call())


# --------------------------------------------------------------------------- serving, any graph


@verb(ask.Serve)
@reported
def serve(asked: ask.Serve, call: Call) -> ServingPlan | DisaggregatedPlan | TrafficPlan:
    """Return the best way to serve: decode, prefill, whole requests, or requests at a rate."""
    from meshwright.ask.declared import is_traffic
    from meshwright.ask.job_files import with_job

    asked = with_job(asked, keeps_strategy=False, kinds=("serving",))[0]
    if is_traffic(asked):
        return _served_traffic(asked, call)
    return _serving(asked.reading(), asked, call)


def _served_traffic(asked: ask.Serve, call: Call) -> TrafficPlan:
    """Return the fewest devices that take requests at a rate."""
    from meshwright.ask.declared import allowed_of, model_and_system, serving_workload
    from meshwright.ask.traffic import SERVER_FIELDS, traffic_of
    from meshwright.catalog.systems import load_system
    from meshwright.serve.traffic.answer import TRAFFIC_FILE
    from meshwright.serve.traffic.fleet import serve_traffic
    from meshwright.spec.workload import Decode

    reading = asked.reading()
    model, system = model_and_system(reading, asked)
    traffic = traffic_of(reading, asked)
    if traffic is not None and traffic[1] is not None:
        longest = traffic[1].longest
        answer = traffic[0].answer_length
        asked = asked.but(prompt=max(longest - answer, 1), answer=answer)
    workload = None if traffic is None else serving_workload(reading, asked, system)
    others = [reading.value(load_system, name) for name in asked.beside or ()]
    reading.done()
    assert traffic is not None
    assert isinstance(workload, Decode)
    options = {name: getattr(asked, name) for name in SERVER_FIELDS}
    found = serve_traffic(
        model, [system, *others], workload, traffic[0], trace=traffic[1],
        percentile=asked.percentile, allowed=allowed_of(asked),
        server=asked.framework or "generic", calibration=asked.calibration, command=call.command,
        memory_share=asked.memory_share,
        server_options={name: value for name, value in options.items() if value is not None},
    )  # fmt: skip
    if asked.out is not None:
        TRAFFIC_FILE.save(found, asked.out, force=asked.force)
    return found


def _serving(reading: Reading, asked: ask.Serve, call: Call) -> ServingPlan | DisaggregatedPlan:
    """Return the best way to serve, written to the file that a question names."""
    from meshwright.ask.declared import allowed_of, model_and_system, serving_workload
    from meshwright.ask.traffic import refuse_without_rate
    from meshwright.serve.answer import DISAGGREGATED_FILE, SERVING_FILE
    from meshwright.serve.serve import disaggregate
    from meshwright.serve.serve import serve as best_serving

    model, system = model_and_system(reading, asked)
    refuse_without_rate(reading, asked)
    workload = serving_workload(reading, asked, system)
    if asked.disaggregated:
        if "max_ttft" not in asked.stated:
            reading.fault(asked.flag("max_ttft"), "is needed with --disaggregated: prompts would "
                          "queue without end")  # fmt: skip
        why = "has no effect with --disaggregated, which asks for most throughput and counts the"
        asked.refuse_idle(reading, ("latency", "dp"), f"{why} workers")
    else:
        asked.refuse_idle(reading, ("workers",), "applies only with --disaggregated")
    reading.done()
    assert workload is not None
    shared: dict[str, Any] = {
        "allowed": allowed_of(asked), "server": asked.framework or "generic", "top": asked.top,
        "calibration": asked.calibration, "command": call.command,
        "memory_share": asked.memory_share,
    }  # fmt: skip
    if asked.disaggregated:
        split = disaggregate(model, system, workload, workers=asked.workers, **shared)
        if asked.out is not None:
            DISAGGREGATED_FILE.save(split, asked.out, force=asked.force)
        return split
    objective = "latency" if asked.latency else "throughput"
    found = best_serving(model, system, workload, objective=objective, **shared)
    if asked.out is not None:
        SERVING_FILE.save(found, asked.out, force=asked.force)
    return found


@verb(ask.Loop)
@reported
def loop(asked: ask.Loop, call: Call) -> LoopPlan:
    """Return the fastest step of a loop: its parts, and the memory of each phase."""
    from meshwright.ask.declared import declared
    from meshwright.ask.loop import engine_of, sharing_of, work_of
    from meshwright.loop.loop import loop as fastest

    reading = asked.reading()
    work, sharing = work_of(reading, asked), sharing_of(reading, asked)
    if work is None:
        reading.done()
    assert work is not None
    rows = work.rows
    update = asked.to(ask.Plan).but(
        seq=rows.length, global_batch=rows.number, document_length=rows.document_length
    )
    known = declared(update, reading=reading)
    return fastest(
        known.model, known.system, known.workload, work, sharing, allowed=known.allowed,
        engine=engine_of(asked, known.system), calibration=asked.calibration, command=call.command,
    )  # fmt: skip


@verb(ask.Map)
@reported
def map(asked: ask.Map, call: Call) -> GraphAnswer | GridRuns:
    """Return the best plans of any computation."""
    from meshwright.ask.declared import allowed_of, program_of, system_of
    from meshwright.base.registry import version
    from meshwright.catalog.graphs.solutions import read_solution
    from meshwright.dataflow.answer import graph_answer
    from meshwright.dataflow.energy import level_energies, power_parts_w
    from meshwright.dataflow.question import load_graph
    from meshwright.dataflow.search import calibrated_system, optimizer_of, plan_dataflow
    from meshwright.dataflow.solution import price_solution

    if asked.process_grid is not None:
        return _linpack(asked, call)
    reading = asked.reading()
    machine = reading.value(lambda: calibrated_system(system_of(asked), asked.calibration))
    graph = reading.value(load_graph, asked.graph, tokens=asked.seq, **program_of(asked))
    program = reading.value(read_solution, asked.solution) if asked.solution else None
    reading.done()
    theirs = None if program is None else price_solution(
        program, machine, num_passes=asked.passes,
        optimizer=optimizer_of(graph, machine, asked.optimizer),
    )  # fmt: skip
    allowed = {name: tuple(values) for name, values in allowed_of(asked).items()}
    plans = plan_dataflow(
        graph, machine, num_passes=asked.passes, optimizer=asked.optimizer,
        hides_network=asked.overlap, allowed=allowed, progress=call.count("degrees"),
    )  # fmt: skip
    power_w = power_parts_w(graph, machine, plans.best, plans.moved)
    energy = level_energies(graph, machine, plans.best, plans.moved)
    found = graph_answer(graph, machine, plans, power_w, energy)
    if asked.timeloop is not None:
        from meshwright.base.files import write_all
        from meshwright.frameworks.timeloop import timeloop_files

        files = timeloop_files(graph, machine, plans.best)
        write_all(Path(asked.timeloop), files, force=asked.force)
    return replace(found, solution=theirs, version=version(), command=call.command)


def _linpack(asked: ask.Map, call: Call) -> GridRuns:
    """Return runs of Linpack on grids of devices."""
    from meshwright.ask.declared import system_of
    from meshwright.dataflow.linpack import plan_linpack
    from meshwright.dataflow.question import linpack_sizes
    from meshwright.dataflow.search import calibrated_system

    reading, grid = asked.reading(), asked.process_grid
    names = ("seq", "passes", "optimizer", "solution", "tp", "pp", "dp", "training", "overlap",
             "dim", "input", "precision")  # fmt: skip
    asked.refuse_idle(reading, names, "says nothing about Linpack on a grid of devices")
    system = reading.value(lambda: calibrated_system(system_of(asked), asked.calibration))
    sizes = reading.value(linpack_sizes, asked.graph)
    reading.done()
    return plan_linpack(*sizes, system, None if grid == "any" else grid, command=call.command)


# ----------------------------------------------------------------------- plans as files and steps


def load(
    path: str | Path,
) -> Plan | ServingPlan | DisaggregatedPlan | TrafficPlan | ModelSpec | SystemSpec:
    """Return the declaration of a file or a name: a plan (``.json``), a system or a model.

    Raises
    ------
    SpecError, UnknownNameError
        The file is none of them, or no catalog has the name.
    """
    from meshwright.catalog.models import load_model
    from meshwright.catalog.systems import load_system

    if not isinstance(path, str | os.PathLike):
        found = f"found a {type(path).__name__}, expected a path or a name"
        raise SpecError(Fault("path", found))
    file = Path(path)
    if file.suffix == ".json" and file.is_file() and file.name != "config.json":
        from meshwright.catalog.files import read_json
        from meshwright.serve.answer_files import is_of_serving, load_serving
        from meshwright.train.plan_file import load as load_plan

        return load_serving(file) if is_of_serving(read_json(file)) else load_plan(file)
    try:
        return load_model(str(path))
    except UnknownNameError as error:
        try:
            return load_system(str(path))
        except (UnknownNameError, SpecError):
            raise error from None


@verb(ask.Simulate)
def simulate(
    asked: ask.Simulate, call: Call
) -> StepTimeline | SimulatedPlan | list[tuple[FlowScenario, Timeline]]:
    """Return the played step of a plan, or the end of each flow of each scenario of a file."""
    if asked.what != "flows":
        if asked.file is not None:
            raise UsageError(f"unexpected argument {asked.file!r}: simulate PLAN.json")
        if asked.rates:
            raise UsageError("--rates: applies only with flows")
        return _played(asked)
    if asked.picture is not None:
        raise UsageError("--picture: applies only with a plan")
    if asked.file is None:
        raise UsageError("a file is missing: simulate flows FILE.json")
    from meshwright.catalog.flow_files import read_flow_file
    from meshwright.network.flows import play_flows

    scenarios = read_flow_file(Path(asked.file))
    if asked.trace is not None and len(scenarios) > 1:
        raise UsageError(f"--trace: a trace holds one scenario, {asked.file} has {len(scenarios)}")
    runs = [(scenario, play_flows(scenario)) for scenario in scenarios]
    if asked.trace is not None:
        from meshwright.frameworks.perfetto import write_flow_trace

        write_flow_trace(*runs[0], asked.trace, force=asked.force)
    return runs


@verb(ask.Route)
def route(asked: ask.Route, call: Call) -> list[RoutedFlows]:
    """Return routes of the flows of a file, with the load of each link and the proof."""
    from meshwright.ask.declared import system_of
    from meshwright.catalog.flow_files import read_flow_file
    from meshwright.network.flows import links_of, route_flows
    from meshwright.topology.levels import network_of

    reading = asked.reading()
    if asked.on is None:
        asked.refuse_idle(reading, ("network",), "applies only with --on")
    network = None if asked.on is None else reading.value(lambda: network_of(system_of(asked)))
    reading.done()
    links = [] if network is None else links_of(network)
    scenarios = read_flow_file(Path(asked.file), needs_routes=False, links=links)
    found = [route_flows(one, network, seed=asked.seed, max_paths=asked.paths) for one in scenarios]
    if asked.out is not None:
        from meshwright.catalog.answer_file import json_text
        from meshwright.catalog.flow_files import SCHEMA
        from meshwright.show.flows import shown_routes

        content = {"schema": SCHEMA, "scenarios": shown_routes(found).scenarios}
        _write(asked, "out", json_text(content) + "\n")
    return found


@verb(ask.Place)
def place(asked: ask.Place, call: Call) -> PlacedPlan | Placements:
    """Return two simulated placements of a plan, its own and that of a file; or write a file."""
    from meshwright.wafer.question import compared, place_on, placed

    found = _plan_of(asked.plan)
    if asked.file is None:
        own = placed(found)
        if asked.out is not None:
            from meshwright.catalog.answer_file import json_text

            _write(asked, "out", json_text(own) + "\n")
        return own
    from meshwright.catalog.flow_files import read_placement_file

    moved = place_on(found, read_placement_file(Path(asked.file)))
    _saved(moved, asked)
    return compared(found, moved)


def _played(asked: ask.Simulate) -> StepTimeline | SimulatedPlan:
    """Return the simulated step of a plan, off a grid its timeline; write the requested files."""
    found = _plan_of(asked.what)
    if asked.picture is not None:
        _draw_stages(found, asked)
    if found.best.placement is None:
        line = timeline(found)
        if asked.trace is not None:
            from meshwright.frameworks.perfetto import write_step_trace

            notes = {"plan": found.best.text, "fidelity": line.fidelity}
            write_step_trace(line, asked.trace, notes=notes, force=asked.force)
        return line
    from meshwright.wafer.training import played as play

    played = play(found)
    if asked.trace is not None:
        from meshwright.frameworks.perfetto import write_trace

        graph = played.step.graph
        write_trace(
            played.step.timeline, played.network, asked.trace, num_bytes=graph.num_bytes,
            routes=graph.routes, notes={"plan": found.best.text, "fidelity": "simulated"},
            force=asked.force,
        )  # fmt: skip
    return played


def timeline(plan: Plan | str | Path) -> StepTimeline:
    """Return the step of a plan over time: the tasks of each pipeline stage, and its memory.

    Passes take their priced time, in the order of the schedule; on any system.

    Parameters
    ----------
    plan
        A plan of training, or its file.

    Raises
    ------
    SpecError
        It is no plan of training.
    """
    from meshwright.wafer.training import timeline as of_plan

    return of_plan(_plan_of(str(plan) if isinstance(plan, Path) else plan, "plan"))


def _draw_stages(plan: Plan, asked: Any) -> None:
    """Write the pipeline chart of a plan."""
    from meshwright.train.view.timeline import step_svg

    _write(asked, "picture", step_svg(timeline(plan)))


@verb(ask.Export)
def export(asked: ask.Export, call: Call) -> dict[str, str] | list[Path]:
    """Write a plan as launch files and return their paths; ``print``: return the files as text."""
    from meshwright.frameworks.programs.servers import SERVERS
    from meshwright.frameworks.registry import export as write
    from meshwright.frameworks.registry import exporters, rendered

    titles = {name: exporters[name].table.written for name in sorted(exporters)}
    titles |= {name: command.table.written for name, command in SERVERS.items()}
    if asked.plan is None:
        return titles
    if asked.target is None:
        raise UsageError(f"a target is missing; one of {', '.join(titles)}")
    if asked.target in SERVERS:
        return _served(asked)
    if asked.target not in titles:  # reported before the plan is read
        raise UnknownNameError("export target", asked.target, titles)
    exporter = exporters[asked.target]
    if asked.print and not exporter.is_text:
        raise UsageError(f"{exporter.table.written} are not text: --out FOLDER")
    found = replace(_plan_of(asked.plan), verified=())
    if asked.verify:
        from meshwright.catalog.graphs.torch_export import torch_or_refusal

        torch_or_refusal()
        from meshwright.run.dry.verify import verified_for

        found = verified_for(found, asked.target)
    if asked.print:
        return {
            name: str(text) for name, text in rendered(found, asked.target, asked.launcher).items()
        }
    folder = Path(asked.out)
    # Text is written at once; traces may be many and large.
    counted = None if exporter.is_text else call.count("files")
    return list(write(
        found, asked.target, folder, launcher=asked.launcher, force=asked.force, progress=counted
    ))  # fmt: skip


def export_warning(asked: ask.Export) -> str:
    """Return the memory that an exported plan lacks under the framework of its target."""
    from meshwright.frameworks.registry import exporters, memory_warning

    if asked.plan is None or asked.target is None or asked.target not in exporters:
        return ""
    return memory_warning(_plan_of(asked.plan), asked.target)


def _served(asked: Any) -> dict[str, str] | list[Path]:
    """Return the files that start the workers of an answer of serving, as text or written."""
    from typing import get_args

    from meshwright.ask.declared import needed
    from meshwright.base.files import write_all
    from meshwright.frameworks.deployment import served
    from meshwright.serve.answer_files import ServingAnswer, load_serving

    if asked.verify:
        raise UsageError("--verify applies only with training frameworks")
    found: ServingAnswer
    if isinstance(asked.plan, get_args(ServingAnswer)):
        found = asked.plan
    else:
        found = needed("PLAN.json", asked.plan, lambda text: load_serving(Path(text)))
    files = served(found, asked.target, asked.launcher)
    return files if asked.print else list(write_all(Path(asked.out), files, force=asked.force))


# --------------------------------------------------------------------------- on chips: SRAM, cores

_MODEL_ONLY = ("batch", "seq", "prefill", "training", "groups", "precision", "weights", "kv_cache",
               "optimizer", "ep")  # fmt: skip
"""Options that measured layers replace."""
_NOT_OF_GRAPHS = (*(n for n in _MODEL_ONLY if n not in ("seq", "precision")), "tp")
_GRAPH_ONLY = ("dim", "input")
_CUT_FIELDS = {"objective": "objective", "capacity": "capacity_bytes", "tp": "tensor_degree",
               "ep": "expert_degree", "groups": "num_groups"}  # fmt: skip
"""Names of options in a cut."""


@verb(ask.Partition)
@reported
def partition(asked: ask.Partition, call: Call) -> PartitionPlan:
    """Return layers cut into stages that fit a memory."""
    reading = _drawing(asked)
    if (asked.model is None) == (asked.layers is None):
        reading.fault("MODEL", "name either a model, a graph or a file with --layers")
        reading.done()
    from meshwright.dataflow.question import names_graph

    if asked.layers:
        found = _measured_layers(reading, asked, call)
    elif names_graph(str(asked.model)):
        found = _kernels_of_graph(reading, asked, call)
    else:
        found = _layers_of_model(reading, asked, call)
    if asked.picture is not None and not found.stages:
        told = "--picture: no stage fits, so there is no picture"
        return replace(found, warnings=(told, *found.warnings))
    if asked.picture is not None:
        from meshwright.view.svg import chart_svg

        _write(asked, "picture", chart_svg(found.page(), "Memory of a device of each stage"))
    return found


def _layers_of_model(reading: Reading, asked: ask.Partition, call: Call) -> PartitionPlan:
    from meshwright.ask.declared import model_of, system_of
    from meshwright.sram.partition import partition as cut_layers

    asked.refuse_idle(reading, _GRAPH_ONLY, "applies only with a graph")
    model = reading.value(model_of, asked)
    system = reading.value(system_of, asked)
    workload = reading.value(_partition_workload, asked, system)
    reading.done()
    return cut_layers(
        model, system, workload, _cut(asked), calibration=asked.calibration, command=call.command,
        progress=call.count("batches or ways out"),
    )  # fmt: skip


def _kernels_of_graph(reading: Reading, asked: ask.Partition, call: Call) -> PartitionPlan:
    from meshwright.dataflow.question import load_graph
    from meshwright.sram.partition import partition_graph

    asked.refuse_idle(reading, _NOT_OF_GRAPHS, "applies only with a model")
    graph = reading.value(
        load_graph, str(asked.model), tokens=asked.seq, precision=asked.precision,
        sizes=asked.dim or {}, inputs=asked.input or (),
    )  # fmt: skip
    system = _devices_of_row(reading, asked)
    reading.done()
    return partition_graph(
        graph, _cut(asked), system, calibration=asked.calibration, command=call.command
    )


def _devices_of_row(reading: Reading, asked: ask.Partition) -> SystemSpec | None:
    """Return the devices of a row that is no model, if any are stated: a capacity is enough."""
    from meshwright.ask.declared import system_of

    if not asked.stated.keys() & {"on", "capacity"}:
        reading.fault("--capacity", "is needed", "or --on SYSTEM")
    if asked.on is None or "capacity" in asked.stated:
        asked.refuse_idle(reading, ("level",), "applies only with --on and without --capacity")
    return None if asked.on is None else reading.value(system_of, asked)


def _measured_layers(reading: Reading, asked: ask.Partition, call: Call) -> PartitionPlan:
    from meshwright.catalog.footprint_files import load_footprints
    from meshwright.sram.partition import partition_measured

    asked.refuse_idle(reading, (*_MODEL_ONLY, *_GRAPH_ONLY), "applies only with a model")
    file = reading.value(load_footprints, str(asked.layers))
    system = _devices_of_row(reading, asked)
    reading.done()
    return partition_measured(
        file, _cut(asked), system, calibration=asked.calibration, command=call.command
    )


def _cut(asked: ask.Partition) -> Cut:
    """Return the cut that a question states."""
    from meshwright.sram.partition import Cut

    stated = {field: getattr(asked, name) for name, field in _CUT_FIELDS.items()
              if name in asked.stated}  # fmt: skip
    return Cut(level=asked.level, **stated)


def _partition_workload(asked: ask.Partition, system: SystemSpec | None) -> Workload:
    """Return the workload of the layers; any workload where no system was read.

    Raises
    ------
    SpecError
        Every fault of the options.
    """
    from meshwright.ask.declared import optimizer_of, precision_of
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack
    from meshwright.train.question import training

    reading = Reading()
    idle = ("weights", "kv_cache") if asked.training else ("optimizer",)
    asked.refuse_idle(reading, idle, "has no effect here")
    if "seq" not in asked.stated:
        reading.fault("--seq", "is needed")
    optimizer = reading.value(optimizer_of, asked.optimizer)
    reading.done()
    batch, length = asked.batch or 1, asked.seq or 1  # a wrong number is told already
    shared: dict[str, Any] = {"precision": precision_of(asked, system),
                              "software": SoftwareStack(cuda_graphs=True)}  # fmt: skip
    if asked.training and system is not None:
        return training(
            system, global_batch_size=batch, sequence_length=length, optimizer=optimizer, **shared
        )
    if asked.prefill:
        return Prefill(batch_size=batch, prompt_length=length, **shared)
    return Decode(batch_size=batch, context_length=length, **shared)


@verb(ask.Fuse)
@reported
def fuse(asked: ask.Fuse, call: Call) -> FusionAnswer:
    """Return kernels fused into partitions that run on one chip after the other."""
    from meshwright.base.registry import version
    from meshwright.dataflow.fusion.fuse import fuse_graph

    reading = _drawing(asked)
    if "chips" in asked.stated:
        asked.refuse_idle(reading, ("tp", "pp"), "is chosen where --chips is given")
    question = _fusion_question(reading, asked)
    answer = fuse_graph(
        question, chips=asked.chips, progress=call.count("tiles and divisions"),
        time_limit_s=float("inf") if asked.time_limit is None else asked.time_limit,
    )  # fmt: skip
    answer = replace(answer, version=version(), command=call.command)
    if asked.picture is not None:
        from meshwright.dataflow.fusion.view import fusion_svg

        _write(asked, "picture", fusion_svg(answer))
    return answer


def _fusion_question(reading: Reading, asked: ask.Fuse) -> FusionQuestion:
    """Return the question that the options ask; raises every fault of them."""
    from meshwright.ask.declared import needed, program_of
    from meshwright.dataflow.fusion.question import FusionQuestion, target_named
    from meshwright.dataflow.question import load_graph

    graph = reading.value(load_graph, asked.graph, tokens=asked.tokens, **program_of(asked))
    width = graph.widest_product_bytes if graph is not None else 2.0
    target = reading.value(
        needed, "--on", asked.on, lambda name: target_named(name, asked.link, width)
    )
    reading.done()
    return FusionQuestion(
        graph=graph, target=target, runs_by_kernel=asked.kernel_by_kernel, tp=asked.tp, pp=asked.pp,
        tile=asked.tile, micro_batch=asked.micro_batch, objective=asked.objective,
        num_passes=asked.passes,
    )  # fmt: skip


@verb(ask.Read)
def read(asked: ask.Read, call: Call) -> ReadJob | DataflowGraph:
    """Return the job that files start; of a program, its graph."""
    from meshwright.ask.job_files import is_job_file, read_files
    from meshwright.catalog.graphs.programs import is_program

    first = asked.files[0]
    if len(asked.files) == 1 and is_program(first) and not is_job_file(first):
        return _read_program(asked)
    reading = Reading()
    names = ("dim", "input", "precision", "repeats", "training", "out")
    asked.refuse_idle(reading, names, "applies only with a program")
    found = reading.value(read_files, asked.files, asked.on, asked.set)
    reading.done()
    return found


def _read_program(asked: ask.Read) -> DataflowGraph:
    """Return the graph of a program."""
    from meshwright.ask.declared import program_of
    from meshwright.catalog.graphs.files import graph_yaml
    from meshwright.dataflow.question import load_graph
    from meshwright.graph.kernels.declared import to_spec

    reading = Reading()
    asked.refuse_idle(reading, ("on", "set"), "applies only with launch files")
    reading.done()
    graph = load_graph(asked.files[0], repeats=asked.repeats or 1, **program_of(asked))
    if asked.out is not None:
        _write(asked, "out", graph_yaml(to_spec(graph, about=f"Read from {asked.files[0]}.")))
    return graph


# ------------------------------------------------------------------- many questions, and the truth


@verb(ask.Sweep)
def sweep(asked: ask.Sweep, call: Call) -> SweepAnswer:
    """Return one question answered over all combinations of the varied fields."""
    from meshwright.base.cluster import open_cluster, state_of_code
    from meshwright.base.registry import version
    from meshwright.sweep.answer import SweepAnswer, way_on
    from meshwright.sweep.choice import choices, objective_of
    from meshwright.sweep.front import front_names, front_of, run_front
    from meshwright.sweep.questions import QUESTIONS, checked, results_of
    from meshwright.sweep.results import cells_of, sweep_csv
    from meshwright.sweep.run import load_sweep
    from meshwright.sweep.run import run as run_points
    from meshwright.sweep.stores import open_store
    from meshwright.view.heat_map import heat_svg
    from meshwright.view.svg import check_drawable

    if asked.watch:
        reading = asked.reading()
        idle = ("budget", "front", "on_cluster", "csv", "picture", "report", "force")
        asked.refuse_idle(reading, idle, "applies to a sweep, without --watch")
        if asked.out is None:
            reading.fault("--watch", "there is no place of results", "with --out FILE.db")
        reading.done()
    stated = load_sweep(Path(asked.file))
    is_page = asked.report is not None and asked.report.suffix == ".html"
    written = {"--picture": ("heat_map", asked.picture),
               "--report": ("report", None if is_page else asked.report)}  # fmt: skip
    faults = [
        Fault(option, f"the file states no {name}", "add one to it")
        for option, (name, path) in written.items()
        if path is not None and getattr(stated, name) is None
    ]
    if faults:
        raise SpecError(faults)
    has_maps = stated.report is not None and bool(stated.report.heat_maps)
    if asked.picture is not None or (asked.report is not None and not is_page and has_maps):
        check_drawable()
    points, question = checked(stated), QUESTIONS[stated.ask]
    limits = asked.at_least or (), asked.at_most or ()
    objective = objective_of(results_of(stated.ask), asked.least, asked.most, *limits)
    names = () if asked.front is None else front_names(asked.front, stated, question.bounded)
    with open_store(asked.out) as store, open_cluster(asked.on_cluster) as cluster:
        ends_s = time.monotonic() + (0.0 if asked.watch else asked.budget or inf)

        def results(points: Sequence[Mapping[str, Any]]) -> Swept:
            return run_points(
                stated.ask, question.answer, points, store, version=state_of_code(),
                cluster=cluster, seconds=max(ends_s - time.monotonic(), 0.0),
                progress=None if names else call.count("points", "; Ctrl-C: the results so far"),
            )  # fmt: skip

        swept = (run_front(names, points, question.bound, results, cluster.num_workers) if names
                 else results(points))  # fmt: skip
    if asked.csv is not None:
        _write(asked, "csv", sweep_csv(swept))
    if asked.picture is not None and stated.heat_map is not None:
        _write(asked, "picture", heat_svg(cells_of(stated, stated.heat_map, swept)))
    chosen = () if objective is None else tuple(choices(objective, stated, swept.records))
    warnings = (*cluster.warnings, *way_on(swept, store.place))
    front = tuple(front_of(names, swept.records)) if names else ()
    found = SweepAnswer(stated, swept, chosen, version(), call.command, warnings, front)
    if asked.report is not None and is_page:
        found.report(asked.report, force=asked.force)
    elif asked.report is not None:
        from meshwright.view.markdown import markdown_of

        _write_documents(asked, "report", partial(markdown_of, found.page(), without=("points",)))
    return found


@verb(ask.Validate)
@reported
def validate(asked: ask.Validate, call: Call) -> Validation | Shown:
    """Return predictions of measured rows, published or your own."""
    if asked.kernels:
        _refuse_workers(asked)
        return _validated_kernels(asked, call)
    from meshwright.base.cluster import open_cluster
    from meshwright.base.registry import version
    from meshwright.calibration.rows import judged, rows_file
    from meshwright.calibration.serving import predict_all
    from meshwright.calibration.validation import Validation
    from meshwright.view.svg import check_drawable

    if asked.document is not None:
        check_drawable()
    rows, faults = _rows(None), list[Fault]()
    if asked.measurements is not None:
        rows, faults = judged(rows_file(Path(asked.measurements)), asked.measurements)
        if faults and not rows:
            raise SpecError(faults, origin=asked.measurements)
    with open_cluster(asked.on_cluster) as cluster:
        predictions = tuple(predict_all(rows, asked.calibration, cluster))
    found = Validation(predictions, asked.calibration, tuple(faults), version(), call.command)
    from meshwright.calibration.view import documents

    _write_documents(asked, "document", partial(documents, found))
    return found


def _validated_kernels(asked: ask.Validate, call: Call) -> Shown:
    """Return the comparison of the curves of single kernels with measured times."""
    from meshwright.base.registry import version
    from meshwright.catalog.calibration import DEFAULT as STEPS
    from meshwright.view.markdown import markdown_of

    curves = None if asked.calibration == STEPS else asked.calibration
    found: Any = _of_kernels("validate")(asked.measurements, curves)
    found = replace(found, version=version(), command=call.command)
    _write_documents(asked, "document", lambda stem: markdown_of(found.page(), stem))
    return cast("Shown", found)


def _refuse_workers(asked: ask.Validate | ask.Calibrate) -> None:
    """Refuse workers where single kernels are compared or fitted."""
    reading = asked.reading()
    asked.refuse_idle(reading, ("on_cluster",), "applies to steps, without --kernels")
    reading.done()


def _of_kernels(verb: str) -> Callable[..., Any]:
    """Return the function of a verb for single kernels, which another distribution holds."""
    from meshwright.base.registry import load_entry_points

    found: dict[str, Callable[..., Any]] = load_entry_points("kernels")
    if verb not in found:
        message = "curves of single kernels are in a separate distribution; no price reads them"
        raise SpecError(Fault("--kernels", message, "pip install meshwright-papers"))
    return found[verb]


def _rows(path: str | None) -> Sequence[Row]:
    """Return the measured rows of a file; the published ones where none is named."""
    from meshwright.calibration.rows import TABLES, published, read_rows

    if path is not None:
        return read_rows(Path(path))
    return [row for table in TABLES for row in published(table)]


@verb(ask.Calibrate)
def calibrate(asked: ask.Calibrate, call: Call) -> Fitted:
    """Return the constants of the cost model fitted to measured rows."""
    from meshwright.base.cluster import open_cluster
    from meshwright.calibration.fit.report import fitted
    from meshwright.calibration.rows import is_frozen
    from meshwright.catalog.calibration import DEFAULT as CALIBRATED
    from meshwright.catalog.calibration import UNCALIBRATED

    name = "calibrated" if asked.out is None else asked.out.stem
    command = " ".join(filter(None, ("meshwright calibrate", asked.file)))
    if asked.kernels:
        _refuse_workers(asked)
        found = cast("Fitted", _of_kernels("calibrate")(asked.file, name, f"{command} --kernels"))
    else:
        rows = [row for row in _rows(asked.file) if asked.file or not is_frozen(row)]
        with open_cluster(asked.on_cluster) as cluster:
            base = CALIBRATED if asked.file else UNCALIBRATED
            found = fitted(rows, name, command, base, cluster)
        if not found.data:
            raise InfeasibleError("no row has a measured throughput that can be predicted")
    _write(asked, "out", found.text)
    return found


@verb(ask.Measure)
def measure(asked: ask.Measure, call: Call) -> MeasuredMachine | None:
    """Return the measurements of this machine; None in processes that are not the first."""
    from meshwright.measure.run import measure as measure_all

    return measure_all(
        asked.out, quick=asked.quick, force=asked.force, command=call.command, progress=call.count
    )


@verb(ask.Run)
def run(asked: ask.Run, call: Call) -> Executed | DryRun | None:
    """Return the report of a run; None in processes of torchrun that are not the first."""
    from meshwright.ask.declared import needed
    from meshwright.catalog.graphs.torch_export import torch_or_refusal
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan

    found = needed("PLAN.json", asked.plan, load_plan, Plan)
    torch_or_refusal()
    if asked.dry:
        from meshwright.run.dry.run import dry_run

        reading = asked.reading()
        idle = [name for name in asked.options if name not in ("plan", "dry")]
        asked.refuse_idle(reading, idle, "applies to a real run only, without --dry")
        reading.done()
        return dry_run(found, call.count)
    from meshwright.run.real import execute

    return execute(
        found, steps=asked.steps, scale=asked.scale, checks=asked.check, seed=asked.seed,
        dtype=asked.dtype, port=asked.port, most_processes=asked.processes,
        progress=call.count,
    )  # fmt: skip
