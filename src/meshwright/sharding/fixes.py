"""The nearest change of a strategy after which no rule refuses it any more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from enum import Enum
from itertools import combinations, product

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.sharding.axes import refusals
from meshwright.sharding.rules import Case, Refusal, Rule, any_of
from meshwright.sharding.space import divisors
from meshwright.sharding.strategy import (
    DEGREES,
    PlanOptions,
    Strategy,
    StrategyColumns,
    StrategyOf,
    row,
)

REPLICAS = ("dp_shard", "dp_replicate")
"""Degrees that take up the devices that other degrees leave."""
MOST_CHANGED = 2
"""Most degrees that one change touches."""
SMALL = tuple(range(1, 9))
"""Values of every degree that are tried, beside divisors of the devices."""


def found_faults(
    rules: Sequence[Rule], case: Case, num_devices: int, replicas: Sequence[str] = REPLICAS
) -> tuple[list[Refusal], str]:
    """Return the refusals of a case of one row, and the nearest legal change."""
    found = list(refusals(rules, case))
    broken = [refusal.rule for refusal in found]
    if not found and row(case.s, 0).num_devices <= num_devices:
        return [], ""

    broken_first = sorted(rules, key=lambda rule: rule not in broken)  # most changes mend nothing

    def refused(changed: Case) -> BoolArray:
        return any_of((rule.breaks(changed) for rule in broken_first), changed)

    return found, nearest_legal(case, broken, refused, num_devices, replicas)


def fix_of(refusal: Refusal, change: str) -> str:
    """Return the fix of a refusal: a legal change, else the advice of its rule."""
    return change or ("" if "=" in refusal.rule.fix else refusal.rule.fix)


def nearest_legal(
    case: Case,
    broken: Sequence[Rule],
    refused: Callable[[Case], BoolArray],
    num_devices: int,
    replicas: Sequence[str] = REPLICAS,
) -> str:
    """Return the nearest change after which nothing is refused, as ``tp=8 dp_shard=4``; else "".

    A change touches at most two of the choices and two of the degrees that the broken rules name,
    three values together; if none is legal, all of them take plain values. A change that leaves no
    more devices idle comes first, then one of fewer values, then the least ratio to the present
    degrees.

    Parameters
    ----------
    case
        One row.
    refused
        Marks the rows of a case that any rule refuses.
    num_devices
    Most devices that may be used.
    replicas
        Degrees that may change with any other.
    """
    now = row(case.s, 0)
    adjusted = tuple(dict.fromkeys([*(d for rule in broken for d in rule.adjusts), *replicas]))
    variants = list(_option_sets(case.plan_options, broken))
    best: tuple[bool, float, str] | None = None
    for size in range(1, MOST_CHANGED + 2):
        for variant in variants:
            count = size - _size(variant)
            if 0 <= count <= MOST_CHANGED:
                for names in combinations(adjusted, count):
                    offer = _offer(case, now, variant, names, refused, num_devices)
                    if offer is not None and (best is None or offer[:2] < best[:2]):
                        best = offer
        if best is not None and not best[0]:
            break
    if best is None:
        best = _offer(
            case, now, _plainest(case.plan_options, broken), REPLICAS, refused, num_devices
        )
    return best[-1] if best else ""


def _plainest(plan_options: PlanOptions, broken: Sequence[Rule]) -> Variant:
    """Return the plan options after the fixes of all broken rules, and their degrees set to 1."""
    ones = {name: 1.0 for rule in broken for name in rule.adjusts if name not in REPLICAS}
    words: dict[str, str] = {}
    for rule in broken:
        for text in alternatives(rule.fix)[:1]:
            pairs = dict(word.split("=") for word in text.split() if word.count("=") == 1)
            words |= {name: word for name, word in pairs.items() if hasattr(plan_options, name)}
    values = {name: _value(getattr(plan_options, name), word) for name, word in words.items()}
    known = {name: value for name, value in values.items() if value is not None}
    written = tuple(f"{name}={words[name]}" for name in known)
    return replace(plan_options, **known), written, ones  # type: ignore[arg-type]


Variant = tuple[PlanOptions, tuple[str, ...], dict[str, float]]
"""Plan options, the words that change them, and the degrees to set with them."""


def _size(variant: Variant) -> int:
    return len(variant[1]) + len(variant[2])


def _offer(
    case: Case, now: Strategy, variant: Variant, names: Sequence[str],
    refused: Callable[[Case], BoolArray], num_devices: int,
) -> tuple[bool, float, str] | None:  # fmt: skip
    """Return the nearest legal change of some degrees: whether devices idle, distance, text."""
    plan_options, words, fixed = variant
    columns = _table(replace(now, **fixed), names, num_devices)
    used: FloatArray = columns.num_devices
    legal = (used <= num_devices) & ~refused(replace(case, s=columns, plan_options=plan_options))
    rows = np.flatnonzero(legal)
    if not len(rows):
        return None
    idle = used < min(num_devices, now.num_devices)
    far: FloatArray = np.zeros(len(used))
    for name in DEGREES:
        far = far + np.abs(np.log(getattr(columns, name) / getattr(now, name)))
    index = min(rows.tolist(), key=lambda n: (idle[n], far[n], used[n]))
    changes = [
        f"{name}={getattr(columns, name)[index]:.0f}"
        for name in dict.fromkeys((*fixed, *names))
        if getattr(columns, name)[index] != getattr(now, name)
    ]
    return bool(idle[index]), float(far[index]), " ".join([*changes, *words])


def _option_sets(plan_options: PlanOptions, broken: Sequence[Rule]) -> Iterator[Variant]:
    """Yield the plan options as they are, and after the fixes of one or two rules."""
    types = {field.name: getattr(plan_options, field.name) for field in fields(plan_options)}
    known: dict[str, tuple[dict[str, object], dict[str, float]]] = {}
    for text in dict.fromkeys(one for rule in broken for one in alternatives(rule.fix)):
        pairs = [word.partition("=") for word in text.split()]
        values = {name: _value(types[name], word) for name, _, word in pairs if name in types}
        sizes = {name: float(word) for name, _, word in pairs if name in DEGREES and word}
        if pairs and len(values) + len(sizes) == len(pairs) and None not in values.values():
            known[text] = (values, sizes)
    for count in range(MOST_CHANGED + 1):
        for chosen in combinations(known, count):
            changed = {name: value for text in chosen for name, value in known[text][0].items()}
            fixed = {name: size for text in chosen for name, size in known[text][1].items()}
            words = [word for text in chosen for word in text.split()]
            of_choices = tuple(word for word in words if word.partition("=")[0] in changed)
            yield replace(plan_options, **changed), of_choices, fixed  # type: ignore[arg-type]


def alternatives(fix: str) -> list[str]:
    """Return the fixes that a text offers: ``recompute=full or none`` are two."""
    first, *others = fix.split(" or ")
    name = first.partition("=")[0]
    return [first, *(text if "=" in text else f"{name}={text}" for text in others)]


def _value(present: object, text: str) -> object | None:
    """Return a word as a value of the type of the present one; None: not a value of that type."""
    if isinstance(present, bool):
        return {"true": True, "false": False}.get(text)
    if isinstance(present, Enum):
        return next((one for one in type(present) if one.value == text), None)
    if isinstance(present, int):
        return int(text) if text.isdigit() else None
    return tuple(re.split("[+,]", text)) if text else ()


def _table(start: Strategy, names: Sequence[str], num_devices: int) -> StrategyColumns:
    """Return the strategies that differ in some degrees: small ones and divisors of the devices."""
    shared = {*SMALL, *divisors(num_devices)}
    tried = [sorted(shared | {int(getattr(start, name))}) for name in names]
    rows = list(product(*tried))
    table = np.array(rows, dtype=float).reshape(len(rows), len(names))
    columns = StrategyOf(**{name: getattr(start, name) * np.ones(len(table)) for name in DEGREES})
    return replace(columns, **dict(zip(names, table.T, strict=True)))
