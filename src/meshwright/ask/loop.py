"""From a question about a loop to its work, and the way in which roles share the devices."""

from __future__ import annotations

from dataclasses import fields

from meshwright.ask.questions import Loop
from meshwright.ask.reading import Reading
from meshwright.catalog.workloads import load_server
from meshwright.loop.lengths import AnswerLengths
from meshwright.loop.question import Sharing, Work, check_work
from meshwright.spec.system import SystemSpec

USUAL_ENGINE = "vllm"
USUAL_SPREAD = 1.0
"""Standard deviation of answers over their mean: that of answers with an equal chance to end at
each token."""


def work_of(reading: Reading, asked: Loop) -> Work | None:
    """Return the work of a step; None after a complaint."""
    for name in ("prompts", "prompt", "answer"):
        if name not in asked.stated:
            reading.fault(asked.flag(name), "is needed")
    if "longest_answer" not in asked.stated:
        asked.refuse_idle(reading, ("length_spread",), "needs --longest-answer")
    if asked.prompts is None or asked.prompt is None or asked.answer is None or reading.errors:
        return None
    usual = USUAL_SPREAD if asked.longest_answer else 0.0
    work = Work(
        asked.algorithm, asked.prompts, asked.samples, asked.prompt,
        AnswerLengths(
            float(asked.answer), float(asked.longest_answer or asked.answer),
            usual if asked.length_spread is None else asked.length_spread,
        ),
        mini_batch=asked.mini_batch or asked.prompts, epochs=asked.epochs,
        has_reward_model=asked.reward_model,
    )  # fmt: skip
    reading.value(check_work, work)
    return None if reading.errors else work


def sharing_of(reading: Reading, asked: Loop) -> Sharing:
    """Return the way in which roles share the devices."""
    if asked.apart:
        asked.refuse_idle(reading, ("keeps_engine",), "an engine with its own devices stays awake")
    else:
        why = "needs --apart: one set of devices in turn rolls out with the newest weights"
        asked.refuse_idle(reading, ("staleness", "train_devices"), why)
    stated = {entry.name: getattr(asked, entry.name) for entry in fields(Sharing)}
    staleness = 1 if asked.staleness is None else asked.staleness
    return Sharing(**stated | {"staleness": staleness * asked.apart})


def engine_of(asked: Loop, system: SystemSpec) -> str:
    """Return the server that rolls out: vLLM where it runs, unless another is stated."""
    launches = load_server(USUAL_ENGINE).launches
    runs = launches is not None and system.chip.vendor in launches.vendors
    return str(asked.engine or (USUAL_ENGINE if runs else "generic"))
