"""The search of serving returns what a plain loop returns; a scalar equals its row in a column."""

import random
from dataclasses import fields, is_dataclass
from itertools import product

import numpy as np
import pytest
from sampled import sampled

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.serve.passes import ServingProblem
from meshwright.serve.price import price_serving
from meshwright.serve.search import (
    CONTEXT_OUTSIDE,
    PIPELINE_INSIDE,
    ServingObjective,
    ServingSpace,
    search_serving,
)
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import AXES, ContextKind, PlanOptions, make_strategy, stack, take
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack

MODELS = ("llama3-8b", "mixtral-8x7b", "gemma2-9b", "deepseek-v2-lite", "llama3-70b")
NUMBERS = (1, 2, 4, 8)


def random_problem(seed):
    """A small question: a model, at most eight devices, a batch of at most eight."""
    draw = random.Random(seed)
    system = load_system(f"{draw.choice(NUMBERS)}x{draw.choice(('H100', 'A100', 'H200'))}")
    shared = {
        "batch_size": draw.randint(1, 8),
        "software": SoftwareStack(cuda_graphs=draw.random() < 0.5),
        "precision": Precision(kv_cache=draw.choice(("bf16", "fp8"))),
    }
    if draw.random() < 0.6:
        work = Decode(
            context_length=draw.choice((512, 30_000, 130_000)),
            max_time_per_output_token_s=draw.choice((None, 0.02, 0.05)),
            **shared,
        )
    else:
        work = Prefill(
            prompt_length=draw.choice((1024, 16_384)),
            max_time_to_first_token_s=draw.choice((None, 1.0)),
            **shared,
        )
    constants = load_calibration(system.chip.family)
    return ServingProblem(load_model(draw.choice(MODELS)), system, work, constants)


def every_strategy(question):
    """Yield every strategy and number of groups, legal or not, by plain loops."""
    given = question.system.num_alive
    experts = [n for n in NUMBERS if question.num_experts] or [1]
    for tp, pp, cp, dp in product(NUMBERS, repeat=4):
        if given % (tp * pp * cp * dp) or (cp > 1 and question.is_decode):
            continue
        share = max(question.workload.batch_size // dp, 1)
        for ep, etp, size in product(experts, {1, tp} if len(experts) > 1 else {1}, range(1, 9)):
            for groups in range(1, min(pp, share) + 1) if question.is_decode else (pp,):
                most = -(-share // groups) if question.is_decode else share
                if size <= most and tp * cp * dp % (ep * etp) == 0:
                    degrees = {
                        "tp": tp, "pp": pp, "cp": cp, "dp_replicate": dp, "ep": ep, "etp": etp,
                        "micro_batch_size": size,
                    }  # fmt: skip
                    yield make_strategy(**degrees), groups


def every_plan_options(question):
    orders = (AXES,) if question.num_experts else (PIPELINE_INSIDE, CONTEXT_OUTSIDE)
    for order, kind, split in product(orders, ContextKind, (False, True)):
        if not (split and question.is_decode):
            yield PlanOptions(
                sequence_parallel=split, context_kind=kind, axis_order=order, zero_stage=0
            )


def brute_force(question):
    """Return (latency, tokens/s, whether the batch is whole) of all that is legal and fits."""
    rows = list(every_strategy(question))
    columns = stack([strategy for strategy, _ in rows])
    groups = np.array([float(m) for _, m in rows])
    chip, batch = question.system.chip, question.workload.batch_size
    found = []
    for plan_options in every_plan_options(question):
        legal = np.ones(len(rows), dtype=bool)
        for refusal in all_refusals(
            question.model, question.workload, columns, plan_options,
            tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
        ):  # fmt: skip
            legal &= ~refusal.mask
        kept = np.flatnonzero(legal)
        if not len(kept):
            continue
        price = price_serving(question, plan_options, take(columns, kept), groups[kept])
        fits = price.memory_bytes <= chip.main_memory.capacity_bytes
        held = price.strategy.micro_batch_size * (price.num_groups if question.is_decode else 1.0)
        whole = held >= np.floor(batch / price.strategy.dp)
        found.append(np.stack([price.latency_s, price.tokens_per_s, whole])[:, fits])
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("seed", sampled(range(60), 12))
def test_search_is_brute_force(seed):
    question = random_problem(seed)
    latency, rate, whole = brute_force(question)
    limit_s = question.max_latency_s or np.inf
    in_time = latency <= limit_s
    for objective in ServingObjective:
        wanted = in_time & (whole == 1.0) if objective is ServingObjective.LATENCY else in_time
        space = ServingSpace(question, Choices())
        if not wanted.any():
            with pytest.raises(InfeasibleError):
                search_serving(space, objective)
            continue
        result = search_serving(space, objective)
        rows, best = result.fitting, result.ranked[0]
        assert rows.latency_s.min() == latency.min()
        if objective is ServingObjective.LATENCY:
            assert rows.latency_s[result.ranked].min() == latency[wanted].min()
            assert rows.latency_s[best] <= 1.01 * latency[wanted].min()
        else:
            assert rows.tokens_per_s[rows.latency_s <= limit_s].max() == rate[wanted].max()
            assert rows.tokens_per_s[best] >= 0.99 * rate[wanted].max()


def columns_of(record):
    """Yield the columns of a record of columns."""
    if isinstance(record, np.ndarray):
        yield record
    elif isinstance(record, tuple):
        for entry in record:
            yield from columns_of(entry)
    elif is_dataclass(record):
        for entry in fields(record):
            yield from columns_of(getattr(record, entry.name))


@pytest.mark.parametrize("seed", sampled(range(0, 60, 4), 4))
def test_one_row_is_its_row_of_the_column(seed):
    question = random_problem(seed)
    rows = list(every_strategy(question))
    columns = stack([strategy for strategy, _ in rows])
    groups = np.array([float(m) for _, m in rows])
    plan_options = next(every_plan_options(question))
    whole = list(columns_of(price_serving(question, plan_options, columns, groups)))
    for index in random.Random(seed).sample(range(len(rows)), min(len(rows), 6)):
        one = stack([rows[index][0]])
        alone = list(columns_of(price_serving(question, plan_options, one, groups[[index]])))
        assert len(alone) == len(whole)
        for part, column in zip(alone, whole, strict=True):
            if len(column) == len(rows):
                assert part[0] == column[index]
