"""The views of single entries: models, hardware, software, collectives, topologies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from meshwright.base.arrays import gap_of
from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.show.declared import Declared, Software
from meshwright.show.flows import PlayedFlows, PlayedScenario, RoutedScenario, ShownRoutes
from meshwright.show.model import ShownModel, ShownOperator
from meshwright.show.networks import Collectives, Network, SingleWires, Topologies
from meshwright.view.parts import Cell, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import sources_table, values_table
from meshwright.view.registry import view
from meshwright.view.words import counted


@view(ShownModel)
def model_page(found: ShownModel) -> Page:
    """Return the page of a model."""
    return Page(
        title=found.name,
        subtitle=f"{found.name}  ({found.architecture})",
        tiles=list(_model_tiles(found)),
        sections=[
            Section("layers", "Layers", [Table(
                ("kind [#]", "layers [#]", "parameters of one [#]", "layer"),
                [(place, kind["num_layers"], kind["num_params"], _described(kind))
                 for place, kind in enumerate(found.layers)])]),
            Section("operators", "Operators", list(_operators(found))),
            Section("counts", "Rules of the counts",
                    [*map(Text, found.conventions), Text(f"source: {found.source}")]),
        ],
    )  # fmt: skip


def _model_tiles(found: ShownModel) -> Iterator[Tile]:
    yield Tile("How many parameters?", _billions(found.num_params), label="params")
    if found.num_active_params != found.num_params:
        yield Tile(
            "How many parameters does one token use?",
            _billions(found.num_active_params),
            label="active",
        )
    parts = ", ".join(f"{name} {size:,}" for name, size in found.params_by_part.items() if size)
    yield Tile("Where are they?", parts, label="parts")
    cache = (f"{found.kv_cache_bytes_per_token:,.0f} bytes per token, words of "
             f"{found.kv_word_bytes:.0f} bytes")  # fmt: skip
    if windowed := found.windowed_kv_cache_bytes_per_token:
        cache += f"; {windowed:,.0f} of them in layers that keep no more than a window"
    yield Tile("How large is its KV cache?", cache, label="kv cache")
    if found.recurrent_state_bytes:
        states = f"{found.recurrent_state_bytes:,.0f} bytes per sequence, states in FP32"
        yield Tile("How large are its states?", states, label="states")
    names = ("num_layers", "hidden_size", "vocab_size", "max_sequence_length")
    dims = ", ".join(f"{name} {found.dims[name]:,}" for name in names if found.dims[name])
    yield Tile("What are its dims?", dims, label="dims")


def _billions(count: int) -> str:
    return f"{count:,}  ({count / 1e9:.4g} billion)"


def _operators(found: ShownModel) -> Iterator[Part]:
    yield Text("Work of the forward pass per token; that of attention per token and key.")
    for place, operators in groupby(found.operators, lambda one: one.place):
        head = ("operator", "kind", "layers [#]", "parameters [#]", "FLOP/token>", "outputs")
        yield Table(head, [_operator_row(one) for one in operators], place)


def _operator_row(one: ShownOperator) -> tuple[Cell, ...]:
    outputs = (text.removeprefix("routed_").removeprefix("tokens x ")
               for text in one.dims["outputs"])  # fmt: skip
    per_key = one.forward_flops_per_token_and_key
    flops = f"{per_key:,.0f} /key" if per_key else f"{one.forward_flops_per_token:,.0f}"
    return one.name, one.kind, one.num_layers, one.num_params, flops, "; ".join(outputs)


def _described(kind: Mapping[str, Any]) -> str:
    """Return one kind of layer in words."""
    parts = []
    if attention := kind.get("attention"):
        parts.append(_attention(attention))
    if recurrence := kind.get("recurrence"):
        parts.append(_recurrence(recurrence))
    if network := kind.get("feed_forward"):
        parts.append(f"{'gated ' if network['gated'] else ''}feed-forward {network['ffn_size']}")
    if experts := kind.get("experts"):
        shared = experts.get("shared_ffn_size")
        text = f"{experts['top_k']} of {experts['num_experts']} experts of {experts['ffn_size']}"
        parts.append(text + (f", shared {shared}" if shared else ""))
    after = "" if kind["norms_before"] else " on the branches"
    norms = kind["num_norms"]
    return f"{'; '.join(parts)}; {norms} norm{'s' * (norms > 1)}{after}"


_RECURRENCES = {
    "mamba2": "Mamba 2", "gated_delta": "gated delta rule", "kda": "Kimi delta attention",
    "short_conv": "short convolution",
}  # fmt: skip


def _recurrence(one: Mapping[str, Any]) -> str:
    name = _RECURRENCES[one["kind"]]
    groups = one["num_groups"]
    return (f"{name}, {one['num_heads']} heads of {one['head_size']}, states of "
            f"{one['state_size']}, {groups} group{'s' * (groups > 1)}, chunks of "
            f"{one['chunk_size']}")  # fmt: skip


def _attention(one: Mapping[str, Any]) -> str:
    heads = one["num_heads"]
    if one["kind"] == "mla":
        text = f"latent attention, {heads} heads, cached rank {one['kv_rank']}"
    else:
        text = f"{heads} heads of {one['head_size']} on {one['num_kv_heads']} key-value heads"
    text += ", gated" if one.get("output_gate") else ""
    if one.get("window") is not None:
        text += f", {one['window_kind']} window {one['window']}"
    if one.get("chosen_keys"):
        text += f", {one['chosen_keys']:,} tokens chosen"
    return text + (", keys and values of an earlier layer" if one.get("shares_cache") else "")


@view(Declared)
def declared_page(found: Declared) -> Page:
    """Return the page of an entry of the catalog, value by value."""
    sections = (
        Section("values", "Values", [values_table(found.entries)]),
        Section("sources", "Sources", [sources_table(found.sources)] if found.sources else []),
        Section("notes", "Notes", [Text(note) for note in found.notes]),
    )  # fmt: skip
    network = [] if found.network is None else [
        Tile("What is its network?", network_text(found.network), label="network")
    ]  # fmt: skip
    wires = [] if found.wires is None else list(_wires(found.wires))
    return Page(found.title, found.title, network + wires, [one for one in sections if one.parts])


def _wires(wires: SingleWires) -> Iterator[Tile]:
    """Yield the wires that differ from those of their level, and the way to the host."""
    listed = [f"{a}-{b}" for a, b in wires.corrected]
    shares = [f"{a}-{b} at {share:.0%}" for a, b, share in wires.slow]
    for question, label, names in (
        ("Which wires have error correction, 210 ns?", "corrected", listed),
        ("Which wires are slower than their level?", "slow", shares),
    ):
        more = ", ..." if len(names) > MOST_LINKS else ""
        if names:
            text = f"{len(names)} of the wires: {', '.join(names[:MOST_LINKS])}{more}"
            yield Tile(question, text, label=label)
    if wires.host_bytes_per_s is not None:
        rate = format_si(wires.host_bytes_per_s, "B/s")
        yield Tile("How fast is the way to the host?",
                   f"{rate} for each device through the IO dies, all at once",
                   label="host")  # fmt: skip


def network_text(network: Network) -> str:
    """Return the links, diameter and bisection of a network in words."""
    bound = "" if network.bisection_is_exact else "at most "
    bisection = format_si(network.bisection_bytes_per_s, "B/s")
    return (f"{network.num_links} links, {network.diameter} hops across, bisection "
            f"{bound}{bisection}")  # fmt: skip


@view(Software)
def software_page(found: Software) -> Page:
    """Return the page of a framework or a server."""
    sections = [
        Section(title, title, [Table(("option", "is"), rows)])
        for title, declaration in found.parts.items()
        if (rows := found.stated(declaration))
    ]
    sources = [Text(source.title) for source in found.sources]
    if sources:
        sections.append(Section("sources", "Sources", sources))
    title = f"{found.name}: {found.why}" if found.why else found.name
    return Page(found.name, title, [], sections)


@view(Collectives)
def collectives_page(found: Collectives) -> Page:
    """Return the page of the algorithms of every kind of collective on a group."""
    sections = [
        Section(kind, kind, [Table(
            ("algorithm", "time [s]", "bus bandwidth>", "of the bound [%]"),
            [(row.name, row.time_s, format_si(row.bus_bandwidth_bytes_per_s, "B/s"),
              row.bound_fraction) for row in rows])])
        for kind, rows in found.collectives.items()
    ]  # fmt: skip
    spans = Table(
        ("level", "members [#]", "bandwidth>", "latency [s]"),
        [(span.level, span.size, format_si(span.bandwidth_bytes_per_s, "B/s"), span.latency_s)
         for span in found.spans if span.size > 1],
    )  # fmt: skip
    if found.spans:
        group = f"groups of {len(found.devices)}, stride {found.stride}"
        tile = Tile("What does the group span?", group, label="group", part=spans)
    else:
        group = f"devices {', '.join(map(str, found.devices))}"
        routed = "fills no block of equal links: its messages are routed and simulated"
        tile = Tile("What does the group span?", routed, label="group")
    title = f"{found.system}: {group}, {format_bytes(found.num_bytes)} on each member"
    return Page(title, title, [tile], sections)


@view(Topologies)
def topologies_page(found: Topologies) -> Page:
    """Return the page of topologies with links of one bandwidth."""
    rows = [
        (name, f"no shape of {found.num_devices}", None, None, None) if one is None else
        (name, one.shape, one.num_links, one.diameter,
         f"{'' if one.bisection_is_exact else '<= '}{one.bisection_bytes_per_s:g}")
        for name, one in found.topologies.items()
    ]  # fmt: skip
    title = (f"{found.num_devices} devices, the bisection in links of one direction "
             "(<= : a bound)")  # fmt: skip
    head = ("topology", "shape", "links [#]", "diameter [#]", "bisection>")
    return Page(title, title, [], [Section("shapes", "Shapes",
                                           [Table(head, rows)])])  # fmt: skip


# ------------------------------------------------------------------------------------------- flows

PROVEN = 1e-6
"""Largest gap to the bound of a routing that counts as the best."""
MOST_FLOWS, MOST_LINKS = 12, 5
"""Rows of the tables: the last flows to end, and the links with the highest load."""


@view(PlayedFlows)
def flows_page(found: PlayedFlows) -> Page:
    """Return the page of simulated flows."""
    rows = [(_short(one.name), len(one.flows), len(one.links), one.makespan_s)
            for one in found.scenarios]  # fmt: skip
    end_s = max((row[3] for row in rows), default=0.0)
    answer = Tile("When is all done?", f"all done after {format_seconds(end_s)}", label="end")
    sections = [
        Section(f"flows{number}", f"{_short(one.name)}: when does each flow end?",
                list(_played(one)))
        for number, one in enumerate(found.scenarios, start=1)
    ]  # fmt: skip
    return _page("Flows that share links", answer, rows, "end", sections)


def _page(
    title: str, answer: Tile, rows: Sequence[tuple[str, int, int, float]], time: str,
    sections: Sequence[Section],
) -> Page:  # fmt: skip
    """Return the page of scenarios, each with its flows, its links and a time."""
    tiles, subtitle = [answer], counted(len(rows), "scenario")
    if len(rows) == 1:
        name, flows, links, _ = rows[0]
        subtitle = f"{name}: {counted(flows, 'flow')}, {counted(links, 'link')}"
    else:
        table = Table(("scenario", "flows [#]", "links [#]", f"{time} [s]"), rows)
        tiles.append(Tile("Which scenarios?", subtitle, label="scenarios", part=table))
    return Page(title=title, subtitle=subtitle, tiles=tiles, sections=sections)


def _short(name: str | int) -> str:
    """Return a name from a file in at most 32 letters."""
    text = str(name)
    return text if len(text) <= 32 else f"{text[:29]}..."


def _played(found: PlayedScenario) -> Iterator[Table]:
    last = sorted(found.flows, key=lambda flow: -flow.finish_s)
    rows = [
        (_short(flow.id), flow.num_bytes, flow.num_hops, flow.begin_s, flow.finish_s,
         (flow.finish_s - flow.begin_s) / flow.alone_s if flow.alone_s > 0 else None)
        for flow in last[:MOST_FLOWS]
    ]  # fmt: skip
    more = len(last) - MOST_FLOWS
    head = ("flow", "size [bytes]", "hops [#]", "start [s]", "end [s]", "against alone [x]")
    yield Table(head, rows, f"The last flows to end; {more} flows end before" if more > 0 else "")
    hottest = sorted(found.links, key=lambda link: -link.utilisation)[:MOST_LINKS]
    links = [
        (_short(link.id), link.carried_bytes, link.num_flows,
         format_si(link.bandwidth_bytes_per_s, "B/s"), link.utilisation)
        for link in hottest if link.carried_bytes > 0
    ]  # fmt: skip
    if links:
        yield Table(("hottest links", "carried [bytes]", "flows [#]", "bandwidth>", "in use [%]"),
                    links)  # fmt: skip


@view(ShownRoutes)
def routes_page(found: ShownRoutes) -> Page:
    """Return the page of flows with their routes."""
    rows = [
        (_short(one["name"]), len(one["flows"]), len(one["links"]),
         max((link["busy_s"] for link in one["links"]), default=0.0))
        for one in found.scenarios
    ]  # fmt: skip
    busy = format_seconds(max((row[3] for row in rows), default=0.0))
    answer = Tile("How long is the busiest link busy?", busy, label="busiest")
    sections = [
        Section(f"routes{number}", f"{_short(one['name'])}: how good are the routes?",
                list(_routed(one)))
        for number, one in enumerate(found.scenarios, start=1)
    ]  # fmt: skip
    return _page("Routes of flows", answer, rows, "busiest link", sections)


def _routed(found: RoutedScenario) -> Iterator[Table]:
    rows: list[tuple[Cell, ...]] = []
    for number, phase in enumerate(found["phases"], start=1):
        gap = gap_of(phase["routed_s"], phase["bound_s"])
        proof = "no routing does with less"
        if gap > PROVEN:
            proof = f"at most {gap:.1%} above the best"
        rows.append(
            (number, phase["num_flows"], phase["stated_s"], phase["default_s"], phase["routed_s"],
             phase["bound_s"], f"{proof} ({phase['bound_method']})")
        )  # fmt: skip
    head = ("phase [#]", "flows [#]", "the file [s]", "default paths [s]", "routed [s]",
            "bound [s]", "proof")  # fmt: skip
    yield Table(head, rows, "The busiest link of each phase")
    hottest = sorted(found["links"], key=lambda link: -link["busy_s"])[:MOST_LINKS]
    links = [
        (_short(link["id"]), link["carried_bytes"], format_si(link["bw_Bps"], "B/s"),
         link["busy_s"])
        for link in hottest if link["busy_s"] > 0
    ]  # fmt: skip
    if links:
        yield Table(("hottest links", "carried [bytes]", "bandwidth>", "busy [s]"), links)
