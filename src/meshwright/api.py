"""The verbs: one function for each command, with the same options as keyword arguments.

``mw.plan("llama3-70b", on="64xH100", seq="8k", global_batch=1024, tp=2)`` reads its options with
the code of the command line and returns the answer as plain data. A model, system or workload may
be a name, a path or a declaration. Unknown options and values are refused with the nearest ones.
The rooms are imported when a verb is called.
"""

from __future__ import annotations

import inspect
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from meshwright.base.errors import (
    Fault,
    InfeasibleError,
    SpecError,
    UnknownNameError,
    UsageError,
)
from meshwright.options.table import COMMANDS, options_from_keywords

if TYPE_CHECKING:
    from meshwright.calibration.fit.report import Fitted
    from meshwright.calibration.kernel_validation import KernelValidation
    from meshwright.calibration.kernels import Timings
    from meshwright.calibration.rows import Row
    from meshwright.calibration.validation import Validation
    from meshwright.dataflow.answer import GraphAnswer
    from meshwright.dataflow.fusion.answer import FusionAnswer, FusionQuestion
    from meshwright.dataflow.linpack import GridRuns
    from meshwright.frameworks.profile import Profile
    from meshwright.frameworks.reading.job import Job
    from meshwright.graph.kernels.graph import DataflowGraph
    from meshwright.measure.run import MeasuredMachine
    from meshwright.network.flows import RoutedFlows
    from meshwright.network.simulation.timeline import Timeline
    from meshwright.options.question import Question, Reading
    from meshwright.search.exhaustive import Progress
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.spec.flows import FlowScenario
    from meshwright.spec.model import ModelSpec
    from meshwright.spec.system import SystemSpec
    from meshwright.spec.workload import Workload
    from meshwright.sram.answer import PartitionPlan
    from meshwright.sram.partition import Cut
    from meshwright.sweep.answer import SweepAnswer
    from meshwright.train.answer import Candidate, Deadline, Front, Plan, Replan
    from meshwright.train.compare import Comparison
    from meshwright.train.estimate import Placer
    from meshwright.train.explain import Explanation
    from meshwright.train.measured.diagnose import Diagnosis
    from meshwright.train.timeline import StepTimeline
    from meshwright.wafer.simulation import SimulatedPlan
    from meshwright.wafer.stated import PlacementRecord

T = TypeVar("T")


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


class Verb(Generic[T]):
    """A command as a function: options by keyword, its arguments by position as well."""

    def __init__(self, name: str, answer: Callable[[Namespace, Call], T]) -> None:
        self.name, self.answer = name, answer
        self.__name__ = self.__qualname__ = name
        returned = inspect.signature(answer).return_annotation
        self.__doc__ = COMMANDS[name].docstring(answer.__doc__ or "", returned)

    @property
    def __signature__(self) -> inspect.Signature:
        kinds = inspect.Parameter
        return inspect.Signature([
            kinds(
                option.name,
                kinds.POSITIONAL_OR_KEYWORD if option.is_positional else kinds.KEYWORD_ONLY,
                default=kinds.empty if option.kind == "needed"
                else False if option.kind == "flag" else option.default,
            )
            for option in sorted(COMMANDS[self.name].options, key=lambda o: not o.is_positional)
        ])  # fmt: skip

    def __call__(self, *arguments: object, **options: object) -> T:
        """Read the options as the command line does, and return the answer."""
        names = [o.name for o in COMMANDS[self.name].options if o.is_positional]
        if len(arguments) > len(names):
            message = f"{len(arguments)} arguments by position, at most {len(names)}"
            raise SpecError(Fault(self.name, message, "give options by name"))
        given = dict(zip(names, arguments, strict=False))
        if twice := given.keys() & options.keys():
            raise SpecError([Fault(name, "is given twice") for name in sorted(twice)])
        args = options_from_keywords(self.name, given | options)
        shown = [repr(value) if isinstance(value, str | int | float) else type(value).__name__
                 for value in arguments]  # fmt: skip
        shown += [f"{name}={value!r}" if isinstance(value, str | int | float) else name
                  for name, value in options.items()]  # fmt: skip
        return self.answer(args, Call(f"mw.{self.name}({', '.join(shown)})"))

    def __repr__(self) -> str:
        return f"<meshwright.{self.name}>"


def verb(answer: Callable[[Namespace, Call], T]) -> Verb[T]:
    """Return a verb of the name of a function."""
    return Verb(answer.__name__, answer)


def reported(answer: Callable[[Namespace, Call], T]) -> Callable[[Namespace, Call], T]:
    """Return the answers of a verb, each written as a report on request."""

    @wraps(answer)
    def written(args: Namespace, call: Call) -> T:
        path = _report_file(args)
        found = answer(args, call)
        if path is not None:
            _report(found, path, args)
        return found

    return written


def _report_file(args: Namespace) -> Path | None:
    """Return the file of a report, checked before the work starts."""
    from meshwright.options.question import output_file

    if getattr(args, "report", None) is None:
        return None
    return output_file(args, "report", ".html")


def _report(found: Any, path: Path, args: Namespace) -> None:
    """Write the report of an answer."""
    from meshwright.view.html import write_page

    write_page(found.page(**_beside(found)), path, force=args.force)


def _beside(found: Any) -> dict[str, Any]:
    """Return the parts that other rooms add to the report of an answer."""
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.train.answer import Deadline, Plan, Replan

    if isinstance(found, ServingPlan | DisaggregatedPlan):
        return _server_launch(found)
    if isinstance(found, Replan | Deadline):
        found = found.plan
    return _launch(found) | _map(found) if isinstance(found, Plan) else {}


def _map(found: Plan) -> dict[str, Any]:
    """Return the picture of the grid of a plan, and its step over time on it."""
    if found.best.placement is None:
        return {}
    from meshwright.base.errors import UnsupportedError
    from meshwright.wafer.picture import draw
    from meshwright.wafer.svg import wafer_svg
    from meshwright.wafer.timeline import timeline as of_plan

    made: dict[str, Callable[[], object]] = {
        "map_svg": lambda: wafer_svg(draw(found)),
        "line": lambda: of_plan(found),
    }
    shown: dict[str, Any] = {}
    for name, make in made.items():
        with suppress(UnsupportedError):
            shown[name] = make()
    return shown


def _server_launch(found: ServingPlan | DisaggregatedPlan) -> dict[str, Any]:
    """Return the command of the stated server of a plan, or of the first that starts it."""
    from meshwright.base.errors import UnsupportedError
    from meshwright.frameworks.servers import SERVERS, served

    for name in dict.fromkeys((found.server, *SERVERS)):
        if name in SERVERS:
            try:
                files = served(found, name)
            except UnsupportedError:
                continue
            return {"launch_files": files, "launch_command": f"meshwright export PLAN.json {name}"}
    return {}


def report_of(found: Plan) -> str:
    """Return the report of a plan as HTML, with the parts of other rooms."""
    from meshwright.view.html import html_of

    return html_of(found.page(**_beside(found)))


def _launch(found: Plan) -> dict[str, Any]:
    """Return the files that start a plan, and the command that writes them; empty: no export."""
    from meshwright.frameworks.registry import exporters, refusals, rendered, target_for

    target = target_for(found.workload.software.framework or "", found.best.launches_with)
    if target is None or refusals(found, target) or not exporters[target].is_text:
        return {}
    files = {name: str(text) for name, text in rendered(found, target).items()}
    return {"launch_files": files, "launch_command": f"meshwright export PLAN.json {target}"}


# ------------------------------------------------------------------------------------ training

ABOUT_GRAPHS = ("on", "network", "seq", "global_batch", "optimizer", "precision", "tp", "pp", "dp")
SEARCH_ONLY = ("pareto", "per_operator", "fastest")


@verb
@reported
def plan(
    args: Namespace, call: Call
) -> Plan | ServingPlan | DisaggregatedPlan | Front | Replan | Deadline | GraphAnswer | GridRuns:
    """Return the best plan of the whole space."""
    from meshwright.options.job_files import with_job
    from meshwright.options.question import (
        Reading,
        is_serving,
        output_file,
        question_of,
        whole_number,
    )

    if not _is_replan(args):
        args = with_job(args, keeps_strategy=False, may_serve=True)[0]
    reading = Reading()
    _refuse_idle_of_plan(reading, args)
    path = reading.value(output_file, args, "out")
    top = reading.value(whole_number, "--top", args.top) if args.top is not None else 5
    num_simulated = 5
    if args.simulated is not None:
        num_simulated = reading.value(whole_number, "--simulated", args.simulated, least=0)
    if args.origin is not None:
        return _replan(reading, args, call, path)
    if args.graph is not None:
        return (
            _linpack(reading, args, call)
            if args.process_grid
            else _graph_plans(reading, args, call)
        )
    if is_serving(args):
        return _serving(reading, args, call, path, top)
    best = partial(_best_plan, args, call, top=top, num_simulated=num_simulated)
    if args.within is not None:
        return _deadline(reading, args, call, path, best)
    asked = reading.value(question_of, args)
    reading.done()
    if args.pareto:
        from meshwright.train.plan import front

        return front(
            asked.model, asked.system, asked.workload, command=call.command,
            **_shared(args, call, asked),
        )  # fmt: skip
    return _saved(best(asked), path, args)


def _shared(args: Namespace, call: Call, asked: Question) -> dict[str, Any]:
    """Return the arguments that the searches for a plan and for a front share."""
    from meshwright.options.jobs import factors_of

    return {
        "allowed": asked.allowed, "calibration": args.calibration, "progress": call.search,
        "factors": factors_of(args, asked.system.chip.family),
    }  # fmt: skip


def _best_plan(
    args: Namespace, call: Call, asked: Question, *, top: int, num_simulated: int
) -> Plan:
    """Return the best plan for a question."""
    from meshwright.train.plan import plan as best

    return best(
        asked.model, asked.system, asked.workload, top=top, per_operator=args.per_operator,
        num_simulated=num_simulated, placer=_placer(asked.system, is_needed=args.per_operator),
        prefers_simple=args.within is None and not args.fastest, command=call.command,
        **_shared(args, call, asked),
    )  # fmt: skip


def _deadline(
    reading: Reading, args: Namespace, call: Call, path: Path | None,
    best: Callable[[Question], Plan],
) -> Deadline:  # fmt: skip
    """Return the plan for a run with a time limit; for a chip, on the fewest devices."""
    from meshwright.catalog.systems import find_chip, whole_sizes
    from meshwright.options.question import on_devices, quantity, question_of
    from meshwright.train.answer import Deadline, SizeTried
    from meshwright.train.deadline import Tries, least_device_s, least_in_time
    from meshwright.train.question import make_problem

    within_s = reading.value(quantity, "--within", args.within, "duration")
    if args.tokens is None and args.workload is None:
        reading.fault("--tokens", "is needed with --within", "such as 2T")
    chip = find_chip(args.on) if isinstance(args.on, str) else None
    sizes = reading.value(whole_sizes, chip) if chip else ()
    if chip and not sizes:
        reading.done()
    on = f"{sizes[-1]}x{chip}" if chip else args.on
    asked = reading.value(question_of, Namespace(**{**vars(args), "on": on}))
    reading.done()
    if asked.workload.total_tokens is None:
        raise SpecError(Fault("total_tokens", "is needed with --within", f"in {args.workload}"))
    if chip is None:
        found = best(asked)
        tried = (SizeTried(asked.system.num_devices, found.run_s),)
        answer = Deadline(found, within_s, tried)
    else:
        tries = Tries(
            lambda size: best(question_of(on_devices(args, size, chip))), call.count("sizes")
        )
        problem = make_problem(asked.model, asked.system, asked.workload, args.calibration)
        answer = least_in_time(sizes, tries, within_s, device_s=least_device_s(problem))
    _saved(answer.plan, path, args)
    return answer


def _is_replan(args: Namespace) -> bool:
    """Tell whether ``--from`` names an earlier plan, and not files that start a job."""
    from meshwright.options.job_files import is_job_file

    named = args.origin
    if isinstance(named, list) and len(named) == 1 and not is_job_file(named[0]):
        args.origin = named = named[0]
    return named is not None and not isinstance(named, list)


def _placer(system: SystemSpec | None, *, is_needed: bool = False) -> Placer:
    """Return the placer of candidates: :mod:`meshwright.wafer` on grids, else in closed form."""
    levels = system.levels if system is not None else ()
    if is_needed or any(level.kind in ("mesh", "torus") for level in levels):
        from meshwright.wafer.training import GRIDS

        return GRIDS
    from meshwright.train.estimate import CLOSED_FORM

    return CLOSED_FORM


def _saved(found: Plan, path: Path | None, args: Namespace) -> Plan:
    """Write a plan to its file, where one is named, and return it."""
    if path is not None:
        from meshwright.train import plan_file as files

        files.save(found, path, force=args.force)
    return found


def _refuse_idle_of_plan(reading: Reading, args: Namespace) -> None:
    """Keep a complaint for each option that would change nothing together with the others."""
    from meshwright.options.question import ASKED, FIXED, SERVING_ONLY, is_serving, refuse_idle

    if args.graph is not None and args.origin is None:
        names = [name for name in (*ASKED, *FIXED) if name not in ABOUT_GRAPHS]
        names += [*SERVING_ONLY, "decode", "prefill", *SEARCH_ONLY, "out", "without", "within",
                  "measured"]  # fmt: skip
        refuse_idle(reading, args, names, "says nothing about a graph")
        return
    refuse_idle(reading, args, ("training", "overlap", "dim", "input", "process_grid"),
                "applies only with --graph")  # fmt: skip
    if args.origin is not None:
        names = [*ASKED, *FIXED, *SERVING_ONLY, "decode", "prefill", "top", *SEARCH_ONLY, "graph",
                 "measured", "within"]  # fmt: skip
        refuse_idle(reading, args, names, "with --from, the earlier plan states this")
        return
    refuse_idle(reading, args, ("without",), "applies only with --from PLAN.json")
    if is_serving(args):
        names = ["within", "simulated", *SEARCH_ONLY]
        refuse_idle(reading, args, names, "applies only to training")
    else:
        refuse_idle(reading, args, SERVING_ONLY, "applies only with --decode or --prefill")
    if args.pareto:
        names = ["out", "top", "per_operator", "within", "fastest"]
        refuse_idle(reading, args, names, "a front is no single plan, and is always whole")


def _replan(reading: Reading, args: Namespace, call: Call, path: Path | None) -> Replan:
    """Return the plan for the devices that are left."""
    from meshwright.options.question import needed, whole_number
    from meshwright.train.answer import Plan
    from meshwright.train.plan import replan
    from meshwright.train.plan_file import load as load_plan

    without = reading.value(
        needed, "--without", args.without, lambda text: whole_number("--without", text)
    )
    before = reading.value(needed, "--from", args.origin, load_plan, Plan)
    reading.done()
    changed = replan(before, without=without, placer=_placer(before.system), progress=call.search)
    _saved(changed.plan, path, args)
    return changed


def _linpack(reading: Reading, args: Namespace, call: Call) -> GridRuns:
    """Return runs of Linpack on grids of devices."""
    from meshwright.dataflow.linpack import plan_linpack
    from meshwright.dataflow.load import linpack_sizes
    from meshwright.dataflow.search import calibrated_system
    from meshwright.options.question import process_grid, refuse_idle, system_of

    names = ("seq", "global_batch", "optimizer", "tp", "pp", "dp", "training", "overlap", "dim",
             "input", "precision")  # fmt: skip
    refuse_idle(reading, args, names, "says nothing about Linpack on a grid of devices")
    grid = reading.value(process_grid, args.process_grid)
    system = reading.value(lambda: calibrated_system(system_of(args), args.calibration))
    sizes = reading.value(linpack_sizes, args.graph)
    reading.done()
    return plan_linpack(*sizes, system, grid, command=call.command)


def _graph_plans(reading: Reading, args: Namespace, call: Call) -> GraphAnswer:
    """Return the best plans of any computation."""
    from meshwright.base.registry import version
    from meshwright.dataflow.answer import GraphAnswer
    from meshwright.dataflow.energy import power_parts_w
    from meshwright.dataflow.load import load_graph
    from meshwright.dataflow.search import calibrated_system, plan_dataflow
    from meshwright.options.question import given_numbers, program_of, system_of, whole_number

    lengths = given_numbers(reading, args, ("seq",), kilo=1024)
    program = reading.value(program_of, args) or {}
    passes = given_numbers(reading, args, ("global_batch",))
    allowed = {
        name: reading.value(
            lambda option, text: tuple(whole_number(option, part) for part in text.split(",")),
            f"--{name}", getattr(args, name),
        )
        for name in ("tp", "pp", "dp")
        if getattr(args, name) is not None
    }  # fmt: skip
    machine = reading.value(lambda: calibrated_system(system_of(args), args.calibration))
    graph = reading.value(
        load_graph, args.graph, tokens=lengths.get("seq"), training=args.training, **program
    )
    reading.done()
    plans = plan_dataflow(
        graph, machine, num_passes=passes.get("global_batch", 1), optimizer=args.optimizer,
        hides_network=args.overlap, allowed=allowed, progress=call.count("degrees"),
    )  # fmt: skip
    power_w = power_parts_w(graph, machine, plans.best, plans.moved)
    return GraphAnswer(graph, machine, plans, power_w, version(), call.command)


def _serving(
    reading: Reading, args: Namespace, call: Call, path: Path | None, top: int
) -> ServingPlan | DisaggregatedPlan:
    """Return the best way to serve."""
    from meshwright.options.question import (
        TRAINING_ONLY,
        allowed_of,
        memory_share_of,
        read_model_and_system,
        refuse_idle,
        serving_workload,
    )
    from meshwright.serve.answer import DISAGGREGATED_FILE, save_serving
    from meshwright.serve.serve import disaggregate
    from meshwright.serve.serve import serve as best_serving

    refuse_idle(reading, args, TRAINING_ONLY, "applies only to training")
    model, system = read_model_and_system(reading, args)
    workload = reading.value(serving_workload, args, system)
    share = reading.value(memory_share_of, args)
    allowed = reading.value(allowed_of, args)
    if args.framework is not None and args.server is not None:
        reading.fault("--server", "--framework names the server already", "one of them")
    if args.disaggregated:
        if args.max_ttft is None:
            reading.fault("--max-ttft", "is needed with --disaggregated: prompts would queue "
                          "without end")  # fmt: skip
        for name in ("latency", "dp"):
            if getattr(args, name):
                message = "is of no use with --disaggregated, which asks for most throughput and "
                reading.fault(f"--{name}", f"{message}counts the workers")
    reading.done()
    asked: dict[str, Any] = {
        "allowed": allowed, "server": args.framework or args.server or "generic", "top": top,
        "calibration": args.calibration, "command": call.command, "memory_share": share,
    }  # fmt: skip
    if args.disaggregated:
        split = disaggregate(model, system, workload, **asked)
        if path is not None:
            DISAGGREGATED_FILE.save(split, path, force=args.force)
        return split
    objective = "latency" if args.latency else "throughput"
    found = best_serving(model, system, workload, objective=objective, **asked)
    if path is not None:
        save_serving(found, path, force=args.force)
    return found


@verb
def serve(args: Namespace, call: Call) -> ServingPlan | DisaggregatedPlan:
    """Return the best way to serve: ``plan`` with ``decode`` or ``prefill``."""
    if not (args.decode or args.prefill):
        raise SpecError(Fault("decode", "is needed", "decode=True or prefill=True"))
    everything = options_from_keywords("plan", {})
    asked = Namespace(**{**vars(everything), **vars(args)})
    return cast("ServingPlan | DisaggregatedPlan", plan.answer(asked, call))


@verb
@reported
def estimate(args: Namespace, call: Call) -> Plan | ServingPlan | DisaggregatedPlan:
    """Return the price of one given strategy, or of the serving of a job."""
    from meshwright.options.job_files import with_job
    from meshwright.options.question import (
        SERVING_ONLY,
        Reading,
        is_serving,
        output_file,
        refuse_idle,
    )

    path = output_file(args, "out")
    asked, job = with_job(args, may_serve=True)
    if is_serving(asked):
        if job is None:  # a split that is not stated is none
            vars(asked).update({name: vars(asked)[name] or "1" for name in ("tp", "pp")})
        everything = vars(options_from_keywords("plan", {})) | vars(asked)
        return _serving(Reading(), Namespace(**everything), call, path, 1)
    refuse_idle(
        reading := Reading(), asked, SERVING_ONLY, "applies only with --decode or --prefill"
    )
    reading.done()
    return _saved(_priced(asked, call), path, args)


@verb
def fit(args: Namespace, call: Call) -> Plan:
    """Return the memory of one given strategy, as a plan without placement on its network."""
    from meshwright.options.job_files import with_job

    args.measured = None
    return _priced(with_job(args)[0], call, is_placed=False)


def _priced(args: Namespace, call: Call, *, is_placed: bool = True) -> Plan:
    """Return the strategy that the options state, priced."""
    from meshwright.options.question import strategy_question
    from meshwright.train.estimate import estimate as price

    asked, strategy, plan_options = strategy_question(args)
    factors = None
    if args.measured is not None:
        from meshwright.options.jobs import factors_of

        factors = factors_of(args, asked.system.chip.family)
    return price(
        asked.model, asked.system, asked.workload, strategy, plan_options,
        calibration=args.calibration, factors=factors, is_placed=is_placed,
        placer=_placer(asked.system if is_placed else None),
        command=call.command if is_placed else "",
    )  # fmt: skip


def as_it_runs(args: Namespace) -> Candidate | None:
    """Return the job of ``--from`` as its files start it; None: no training job was read."""
    from meshwright.options.job_files import with_job

    if _is_replan(args):
        return None
    asked, job = with_job(args, may_serve=True)
    if job is None or job.kind != "training":
        return None
    return _priced(Namespace(**{**vars(asked), "measured": None}), Call(), is_placed=False).best


@verb
def check(args: Namespace, call: Call) -> tuple[Fault, ...]:
    """Return each rule that a strategy breaks, with the nearest legal change; none: legal."""
    return _checked(args)[1]


def _checked(args: Namespace) -> tuple[str, tuple[Fault, ...]]:
    """Return the plan string of a strategy, and its faults."""
    from meshwright.options.job_files import with_job
    from meshwright.options.question import strategy_question
    from meshwright.sharding.strategy import plan_string
    from meshwright.train import question as legality

    asked, strategy, plan_options = strategy_question(with_job(args)[0])
    faults = legality.check(asked.model, asked.system, asked.workload, strategy, plan_options)
    return plan_string(strategy, plan_options), tuple(faults)


@verb
@reported
def compare(args: Namespace, call: Call) -> Comparison:
    """Return the best plan of each recipe, ours first."""
    from meshwright.options.job_files import with_job
    from meshwright.options.question import Reading, question_of
    from meshwright.train.compare import compare as side_by_side
    from meshwright.train.compare import recipes

    args, _ = with_job(args)
    reading, against = Reading(), None
    if args.against is not None:
        against = tuple(part.strip() for part in args.against.split(","))
        for name in against:
            reading.value(recipes.__getitem__, name)
    asked = reading.value(question_of, args)
    reading.done()
    return side_by_side(
        asked.model, asked.system, asked.workload, against=against, allowed=asked.allowed,
        calibration=args.calibration, factors=_factors(args, asked),
        prefers_simple=not args.fastest, placer=_placer(asked.system), progress=call.search,
        command=call.command,
    )  # fmt: skip


def _factors(args: Namespace, asked: Question) -> Any:
    from meshwright.options.jobs import factors_of

    return factors_of(args, asked.system.chip.family)


@verb
def explain(args: Namespace, call: Call) -> Explanation | Diagnosis | Profile:
    """Return the reasons for a plan; with ``measured`` or ``trace``, the lost time of a step."""
    answer: Explanation | Diagnosis | Profile = _explained(args, call)[1]
    return answer


def _explained(args: Namespace, call: Call) -> tuple[Plan, Any]:
    """Return a plan with its explanation or the diagnosis of its measured step."""
    from meshwright.options.job_files import files_of
    from meshwright.options.jobs import measured_bytes, measured_step_s
    from meshwright.options.question import ASKED, FIXED, Reading, output_file, refuse_idle

    reading = Reading()
    path = reading.value(output_file, args, "picture", ".svg")
    report = reading.value(_report_file, args)
    is_job = bool(files_of(args))
    if args.on is None and not is_job:
        stated = [name for name in (*ASKED, *FIXED, "set") if name not in ("model", "on")]
        refuse_idle(reading, args, stated, "applies only with --on: the plan file states this")
    if args.picture is None:
        refuse_idle(reading, args, ("colors",), "applies only with --picture")
    if args.trace is not None:
        reading_alone = ("measured", "picture", "report")
        refuse_idle(reading, args, reading_alone, "with --trace a trace says what is measured")
    if args.measured is None:
        refuse_idle(reading, args, ("measured_memory",), "applies only with --measured")
    else:
        refuse_idle(reading, args, ("picture", "report"), "with --measured nothing is drawn")
    found = reading.value(_explained_plan, args, call)
    if args.trace is not None:
        from meshwright.frameworks.profile import read_profile

        profile = reading.value(read_profile, Path(args.trace))
        reading.done()
        return found, profile
    reading.done()
    if args.measured is None:
        if path is not None and found.best.placement is None:
            if args.colors is not None:
                raise UsageError("--colors: applies only on grids of devices")
            _draw_stages(found, path, args)
        elif path is not None:
            from meshwright.base.files import write_whole
            from meshwright.wafer.picture import draw
            from meshwright.wafer.svg import wafer_svg

            write_whole(path, wafer_svg(draw(found, args.colors)), force=args.force)
        from meshwright.train.explain import explain as why

        answer = why(found, _placer(found.system))
        if report is not None:
            from meshwright.view.html import write_page

            page = found.page(explanation=answer, **_beside(found))
            write_page(page, report, force=args.force)
        return found, answer
    from meshwright.train.measured.diagnose import diagnose

    step_s = reading.value(measured_step_s, args.measured, found)
    memory = args.measured_memory
    size = None if memory is None else reading.value(measured_bytes, memory, found)
    reading.done()
    return found, diagnose(found, step_s, measured_memory_bytes=size)


def _explained_plan(args: Namespace, call: Call) -> Plan:
    """Return the plan of a file, or the price of the strategy that the options state."""
    from meshwright.options.job_files import with_job
    from meshwright.options.question import needed

    stated, job = with_job(args)
    if stated.on is None and job is None:
        from meshwright.train.answer import Plan
        from meshwright.train.plan_file import load as load_plan

        if isinstance(args.model, str) and not Path(args.model).exists():
            fix = "what plan --out wrote; a model needs --on"
            raise SpecError(Fault("PLAN.json", f"there is no file {args.model!r}", fix))
        return needed("PLAN.json", args.model, load_plan, Plan)
    return _priced(Namespace(**{**vars(stated), "measured": None}), Call())


# ----------------------------------------------------------------------- plans as files and steps


def load(path: str | Path) -> Plan | ServingPlan | DisaggregatedPlan | ModelSpec | SystemSpec:
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
        from meshwright.serve.answer import is_of_serving, load_serving
        from meshwright.train.plan_file import load as load_plan

        return load_serving(file) if is_of_serving(read_json(file)) else load_plan(file)
    try:
        return load_model(str(path))
    except UnknownNameError as error:
        try:
            return load_system(str(path))
        except (UnknownNameError, SpecError):
            raise error from None


@verb
def simulate(
    args: Namespace, call: Call
) -> StepTimeline | SimulatedPlan | list[tuple[FlowScenario, Timeline]]:
    """Return the played step of a plan, or the end of each flow of each scenario of a file."""
    if args.what != "flows":
        if args.file is not None:
            raise UsageError(f"unexpected argument {args.file!r}: simulate PLAN.json")
        step: StepTimeline | SimulatedPlan = _played(args)[1]
        return step
    if args.picture is not None:
        raise UsageError("--picture: applies only with a plan")
    if args.file is None:
        raise UsageError("a file is missing: simulate flows FILE.json")
    from meshwright.catalog.flow_files import read_flow_file
    from meshwright.frameworks.perfetto import write_flow_trace
    from meshwright.network.flows import play_flows
    from meshwright.options.question import output_file

    target = output_file(args, "trace")
    scenarios = read_flow_file(Path(args.file))
    if target is not None and len(scenarios) > 1:
        raise UsageError(f"--trace: a trace holds one scenario, {args.file} has {len(scenarios)}")
    runs = [(scenario, play_flows(scenario)) for scenario in scenarios]
    if target is not None:
        write_flow_trace(*runs[0], target, force=args.force)
    return runs


MOST_PATHS = 1024
"""Most parts of a flow: more gain less than a thousandth, and take minutes."""


@verb
def route(args: Namespace, call: Call) -> list[RoutedFlows]:
    """Return routes of the flows of a file, with the load of each link and the proof."""
    from meshwright.base.files import write_whole
    from meshwright.catalog.flow_files import read_flow_file
    from meshwright.network.flows import links_of, route_flows
    from meshwright.options.question import LARGEST, Reading, output_file, system_of, whole_number
    from meshwright.topology.levels import network_of

    reading = Reading()
    target = reading.value(output_file, args, "out")
    paths, seed = (
        reading.value(whole_number, f"--{name}", getattr(args, name), most=most)
        if getattr(args, name) is not None else default
        for name, default, most in (("paths", 1, MOST_PATHS), ("seed", 0, LARGEST))
    )  # fmt: skip
    if args.on is None and args.network is not None:
        reading.fault("--network", "applies only with --on")
    network = None if args.on is None else reading.value(lambda: network_of(system_of(args)))
    reading.done()
    links = [] if network is None else links_of(network)
    scenarios = read_flow_file(Path(args.file), needs_routes=False, links=links)
    found = [route_flows(one, network, seed=seed, max_paths=paths) for one in scenarios]
    if target is not None:
        import json

        from meshwright.catalog.flow_files import SCHEMA
        from meshwright.show.flows import routed_record

        records = [routed_record(routed) for routed in found]
        text = json.dumps({"schema": SCHEMA, "scenarios": records}, indent=1) + "\n"
        write_whole(target, text, force=args.force)
    return found


@verb
def place(args: Namespace, call: Call) -> PlacementRecord | dict[str, SimulatedPlan]:
    """Return two simulated placements of a plan, its own and that of a file; or write a file."""
    import json

    from meshwright.base.files import write_whole
    from meshwright.options.question import needed, output_file
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan
    from meshwright.wafer.simulation import simulate as play
    from meshwright.wafer.stated import place_on, placement_record

    target = output_file(args, "out")
    found = needed("PLAN.json", args.plan, load_plan, Plan)
    if args.file is None:
        record = placement_record(found)
        if target is not None:
            write_whole(target, json.dumps(record) + "\n", force=args.force)
        return record
    from meshwright.catalog.flow_files import read_placement_file

    moved = place_on(found, read_placement_file(Path(args.file)))
    _saved(moved, target, args)
    return {"as planned": play(found), "as stated": play(moved)}


def _played(args: Namespace) -> tuple[Plan, Any]:
    """Return a plan and its simulated step, off a grid its timeline; write the requested files."""
    from meshwright.options.question import Reading, needed, output_file
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan

    reading = Reading()
    target = reading.value(output_file, args, "trace")
    picture = reading.value(output_file, args, "picture", ".svg")
    reading.done()
    found = needed("PLAN.json", args.what, load_plan, Plan)
    if picture is not None:
        _draw_stages(found, picture, args)
    if found.best.placement is None:
        line = timeline(found)
        if target is not None:
            from meshwright.frameworks.perfetto import write_step_trace

            notes = {"plan": found.best.text, "fidelity": line.fidelity}
            write_step_trace(line, target, notes=notes, force=args.force)
        return found, line
    from meshwright.wafer.simulation import simulate as play

    played = play(found)
    if target is not None:
        from meshwright.frameworks.perfetto import write_trace

        graph = played.step.graph
        write_trace(
            played.step.timeline, played.network, target, num_bytes=graph.num_bytes,
            routes=graph.routes, notes={"plan": found.best.text, "fidelity": "simulated"},
            force=args.force,
        )  # fmt: skip
    return found, played


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
    from meshwright.options.question import needed
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan
    from meshwright.wafer.timeline import timeline as of_plan

    given = str(plan) if isinstance(plan, Path) else plan
    return of_plan(needed("plan", given, load_plan, Plan))


def _draw_stages(plan: Plan, path: Path, args: Namespace) -> None:
    """Write the pipeline chart of a plan."""
    from meshwright.base.files import write_whole
    from meshwright.train.picture import pipeline_svg

    write_whole(path, pipeline_svg(plan, timeline(plan)), force=args.force)


@verb
def export(args: Namespace, call: Call) -> dict[str, str] | list[Path]:
    """Write a plan as launch files and return their paths; ``print``: return the files as text."""
    from meshwright.frameworks.registry import export as write
    from meshwright.frameworks.registry import exporters, rendered
    from meshwright.frameworks.servers import SERVERS
    from meshwright.options.question import needed
    from meshwright.train.answer import Plan
    from meshwright.train.plan_file import load as load_plan

    titles = {name: exporters[name].written for name in sorted(exporters)}
    titles |= {name: command.title for name, command in SERVERS.items()}
    if args.plan is None:
        return titles
    if args.target is None:
        raise UsageError(f"a target is missing; one of {', '.join(titles)}")
    if args.target in SERVERS:
        return _served(args)
    if args.target not in titles:  # reported before the plan is read
        raise UnknownNameError("export target", args.target, titles)
    exporter = exporters[args.target]
    if args.print and not exporter.is_text:
        raise UsageError(f"{exporter.written} are no text: --out FOLDER")
    found = needed("PLAN.json", args.plan, lambda text: load_plan(Path(text)), Plan)
    if args.print:
        return {
            name: str(text) for name, text in rendered(found, args.target, args.launcher).items()
        }
    folder = Path(args.out)
    # Text is written at once; traces may be many and large.
    counted = None if exporter.is_text else call.count("files")
    return list(write(
        found, args.target, folder, launcher=args.launcher, force=args.force, progress=counted
    ))  # fmt: skip


def _served(args: Namespace) -> dict[str, str] | list[Path]:
    """Return the command of a server for a serving plan, as text or as a written file."""
    from meshwright.base.files import write_all
    from meshwright.frameworks.servers import served
    from meshwright.options.question import needed
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan, load_serving

    if args.launcher is not None:
        raise UsageError("--launcher applies only with training frameworks")
    found: ServingPlan | DisaggregatedPlan
    if isinstance(args.plan, ServingPlan | DisaggregatedPlan):
        found = args.plan
    else:
        found = needed("PLAN.json", args.plan, lambda text: load_serving(Path(text)))
    files = served(found, args.target)
    return files if args.print else list(write_all(Path(args.out), files, force=args.force))


# --------------------------------------------------------------------------- on chips: SRAM, cores

_MODEL_ONLY = ("batch", "seq", "prefill", "training", "groups", "precision", "weights", "kv_cache",
               "optimizer", "ep")  # fmt: skip
"""Options that measured layers replace."""
_CUT_FIELDS = {"tp": "tensor_degree", "ep": "expert_degree", "groups": "num_groups"}
"""Names in a cut for the numbers of devices and groups."""


@verb
@reported
def partition(args: Namespace, call: Call) -> PartitionPlan:
    """Return layers cut into stages that fit a memory."""
    from meshwright.options.question import Reading, output_file

    reading = Reading()
    path = reading.value(output_file, args, "picture", ".svg")
    if (args.model is None) == (args.layers is None):
        reading.fault("MODEL", "name either a model or a file with --layers")
        reading.done()
    cut = _measured_layers if args.layers else _layers_of_model
    found = cut(reading, args, call)
    if path is not None:
        from meshwright.base.files import write_whole
        from meshwright.sram.picture import partition_svg

        write_whole(path, partition_svg(found), force=args.force)
    return found


def _layers_of_model(reading: Reading, args: Namespace, call: Call) -> PartitionPlan:
    from meshwright.options.question import model_of, system_of
    from meshwright.sram.partition import partition as cut_layers

    model = reading.value(model_of, args)
    system = reading.value(system_of, args)
    cut = reading.value(_cut, args)
    workload = reading.value(_partition_workload, args, system)
    reading.done()
    return cut_layers(
        model, system, workload, cut, calibration=args.calibration, command=call.command,
        progress=call.count("batches or ways out"),
    )  # fmt: skip


def _measured_layers(reading: Reading, args: Namespace, call: Call) -> PartitionPlan:
    from meshwright.catalog.footprint_files import load_footprints
    from meshwright.options.question import refuse_idle, system_of
    from meshwright.sram.partition import partition_measured

    refuse_idle(reading, args, _MODEL_ONLY, "applies only with a model")
    if args.on is None and args.capacity is None:
        reading.fault("--capacity", "is needed", "or --on SYSTEM")
    if args.level is not None and (args.on is None or args.capacity is not None):
        reading.fault("--level", "applies only with --on and without --capacity")
    file = reading.value(load_footprints, args.layers)
    system = None
    if args.on:
        system = reading.value(system_of, args)
    cut = reading.value(_cut, args)
    reading.done()
    return partition_measured(file, cut, system, calibration=args.calibration, command=call.command)


def _cut(args: Namespace) -> Cut:
    """Return the cut that the options state; raises every fault of them."""
    from meshwright.options.question import Reading, given_numbers, one_of, quantity
    from meshwright.sram.partition import Cut

    reading, objectives = Reading(), ("count", "balance", "time")
    found: dict[str, Any] = {"level": args.level}
    if args.objective is not None:
        found["objective"] = reading.value(one_of, "--objective", args.objective, objectives)
    if args.capacity is not None:
        found["capacity_bytes"] = reading.value(quantity, "--capacity", args.capacity, "bytes")
    numbers = given_numbers(reading, args, _CUT_FIELDS)
    reading.done()
    found |= {_CUT_FIELDS[name]: number for name, number in numbers.items()}
    return Cut(**found)


def _partition_workload(args: Namespace, system: SystemSpec | None) -> Workload:
    """Return the workload of the layers; any workload where no system was read.

    Raises
    ------
    SpecError
        Every fault of the options.
    """
    from meshwright.catalog.workloads import load_optimizer
    from meshwright.options.question import Reading, needed, precision_of, refuse_idle, whole_number
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack
    from meshwright.train.question import training

    reading = Reading()
    idle = ("weights", "kv_cache") if args.training else ("optimizer",)
    refuse_idle(reading, args, idle, "is of no use here")
    batch = reading.value(whole_number, "--batch", args.batch or "1")
    length = reading.value(
        needed, "--seq", args.seq, lambda text: whole_number("--seq", text, kilo=1024)
    )
    precision = reading.value(precision_of, args, system)
    optimizer = reading.value(load_optimizer, args.optimizer) if args.optimizer else None
    reading.done()
    shared: dict[str, Any] = {"precision": precision, "software": SoftwareStack(cuda_graphs=True)}
    if args.training and system is not None:
        return training(
            system, global_batch_size=batch, sequence_length=length, optimizer=optimizer, **shared
        )
    if args.prefill:
        return Prefill(batch_size=batch, prompt_length=length, **shared)
    return Decode(batch_size=batch, context_length=length, **shared)


@verb
@reported
def fuse(args: Namespace, call: Call) -> FusionAnswer:
    """Return kernels fused into partitions that run on one chip after the other."""
    from meshwright.base.registry import version
    from meshwright.dataflow.fusion.fuse import fuse_graph
    from meshwright.options.question import Reading, given_numbers, output_file, refuse_idle

    reading = Reading()
    path = reading.value(output_file, args, "picture", ".svg")
    chips = given_numbers(reading, args, ("chips",)).get("chips")
    if chips is not None:
        refuse_idle(reading, args, ("tp", "pp"), "is chosen where --chips is given")
    question = reading.value(_fusion_question, args)
    reading.done()
    answer = fuse_graph(question, chips=chips, progress=call.count("tiles and divisions"))
    answer = replace(answer, version=version(), command=call.command)
    if path is not None:
        from meshwright.base.files import write_whole
        from meshwright.dataflow.fusion.picture import fusion_svg

        write_whole(path, fusion_svg(answer), force=args.force)
    return answer


def _fusion_question(args: Namespace) -> FusionQuestion:
    """Return the question that the options ask; raises every fault of them."""
    from meshwright.dataflow.fusion.answer import FusionQuestion
    from meshwright.dataflow.fusion.fuse import target_named
    from meshwright.dataflow.load import load_graph
    from meshwright.options.question import (
        Reading,
        given_numbers,
        needed,
        program_of,
        quantity,
    )

    reading = Reading()
    program = reading.value(program_of, args)
    link = reading.value(quantity, "--link", args.link, "bytes_per_s") if args.link else None
    numbers: dict[str, Any] = given_numbers(reading, args, ("tp", "pp", "tile", "micro_batch"))
    lengths = given_numbers(reading, args, ("tokens",), kilo=1024)
    reading.done()
    graph = reading.value(
        load_graph, args.graph, training=args.training, tokens=lengths.get("tokens"), **program
    )
    width = graph.widest_product_bytes if graph is not None else 2.0
    target = reading.value(needed, "--on", args.on, lambda name: target_named(name, link, width))
    reading.done()
    return FusionQuestion(
        graph=graph, target=target, runs_by_kernel=args.kernel_by_kernel, **numbers
    )


@verb
def read(args: Namespace, call: Call) -> Job | DataflowGraph:
    """Return the job that files start; of a program, its graph."""
    from meshwright.catalog.graphs.programs import is_program
    from meshwright.options.job_files import is_job_file, read_files

    first = args.files[0]
    if len(args.files) == 1 and is_program(first) and not is_job_file(first):
        return _read_program(args)
    from meshwright.options.question import Reading, refuse_idle

    reading = Reading()
    names = ("dim", "input", "precision", "repeats", "training", "out")
    refuse_idle(reading, args, names, "applies only with a program")
    found = reading.value(read_files, args.files, vars(args))
    reading.done()
    return found


def _read_program(args: Namespace) -> DataflowGraph:
    """Return the graph of a program."""
    from meshwright.base.files import write_whole
    from meshwright.catalog.graphs.files import graph_yaml
    from meshwright.dataflow.load import load_graph
    from meshwright.graph.kernels.declared import to_spec
    from meshwright.options.question import (
        Reading,
        given_numbers,
        output_file,
        program_of,
        refuse_idle,
    )

    reading = Reading()
    refuse_idle(reading, args, ("on", "set"), "applies only with files that start a job")
    path = reading.value(output_file, args, "out", ".yaml")
    program = reading.value(program_of, args)
    numbers = given_numbers(reading, args, ("repeats",))
    reading.done()
    repeats = numbers.get("repeats", 1)
    graph = load_graph(args.files[0], training=args.training, repeats=repeats, **program)
    if path is not None:
        text = graph_yaml(to_spec(graph, about=f"Read from {args.files[0]}."))
        write_whole(path, text, force=args.force)
    return graph


# ------------------------------------------------------------------- many questions, and the truth


@verb
def sweep(args: Namespace, call: Call) -> SweepAnswer:
    """Return one question answered over all combinations of the varied fields."""
    from meshwright.base.files import write_all, write_whole
    from meshwright.base.registry import version
    from meshwright.options.question import Reading, output_file
    from meshwright.sweep.answer import SweepAnswer
    from meshwright.sweep.choice import choices, objective_of
    from meshwright.sweep.questions import QUESTIONS, checked
    from meshwright.sweep.results import cells_of, records, sweep_csv
    from meshwright.sweep.run import Store, load_sweep, state_of_code
    from meshwright.sweep.run import run as run_points
    from meshwright.view.heat_map import heat_svg
    from meshwright.view.svg import check_drawable

    reading = Reading()
    asked = reading.value(load_sweep, Path(args.file))
    workers = reading.value(_number_of_workers, args.workers)
    out = reading.value(output_file, args, "out", is_resumed=True)
    is_page = str(args.report or "").endswith(".html")
    table, picture, report = (
        reading.value(output_file, args, name, suffix)
        for name, suffix in (
            ("csv", ""), ("picture", ".svg"), ("report", ".html" if is_page else ".md"),
        )
    )  # fmt: skip
    reading.done()
    faults = [
        Fault(option, f"the file states no {name}", "add one to it")
        for option, path, name in (
            ("--picture", picture, "heat_map"), ("--report", None if is_page else report, "report"),
        )
        if path is not None and getattr(asked, name) is None
    ]  # fmt: skip
    if faults:
        raise SpecError(faults)
    has_maps = asked.report is not None and bool(asked.report.heat_maps)
    if picture is not None or (report is not None and not is_page and has_maps):
        check_drawable()
    points = checked(asked)
    objective = objective_of(
        QUESTIONS[asked.ask].values, args.least, args.most, args.at_least or (), args.at_most or ()
    )
    with Store(out) as store:
        swept = run_points(
            asked.ask, QUESTIONS[asked.ask].answer, points, store, version=state_of_code(),
            num_workers=workers, progress=call.count("points", "; Ctrl-C: what is there so far"),
        )  # fmt: skip
    if table is not None:
        write_whole(table, sweep_csv(swept), force=args.force)
    if picture is not None and asked.heat_map is not None:
        drawn = heat_svg(cells_of(asked, asked.heat_map, swept))
        write_whole(picture, drawn, force=args.force)
    chosen = () if objective is None else tuple(choices(objective, asked, records(swept)))
    found = SweepAnswer(asked, swept, chosen, version(), call.command)
    if report is not None and is_page:
        found.report(report, force=args.force)
    elif report is not None and asked.report is not None:
        from meshwright.view.markdown import markdown_of

        files = markdown_of(found.page(), report.stem, without=("points",))
        write_all(report.parent, files, force=args.force)
    return found


def _number_of_workers(text: str) -> int:
    """Return a number of processes."""
    if not text.isdigit() or not 0 < int(text) <= 1024:
        raise SpecError(Fault("--workers", f"{text!r} is no number of processes", "1 to 1024"))
    return int(text)


@verb
@reported
def validate(args: Namespace, call: Call) -> Validation | KernelValidation:
    """Return predictions of measured rows, published or your own."""
    if args.kernels:
        return _validated_kernels(args, call)
    from meshwright.base.files import write_all
    from meshwright.base.registry import version
    from meshwright.calibration.reading import judged, rows_file
    from meshwright.calibration.serving import predict_all
    from meshwright.calibration.validation import Validation
    from meshwright.options.question import output_file
    from meshwright.view.svg import check_drawable

    target = output_file(args, "document", ".md")
    if target is not None:
        check_drawable()
    rows, faults = _rows(None), list[Fault]()
    if args.measurements is not None:
        rows, faults = judged(rows_file(Path(args.measurements)), args.measurements)
        if faults and not rows:
            raise SpecError(faults, origin=args.measurements)
    predictions = tuple(predict_all(rows, args.calibration))
    found = Validation(predictions, args.calibration, tuple(faults), version(), call.command)
    if target is not None:
        from meshwright.calibration.view import documents

        write_all(target.parent, documents(found, target.stem), force=args.force)
    return found


def _validated_kernels(args: Namespace, call: Call) -> KernelValidation:
    """Return the comparison of the curves of single kernels with measured times."""
    from meshwright.base.files import write_all
    from meshwright.base.registry import version
    from meshwright.calibration.kernel_validation import kernel_validation
    from meshwright.catalog.calibration import DEFAULT as STEPS
    from meshwright.catalog.kernels import DEFAULT, load_curves
    from meshwright.options.question import output_file

    target = output_file(args, "document", ".md")
    curves = load_curves(DEFAULT if args.calibration == STEPS else args.calibration)
    found = kernel_validation(_timings(args.measurements), curves)
    found = replace(found, version=version(), command=call.command)
    if target is not None:
        from meshwright.view.markdown import markdown_of
        from meshwright.view.registry import page_of

        write_all(target.parent, markdown_of(page_of(found), target.stem), force=args.force)
    return found


def _timings(path: str | None) -> Sequence[Timings]:
    """Return the times of kernels in a file; the published ones where none is named."""
    from meshwright.calibration.kernel_rows import published_timings, read_timings

    return published_timings() if path is None else read_timings(Path(path))


def _rows(path: str | None) -> Sequence[Row]:
    """Return the measured rows of a file; the published ones where none is named."""
    from meshwright.calibration.reading import read_rows
    from meshwright.calibration.rows import (
        published_rows,
        published_serving_rows,
        published_sram_rows,
    )

    published = (*published_rows(), *published_serving_rows(), *published_sram_rows())
    return published if path is None else read_rows(Path(path))


@verb
def calibrate(args: Namespace, call: Call) -> Fitted:
    """Return the constants of the cost model fitted to measured rows."""
    from meshwright.base.files import write_whole
    from meshwright.calibration.fit.report import fitted
    from meshwright.calibration.rows import is_frozen
    from meshwright.catalog.calibration import DEFAULT as CALIBRATED
    from meshwright.catalog.calibration import UNCALIBRATED
    from meshwright.options.question import output_file

    path = output_file(args, "out")
    name = "calibrated" if path is None else path.stem
    command = " ".join(filter(None, ("meshwright calibrate", args.file)))
    if args.kernels:
        from meshwright.calibration.fit.kernels import fitted_kernels

        found = fitted_kernels(_timings(args.file), name, f"{command} --kernels")
    else:
        rows = [row for row in _rows(args.file) if args.file or not is_frozen(row)]
        found = fitted(rows, name, command, CALIBRATED if args.file else UNCALIBRATED)
    if not found.data:
        raise InfeasibleError("no row has a measured throughput that can be predicted")
    if path is not None:
        write_whole(path, found.text, force=args.force)
    return found


@verb
def measure(args: Namespace, call: Call) -> MeasuredMachine | None:
    """Return the measurements of this machine; None in processes that are not the first."""
    from meshwright.measure.run import measure as measure_all
    from meshwright.options.question import output_file

    path = output_file(args, "out", ".yaml")
    assert path is not None
    return measure_all(
        path, quick=args.quick, force=args.force, command=call.command, progress=call.count
    )
