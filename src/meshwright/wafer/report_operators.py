"""A plan with a strategy for each group of operators, as lines."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_uppercase

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import time_lines, wrapped
from meshwright.train.answer import OperatorOption, OperatorPlan, OperatorRun


def operator_lines(plan: OperatorPlan, one_for_all_s: float) -> Iterator[str]:
    """Yield the options, who has which, the price and the proofs; at most 100 columns wide."""
    faster = one_for_all_s / plan.step_time_s - 1.0
    than = f"{faster:.1%} faster" if faster >= 0 else f"{-faster:.1%} slower"
    yield (
        f"a strategy for each operator: {format_seconds(plan.step_time_s)} a step "
        f"({than} than one for all), {format_bytes(plan.memory_bytes)}; {plan.fidelity}"
    )
    for number, option in enumerate(plan.options):
        yield from wrapped(f"  {_letter(number)}  ", option.text)
        yield from wrapped("     ", _place(option))
    yield f"  {'layers':<9} option  operators"
    for run in plan.runs:
        head = f"  {_layers(run):<9} {_letter(run.option):<6}  "
        yield from wrapped(head, ", ".join(run.operators))
    yield from time_lines("  time of a step", plan.time_parts_s, plan.step_time_s)
    yield from wrapped(
        "  proof: ",
        f"alone on its links {format_seconds(plan.closed_form_s)}, no choice among "
        f"{plan.num_options} options takes less than {format_seconds(plan.closed_form_bound_s)} "
        f"(gap {plan.closed_form_gap:.2%}); with contention and resharding no plan of these "
        f"micro-batches takes less than {format_seconds(plan.lower_bound_s)} "
        f"(gap {plan.gap:.1%}); found in {plan.search_s:.1f} s",
    )


def _letter(number: int) -> str:
    """Return the name of an option: A to Z, then A1."""
    times, letter = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(times) if times else "")


def _layers(run: OperatorRun) -> str:
    if run.first_layer is None:
        return "edge"
    if run.first_layer == run.last_layer:
        return str(run.first_layer)
    return f"{run.first_layer}-{run.last_layer}"


def _place(option: OperatorOption) -> str:
    """Return where the axes of an option lie."""
    blocks = ", ".join(f"{axis} {'x'.join(map(str, option.shapes[axis]))}" for axis in option.axes)
    return f"blocks of rows x columns, from the inside: {blocks or 'none'}"
