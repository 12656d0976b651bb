"""The degrees to search, as columns: every way to split a number of devices.

Nothing is judged here: legality belongs to the axes, memory and time to ``cost``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.sharding.strategy import AXES, StrategyColumns, StrategyOf, Streamed, StreamForm

MICRO_BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batch sizes that are tried [sequences]."""


@dataclass(frozen=True)
class Choices:
    """Choices that the user fixed: allowed values of a degree or of a plan option, by name."""

    allowed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def keeps(self, name: str, value: object) -> bool:
        """Return whether a value of a choice is allowed."""
        return name not in self.allowed or value in self.allowed[name]

    def of(self, name: str, values: Sequence[int]) -> tuple[int, ...]:
        """Return the values of a degree that are allowed."""
        return tuple(value for value in values if self.keeps(name, value))

    def instead_of(self, name: str, values: Sequence[int]) -> Sequence[int]:
        """Return the allowed values, even if they are not among the usual ones."""
        return [int(str(value)) for value in self.allowed[name]] if name in self.allowed else values

    def __str__(self) -> str:
        """Return the fixed choices: ``pp 2, schedule 1f1b or zero_bubble``."""
        return ", ".join(
            f"{name} {' or '.join(map(str, values))}" for name, values in self.allowed.items()
        )


def divisors(number: int) -> list[int]:
    """Return the divisors of a whole number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def factorizations(number: int, num_factors: int) -> IntArray:
    """Return every ordered way to write a number as a product, one row each.

    The count is the product over prime exponents a of C(a + k - 1, k - 1): 84 for 64 in 4 factors.
    """
    if num_factors == 1:
        return np.array([[number]], dtype=np.int64)
    parts = []
    for first in divisors(number):
        rest = factorizations(number // first, num_factors - 1)
        parts.append(np.hstack([np.full((len(rest), 1), first, dtype=np.int64), rest]))
    return np.vstack(parts)


def num_prime_factors(number: int) -> int:
    """Return the number of prime factors, repeated ones counted: 6 for 64, 3 for 66."""
    count, factor = 0, 2
    while number > 1:
        if number % factor == 0:
            count, number = count + 1, number // factor
        else:
            factor = factor + 1 if factor * factor <= number else number
    return count


def device_counts(num_devices: int, host_size: int) -> tuple[int, ...]:
    """Return the numbers of devices to use: all of them, and smoother numbers just below.

    Using fewer devices than given is legal and reported. Above 7/8 of the full number the whole
    hosts (single devices of a small system) with more prime factors are tried, at most three, so
    that 62, 66 or a wafer with a dead die find good plans.
    """
    step = host_size if num_devices >= 4 * host_size else 1
    lowest = num_devices - num_devices // 8
    below = range(num_devices - 1, lowest - 1, -1)
    own = num_prime_factors(num_devices)
    better = [n for n in below if n % step == 0 and num_prime_factors(n) > own]
    return (num_devices, *sorted(better, key=lambda n: (-num_prime_factors(n), -n))[:3])


MOST_STEPS = 16
"""Most groups of hosts: hosts of larger systems are left idle in whole groups."""


def legal_counts(num_devices: int, host_size: int) -> tuple[int, ...]:
    """Return the numbers of devices that a plan may use, the largest first.

    Any number below four hosts; above it whole hosts, since launchers start equally many processes
    on each; of more than 16 hosts groups of 2, 4, 8, ... hosts.
    """
    few = range(1, min(num_devices, 4 * host_size - 1) + 1)
    step = host_size
    while num_devices > MOST_STEPS * step:
        step *= 2
    return tuple(sorted({*few, *range(step, num_devices + 1, step), num_devices}, reverse=True))


def axis_orders(tatp: bool) -> tuple[tuple[str, ...], ...]:
    """Return the orders of the axes on the levels, innermost first.

    tp (and tatp) stay inside, because they communicate in every layer; cp, data and pipeline axes
    are tried in every order. The first one is the default order of Megatron.
    """
    inner = [("tp", "tatp"), ("tatp", "tp")] if tatp else [("tp", "tatp")]
    outer = [
        tuple(name for group in order for name in group)
        for order in permutations((("cp",), ("dp_shard", "dp_replicate"), ("pp",)))
    ]
    return tuple(first + rest for first in inner for rest in outer)


def order_named(name: str) -> tuple[str, ...]:
    """Return the axes of an order such as ``tp-cp-pp-dp``: streams lie beside tp."""
    parts = {"tp": ("tp", "tatp"), "dp": ("dp_shard", "dp_replicate")}
    return tuple(axis for part in name.split("-") for axis in parts.get(part, (part,)))


def order_name(order: tuple[str, ...]) -> str:
    """Return the name of an order, as :func:`order_named` takes it."""
    parts = (axis.partition("_")[0].replace("tatp", "tp") for axis in order)
    return "-".join(dict.fromkeys(parts))


def stream_choices(choices: Choices, *, has_grid: bool) -> tuple[tuple[Streamed, StreamForm], ...]:
    """Return the pairs of streamed tensor and form to try: all of them unless the user fixed some.

    The cheaper one of two tensors stands for either.
    """
    every = (Streamed.AUTO, Streamed.BOTH) if has_grid else (Streamed.AUTO,)
    streamed = [Streamed(str(tensor)) for tensor in choices.allowed.get("streamed", every)]
    if Streamed.AUTO in streamed:
        streamed = [tensor for tensor in every if tensor in streamed]
    forms = choices.allowed.get("stream_form", (StreamForm.AUTO,))
    return tuple((tensor, StreamForm(str(form))) for tensor, form in product(streamed, forms))


def first_orders(orders: Sequence[tuple[str, ...]]) -> IntArray:
    """Return, for each order and each set of axes in use, whether it is the first such plan.

    Orders that differ by axes of degree one alone are the same plan.
    Shape (orders, 64): the set of axes is a bit mask over ``AXES``; 1 keeps the row.
    """
    keep = np.zeros((len(orders), 1 << len(AXES)), dtype=np.int64)
    for mask in range(1 << len(AXES)):
        used = {name for bit, name in enumerate(AXES) if mask >> bit & 1}
        seen: set[tuple[str, ...]] = set()
        for index, order in enumerate(orders):
            key = tuple(name for name in order if name in used)
            keep[index, mask] = key not in seen
            seen.add(key)
    return keep


@dataclass(frozen=True)
class Grid:
    """Ingredients of the space of degrees, for one number of devices."""

    num_devices: int
    num_layers: int
    global_batch_size: int
    uses_tatp: bool
    num_experts: int
    choices: Choices


def degree_columns(grid: Grid) -> StrategyColumns:
    """Return every combination of degrees for one number of devices, legal or not.

    One row for each ordered factorization into (tp, tatp, cp, dp, pp), expert degrees, number of
    virtual stages and micro-batch size. Data replicas are not divided into shards here:
    ``dp_shard`` holds all of dp.
    """
    blocks = []
    choices = grid.choices
    for tp, cp, dp, pp, tatp in _grids(grid):
        experts = expert_degrees(grid.num_experts, tp, cp, dp, grid.choices)
        stages = choices.of("num_virtual_stages", tuple(virtual_stage_counts(grid.num_layers, pp)))
        largest = -(-grid.global_batch_size // dp)
        usual = choices.instead_of("micro_batch_size", MICRO_BATCH_SIZES)
        sizes = [b for b in usual if b == 1 or b <= largest]
        rest = [(*e, v, b) for e in experts for v in stages for b in sizes]
        if rest:
            fixed = np.tile(np.array([tp, cp, dp, pp, tatp], dtype=float), (len(rest), 1))
            blocks.append(np.hstack([fixed, np.array(rest, dtype=float)]))
    table = np.vstack(blocks) if blocks else np.zeros((0, 9))
    names = ("tp", "cp", "dp_shard", "pp", "tatp", "ep", "etp", "num_virtual_stages",
             "micro_batch_size")  # fmt: skip
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return StrategyOf(dp_replicate=np.ones(len(table)), **columns)


def _grids(grid: Grid) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (tp, cp, dp, pp, tatp) of every factorization that the choices allow."""
    keeps = grid.choices.keeps
    for row in factorizations(grid.num_devices, 5 if grid.uses_tatp else 4).tolist():
        tp, cp, dp, pp, tatp = (*row, 1)[:5]
        asked = (("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp), ("tatp", tatp))
        if pp <= grid.num_layers and all(keeps(name, value) for name, value in asked):
            yield tp, cp, dp, pp, tatp


def expert_degrees(
    num_experts: int, tp: int, cp: int, dp: int, choices: Choices | None = None
) -> list[tuple[int, int]]:
    """Return the (ep, etp) to try: experts borrow the devices of tp, cp and dp."""
    if num_experts == 0:
        return [(1, 1)]
    known = choices or Choices()
    pairs = [
        (ep, etp)
        for etp in known.instead_of("etp", sorted({1, tp}))
        for ep in divisors(num_experts)
        if (dp * cp * tp) % (ep * etp) == 0
    ]
    return sorted(
        pair for pair in pairs if known.keeps("ep", pair[0]) and known.keeps("etp", pair[1])
    )


def virtual_stage_counts(num_layers: int, num_stages: int) -> Iterator[int]:
    """Yield the numbers of model chunks per device that cut its layers into equal runs."""
    layers_per_stage = -(-num_layers // num_stages)
    for count in divisors(layers_per_stage):
        if count == 1 or num_stages > 1:
            yield count
