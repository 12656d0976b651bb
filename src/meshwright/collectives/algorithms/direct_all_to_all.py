"""Direct all-to-all on switches: each member sends every other one its part, back to back.

Bytes for members outside a domain leave through the member's own link into the next level:
S (n - members inside) / n. The links into different levels work at the same time.
Source: Thakur, Rabenseifner and Gropp 2005, section 4 (pairwise exchange order).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import Num, larger, where
from meshwright.collectives.gathers import crossed_level
from meshwright.collectives.group import Group
from meshwright.collectives.pipelines import spans_switches_only
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.spans import group_size
from meshwright.collectives.stages import members_inside, shape_of
from meshwright.spec.collective import CollectiveKind


@collective("direct_all_to_all")
class DirectAllToAll(Algorithm):
    """One message from each member to each other member.

    Assumes: what crosses an outer level also loads the links of the levels between, except those
    of the innermost one (a member has its own way out of its host).
    """

    kind = CollectiveKind.ALL_TO_ALL
    replay_slack = 0.5

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return the slowest level: its latency, its messages' m_half and its bytes."""
        members = group_size(group)
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for index, (span, inside) in enumerate(
            zip(group.spans, members_inside(group), strict=True)
        ):
            peers = (span.size if index == 0 else members) - inside
            half_s = span.message_half_bytes / span.bandwidth_bytes_per_s
            spanned = span.size > 1.0
            level_s = span.latency_s + peers * half_s
            level_slope = peers / members / span.bandwidth_bytes_per_s
            fixed_s = larger(fixed_s, where(spanned, level_s, 0.0))
            slope = larger(slope, where(spanned, level_slope, 0.0))
        return where_it_applies(spans_switches_only(group), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return one chunk for each member."""
        return round(float(group_size(group)))

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages in steps that load all ports alike."""
        shape, size = shape_of(group), self.num_chunks(group)
        for step in range(1, size):
            for rank in range(size):
                target = (rank + step) % size
                level = crossed_level(shape, rank, target)
                chunk = (rank * size + target,)
                yield Transfer(step - 1, rank, target, num_bytes / size, chunk, level)
