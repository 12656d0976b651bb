"""Physical networks: nodes and directed links, one kind of network in each file."""

import sys

from meshwright.base.registry import import_siblings
from meshwright.topology.registry import topologies as topologies

import_siblings(sys.modules[__name__], "topologies")
