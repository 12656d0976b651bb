"""What fusion counts: the rules of DFModel, and the stricter ones of a chip that runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """Where the two sets of rules differ."""

    writes_once: bool
    """A tensor with several readers is one tensor; else each reader has a copy of its own."""
    counts_ends: bool
    """What enters and leaves the graph passes through DRAM too. What a kernel sums up over all
    tiles (weight gradients) is held like a weight, and read and written once a micro-batch."""
    holds_reads: bool
    """SRAM holds a tensor as its reader needs it: gathered from all devices, and all tiles of what
    is read at once (keys, values); else as its writer leaves it."""
    frees_tensors: bool
    """DRAM holds a tensor from its writing to its last reading, not all tensors at once."""
    counts_fill: bool
    """A partition of several kernels in a row fills and drains once for each micro-batch."""
    rereads: bool
    """A kernel whose weights come in parts reads its inputs once for each part."""


OWN = Rules(
    writes_once=True, counts_ends=True, holds_reads=True, frees_tensors=True,
    counts_fill=True, rereads=True,
)  # fmt: skip
"""Everything that a running chip pays."""

DFMODEL = Rules(
    writes_once=False, counts_ends=False, holds_reads=False, frees_tensors=False,
    counts_fill=False, rereads=False,
)  # fmt: skip
"""The rules of the public implementation of DFModel (Ko et al. 2024, arXiv 2412.16432)."""

RULES = {"own": OWN, "dfmodel": DFMODEL}
