"""How the kernels of a graph may be split over a group of chips before they are fused on one.

Under the rules of DFModel the split of fewest bytes is taken, as there. Otherwise splits and
partitions are chosen together: the ways whose cores and links have the least to do, at several
weights of both, are fused; and a bound holds for all ways there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.base.errors import Fault, SpecError
from meshwright.dataflow.changes import payload_bytes
from meshwright.dataflow.choices import SplitChoices
from meshwright.dataflow.dfmodel.sharding import peer_tables
from meshwright.dataflow.fusion_answer import FusionQuestion
from meshwright.dataflow.ring import BESIDE, LINKS, NETWORK, Ring
from meshwright.dataflow.sharding import Sharding, choose_for_largest, choose_sharding
from meshwright.dataflow.volume import ring_bytes
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Split:
    """How kernels are split, and the network that each one causes for a sequence."""

    dims: Mapping[str, str | None] = field(default_factory=dict)
    network_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Splits:
    """Splits that are worth fusing, and what holds for all there are."""

    likely: tuple[Split, ...]
    ring: Ring | None = None
    """The chips that are shared; None where there is one split only."""
    least_s: float = 0.0
    """Neither cores nor links take less for a sequence [s]."""
    gap: float = 0.0
    """How far the one split may be from the fewest bytes."""


def splits_for(question: FusionQuestion) -> Splits:
    """Return the splits of a question.

    Raises
    ------
    SpecError
        When kernels cannot be split over so many chips.
    """
    graph, degree, link = question.graph, question.tp, question.target.link_bytes_per_s
    if degree == 1 or link is None:
        return Splits((Split(),))
    if question.rules == "dfmodel":
        return _fewest_bytes(question, link)
    return _likely(Ring(graph, question.target.grid, degree, link))


def _likely(ring: Ring) -> Splits:
    """Return the ways of the least means.

    Those in which no chip holds a whole weight are looked at by themselves: they need less SRAM.
    In training there are no others, because gradients of whole weights would be open sums.
    """
    likely: dict[tuple[tuple[str, str | None], ...], Split] = {}
    least_s = 0.0
    for is_split in (True,) if ring.trains else (True, False):
        network = SplitChoices(ring.tables(NETWORK, splits_weights=is_split))
        found = choose_for_largest([ring.tables(w, splits_weights=is_split) for w in BESIDE])
        least_s = found[0].lower_bound
        for sharding in found:
            sent = network.costs_by_kernel(sharding.ways)
            likely.setdefault(tuple(sharding.dims.items()), Split(sharding.dims, sent))
    return Splits(tuple(likely.values()), ring, least_s)


def _fewest_bytes(question: FusionQuestion, link: float) -> Splits:
    """Return the split of fewest bytes under the rules of DFModel."""
    graph, degree = question.graph, question.tp
    sharding = choose_sharding(peer_tables(graph, degree))
    if sharding is None:
        raise SpecError(Fault("--tp", f"{graph.name} cannot be split over {degree} chips"))
    sent: dict[str, float] = defaultdict(float)
    for kind, name, num_bytes in _peer_collectives(sharding):
        sent[name] += ring_bytes(kind, num_bytes, degree) / (LINKS * link)
    return Splits((Split(sharding.dims, sent),), gap=sharding.gap)


def _peer_collectives(sharding: Sharding) -> Iterator[tuple[CollectiveKind, str, float]]:
    """Yield the collectives of a sharding: kind, the kernel that causes it, and bytes."""
    tables = sharding.tables
    for placed in sharding.changes:
        kind = placed.change.kind
        if kind is not None:
            num_bytes = payload_bytes(kind, placed.num_bytes, tables.degree)
            yield kind, placed.producer, num_bytes
    for kernel, costs, way in zip(tables.graph.kernels, tables.costs, sharding.ways, strict=True):
        if costs[way] > 0:
            yield CollectiveKind.ALL_REDUCE, kernel.name, float(costs[way])
