"""The best partitions of a graph on a chip, with the proof or the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.base.errors import InfeasibleError
from meshwright.onchip.fusion.lattice import Lattice
from meshwright.onchip.fusion.paths import Path, Steps, best_path
from meshwright.onchip.fusion.prices import PartitionPrices, price_partitions
from meshwright.onchip.fusion.problem import FusionProblem
