"""Collectives: what a group sees of the network, algorithms with two faces, lower bounds."""

from meshwright.base.registry import import_siblings
from meshwright.collectives import algorithms

import_siblings(algorithms, "collectives")
