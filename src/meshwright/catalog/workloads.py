"""Workloads: optimizers and servers of the catalog; files of training, prefill or decode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import (
    PlainValues,
    data_names,
    find_name,
    load_file,
    load_plain,
    plain_values,
    read_text,
    read_tree,
)
from meshwright.spec.declaration import Declaration, Provenance, Source
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, OptimizerPreset, Prefill, Server, Training, Workload

Entry = TypeVar("Entry")


class PresetFile(Declaration):
    """Optimizers or servers of a file; the name of each is its key."""

    presets: Mapping[str, OptimizerPreset] = Field(default_factory=dict)
    servers: Mapping[str, Server] = Field(default_factory=dict)
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


@cache
def preset_file(name: str) -> PresetFile:
    """Return the file ``optimizers`` or ``servers`` of the catalog."""
    return load_file(PresetFile, data_names("workloads")[name], _name_entries)


def _name_entries(plain: PlainValues) -> None:
    """Give each entry its key as its name, and an optimizer the title of its default source."""
    sources = plain.tree.value.get("sources")
    for kind in ("presets", "servers"):
        entries = plain.value.get(kind)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if not isinstance(entry, dict):
                continue
            entry["name"] = name
            if kind == "presets":
                key = plain.tree.value[kind][name].get("source")
                source = sources.get(key) if isinstance(sources, dict) else None
                entry["source"] = source["title"] if isinstance(source, dict) else ""


def optimizer_names() -> tuple[str, ...]:
    """Return the names of all optimizer presets."""
    return tuple(preset_file("optimizers").presets)


def load_optimizer(name: str) -> OptimizerPreset:
    """Return an optimizer preset by name, letter case aside.

    Raises
    ------
    UnknownNameError
        When there is no such preset; lists the near ones.
    """
    return _named("optimizer", name, preset_file("optimizers").presets)


def server_names() -> tuple[str, ...]:
    """Return the names of all servers."""
    return tuple(preset_file("servers").servers)


def load_server(name: str) -> Server:
    """Return the defaults of a server by ``NAME`` or ``NAME==VERSION``, letter case aside.

    Raises
    ------
    UnknownNameError
        When there is no such server; lists the near ones.
    SpecError
        When the catalog does not hold that version, or it trains and does not serve.
    """
    stated, _, version = name.partition("==")
    if find_name(stated, data_names("frameworks")) is not None:
        known = " or ".join(server_names())
        raise SpecError(Fault("framework", f"{stated} trains, it serves no requests", known))
    found = _named("server", stated, preset_file("servers").servers)
    if version and version != found.version:
        known = f"known: {found.version}" if found.version else "none is known: leave it out"
        raise SpecError(Fault("framework", f"{found.name} in version {version!r}", known))
    return found


def server_sources(server: Server) -> list[Source]:
    """Return the sources of the values of a server."""
    file = preset_file("servers")
    keys = [
        entry.source
        for path, entry in file.provenance.items()
        if path.startswith(f"servers.{server.name}.") and entry.source in file.sources
    ]
    return [file.sources[key] for key in dict.fromkeys(keys) if key is not None]


def _named(kind: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    found = find_name(name, entries)
    if found is None:
        raise UnknownNameError(kind, name, entries)
    return entries[found]


def load_workload(path: str | Path) -> Workload:
    """Return the workload of a YAML file; ``kind`` says which: training, prefill or decode.

    In a training file ``optimizer`` is the name of a preset or a preset written out.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    kinds: tuple[type[Workload], ...] = (Training, Prefill, Decode)
    by_name = {kind.__name__.lower(): kind for kind in kinds}
    tree = read_tree(read_text(Path(path)), str(path))
    kind = tree.value.get("kind", "is missing")
    if not isinstance(kind, str) or kind not in by_name:
        fault = Fault("kind", f"{kind!r}", f"expected one of {', '.join(by_name)}")
        raise SpecError(fault, origin=str(path))
    plain = plain_values(tree)
    name = plain.value.get("optimizer")
    if isinstance(name, str):
        try:
            plain.value["optimizer"] = load_optimizer(name)
        except UnknownNameError as error:
            plain.refuse(("optimizer",), str(error), is_last=True)
    return load_plain(by_name[kind], plain, origin=str(path))


def default_optimizer(system: SystemSpec) -> OptimizerPreset:
    """Return the optimizer preset that users of a system would expect.

    Wafer studies count 12 bytes for each parameter; elsewhere Megatron's mixed-precision Adam.
    """
    return load_optimizer("temp-12" if system.chip.family == "temp-die" else "megatron-adam")
