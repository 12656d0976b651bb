"""Physical networks: nodes and directed links, listed one by one."""

from meshwright.topology.hierarchical import Hierarchical
from meshwright.topology.mesh import Mesh, Ring, Torus
from meshwright.topology.network import topologies
from meshwright.topology.switched import (
    Dragonfly,
    FatTree,
    FullyConnected,
    LeafSpine,
    Switch,
)
from meshwright.topology.wafer import MultiWafer, Wafer

topologies.fill(
    {
        "dragonfly": Dragonfly,
        "fat_tree": FatTree,
        "fully_connected": FullyConnected,
        "leaf_spine": LeafSpine,
        "mesh": Mesh,
        "torus": Torus,
        "ring": Ring,
        "wafer": Wafer,
        "multi_wafer": MultiWafer,
        "hierarchical": Hierarchical,
        "switch": Switch,
    },
    "topologies",
)
