"""Ordinary questions with a framework: every winner passes the refusals of its exporter."""

import pytest
from framework_questions import QUESTIONS, starts_at_all
from sampled import sampled

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.frameworks.registry import refusals
from meshwright.train.writing import TARGETS


@pytest.mark.parametrize("question", sampled(QUESTIONS, 1), ids=lambda q: f"{q[0]}-{q[1]}")
@pytest.mark.parametrize("name", TARGETS)
def test_every_winner_is_exported(name, question):
    model, system, tokens, batch, rest = question
    asked = {"on": system, "seq": tokens, "global_batch": batch, "framework": name, **rest}
    if not starts_at_all(name, model, system, rest.get("precision", "bf16")):
        return
    try:
        found = mw.plan(model, **asked)
    except InfeasibleError:
        assert name == "torchtitan" or rest
        return
    for entry in (found.best, *found.runners_up):
        assert name in entry.launches_with
    assert refusals(found, TARGETS[name]) == []
