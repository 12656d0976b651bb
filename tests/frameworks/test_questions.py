"""Ordinary questions with a framework: its own parser reads every winner as it was planned."""

from importlib.metadata import version

import pytest
from framework_questions import NUMBERS, winners
from real_parsers import MEANT, meant, read, told

from meshwright.frameworks.registry import exporters
from meshwright.train.writing import TARGETS

WHEELS = {
    "megatron": "megatron-core", "torchtitan": "torchtitan", "fsdp": "torch",
    "deepspeed": "deepspeed", "accelerate": "accelerate", "megatron-bridge": "megatron-bridge",
    "maxtext": "maxtext",
}  # fmt: skip
"""The distribution that holds the parser of each framework."""


@pytest.mark.parametrize("name", MEANT)
@pytest.mark.parametrize(("number", "least"), NUMBERS)
def test_the_parser_reads_every_winner_as_it_was_planned(tmp_path, name, number, least):
    plans = winners(name, number)
    cases = [told(name, plan, tmp_path / f"{number}") for number, plan in enumerate(plans)]
    assert len(plans) >= least
    assert read(name, cases) == [meant(name, plan) for plan in plans]


def test_every_framework_that_is_written_for_is_read():
    assert set(MEANT) == set(WHEELS) == set(TARGETS)


@pytest.mark.parametrize(("name", "wheel"), WHEELS.items())
def test_the_stated_version_is_the_one_that_reads(name, wheel):
    major_and_minor = ".".join(version(wheel).split(".")[:2])
    assert f" {major_and_minor}" in exporters[TARGETS[name]].table.written
