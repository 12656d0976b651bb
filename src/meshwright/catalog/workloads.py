"""Workloads: optimizers and servers of the catalog; files of training, prefill or decode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import (
    PlainValues,
    Tree,
    data_names,
    fault_at,
    find_name,
    load_file,
    load_text,
    read_text,
    read_tree,
)
from meshwright.spec.declaration import Declaration, Provenance, Source
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import (
    Decode,
    OptimizerPreset,
    Prefill,
    Server,
    Training,
    Workload,
)

Entry = TypeVar("Entry")
_KINDS: dict[str, type[Declaration]] = {
    "training": Training, "prefill": Prefill, "decode": Decode,
}  # fmt: skip


class OptimizerFile(Declaration):
    """Optimizer presets as they stand in a file."""

    presets: Mapping[str, OptimizerPreset]
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


def optimizer_names() -> tuple[str, ...]:
    """Return the names of all optimizer presets."""
    return tuple(optimizer_file().presets)


def load_optimizer(name: str) -> OptimizerPreset:
    """Return an optimizer preset by name.

    Raises
    ------
    UnknownNameError
        When there is no such preset; lists the near ones.
    """
    return _named("optimizer", name, optimizer_file().presets)


@cache
def optimizer_file() -> OptimizerFile:
    """Return all optimizer presets with their sources."""
    return load_file(OptimizerFile, data_names("workloads")["optimizers"], _name_presets)


def _name_presets(plain: PlainValues, tree: Tree) -> None:
    """Give each preset its key as its name, and the title of its default source."""
    presets = plain.value.get("presets")
    sources: Any = tree.value.get("sources")
    for name, preset in presets.items() if isinstance(presets, dict) else ():
        if isinstance(preset, dict):
            source: Any = tree.value["presets"][name].get("source")
            entry = sources.get(source) if isinstance(sources, dict) else None
            preset["name"] = name
            preset["source"] = entry["title"] if isinstance(entry, dict) else ""


class ServerFile(Declaration):
    """Servers as they stand in a file."""

    servers: Mapping[str, Server]
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


def server_names() -> tuple[str, ...]:
    """Return the names of all servers."""
    return tuple(_server_file().servers)


def load_server(name: str) -> Server:
    """Return the defaults of a server by name.

    Raises
    ------
    UnknownNameError
        When there is no such server; lists the near ones.
    """
    return _named("server", name, _server_file().servers)


def _named(kind: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    """Return the entry of a name, in whatever case it is written."""
    found = find_name(name, entries)
    if found is None:
        raise UnknownNameError(kind, name, entries)
    return entries[found]


@cache
def _server_file() -> ServerFile:
    return load_file(ServerFile, data_names("workloads")["servers"], _name_servers)


def _name_servers(plain: PlainValues, tree: Tree) -> None:
    """Give each server its key as its name."""
    servers = plain.value.get("servers")
    for name, server in servers.items() if isinstance(servers, dict) else ():
        if isinstance(server, dict):
            server["name"] = name


def load_workload(path: str | Path) -> Workload:
    """Return the workload of a YAML file; ``kind`` says which: training, prefill or decode.

    In a training file ``optimizer`` is the name of a preset or a preset written out.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    origin = str(path)
    text = read_text(Path(path))
    kind = read_tree(text, origin).value.get("kind", "is missing")
    if kind not in _KINDS:
        allowed = f"expected one of {', '.join(_KINDS)}"
        raise SpecError(Fault("kind", f"{kind!r}", allowed), origin=origin)
    workload: Any = load_text(_KINDS[kind], text, origin=origin, prepare=_find_optimizer)
    return workload  # type: ignore[no-any-return]


def _find_optimizer(plain: PlainValues, tree: Tree) -> None:
    """Replace the name of an optimizer by its preset."""
    name = plain.value.get("optimizer")
    if not isinstance(name, str):
        return
    try:
        plain.value["optimizer"] = load_optimizer(name)
    except UnknownNameError as error:
        plain.faults.append(fault_at(tree.lines, ("optimizer",), str(error)))
        plain.reported.append(("optimizer",))


def default_optimizer(system: SystemSpec) -> OptimizerPreset:
    """Return the optimizer preset that users of a system would expect.

    Wafer studies count 12 bytes for each parameter; elsewhere Megatron's mixed-precision Adam.
    """
    return load_optimizer("temp-12" if system.chip.family == "temp-die" else "megatron-adam")
