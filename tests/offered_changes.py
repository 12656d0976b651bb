"""Strategies after a change that an error offers."""

from dataclasses import replace

from meshwright.sharding.fixes import _value
from meshwright.sharding.strategy import DEGREES


def with_change(strategy, plan_options, change):
    """Return degrees and plan options after a change, as ``tp=8 zero_stage=0``."""
    pairs = dict(word.split("=") for word in change.split())
    degrees = {name: float(text) for name, text in pairs.items() if name in DEGREES}
    choices = {
        name: _value(getattr(plan_options, name), text)
        for name, text in pairs.items()
        if name not in degrees
    }
    return replace(strategy, **degrees), replace(plan_options, **choices)
