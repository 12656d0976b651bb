"""Answers for the page: each function takes the request of the page and returns plain data.

An answer holds the plan as ``--json`` prints it, the first screen of its report as data
(``view/parts.py``), and the leading plans with the options that state them; the sections of
the report follow on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from threading import Lock
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from meshwright import api
from meshwright.ask import questions as ask
from meshwright.ask.declared import declared
from meshwright.ask.stated import strategy_options, strategy_texts
from meshwright.base.errors import Fault, SpecError
from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.graphs.torch_export import torch_or_refusal
from meshwright.explore.question import OPTIONS, Start, question_of
from meshwright.search.exhaustive import Counts, FastestCandidates, Progress
from meshwright.train.answer import Candidate, Plan
from meshwright.train.plan_file import from_json, to_data
from meshwright.train.view.plan import front_plot
from meshwright.train.view.plan import side_by_side as parts
from meshwright.train.words import verified_in_words
from meshwright.train.writing import TARGETS, target_for
from meshwright.view.drawn import drawn, drawn_page, drawn_section
from meshwright.view.html import html_of
from meshwright.wafer.chart import map_chart
from meshwright.wafer.picture import draw

Record = dict[str, Any]
_ONE_RUN = Lock()
MOST_SIDE_BY_SIDE = 6
"""Most plans in one comparison."""


def estimate(options: Mapping[str, str], start: Start) -> Record:
    """Return the price of the strategy that options state."""
    return answer_record(_priced(options, start))


def _priced(options: Mapping[str, str], start: Start) -> Plan:
    asked = question_of(ask.Estimate, options, start)
    found = api.estimate.answer(asked, _call("estimate", options))
    if not isinstance(found, Plan):
        raise SpecError(Fault("MODEL", "starts a server", "the explorer is about training"))
    return found


def _call(verb: str, options: Mapping[str, str], progress: Progress | None = None) -> api.Call:
    """Return the call of a verb, as the command line that asks the same."""
    return api.Call(ask.Strategy.written(verb, options), progress)


def search(options: Mapping[str, str], start: Start, progress: Progress) -> Record:
    """Return the best plan; stated options are fixed."""
    asked = question_of(ask.Plan, options, start)
    found: Any = api.plan.answer(asked, _call("plan", options, progress))
    return answer_record(found)


def front(options: Mapping[str, str], start: Start, progress: Progress) -> Record:
    """Return the chart of the plans that none beats in time, memory, energy and money at once."""
    question = question_of(ask.Plan, options, start).but(pareto=True)
    found: Any = api.plan.answer(question, _call("plan", options, progress))
    asked = found.model, *_question(options, start)
    chart = drawn(front_plot(found.candidates))
    return {
        "chart": plain_data(chart),
        "plans": [_entry(entry, asked) for entry in found.candidates],
    }


def _question(options: Mapping[str, str], start: Start) -> tuple[int, Any]:
    """Return the number of devices and the software of a question."""
    asked = declared(question_of(ask.Strategy, options, start))
    return asked.system.num_alive, asked.workload.software


def answer_record(found: Plan) -> Record:
    """Return a plan with the first screen of its report and the leading plans."""
    asked = found.model, found.system.num_alive, found.workload.software
    stated = found.workload.software.framework.partition("==")[0]
    return {
        "answer": to_data(found),
        "page": plain_data(drawn_page(replace(found.page(), sections=()))),
        "plans": [_entry(entry, asked) for entry in (found.best, *found.runners_up)],
        "texts": strategy_texts(found.best.strategy, found.best.plan_options),
        "target": TARGETS.get(stated) or target_for(stated, found.best.launches_with),
    }


def _entry(entry: Candidate, asked: tuple[Any, int, Any]) -> Record:
    """Return one plan of a list: its name, its price, and the options that state it."""
    price = entry.estimate
    return {
        "plan": entry.text,
        "options": strategy_options(entry.strategy, entry.plan_options, *asked),
        "step_time_s": price.step_time_s,
        "memory_bytes": price.memory_bytes,
        "cells": [format_seconds(price.step_time_s), format_bytes(price.memory_bytes),
                  f"{price.mfu_causal:.1%}"],
    }  # fmt: skip


def sections(text: str) -> Record:
    """Return the sections of the report of a plan: the part after the first screen."""
    plan = _plan(text)
    sections = plan.page(**api.line_of(plan)).sections
    return {"sections": [plain_data(drawn_section(section)) for section in sections]}


def progress_record(counts: Counts, best: FastestCandidates, left_s: float) -> Record:
    """Return the progress of a search, in words."""
    found = format_seconds(float(best.times_s[0])) if len(best.times_s) else "none yet"
    return {"progress": f"{counts.total:,} plans covered, best {found}"}


def side_by_side(questions: Sequence[Mapping[str, str]], start: Start) -> Record:
    """Return the parts of a page with plans beside each other."""
    if not 0 < len(questions) <= MOST_SIDE_BY_SIDE:
        raise SpecError(Fault("", f"{len(questions)} plans, expected 1 to {MOST_SIDE_BY_SIDE}"))
    plans = [_priced(options, start) for options in questions]
    return {"parts": [plain_data(drawn(part)) for part in parts(plans)]}


def picture(text: str, axis: str | None) -> Record:
    """Return the map of a plan on its grid, and the axes with groups that it can colour."""
    plan = _plan(text)
    axes = plan.best.placement.axes if plan.best.placement else ()
    return {"part": plain_data(map_chart(draw(plan, axis))), "axes": list(axes)}


def verify(text: str) -> Record:
    """Return the verdict of a dry run of a plan; one runs at a time."""
    plan = _plan(text)
    torch_or_refusal()
    from meshwright.run.dry.verify import verdict

    with _ONE_RUN:
        return {"verified": verified_in_words(verdict(plan))}


def report(text: str) -> str:
    """Return the report of a plan as HTML."""
    plan = _plan(text)
    return html_of(plan.page(**api.beside(plan)))


def export(text: str, target: str) -> bytes:
    """Return the launch files of a plan as a ZIP archive."""
    asked = ask.Export.ask({"plan": _plan(text), "target": target, "print": True})
    files: Any = api.export.answer(asked, api.Call())
    archive = BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return archive.getvalue()


def _plan(text: str) -> Plan:
    return from_json(text)


def warm(start: Start) -> None:
    """Answer the first question once, so that the first change gets its answer at once."""
    estimate({name: text for name, text in start.options.items() if name in OPTIONS}, start)
