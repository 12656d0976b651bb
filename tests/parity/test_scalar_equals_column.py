"""One chain for one and for many: a row of a priced column is the price of that row alone."""

import math
import random
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from sampled import sampled
from small_problems import option_sets, random_problem, random_strategy, with_numbers

from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.step import price_columns, price_one
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import Offload, row, stack

OPTION_SETS = tuple(option_sets())
SEEDS = range(40)
ROWS = 6


def numbers_of(record, path=""):
    """Yield the path and the value of every number and column of a price."""
    if is_dataclass(record):
        for entry in fields(record):
            yield from numbers_of(getattr(record, entry.name), f"{path}.{entry.name}")
    elif isinstance(record, dict):
        for name, entry in record.items():
            yield from numbers_of(entry, f"{path}.{name}")
    elif isinstance(record, tuple):
        for index, entry in enumerate(record):
            yield from numbers_of(entry, f"{path}[{index}]")
    elif isinstance(record, np.ndarray | float):
        yield path, np.asarray(record, dtype=float)


def legal_strategies(chance, problem, plan_options):
    """Return random rows that no rule refuses."""
    tried = list(dict.fromkeys(random_strategy(chance, problem) for _ in range(100)))
    chip, illegal = problem.system.chip, np.zeros(len(tried), dtype=bool)
    for refusal in all_refusals(
        problem.model, problem.workload, stack(tried), plan_options,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        illegal |= refusal.mask
    return [tried[index] for index in np.flatnonzero(~illegal)][:ROWS]


@cache
def drawn(seed):
    """Return a random problem, a set of plan options, and legal strategies under it."""
    chance = random.Random(seed)
    while True:
        problem = random_problem(chance)
        plan_options = chance.choice(OPTION_SETS)
        if problem.system.host is None:
            plan_options = replace(plan_options, offload=Offload.NONE)
        if chance.random() < 0.3:
            plan_options = with_numbers(chance, plan_options)
        found = legal_strategies(chance, problem, plan_options)
        if len(found) > 1:
            return problem, plan_options, found


@pytest.mark.parametrize("seed", sampled(SEEDS, 15))
def test_each_row_is_its_own_price_bit_for_bit(seed):
    problem, plan_options, found = drawn(seed)
    columns = stack(found)
    many = price_columns(problem, plan_options, columns)
    for index in range(len(found)):
        one = price_one(problem, plan_options, row(columns, index))
        alone = dict(numbers_of((one.step, one.pipeline)))
        for path, column in numbers_of((many.step, many.pipeline)):
            value = column.reshape(-1)[index if column.size > 1 else 0]
            np.testing.assert_array_equal(value, alone[path].reshape(-1)[0], err_msg=path)


@pytest.mark.parametrize("seed", sampled(SEEDS, 15))
def test_parts_sum_to_the_whole_and_none_is_negative(seed):
    problem, plan_options, found = drawn(seed)
    step = price_columns(problem, plan_options, stack(found)).step
    total = np.zeros(len(found))
    for name in TimePart:
        part = step.time[name] + np.zeros(len(found))
        assert np.isfinite(part).all(), name
        assert (part >= 0).all(), name
        total = total + part
    np.testing.assert_array_equal(total, step.time.total_s)
    for use in step.memory:
        whole = np.zeros(len(found))
        for name in MemoryPart:
            part = use[name] + np.zeros(len(found))
            assert (np.isfinite(part) & (part >= 0)).all(), name
            whole = whole + part
        np.testing.assert_array_equal(whole, use.total_bytes)


def test_only_energy_and_money_may_be_unknown():
    problem, plan_options, found = drawn(1)
    priced = price_columns(problem, plan_options, stack(found))
    unknown = {path for path, value in numbers_of(priced.step) if not np.isfinite(value).all()}
    assert unknown == {".energy_j", ".cost_usd"}
    assert math.isnan(np.asarray(priced.step.energy_j)[0])
