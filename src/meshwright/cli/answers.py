"""Each verb on the command line: call the verb with the question, print its answer.

Every function takes the question of its command and returns the exit status.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright import api
from meshwright.base.errors import UsageError
from meshwright.cli.main import (
    BAD_INPUT,
    GIVEN,
    INTERRUPTED,
    NOTHING_FITS,
    Counter,
    SearchProgress,
    command_line,
    next_command,
    picture_command,
    question_line,
    show,
    show_answer,
)

if TYPE_CHECKING:
    from meshwright.frameworks.reading.job import ReadJob
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan
    from meshwright.train.answer import Deadline, Plan, Replan


def _call(args: Any) -> api.Call:
    """Return the call of a verb from a command line."""
    command = " ".join(["meshwright", *GIVEN])
    return api.Call(command) if args.json else api.Call(command, SearchProgress(), Counter)


def printed(
    verb: api.Verb[Any, Any], after: Callable[[Any, Any], str] = lambda found, args: "",
    is_good: Callable[[Any], bool] = lambda found: True, otherwise: int = NOTHING_FITS,
) -> Callable[[Any], int]:  # fmt: skip
    """Return the function of a command that prints an answer as it is.

    Processes of a run that are not the first have no answer, and print nothing.

    Parameters
    ----------
    after
        Command that a user may ask next, for the answer and the question.
    is_good
        Whether the exit status is 0; else it is ``otherwise``.
    """

    def command(args: Any) -> int:
        found = verb.answer(args, _call(args))
        if found is None:
            return 0
        show_answer(found, args, after=after(found, args))
        return 0 if is_good(found) else otherwise

    return command


loop = printed(api.loop, lambda _, args: f"{command_line()} --detail")
fit = printed(api.fit, lambda _, args: question_line(args), lambda found: found.best.estimate.fits)
check = printed(api.check, is_good=lambda found: found.is_legal, otherwise=BAD_INPUT)
compare = printed(
    api.compare, lambda _, args: f"{question_line(args)} --out plan.json",
    lambda found: found.ours.best is not None,
)  # fmt: skip
place = printed(api.place)
partition = printed(
    api.partition, lambda found, args: picture_command(args, "stages.svg", fits=found.fits),
    lambda found: found.fits,
)  # fmt: skip
fuse = printed(api.fuse, lambda _, args: picture_command(args, "fused.svg"))
measure = printed(
    api.measure,
    lambda found, _: f"meshwright plan MODEL --on {found.system} --calibration {found.files[0]}",
)
run = printed(api.run, is_good=lambda found: found.is_right)


def plan(args: Any) -> int:
    """Print the best plan: of training, of a run, or after a loss."""
    from meshwright.train.answer import Deadline, Front, Replan

    found = api.plan.answer(args, _call(args))
    if isinstance(found, Front):
        show_answer(found, args)
    elif isinstance(found, Replan):
        show_answer(found, args, after=next_command(args), data=_data(found, args))
    elif isinstance(found, Deadline):
        show_answer(found, args, after=_after(found.plan, args), data=_data(found, args))
        return 0 if found.is_in_time else NOTHING_FITS
    else:
        show_answer(found, args, after=_after(found, args), data=_data(found, args))
    return 0


def _after(found: Plan, args: Any) -> str:
    """Return the next command after a plan."""
    best = found.best
    return next_command(args, is_placed=bool(best.placement), launches_with=best.launches_with)


def _data(found: Plan | Replan | Deadline, args: Any) -> object:
    """Return a plan as its file holds it: declarations without the fields that have defaults."""
    from meshwright.catalog.answer_file import plain_data

    return plain_data(found) if args.json else None


def serve(args: Any) -> int:
    """Print the best way to serve."""
    from meshwright.serve.traffic.answer import TrafficPlan

    found = api.serve.answer(args, _call(args))
    if isinstance(found, TrafficPlan):
        show_answer(found, args)
        return 0
    return _show_serving(found, args)


def map(args: Any) -> int:
    """Print the best plans of any computation."""
    show_answer(api.map.answer(args, _call(args)).leading(args.top), args)
    return 0


def _show_serving(found: ServingPlan | DisaggregatedPlan, args: Any) -> int:
    show_answer(found, args, after="" if args.out else f"{command_line()} --out plan.json")
    return 0


def estimate(args: Any) -> int:
    """Print the price of one strategy; 3 where it does not fit."""
    from meshwright.serve.answer import DisaggregatedPlan, ServingPlan

    found = api.estimate.answer(args, _call(args))
    if isinstance(found, ServingPlan | DisaggregatedPlan):
        return _show_serving(found, args)
    if found.best.estimate.fits:
        show_answer(found, args, after=_after(found, args), data=_data(found, args))
        return 0
    if not args.json:
        from meshwright.train.explain import what_would_fit

        found = replace(found, would_fit=tuple(what_would_fit(found)))
    show_answer(found, args, after=question_line(args), data=_data(found, args))
    return NOTHING_FITS


def explain(args: Any) -> int:
    """Print the reasons for a plan, or the time that a measured step loses."""
    from meshwright.ask.questions import Estimate
    from meshwright.train.answer import Explanation

    answer = api.explain.answer(args, _call(args))
    if not isinstance(answer, Explanation):
        show_answer(answer, args)
        return 0
    from meshwright.train.writing import target_for

    found = answer.plan
    target = target_for(found.workload.software.framework or "", found.best.launches_with)
    after = f"meshwright export {args.model} {target}" if target else ""
    if found.best.placement:
        after = f"meshwright simulate {args.model}"
    if args.on is not None:
        kept = Estimate.options.keys() - {"report", "force"}
        stated = {name: value for name, value in args.stated.items() if name in kept}
        after = Estimate.written("estimate", stated | {"out": "plan.json"})
    beside = api.grid_of(found, args.colors) if args.detail else {}
    show_answer(answer, args, after=after, **beside)
    return 0


def simulate(args: Any) -> int:
    """Print the simulated step of a plan, or the end of each flow of each scenario."""
    from meshwright.show.flows import played_flows

    if args.rates and not args.json:
        raise UsageError("--rates: applies only with --json")
    if args.what != "flows" and sys.stderr.isatty() and not args.json:
        sys.stderr.write("playing the step: a few seconds, more the first time\n")
    found = api.simulate.answer(args, _call(args))
    if isinstance(found, list):
        show_answer(played_flows(found, rates=args.rates), args, detail=True)
    else:
        show_answer(found, args)
    return 0


def route(args: Any) -> int:
    """Print the quality of routes of flows, and the links with the most traffic."""
    from meshwright.show.flows import shown_routes

    show_answer(shown_routes(api.route.answer(args, _call(args))), args, detail=True)
    return 0


def export(args: Any) -> int:
    """Write or print the files of a target, or list the targets."""
    made: Any = api.export.answer(args, _call(args))
    warning = api.export_warning(args)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    if args.plan is None:
        width = max((len(name) for name in made), default=0)
        show([f"{name:<{width}}  {title}" for name, title in made.items()], made, args.json)
    elif args.print:
        show([text.rstrip("\n") for text in made.values()], made, args.json, is_file=True)
    else:
        paths = [str(path) for path in made]
        data = {"target": args.target, "files": paths, "warning": warning}
        show([f"wrote {path}" for path in paths], data, args.json)
    return 0


def read(args: Any) -> int:
    """Print the question of files that start a job, or the graph of a program."""
    from meshwright.dataflow.answer import summary
    from meshwright.graph.kernels.graph import DataflowGraph

    found = api.read.answer(args, _call(args))
    if not isinstance(found, DataflowGraph):
        return _show_job(found, args)
    name = args.out or f"{found.name}.yaml"
    next_command = f"meshwright map {name} --on 8xH100 --precision bf16"
    if args.out is None:
        next_command = f"{command_line()} --out {name}"
    show_answer(summary(found), args, after=next_command)
    return 0


def _show_job(found: ReadJob, args: Any) -> int:
    """Print the question of files that start a job."""
    import shlex

    from meshwright.ask.job_files import is_job_file

    files = [shlex.quote(name) for name in args.files]
    is_named = all(fault.path != "MODEL" for fault in found.missing)
    lacking = [f"{fault.path} ..." for fault in found.missing if fault.path.startswith("--")]
    lacking = [text for text in lacking if not text.startswith("--on")]
    # Only serve has the options that servers leave open.
    verb = "serve" if found.kind == "serving" and lacking else "estimate"
    words = [f"meshwright {verb}", *([] if is_named else ["MODEL"])]
    is_alone = is_named and len(files) == 1 and is_job_file(args.files[0]) and verb == "estimate"
    words += files if is_alone else ["--from", *files]
    if found.devices.system is None:
        words += ["--on", args.on or f"{found.devices.count or 64}xH100"]
    show_answer(found, args, after=" ".join([*words, *lacking]))
    return 0


def sweep(args: Any) -> int:
    """Print a sweep; 3 where no point has a plan or is within limits, 130 where some are left."""
    from meshwright.sweep.results import counts_of

    if args.watch:
        return _watch(args)
    found = api.sweep.answer(args, _call(args))
    show_answer(found, args)
    if not found.swept.is_complete:
        return INTERRUPTED
    is_empty = any(not choice.best for choice in found.chosen)
    return NOTHING_FITS if is_empty or "found" not in counts_of(found.swept) else 0


def _watch(args: Any) -> int:
    """Serve the results of a sweep that are there, until Ctrl-C."""
    from meshwright.explore.watch import Watch
    from meshwright.view.html import html_of

    def page() -> str:
        return html_of(api.sweep.answer(args, _call(args)).page())

    page()  # faults come before the address
    with Watch(page) as server, suppress(KeyboardInterrupt):
        about = f"watching {args.out} at {server.url}\nCtrl-C ends it"
        print(json.dumps({"url": server.url}) if args.json else about, flush=True)
        server.serve_forever()
    return 0


def validate(args: Any) -> int:
    """Print the errors of predictions; 2 for invalid rows, 3 where none is predicted."""
    from meshwright.calibration.validation import Validation

    found = api.validate.answer(args, _call(args))
    show_answer(found, args)
    if not isinstance(found, Validation):
        return 0
    if all(entry.refused is not None for entry in found.predictions):
        return NOTHING_FITS
    return BAD_INPUT if found.bad_rows else 0


def calibrate(args: Any) -> int:
    """Print fitted constants; 3 where no row has a throughput that can be predicted."""
    found = api.calibrate.answer(args, _call(args))
    show_answer(found, args, data=getattr(found, "data", None))
    return 0
