"""Entries of the catalog as data: chips, systems, optimizers, frameworks and servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from meshwright.show.networks import Network, SingleWires
from meshwright.spec.declaration import Declaration, Provenance, Source
from meshwright.spec.framework import Framework
from meshwright.spec.workload import Server
from meshwright.view.declared_values import DeclaredValue, declared_values, value_record


@dataclass(frozen=True)
class Declared:
    """An entry of the catalog, value by value, with its sources."""

    about: Mapping[str, Any]
    """Names of the entry, for a program."""
    title: str
    entries: Sequence[DeclaredValue]
    sources: Mapping[str, Source] = field(default_factory=dict)
    notes: Sequence[str] = ()
    network: Network | None = None
    """Closed forms of its network; None: it has none, or parts of it are dead."""
    wires: SingleWires | None = None
    """Wires that differ from those of their level; None: all are alike."""

    def data(self) -> dict[str, Any]:
        """Return the entry for a program."""
        found = {**self.about, "values": [value_record(entry) for entry in self.entries]}
        if "source" not in self.about:
            found["sources"] = {
                key: one.model_dump(exclude_none=True) for key, one in self.sources.items()
            }
            found["notes"] = list(self.notes)
        more = {"network": self.network, "single_wires": self.wires}
        return found | {name: value for name, value in more.items() if value is not None}


def declared(
    declaration: Declaration, about: Mapping[str, Any], title: str,
    sources: Mapping[str, Source], network: Network | None = None,
    wires: SingleWires | None = None,
) -> Declared:  # fmt: skip
    """Return a chip or a system value by value."""
    origins: Mapping[str, Provenance] = getattr(declaration, "provenance", {})
    entries = list(declared_values(declaration, origins))
    notes = getattr(declaration, "notes", ())
    return Declared(about, title, entries, sources, notes, network, wires)


@dataclass(frozen=True)
class Software:
    """A framework or a server: options that it starts, its kernels, its usual settings."""

    HIDDEN: ClassVar[tuple[str, ...]] = (
        "name", "title", "version", "why", "sources", "provenance",
    )  # fmt: skip
    name: str
    why: str
    parts: Mapping[str, Declaration]
    """Declarations by the words for what they state."""
    sources: Sequence[Source]

    def stated(self, declaration: Declaration) -> list[tuple[str, str]]:
        """Return the plain fields of a declaration that were stated, in words."""
        return [
            (name.replace("_", " "), _words(value))
            for name in type(declaration).model_fields
            if name in declaration.model_fields_set and name not in self.HIDDEN
            and isinstance(value := getattr(declaration, name),
                           bool | str | int | float | tuple | dict)
        ]  # fmt: skip


def framework_shown(framework: Framework) -> Software:
    """Return a framework with its kernels that differ from the default."""
    parts = {
        "Launchable plans": framework.launches,
        "Switches of its plans": framework.launches.switches,
        "Kernels that differ from the default": framework.software,
        "Defaults of its users": framework,
    }
    name = f"{framework.title} {framework.version}".rstrip()
    return Software(name, framework.why, parts, list(framework.sources.values()))


def server_shown(server: Server, sources: Iterable[Source]) -> Software:
    """Return a server with its sources."""
    name = f"{server.title or server.name} {server.version}".rstrip()
    starts = {} if server.launches is None else {"Launchable plans": server.launches}
    parts: dict[str, Declaration] = {**starts, "Defaults of its users": server}
    return Software(name, server.why, parts, list(sources))


def _words(value: object) -> str:
    """Return a flag as on or off, a list with commas, lists of lists with semicolons."""
    if isinstance(value, tuple):
        mark = "; " if any(isinstance(entry, tuple) for entry in value) else ", "
        return mark.join(map(_words, value)) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{name} (ZeRO {_words(stages)})" for name, stages in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
