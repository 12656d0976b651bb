"""Claims of DFModel, and our verdicts on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log

from meshwright.catalog.design import load_memory
from meshwright_papers.studies.dfmodel.published_runs import (
    CHIPS,
    RUNS,
    Mapping,
    Prediction,
    mappings,
    predicted,
)
from meshwright_papers.studies.dfmodel.stored_runs import StoredRun, stored_runs
from meshwright_papers.studies.dfmodel.trillion import NETWORKS, Found, search
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged_gain,
    shown,
    studies,
    wrapped,
)

PUBLISHED, TOLD = "seed", "second-hand"
"""Read in the publication, or where others cite it."""
LIMITS = ((60.0, "a minute"), (1200.0, "20 minutes"))
FASTER, CHEAPER, VENDOR, BY_KERNEL, ABOVE, MINUTES = 1.52, 1.59, 1.52, 6.13, 1.10, 20.0


MAPPING_CHART = Drawing(
    "How fast is each mapping of GPT-3 to eight SN10?",
    "Forward pass under DFModel's rules, by the tokens of a tile",
    "dots", ("samples_per_s",), "tile", colour="tp", panels="mapping", across=1,
    apart="y", is_offset=False, measure="throughput",
)  # fmt: skip
NETWORK_CHART = Drawing(
    "Which network trains a model of 1T parameters fastest?",
    "1,024 SN30 under DFModel's rules, the best mapping of each network",
    "bars", ("samples_per_s",), "network", measure="throughput",
)  # fmt: skip
MEMORY_CHART = Drawing(
    "How much does fusing kernels bring with each memory?",
    "Throughput under DFModel's rules, the slowest memory first",
    "bars", ("fused_samples_per_s", "by_kernel_samples_per_s"), "memory", measure="throughput",
)  # fmt: skip
MEGATRON_CHART = Drawing(
    "How far are DFModel and its rules from what was measured?",
    "Megatron's runs on A100: measured, as DFModel publishes them, and its rules solved here",
    "bars", ("measured_samples_per_s", "peer_samples_per_s", "samples_per_s"), "model",
    measure="throughput",
)  # fmt: skip
STORED_CHART = Drawing(
    "Do DFModel's rules, solved here, give what it published?",
    "Every run that its repository stores: throughput or time, ours over its own",
    "dots", ("ours_over_published",), "run",
    misfit="no figure of ours or of theirs (why: in the table)",
)  # fmt: skip


def mapping_claims(mappings: Sequence[Mapping]) -> list[Claim]:
    """Return the verdicts on eight SN10."""
    ours, rest = mappings[0], mappings[1:]
    vendor = {m.tile: ours.samples_per_s / m.samples_per_s for m in rest if m.name == "vendor"}
    kernels = {m.tp: ours.samples_per_s / m.samples_per_s for m in rest if m.name != "vendor"}
    best_tp = min(kernels, key=lambda tp: kernels[tp])
    least = kernels[best_tp]
    nearest = min(vendor, key=lambda tile: abs(vendor[tile] - VENDOR))
    tiles = ", ".join(f"{ratio:.2f} at {tile}" for tile, ratio in vendor.items())
    return [
        Claim("8 x SN10", "gain over kernel by kernel", f"{BY_KERNEL}x", TOLD,
              f"{kernels[CHIPS]:.2f}x at TP{CHIPS}, {least:.2f}x over the best degrees",
              judged_gain(kernels[CHIPS], BY_KERNEL),
              f"the published baseline runs at TP{CHIPS}; kernel by kernel at TP{best_tp} "
              f"PP{CHIPS // best_tp} is {kernels[CHIPS] / least:.1f} times as fast"),
        Claim("8 x SN10", "gain over the vendor's mapping", f"{VENDOR}x", TOLD,
              f"{vendor[32]:.2f}x at its tile of 32 ({tiles})", judged_gain(vendor[32], VENDOR),
              f"the printed figure is that of a tile of {nearest} for the vendor"),
    ]  # fmt: skip


def training_claims(gains: dict[str, float], cheaper: dict[str, float]) -> list[Claim]:
    """Return the verdicts on dataflow over kernel by kernel in training, by memory."""
    mean, mean_price = _geometric(gains.values()), _geometric(cheaper.values())
    named = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    why = ("the slower the memory, the more fusion saves; which memories the published mean is "
           "over is not stated")  # fmt: skip
    return [
        Claim("LLM training", "dataflow over kernel by kernel, performance", f"{FASTER}x",
              TOLD, f"{mean:.2f}x as the geometric mean over memories ({named})",
              judged_gain(mean, FASTER), why),
        Claim("LLM training", "the same for each unit of price", f"{CHEAPER}x", TOLD,
              f"{mean_price:.2f}x", judged_gain(mean_price, CHEAPER),
              "memory and network alone have a price there, and each kind of mapping chooses the "
              "network that gives it most for its price"),
        Claim("LLM training", "the same for each watt", "1.6x", TOLD, "",
              Verdict.NOT_REBUILT, "the coefficients of the power model are not public"),
    ]  # fmt: skip


def search_claims(found: Found) -> list[Claim]:
    """Return the verdict on the time of the search."""
    case = found.case
    return [
        Claim("search", "1T parameters on 1,024 chips", f"within {MINUTES:.0f} minutes on 64 CPUs",
              PUBLISHED,
              f"{_within(found.search_s)} on one core, proven: {found.num_cases} cases, "
              f"{found.num_fused} fused; {case.network} tp{case.tp} pp{case.pp} dp{case.dp}",
              Verdict.AGREES if found.search_s < MINUTES * 60 else Verdict.DIFFERS,
              "order ideals make the mapping of a chip a shortest path"),
        Claim("search", "size of the space", "O(10^295)", TOLD, "",
              Verdict.NOT_REBUILT, "what is counted is not stated"),
    ]  # fmt: skip


def prediction_claims(predictions: Sequence[Prediction]) -> list[Claim]:
    """Return the verdicts on predicted over measured performance."""
    mean = sum(entry.over_measured for entry in predictions) / len(predictions)
    low = min(entry.over_measured for entry in predictions)
    high = max(entry.over_measured for entry in predictions)
    return [
        Claim("validation", "predicted over measured, on average", f"{ABOVE:.2f}", PUBLISHED,
              f"{mean:.2f} in samples/s ({low:.2f} to {high:.2f}) over {len(predictions)} runs of "
              "Megatron-LM",
              judged_gain(mean, ABOVE),
              "no recomputation, no latency, memory and links at their full rate: a bound of what "
              "could be, not a prediction; the published mean is over other cases as well"),
        Claim("validation", "distance from Calculon and Rail-Only", "3.1 to 4.1 %", PUBLISHED,
              "", Verdict.NOT_REBUILT, "their points are not public"),
    ]  # fmt: skip


def _within(seconds: float) -> str:
    """Return the time of a search in words that are the same on every run."""
    return next((f"within {name}" for limit, name in LIMITS if seconds < limit), "longer")


def _geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    listed = list(values)
    return exp(sum(map(log, listed)) / len(listed))


MEMORIES = ("DDR4", "DDR5", "HBM2e", "HBM3")


@cache
def by_network(network: str) -> Found:
    """Return the best training on one network with the chip's own memory."""
    return search(network)


@cache
def by_memory(memory: str, *, by_kernel: bool, for_price: bool = False) -> Found:
    """Return the best training with another memory, on any network."""
    rate = load_memory(memory).bandwidth_bytes_per_s
    return search(by_kernel=by_kernel, dram_bytes_per_s=rate, for_price=for_price)


def gains() -> tuple[dict[str, float], dict[str, float]]:
    """Return dataflow over kernel by kernel by memory: in samples/s, and for each unit of price."""
    faster, cheaper = {}, {}
    for memory in MEMORIES:
        fused, single = (by_memory(memory, by_kernel=kind) for kind in (False, True))
        faster[memory] = fused.samples_per_s / single.samples_per_s
        cheaper[memory] = _for_price(memory, by_kernel=False) / _for_price(memory, by_kernel=True)
    return faster, cheaper


def _for_price(memory: str, *, by_kernel: bool) -> float:
    """Return the most samples for each unit of price."""
    found = by_memory(memory, by_kernel=by_kernel, for_price=True)
    return found.samples_per_s / found.case.price(load_memory(memory).bandwidth_bytes_per_s)


@studies.register("dfmodel")
class Dfmodel:
    """Mappings on eight chips, a model of 1T on 1,024, its search, and runs that were measured."""

    title = "DFModel: mappings, search and predictions under its own rules"
    source = "Ko et al. 2024, arXiv 2412.16432, and its public implementation"

    @staticmethod
    def run() -> StudyResult:
        """Rebuild the public results, and judge them."""
        layer, networks = mappings(), [by_network(name) for name in NETWORKS]
        faster, cheaper = gains()
        runs = [predicted(run) for run in RUNS]
        stored = _stored_table(list(stored_runs()))
        claims = (
            *mapping_claims(layer), *training_claims(faster, cheaper),
            *search_claims(search()), *prediction_claims(runs),
        )  # fmt: skip
        tables = (_mapping_table(layer), _network_table(networks), _memory_table(faster, cheaper),
                  _run_table(runs), stored)  # fmt: skip
        lines = [line for table in tables[:-1] for line in (*_lines(table), "")]
        lines += [*_stored_lines(stored), ""]
        return StudyResult(
            lines=(*lines, *claim_lines(claims)),
            data={table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                  for table in tables},
            tables=tables,
            claims=tuple(claims),
            assumptions="rules and chips of DFModel: no latency, links and memories at full rate; "
            "GPT-3 175B forward on 8 SN10; 1T parameters (hidden 24,576, 128 layers) with batch "
            "8,192 on 1,024 chips of the SN30 class; memories of the catalog in place of its own",
        )  # fmt: skip


def _mapping_table(found: list[Mapping]) -> Table:
    rows = tuple((m.name, m.tp, m.pp, m.tile, m.samples_per_s) for m in found)
    columns = ("mapping", "tp", "pp", "tile", "samples_per_s")
    return Table("dfmodel-mappings", columns, rows, MAPPING_CHART)


def _network_table(found: list[Found]) -> Table:
    rows = tuple(
        (f.case.network, f.case.tp, f.case.pp, f.case.dp, f.case.tile, f.case.micro_batch,
         f.samples_per_s, f.utilisation, f.case.price())
        for f in found
    )  # fmt: skip
    columns = ("network", "tp", "pp", "dp", "tile", "micro_batch", "samples_per_s", "utilisation",
               "price_units")  # fmt: skip
    return Table("dfmodel-networks", columns, rows, NETWORK_CHART)


def _memory_table(faster: dict[str, float], cheaper: dict[str, float]) -> Table:
    rows = tuple(
        (
            name, load_memory(name).bandwidth_bytes_per_s / 1e9,
            by_memory(name, by_kernel=False).samples_per_s,
            by_memory(name, by_kernel=True).samples_per_s, faster[name], cheaper[name],
        )
        for name in faster
    )  # fmt: skip
    columns = ("memory", "gb_per_s", "fused_samples_per_s", "by_kernel_samples_per_s", "gain",
               "gain_for_price")  # fmt: skip
    return Table("dfmodel-memories", columns, rows, MEMORY_CHART)


def _run_table(found: list[Prediction]) -> Table:
    rows = tuple(
        (p.run.name, p.run.chips, p.run.measured_samples_per_s, p.run.peer_samples_per_s,
         p.samples_per_s, p.over_measured, p.over_peer)
        for p in found
    )  # fmt: skip
    columns = ("model", "chips", "measured_samples_per_s", "peer_samples_per_s", "samples_per_s",
               "over_measured", "over_peer")  # fmt: skip
    return Table("dfmodel-megatron", columns, rows, MEGATRON_CHART)


def _stored_table(runs: list[StoredRun]) -> Table:
    """Return all runs that are stored; where there is no figure of ours, the reason."""
    rows = []
    for run in runs:
        ours = None if run.ours is None else run.ours()
        ratio = None if ours is None or run.peer is None else ours / run.peer
        rules = "" if ours is None else run.rules
        rows.append(
            (run.name, run.unit, run.peer, ours, ratio, run.peer_price, run.price, rules, run.note)
        )
    columns = ("run", "unit", "published", "ours", "ours_over_published", "published_price_units",
               "price_units", "rules", "note")  # fmt: skip
    return Table("dfmodel-runs", columns, tuple(rows), STORED_CHART)


def _stored_lines(table: Table) -> list[str]:
    """Return the lines of the figures of the stored runs, then those of their notes."""
    figures = replace(table, columns=table.columns[:5], rows=tuple(row[:5] for row in table.rows))
    notes = [f"{name}: {note}" for name, *_, note in table.rows if note]
    return [*_lines(figures), *(line for text in notes for line in wrapped("  ", text))]


def _lines(table: Table) -> list[str]:
    """Return a table in columns as wide as their content."""
    texts = [table.columns, *(tuple(shown(value) for value in row) for row in table.rows)]
    heads = [column.replace("_per_s", "/s").replace("_", " ") for column in table.columns]
    widths = [max(len(head), *(len(row[n]) for row in texts[1:])) for n, head in enumerate(heads)]
    rows = [heads, *texts[1:]]
    return [
        "  ".join(f"{text:>{width}}" if n else f"{text:<{width}}"
                  for n, (text, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
