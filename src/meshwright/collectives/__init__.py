"""Collectives: the network of a group, algorithms in closed form and message by message, bounds."""

from meshwright.collectives.all_to_all import DirectAllToAll, StagedAllToAll
from meshwright.collectives.block import CentralAllReduce, CycleGather, PipelinedWaveAllReduce, Wave
from meshwright.collectives.registry import Algorithm, collective_algorithms
from meshwright.collectives.ring import GATHER_KINDS, Bucket, Hierarchical, NeighbourSend, Ring
from meshwright.collectives.tree import (
    BinomialBroadcast,
    ChainBroadcast,
    InNetworkAllReduce,
    TreeAllReduce,
    TreeOverRingsAllReduce,
)

# Of algorithms of one kind that are equally fast, the first one here is named as the fastest.
_ENTRIES: dict[str, Algorithm] = {
    **{f"bucket_{kind}": Bucket(kind) for kind in GATHER_KINDS},
    "central_all_reduce": CentralAllReduce(),
    **{f"cycle_{kind}": CycleGather(kind) for kind in GATHER_KINDS},
    **{f"hierarchical_{kind}": Hierarchical(kind) for kind in GATHER_KINDS},
    **{f"pipelined_hierarchical_{kind}": Hierarchical(kind, 32) for kind in GATHER_KINDS},
    "pipelined_in_network_all_reduce": InNetworkAllReduce(num_pieces=32),
    "in_network_all_reduce": InNetworkAllReduce(num_pieces=1),
    **{f"ring_{kind}": Ring(kind) for kind in GATHER_KINDS},
    **{f"two_way_ring_{kind}": Ring(kind, is_grid=True) for kind in GATHER_KINDS},
    **{f"line_{kind}": Ring(kind, is_grid=True, closes=False) for kind in GATHER_KINDS},
    "pipelined_tree_all_reduce": TreeAllReduce(num_pieces=32),
    "tree_all_reduce": TreeAllReduce(num_pieces=1),
    "pipelined_tree_over_rings_all_reduce": TreeOverRingsAllReduce(num_pieces=16),
    "tree_over_rings_all_reduce": TreeOverRingsAllReduce(num_pieces=1),
    **{f"even_wave_{kind}": Wave(kind) for kind in GATHER_KINDS},
    **{f"corner_wave_{kind}": Wave(kind, loads_corners=True) for kind in GATHER_KINDS},
    **{f"pipelined_wave_{n}_all_reduce": PipelinedWaveAllReduce(n) for n in (2, 4, 8, 16)},
    "direct_all_to_all": DirectAllToAll(),
    "hierarchical_relay_all_to_all": StagedAllToAll(relays=True, min_grid_dims=1),
    "hierarchical_all_to_all": StagedAllToAll(),
    "rotated_relay_all_to_all": StagedAllToAll(is_rotated=True, relays=True, min_grid_dims=1),
    "rotated_all_to_all": StagedAllToAll(is_rotated=True),
    "pipelined_chain_broadcast": ChainBroadcast(num_pieces=32),
    "chain_broadcast": ChainBroadcast(num_pieces=1),
    "binomial_broadcast": BinomialBroadcast(),
    "neighbour_send": NeighbourSend(),
}
collective_algorithms.fill(_ENTRIES, "collectives")
