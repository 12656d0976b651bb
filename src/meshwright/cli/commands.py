"""The table of commands: name, what it does, and the module of this folder that does it.

A module offers ``add_arguments(parser)`` and ``run(args) -> int`` and imports what it needs inside
``run``. A command is there as soon as its module is; ``--json`` is added to each one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast


class CommandModule(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options and arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it, and return the exit status."""


@dataclass(frozen=True)
class Command:
    """One command and the module that holds it."""

    help: str
    module: str

    def is_present(self) -> bool:
        """Whether the module exists."""
        return find_spec(f"meshwright.cli.{self.module}") is not None

    def load(self) -> CommandModule:
        """Import the module."""
        return cast(CommandModule, import_module(f"meshwright.cli.{self.module}"))


@dataclass(frozen=True)
class Family:
    """Commands under a common first word."""

    help: str
    members: Mapping[str, Command]

    def is_present(self) -> bool:
        """Whether any of its commands exists."""
        return any(member.is_present() for member in self.members.values())


CommandTable = Mapping[str, Command | Family]

SHOW = Family(
    "look at models, graphs, chips, systems, optimizers, collectives and topologies",
    {
        "model": Command("dims, parameter counts and operators of a model", "show_model"),
        "chip": Command("rates, memories, power and their sources", "show_chip"),
        "system": Command("devices and network levels of a system", "show_system"),
        "optimizer": Command("bytes per parameter that a framework keeps", "show_optimizer"),
        "collectives": Command(
            "what each collective algorithm takes on a group", "show_collectives"
        ),
        "graph": Command("kernels of a computation, and how they may be split", "show_graph"),
        "topologies": Command("links, diameter and bisection of each network", "show_topologies"),
    },
)

COMMANDS: CommandTable = {
    "plan": Command("search the whole space for the best plan, with the proof", "plan"),
    "estimate": Command("price one given strategy", "estimate"),
    "fit": Command("memory only: does it fit, and what fits", "fit"),
    "explain": Command(
        "why this plan, why not another; where a measured step loses time", "explain"
    ),
    "compare": Command("what others would do: the best plan of each recipe", "compare"),
    "check": Command("is a strategy legal, and what is the nearest legal one", "check"),
    "simulate": Command("when a plan computes and sends; or flows that share links", "simulate"),
    "partition": Command("cut layers into stages that fit SRAM, a cache or HBM", "partition"),
    "fuse": Command("fuse kernels into partitions that run on a chip one by one", "fuse"),
    "export": Command("write launch files for PyTorch, Megatron-LM, torchtitan", "export"),
    "show": SHOW,
    "sweep": Command("one question over many models, systems and designs; resumable", "sweep"),
    "validate": Command("predictions held against measurements, yours or published", "validate"),
    "calibrate": Command("fit the constants of the cost model to measurements", "calibrate"),
    "study": Command("rebuild a published figure or question", "study"),
}


def present(table: CommandTable) -> CommandTable:
    """Return the commands whose modules exist."""
    return {name: entry for name, entry in table.items() if entry.is_present()}
