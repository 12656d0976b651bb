"""What the registries and the catalog hold, each entry with its sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from generators.markdown import block, escaped, page, prose, source_text, table
from meshwright.base.units import format_bytes, format_si
from meshwright.catalog.frameworks import framework_names, framework_versions, load_framework
from meshwright.catalog.models import load_model, model_entry, model_names
from meshwright.catalog.systems import chip_names, load_chip, load_system, system_names
from meshwright.catalog.workloads import (
    load_optimizer,
    load_server,
    optimizer_names,
    server_names,
    server_sources,
)
from meshwright.collectives import collective_algorithms
from meshwright.graph.parameters import count_parameters
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.show.declared import Software, framework_shown, server_shown
from meshwright.streams import streams
from meshwright.topology import topologies
from meshwright.topology.network import LinkSpec
from meshwright.train.compare import recipes
from meshwright.view.declared_values import declared_values, origin_text, value_text
from meshwright.view.registry import page_of
from meshwright.view.terminal import text_of

FOLDER = "catalog"
NUM_SHOWN = 16
"""Devices of the topologies that are shown."""


def pages() -> dict[str, str]:
    """Return the pages by path."""
    made: dict[str, Callable[[], str]] = {
        "chips": chips, "systems": systems, "models": models, "frameworks": frameworks,
        "optimizers": optimizers, "collectives": collectives, "streams": tensor_streams,
        "schedules": pipeline_schedules, "topologies": networks, "recipes": known_recipes,
    }  # fmt: skip
    found = {f"{FOLDER}/{name}.md": make() for name, make in made.items()}
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in found.items()}
    listed = "\n".join(f"* [{title}]({name.partition('/')[2]})" for name, title in titles.items())
    about = "What the registries and the files of the catalog hold, each entry with its sources."
    return {f"{FOLDER}/index.md": page("Catalog", about, listed)} | found


# ------------------------------------------------------------------------------ declared in files


def chips() -> str:
    """Return the page of the chips."""
    found = [load_chip(name) for name in chip_names()]
    rows = [
        (f"[{escaped(chip.name)}](#{anchor(chip.name)})", escaped(chip.vendor),
         rate(chip.matmul_flops_per_s.get("bf16") or chip.matmul_flops_per_s.get("fp16")),
         format_bytes(chip.memories[-1].capacity_bytes) if chip.memories else "",
         rate(chip.memories[-1].bandwidth_bytes_per_s, "B/s") if chip.memories else "",
         rate(chip.peak_power_w, "W"))
        for chip in found
    ]  # fmt: skip
    head = ("chip", "vendor", "matrix products, 16 bits", "outermost memory", "its bandwidth",
            "power")  # fmt: skip
    parts = [
        "Each value with its source, as `meshwright show chip NAME` prints it; "
        "[how to add one](../../how_to/add_a_chip.md).",
        table(head, rows),
    ]
    for chip in found:
        also = f"Also called {', '.join(chip.also_called)}." if chip.also_called else ""
        parts += [f"## {escaped(chip.name)}", escaped(also), *declaration(chip, chip.sources)]
    return page("Chips", *parts)


def systems() -> str:
    """Return the page of the systems."""
    found = [(name, load_system(name)) for name in system_names()]
    rows = [
        (f"[{escaped(name)}](#{anchor(name)})", escaped(system.chip.name),
         f"{system.num_devices:,}",
         escaped(", ".join(f"{level.name} {level.size}" for level in system.levels)))
        for name, system in found
    ]  # fmt: skip
    parts = [
        "Devices and the levels of their network, innermost first, as `meshwright show system "
        "NAME` prints them; [how to add one](../../how_to/add_a_topology.md). The size is that "
        "of one unit as it is sold: `64xH100` puts eight of them side by side.",
        table(("system", "chip", "devices", "levels and their sizes"), rows),
    ]
    for name, system in found:
        parts += [f"## {escaped(name)}", *declaration(system, system.sources)]
    return page("Systems", *parts)


def models() -> str:
    """Return the page of the models."""
    rows = []
    for name in model_names():
        model, entry = load_model(name), model_entry(name)
        counts = count_parameters(model)
        active = "" if counts.num_active_params == counts.num_params else (
            f"{counts.num_active_params / 1e9:.4g} B"
        )  # fmt: skip
        rows.append((
            escaped(name), escaped(model.architecture), f"{counts.num_params / 1e9:.4g} B", active,
            f"{model.num_layers}", f"{model.hidden_size:,}", source_text(entry.source),
        ))  # fmt: skip
    head = ("model", "architecture", "parameters", "active", "layers", "hidden size", "source")
    return page(
        "Models",
        "Dims as their `config.json` states them; `meshwright show model NAME` prints parameter "
        "counts and operators, and takes any other `config.json` of a known family as well; "
        "[how to add one](../../how_to/add_a_model.md).",
        table(head, rows),
    )


def frameworks() -> str:
    """Return the page of the frameworks and servers."""
    parts = [
        "What each can start, its kernels and its defaults, as `meshwright show framework NAME` "
        "prints them; [what `--framework` means](../frameworks.md).",
        "## Training",
    ]
    for name in framework_names():
        for version in framework_versions(name) or ("",):
            framework = load_framework(f"{name}=={version}" if version else name)
            parts += [
                f"### {escaped(f'{name} {version}'.rstrip())}", shown(framework_shown(framework)),
                sources_list(framework.sources.values()),
            ]  # fmt: skip
    parts.append("## Serving")
    for name in server_names():
        server = load_server(name)
        sources = server_sources(server)
        parts += [
            f"### {escaped(f'{server.name} {server.version}'.rstrip())}",
            shown(server_shown(server, sources)), sources_list(sources),
        ]  # fmt: skip
    return page("Frameworks and servers", *parts)


def shown(software: Software) -> str:
    """Return a framework or a server as its command prints it."""
    return block(text_of(page_of(software), detail=True).splitlines())


def optimizers() -> str:
    """Return the page of the presets of optimizers."""
    found = [load_optimizer(name) for name in optimizer_names()]
    rows = []
    for preset in found:
        held = (preset.weight_bytes_per_param, preset.gradient_bytes_per_param,
                preset.state_bytes_per_param)  # fmt: skip
        numbers = [f"{value:g}" for value in held]
        rows.append((f"`{preset.name}`", *numbers, escaped(preset.source)))
    return page(
        "Optimizers",
        "Bytes per parameter that a framework keeps, for `--optimizer`; `meshwright show optimizer "
        "NAME` prints the rest.",
        table(("preset", "weights", "gradients", "state", "source"), rows),
    )


def declaration(entry: Any, sources: Mapping[str, Any]) -> list[str]:
    """Return the values of a declaration with where each comes from, then the sources."""
    rows = [
        (f"`{value.path}`", escaped(value_text(value.value, value.unit)),
         escaped(origin_text(value)))
        for value in declared_values(entry, entry.provenance)
    ]  # fmt: skip
    notes = [f"* {escaped(note)}" for note in entry.notes] if hasattr(entry, "notes") else []
    named = [f"* {escaped(key)}: {source_text(source)}" for key, source in sources.items()]
    return [table(("field", "value", "from"), rows), "\n".join(named), "\n".join(notes)]


def sources_list(sources: Iterable[Any]) -> str:
    """Return sources one a line."""
    return "\n".join(f"* {source_text(source)}" for source in sources)


def rate(value: float | None, unit: str = "FLOP/s") -> str:
    """Return a rate, or nothing where it is unknown."""
    return "" if value is None else format_si(value, unit, digits=4)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# ---------------------------------------------------------------------------- registered in code


def collectives() -> str:
    """Return the page of the collective algorithms."""
    return registry_page(
        "Collective algorithms",
        "Each with a closed form and the list of its messages, which a conformance test compares; "
        "`meshwright show collectives` times them on a group; "
        "[how to add one](../../how_to/add_a_collective.md).",
        collective_algorithms,
    )


def tensor_streams() -> str:
    """Return the page of the tensor streams."""
    return registry_page(
        "Tensor streams",
        "Forms of `--with stream_form`; [what a stream is](../../explanation/streams.md).",
        streams,
    )


def pipeline_schedules() -> str:
    """Return the page of the pipeline schedules."""
    return registry_page(
        "Pipeline schedules",
        "For `--schedule`: bubble and memory in closed form, and the order itself.",
        schedules,
    )


def known_recipes() -> str:
    """Return the page of the recipes."""
    return page(
        "Recipes",
        "What `meshwright compare` searches beside our own space; "
        "[what they mean](../../explanation/baselines.md).",
        table(
            ("recipe", "what it fixes", "source"),
            [
                (f"`{name}`", escaped(recipe.title), escaped(recipe.source))
                for name, recipe in recipes.items()
            ],
        ),
    )


def networks() -> str:
    """Return the page of the topologies."""
    link = LinkSpec(1.0, 0.0)
    rows = []
    for name, build in topologies.items():
        shown = build(NUM_SHOWN, link)
        if shown is None:
            rows.append((f"`{name}`", f"no shape of {NUM_SHOWN}", "", "", ""))
            continue
        bound = "" if shown.bisection_is_exact else "at most "
        bisection = f"{bound}{shown.bisection_bytes_per_s:g}"
        cells = (escaped(shown.shape), f"{shown.num_links}", f"{shown.diameter}", bisection)
        rows.append((f"`{name}`", *cells))
    return page(
        "Topologies",
        f"As {NUM_SHOWN} devices, the bisection in links of one direction; `meshwright show "
        "topologies` prints other numbers; [how to add one](../../how_to/add_a_topology.md).",
        table(("topology", "shape", "links", "diameter", "bisection"), rows),
    )


def registry_page(title: str, about: str, entries: Mapping[str, Any]) -> str:
    """Return the page of a registry: entries of one class together, with what the class says."""
    by_class: dict[type, list[str]] = {}
    for name, entry in entries.items():
        kind = entry if inspect.isclass(entry) else type(entry)
        by_class.setdefault(kind, []).append(name)
    parts = [about]
    for kind, names in by_class.items():
        listed = ", ".join(f"`{name}`" for name in names)
        parts += [f"## {kind.__name__}", listed, prose(inspect.getdoc(kind) or ""),
                  f"In `{kind.__module__}`."]  # fmt: skip
    return page(title, *parts)
