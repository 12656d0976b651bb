"""From a strategy back to the options that state it: an interface fills them in for a user."""

from __future__ import annotations

from enum import StrEnum

from meshwright.ask.declared import allowed_of
from meshwright.ask.questions import Fixed
from meshwright.sharding.space import order_name
from meshwright.sharding.strategy import PlanOptions, Strategy, lengths_text
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import stated_strategy


def strategy_texts(strategy: Strategy, plan_options: PlanOptions) -> dict[str, str]:
    """Return the text of every option of a strategy, by its name; lists may be empty."""
    values = {**vars(strategy), **vars(plan_options), "dp": strategy.dp}
    order = order_name(plan_options.axis_order)
    # A placement nests axes in orders that no option states.
    values["axis_order"] = order if order in Fixed.options["axis_order"].choices else ""
    values["stage_layers"] = lengths_text(plan_options.stage_layers)
    return {option.name: _text(values[option.target]) for option in Fixed.options.values()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(value)
    return str(value) if isinstance(value, str | StrEnum) else f"{value:.0f}"


def strategy_options(
    strategy: Strategy, plan_options: PlanOptions, model: ModelSpec, num_devices: int,
    software: SoftwareStack,
) -> dict[str, str]:  # fmt: skip
    """Return the options that state a strategy, without those that follow from the others.

    Parameters
    ----------
    num_devices
        Devices that data parallelism fills where it is not stated.
    software
        Software with the habits for choices that are not stated.
    """
    stated = {name: text for name, text in strategy_texts(strategy, plan_options).items() if text}

    def says(options: dict[str, str]) -> tuple[Strategy, PlanOptions]:
        asked = Fixed.ask(options)
        asked.reading().done()
        allowed = allowed_of(asked)
        one = {name: values[0] for name, values in allowed.items()}
        return stated_strategy(one, model, num_devices, software)

    whole = says(stated)
    for name in list(stated):
        fewer = {other: text for other, text in stated.items() if other != name}
        try:
            if says(fewer) == whole:
                stated = fewer
        except ValueError:  # options that only this one lets hold
            continue
    return stated
