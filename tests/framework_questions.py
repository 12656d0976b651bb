"""Ordinary questions about training, to be asked with a framework."""

from functools import cache
from itertools import islice

import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system

QUESTIONS = (
    ("llama3.2-1b", "8xH100", 8192, 64, {}),
    ("llama3-8b", "8xH100", 8192, 64, {}),
    ("llama3-8b", "64xH100", 8192, 512, {}),
    ("llama3.2-1b", "1xH100", 2048, 8, {}),
    ("llama3.1-8b", "64xH100", 131072, 64, {}),
    ("llama3-8b", "16xA100", 4096, 128, {}),
    ("llama3-70b", "64xH100", 8192, 256, {}),
    ("llama3-70b", "512xH100", 8192, 1024, {}),
    ("llama3-70b", "256xMI300X", 8192, 512, {}),
    ("llama3.1-405b", "1024xH100", 8192, 2048, {}),
    ("mixtral-8x7b", "64xH100", 4096, 512, {}),
    ("qwen3-30b-a3b", "32xH100", 4096, 256, {}),
    ("qwen3-235b-a22b", "256xH100", 4096, 1024, {}),
    ("deepseek-v3", "2048xH800", 4096, 15360, {}),
    ("gpt3-175b", "1024xA100", 2048, 1536, {}),
    ("gpt2-xl", "8xV100", 1024, 512, {"precision": "fp16"}),
    ("mistral-7b", "32xH200", 32768, 64, {}),
    ("qwen2.5-32b", "64xA100", 4096, 512, {}),
    ("llama3-8b", "64xH100", 8192, 512, {"precision": "fp8"}),
    ("gpt-oss-20b", "16xH100", 4096, 128, {}),
)
NUMBERS = ((2, 1), pytest.param(None, 7, marks=pytest.mark.slow))
"""How many winners of a framework are tried, and the least that there are; None: all of them."""


def starts_at_all(name, model, system, precision):
    """Return whether the framework has the model, the chip and the precision."""
    launches = load_framework(name).launches
    has_model = launches.architectures is None
    has_model = has_model or load_model(model).architecture in launches.architectures
    is_there = load_system(system).chip.vendor in launches.vendors
    return has_model and is_there and precision in launches.precisions


@cache
def winners(name, number=None):
    """Return the plans of the first questions that a framework can start and that fit."""
    return list(islice(_winners(name), number))


def _winners(name):
    for model, system, tokens, batch, rest in QUESTIONS:
        if starts_at_all(name, model, system, rest.get("precision", "bf16")):
            asked = {"on": system, "seq": tokens, "global_batch": batch, "framework": name}
            try:
                yield mw.plan(model, **asked, **rest)
            except InfeasibleError:
                continue
