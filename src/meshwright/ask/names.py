"""Names that an option proposes, from the catalog and the registries: for shells and forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from meshwright.ask.record import Option
from meshwright.catalog.frameworks import framework_names
from meshwright.catalog.graphs.files import graph_names
from meshwright.catalog.huggingface.quantization import USUAL
from meshwright.catalog.models import model_names
from meshwright.catalog.networks import networks
from meshwright.catalog.systems import chip_names, comes_in, system_names
from meshwright.catalog.workloads import optimizer_names, server_names
from meshwright.frameworks.programs.servers import SERVERS
from meshwright.frameworks.registry import exporters
from meshwright.show.walks.named import walk_names
from meshwright.spec.system import DType
from meshwright.streams.forms import streams

SIZES = (8, 64, 512, 4096)
"""Proposed numbers of devices for each chip, where they are valid."""


def _systems() -> list[str]:
    sized = [f"{size}x{chip}" for chip in chip_names() for size in SIZES if comes_in(chip, size)]
    return [*sized, *system_names()]


LISTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "model": model_names, "speculative_model": model_names, "chip": chip_names, "on": _systems,
    "system": _systems, "network": networks, "graph": graph_names, "framework": framework_names,
    "server": server_names, "optimizer": optimizer_names, "precision": lambda: get_args(DType),
    "weights": lambda: USUAL, "target": lambda: (*exporters, *SERVERS), "walk": walk_names,
    "form": lambda: streams,
}  # fmt: skip
"""Lists of names, by the option that takes them."""


def list_of(option: Option) -> str:
    """Return the list of names of an option; empty where nothing lists its values."""
    name = "chip" if option.metavar == "CHIP" else option.name
    return name if name in LISTS else ""
