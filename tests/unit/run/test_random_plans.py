"""Random strategies on up to eight processes, with splits that are uneven where they may be."""

import random

import pytest
from executed_plans import assert_right
from hand_made_plans import build

from meshwright.base.errors import SpecError
from meshwright.run.real import execute
from meshwright.run.scale import job_of
from meshwright.spec.choices import ContextKind, Recompute, ScheduleKind, Streamed, StreamForm

MODELS = ("llama3-8b", "qwen3-8b", "mixtral-8x7b", "gpt2-medium", "gemma2-9b", "qwen3-30b-a3b")
"""Families: shared key heads, norms on heads, experts, tied and learned positions, windows."""


def random_plan(seed):
    """Return a model, degrees of at most eight devices, and plan options."""
    chosen = random.Random(seed)
    degrees, left = {}, 8
    axes = ["tp", "cp", "tatp", "pp", "dp_shard", "dp_replicate"]
    chosen.shuffle(axes)
    for axis in axes[: chosen.randint(1, 4)]:
        degrees[axis] = chosen.choice([n for n in (1, 2, 2, 3, 4, 5) if n <= left])
        left //= degrees[axis]
    options = {
        "sequence_parallel": degrees.get("tp", 1) > 1 and chosen.random() < 0.7,
        "context_kind": chosen.choice([ContextKind.RING, ContextKind.ULYSSES]),
        "streamed": chosen.choice([Streamed.WEIGHTS, Streamed.INPUTS]),
        "stream_form": chosen.choice([form for form in StreamForm if form is not StreamForm.AUTO]),
        "recompute": chosen.choice([Recompute.NONE, Recompute.NONE, Recompute.FULL]),
    }
    shards = degrees.get("dp_shard", 1) * degrees.get("cp", 1)
    options["zero_stage"] = chosen.choice([0, 1, 2, 3]) if shards > 1 else 0
    if options["zero_stage"] == 3:
        options["reshard_after_forward"] = chosen.random() < 0.7
    if degrees.get("pp", 1) > 1:
        options["schedule"] = chosen.choice(list(ScheduleKind))
        if options["schedule"] is ScheduleKind.INTERLEAVED:
            degrees["num_virtual_stages"] = 2
    model = chosen.choice(MODELS)
    shares = shards * degrees.get("tp", 1)
    if model in ("mixtral-8x7b", "qwen3-30b-a3b"):
        degrees["ep"] = chosen.choice([n for n in (1, 2, 4) if shares % n == 0])
    return model, degrees, options


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_plans_train_as_the_dense_model(seed):
    model, degrees, options = random_plan(seed)
    plan = build(degrees, options, model=model, batch=240)
    try:
        job_of(plan)
    except SpecError as refused:
        pytest.skip(str(refused))
    assert_right(execute(plan, checks=True, steps=2, dtype="fp64"))
