"""A plan launches with a framework if and only if its export takes it, and it fits there.

What each framework is said to need is what the same question asked with that framework answers.
"""

import random
from itertools import count, islice

import pytest
from sampled import sampled, slow_where

import meshwright as mw
from meshwright.ask.stated import strategy_texts
from meshwright.base.errors import MeshwrightError
from meshwright.frameworks.registry import memory_warning, refusals
from meshwright.train.price import estimate
from meshwright.train.writing import TARGETS

MODELS = ("llama3-8b", "gpt2-medium", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite",
          "gemma2-9b", "gpt-oss-20b", "gpt3-6.7b", "qwen2.5-7b")  # fmt: skip
SYSTEMS = ("8xH100", "12xH100", "16xH100", "64xH100", "16xMI300X", "16xTPU-v5e", "32xGB200")
OPTIMIZERS = ("adam-bf16", "megatron-adam", "adapters", "fsdp-mixed", "deepspeed-adam",
              "megatron-adam-bf16-gradients")  # fmt: skip
CHOICES = {
    "tp": (1, 2, 4), "pp": (1, 2), "zero": (0, 1, 2, 3), "mbs": (1, 2), "cp": (1, 1, 2),
    "ep": (1, 1, 2), "sp": ("on", "off"), "recompute": ("none", "full", "selective"),
    "offload": ("none", "none", "optimizer", "state", "activations"),
}  # fmt: skip


def drawn(draw):
    """Return a question with a plan of the search, or with the price of a legal strategy.

    None: there is none.
    """
    asked = {"on": draw.choice(SYSTEMS), "seq": draw.choice((1024, 2048)),
             "global_batch": draw.choice((8, 16, 24, 60, 64, 96))}  # fmt: skip
    for share, name, values in (
        (0.6, "framework", tuple(TARGETS)), (0.3, "precision", ("fp8", "fp16", "fp32")),
        (0.3, "optimizer", OPTIMIZERS), (0.15, "cuda_graphs", (True,)), (0.15, "async_tp", (True,)),
    ):  # fmt: skip
        if draw.random() < share:
            asked[name] = draw.choice(values)
    model, is_searched = draw.choice(MODELS), draw.random() < 0.3
    fixed = {name: draw.choice(values) for name, values in CHOICES.items() if draw.random() < 0.6}
    try:
        if is_searched:
            return asked, mw.plan(model, simulated=0, top=1, **asked)
        return asked, mw.estimate(model, **asked, **fixed)
    except MeshwrightError:
        return None


@pytest.mark.parametrize("seed", slow_where(range(360), lambda seed: seed not in (0, 4)))
def test_launches_with_is_what_exports_take(seed):
    draw = random.Random(seed)
    found = filter(None, (drawn(draw) for _ in count()))
    for _, plan in islice(found, 2):
        taken = [name for name, target in TARGETS.items()
                 if not refusals(plan, target) and not memory_warning(plan, target)]  # fmt: skip
        claimed = [name for name in TARGETS if name in plan.best.launches_with]
        assert claimed == taken, (plan.model.name, plan.system.name, plan.best.text, plan.workload)


@pytest.mark.parametrize("seed", sampled(range(400, 440), 2))
def test_each_price_is_that_of_the_same_question_with_the_framework(seed):
    """Time and memory are equal, and what launches fits.

    No option says whether collectives of tp are hidden: the plan does.
    """
    draw = random.Random(seed)
    asked, plan = next(filter(None, (drawn(draw) for _ in count())))
    best = plan.best
    stated = {n: t for n, t in strategy_texts(best.strategy, best.plan_options).items() if t}
    own = asked.pop("framework", None)
    for entry in best.frameworks:
        if entry.framework == own:
            assert entry.step_time_s in (best.estimate.step_time_s, None)
        elif entry.step_time_s is not None:
            named = mw.estimate(plan.model, framework=entry.framework, **(asked | stated))
            answer = estimate(
                named.model, named.system, named.workload, best.strategy, best.plan_options
            ).best.estimate
            assert entry.step_time_s == pytest.approx(answer.step_time_s, rel=1e-9)
            assert entry.memory_bytes == pytest.approx(answer.memory_bytes, rel=1e-9)
            assert entry.launches == answer.fits
