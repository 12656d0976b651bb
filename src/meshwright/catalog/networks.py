"""Networks between hosts by name or file: 100GbE, with several adapters a host 8x200GbE."""

from __future__ import annotations

import math
import re
from functools import cache

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.base.units import format_si
from meshwright.catalog.design import load_link
from meshwright.catalog.files import bare, data_names, looks_like_path, spellings
from meshwright.spec.declaration import Provenance
from meshwright.spec.system import LevelKind, LinkPart, SystemSpec

BETWEEN_HOSTS: tuple[LevelKind, ...] = ("switch", "fat_tree", "dragonfly")
"""Kinds of an outermost level that may be a network between hosts."""


@cache
def networks() -> dict[str, LinkPart]:
    """Return the networks between hosts of the catalog, by name."""
    links = {name: load_link(name) for name in data_names("links")}
    return {name: link for name, link in links.items() if link.joins_hosts}


def load_network(name_or_path: str) -> LinkPart:
    """Return a network between hosts by a usual spelling, or the link in a YAML file.

    Raises
    ------
    UnknownNameError
        When the catalog has no such network; lists the near ones.
    """
    known = networks()
    name = spellings({n: link.also_called for n, link in known.items()}).get(bare(name_or_path))
    if name is not None:
        return known[name]
    if looks_like_path(name_or_path):
        return load_link(name_or_path)
    raise UnknownNameError("network", name_or_path, known)


_SEVERAL = re.compile(r"([0-9]{1,4}) ?x ?([A-Za-z0-9].*)")
MOST_ADAPTERS = 64
"""Most adapters of one host."""


def with_network(system: SystemSpec, name_or_path: str) -> SystemSpec:
    """Return a system with another network between its hosts.

    ``8x200GbE`` are eight adapters in each host, ``200GbE`` one.

    Raises
    ------
    UnknownNameError
        When the catalog has no such network.
    SpecError
        When the system has no network between hosts.
    """
    several = None if looks_like_path(name_or_path) else _SEVERAL.fullmatch(name_or_path)
    adapters = int(several[1]) if several else 1
    if not 1 <= adapters <= MOST_ADAPTERS:
        message = f"{adapters} adapters in a host"
        raise SpecError(Fault("network", message, f"from 1 to {MOST_ADAPTERS}, such as 8x200GbE"))
    link = load_network(several[2] if several else name_or_path)
    host = devices_of_a_host(system)
    if host is None:
        message = f"{system.name} has no network between hosts that could be another one"
        raise SpecError(Fault("network", message, "leave it out, or ask for several hosts"))
    last = len(system.levels) - 1
    level = link.level(
        name=link.name, size=system.levels[last].size, links_per_device=adapters / host
    )
    rate = format_si(8.0 * link.bandwidth_bytes_per_s, "b/s")
    count = "one adapter" if adapters == 1 else f"{adapters} adapters"
    shared = Provenance(kind="derived", note=f"as stated: {count} of {rate} for {host} devices")
    place, title = f"levels[{last}].", f"network of {link.name}: "
    origins = {
        path: origin
        for path, origin in system.provenance.items()
        if not path.startswith(place) or path == f"{place}size"
    }
    origins |= {
        place + path: origin.model_copy(update={"source": origin.source and title + origin.source})
        for path, origin in link.provenance.items()
    }
    return system.model_copy(
        update={
            "name": f"{system.name} ({count.replace('adapter', link.name + ' adapter')} a host)",
            "levels": (*system.levels[:last], level),
            "sources": {**system.sources, **{title + k: s for k, s in link.sources.items()}},
            "provenance": origins | {f"{place}links_per_device": shared},
        }
    )


def devices_of_a_host(system: SystemSpec) -> int | None:
    """Return the devices of a host; None where no network joins hosts: one host, rack or grid."""
    levels = system.levels
    host = system.devices_per_host or (levels[0].size if levels else 1)
    inner = math.prod(level.size for level in levels[:-1])
    is_grid = any(level.kind in ("mesh", "torus") for level in levels)
    is_joined = bool(levels) and inner >= host and levels[-1].kind in BETWEEN_HOSTS
    return host if is_joined and not is_grid else None
