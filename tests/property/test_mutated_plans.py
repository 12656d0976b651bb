"""Broken plan files: 250 mutations of a real one give a plan or a SpecError, nothing else."""

import contextlib
import copy
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.train import plan_file as files
from meshwright.train.measured.factors import Measurement
from meshwright.train.measured.learning import learn
from meshwright.train.question import training
from meshwright.wafer.training import estimate, explain

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=4),
    st.sampled_from(
        [[], {}, [[]], [None], {"plan": 1}, -1, 0, 1e308, "nan", "tp", "none", "8", [1, 2]]
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def original():
    work = training("8xH100", sequence_length=1024, global_batch_size=16)
    strategy = make_strategy(dp_shard=4, tp=2)
    plain = estimate("gpt2-medium", "8xH100", work, strategy, PlanOptions())
    job = Measurement("job", plain.problem, strategy, PlanOptions(), 0.1)
    plan = replace(plain, factors=learn([job]))
    return json.loads(files.to_json(plan))


def places(value, path=()):
    """Yield the path of every field and entry."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def mutated(data, draw):
    """Return the data with one to three fields removed, replaced, renamed or doubled."""
    changed = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(changed))))
        holder = changed
        for key in where[:-1]:
            holder = holder[key]
        kind = draw(st.sampled_from(["remove", "replace", "rename", "nest"]))
        if kind == "remove":
            del holder[where[-1]]
        elif kind == "replace":
            holder[where[-1]] = draw(VALUES)
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw(st.text(max_size=6))] = holder.pop(where[-1])
        else:
            holder[where[-1]] = {"x": holder[where[-1]]}
        if not changed:
            break
    return changed


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(data=st.data())
def test_a_mutated_plan_is_read_or_refused(original, data):
    text = json.dumps(mutated(original, data.draw))
    refusal = None
    try:
        plan = files.from_json(text, origin="plan.json")
    except SpecError as error:
        refusal = error
    if refusal is None:
        assert files.from_json(files.to_json(plan)) == plan
    else:
        assert refusal.faults
        assert str(refusal).startswith("plan.json: ")


@pytest.mark.parametrize("text", ["nan", "NAN", "inf", "-Infinity"])
def test_a_text_is_no_way_around_finite_numbers(original, text):
    changed = copy.deepcopy(original)
    changed["best"]["estimate"]["step_time_s"] = text
    with pytest.raises(SpecError, match=r"best\.estimate\.step_time_s"):
        files.from_json(json.dumps(changed))


@given(cut=st.floats(0, 1), junk=st.text(max_size=5))
def test_a_cut_plan_is_refused(original, cut, junk):
    whole = json.dumps(original)
    text = whole[: int(cut * (len(whole) - 1))] + junk
    with pytest.raises(SpecError):
        files.from_json(text)


@settings(max_examples=15)
@given(data=st.data())
def test_a_mutated_plan_that_is_read_is_explained_or_refused(original, data):
    changed = copy.deepcopy(original)
    best = changed["best"]
    for part in ("strategy", "plan_options"):
        name = data.draw(st.sampled_from(sorted(best[part])))
        best[part][name] = data.draw(VALUES)
    with contextlib.suppress(MeshwrightError):
        assert explain(files.from_json(json.dumps(changed))).shares
