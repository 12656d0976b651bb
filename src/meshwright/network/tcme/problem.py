"""What is to be routed: the messages of demands, and what no routing of them can beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.base.arrays import IntArray
from meshwright.network.demands import Demands
from meshwright.network.tcme.certificate import common_divisor, round_up
from meshwright.network.tcme.cuts import cut_bound
from meshwright.network.tcme.messages import Messages, make_messages, split_in
from meshwright.network.tcme.moves import TOLERANCE
from meshwright.topology.network import Network


@dataclass(frozen=True)
class RoutingProblem:
    """Demands made ready to be routed, and the best bound that is known."""

    network: Network
    demands: Demands
    messages: Messages
    message_of: IntArray
    """Message that each row belongs to before it is cut; -1 for rows to oneself."""
    num_paths: int
    """Equal parts into which each message is cut."""
    divisor_bytes: float
    """Size of which all parts are multiples [bytes]; 0 where none is."""
    bound_s: float = 0.0
    """No routing of whole parts is faster [s]."""
    bound_method: str = "none"

    @property
    def unit_s(self) -> float:
        """Return the least step between two times of a link, 0 where none is known [s]."""
        fastest = self.network.bandwidth_bytes_per_s.max(initial=0.0)
        return float(self.divisor_bytes / fastest) if fastest > 0 else 0.0

    def raised(self, bound_s: float, method: str) -> RoutingProblem:
        """Return the problem with a bound, rounded up to whole parts, where that is better."""
        bandwidth = self.network.bandwidth_bytes_per_s
        whole_s = round_up(bound_s, self.divisor_bytes, bandwidth)
        if whole_s <= self.bound_s * (1 + TOLERANCE):
            return self
        is_rounded = whole_s > bound_s * (1 + TOLERANCE)
        named = f"{method}, whole messages" if is_rounded else method
        return replace(self, bound_s=whole_s, bound_method=named)


def make_problem(network: Network, demands: Demands, *, max_paths: int = 1) -> RoutingProblem:
    """Return demands ready to be routed, with their cut bound.

    Parameters
    ----------
    max_paths
        Equal parts into which each message is cut, each with a route of its own.
    """
    whole, message_of = make_messages(demands, network.num_nodes)
    messages = whole if max_paths == 1 else split_in(whole, max_paths)
    problem = RoutingProblem(
        network, demands, messages, message_of, max_paths, common_divisor(messages.num_bytes)
    )
    return problem.raised(cut_bound(network, messages), "cut")
