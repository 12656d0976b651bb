"""DFModel's published claims, rebuilt under its own rules with our search."""

from __future__ import annotations

from functools import cache

from meshwright.catalog.design import load_memory
from meshwright_papers.studies.claims import Table, claim_lines, shown
from meshwright_papers.studies.dfmodel.claims import (
    mapping_claims,
    prediction_claims,
    search_claims,
    training_claims,
)
from meshwright_papers.studies.dfmodel.eight_chips import Mapping, mappings
from meshwright_papers.studies.dfmodel.megatron import RUNS, Prediction, predicted
from meshwright_papers.studies.dfmodel.trillion import NETWORKS, Found, search
from meshwright_papers.studies.registry import StudyResult, studies

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
        """Rebuild what is public, and judge it."""
        layer, networks = mappings(), [by_network(name) for name in NETWORKS]
        faster, cheaper = gains()
        runs = [predicted(run) for run in RUNS]
        claims = (
            *mapping_claims(layer), *training_claims(faster, cheaper),
            *search_claims(search()), *prediction_claims(runs),
        )  # fmt: skip
        tables = (_mapping_table(layer), _network_table(networks), _memory_table(faster, cheaper),
                  _run_table(runs))  # fmt: skip
        lines = [line for table in tables for line in (*_lines(table), "")]
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
    return Table("dfmodel-mappings", columns, rows, ("mapping", "tp", "tile"), "samples_per_s")


def _network_table(found: list[Found]) -> Table:
    rows = tuple(
        (f.case.network, f.case.tp, f.case.pp, f.case.dp, f.case.tile, f.case.micro_batch,
         f.samples_per_s, f.utilisation, f.case.price())
        for f in found
    )  # fmt: skip
    columns = ("network", "tp", "pp", "dp", "tile", "micro_batch", "samples_per_s", "utilisation",
               "price_units")  # fmt: skip
    return Table("dfmodel-networks", columns, rows, ("network",), "samples_per_s")


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
    return Table("dfmodel-memories", columns, rows, ("memory",), "gain")


def _run_table(found: list[Prediction]) -> Table:
    rows = tuple(
        (p.run.name, p.run.chips, p.run.measured_samples_per_s, p.run.peer_samples_per_s,
         p.samples_per_s, p.over_measured, p.over_peer)
        for p in found
    )  # fmt: skip
    columns = ("model", "chips", "measured_samples_per_s", "peer_samples_per_s", "samples_per_s",
               "over_measured", "over_peer")  # fmt: skip
    return Table("dfmodel-megatron", columns, rows, ("model",), "over_measured")


def _lines(table: Table) -> list[str]:
    """Return a table in columns as wide as what they hold."""
    texts = [table.columns, *(tuple(shown(value) for value in row) for row in table.rows)]
    heads = [column.replace("_per_s", "/s").replace("_", " ") for column in table.columns]
    widths = [max(len(head), *(len(row[n]) for row in texts[1:])) for n, head in enumerate(heads)]
    rows = [heads, *texts[1:]]
    return [
        "  ".join(f"{text:>{width}}" if n else f"{text:<{width}}"
                  for n, (text, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
